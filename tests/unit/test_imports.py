"""Who may import whom, checked twice: by import-linter in the source, and by looking at what a fresh process loads.

The linter sees imports inside functions, and none that are made by name; the process sees what really happens.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("vllm", "torch", "numpy", "transformers")
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT, "--config", "pyproject.toml", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=100)


def loaded_by(statement: str, among: tuple[str, ...]) -> list[str]:
    """Which of the top-level modules `among` a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps([name for name in {among!r} if name in sys.modules]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    found: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_the_source_keeps_its_contracts() -> None:
    ended = lint(ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", ended.stdout)


@pytest.mark.parametrize(
    ("file", "statement", "contract"),
    [
        ("console/__init__.py", "import vllm", "The console never needs"),
        ("console/__init__.py", "import engine_host.control.server", "The console never needs"),
        ("console/__init__.py", "import engine_host.telemetry.event_log", "The console never needs"),
        ("engine_host/protocol/methods.py", "import psutil", "The wire types stand alone"),
        ("engine_host/protocol/envelope.py", "import engine_host.engine.port", "The wire types stand alone"),
        ("engine_host/engine/port.py", "import vllm", "vLLM is imported in one package"),
        ("engine_host/control/session.py", "def later():\n    import vllm.config", "vLLM is imported in one package"),
        ("engine_host/profiles/keys.py", "import torch", "Torch is imported nowhere else"),
        ("engine_host/preflight/tokens.py", "def later():\n    import torch", "Torch is imported nowhere else"),
        ("engine_host/profiles/diff.py", "import psutil", "Profiles work on a laptop"),
        ("engine_host/profiles/profile.py", "import engine_host.engine.port", "Profiles work on a laptop"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(tmp_path: Path, file: str, statement: str, contract: str) -> None:
    """A contract that could not fail would be no contract."""
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("console", "engine_host"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / file
    path.write_text(path.read_text() + f"\n{statement}\n")
    ended = lint(tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert re.search(rf"{contract}.* BROKEN", ended.stdout), ended.stdout


@pytest.mark.parametrize("module", ["envelope", "errors", "events", "frames", "methods", "snapshot", "sockets"])
def test_the_wire_types_load_nothing_but_msgspec(module: str) -> None:
    among = (*HEAVY, "textual", "rich", "psutil", "httpx", "console")
    assert loaded_by(f"import engine_host.protocol.{module}", among) == []


@pytest.mark.parametrize(
    "module",
    [
        "engine.port",
        "engine.lifecycle",
        "engine.vllm.adapter",
        "engine.vllm.arguments",
        "engine.vllm.config_probe",
        "control.server",
        "telemetry.event_log",
        "telemetry.machine",
        "profiles",
        "preflight.preflight",
        "preflight.report",
    ],
)
def test_the_host_loads_no_vllm_before_it_starts_an_engine(module: str) -> None:
    assert loaded_by(f"import engine_host.{module}", (*HEAVY, "textual", "rich", "pynvml")) == []


@pytest.mark.parametrize("module", ["", ".importer", ".exporter", ".schema", ".shape_check"])
def test_profiles_work_on_a_laptop(module: str) -> None:
    among = (*HEAVY, "textual", "rich", "psutil", "httpx", "console")
    assert loaded_by(f"import engine_host.profiles{module}", among) == []


def test_the_look_at_a_process_would_see_a_forbidden_module() -> None:
    assert loaded_by("import psutil", ("psutil", "vllm")) == ["psutil"]
