"""The overview as text: what stands where, in every state and size."""

from __future__ import annotations

import unicodedata

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import panels
from console.commands.screen import status_lines, watch_line
from console.frame import Moment
from console.lines import Tone, cells, plain_text
from console.model import Connected, Disconnected, EventArrived, Freeze, HistoryArrived, SnapshotArrived, State, reduce
from console.overview import overview
from console.switch_panels import progress_lines
from engine_host.protocol.methods import Role
from engine_host.protocol.snapshot import Alert, Failure, Gpu, Kv, Queue, Snapshot
from engine_host.protocol.speculation import Speculation
from tests.console import sample, sample_switch
from tests.console.anything import anything

SCENES = {
    "serving": sample.serving,
    "idle": sample.idle_cpu,
    "starting": sample.starting,
    "dead": sample.dead,
    "recovering": sample.recovering,
    "draining": sample.draining,
    "paused": sample.paused,
    "hung": sample.hung,
    "switching": sample_switch.switching,
    "overlapping": sample_switch.overlapping,
}


def state_of(snapshot, *more, role=Role.ADMIN):
    state = State(target="/run/host.sock")
    events = [EventArrived(e) for e in sample.events()]
    messages = [
        Connected(sample.hello(role), 0.0),
        HistoryArrived(sample.history()),
        *events,
        SnapshotArrived(snapshot, 0.0),
    ]
    for message in [*messages, *more]:
        state = reduce(state, message)
    return state


def page(snapshot, *more, width=80, height=23, now=0.5, role=Role.ADMIN):
    rows = overview(state_of(snapshot, *more, role=role), Moment(now, sample.AT + now), width, height)
    return "\n".join(plain_text(row).rstrip() for row in rows)


