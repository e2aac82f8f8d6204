"""What is asked of the limits at the gate, checked; and what has become of them, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from engine_host.decoder_words import fault
from engine_host.nearest import suggestion
from engine_host.profiles.shape import written
from engine_host.profiles.throttle_table import Throttle as Table
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.throttling import AUTO, AutoMode, LimitName, LimitValue
from engine_host.throttle.layers import CLOSED
from engine_host.timed_settings import Setting, span_in_words

_SHOWN_CHARS = 60
"""Of a value that is refused: it came from outside."""
SHOW = "See what each limit is: vllm-console throttle show"


def checked(values: Mapping[str, LimitValue], table: Table) -> dict[LimitName, LimitValue]:
    """The same by limit, each value in its own kind. Raises `OperatorError`."""
    return {name: _checked(name, value, table) for name, value in ((limit_name(w), v) for w, v in values.items())}


def limit_name(word: str, also: Iterable[str] = ()) -> LimitName:
    """Raises `OperatorError` with the nearest name; `also`: others that would do."""
    try:
        return LimitName(word)
    except ValueError:
        raise OperatorError(
            f'no limit "{word[:_SHOWN_CHARS]}"', suggestion(word, (*map(str, LimitName), *also), in_order=True)
        ) from None


def _checked(name: LimitName, value: LimitValue, table: Table) -> LimitValue:
    if name in CLOSED:
        if not isinstance(value, bool):
            raise OperatorError(f"{name} is {_shown(value)}, expected true or false", SHOW)
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise OperatorError(f"{name} {value} is no finite number", SHOW)
    try:
        found: LimitValue = getattr(msgspec.convert({str(name): value}, Table), name)
    except msgspec.ValidationError as error:
        remedy = "0 lets none wait" if name is LimitName.HOLD_QUEUE else SHOW
        raise OperatorError(f"{name} {_shown(value)}: {fault(error)}", remedy) from None
    if name is LimitName.MIN_CLASS and isinstance(found, str):
        return _class(found, table)
    return found


def _class(name: str, table: Table) -> str:
    """As the profile writes it; capitals count for nothing."""
    for known in table.classes:
        if known.lower() == name.lower():
            return known
    raise OperatorError(f"min_class {_shown(name)} is no class", suggestion(name, table.classes, in_order=True))


def checked_mode(value: LimitValue) -> AutoMode:
    """Raises `OperatorError`."""
    try:
        return AutoMode(str(value))
    except ValueError:
        raise OperatorError(
            f"auto {_shown(value)} is no mode", suggestion(str(value), AutoMode, in_order=True)
        ) from None


def in_words(value: LimitValue) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def move(name: LimitName, before: Setting[LimitValue], after: LimitValue) -> str:
    """`max_inflight 64 → 16`, `paused`."""
    if name in CLOSED:
        was, verb = before.value, "paused" if name is LimitName.PAUSED else "draining"
        if was == after:
            return f"still {verb}" if after else f"not {verb}"
        return verb if after else ("resumed" if name is LimitName.PAUSED else "draining no more")
    if before.value == after:
        return stays(name, after)
    by = f" ({AUTO})" if before.who == AUTO else ""
    return f"{name} {in_words(before.value)}{by} → {in_words(after)}"


def stays(name: LimitName, value: LimitValue) -> str:
    """What was asked for was so already."""
    return move(name, Setting(value), value) if name in CLOSED else f"{name} stays {in_words(value)}"


def told(moves: Iterable[str], for_s: float | None, reason: str, then: Sequence[str] = ()) -> str:
    """`max_inflight 64 → 16, hold_queue 256 → 64 for 10 m (then max_inflight 32 again, by maria): KV pressure`. `then`:
    as `returning`."""
    span = f" for {span_in_words(for_s)}" if for_s is not None else ""
    after = f" (then {'; '.join(then)})" if then else ""
    return ", ".join(moves) + span + after + (f": {reason}" if reason else "")


def returning(formers: Mapping[Any, Setting[Any] | None]) -> list[str]:
    """What settings that end were made over, by name, as far as that is an operator's too; a phrase each."""
    return [_again(name, one) for name, one in formers.items() if one is not None and one.who is not None]


def _again(name: str, one: Setting[Any]) -> str:
    if name in CLOSED:
        return f"{move(LimitName(name), Setting(not one.value), one.value)} as before, by {one.who}"
    return f"{name} {in_words(one.value)} again, by {one.who}"


def over(moves: Iterable[str], who: str | None, for_s: float | None) -> str:
    """Settings that have ended by themselves: `max_inflight 16 → 64: the 10 m of ops are over`."""
    return f"{', '.join(moves)}: the {span_in_words(for_s or 0.0)} of {who} are over"


def standing(name: LimitName, one: Setting[LimitValue], clock: str | None, own: LimitValue) -> str:
    """A setting that has outlived something: `max_inflight 16, where the profile says 64 (ops, until 12:30:00)`."""
    what = move(name, Setting(not one.value), one.value) if name in CLOSED else f"{name} {in_words(one.value)}"
    says = "" if name in CLOSED or own == one.value else f", where the profile says {in_words(own)}"
    return whose(what + says, one.who or "", clock)


def whose(what: str, who: str, clock: str | None) -> str:
    return f"{what} ({who}, {f'until {clock}' if clock is not None else 'until it is cleared'})"


def _shown(value: LimitValue) -> str:
    text = written(value) if isinstance(value, str | bool) else in_words(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
