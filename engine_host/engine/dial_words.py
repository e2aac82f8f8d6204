"""What is asked of dials, checked against what they take; and what was done, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine_host.live.dial import DialName, DialRange
from engine_host.nearest import suggestion
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.methods import DialsSet
from engine_host.timed_settings import Setting, span_in_words


@dataclass(frozen=True)
class DialWords:
    ranges: Mapping[DialName, DialRange]
    """Of the engine that is spoken of."""
    missing: Mapping[DialName, str]
    """Why it has not another one, where that is not plain."""

    def checked(self, values: Mapping[str, int | None], *, is_range_checked: bool = True) -> dict[DialName, int | None]:
        """The same by dial. Raises `OperatorError`: a dial that the engine lacks, a value that it does not take."""
        checked: dict[DialName, int | None] = {}
        for word, value in values.items():
            name = self._name(word)
            span = self.ranges[name]
            if is_range_checked and value is not None and not span.low <= value <= span.high:
                raise OperatorError(
                    f"{name} {value} is out of range: this engine takes {span.low} to {span.high}",
                    f"the engine was started with {span.start}; a higher limit needs another profile"
                    if value > span.high
                    else f"give at least {span.low}",
                )
            checked[name] = value
        return checked

    def _name(self, word: str) -> DialName:
        if word in self.ranges:
            return DialName(word)
        if word in list(DialName):
            plain = "it has no speculation" if word == DialName.SPECULATIVE_TOKENS else "its scheduler lacks it"
            why = self.missing.get(DialName(word), plain)
            raise OperatorError(f"this engine has no dial {word}: {why}", self._there_are())
        raise OperatorError(f'no dial "{word[:60]}"', suggestion(word, map(str, self.ranges)))

    def _there_are(self) -> str:
        return f"there are: {', '.join(self.ranges)}"

    @staticmethod
    def told(
        before: Mapping[DialName, int], after: Mapping[DialName, int], passed: Collection[DialName], order: DialsSet
    ) -> str:
        """`speculative_tokens 5 → 2 for 10 m: trying`. `passed`: those whose value would have ended by itself."""
        parts = []
        for name, value in after.items():
            stays = "for good" if name in passed and order.for_s is None else ""
            moved = f"{before[name]} → {value}" if value != before[name] else f"stays {value} {stays}".rstrip()
            parts.append(f"{name} {moved}" + (" (its start)" if order.values[str(name)] is None else ""))
        span = f" for {span_in_words(order.for_s)}" if order.for_s is not None else ""
        return ", ".join(parts) + span + (f": {order.reason}" if order.reason else "")


def setting_of(order: DialsSet, value: int | None, start: int, who: str, now: float, wall: float) -> Setting[int]:
    """What `order` makes of one dial that begins at `start`; `now` by the clock of `Settings`, `wall` as Unix time."""
    if order.for_s is None:
        return Setting(start) if value is None else Setting(value, who, order.reason, wall)
    passing = start if value is None else value
    return Setting(passing, who, order.reason, wall, ends=now + order.for_s, until=wall + order.for_s)


def in_force_again(name: DialName, before: int, value: int, ended: Setting[int] | None, *, is_late: bool) -> str:
    """A dial that has moved by itself: the setting that `ended`, or one that the scheduler has not answered to."""
    if is_late:
        return f"{name} {before} → {value}: the scheduler answers again"
    if ended is None:
        return f"{name} {before} → {value}"
    return f"{name} {before} → {value}: {is_over(ended)}"


def is_over(ended: Setting[int]) -> str:
    """`the 10 m of maria are over`."""
    return f"the {span_in_words(ended.spoken_for_s or 0.0)} of {ended.who} are over"
