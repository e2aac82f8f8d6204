"""One connection, seen from the other end of a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import re

import pytest

from engine_host.control.actions import CHANGES
from engine_host.control.dispatch import READS, SLOW_READS
from engine_host.control.roles import may_call, role_of
from engine_host.control.session import FRAMES_A_TURN
from engine_host.protocol.envelope import ErrorCode
from engine_host.protocol.frames import MAX_FRAME_BYTES
from engine_host.protocol.methods import ALLOWED, METHODS, Risk, Role

from .harness import Bench, change, until

VALID_PARAMS = {
    "history": {"series": ["kv.usage"]},
    "engine.restart": change("key-1"),
    "host.stop": change("key-2"),
    "profiles.get": {"name": "a"},
    "profiles.diff": {"after": "b"},
    "profiles.check": {"name": "a"},
    "switch": change("key-3", profile="b"),
    "switch.forecast": {"profile": "b"},
    "switch.cancel": change("key-4"),
    "profiles.reload": change("key-5"),
    "dials.set": change("key-6", values={"speculative_tokens": 2}),
    "requests.abort": change("key-7", id="a"),
    "throttle.set": change("key-8", limits={"max_inflight": 16}),
    "throttle.clear": change("key-9"),
    "throttle.auto": change("key-10", mode="observe"),
    "pause": change("key-11"),
    "resume": change("key-12"),
}


async def test_hello_comes_first_and_says_who_the_peer_is(bench: Bench) -> None:
    client = await bench.connect(Role.VIEWER, uid=7, login="guest")
    hello = await client.notified("hello")
    assert hello["protocol"] == {"min": 1, "max": 1}
    assert (hello["role"], hello["uid"], hello["login"]) == ("viewer", 7, "guest")
    assert (hello["boot_id"], hello["state"], hello["state_version"]) == ("boot-1", "serving", 3)


async def test_without_a_seam_the_kernel_says_who_the_peer_is(bench: Bench) -> None:
    from engine_host.control.roles import peer_of

    bench.server._peer_of = peer_of
    client = await bench.connect_unread()
    hello = (await client.read())["params"]
    assert (hello["uid"], hello["role"]) == (os.getuid(), "admin")


async def test_status_gives_the_snapshot(bench: Bench) -> None:
    client = await bench.connect()
    result = (await client.call("status"))["result"]
    assert result["state"] == "serving"
    assert result["kv"]["usage"] is None


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_parameters_nested_however_deeply_are_answered(bench: Bench, name: str) -> None:
    client = await bench.connect()
    fields = (*METHODS[name].params.__struct_fields__, "unknown")
    for depth in (3_000, *range(940, 1_000, 4)):
        for field in fields:
            deep = b"[" * depth + b"]" * depth
            params = b'{"idempotency_key": "k", "%s": %s}' % (field.encode(), deep)
            client.send_raw(b'{"jsonrpc": "2.0", "id": 7, "method": "%s", "params": %s}\n' % (name.encode(), params))
            reply = await client.read()
            while reply.get("method"):
                reply = await client.read()
            assert "error" in reply or "result" in reply
    assert (await client.call("status"))["result"]["state"] == "serving"


async def test_history_of_an_unknown_series_names_the_nearest(bench: Bench) -> None:
    client = await bench.connect()
    assert (await client.call("history", {"series": ["kv.usage"]}))["result"]["series"] == {"kv.usage": [0.5, None]}
    error = (await client.call("history", {"series": ["kv.usag"]}))["error"]
    assert error["code"] == ErrorCode.INVALID_PARAMS
    assert "kv.usage" in error["message"]


@pytest.mark.parametrize(
    ("frame", "code", "id"),
    [
        (b"not json", ErrorCode.PARSE, None),
        (b'{"method": "status"', ErrorCode.PARSE, None),
        (b'{"method": "status\xff", "id": 1}', ErrorCode.PARSE, None),
        (b'{"method": "status"}\x00', ErrorCode.PARSE, None),
        (b"[" * 100_000, ErrorCode.PARSE, None),
        (b'{"id": 1, "method": "status", "params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ErrorCode.PARSE, None),
        (b"[]", ErrorCode.INVALID_REQUEST, None),
        (b"7", ErrorCode.INVALID_REQUEST, None),
        (b'{"id": 1}', ErrorCode.INVALID_REQUEST, 1),
        (b'{"id": 1, "method": 5}', ErrorCode.INVALID_REQUEST, 1),
        (b'{"id": 1, "method": "status", "jsonrpc": "1.0"}', ErrorCode.INVALID_REQUEST, 1),
        (b'{"id": true, "method": "status"}', ErrorCode.INVALID_REQUEST, None),
        (b'{"id": 1.5, "method": "status"}', ErrorCode.INVALID_REQUEST, None),
        (b'{"id": [1], "method": "status"}', ErrorCode.INVALID_REQUEST, None),
        (b'{"id": 1' + b"0" * 30 + b', "method": "status"}', ErrorCode.INVALID_REQUEST, None),
        (b'{"id": "' + b"x" * 200 + b'", "method": "status"}', ErrorCode.INVALID_REQUEST, None),
        (b'{"id": "a", "method": "statuss"}', ErrorCode.UNKNOWN_METHOD, "a"),
        (b'{"id": 1, "method": "status", "params": {"x": 1}}', ErrorCode.INVALID_PARAMS, 1),
        (b'{"id": 1, "method": "status", "params": [1]}', ErrorCode.INVALID_PARAMS, 1),
        (b'{"id": 1, "method": "status", "params": null}', ErrorCode.INVALID_PARAMS, 1),
        (b'{"id": 1, "method": "telemetry.subscribe", "params": {"interval_s": 0.01}}', ErrorCode.INVALID_PARAMS, 1),
        (b'{"id": 1, "method": "events.list", "params": {"limit": 0}}', ErrorCode.INVALID_PARAMS, 1),
        (b'{"id": 1, "method": "engine.restart", "params": {}}', ErrorCode.INVALID_PARAMS, 1),
        (b'{"method": "host.stop", "params": {"idempotency_key": "k"}}', ErrorCode.INVALID_REQUEST, None),
    ],
)
async def test_a_bad_frame_gets_an_error_with_a_remedy_and_the_session_goes_on(
    bench: Bench, frame: bytes, code: ErrorCode, id: object
) -> None:
    client = await bench.connect()
    client.send_raw(frame + b"\n")
    reply = await client.reply(id)
    assert reply["error"]["code"] == code
    assert reply["error"]["data"]["remedy"]
    assert len(json.dumps(reply)) < 1000
    assert "result" in await client.call("status")
    assert bench.host.calls == []


@pytest.mark.parametrize(
    ("method", "params", "said"),
    [
        ("telemetry.subscribe", {"interval_s": 0.01}, "interval_s: expected a number of at least 0.1"),
        ("telemetry.subscribe", {"interval_s": "1"}, "interval_s: expected a number, got a text"),
        ("engine.restart", {}, "idempotency_key is missing"),
        ("engine.restart", change("k", drain_timeout_s="x"), "drain_timeout_s: expected a number, got a text"),
        ("engine.restart", change(""), "idempotency_key: expected a text of at least 1 characters"),
        ("engine.restart", change("k", resaon="x"), 'it has no "resaon"'),
        ("history", {"series": [1]}, "series[0]: expected a text, got a whole number"),
        ("history", {"series": ["a"] * 65}, "series: expected a list of at most 64 entries"),
        ("switch", change("k", profile="a", tier="fast"), "tier: 'fast' is not one of its values"),
    ],
)
async def test_a_bad_parameter_is_told_in_an_operators_words(
    bench: Bench, method: str, params: dict[str, object], said: str
) -> None:
    client = await bench.connect()
    error = (await client.call(method, params))["error"]
    assert error["message"] == f"invalid parameters for {method}: {said}"


@pytest.mark.parametrize(
    "frame", [b"[1]", b"null", b"7", b'{"id": 1, "method": 5}', b'{"id": 1, "method": "x"', b"\xff"]
)
async def test_no_type_of_the_programs_own_is_named_to_a_peer(bench: Bench, frame: bytes) -> None:
    client = await bench.connect()
    client.send_raw(frame + b"\n")
    message = (await client.read())["error"]["message"]
    assert not set(re.findall(r"\w+", message)) & {"NoneType", "int", "str", "bool", "float", "dict", "array"}
    assert "`" not in message and "$" not in message


async def test_a_misspelt_method_is_answered_with_the_nearest(bench: Bench) -> None:
    client = await bench.connect()
    assert "engine.restart" in (await client.call("engine.restrt"))["error"]["data"]["remedy"]


async def test_a_misspelt_parameter_is_answered_with_the_valid_ones(bench: Bench) -> None:
    client = await bench.connect()
    error = (await client.call("engine.restart", change("k", resaon="x")))["error"]
    assert "resaon" in error["message"]
    assert "reason" in error["data"]["remedy"]


async def test_a_reason_and_a_key_are_bounded(bench: Bench) -> None:
    client = await bench.connect()
    for params in (change("k", reason="x" * 501), change("k" * 129), change("")):
        assert (await client.call("engine.restart", params))["error"]["code"] == ErrorCode.INVALID_PARAMS
    assert bench.host.calls == []


async def test_a_frame_in_single_bytes_is_a_frame(bench: Bench) -> None:
    client = await bench.connect()
    for byte in b'{"jsonrpc":"2.0","id":"slow","method":"status"}\n':
        client.send_raw(bytes([byte]))
        await client.writer.drain()
    assert "result" in await client.reply("slow")


async def test_an_oversized_frame_is_told_so_and_closed(bench: Bench) -> None:
    client = await bench.connect()
    other = await bench.connect()
    client.send_raw(b"x" * (MAX_FRAME_BYTES + 2))
    assert (await client.reply(None))["error"]["code"] == ErrorCode.FRAME_TOO_LARGE
    assert await client.is_closed_by_host()
    assert "result" in await other.call("status")


async def test_replies_to_pipelined_requests_all_come(bench: Bench) -> None:
    client = await bench.connect()
    sent = [client.send("status") for _ in range(500)]
    received = [(await client.read())["id"] for _ in sent]
    assert received == sent


async def test_a_peer_that_ends_its_side_still_gets_its_replies(bench: Bench) -> None:
    """`echo REQUEST | nc -U SOCKET` must work, for a slow action too."""
    client = await bench.connect()
    bench.host.may_finish.clear()
    status, restart = client.send("status"), client.send("engine.restart", change("k"))
    client.writer.write_eof()
    assert "result" in await client.reply(status)
    bench.host.may_finish.set()
    assert (await client.reply(restart))["result"]["text"] == "restart done"
    assert await client.is_closed_by_host()


async def test_a_notification_is_not_answered(bench: Bench) -> None:
    client = await bench.connect()
    client.send_raw(b'{"jsonrpc":"2.0","method":"status"}\n')
    await client.call("status")
    assert [frame["method"] for frame in client.notifications] == ["hello"]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("method", list(METHODS.values()), ids=lambda method: method.name)
async def test_every_method_in_every_role(bench: Bench, role: Role, method: object) -> None:
    assert isinstance(method, type(METHODS["status"]))
    client = await bench.connect(role)
    reply = await client.call(method.name, VALID_PARAMS.get(method.name))
    if method.name == "switch.cancel" and role is Role.ADMIN:
        assert reply["error"]["code"] == ErrorCode.CONFLICT  # there is none to cancel
    elif method.risk in ALLOWED[role]:
        assert "result" in reply
    else:
        assert reply["error"]["code"] == ErrorCode.ROLE
        assert reply["error"]["data"]["remedy"]
        assert bench.host.calls == []
        assert bench.audit_lines() == []


async def test_the_role_is_weighed_before_the_parameters(bench: Bench) -> None:
    client = await bench.connect(Role.VIEWER)
    for params in ({}, {"nonsense": 1}):
        assert (await client.call("host.stop", params))["error"]["code"] == ErrorCode.ROLE


def test_only_the_owner_and_root_are_admins() -> None:
    assert role_of(1000, owner_uid=1000) is Role.ADMIN
    assert role_of(0, owner_uid=1000) is Role.ADMIN
    assert role_of(1001, owner_uid=1000) is Role.VIEWER
    assert role_of(1000, owner_uid=0) is Role.VIEWER


def test_a_role_covers_exactly_the_risks_it_is_given() -> None:
    for role in Role:
        for method in METHODS.values():
            assert may_call(role, method) == (method.risk in ALLOWED[role])


def test_every_method_of_the_table_is_served_by_exactly_one_room() -> None:
    subscriptions = {"telemetry.subscribe", "events.subscribe"}
    reads = {name for name, method in METHODS.items() if method.risk is Risk.READ}
    assert set(READS) | set(SLOW_READS) | subscriptions == reads
    assert not set(READS) & set(SLOW_READS)
    assert set(CHANGES) == set(METHODS) - reads


async def test_telemetry_comes_at_once_and_then_at_its_interval(bench: Bench) -> None:
    client = await bench.connect()
    assert "seq" in (await client.call("telemetry.subscribe", {"interval_s": 0.1}))["result"]
    seqs = [(await client.notified("telemetry"))["seq"] for _ in range(4)]
    assert seqs == sorted(set(seqs))


async def test_subscribing_again_changes_the_interval_and_does_not_double_the_feed(bench: Bench) -> None:
    client = await bench.connect()
    await client.call("telemetry.subscribe", {"interval_s": 60})
    await client.call("telemetry.subscribe", {"interval_s": 60})
    first = await client.notified("telemetry")
    second = await client.notified("telemetry")
    assert second["seq"] > first["seq"]
    client.send("status")
    assert "result" in await client.read()  # nothing else was under way


async def test_events_are_replayed_from_a_cursor_and_then_followed(bench: Bench) -> None:
    for number in range(300):
        bench.host.events.append("test", f"event {number + 1}")
    client = await bench.connect()
    assert (await client.call("events.subscribe", {"after_seq": 100}))["result"]["seq"] == 100
    assert [(await client.notified("event"))["seq"] for _ in range(200)] == list(range(101, 301))
    bench.host.events.append("test", "new")
    assert (await client.notified("event"))["text"] == "new"


async def test_a_new_subscriber_gets_only_new_events(bench: Bench) -> None:
    bench.host.events.append("test", "old")
    client = await bench.connect()
    assert (await client.call("events.subscribe"))["result"]["seq"] == 1
    bench.host.events.append("test", "new")
    assert (await client.notified("event"))["text"] == "new"


async def test_a_cursor_of_an_earlier_host_process_starts_at_the_newest_event(bench: Bench) -> None:
    bench.host.events.append("test", "old")
    client = await bench.connect()
    assert (await client.call("events.subscribe", {"after_seq": 9_000}))["result"]["seq"] == 1
    bench.host.events.append("test", "new")
    assert (await client.notified("event"))["seq"] == 2


async def test_an_event_list_is_cut_to_what_fits_a_frame(bench: Bench) -> None:
    for _ in range(10_000):
        bench.host.events.append("test", "x" * 400)
    client = await bench.connect()
    result = (await client.call("events.list", {"limit": 10_000}))["result"]
    assert result["events"][-1]["seq"] == 10_000
    assert 1_000 < len(result["events"]) < 10_000


async def test_two_clients_are_served_independently(bench: Bench) -> None:
    one, two = await bench.connect(), await bench.connect(Role.VIEWER, uid=5)
    await one.call("telemetry.subscribe", {"interval_s": 0.1})
    bench.host.may_finish.clear()
    restart = one.send("engine.restart", change("k"))
    assert "result" in await two.call("status")
    assert "method" in await one.read()  # its snapshots go on while its action runs
    two.close()
    await until(lambda: bench.server.session_count == 1, "the other session to be gone")
    bench.host.may_finish.set()
    assert (await one.reply(restart))["result"]["text"] == "restart done"


async def test_an_error_inside_the_host_is_told_without_a_traceback(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await bench.connect()

    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(bench.host, "snapshot", broken)
    error = (await client.call("status"))["error"]
    assert error["code"] == ErrorCode.INTERNAL
    assert "RuntimeError" in error["message"]
    assert "Traceback" not in json.dumps(error)
    assert "result" in await client.call("events.list")


async def test_a_flood_is_answered_a_few_requests_a_turn(bench: Bench) -> None:
    """Between two turns of whoever else shares the loop, vLLM's requests for instance, a flood gets a few answers."""
    client = await bench.connect()
    count = 5_000
    client.send_raw(b'{"jsonrpc":"2.0","id":1,"method":"status"}\n' * count)
    answered_a_turn: list[int] = []

    async def share_the_loop() -> None:
        while bench.host.seq < count:
            before = bench.host.seq
            await asyncio.sleep(0)
            answered_a_turn.append(bench.host.seq - before)

    sharing = asyncio.create_task(share_the_loop())
    for _ in range(count):
        await client.read()
    await asyncio.wait_for(sharing, 10)
    assert max(answered_a_turn) <= 2 * FRAMES_A_TURN


