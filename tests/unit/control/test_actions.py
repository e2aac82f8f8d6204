"""The changing calls: idempotency, compare-and-set, audit, events, and what outlives a session."""

from __future__ import annotations

import asyncio

import pytest

from engine_host.control.session import MAX_IN_FLIGHT
from engine_host.protocol.envelope import ErrorCode
from engine_host.protocol.errors import EXIT_FAILED, EXIT_REFUSED, OperatorError
from engine_host.protocol.methods import Role

from .harness import Bench, change, until


async def test_a_change_is_acknowledged_when_applied_with_the_state_after_it(bench: Bench) -> None:
    client = await bench.connect()
    bench.host.may_finish.clear()
    restart = client.send("engine.restart", change("k", drain_timeout_s=5, reason="slow"))
    await until(lambda: bench.host.calls, "the action to begin")
    assert "result" in await client.call("status")  # answered while the action runs
    bench.host.may_finish.set()
    result = (await client.reply(restart))["result"]
    assert (result["text"], result["state_version"]) == ("restart done", 4)
    assert bench.host.calls == [("restart", 5.0, "ops")]


async def test_the_audit_log_has_intent_and_outcome_with_the_state_before_and_after(bench: Bench) -> None:
    client = await bench.connect()
    await client.call("engine.restart", change("k", reason="slow"))
    intent, outcome = bench.audit_lines()
    assert (intent["phase"], outcome["phase"]) == ("intent", "outcome")
    assert intent["id"] == outcome["id"]
    assert (intent["uid"], intent["login"], intent["pid"]) == (1000, "ops", 1)
    assert (intent["method"], intent["reason"]) == ("engine.restart", "slow")
    assert intent["params"]["idempotency_key"] == "k"
    assert (intent["state_version"], outcome["state_version"]) == (3, 4)
    assert outcome["outcome"] == "applied"


async def test_a_change_is_an_event_with_who_did_it(bench: Bench) -> None:
    client = await bench.connect()
    await client.call("events.subscribe")
    await client.call("engine.restart", change("k", reason="slow\x1b[31m\nsecond line"))
    event = await client.notified("event")
    assert (event["kind"], event["who"], event["severity"]) == ("action.engine.restart", "ops", "info")
    assert event["text"] == "restart done (slow [31m second line)"


async def test_a_reload_of_the_profiles_tells_what_changed_and_is_audited_and_an_event(bench: Bench) -> None:
    client = await bench.connect(Role.OPERATOR)
    await client.call("events.subscribe")
    result = (await client.call("profiles.reload", change("k", reason="edited b")))["result"]
    assert (result["text"], result["state"], result["state_version"]) == ("added: b", "serving", 3)
    assert result["changes"]["added"] == ["b"] and result["changes"]["broken"] == {"c": "no"}
    event = await client.notified("event")
    assert (event["kind"], event["who"], event["text"]) == ("action.profiles.reload", "ops", "added: b (edited b)")
    intent, outcome = bench.audit_lines()
    assert (intent["method"], intent["reason"]) == ("profiles.reload", "edited b")
    assert (outcome["outcome"], outcome["text"]) == ("applied", "added: b")


async def test_a_reload_without_a_key_is_refused(bench: Bench) -> None:
    client = await bench.connect()
    assert (await client.call("profiles.reload"))["error"]["code"] == ErrorCode.INVALID_PARAMS
    assert bench.audit_lines() == []


async def test_the_same_key_does_nothing_again(bench: Bench) -> None:
    client = await bench.connect()
    first = await client.call("engine.restart", change("k"))
    second = await client.call("engine.restart", change("k"))
    assert first["result"] == second["result"]
    assert len(bench.host.calls) == 1
    assert len(bench.audit_lines()) == 2


async def test_the_same_key_joins_the_action_that_still_runs_even_from_another_connection(bench: Bench) -> None:
    one, two = await bench.connect(), await bench.connect()
    bench.host.may_finish.clear()
    first, second = one.send("engine.restart", change("k")), two.send("engine.restart", change("k"))
    await until(lambda: bench.host.calls, "the action to begin")
    await two.call("status")
    bench.host.may_finish.set()
    assert (await one.reply(first))["result"] == (await two.reply(second))["result"]
    assert len(bench.host.calls) == 1


