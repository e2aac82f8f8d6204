"""What was prepared before another engine, or another profile, came to serve is prepared for that one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from engine_host.engine.port import AsgiApp, EngineFacts
from engine_host.gateway.asked import Asked
from engine_host.gateway.entry import Entry
from engine_host.gateway.gate import Gate
from engine_host.gateway.overlong import TRUNCATED, Preparation
from engine_host.gateway.refusals import Refusal
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles.throttle_table import Throttle
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import Client, Served, turns
from tests.unit.gateway.scripted_app import ScriptedApp
from tests.unit.gateway.test_overlong import FACTS, words

ROOMY = replace(FACTS, max_model_len_tokens=256)
SMALL_CACHE = replace(ROOMY, total_blocks=7, capacity_tokens=8 * 16)
"""For 112 tokens."""


class Serving:
    """An entry whose gate prepares by the engine and the profile that serve, and lets one in at a time."""

    def __init__(self, facts: EngineFacts = ROOMY, **table: Any) -> None:
        self.facts: EngineFacts | None = facts
        self.table = Throttle(**table)
        self.gate = Gate()
        self.gate.prepare = Preparation(lambda: self.facts, lambda: self.table).prepare
        self.gate.apply(Limits(max_inflight=1))
        self.entry = Entry(self.gate)
        self.app = self.serve(facts)
        self.app.go_on = self.first_is_done = asyncio.Event()

    def serve(self, facts: EngineFacts, app: ScriptedApp | None = None, **table: Any) -> ScriptedApp:
        """By `table`, where one is given."""
        context = facts.max_model_len_tokens
        assert context is not None
        app = app or ScriptedApp(context)
        self.facts, self.table = facts, Throttle(**table) if table else self.table
        self.entry.attach(app)
        return app

    async def ask(self, tokens: int = 100, **request: Any) -> Client:
        body = {"model": "m", "prompt": words(tokens - 1), "max_tokens": 1, **request}
        length = len(Client(self.entry, body).messages.get_nowait()["body"])
        client = Client(self.entry, body, headers={"content-length": str(length)}).start()
        await turns()
        return client

    async def held(self, tokens: int = 100, **request: Any) -> Client:
        """One that waits while another is answered."""
        await self.ask(2)
        client = await self.ask(tokens, **request)
        assert self.gate.held == 1
        return client

    async def let_in(self, client: Client) -> Client:
        self.first_is_done.set()
        return await client.answered()


async def test_who_waited_through_a_switch_is_refused_what_the_new_engine_could_never_schedule() -> None:
    """Field case 6: a prompt larger than the KV cache would wait in the engine for ever."""
    serving = Serving()
    client = await serving.held()
    new = serving.serve(SMALL_CACHE)
    assert (await serving.let_in(client)).status == 200
    assert len(new.requests) == 1, "what still fits goes in"
    serving = Serving()
    client = await serving.held(150)
    new = serving.serve(SMALL_CACHE)
    assert (await serving.let_in(client)).status == 400
    assert "holds 112 for one request" in client.told["error"]["message"]
    assert (new.requests, serving.gate.inflight) == ([], 0)
    counts = serving.gate.counts()
    assert counts.refused_by_reason == {"too_large": 1}
    assert sum(one.refused_total for one in counts.classes) == 1


async def test_a_shorter_context_is_told_by_its_own_number() -> None:
    serving = Serving()
    client = await serving.held()
    serving.serve(FACTS)
    assert (await serving.let_in(client)).status == 400
    assert "maximum context length is 64 tokens. The prompt has 100" in client.told["error"]["message"]


async def test_it_is_counted_by_the_tokenizer_of_the_engine_that_answers_it() -> None:
    serving = Serving()
    client = await serving.held(60)
    new = ScriptedApp()
    new.special_tokens = 10
    serving.serve(FACTS, new)
    await serving.let_in(client)
    assert "The prompt has 69 tokens" in client.told["error"]["message"]
    assert new.questions and not new.requests


async def test_what_was_cut_for_the_former_engine_goes_whole_to_one_that_takes_it() -> None:
    serving = Serving(FACTS, overlong="truncate")
    client = await serving.held()
    new = serving.serve(ROOMY)
    assert (await serving.let_in(client)).status == 200
    [request] = new.requests
    assert request["prompt"] == words(99)
    assert TRUNCATED.decode() not in client.headers
    assert serving.gate.counts().truncated_total == 0


async def test_what_fitted_the_former_engine_is_cut_for_the_new_one() -> None:
    serving = Serving(ROOMY, overlong="truncate")
    client = await serving.held()
    new = serving.serve(FACTS)
    assert (await serving.let_in(client)).status == 200
    [request] = new.requests
    assert words(99).endswith(request["prompt"]) and len(request["prompt"]) < 5 * 64
    assert client.headers[TRUNCATED.decode()].startswith("cut=")
    assert serving.gate.counts().truncated_total == 1


async def test_a_profile_with_another_rule_for_what_is_too_long_is_gone_by_in_the_same_engine() -> None:
    serving = Serving(FACTS, overlong="truncate")
    client = await serving.held()
    serving.serve(FACTS, serving.app, overlong="reject")
    assert (await serving.let_in(client)).status == 400
    assert client.told["reason"] == "too_long" and len(serving.app.requests) == 1
    serving = Serving(FACTS, overlong="truncate")
    client = await serving.held()
    serving.serve(FACTS, serving.app, overlong="segment", segment_overlap_tokens=4)
    assert (await serving.let_in(client)).status == 200
    counts = serving.gate.counts()
    assert (counts.truncated_total, counts.segmented_total) == (0, 1)


async def test_who_came_while_no_engine_could_say_how_long_a_prompt_may_be_is_looked_at_afterwards() -> None:
    """Between the old engine's end and the new one's start in a reload."""
    serving = Serving()
    serving.entry.hold(30.0)
    serving.facts = None
    client = await serving.ask(100)
    assert serving.entry.held == 1
    new = serving.serve(FACTS)
    assert (await client.answered()).status == 400
    assert client.told["reason"] == "too_long" and not new.requests


async def test_who_waited_through_no_switch_is_not_prepared_twice() -> None:
    serving = Serving()
    client = await serving.held(200)
    serving.entry.hold(30.0)
    serving.entry.let_go()  # a switch that was given up
    assert (await serving.let_in(client)).status == 200
    assert len(serving.app.questions) == 2, "one for each request"


async def test_an_engine_that_comes_while_one_is_prepared_again_has_it_prepared_for_itself() -> None:
    served, asked_of = Served(Limits(max_inflight=1)), []
    may_go_on = asyncio.Event()

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        asked_of.append(app)
        if app is second:
            await may_go_on.wait()
        return asked

    first = served.model
    second, third = ScriptedApp(), Served().model
    served.gate.prepare = prepare
    served.entry.hold(30.0)
    client = await served.ask("waits")
    served.entry.attach(second)
    await turns()
    assert asked_of == [first, second]
    served.entry.hold(30.0)
    may_go_on.set()
    await turns()
    served.entry.attach(third)
    await turns()
    assert asked_of == [first, second, third]
    assert third.names == ["waits"] and not second.requests
    third.finish_all()
    assert (await client.answered()).status == 200


async def test_an_engine_that_goes_while_one_is_prepared_again_is_told_and_the_place_is_free() -> None:
    served, may_go_on = Served(Limits(max_inflight=1)), asyncio.Event()

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        if app is second:
            await may_go_on.wait()
        return asked

    second = ScriptedApp()
    served.gate.prepare = prepare
    served.entry.hold(30.0)
    client = await served.ask("waits")
    served.entry.attach(second)
    await turns()
    served.entry.detach(Unavailable("dead", "The engine died.", 4.6))
    may_go_on.set()
    assert (await client.answered()).told["state"] == "dead"
    assert served.gate.inflight == 0 and not second.requests


async def test_a_refusal_by_an_engine_that_is_gone_meanwhile_is_none() -> None:
    served, may_go_on = Served(), asyncio.Event()
    first = served.model

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        if app is first:
            await may_go_on.wait()
            return Refusal("too_long", "too long for the former one", 400)
        return asked

    served.gate.prepare = prepare
    client = await served.ask("asks")
    new = Served().model
    served.entry.attach(new)
    may_go_on.set()
    await turns()
    assert new.names == ["asks"]
    new.finish_all()
    assert (await client.answered()).status == 200


async def test_what_waits_as_it_came_and_as_it_was_cut_is_charged_for_both() -> None:
    served = Served(Limits(max_inflight=1), held_bytes=1000)

    async def prepare(app: AsgiApp, asked: Asked) -> Asked | Refusal:
        return replace(asked, body=b"{}") if b"cut" in asked.body else asked

    served.gate.prepare = prepare
    await served.ask("running")
    cut = await served.ask("cut", text="x" * 600)
    assert served.gate._line.held_bytes.used > 600
    refused = await served.ask("no room", text="x" * 400)
    assert refused.told["reason"] == "queue_full"
    cut.hang_up()
    await cut.answered()
    assert served.gate._line.held_bytes.used == 0
