"""What a decoder finds wrong, in an operator's words."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from engine_host.decoder_words import in_words


class Values(msgspec.Struct, forbid_unknown_fields=True):
    values: Annotated[dict[str, int], msgspec.Meta(min_length=1)]
    for_s: Annotated[float, msgspec.Meta(ge=1.0)] | None = None


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"{", "input data was truncated"),
        (b'{"values": NaN}', "invalid character (byte 11)"),
        (b'{"values": {}}', "values: expected an object of at least 1 entries"),
        (b'{"values": {"a": 2.5}}', "values[...]: expected a whole number, got a number"),
        (b'{"values": {"a": 2}, "for_s": 0}', "for_s: expected a number of at least 1.0"),
        (b'{"values": {"a": 2}, "for": 1}', 'it has no "for"'),
        (b"{}", "values is missing"),
    ],
)
def test_a_fault_is_named_with_its_place(frame: bytes, words: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(frame, type=Values)
    assert in_words(caught.value) == words
