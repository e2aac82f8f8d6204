"""One connection: `hello` first, then requests in and replies, snapshots and events out.

No task, no queue. Bytes come in through a small fixed buffer, a few frames are handled a turn, and reading stops while
the peer does not read what it was sent: whatever a peer does, it costs this process a bounded amount of memory and
never more than a few milliseconds of the loop that vLLM's requests share.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Protocol, cast

from engine_host.protocol import PROTOCOL_MAX, PROTOCOL_MIN
from engine_host.protocol.envelope import ErrorCode, Request, RpcError, encode_error, encode_notification
from engine_host.protocol.frames import MAX_FRAME_BYTES, FrameDecoder, FrameTooLarge
from engine_host.protocol.methods import Hello, ProtocolRange, Risk, Subscribed

from .actions import Actions, Outcome
from .controlled import Controlled
from .dispatch import Call, answer_read, encode_reply, prepare
from .outlet import Outlet
from .requests import Refused, parse_request, rpc_error
from .roles import Peer
from .subscriptions import EventFeed, TelemetryFeed

log = logging.getLogger(__name__)

READ_BYTES = 16 * 1024
"""Read from the peer at a time; an honest request is under 1 kB."""

FRAMES_A_TURN = 16
"""Requests handled before the loop gets its turn."""

MAX_IN_FLIGHT = 64
"""Actions that one session may wait for."""

LINGER_S = 2.0
"""How long a peer that is being closed for what it sent may take to read why."""


class Sessions(Protocol):
    """What a session needs of the server."""

    host: Controlled
    actions: Actions

    def admit(self, session: Session, transport: asyncio.Transport) -> Peer | RpcError: ...

    def left(self, session: Session) -> None: ...


class Session(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    peer: Peer
    _outlet: Outlet
    _telemetry: TelemetryFeed
    _events: EventFeed
    _transport: asyncio.Transport

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._host = sessions.host
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(READ_BYTES)
        self._decoder = FrameDecoder()
        self._frames: deque[bytes] = deque()
        self._in_flight = 0
        self._has_turn_scheduled = False
        self._is_reading = True
        self._is_discarding = False
        self._is_at_eof = False

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are none of asyncio's classes.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._outlet = Outlet(transport, self._loop.time())
        self._telemetry = TelemetryFeed(self._outlet, self._host.snapshot)
        self._events = EventFeed(self._outlet, self._host.events)
        admitted = self._sessions.admit(self, transport)
        if isinstance(admitted, RpcError):
            self._close_with(admitted)
            return
        self.peer = admitted
        try:
            self._outlet.send(encode_notification("hello", self._hello()))
        except Exception:
            log.exception("no hello for a new session")
            self._close_with(rpc_error(ErrorCode.INTERNAL, "the host cannot say what it is", "see the host's own log"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._telemetry.stop()
        self._frames.clear()
        self._sessions.left(self)

    def eof_received(self) -> bool:
        """The peer will send no more; it still gets the replies to what it has sent, then the end."""
        self._is_at_eof = True
        self._close_when_answered()
        return True

    def close(self) -> None:
        """Send what is under way, the newest events included, and close."""
        self._telemetry.stop()
        while self._events.pump():
            pass
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def close_if_abandoned(self, now: float) -> None:
        """To be called regularly; see `Outlet.is_abandoned`."""
        if self._is_at_eof and self._outlet.has_hung_up():
            self.abort()  # it does not wait for the replies it has outstanding
            return
        if self._outlet.is_abandoned(now):
            log.info("closing a session that reads nothing")
            self.abort()

    # Bytes in.

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_discarding:
            return
        try:
            self._frames.extend(self._decoder.feed(bytes(memoryview(self._buffer)[:nbytes])))
        except FrameTooLarge:
            fact = f"a frame exceeds {MAX_FRAME_BYTES} bytes; the connection is closed"
            self._close_with(
                rpc_error(ErrorCode.FRAME_TOO_LARGE, fact, "send one request a line, each below the limit")
            )
            return
        if not self._has_turn_scheduled:
            self._take_turn()

    def _take_turn(self) -> None:
        """Handle some frames; come back for the rest, without reading more meanwhile."""
        self._has_turn_scheduled = False
        if self._is_discarding:
            return  # and goes on reading, see `_close_with`
        for _ in range(FRAMES_A_TURN):
            if not self._frames or not self._outlet.is_writable:
                break
            self._handle(self._frames.popleft())
        if self._frames and self._outlet.is_writable:
            self._schedule_turn()
        self._read_only_if(not self._frames and self._outlet.is_writable)
        self._close_when_answered()

    def _schedule_turn(self) -> None:
        if not self._has_turn_scheduled:
            self._has_turn_scheduled = True
            self._loop.call_soon(self._take_turn)

    def _read_only_if(self, wanted: bool) -> None:
        if wanted == self._is_reading or self._is_at_eof or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _close_when_answered(self) -> None:
        if self._is_at_eof and not self._frames and not self._in_flight:
            self._transport.close()

    # Requests.

    def _handle(self, frame: bytes) -> None:
        request = parse_request(frame)
        if isinstance(request, Refused):
            self._outlet.send(encode_error(request.id, request.error))
            return
        call = prepare(request, self.peer)
        if isinstance(call, Refused):
            # A notification gets no answer, unless it asked for a change: that must not fail in silence.
            if request.id is not None or call.error.code != ErrorCode.INVALID_PARAMS:
                self._outlet.send(encode_error(call.id, call.error))
        elif call.method.risk is not Risk.READ:
            self._begin(call)
        elif call.method.name == "telemetry.subscribe":
            self._reply(request, Subscribed(seq=self._host.snapshot().seq))
            self._telemetry.start(call.params.interval_s)
        elif call.method.name == "events.subscribe":
            self._reply(request, Subscribed(seq=self._events.start(call.params.after_seq)))
            self.pump_events()
        else:
            frame = answer_read(self._host, call)
            if request.id is not None:
                self._outlet.send(frame)

    def _reply(self, request: Request, result: object) -> None:
        if request.id is not None:
            self._outlet.send(encode_reply(request, result))

    def _begin(self, call: Call) -> None:
        if self._in_flight >= MAX_IN_FLIGHT:
            fact = f"{MAX_IN_FLIGHT} requests of this session are under way already"
            self._reply(call.request, rpc_error(ErrorCode.BUSY, fact, "wait for a reply before asking for more"))
            return
        begun = self._sessions.actions.begin(call.method, call.params, self.peer)
        if isinstance(begun, RpcError):
            self._reply(call.request, begun)
            return
        self._in_flight += 1
        begun.add_done_callback(partial(self._finished, call.request))

    def _finished(self, request: Request, action: asyncio.Future[Outcome]) -> None:
        self._in_flight -= 1
        if action.cancelled():
            fact = f"{request.method} was interrupted: the host ends"
            self._reply(request, rpc_error(ErrorCode.FAILED, fact, "look at the host, then decide anew"))
        else:
            self._reply(request, action.result())
        self._close_when_answered()

    # Bytes out.

    def pump_events(self) -> None:
        """Send waiting events as far as the peer takes them."""
        if self._events.pump():
            self._loop.call_soon(self.pump_events)

    def pause_writing(self) -> None:
        self._outlet.hold_back()
        self._read_only_if(False)

    def resume_writing(self) -> None:
        self._outlet.release(self._loop.time())
        self.pump_events()
        self._schedule_turn()

    def _close_with(self, error: RpcError) -> None:
        """Say why, stop listening to the peer, and close once it has had time to read that.

        Closing at once with bytes of the peer unread would reset the connection and lose the message.
        """
        self._is_discarding = True
        self._frames.clear()
        self._telemetry.stop()
        self._events.stop()
        self._outlet.send(encode_error(None, error))
        self._outlet.end()
        self._loop.call_later(LINGER_S, self._transport.abort)

    def _hello(self) -> Hello:
        identity = self._host.identity
        return Hello(
            protocol=ProtocolRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
            host_version=identity.host_version,
            vllm_version=identity.vllm_version,
            boot_id=identity.boot_id,
            capabilities=list(identity.capabilities),
            role=self.peer.role,
            uid=self.peer.uid,
            login=self.peer.login,
            state=self._host.state,
            state_version=self._host.state_version,
            seq=self._host.snapshot().seq,
            event_seq=self._host.events.last_seq,
        )
