"""The TUI on a real pseudo-terminal: how it starts, and how it leaves the terminal however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import time

import pytest

from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, EXIT_UNREACHABLE
from engine_host.protocol.sockets import QUIT_STOPS_HOST

ALTERNATE_SCREEN, NORMAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"

MAIN = "from console.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


class Terminal:
    """A child on a pseudo-terminal of its own, as its session's leader."""

    def __init__(
        self, *arguments: str, code: str = MAIN, columns: int = 80, rows: int = 24, term: str = "xterm"
    ) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # Here, not in the parent, which may be late: a console that has drawn itself already would not be tiny.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            # libreadline, which pytest loads, puts COLUMNS and LINES into the C environment that execv passes on, and a
            # test process that was started by another one has them in its own; they overrule the terminal's size.
            environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
            os.execve(sys.executable, [sys.executable, "-c", code, *arguments], {**environment, "TERM": term})
        os.set_blocking(self.master, False)
        self.modes = termios.tcgetattr(self.master)
        self.shown = b""

    def read(self) -> bytes:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 1 << 16):
                self.shown += data
        return self.shown

    def code(self) -> int | None:
        """The exit code once it has ended; negative for a signal."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return self._code
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
            return self._code
        return None

    _code: int | None = None

    def close(self) -> None:
        if self.code() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.master)


@pytest.fixture
def terminal():
    opened: list[Terminal] = []

    def open_(*arguments: str, **options) -> Terminal:
        opened.append(Terminal(*arguments, **options))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


async def ends(terminal: Terminal, until) -> int:
    """Read on (a full terminal would hold up the child) until the child has ended."""
    await until(lambda: terminal.read() is not None and terminal.code() is not None)
    terminal.read()
    code = terminal.code()
    assert code is not None
    return code


def is_left_clean(terminal: Terminal) -> bool:
    """Back on the normal screen, the cursor shown, the modes as they were."""
    last_on, last_off = terminal.shown.rfind(ALTERNATE_SCREEN), terminal.shown.rfind(NORMAL_SCREEN)
    modes = termios.tcgetattr(terminal.master)
    return last_off > last_on and SHOW_CURSOR in terminal.shown[last_on:] and modes[3] == terminal.modes[3]


async def test_it_shows_data_quits_on_q_and_leaves_the_terminal_clean(host, terminal, until):
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    os.write(console.master, b"q")
    assert await ends(console, until) == EXIT_DONE
    assert is_left_clean(console)


async def test_the_first_data_is_on_screen_within_a_second(host, terminal, until):
    """The budget, with the slack of a busy test machine; `tests/benchmarks/tui_cost.py` measures it properly."""
    began = time.monotonic()
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_leaves_the_terminal_clean(host, terminal, until, ending):
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    os.kill(console.pid, ending)
    assert await ends(console, until) == EXIT_DONE
    assert is_left_clean(console)


async def test_ctrl_c_ends_nothing(host, terminal, until):
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    os.write(console.master, b"\x03")
    await until(lambda: b"Press q to leave" in console.read())
    assert console.code() is None


async def test_a_console_whose_end_stops_the_host_does_not_say_that_it_runs_on(host, terminal, until, monkeypatch):
    monkeypatch.setenv(QUIT_STOPS_HOST, "1")
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    os.write(console.master, b"\x03")
    await until(lambda: b"its host is stopped too" in console.read())


async def test_a_terminal_that_goes_away_ends_the_console(host, terminal, until):
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    os.close(console.master)
    await until(lambda: console.code() is not None)


async def test_a_lost_terminal_ends_the_console_though_no_signal_tells(host, terminal, until):
    """As under nohup: reading returns at once for ever, and a console that does not look spins."""
    deaf = (
        "import signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "import console.tui.terminal\n"
        "console.tui.terminal.ENDINGS = (signal.SIGTERM,)\n"
        "from console.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    console = terminal("-t", str(host.path), code=deaf)
    await until(lambda: b"Qwen2.5-72B" in console.read())
    os.close(console.master)
    await until(lambda: console.code() is not None)
    assert console.code() == EXIT_DONE


async def test_a_crash_is_a_fact_and_a_remedy_on_a_clean_terminal(host, terminal, until, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code = (
        "import console.tui.screens.overview as o\n"
        "def broken(*_): raise ZeroDivisionError('as a test wants it')\n"
        "o.overview = broken\n" + MAIN.replace("; ", "\n")
    )
    console = terminal("-t", str(host.path), code=code)
    assert await ends(console, until) == EXIT_FAILED
    assert is_left_clean(console)
    after = console.shown[console.shown.rfind(NORMAL_SCREEN) :]
    assert b"the console broke: ZeroDivisionError: as a test wants it" in after
    assert b"Traceback" not in console.shown
    assert "Traceback" in (tmp_path / "state" / "vllm-console" / "console-crash.log").read_text()


async def test_a_host_that_comes_back_is_picked_up_again(host, terminal, until):
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    await host.stop()
    await until(lambda: b"NO CONNECTION" in console.read())
    await host.start()
    connections = host.connections
    await until(lambda: host.connections > connections and console.read() is not None)
    assert console.code() is None


async def test_no_color_is_heard(host, terminal, until, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    assert b"\x1b[1;94m" not in console.shown
    assert b";94m" not in console.shown
    assert b"38;2" not in console.shown


async def test_a_terminal_without_colours_gets_none(host, terminal, until):
    console = terminal("-t", str(host.path), term="vt100")
    await until(lambda: b"Qwen2.5-72B" in console.read())
    assert b"94m" not in console.shown


async def test_a_terminal_in_ascii_is_drawn_in_ascii(host, terminal, until, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    os.write(console.master, b"R")
    await until(lambda: b"restart engine on gpu-7?" in console.read())
    assert b"* SERVING" in console.shown
    assert console.shown.isascii()
    assert console.code() is None


async def test_without_no_color_only_the_terminals_own_16_colours_are_used(host, terminal, until):
    console = terminal("-t", str(host.path), term="xterm-256color")
    await until(lambda: b"Qwen2.5-72B" in console.read())
    assert b"94m" in console.shown
    assert b"38;2" not in console.shown
    assert b"38;5" not in console.shown


async def test_a_host_that_is_not_there_is_exit_3_without_a_screen(host, terminal, until):
    await host.stop()
    console = terminal("-t", str(host.path))
    assert await ends(console, until) == EXIT_UNREACHABLE
    assert ALTERNATE_SCREEN not in console.shown
    assert b"engine-host serve PROFILE" in console.shown


async def test_a_dumb_terminal_is_exit_2(host, terminal, until):
    console = terminal("-t", str(host.path), term="dumb")
    assert await ends(console, until) == EXIT_INVALID
    assert b"vllm-console watch" in console.shown


async def test_a_tiny_terminal_shows_the_essence(host, terminal, until):
    console = terminal("-t", str(host.path), columns=50, rows=8)
    await until(lambda: b"80x24 needed" in console.read() and b"SERVING" in console.shown)
    assert console.code() is None


async def test_an_idle_host_costs_the_link_next_to_nothing(host, terminal, until):
    """Ten snapshots in which nothing changes: what is written is the cursor being parked, no cells."""
    host.interval_s = 0.05
    console = terminal("-t", str(host.path))
    await until(lambda: b"Qwen2.5-72B" in console.read())
    drawn = host.streamed
    await until(lambda: console.read() is not None and host.streamed > drawn + 20)
    written = len(console.read())
    await until(lambda: console.read() is not None and host.streamed > drawn + 30)
    assert len(console.read()) - written < 200
