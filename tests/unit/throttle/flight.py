"""A controller flown by hand: figures are set, time passes in steps of a tenth of a second, actions are noted."""

from __future__ import annotations

from typing import Any

from engine_host.profiles.throttle_table import Auto
from engine_host.throttle.auto import AutoController
from engine_host.throttle.gauges import Gauges

STEP_S = 0.1


class Flight:
    def __init__(self, **settings: Any) -> None:
        """Thresholds and dwell times are given here, so that no test depends on the defaults."""
        given: dict[str, Any] = {
            "mode": "on",
            "kv_enter": 0.9,
            "kv_leave": 0.8,
            "waiting_enter": 8,
            "waiting_leave": 2,
            "preemptions_enter": 0.5,
            "preemptions_leave": 0.0,
            "dwell_s": 3.0,
            "leave_dwell_s": 5.0,
            "decrease": 0.5,
            "increase": 1,
            "increase_every_s": 2.0,
        }
        self.controller = AutoController(Auto(**(given | settings)))
        self.now = 1000.0
        self.tokens = 0
        self.finished = 0
        self.texts: list[str] = []
        self.caps: list[tuple[float, int | None]] = []
        self.values: dict[str, Any] = {"kv": 0.5, "running": 10, "waiting": 0, "preemptions_per_s": 0.0}
        self.values |= {"inflight": 10, "held": 0, "unfinished": 10}

    @property
    def cap(self) -> int | None:
        return self.controller.cap

    def fly(
        self, seconds: float, *, flowing: bool = True, finish_per_s: float = 0.0, full: bool = False, **values: Any
    ) -> list[str]:
        """Returns what was done meanwhile. `flowing`: steps come and tokens with them. `full`: clients fill whatever
        cap is in force, and one waits."""
        self.values |= values
        before = len(self.texts)
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.finished += finish_per_s * STEP_S  # type: ignore[assignment]
            self.tokens += 10 if flowing else 0
            if full and self.cap is not None:
                self.values |= {"inflight": self.cap, "running": self.cap, "held": 1}
            action = self.controller.step(
                Gauges(at=self.now, tokens_total=self.tokens, finished_total=int(self.finished), **self.values)
            )
            if action is not None:
                self.texts.append(action.text)
                self.caps.append((self.now, action.cap))
        return self.texts[before:]

    def choke(self, cap: int = 16) -> None:
        """Have it cut to `cap`, and let that take hold: the figures are calm again."""
        self.fly(3.2, kv=0.95, inflight=2 * cap, running=2 * cap)
        assert self.cap == cap, self.texts
        self.fly(0.1, kv=0.85, inflight=cap, running=cap, held=5)
