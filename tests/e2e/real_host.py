"""A real `engine-host serve` as a child process, and the questions that tests put to it.

Everything goes the way an operator's would: the command line, the control socket, the HTTP port, signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port

from . import paced_steps

START_S = 240.0
"""A start takes 15 to 25 s on two idle cores; a busy machine several times that."""
took: dict[str, list[float]] = {"a start": [], "a command": []}
"""Seconds, each time, for the end of the report: they tell a slow machine from a slow product."""
SLOW_STEP_S = 0.2
"""A tenth of the tokens a second that the slowest machine makes, and quick enough for a command to be answered."""


def until(
    condition: Callable[[], Any],
    timeout_s: float,
    what: str,
    poll_s: float = 0.05,
    found: Callable[[], Any] | None = None,
) -> Any:
    """Poll until the condition holds and return its value; `found` tells what there is instead when it does not."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(poll_s)
    instead = "" if found is None else f"; instead: {found()}"
    raise AssertionError(f"after {timeout_s:.0f} s still not: {what}{instead}")


class SwitchOutcome(NamedTuple):
    exit_code: int
    result: dict[str, Any]
    stderr: str


@dataclass
class RealHost:
    """One host process on its own port, socket and state directory under `home`."""

    home: Path
    profile: Path
    port: int = field(default_factory=free_port)
    arguments: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "engine_host.cli")
    """What Python runs: `engine-host`, or what passes for it."""
    process: subprocess.Popen[str] = field(init=False)
    _started_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "run").mkdir(mode=0o700, exist_ok=True)

    @property
    def socket_path(self) -> Path:
        return self.home / "run" / "host.sock"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "VLLM_CONSOLE_TARGET": str(self.socket_path),
            "VLLM_NO_USAGE_STATS": "1",
            paced_steps.ENVIRONMENT: str(self._pace),
        }

    @property
    def _pace(self) -> Path:
        return self.home / "pace"

    def slow(self, step_s: float = SLOW_STEP_S) -> contextlib.AbstractContextManager[None]:
        """Meanwhile a step of its engines takes so many seconds: what is in flight stays in flight."""
        return paced_steps.slow(self._pace, step_s)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> RealHost:
        self._started_at = time.monotonic()
        self.process = subprocess.Popen(
            [
                sys.executable,
                *self.program,
                "serve",
                str(self.profile),
                f"--socket={self.socket_path}",
                f"--port={self.port}",
                f"--state-dir={self.home / 'state'}",
                *self.arguments,
            ],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,
            stderr=(self.home / "stderr.txt").open("a"),
            text=True,
        )
        return self

    def stderr(self) -> str:
        return (self.home / "stderr.txt").read_text(errors="replace")

    def console(self, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        began = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", "console.cli", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        took["a command"].append(time.monotonic() - began)
        return ended

    def ask(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> dict[str, Any]:
        """One call over the control socket, result or error: a hundredth of the time that a console process takes, so
        that a poll does not miss what lasts a second. Raises `OSError` when nobody listens."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout_s)
            client.connect(str(self.socket_path))
            lines = client.makefile("rwb")
            lines.write(
                json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}).encode() + b"\n"
            )
            lines.flush()
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                if answer.get("id") == 1:
                    return answer
        raise ConnectionResetError("the host closed the connection without an answer")

    def status(self) -> dict[str, Any]:
        """The snapshot; empty while nobody listens."""
        try:
            result: dict[str, Any] = self.ask("status")["result"]
        except OSError:
            return {}
        return result

    def switch(self, name: str, *more: str) -> SwitchOutcome:
        """`vllm-console switch NAME`, to its end."""
        answer = self.console("switch", name, "--yes", "--json", *more, timeout_s=400)
        result = json.loads(answer.stdout) if answer.stdout.strip() else {}
        return SwitchOutcome(answer.returncode, result, answer.stderr)

    def foresee(self, name: str) -> dict[str, Any]:
        """A dry run. Afterwards the check of this profile is known, and a switch to it begins in a tenth of a second
        instead of 5 to 60."""
        forecast: dict[str, Any] = self.ask("switch.forecast", {"profile": name}, timeout_s=400)["result"]
        return forecast

    def switch_at_once(self, name: str, tier: str | None = None, drain_s: float | None = None) -> dict[str, Any]:
        """A switch to its end, without the second or two that a console process needs before it asks for it: for tests
        whose requests must still be in flight then. Returns its result."""
        params = {"profile": name, "tier": tier, "drain_timeout_s": drain_s}
        return self.change("switch", **{key: value for key, value in params.items() if value is not None})

    def change(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a call that changes something, which must succeed."""
        answer = self.ask(method, {**params, "reason": "test", "idempotency_key": uuid.uuid4().hex}, timeout_s=400)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def begin_on(self, profile: str) -> RealHost:
        """Where the tests of a module begin, whatever those before them have set: on this profile, which differs from
        the one before it in what a running engine takes."""
        self.change("throttle.clear")
        self.change("dials.set", values=dict.fromkeys(self.status()["dials"]))
        if self.status()["profile"]["name"] != profile:
            assert self.switch_at_once(profile)["outcome"] == "switched"
        return self

    def switch_phase(self) -> str | None:
        """The phase of the switch under way."""
        active = self.ask("switch.status")["result"].get("active") or {}
        phases = active.get("phases") or [{}]
        name: str | None = phases[-1].get("name")
        return name

    def wait_for_state(self, state: str, timeout_s: float = START_S) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            if self.process.poll() is not None:
                raise AssertionError(f"the host ended with {self.process.returncode}:\n{self.stderr()[-3000:]}")
            now = self.status()
            return now if now.get("state") == state else None

        found: dict[str, Any] = until(reached, timeout_s, f"state {state}", 0.2)
        if self._started_at is not None:
            took["a start"].append(time.monotonic() - self._started_at)
            self._started_at = None
        return found

    def events(self) -> list[dict[str, Any]]:
        answer = self.console("events", "--json", "--limit", "1000")
        return [json.loads(line) for line in answer.stdout.splitlines()]

    def metrics(self) -> dict[str, float]:
        """vLLM's own counters and gauges, summed over labels; per-position ones as `name[i]`."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics", timeout=30).text):
            for sample in family.samples:
                position = sample.labels.get("position")
                key = sample.name if position is None else f"{sample.name}[{position}]"
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    def children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def leftovers(self) -> set[Path]:
        """What the engine's processes have put down outside this process and must take along: shared memory, and the
        directory of their sockets."""
        found: set[Path] = set()
        for process in self.children():
            with contextlib.suppress(OSError, psutil.Error):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                found |= {Path(word) for word in maps.split() if word.startswith("/dev/shm/psm_")}
                if sockets := process.environ().get("VLLM_RPC_BASE_PATH"):
                    found.add(Path(sockets))
        return found

    def end(self) -> None:
        """For fixtures: whatever is left, gone."""
        family = self.children()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def serving(home: Path, profile: Path, *arguments: str) -> Iterator[RealHost]:
    """A host that serves, and is gone at the end."""
    host = RealHost(home, profile, arguments=arguments).start()
    try:
        host.wait_for_state("serving")
        yield host
    finally:
        host.end()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
