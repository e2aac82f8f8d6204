"""`make demo` after the installation: a host with the demo profile, a load on it, and the console in front.

What this starts, it stops, whatever way it ends: quitting the console, ctrl-C, a closed terminal, a failed engine. A
demo that already runs on this machine is looked at and left as it is. Standard output carries nothing but the one
status that a run without a terminal prints.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from engine_host.demo import hostlink, model
from engine_host.demo.child import HostChild
from engine_host.demo.load import Load, Report
from engine_host.demo.place import (
    FIRST_PORT,
    Place,
    drain_timeout_s,
    find_place,
    profile_for,
    say,
    state_dir,
    where_to_look,
)
from engine_host.demo.progress import Step
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, EXIT_TIMED_OUT, OperatorError
from engine_host.protocol.snapshot import Snapshot, State
from engine_host.protocol.sockets import QUIT_STOPS_HOST

DEFAULT_SECONDS = 20.0
"""Of load, where there is no terminal and DEMO_SECONDS does not say."""

CONCURRENCY = 16
"""Clients at the top of the load's wave; the profile's KV cache is sized for them."""

SOCKET_S = 90.0
"""From the host's start to its socket: Python and its imports, on a slow disk."""

ENGINE_S = 900.0
"""From the socket to a serving engine; 20 to 60 s are usual, a first start on a slow disk takes minutes."""

DRAIN_MARGIN_S = 10.0
"""After the drain the host shuts its engine down in order, which takes 2 to 5 s; then it is told again."""

POLL_S = 0.25

INTERRUPTED = 130
"""Exit status after ctrl-C, as shells have it."""


@dataclass(frozen=True)
class Programs:
    """The two programs the demo runs; tests put stand-ins here."""

    host: Sequence[str]
    console: Sequence[str]

    @classmethod
    def installed(cls) -> Programs:
        """Those beside the Python that runs this: a venv need not be on PATH."""
        beside = Path(sys.executable).parent
        return cls([str(beside / "engine-host")], [str(beside / "vllm-console")])


