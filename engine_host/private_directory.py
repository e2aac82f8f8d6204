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
    directory: Path,
    gid: int | None = None,
    group: str | None = None,
    *,
    purpose: str = "runtime directory",
    elsewhere: str = "set VLLM_CONSOLE_RUNTIME_DIR to a directory of yours",
) -> None:
    """Make `directory` 0700 (0710 and of `group` when one is given), or check that it is no more open than that.

    Raises `OperatorError`, in which `purpose` is what the directory is and `elsewhere` how to choose another.
    """
    try:
        directory.mkdir(mode=0o700, parents=True)
        made = True
    except FileExistsError:
        made = False
    except OSError as error:
        raise OperatorError(
            f"cannot make the {purpose} {directory}: {error.strerror}",
            elsewhere,
        ) from None
    found = directory.lstat()
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
    if made and gid is not None:
        _open_to_group(directory, gid, group)
        return
    mode = stat.S_IMODE(found.st_mode)
    # Never advise to close a directory that the whole machine uses.
    is_shared = bool(mode & stat.S_ISVTX) or directory.parent == directory.parent.parent
    mend = elsewhere if is_shared else f"chmod 0700 {directory}"
    if mode & 0o700 != 0o700:
        raise OperatorError(f"the {purpose} {directory} has mode {mode:04o}, expected 0700", mend)
    if gid is None and mode & 0o077:
        raise OperatorError(
            f"the {purpose} {directory} has mode {mode:04o}, open to other users; expected 0700",
            mend,
        )
    if gid is not None and (mode & 0o067 or not mode & 0o010 or found.st_gid != gid):
        raise OperatorError(
            f"the {purpose} {directory} has mode {mode:04o} and group {_group_name(found.st_gid)}; "
            f"expected 0710 and {group}",
            f"chgrp {group} {directory} && chmod 0710 {directory}",
        )


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
