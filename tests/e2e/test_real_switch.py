"""The hot switch on real vLLM under load: no request fails, carried answers are the same, failures roll back.

One host lives through all tests of this module; an engine start costs more than what is asked of it, so several
promises share a switch. The order of the file spares switches: each test begins on the profile that the one before it
leaves, and goes there first when it does not find it.

No test depends on how fast the machine is. The engine whose requests a switch is to take is slow until it takes them,
the switch is asked for at the socket, and its check is known by then. A reload that prepares its engine takes them long
after it was asked for; so where requests have to be in a certain state then, it goes to `late`, which is not prepared.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from .client import Seen, ask, ask_all, mixed
from .conftest import PROFILES
from .real_host import RealHost, SwitchOutcome, serving, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PEOPLE = {
    "type": "json_schema",
    "json_schema": {
        "name": "people",
        "schema": {
            "type": "array",
            "minItems": 15,
            "maxItems": 15,
            "items": {
                "type": "object",
                "properties": {"name": {"enum": ["Ada", "Grace", "Alan"]}, "age": {"enum": [20, 30, 40]}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
        },
    },
}
"""An answer of some two hundred tokens, whatever the model would like to say."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, model: None) -> Iterator[RealHost]:
    home = tmp_path_factory.mktemp("switch")
    os.environ["VLLM_CONSOLE_TEST_BROKEN_MODEL"] = str(broken_model(home / "broken-model"))
    with serving(home, PROFILES / "a.toml", f"--profiles-dir={PROFILES}") as real:
        with ThreadPoolExecutor(max_workers=2) as threads:
            forecasts = list(
                threads.map(
                    real.foresee, ["b", "late", "later", "drafts", "oom", "dies", "noprobe", "hangs", "badmodel"]
                )
            )
        assert all(forecast["ok"] for forecast in forecasts), forecasts
        yield real


