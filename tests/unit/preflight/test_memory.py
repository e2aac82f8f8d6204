"""Field case 11: another process on the GPU; and whether two engines fit beside each other."""

from __future__ import annotations

from engine_host.preflight.devices import Holder
from engine_host.preflight.memory import CPU_OVERHEAD_BYTES, GPU_OVERHEAD_BYTES, forecast_memory, weights_bytes
from engine_host.protocol.events import Severity
from tests.unit.preflight.facts import GIB, facts, gpu, model, on_gpu

FIXED = {"kv_cache_memory_bytes": 10 * GIB, "gpu_memory_utilization": 0.2}
"""14 GiB of weights and 10 of KV: 27 GiB are taken, 16 asked for at the start."""


def test_weights_kv_and_overhead_are_added_up() -> None:
    result, findings = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(60)])
    assert result.needed_bytes == 24 * GIB + GPU_OVERHEAD_BYTES
    assert result.available_bytes == 60 * GIB
    assert (result.fits_beside, result.fits_alone) == (True, True)
    assert result.kv_bytes == 10 * GIB and result.is_kv_exact
    assert findings == []


def test_another_process_on_the_gpu_is_named_with_what_it_holds() -> None:
    other = Holder(4242, "python3", 70 * GIB)
    result, (finding,) = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(9, 80, other)])
    assert (result.fits_beside, result.fits_alone) == (False, False)
    assert (finding.id, finding.severity) == ("memory.short", Severity.ERROR)
    assert "27 GiB are needed" in finding.text and "9 GiB of 80 GiB are free" in finding.text
    assert "python3 (pid 4242) 70 GiB" in finding.text


def test_an_orphaned_engine_core_is_offered_to_be_ended() -> None:
    """Field case 9."""
    orphan = Holder(77, "VLLM::EngineCore", 70 * GIB, is_orphan=True)
    _, (finding,) = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(9, 80, orphan)])
    assert "left behind by a host that is gone" in finding.text and "kill 77" in finding.remedy


def test_what_fits_only_once_the_running_engine_is_gone_needs_a_reload() -> None:
    result, (finding,) = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(20, gives_back_gib=50)])
    assert (result.fits_beside, result.fits_alone) == (False, True)
    assert (finding.id, finding.severity) == ("memory.not_beside", Severity.INFO)
    assert "20 GiB are free beside" in finding.text and "70 GiB once it is gone" in finding.text


def test_what_fits_beside_the_running_engine_can_overlap() -> None:
    result, findings = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(40, gives_back_gib=30)])
    assert (result.fits_beside, result.fits_alone) == (True, True) and findings == []


def test_what_the_running_engine_gives_back_counts_where_it_lies() -> None:
    two = on_gpu(**FIXED, tensor_parallel_size=2)
    # Half of 14 GiB of weights on each, 10 of KV, 3 for running: 20 on each. The running engine has one GPU.
    devices = [gpu(10, gives_back_gib=60), gpu(10, index=1)]
    result, (finding,) = forecast_memory(two, model(), None, devices)
    assert result.fits_alone is False and finding.id == "memory.short" and "GPU 1" in finding.text
    result, _ = forecast_memory(two, model(), None, [gpu(10, gives_back_gib=60), gpu(22, index=1)])
    assert (result.fits_beside, result.fits_alone) == (False, True)
    assert result.needed_bytes == 40 * GIB and result.available_bytes == 32 * GIB


def test_what_the_running_engine_gives_back_does_not_make_room_beside_it() -> None:
    result, _ = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(26, gives_back_gib=54)])
    assert (result.fits_beside, result.fits_alone) == (False, True)
    assert result.available_bytes == 26 * GIB


def test_another_process_beside_the_running_engine_is_not_given_back() -> None:
    other = Holder(4242, "python3", 60 * GIB)
    result, (finding,) = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(2, 80, other, gives_back_gib=18)])
    assert result.fits_alone is False and finding.severity is Severity.ERROR
    assert "20 GiB of 80 GiB are free (with 18 GiB that the running engine gives back)" in finding.text
    assert "python3 (pid 4242) 60 GiB" in finding.text


def test_a_driver_that_does_not_tell_whose_memory_it_is_refuses_nothing() -> None:
    """In a container process ids are hidden; a switch that works must not be refused for it, nor be called safe."""
    result, (finding,) = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(20, gives_back_gib=None)])
    assert (result.fits_beside, result.fits_alone) == (False, None)
    assert (finding.id, finding.severity) == ("memory.not_told", Severity.WARNING)
    assert "27 GiB are needed" in finding.text and "20 GiB are free" in finding.text