async def test_the_same_key_of_another_user_is_another_key(bench: Bench) -> None:
    one, two = await bench.connect(uid=1), await bench.connect(uid=2)
    await one.call("engine.restart", change("k"))
    await two.call("engine.restart", change("k"))
    assert len(bench.host.calls) == 2


async def test_a_key_cannot_be_used_for_a_different_call(bench: Bench) -> None:
    client = await bench.connect()
    await client.call("engine.restart", change("k"))
    for method, params in (("host.stop", change("k")), ("engine.restart", change("k", drain_timeout_s=1))):
        assert (await client.call(method, params))["error"]["code"] == ErrorCode.INVALID_PARAMS
    assert len(bench.host.calls) == 1


async def test_a_stale_state_version_is_refused_with_the_current_state(bench: Bench) -> None:
    client = await bench.connect()
    error = (await client.call("engine.restart", change("k", expected_state_version=2)))["error"]
    assert error["code"] == ErrorCode.CONFLICT
    assert (error["data"]["state"], error["data"]["state_version"]) == ("serving", 3)
    assert bench.host.calls == []
    assert "result" in await client.call("engine.restart", change("k2", expected_state_version=3))


async def test_a_state_that_moves_while_the_intent_is_written_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = bench.server._audit
    write = audit.write

    async def write_and_move(record: dict[str, object]) -> None:
        await write(record)
        bench.host.state_version = 99

    monkeypatch.setattr(audit, "write", write_and_move)
    client = await bench.connect()
    error = (await client.call("engine.restart", change("k", expected_state_version=3)))["error"]
    assert error["code"] == ErrorCode.CONFLICT
    assert bench.host.calls == []
    assert [line["phase"] for line in bench.audit_lines()] == ["intent", "outcome"]


@pytest.mark.parametrize(
    ("failure", "code", "outcome", "severity"),
    [
        (OperatorError("it is dead", "start it", exit_code=EXIT_REFUSED), ErrorCode.CONFLICT, "refused", "warning"),
        (OperatorError("out of memory", "use less", exit_code=EXIT_FAILED), ErrorCode.FAILED, "failed", "error"),
        (RuntimeError("bug"), ErrorCode.INTERNAL, "failed", "error"),
    ],
)
async def test_a_failed_change_is_told_audited_and_an_event(
    bench: Bench, failure: Exception, code: ErrorCode, outcome: str, severity: str
) -> None:
    bench.host.failure = failure
    client = await bench.connect()
    error = (await client.call("engine.restart", change("k")))["error"]
    assert error["code"] == code
    assert error["data"]["remedy"]
    assert bench.audit_lines()[1]["outcome"] == outcome
    assert bench.host.events.after(0, 1).events[0].severity == severity
    assert (await client.call("engine.restart", change("k")))["error"] == error
    assert len(bench.host.calls) == 1


async def test_without_an_audit_log_nothing_is_changed_and_reading_goes_on(bench: Bench) -> None:
    bench.audit_path.parent.mkdir(parents=True)
    bench.audit_path.mkdir()  # a directory where the file should be: unwritable for root too
    client = await bench.connect()
    error = (await client.call("engine.restart", change("k")))["error"]
    assert error["code"] == ErrorCode.AUDIT
    assert str(bench.audit_path) in error["message"]
    assert error["data"]["remedy"]
    assert bench.host.calls == []
    assert "result" in await client.call("status")


async def test_an_outcome_that_cannot_be_audited_is_an_event_and_still_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = bench.server._audit
    write = audit.write

    async def write_intents_only(record: dict[str, object]) -> None:
        if record["phase"] == "outcome":
            raise OperatorError("the disk is full")
        await write(record)

    monkeypatch.setattr(audit, "write", write_intents_only)
    client = await bench.connect()
    assert "result" in await client.call("engine.restart", change("k"))
    assert [event.kind for event in bench.host.events.after(0, 10).events] == [
        "audit.unwritable",
        "action.engine.restart",
    ]


