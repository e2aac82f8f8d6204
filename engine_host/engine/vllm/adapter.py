"""The engine port over AsyncLLM: starts it, asks it, moves its requests, ends it.

vLLM runs in this process (AsyncLLM, its FastAPI app) with the engine core in a child. Building it takes 20 to 120 s
and blocks, so it happens in a worker thread while the event loop keeps the control socket alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_host.engine.port import (
    STOPPED,
    AsgiApp,
    Backlog,
    Bound,
    Death,
    Engine,
    EngineArguments,
    EngineFacts,
    EngineStartError,
    FrontRequest,
    Handling,
    LiveScheduler,
    StepSink,
)
from engine_host.engine.vllm import carry, front_end, remains, statistics
from engine_host.engine.vllm.app import build_app, ending, refusal
from engine_host.engine.vllm.build import build
from engine_host.engine.vllm.carriable import total_tokens
from engine_host.engine.vllm.core_processes import (
    CoresAtStart,
    StartedChildren,
    death_of,
    has_lost_one_of_several,
    keeps_something,
)
from engine_host.engine.vllm.device_gate import DeviceGate
from engine_host.engine.vllm.facts import facts_of
from engine_host.engine.vllm.forerun import forerun
from engine_host.engine.vllm.imports import import_vllm, without_freezing
from engine_host.engine.vllm.ledger import Ledger
from engine_host.engine.vllm.live.boards import Boards
from engine_host.engine.vllm.one_line import one_line
from engine_host.engine.vllm.probe import probe
from engine_host.engine.vllm.shutdown import CLEAR_S, end_late, retire, shut_down
from engine_host.engine.vllm.succession import Succession
from engine_host.gateway.unavailable import Unavailable
from engine_host.profiles import ValidNames
from engine_host.protocol.errors import OperatorError
from engine_host.scratch_dir import make_dir_for_sockets

if TYPE_CHECKING:
    from engine_host.engine.vllm.live.cores import LiveCores

_CLOSE_S = 5.0
"""What the API app's own shutdown gets."""
_SHUTDOWN_GRACE_S = 10.0
"""What vLLM's shutdown gets beyond its own time-out before its processes are killed under it."""
_GATE_POLL_S = 0.02
"""How soon it is seen that nothing more can be prepared."""
_ABANDON_S = 10.0
"""What a build that is given up gets to fail once its processes are gone."""


