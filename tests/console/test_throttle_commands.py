"""`vllm-console throttle`, `pause` and `resume`: output, exit codes, and what is sent."""

from __future__ import annotations

import json

import msgspec
import pytest

from console import panels
from console.lines import cells, plain_text
from console.situation import situation
from console.throttle_panels import throttle_lines
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, EXIT_REFUSED, EXIT_TIMED_OUT
from engine_host.protocol.methods import Role
from engine_host.protocol.snapshot import State
from engine_host.protocol.throttling import AutoGauge, AutoMode, AutoState, Former, GateCounts, Limit
from tests.console import sample, sample_throttle
from tests.console.sample_throttle import NOW
from tests.console.test_cli import is_fact_and_remedy, run

METHODS = ("throttle.set", "throttle.clear", "throttle.auto", "pause", "resume")


@pytest.fixture
def throttled(host):
    applied = sample_throttle.applied()
    host.answers = {"throttle.get": sample_throttle.sheet(), **dict.fromkeys(METHODS, applied)}
    return host


def sent(host) -> list[tuple[str, dict]]:
    return [(method, params) for method, params in host.asked if method in METHODS]


# --- show -------------------------------------------------------------------------------------------------------


async def test_the_sheet_says_what_is_in_force_by_whom_until_when_and_why(throttled):
    done = await run("throttle", "show", "-t", str(throttled.path))
    assert done.code == EXIT_DONE
    rows = done.out.splitlines()
    assert rows[0].split() == ["limit", "in", "force", "profile", "set", "by"]
    assert rows[1].split() == ["max_inflight", "16", "64", "maria", "at", "14:03:22,", "until", "14:13:22"]
    assert rows[2].split() == ["KV", "pressure"]
    assert rows[3].split() == ["request_rate", "none", "none", "–"]
    assert next(row for row in rows if row.startswith("paused")).split() == ["paused", "no", "no", "–"]


def test_what_returns_when_a_setting_ends_is_told_where_an_operator_set_it():
    ends = Limit(value=True, profile=False, who="ops", reason="second", since=NOW, until=NOW)
    over = msgspec.structs.replace(ends, then=Former(value=True, who="root", reason="first", until=NOW))
    mode = AutoState(mode=AutoMode.ON, who="ops", until=NOW, then=Former(value="observe", who="maria"))

    def said(paused: Limit, auto: AutoState) -> list[str]:
        sheet = sample_throttle.sheet(limits={"paused": paused}, auto=auto)
        return [plain_text(row).strip() for row in throttle_lines(sheet, 100, NOW)]

    rows = said(over, mode)
    assert rows[2:4] == ["second", "from 14:05:02 as before: yes, by root until 14:05:02: first"]
    assert "from 14:05:02 as before: observe, by maria" in rows
    of_profile = msgspec.structs.replace(ends, then=Former(value=False))
    assert not [row for row in said(of_profile, AutoState()) if "as before" in row]


def test_the_controller_says_whose_cap_wins_and_what_it_watches():
    said = "\n".join(plain_text(row).rstrip() for row in throttle_lines(sample_throttle.sheet(), 80, NOW))
    for part in ("cap 32; overruled: maria has set max_inflight", "kv          0.94  down above 0.90, up below 0.80",
                 "ttft_p95    not watched", "4 s ago: KV 94 % for 3 s: cap 64 → 32"):  # fmt: skip
        assert part in said


def test_requests_that_wait_are_a_count_and_an_average_of_them_is_not():
    def said(value: float) -> str:
        auto = AutoState(mode=AutoMode.ON, gauges=[AutoGauge(name="waiting", value=value, enter=8.0, leave=2.0)])
        return "\n".join(plain_text(row) for row in throttle_lines(sample_throttle.sheet(auto=auto), 80, NOW))

    assert "waiting       12  down above 8, up below 2" in said(12.0)
    assert "waiting     2.50  down above 8" in said(2.5)


def test_the_counts_have_reasons_waits_and_classes_highest_first():
    rows = [plain_text(row) for row in throttle_lines(sample_throttle.sheet(), 80, NOW)]
    said = "\n".join(rows)
    assert "12 in flight, 3 held, the oldest for 1.20 s" in said
    assert "12,345 admitted, 400 had to wait, 17 refused, 2 gone" in said
    assert "refused: queue_full 10, deadline 7" in said and "too long: 1 cut" in said
    assert "p50 210 ms  p95 1.20 s  p99 2.01 s  n 40" in said
    assert [row.split()[0] for row in rows[-2:]] == ["high", "low"]


def test_it_fits_into_80_columns_whatever_the_reason():
    capped = Limit(value=10**6, profile=10**6, who="o" * 12, reason="because of " * 40, since=NOW, until=NOW + 600_000)
    sheet = sample_throttle.sheet(limits=sample_throttle.limits(max_inflight=capped))
    assert max(cells(row) for row in throttle_lines(sheet, 80, NOW)) <= 80


