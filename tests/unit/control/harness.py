"""A host in memory and a client that speaks raw frames: what the tests of the control socket are written with."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine_host.control.controlled import Identity
from engine_host.control.roles import Peer
from engine_host.control.server import ControlServer
from engine_host.protocol.errors import EXIT_REFUSED, OperatorError
from engine_host.protocol.methods import (
    DialSheet,
    DialsSet,
    ForecastParams,
    History,
    KvMap,
    KvMapParams,
    RequestAbort,
    RequestList,
    RequestRow,
    RequestsList,
    Role,
    SwitchParams,
)
from engine_host.protocol.profiles import (
    Preflight,
    ProfileChanges,
    ProfileDetail,
    ProfileDiff,
    ProfileList,
    ProfileSummary,
    Tier,
)
from engine_host.protocol.snapshot import Dial, Host, ProfileRef, Snapshot, State
from engine_host.protocol.switching import Outcome, PhaseName, SwitchForecast, SwitchPhase, SwitchResult, SwitchStatus
from engine_host.telemetry.event_log import EventLog
from engine_host.throttle.throttle import Throttle
from tests.unit.throttle.desk import WrittenGate
from tests.unit.throttle.desk import profile as throttled

DEADLINE_S = 30.0


class FakeSwitching:
    """Profiles `a` (running) and `b`; a switch answers once `may_finish` is set."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host

    def profiles(self) -> ProfileList:
        return ProfileList(directory="/profiles", profiles=[ProfileSummary(name="a", path="/profiles/a.toml")])

    def reload(self) -> ProfileChanges:
        if self._host.failure:
            raise self._host.failure
        return ProfileChanges(directory="/profiles", since=1.0, added=["b"], broken={"c": "no"}, text="added: b")

    def profile(self, name: str) -> ProfileDetail:
        self._known(name)
        return ProfileDetail(name=name, path="/profiles/a.toml", digest="0" * 12, lineage=[name], effective={})

    def diff(self, before: str | None, after: str) -> ProfileDiff:
        self._known(after)
        return ProfileDiff(before=before or "a", after=after, tier=Tier.OVERLAP, changes=[])

    def status(self) -> SwitchStatus:
        return SwitchStatus()

    async def check(self, name: str) -> Preflight:
        self._known(name)
        await self._host.may_finish.wait()
        return Preflight(profile=name, ok=True)

    async def forecast(self, params: ForecastParams) -> SwitchForecast:
        self._known(params.profile)
        return SwitchForecast(from_profile="a", to_profile=params.profile, tier=Tier.RELOAD, tier_reason="x", ok=True)

    async def switch(self, params: SwitchParams, who: str) -> SwitchResult:
        self._known(params.profile)
        await self._host._change("switch", params.drain_timeout_s, who)
        return SwitchResult(
            outcome=Outcome.SWITCHED,
            text=f"switched a -> {params.profile}",
            from_profile="a",
            to_profile=params.profile,
            tier=Tier.RELOAD,
            at=1.0,
            took_s=2.0,
            phases=[SwitchPhase(name=PhaseName.PREFLIGHT, at_s=0.0, took_s=0.5)],
        )

    async def cancel(self, who: str) -> str:
        raise OperatorError("no switch is under way", "See `vllm-console switch --status`.", exit_code=EXIT_REFUSED)

    def _known(self, name: str) -> None:
        if name not in ("a", "b"):
            raise OperatorError(f'no profile "{name}"', 'did you mean "a"?')


