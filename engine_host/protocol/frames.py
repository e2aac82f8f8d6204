"""Frames: newline-delimited UTF-8 JSON, one object a line, at most 1 MiB.

The decoder is fed whatever the transport delivers and holds at most one unfinished frame, so a hostile peer can cost
`MAX_FRAME_BYTES` and no more.
"""

from __future__ import annotations

MAX_FRAME_BYTES = 1 << 20
"""A frame's size without its newline. The largest honest frame, a history of four series, is under 20 kB."""


class FrameTooLarge(Exception):
    """The peer sent more than `MAX_FRAME_BYTES` without a newline; the stream cannot be resynchronised."""


class FrameDecoder:
    """Splits a byte stream into frames.

    >>> decoder = FrameDecoder()
    >>> decoder.feed(b'{"a":1}\\n{"b"')
    [b'{"a":1}']
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes, in order, blank lines dropped.

        Raises `FrameTooLarge` when a frame exceeds the limit; frames completed before it in the same call are lost,
        as the connection is closed anyway.
        """
        frames: list[bytes] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._partial += data[start:end]
            start = end + 1
            if len(self._partial) > self._limit:
                raise FrameTooLarge
            if frame := bytes(self._partial).strip():
                frames.append(frame)
            self._partial.clear()
        self._partial += data[start:]
        if len(self._partial) > self._limit:
            raise FrameTooLarge
        return frames
