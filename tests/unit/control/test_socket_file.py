"""The socket as a file: who may have the path, and what is told to whoever may not."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_host.control.socket_file import SocketFile
from engine_host.private_directory import prepare_runtime_directory
from engine_host.protocol.errors import OperatorError

HOLDER = """
import sys, time
from pathlib import Path
from engine_host.control.socket_file import SocketFile
file = SocketFile(Path(sys.argv[1]), label="profile demo")
listener = file.claim()
print("ready", flush=True)
{then}
sys.stdin.read()
"""


def start_holder(path: Path, then: str = "") -> subprocess.Popen[str]:
    """Another process that holds the socket at `path`."""
    command = [sys.executable, "-c", HOLDER.format(then=then), str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_the_directory_is_private_and_so_is_the_socket(short_dir: Path) -> None:
    file = SocketFile(short_dir / "run" / "host.sock")
    with file.claim():
        assert mode_of(short_dir / "run") == 0o700
        assert mode_of(file.path) == 0o600
        assert mode_of(file.lock_path) == 0o600
    file.release()
    assert not file.path.exists()


def test_a_group_may_reach_the_socket_and_nothing_else(short_dir: Path) -> None:
    import grp

    group = grp.getgrgid(os.getgid())
    file = SocketFile(short_dir / "run" / "host.sock", group=group.gr_name)
    with file.claim():
        assert mode_of(short_dir / "run") == 0o710
        assert mode_of(file.path) == 0o660
        assert file.path.stat().st_gid == group.gr_gid
    file.release()


def test_an_unknown_group_is_refused(short_dir: Path) -> None:
    with pytest.raises(OperatorError, match='no group "no-such-group"'):
        SocketFile(short_dir / "host.sock", group="no-such-group")


def a_file(path: Path) -> None:
    path.write_text("")


def a_link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def shut_to_its_owner(path: Path) -> None:
    path.mkdir(mode=0o500)


@pytest.mark.parametrize(
    ("make", "found", "remedy"),
    [
        (a_file, "is a file, expected a directory", "rm "),
        (a_link, "is a symbolic link, expected a directory", "rm "),
        (a_link_to_nowhere, "is a symbolic link, expected a directory", "rm "),
        (open_to_all, "has mode 0755, open to other users; expected 0700", "chmod 0700"),
        (shut_to_its_owner, "has mode 0500, expected 0700", "chmod 0700"),
    ],
)
def test_a_directory_that_is_not_as_it_must_be_is_refused(
    short_dir: Path, make: Callable[[Path], None], found: str, remedy: str
) -> None:
    directory = short_dir / "run"
    make(directory)
    with pytest.raises(OperatorError) as caught:
        SocketFile(directory / "host.sock").claim()
    assert str(directory) in caught.value.fact
    assert found in caught.value.fact
    assert remedy in caught.value.remedy


def test_a_directory_of_another_user_is_refused(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = short_dir / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    with pytest.raises(OperatorError, match=r"belongs to .*, expected uid"):
        prepare_runtime_directory(directory)


def test_a_directory_made_for_its_owner_alone_is_opened_when_a_group_is_to_reach_it(short_dir: Path) -> None:
    directory = short_dir / "run"
    SocketFile(directory / "host.sock").claim().close()
    prepare_runtime_directory(directory, gid=os.getgid(), group="ops")
    assert mode_of(directory) == 0o710
    assert directory.stat().st_gid == os.getgid()


def test_a_directory_opened_to_a_group_serves_a_host_without_one_too(short_dir: Path) -> None:
    """Closing it would cut off those who look at another host in it; the socket keeps the group out by itself."""
    directory = short_dir / "run"
    prepare_runtime_directory(directory, gid=os.getgid(), group="ops")
    file = SocketFile(directory / "host.sock")
    with file.claim():
        assert mode_of(directory) == 0o710
        assert mode_of(file.path) == 0o600
    file.release()


def test_a_directory_of_another_group_is_not_taken_from_it(short_dir: Path) -> None:
    directory = short_dir / "run"
    prepare_runtime_directory(directory, gid=os.getgid(), group="ops")
    with pytest.raises(OperatorError) as caught:
        prepare_runtime_directory(directory, gid=os.getgid() + 4242, group="others")
    assert caught.value.remedy == f"chgrp others {directory} && chmod 0710 {directory}"


def test_only_the_runtime_directory_itself_is_made(short_dir: Path) -> None:
    with pytest.raises(OperatorError) as caught:
        SocketFile(short_dir / "nope" / "host.sock").claim()
    assert f"{short_dir}/nope, does not exist" in caught.value.fact
    assert f"mkdir -m 0700 {short_dir}/nope" in caught.value.remedy
    assert not (short_dir / "nope").exists()


def test_a_directory_below_a_link_to_nowhere_is_refused(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short_dir / "link").symlink_to(short_dir / "nowhere")
    monkeypatch.setenv("VLLM_CONSOLE_RUNTIME_DIR", f"{short_dir}/link/run")
    with pytest.raises(OperatorError, match=f"runtime directory {short_dir}/link/run: No such file"):
        SocketFile(short_dir / "link" / "run" / "host.sock").claim()


def test_a_path_that_is_too_long_is_refused_before_anything_is_made(short_dir: Path) -> None:
    path = short_dir / ("x" * 100) / "host.sock"
    with pytest.raises(OperatorError, match="the system allows 107"):
        SocketFile(path).claim()
    assert not path.parent.exists()


def test_a_second_host_is_told_who_holds_the_socket(short_dir: Path) -> None:
    path = short_dir / "run" / "host.sock"
    with start_holder(path) as holder:
        with pytest.raises(OperatorError) as caught:
            SocketFile(path).claim()
        assert f"process {holder.pid} running profile demo: " in caught.value.fact
        assert sys.executable in caught.value.fact
        assert f"vllm-console -t {path}" in caught.value.remedy
        assert path.exists()
        holder.communicate("")


def test_the_socket_of_a_killed_host_is_replaced(short_dir: Path) -> None:
    path = short_dir / "run" / "host.sock"
    with start_holder(path) as holder:
        holder.kill()
        holder.communicate()
    assert path.exists()
    file = SocketFile(path)
    with file.claim(), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    file.release()


def test_a_forked_child_that_outlives_its_host_does_not_keep_the_socket(short_dir: Path) -> None:
    """As an engine core may, when its parent is killed."""
    path = short_dir / "run" / "host.sock"
    fork = "import os\nif os.fork() == 0:\n    print(os.getpid(), flush=True); sys.stdin.read(); os._exit(0)"
    with start_holder(path, then=fork) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives
        file = SocketFile(path)
        with file.claim():
            assert path.exists()
        file.release()
        holder.communicate("")


def test_a_live_socket_without_our_lock_is_not_replaced(short_dir: Path) -> None:
    directory = short_dir / "run"
    directory.mkdir(mode=0o700)
    path = directory / "host.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(OperatorError, match=f"in use by process {os.getpid()}"):
            SocketFile(path).claim()
        assert path.exists()


def test_a_file_in_the_place_of_the_socket_is_left_alone(short_dir: Path) -> None:
    directory = short_dir / "run"
    directory.mkdir(mode=0o700)
    path = directory / "host.sock"
    path.write_text("precious")
    with pytest.raises(OperatorError, match="is a file, not a socket"):
        SocketFile(path).claim()
    assert path.read_text() == "precious"


def test_a_claim_that_fails_leaves_no_lock_behind(short_dir: Path) -> None:
    directory = short_dir / "run"
    directory.mkdir(mode=0o700)
    path = directory / "host.sock"
    path.mkdir()
    file = SocketFile(path)
    with pytest.raises(OperatorError):
        file.claim()
    path.rmdir()
    with SocketFile(path).claim():
        pass


def test_a_disk_too_full_for_the_lock_is_told(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OperatorError, match="No space left on device"):
        SocketFile(short_dir / "run" / "host.sock").claim()


def test_a_lock_file_that_is_a_link_is_not_followed(short_dir: Path) -> None:
    directory = short_dir / "run"
    directory.mkdir(mode=0o700)
    (directory / "host.sock.lock").symlink_to(short_dir / "victim")
    with pytest.raises(OperatorError, match="lock file"):
        SocketFile(directory / "host.sock").claim()
    assert not (short_dir / "victim").exists()


def test_a_socket_that_was_replaced_meanwhile_is_not_removed(short_dir: Path) -> None:
    path = short_dir / "run" / "host.sock"
    file = SocketFile(path)
    with file.claim(), socket.socket(socket.AF_UNIX) as other:
        path.unlink()
        other.bind(str(path))
        file.release()
        assert path.exists()
    file.release()