class VllmEngine:
    """One AsyncLLM with its API app; see `engine_host.engine.port.Engine`."""

    def __init__(
        self,
        arguments: EngineArguments,
        check_names: Callable[[ValidNames], None],
        when_dead: Callable[[], Unavailable] = lambda: Unavailable("dead", "The engine has died."),
        scratch_dir: Path | None = None,
        on_config: Callable[[Mapping[str, Any]], None] = lambda found: None,
    ) -> None:
        """`check_names` gets the names that the installed vLLM takes and raises `OperatorError` for a wrong one; it
        runs at the start, in the worker thread, since learning the names means importing vLLM. `when_dead`: what
        clients are told of an engine that has died under them. `scratch_dir`: below it the engine's processes have the
        files of their sockets; None: where vLLM puts them, which leaves them there. `on_config`, also in the worker
        thread: what the configuration that it starts with says to the checks (`resolved`)."""
        self._arguments = arguments
        self._check_names = check_names
        self._when_dead = when_dead
        self._scratch_dir = scratch_dir
        self._on_config = on_config
        self._sockets: Path | None = None
        self._llm: Any = None
        self._behind_app: Any = None
        """What is left of it for an app that outlives its engine."""
        self._app: Any = None
        self._facts: EngineFacts | None = None
        self._lifespan: contextlib.AsyncExitStack = contextlib.AsyncExitStack()
        self._ledger: Ledger | None = None
        self._collectors: list[Any] = []
        self._succession: Succession | None = None
        self._building: asyncio.Task[tuple[Any, Any]] | None = None
        self._gate: DeviceGate | None = None
        self._children: StartedChildren | None = None
        self._is_stopping = False
        self._boards = Boards()
        self._live: LiveCores | str = "the engine has not started"

    async def prepare(self, sink: StepSink) -> None:
        async with self._ended_on_failure():
            gate = self._gate = DeviceGate()
            building = self._begin(sink)
            while not building.done() and not gate.is_reached:
                await asyncio.wait({building}, timeout=_GATE_POLL_S)
            if building.done():
                building.result()

    async def start(self, sink: StepSink) -> None:
        async with self._ended_on_failure():
            building = self._building or self._begin(sink)
            if self._gate is not None:
                self._gate.open()
            namespace, self._llm = await asyncio.shield(building)
            self._building = None
            self._close_gate()
            if self._is_stopping:
                raise EngineStartError("stopped while starting")
            self._ledger = Ledger(self._llm)
            app = await build_app(self._llm, namespace, self._when_dead)
            with without_freezing():
                await self._lifespan.enter_async_context(app.router.lifespan_context(app))
            self._app = app
            self._facts = facts_of(self._llm)
            self._live = self._boards.found(self._llm)
            self._collectors = statistics.registered_collectors()
            assert self._children is not None
            await asyncio.to_thread(self._children.settled)

    @contextlib.asynccontextmanager
    async def _ended_on_failure(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            await self._end(0.0)
            if isinstance(error, EngineStartError | OperatorError):
                raise
            raise EngineStartError(one_line(error)) from error

    def _begin(self, sink: StepSink) -> asyncio.Task[tuple[Any, Any]]:
        self._children = StartedChildren()
        self._building = asyncio.create_task(self._built(sink))
        return self._building

    async def _built(self, sink: StepSink) -> tuple[Any, Any]:
        """Raises `EngineStartError` with the signal that killed a core, of which vLLM only says that it failed."""
        cores = CoresAtStart()
        watching = asyncio.create_task(cores.watch())
        try:
            return await self._imported_and_built(sink)
        except (Exception, SystemExit) as error:
            cores.look()
            if cores.death is not None and cores.death.by_signal:
                raise EngineStartError(f"{cores.death.text} while it started") from error
            if isinstance(error, SystemExit):
                raise EngineStartError(one_line(error)) from error  # as it is it would end the event loop
            raise
        finally:
            watching.cancel()

    async def _imported_and_built(self, sink: StepSink) -> tuple[Any, Any]:
        """Everything that blocks, in worker threads. The imports by themselves: some modules keep an exception of
        their import for good, with the frames that led to it, and so whatever these hold."""
        await asyncio.to_thread(import_vllm)
        return await asyncio.to_thread(self._build, sink)

    def _build(self, sink: StepSink) -> tuple[Any, Any]:
        if self._scratch_dir is not None:
            self._sockets = make_dir_for_sockets(self._scratch_dir)
            os.environ["VLLM_RPC_BASE_PATH"] = str(self._sockets or tempfile.gettempdir())
        return build(
            self._arguments,
            sink,
            self._check_names,
            self._on_config,
            lambda: self._is_stopping,
            self._boards,
            self._gate,
        )

    def _close_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()

    @property
    def app(self) -> AsgiApp:
        return self._app  # type: ignore[no-any-return]

    @property
    def facts(self) -> EngineFacts:
        assert self._facts is not None, "facts are asked for after start() returned"
        return self._facts

    @property
    def is_dead(self) -> bool:
        llm = self._llm
        return llm is not None and not self._is_stopping and (bool(llm.errored) or has_lost_one_of_several(llm))

    @property
    def death(self) -> Death | None:
        return None if self._llm is None else death_of(self._llm)

    def backlog(self) -> Backlog:
        if self._llm is None:
            return Backlog(0)
        states = list(self._llm.output_processor.request_states.values())
        now = time.time()
        waits = [
            max(0.0, now - state.stats.arrival_time)
            for state in states
            if state.is_prefilling and state.stats is not None
        ]
        return Backlog(len(states), sorted(waits, reverse=True))

    def requests(self) -> list[FrontRequest]:
        return [] if self._llm is None else front_end.unfinished(self._llm)

    @property
    def live(self) -> LiveScheduler | str:
        return self._live if isinstance(self._live, str) else self._live.fault or self._live

    def abort(self, request_id: str, error: str) -> bool:
        return self._llm is not None and front_end.end(self._llm, request_id, ending(error))

    async def probe(self, timeout_s: float) -> None:
        await probe(self._llm, timeout_s)

    def handling(self, bound: Bound) -> Handling:
        return Handling() if self._ledger is None else carry.handling(self._ledger, bound)

    async def hand_over(self, bound: Bound, error: str) -> list[Any]:
        if self._llm is None or self._ledger is None or self._llm.errored:
            return []
        await carry.freeze(self._llm)
        if self._llm.errored:
            return []  # it died of it, or just now, and vLLM has told all its clients
        self._succession = Succession(self._llm)
        taken = carry.take(self._ledger, self._llm, bound, self._succession.given_up)
        carry.end_with(self._llm, refusal(error))
        return taken

    async def compute_ahead(self, other: Engine, bound: Bound, timeout_s: float) -> int:
        if not isinstance(other, VllmEngine) or other._ledger is None or not self.facts.prefix_caching:
            return 0
        return await forerun(self._llm, other._ledger, bound, timeout_s)

    async def adopt(self, carried: Sequence[Any], error: str) -> list[Any]:
        assert self._ledger is not None, "requests are adopted after start() returned"
        limit = min(
            (n for n in (self.facts.max_model_len_tokens, self.facts.capacity_tokens) if n is not None), default=None
        )
        fits = [limit is None or total_tokens(item.request) <= limit for item in carried]
        fitting = list(compress(carried, fits))
        try:
            await carry.adopt(self._ledger, self._llm, fitting)
        except Exception as fault:
            raise EngineStartError(f"the new engine failed as it took over the requests: {one_line(fault)}") from fault
        carry.fail([item for item, is_fitting in zip(carried, fits, strict=True) if not is_fitting], refusal(error))
        return fitting

    def succeed(self, successor: Engine | None, error: str) -> None:
        if self._succession is None:
            return
        if isinstance(successor, VllmEngine):
            self._succession.pass_to(successor._llm)
        else:
            self._succession.end(refusal(error))

    def reclaim_metrics(self) -> None:
        statistics.put_back(self._collectors)

    def drop(self, carried: Sequence[Any], error: str) -> None:
        carry.fail(list(carried), refusal(error))

    async def stop(self, timeout_s: float, *, keep_app: bool = False) -> None:
        self._is_stopping = True
        await self._end(timeout_s, keep_app=keep_app)

    async def close_app(self) -> None:
        await self._close_lifespan()
        llm, self._behind_app = self._behind_app, None
        ended = None if llm is None else weakref.ref(llm)
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)
            llm = None
        await self._let_go(ended)

    async def _close_lifespan(self) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._lifespan.aclose(), _CLOSE_S)
        self._app = None

    async def _let_go(self, llm: weakref.ref[Any] | None) -> None:
        self._building = self._ledger = self._succession = None
        self._collectors = []
        await remains.let_go_in_the_end(llm)

    async def _end(self, timeout_s: float, *, keep_app: bool = False) -> None:
        self._close_gate()
        await self._end_build()
        self._live = "the engine has ended"
        self._boards.close()
        llm, self._llm = self._llm, None
        ended = None if llm is None else weakref.ref(llm)
        if llm is not None and not llm.errored:
            # Not vLLM's own abort: an answer that ends with 200 looks finished to whoever reads it.
            carry.end_with(llm, refusal(STOPPED))
        if not keep_app:
            await self._close_lifespan()
        if llm is not None:
            timeout_s = timeout_s if keeps_something(llm) else min(timeout_s, CLEAR_S)
            if keep_app:
                self._behind_app = llm
                if llm.output_handler is not None:
                    llm.output_handler.cancel()
            end = asyncio.create_task(asyncio.to_thread(retire if keep_app else shut_down, llm, max(timeout_s, 0.1)))
            await asyncio.wait({end}, timeout=timeout_s + _SHUTDOWN_GRACE_S)
            del llm, end
        await asyncio.to_thread(self._clear_away)
        if self._is_stopping and not keep_app:
            await self._let_go(ended)

    async def _end_build(self) -> None:
        """A build under way cannot be interrupted in its thread; without its processes it fails by itself. One that
        still imports has none yet, so they are looked for until the thread ends. One that waits for a download or a
        file server may never end, and is left to itself."""
        building, self._building = self._building, None
        if building is None:
            return
        deadline = time.monotonic() + _ABANDON_S
        while not building.done():
            if time.monotonic() > deadline:
                building.add_done_callback(end_late)
                return
            await asyncio.to_thread(self._kill_children)
            await asyncio.wait({building}, timeout=0.2)
        if self._llm is None and not building.cancelled() and building.exception() is None:
            self._llm = building.result()[1]

    def _kill_children(self) -> None:
        if self._children is not None:
            self._children.kill()

    def _clear_away(self) -> None:
        self._kill_children()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
