"""Field case 21: a port in use is named before anything is stopped."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_host.preflight.ports import check_port
from engine_host.protocol.events import Severity
from tests.ports import free_port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_refused_with_the_process_that_holds_it(taken: int) -> None:
    (finding,) = check_port({"port": taken}, None)
    assert (finding.id, finding.severity) == ("port.in_use", Severity.ERROR)
    assert str(taken) in finding.text and f"process {os.getpid()}" in finding.text


def test_the_port_of_the_running_host_is_fine(taken: int) -> None:
    assert check_port({"port": taken}, taken) == []
    assert check_port({}, taken) == []


def test_a_switch_keeps_its_port_so_that_another_in_use_only_warns(taken: int) -> None:
    (finding,) = check_port({"port": taken}, 18999)
    assert (finding.id, finding.severity) == ("port.in_use", Severity.WARNING)
    assert "stays on 18999" in finding.text


def test_a_free_port_is_fine_and_stays_free(taken: int) -> None:
    port = free_port()
    assert check_port({"port": port}, taken) == []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))


def test_an_address_of_another_machine_is_told() -> None:
    (finding,) = check_port({"host": "192.0.2.1", "port": 8000}, None)
    assert finding.id == "port.address" and "192.0.2.1:8000" in finding.text


def test_what_is_no_port_is_told() -> None:
    assert [finding.id for finding in check_port({"port": 99999}, None)] == ["port.invalid"]


def test_the_port_of_another_engine_host_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "engine-host").write_text(
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "./engine-host", "serve"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        (finding,) = check_port({"port": int(host.stdout.readline())}, None)
        host.communicate()
    assert (finding.id, finding.severity) == ("port.engine_host", Severity.INFO)
    assert f"process {host.pid}" in finding.text