class FakeInside:
    """One dial, no requests; a change of it answers once `may_finish` is set."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host
        self.value = 5

    def dials(self) -> DialSheet:
        return DialSheet(dials={"speculative_tokens": Dial(value=self.value, low=0, high=5, start=5)})

    async def set_dials(self, params: DialsSet, who: str) -> str:
        await self._host.may_finish.wait()
        if self._host.failure:
            raise self._host.failure
        self.value = params.values["speculative_tokens"] or 0
        return f"speculative_tokens 5 → {self.value}: {params.reason}"

    def requests(self, params: RequestsList) -> RequestList:
        rows = [RequestRow(id=str(n).ljust(200, "語"), state="waiting", age_s=1.0, waited_s=1.0) for n in range(5_000)]
        return RequestList(requests=rows[: params.limit], total=len(rows), by_state={}, at=3.0)

    def abort(self, params: RequestAbort, who: str) -> str:
        if self._host.failure:
            raise self._host.failure
        return f"ended {params.id}"

    def kv_map(self, params: KvMapParams) -> KvMap:
        return KvMap(at=3.0, blocks_per_cell=1, cells=[(1, 0, 0, 0)], holders=[])


class FakeHost:
    """A `Controlled` whose changes do what the test sets: succeed, wait for `may_finish`, or raise `failure`."""

    def __init__(self) -> None:
        self.identity = Identity(boot_id="boot-1", host_version="0.1.0", vllm_version="0.32.0", capabilities=("x",))
        self.state = State.SERVING
        self.state_version = 3
        self.events = EventLog()
        self.seq = 0
        self.padding = ""
        self.calls: list[tuple[str, float | None, str]] = []
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.failure: Exception | None = None
        self.stopped = asyncio.Event()
        self.switching = FakeSwitching(self)
        self.inside = FakeInside(self)
        self.gate = WrittenGate()
        self.throttle = Throttle(self.gate, self.events.append, self._gate_closed)
        self.throttle.attach(throttled(max_inflight=64))

    def _gate_closed(self, closed: State | None) -> None:
        if (state := closed or State.SERVING) is not self.state:
            self.state, self.state_version = state, self.state_version + 1

    def snapshot(self) -> Snapshot:
        self.seq += 1
        return Snapshot(
            host=Host(
                name="node" + self.padding,
                pid=os.getpid(),
                boot_id="boot-1",
                version="0.1.0",
                started_at=1.0,
                uptime_s=2.0,
                http="127.0.0.1:8000",
            ),
            profile=ProfileRef(name="demo", digest="0" * 12, path="/profiles/demo.toml"),
            state=self.state,
            state_since=1.0,
            state_version=self.state_version,
            at=3.0,
            seq=self.seq,
        )

    def history(self, series: list[str], span_s: float) -> History:
        for name in series:
            if name != "kv.usage":
                raise ValueError(f"no series {name}; did you mean kv.usage?")
        return History(end_at=3.0, step_s=1.0, series={name: [0.5, None] for name in series})

    async def restart_engine(self, drain_timeout_s: float | None, who: str) -> str:
        return await self._change("restart", drain_timeout_s, who)

    async def stop_host(self, drain_timeout_s: float | None, who: str) -> str:
        text = await self._change("stop", drain_timeout_s, who)
        self.stopped.set()
        return text

    async def _change(self, name: str, drain_timeout_s: float | None, who: str) -> str:
        self.calls.append((name, drain_timeout_s, who))
        await self.may_finish.wait()
        if self.failure:
            raise self.failure
        self.state_version += 1
        return f"{name} done"


class Client:
    """One raw connection. Replies and notifications are kept apart, as they may come in any order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.notifications: list[dict[str, Any]] = []
        self._next_id = 0

    async def read(self) -> dict[str, Any]:
        """The next frame; raises `EOFError` when the host has closed."""
        line = await asyncio.wait_for(self.reader.readline(), DEADLINE_S)
        if not line.endswith(b"\n"):
            raise EOFError
        frame = json.loads(line)
        assert isinstance(frame, dict)
        return frame

    async def reply(self, id: Any) -> dict[str, Any]:
        while True:
            frame = await self.read()
            if "method" in frame:
                self.notifications.append(frame)
            elif frame["id"] == id:
                return frame

    async def notified(self, method: str) -> dict[str, Any]:
        """Parameters of the next notification of this method."""
        while True:
            for index, frame in enumerate(self.notifications):
                if frame["method"] == method:
                    return self.notifications.pop(index)["params"]  # type: ignore[no-any-return]
            frame = await self.read()
            if "method" in frame:
                self.notifications.append(frame)

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._next_id += 1
        request = {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params or {}}
        self.send_raw(json.dumps(request).encode() + b"\n")
        return self._next_id

    async def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.reply(self.send(method, params))

    async def is_closed_by_host(self) -> bool:
        try:
            while True:
                await self.read()
        except (EOFError, ConnectionError):
            return True

    def close(self) -> None:
        self.writer.close()


class Bench:
    """A running server over a `FakeHost`, and clients of it in whatever role."""

    def __init__(self, host: FakeHost, server: ControlServer, socket_path: Path, audit_path: Path) -> None:
        self.host = host
        self.server = server
        self.socket_path = socket_path
        self.audit_path = audit_path
        self.next_peer = Peer(pid=1, uid=1000, login="ops", role=Role.ADMIN)
        self._clients: list[Client] = []

    async def connect(self, role: Role = Role.ADMIN, *, uid: int = 1000, login: str = "ops") -> Client:
        """Connect and read `hello`, so that the peer set here is the one the server saw."""
        self.next_peer = Peer(pid=1, uid=uid, login=login, role=role)
        client = await self.connect_unread()
        hello = await client.read()
        client.notifications.append(hello)
        return client

    async def connect_unread(self) -> Client:
        reader, writer = await asyncio.open_unix_connection(str(self.socket_path), limit=4 << 20)
        client = Client(reader, writer)
        self._clients.append(client)
        return client

    def audit_lines(self) -> list[dict[str, Any]]:
        if not self.audit_path.exists():
            return []
        return [json.loads(line) for line in self.audit_path.read_text().splitlines()]

    def hang_up(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def running_server(directory: Path) -> AsyncIterator[Bench]:
    """A server on a socket in `directory`/run, its audit log in `directory`/state."""
    host = FakeHost()
    socket_path = directory / "run" / "host.sock"
    audit_path = directory / "state" / "audit.jsonl"
    bench: Bench | None = None

    def peer_of(connection: Any) -> Peer:
        assert bench is not None
        return bench.next_peer

    server = ControlServer(host, socket_path, audit_path, label="demo", peer_of=peer_of)
    bench = Bench(host, server, socket_path, audit_path)
    await server.start()
    try:
        yield bench
    finally:
        host.may_finish.set()
        bench.hang_up()
        await server.close(5.0)


async def until(condition: Any, what: str) -> None:
    """Poll `condition` until it holds, at most `DEADLINE_S`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(0.005)


def change(key: str, **more: Any) -> dict[str, Any]:
    """Parameters of a changing call."""
    return {"idempotency_key": key, **more}
