"""`vllm-console switch` as scripts and operators see it: output, progress, exit codes, and what is sent."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal

import msgspec
import pytest

from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INVALID,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
    EXIT_UNREACHABLE,
)
from engine_host.protocol.methods import Role
from engine_host.protocol.profiles import Tier
from engine_host.protocol.switching import Outcome, SwitchForecast, SwitchProgress, SwitchResult, SwitchStatus
from tests.console import sample, sample_switch
from tests.console.test_cli import answered, is_fact_and_remedy, run, start


@pytest.fixture
def switching(host):
    """The host begins the switch that it is asked for and answers when its `ends` is called."""
    host.interval_s = 0.05
    host.held["switch"] = asyncio.Event()

    def begin(params):
        host.snapshot = sample_switch.switching(sample_switch.progress(to_profile=params["profile"]))

    host.on["switch"] = begin

    def ends(result: SwitchResult | None = None):
        host.result = result or sample_switch.result()
        host.snapshot = sample.serving()
        host.held["switch"].set()

    host.ends = ends
    return host


def sent(host) -> list[dict]:
    return [params for method, params in host.asked if method == "switch"]


async def finished(process) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), err.decode()


async def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run to the end without typing anything."""
    master, slave = pty.openpty()
    process = await start(*arguments, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    code = await asyncio.wait_for(process.wait(), 30)
    text = os.read(master, 1 << 16).decode()
    os.close(master)
    return code, text


async def test_a_dry_run_prints_the_forecast_and_sends_no_switch(host):
    done = await run("switch", "throughput", "--dry-run", "-t", str(host.path))
    assert done.code == EXIT_DONE
    for what in (
        "latency → throughput", "reload: both engines need 262 GiB", "about 1m30s", "streams pause for about 1m28s",
        "37 running, 12 waiting", "45 carried over, 3 drained, 1 begun again", "has no effect", "→ Use a schedule",
        "start", "1m24s", "engine.max_num_seqs", "64 → 256",
    ):  # fmt: skip
        assert what in done.out
    assert sent(host) == []


async def test_a_dry_run_that_is_refused_is_exit_1_and_names_the_error_first(host):
    host.forecast = sample_switch.refused()
    done = await run("switch", "throughput", "--dry-run", "-t", str(host.path))
    assert done.code == EXIT_FAILED
    assert "REFUSED by the check: 1 error, 1 warning" in done.out
    assert done.out.index("needs 132 GiB") < done.out.index("has no effect")


async def test_a_dry_run_of_a_host_that_would_refuse_any_switch_does_not_blame_the_profile(host):
    host.forecast = sample_switch.refused_now()
    done = await run("switch", "throughput", "--dry-run", "-t", str(host.path))
    assert done.code == EXIT_FAILED
    assert "REFUSED now" in done.out and "by the check" not in done.out
    assert "the host is starting" in done.out


async def test_a_dry_run_as_json_is_the_forecast_and_nothing_else(host):
    done = await run("switch", "throughput", "--dry-run", "--tier", "overlap", "--json", "-t", str(host.path))
    assert (done.code, done.err, done.out.count("\n")) == (EXIT_DONE, "", 1)
    told = msgspec.structs.replace(host.forecast, tier=Tier.OVERLAP)
    assert msgspec.json.decode(done.out, type=SwitchForecast) == told
    assert ("switch.forecast", {"profile": "throughput", "tier": "overlap"}) in host.asked


async def test_a_viewer_may_dry_run_but_not_switch(host):
    host.hello = sample.hello(Role.VIEWER)
    assert (await run("switch", "throughput", "--dry-run", "-t", str(host.path))).code == EXIT_DONE
    done = await run("switch", "throughput", "--yes", "-t", str(host.path))
    assert done.code == EXIT_REFUSED
    assert is_fact_and_remedy(done.err)
    assert sent(host) == []


async def test_what_became_of_the_limits_at_the_gate_is_printed_with_the_result(host):
    ended = "min_class high of ops has ended: throughput has the classes bulk, chat"
    host.result = sample_switch.result(limits=[ended, "still set by hand under throughput too: max_inflight 16 (ops)"])
    done = await run("switch", "throughput", "--yes", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert f"Limits     {ended}" in done.out
    assert " " * 11 + "still set by hand under throughput too: max_inflight 16" in done.out


async def test_a_switch_is_sent_once_with_all_that_was_asked_for(host):
    done = await run("switch", "throughput", "--yes", "--tier", "reload", "--drain", "20", "--reason", "batch night",
                     "--json", "-t", str(host.path))  # fmt: skip
    assert done.code == EXIT_DONE
    assert msgspec.json.decode(done.out, type=SwitchResult) == host.result
    [params] = sent(host)
    assert len(params.pop("idempotency_key")) >= 16
    assert params == {"profile": "throughput", "tier": "reload", "drain_timeout_s": 20, "reason": "batch night",
                      "expected_state_version": None}  # fmt: skip


async def test_the_phases_are_told_on_standard_error_and_the_result_on_standard_output(switching):
    process = await start("switch", "throughput", "--yes", "-t", str(switching.path))
    told = [(await asyncio.wait_for(process.stderr.readline(), 30)).decode().split() for _ in range(5)]
    assert [row[2] for row in told] == ["preflight", "hold", "carry", "stop", "start"]
    assert told[4][3:] == ["(about", "1m24s)"]
    switching.ends()
    code, out, err = await finished(process)
    assert (code, err) == (EXIT_DONE, "")
    for what in (
        "SWITCHED",
        "in 1m27s",
        "streams paused for 1m25s",
        "45 carried over",
        "62 waited at the gate",
        "1m21s",
    ):
        assert what in out


async def test_with_json_standard_output_is_the_result_alone_also_while_phases_pass(switching):
    process = await start("switch", "throughput", "--yes", "--json", "-t", str(switching.path))
    await asyncio.wait_for(process.stderr.readline(), 30)
    switching.ends()
    code, out, _ = await finished(process)
    assert code == EXIT_DONE
    assert json.loads(out)["outcome"] == "switched"
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (sample_switch.result(), EXIT_DONE),
        (sample_switch.result(outcome=Outcome.UNCHANGED), EXIT_DONE),
        (sample_switch.rolled_back(), EXIT_FAILED),
        (sample_switch.result(outcome=Outcome.CANCELLED, text="cancelled by maria"), EXIT_FAILED),
        (sample_switch.result(outcome=Outcome.FAILED, text="neither starts"), EXIT_FAILED),
    ],
    ids=lambda value: value.outcome if isinstance(value, SwitchResult) else str(value),
)
async def test_the_exit_code_follows_from_the_outcome(host, result, code):
    host.result = result
    done = await run("switch", "throughput", "--yes", "--json", "-t", str(host.path))
    assert done.code == code
    assert msgspec.json.decode(done.out, type=SwitchResult) == result
    assert is_fact_and_remedy(done.err) == (code != EXIT_DONE)


