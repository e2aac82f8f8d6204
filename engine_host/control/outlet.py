"""The writing half of a session: frames out, never more held back than a fixed amount, and a watch on the reader.

"Sent" ends where the other process has read it: the kernel's buffer holds fifty snapshots, and a reader that comes
back after a pause would otherwise see all of them before it sees the present.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import select
import termios

HELD_BACK_BYTES = 64 * 1024
"""What a session keeps in the host's memory for a slow reader before it stops producing; one frame may exceed it."""

UNREAD_TIMEOUT_S = 30.0
"""A reader that takes nothing for so long is closed; it reconnects and resumes, or it was hung."""


class Outlet:
    """Wraps a session's transport. `is_writable` is false from the moment that too much is held back, and for good
    after `end`."""

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        self._fd: int = transport.get_extra_info("socket").fileno()
        transport.set_write_buffer_limits(high=HELD_BACK_BYTES)
        self._is_held_back = False
        self._has_ended = False
        self._last_unread = 0
        self._read_at = now

    @property
    def is_writable(self) -> bool:
        return not self._is_held_back and not self._is_over

    @property
    def _is_over(self) -> bool:
        return self._has_ended or self._transport.is_closing()

    def send(self, frame: bytes) -> None:
        """Queue a frame. Only what is bounded otherwise, such as replies to actions, may ignore `is_writable`.

        Does nothing once the stream is over: the outcome of an action may come when its session is being closed.
        """
        if not self._is_over:
            self._transport.write(frame)

    def end(self) -> None:
        """The frame sent last is the last: a transport raises on a write after its end."""
        if not self._is_over:
            self._has_ended = True
            self._transport.write_eof()

    def hold_back(self) -> None:
        self._is_held_back = True

    def release(self, now: float) -> None:
        self._is_held_back = False
        self._read_at = now

    def unread_bytes(self) -> int:
        """Written and not yet read by the other process; the kernel counts its own overhead in."""
        if self._transport.is_closing():
            return 0
        held = self._transport.get_write_buffer_size()
        queued = array.array("i", [0])
        try:
            fcntl.ioctl(self._fd, termios.TIOCOUTQ, queued)
        except OSError:
            return held
        return held + queued[0]

    def has_hung_up(self) -> bool:
        """Whether the peer has closed altogether; one that only ended its side of the conversation still reads."""
        poll = select.poll()
        poll.register(self._fd, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))

    def is_abandoned(self, now: float) -> bool:
        """Whether the reader has taken nothing for `UNREAD_TIMEOUT_S` although there was something to take.

        To be asked regularly: progress is seen between one question and the next.
        """
        unread = self.unread_bytes()
        if unread == 0 or unread < self._last_unread:
            self._read_at = now
        self._last_unread = unread
        return now - self._read_at > UNREAD_TIMEOUT_S