def broken_model(path: Path) -> Path:
    """The test model with a layer more in its configuration than in its weights: every file is well-formed, and loading
    fails."""
    shutil.copytree(os.environ["VLLM_CONSOLE_TEST_MODEL"], path)
    config = json.loads((path / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (path / "config.json").write_text(json.dumps(config))
    return path


def load_of(host: RealHost) -> dict[str, float]:
    now = host.status()
    return {"running": now["queue"]["running"], "waiting": now["queue"]["waiting"], "usage": now["kv"]["usage"]}


def weights_loaded(host: RealHost) -> int:
    """How many engines of this host have begun to load weights: a few seconds before they can serve."""
    return (host.home / "state" / "engine.log").read_text(errors="replace").count("Starting to load model")


def holds(host: RealHost) -> dict[str, int]:
    """What a switch must not add to."""
    process = psutil.Process(host.status()["host"]["pid"])
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "processes": len(process.children(recursive=True)),
        "shared memory": len(list(Path("/dev/shm").iterdir())),
    }


async def holds_no_more_than(host: RealHost, before: dict[str, int]) -> None:
    def does() -> bool:
        now = holds(host)
        return all(now[key] <= before[key] + (key != "processes") for key in before)

    await asyncio.to_thread(until, does, 60, f"no more than {before}", found=lambda: holds(host))


Request = tuple[str, str, dict[str, Any]]
Told = tuple[Request, Seen]


def story(n: int, tokens: int) -> Request:
    body = {"prompt": f"Tale {n}: once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return "story", "/v1/completions", body


@asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=500, limits=httpx.Limits(max_connections=200)) as http:
        yield http


async def switched(host: RealHost, name: str, *more: str) -> SwitchOutcome:
    return await asyncio.to_thread(host.switch, name, *more)


async def on_profile(host: RealHost, name: str) -> None:
    """Where the test begins, without limits, whatever became of the one before it."""
    host.change("throttle.clear")
    if host.status()["profile"]["name"] != name:
        assert_switched(await asyncio.to_thread(host.switch_at_once, name), None)


async def taken(host: RealHost) -> None:
    """Wait until the switch under way takes the requests."""
    phases = ("carry", "stop", "start")
    await asyncio.to_thread(until, lambda: host.switch_phase() in phases, 60, "a switch that takes the requests", 0.01)


async def in_flight(host: RealHost, requests: int, having_generated: int = 1) -> None:
    """Wait until that many requests run, and have generated so many tokens since they all do."""
    before: int | None = None

    def are() -> bool:
        nonlocal before
        now = host.status()
        tokens = now["throughput"]["generation_tokens_total"]
        if now["queue"]["running"] < requests:
            return False
        before = tokens if before is None else before
        return bool(tokens >= before + having_generated)

    await asyncio.to_thread(until, are, 60, f"{requests} requests running", 0.01)


def failures(answers: list[Seen]) -> list[tuple[str, int, str | None]]:
    return [(seen.kind, seen.status, seen.error) for seen in answers if seen.status != 200 or seen.error]


@asynccontextmanager
async def storytellers(host: RealHost, *, until_left: bool = True) -> AsyncIterator[list[asyncio.Task[list[Told]]]]:
    """Four clients that ask for one story after the other until the block is left, and hear the last one out; or for
    one story each. No two stories are of one length: all four would end in the same step. They are told slowly enough
    for a switch to find their tellers amid one, not between two."""
    is_over = asyncio.Event()
    if not until_left:
        is_over.set()

    async def stories(http: httpx.AsyncClient, client: int) -> list[Told]:
        told: list[Told] = []
        for number in itertools.count():
            request = story(10 * client + number, 200 + 23 * client)
            told.append((request, await ask(http, host.url, *request)))
            if is_over.is_set() or failures([told[-1][1]]):
                return told
        raise AssertionError

    async with client() as http:
        with host.slow(0.02):
            load = [asyncio.create_task(stories(http, number)) for number in range(4)]
            await in_flight(host, 4)
            try:
                yield load
            finally:
                is_over.set()
                await asyncio.gather(*load)


def assert_switched(result: dict[str, Any], tier: str | None) -> None:
    assert result.get("outcome") == "switched", result
    assert tier is None or result["tier"] == tier


def test_a_dry_run_checks_and_forecasts_and_touches_nothing(host: RealHost) -> None:
    before = host.status()
    answer = host.console("switch", "b", "--dry-run", "--json", timeout_s=120)
    forecast = json.loads(answer.stdout)
    assert answer.returncode == 0 and forecast["ok"]
    assert [change["key"] for change in forecast["changes"]] == ["engine.max_num_seqs"]
    assert forecast["tier"] == "overlap"
    after = host.status()
    for key in ("state", "state_version", "profile"):
        assert after[key] == before[key]
    assert after["engine"]["generation"] == before["engine"]["generation"]


async def test_forty_mixed_requests_survive_a_switch_there_and_back(host: RealHost) -> None:
    await on_profile(host, "a")
    requests = mixed(64)
    async with client() as http:
        unswitched = await ask_all(host.url, requests, http)
        assert not failures(unswitched)
        with host.slow(0.1):
            load = asyncio.create_task(ask_all(host.url, requests, http))
            await in_flight(host, 30, having_generated=100)
            going = asyncio.create_task(asyncio.to_thread(host.switch_at_once, "late", "reload"))
            await taken(host)
        there = await going
        back = await switched(host, "a", "--tier", "reload")
        seen = await load
    assert_switched(there, "reload")
    assert there["carried"] >= 20, there
    assert_switched(back.result, "reload")
    assert back.exit_code == 0, back
    took = {phase["name"]: phase["took_s"] for phase in back.result["phases"]}
    assert took["prepare"] > took["start"], "most of a start is done while the old engine serves"
    assert not failures(seen)
    for before, after in zip(unswitched, seen, strict=True):
        assert after.content == before.content, after.kind
    assert host.status()["profile"]["name"] == "a"
    idle = {"running": 0, "waiting": 0, "usage": 0}
    until(lambda: load_of(host) == idle, 30, f"{idle}")


async def test_each_class_of_request_that_cannot_be_carried_is_replayed_or_ends_with_a_clear_error(
    host: RealHost,
) -> None:
    """With a drain time too short for any of them."""
    await on_profile(host, "a")
    chat = [{"role": "user", "content": "List fifteen people as JSON."}]
    grammar = {"messages": chat, "max_tokens": 400, "response_format": PEOPLE}
    counted = {"prompt": "Song: la la la", "max_tokens": 200, "ignore_eos": True, "presence_penalty": 0.4}
    seeded = {"prompt": "Dream: I saw", "max_tokens": 200, "ignore_eos": True, "temperature": 0.8, "seed": 7}
    worded = {"prompt": "Fable: the fox", "max_tokens": 200, "ignore_eos": True, "bad_words": ["dog"]}
    echoed = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "prompt_logprobs": 1}
    classes = [
        ("grammar", "/v1/chat/completions", grammar),
        ("penalty", "/v1/completions", counted),
        ("seed", "/v1/completions", seeded),
        ("bad words", "/v1/completions", worded),
    ]
    whole = [*classes, ("prompt log probabilities", "/v1/completions", echoed)]
    streamed = [(kind, path, {**body, "stream": True}) for kind, path, body in classes]
    late_body = {"prompt": "The capital of France is", "max_tokens": 8}
    async with client() as http:
        unswitched = await ask_all(host.url, whole, http)
        with host.slow(0.1):
            load = asyncio.create_task(ask_all(host.url, [*whole, *streamed], http))
            await in_flight(host, 9, having_generated=40)
            under_way = asyncio.create_task(asyncio.to_thread(host.switch_at_once, "late", "reload", 0.3))

            # Meanwhile: those who arrive wait, one of them leaves, and a second operator hears who switches.
            await asyncio.to_thread(until, lambda: host.switch_phase() == "start", 60, "the new engine starting")
        second = asyncio.create_task(switched(host, "a"))
        shown = asyncio.create_task(asyncio.to_thread(host.console, "status"))
        late = [asyncio.create_task(ask(http, host.url, "late", "/v1/completions", late_body)) for _ in range(5)]
        leaves = asyncio.create_task(ask(http, host.url, "leaves", "/v1/completions", late_body))
        await asyncio.to_thread(until, lambda: host.status()["queue"]["held"] == 6, 30, "six held")
        leaves.cancel()
        await asyncio.to_thread(until, lambda: host.status()["queue"]["held"] == 5, 30, "one forgotten")
        for path in ("/health", "/v1/models", "/version", "/metrics"):
            assert (await http.get(f"{host.url}{path}")).status_code == 200, "reads go on"

        refused, status = await second, await shown
        result, seen, waited = await under_way, await load, await asyncio.gather(*late)
    assert_switched(result, "reload")
    replayed, cut_off = seen[: len(whole)], seen[len(whole) :]
    assert result["replayed"] == len(whole), result
    assert not failures(replayed)
    for before, after in zip(unswitched, replayed, strict=True):
        assert after.content == before.content, after.kind
    for stream in cut_off:
        assert stream.status == 200 and stream.texts, stream.kind
        assert "could not go on in the new engine" in (stream.error or ""), stream
    assert refused.exit_code == 4 and "switching a → late since" in refused.stderr
    assert "SWITCHING" in status.stdout
    for answer in waited:
        assert answer.status == 200 and "Paris" in answer.texts[0]
    assert result["held"] == 6


