"""The command line as scripts see it: standard output, standard error, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from console.client import connected
from console.commands.change import until_ended
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INVALID,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
    EXIT_UNREACHABLE,
    OperatorError,
)
from engine_host.protocol.events import Event
from engine_host.protocol.methods import Role
from engine_host.protocol.snapshot import Snapshot
from tests.console import sample

COMMAND = (sys.executable, "-m", "console.cli")


@dataclass
class Done:
    code: int
    out: str
    err: str


async def start(*arguments: str, **options):
    env = {**os.environ, **options.pop("env", {})}
    pipes = {"stdin": asyncio.subprocess.DEVNULL, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(*COMMAND, *arguments, **{**pipes, **options}, env=env)


async def run(*arguments: str, **options) -> Done:
    process = await start(*arguments, **options)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


def is_fact_and_remedy(text: str) -> bool:
    """Two lines or more, ours, and no traceback."""
    lines = text.rstrip().splitlines()
    return (
        text.startswith("vllm-console: ") and len(lines) >= 2 and lines[-1].startswith("  ") and "Traceback" not in text
    )


async def test_status_as_json_is_the_snapshot_and_nothing_else(host):
    done = await run("status", "--json", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert done.err == ""
    assert done.out.count("\n") == 1
    assert msgspec.json.decode(done.out, type=Snapshot) == host.snapshot


async def test_status_as_json_has_the_keys_of_the_contract(host):
    done = await run("-t", str(host.path), "status", "--json")
    wanted = {"host", "profile", "state", "engine", "kv", "queue", "speculation", "throughput", "latency",
              "prefix_cache", "throttle", "dials", "gpus", "alerts", "age_s", "seq"}  # fmt: skip
    assert wanted <= json.loads(done.out).keys()


async def test_the_target_may_stand_before_or_after_the_command_or_in_the_environment(host):
    path = str(host.path)
    before = await run("-t", path, "status", "--json")
    after = await run("status", "-t", path, "--json")
    environment = await run("status", "--json", env={"VLLM_CONSOLE_TARGET": path})
    assert before.out == after.out == environment.out
    assert before.code == after.code == environment.code == EXIT_DONE


async def test_status_for_a_person_has_no_colour_in_a_pipe(host):
    done = await run("status", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert "\x1b" not in done.out
    for what in ("gpu-7  ● SERVING", "68.2 %", "running    37", "GPU 0"):
        assert what in done.out


async def test_status_of_a_dead_engine_is_still_an_answer(host):
    host.snapshot = sample.dead()
    done = await run("status", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert "KV cache is too small" in done.out


async def test_watch_prints_one_snapshot_a_line(host):
    host.next_snapshot = lambda first, number: msgspec.structs.replace(first, seq=number)
    done = await run("watch", "--json", "--count", "3", "--interval", "0.1", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert [json.loads(row)["seq"] for row in done.out.splitlines()] == [1, 2, 3]
    assert ("telemetry.subscribe", {"interval_s": 0.1}) in host.asked


async def test_watch_for_a_person_has_a_heading_and_columns_under_it(host):
    done = await run("watch", "--count", "2", "--interval", "0.1", "-t", str(host.path))
    heading, first, second = done.out.splitlines()
    assert heading.split()[:4] == ["time", "state", "KV", "running"]
    assert "68.2 %" in first
    assert first == second


async def test_watch_ends_with_exit_3_when_the_host_goes(host):
    process = await start("watch", "--json", "--interval", "0.1", "-t", str(host.path))
    await asyncio.wait_for(process.stdout.readline(), 30)
    await host.stop()
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == EXIT_UNREACHABLE
    assert all(json.loads(row) for row in out.decode().splitlines())
    assert is_fact_and_remedy(err.decode())


async def test_ctrl_c_ends_watch_without_a_traceback(host):
    process = await start("watch", "--json", "--interval", "0.1", "-t", str(host.path))
    await asyncio.wait_for(process.stdout.readline(), 30)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert err == b""


@pytest.mark.parametrize("arguments", [["watch", "--interval", "0.1"], ["watch", "--json", "--interval", "0.1"]])
async def test_a_reader_that_leaves_ends_watch_quietly(host, arguments):
    read, write = os.pipe()
    process = await start(*arguments, "-t", str(host.path), stdout=write)
    os.close(write)
    os.close(read)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == EXIT_DONE
    assert err == b""


async def test_events_are_listed_oldest_first(host):
    done = await run("events", "--json", "-t", str(host.path))
    assert [json.loads(row)["seq"] for row in done.out.splitlines()] == [1, 2, 3, 4, 5, 6]
    assert done.err == ""


async def test_events_may_be_limited_and_resumed(host):
    last_two = await run("events", "--json", "--limit", "2", "-t", str(host.path))
    after = await run("events", "--json", "--after", "4", "-t", str(host.path))
    assert [json.loads(row)["seq"] for row in last_two.out.splitlines()] == [5, 6]
    assert [json.loads(row)["seq"] for row in after.out.splitlines()] == [5, 6]


async def test_events_no_longer_kept_are_told_apart_from_the_output(host):
    host.events = host.events[3:]
    done = await run("events", "--json", "--after", "1", "-t", str(host.path))
    assert [json.loads(row)["seq"] for row in done.out.splitlines()] == [4, 5, 6]
    assert "no longer kept" in done.err
    assert done.code == EXIT_DONE


async def test_events_can_be_followed(host, until):
    process = await start("events", "--follow", "--json", "-t", str(host.path))
    past = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(6)]
    await until(lambda: "events.subscribe" in host.methods_asked())
    host.happened(Event(seq=7, at=sample.AT, kind="x", text="just now"))
    new = await asyncio.wait_for(process.stdout.readline(), 30)
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 30)
    assert [json.loads(row)["seq"] for row in [*past, new]] == [1, 2, 3, 4, 5, 6, 7]


async def test_an_event_cannot_drive_the_terminal_of_who_reads_it(host):
    host.events = [Event(seq=1, at=sample.AT, kind="x", text="a\x1b]0;owned\x07b")]
    done = await run("events", "-t", str(host.path))
    assert "\x1b" not in done.out
    assert "owned" in done.out


@pytest.mark.parametrize(("command", "method"), [("stop", "host.stop"), ("restart", "engine.restart")])
async def test_an_agreed_action_is_sent_once_with_its_reason_and_a_key(host, command, method):
    done = await run(command, "--yes", "--drain", "30", "--reason", "maintenance", "--json", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert json.loads(done.out)["text"] == f"{method} is done"
    [params] = [params for asked, params in host.asked if asked == method]
    assert params["reason"] == "maintenance"
    assert params["drain_timeout_s"] == 30
    assert len(params["idempotency_key"]) >= 16


async def test_stop_returns_when_the_socket_of_the_host_is_gone(host, until):
    host.before_unlinking = asyncio.Event()
    process = await start("stop", "--yes", "--json", "-t", str(host.path))
    await until(lambda: "host.stop" in host.methods_asked())
    reading = asyncio.create_task(process.communicate())
    _, pending = await asyncio.wait({reading}, timeout=0.5)
    assert pending, "it returned while the host still held its socket"
    host.before_unlinking.set()
    out, err = await asyncio.wait_for(reading, 30)
    assert (process.returncode, err) == (EXIT_DONE, b"")
    assert json.loads(out)["text"] == "host.stop is done"
    assert not host.path.exists()


async def test_a_host_that_has_ended_is_not_said_to_be_in_the_state_that_it_answered_in(host):
    done = await run("stop", "--yes", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert done.out.startswith("host.stop is done (took ")
    assert "the host is now" not in done.out


async def test_a_host_that_does_not_end_is_told_at_the_deadline(host):
    host.is_ending = False
    async with connected(host.path) as client:
        with pytest.raises(OperatorError, match="has not ended within") as raised:
            await until_ended(client, host.path, (1, 1), 0.1)
    assert raised.value.exit_code == EXIT_TIMED_OUT
    assert str(host.path) in raised.value.remedy


async def test_the_socket_of_the_next_host_is_not_waited_for(host):
    async with connected(host.path) as client:
        host.drop_all()
        await until_ended(client, host.path, (1, 1), 10)
    assert host.path.exists()


async def test_two_actions_never_share_their_key(host):
    for _ in range(2):
        await run("restart", "--yes", "-t", str(host.path))
    keys = [params["idempotency_key"] for method, params in host.asked if method == "engine.restart"]
    assert len(set(keys)) == 2


async def test_without_a_terminal_nothing_happens_unless_it_was_agreed_to(host):
    done = await run("stop", "-t", str(host.path))
    assert done.code == EXIT_INVALID
    assert "--yes" in done.err
    assert is_fact_and_remedy(done.err)
    assert host.asked == []


async def test_a_viewer_is_refused_before_anything_is_sent(host):
    host.hello = sample.hello(Role.VIEWER)
    done = await run("stop", "--yes", "-t", str(host.path))
    assert done.code == EXIT_REFUSED
    assert is_fact_and_remedy(done.err)
    assert "viewer" in done.err
    assert "host.stop" not in host.methods_asked()


async def test_a_refusal_of_the_host_is_exit_4(host):
    told = {"remedy": "wait for it"}
    host.failing["host.stop"] = RpcError(ErrorCode.CONFLICT, "a restart is under way", told)
    done = await run("stop", "--yes", "--json", "-t", str(host.path))
    assert (done.code, done.out) == (EXIT_REFUSED, "")
    assert "a restart is under way" in done.err
    assert "wait for it" in done.err


async def test_a_refusal_cannot_drive_the_terminal_of_who_reads_it(host):
    host.failing["host.stop"] = RpcError(ErrorCode.CONFLICT, "a\x1b[2Jb", {"remedy": "c\x1b[2Jd"})
    done = await run("stop", "--yes", "-t", str(host.path))
    assert "\x1b" not in done.err
    assert is_fact_and_remedy(done.err)


async def test_an_action_that_fails_is_exit_1(host):
    host.failing["engine.restart"] = RpcError(ErrorCode.FAILED, "the engine did not start", {"remedy": "see events"})
    done = await run("restart", "--yes", "--json", "-t", str(host.path))
    assert (done.code, done.out) == (EXIT_FAILED, "")
    assert is_fact_and_remedy(done.err)


async def test_an_outcome_that_does_not_come_is_exit_5_and_says_where_the_host_stands(host):
    host.silent.add("host.stop")
    done = await run("stop", "--yes", "--timeout", "0.3", "--json", "-t", str(host.path))
    assert (done.code, done.out) == (EXIT_TIMED_OUT, "")
    assert "unknown" in done.err
    assert "The host is serving, with 37 requests running." in done.err
    assert host.methods_asked().count("host.stop") == 1


async def test_a_host_between_two_engines_is_not_said_to_run_unknown_requests(host):
    host.silent.add("engine.restart")
    host.snapshot = sample.starting()
    done = await run("restart", "--yes", "--timeout", "0.3", "-t", str(host.path))
    assert done.code == EXIT_TIMED_OUT
    assert "The host is starting (loading weights); no engine runs now." in done.err
    assert "–" not in done.err


async def test_an_outcome_lost_with_the_connection_is_exit_5_and_not_sent_again(host):
    host.dropping.add("host.stop")
    done = await run("stop", "--yes", "-t", str(host.path))
    assert done.code == EXIT_TIMED_OUT
    assert "not sent again" in done.err
    assert host.methods_asked().count("host.stop") == 1


@pytest.mark.parametrize("command", [["status"], ["watch"], ["events"], ["stop", "--yes"], ["restart", "--yes"]])
async def test_no_host_is_exit_3(tmp_path, command):
    done = await run(*command, "--json", "-t", str(tmp_path / "none.sock"))
    assert (done.code, done.out) == (EXIT_UNREACHABLE, "")
    assert is_fact_and_remedy(done.err)


async def test_a_killed_host_is_exit_3(host):
    await host.stop()
    done = await run("status", "-t", str(host.path))
    assert done.code == EXIT_UNREACHABLE
    assert "has ended" in done.err


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["status", "--nonsense"], ["watch", "--interval", "0"], ["watch", "--interval", "nan"],
     ["watch", "--count", "0"], ["events", "--after", "-1"], ["events", "--limit", "10001"], ["stop", "--drain", "-5"],
     ["-t", "ssh://gpu-7", "status"], ["-t", "http://gpu-7:8000", "status"], ["-t", "", "status"], ["-t", ""],
     ["-t", "", "profiles", "list"]],
)  # fmt: skip
async def test_what_makes_no_sense_is_exit_2(arguments):
    done = await run(*arguments)
    assert (done.code, done.out) == (EXIT_INVALID, "")
    assert done.err
    assert "Traceback" not in done.err


async def test_the_tui_without_a_terminal_is_exit_2_and_names_the_command_for_scripts(host):
    done = await run("-t", str(host.path))
    assert (done.code, done.out) == (EXIT_INVALID, "")
    assert "status --json" in done.err


@pytest.mark.parametrize("command", [[], ["status"], ["watch"], ["events"], ["restart"], ["stop"]])
async def test_help_shows_examples(command):
    done = await run(*command, "--help")
    assert done.code == EXIT_DONE
    assert "examples:" in done.out


async def test_the_version_is_told():
    done = await run("--version")
    assert done.code == EXIT_DONE
    assert done.out.startswith("vllm-console ")


async def answered(host, answer: bytes, *arguments: str) -> tuple[int, str]:
    """Run on a terminal and type `answer` when asked."""
    master, slave = pty.openpty()
    process = await start(*arguments, "-t", str(host.path), stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    loop = asyncio.get_running_loop()
    text = b""
    while b"[y/N]" not in text:
        text += await asyncio.wait_for(loop.run_in_executor(None, os.read, master, 4096), 30)
    os.write(master, answer)
    code = await asyncio.wait_for(process.wait(), 30)
    text += os.read(master, 4096)
    os.close(master)
    return code, text.decode()


async def test_on_a_terminal_the_consequence_is_stated_with_live_numbers_and_no_is_the_default(host):
    code, text = await answered(host, b"\n", "stop", "--drain", "20")
    assert code == EXIT_FAILED
    assert "37 running, 12 waiting" in text
    assert "20 s to finish" in text
    assert "nothing was done" in text
    assert "host.stop" not in host.methods_asked()


async def test_who_agrees_agrees_to_the_state_that_was_shown(host):
    code, text = await answered(host, b"y\n", "restart")
    assert code == EXIT_DONE
    assert "downtime about 1m24s" in " ".join(text.split())
    [params] = [params for method, params in host.asked if method == "engine.restart"]
    assert params["expected_state_version"] == host.snapshot.state_version


def test_the_package_offers_the_command():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'vllm-console = "console.cli:main"' in project
