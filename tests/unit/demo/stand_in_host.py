"""A scripted engine host for the demo's tests: control socket, API and signals, without an engine.

`STAND_IN` names its behaviour: `serves`; `fails` (the engine does not start); `exits` (ends at once with an error);
`stubborn` (drains until a second SIGTERM); `deaf` (ignores SIGTERM and leaves a child behind when killed);
`deaf-apart` (the same in a session of its own below a parent, as `engine-host serve` runs); `loads` (like that, and its
engine never comes up).
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from engine_host.protocol import envelope
from engine_host.protocol.snapshot import Engine, Failure, Host, ProfileRef, Queue, Snapshot, State
from engine_host.supervisor import become_host

BEHAVIOUR = os.environ["STAND_IN"]
IS_DEAF = BEHAVIOUR.startswith("deaf") or BEHAVIOUR == "loads"
ASKED_BEFORE_SERVING = 3
"""Status calls answered with `starting` first, so that the demo really waits."""


class StandIn:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.asked = 0
        self.requests = 0
        self.running = 0
        self.sigterms = 0
        self.over = asyncio.Event()

    def snapshot(self) -> Snapshot:
        self.asked += 1
        state, engine = State.SERVING, Engine()
        if self.asked <= ASKED_BEFORE_SERVING or BEHAVIOUR == "loads":
            state = State.STARTING
            engine = Engine(phase="loading weights", start_elapsed_s=1.0 * self.asked, start_expected_s=9.0)
        elif BEHAVIOUR == "fails":
            state = State.DEAD
            engine = Engine(failure=Failure(at=0.0, reason="no room for the KV cache", lines=["ValueError: 1 GiB"]))
        host = Host(name="h", pid=os.getpid(), boot_id="b", version="0", started_at=0.0, uptime_s=1.0, http="x")
        name = os.environ.get("STAND_IN_PROFILE", Path(self.options.profile).stem)
        return Snapshot(
            host=host,
            profile=ProfileRef(name=name, digest="d", path=self.options.profile),
            state=state,
            state_since=0.0,
            state_version=1,
            engine=engine,
            queue=Queue(running=self.running),
            at=0.0,
            seq=self.asked,
        )

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(envelope.encode_notification("hello", {"protocol": {"min": 1, "max": 1}}))
        while line := await reader.readline():
            request = msgspec.json.decode(line, type=envelope.Request)
            assert request.method == "status"
            writer.write(envelope.encode_result(request.id, self.snapshot()))
            await writer.drain()
        writer.close()

    async def api(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length:")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.requests += 1
            self.record("requests", self.requests)
            usage: dict[str, Any] = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
            text = f"data: {json.dumps(usage)}\n\n" if body.get("stream") else json.dumps(usage)
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode())
            await writer.drain()
        writer.close()

    def record(self, name: str, value: object) -> None:
        (Path(self.options.state_dir) / name).write_text(str(value))

    def terminate(self) -> None:
        self.sigterms += 1
        self.record("sigterms", self.sigterms)
        if not IS_DEAF and not (BEHAVIOUR == "stubborn" and self.sigterms == 1):
            self.over.set()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.terminate)
        self.record("pid", os.getpid())
        if IS_DEAF:
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", "import signal; signal.pause()")
            self.record("child", child.pid)
        Path(self.options.socket).parent.mkdir(parents=True, exist_ok=True)
        api = await asyncio.start_server(self.api, "127.0.0.1", self.options.port)
        control = await asyncio.start_unix_server(self.control, self.options.socket)
        await self.over.wait()
        api.close()
        control.close()
        os.unlink(self.options.socket)  # noqa: PTH108


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("profile")
    for option in ("--socket", "--port", "--state-dir"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()
    if BEHAVIOUR == "exits":
        print("engine-host: profile is broken\n  mend it", file=sys.stderr)
        sys.exit(2)
    if BEHAVIOUR in ("deaf-apart", "loads") and (exit_code := become_host()) is not None:
        sys.exit(exit_code)
    asyncio.run(StandIn(options).run())


main()
