"""Where an engine's sockets are: short enough for one, and private."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from engine_host.protocol.sockets import MAX_SOCKET_PATH_BYTES
from engine_host.scratch_dir import make_scratch_dir

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


def test_where_that_is_too_long_for_a_socket_another_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = tmp_path / ("x" * 60)
    longer.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(longer))
    made = make_scratch_dir()
    assert made is not None
    made.rmdir()
    assert made.parent == Path("/tmp")
    assert len(str(made / SOCKET)) <= MAX_SOCKET_PATH_BYTES
