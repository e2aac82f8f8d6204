"""The composition root: builds the host's parts, starts them in order, ends them in reverse.

Order matters. Everything an operator can get wrong (port, socket, directories) is checked and taken before the log is
redirected and vLLM is touched, so that bad input leaves nothing half-started. The control socket answers before vLLM
is imported; the engine is the last to start and the first to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from engine_host import __version__
from engine_host.control.controlled import Identity
from engine_host.control.server import ControlServer
from engine_host.engine.lifecycle import Lifecycle
from engine_host.engine.log_file import LogFile
from engine_host.engine.port import EngineStartError, StepStats
from engine_host.engine.start_times import START_TIMES_FILE, StartTimes
from engine_host.engine.vllm.adapter import VllmEngine
from engine_host.engine.vllm.releases import installed_version
from engine_host.gateway.entry import Entry
from engine_host.gateway.gate import Gate
from engine_host.gateway.http_server import HttpServer, address, bind
from engine_host.gateway.overlong import Preparation
from engine_host.inside import Inside
from engine_host.preflight.config_witness import ConfigWitness
from engine_host.preflight.known_answers import ANSWERS_FILE, KnownAnswers
from engine_host.profiles import Profile, ProfileDirectory
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, OperatorError
from engine_host.protocol.events import Severity
from engine_host.protocol.methods import History
from engine_host.protocol.snapshot import WINDOWS, Snapshot, State
from engine_host.switchboard import Switchboard
from engine_host.telemetry.event_log import EventLog
from engine_host.telemetry.latency import LatencyWindows
from engine_host.telemetry.machine import MachineSampler
from engine_host.telemetry.snapshot_taker import HostIdentity, SnapshotTaker
from engine_host.telemetry.stall_watch import StallWatch
from engine_host.telemetry.store import TelemetryStore
from engine_host.throttle.auto_dials import AutoDials
from engine_host.throttle.pilot import Pilot

logger = logging.getLogger(__name__)

_CONTROL_CLOSE_S = 2.0
"""What the control socket gets to hand out its last answers."""


@dataclass(frozen=True)
class HostOptions:
    """What the command line decided."""

    profile: Profile
    http_host: str
    http_port: int
    socket_path: Path
    state_dir: Path
    socket_group: str | None
    profiles_dir: Path
    scratch_dir: Path | None = None
    """For the sockets of the engine's processes; removed by whoever made it."""


