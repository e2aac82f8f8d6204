"""The queue screen as text, and how its desk changes: without a terminal, without a host."""

from __future__ import annotations

import time
import unicodedata
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import queue_desk
from console.frame import Moment
from console.lines import Tone, cells, plain_text
from console.model import SnapshotArrived
from console.polled import Polled
from console.queue_desk import ENDED, FIRST, MOST, UNLISTED, Desk, View
from console.queue_page import queue_page
from console.queue_table import tail
from console.tui.offers import offered
from engine_host.protocol.methods import RequestList, RequestOrder, Role
from engine_host.protocol.snapshot import Snapshot
from tests.console import sample, sample_live, sample_switch
from tests.console.anything import anything
from tests.console.test_overview import state_of

BUDGET_S = 0.015
"""Of one refresh with a list of 256, the same as of the overview."""


def desk(found=None, **changes) -> Desk:
    """As it is once the list has been read; the cursor is on the oldest."""
    return replace(queue_desk.listed(Desk(), found or sample_live.requests()), **changes)


def page(desk, snapshot=None, *more, width=80, height=23, now=0.5, role=Role.ADMIN, failure=""):
    state = state_of(snapshot or sample_live.live(), *more, role=role)
    polled = Polled(desk.listed, 0.4, failure)
    return "\n".join(
        plain_text(row).rstrip() for row in queue_page(state, desk, polled, Moment(now, sample.AT), width, height)
    )


def ids(desk) -> list[int]:
    return [int(row.id[-4:], 16) for row in desk.rows]


GONE = queue_desk.listed(desk(), sample_live.requests(requests=sample_live.requests().requests[1:], total=48))

SCENES = {
    "unread": (Desk(), sample_live.live()),
    "busy": (desk(), sample_live.live()),
    "empty": (desk(sample_live.requests(0, 0)), sample.idle_cpu()),
    "filtered": (queue_desk.matching(desk(), "002"), sample_live.live()),
    "none matches": (queue_desk.matching(desk(), "nothing like it"), sample_live.live()),
    "gone": (GONE, sample_live.live()),
    "detail": (desk(view=View.DETAIL), sample_live.live()),
    "detail gone": (replace(GONE, view=View.DETAIL), sample_live.live()),
    "hung": (desk(sample_live.hung_requests()), sample_live.hung()),
    "stuck": (desk(sample_live.stuck_requests()), sample_live.stuck()),
    "no scheduler": (desk(sample_live.no_scheduler_requests()), sample.serving()),
    "dead": (desk(), sample.dead()),
    "switching": (desk(), sample_switch.switching()),
}


