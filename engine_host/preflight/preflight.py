"""The checks in order, as one report: names, configuration, files, tokenizers, memory, capacity, ports, options.

Touches nothing and starts no engine. What blocks (disk, NVML, tokenizers) runs in threads, what imports vLLM in a
process of its own; a cancelled preflight leaves neither. It never raises: a check that fails itself is reported as
unchecked, because a fault in a check is no reason to keep an operator from serving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import psutil

from engine_host.profiles import Profile, ValidNames
from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding, Preflight

from .capacity import Capacity, check_capacity
from .config import ConfigFacts, Probed
from .devices import Device, read_devices
from .dials import check_dials
from .files import ModelFiles, ProfileFiles, check_files
from .kinds import check_kinds, with_refusal
from .known_answers import KnownAnswers
from .memory import Forecast, forecast_memory
from .names import SPECULATION, unknown_keys
from .off_loop import off_loop
from .options import check_options
from .parallel import check_parallel, without_vllms_words
from .ports import check_port
from .questions import Questions
from .setting import Setting
from .throttle import check_throttle
from .tokenizer_process import Answer, Request
from .tokenizers import Party

log = logging.getLogger(__name__)

DEADLINE_S = 300.0
"""For what other processes answer: a configuration takes about 10 s, a minute where engines keep every core busy or
the disk is cold, more when a model's own code is imported. A check under way is shown with its time and can be
cancelled, so a late answer is better than a switch refused for the want of it."""

DEVICES_S = 5.0
"""NVML hangs for ever on a GPU that has fallen off the bus."""

_NOT_BUILT = "configuration, memory and length: not until the errors are mended"

T = TypeVar("T")


@dataclass(frozen=True)
class PreflightReport:
    """What the switch decides by, around what goes over the wire."""

    wire: Preflight
    fits_beside: bool | None = None
    """Both engines fit in memory at once; None when it cannot be told."""
    fits_alone: bool | None = None
    """It fits once the running engine is gone."""
    needed_bytes: int | None = None
    facts: ConfigFacts | None = None
    vllm_version: str | None = None

    @property
    def ok(self) -> bool:
        return self.wire.ok


async def run_preflight(
    profile: Profile,
    *,
    names: ValidNames | None = None,
    running_port: int | None = None,
    engine_pids: Collection[int] = (),
    own_pids: Collection[int] | None = None,
    deadline_s: float = DEADLINE_S,
    known: KnownAnswers | None = None,
) -> PreflightReport:
    """Check `profile` on this machine.

    `names`: what the installed vLLM takes, when already known. `running_port`: where this host serves now.
    `engine_pids`: of the running engine, which would free what they hold. `own_pids`: the running host's
    processes, never named as somebody else's (default: this process and its children). `known`: what earlier checks
    learned; with it a profile that has been checked before starts no process and takes a tenth of a second.
    """
    known = known or KnownAnswers()
    return await _Run(profile, names, running_port, engine_pids, own_pids, deadline_s, known).report()


@dataclass(frozen=True)
class _Fit:
    """What memory and length came to; all unknown by default."""

    forecast: Forecast = field(default_factory=Forecast)
    capacity: Capacity | None = None
    findings: list[Finding] = field(default_factory=list)


class _Run:
    """One preflight; findings are collected by check and told in the order of the checks."""

    def __init__(
        self,
        profile: Profile,
        names: ValidNames | None,
        running_port: int | None,
        engine_pids: Collection[int],
        own_pids: Collection[int] | None,
        deadline_s: float,
        known: KnownAnswers,
    ) -> None:
        self._profile = profile
        self._names = names
        self._running_port = running_port
        self._engine_pids = engine_pids
        self._own_pids = own_pids
        self._deadline_s = deadline_s
        self._known = known
        self._questions = Questions(known, deadline_s)
        self._unchecked: list[str] = []

    async def report(self) -> PreflightReport:
        profile = self._profile
        self._names = self._names or await self._guarded("names", self._questions.names())
        named = unknown_keys(profile.engine, profile.server, self._names) if self._names is not None else []
        files = await self._guarded("files", off_loop(check_files, profile.engine, profile.server))
        async with asyncio.TaskGroup() as group:
            probing = group.create_task(self._guarded("configuration", self._probe(files, named)))
            comparing = group.create_task(self._guarded("tokenizers", self._compare(files)))
            ports = group.create_task(self._rule("ports", check_port, profile.server, self._running_port))
        probed = probing.result() or Probed()
        if self._names is None and (names := await self._guarded("names", self._questions.names())) is not None:
            self._names = names
            named = unknown_keys(profile.engine, profile.server, self._names)
            if named:
                self._unchecked.append(_NOT_BUILT)
        facts = probed.answer.facts
        fit = await self._guarded("memory", self._fit(facts, files)) or _Fit()
        kinds = await self._rule("kinds", check_kinds, profile)
        ranks = await self._rule("ranks", self._about_ranks, files, facts)
        kinds, built = with_refusal(kinds, without_vllms_words(probed.findings) if ranks else probed.findings)
        tokens = self._about_tokenizers(comparing.result() or Answer(), facts)
        options = await self._rule("options", check_options, self._setting(facts))
        dials = await self._rule("dials", check_dials, profile.dials, self._setting(facts))
        longest = fit.capacity.longest_tokens if fit.capacity is not None else None
        gate = await self._rule("throttle", check_throttle, profile.throttle, self._setting(facts), longest)
        about_files: list[Finding] = []
        if files is not None:
            self._unchecked += files.unchecked
            about_files = files.findings
        found = [named, kinds, built, about_files, ranks, tokens, fit.findings, ports.result(), options, dials, gate]
        return self._reported(list(chain.from_iterable(found)), fit, probed)

    def _reported(self, findings: list[Finding], fit: _Fit, probed: Probed) -> PreflightReport:
        forecast, capacity = fit.forecast, fit.capacity
        return PreflightReport(
            wire=Preflight(
                profile=self._profile.name,
                digest=self._profile.digest,
                ok=not any(finding.severity is Severity.ERROR for finding in findings),
                findings=findings,
                needed_bytes=forecast.needed_bytes,
                available_bytes=forecast.available_bytes,
                kv_capacity_tokens=capacity.tokens if capacity is not None else None,
                longest_tokens=capacity.longest_tokens if capacity is not None else None,
                unchecked=self._unchecked,
            ),
            fits_beside=forecast.fits_beside,
            fits_alone=forecast.fits_alone,
            needed_bytes=forecast.needed_bytes,
            facts=probed.answer.facts,
            vllm_version=probed.answer.vllm_version,
        )

    async def _rule(self, what: str, check: Callable[..., list[Finding]], *about: object) -> list[Finding]:
        """What `check` finds, in a thread; nothing when it failed itself."""
        return await self._guarded(what, off_loop(check, *about)) or []

    async def _guarded(self, what: str, check: Awaitable[T]) -> T | None:
        """None when the check failed itself."""
        try:
            return await check
        except Exception as fault:
            log.exception("the check of %s failed", what)
            self._unchecked.append(f"{what}: the check failed itself: {type(fault).__name__}: {fault}")
            return None

    async def _probe(self, files: ProfileFiles | None, named: Sequence[Finding]) -> Probed:
        from engine_host.engine.vllm.releases import installed_version

        if installed_version() is None:
            self._unchecked.append("configuration, memory and length: vLLM is not installed here")
            return Probed()
        if named or (files is not None and not files.is_buildable):
            self._unchecked.append(_NOT_BUILT)
            return Probed()
        return await self._questions.configuration(self._profile.engine, self._profile.server)

    async def _compare(self, files: ProfileFiles | None) -> Answer:
        """The target's tokenizer by itself, and beside the draft's when the draft may have one of its own."""
        if files is None or (target := _party(files.tokenizer, files.model)) is None:
            return Answer()
        engine = self._profile.engine
        draft = _party(files.draft, files.draft) if files.draft and _may_have_tokenizer(engine) else None
        if draft is None and files.tokenizer.tokenizer_json is None:
            return Answer()  # reading it otherwise takes seconds, and there is nothing to compare it with
        table = engine.get(SPECULATION)
        return await self._questions.tokenizers(
            Request(
                target=target,
                draft=draft,
                is_heterogeneous=isinstance(table, Mapping) and bool(table.get("use_heterogeneous_vocab")),
                trust_remote_code=bool(engine.get("trust_remote_code")),
                deadline_s=self._deadline_s,
            )
        )

    def _about_tokenizers(self, answer: Answer, facts: ConfigFacts | None) -> list[Finding]:
        if facts is not None and facts.speculation_method != "draft_model":
            # No second tokenizer: nothing is drafted by a model, or by a head that vLLM knew by its configuration.
            return answer.alone
        self._unchecked += answer.unchecked
        if facts is None and not _is_draft_model(self._profile.engine):
            # It may be a head all the same, which vLLM would have known by its configuration.
            self._unchecked += [finding.text for finding in answer.unreadable]
            return answer.alone + answer.pair
        return answer.alone + answer.unreadable + answer.pair

    def _about_ranks(self, files: ProfileFiles | None, facts: ConfigFacts | None) -> list[Finding]:
        method = facts.speculation_method if facts is not None else None
        return check_parallel(self._profile.engine, files.model, files.draft, method) if files is not None else []

    async def _fit(self, facts: ConfigFacts | None, files: ProfileFiles | None) -> _Fit:
        """Memory and length, once it is known what the engine would be."""
        if facts is None or files is None:
            return _Fit()
        forecast, findings = Forecast(), list[Finding]()
        if devices := await self._devices(facts):
            forecast, findings = forecast_memory(facts, files.model, files.draft, devices)
            if forecast.needed_bytes is None:
                self._unchecked.append("memory: the size of the weights is not known")
        else:
            self._unchecked.append("memory: what the devices have free is not known")
        kv_bytes = forecast.kv_bytes if forecast.kv_bytes is not None else facts.kv_cache_memory_bytes
        is_exact = facts.kv_cache_memory_bytes is not None or facts.num_gpu_blocks_override is not None
        capacity, about_length = check_capacity(facts, kv_bytes, is_exact=is_exact)
        return _Fit(forecast, capacity, findings + about_length)

    async def _devices(self, facts: ConfigFacts) -> list[Device] | None:
        own = self._own_pids if self._own_pids is not None else await off_loop(_family)
        try:
            async with asyncio.timeout(DEVICES_S):
                return await off_loop(read_devices, facts.device, facts.devices, own, self._engine_pids)
        except TimeoutError:
            self._unchecked.append(f"devices: the driver did not answer within {DEVICES_S:.0f} s")
            return None

    def _setting(self, facts: ConfigFacts | None) -> Setting:
        return Setting(
            engine=self._profile.engine,
            facts=facts,
            speculation_names=self._names.nested.get(SPECULATION) if self._names is not None else None,
            machine_bytes=psutil.virtual_memory().total,
            environment=self._known.environment,
        )


def _may_have_tokenizer(engine: Mapping[str, Any]) -> bool:
    """Heads trained on the target's hidden states (EAGLE and its kin) use the target's and ship without one."""
    table = engine.get(SPECULATION)
    return isinstance(table, Mapping) and table.get("method") in (None, "draft_model")


def _is_draft_model(engine: Mapping[str, Any]) -> bool:
    table = engine.get(SPECULATION)
    return isinstance(table, Mapping) and table.get("method") == "draft_model"


def _party(tokenizer: ModelFiles, model: ModelFiles) -> Party | None:
    """None when it is not on this machine."""
    if tokenizer.directory is None:
        return None
    return Party(name=model.name, directory=str(tokenizer.directory), vocab_size=model.vocab_size)


def _family() -> set[int]:
    """This process and its children."""
    process = psutil.Process()
    return {process.pid, *(child.pid for child in process.children(recursive=True))}
