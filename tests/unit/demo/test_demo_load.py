"""The load against scripted servers: bounded, patient, gone at once when it is stopped."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest

from engine_host.demo import load as load_module
from engine_host.demo.load import WAVE_LOW, WAVE_S, Load, Report, clients_at

Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


def answer(request: httpx.Request) -> httpx.Response:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    body = json.loads(request.content)
    if not body.get("stream"):
        return httpx.Response(200, json={"choices": [{"text": "x"}], "usage": usage})
    chunks = [{"choices": [{"text": "x"}], "usage": None}, {"choices": [], "usage": usage}]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def make_load(handler: Handler, concurrency: int = 4) -> Load:
    return Load("http://test", model="m", concurrency=concurrency, transport=httpx.MockTransport(handler))


async def run_until(load: Load, is_enough: Callable[[Report], bool]) -> Report:
    """Run the load until its report satisfies `is_enough`, then stop it as its owner does, by cancelling."""
    task = asyncio.create_task(load.run())
    async with asyncio.timeout(20):
        while not is_enough(load.report):
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return load.report


def assert_all_accounted_for(report: Report) -> None:
    assert report.started == report.completed + report.refused + report.failed + report.aborted


async def test_answers_are_counted_with_their_tokens() -> None:
    async def serve(request: httpx.Request) -> httpx.Response:
        return answer(request)

    report = await run_until(make_load(serve), lambda r: r.completed >= 20)
    assert_all_accounted_for(report)
    assert report.prompt_tokens == 10 * report.completed
    assert report.completion_tokens == 5 * report.completed
    assert sum(report.completed_by_kind.values()) == report.completed
    assert (report.refused, report.failed) == (0, 0)


async def test_never_more_requests_in_flight_than_allowed() -> None:
    in_flight = most = 0

    async def serve(request: httpx.Request) -> httpx.Response:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return answer(request)

    await run_until(make_load(serve, concurrency=3), lambda r: r.completed >= 30)
    assert 1 <= most <= 3


async def test_a_stop_ends_every_request_at_once() -> None:
    closed = 0

    async def hang(request: httpx.Request) -> httpx.Response:
        nonlocal closed
        try:
            await asyncio.Event().wait()
        finally:
            closed += 1
        raise AssertionError

    report = await run_until(make_load(hang, concurrency=8), lambda r: r.started >= 4)
    assert closed == report.started == report.aborted
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_it_ends_by_itself_after_its_seconds() -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(5):
        report = await make_load(hang).run(seconds=0.05)
    assert report.aborted == report.started > 0
    assert report.seconds < 5


@pytest.mark.parametrize("status", [429, 503])
async def test_refusals_are_waited_out(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "FIRST_BACKOFF_S", 0.01)
    refusals = 0

    async def refuse_first(request: httpx.Request) -> httpx.Response:
        nonlocal refusals
        if refusals < 6:
            refusals += 1
            return httpx.Response(status, headers={"retry-after": "0.01"})
        return answer(request)

    report = await run_until(make_load(refuse_first), lambda r: r.completed >= 5)
    assert_all_accounted_for(report)
    assert report.refused == 6
    assert report.failed == 0
    assert report.last_error == f"_Refused: HTTP {status}"


async def test_lost_connections_are_failures_and_do_not_end_the_load() -> None:
    calls = 0

    async def lose_some(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise httpx.ConnectError("connection refused")
        return answer(request)

    report = await run_until(make_load(lose_some), lambda r: r.completed >= 5)
    assert_all_accounted_for(report)
    assert report.failed == 2
    assert report.last_error == "ConnectError: connection refused"


async def test_a_stream_cut_before_its_usage_is_a_failure() -> None:
    async def cut(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content).get("stream"):
            return httpx.Response(200, text='data: {"choices": []}\n\n')
        return httpx.Response(200, json={"choices": []})

    report = await run_until(make_load(cut), lambda r: r.failed >= 2)
    assert report.completed == 0
    assert report.last_error == "RemoteProtocolError: the answer ended before its usage"


async def test_a_server_that_only_refuses_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503)

    report = await make_load(refuse, concurrency=4).run(seconds=0.9)
    # Rounds of at most four clients, after 0.25 and 0.5 s.
    assert 0 < report.refused <= 3 * 4


def test_the_wave_stays_between_its_bounds_and_reaches_both() -> None:
    clients = [clients_at(seconds / 2, 16) for seconds in range(int(4 * WAVE_S))]
    assert min(clients) == round(16 * WAVE_LOW)
    assert max(clients) == 16
    assert clients_at(0, 1) == 1


@pytest.mark.parametrize(("header", "seconds"), [("2", 2.0), ("0.5", 0.5), (None, None), ("soon", None), ("-1", None)])
def test_retry_after_is_read_in_seconds(header: str | None, seconds: float | None) -> None:
    assert load_module._seconds(header) == seconds


def test_the_command_says_when_nothing_succeeded(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_module.main(["--url", "http://127.0.0.1:9", "--seconds", "0.3", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["completed"] == 0
    assert "No request succeeded at http://127.0.0.1:9" in captured.err
    assert "vllm-console status" in captured.err


@pytest.mark.parametrize("wrong", [["--concurrency", "0"], ["--seconds", "0"], ["--seconds", "nan"]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        load_module.main(wrong)
    assert raised.value.code == 2
