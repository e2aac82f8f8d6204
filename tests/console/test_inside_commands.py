"""`vllm-console dial` and `requests` as scripts and operators see them: output, exit codes, and what is sent."""

from __future__ import annotations

import json

import pytest

from console.commands.inside_text import request_lines
from console.lines import plain_text
from engine_host.protocol.envelope import ErrorCode, RpcError
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, EXIT_REFUSED, EXIT_TIMED_OUT
from engine_host.protocol.methods import REQUEST_STATES, DialSheet, RequestList, RequestOrder, Role
from tests.console import sample, sample_inside
from tests.console.test_cli import answered, is_fact_and_remedy, run
from tests.console.test_switch_command import on_a_terminal


@pytest.fixture
def inside(host):
    host.answers = {
        "dials.get": sample_inside.sheet(),
        "dials.set": sample_inside.applied(),
        "requests.list": sample_inside.requests(),
    }
    return host


def sent(host, method: str) -> list[dict]:
    return [params for asked, params in host.asked if asked == method]


async def test_the_dials_are_shown_with_range_who_set_them_and_until_when(inside):
    done = await run("dial", "-t", str(inside.path))
    assert done.code == EXIT_DONE
    heading, _, _, k = done.out.splitlines()
    assert heading.split() == ["dial", "value", "range", "start", "set", "by"]
    assert k.split() == ["speculative_tokens", "2", "0", "to", "5", "5", "maria", "at", "14:03:22,", "until",
                         "14:13:22:", "trying"]  # fmt: skip


async def test_the_dials_as_json_are_the_hosts_answer(inside):
    done = await run("dial", "--json", "-t", str(inside.path))
    assert json.loads(done.out)["dials"]["speculative_tokens"]["until"] == 1_796_048_002.0


async def test_an_engine_without_dials_says_why(inside):
    inside.answers["dials.get"] = DialSheet(dials={}, unavailable_reason="vLLM 0.40 is too new")
    done = await run("dial", "-t", str(inside.path))
    assert (done.code, done.out) == (EXIT_DONE, "There are no dials: vLLM 0.40 is too new\n")


async def test_setting_dials_sends_all_that_was_said(inside):
    done = await run(
        "dial", "speculative-tokens=2", "max_active_seqs=start", "--for", "1h30m", "--reason", "trying",
        "--expect", "speculative_tokens=5", "-t", str(inside.path),
    )  # fmt: skip
    assert done.code == EXIT_DONE
    assert done.out == "speculative_tokens 5 → 2 for 10 m: trying (applied in 12.0 ms)\n"
    [params] = sent(inside, "dials.set")
    assert params["values"] == {"speculative_tokens": 2, "max_active_seqs": None}
    assert (params["for_s"], params["expected"], params["reason"]) == (5400.0, {"speculative_tokens": 5}, "trying")


async def test_options_may_stand_between_the_dials(inside):
    done = await run(
        "dial", "speculative_tokens=2", "--for", "10m", "max_active_seqs=8", "--expect", "speculative_tokens=5",
        "max_scheduled_tokens=start", "-t", str(inside.path),
    )  # fmt: skip
    assert done.code == EXIT_DONE
    [params] = sent(inside, "dials.set")
    assert params["values"] == {"speculative_tokens": 2, "max_active_seqs": 8, "max_scheduled_tokens": None}
    assert (params["for_s"], params["expected"]) == (600.0, {"speculative_tokens": 5})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speculative_tokens"], "is not NAME=VALUE"),
        (["=2"], "is not NAME=VALUE"),
        (["speculative_tokens=2.5"], "is not NAME=VALUE"),
        (["speculative_tokens=2", "--for", "10"], "write 90s, 10m or 1h"),
        (["speculative_tokens=2", "--for", "9d"], "is not from 1 s to 7 days"),
        (["speculative_tokens=2", "--expect", "speculative_tokens=start"], "is not NAME=VALUE"),
        (["speculative_tokens=2", "speculative_tokens=3"], "more than once"),
        (["--for", "10m"], "--for goes with a dial to set"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_not_sent(inside, arguments, said):
    done = await run("dial", *arguments, "-t", str(inside.path))
    assert done.code == EXIT_INVALID
    assert said in done.err
    assert sent(inside, "dials.set") == []


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (ErrorCode.CONFLICT, EXIT_REFUSED),
        (ErrorCode.INVALID_PARAMS, EXIT_INVALID),
        (ErrorCode.UNKNOWN_OUTCOME, EXIT_TIMED_OUT),
        (ErrorCode.FAILED, EXIT_FAILED),
    ],
)
async def test_the_exit_code_says_why_a_dial_was_not_set(inside, code, exit_code):
    inside.failing["dials.set"] = RpcError(code, "speculative_tokens is 3", {"remedy": "look again"})
    done = await run("dial", "speculative_tokens=2", "-t", str(inside.path))
    assert (done.code, done.out) == (exit_code, "")
    assert is_fact_and_remedy(done.err)
    assert "look again" in done.err


async def test_an_answer_that_does_not_come_is_an_unknown_outcome_and_sent_once(inside):
    inside.silent.add("dials.set")
    done = await run("dial", "speculative_tokens=2", "--timeout", "0.2", "-t", str(inside.path))
    assert done.code == EXIT_TIMED_OUT
    assert len(sent(inside, "dials.set")) == 1