def test_what_comes_from_outside_does_not_drive_the_terminal():
    spoilt = "\x1b[31m\nred"
    sheet = sample_throttle.sheet(
        limits={spoilt: Limit(value=spoilt, profile=None, who=spoilt, reason=spoilt)},
        auto=AutoState(text=spoilt, overruled_by=spoilt),
        counts=GateCounts(refused_by_reason={spoilt: 3}),
    )
    said = "".join(plain_text(row) for row in throttle_lines(sheet, 80, NOW))
    assert "\x1b" not in said and "\n" not in said


async def test_the_sheet_as_json_is_the_hosts_answer(throttled):
    done = await run("throttle", "show", "--json", "-t", str(throttled.path))
    assert json.loads(done.out)["limits"]["max_inflight"]["until"] == NOW + 500
    assert done.out.count("\n") == 1


# --- set, clear, auto, pause, resume ----------------------------------------------------------------------------


async def test_a_set_sends_all_that_was_said_and_nothing_that_was_not(throttled):
    done = await run(
        "throttle", "set", "--max-inflight", "16", "--request-rate", "5", "--request-burst", "10",
        "--prompt-token-rate", "2000", "--prompt-token-burst", "none", "--hold-queue", "64", "--hold-deadline", "20s",
        "--min-class", "normal", "--pause", "--drain", "--for", "10m", "--reason", "KV pressure",
        "--expect", "max-inflight=64", "--expect", "hold_deadline=30s", "--expect", "min_class=none",
        "-t", str(throttled.path),
    )  # fmt: skip
    assert done.code == EXIT_DONE
    assert done.out == "max_inflight 64 → 16 for 10 m: KV pressure (applied in 1.00 ms)\n"
    [(method, params)] = sent(throttled)
    assert method == "throttle.set"
    assert params["limits"] == {
        "max_inflight": 16, "request_rate": 5.0, "request_burst": 10, "prompt_token_rate": 2000.0,
        "prompt_token_burst": None, "hold_queue": 64, "hold_deadline_s": 20.0, "min_class": "normal",
        "paused": True, "draining": True,
    }  # fmt: skip
    assert (params["for_s"], params["reason"]) == (600.0, "KV pressure")
    assert params["expected"] == {"max_inflight": 64, "hold_deadline_s": 30.0, "min_class": None}


async def test_a_limit_is_taken_off_with_none(throttled):
    await run("throttle", "set", "--max-inflight", "none", "-t", str(throttled.path))
    assert sent(throttled)[0][1]["limits"] == {"max_inflight": None}


@pytest.mark.parametrize(
    ("arguments", "method", "params"),
    [
        (["throttle", "clear"], "throttle.clear", {"names": []}),
        (["throttle", "clear", "max-inflight", "hold_deadline", "pause", "auto"], "throttle.clear",
         {"names": ["max_inflight", "hold_deadline_s", "paused", "auto"]}),
        (["throttle", "clear", "auto", "paused", "--expect", "auto=on", "--expect", "pause=yes"], "throttle.clear",
         {"names": ["auto", "paused"], "expected": {"auto": "on", "paused": True}}),
        (["throttle", "auto", "on", "--for", "1h"], "throttle.auto",
         {"mode": "on", "for_s": 3600.0, "expected": None}),
        (["throttle", "auto", "off", "--expect", "on"], "throttle.auto", {"mode": "off", "expected": "on"}),
        (["pause", "--for", "90s"], "pause", {"for_s": 90.0}),
        (["pause"], "pause", {"for_s": None, "expected": None}),
        (["pause", "--expect", "paused=no"], "pause", {"expected": {"paused": False}}),
        (["resume", "--expect", "pause=yes", "--expect", "drain=no"], "resume",
         {"expected": {"paused": True, "draining": False}}),
        (["resume", "--reason", "done"], "resume", {"reason": "done"}),
    ],
)  # fmt: skip
async def test_the_others_send_what_was_said(throttled, arguments, method, params):
    done = await run(*arguments, "-t", str(throttled.path))
    assert done.code == EXIT_DONE
    [(asked, told)] = sent(throttled)
    assert asked == method
    assert params.items() <= told.items()
    assert len(told["idempotency_key"]) == 32


async def test_every_change_as_json_is_one_object_and_nothing_else(throttled):
    for arguments in (["throttle", "set", "--hold-queue", "0"], ["throttle", "clear"], ["throttle", "auto", "off"],
                      ["pause"], ["resume"]):  # fmt: skip
        done = await run(*arguments, "--json", "-t", str(throttled.path))
        assert (done.code, done.err, done.out.count("\n")) == (EXIT_DONE, "", 1)
        assert "throttle" in json.loads(done.out)


