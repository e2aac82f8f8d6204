"""What an operator asks of the throttle: the layers after it, and a sentence of what has changed. Pure.

Each raises `OperatorError` for what cannot be, and then nothing has changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from engine_host.profiles.throttle_check import BURSTS
from engine_host.protocol.errors import EXIT_REFUSED, OperatorError
from engine_host.protocol.methods import ResumeParams, ThrottleAuto, ThrottleClear, ThrottleSet
from engine_host.protocol.throttling import AUTO, AutoMode, LimitName, LimitValue
from engine_host.telemetry.event_log import one_line
from engine_host.throttle import limit_words as words
from engine_host.throttle.layers import CLOSED, Layers, profile_value
from engine_host.timed_settings import Setting, Settings

REASON_CHARS = 500
"""Of `protocol.methods.Reason`."""

Done = tuple[Layers, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """Who asks, and when: `now` by the clock of `Settings`, `wall` as Unix time."""

    who: str
    now: float
    wall: float

    def end(self, for_s: float | None) -> tuple[float | None, float | None]:
        """By both clocks; None: it stays."""
        return (None, None) if for_s is None else (self.now + for_s, self.wall + for_s)


def set_limits(layers: Layers, asked: Asked, order: ThrottleSet) -> Done:
    values = words.checked(order.limits, layers.table)
    _refuse_unexpected(layers, order.expected, asked.now)
    ends, until = asked.end(order.for_s)
    settings = dict(layers.settings)
    for name, value in values.items():
        if name in CLOSED and value is False and ends is None:
            settings[name] = _untouched(layers, name)
        else:
            setting = Setting(value, asked.who, _kept(order.reason), asked.wall, ends, until)
            settings[name] = settings[name].with_(setting)
    after = dataclasses.replace(layers, settings=settings)
    _refuse_idle_bursts(values, after, asked.now)
    moves = _moves(layers, after, values, asked.now)
    if values.get(LimitName.PAUSED) and not after.in_force(LimitName.HOLD_QUEUE, asked.now).value:
        moves[list(values).index(LimitName.PAUSED)] += " (hold_queue is 0: who comes is refused at once)"
    then = words.returning({name: settings[name].next(asked.now) for name in values})
    return after, words.told(moves, order.for_s, order.reason, then)


def clear(layers: Layers, asked: Asked, order: ThrottleClear) -> Done:
    """Of the limits that are named, or of all, what operators have set."""
    named = dict.fromkeys(word if word == AUTO else words.limit_name(word, [AUTO]) for word in order.names)
    limits: Iterable[LimitName] = [name for name in named if isinstance(name, LimitName)]
    is_auto = AUTO in named
    _refuse_unexpected(layers, order.expected, asked.now)
    if not order.names:
        limits = layers.set_by_hand(asked.now)
        is_auto = layers.mode.in_force(asked.now).who is not None
        if not limits and not is_auto:
            return layers, "nothing was set by hand"
    elif not _is_set(layers, named):
        stays = [words.stays(name, layers.in_force(name, asked.now).value) for name in limits]
        return layers, ", ".join([*stays, *([_auto_move(layers, layers, asked.now)] if is_auto else [])])
    settings = {**layers.settings, **{name: _untouched(layers, name) for name in limits}}
    after = dataclasses.replace(layers, settings=settings)
    moves = _moves(layers, after, limits, asked.now)
    if is_auto:
        after = after.with_mode(Settings(Setting(AutoMode(layers.table.auto.mode))), asked.now)
        moves.append(_auto_move(layers, after, asked.now))
    return after, words.told(moves, None, order.reason)


def set_auto(layers: Layers, asked: Asked, order: ThrottleAuto) -> Done:
    if order.expected is not None:
        _refuse_other_mode(layers, order.expected, asked.now)
    ends, until = asked.end(order.for_s)
    setting = Setting(order.mode, asked.who, _kept(order.reason), asked.wall, ends, until)
    after = layers.with_mode(layers.mode.with_(setting), asked.now)
    move = _auto_move(layers, after, asked.now)
    cap = layers.settings[LimitName.MAX_INFLIGHT].in_force(asked.now)
    if cap.who is not None and order.mode is AutoMode.ON:
        move += f" (max_inflight {words.in_words(cap.value)} of {cap.who} wins over it)"
    then = words.returning({AUTO: after.mode.next(asked.now)})
    return after, words.told([move], order.for_s, order.reason, then)


def resume(layers: Layers, asked: Asked, order: ResumeParams) -> Done:
    """End a pause and a drain, whoever asked for them and for how long."""
    _refuse_unexpected(layers, order.expected, asked.now)
    if not _is_set(layers, CLOSED):
        return layers, "neither paused nor draining"
    closed = [name for name in CLOSED if layers.settings[name].in_force(asked.now).value]
    settings = {**layers.settings, **{name: _untouched(layers, name) for name in CLOSED}}
    after = dataclasses.replace(layers, settings=settings)
    moves = _moves(layers, after, closed, asked.now) or ["neither paused nor draining"]
    return after, words.told(moves, None, order.reason)


def _kept(reason: str) -> str:
    """As events have it."""
    return one_line(reason, REASON_CHARS)


def _is_set(layers: Layers, names: Iterable[str]) -> bool:
    """Something of these, now or later, is an operator's."""
    settings = [layers.mode if name == AUTO else layers.settings[LimitName(name)] for name in names]
    return any(one.is_touched for one in settings)


def _untouched(layers: Layers, name: LimitName) -> Settings[LimitValue]:
    return Settings(Setting(profile_value(layers.table, name)))


def _moves(before: Layers, after: Layers, names: Iterable[LimitName], now: float) -> list[str]:
    return [words.move(name, before.in_force(name, now), after.in_force(name, now).value) for name in names]


def _auto_move(before: Layers, after: Layers, now: float) -> str:
    was, is_ = before.mode.in_force(now).value, after.mode.in_force(now).value
    return f"auto {was} → {is_}" if was is not is_ else f"auto stays {is_}"


def _refuse_unexpected(layers: Layers, expected: Mapping[str, LimitValue] | None, now: float) -> None:
    """`expected`: of limits, and of the controller's mode, what the caller saw."""
    seen = dict(expected or {})
    if AUTO in seen:
        _refuse_other_mode(layers, words.checked_mode(seen.pop(AUTO)), now)
    for name, saw in words.checked(seen, layers.table).items():
        one = layers.in_force(name, now)
        if one.value != saw:
            raise _stale(name, words.in_words(one.value), one.who, words.in_words(saw))


def _refuse_other_mode(layers: Layers, saw: AutoMode, now: float) -> None:
    one = layers.mode.in_force(now)
    if one.value is not saw:
        raise _stale(AUTO, one.value, one.who, saw)


def _stale(what: str, is_: str, who: str | None, saw: str) -> OperatorError:
    by = f" (set by {who})" if who is not None else ""
    return OperatorError(
        f"{what} is {is_}{by}; this call expected {saw}",
        "look at it again, then decide anew: vllm-console throttle show",
        exit_code=EXIT_REFUSED,
    )


def _refuse_idle_bursts(values: Mapping[LimitName, LimitValue], after: Layers, now: float) -> None:
    for burst, rate in BURSTS.items():
        name = LimitName(burst)
        if values.get(name) is not None and after.in_force(LimitName(rate), now).value is None:
            fact = f"{burst} {words.in_words(values[name])} limits nothing without {rate}"
            raise OperatorError(fact, f"set {rate} too: --{rate.replace('_', '-')} N")
