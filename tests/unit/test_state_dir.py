"""The state directory: whose it is, who may look into it, and that it has one host at a time."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine_host import state_dir
from engine_host.demo import place
from engine_host.lock_file import LockFile
from engine_host.private_directory import prepare_directory
from engine_host.protocol.errors import EXIT_INVALID, OperatorError
from engine_host.state_dir import claimed_state_dir, default_state_dir

HOLDER = """
import os, sys
from pathlib import Path
from engine_host.state_dir import claimed_state_dir
with claimed_state_dir(Path(sys.argv[1]), 8000, "profile demo, port 8000"):
    if len(sys.argv) > 2 and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "HANDOVER_S", 0.1)


def start_holder(directory: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(directory), *more]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


def refused(directory: Path) -> OperatorError:
    with pytest.raises(OperatorError) as caught, claimed_state_dir(directory, 8000):
        pass
    assert caught.value.exit_code == EXIT_INVALID
    assert str(directory) in caught.value.fact
    return caught.value


def test_it_is_made_private_and_so_is_its_lock(tmp_path: Path) -> None:
    with claimed_state_dir(tmp_path / "a" / "state", 8000) as made:
        assert made == tmp_path / "a" / "state"
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert [stat.S_IMODE(found.stat().st_mode) for found in made.iterdir()] == [0o600]


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_one_that_others_may_look_into_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    error = refused(tmp_path)
    assert f"the state directory {tmp_path} has mode {mode:04o}" in error.fact
    assert error.remedy == f"chmod 0700 {tmp_path}"


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    error = refused(tmp_path)
    assert "belongs to" in error.fact
    assert "--state-dir" in error.remedy


def test_a_link_of_the_operators_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with claimed_state_dir(tmp_path / "link", 8000) as found:
        assert found == tmp_path / "real"
    (tmp_path / "real").chmod(0o755)
    assert "has mode 0755" in _refused_through(tmp_path / "link")


def _refused_through(link: Path) -> str:
    with pytest.raises(OperatorError) as caught, claimed_state_dir(link, 8000):
        pass
    return caught.value.fact


def test_one_on_a_full_disk_is_refused_and_gets_nothing_but_its_lock(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: root may write everywhere else."""
    (tmp_path / "state").mkdir(mode=0o700)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        error = refused(tmp_path / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written: File too large" in error.fact
    assert [found.name for found in (tmp_path / "state").iterdir()] == ["host.lock"]


def test_a_disk_that_fills_up_under_the_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert "cannot be written: No space left on device" in refused(tmp_path / "state").fact
    assert not (tmp_path / "state").exists()


def test_a_host_that_is_refused_leaves_no_directory_behind(tmp_path: Path) -> None:
    with pytest.raises(OperatorError), claimed_state_dir(tmp_path / "a" / "state", 8000):
        raise OperatorError("port 8000 is in use")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_was_there_or_holds_something_stays(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o700)
    with claimed_state_dir(tmp_path / "old", 8000):
        pass
    with claimed_state_dir(tmp_path / "new", 8000):
        (tmp_path / "new" / "engine.log").write_text("")
    assert {found.name for found in (tmp_path / "new").iterdir()} == {"engine.log", "host.lock"}
    assert (tmp_path / "old").exists()


def test_whoever_waited_for_a_lock_that_was_removed_takes_the_new_one(tmp_path: Path) -> None:
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    opened = LockFile._open

    def open_as_the_first_is_removed(self: LockFile) -> int:
        fd = opened(self)
        first.remove()
        return fd

    assert first.take() is None
    second._open = open_as_the_first_is_removed.__get__(second)  # type: ignore[method-assign]
    assert second.take() is None
    assert LockFile(tmp_path / "lock").take() is not None


@pytest.mark.parametrize("name", ["circle", "~no-such-user-here/state"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert "--state-dir" in refused(Path(name) if name.startswith("~") else tmp_path / name).remedy


def test_a_second_host_is_told_who_has_it_and_the_first_keeps_it(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with start_holder(directory) as holder:
        for _ in range(2):
            error = refused(directory)
            assert f"is in use by process {holder.pid} running profile demo, port 8000: " in error.fact
            assert "--state-dir" in error.remedy
        holder.communicate("")
    with claimed_state_dir(directory, 8000):
        pass


def test_a_host_that_is_just_ending_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "HANDOVER_S", 20.0)
    with start_holder(tmp_path / "state") as holder:
        assert holder.stdin is not None
        holder.stdin.close()
        began = time.monotonic()
        with claimed_state_dir(tmp_path / "state", 8000):
            assert time.monotonic() - began < 10


def test_a_forked_child_that_outlives_a_killed_host_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dir, "HANDOVER_S", 20.0)  # on a busy machine it has not run yet when the host is killed
    with start_holder(tmp_path / "state", "and fork") as holder:
        holder.kill()
        holder.wait()
        with claimed_state_dir(tmp_path / "state", 8000):
            pass
        holder.communicate("")


def test_a_host_and_a_demo_have_their_places_under_one_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir(8001) == tmp_path / "vllm-console" / "engine-host-8001"
    assert place.state_dir(8001) == tmp_path / "vllm-console" / "demo-8001"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_dir(1) == tmp_path / ".local" / "state" / "vllm-console" / "engine-host-1"


def test_nobody_is_told_to_close_a_directory_that_the_whole_machine_uses(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(OperatorError) as refused:
        prepare_directory(shared, purpose="state directory", elsewhere="choose another")
    assert refused.value.remedy == "choose another"
