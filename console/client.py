"""One connection to an engine host: hello, calls with a deadline, notifications.

A call is sent once. Whether its answer was lost or is merely late cannot be told from here, so nothing in this module
ever sends again: the caller hears `NoAnswer` or `ConnectionLost` and an operator decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from console.call_errors import CallFailed, CannotConnect, ConnectionLost, NoAnswer
from engine_host.protocol import PROTOCOL_MAX, PROTOCOL_MIN
from engine_host.protocol.envelope import Message, RpcError, encode_request
from engine_host.protocol.frames import FrameDecoder, FrameTooLarge
from engine_host.protocol.methods import Hello, NoParams, ProtocolRange

HELLO_DEADLINE_S = 5.0
"""The host speaks first and at once; one that takes longer is stopped or swapping, and the operator should know."""

READ_DEADLINE_S = 10.0
"""For calls that only read."""

CHUNK_BYTES = 1 << 16

NO_PARAMS = NoParams()

R = TypeVar("R")


class _Announcement(msgspec.Struct):
    """As much of `hello` as is needed to say why the rest cannot be read."""

    protocol: ProtocolRange
    host_version: str = "unknown"


_message_decoder = msgspec.json.Decoder(Message)


class Client:
    """Use through `connected`, which owns the reading task."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_notification: Callable[[str, msgspec.Raw], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_notification = on_notification
        self._decoder = FrameDecoder()
        self._backlog: list[bytes] = []
        self._pending: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_id = 0
        self._lost: str | None = None
        self._closed = asyncio.Event()
        self.hello: Hello

    async def call(self, method: str, params: Any = NO_PARAMS, deadline_s: float = READ_DEADLINE_S) -> msgspec.Raw:
        """The result as the host wrote it (`read` decodes it).

        Raises `CallFailed`, `NoAnswer`, `ConnectionLost`.
        """
        if self._lost is not None:
            raise ConnectionLost(self._lost, was_sent=False)
        self._last_id += 1
        request_id = self._last_id
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer
        try:
            async with asyncio.timeout(deadline_s):
                self._writer.write(encode_request(request_id, method, params))
                await self._writer.drain()
                return await answer
        except TimeoutError:
            raise NoAnswer(method, deadline_s) from None
        except _Refusal as refusal:
            raise CallFailed(method, refusal.error) from None
        except OSError as error:
            raise ConnectionLost(error.strerror or type(error).__name__) from None
        finally:
            del self._pending[request_id]

    async def read(
        self, method: str, type_: type[R], params: Any = NO_PARAMS, deadline_s: float = READ_DEADLINE_S
    ) -> R:
        """The result as `type_`; raises also `ConnectionLost` when it is not one."""
        return decoded(await self.call(method, params, deadline_s), type_, method)

    async def wait_closed(self) -> str:
        """Returns, when the connection has ended, why."""
        await self._closed.wait()
        return self._lost or "closed"

    async def wait_closed_or(self, enough: asyncio.Event) -> None:
        """Returns when `enough` is set; raises `ConnectionLost` when the connection ends before."""
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(self._closed.wait()), group.create_task(enough.wait())]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for waiter in both:
                waiter.cancel()
        if not enough.is_set():
            raise ConnectionLost(self._lost or "closed")

    async def _greet(self) -> None:
        """Wait for `hello`, the first frame of every connection."""
        frame = await self._next_frame()
        message = _parsed(frame)
        if message.error is not None:
            raise CallFailed("connect", message.error)
        if message.method != "hello":
            raise _Fault("it did not begin with hello, so it is no engine host's control socket")
        announced = _params(message, _Announcement)
        shared = min(announced.protocol.max, PROTOCOL_MAX)
        if shared < max(announced.protocol.min, PROTOCOL_MIN):
            raise CannotConnect(
                f"the host speaks control protocol {_range(announced.protocol.min, announced.protocol.max)}, "
                f"this console {_range(PROTOCOL_MIN, PROTOCOL_MAX)}.",
                f"Use the console of the host's release, {announced.host_version}.",
            )
        self.hello = _params(message, Hello)

    async def _read_on(self) -> None:
        """Deliver frames until the connection ends, then fail whatever still waits for an answer."""
        try:
            while True:
                self._deliver(_parsed(await self._next_frame()))
        except _Fault as fault:
            self._end(str(fault))
        except ConnectionLost as lost:
            self._end(lost.reason)
        finally:
            self._end("this side closed it")

    def _deliver(self, message: Message) -> None:
        if message.method is not None:
            self._on_notification(message.method, message.params)
            return
        waiting = self._pending.get(message.id) if isinstance(message.id, int) else None
        if waiting is None or waiting.done():
            return  # the answer to a call whose deadline has passed
        if message.error is not None:
            waiting.set_exception(_Refusal(message.error))
        elif isinstance(message.result, msgspec.Raw):
            waiting.set_result(message.result)
        else:
            waiting.set_exception(ConnectionLost("it sent an answer with neither result nor error"))

    async def _next_frame(self) -> bytes:
        while not self._backlog:
            try:
                data = await self._reader.read(CHUNK_BYTES)
            except OSError as error:
                raise _Fault(error.strerror or type(error).__name__) from None
            if not data:
                raise _Fault("the host closed it")
            try:
                self._backlog = self._decoder.feed(data)
            except FrameTooLarge:
                raise _Fault("it sent a frame beyond the size limit") from None
        return self._backlog.pop(0)

    def _end(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._closed.set()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost(reason))
        self._writer.close()