async def test_a_request_that_cannot_be_carried_finishes_within_the_drain_time(host: RealHost) -> None:
    """A stream with a grammar, in the middle of its answer; a stream that can be carried goes on meanwhile, and those
    that wait behind them at the gate come to the new engine."""
    await on_profile(host, "late")
    chat = [{"role": "user", "content": "List fifteen people as JSON."}]
    grammar = {"messages": chat, "max_tokens": 400, "response_format": PEOPLE, "stream": True}
    async with client() as http:
        requests = [("grammar", "/v1/chat/completions", grammar), story(1, 500)]
        host.change("throttle.set", limits={"max_inflight": 2, "hold_deadline_s": 300.0})
        with host.slow(0.1):
            load = asyncio.create_task(ask_all(host.url, requests, http))
            await in_flight(host, 2, having_generated=20)
            behind = asyncio.create_task(ask_all(host.url, [story(n, 30) for n in range(2, 5)], http))
            await asyncio.to_thread(until, lambda: host.status()["queue"]["held"] == 3, 30, "three at the gate")
            going = asyncio.create_task(asyncio.to_thread(host.switch_at_once, "later", "reload", 200))
            await taken(host)
        result = await going
        people, tale = await load
        assert not failures(await behind)
    assert_switched(result, "reload")
    assert (result["drained"], result["carried"]) == (1, 1), result
    assert (people.status, people.error) == (200, None)
    assert len(json.loads(people.texts[0])) == 15
    assert (tale.status, tale.error, tale.usage["completion_tokens"]) == (200, None, 500)


async def test_running_streams_go_over_to_an_engine_that_started_beside_theirs(host: RealHost) -> None:
    """The old engine answers while the new one starts. Four clients come when that one loads its weights, since they
    would only make it slow before, and ask for one story after another; the last of each go over."""
    await on_profile(host, "later")
    held = holds(host)
    loaded_before = weights_loaded(host)
    short = {"prompt": "The capital of France is", "max_tokens": 8}
    async with client() as http:
        switching = asyncio.create_task(switched(host, "drafts", "--tier", "overlap"))
        answers = list[Seen]()
        while weights_loaded(host) == loaded_before and not switching.done():
            answers.append(await ask(http, host.url, "short", "/v1/completions", short))
            await asyncio.sleep(0.2)
    async with storytellers(host) as load:
        outcome = await switching
    assert outcome.exit_code == 0, outcome
    result = outcome.result
    assert len(answers) >= 5 and not failures(answers)
    told = [task.result() for task in load]
    requests, last = zip(*(stories[-1] for stories in told), strict=True)
    async with client() as http:
        unswitched = await ask_all(host.url, list(requests), http)
    assert_switched(result, "overlap")
    assert not failures([*(seen for stories in told for _, seen in stories), *unswitched])
    assert result["carried"] >= 3, result
    # Without an engine beside it a stream would be silent for the whole start.
    start_s = next(phase["took_s"] for phase in result["phases"] if phase["name"] == "start")
    assert result["gap_s"] < max(3.0, start_s / 3), result
    assert [seen.content for seen in last] == [seen.content for seen in unswitched]
    await holds_no_more_than(host, held)


