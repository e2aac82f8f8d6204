"""The timeline of one switch, and what earlier ones say of the next."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from engine_host.protocol.profiles import Tier
from engine_host.protocol.switching import PhaseName, SwitchPhase

ORDER: Mapping[Tier, tuple[PhaseName, ...]] = {
    Tier.NONE: (PhaseName.PREFLIGHT,),
    Tier.LIVE: (PhaseName.PREFLIGHT, PhaseName.RELEASE),
    Tier.OVERLAP: (
        *(PhaseName.PREFLIGHT, PhaseName.START, PhaseName.PROBE, PhaseName.WARM, PhaseName.HOLD),
        *(PhaseName.CARRY, PhaseName.RELEASE, PhaseName.STOP),
    ),
    Tier.RELOAD: (
        *(PhaseName.PREFLIGHT, PhaseName.PREPARE, PhaseName.HOLD, PhaseName.CARRY, PhaseName.STOP),
        *(PhaseName.START, PhaseName.PROBE, PhaseName.RELEASE),
    ),
}
_GAP: Mapping[Tier, frozenset[PhaseName]] = {
    Tier.OVERLAP: frozenset({PhaseName.RELEASE}),
    Tier.RELOAD: frozenset({PhaseName.STOP, PhaseName.START, PhaseName.PROBE, PhaseName.RELEASE}),
}
"""Phases during which no engine gives tokens."""
_KEPT = 200
"""Forecasts kept; a node knows a dozen profiles."""


class Timeline:
    """Phases of a switch under way; times in seconds since it began."""

    def __init__(self, expected: Mapping[str, float] | None = None) -> None:
        self._began = time.monotonic()
        self._expected = dict(expected or {})
        self._done: list[SwitchPhase] = []
        self._current: SwitchPhase | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def phases(self) -> list[SwitchPhase]:
        return [*self._done, self._current] if self._current is not None else list(self._done)

    @property
    def expected_s(self) -> float | None:
        """Of the whole; None without an earlier switch of this kind."""
        return sum(self._expected.values()) if self._expected else None

    @property
    def left_s(self) -> float | None:
        """Of the phases that have not ended; None without an earlier switch of this kind."""
        ended = {phase.name for phase in self._done}
        return sum(took_s for name, took_s in self._expected.items() if name not in ended) if self._expected else None

    def expect(self, expected: Mapping[str, float]) -> None:
        self._expected = dict(expected)

    @contextlib.contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """The phase counts also when it fails."""
        self._current = SwitchPhase(name=name, at_s=self.elapsed_s, expected_s=self._expected.get(name))
        try:
            yield
        finally:
            took_s = self.elapsed_s - self._current.at_s
            self._done.append(msgspec.structs.replace(self._current, took_s=took_s))
            self._current = None

    def note(self, text: str) -> None:
        """Say of the current phase what it did."""
        if self._current is not None:
            self._current = msgspec.structs.replace(self._current, note=text)

    def durations(self) -> dict[str, float]:
        return {str(phase.name): phase.took_s for phase in self._done if phase.took_s is not None}


class PhaseTimes:
    """Durations of the phases of the last good switch to each profile (by digest) and tier, kept over host runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def expected(self, digest: str, tier: Tier) -> dict[str, float]:
        return self._read().get(f"{digest}:{tier}", {})

    def remember(self, digest: str, tier: Tier, durations: Mapping[str, float]) -> None:
        """A forecast is a convenience: a disk that cannot keep it must not fail a switch."""
        times = self._read()
        times.pop(f"{digest}:{tier}", None)
        times[f"{digest}:{tier}"] = {name: round(took_s, 3) for name, took_s in durations.items()}
        newest = dict(list(times.items())[-_KEPT:])
        with contextlib.suppress(OSError):
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(newest))
            part.replace(self._path)

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, dict[str, float]])
        except (OSError, msgspec.MsgspecError):
            return {}


def forecast(
    tier: Tier, expected: Mapping[str, float], start_expected_s: float | None
) -> tuple[list[SwitchPhase], float | None, float | None]:
    """`(phases, expected total, expected gap)`, seconds; None where a phase has no earlier figure."""
    known = dict(expected)
    if PhaseName.START not in known and start_expected_s is not None:
        known[PhaseName.START] = start_expected_s
    phases: list[SwitchPhase] = []
    at_s, gap_s = 0.0, 0.0
    is_known = True
    for name in ORDER[tier]:
        took_s = known.get(name)
        phases.append(SwitchPhase(name=name, at_s=at_s, expected_s=took_s))
        if took_s is None:
            is_known = False
            continue
        at_s += took_s
        gap_s += took_s if name in _GAP.get(tier, ()) else 0.0
    return phases, at_s if is_known else None, gap_s if is_known else None
