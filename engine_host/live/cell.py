"""A record of changing length in shared memory, with a checksum: a reader knows when it has read half of two.

Neither a lock nor a pair of counters: on a processor that reorders stores, counters prove nothing.
"""

from __future__ import annotations

import struct
import zlib
from mmap import mmap

_HEAD = struct.Struct("<II")
"""Length and checksum of what follows."""


class TornReadError(Exception):
    """The other side was writing."""


class Cell:
    def __init__(self, memory: mmap, at: int, size: int) -> None:
        self._memory, self._at, self._size = memory, at, size

    def write(self, content: bytes) -> None:
        """Raises `ValueError` when it does not fit."""
        if (length := len(content) + _HEAD.size) > self._size:
            raise ValueError(f"{len(content)} bytes do not fit into a cell of {self._size - _HEAD.size}")
        self._memory[self._at : self._at + length] = _HEAD.pack(len(content), zlib.crc32(content)) + content

    def read(self) -> bytes:
        """Empty before the first `write`. Raises `TornReadError`."""
        length, checksum = _HEAD.unpack_from(self._memory, self._at)
        begin = self._at + _HEAD.size
        content = self._memory[begin : begin + min(length, self._size - _HEAD.size)]
        if len(content) != length or zlib.crc32(content) != checksum:
            raise TornReadError
        return content
