"""`engine-host` as an operator types it, as far as that needs no engine."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine_host import cli
from engine_host.preflight import preflight, report
from engine_host.protocol.errors import EXIT_INVALID
from engine_host.state_dir import claimed_state_dir
from tests.ports import free_port

PROFILE = 'schema = 1\n[engine]\nmodel = "org/name"\n[server]\n'


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VLLM_CONSOLE_RUNTIME_DIR": str(directory / "run"), "XDG_STATE_HOME": str(directory)}
    command = [sys.executable, "-m", "engine_host.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('port = "abc"', "server.port"),
        ("port = 70000", "server.port"),
        ("host = 5", "server.host"),
        ('ssl_certfile = "/no/such.pem"', "server.ssl_certfile"),
        ('uvicorn_log_level = "loud"', "server.uvicorn_log_level"),
        ('uds = "/run/api.sock"', "server.uds"),
    ],
)
def test_a_mistake_in_server_is_told_before_anything_is_started(tmp_path: Path, line: str, key: str) -> None:
    (tmp_path / "p.toml").write_text(PROFILE + line + "\n")
    served = run(tmp_path, "serve", str(tmp_path / "p.toml"))
    assert served.returncode == EXIT_INVALID
    assert served.stderr.startswith(f"engine-host: {key}")
    assert "\n  " in served.stderr
    assert "Traceback" not in served.stderr
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "vllm-console").exists()


def test_two_hosts_do_not_share_a_state_directory(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROFILE)
    with claimed_state_dir(tmp_path / "state", 8000, "profile other, port 8000"):
        served = run(tmp_path, "serve", str(tmp_path / "p.toml"), "--state-dir", str(tmp_path / "state"))
    assert served.returncode == EXIT_INVALID
    assert f"in use by process {os.getpid()} running profile other, port 8000" in served.stderr
    assert not (tmp_path / "run").exists()


def test_a_host_whose_port_is_taken_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROFILE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        served = run(tmp_path, "serve", str(tmp_path / "p.toml"), "--port", str(taken.getsockname()[1]))
    assert served.returncode == EXIT_INVALID
    assert "is in use by" in served.stderr
    assert [found.name for found in tmp_path.iterdir()] == ["p.toml"]


def test_a_socket_in_a_directory_that_is_not_there_is_refused_and_makes_none(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROFILE)
    port = str(free_port())
    misspelt = str(tmp_path / "nope" / "x.sock")
    served = run(tmp_path, "serve", str(tmp_path / "p.toml"), "--port", port, "--socket", misspelt)
    assert served.returncode == EXIT_INVALID
    assert "nope, does not exist" in served.stderr
    assert [found.name for found in tmp_path.iterdir()] == ["p.toml"]


def test_check_finds_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text(PROFILE + "port = 70000\n")
    assert cli.main(["check", str(tmp_path / "p.toml"), "--json"]) == EXIT_INVALID
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["error"].startswith("server.port = 70000")
    assert told["remedy"]


def test_a_check_is_told_on_a_terminal_that_lacks_its_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checked(profile: object) -> object:
        return SimpleNamespace(ok=True)

    monkeypatch.setattr(preflight, "run_preflight", checked)
    monkeypatch.setattr(report, "as_text", lambda found: "token 7 is 'ja\u017a\u0144'")
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii", write_through=True))
    (tmp_path / "p.toml").write_text(PROFILE)
    assert cli.main(["check", str(tmp_path / "p.toml")]) == 0
    assert out.getvalue() == b"token 7 is 'ja\\u017a\\u0144'\n"
