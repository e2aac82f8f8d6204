"""Puts one snapshot together from those who know: lifecycle, telemetry store, entry, machine.

Taking one costs under a millisecond, but scripts poll in tight loops and several consoles watch at once; so a
snapshot younger than `FRESH_S` is handed out again with its age.
"""

from __future__ import annotations

import dataclasses
import time

import msgspec

from engine_host.engine.crash_policy import CRASH_LIMIT
from engine_host.engine.lifecycle import Lifecycle
from engine_host.gateway.entry import Entry
from engine_host.protocol.snapshot import Engine, Host, ProfileRef, Queue, Snapshot
from engine_host.protocol.speculation import Speculation
from engine_host.telemetry.kv_and_queue import KvAndQueue
from engine_host.telemetry.machine import MachineFigures, MachineSampler
from engine_host.telemetry.speculation_advisor import SpeculationAdvisor
from engine_host.telemetry.store import TelemetryStore

FRESH_S = 0.05
"""Below a scheduler step of a loaded engine: nothing a reader could see has changed."""


@dataclasses.dataclass(frozen=True)
class HostIdentity:
    """What stays the same for the life of the host process."""

    name: str
    pid: int
    boot_id: str
    version: str
    started_at: float
    http: str
    tls: bool


class SnapshotTaker:
    """`take` is called on the event loop, like everything it reads."""

    def __init__(
        self,
        identity: HostIdentity,
        vllm_version: str | None,
        lifecycle: Lifecycle,
        store: TelemetryStore,
        entry: Entry,
        machine: MachineSampler,
    ) -> None:
        self._identity = identity
        self._vllm_version = vllm_version
        self._lifecycle = lifecycle
        self._store = store
        self._entry = entry
        self._machine = machine
        self._kv_and_queue = KvAndQueue(store)
        self._advisor = SpeculationAdvisor(store.acceptance)
        self._last: Snapshot | None = None
        self._versions = (0, 0, 0)
        """Of the state, the dials and the throttle in it."""
        self._seq = 0

    def keep_up(self) -> None:
        """Take in what is only kept for seconds elsewhere; to be called once a second, also while nobody looks."""
        engine = self._lifecycle.engine
        self._advisor.collect(engine.live if engine is not None else None)
        self._kv_and_queue.keep_up(engine)

    def queue(self) -> Queue:
        """As it stands now."""
        return self._kv_and_queue.read(self._lifecycle.engine, time.time())[1]

    def take(self) -> Snapshot:
        """The newest snapshot, `age_s` set."""
        now = time.time()
        lifecycle, last = self._lifecycle, self._last
        versions = (lifecycle.state_version, lifecycle.dials.version, lifecycle.throttle.version)
        # Who was told that a change is in force finds it in force.
        if last is not None and 0 <= now - last.at < FRESH_S and versions == self._versions:
            return msgspec.structs.replace(last, age_s=now - last.at)
        self._versions = versions
        self._seq += 1
        self._last = self._take(now)
        return self._last

    def _take(self, now: float) -> Snapshot:
        lifecycle, store = self._lifecycle, self._store
        facts, machine = lifecycle.facts, self._machine.latest()
        kv, queue = self._kv_and_queue.read(lifecycle.engine, now)
        return Snapshot(
            host=self._host(now, machine),
            profile=self._profile(),
            state=lifecycle.state,
            state_since=lifecycle.state_since,
            state_version=lifecycle.state_version,
            engine=self._engine(),
            kv=kv,
            queue=self._with_the_held(queue),
            speculation=self._speculation(),
            throughput=store.throughput(),
            latency=store.latency(),
            prefix_cache=store.prefix_cache(facts.prefix_caching if facts else None),
            throttle=lifecycle.throttle.snapshot(),
            dials=lifecycle.dials.read(),
            gpus=list(machine.gpus),
            at=now,
            seq=self._seq,
        )

    def _with_the_held(self, queue: Queue) -> Queue:
        """Whoever waits at the gate waits like those in the engine's queue."""
        waits = [wait for wait in (queue.oldest_wait_s, self._entry.oldest_held_s) if wait is not None]
        return msgspec.structs.replace(queue, held=self._entry.held, oldest_wait_s=max(waits, default=None))

    def _host(self, now: float, machine: MachineFigures) -> Host:
        identity = dataclasses.asdict(self._identity)
        return Host(
            **identity,
            uptime_s=now - self._identity.started_at,
            cpu_usage=machine.cpu_usage,
            load_1m=machine.load_1m,
            memory_used_bytes=machine.memory_used_bytes,
            memory_total_bytes=machine.memory_total_bytes,
            process_memory_bytes=machine.process_memory_bytes,
        )

    def _profile(self) -> ProfileRef:
        profile = self._lifecycle.profile
        return ProfileRef(name=profile.name, digest=profile.digest, path=str(profile.path))

    def _engine(self) -> Engine:
        lifecycle, facts = self._lifecycle, self._lifecycle.facts
        phase, phase_elapsed_s = lifecycle.phase
        return Engine(
            vllm_version=self._vllm_version,
            model=facts.model if facts else lifecycle.profile.served_name,
            generation=lifecycle.generation,
            core_pids=list(facts.core_pids) if facts else [],
            max_model_len_tokens=facts.max_model_len_tokens if facts else None,
            uptime_s=lifecycle.engine_uptime_s,
            phase=phase,
            phase_elapsed_s=phase_elapsed_s,
            start_elapsed_s=lifecycle.start_elapsed_s,
            start_expected_s=lifecycle.start_expected_s,
            start_took_s=lifecycle.start_took_s,
            last_step_age_s=self._store.gauges.last_step_age_s,
            crashes_in_window=lifecycle.crashes_in_window,
            crash_limit=CRASH_LIMIT,
            restart_in_s=lifecycle.restart_in_s,
            failure=lifecycle.failure,
            switch=lifecycle.switch_under_way.progress if lifecycle.switch_under_way else None,
            live_unavailable_reason=lifecycle.dials.unavailable_reason if lifecycle.engine is not None else None,
        )

    def _speculation(self) -> Speculation:
        engine = self._lifecycle.engine
        if engine is None:
            return self._store.speculation(None, None)
        facts = engine.facts
        advice = self._advisor.advice(engine.live, facts.k_max if facts.speculation_method else None)
        return msgspec.structs.replace(
            self._store.speculation(facts.speculation_method, facts.k_max),
            k=advice.k,
            estimated_speedup=advice.speed_up,
            recommendation=advice.recommendation,
        )