@pytest.mark.parametrize("phase", ["intent", "outcome"])
async def test_a_mistake_in_writing_the_audit_log_is_told_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    audit = bench.server._audit
    write = audit.write

    async def mistaken(record: dict[str, object]) -> None:
        if record["phase"] == phase:
            raise TypeError("this cannot be encoded")
        await write(record)

    monkeypatch.setattr(audit, "write", mistaken)
    client = await bench.connect()
    reply = await client.call("engine.restart", change("k"))
    if phase == "intent":
        assert reply["error"]["code"] == ErrorCode.AUDIT
        assert bench.host.calls == []
    else:
        assert reply["result"]["text"] == "restart done"
        assert bench.host.events.after(0, 10).events[0].kind == "audit.unwritable"


async def test_an_action_always_has_an_outcome(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no event can be told")

    monkeypatch.setattr(bench.server.actions, "_announce", broken)
    client = await bench.connect()
    assert (await client.call("engine.restart", change("k")))["error"]["code"] == ErrorCode.INTERNAL
    assert "result" in await client.call("status")


async def test_an_action_outlives_the_session_that_asked_for_it(bench: Bench) -> None:
    client = await bench.connect()
    bench.host.may_finish.clear()
    client.send("engine.restart", change("k"))
    await until(lambda: bench.host.calls, "the action to begin")
    client.close()
    await until(lambda: bench.server.session_count == 0, "the session to be gone")
    bench.host.may_finish.set()
    await until(lambda: len(bench.audit_lines()) == 2, "the outcome to be audited")
    assert bench.audit_lines()[1]["outcome"] == "applied"
    again = await bench.connect()
    assert (await again.call("engine.restart", change("k")))["result"]["text"] == "restart done"


async def test_too_many_actions_of_one_session_are_refused(bench: Bench) -> None:
    client = await bench.connect()
    bench.host.may_finish.clear()
    sent = [client.send("engine.restart", change(f"k{number}")) for number in range(MAX_IN_FLIGHT + 1)]
    assert (await client.reply(sent[-1]))["error"]["code"] == ErrorCode.BUSY
    bench.host.may_finish.set()
    assert "result" in await client.reply(sent[0])


async def test_an_interrupted_action_is_audited_as_failed(bench: Bench) -> None:
    client = await bench.connect()
    bench.host.may_finish.clear()
    restart = client.send("engine.restart", change("k"))
    await until(lambda: bench.host.calls, "the action to begin")
    closing = asyncio.create_task(bench.server.close(0.2))
    assert (await client.reply(restart))["error"]["code"] == ErrorCode.FAILED
    await closing
    assert [line.get("outcome") for line in bench.audit_lines()] == [None, "failed"]


async def test_the_caller_of_stop_gets_its_reply_and_subscribers_the_last_event(bench: Bench) -> None:
    caller, watcher = await bench.connect(), await bench.connect(Role.VIEWER, uid=5)
    await watcher.call("events.subscribe")
    stop = caller.send("host.stop", change("k"))
    await asyncio.wait_for(bench.host.stopped.wait(), 5)
    await bench.server.close(5.0)  # as the composition root does as soon as the host is stopped
    assert (await caller.reply(stop))["result"]["text"] == "stop done"
    assert (await watcher.notified("event"))["kind"] == "action.host.stop"
    assert await caller.is_closed_by_host()
    assert await watcher.is_closed_by_host()
    assert not bench.socket_path.exists()


async def test_the_audit_log_keeps_the_timeline_of_a_switch(bench: Bench) -> None:
    client = await bench.connect()
    await client.call("switch", change("k", profile="b"))
    outcome = bench.audit_lines()[1]
    assert (outcome["outcome"], outcome["text"]) == ("switched", "switched a -> b")
    assert [(phase["name"], phase["took_s"]) for phase in outcome["timeline"]] == [("preflight", 0.5)]