async def test_a_rolled_back_switch_shows_the_engines_own_words_and_where_it_broke_off(host):
    host.result = sample_switch.rolled_back()
    done = await run("switch", "throughput", "--yes", "-t", str(host.path))
    assert "ROLLED BACK" in done.out
    assert "larger than the available KV cache memory (6.21 GiB)." in done.out
    assert "× start" in done.out
    assert "✓ rollback" in done.out
    assert "rolled back: the engine did not start" in done.err


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (ErrorCode.INVALID_PARAMS, "there is no profile thruput", EXIT_INVALID),
        (ErrorCode.CONFLICT, "the host is draining", EXIT_REFUSED),
        (ErrorCode.FAILED, "it did not work", EXIT_FAILED),
    ],
)
async def test_what_the_host_refuses_has_its_exit_code(host, error, code, exit_code):
    host.failing["switch"] = RpcError(error, code, {"remedy": "look at: vllm-console profiles list"})
    done = await run("switch", "thruput", "--yes", "--json", "-t", str(host.path))
    assert (done.code, done.out) == (exit_code, "")
    assert code in done.err
    assert "vllm-console profiles list" in done.err


async def test_a_second_switch_is_refused_with_who_and_since_when(host):
    host.snapshot = sample_switch.switching()
    done = await run("switch", "demo", "--yes", "-t", str(host.path))
    assert done.code == EXIT_REFUSED
    assert "maria is switching latency → throughput since 07:32:38 (42 s ago)" in done.err
    assert "switch --cancel" in done.err
    assert sent(host) == []


