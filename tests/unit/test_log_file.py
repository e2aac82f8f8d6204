"""The log file as a whole: what is printed is read, kept and echoed, and no terminal can stop that.

`start` and `stop` turn file descriptors 1 and 2, so every scene is a process of its own; it tells what it found in a
file.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from engine_host.engine import file_blocks

PRELUDE = """
import json, os, subprocess, sys, threading, time
from pathlib import Path
from engine_host.engine.log_file import LogFile

here = Path(sys.argv[1])
found = {}


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def texts(log):
    return log.since(0)


"""


def scene(directory: Path, text: str) -> list[str]:
    """The command that plays `text` and then writes down what it put into `found`."""
    told = '\n(here / "found.json").write_text(json.dumps(found))\n'
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(text) + told, str(directory)]


def play(directory: Path, text: str) -> tuple[dict[str, Any], str, str]:
    """What the scene found, and its standard output and error."""
    done = subprocess.run(scene(directory, text), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads((directory / "found.json").read_text())
    return found, done.stdout, done.stderr


def test_what_this_process_and_its_children_print_is_kept_in_file_and_memory_and_echoed(tmp_path: Path) -> None:
    found, out, err = play(
        tmp_path,
        """
        seen = []
        print("before")
        log = LogFile(here / "engine.log", seen.append)
        log.start()
        print("of the host")
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'of a child\\\\n')"], check=True)
        until(lambda: len(log.since(0)) == 2)
        mark = log.mark()
        os.write(1, b"later, without an end of line")
        log.stop()
        found["seen"], found["after"] = seen, log.since(mark)
        print("after")
        log.stop()
        """,
    )
    assert found["seen"] == ["of the host", "of a child", "later, without an end of line"]
    assert found["after"] == ["later, without an end of line"]
    assert (tmp_path / "engine.log").read_text() == "of the host\nof a child\nlater, without an end of line"
    assert out == "before\nafter\n"
    assert err == "of the host\nof a child\nlater, without an end of line"


# As on a file system that cannot take the beginning out of a file.
TRUNCATES = """
        from engine_host.engine import file_blocks
        file_blocks.take_out = lambda file, size: False
        """


@pytest.mark.parametrize("truncates", ["", TRUNCATES], ids=["takes out blocks", "truncates"])
def test_a_file_grown_too_large_is_cut_and_the_older_part_kept(tmp_path: Path, truncates: str) -> None:
    found, _, err = play(
        tmp_path,
        truncates
        + """
        log = LogFile(here / "engine.log", max_bytes=10_000)
        log.start()
        os.write(1, b"".join(b"line %05d %s\\n" % (number, b"x" * 87) for number in range(300)))
        until(lambda: (here / "engine.log").stat().st_size <= 4096)
        os.write(1, b"the first of the new part\\n")
        until(lambda: log.since(0)[-1] == "the first of the new part")
        found["count"] = log.mark()
        log.stop()
        """,
    )
    assert found["count"] == 301
    newer, older = (tmp_path / "engine.log").read_text(), (tmp_path / "engine.log.1").read_text()
    assert len(newer) <= 4200 and len(older) <= 14_200
    assert re.fullmatch(r"[^\n]*\n(line \d{5} x{87}\n){100,}the first of the new part\n", older + newer)
    assert err.count("\n") == 301


@pytest.mark.parametrize("truncates", ["", TRUNCATES], ids=["takes out blocks", "truncates"])
def test_a_line_printed_while_the_file_is_cut_is_read_and_kept(tmp_path: Path, truncates: str) -> None:
    found, _, err = play(
        tmp_path,
        truncates
        + """
        from engine_host.engine import file_blocks
        log = LogFile(here / "engine.log", max_bytes=50_000)
        whole_blocks, late = file_blocks.whole_blocks, []

        def print_and_tell(file, size):  # asked first, of what has been read
            late.append(b"late %05d\\n" % len(late))
            os.write(1, late[-1])
            return whole_blocks(file, size)

        file_blocks.whole_blocks = print_and_tell
        seen = []
        log._on_line = seen.append
        log.start()
        for number in range(20):
            os.write(1, b"line %05d %s\\n" % (number, b"x" * 60_000))
            until(lambda: len(late) == number + 1 and os.fstat(1).st_size < 5_000)
        log.stop()
        found["late"] = [line for line in seen if line.startswith("late")]
        """,
    )
    assert found["late"] == [f"late {number:05d}" for number in range(20)]
    assert err.count("\n") == 40


def test_no_line_of_a_flood_is_lost_however_often_the_file_is_cut(tmp_path: Path) -> None:
    if not can_take_out_blocks(tmp_path):
        pytest.skip("this file system cannot take the beginning out of a file")
    found, _, _ = play(
        tmp_path,
        """
        seen = []
        log = LogFile(here / "engine.log", lambda line: seen.append(line[:10]), max_bytes=8_192)
        log.start()
        flood = (
            "import os, time\\n"
            "for n in range(20_000): os.write(1, b'line %05d %s\\\\n' % (n, b'x' * 187)); n % 50 or time.sleep(0.002)"
        )
        subprocess.run([sys.executable, "-c", flood], check=True)
        log.stop()
        found["wrong"] = [(number, line) for number, line in enumerate(seen) if line != f"line {number:05d}"][:3]
        found["count"] = len(seen)
        """,
    )
    assert found == {"wrong": [], "count": 20_000}
    assert (tmp_path / "engine.log.1").exists()


def can_take_out_blocks(directory: Path) -> bool:
    with (directory / "tried").open("wb") as file:
        file.write(b"x" * (os.fstatvfs(file.fileno()).f_bsize + 1))
        file.flush()
        return file_blocks.take_out(file.fileno(), file_blocks.whole_blocks(file.fileno(), file.tell()))


def test_a_file_that_somebody_removed_or_emptied_is_followed_on(tmp_path: Path) -> None:
    found, _, err = play(
        tmp_path,
        """
        log = LogFile(here / "engine.log", max_bytes=1_000)
        log.start()
        os.write(1, b"one\\n")
        until(lambda: log.since(0) == ["one"])
        os.truncate(here / "engine.log", 0)
        os.write(1, b"2\\n")
        until(lambda: len(log.since(0)) == 2)
        (here / "engine.log").unlink()
        os.write(1, b"x" * 20_000 + b"\\n")
        until(lambda: os.fstat(1).st_size <= 4096)
        os.write(1, b"three\\n")
        until(lambda: len(log.since(0)) >= 4)
        log.stop()
        found["lines"] = [line[:10] for line in log.since(0)]
        """,
    )
    assert found["lines"] == ["one", "2", "x" * 10, "three"]
    assert err == "one\n2\n" + "x" * 20_000 + "\nthree\n"


def test_a_file_of_an_earlier_run_is_put_aside_when_it_is_large_and_gone_on_with_when_not(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("of an earlier run\n")
    text = """
        log = LogFile(here / "engine.log", max_bytes={max_bytes})
        log.start()
        os.write(1, b"of this run\\n")
        log.stop()
        found["lines"] = log.since(0)
        """
    found, _, _ = play(tmp_path, text.format(max_bytes=1_000))
    assert found["lines"] == ["of this run"]
    assert (tmp_path / "engine.log").read_text() == "of an earlier run\nof this run\n"
    play(tmp_path, text.format(max_bytes=20))
    assert (tmp_path / "engine.log").read_text() == "of this run\n"
    assert (tmp_path / "engine.log.1").read_text() == "of an earlier run\nof this run\n"


STALLED = """
        log = LogFile(here / "engine.log", max_bytes=20_000 * 99 - 1)
        log.start()
        for number in range(20_000):
            os.write(1, b"line %05d %s\\n" % (number, b"x" * 87))
        until(lambda: log.mark() == 20_000)
        found["last"] = log.since(0)[-1][:10]
        until(lambda: (here / "engine.log").stat().st_size <= 4096)
        (here / "ready").touch()
        {then}
        began = time.monotonic()
        log.stop()
        found["stop_s"] = time.monotonic() - began
        """


def test_a_pipe_that_nobody_reads_stops_neither_the_follower_nor_the_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(scene(tmp_path, STALLED.format(then="")), stderr=writing)
    os.close(writing)
    assert process.wait(60) == 0
    os.close(reading)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["last"] == "line 19999"
    assert found["stop_s"] < 3


def test_a_terminal_that_nobody_reads_stops_neither_the_follower_nor_the_end(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(scene(tmp_path, STALLED.format(then="")), stderr=slave)
    os.close(slave)
    assert process.wait(60) == 0
    os.close(master)
    assert json.loads((tmp_path / "found.json").read_text())["stop_s"] < 3


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """Everything up to and with `wanted`."""
    text, deadline = b"", time.monotonic() + 30
    while wanted not in text:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{wanted!r} did not come; the last: {text[-200:]!r}"
        text += os.read(descriptor, 1 << 16)
    return text


def test_what_a_stalled_terminal_missed_is_counted_when_it_reads_again(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    then = 'until(lambda: (here / "go").exists()); os.write(1, b"afterwards\\n"); until(lambda: log.mark() == 20_001)'
    process = subprocess.Popen(scene(tmp_path, STALLED.format(then=then)), stderr=writing)
    os.close(writing)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    text = read_until(reading, b"lines not repeated here")
    (tmp_path / "go").touch()
    text += read_until(reading, b"afterwards\n")
    assert process.wait(30) == 0
    os.close(reading)
    *repeated, notice = text.decode().split(" lines not repeated here")[0].split("\n… ")
    count = int(notice.replace(",", ""))
    whole = "".join(repeated).count("\nline ") + 1
    # Chunks end anywhere, so the line at the cut may count on both sides.
    assert 20_000 <= whole + count <= 20_001
    assert f"see {tmp_path / 'engine.log'}" in text.decode()


def test_a_terminal_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(scene(tmp_path, STALLED.format(then="")), stderr=writing)
    os.close(writing)
    os.close(reading)
    assert process.wait(60) == 0
    assert json.loads((tmp_path / "found.json").read_text())["last"] == "line 19999"


def test_lines_that_arrive_while_stopping_do_not_hold_it_up(tmp_path: Path) -> None:
    found, _, _ = play(
        tmp_path,
        """
        log = LogFile(here / "engine.log")
        log.start()
        flood = subprocess.Popen(["sh", "-c", "while :; do echo a line of the flood; done"])
        until(lambda: log.mark() > 1_000)
        os.write(1, b"the last word of the host\\n")
        began = time.monotonic()
        log.stop()
        found["stop_s"] = time.monotonic() - began
        found["threads"] = threading.active_count()
        flood.kill()
        flood.wait()
        text = (here / "engine.log").read_text()
        found["missed"] = text[: text.index("the last word")].count("\\n") - log.mark()
        """,
    )
    assert found["stop_s"] < 3
    assert found["missed"] < 0  # all that stood there before the last word, and that too
    assert found["threads"] == 1
