"""What each way into the console loads, asked of a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("vllm", "torch", "numpy", "transformers", "engine_host.engine", "engine_host.telemetry", "engine_host.control")


def loaded(code: str) -> set[str]:
    script = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import console.cli",
        "import console.tui.app, console.tui.screens.confirm, console.tui.screens.profiles",
        "import console.tui.screens.kv, console.tui.screens.queue, console.tui.screens.dials",
        "import console.tui.screens.speculation, console.tui.screens.throttle",
    ],
)
def test_the_console_needs_neither_vllm_nor_what_it_drags_in(code):
    assert not loaded(code) & set(HEAVY)


@pytest.mark.parametrize(
    "code",
    [
        "import console.cli",
        "import console.commands.status, console.commands.events, console.commands.change",
        "import console.commands.screen",
        "import console.commands.switch, console.forecast_panels",
        "import console.commands.profiles, console.commands.profiles_text, console.commands.profiles_exchange",
    ],
)
def test_commands_load_no_terminal_toolkit_and_no_http_client(code):
    assert not loaded(code) & {"textual", "httpx", "prometheus_client", "psutil"}


@pytest.mark.parametrize("command", ["status --json", "events --json", "switch --status --json"])
def test_a_command_for_a_script_does_not_load_rich(command, tmp_path):
    code = f"""
from console.cli import main
main({command.split()!r} + ["-t", {str(tmp_path / "none.sock")!r}])
import console.commands.{command.split()[0]}
"""
    assert not loaded(code) & {"textual", "rich", "rich.console"}


def test_the_overview_needs_no_list_widgets():
    assert not loaded("import console.tui.app") & {"textual.widgets._data_table", "httpx"}


LATER = ("profiles", "confirm", "kv", "queue", "speculation", "dials", "throttle", "entry", "events")


def test_the_first_page_does_not_wait_for_the_screens_behind_it():
    assert not loaded("import console.tui.app") & {f"console.tui.screens.{name}" for name in LATER}
