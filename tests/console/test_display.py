"""What a terminal in another encoding, or without colours, gets to see."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import sys
from pathlib import Path

import msgspec
import pytest

from console import display, events_page, forecast_panels, format, overview, panels, profiles_page, switch_panels, words
from console.commands.phases import Phases
from console.lines import cells, line
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import EXIT_DONE
from tests.console import sample, sample_switch
from tests.console.test_cli import COMMAND, run

WRITTEN_BY = (events_page, forecast_panels, format, overview, panels, profiles_page, switch_panels, words)


def glyphs() -> set[str]:
    """Every character beyond ASCII that the screens are made of."""
    found = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in WRITTEN_BY)
    return {c for c in found if not c.isascii()} - {"�"}


def test_every_glyph_of_ours_has_an_ascii_one_of_the_same_width():
    assert glyphs() <= display.STAND_INS.keys()
    assert all(stand_in.isascii() and len(stand_in) == 1 for stand_in in display.STAND_INS.values())
    assert all(cells(line(glyph)) == 1 for glyph in display.STAND_INS)


@pytest.mark.parametrize(
    ("text", "shown"), [("● 模型 é", "* ???? ?"), ("a\u0301", "a"), ("▁█", "_#"), ("612 µs → –", "612 us > -")]
)
def test_what_cannot_be_shown_is_written_as_wide_as_it_is(text, shown):
    display.write_what_can_be_shown()
    assert text.encode("ascii", errors=display.ERRORS) == shown.encode()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["status"], "gpu-7  * SERVING"),
        (["watch", "--count", "1", "--interval", "0.1"], " SERVING"),
        (["events"], "engine 1 died"),
        (["profiles", "list"], " refused"),
        (["profiles", "diff", "running", "throughput"], "reload"),
        (["switch", "throughput", "--dry-run"], "latency > throughput"),
        (["switch", "throughput", "--yes"], "* SWITCHED"),
        (["switch", "--status"], "No switch since"),
        (["restart", "--yes"], "engine.restart is done"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
async def test_every_command_answers_in_every_encoding(host, command, said, encoding):
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "-t", str(host.path), *command,
        env={**os.environ, "PYTHONIOENCODING": encoding}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert b"Traceback" not in err
    assert process.returncode == EXIT_DONE
    assert said in out.decode(encoding)


async def test_a_refusal_is_told_in_ascii_too(host):
    host.failing["engine.restart"] = RpcError(ErrorCode.CONFLICT, "ops is switching a → b", {"remedy": "wait"})
    done = await run("restart", "--yes", "-t", str(host.path), env={"PYTHONIOENCODING": "ascii"})
    assert "ops is switching a > b" in done.err


async def on_a_terminal(host, **env: str) -> str:
    """What `status` writes on a terminal of that kind."""
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "console.cli", "-t", str(host.path), "status",
        env={**os.environ, **env}, stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    loop = asyncio.get_running_loop()
    text = b""
    while True:
        try:
            text += await asyncio.wait_for(loop.run_in_executor(None, os.read, master, 1 << 16), 30)
        except OSError:  # the other side is closed
            break
    os.close(master)
    assert await asyncio.wait_for(process.wait(), 30) == EXIT_DONE
    return text.decode()


def colours(text: str) -> list[str]:
    return re.findall(r"\x1b\[[0-9;]*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m", text)


@pytest.mark.parametrize(
    ("env", "has_colours", "has_escapes"),
    [
        ({"TERM": "xterm-256color"}, True, True),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False, True),
        ({"TERM": "vt100"}, False, True),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": ""}, False, False),
        ({"TERM": "no-such-terminal"}, True, True),
    ],
)
async def test_colours_are_for_terminals_that_have_them(host, env, has_colours, has_escapes):
    host.snapshot = sample.dead()
    text = await on_a_terminal(host, **env)
    assert bool(colours(text)) == has_colours
    assert ("\x1b" in text) == has_escapes


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "is_live"), [("xterm", True), ("dumb", False)])
def test_the_phases_of_a_switch_are_redrawn_only_where_a_line_can_be_cleared(monkeypatch, term, is_live):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Tty())
    phases = Phases("throughput")
    phases.is_sent = True
    phases.heard("telemetry", msgspec.Raw(msgspec.json.encode(sample_switch.switching())))
    shown = sys.stderr.getvalue()
    assert ("\x1b" in shown) == is_live
    assert ("\n" in shown) != is_live