async def test_who_pauses_is_told_how_it_ends(throttled):
    closed = Limit(value=True, profile=False, who="ops", since=NOW)
    throttled.answers["pause"] = sample_throttle.applied(State.PAUSED, paused=closed)
    done = await run("pause", "-t", str(throttled.path))
    assert done.out.endswith("(applied in 1.00 ms; the host is paused until `vllm-console resume`)\n")
    ends = msgspec.structs.replace(closed, until=NOW)
    throttled.answers["pause"] = sample_throttle.applied(State.PAUSED, paused=ends)
    assert "the host is paused until 14:05:02)" in (await run("pause", "-t", str(throttled.path))).out
    over = msgspec.structs.replace(ends, then=Former(value=True, who="root", reason="first"))
    throttled.answers["pause"] = sample_throttle.applied(State.PAUSED, paused=over)
    said = (await run("pause", "-t", str(throttled.path))).out
    assert said.endswith("the host is paused until 14:05:02, then paused as before, by root: first)\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["throttle"], "ACTION"),
        (["throttle", "shw"], "invalid choice"),
        (["throttle", "set"], "throttle set wants a limit to set"),
        (["throttle", "set", "--for", "10m"], "throttle set wants a limit to set"),
        (["throttle", "set", "--max-inflight", "0"], "is not a whole number from 1 to 1,000,000,000, or none"),
        (["throttle", "set", "--max-inflight", "-1"], "--max-inflight"),
        (["throttle", "set", "--max-inflight", "1.5"], "is not a whole number"),
        (["throttle", "set", "--max-inflight", "many"], "is not a whole number"),
        (["throttle", "set", "--request-rate", "nan"], "is not a number from 0.001"),
        (["throttle", "set", "--request-rate", "inf"], "is not a number from 0.001"),
        (["throttle", "set", "--request-rate", "0"], "is not a number from 0.001"),
        (["throttle", "set", "--hold-queue", "none"], "is not a whole number from 0"),
        (["throttle", "set", "--hold-deadline", "20"], "write 90s, 10m or 1h"),
        (["throttle", "set", "--hold-queue", "3", "--for", "9d"], "is not from 1 s to 7 days"),
        (["throttle", "set", "--hold-deadline", "2d"], "is not from 0 s to 1 day\n"),
        (["throttle", "set", "--hold-queue", "3", "--expect", "hold_queue"], "is not NAME=VALUE"),
        (["throttle", "set", "--hold-queue", "3", "--expect", "hold_queue=1", "--expect", "hold-queue=2"],
         "is given more than once"),
        (["throttle", "auto", "maybe"], "invalid choice"),
        (["throttle", "auto", "on", "--expect", "maybe"], "invalid choice"),
        (["throttle", "clear", "--expect", "auto=on", "--expect", "auto=off"], "is given more than once"),
        (["pause", "--for", "soon"], "write 90s, 10m or 1h"),
        (["resume", "now"], "unrecognized arguments"),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused_and_not_sent(throttled, arguments, said):
    done = await run(*arguments, "-t", str(throttled.path))
    assert (done.code, done.out) == (EXIT_INVALID, "")
    assert said in done.err
    assert sent(throttled) == []


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (ErrorCode.CONFLICT, EXIT_REFUSED),
        (ErrorCode.INVALID_PARAMS, EXIT_INVALID),
        (ErrorCode.FAILED, EXIT_FAILED),
    ],
)
async def test_the_exit_code_says_why_it_was_not_done(throttled, code, exit_code):
    throttled.failing["throttle.set"] = RpcError(code, "max_inflight is 32 (set by maria)", {"remedy": "look again"})
    done = await run("throttle", "set", "--max-inflight", "16", "-t", str(throttled.path))
    assert (done.code, done.out) == (exit_code, "")
    assert is_fact_and_remedy(done.err) and "look again" in done.err


async def test_an_answer_that_does_not_come_is_an_unknown_outcome_and_sent_once(throttled):
    throttled.silent.add("pause")
    done = await run("pause", "--timeout", "0.2", "-t", str(throttled.path))
    assert done.code == EXIT_TIMED_OUT
    assert "vllm-console throttle show" in done.err
    assert len(sent(throttled)) == 1


async def test_a_viewer_sees_and_changes_nothing(throttled):
    throttled.hello = sample.hello(role=Role.VIEWER)
    assert (await run("throttle", "show", "-t", str(throttled.path))).code == EXIT_DONE
    for arguments in (["throttle", "set", "--hold-queue", "3"], ["pause"]):
        assert (await run(*arguments, "-t", str(throttled.path))).code == EXIT_REFUSED
    assert sent(throttled) == []


# --- elsewhere --------------------------------------------------------------------------------------------------


def test_a_host_that_is_paused_says_since_when_how_many_wait_and_what_ends_it():
    [said] = situation(sample.paused(), 80, 20)
    assert plain_text(said).strip() == ("◦ Paused for 2m05s: 12 requests held; `vllm-console resume` lets them in.")
    assert plain_text(panels.throttle(sample.paused(), 80)).endswith("cap    16 (ops)  refused     0  auto on")


async def test_status_and_watch_say_paused(throttled):
    throttled.snapshot = sample.paused()
    assert "PAUSED" in (await run("status", "-t", str(throttled.path))).out
    assert "PAUSED" in (await run("watch", "--count", "1", "-t", str(throttled.path))).out
