"""Acceptance of draft tokens, counted by position; and what to expect at positions not drafted lately, or never.

vLLM verifies a draft up to its first rejected token, so what it counts at position i is
    P(i) = P(token i accepted | i tokens drafted) = c(1) * ... * c(i),
c(i) being the conditional rate P(i accepted | i - 1 accepted). P never grows with i. K moves while an engine runs, so
every position has its own denominator: the drafts that were at least that long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_host.protocol.speculation import SpeculationWindow

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MIN_DRAFTS = 200
"""That reached a position, before its rate is believed: at a rate of 0.5 the standard error is 0.035 then."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of one window."""

    span_s: float
    """Seconds that it covers."""
    drafts: int
    drafted: int
    accepted: int
    reached: Counts
    """Drafts at least that long, by position, [positions]."""
    passed: Counts
    """Of those, accepted up to this position, [positions]."""

    @property
    def rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_length(self) -> float | None:
        """vLLM's mean acceptance length, 1 + accepted / drafts: the token that the target model adds is included."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    def per_position(self, k_max: int) -> list[float | None]:
        counts = zip(self.passed[:k_max], self.reached[:k_max], strict=True)
        return [float(passed / reached) if reached else None for passed, reached in counts]

    def window(self, k_max: int) -> SpeculationWindow:
        return SpeculationWindow(
            drafts=self.drafts,
            acceptance_rate=self.rate,
            mean_acceptance_length=self.mean_length,
            per_position=self.per_position(k_max),
            drafted_per_s=self.drafted / self.span_s,
            accepted_per_s=self.accepted / self.span_s,
        )


@dataclass(frozen=True, slots=True)
class PositionRates:
    """P(i) for every position that could be drafted."""

    rates: Floats
    """[k_max]"""
    drafts: Counts
    """That each rate rests on, [k_max]; 0 where it is inferred."""
    known: int
    """Positions whose rate was counted; those after them are inferred."""

    def accepted(self, shorter: int, longer: int) -> tuple[float, float]:
        """Tokens of a draft accepted at positions `shorter` + 1 to `longer`: their mean and standard deviation.

        Of the number N accepted there, E[N] = sum of P(shorter + m), and E[N^2] = sum of (2m - 1) P(shorter + m).
        """
        rates = self.rates[shorter:longer]
        mean = float(rates.sum())
        square = float((rates * (2 * np.arange(1, len(rates) + 1) - 1)).sum())
        return mean, float(np.sqrt(max(square - mean * mean, 0.0)))

    def accepted_error(self, shorter: int, longer: int) -> float:
        """Standard error of that mean, as far as it was counted."""
        drafts = self.drafts[shorter : min(longer, self.known)]
        return self.accepted(shorter, longer)[1] / float(np.sqrt(drafts.min())) if len(drafts) else 0.0


def position_rates(windows: Sequence[Acceptance], k_max: int) -> PositionRates:
    """P(i) from windows, the shortest first: each position's conditional rate is taken from the first window in which
    `MIN_DRAFTS` drafts reached it, so what was drafted under a larger K minutes ago still counts, relative to now.

    After the last such position the conditional rates go on as the last ones fell, and never rise.
    """
    conditional = np.zeros(k_max)
    drafts = np.zeros(k_max, dtype=np.int64)
    known = 0
    for position in range(k_max):
        window = next((w for w in windows if w.reached[position] >= MIN_DRAFTS), None)
        if window is None:
            break
        before = window.passed[position - 1] / window.reached[position - 1] if position else 1.0
        here = window.passed[position] / window.reached[position]
        conditional[position] = min(1.0, here / before) if before else 0.0
        drafts[position] = window.reached[position]
        known = position + 1
    if 0 < known < k_max:
        last = conditional[max(0, known - 3) : known]
        fall = min(1.0, (last[-1] / last[0]) ** (1 / (len(last) - 1))) if len(last) > 1 and last[0] > 0 else 1.0
        conditional[known:] = last[-1] * fall ** np.arange(1, k_max - known + 1)
    return PositionRates(np.cumprod(conditional, dtype=np.float64), drafts, known)
