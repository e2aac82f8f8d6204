"""The list of unfinished requests: what the front end and the scheduler say of them, put together."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import pytest

from engine_host.engine.port import FrontRequest
from engine_host.live.sample import LiveSample, RequestState
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.methods import REQUEST_STATES, RequestList, RequestOrder, RequestsList
from engine_host.telemetry.request_list import STATES, Known, RequestTable
from engine_host.telemetry.request_trouble import Trouble
from tests.unit.scripted_scheduler import front_request, live_sample, request_records

WELL = Trouble(capacity_tokens=3_200, stalled_reason=None, last_step_age_s=0.01)


def listed(
    front: Sequence[FrontRequest],
    samples: Sequence[LiveSample] = (),
    *,
    waiting: int = 0,
    trouble: Trouble = WELL,
    asked: RequestsList | None = None,
) -> RequestList:
    known = Known(front, samples, waiting, trouble, time.time())
    return RequestTable(known).listed(asked or RequestsList(), None)


def ids(found: RequestList) -> list[str]:
    return [row.id for row in found.requests]


def test_the_scheduler_adds_what_it_alone_knows() -> None:
    record = {"id": "a", "cached_tokens": 32, "blocks": 7, "priority": -1, "preemptions": 2, "drafted": 10,
              "accepted": 6, "prompt_tokens": 999, "generated_tokens": 1}  # fmt: skip
    [row] = listed(
        [front_request("a", age_s=9.0, waited_s=0.5, silent_s=0.1, prompt=100, generated=40)],
        [live_sample(request_records(record))],
    ).requests
    assert (row.state, row.waited_s) == ("running", 0.5)
    assert row.age_s == pytest.approx(9.0, abs=0.5)
    # A request that was carried begins anew for the scheduler: its tokens are the front end's.
    assert (row.prompt_tokens, row.generated_tokens, row.max_tokens) == (100, 40, 100)
    assert (row.cached_tokens, row.blocks, row.priority, row.preemptions) == (32, 7, -1, 2)
    assert (row.drafted, row.accepted) == (10, 6)


def test_the_front_end_decides_which_there_are() -> None:
    found = listed(
        [front_request("a", silent_s=0.1), front_request("new")],
        [live_sample(request_records({"id": "a"}, {"id": "ended"}))],
    )
    assert ids(found) == ["a", "new"]
    assert (found.requests[1].state, found.requests[1].blocks) == ("waiting", None)
    assert found.by_state == {"waiting": 1, "deferred": 0, "preempted": 0, "running": 1}


def test_states_come_from_every_engine_core() -> None:
    states = {"a": RequestState.RUNNING, "b": RequestState.PREEMPTED, "c": RequestState.DEFERRED}
    samples = [
        live_sample(request_records({"id": one, "state": state}), engine_index=index)
        for index, (one, state) in enumerate(states.items())
    ]
    found = listed([front_request(one) for one in states], samples)
    assert [row.state for row in found.requests] == ["running", "preempted", "deferred"]


def test_without_a_scheduler_the_youngest_without_a_token_wait_as_many_as_the_gauge_says() -> None:
    front = [front_request("a", silent_s=0.1), front_request("b"), front_request("c"), front_request("d")]
    assert [row.state for row in listed(front, waiting=2).requests] == ["running", "running", "waiting", "waiting"]
    assert listed(front, waiting=2).requests[0].blocks is None


def test_a_long_id_is_known_by_its_beginning() -> None:
    long = "語" * 300
    [row] = listed([front_request(long)], [live_sample(request_records({"id": long, "blocks": 3}))]).requests
    assert (row.blocks, row.id) == (3, "語" * 200)


def test_one_that_has_not_begun_has_waited_all_its_age() -> None:
    [row] = listed([front_request("a", age_s=4.0)]).requests
    assert row.waited_s == row.age_s
    [row] = listed([front_request("a", age_s=4.0)], [live_sample(request_records({"id": "a"}))]).requests
    assert row.waited_s == row.age_s


def test_one_in_prefill_has_waited_until_the_step_that_took_it_in() -> None:
    now = time.time()
    records = request_records({"id": "long", "began": now - 8.0}, {"id": "waits", "state": RequestState.WAITING})
    front = [front_request("long", age_s=9.0), front_request("waits", age_s=5.0), front_request("new", age_s=0.1)]
    found = listed(front, [live_sample(records)], asked=RequestsList(order=RequestOrder.WAITED))
    assert ids(found) == ["waits", "long", "new"]
    assert found.requests[1].waited_s == pytest.approx(1.0, abs=0.5)


def test_what_was_preempted_has_waited_again() -> None:
    now = time.time()
    records = request_records(
        {"id": "waits", "state": RequestState.PREEMPTED, "preempted_at": now - 5.0, "waited_again_s": 2.0},
        {"id": "runs", "waited_again_s": 3.0},
    )
    front = [front_request(one, age_s=30.0, waited_s=1.0, silent_s=0.1) for one in ("runs", "waits")]
    found = listed(front, [live_sample(records)], asked=RequestsList(order=RequestOrder.WAITED))
    assert ids(found) == ["waits", "runs"]
    assert [row.waited_s for row in found.requests] == [pytest.approx(8.0, abs=0.5), pytest.approx(4.0)]


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (RequestOrder.AGE, "old"),
        (RequestOrder.WAITED, "waited"),
        (RequestOrder.BLOCKS, "blocks"),
        (RequestOrder.PROMPT, "prompt"),
        (RequestOrder.GENERATED, "generated"),
        (RequestOrder.PREEMPTIONS, "preempted"),
    ],
)
def test_the_largest_come_first(order: RequestOrder, first: str) -> None:
    front = [
        front_request("old", age_s=90.0, waited_s=0.1, silent_s=0.1),
        front_request("waited", age_s=50.0, waited_s=40.0, silent_s=0.1),
        front_request("blocks", waited_s=0.0, silent_s=0.1),
        front_request("prompt", waited_s=0.0, silent_s=0.1, prompt=99),
        front_request("generated", waited_s=0.0, silent_s=0.1, generated=99),
        front_request("preempted", waited_s=0.0, silent_s=0.1),
    ]
    records = request_records({"id": "blocks", "blocks": 9}, {"id": "preempted", "preemptions": 2})
    assert ids(listed(front, [live_sample(records)], asked=RequestsList(order=order)))[0] == first


def test_equal_ones_stay_in_the_order_in_which_they_came() -> None:
    front = [front_request(one, prompt=5) for one in "cab"]
    assert ids(listed(front, asked=RequestsList(order=RequestOrder.PROMPT))) == ["c", "a", "b"]


def test_only_those_asked_for_are_listed_and_all_are_counted() -> None:
    front = [front_request(f"r{n}", silent_s=0.1 if n % 2 else None) for n in range(10)]
    found = listed(front, waiting=5, asked=RequestsList(state="waiting", match="r", limit=3))
    assert ids(found) == ["r0", "r2", "r4"]
    assert (found.total, found.by_state["waiting"]) == (10, 5)
    assert ids(listed(front, waiting=5, asked=RequestsList(match="7"))) == ["r7"]


def test_a_state_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(OperatorError, match='no state "sleeping"'):
        listed([], asked=RequestsList(state="sleeping"))


def test_no_requests_is_a_list_too() -> None:
    assert listed([], [live_sample()]).total == 0


# --- trouble ----------------------------------------------------------------------------------------------------


def test_a_prompt_larger_than_the_cache_can_never_be_scheduled() -> None:
    """Field case 6."""
    found = listed(
        [front_request("small"), front_request("large", prompt=9_000)],
        [live_sample(request_records({"id": "small", "state": 0}, {"id": "large", "state": 0}))],
    )
    assert [row.trouble for row in found.requests] == [
        None,
        "stuck: its prompt has 9,000 tokens, the KV cache holds 3,200; it can never be scheduled",
    ]


def test_one_that_outgrew_the_cache_and_was_preempted_cannot_come_back() -> None:
    [row] = listed(
        [front_request("a", prompt=3_000, generated=300, silent_s=1.0)],
        [live_sample(request_records({"id": "a", "state": RequestState.PREEMPTED}))],
    ).requests
    assert row.trouble is not None
    assert row.trouble.startswith("stuck: prompt and output have 3,300 tokens")


def test_of_a_stuck_queue_the_first_one_is_named() -> None:
    stuck = Trouble(capacity_tokens=None, stalled_reason="stuck", last_step_age_s=40.0)
    found = listed([front_request("a"), front_request("b")], waiting=2, trouble=stuck)
    assert [row.trouble for row in found.requests] == ["stuck: the first in the queue, and none runs before it", None]


def test_of_an_engine_that_hangs_every_running_request_is_named() -> None:
    """Field case 7."""
    hung = Trouble(capacity_tokens=None, stalled_reason="hung", last_step_age_s=31.0)
    found = listed([front_request("a", silent_s=42.0), front_request("b")], waiting=0, trouble=hung)
    assert [row.trouble for row in found.requests] == ["hung: no token for 42 s", "hung: no token for 31 s"]


def test_one_request_can_hang_while_others_go_on() -> None:
    found = listed([front_request("a", silent_s=121.0), front_request("b", silent_s=119.0)])
    assert [row.trouble for row in found.requests] == ["hung: no token for 121 s", None]


# --- cost -------------------------------------------------------------------------------------------------------


def test_ten_thousand_are_listed_in_milliseconds() -> None:
    front = [front_request(f"chatcmpl-{n:032x}-{n:08x}", age_s=n) for n in range(10_000)]
    records = request_records(*({"id": request.id, "state": 0} for request in front))
    samples = [live_sample(records)]
    best = min(_timed(front, samples) for _ in range(5))
    assert best < 0.05  # 7 ms where this was written; a slower machine is no fault


def _timed(front: Sequence[FrontRequest], samples: Sequence[LiveSample]) -> float:
    began = time.thread_time()
    listed(front, samples, asked=RequestsList(order=RequestOrder.WAITED, limit=500))
    return time.thread_time() - began


def test_the_states_are_those_of_the_wire() -> None:
    assert sorted(STATES) == sorted(REQUEST_STATES)


@pytest.mark.parametrize("samples", [(), (live_sample(request_records({"id": "b"})),)])
def test_an_id_that_is_no_unicode_is_listed_all_the_same(samples: Sequence[LiveSample]) -> None:
    """JSON can write half of a surrogate pair, and vLLM takes a request's id from its client."""
    found = listed([front_request("a\ud800"), front_request("b")], samples)
    assert ids(found) == ["a?", "b"]
    assert msgspec.json.encode(found)