async def test_a_change_that_the_running_engine_takes_is_not_noticed_by_a_stream(host: RealHost) -> None:
    await on_profile(host, "drafts")
    engine = host.status()["engine"]["generation"]
    async with client() as http:
        with host.slow():
            load = asyncio.create_task(ask_all(host.url, [story(n, 400) for n in range(2)], http))
            await in_flight(host, 2)
            result = await asyncio.to_thread(host.switch_at_once, "patient")
            assert not load.done()
        for seen in await load:
            assert (seen.status, seen.error, seen.usage["completion_tokens"]) == (200, None, 400)
    assert_switched(result, "live")
    now = host.status()
    assert (now["profile"]["name"], now["engine"]["generation"]) == ("patient", engine)


async def test_a_reload_cancelled_while_its_engine_is_prepared_leaves_nothing_of_it(host: RealHost) -> None:
    before, family = host.status()["profile"]["name"], len(host.children())
    switching = asyncio.create_task(asyncio.to_thread(host.switch_at_once, "b", "reload"))
    # A core and its worker; that one waits at the gate, or is on its way there.
    await asyncio.to_thread(until, lambda: len(host.children()) >= family + 2, 60, "processes of the new engine")
    assert host.switch_phase() == "prepare"
    await asyncio.to_thread(host.change, "switch.cancel")
    assert (await switching)["outcome"] == "cancelled"
    now = host.status()
    assert (now["state"], now["profile"]["name"]) == ("serving", before)
    until(lambda: len(host.children()) <= family, 15, "no process left of the new engine")
    async with client() as http:
        assert not failures(await ask_all(host.url, [story(1, 20)], http))


@pytest.mark.parametrize(
    ("name", "tier", "reason"),
    [
        ("oom", "reload", "CUDA out of memory. Tried to allocate 20.00 GiB"),
        ("dies", "overlap", "SIGKILL"),
        ("noprobe", "overlap", "this scheduler cannot schedule"),
        ("hangs", "overlap", "did not start within 10 s"),
        ("badmodel", "overlap", "not initialized from checkpoint"),
    ],
)
async def test_a_switch_that_fails_rolls_back_and_loses_nothing(
    host: RealHost, name: str, tier: str, reason: str
) -> None:
    held, before = holds(host), host.status()["profile"]["name"]
    if tier == "reload":
        async with storytellers(host) as load:
            outcome = await switched(host, name, "--tier", tier)
    else:
        # It does not touch the engine that serves: a load to its end would only make its start slow.
        switching = asyncio.create_task(switched(host, name, "--tier", tier))
        await asyncio.to_thread(until, lambda: host.switch_phase() == "start", 60, "the new engine starting")
        async with storytellers(host, until_left=False) as load:
            outcome = await switching
    for request, seen in itertools.chain.from_iterable(task.result() for task in load):
        tokens = request[2]["max_tokens"]
        assert (seen.status, seen.error, seen.usage.get("completion_tokens")) == (200, None, tokens)
    assert tier == "overlap" or outcome.result["carried"] >= 3, outcome
    assert outcome.exit_code == 1, outcome
    assert outcome.result["outcome"] == "rolled_back"
    assert reason in outcome.result["text"], outcome.result
    assert reason in outcome.stderr
    now = host.status()
    assert (now["state"], now["profile"]["name"]) == ("serving", before)
    await holds_no_more_than(host, held)
    shown = host.console("events", "--limit", "5").stdout
    assert name in shown
    assert host.metrics()["vllm:generation_tokens_total"] > 0


def test_a_stop_without_a_drain_is_quick_and_tells_clients_that_their_answer_is_not_finished(host: RealHost) -> None:
    """And whatever the engines of all these switches put down is gone with the host."""
    left = host.leftovers()
    body = {"model": "smollm2", "prompt": "Once", "max_tokens": 900, "ignore_eos": True}
    with host.slow(), ThreadPoolExecutor() as threads, httpx.Client(base_url=host.url, timeout=120) as http:
        whole = threads.submit(http.post, "/v1/completions", json=body)
        with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            until(lambda: host.status()["queue"]["running"] == 2, 60, "both run")
            stopped = threads.submit(host.console, "stop", "--drain", "0", "--yes", "--json")
            rest = [line for line in lines if line]
        assert (answer := whole.result()).status_code == 503
        assert "before this answer was finished" in answer.json()["error"]["message"]
        assert any("before this answer was finished" in line for line in rest[-2:]), rest[-2:]
    assert stopped.result().returncode == 0
    assert json.loads(stopped.result().stdout)["took_s"] < 10
    assert host.process.wait(10) == 0
    assert len(left) >= 3 and not [path for path in left if path.exists()]
