"""`switch`: the forecast, the switch itself with its phases as they pass, its status, and cancelling it.

The call is sent once and answered when the switch has ended; meanwhile telemetry tells its phases on standard error,
so that standard output is the answer and nothing else. Leaving early, by ctrl-C or a lost connection, ends the
waiting and not the switch: the host owns it.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from console import format as fmt
from console.call_errors import CallFailed, ConnectionLost, NoAnswer
from console.client import Client, connected, decoded
from console.commands.agreement import agree, need_somebody_to_ask, refuse_without_role
from console.commands.change import sent_once
from console.commands.output import width, write_json, write_lines
from console.commands.phases import Phases
from console.connect import Target, resolve
from console.consequence import (
    CANCEL_DEADLINE_S,
    FORECAST_DEADLINE_S,
    METHOD_CANCEL,
    METHOD_SWITCH,
    switch_consequence,
    switch_deadline_s,
    who_switches,
)
from engine_host.protocol.envelope import ErrorCode
from engine_host.protocol.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, OperatorError
from engine_host.protocol.methods import Applied, CancelParams, ForecastParams, SubscribeTelemetry, SwitchParams
from engine_host.protocol.profiles import Tier
from engine_host.protocol.snapshot import Snapshot
from engine_host.protocol.switching import Outcome, SwitchForecast, SwitchResult, SwitchStatus

if TYPE_CHECKING:
    from console.lines import Line

INTERVAL_S = 0.5
"""Between two looks at the phases."""

HOW_TO_ASK = "See what became of it: vllm-console switch --status"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One switch as it was asked for."""

    profile: str
    tier: Tier | None = None
    drain_s: float | None = None
    reason: str = ""
    agreed: bool = False
    waits: bool = True
    timeout_s: float | None = None


def forecast(target: str | None, profile: str, tier: Tier | None, *, as_json: bool) -> int:
    """`--dry-run`."""
    raw = asyncio.run(_forecast(resolve(target), profile, tier))
    told = decoded(raw, SwitchForecast, "forecast")
    if as_json:
        write_json(bytes(raw))
    else:
        write_lines(_forecast_page(told))
    return EXIT_DONE if told.ok else EXIT_FAILED


def status(target: str | None, *, as_json: bool) -> int:
    """`--status`."""
    raw = asyncio.run(_status(resolve(target)))
    if as_json:
        write_json(bytes(raw))
    else:
        write_lines(_status_page(decoded(raw, SwitchStatus, "switch.status")))
    return EXIT_DONE


def cancel(target: str | None, reason: str, timeout_s: float | None, *, as_json: bool) -> int:
    """`--cancel`. Asks nothing: it keeps what ran before, and who types it is in a hurry."""
    raw = asyncio.run(_cancel(resolve(target), reason, timeout_s))
    if as_json:
        write_json(bytes(raw))
    else:
        applied = decoded(raw, Applied, METHOD_CANCEL)
        print(f"{fmt.clean(applied.text)} (took {fmt.latency(applied.took_s)}; the host is now {applied.state.value})")
    return EXIT_DONE


def switch(target: str | None, wanted: Wanted, *, as_json: bool) -> int:
    need_somebody_to_ask(METHOD_SWITCH, wanted.agreed)
    phases = Phases(wanted.profile)
    try:
        raw = asyncio.run(_switch(resolve(target), wanted, phases))
    except KeyboardInterrupt:
        phases.clear()
        if phases.is_sent:
            print(
                f"vllm-console: the switch to {fmt.clean(wanted.profile)} goes on; only the waiting has ended.\n"
                "  Follow it: vllm-console switch --status. Undo it while it can be: vllm-console switch --cancel",
                file=sys.stderr,
            )
        raise
    finally:
        phases.clear()
    if raw is None:
        return _left_under_way(phases, as_json)
    result = decoded(raw, SwitchResult, METHOD_SWITCH)
    if as_json:
        write_json(bytes(raw))
    else:
        from console.switch_panels import result_lines

        write_lines(result_lines(result, width()))
    if result.outcome in {Outcome.SWITCHED, Outcome.UNCHANGED}:
        return EXIT_DONE
    raise OperatorError(
        f"{result.outcome.value.replace('_', ' ')}: {result.text}", _remedy(result), exit_code=EXIT_FAILED
    )


async def _forecast(target: Target, profile: str, tier: Tier | None) -> msgspec.Raw:
    async with connected(target.path) as client:
        return await client.call("switch.forecast", ForecastParams(profile=profile, tier=tier), FORECAST_DEADLINE_S)


async def _status(target: Target) -> msgspec.Raw:
    async with connected(target.path) as client:
        return await client.call("switch.status")


async def _cancel(target: Target, reason: str, timeout_s: float | None) -> msgspec.Raw:
    async with connected(target.path) as client:
        refuse_without_role(client.hello, METHOD_CANCEL)
        params = CancelParams(reason=reason, idempotency_key=uuid.uuid4().hex)
        return await _outcome(client, METHOD_CANCEL, params, timeout_s or CANCEL_DEADLINE_S)


