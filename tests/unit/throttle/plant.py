"""A model of an engine with a gate in front, for closing the controller's loop in milliseconds.

KV blocks, chunked prefill within a token budget, one token a step for every running request, preemption of the youngest
by recomputation, as vLLM's scheduler does it. A step takes a fixed time and one for every token; both were fitted to a
real engine (SmolLM2-135M on two cores). The gate holds first come, first served, up to a deadline.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine_host.engine.port import StepStats
from engine_host.profiles.throttle_table import Auto
from engine_host.throttle.auto import Action, AutoController
from engine_host.throttle.gauges import Gauges, StepFigures

IDLE_STEP_S = 0.25
"""How often the host looks when no step comes."""


@dataclass(eq=False)
class Request:
    arrived: float
    prompt: int
    answer: int
    computed: int = 0
    """Tokens whose KV is there."""
    generated: int = 0
    blocks: int = 0
    first_token: float | None = None
    ended: float | None = None


@dataclass
class Engine:
    blocks: int = 101
    block_size: int = 32
    max_seqs: int = 64
    budget: int = 1024
    fixed_s: float = 0.033
    prefill_s: float = 0.0015
    decode_s: float = 0.0025
    running: list[Request] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    free: int = field(init=False)
    preemptions: int = 0
    generated: int = 0

    max_active: int = field(init=False)
    """The dial."""

    def __post_init__(self) -> None:
        self.free, self.max_active = self.blocks, self.max_seqs

    def _allocate(self, request: Request, tokens: int) -> bool:
        need = -(-(request.computed + tokens) // self.block_size) - request.blocks
        if need > self.free:
            return False
        self.free -= max(need, 0)
        request.blocks += max(need, 0)
        return True

    def _give_back(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks = request.computed = 0

    def step(self, now: float) -> tuple[float, StepStats]:
        """One scheduler step: how long it took, and what it reports."""
        budget, preempted = self.budget, 0
        work: list[tuple[Request, int]] = []
        index = 0
        while index < len(self.running):
            request = self.running[index]
            tokens = min(request.prompt + request.generated - request.computed, budget)
            while not self._allocate(request, tokens):
                victim = self.running.pop()
                work = [(other, count) for other, count in work if other is not victim]
                self._give_back(victim)
                self.waiting.appendleft(victim)
                preempted += 1
                if victim is request:
                    break
            else:
                work.append((request, tokens))
                budget -= tokens
                index += 1
        while self.waiting and not preempted and budget > 0 and len(self.running) < self.max_active:
            request = self.waiting[0]
            tokens = min(request.prompt + request.generated - request.computed, budget)
            if not self._allocate(request, tokens):
                break
            self.waiting.popleft()
            self.running.append(request)
            work.append((request, tokens))
            budget -= tokens
        prefilled = sum(tokens for _, tokens in work if tokens > 1)
        decoded = sum(1 for _, tokens in work if tokens == 1)
        took = self.fixed_s + self.prefill_s * prefilled + self.decode_s * decoded
        ttft, generated, finished = [], 0, 0
        for request, tokens in work:
            request.computed += tokens
            if request.computed < request.prompt + request.generated:
                continue
            request.generated += 1
            generated += 1
            if request.first_token is None:
                request.first_token = now + took
                ttft.append(now + took - request.arrived)
            if request.generated >= request.answer:
                request.ended = now + took
                self.running.remove(request)
                self._give_back(request)
                finished += 1
        self.preemptions += preempted
        self.generated += generated
        stats = StepStats(
            0,
            running=len(self.running),
            waiting=len(self.waiting),
            kv_usage=1 - self.free / self.blocks,
            prompt_tokens=prefilled,
            generation_tokens=generated,
            preemptions=preempted,
            finished=finished,
            ttft_s=ttft,
        )
        return took, stats


@dataclass
class Held:
    came: float
    prompt: int
    answer: int


@dataclass
class Run:
    """What came of one."""

    seconds: float
    tokens: int = 0
    preemptions: int = 0
    sent: int = 0
    answered: int = 0
    refused: int = 0
    left: int = 0
    ttft_s: list[float] = field(default_factory=list)
    """With the time at the gate."""
    actions: list[tuple[float, Action]] = field(default_factory=list)
    caps: list[tuple[float, int | None]] = field(default_factory=list)
    trace: list[Gauges] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def ttft_p95_s(self) -> float:
        return sorted(self.ttft_s)[int(0.95 * (len(self.ttft_s) - 1))]

    def direction_changes_in_any_minute(self) -> int:
        return direction_changes(self.caps)


def direction_changes(caps: list[tuple[float, int | None]], span_s: float = 60.0) -> int:
    """The most in any `span_s`: how often the cap turned from falling to rising or back; none is the highest."""
    turns, last, way = [], None, 0
    for at, cap in caps:
        value = float("inf") if cap is None else cap
        if last is not None and value != last:
            new = 1 if value > last else -1
            if way and new != way:
                turns.append(at)
            way = new
        last = value
    return max((sum(begin <= at < begin + span_s for at in turns) for begin in turns), default=0)


Arrivals = Iterator[tuple[float, int, int]]
"""When it comes, its prompt and answer in tokens."""


def arrivals(
    seconds: float,
    rate: Callable[[float], float],
    prompt: tuple[int, int] = (32, 256),
    answer: tuple[int, int] = (32, 192),
    seed: int = 3,
) -> Arrivals:
    dice = random.Random(seed)
    at = 0.0
    while at < seconds:
        per_s = rate(at)
        if per_s <= 0:
            at += 0.1
            continue
        at += dice.expovariate(per_s)
        yield at, dice.randint(*prompt), dice.randint(*answer)


class World:
    """Engine, gate and controller, stepped together."""

    def __init__(
        self,
        engine: Engine,
        settings: Auto | None,
        *,
        hold_queue: int = 64,
        hold_deadline_s: float = 10.0,
    ) -> None:
        """`settings` None: no throttle and no gate."""
        self.engine = engine
        self.controller = None if settings is None else AutoController(settings)
        self.is_observing = settings is not None and settings.mode == "observe"
        self.hold_queue, self.hold_deadline_s = hold_queue, hold_deadline_s
        self.held: deque[Held] = deque()
        self.inflight: list[Request] = []
        self.cap: int | None = None
        self.is_paused = False
        self.figures = StepFigures()
        self.now = 0.0
        self.preempted_total = 0

    def gauges(self) -> Gauges:
        return Gauges(
            at=self.now,
            kv=self.figures.kv,
            running=self.figures.running,
            waiting=self.figures.waiting,
            preemptions_per_s=self.figures.preemptions_per_s(self.now),
            tokens_total=self.figures.tokens_total,
            finished_total=self.figures.finished_total,
            unfinished=len(self.inflight),
            silent_s=self.figures.silent_s(self.now),
            inflight=len(self.inflight),
            held=len(self.held),
            is_paused=self.is_paused,
        )

    def _admit(self, run: Run) -> None:
        while self.held and not self.is_paused and (self.cap is None or len(self.inflight) < self.cap):
            one = self.held.popleft()
            request = Request(self.now, one.prompt, one.answer)
            request.arrived = one.came
            self.inflight.append(request)
            self.engine.waiting.append(request)
        while self.held and self.now - self.held[0].came > self.hold_deadline_s:
            self.held.popleft()
            run.refused += 1

    def run(self, seconds: float, coming: Arrivals) -> Run:
        run = Run(seconds)
        end = self.now + seconds
        start_tokens, start_preemptions = self.engine.generated, self.engine.preemptions
        next_one = next(coming, None)
        while self.now < end:
            while next_one is not None and next_one[0] <= self.now:
                run.sent += 1
                if self.controller is not None and len(self.held) >= self.hold_queue:
                    run.refused += 1
                else:
                    self.held.append(Held(*next_one))
                next_one = next(coming, None)
            self._admit(run)
            if self.engine.running or self.engine.waiting:
                took, stats = self.engine.step(self.now)
                self.now += took
                self.figures.record(stats, self.now)
                for request in [one for one in self.inflight if one.ended is not None]:
                    self.inflight.remove(request)
                    run.answered += 1
                    assert request.first_token is not None
                    run.ttft_s.append(request.first_token - request.arrived)
            else:
                due = self.now + IDLE_STEP_S
                self.now = min(due, max(next_one[0], self.now)) if next_one is not None else due
            self._control(run)
        run.left = len(self.inflight) + len(self.held)
        run.tokens = self.engine.generated - start_tokens
        run.preemptions = self.engine.preemptions - start_preemptions
        return run

    def _control(self, run: Run) -> None:
        gauges = self.gauges()
        run.trace.append(gauges)
        if self.controller is None:
            return
        action = self.controller.step(gauges)
        if action is not None:
            run.actions.append((self.now, action))
            if not self.is_observing:
                self.cap = action.cap
                if "max_active_seqs" in self.controller.settings.dials:
                    self.engine.max_active = self.engine.max_seqs if action.cap is None else action.cap
                run.caps.append((self.now, action.cap))
