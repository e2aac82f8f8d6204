"""Progress: a live line on a terminal, plain lines without one, silence never."""

import io
import threading

import pytest

from engine_host.demo.progress import Step


class Terminal(io.StringIO):
    """A terminal, or with `is_terminal=False` a file, that tells when something was written."""

    def __init__(self, *, is_terminal: bool, until: str) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self._until = until
        self.seen = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._until in self.getvalue():
            self.seen.set()
        return count


def test_a_terminal_gets_one_live_line_that_is_gone_at_the_end() -> None:
    stream = Terminal(is_terminal=True, until="fetching torch")
    with Step("install", stream) as step:
        step.phase("fetching torch")
        assert stream.seen.wait(5)
        assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith(")\n")
    assert stream.getvalue().rsplit("\x1b[K", 1)[1].startswith("install: done (")


def test_without_a_terminal_there_are_plain_lines() -> None:
    stream = Terminal(is_terminal=False, until="fetching torch")
    with Step("install", stream, plain_interval_s=0.01) as step:
        step.phase("fetching torch")
        assert stream.seen.wait(5)
        step.done("ready")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].startswith("install: ready (")


def test_a_phase_may_be_measured_anew_each_time() -> None:
    counts = iter(range(1, 10_000))
    stream = Terminal(is_terminal=False, until="3 of 9")
    with Step("install", stream, plain_interval_s=0.01) as step:
        step.phase(lambda: f"{next(counts)} of 9")
        assert stream.seen.wait(5)


def test_a_measurement_that_fails_leaves_the_line_without_it() -> None:
    def vanished() -> str:
        raise FileNotFoundError

    stream = Terminal(is_terminal=False, until="install (")
    with Step("install", stream, plain_interval_s=0.01) as step:
        step.phase(vanished)
        assert stream.seen.wait(5)


def test_a_failed_step_does_not_say_done() -> None:
    stream = Terminal(is_terminal=False, until="done")
    with pytest.raises(RuntimeError), Step("install", stream):
        raise RuntimeError
    assert stream.getvalue() == ""


def test_a_closed_terminal_does_not_stop_the_work() -> None:
    stream = io.StringIO()
    stream.close()
    with Step("install", Closed()) as step:
        step.phase("going on")
    assert step.elapsed_s >= 0


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")
