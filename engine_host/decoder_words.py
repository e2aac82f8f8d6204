"""What a decoder finds wrong with a value, in an operator's words.

msgspec speaks of `float | null` and of `$.interval_s`; whoever wrote the value knows numbers and names. A message that
a later release of msgspec words differently is passed on as it is.
"""

from __future__ import annotations

import re

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_COMPARED = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_PATTERNS = (
    (re.compile(r"Object missing required field `(.+)`"), r"\1 is missing"),
    (re.compile(r"Object contains unknown field `(.+)`"), r'it has no "\1"'),
    (re.compile(r"JSON is malformed: (.+)"), r"\1"),
    (re.compile(r"Invalid enum value (.+)"), r"\1 is not one of its values"),
)
_LENGTH = re.compile(r"Expected `(str|array|object)` of length (>=|<=) (\d+)")
_BOUND = re.compile(r"Expected `(int|float)` (>=|<=|>|<) (\S+)")
_TYPE = re.compile(r"Expected `(.+)`, got `(.+)`")
_PLACE = re.compile(r" - at `\$\.?(.*)`$")


def in_words(error: Exception) -> str:
    """The fault and, where the decoder names one, the place: "interval_s: expected a number of at least 0.1"."""
    text = str(error)
    place = ""
    if found := _PLACE.search(text):
        text, place = text[: found.start()], f"{found[1]}: " if found[1] else ""
    return place + _fault(text)


def fault(error: Exception) -> str:
    """Without the place, for a message that names it already."""
    return _fault(_PLACE.sub("", str(error)))


def _fault(text: str) -> str:
    for pattern, words in _PATTERNS:
        if pattern.fullmatch(text):
            return pattern.sub(words, text)
    if found := _LENGTH.fullmatch(text):
        unit = "characters" if found[1] == "str" else "entries"
        return f"expected {_TYPES[found[1]]} {_COMPARED[found[2]]} {found[3]} {unit}"
    if found := _BOUND.fullmatch(text):
        return f"expected {_TYPES[found[1]]} {_COMPARED[found[2]]} {found[3]}"
    if found := _TYPE.fullmatch(text):
        wanted = [_TYPES.get(name, name) for name in found[1].split(" | ") if name != "null"]
        return f"expected {' or '.join(wanted)}, got {_TYPES.get(found[2], found[2])}"
    return text[:1].lower() + text[1:]
