"""What the Speculation screen says of K: the verdict with its numbers, or what is missing and how to get it.

"K 3 gives 1.18 times the tokens/s of K 5 at 32 requests: 2.71 tokens in 24.1 ms a step, against 3.02 in 31.8 ms."
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from engine_host.protocol.speculation import Choice, Recommendation
from engine_host.telemetry.acceptance import MIN_DRAFTS, PositionRates
from engine_host.telemetry.speculation_model import Outlook, Verdict
from engine_host.telemetry.step_costs import MAX_AGE_S, MIN_SECONDS, MIN_STEPS, RECENT_S, KCost

TRY_S = 10
"""How long a K is to be tried at least; an engine with slow steps needs longer for as many."""


def unknown(text: str, concurrency: int | None = None) -> Recommendation:
    return Recommendation(text=text, concurrency=concurrency)


def without_scheduler(reason: str) -> Recommendation:
    return unknown(f"not known: step times come from the scheduler, and {reason}")


def not_settable(k: int) -> Recommendation:
    return unknown(f"not known: K is {k} for as long as this engine runs, so there is none to compare it with")


def nothing_decoded() -> Recommendation:
    return unknown(f"not known: nothing has been decoded in the last {RECENT_S:.0f} s")


def too_few_steps(k: int, cost: KCost | None, concurrency: int) -> Recommendation:
    steps, seconds = (cost.steps, cost.seconds) if cost is not None else (0, 0)
    return unknown(
        f"not known yet: K {k} has {steps} decode steps in {seconds} s; it takes {MIN_STEPS} in {MIN_SECONDS} s, "
        f"at about {_requests(concurrency)}",
        concurrency,
    )


def no_acceptance(k: int, drafts: int, k_max: int, concurrency: int, step_s: float) -> Recommendation:
    """`step_s`: of a step at the K in force."""
    if k:
        return unknown(f"not known yet: {drafts} of {MIN_DRAFTS} drafts were verified", concurrency)
    text = f"not known: nothing was drafted in the last {MAX_AGE_S / 60:.0f} minutes."
    # The largest one tells the acceptance at every position.
    return _asking(unknown(text, concurrency), k_max, step_s)


def one_k_only(k: int, k_max: int, concurrency: int, step_s: float) -> Recommendation:
    text = (
        f"not known yet: at {_requests(concurrency)} only K {k} has been measured in the last {MAX_AGE_S / 60:.0f} "
        f"minutes, so what a draft token costs is unknown."
    )
    return _asking(unknown(text, concurrency), k // 2 if k else k_max, step_s)


def recommendation(outlook: Outlook, verdict: Verdict, k: int) -> Recommendation:
    ask = None
    if verdict.best == k:
        text, ask = _right(outlook, k), verdict.worth_a_try
        if ask is not None:
            text += f" K {ask} is not measured and might do better."
    elif verdict.is_sure:
        text = _change(outlook, verdict, k)
    else:
        ask = verdict.best
        text = (
            f"not known yet: K {ask} may give {verdict.gain:.2f} times the tokens/s of K {k} at "
            f"{_requests(outlook.concurrency)}, but that may be wrong by {verdict.error:.0%}."
        )
    said = Recommendation(
        k=verdict.best if verdict.is_sure else None,
        text=text,
        concurrency=outlook.concurrency,
        gain=verdict.gain if verdict.is_sure else None,
        choices=choices(outlook),
    )
    return said if ask is None else _asking(said, ask, float(outlook.step_s[k]))


def choices(outlook: Outlook) -> list[Choice]:
    return [
        Choice(
            k=k,
            tokens_per_step=float(tokens),
            step_s=float(step_s),
            is_measured=k in outlook.measured,
            tokens_per_s=float(tokens / step_s),
        )
        for k, (tokens, step_s) in enumerate(zip(outlook.tokens, outlook.step_s, strict=True))
    ]


def _right(outlook: Outlook, k: int) -> str:
    speed = outlook.tokens_per_s.copy()
    speed[k] = 0.0
    next_best = int(speed.argmax())
    return (
        f"K {k} is right at {_requests(outlook.concurrency)}: {_step(outlook, k)} a step; the next best, "
        f"K {next_best}, gives {outlook.gain(next_best, k):.2f} times its tokens/s."
    )


def _change(outlook: Outlook, verdict: Verdict, k: int) -> str:
    best = verdict.best
    text = (
        f"K {best} gives {verdict.gain:.2f} times the tokens/s of K {k} at {_requests(outlook.concurrency)}: "
        f"{_step(outlook, best)} a step, against {_step(outlook, k)}."
    )
    if best not in outlook.measured:
        text += f" Its step time is inferred from {_ks(outlook.measured)}."
    return text + _inferred(outlook.rates, best)


def _inferred(rates: PositionRates, k: int) -> str:
    if k <= rates.known:
        return ""
    return (
        f" Acceptance after position {rates.known} is inferred: in the last {MAX_AGE_S / 60:.0f} minutes fewer than "
        f"{MIN_DRAFTS} drafts were longer."
    )


def _step(outlook: Outlook, k: int) -> str:
    return f"{outlook.tokens[k]:.2f} tokens in {_milliseconds(outlook.step_s[k])}"


def _milliseconds(seconds: float) -> str:
    """Three significant digits."""
    value = seconds * 1000
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} ms"


def _asking(said: Recommendation, k: int, step_s: float) -> Recommendation:
    """`said`, with the request to run `k` for a while; `step_s` as far as known."""
    needed_s = max(MIN_SECONDS + 1, 2 * MIN_STEPS * step_s)
    try_s = max(TRY_S, 5 * math.ceil(needed_s / 5))
    text = f"{said.text} Run K {k} for {try_s} s: `vllm-console dial speculative_tokens={k} --for {try_s}s`"
    return msgspec.structs.replace(said, text=text, try_k=k, try_s=try_s)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _ks(measured: Sequence[int]) -> str:
    *first, last = (str(k) for k in measured)
    return f"K {', '.join(first)} and {last}"
