"""What the limits leave room for: how much is in flight, what the rates still allow, how long that takes to change.

Arithmetic only; who waits, and who of them goes first, is the gate's. Times are seconds of the gate's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from engine_host.gateway import come_back
from engine_host.gateway.answers import Answers
from engine_host.gateway.asked import Asked
from engine_host.gateway.buckets import Bucket, burst_of
from engine_host.throttle.limits import Limits


class Capacity:
    """What a cap or a rate alone could never let through goes when nothing is in flight, or when the bucket is full."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.inflight = 0
        """Choices that were let in and have not ended."""
        self._requests: Bucket | None = None
        self._prompts: Bucket | None = None
        self._opens_at: float | None = None
        self._later: list[tuple[float, Limits]] = []
        self._answers = Answers()
        self._queued_choices = 0
        self._queued_tokens = 0

    @property
    def counts_prompts(self) -> bool:
        return self._prompts is not None

    def apply(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self._opens_at = None if limits.opens_in_s is None else now + limits.opens_in_s
        self._later = [(now + in_s, then) for in_s, then in limits.later]
        self._requests = _tuned(self._requests, limits.request_rate, limits.request_burst, now)
        self._prompts = _tuned(self._prompts, limits.prompt_token_rate, limits.prompt_token_burst, now)

    def wait_s(self, asked: Asked, now: float) -> float:
        """Until `asked` may go if it is its turn; infinity where no clock says when."""
        if self.limits.paused or self._exceeds_cap(asked):
            return math.inf
        wait_s = 0.0
        if self._requests is not None:
            wait_s = self._requests.wait_s(asked.choices, now)
        if self._prompts is not None and asked.prompt_tokens:
            wait_s = max(wait_s, self._prompts.wait_s(asked.prompt_tokens, now))
        return wait_s

    def take(self, asked: Asked, now: float) -> None:
        self.inflight += asked.choices
        self._answers.began(asked, now)
        if self._requests is not None:
            self._requests.take(asked.choices, now)
        if self._prompts is not None and asked.prompt_tokens:
            self._prompts.take(asked.prompt_tokens, now)

    def give_back(self, asked: Asked, now: float) -> None:
        self.inflight -= asked.choices
        self._answers.ended(asked, now)

    def queue(self, asked: Asked, sign: int) -> None:
        """`asked` waits (1) or waits no more (-1)."""
        self._queued_choices += sign * asked.choices
        self._queued_tokens += sign * (asked.prompt_tokens or 0)

    def words(self, asked: Asked, now: float) -> str:
        """Which limit holds `asked` up."""
        limits = self.limits
        if limits.paused:
            return "it is paused"
        if self._exceeds_cap(asked):
            return f"{self.inflight} of {limits.max_inflight} answers under way"
        if self._prompts is not None and asked.prompt_tokens and self._prompts.wait_s(asked.prompt_tokens, now):
            return f"{limits.prompt_token_rate:g} prompt tokens a second"
        if self._requests is not None and self._requests.wait_s(asked.choices, now):
            return f"{limits.request_rate:g} requests a second"
        return "requests before this one wait"

    def retry_after_s(self, asked: Asked, now: float, waiting: int, pace_per_s: float | None) -> float | None:
        """When one that comes again behind the `waiting` would probably get in; None: nothing is known of it."""
        limits, known = self.limits, 0.0
        if limits.paused or self._exceeds_cap(asked) or (limits.max_inflight is not None and waiting):
            room_in_s = self.opens_in_s(now) if limits.paused else self._room_in_s(asked, now, waiting, pace_per_s)
            if room_in_s is None:
                return None
            known = max(come_back.LEAST_S, room_in_s)
        if self._requests is not None:
            wait_s = self._requests.wait_behind_s(asked.choices, self._queued_choices, now)
            known = max(known, self._or_eased(wait_s, "request_rate", now))
        if self._prompts is not None and asked.prompt_tokens:
            wait_s = self._prompts.wait_behind_s(asked.prompt_tokens, self._queued_tokens, now)
            known = max(known, self._or_eased(wait_s, "prompt_token_rate", now))
        return known or None

    def _room_in_s(self, asked: Asked, now: float, waiting: int, pace_per_s: float | None) -> float | None:
        """Until the cap probably has room behind the `waiting`: by the pace of admissions, else by what runs."""
        cap = self.limits.max_inflight
        assert cap is not None, "asked while a cap holds somebody up"
        if pace_per_s is not None:
            free_in_s: float | None = (waiting + 1) / pace_per_s
        else:
            places = self.inflight + self._queued_choices + min(asked.choices, cap) - cap
            free_in_s = self._answers.free_in_s(places, cap, now)
        in_s = self._or_eased(math.inf if free_in_s is None else free_in_s, "max_inflight", now)
        return None if in_s == math.inf else in_s

    def _or_eased(self, wait_s: float, name: str, now: float) -> float:
        """`wait_s`, or less where the limit of that name is raised or ends by itself before."""
        limit = getattr(self.limits, name)
        eases_in_s = self.eases_in_s(lambda then: (value := getattr(then, name)) is None or value > limit, now)
        return wait_s if eases_in_s is None else min(wait_s, eases_in_s)

    def eases_in_s(self, is_eased: Callable[[Limits], bool], now: float) -> float | None:
        """Until limits come into force by themselves of which `is_eased` holds; None: none do, as far as is known."""
        return next((max(0.0, at - now) for at, then in self._later if is_eased(then)), None)

    def opens_in_s(self, now: float) -> float | None:
        """Until a pause or a drain ends by itself; None: it does not, as far as is known."""
        return None if self._opens_at is None else max(0.0, self._opens_at - now)

    def _exceeds_cap(self, asked: Asked) -> bool:
        cap = self.limits.max_inflight
        return cap is not None and self.inflight > 0 and self.inflight + asked.choices > cap


def _tuned(bucket: Bucket | None, rate: float | None, burst: int | None, now: float) -> Bucket | None:
    if rate is None:
        return None
    if bucket is None:
        return Bucket(rate, burst_of(rate, burst), now)
    bucket.tune(rate, burst_of(rate, burst), now)
    return bucket
