"""Whoever vLLM will refuse for want of an API key takes no place from those who have one."""

from __future__ import annotations

from typing import Any

import pytest

from engine_host.gateway.api_keys import ApiKeys
from engine_host.throttle.limits import Limits
from tests.unit.gateway.clients import Served


def scope(path: str = "/v1/completions", **headers: str) -> dict[str, Any]:
    return {"path": path, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}


@pytest.mark.parametrize(
    ("asked", "is_refused"),
    [
        (scope(authorization="Bearer right"), False),
        (scope(authorization="bearer right"), False),
        (scope(authorization="Bearer schlüssel"), False),
        (scope(authorization="Bearer wrong"), True),
        (scope(authorization="right"), True),
        (scope(), True),
        (scope("/invocations"), False),
        (scope("/prefix/v1/completions"), False),
    ],
)
def test_what_vllm_will_refuse_is_known_and_in_doubt_a_request_has_a_key(
    asked: dict[str, Any], is_refused: bool
) -> None:
    keys = ApiKeys(["right", "schlüssel".encode().decode("latin-1")])
    assert keys.are_missed_by(asked) is is_refused


def test_without_keys_nobody_misses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert not ApiKeys.of({}).are_missed_by(scope())
    assert ApiKeys.of({"api_key": ["right"]}).are_missed_by(scope())
    monkeypatch.setenv("VLLM_API_KEY", "from the environment")
    assert ApiKeys.of({}).are_missed_by(scope())
    assert not ApiKeys.of({}).are_missed_by(scope(authorization="Bearer from the environment"))


async def test_a_request_without_a_key_goes_to_vllm_at_once_and_takes_no_place() -> None:
    served = Served(Limits(max_inflight=1, hold_queue=1))
    served.gate.set_api_keys(ApiKeys(["right"]))
    with_key = {"authorization": "Bearer right"}
    await served.ask("a", headers=with_key)
    await served.ask("waits", headers=with_key)
    for number in range(5):
        await served.ask(f"stranger {number}")
    assert served.model.running == 6 and served.gate.held == 1 and served.gate.inflight == 1
    assert served.gate.counts().refused_total == 0
