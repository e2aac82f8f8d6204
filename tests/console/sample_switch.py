"""Fixed values of profiles and switches for the console's tests."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding, KeyChange, ProfileDiff, ProfileList, ProfileSummary, Tier
from engine_host.protocol.snapshot import Engine, Kv, Queue, Snapshot, State, Throughput
from engine_host.protocol.speculation import Speculation
from engine_host.protocol.switching import (
    NOT_NOW,
    Outcome,
    PhaseName,
    SwitchForecast,
    SwitchPhase,
    SwitchProgress,
    SwitchResult,
)
from tests.console import sample

DIRECTORY = "/etc/vllm-console/profiles"


def summary(name: str, description: str = "", **changes: Any) -> ProfileSummary:
    whole = ProfileSummary(
        name=name, path=f"{DIRECTORY}/{name}.toml", description=description, digest=f"{name:0<8}"[:8]
    )
    return msgspec.structs.replace(whole, **changes)


def profiles() -> ProfileList:
    return ProfileList(
        directory=DIRECTORY,
        profiles=[
            summary("demo", "SmolLM2-135M on CPU with n-gram drafts; needs no GPU", digest="0b31c9d4"),
            summary("kv-4bit", "KV cache in 4 bits: twice the requests, a little less exact", digest="77aa02e1"),
            summary("latency", "One H200; few sequences, five draft tokens", digest="4f1c2a90", is_running=True),
            summary("long-context", "128k tokens a request, eight at a time", digest="c2290fde"),
            summary(
                "old-cluster",
                digest=None,
                error="old-cluster.toml: engine.ngram_prompt_lookup_max is no key of vLLM 0.32; "
                "the nearest is engine.speculative_config.prompt_lookup_max",
            ),
            summary("throughput", "One H200; 256 sequences, no drafting, for batch work", digest="9d02e77b"),
        ],
    )


def many_profiles(number: int = 40) -> ProfileList:
    """More than fit, one of them with a name as long as the protocol allows."""
    names = [f"tenant-{i:02}" for i in range(number - 2)]
    found = [summary(name, f"for tenant {name[-2:]}") for name in names]
    long = "qwen2.5-72b-instruct-on-eight-a100-with-tensor-parallel-and-kv-offload-" * 3
    return ProfileList(
        directory=DIRECTORY,
        profiles=[summary("latency", is_running=True), summary(long[:200], "the classic deployment"), *found],
    )


def broken_profiles(number: int = 40) -> ProfileList:
    """A directory in which somebody has misspelt a key of the base that all but one extend."""
    reason = "base.toml: engine.max_num_seq is no key of vLLM 0.32; the nearest is engine.max_num_seqs. " * 4
    found = [summary(f"tenant-{i:02}", digest=None, error=f"tenant-{i:02} {reason}") for i in range(number - 1)]
    return ProfileList(directory=DIRECTORY, profiles=[summary("latency", is_running=True), *found])


CHANGES = [
    KeyChange(key="engine.max_num_seqs", before=64, after=256, tier=Tier.OVERLAP),
    KeyChange(key="engine.max_num_batched_tokens", before=8192, after=32768, tier=Tier.OVERLAP),
    KeyChange(key="engine.gpu_memory_utilization", before=0.85, after=0.94, tier=Tier.RELOAD),
    KeyChange(
        key="engine.speculative_config",
        before={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
        after=None,
        tier=Tier.RELOAD,
    ),
    KeyChange(key="dials.max_active_seqs", before=None, after=192, tier=Tier.LIVE),
]


def diff(**changes: Any) -> ProfileDiff:
    whole = ProfileDiff(before="latency", after="throughput", tier=Tier.RELOAD, changes=CHANGES)
    return msgspec.structs.replace(whole, **changes)


EXPECTED: tuple[tuple[PhaseName, float], ...] = (
    (PhaseName.PREFLIGHT, 1.9),
    (PhaseName.HOLD, 0.004),
    (PhaseName.CARRY, 0.31),
    (PhaseName.STOP, 3.2),
    (PhaseName.START, 84.0),
    (PhaseName.PROBE, 0.21),
    (PhaseName.RELEASE, 0.02),
)


def expected_phases() -> list[SwitchPhase]:
    at_s = 0.0
    phases = []
    for name, expected_s in EXPECTED:
        phases.append(SwitchPhase(name=name, at_s=at_s, expected_s=expected_s))
        at_s += expected_s
    return phases


WARNING = Finding(
    id="option.dead",
    severity=Severity.WARNING,
    text="engine.speculative_config.disable_by_batch_size has no effect in vLLM 0.32",
    remedy="Use a schedule by batch size: num_speculative_tokens_per_batch_size",
)

ERROR = Finding(
    id="memory.short",
    severity=Severity.ERROR,
    text="the engine needs 132 GiB; 118 GiB will be free once the running one has ended, as python3 (991) holds 23 GiB",
    remedy="Lower engine.gpu_memory_utilization to 0.83, or end that process",
)


def forecast(**changes: Any) -> SwitchForecast:
    whole = SwitchForecast(
        from_profile="latency",
        to_profile="throughput",
        tier=Tier.RELOAD,
        tier_reason="both engines need 262 GiB, 141 GiB are there",
        ok=True,
        findings=[WARNING],
        changes=CHANGES,
        phases=expected_phases(),
        expected_s=89.6,
        expected_gap_s=87.7,
        running=37,
        waiting=12,
        will_carry=45,
        will_drain=3,
        will_replay=1,
    )
    return msgspec.structs.replace(whole, **changes)


def refused() -> SwitchForecast:
    return forecast(ok=False, findings=[WARNING, ERROR])


def refused_now() -> SwitchForecast:
    """Of a host that starts."""
    text = "a switch is refused now: the host is starting"
    finding = Finding(id=NOT_NOW, severity=Severity.ERROR, text=text, remedy="Try again.")
    return forecast(ok=False, findings=[finding])


def overlapping_forecast(**changes: Any) -> SwitchForecast:
    """What the host would choose where both engines fit."""
    changed = {"tier": Tier.OVERLAP, "tier_reason": "both engines fit", "expected_s": 91.2, "expected_gap_s": 0.4}
    return forecast(**{**changed, "will_drain": 0, "will_replay": 0, "will_carry": 49, **changes})


TOOK = (1.84, 0.004, 0.29, 3.1)
"""What the first phases took in the samples."""

NOTES = ("config builds, tokenizers agree", "49 requests held", "45 carried, 3 drained, 1 begun again", "")


def progress(elapsed_s: float = 42.0, **changes: Any) -> SwitchProgress:
    """A reload in its start phase."""
    phases = [
        msgspec.structs.replace(phase, took_s=took_s, note=note)
        for phase, took_s, note in zip(expected_phases(), TOOK, NOTES, strict=False)
    ]
    began_s = sum(TOOK)
    phases.append(SwitchPhase(name=PhaseName.START, at_s=began_s, expected_s=84.0))
    whole = SwitchProgress(
        from_profile="latency",
        to_profile="throughput",
        tier=Tier.RELOAD,
        who="maria",
        since=sample.AT - elapsed_s,
        elapsed_s=elapsed_s,
        expected_s=89.6,
        phases=phases,
        can_cancel=True,
    )
    return msgspec.structs.replace(whole, **changes)


def preparing() -> SwitchProgress:
    """A reload whose new engine starts as far as it comes without the device."""
    began = progress()
    phases = [*began.phases[:1], SwitchPhase(name=PhaseName.PREPARE, at_s=TOOK[0], expected_s=12.0)]
    return msgspec.structs.replace(began, elapsed_s=8.0, phases=phases)


def switching(under_way: SwitchProgress | None = None) -> Snapshot:
    """No engine between the old and the new one; what comes is held at the gate."""
    return sample.serving(
        state=State.SWITCHING,
        state_since=sample.AT - 42,
        state_version=8,
        kv=Kv(),
        queue=Queue(held=14),
        speculation=Speculation(),
        throughput=Throughput(),
        engine=Engine(
            vllm_version="0.32.0",
            model="Qwen/Qwen2.5-72B-Instruct",
            generation=3,
            phase="loading weights",
            phase_elapsed_s=20.0,
            switch=under_way or progress(),
        ),
    )


def overlapping() -> Snapshot:
    """The old engine serves while the new one starts."""
    base = sample.serving()
    phases = expected_phases()
    return sample.serving(
        state=State.SWITCHING,
        state_since=sample.AT - 20,
        engine=msgspec.structs.replace(
            base.engine,
            phase="loading weights",
            switch=progress(
                20.0,
                tier=Tier.OVERLAP,
                phases=[msgspec.structs.replace(phases[0], took_s=1.8), msgspec.structs.replace(phases[4], at_s=1.8)],
            ),
        ),
    )


def result(**changes: Any) -> SwitchResult:
    took = (*TOOK, 81.2, 0.19, 0.02)
    whole = SwitchResult(
        outcome=Outcome.SWITCHED,
        text="it serves; no request failed",
        from_profile="latency",
        to_profile="throughput",
        tier=Tier.RELOAD,
        who="maria",
        at=sample.AT - 87,
        took_s=86.7,
        gap_s=84.9,
        carried=45,
        drained=3,
        replayed=1,
        held=62,
        phases=[
            msgspec.structs.replace(phase, took_s=took_s, note=note)
            for phase, took_s, note in zip(expected_phases(), took, (*NOTES, "", "", ""), strict=True)
        ],
    )
    return msgspec.structs.replace(whole, **changes)


def rolled_back() -> SwitchResult:
    base = result()
    return result(
        outcome=Outcome.ROLLED_BACK,
        text=f"the engine did not start: {sample.FAILURE.reason}; the former profile serves again",
        lines=sample.FAILURE.lines,
        took_s=131.0,
        gap_s=129.0,
        phases=[
            *base.phases[:4],
            msgspec.structs.replace(base.phases[4], took_s=41.2, note="failed: the KV cache is too small"),
            SwitchPhase(name=PhaseName.ROLLBACK, at_s=46.4, took_s=84.5, note="latency serves again"),
        ],
    )


def cancelled() -> SwitchResult:
    base = result()
    return result(
        outcome=Outcome.CANCELLED,
        text="maria cancelled the switch to throughput; latency goes on",
        took_s=2.2,
        gap_s=None,
        carried=0,
        drained=0,
        replayed=0,
        phases=[*base.phases[:2], msgspec.structs.replace(base.phases[2], note="draining 3, carrying 45")],
    )