async def test_a_viewer_sets_nothing(inside):
    inside.hello = sample.hello(role=Role.VIEWER)
    done = await run("dial", "speculative_tokens=2", "-t", str(inside.path))
    assert done.code == EXIT_REFUSED
    assert sent(inside, "dials.set") == []


async def test_requests_are_listed_with_their_trouble(inside):
    done = await run("requests", "list", "-t", str(inside.path))
    assert done.code == EXIT_DONE
    count, heading, first, _, waiting, trouble = done.out.splitlines()
    assert count == "3 requests: 2 running, 1 waiting"
    assert heading.split()[:3] == ["id", "state", "age"]
    assert first.split() == ["chatcmpl-1f0c7a-0001", "running", "12", "s", "300", "ms", "1,024", "512", "340", "1,024",
                             "43", "0", "1", "71.0", "%"]  # fmt: skip
    assert waiting.split()[-1] == "–"
    assert trouble == (
        "  ▲ stuck: its prompt has 9,000 tokens, the KV cache holds 3,200; it can never be scheduled"
    )  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_narrow_terminal_has_room_for_the_ids_before_the_lesser_figures(width):
    found = sample_inside.requests()
    rows = [plain_text(row) for row in request_lines(found, width)]
    assert max(len(row) for row in rows if "▲" not in row) <= width
    assert "chatcmpl-1f0c7a-0001" in rows[2]
    assert ("prio" in rows[1]) == (width >= 120)


async def test_what_to_list_is_asked_of_the_host(inside):
    await run("requests", "list", "--sort", "blocks", "--state", "waiting", "--match", "batch", "--limit", "7",
              "-t", str(inside.path))  # fmt: skip
    assert sent(inside, "requests.list") == [{"order": "blocks", "state": "waiting", "match": "batch", "limit": 7}]


@pytest.mark.parametrize(
    ("option", "words"), [("--sort", list(RequestOrder)), ("--state", list(REQUEST_STATES))], ids=["sort", "state"]
)
async def test_the_command_line_offers_what_the_host_knows(inside, option, words):
    """Its own lists are literals: reading them must not cost the wire types at every start."""
    for word in words:
        await run("requests", "list", option, str(word), "-t", str(inside.path))
    assert [params.get("order" if option == "--sort" else "state") for params in sent(inside, "requests.list")] == words
    refused = await run("requests", "list", option, "size", "-t", str(inside.path))
    assert refused.code == EXIT_INVALID and all(word in refused.err for word in words)


async def test_a_list_that_is_cut_or_lacks_the_scheduler_says_so(inside):
    found = sample_inside.requests()
    inside.answers["requests.list"] = RequestList(
        requests=found.requests[:1], total=900, by_state={"running": 900}, at=found.at, unavailable_reason="too new"
    )
    done = await run("requests", "list", "-t", str(inside.path))
    first, second, *_ = done.out.splitlines()
    assert first == "900 requests: 900 running; 1 shown"
    assert second == "what only the scheduler knows is missing: too new"


async def test_an_id_that_would_drive_the_terminal_does_not(inside):
    found = sample_inside.requests()
    inside.answers["requests.list"] = RequestList(
        requests=[sample_inside.row("\x1b[31mred語" + "x" * 300)], total=1, by_state={}, at=found.at
    )
    done = await run("requests", "list", "-t", str(inside.path))
    assert "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= 120


async def test_a_script_ends_a_request_with_yes(inside):
    done = await run("requests", "abort", "chatcmpl-1f0c7a", "--yes", "--reason", "runaway", "-t", str(inside.path))
    assert (done.code, done.out) == (EXIT_DONE, "requests.abort is done\n")
    [params] = sent(inside, "requests.abort")
    assert (params["id"], params["reason"]) == ("chatcmpl-1f0c7a", "runaway")


async def test_a_script_without_yes_ends_nothing(inside):
    done = await run("requests", "abort", "chatcmpl-1f0c7a", "-t", str(inside.path))
    assert done.code == EXIT_INVALID
    assert "--yes" in done.err
    assert sent(inside, "requests.abort") == []


async def test_an_operator_agrees_to_the_request_and_its_whole_id_is_sent(inside):
    code, text = await answered(inside, b"y\n", "requests", "abort", "chatcmpl-1f0c7a")
    assert code == EXIT_DONE
    for what in ("End the request chatcmpl-1f0c7a-0001", "running", "340 tokens of at most 1,024", "cannot be brought"):
        assert what in " ".join(text.split())
    assert [params["id"] for params in sent(inside, "requests.abort")] == ["chatcmpl-1f0c7a-0001"]


async def test_an_operator_who_says_no_ends_nothing(inside):
    code, _ = await answered(inside, b"n\n", "requests", "abort", "cmpl-batch-77")
    assert code == EXIT_FAILED
    assert sent(inside, "requests.abort") == []


@pytest.mark.parametrize(
    ("wanted", "said"), [("chatcmpl-", "2 requests begin with"), ("gone", "no unfinished request")]
)
async def test_an_id_that_names_no_one_request_is_asked_again(inside, wanted, said):
    code, text = await on_a_terminal("requests", "abort", wanted, "-t", str(inside.path))
    assert code == EXIT_INVALID
    assert said in text
    assert sent(inside, "requests.abort") == []
