"""A whole preflight, with the answers of vLLM and of the devices in a test's hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engine_host.engine.vllm.releases
from engine_host.preflight import preflight, questions
from engine_host.preflight.child import Ended
from engine_host.preflight.config import ProbeAnswer, Probed, ProbeNames
from engine_host.preflight.devices import Device
from engine_host.preflight.preflight import PreflightReport, run_preflight
from engine_host.preflight.tokenizer_process import Request, answer
from engine_host.profiles import Profile, ValidNames, load_profile
from tests.unit.preflight.facts import GIB, facts
from tests.unit.preflight.models import make_model

SPECULATION = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "use_heterogeneous_vocab")
ENGINE_NAMES = ("model", "tokenizer", "max_model_len", "block_size", "kv_cache_memory_bytes", "speculative_config")
NAMES = ValidNames(engine=ENGINE_NAMES, server=("host", "port"), nested={"speculative_config": SPECULATION})
PROBE_NAMES = ProbeNames(
    engine=list(ENGINE_NAMES), server=["host", "port"], nested={"speculative_config": list(SPECULATION)}
)


ROOMY = facts(max_model_len=1600)
"""Two requests of that length fit, so that there is nothing to tell."""


class Machine:
    """What vLLM and the devices answer."""

    def __init__(self) -> None:
        self.answer = ProbeAnswer(vllm_version="0.32.0", names=PROBE_NAMES, facts=ROOMY)
        self.findings: list[Any] = []
        self.devices: list[Device] | None = [Device("this machine", 24 * GIB, 16 * GIB)]
        self.probed_with: list[dict[str, Any]] = []
        self.engine_pids: Any = None

    async def probe(self, engine: Any, server: Any, **how: Any) -> Probed:
        self.probed_with.append(how)
        return Probed(answer=self.answer, findings=self.findings)

    async def ask_child(self, command: Any, request: bytes, deadline_s: float, environment: Any) -> Ended:
        """The comparison of tokenizers without its process."""
        return Ended(msgspec.json.encode(answer(msgspec.json.decode(request, type=Request))), [], 0)

    def read_devices(self, kind: str, count: int, own_pids: Any, engine_pids: Any) -> list[Device] | None:
        self.engine_pids = engine_pids
        return self.devices

    def resolves(self, **changes: Any) -> None:
        self.answer = msgspec.structs.replace(self.answer, facts=facts(**{"max_model_len": 1600, **changes}))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(questions, "probe_config", machine.probe)
    monkeypatch.setattr(questions, "ask_child", machine.ask_child)
    monkeypatch.setattr(preflight, "read_devices", machine.read_devices)
    monkeypatch.setattr(engine_host.engine.vllm.releases, "installed_version", lambda: "0.32.0")
    return machine


Write = Callable[..., Profile]


@pytest.fixture
def profile(tmp_path: Path) -> Write:
    target = make_model(tmp_path / "target")

    def write(engine: str = "", speculation: str = "", port: int = 1) -> Profile:
        path = tmp_path / "some.toml"
        table = f"[engine.speculative_config]\n{speculation}\n" if speculation else ""
        path.write_text(f'schema = 1\n[engine]\nmodel = "{target}"\n{engine}\n{table}[server]\nport = {port}\n')
        return load_profile(path)

    return write


def check(profile: Profile, **how: Any) -> Awaitable[PreflightReport]:
    return run_preflight(profile, names=how.pop("names", NAMES), running_port=how.pop("running_port", 1), **how)


def ids(report: PreflightReport) -> list[str]:
    return [finding.id for finding in report.wire.findings]
