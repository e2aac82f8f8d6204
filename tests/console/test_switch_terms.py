"""What can be asked for in a switch besides the profile."""

from __future__ import annotations

import pytest

from console.switch_terms import after, drain_seconds, tier_text, tiers
from engine_host.protocol.profiles import Tier


@pytest.mark.parametrize(
    ("cheapest", "possible"),
    [
        (Tier.RELOAD, [None]),
        (Tier.OVERLAP, [None, Tier.RELOAD]),
        (Tier.LIVE, [None, Tier.OVERLAP, Tier.RELOAD]),
        (Tier.NONE, [None, Tier.LIVE, Tier.OVERLAP, Tier.RELOAD]),
    ],
)
def test_only_dearer_tiers_than_the_hosts_own_choice_can_be_asked_for(cheapest, possible):
    """It refuses cheaper ones, and standby does not exist yet (`engine_host.engine.switch_plan`)."""
    assert tiers(cheapest) == possible
    chosen = None
    for expected in [*possible[1:], None]:
        chosen = after(chosen, cheapest)
        assert chosen is expected


def test_the_tier_says_whose_choice_it_is():
    assert tier_text(None, Tier.OVERLAP) == "overlap, as the host chooses"
    assert tier_text(None, Tier.RELOAD) == "reload, as the host chooses; no other works"
    assert tier_text(Tier.RELOAD, Tier.OVERLAP) == "reload, forced"


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("  ", None), ("0", 0.0), ("1.5", 1.5), (" 86400 ", 86_400.0)]
)
def test_a_drain_time_is_seconds_and_empty_is_the_profiles_own(text, seconds):
    assert drain_seconds(text) == seconds


@pytest.mark.parametrize("text", ["-1", "86401", "nan", "inf", "1e9", "5 s", "x", "true"])
def test_what_is_no_drain_time_is_refused_with_the_bounds(text):
    with pytest.raises(ValueError, match="not a number from 0 to 86,400"):
        drain_seconds(text)