class EngineHost:
    """One host process; `run` is its life. Implements what the control socket controls (`Controlled`)."""

    def __init__(self, options: HostOptions) -> None:
        self._options = options
        profile = options.profile
        self._boot_id = secrets.token_hex(8)
        self.events = EventLog()
        self._store = TelemetryStore()
        self._entry = Entry(Gate(LatencyWindows(WINDOWS)))
        self._stalls = StallWatch(self.events.append)
        self._machine = MachineSampler()
        self._start_times = StartTimes(options.state_dir / START_TIMES_FILE)
        self._log = LogFile(options.state_dir / "engine.log", self._on_log_line)
        self._known = KnownAnswers(options.state_dir / ANSWERS_FILE)
        self._lifecycle = Lifecycle(
            profile,
            self._make_engine,
            self._entry,
            self._on_step,
            self._log,
            self.events.append,
            start_expected_s=lambda wanted: self._start_times.expected_s(wanted.digest),
            on_started=lambda started, took_s: self._start_times.remember(started.digest, took_s),
            on_serving=self._store.engine_serves,
            on_gone=self._store.engine_gone,
        )
        self._snapshots = SnapshotTaker(
            HostIdentity(
                name=socket.gethostname(),
                pid=os.getpid(),
                boot_id=self._boot_id,
                version=__version__,
                started_at=time.time(),
                http=address(options.http_host, options.http_port),
                tls=profile.server.get("ssl_certfile") is not None,
            ),
            installed_version(),
            self._lifecycle,
            self._store,
            self._entry,
            self._machine,
        )
        self.switching = Switchboard(
            self._lifecycle,
            ProfileDirectory(options.profiles_dir, also=[profile.path]),
            options.state_dir,
            self._start_times,
            options.http_port,
            self._known,
            lambda: self._store.queue(self._lifecycle.backlog).waiting or 0,
        )
        self.inside = Inside(self._lifecycle, self._store)
        self.throttle = self._lifecycle.throttle
        prompts = Preparation(lambda: self._lifecycle.facts, lambda: self._lifecycle.profile.throttle)
        self._entry.gate.prepare = prompts.prepare
        self._pilot = Pilot(
            self.throttle,
            self._entry.gate,
            self._store,
            lambda: self._lifecycle.engine,
            AutoDials(self._lifecycle.dials, self.events.append),
            self.events.append,
        )
        self.throttle.gauges = self._pilot.gauges
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[str] | None = None
        self._stop_began: float | None = None

    def _on_step(self, step: StepStats) -> None:
        """At every scheduler step."""
        self._store.record(step)
        self._pilot.on_step(step)

    def _make_engine(self, profile: Profile) -> VllmEngine:
        witness = ConfigWitness(profile, self._known)
        return VllmEngine(
            profile.to_arguments(),
            witness.check_names,
            lambda: self._lifecycle.just_died(),
            self._options.scratch_dir,
            witness.on_config,
        )

    # --- Controlled ------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        engine = self._lifecycle.engine
        can_look_inside = engine is not None and not isinstance(engine.live, str)
        return Identity(
            boot_id=self._boot_id,
            host_version=__version__,
            vllm_version=installed_version(),
            capabilities=("throttle", "live_scheduler") if can_look_inside else ("throttle",),
        )

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def state_version(self) -> int:
        return self._lifecycle.state_version

    def snapshot(self) -> Snapshot:
        return self._snapshots.take()

    def history(self, series: list[str], span_s: float) -> History:
        return self._store.history(series, span_s)

    async def restart_engine(self, drain_timeout_s: float | None, who: str) -> str:
        return await self._lifecycle.restart(self._drain_s(drain_timeout_s), who)

    async def stop_host(self, drain_timeout_s: float | None, who: str) -> str:
        self._stop_began = self._stop_began or time.monotonic()
        return await self._lifecycle.stop(self._drain_s(drain_timeout_s), who)

    def _drain_s(self, asked: float | None) -> float:
        return self._lifecycle.profile.switch.drain_timeout_s if asked is None else asked

    @property
    def banner(self) -> str:
        """What the terminal shows first."""
        return (
            f"engine-host {__version__}: profile {self._options.profile.name}, API on {self.snapshot().host.url}\n"
            f"  control socket {self._options.socket_path}\n  log            {self._log.path}"
        )

    @property
    def last_line(self) -> str:
        """What the terminal shows last, when the host was stopped."""
        took = "" if self._stop_began is None else f" in {time.monotonic() - self._stop_began:.1f} s"
        return f"engine-host: stopped profile {self._lifecycle.profile.name}, port {self._options.http_port}{took}"

    # --- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until stopped; returns the exit code. Raises `OperatorError` when nothing could be started."""
        options = self._options
        self._loop = asyncio.get_running_loop()
        self._take_signals()  # before the socket answers: whoever sees us start may tell us to stop
        listener = bind(options.http_host, options.http_port)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(listener.close)
            control = ControlServer(
                self,
                options.socket_path,
                options.state_dir / "audit.jsonl",
                socket_group=options.socket_group,
                label=f"profile {options.profile.name}, port {options.http_port}",
            )
            await control.start()
            stack.push_async_callback(control.close, _CONTROL_CLOSE_S)
            print(self.banner, file=sys.stderr, flush=True)
            self._log.start()
            stack.callback(self._log.stop)
            http = HttpServer(self._entry, listener, options.profile.server)
            await http.start()
            stack.push_async_callback(http.close)
            self._machine.start()
            stack.callback(self._machine.stop)
            ticker = asyncio.create_task(self._tick(), name="telemetry-tick")
            stack.callback(ticker.cancel)
            pilot = asyncio.create_task(self._pilot.run(), name="throttle-pilot")
            stack.callback(pilot.cancel)
            stack.push_async_callback(self._lifecycle.discard_engine)
            await self._live(http)
        print(self.last_line, file=sys.stderr, flush=True)
        return EXIT_DONE

    async def _live(self, http: HttpServer) -> None:
        """Until the lifecycle ends. Raises `OperatorError` for whatever ended it otherwise."""
        life = asyncio.create_task(self._lifecycle.run(), name="lifecycle")
        try:
            await asyncio.wait({life, http.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                raise OperatorError("the HTTP server ended by itself", f"See {self._log.path}.", exit_code=EXIT_FAILED)
            life.result()
        except EngineStartError as error:
            raise start_failure(error, self._log.path) from error
        except OperatorError:
            raise
        except Exception as error:
            logger.exception("the host failed")
            raise OperatorError(
                f"the host failed: {type(error).__name__}: {error}",
                f"The traceback is in {self._log.path}; please report it.",
                exit_code=EXIT_FAILED,
            ) from error
        finally:
            life.cancel()
            await asyncio.wait({life})

    async def _tick(self) -> None:
        """Once a second: the history strip, and stalls told as events."""
        while True:
            await asyncio.sleep(1.0)
            try:
                self._look()
            except Exception:
                logger.exception("no telemetry this second")

    def _look(self) -> None:
        self._store.sample_history(self._lifecycle.backlog)
        self._snapshots.keep_up()
        engine, under_way = self._lifecycle.engine, self._lifecycle.switch_under_way
        # An engine that hands over to another one has nothing to run any more.
        can_run = engine is not None and not engine.is_dead and (under_way is None or under_way.can_cancel)
        self._stalls.look(self._snapshots.queue(), can_run=can_run, is_switching=under_way is not None)

    def _on_log_line(self, line: str) -> None:
        """In the follower's thread."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._lifecycle.saw_log_line, line)

    # --- signals ---------------------------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        """The first signal drains and stops, the second forces."""
        self._signals += 1
        if self._signals == 1:
            self._stop_began = self._stop_began or time.monotonic()
            drain_s = self._drain_s(None)
            self.events.append(
                "host.signal", f"{signal.Signals(number).name}: stopping, {drain_s:.0f} s to drain; again to force"
            )
            self._stopping = asyncio.create_task(self._lifecycle.stop(drain_s, "signal"), name="stop-on-signal")
        elif self._signals == 2:
            self.events.append("host.signal", "second signal: forced", severity=Severity.WARNING)
            self._lifecycle.force()


def start_failure(error: EngineStartError, log: Path) -> OperatorError:
    """The first start failed: what the engine said, and where the rest stands."""
    lines = "".join(f"\n    {line[:300]}" for line in error.lines or error.last_lines)
    head = "The engine's last error lines:" if error.lines else "It printed no error; its last lines:"
    said = f"\n  {head}{lines}" if lines else ""
    return OperatorError(
        f"the engine did not start: {error.reason[:500]}{said}",
        f"The whole log is in {log}. Mend the profile, then check it with `engine-host check PROFILE`.",
        exit_code=EXIT_FAILED,
    )


def run_host(options: HostOptions) -> int:
    """Run to the end on the fastest event loop there is: vLLM's own server uses uvloop."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(EngineHost(options).run())