async def test_a_switch_that_loses_the_race_is_refused_with_who_and_since_when(host):
    def another_was_first(params):
        host.snapshot = sample_switch.switching()

    host.on["switch"] = another_was_first
    host.failing["switch"] = RpcError(ErrorCode.CONFLICT, "another switch is under way", {})
    done = await run("switch", "demo", "--yes", "-t", str(host.path))
    assert done.code == EXIT_REFUSED
    assert "maria is switching latency → throughput" in done.err


async def test_an_outcome_that_does_not_come_is_exit_5_and_says_how_to_ask(host):
    host.silent.add("switch")
    done = await run("switch", "throughput", "--yes", "--timeout", "0.3", "--json", "-t", str(host.path))
    assert (done.code, done.out) == (EXIT_TIMED_OUT, "")
    assert "vllm-console switch --status" in done.err
    assert len(sent(host)) == 1


async def test_an_outcome_lost_with_the_connection_is_exit_5_and_not_sent_again(host):
    host.dropping.add("switch")
    done = await run("switch", "throughput", "--yes", "-t", str(host.path))
    assert done.code == EXIT_TIMED_OUT
    assert "not sent again" in done.err
    assert "vllm-console switch --status" in done.err
    assert len(sent(host)) == 1


async def test_ctrl_c_ends_the_waiting_and_not_the_switch(switching):
    process = await start("switch", "throughput", "--yes", "-t", str(switching.path))
    await asyncio.wait_for(process.stderr.readline(), 30)
    process.send_signal(signal.SIGINT)
    code, out, err = await finished(process)
    assert (code, out) == (130, "")
    assert "the switch to throughput goes on" in err
    assert "switch --status" in err
    assert "Traceback" not in err
    assert "switch.cancel" not in switching.methods_asked()


async def test_no_wait_returns_once_the_switch_is_under_way(switching):
    done = await run("switch", "throughput", "--no-wait", "--yes", "--json", "-t", str(switching.path))
    assert done.code == EXIT_DONE
    assert msgspec.json.decode(done.out, type=SwitchProgress).to_profile == "throughput"
    assert not switching.held["switch"].is_set()


async def test_no_wait_prints_the_result_of_a_switch_that_is_over_at_once(host):
    host.result = sample_switch.result(tier=Tier.LIVE, took_s=0.02)
    done = await run("switch", "throughput", "--no-wait", "--yes", "--json", "-t", str(host.path))
    assert done.code == EXIT_DONE
    assert json.loads(done.out)["outcome"] == "switched"


async def test_status_shows_the_switch_under_way_with_its_timeline_and_the_last_one(host):
    host.snapshot, host.last = sample_switch.switching(), sample_switch.rolled_back()
    done = await run("switch", "--status", "-t", str(host.path))
    assert done.code == EXIT_DONE
    for what in ("42 s of about 1m30s", "▸ start", "37 s of 1m24s", "by maria", "switch --cancel", "ROLLED BACK"):
        assert what in done.out
    as_json = await run("switch", "--status", "--json", "-t", str(host.path))
    told = msgspec.json.decode(as_json.out, type=SwitchStatus)
    assert (told.active, told.last) == (host.snapshot.engine.switch, host.last)


async def test_status_of_a_host_that_never_switched_says_so(host):
    done = await run("switch", "--status", "-t", str(host.path))
    assert (done.code, done.out) == (EXIT_DONE, "No switch since this host started.\n")


async def test_cancel_asks_nothing_and_is_sent_once(host):
    done = await run("switch", "--cancel", "--reason", "wrong one", "-t", str(host.path))
    assert done.code == EXIT_DONE
    [params] = [params for method, params in host.asked if method == "switch.cancel"]
    assert params["reason"] == "wrong one"


async def test_cancelling_what_cannot_be_cancelled_is_exit_4(host):
    host.failing["switch.cancel"] = RpcError(ErrorCode.CONFLICT, "no switch is under way", {"remedy": "nothing to do"})
    done = await run("switch", "--cancel", "-t", str(host.path))
    assert done.code == EXIT_REFUSED
    assert "no switch is under way" in done.err


