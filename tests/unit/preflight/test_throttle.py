"""`[throttle]` against the engine and its clients."""

from __future__ import annotations

from typing import Any

from engine_host.preflight.setting import Setting
from engine_host.preflight.throttle import check_throttle
from engine_host.profiles.throttle_table import Auto, Throttle
from engine_host.protocol.events import Severity


def found(table: Throttle, **engine: Any) -> list[tuple[str, Severity]]:
    return [(one.id, one.severity) for one in check_throttle(table, Setting(engine={"model": "m", **engine}))]


def test_the_defaults_have_nothing_to_tell() -> None:
    assert found(Throttle()) == []


def test_a_wait_that_no_client_sits_through_is_told() -> None:
    assert found(Throttle(hold_deadline_s=600.0)) == []
    assert found(Throttle(hold_deadline_s=900.0)) == [("throttle.hold_deadline", Severity.INFO)]


def test_speculation_that_is_to_be_turned_down_has_to_be_there() -> None:
    table = Throttle(auto=Auto(mode="observe", dials=["speculative_tokens"]))
    assert found(table) == [("throttle.no_speculation", Severity.WARNING)]
    assert found(table, speculative_config={"method": "ngram", "num_speculative_tokens": 5}) == []
    assert found(Throttle(auto=Auto(dials=["speculative_tokens"]))) == []  # it is off