@dataclass
class Demo:
    programs: Programs
    profile: Path
    drain_s: float
    seconds: float | None
    """Of load before the status is printed; `None`: the console is opened instead."""
    port: int | None = None
    has_served: bool = False
    """Requests may be in flight: before that, nobody's work is lost by a kill."""
    is_stopping: bool = False
    force: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by an interruption while stopping: no more waiting for requests."""

    async def run(self) -> int:
        async with self._host() as place:
            if self.seconds is None:
                return await self._open_console(place)
            return await self._print_status(place, self.seconds)

    # --- the host ---

    @contextlib.asynccontextmanager
    async def _host(self) -> AsyncIterator[Place]:
        place = await find_place(self.port)
        if place.is_found:
            say(f"a demo already runs on port {place.port}; showing that one, and leaving it running afterwards")
            say(f"to stop it: vllm-console -t {place.socket} stop")
            yield place
            return
        state = state_dir(place.port)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.chmod(0o700)  # one that an earlier release made is open to others, and the host refuses that
        command = [*self.programs.host, "serve", str(self.profile), "--socket", str(place.socket)]
        command += ["--port", str(place.port), "--state-dir", str(state)]
        child = await HostChild.start(command, state / "engine-host.log")
        try:
            place.child = child
            yield place
        finally:
            self.is_stopping = True
            await self._stop(child, place)

    async def _stop(self, child: HostChild, place: Place) -> None:
        """Raises `OperatorError` when something of the host lives on."""
        with Step("stopping the engine host") as step:
            if self.has_served:
                step.phase("ctrl-C again to stop without waiting")
                left = await child.stop(self.drain_s + DRAIN_MARGIN_S, self.force)
            else:
                step.phase("its engine was still starting")
                left = await child.abandon()
            place.socket.unlink(missing_ok=True)  # a killed host leaves it behind
            step.done("all its processes have ended")
            if left:
                named = ", ".join(f"{process.pid} ({_name(process)})" for process in left)
                raise OperatorError(
                    f"The engine host was stopped, but of its processes are still there: {named}.",
                    f"End them: kill -9 {' '.join(str(process.pid) for process in left)}",
                    exit_code=EXIT_FAILED,
                )

    async def _until_socket(self, place: Place) -> Snapshot:
        """The first snapshot. Raises `OperatorError` when the host ends or stays silent."""
        deadline = asyncio.get_running_loop().time() + SOCKET_S
        while True:
            with contextlib.suppress(hostlink.HostSilent):
                return await hostlink.status(place.socket)
            self._fail_if_ended(place)
            if asyncio.get_running_loop().time() > deadline:
                raise OperatorError(
                    f"The engine host did not open {place.socket} within {SOCKET_S:.0f} s.",
                    where_to_look(place),
                    exit_code=EXIT_TIMED_OUT,
                )
            await asyncio.sleep(POLL_S)

    async def _until_serving(self, place: Place, step: Step | None) -> None:
        """Raises `OperatorError` when the engine does not start."""
        deadline = asyncio.get_running_loop().time() + ENGINE_S
        while True:
            with contextlib.suppress(hostlink.HostSilent):
                snapshot = await hostlink.status(place.socket)
                if snapshot.state is State.SERVING:
                    self.has_served = True
                    return
                if snapshot.engine.failure is not None:
                    raise engine_failure(snapshot, place)
                if step is not None:
                    step.phase(start_phase(snapshot))
            self._fail_if_ended(place)
            if asyncio.get_running_loop().time() > deadline:
                raise OperatorError(
                    f"The engine does not serve after {ENGINE_S:.0f} s.",
                    where_to_look(place),
                    exit_code=EXIT_TIMED_OUT,
                )
            await asyncio.sleep(POLL_S)

    def _fail_if_ended(self, place: Place) -> None:
        if place.child is not None and place.child.returncode is not None:
            lines = "".join(f"\n    {line}" for line in place.child.last_lines(12))
            raise OperatorError(
                f"The engine host ended with status {place.child.returncode} while it started:{lines}",
                where_to_look(place),
                exit_code=EXIT_FAILED,
            )

    # --- with a terminal ---

    async def _open_console(self, place: Place) -> int:
        """The console as soon as there is something to connect to: it shows the engine's start itself."""
        with Step("engine host") as step:
            step.phase("waiting for its control socket")
            await self._until_socket(place)
            step.done("answers")
        load = asyncio.create_task(self._load_when_serving(place))
        try:
            await _run_console([*self.programs.console, "-t", str(place.socket)], stops_host=not place.is_found)
        finally:
            load.cancel()
            outcome = (await asyncio.gather(load, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome  # only now: the console had the screen
        return EXIT_DONE

    async def _load_when_serving(self, place: Place) -> None:
        await self._until_serving(place, None)
        if not place.is_busy:
            await self._make_load(place).run()

    # --- without ---

    async def _print_status(self, place: Place, seconds: float) -> int:
        """Load for `seconds`, then the status while the load is still on, so that it shows a working engine."""
        with Step("engine start") as step:
            step.phase("waiting for the control socket")
            await self._until_socket(place)
            await self._until_serving(place, step)
            step.done("serving")
        load = self._make_load(place)
        task = asyncio.create_task(load.run())
        try:
            with Step("load") as step:
                await _watch_load(load, task, seconds, step)
                exit_code = await _print_console_status([*self.programs.console, "-t", str(place.socket)])
                step.done(f"{load.report.completed} requests, {load.report.completion_tokens} tokens")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not load.report.completed:
            raise OperatorError(
                f"No request succeeded in {seconds:g} s; the last error: {load.report.last_error or 'none yet'}.",
                where_to_look(place),
                exit_code=EXIT_FAILED,
            )
        return exit_code

    def _make_load(self, place: Place) -> Load:
        return Load(f"http://127.0.0.1:{place.port}", model="smollm2", concurrency=CONCURRENCY)


async def _watch_load(load: Load, task: asyncio.Task[Report], seconds: float, step: Step) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        step.phase(f"{load.report.completed} of {load.report.started} requests done, {left:.0f} s to go")
        done, _ = await asyncio.wait({task}, timeout=min(POLL_S, left))
        if done:
            task.result()  # it only ends by an error


async def _run_console(command: Sequence[str], *, stops_host: bool) -> None:
    """The console in the foreground, until the operator quits it; it is told when that stops the host."""
    told = {QUIT_STOPS_HOST: "1"} if stops_host else {}
    console = await asyncio.create_subprocess_exec(*command, env={**os.environ, **told})
    try:
        status = await console.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            console.terminate()
        await console.wait()
        raise
    if status > 0:
        raise OperatorError(
            f"The console ended with status {status}.", f"Try it alone: {' '.join(command)}", exit_code=EXIT_FAILED
        )


async def _print_console_status(command: Sequence[str]) -> int:
    console = await asyncio.create_subprocess_exec(*command, "status", "--json", stdin=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            return await console.wait()
    finally:
        if console.returncode is None:
            console.kill()
            await console.wait()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return "gone by now"


def start_phase(snapshot: Snapshot) -> str:
    """Where the engine's start stands, in words: `loading weights, about 12 s to go`."""
    engine = snapshot.engine
    phase = engine.phase or str(snapshot.state)
    if engine.start_elapsed_s is None or engine.start_expected_s is None:
        return phase
    left = engine.start_expected_s - engine.start_elapsed_s
    return f"{phase}, about {left:.0f} s to go" if left > 1 else f"{phase}, longer than last time"


def engine_failure(snapshot: Snapshot, place: Place) -> OperatorError:
    failure = snapshot.engine.failure
    reason = failure.reason if failure else f"the host is {snapshot.state}"
    lines = "".join(f"\n    {line}" for line in failure.lines or failure.last_lines) if failure else ""
    return OperatorError(f"The engine did not start: {reason}{lines}", where_to_look(place), exit_code=EXIT_FAILED)


def seconds_of_load(wanted: str | None, *, has_terminal: bool) -> float | None:
    """`DEMO_SECONDS`, checked; `None` means the console is opened. Raises `OperatorError`."""
    if not wanted:
        return None if has_terminal else DEFAULT_SECONDS
    with contextlib.suppress(ValueError):
        seconds = float(wanted)
        if 0 < seconds <= 86_400:
            return seconds
    raise OperatorError(
        f"DEMO_SECONDS is {wanted!r}, expected a number of seconds from 1 to 86400.",
        "For example: make demo DEMO_SECONDS=20",
        exit_code=EXIT_INVALID,
    )


async def run_until_interrupted(demo: Demo) -> int:
    """The first interruption stops the demo in order, a second one without waiting."""
    task = asyncio.create_task(demo.run())

    def interrupt() -> None:
        if task.cancelling() or demo.is_stopping:
            demo.force.set()
        else:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        return INTERRUPTED


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine_host.demo.run", description="The demo; see `make help`.")
    parser.add_argument(
        "--port", type=int, help=f"the OpenAI API's port (default: the first free one from {FIRST_PORT})"
    )
    options = parser.parse_args(argv)
    try:
        if options.port is not None and not 0 < options.port < 65_536:
            raise OperatorError(f"--port is {options.port}, expected 1 to 65535.", "For example: --port 9000")
        has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        seconds = seconds_of_load(os.environ.get("DEMO_SECONDS"), has_terminal=has_terminal)
        profile = profile_for(model.prepare())
        model.prepare_draft()  # for demo-draft, which the demo can be switched to
        demo = Demo(Programs.installed(), profile, drain_timeout_s(profile), seconds, options.port)
        return asyncio.run(run_until_interrupted(demo))
    except OperatorError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        say(f"{error.filename or 'the demo'}: {error.strerror or error}\n  Check that this path can be written.")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