async def test_a_slow_read_is_answered_later_and_holds_up_nothing(bench: Bench) -> None:
    bench.host.may_finish.clear()
    client = await bench.connect(Role.VIEWER)
    slow = client.send("profiles.check", {"name": "a"})
    assert "result" in await client.call("status")
    bench.host.may_finish.set()
    assert (await client.reply(slow))["result"]["ok"] is True


async def test_a_session_cannot_ask_for_any_number_of_slow_reads(bench: Bench) -> None:
    bench.host.may_finish.clear()
    client = await bench.connect(Role.VIEWER)
    asked = [client.send("profiles.check", {"name": "a"}) for _ in range(4)]
    assert (await client.reply(asked[-1]))["error"]["code"] == ErrorCode.BUSY
    bench.host.may_finish.set()
    assert "result" in await client.reply(asked[0])


async def test_an_unknown_profile_is_an_invalid_parameter_with_the_nearest_name(bench: Bench) -> None:
    client = await bench.connect()
    for method in ("profiles.get", "profiles.check"):
        error = (await client.call(method, {"name": "aa"}))["error"]
        assert error["code"] == ErrorCode.INVALID_PARAMS and "did you mean" in error["data"]["remedy"]
    refused = await client.call("switch", change("key-9", profile="aa"))
    assert refused["error"]["code"] == ErrorCode.INVALID_PARAMS