def test_what_fits_beside_fits_whoever_holds_the_rest_and_what_no_gpu_has_never_fits() -> None:
    result, findings = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(40, gives_back_gib=None)])
    assert (result.fits_beside, result.fits_alone) == (True, True) and findings == []
    result, (finding,) = forecast_memory(on_gpu(**FIXED), model(60), None, [gpu(20, 70, gives_back_gib=None)])
    assert result.fits_alone is False and finding.id == "memory.short"


def test_the_fullest_gpu_decides() -> None:
    two = on_gpu(**FIXED, tensor_parallel_size=2)
    result, (finding,) = forecast_memory(two, model(), None, [gpu(70), gpu(5, index=1)])
    assert result.fits_alone is False and "GPU 1" in finding.text


def test_vllm_wants_its_share_free_before_it_loads_anything() -> None:
    """`request_memory` in the worker: also with a KV cache of fixed size."""
    result, (finding,) = forecast_memory(on_gpu(gpu_memory_utilization=0.9), model(), None, [gpu(70)])
    assert result.needed_bytes == 72 * GIB and result.fits_alone is False
    assert "gpu_memory_utilization 0.9 x 80 GiB" in finding.text
    assert "0.87" in finding.remedy


def test_the_share_that_was_offered_is_accepted() -> None:
    result, findings = forecast_memory(on_gpu(gpu_memory_utilization=0.87), model(), None, [gpu(70)])
    assert result.fits_alone is True
    assert not any(finding.severity is Severity.ERROR for finding in findings)


def test_the_kv_cache_is_what_the_share_leaves() -> None:
    result, _ = forecast_memory(on_gpu(gpu_memory_utilization=0.5), model(), None, [gpu(79)])
    assert result.kv_bytes == 40 * GIB - 14 * GIB - GPU_OVERHEAD_BYTES and not result.is_kv_exact


def test_a_share_that_the_weights_fill_leaves_no_kv_cache() -> None:
    result, (finding,) = forecast_memory(on_gpu(gpu_memory_utilization=0.2), model(), None, [gpu(79)])
    assert result.fits_alone is True
    assert (finding.id, finding.severity) == ("memory.no_kv", Severity.ERROR)


def test_a_draft_model_is_weighed_too() -> None:
    result, _ = forecast_memory(on_gpu(**FIXED), model(14), model(1, "draft"), [gpu(60)])
    assert result.needed_bytes == 25 * GIB + GPU_OVERHEAD_BYTES


def test_a_narrow_fit_is_a_warning() -> None:
    result, (finding,) = forecast_memory(on_gpu(**FIXED), model(), None, [gpu(27.5)])
    assert result.fits_alone is True and (finding.id, finding.severity) == ("memory.tight", Severity.WARNING)


def test_the_demo_takes_weights_kv_and_one_gibibyte_on_cpu() -> None:
    result, findings = forecast_memory(facts(), model(0.25), None, [gpu(16, 24)])
    assert result.needed_bytes == GIB // 4 + 75_000_000 + CPU_OVERHEAD_BYTES
    assert result.kv_bytes == 75_000_000 and result.is_kv_exact and findings == []


def test_on_cpu_a_share_of_the_machine_must_be_free_when_nothing_else_is_said() -> None:
    asks = facts(kv_cache_memory_bytes=None, gpu_memory_utilization=0.92)
    result, (finding,) = forecast_memory(asks, model(0.25), None, [gpu(16, 24)])
    assert result.fits_alone is False and "kv_cache_memory_bytes" in finding.remedy


def test_unknown_weights_leave_the_answer_open() -> None:
    result, findings = forecast_memory(facts(), model(None), None, [gpu(16, 24)])
    assert (result.fits_beside, result.fits_alone, result.needed_bytes) == (None, None, None)
    assert findings == []


def test_weights_become_the_engines_dtype_and_quantised_ones_stay() -> None:
    assert weights_bytes(model(8, dtype="F32"), facts(), None, 1) == 4 * GIB
    assert weights_bytes(model(8, dtype="F8_E4M3"), facts(), None, 1) == 8 * GIB
    assert weights_bytes(model(8), facts(), None, 4) == 2 * GIB
    assert weights_bytes(model(8), facts(), "fp8", 1) == 4 * GIB
    assert weights_bytes(model(8, quantization_config={"quant_method": "fp8"}), facts(), "fp8", 1) == 8 * GIB