@pytest.mark.parametrize("scene", SCENES)
@given(width=st.integers(1, 240), height=st.integers(1, 80))
@settings(max_examples=60)
def test_a_page_has_exactly_the_size_of_its_terminal(scene, width, height):
    rows = overview(state_of(SCENES[scene]()), Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height


@pytest.mark.parametrize(
    "what",
    ["gpu-7", "SERVING", "latency", "Qwen2.5-72B-Instruct", "0.32.0", "3d04h", "68.2 %", "41,231 of 60,412 blocks",
     "966,592 tokens", "running    37", "waiting    12", "oldest wait  1.80 s", "preempted    0 /s", "71.2 %",
     "3.93 tokens", "88%", "55%", "K 5 of max 5", "2.73k /s", "1.94k /s", "out 2.14k /s", "in 9.83k /s", "182 ms",
     "637 ms", "1.20 s", "9.40 ms", "3.21 s", "412", "41.2 %", "(1 min)", "(10 s)", "in flight    49", "23.1 %",
     "131 of 141 GiB", "restart refused", "you: ops, admin"],
)  # fmt: skip
def test_everything_essential_stands_on_80_by_24(what):
    assert what in page(sample.serving())


def test_an_idle_host_shows_dashes_where_nothing_is_known():
    text = page(sample.idle_cpu())
    assert "off: no draft tokens in this profile" in text
    assert "no GPU on this host" in text
    assert "out   – /s" in text.replace("    ", "  ") or "– /s" in text
    assert "none" in text  # no latency samples in the window


def test_of_several_engine_cores_the_gauge_says_which_it_is_of():
    base = sample.serving()
    some = msgspec.structs.replace(base.kv, usage=0.29, usage_by_engine=[0.29, 0.23])
    assert "29.0 %  in the fullest of 2" in page(msgspec.structs.replace(base, kv=some))
    one = msgspec.structs.replace(base.kv, usage=0.97, usage_by_engine=[0.97, 0.23])
    assert "97.0 %  ▲ FULL  1 of 2 cores" in page(msgspec.structs.replace(base, kv=one))


def test_a_hung_engine_is_named_though_the_state_is_serving():
    assert "HUNG: requests run, no token for 42 s" in page(sample.hung())
    stuck = sample.serving(queue=Queue(running=0, waiting=4, stalled=True, stalled_reason="stuck"))
    assert "STUCK: requests wait, none runs" in page(stuck)


def test_starting_shows_the_phase_and_how_long_it_will_take():
    text = page(sample.starting())
    assert "loading weights" in text
    assert "24 s of about 1m24s" in text
    assert "KV cache" not in text


def test_a_start_that_takes_longer_than_the_last_one_says_so():
    base = sample.starting()
    late = msgspec.structs.replace(base, engine=msgspec.structs.replace(base.engine, start_elapsed_s=100.0))
    assert "longer than the 1m24s of last time" in page(late)
    first = msgspec.structs.replace(base, engine=msgspec.structs.replace(base.engine, start_expected_s=None))
    assert "no estimate" in page(first)


def test_a_dead_engine_shows_reason_its_last_words_and_the_remedy():
    text = page(sample.dead())
    assert "× DEAD" in text
    assert "the KV cache is too small for max_model_len 32768" in text
    assert "larger than the available KV cache memory (6.21 GiB)." in text
    assert "3 of 3 crashes" in text
    assert "vllm-console restart" in text


def test_ordinary_last_lines_of_a_dead_engine_are_not_called_errors():
    base = sample.dead()
    failure = Failure(at=sample.AT, reason="killed by SIGKILL", last_lines=["GET /health HTTP/1.1 200 OK"])
    text = page(msgspec.structs.replace(base, engine=msgspec.structs.replace(base.engine, failure=failure)))
    assert "It printed no error; its last lines:" in text and "GET /health" in text
    assert "error lines" not in text


def test_an_api_that_speaks_https_is_named_so():
    base = sample.serving()
    snapshot = msgspec.structs.replace(base, host=msgspec.structs.replace(base.host, tls=True))
    text = "\n".join(plain_text(row) for row in status_lines(snapshot, 100))
    assert f"https://{base.host.http}" in text


def test_the_remedy_of_a_dead_engine_survives_any_length_of_error():
    base = sample.dead()
    failure = Failure(at=sample.AT, reason="r " * 400, lines=["x" * 500] * 50)
    flood = msgspec.structs.replace(base, engine=msgspec.structs.replace(base.engine, failure=failure))
    text = page(flood)
    assert "vllm-console restart" in text
    assert "Events" in text


def test_a_recovering_engine_counts_down():
    assert "restarts in 4 s by itself" in page(sample.recovering())


def test_draining_says_what_is_left_and_how_long_it_gets():
    assert "Draining for 8 s: 49 requests left, 42 s at most; new requests are refused." in page(sample.draining())
    told = "\n".join(plain_text(row) for row in status_lines(sample.draining(), 100))
    assert "49 requests left, 42 s at most" in told


def test_draining_counts_what_is_left_where_the_host_does_not_say():
    silent = msgspec.structs.replace(sample.draining(), engine=sample.serving().engine)
    assert "Draining for 8 s: 49 requests left to finish" in page(silent)


def test_a_drain_that_has_stopped_the_engine_says_so_and_shows_no_figures_of_it():
    base = sample.draining()
    gone = msgspec.structs.replace(base.engine, uptime_s=None, phase=None)
    text = page(msgspec.structs.replace(base, engine=gone, queue=Queue(), kv=Kv(), speculation=Speculation()))
    assert "Draining for 8 s: nothing left, engine stopped; new requests are refused." in text
    assert "KV cache" not in text
    assert "no draft tokens" not in text


def test_a_switch_is_told_to_everybody_with_its_phase_and_how_long_it_takes():
    text = page(sample_switch.switching(), role=Role.VIEWER)
    for what in ("↔ SWITCHING", "latency → throughput   reload   by maria since 07:32:38", "42 s of about 1m30s",
                 "start: loading weights   37 s of about 1m24s", "14 wait at the gate", "Events"):  # fmt: skip
        assert what in text
    assert "KV cache" not in text


def test_what_an_engine_does_that_is_prepared_for_a_reload_is_told():
    text = page(sample_switch.switching(sample_switch.preparing()))
    assert "prepare: loading weights   6 s of about 12 s" in text


def test_while_the_old_engine_serves_on_its_gauges_stay():
    text = page(sample_switch.overlapping())
    assert "latency → throughput   overlap" in text
    assert "68.2 %" in text


def test_a_switch_that_takes_longer_than_expected_says_so():
    assert "1m40s, longer than the expected 1m30s" in page(sample_switch.switching(sample_switch.progress(100.0)))
    unknown = sample_switch.progress(expected_s=None)
    assert "42 s; no such switch was timed yet" in page(sample_switch.switching(unknown))


def test_names_as_long_as_they_may_be_leave_both_in_sight():
    long = sample_switch.progress(from_profile="a" * 200, to_profile="b" * 200)
    row = next(r for r in page(sample_switch.switching(long)).splitlines() if r.startswith("Switching"))
    assert "aaa… → bbb" in row
    assert "by maria" in row


def test_a_lost_connection_is_a_banner_with_age_and_next_try():
    text = page(sample.serving(), Disconnected("the host closed it", 10.0, 14.0), now=12.0)
    assert "NO CONNECTION for 2 s, next try in 2 s" in text
    assert "the host closed it" in text
    assert "68.2 %" in text


def test_values_that_may_be_old_lose_their_colour():
    rows = overview(state_of(sample.serving(), Disconnected("gone", 1.0, 2.0)), Moment(1.5, sample.AT), 80, 23)
    kv = next(row for row in rows if "KV cache" in plain_text(row))
    assert {tone for text, tone in kv if text.strip()} == {Tone.FAINT}


def test_old_values_on_a_living_connection_are_stale_with_their_age():
    assert "STALE: these values are 30 s old" in page(sample.serving(age_s=0.0), now=30.0)


def test_a_frozen_page_says_since_when_and_keeps_its_numbers():
    later = sample.serving(seq=100, queue=Queue(running=1, waiting=0))
    text = page(sample.serving(), Freeze(1.0, sample.AT), SnapshotArrived(later, 2.0), now=5.0)
    assert "FROZEN at" in text
    assert "running    37" in text


def test_a_frozen_page_still_tells_of_a_lost_connection():
    text = page(sample.serving(), Freeze(1.0, sample.AT), Disconnected("gone", 2.0, 9.0), now=5.0)
    assert "FROZEN" in text
    assert "NO CONNECTION" in text


def test_a_viewer_is_told_that_the_console_is_read_only():
    assert "viewer (read-only)" in page(sample.serving(), role=Role.VIEWER)


@pytest.mark.parametrize(("width", "height"), [(79, 23), (80, 22), (40, 5), (60, 10)])
def test_a_terminal_too_small_still_shows_the_essence(width, height):
    text = page(sample.serving(), width=width, height=height)
    assert "SERVING" in text
    assert "KV 68.2 %" in text
    assert "run 37 wait 12" in text
    assert "80x24 needed" in text


def test_a_small_page_says_when_it_is_frozen_or_stale():
    frozen = page(sample.serving(), Freeze(0.5, sample.AT), width=60, height=5)
    assert "SERVING FROZEN KV" in frozen
    assert "SERVING STALE KV" in page(sample.serving(), now=60.0, width=60, height=5)
    assert "SERVING HUNG KV" in page(sample.hung(), width=60, height=5)


def test_more_gpus_than_rows_are_summed_up():
    gpus = [
        Gpu(index=i, name="H200", utilization=0.1 * i, memory_used_bytes=10 << 30, memory_total_bytes=141 << 30)
        for i in range(8)
    ]
    text = page(sample.serving(gpus=gpus))
    assert "GPU 0-7" in text
    assert "80.0 of 1128 GiB" in text


def test_a_mig_slice_without_utilisation_shows_dashes():
    assert "busy      –   memory – of –" in page(sample.serving(gpus=[Gpu(index=0, name="MIG 1g.18gb")]))


def test_a_large_terminal_shows_all_three_windows_and_the_processes():
    text = page(sample.serving(), width=160, height=49)
    for what in ("10 s", "1 min", "5 min", "in the queue", "VLLM::EngineCore (4300)", "python3 (991)  not ours"):
        assert what in text


def test_an_alert_of_the_host_takes_the_line_under_the_title():
    alerts = [Alert(id="kv", severity="warning", text="KV 94 % for 3 min", since=sample.AT - 180)] * 2
    assert "▲ KV 94 % for 3 min  and 1 more" in page(sample.serving(alerts=alerts))


@given(anything(Snapshot), st.integers(60, 200), st.integers(2, 60))
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_no_snapshot_a_host_can_send_breaks_a_page(snapshot, width, height):
    """Whatever numbers and texts it carries: the page has its size and nothing in it drives the terminal."""
    rows = overview(state_of(snapshot), Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height
    assert not any(unicodedata.category(c) == "Cc" for row in rows for c in plain_text(row))
    told = [*status_lines(snapshot, width), watch_line(snapshot)]
    assert not any(unicodedata.category(c) == "Cc" for row in told for c in plain_text(row))


def test_names_from_outside_cannot_drive_the_terminal():
    base = sample.serving()
    nasty = msgspec.structs.replace(base, host=msgspec.structs.replace(base.host, name="a\x1b[2J"))
    assert "\x1b" not in page(nasty)


def test_a_deep_draft_that_does_not_fit_says_how_many_positions_are_left_out():
    base = sample.serving()
    deep = msgspec.structs.replace(base.speculation, per_position=[0.5] * 15, k=15, k_max=15)
    text = page(msgspec.structs.replace(base, speculation=deep))
    assert "+7" in text


def test_a_dead_host_that_will_try_again_by_itself_does_not_say_that_it_has_given_up():
    dead = sample.dead()
    trying = msgspec.structs.replace(dead, engine=msgspec.structs.replace(dead.engine, restart_in_s=4.0))
    told = "\n".join(plain_text(one) for one in status_lines(trying, 100))
    assert "restarts in" in told and "given up" not in told


def test_a_switch_whose_old_engine_has_died_says_so_and_what_becomes_of_requests():
    told = "has died, new requests wait for the next one: the engine core (pid 51) was killed by SIGKILL"
    died = sample_switch.progress(died="the engine core (pid 51) was killed by SIGKILL")
    assert told in " ".join(page(sample_switch.switching(died)).split())
    assert told in " ".join(" ".join(map(plain_text, progress_lines(died, 100))).split())
    assert "has died" not in page(sample_switch.switching())


THROTTLED = msgspec.structs.replace(
    sample.serving().throttle,
    auto="observe",
    auto_text="KV 94 % for 3 s: would move the cap 64 → 32",
    auto_at=sample.AT - 4,
    max_inflight=16,
    refused_total=17,
    limited_by=["max_inflight", "prompt_token_burst", "hold_deadline_s"],
    set_by={"max_inflight": "ops", "prompt_token_burst": "ops", "hold_deadline_s": "kim"},
)


def throttle_row(width=80, **changes):
    gate = msgspec.structs.replace(THROTTLED, **changes)
    row = panels.throttle(sample.serving(throttle=gate), width)
    assert cells(row) <= width
    return plain_text(row)


def test_the_throttle_fits_with_all_that_it_may_say():
    assert throttle_row() == "Throttle   in flight    49  cap    16 (ops)  refused    17  auto observe  2 set"
    assert throttle_row(limited_by=["max_inflight"]).endswith("auto observe")
    assert throttle_row(120).endswith("auto observe  set: prompt_token_burst, hold_deadline_s")
    assert throttle_row(160).endswith("auto observe  set: prompt_token_burst (ops), hold_deadline_s (kim)")
    assert throttle_row(auto="off", limited_by=["hold_queue"]).endswith("cap    16  refused    17  set: hold_queue")
    assert throttle_row(auto="off", limited_by=[]).endswith("refused    17  since start")


def test_whose_the_cap_is_gives_way_to_what_else_is_set():
    by_many = {"max_inflight": "maria.fernandez", "hold_queue": "ops"}
    assert throttle_row(auto="off", limited_by=["max_inflight"], set_by=by_many).endswith(
        "(maria.ferna…)  refused    17"
    )
    assert "cap    16 (mar…)  refused" in throttle_row(set_by=by_many)
    assert "cap    16 (auto)  refused" in throttle_row(auto="on", set_by={"max_inflight": "auto"})
    assert "cap    16 (set)  refused" in throttle_row(set_by={})  # an older host does not tell


def test_a_gate_that_is_closed_says_so_unless_the_state_does():
    assert throttle_row(paused=True, auto="on", limited_by=["paused"]).startswith("Throttle   paused  in flight")
    assert "paused" not in plain_text(panels.throttle(sample.paused(), 80))
    assert throttle_row(draining=True, auto="off").startswith("Throttle   draining  in flight")


def test_what_the_controller_did_last_is_told_where_there_is_room():
    state = state_of(sample.serving(throttle=THROTTLED))
    said = "  auto     07:33:16 KV 94 % for 3 s: would move the cap 64 → 32"
    for size, is_told in (((80, 23), False), ((80, 39), True), ((160, 49), True)):
        rows = [plain_text(row) for row in overview(state, Moment(0.5, sample.AT), *size)]
        assert any(said in row for row in rows) is is_told
    quiet = state_of(sample.serving(throttle=msgspec.structs.replace(THROTTLED, auto="off")))
    assert not any(said in plain_text(row) for row in overview(quiet, Moment(0.5, sample.AT), 80, 39))


def test_a_throttle_from_outside_does_not_drive_the_terminal():
    spoilt = "\x1b[31m\nred"
    gate = msgspec.structs.replace(THROTTLED, auto=spoilt, auto_text=spoilt, limited_by=[spoilt, "max_inflight"])
    gate = msgspec.structs.replace(gate, set_by={spoilt: spoilt, "max_inflight": spoilt})
    snapshot = sample.serving(throttle=gate)
    said = "".join(plain_text(row) for row in [panels.throttle(snapshot, 200), *panels.auto(snapshot, 80)])
    assert "\x1b" not in said
    assert "\n" not in said
