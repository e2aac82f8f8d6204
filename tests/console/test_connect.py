"""Which host is meant."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from console.connect import Target, is_listening, resolve
from engine_host.protocol.errors import EXIT_INVALID, EXIT_UNREACHABLE, OperatorError


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setenv("VLLM_CONSOLE_RUNTIME_DIR", str(directory))
    monkeypatch.delenv("VLLM_CONSOLE_TARGET", raising=False)
    return directory


@pytest.fixture
def listen():
    opened = []

    def at(path: Path) -> Path:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()
        opened.append(server)
        return path

    yield at
    for server in opened:
        server.close()


def left_behind(path: Path) -> Path:
    """As by a host that was killed: the file stays, nobody listens."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    return path


def refused(text: str | None = None, environ: dict[str, str] | None = None) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        resolve(text, environ or {})
    return caught.value


def test_the_one_socket_of_the_runtime_directory_is_meant(runtime, listen):
    path = listen(runtime / "engine-host-8000.sock")
    assert resolve(None, {}) == Target(path)


def test_a_named_socket_wins_over_the_variable_and_that_over_the_directory(runtime, listen, tmp_path):
    listen(runtime / "engine-host-8000.sock")
    named, variable = listen(tmp_path / "a.sock"), listen(tmp_path / "b.sock")
    assert resolve(str(named), {"VLLM_CONSOLE_TARGET": str(variable)}) == Target(named)
    assert resolve(None, {"VLLM_CONSOLE_TARGET": str(variable)}) == Target(variable)


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_target_is_refused_though_one_host_runs(runtime, listen, empty):
    """`-t "$SOCKET"` with a variable that was never set must not reach whichever host there is."""
    listen(runtime / "engine-host-8000.sock")
    error = refused(empty)
    assert error.exit_code == EXIT_INVALID
    assert "the target is empty" in error.fact


def test_no_host_is_an_error_that_says_how_to_start_one(runtime):
    error = refused()
    assert error.exit_code == EXIT_UNREACHABLE
    assert "engine-host serve PROFILE" in error.remedy


def test_a_runtime_directory_that_was_never_made_is_no_host(runtime):
    runtime.rmdir()
    assert refused().exit_code == EXIT_UNREACHABLE


def test_several_hosts_are_listed_and_none_is_chosen(runtime, listen):
    first, second = listen(runtime / "engine-host-8000.sock"), listen(runtime / "engine-host-8001.sock")
    error = refused()
    assert error.exit_code == EXIT_INVALID
    assert str(first) in error.fact
    assert str(second) in error.fact


def test_the_socket_of_a_killed_host_does_not_make_the_living_one_ambiguous(runtime, listen):
    left_behind(runtime / "engine-host-8000.sock")
    path = listen(runtime / "engine-host-8001.sock")
    assert resolve(None, {}) == Target(path)


def test_only_dead_sockets_are_no_host(runtime):
    left_behind(runtime / "engine-host-8000.sock")
    left_behind(runtime / "engine-host-8001.sock")
    error = refused()
    assert error.exit_code == EXIT_UNREACHABLE
    assert "2 left behind" in error.fact


def test_other_files_in_the_runtime_directory_are_no_hosts(runtime):
    (runtime / "notes.sock").write_text("no socket")
    assert refused().exit_code == EXIT_UNREACHABLE


@pytest.mark.parametrize("text", ["ssh://ops@gpu-7", "http://gpu-7:8000", "https://gpu-7:8000"])
def test_targets_of_later_releases_are_refused_by_name(text):
    error = refused(text)
    assert error.exit_code == EXIT_INVALID
    assert "not supported by this release" in error.fact


def test_an_unknown_scheme_is_refused():
    error = refused("ftp://gpu-7")
    assert error.exit_code == EXIT_INVALID
    assert "ftp://" in error.fact


def test_a_missing_socket_cannot_be_connected_to(tmp_path):
    error = refused(str(tmp_path / "none.sock"))
    assert error.exit_code == EXIT_UNREACHABLE
    assert "none.sock" in error.fact


def test_a_file_that_is_no_socket_is_invalid(tmp_path):
    path = tmp_path / "profile.toml"
    path.touch()
    error = refused(str(path))
    assert error.exit_code == EXIT_INVALID
    assert "not a socket" in error.fact


def test_a_path_too_long_for_a_socket_says_how_long_it_may_be(tmp_path):
    error = refused(str(tmp_path / ("x" * 120)))
    assert error.exit_code == EXIT_INVALID
    assert "107" in error.fact


def test_listening_is_told_from_left_behind(tmp_path, listen):
    assert is_listening(listen(tmp_path / "a.sock"))
    assert not is_listening(left_behind(tmp_path / "b.sock"))
    assert not is_listening(tmp_path / "c.sock")