async def test_without_a_terminal_nothing_is_switched_unless_it_was_agreed_to(host):
    done = await run("switch", "throughput", "-t", str(host.path))
    assert done.code == EXIT_INVALID
    assert "--yes" in done.err
    assert host.asked == []


@pytest.mark.parametrize(
    "arguments",
    [["switch"], ["switch", "a", "--status"], ["switch", "a", "--cancel"], ["switch", "--dry-run"],
     ["switch", "--status", "--cancel"], ["switch", "a", "--tier", "none"], ["switch", "a", "--drain", "-1"]],
)  # fmt: skip
async def test_what_makes_no_sense_is_exit_2(arguments):
    done = await run(*arguments)
    assert (done.code, done.out) == (EXIT_INVALID, "")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("more", [["throughput", "--yes"], ["throughput", "--dry-run"], ["--status"], ["--cancel"]])
async def test_no_host_is_exit_3(tmp_path, more):
    done = await run("switch", *more, "--json", "-t", str(tmp_path / "none.sock"))
    assert (done.code, done.out) == (EXIT_UNREACHABLE, "")
    assert is_fact_and_remedy(done.err)


async def test_on_a_terminal_it_asks_with_live_numbers_and_no_is_the_default(host):
    code, text = await answered(host, b"\n", "switch", "throughput")
    said = " ".join(text.split())
    assert code == EXIT_FAILED
    for what in ("latency → throughput by reload", "streams pause (about 1m28s)", "37 running, 12 waiting",
                 "45 are carried over", "3 drained", "nothing was done"):  # fmt: skip
        assert what in said
    assert sent(host) == []


async def test_who_agrees_agrees_to_the_state_that_was_shown(host):
    code, _ = await answered(host, b"y\n", "switch", "throughput")
    assert code == EXIT_DONE
    [params] = sent(host)
    assert params["expected_state_version"] == host.snapshot.state_version


async def test_nobody_is_asked_about_a_switch_that_changes_nothing(host):
    host.forecast = sample_switch.forecast(tier=Tier.NONE, changes=[])
    host.result = sample_switch.result(outcome=Outcome.UNCHANGED, text="latency runs already")
    code, text = await on_a_terminal("switch", "latency", "-t", str(host.path))
    assert code == EXIT_DONE
    assert "UNCHANGED" in text
    assert "[y/N]" not in text


async def test_nobody_is_asked_to_agree_to_what_the_check_refuses(host):
    host.forecast = sample_switch.refused()
    code, text = await on_a_terminal("switch", "throughput", "-t", str(host.path))
    assert code == EXIT_FAILED
    assert "needs 132 GiB" in " ".join(text.split())
    assert "[y/N]" not in text
    assert sent(host) == []


async def test_nobody_is_asked_to_agree_to_what_the_host_refuses_now(host):
    host.forecast = sample_switch.refused_now()
    code, text = await on_a_terminal("switch", "throughput", "-t", str(host.path))
    assert code == EXIT_REFUSED
    assert "the host is starting" in " ".join(text.split()) and "[y/N]" not in text
    assert sent(host) == []


async def test_on_a_terminal_the_progress_is_one_live_line_that_is_gone_at_the_end(switching):
    master, slave = pty.openpty()
    process = await start("switch", "throughput", "--yes", "-t", str(switching.path), stderr=slave)
    os.close(slave)
    loop = asyncio.get_running_loop()
    text = b""
    while b"start 37 s of 1m24s" not in text:
        text += await asyncio.wait_for(loop.run_in_executor(None, os.read, master, 4096), 30)
    switching.ends()
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    text += os.read(master, 4096)
    os.close(master)
    assert b"\n" not in text
    assert text.endswith(b"\r\x1b[K")
    assert b"SWITCHED" in out


async def test_a_host_cannot_drive_the_terminal_of_who_switches(host):
    host.result = sample_switch.result(text="a\x1b[2Jb", who="\x1b]0;x\x07", lines=["\x1b[31mred"])
    done = await run("switch", "throughput", "--yes", "-t", str(host.path))
    assert "\x1b" not in done.out
    host.forecast = sample_switch.forecast(tier_reason="\x1b[2J")
    done = await run("switch", "throughput", "--dry-run", "-t", str(host.path))
    assert "\x1b" not in done.out