@pytest.mark.parametrize("scene", SCENES)
@given(width=st.integers(1, 240), height=st.integers(1, 80))
@settings(max_examples=50, deadline=None)
def test_a_page_has_exactly_the_size_of_its_terminal(scene, width, height):
    found, snapshot = SCENES[scene]
    state = state_of(snapshot, role=Role.VIEWER)
    rows = queue_page(state, found, Polled(found.listed, 0.4), Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height


@given(
    anything(Snapshot),
    anything(RequestList),
    st.sampled_from(View),
    st.sampled_from(RequestOrder),
    st.integers(20, 200),
    st.integers(2, 60),
)
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
def test_nothing_a_host_can_send_breaks_a_page_or_drives_the_terminal(snapshot, found, view, order, width, height):
    full = replace(queue_desk.listed(Desk(order=order), found), view=view)
    rows = queue_page(state_of(snapshot), full, Polled(found, 0.4), Moment(0.5, sample.AT), width, height)
    assert [cells(row) for row in rows] == [width] * height
    assert not any(unicodedata.category(c) == "Cc" for row in rows for c in plain_text(row))


def test_the_oldest_comes_first_with_all_its_columns():
    text = page(desk())
    assert "id          state       ↓age waited prompt    gen cached blocks prio pre   acc" in text
    assert "▸ …0000000000 running    3m20s   10 s    900  6,200      0     60    0   0  70 %" in text
    assert "waiting 12   deferred 0   preempted 0   running 37      1 to 17 of 49" in text


@pytest.mark.parametrize(("waited_s", "shown"), [(69.4e-6, "<1 ms"), (0.0, "0 ms"), (0.999, "999 ms"), (7e6, "81d00h")])
def test_a_span_that_does_not_fit_its_column_is_not_cut(waited_s, shown):
    row = sample_live.request(0, waited_s=waited_s)
    assert f" {shown:>6} " in page(desk(sample_live.requests(requests=[row], total=1)))


def test_a_wide_terminal_spells_the_columns_out():
    text = page(desk(), width=120)
    assert "prompt generated    cached   blocks  prio preempted accepted" in text
    assert "chatcmpl-000000000000" in text


def test_a_narrow_terminal_leaves_columns_out_and_keeps_state_age_and_blocks():
    text = page(desk(), width=50)
    assert "state" in text and "age" in text and "blocks" in text
    assert "prio" not in text


@pytest.mark.parametrize("order", list(RequestOrder))
def test_each_order_has_the_largest_first_and_is_marked(order):
    mixed = desk(sample_live.requests(5, 3))
    while mixed.order is not order:
        mixed = queue_desk.sorted_by_next(mixed)
    sizes = {
        RequestOrder.AGE: lambda row: row.age_s,
        RequestOrder.WAITED: lambda row: row.waited_s,
        RequestOrder.BLOCKS: lambda row: row.blocks,
        RequestOrder.PROMPT: lambda row: row.prompt_tokens,
        RequestOrder.GENERATED: lambda row: row.generated_tokens,
        RequestOrder.PREEMPTIONS: lambda row: row.preemptions,
    }
    found = [sizes[order](row) for row in mixed.rows]
    assert found == sorted(found, reverse=True)
    assert page(mixed).count("↓") == 1
    assert queue_desk.question(mixed).order is order


def test_what_is_not_known_comes_last():
    rows = [sample_live.request(0, blocks=None), sample_live.request(1, blocks=3)]
    mixed = desk(sample_live.requests(requests=rows, total=2), order=RequestOrder.BLOCKS)
    assert ids(queue_desk.listed(mixed, mixed.listed)) == [1, 0]


def test_the_cursor_stays_on_its_request_when_the_list_changes():
    third = queue_desk.moved(desk(), 2)
    older = sample_live.request(99, age_s=999.0)
    fewer = sample_live.requests(requests=[older, *sample_live.requests().requests[1:]], total=49)
    after = queue_desk.listed(third, fewer)
    assert after.chosen == third.chosen == sample_live.request_id(2)
    assert "▸ …6ef3620002" in page(after)


def test_a_request_that_ended_is_said_so_and_nothing_can_be_done_to_another_in_its_place():
    first = sample_live.request_id(0)
    assert GONE.chosen == first
    assert queue_desk.abortable(GONE) is None
    text = page(GONE)
    assert "▸ …0000000000 ended" in text
    assert "▲ ENDED: the host has it no more; as it was last" in text
    labels = [a.label for a in offered(queue_desk.place(GONE), state_of(sample_live.live()))]
    assert "abort" not in labels
    again = queue_desk.listed(GONE, GONE.listed)
    assert again.chosen == first
    assert again.gone.state == ENDED
    left = queue_desk.moved(GONE, 1)
    assert left.chosen == sample_live.request_id(1)
    assert left.gone is None
    assert first not in [row.id for row in left.rows]


def test_the_detail_of_a_request_that_ended_says_so_and_keeps_its_last_figures():
    text = page(replace(GONE, view=View.DETAIL))
    assert "ENDED" in text
    assert "6,200 tokens of 8,192 at most" in text


def test_one_that_ended_is_no_longer_counted_and_no_filter_finds_it_that_it_does_not_match():
    left = sample_live.requests().requests[1:4]
    gone = queue_desk.listed(desk(), sample_live.requests(requests=left, total=3))
    assert "3 requests" in page(gone)
    other = queue_desk.matching(gone, left[1].id)
    assert (other.gone, [row.id for row in other.rows], other.chosen) == (None, [left[1].id], left[1].id)
    same = queue_desk.matching(gone, gone.gone.id)
    assert same.gone is not None
    assert "0 requests" in page(same)


def test_another_host_has_none_of_the_requests_of_the_former_one():
    before = queue_desk.sorted_by_next(queue_desk.matching(GONE, "0"))
    after = queue_desk.forgotten(replace(before, view=View.DETAIL))
    assert (after.gone, after.rows, after.chosen, after.view) == (None, (), "", View.LIST)
    assert (after.order, after.match) == (before.order, "0")


def test_a_request_that_is_missing_from_a_list_cut_short_is_not_called_ended():
    many = sample_live.requests(requests=sample_live.requests().requests, total=4_000)
    cut = queue_desk.listed(Desk(), many)
    after = queue_desk.listed(cut, msgspec.structs.replace(many, requests=many.requests[1:]))
    assert after.gone.state == UNLISTED
    assert "NOT LISTED any more: it has ended, or others come before it" in page(after, width=120)


def test_one_that_comes_back_into_the_list_is_there_again():
    again = queue_desk.listed(GONE, sample_live.requests())
    assert again.gone is None
    assert queue_desk.abortable(again).id == sample_live.request_id(0)


def test_a_list_cut_short_says_so_and_more_is_asked_for_at_its_end():
    many = sample_live.requests(requests=sample_live.requests().requests, total=4_000)
    cut = queue_desk.listed(Desk(), many)
    assert "the first 49 of 4,000 by age; / and f find others" in page(cut)
    assert queue_desk.question(cut).limit == FIRST
    at_the_end = queue_desk.moved(cut, 1_000_000)
    assert queue_desk.question(at_the_end).limit == MOST
    assert queue_desk.question(queue_desk.moved(at_the_end, -1)).limit == MOST
    assert queue_desk.question(queue_desk.moved(at_the_end, -1_000_000)).limit == FIRST
    assert queue_desk.question(queue_desk.moved(desk(), 1_000_000)).limit == FIRST


def test_only_a_list_cut_short_is_filtered_by_the_host():
    """Else a request that leaves the filter could not be told from one that has ended."""
    whole = queue_desk.matching(queue_desk.filtered_by_next_state(desk()), "00")
    assert (queue_desk.question(whole).state, queue_desk.question(whole).match) == (None, "")
    many = sample_live.requests(requests=sample_live.requests().requests, total=4_000)
    cut = queue_desk.matching(queue_desk.filtered_by_next_state(queue_desk.listed(Desk(), many)), "00")
    assert (queue_desk.question(cut).state, queue_desk.question(cut).match) == ("running", "00")


def test_a_filter_by_text_shows_what_it_leaves_of_how_many():
    found = queue_desk.matching(desk(), "3c6ef3620002")
    assert ids(found) == [2]
    assert 'only "3c6ef3620002" in the id  of 49' in page(found)
    none = queue_desk.matching(desk(), "zz")
    assert "none matches" in page(none)
    assert queue_desk.back(none).rows == desk().rows


def test_a_filter_by_state_goes_through_the_states_and_the_cursor_to_what_is_shown():
    waiting = queue_desk.filtered_by_next_state(queue_desk.filtered_by_next_state(desk()))
    assert {row.state for row in waiting.rows} == {"waiting"}
    assert waiting.chosen == waiting.rows[0].id
    assert "only state waiting  of 49" in page(waiting)
    running = sample_live.request(37)
    begun = sample_live.requests(requests=[running, *sample_live.requests().requests[:37]], total=38)
    after = queue_desk.listed(waiting, begun)
    assert after.chosen == running.id
    assert after.gone is None
    assert [row.state for row in after.rows] == ["running"]


def test_a_hung_engine_and_its_requests_are_named_before_the_list():
    rows = page(*SCENES["hung"]).splitlines()
    assert "▲ HUNG: requests run, no token for 42 s" in rows[2]
    assert "Requests cannot finish by themselves. A ends one request, R restarts the" in rows[3]
    assert any("▲ chatcmpl-000000000000  hung: no token for 42 s (and 36 more, marked ▲)" in row for row in rows)
    assert any(row.startswith(" ▲…3779b10001 running") for row in rows)


def test_a_stuck_queue_is_not_idle_and_says_which_request_is_in_the_way():
    text = " ".join(page(*SCENES["stuck"]).split())
    assert "▲ STUCK: requests wait, none runs for 95 s" in text
    assert "Not idle: nothing will start them by itself." in text
    assert "its prompt has 3,104 tokens, the KV cache holds 2,144; it can never be scheduled" in text


def test_until_the_list_is_there_the_host_says_which_request_is_stuck():
    base = sample_live.stuck()
    blamed = "the request cmpl-1 can never be scheduled: its prompt has 3,104 tokens, the KV cache holds 2,144"
    queue = msgspec.structs.replace(base.queue, stalled_text=blamed)
    assert blamed in " ".join(page(Desk(), sample_live.live(queue=queue)).split())


def test_who_may_not_act_is_told_what_it_needs():
    text = " ".join(page(*SCENES["hung"], role=Role.OPERATOR).split())
    assert "To act needs the admin role." in text
    assert "A ends one" not in text
    labels = [a.label for a in offered("queue.one", state_of(sample_live.live(), role=Role.OPERATOR))]
    assert "abort" not in labels
    assert "detail" in labels


def test_the_detail_tells_all_of_one_request():
    text = page(queue_desk.looking_into(queue_desk.moved(desk(), 5)))
    for what in (
        "chatcmpl-171560750005",
        "33 s, of which it waited 1.67 s",
        "1,085 tokens, 1,024 of them found in the prefix cache (94.4 %)",
        "1,033 tokens of 8,192 at most   32.6 /s while it ran",
        "125, 0.21 % of all 60,412",
        "preempted  1 time\n",
        "1,333 tokens drafted, 933 accepted: acceptance 70.0 %",
    ):
        assert what in text


def test_without_the_scheduler_the_list_stays_with_dashes_and_the_reason():
    text = page(*SCENES["no scheduler"])
    assert "– is what only the scheduler knows: vLLM 0.40.1 is newer" in text
    assert "running    3m20s   10 s    900  6,200      –      –    –   –     –" in text


def test_an_empty_queue_says_that_it_is_empty():
    assert "none: nothing runs, nothing waits" in page(*SCENES["empty"])


def test_a_list_that_got_no_newer_answer_is_marked_with_its_age_and_fades():
    state = state_of(sample_live.live(), SnapshotArrived(sample_live.live(), 9.0))
    rows = queue_page(state, desk(), Polled(desk().listed, 0.4), Moment(9.4, sample.AT), 80, 23)
    assert "▲ STALE: the list is 9 s old" in "\n".join(plain_text(row) for row in rows)
    row = next(row for row in rows if "3779b10001" in plain_text(row))
    assert {tone for text, tone in row if text.strip()} == {Tone.FAINT}


def test_a_step_within_a_page_repaints_two_rows_of_the_list():
    state = state_of(sample_live.live())
    polled = Polled(desk().listed, 0.4)
    before = queue_page(state, desk(), polled, Moment(0.5, sample.AT), 80, 23)
    after = queue_page(state, queue_desk.moved(desk(), 1), polled, Moment(0.5, sample.AT), 80, 23)
    changed = [y for y, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert changed == [4, 5, 21]


@pytest.mark.parametrize(("text", "shown"), [("abc", "abc  "), ("abcdef", "…cdef"), ("模型模型", "…模型")])
def test_an_id_that_is_too_long_keeps_its_end(text, shown):
    assert tail(text, 5) == shown


@pytest.mark.parametrize("number", [256, 2_000])
def test_a_refresh_of_many_requests_is_within_its_budget(number):
    state = state_of(sample_live.live())
    answers = [sample_live.requests(number - 40, 40) for _ in range(2)]
    spent = []
    for round_ in range(5):
        before = time.process_time()
        found = queue_desk.listed(desk(), answers[round_ % 2])
        queue_page(state, found, Polled(found.listed, 0.4), Moment(0.5, sample.AT), 120, 39)
        spent.append(time.process_time() - before)
    assert min(spent) < BUDGET_S


STEPS = st.one_of(
    st.tuples(st.just("list"), st.sets(st.integers(0, 6)), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(-3, 3)),
    st.tuples(st.just("match"), st.sampled_from(["", "0", "3", "zz"])),
    st.sampled_from([("state",), ("sort",), ("back",), ("into",)]),
)


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=200, deadline=None)
def test_whatever_happens_the_cursor_never_means_a_request_that_nobody_chose(steps):
    """Only moving the cursor, or filtering away what it was on, leads to another one: no new list does."""
    desk = Desk()
    for step in steps:
        before = desk.chosen
        match step:
            case ("list", numbers, unlisted):
                rows = [sample_live.request(n, state="waiting" if n % 2 else "running") for n in sorted(numbers)]
                desk = queue_desk.listed(desk, sample_live.requests(requests=rows, total=len(rows) + unlisted))
                assert desk.chosen == before or before == ""
            case ("move", by):
                desk = queue_desk.moved(desk, by)
            case ("match", text):
                desk = queue_desk.matching(desk, text)
            case ("state",):
                desk = queue_desk.filtered_by_next_state(desk)
            case ("sort",):
                desk = queue_desk.sorted_by_next(desk)
                assert desk.chosen == before
            case ("back",):
                desk = queue_desk.back(desk)
            case ("into",):
                desk = queue_desk.looking_into(desk)
        target = queue_desk.abortable(desk)
        assert target is None or target.id == desk.chosen
        assert target is None or target in desk.listed.requests
        assert desk.gone is None or desk.gone.id == desk.chosen
        assert len({row.id for row in desk.rows}) == len(desk.rows)
        page(desk)
