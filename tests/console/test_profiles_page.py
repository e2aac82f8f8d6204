"""The profiles screen as text, and how its desk changes: without a terminal, without a host."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import profiles_desk
from console.consequence import switch_consequence
from console.frame import Moment
from console.lines import cells, plain_text
from console.model import Connected, Disconnected
from console.profiles_desk import Desk, Told, View, Wanted
from console.profiles_page import overhang, profiles_page
from console.tui.keys import ACTIONS
from console.tui.offers import offered
from engine_host.protocol.methods import Role
from engine_host.protocol.profiles import ProfileDiff, ProfileList, Tier
from engine_host.protocol.snapshot import Queue, Snapshot
from engine_host.protocol.switching import Outcome, SwitchForecast, SwitchResult
from tests.console import sample, sample_switch
from tests.console.anything import anything
from tests.console.test_overview import state_of

SERVING = state_of(sample.serving())


def desk(**changes) -> Desk:
    """As it is once the list has been read, the cursor on the last profile."""
    listed = profiles_desk.listed(Desk(), sample_switch.profiles(), "latency")
    return replace(listed, chosen="throughput", state_version=7, **changes)


def told(forecast) -> Told:
    return Told(forecast, 0.5, 7)


def page(desk, state=SERVING, width=80, height=23):
    return "\n".join(
        plain_text(row).rstrip() for row in profiles_page(state, desk, Moment(0.5, sample.AT), width, height)
    )


DESKS = {
    "unread": Desk(),
    "list": desk(),
    "many": profiles_desk.listed(Desk(), sample_switch.many_profiles(), "latency"),
    "broken": profiles_desk.listed(Desk(), sample_switch.broken_profiles(), "latency"),
    "none": profiles_desk.listed(Desk(), ProfileList(directory="/x", profiles=[]), "latency"),
    "diff": desk(view=View.DIFF, diff=sample_switch.diff()),
    "forecast": desk(view=View.FORECAST, told=told(sample_switch.forecast())),
    "refused": desk(view=View.FORECAST, told=told(sample_switch.refused())),
    "result": desk(view=View.SWITCH, last=sample_switch.rolled_back()),
    "failure": desk(view=View.SWITCH, failure="it was refused " * 20),
}


@pytest.mark.parametrize("scene", DESKS)
@given(width=st.integers(1, 240), height=st.integers(1, 80))
@settings(max_examples=60)
def test_a_page_has_exactly_the_size_of_its_terminal(scene, width, height):
    for state in (SERVING, state_of(sample_switch.switching(), role=Role.VIEWER)):
        rows = profiles_page(state, DESKS[scene], Moment(0.5, sample.AT), width, height)
        assert [cells(row) for row in rows] == [width] * height


@given(
    anything(Snapshot),
    anything(ProfileList),
    anything(ProfileDiff),
    anything(SwitchForecast),
    anything(SwitchResult),
    st.sampled_from(View),
)
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
def test_nothing_a_host_can_send_breaks_a_page_or_drives_the_terminal(snapshot, listed, diff, forecast, last, view):
    full = replace(
        profiles_desk.listed(Desk(), listed, None), view=view, diff=diff, told=told(forecast), last=last, failure="x"
    )
    rows = profiles_page(state_of(snapshot), full, Moment(0.5, sample.AT), 80, 23)
    assert [cells(row) for row in rows] == [80] * 23
    assert not any(unicodedata.category(c) == "Cc" for row in rows for c in plain_text(row))


def test_the_list_names_what_runs_what_is_refused_and_why():
    text = page(desk())
    assert "● latency       4f1c2a90  RUNNING" in text
    assert "× old-cluster   –         REFUSED" in text
    assert "▸   throughput" in text
    assert "/etc/vllm-console/profiles/throughput.toml" in text
    assert "the nearest is engine.speculative_config.prompt_lookup_max" in " ".join(
        page(replace(desk(), chosen="old-cluster")).split()
    )


def test_a_running_profile_whose_file_has_changed_says_so():
    changed = [replace_summary(p) for p in sample_switch.profiles().profiles]
    found = profiles_desk.listed(Desk(), ProfileList(directory="/x", profiles=changed), "latency")
    assert "its file has changed" in page(found)


def replace_summary(profile):
    return sample_switch.summary(profile.name, is_running=profile.is_running, has_changed=profile.is_running)


def test_what_runs_is_told_by_the_newest_snapshot_not_by_the_list():
    base = sample.serving()
    moved = state_of(sample.serving(profile=type(base.profile)(name="demo", digest="x", path="/x")))
    assert "● demo" in page(desk(), moved)
    assert "● latency" not in page(desk(), moved)


def test_forty_profiles_are_paged_and_the_chosen_one_is_always_in_sight():
    many = DESKS["many"]
    for _ in range(40):
        text = page(many)
        assert f"▸ {'● ' if many.chosen == 'latency' else '  '}{many.chosen[:20]}" in text
        assert " of 40" in text
        many = profiles_desk.moved(many, 1, 0)
    assert many.chosen == "tenant-37"
    assert profiles_desk.moved(many, -100, 0).chosen == "latency"


def test_forty_profiles_of_which_all_but_one_are_broken_each_say_why():
    broken = profiles_desk.listed(Desk(), sample_switch.broken_profiles(), "latency")
    for at in range(1, 40):
        broken = profiles_desk.moved(broken, 1, 0)
        text = page(broken)
        assert f"▸ × tenant-{at - 1:02}" in text
        assert f"tenant-{at - 1:02} base.toml: engine.max_num_seq is no key of vLLM 0.32; the nearest" in text
        assert "engine.max_num_seqs." in text  # the remedy is not cut off
        refused = page(profiles_desk.comparing(broken))
        assert "× REFUSED" in refused
        assert " ".join(refused.split()).count("the nearest is engine.max_num_seqs.") == 4


def test_a_step_within_a_page_repaints_two_rows_of_the_list():
    before = profiles_page(SERVING, DESKS["many"], Moment(0.5, sample.AT), 80, 23)
    after = profiles_page(SERVING, profiles_desk.moved(DESKS["many"], 1, 0), Moment(0.5, sample.AT), 80, 23)
    changed = [y for y, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert changed[:2] == [5, 6]
    assert all(y >= 19 for y in changed[2:])  # what is told about the chosen one


def test_a_host_without_profiles_says_where_to_put_them():
    text = page(DESKS["none"])
    assert "none in /x" in text
    assert "--profiles-dir" in text
    assert "compare" not in [a.label for a in offered(profiles_desk.place(DESKS["none"]), SERVING)]


def test_the_diff_shows_each_key_with_its_tier_and_both_values():
    text = page(DESKS["diff"])
    for what in (
        "throughput › compared with latency, which runs", "overlap  engine.max_num_seqs            64 → 256",
        "reload   engine.gpu_memory_utilization  0.85 → 0.94", "live     dials.max_active_seqs          not set → 192",
        '{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4}', "→ not set",
        "live     applied to the running engine; nobody notices",
    ):  # fmt: skip
        assert what in text


def test_a_diff_without_changes_says_so_and_offers_no_dry_run():
    same = desk(view=View.DIFF, diff=ProfileDiff(before="latency", after="x", tier=Tier.NONE, changes=[]))
    assert "Nothing differs" in page(same)
    assert "dry run" not in [a.label for a in offered(profiles_desk.place(same), SERVING)]


def test_a_forecast_longer_than_the_screen_scrolls_to_its_end_and_not_beyond():
    long = DESKS["forecast"]
    assert "more rows" in page(long)
    assert "dials.max_active_seqs" not in page(long)
    end = profiles_desk.moved(long, 1000, overhang(SERVING, long, 0.5, 80, 23))
    assert "dials.max_active_seqs" in page(end)
    assert "▲ It can be done, with 1 warning" in page(profiles_desk.moved(end, -1000, 0))


def test_while_a_dry_run_is_waited_for_no_other_is_offered():
    waiting = profiles_desk.forecasting(desk(), 0.5)
    assert "dry run again" not in [a.label for a in offered(profiles_desk.place(waiting), SERVING)]
    failed = replace(waiting, failure="no answer")
    assert "dry run again" in [a.label for a in offered(profiles_desk.place(failed), SERVING)]


def test_only_a_forecast_that_can_be_done_offers_the_switch():
    def labels(found, state=SERVING):
        return [a.label for a in offered(profiles_desk.place(found), state)]

    assert "switch" in labels(DESKS["forecast"])
    assert "switch" not in labels(DESKS["refused"])
    assert "switch" not in labels(desk(view=View.FORECAST, told=told(sample_switch.forecast(tier=Tier.NONE))))
    assert "switch" not in labels(DESKS["forecast"], state_of(sample.serving(), role=Role.VIEWER))
    assert "switch" not in labels(DESKS["forecast"], state_of(sample.serving(), Disconnected("gone", 1.0, 2.0)))


def test_what_only_a_new_start_applies_is_not_called_no_difference():
    none = sample_switch.forecast(tier=Tier.NONE)
    assert "takes effect when engine-host starts anew" in page(desk(view=View.FORECAST, told=told(none)))
    same = sample_switch.forecast(tier=Tier.NONE, changes=[])
    assert "nothing differs from what runs" in page(desk(view=View.FORECAST, told=told(same)))


def test_a_dry_run_of_another_state_of_the_host_offers_only_another_dry_run():
    """The host would refuse the switch, and what it told may hold no more."""
    drained, _ = profiles_desk.followed(DESKS["forecast"], state_of(sample.serving(state_version=9)))
    text = page(drained)
    assert "▲ The host's state has changed since this dry run; make it anew: d" in text
    assert "It can be done" in text
    labels = [a.label for a in offered(profiles_desk.place(drained), SERVING)]
    assert "switch" not in labels
    assert "dry run again" in labels


def test_the_comparison_of_another_profile_is_not_come_back_to():
    compared = desk(view=View.DIFF, diff=sample_switch.diff())
    elsewhere = replace(profiles_desk.back(compared), chosen="demo")
    assert profiles_desk.back(profiles_desk.forecasting(elsewhere, 1.0)).view is View.LIST
    assert profiles_desk.back(profiles_desk.forecasting(compared, 1.0)).view is View.DIFF


def test_a_comparison_with_what_ran_before_is_read_anew():
    compared = desk(view=View.DIFF, diff=sample_switch.diff(), runs=("latency", "4f1c2a90"))
    base = sample.serving()
    now = state_of(sample.serving(profile=type(base.profile)(name="demo", digest="x", path="/x")))
    after, wanted = profiles_desk.followed(compared, now)
    assert after.diff is None
    assert Wanted.DIFF in wanted
    assert Wanted.DIFF not in profiles_desk.followed(after, now)[1]
    assert profiles_desk.followed(profiles_desk.back(compared), now)[0].diff is None


def test_a_dry_run_that_takes_long_says_for_how_long():
    asked = profiles_desk.forecasting(desk(), 0.5 - 12.0)
    text = page(asked)
    assert "Asked 12 s ago" in text
    assert "touches nothing" in text
    assert "does it fit into the memory …" in " ".join(text.split())


def test_until_the_check_is_over_no_tier_is_claimed():
    checking = sample_switch.progress(1.0, phases=sample_switch.progress().phases[:1])
    text = page(desk(view=View.SWITCH), state_of(sample_switch.switching(checking)))
    assert "latency → throughput   by maria" in text
    refused = sample_switch.result(phases=sample_switch.result().phases[:1], outcome=Outcome.REFUSED)
    assert "after 1m27s   by maria" in page(desk(view=View.SWITCH, last=refused))
    assert "after 2m11s   reload   by maria" in page(DESKS["result"])


@pytest.mark.parametrize("scene", ["diff", "forecast", "list"])
def test_wherever_one_is_a_switch_under_way_is_said(scene):
    assert "maria is switching to throughput; w shows it" in page(DESKS[scene], state_of(sample_switch.switching()))
    found = [a.name for a in ACTIONS if "w" in a.key.split(",") and profiles_desk.place(DESKS[scene]) in a.screens]
    assert found == ["watch"]


def test_a_viewer_is_told_what_is_read_only_here():
    viewer = state_of(sample.serving(), role=Role.VIEWER)
    assert "Read-only: look, compare and dry-run; to switch needs the admin role." in page(desk(), viewer)
    assert "Read-only" in page(DESKS["forecast"], viewer)
    assert "Read-only" not in page(desk())


def test_progress_shows_every_phase_with_elapsed_and_expected_time():
    text = page(desk(view=View.SWITCH, told=told(sample_switch.forecast())), state_of(sample_switch.switching()))
    for what in (
        "latency → throughput   reload   by maria", "42 s of about 1m30s", "✓ preflight", "1.84 s of 1.90 s", "▸ start",
        "37 s of 1m24s    loading weights", "probe", "release", "14 requests held at the gate until it has ended",
        "cancelled: C",
    ):  # fmt: skip
        assert what in text


def test_progress_shows_what_an_engine_does_that_is_prepared_for_a_reload():
    text = page(desk(view=View.SWITCH), state_of(sample_switch.switching(sample_switch.preparing())))
    assert "▸ prepare" in text and "6.16 s of 12 s" in text and "loading weights" in text


def test_what_can_no_longer_be_cancelled_is_not_offered():
    late = state_of(sample_switch.switching(sample_switch.progress(can_cancel=False)))
    found = desk(view=View.SWITCH)
    assert "no longer be cancelled" in page(found, late)
    assert "cancel the switch" not in [a.label for a in offered(profiles_desk.place(found), late)]


def test_a_rolled_back_switch_shows_the_engines_own_lines():
    text = page(DESKS["result"])
    assert "▲ ROLLED BACK" in text
    assert "larger than the available KV cache memory (6.21 GiB)." in text
    assert "× start" in page(DESKS["result"], height=40)


def test_requests_that_a_switch_ended_are_told_first():
    ended = desk(view=View.SWITCH, last=sample_switch.result(cut_off=2))
    assert "streams paused for 1m25s; 2 cut off by the drain time, 45 carried over" in " ".join(page(ended).split())
    assert "cut off" not in page(desk(view=View.SWITCH, last=sample_switch.result()))


def test_a_switch_that_begins_takes_the_screen_and_its_end_is_asked_for():
    now, wanted = profiles_desk.followed(desk(), SERVING)
    assert (now.view, wanted) == (View.LIST, [Wanted.LIST, Wanted.STATUS])
    now, wanted = profiles_desk.followed(now, state_of(sample_switch.switching()))
    assert (now.view, wanted) == (View.SWITCH, [])
    now, wanted = profiles_desk.followed(profiles_desk.back(now), state_of(sample_switch.switching()))
    assert (now.view, wanted) == (View.LIST, [])
    assert "maria is switching to throughput; w shows it" in page(now, state_of(sample_switch.switching()))
    now, wanted = profiles_desk.followed(now, SERVING)
    assert wanted == [Wanted.STATUS, Wanted.LIST]


def test_a_new_connection_and_a_new_host_process_are_read_anew():
    now, _ = profiles_desk.followed(desk(), SERVING)
    assert profiles_desk.followed(now, SERVING)[1] == []
    assert profiles_desk.followed(now, state_of(sample.serving(), Disconnected("gone", 1.0, 2.0)))[1] == []
    again = state_of(sample.serving(), Disconnected("gone", 1.0, 2.0), Connected(sample.hello(), 3.0))
    assert profiles_desk.followed(now, again)[1] == [Wanted.LIST, Wanted.STATUS]


def test_what_the_host_tells_of_its_last_switch_never_replaces_a_newer_answer():
    older, newer = sample_switch.result(at=1.0), sample_switch.result(at=2.0, outcome=Outcome.CANCELLED)
    assert profiles_desk.told_last(desk(), older).last == older
    assert profiles_desk.told_last(desk(last=newer), older).last == newer
    assert profiles_desk.told_last(desk(asked="throughput"), older).last is None


def test_the_cursor_stays_on_its_profile_when_the_list_is_read_again():
    fewer = ProfileList(directory="/x", profiles=sample_switch.profiles().profiles[:3])
    assert profiles_desk.listed(desk(), sample_switch.profiles(), "latency").chosen == "throughput"
    assert profiles_desk.listed(desk(), fewer, "latency").chosen == "latency"


@pytest.mark.parametrize(
    "what",
    ["latency → throughput by reload: streams pause (about 1m28s).", "In flight now: 5 running, 0 waiting, 3 held.",
     "By the dry run of 8 s ago, 45 are carried over, 3 drained (they get latency's drain time",
     "1 begun again", "goes back to latency by itself"],
)  # fmt: skip
def test_the_consequence_has_the_counts_of_now_and_the_shares_of_the_dry_run(what):
    now = sample.serving(queue=Queue(running=5, waiting=0, held=3))
    assert what in switch_consequence(sample_switch.forecast(), now, age_s=8.0)


def test_the_consequence_of_a_live_switch_is_that_nobody_notices():
    said = switch_consequence(sample_switch.forecast(tier=Tier.LIVE), sample.serving())
    assert "None of them notices" in said


def test_the_consequence_says_when_somebody_else_was_first():
    said = switch_consequence(sample_switch.forecast(), sample_switch.switching())
    assert said.startswith("Not now: maria is switching latency → throughput since 07:32:38 (42 s ago)")


@given(anything(SwitchForecast), anything(Snapshot))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_no_consequence_drives_the_terminal(forecast, snapshot):
    said = switch_consequence(forecast, snapshot)
    assert not any(unicodedata.category(c) == "Cc" and c != "\n" for c in said)
