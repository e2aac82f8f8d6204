"""The machine's memory as far as this process may have it: within the limit of its control group."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Limit, use and details, of version 2 and version 1."""


def total_and_free(cgroup: Path = CGROUP) -> tuple[int, int]:
    """Bytes. Page cache that can be dropped counts as free."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    if (limit := _limit_and_used(cgroup)) is not None and limit[0] < total:
        total, free = limit[0], min(free, max(0, limit[0] - limit[1]))
    return total, free


def _limit_and_used(cgroup: Path) -> tuple[int, int] | None:
    for limit_name, used_name, stat_name in _CGROUP_FILES:
        try:
            limit = int((cgroup / limit_name).read_text())
            used = int((cgroup / used_name).read_text())
            stat = dict(line.split() for line in (cgroup / stat_name).read_text().splitlines())
        except (OSError, ValueError):
            continue  # no such file, or the word "max"
        return limit, max(0, used - int(stat.get("inactive_file", stat.get("total_inactive_file", 0))))
    return None
