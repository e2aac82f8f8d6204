"""What has changed in a directory of profiles between two looks at it.

Nothing of a directory is cached: every question reads its files. This is for whoever has just edited them and wants to
know that the host sees what was meant, and which of them it refuses.
"""

from __future__ import annotations

from engine_host.protocol.profiles import ProfileChanges, ProfileList


def changes(before: ProfileList, after: ProfileList, since: float) -> ProfileChanges:
    """`since`: Unix time of `before`."""
    old = {one.name: one.digest for one in before.profiles}
    new = {one.name: one.digest for one in after.profiles}
    added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    broken = {one.name: one.error for one in after.profiles if one.error is not None}
    told = {"added": added, "removed": removed, "changed": changed, "refused": list(broken)}
    parts = [f"{what}: {', '.join(names)}" for what, names in told.items() if names]
    if any(one.is_running and one.has_changed for one in after.profiles):
        parts.append("the running profile's file has changed; switch to it to apply that")
    found = "1 profile" if len(new) == 1 else f"{len(new)} profiles"
    return ProfileChanges(
        directory=after.directory,
        since=since,
        added=added,
        removed=removed,
        changed=changed,
        broken=broken,
        text=f"{found} in {after.directory}; " + ("; ".join(parts) if parts else "nothing has changed"),
    )
