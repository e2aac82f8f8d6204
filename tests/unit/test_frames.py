"""Framing: however the bytes arrive, the frames are the same, and no peer can make the decoder hold more than one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.protocol.frames import MAX_FRAME_BYTES, FrameDecoder, FrameTooLarge

bodies = st.lists(st.binary(max_size=60).map(lambda body: body.replace(b"\n", b" ")), max_size=12)


@given(bodies=bodies, data=st.data())
def test_any_split_of_the_stream_gives_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(body + b"\n" for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    decoder = FrameDecoder()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.feed(stream[start:end])
    assert found == [body.strip() for body in bodies if body.strip()]


@given(size=st.integers(0, 40), chunk=st.integers(1, 50))
def test_the_limit_is_exact_whether_or_not_the_newline_has_come(size: int, chunk: int) -> None:
    limit = 20
    stream = b"x" * size + b"\n"
    decoder = FrameDecoder(limit)
    pieces = [stream[start : start + chunk] for start in range(0, len(stream), chunk)]
    if size > limit:
        with pytest.raises(FrameTooLarge):
            for piece in pieces:
                decoder.feed(piece)
    else:
        assert [frame for piece in pieces for frame in decoder.feed(piece)] == ([b"x" * size] if size else [])


def test_a_frame_of_exactly_the_limit_passes() -> None:
    assert len(FrameDecoder().feed(b"x" * MAX_FRAME_BYTES + b"\n")[0]) == MAX_FRAME_BYTES


def test_an_endless_line_is_refused_before_it_is_held() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameTooLarge):
        for _ in range(20):
            decoder.feed(b"x" * (MAX_FRAME_BYTES // 10))
