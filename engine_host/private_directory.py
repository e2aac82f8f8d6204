"""A directory of the host's own: made for its owner alone, or checked to be no more open than that.

Whoever can reach the control socket as its owner can stop the host. Checked by lstat before anything is put there: a
symbolic link would be someone else's choice of place.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from engine_host.protocol.errors import OperatorError


def prepare_directory(
    directory: Path, *, purpose: str = "state directory", elsewhere: str = "choose another with --state-dir"
) -> None:
    """Make `directory` 0700, with its parents, or check that it is no more open than that.

    Raises `OperatorError`, in which `purpose` is what the directory is and `elsewhere` how to choose another.
    """
    _make(directory, purpose, elsewhere, parents=True)
    mode = _mode(_found_ours(directory, purpose, elsewhere))
    if mode & 0o077:
        raise OperatorError(
            f"the {purpose} {directory} has mode {mode:04o}, open to other users; expected 0700",
            _close(directory, mode, elsewhere),
        )


def prepare_runtime_directory(
    directory: Path, gid: int | None = None, group: str | None = None, *, may_make: bool = True
) -> None:
    """Make `directory` 0700, or 0710 and of `group` when one is given; or check that it is no more open than that.

    One that is 0700 is opened to `group`. One that was opened so for another host, or an earlier run, is taken as it
    stands when no group is given: the socket's own mode keeps the group out, and closing the directory would cut off
    those who look at the other host. Only the directory itself is ever made, and only if `may_make`: a misspelt
    `--socket` must not plant directories. Raises `OperatorError`.
    """
    purpose, elsewhere = "runtime directory", "set VLLM_CONSOLE_RUNTIME_DIR to a directory of yours"
    if not may_make and not os.path.lexists(directory):
        raise OperatorError(
            f"the directory of the control socket, {directory}, does not exist",
            f"make it (mkdir -m 0700 {directory}), or leave --socket out for the default",
        )
    _make(directory, purpose, elsewhere, parents=False)
    found = _found_ours(directory, purpose, elsewhere)
    mode = _mode(found)
    if gid is None and mode & 0o067:
        raise OperatorError(
            f"the {purpose} {directory} has mode {mode:04o}, open to other users; expected 0700",
            _close(directory, mode, elsewhere),
        )
    if gid is not None and mode & 0o777 == 0o700:
        _open_to_group(directory, gid, group)
    elif gid is not None and (mode & 0o067 or found.st_gid != gid):
        raise OperatorError(
            f"the {purpose} {directory} has mode {mode:04o} and group {_group_name(found.st_gid)}; "
            f"expected 0710 and {group}",
            f"chgrp {group} {directory} && chmod 0710 {directory}",
        )


def _make(directory: Path, purpose: str, elsewhere: str, *, parents: bool) -> None:
    try:
        directory.mkdir(mode=0o700, parents=parents)
    except FileExistsError:
        pass
    except OSError as error:
        raise OperatorError(f"cannot make the {purpose} {directory}: {error.strerror}", elsewhere) from None


def _found_ours(directory: Path, purpose: str, elsewhere: str) -> os.stat_result:
    """What is there; refuses what is no directory, another user's, or shut to its owner."""
    try:
        found = directory.lstat()
    except OSError as error:
        # A parent that is a link to nowhere "exists" when it is to be made, and does not when it is looked at.
        raise OperatorError(f"cannot make the {purpose} {directory}: {error.strerror}", elsewhere) from None
    if not stat.S_ISDIR(found.st_mode):
        raise OperatorError(
            f"the {purpose} {directory} is {kind_of(found.st_mode)}, expected a directory",
            f"remove it (rm {directory}), or {elsewhere}",
        )
    if found.st_uid != os.geteuid():
        raise OperatorError(
            f"the {purpose} {directory} belongs to {_user(found.st_uid)}, expected {_user(os.geteuid())}",
            elsewhere,
        )
    mode = _mode(found)
    if mode & 0o700 != 0o700:
        raise OperatorError(
            f"the {purpose} {directory} has mode {mode:04o}, expected 0700", _close(directory, mode, elsewhere)
        )
    return found


def _mode(found: os.stat_result) -> int:
    return stat.S_IMODE(found.st_mode)


def _close(directory: Path, mode: int, elsewhere: str) -> str:
    """The remedy for one that is too open: never advise to close a directory that the whole machine uses."""
    is_shared = bool(mode & stat.S_ISVTX) or directory.parent == directory.parent.parent
    return elsewhere if is_shared else f"chmod 0700 {directory}"


def _open_to_group(directory: Path, gid: int, group: str | None) -> None:
    try:
        os.chown(directory, -1, gid)
        directory.chmod(0o710)
    except OSError as error:
        raise OperatorError(
            f"cannot give {directory} to the group {group}: {error.strerror}", "name a group that you are a member of"
        ) from None


def kind_of(mode: int) -> str:
    for matches, name in (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISREG, "a file"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if matches(mode):
            return name
    return "a special file"


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"
