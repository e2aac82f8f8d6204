"""What a text on a command line or in YAML means as a value, by the kind of its argument."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from engine_host.profiles.arguments import Kind, mapping_or_list, whole_number
from engine_host.protocol.errors import OperatorError

_VARIABLE = re.compile(r"\$\{?(\w+)(?::?[-=](.*?))?\}?")


def scalar(written: str, value: Any, kind: Kind) -> Any:
    """`value` of the argument that was `written`, as its kind. Raises `OperatorError`."""
    text = value if isinstance(value, str) else None
    match kind:
        case "int":
            number = whole_number(text) if text is not None else value
            if isinstance(number, float) and number.is_integer():
                number = int(number)
            if type(number) is not int:
                raise OperatorError(f"{written}: {value!r} is not a whole number", _number(value, "8192 or 8k"))
            return number
        case "float":
            try:
                return float(value)
            except (TypeError, ValueError, OverflowError):
                raise OperatorError(f"{written}: {value!r} is not a number", _number(value, "0.9")) from None
        case "json" | "text_or_json":
            read = mapping_or_list(value) if text is not None else value
            if kind == "json" and isinstance(read, str) and text is not None and text.lstrip()[:1] in ("{", "["):
                raise OperatorError(
                    f"{written}: {text[:200]} is not JSON",
                    """quote it for the shell: '{"method": "ngram", "num_speculative_tokens": 5}'""",
                )
            return read
        case _:
            return value if isinstance(value, str | dict | list) else str(value)


def json_or_number(text: str) -> Any:
    """As vLLM reads the value of a dotted option."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        number = whole_number(text)
        return text if number is None or text.lower() == "auto" else number
    return text if value is None else value


def _number(value: Any, example: str) -> str:
    """What to do about a value that is no number: a script leaves numbers to its variables."""
    if not isinstance(value, str) or not (found := _VARIABLE.fullmatch(value.strip())):
        return f"write a number such as {example}"
    if default := found[2]:
        return f"{value} is a variable of the shell, {default} where it is not set: write the number itself"
    return f"{value} is a variable of the shell, which a profile has none of: write the number itself"
