"""Which class a request is of: API key before header before vLLM's priority."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from engine_host.gateway.priority_classes import PriorityClasses
from engine_host.profiles.throttle_table import Throttle

KEYS = Throttle(
    class_header="X-Class",
    api_key_classes={"gold-key": "high", "sha256:" + hashlib.sha256(b"batch-key").hexdigest(): "low"},
)


def scope(**headers: str) -> dict[str, Any]:
    return {"headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}


@pytest.mark.parametrize(("priority", "expected"), [(0, "normal"), (-5, "high"), (-1, "high"), (3, "low")])
def test_a_negative_priority_is_a_class_higher_and_a_positive_one_lower(priority: int, expected: str) -> None:
    classes = PriorityClasses(Throttle())
    assert classes.names[classes.rank(scope(), priority)] == expected


def test_there_is_no_class_beyond_the_last() -> None:
    classes = PriorityClasses(Throttle(classes=["bulk", "chat"], default_class="chat"))
    assert [classes.rank(scope(), priority) for priority in (-1, 0, 1)] == [1, 1, 0]
    assert PriorityClasses(Throttle(classes=["all"])).rank(scope(), -7) == 0


@pytest.mark.parametrize(
    ("headers", "priority", "expected"),
    [
        ({"authorization": "Bearer gold-key"}, 9, "high"),
        ({"authorization": "bearer  gold-key"}, 0, "high"),
        ({"x_api_key": "gold-key", "x_class": "low"}, 0, "high"),
        ({"authorization": "Bearer batch-key"}, -9, "low"),
        ({"authorization": "Basic gold-key"}, 0, "normal"),
        ({"authorization": "Bearer sha256:" + hashlib.sha256(b"batch-key").hexdigest()}, 0, "normal"),
        ({"authorization": "Bearer another-key"}, -1, "high"),
        ({"x_class": "low"}, -1, "low"),
        ({"x_class": " LOW "}, -1, "low"),
        ({"x_class": "unheard-of"}, -1, "high"),
        ({"x_class": "high", "authorization": "Bearer batch-key"}, 0, "low"),
    ],
)
def test_the_key_wins_over_the_header_and_the_header_over_the_priority(
    headers: dict[str, str], priority: int, expected: str
) -> None:
    classes = PriorityClasses(KEYS)
    assert classes.names[classes.rank(scope(**headers), priority)] == expected


def test_a_header_matches_a_class_however_either_is_written() -> None:
    classes = PriorityClasses(Throttle(classes=["Bulk", "Chat"], default_class="Chat", class_header="x-class"))
    assert [classes.rank(scope(x_class=name), 0) for name in ("bulk", "BULK", "Bulk", "bul")] == [0, 0, 0, 1]


def test_keys_are_not_kept_as_they_are() -> None:
    assert "gold-key" not in repr(vars(PriorityClasses(KEYS)))
