"""Switches of a scripted host that pass through their phases as time goes by, for looking at them by eye.

A switch to `kv-4bit` fails in its start and is rolled back; every other one works. Each takes a quarter of a minute.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import ProfileRef
from engine_host.protocol.switching import Outcome, PhaseName, SwitchPhase, SwitchProgress
from tests.console import sample_switch
from tests.console.scripted_host import ScriptedHost

TAKES: tuple[tuple[PhaseName, float, str], ...] = (
    (PhaseName.PREFLIGHT, 1.5, "config builds, tokenizers agree"),
    (PhaseName.HOLD, 0.1, "49 requests held"),
    (PhaseName.CARRY, 0.5, "45 carried, 3 drained, 1 begun again"),
    (PhaseName.STOP, 2.0, ""),
    (PhaseName.START, 9.0, ""),
    (PhaseName.PROBE, 0.4, ""),
    (PhaseName.RELEASE, 0.1, ""),
)
FAILS = "kv-4bit"
TICK_S = 0.1

_change = msgspec.structs.replace


class ScriptedSwitches:
    def __init__(self, host: ScriptedHost) -> None:
        self._host = host
        self._asked: asyncio.Queue[str] = asyncio.Queue()
        self._is_cancelled = False

    def begin(self, params: dict[str, Any]) -> None:
        self._host.held["switch"] = asyncio.Event()
        self._asked.put_nowait(params["profile"])

    def cancel(self, params: dict[str, Any]) -> None:
        self._is_cancelled = True

    async def run(self) -> None:
        while True:
            await self._play(await self._asked.get())

    async def _play(self, profile: str) -> None:
        host, self._is_cancelled = self._host, False
        before, since = host.snapshot, time.time()
        streamed, host.next_snapshot = host.next_snapshot, None
        done: list[SwitchPhase] = []
        began = time.monotonic()
        for name, takes_s, note in TAKES:
            phase = SwitchPhase(name=name, at_s=time.monotonic() - began, expected_s=takes_s * 0.9)
            while (elapsed_s := time.monotonic() - began) - phase.at_s < takes_s and not self._is_cancelled:
                progress = SwitchProgress(
                    from_profile=before.profile.name,
                    to_profile=profile,
                    tier=Tier.RELOAD,
                    who="ops",
                    since=since,
                    elapsed_s=elapsed_s,
                    expected_s=13.0,
                    phases=[*done, phase],
                    can_cancel=name not in {PhaseName.PROBE, PhaseName.RELEASE},
                )
                host.snapshot = _change(
                    sample_switch.switching(progress), at=time.time(), state_since=since, profile=before.profile
                )
                await asyncio.sleep(TICK_S)
            done.append(_change(phase, took_s=elapsed_s - phase.at_s, note=note))
            if self._is_cancelled or (profile == FAILS and name is PhaseName.START):
                break
        self._end(profile, before.profile, time.monotonic() - began, since, done)
        ran = host.result.outcome is Outcome.SWITCHED
        now = ProfileRef(name=profile, digest="9d02e77b", path=f"{sample_switch.DIRECTORY}/{profile}.toml")
        host.snapshot = _change(before, at=time.time(), state_since=time.time(), profile=now if ran else before.profile)
        host.next_snapshot = streamed
        host.held.pop("switch").set()

    def _end(self, profile: str, former: ProfileRef, took_s: float, since: float, done: list[SwitchPhase]) -> None:
        sample = sample_switch.result()
        if self._is_cancelled:
            sample = _change(sample, outcome=Outcome.CANCELLED, text=f"cancelled by ops; {former.name} runs on")
        elif profile == FAILS:
            sample = sample_switch.rolled_back()
        self._host.result = _change(
            sample, from_profile=former.name, to_profile=profile, took_s=took_s, at=since, phases=done
        )
        self._host.last = self._host.result
