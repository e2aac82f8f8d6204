"""How much text windows of a prompt that is too long may share (`overlong = "segment"`).

For the gate, which makes them, and for checks, which say beforehand that it can make none.
"""

from __future__ import annotations

from typing import Final

from engine_host.profiles.throttle_table import Throttle
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding

ANSWER_SHARE: Final = 8
"""Where a prompt is cut to fit and nothing says how long the answer may become, an eighth of the room is for it."""


def for_answer(room: int) -> int:
    """Tokens of `room`, what prompt and answer may have together, that are kept for an answer of no given length."""
    return max(1, room // ANSWER_SHARE)


def most_overlap(tokens: int) -> int:
    """Of windows of so many tokens of text. Windows of which half is overlap go on too slowly to be meant."""
    return tokens // 2


def check_overlap(table: Throttle, room: int, what: str) -> list[Finding]:
    """`room`: tokens that prompt and answer may have together, which is called `what`."""
    if table.overlong != "segment":
        return []
    overlap = table.segment_overlap_tokens
    if overlap <= (most := most_overlap(room - for_answer(room))):
        return []
    is_never = overlap > most_overlap(room - 1)
    refused = "every prompt that is too long" if is_never else "a chat that is too long and leaves max_tokens out"
    return [
        Finding(
            id="throttle.overlap",
            severity=Severity.ERROR if is_never else Severity.WARNING,
            text=f"throttle.segment_overlap_tokens = {overlap}: at most half of a window is overlap, and with {what} "
            f"{refused} is refused",
            remedy=f"give at most {most}, less half of what a chat's template takes: of {room} tokens "
            f"{for_answer(room)} are kept for the answer, and half of the rest is new text",
        )
    ]
