"""The checks in order, as one report: names, configuration, files, tokenizers, memory, capacity, ports, options.

Touches nothing and starts no engine. What blocks (disk, NVML, tokenizers) runs in threads, what imports vLLM in a
process of its own; a cancelled preflight leaves neither. It never raises: a check that fails itself is reported as
unchecked, because a fault in a check is no reason to keep an operator from serving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from engine_host.protocol.events import Severity
from engine_host.protocol.profiles import Finding, Preflight

from .capacity import Capacity, check_capacity
from .config import ConfigFacts, Probed, ProbeTokens, probe_config
from .devices import Device, read_devices
from .files import ModelFiles, ProfileFiles, check_files
from .memory import Forecast, forecast
from .names import SPECULATION, unknown_keys
from .off_loop import off_loop
from .options import Setting, check_options
from .ports import check_port
from .tokenizers import check_alone, compare, compare_sizes
from .tokens import SAMPLES, TokenizerError, Tokens, read_tokens

if TYPE_CHECKING:
    from engine_host.profile import Profile, ValidNames

log = logging.getLogger(__name__)

DEADLINE_S = 120.0
"""For the whole: a configuration takes about 10 s, more when a model's own code is imported."""

DEVICES_S = 5.0
"""NVML hangs for ever on a GPU that has fallen off the bus."""

_NOT_BUILT = "configuration, memory and length: not before the errors above are mended"

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
    given_back_bytes: int | None = None,
    own_pids: Collection[int] | None = None,
    deadline_s: float = DEADLINE_S,
) -> PreflightReport:
    """Check `profile` on this machine.

    `names`: what the installed vLLM takes, when already known. `running_port`: where this host serves now.
    `given_back_bytes`: what the running engine holds on its devices and would free. `own_pids`: the running host's
    processes, never named as somebody else's (default: this process and its children).
    """
    return await _Run(profile, names, running_port, given_back_bytes, own_pids, deadline_s).report()