async def _switch(target: Target, wanted: Wanted, phases: Phases) -> msgspec.Raw | None:
    """The host's answer; None when it was only to be seen under way."""
    async with connected(target.path, phases.heard) as client:
        refuse_without_role(client.hello, METHOD_SWITCH)
        snapshot = await client.read("status", Snapshot)
        _refuse_while_another_runs(snapshot)
        told = None if wanted.agreed else await _agree(client, wanted, snapshot)
        params = SwitchParams(
            profile=wanted.profile,
            tier=wanted.tier,
            drain_timeout_s=wanted.drain_s,
            reason=wanted.reason,
            idempotency_key=uuid.uuid4().hex,
            # Who agreed to the numbers on screen agreed to that state; who said --yes did not look.
            expected_state_version=None if wanted.agreed else snapshot.state_version,
        )
        waiting_s = wanted.timeout_s or switch_deadline_s(snapshot, told, wanted.drain_s)
        await client.call("telemetry.subscribe", SubscribeTelemetry(interval_s=INTERVAL_S))
        phases.is_sent = True
        if wanted.waits:
            return await _outcome(client, METHOD_SWITCH, params, waiting_s)
        return await _begun(client, params, waiting_s, phases)


async def _agree(client: Client, wanted: Wanted, snapshot: Snapshot) -> SwitchForecast:
    params = ForecastParams(profile=wanted.profile, tier=wanted.tier)
    told = await client.read("switch.forecast", SwitchForecast, params, FORECAST_DEADLINE_S)
    if (not_now := told.not_now) is not None:
        raise OperatorError(f"{not_now.text}.", not_now.remedy, exit_code=EXIT_REFUSED)
    if not told.ok:
        errors = "; ".join(f.text for f in told.findings if f.severity.value == "error")
        raise OperatorError(
            f"{fmt.clean(wanted.profile)} is refused by the check: {errors or 'the host does not say why'}.",
            f"Nothing was touched. All that was found: vllm-console switch {fmt.clean(wanted.profile)} --dry-run",
            exit_code=EXIT_FAILED,
        )
    if told.tier is not Tier.NONE:
        warnings = [f"▲ {fmt.clean(f.text)}" for f in told.findings if f.severity.value == "warning"]
        asked = f"switch {fmt.clean(snapshot.host.name)} to another profile."
        await agree(*warnings, asked, switch_consequence(told, snapshot, wanted.drain_s))
    return told


async def _begun(client: Client, params: SwitchParams, waiting_s: float, phases: Phases) -> msgspec.Raw | None:
    """Whichever comes first: the switch is seen under way, or it is answered (a live one is over at once)."""
    call = asyncio.create_task(_outcome(client, METHOD_SWITCH, params, waiting_s))
    seen = asyncio.create_task(phases.began.wait())
    try:
        await asyncio.wait({call, seen}, return_when=asyncio.FIRST_COMPLETED)
        return await call if call.done() else None
    finally:
        for task in (call, seen):
            task.cancel()
        await asyncio.gather(call, seen, return_exceptions=True)


async def _outcome(client: Client, method: str, params: msgspec.Struct, waiting_s: float) -> msgspec.Raw:
    """One call. A lost or late answer is exit 5 and never asked for again."""
    try:
        return await sent_once(client, method, params, waiting_s, HOW_TO_ASK)
    except CallFailed as error:
        if method == METHOD_SWITCH and error.error.code == ErrorCode.CONFLICT:
            _refuse_while_another_runs(await _snapshot_or_none(client))
        raise


async def _snapshot_or_none(client: Client) -> Snapshot | None:
    try:
        return await client.read("status", Snapshot, deadline_s=2.0)
    except (NoAnswer, ConnectionLost, CallFailed):
        return None


def _refuse_while_another_runs(snapshot: Snapshot | None) -> None:
    if snapshot is not None and (other := snapshot.engine.switch) is not None:
        raise OperatorError(
            f"another switch is under way: {who_switches(other)}.",
            "Wait for it: vllm-console switch --status. Or cancel it: vllm-console switch --cancel",
            exit_code=EXIT_REFUSED,
        )


def _left_under_way(phases: Phases, as_json: bool) -> int:
    progress = phases.progress
    assert progress is not None
    if as_json:
        write_json(msgspec.json.encode(progress))
    else:
        print(
            f"switching {fmt.clean(progress.from_profile)} → {fmt.clean(progress.to_profile)} ({progress.tier.value}); "
            f"follow it: vllm-console switch --status"
        )
    return EXIT_DONE


def _remedy(result: SwitchResult) -> str:
    name = fmt.clean(result.to_profile)
    match result.outcome:
        case Outcome.CANCELLED:
            return f"{fmt.clean(result.from_profile)} runs on. To try again: vllm-console switch {name}"
        case Outcome.FAILED:
            return "Not even the former profile serves. See: vllm-console status; vllm-console events"
        case _:
            return f"Mend the profile, then check it without touching anything: vllm-console switch {name} --dry-run"


def _forecast_page(told: SwitchForecast) -> list[Line]:
    from console.forecast_panels import forecast_lines
    from console.lines import Tone, line
    from console.switch_panels import way

    title = way(told.from_profile, told.to_profile, width() - 12)
    return [line(("Dry run  ", Tone.LABEL), (title, Tone.STRONG)), *forecast_lines(told, width())]


def _status_page(told: SwitchStatus) -> list[Line]:
    from console.lines import BLANK, Tone, line
    from console.switch_panels import progress_lines, result_lines

    rows: list[Line] = []
    if told.active is not None:
        rows += [line(("Under way", Tone.LABEL)), *progress_lines(told.active, width())]
        if told.active.can_cancel:
            rows.append(line(("  It can still be cancelled: vllm-console switch --cancel", Tone.FAINT)))
    if told.last is not None:
        rows += [BLANK, line(("Before that", Tone.LABEL))] if rows else []
        rows += result_lines(told.last, width())
    return rows or [line("No switch since this host started.")]
