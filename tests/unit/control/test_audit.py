"""The audit log on disk."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from engine_host.control.audit import AuditLog
from engine_host.protocol.errors import OperatorError


def numbers_in(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def files_in(directory: Path) -> set[Path]:
    return set(directory.iterdir())


async def test_a_record_is_one_line_in_a_private_file(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "state" / "audit.jsonl")
    await log.write({"n": 1, "reason": "two\nlines"})
    await log.write({"n": 2})
    assert numbers_in(log.path) == [1, 2]
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700


async def test_a_file_that_was_opened_up_is_made_private_again(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.path.write_text("")
    log.path.chmod(0o644)
    await log.write({"n": 1})
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


async def test_it_appends_to_what_an_earlier_host_wrote(tmp_path: Path) -> None:
    await AuditLog(tmp_path / "audit.jsonl").write({"n": 1})
    await AuditLog(tmp_path / "audit.jsonl").write({"n": 2})
    assert numbers_in(tmp_path / "audit.jsonl") == [1, 2]


async def test_a_line_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.path.write_text('{"n": 1}\n{"n": ')
    await log.write({"n": 3})
    assert log.path.read_text().splitlines() == ['{"n": 1}', '{"n": ', '{"n":3}']


async def test_it_is_rotated_by_size_and_keeps_a_number_of_files(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", max_bytes=40, keep=2)
    for number in range(10, 30):
        await log.write({"n": number})
    files = [tmp_path / name for name in ("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl")]
    assert files_in(tmp_path) == set(files)
    found = [number for file in files for number in numbers_in(file)]
    assert found == list(range(30 - len(found), 30))
    assert all(file.stat().st_size <= 40 for file in files)


async def test_every_record_is_synced_and_not_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(threading.get_ident()))
    await AuditLog(tmp_path / "audit.jsonl").write({"n": 1})
    assert synced
    assert threading.get_ident() not in synced


async def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(OperatorError, match="cannot be written"):
        await AuditLog(tmp_path / "audit.jsonl").write({"n": 1})
    assert not (tmp_path / "victim").exists()


async def test_a_full_disk_is_told_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OperatorError) as caught:
        await AuditLog(tmp_path / "audit.jsonl").write({"n": 1})
    assert "No space left on device" in caught.value.fact
    assert "df" in caught.value.remedy


async def test_a_disk_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda fd: answers.wait(10))
    log = AuditLog(tmp_path / "audit.jsonl", timeout_s=0.05)
    with pytest.raises(OperatorError, match="no answer from the disk"):
        await log.write({"n": 1})
    answers.set()
    log.close()
