"""What each message does to the state."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from console.model import (
    EVENTS_KEPT,
    SERIES,
    SPAN_S,
    STALE_AFTER_S,
    Connected,
    Connecting,
    Disconnected,
    EventArrived,
    Freeze,
    HistoryArrived,
    Link,
    SnapshotArrived,
    State,
    Thaw,
    data_age_s,
    is_stale,
    may,
    reduce,
)
from engine_host.protocol.events import Event
from engine_host.protocol.methods import History, Risk, Role
from tests.console import sample


def after(*messages, state=None):
    state = state or State(target="/run/host.sock")
    for message in messages:
        state = reduce(state, message)
    return state


UP = (Connected(sample.hello(), 10.0), SnapshotArrived(sample.serving(), 10.0))


def event(seq: int) -> Event:
    return Event(seq=seq, at=sample.AT, kind="x", text=f"event {seq}")


def test_a_lost_connection_keeps_the_last_values_and_marks_them_stale():
    state = after(*UP, Disconnected("the host closed it", 12.0, 12.5))
    assert state.link is Link.DOWN
    assert state.snapshot == sample.serving()
    assert is_stale(state, 12.0)


def test_the_age_of_an_outage_counts_from_its_beginning_through_all_retries():
    state = after(
        *UP,
        Disconnected("closed", 12.0, 12.5),
        Connecting(12.5),
        Disconnected("refused", 12.5, 13.5),
        Connecting(13.5),
    )
    assert state.link is Link.DOWN
    assert state.link_since == 12.0
    assert state.link_reason == "refused"
    assert state.retry_at is None


def test_a_reconnect_to_the_same_host_process_goes_on_where_it_was():
    state = after(*UP, EventArrived(event(1)), Disconnected("x", 12.0, 12.5), Connected(sample.hello(), 13.0))
    assert state.link is Link.UP
    assert state.snapshot is not None
    assert len(state.events) == 1


def test_another_boot_id_starts_over():
    state = after(
        *UP,
        EventArrived(event(7)),
        Disconnected("x", 12.0, 12.5),
        Connected(sample.hello(boot_id="boot-b"), 13.0),
    )
    assert state.snapshot is None
    assert state.events == ()
    assert state.series == {}


def test_a_snapshot_of_another_boot_starts_over_too():
    other = sample.serving()
    other = msgspec.structs.replace(other, host=msgspec.structs.replace(other.host, boot_id="boot-b"))
    state = after(*UP, EventArrived(event(7)), SnapshotArrived(other, 11.0))
    assert state.events == ()
    assert state.snapshot == other


def test_the_age_of_data_counts_what_the_host_said_and_the_time_since():
    state = after(UP[0], SnapshotArrived(sample.serving(age_s=0.5), 10.0))
    assert data_age_s(state, 12.0) == 2.5
    assert data_age_s(State(target="x"), 12.0) is None


def test_old_data_is_stale_though_the_connection_is_up():
    state = after(UP[0], SnapshotArrived(sample.serving(age_s=0.0), 10.0))
    assert not is_stale(state, 10.0 + STALE_AFTER_S)
    assert is_stale(state, 10.1 + STALE_AFTER_S)
    assert is_stale(after(UP[0], SnapshotArrived(sample.serving(age_s=60.0), 10.0)), 10.0)


def test_a_replayed_event_is_not_shown_twice():
    state = after(*UP, EventArrived(event(1)), EventArrived(event(2)), EventArrived(event(1)), EventArrived(event(2)))
    assert [e.seq for e in state.events] == [1, 2]


def test_a_gap_in_the_events_is_counted():
    assert after(*UP, EventArrived(event(1)), EventArrived(event(5))).events_missed == 3


@given(st.lists(st.integers(1, 50), max_size=60))
def test_events_stay_in_order_and_unique_whatever_arrives(seqs):
    state = after(*UP, *(EventArrived(event(seq)) for seq in seqs))
    shown = [e.seq for e in state.events]
    assert shown == sorted(set(shown))


def test_the_number_of_events_held_is_bounded():
    state = after(*UP, *(EventArrived(event(seq)) for seq in range(1, EVENTS_KEPT + 50)))
    assert len(state.events) == EVENTS_KEPT
    assert state.events[-1].seq == EVENTS_KEPT + 49


def test_live_values_go_on_where_the_history_ends():
    history = History(end_at=sample.AT - 1, step_s=1.0, series={"kv.usage": [0.1, 0.2]})
    state = after(UP[0], HistoryArrived(history), SnapshotArrived(sample.serving(), 10.0))
    assert state.series["kv.usage"].values == (0.1, 0.2, 0.6825)


def test_a_gap_in_the_stream_is_unknown_time_and_no_flat_line():
    state = after(*UP, SnapshotArrived(sample.serving(at=sample.AT + 3), 13.0))
    assert state.series["kv.usage"].values == (0.6825, None, None, 0.6825)


def test_a_snapshot_within_the_same_step_adds_nothing():
    state = after(*UP, SnapshotArrived(sample.serving(at=sample.AT + 0.2), 10.2))
    assert len(state.series["kv.usage"].values) == 1


@given(st.lists(st.floats(0, 2_000), max_size=40))
def test_series_stay_within_their_span_whatever_the_clock_of_the_host_does(steps):
    state = after(*UP, *(SnapshotArrived(sample.serving(at=sample.AT + s), 11.0) for s in steps))
    assert set(state.series) == set(SERIES)
    assert all(len(s.values) <= SPAN_S / s.step_s for s in state.series.values())


def test_unknown_values_stay_unknown_in_a_series():
    state = after(UP[0], SnapshotArrived(sample.idle_cpu(), 10.0))
    assert state.series["speculation.acceptance_rate"].values == (None,)
    assert state.series["kv.usage"].values == (0.0,)


def test_freezing_holds_the_page_while_the_state_goes_on():
    state = after(*UP, Freeze(11.0, 99.0), SnapshotArrived(sample.serving(seq=100), 12.0))
    assert state.frozen is not None
    assert state.frozen.state.snapshot.seq == 99
    assert state.snapshot.seq == 100
    assert after(Thaw(), state=state).frozen is None


def test_freezing_twice_holds_the_first_page():
    state = after(*UP, Freeze(11.0, 99.0), Freeze(12.0, 100.0))
    assert state.frozen.wall == 99.0
    assert state.frozen.state.frozen is None


def test_roles_cover_what_the_method_table_says():
    def role(name):
        return after(Connected(sample.hello(name), 1.0))

    assert may(role(Role.VIEWER), Risk.READ)
    assert not may(role(Role.VIEWER), Risk.DANGEROUS)
    assert not may(role(Role.OPERATOR), Risk.DANGEROUS)
    assert may(role(Role.ADMIN), Risk.DANGEROUS)
    assert not may(State(target="x"), Risk.READ)
