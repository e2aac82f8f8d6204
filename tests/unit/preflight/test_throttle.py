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


def test_windows_have_to_leave_room_for_text_that_is_new() -> None:
    def told(overlap: int, longest: int | None = None, **engine: Any) -> list[Any]:
        table = Throttle(overlong="segment", segment_overlap_tokens=overlap)
        return check_throttle(table, Setting(engine={"model": "m", **engine}), longest)

    for context, most, too_large in ((2048, 896, 2047), (64, 28, 64)):
        assert told(most, max_model_len=context) == []
        [barely] = told(most + 1, max_model_len=context)
        assert barely.severity is Severity.WARNING and "leaves max_tokens out" in barely.text
        [never] = told(too_large, max_model_len=context)
        assert (never.id, never.severity) == ("throttle.overlap", Severity.ERROR)
        assert f"segment_overlap_tokens = {too_large}" in never.text and f"max_model_len = {context}" in never.text
        assert f"give at most {most}," in never.remedy
    [short] = told(64, 100, max_model_len=2048)  # a forecast of the cache refuses nothing
    assert short.severity is Severity.WARNING and "for 100 tokens" in short.text and "at most 44," in short.remedy
    assert told(2047) == []  # the context is not known
    assert found(Throttle(segment_overlap_tokens=2047), max_model_len=2048) == []  # nothing is segmented


def test_speculation_that_is_to_be_turned_down_has_to_be_there() -> None:
    table = Throttle(auto=Auto(mode="observe", dials=["speculative_tokens"]))
    assert found(table) == [("throttle.no_speculation", Severity.WARNING)]
    assert found(table, speculative_config={"method": "ngram", "num_speculative_tokens": 5}) == []
    assert found(Throttle(auto=Auto(dials=["speculative_tokens"]))) == []  # it is off
