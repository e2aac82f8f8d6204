"""The demo with a scripted host and console: what it starts it stops, however it ends, and nothing else."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine_host import process_tree, supervisor
from engine_host.demo import child, place, run
from engine_host.demo.place import PROFILE, state_dir
from engine_host.demo.run import Demo, Programs
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.snapshot import Engine, Host, ProfileRef, Snapshot, State
from engine_host.protocol.sockets import default_socket
from tests.ports import free_port

HERE = Path(__file__).parent
PROGRAMS = Programs(
    [sys.executable, str(HERE / "stand_in_host.py")], [sys.executable, str(HERE / "stand_in_console.py")]
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sockets and state in a directory of the test's own; the socket's path must stay short."""
    monkeypatch.setenv("VLLM_CONSOLE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[2]))
    monkeypatch.setattr(run, "POLL_S", 0.02)
    return tmp_path


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def behaves(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda behaviour: monkeypatch.setenv("STAND_IN", behaviour)


@pytest.fixture
def console_quits_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    return lambda path: monkeypatch.setenv("STAND_IN_QUITS_AT", str(path))


def demo(port: int, seconds: float | None = None, drain_s: float = 0.2) -> Demo:
    return Demo(PROGRAMS, PROFILE, drain_s, seconds, port)


def recorded(port: int, name: str) -> int:
    return int((state_dir(port) / name).read_text())


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(autouse=True)
def nothing_is_left(directory: Path) -> Iterator[None]:
    yield
    left = [p for p in psutil.Process().children(recursive=True) if "stand_in" in " ".join(p.cmdline())]
    for process in left:
        process.kill()
    assert left == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def a_host_already_there(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    state = state_dir(port)
    state.mkdir(parents=True, exist_ok=True)
    arguments = ["serve", str(PROFILE), "--socket", str(default_socket(port))]
    arguments += ["--port", str(port), "--state-dir", str(state)]
    host = await asyncio.create_subprocess_exec(*PROGRAMS.host, *arguments)
    try:
        await until(default_socket(port).exists)
        yield host
        assert host.returncode is None
    finally:
        host.terminate()
        await host.wait()


async def test_without_a_terminal_one_status_is_printed_and_everything_stopped(
    port: int, behaves: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    behaves("serves")
    assert await demo(port, seconds=0.5).run() == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"state": "serving"}
    assert "engine start: serving" in captured.err
    assert recorded(port, "requests") > 0
    assert not is_alive(recorded(port, "pid"))


async def test_the_state_directory_is_private_even_where_it_was_not(port: int, behaves: Callable[[str], None]) -> None:
    behaves("serves")
    state_dir(port).mkdir(parents=True)
    state_dir(port).chmod(0o755)
    assert await demo(port, seconds=0.3).run() == 0
    assert state_dir(port).stat().st_mode & 0o777 == 0o700


async def test_quitting_the_console_stops_the_host(
    port: int, behaves: Callable[[str], None], console_quits_at: Callable[[Path], None]
) -> None:
    behaves("serves")
    console_quits_at(state_dir(port) / "requests")  # so the load began while the console was open
    assert await demo(port).run() == 0
    assert not is_alive(recorded(port, "pid"))
    assert recorded(port, "sigterms") == 1


async def test_a_host_that_drains_on_is_told_twice(
    port: int, behaves: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    behaves("stubborn")
    monkeypatch.setattr(run, "DRAIN_MARGIN_S", 0.1)
    assert await demo(port, seconds=0.3).run() == 0
    assert recorded(port, "sigterms") == 2
    assert not is_alive(recorded(port, "pid"))


def test_the_host_gets_the_time_to_end_itself_by_force() -> None:
    assert child.FORCED_S >= supervisor.FORCED_EXIT_S + process_tree.KILL_WAIT_S


@pytest.mark.parametrize("behaviour", ["deaf", "deaf-apart"])
async def test_a_host_that_hears_nothing_is_killed_with_its_children(
    port: int, behaves: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    behaves(behaviour)
    monkeypatch.setattr(run, "DRAIN_MARGIN_S", 0.1)
    monkeypatch.setattr(child, "FORCED_S", 0.2)
    assert await demo(port, seconds=0.3).run() == 0
    assert not is_alive(recorded(port, "pid"))
    assert not is_alive(recorded(port, "child"))


async def test_the_console_opens_before_the_engine_serves_and_quitting_it_then_is_quick(
    port: int,
    behaves: Callable[[str], None],
    console_quits_at: Callable[[Path], None],
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The thread that imports vLLM hears no signal; neither does this host."""
    behaves("loads")
    monkeypatch.setattr(child, "ABANDON_S", 0.3)
    console_quits_at(directory)  # quits at once
    began = time.monotonic()
    assert await demo(port, drain_s=60).run() == 0
    assert time.monotonic() - began < 10
    assert not is_alive(recorded(port, "pid"))
    assert not is_alive(recorded(port, "child"))
    assert not default_socket(port).exists()
    assert not (state_dir(port) / "requests").exists()
    assert "all its processes have ended" in capfd.readouterr().err


async def test_what_outlives_the_host_is_named_and_not_denied(
    port: int,
    behaves: Callable[[str], None],
    console_quits_at: Callable[[Path], None],
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    behaves("loads")
    monkeypatch.setattr(child, "ABANDON_S", 0.1)
    killed: list[psutil.Process] = []
    monkeypatch.setattr(process_tree, "kill", lambda found: killed.extend(found) or 0)
    console_quits_at(directory)
    with pytest.raises(OperatorError, match="of its processes are still there") as raised:
        await demo(port).run()
    assert str(recorded(port, "child")) in raised.value.fact
    assert "kill -9" in raised.value.remedy
    assert raised.value.exit_code == 1
    assert "have ended" not in capfd.readouterr().err
    for process in killed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


async def test_the_console_is_told_whether_quitting_stops_the_host(
    port: int, behaves: Callable[[str], None], console_quits_at: Callable[[Path], None], directory: Path
) -> None:
    behaves("serves")
    console_quits_at(directory / "quit")
    (directory / "quit").touch()
    assert await demo(port).run() == 0
    assert (directory / "told").read_text() == "1"
    async with a_host_already_there(port):
        assert await demo(port).run() == 0
        assert (directory / "told").read_text() == ""


async def test_an_engine_that_does_not_start_is_told_with_its_reason(
    port: int, behaves: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    behaves("fails")
    with pytest.raises(OperatorError, match="did not start: no room for the KV cache") as raised:
        await demo(port, seconds=0.3).run()
    assert "ValueError: 1 GiB" in raised.value.fact
    assert "engine-host.log" in raised.value.remedy
    assert raised.value.exit_code == 1
    assert capfd.readouterr().out == ""
    assert not is_alive(recorded(port, "pid"))


async def test_a_failed_engine_is_still_told_when_the_console_is_closed(
    port: int, behaves: Callable[[str], None], console_quits_at: Callable[[Path], None], directory: Path
) -> None:
    behaves("fails")
    console_quits_at(directory / "later")
    asyncio.get_running_loop().call_later(1.0, (directory / "later").touch)
    with pytest.raises(OperatorError, match="no room for the KV cache"):
        await demo(port).run()


async def test_a_host_that_ends_at_once_shows_its_last_words(port: int, behaves: Callable[[str], None]) -> None:
    behaves("exits")
    state_dir(port).mkdir(parents=True)
    (state_dir(port) / "engine-host.log").write_text("words of an earlier run\n")
    with pytest.raises(OperatorError, match=r"status 2 .*\n +engine-host: profile is broken\n +mend it") as raised:
        await demo(port, seconds=1).run()
    assert "earlier run" not in raised.value.fact


async def test_a_running_demo_is_shown_and_left_running(
    port: int, behaves: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    behaves("serves")
    async with a_host_already_there(port) as host:
        assert await demo(port, seconds=0.3).run() == 0
        captured = capfd.readouterr()
        assert json.loads(captured.out) == {"state": "serving"}
        assert "already runs" in captured.err
        assert recorded(port, "pid") == host.pid
        assert not (state_dir(port) / "sigterms").exists()


async def test_somebody_elses_host_is_neither_loaded_nor_stopped(
    port: int, behaves: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    behaves("serves")
    monkeypatch.setenv("STAND_IN_PROFILE", "production")
    async with a_host_already_there(port):
        with pytest.raises(OperatorError, match=f"Port {port} is taken") as raised:
            await demo(port, seconds=0.3).run()
        assert raised.value.exit_code == 2
        assert not (state_dir(port) / "requests").exists()
        assert not (state_dir(port) / "sigterms").exists()


async def test_the_next_free_port_is_used_and_said(
    port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(place, "FIRST_PORT", port)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        found = await place.find_place(None)
    assert found.port > port
    assert f"port {port} is taken; using {found.port}" in capfd.readouterr().err


async def interrupted(demo: Demo, when: Callable[[], bool], times: int = 1) -> int:
    """Run the demo; once `when` holds, send this process SIGINT `times` times, each after the last took effect."""
    running = asyncio.create_task(run.run_until_interrupted(demo))
    await until(when)
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: demo.is_stopping)
    async with asyncio.timeout(30):
        return await running


async def test_ctrl_c_while_the_load_runs_stops_everything(port: int, behaves: Callable[[str], None]) -> None:
    behaves("serves")
    started = state_dir(port) / "requests"
    assert await interrupted(demo(port, seconds=60), started.exists) == 130
    assert not is_alive(recorded(port, "pid"))


async def test_ctrl_c_while_the_engine_starts_stops_everything(port: int, behaves: Callable[[str], None]) -> None:
    behaves("serves")
    assert await interrupted(demo(port, seconds=60), (state_dir(port) / "pid").exists) == 130
    assert not is_alive(recorded(port, "pid"))


async def test_a_second_ctrl_c_does_not_wait_for_the_drain(port: int, behaves: Callable[[str], None]) -> None:
    behaves("stubborn")
    started = state_dir(port) / "requests"
    began = time.monotonic()
    assert await interrupted(demo(port, seconds=60, drain_s=60), started.exists, times=2) == 130
    assert time.monotonic() - began < 30
    assert recorded(port, "sigterms") == 2


@pytest.mark.parametrize("wanted", ["0", "-1", "soon", "nan", "1e9"])
def test_a_wrong_demo_seconds_is_refused(wanted: str) -> None:
    with pytest.raises(OperatorError, match="DEMO_SECONDS is ") as raised:
        run.seconds_of_load(wanted, has_terminal=True)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("wanted", "has_terminal", "seconds"),
    [(None, True, None), ("", True, None), (None, False, 20.0), ("5", True, 5.0), ("5", False, 5.0)],
)
def test_the_console_opens_only_on_a_terminal_and_without_demo_seconds(
    wanted: str | None, has_terminal: bool, seconds: float | None
) -> None:
    assert run.seconds_of_load(wanted, has_terminal=has_terminal) == seconds


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        (
            Engine(phase="loading weights", start_elapsed_s=8.0, start_expected_s=20.0),
            "loading weights, about 12 s to go",
        ),
        (Engine(phase="warming up", start_elapsed_s=30.0, start_expected_s=20.0), "warming up, longer than last time"),
        (Engine(phase="warming up", start_elapsed_s=30.0), "warming up"),
        (Engine(), "starting"),
    ],
)
def test_the_start_is_told_in_words(engine: Engine, text: str) -> None:
    host = Host(name="h", pid=1, boot_id="b", version="0", started_at=0.0, uptime_s=1.0, http="x")
    profile = ProfileRef(name="demo", digest="d", path="p")
    starting = Snapshot(
        host=host,
        profile=profile,
        state=State.STARTING,
        state_since=0.0,
        state_version=1,
        engine=engine,
        at=0.0,
        seq=1,
    )
    assert run.start_phase(starting) == text
