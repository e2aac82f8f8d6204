"""What the control socket needs of the host it controls: the seam between this package and the composition root.

Everything is called on the event loop. The properties and plain methods answer at once and are called for every
request; only the two changes may take long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine_host.protocol.methods import (
    DialSheet,
    DialsSet,
    ForecastParams,
    History,
    KvMap,
    KvMapParams,
    PauseParams,
    RequestAbort,
    RequestList,
    RequestsList,
    ResumeParams,
    SwitchParams,
    ThrottleAuto,
    ThrottleClear,
    ThrottleSet,
)
from engine_host.protocol.profiles import Preflight, ProfileChanges, ProfileDetail, ProfileDiff, ProfileList
from engine_host.protocol.snapshot import Snapshot, State
from engine_host.protocol.switching import SwitchForecast, SwitchResult, SwitchStatus
from engine_host.protocol.throttling import ThrottleSheet
from engine_host.telemetry.event_log import EventLog


@dataclass(frozen=True)
class Identity:
    """What `hello` says about the host process."""

    boot_id: str
    host_version: str
    vllm_version: str | None
    """`None` until it is known."""
    capabilities: tuple[str, ...]


class Switching(Protocol):
    """Profiles and the hot switch. Every method may raise `OperatorError`."""

    def profiles(self) -> ProfileList: ...
    def reload(self) -> ProfileChanges:
        """Read the directory; what has changed since the last time."""

    def profile(self, name: str) -> ProfileDetail: ...
    def diff(self, before: str | None, after: str) -> ProfileDiff: ...
    def status(self) -> SwitchStatus: ...

    async def check(self, name: str) -> Preflight:
        """Takes seconds."""

    async def forecast(self, params: ForecastParams) -> SwitchForecast:
        """Takes seconds."""

    async def switch(self, params: SwitchParams, who: str) -> SwitchResult:
        """Returns when it is done, rolled back, refused or cancelled."""

    async def cancel(self, who: str) -> str:
        """Returns when what ran before goes on."""


class Inside(Protocol):
    """The scheduler and the requests of the engine that serves. Every method may raise `OperatorError`."""

    def dials(self) -> DialSheet: ...

    async def set_dials(self, params: DialsSet, who: str) -> str:
        """Returns when they are in force."""

    def requests(self, params: RequestsList) -> RequestList: ...

    def abort(self, params: RequestAbort, who: str) -> str:
        """Its client has been told when this returns."""

    def kv_map(self, params: KvMapParams) -> KvMap: ...


class Throttling(Protocol):
    """The limits at the gate. A change is in force when its method returns, with a sentence of what has changed. Every
    one may raise `OperatorError`."""

    @property
    def version(self) -> int:
        """Another one after every change."""

    def sheet(self) -> ThrottleSheet: ...
    def set(self, order: ThrottleSet, who: str) -> str: ...
    def clear(self, order: ThrottleClear, who: str) -> str: ...
    def auto(self, order: ThrottleAuto, who: str) -> str: ...
    def pause(self, order: PauseParams, who: str) -> str: ...
    def resume(self, order: ResumeParams, who: str) -> str: ...


class Controlled(Protocol):
    """The host behind the control socket."""

    @property
    def identity(self) -> Identity: ...

    @property
    def state(self) -> State: ...

    @property
    def state_version(self) -> int: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def switching(self) -> Switching: ...

    @property
    def inside(self) -> Inside: ...

    @property
    def throttle(self) -> Throttling: ...

    def snapshot(self) -> Snapshot:
        """The newest snapshot, its `age_s` set. Sessions poll at their own interval."""

    def history(self, series: list[str], span_s: float) -> History:
        """Raises `ValueError` naming the unknown series and the nearest known one."""

    async def restart_engine(self, drain_timeout_s: float | None, who: str) -> str:
        """Drain, stop and start the engine; returns when it serves again, with a sentence for the operator.

        Raises `OperatorError`: `EXIT_REFUSED` when it cannot be done in this state, any other code when it was tried
        and failed.
        """

    async def stop_host(self, drain_timeout_s: float | None, who: str) -> str:
        """Drain and stop the engine, then have the process end; returns before the control server is closed.

        `ControlServer.close` waits for this call's reply, so the one must not wait for the other. Raises as above.
        """
