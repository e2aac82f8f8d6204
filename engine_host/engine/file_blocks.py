"""The beginning of a file taken out while others append to it.

Copying a file away and truncating it loses what is appended between the two. ext4 and XFS can instead drop whole blocks
at the beginning, in one step of the kernel's: whatever is appended meanwhile moves up with the rest.
"""

from __future__ import annotations

import ctypes
import os

_COLLAPSE_RANGE = 0x08
"""FALLOC_FL_COLLAPSE_RANGE, of <linux/falloc.h>."""


def whole_blocks(file: int, size: int) -> int:
    """Of the first `size` bytes, those in whole blocks, always fewer than `size`: a file cannot lose its last block."""
    block = os.fstatvfs(file).f_bsize
    return max(0, size - 1) // block * block


def take_out(file: int, size: int) -> bool:
    """Take out the first `size` bytes (see `whole_blocks`); what follows moves to the beginning. False, and nothing is
    changed, where the file system cannot do that."""
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except AttributeError:  # not Linux
        return False
    return bool(fallocate(file, _COLLAPSE_RANGE, ctypes.c_int64(0), ctypes.c_int64(size)) == 0)