class _Run:
    """One preflight; findings are collected by check and told in the order of the checks."""

    def __init__(
        self,
        profile: Profile,
        names: ValidNames | None,
        running_port: int | None,
        given_back_bytes: int | None,
        own_pids: Collection[int] | None,
        deadline_s: float,
    ) -> None:
        self._profile = profile
        self._names = names
        self._running_port = running_port
        self._given_back_bytes = given_back_bytes
        self._own_pids = own_pids
        self._deadline_s = deadline_s
        self._unchecked: list[str] = []

    async def report(self) -> PreflightReport:
        profile = self._profile
        named = unknown_keys(profile.engine, profile.server, self._names) if self._names is not None else []
        files = await self._in_thread("files", check_files, profile.engine, profile.server)
        async with asyncio.TaskGroup() as group:
            probing = group.create_task(self._probe(files, named))
            ports = group.create_task(self._in_thread("ports", check_port, profile.server, self._running_port))
            reading = group.create_task(self._read_tokens(files))
        probed = probing.result()
        if self._names is None and probed.answer.names is not None:
            self._names = _valid_names(probed)
            named = unknown_keys(profile.engine, profile.server, self._names)
            if named:
                self._unchecked.append(_NOT_BUILT)
        facts = probed.answer.facts
        tokens = self._compare_tokenizers(files, reading.result(), probed)
        devices = await self._devices(facts)
        weighed, memory = Forecast(), list[Finding]()
        capacity: Capacity | None = None
        capacity_findings: list[Finding] = []
        if facts is not None and files is not None:
            if devices:
                weighed, memory = forecast(facts, files.model, files.draft, devices, self._given_back_bytes)
                if weighed.needed_bytes is None:
                    self._unchecked.append("memory: the size of the weights is not known")
            elif devices is None:
                self._unchecked.append("memory: what the devices have free is not known")
            capacity, capacity_findings = check_capacity(
                facts,
                weighed.kv_bytes if weighed.kv_bytes is not None else facts.kv_cache_memory_bytes,
                is_exact=weighed.is_kv_exact,
            )
        options = check_options(
            Setting(
                engine=profile.engine,
                facts=facts,
                speculation_names=self._names.nested.get(SPECULATION) if self._names is not None else None,
                machine_bytes=psutil.virtual_memory().total,
            )
        )
        findings = [
            *named,
            *probed.findings,
            *(files.findings if files is not None else []),
            *tokens,
            *memory,
            *capacity_findings,
            *(ports.result() or []),
            *options,
        ]
        if files is not None:
            self._unchecked += files.unchecked
        return PreflightReport(
            wire=Preflight(
                profile=profile.name,
                digest=profile.digest,
                ok=not any(finding.severity is Severity.ERROR for finding in findings),
                findings=findings,
                needed_bytes=weighed.needed_bytes,
                available_bytes=weighed.available_bytes,
                kv_capacity_tokens=capacity.tokens if capacity is not None else None,
                longest_tokens=capacity.longest_tokens if capacity is not None else None,
                unchecked=self._unchecked,
            ),
            fits_beside=weighed.fits_beside,
            fits_alone=weighed.fits_alone,
            needed_bytes=weighed.needed_bytes,
            facts=facts,
            vllm_version=probed.answer.vllm_version,
        )

    async def _in_thread(self, what: str, check: Callable[..., T], *arguments: object) -> T | None:
        """A check that blocks; None when it failed itself."""
        try:
            return await off_loop(check, *arguments)
        except Exception as fault:
            log.exception("the check of %s failed", what)
            self._unchecked.append(f"{what}: the check failed itself: {type(fault).__name__}: {fault}")
            return None

    async def _probe(self, files: ProfileFiles | None, named: Sequence[Finding]) -> Probed:
        from engine_host.engine.vllm_engine import installed_version

        if installed_version() is None:
            self._unchecked.append("configuration, memory and length: vLLM is not installed here")
            return Probed()
        if named or (files is not None and not files.is_buildable):
            self._unchecked.append(_NOT_BUILT)
            return Probed()
        pair = self._pair(files)
        needs_transformers = pair is not None and any(part.tokenizer_json is None for part in pair)
        directories = [part.directory for part in pair if part.directory] if pair and needs_transformers else []
        return await probe_config(
            self._profile.engine,
            self._profile.server,
            deadline_s=self._deadline_s,
            tokenizers=directories,
            samples=SAMPLES if directories else (),
        )

    def _pair(self, files: ProfileFiles | None) -> tuple[ModelFiles, ModelFiles] | None:
        """Target tokenizer and draft, when there are two to compare and both are on this machine."""
        if files is None or files.draft is None or not _has_own_tokenizer(self._profile.engine):
            return None
        if files.draft.directory is None or files.tokenizer.directory is None:
            return None
        return files.tokenizer, files.draft

    async def _read_tokens(self, files: ProfileFiles | None) -> list[Tokens] | None:
        """Of target and draft, or of the target alone; None when `tokenizers` cannot."""
        if files is None:
            return None
        paths = [files.tokenizer.tokenizer_json]
        if (pair := self._pair(files)) is not None:
            paths.append(pair[1].tokenizer_json)
        if None in paths:
            return None
        known = [path for path in paths if path is not None]
        if len(set(known)) == 1 and len(known) == 2:
            known = known[:1]  # the target as its own draft
        try:
            read = [await off_loop(read_tokens, path) for path in known]
            return read * 2 if len(paths) > len(read) else read
        except ImportError:
            self._unchecked.append("tokenizers: the library that reads them is not installed here")
        except (TokenizerError, OSError) as fault:
            self._unchecked.append(f"tokenizers: {fault}")
        return None

    def _compare_tokenizers(
        self, files: ProfileFiles | None, read: list[Tokens] | None, probed: Probed
    ) -> list[Finding]:
        if files is None:
            return []
        pair = self._pair(files)
        facts = probed.answer.facts
        has_draft = files.draft is not None and _has_own_tokenizer(self._profile.engine)
        if facts is not None and facts.speculation_method != "draft_model":
            has_draft, pair = False, None  # vLLM recognised a head by its configuration
        if read is None and len(probed.answer.tokens) == 2:
            read = [_from_probe(tokens) for tokens in probed.answer.tokens]
        if read is None:
            if has_draft and files.draft is not None:
                why = f": {probed.answer.tokens_refusal}" if probed.answer.tokens_refusal else ""
                self._unchecked.append(f"tokenizers of target and draft were not compared{why}")
                return compare_sizes(files.model, files.draft, is_same_map=None)
            return []
        alone = check_alone(read[0], files.model)
        if pair is None:
            if has_draft:
                self._unchecked.append("tokenizers of target and draft were not compared")
            return alone
        table = self._profile.engine[SPECULATION]
        return alone + compare(
            read[0], read[1], files.model, pair[1], is_heterogeneous=bool(table.get("use_heterogeneous_vocab"))
        )

    async def _devices(self, facts: ConfigFacts | None) -> list[Device] | None:
        if facts is None:
            return []
        own = self._own_pids if self._own_pids is not None else await off_loop(_family)
        try:
            async with asyncio.timeout(DEVICES_S):
                return await self._in_thread("devices", read_devices, facts.device, facts.devices, own)
        except TimeoutError:
            self._unchecked.append(f"devices: the driver did not answer within {DEVICES_S:.0f} s")
            return None


def _has_own_tokenizer(engine: Mapping[str, Any]) -> bool:
    """Whether the draft may be a model of its own: heads trained on the target's hidden states (EAGLE and its kin)
    use the target's tokenizer and ship without one."""
    table = engine.get(SPECULATION)
    return isinstance(table, Mapping) and table.get("method") in (None, "draft_model")


def _from_probe(tokens: ProbeTokens) -> Tokens:
    return Tokens(tokens.vocab, frozenset(tokens.special), tuple(tuple(ids) for ids in tokens.encodings))


def _valid_names(probed: Probed) -> ValidNames:
    from engine_host.profile import ValidNames

    assert probed.answer.names is not None
    names = probed.answer.names
    return ValidNames(engine=names.engine, server=names.server, nested=names.nested)


def _family() -> set[int]:
    """This process and its children."""
    process = psutil.Process()
    return {process.pid, *(child.pid for child in process.children(recursive=True))}