class _Fault(Exception):
    """The stream ended or makes no sense any more."""


class _Refusal(Exception):
    def __init__(self, error: RpcError) -> None:
        self.error = error


def _parsed(frame: bytes) -> Message:
    try:
        return _message_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _Fault("it sent something that is no JSON-RPC message") from None


def _params(message: Message, type_: type[R]) -> R:
    try:
        return msgspec.json.decode(message.params, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _Fault(f"its {message.method} is not understood ({error})") from None


def decoded(raw: msgspec.Raw, type_: type[R], what: str) -> R:
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConnectionLost(f"its {what} is not understood ({error})") from None


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _ignore(method: str, params: msgspec.Raw) -> None:
    """For connections that subscribe to nothing."""


@contextlib.asynccontextmanager
async def connected(
    path: Path,
    on_notification: Callable[[str, msgspec.Raw], None] = _ignore,
    hello_deadline_s: float = HELLO_DEADLINE_S,
) -> AsyncIterator[Client]:
    """A connection that has said hello, closed on leaving.

    `on_notification` is called in the reading task, in order. While it runs nothing is read, so a consumer that
    blocks (a pager that nobody scrolls) slows the host's stream and holds no memory. What it raises ends the
    connection and, but for `ConnectionLost`, comes out of the `async with`.
    Raises `CannotConnect`, or `CallFailed` when the host turns the connection away.
    """
    try:
        async with asyncio.timeout(hello_deadline_s):
            reader, writer = await asyncio.open_unix_connection(str(path))
            client = Client(reader, writer, on_notification)
            try:
                await client._greet()
            except BaseException:
                writer.close()
                raise
    except TimeoutError:
        raise CannotConnect(
            f"the host at {path} did not say hello within {hello_deadline_s:g} s.",
            "It is stopped, overloaded or no engine host; look at its log.",
        ) from None
    except _Fault as fault:
        raise CannotConnect(
            f"cannot talk to {path}: {fault}.", "Check that it is the control socket of an engine host."
        ) from None
    except OSError as error:
        raise CannotConnect(*_why_not(path, error)) from None
    reading = asyncio.create_task(client._read_on(), name="control-reader")
    try:
        yield client
    finally:
        reading.cancel()
        # Not close(): that waits until a host that no longer reads has taken what is still buffered.
        writer.transport.abort()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


def _why_not(path: Path, error: OSError) -> tuple[str, str]:
    if error.errno == errno.ECONNREFUSED:
        return (
            f"no engine host listens at {path}: the one that made this socket has ended.",
            "Start one with: engine-host serve PROFILE",
        )
    if error.errno == errno.ENOENT:
        return f"there is no socket at {path}.", "Start a host with: engine-host serve PROFILE"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"you may not open {path}.", "Run as the user who owns the host, or ask for its socket group."
    return f"cannot connect to {path}: {error.strerror or error}.", "Look at the host's log."
