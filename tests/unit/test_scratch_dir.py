"""Where an engine's sockets are: short enough for one, and private."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from engine_host.protocol.sockets import MAX_SOCKET_PATH_BYTES
from engine_host.scratch_dir import make_dir_for_sockets, make_scratch_dir

SOCKET = "12345678/01e8508a-4dbe-42a3-8748-d12444457730"


def test_it_is_private_and_below_the_directory_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        made = make_scratch_dir()
        assert made is not None and made.parent == Path(place)
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert len(str(made / SOCKET)) <= MAX_SOCKET_PATH_BYTES


def test_it_is_where_the_operator_wants_vllms_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", place)
        made = make_scratch_dir()
        assert made is not None and made.parent == Path(place)


def test_where_that_is_too_long_for_a_socket_another_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = tmp_path / ("x" * 60)
    longer.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(longer))
    made = make_scratch_dir()
    assert made is not None
    made.rmdir()
    assert made.parent == Path("/tmp")
    assert len(str(made / SOCKET)) <= MAX_SOCKET_PATH_BYTES


def test_each_engine_gets_a_directory_also_after_old_temporary_files_were_cleared_up(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    first = make_dir_for_sockets(scratch)
    second = make_dir_for_sockets(scratch)
    assert first is not None and second is not None and first != second
    assert {stat.S_IMODE(path.stat().st_mode) for path in (scratch, first, second)} == {0o700}


def test_a_scratch_directory_that_somebody_else_has_put_there_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert make_dir_for_sockets(tmp_path / "link") is None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    assert make_dir_for_sockets(tmp_path) is None
    assert make_dir_for_sockets(tmp_path / "gone" / "scratch") is None
