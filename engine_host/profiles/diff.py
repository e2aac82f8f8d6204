"""What changes between two profiles, and the cheapest tier that can carry each change.

The engine's and the API's arguments are read once, when an engine is built, so they need a new engine; overlap is
named where overlap or reload is needed, as memory decides between them. What belongs to the host is live. The
listener (address, port, TLS) is opened once in the life of a host: no switch moves it, and the change says so.
"""

from __future__ import annotations

from engine_host.profiles.profile import Profile
from engine_host.profiles.shape import HIDDEN, SECRETS, leaves
from engine_host.protocol.profiles import KeyChange, ProfileDiff, Tier

LISTENER_KEYS = frozenset(
    {
        "host",
        "port",
        "uds",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_ciphers",
        "enable_ssl_refresh",
        "uvicorn_log_level",
        "disable_uvicorn_access_log",
        "h11_max_incomplete_event_size",
        "h11_max_header_count",
    }
)
"""Keys of `[server]` that the host's HTTP server reads when it starts."""

LISTENER_NOTE = "the host keeps its listener; takes effect when engine-host is started anew"

_ORDER = (Tier.NONE, Tier.LIVE, Tier.STANDBY, Tier.OVERLAP, Tier.RELOAD)


def diff_profiles(before: Profile, after: Profile) -> ProfileDiff:
    """Every key whose effective value differs, by name; secrets are said to differ and not shown."""
    old, new = leaves(before.effective()), leaves(after.effective())
    lost = lost_names(before, after)
    changes = [
        _change(key, old.get(key), new.get(key), lost)
        for key in sorted({*old, *new})
        if not (key in old and key in new and _is_same(old[key], new[key]))
    ]
    tier = max((change.tier for change in changes), key=_ORDER.index, default=Tier.NONE)
    return ProfileDiff(before=before.name, after=after.name, tier=tier, changes=changes)


def lost_names(before: Profile, after: Profile) -> list[str]:
    """Names of the model that clients may ask `before` for and that `after` does not know."""
    return [name for name in before.names_asked_for if name not in after.names_asked_for]


def tier_of(key: str) -> Tier:
    """The cheapest tier for a change of the dotted `key`. `Tier.NONE`: no switch can carry it."""
    table, _, name = key.partition(".")
    if table == "engine":
        return Tier.OVERLAP
    if table == "server":
        return Tier.NONE if name in LISTENER_KEYS else Tier.OVERLAP
    return Tier.LIVE


def _is_same(before: object, after: object) -> bool:
    """Python holds 1 and true for equal; a profile does not."""
    return type(before) is type(after) and before == after


def _change(key: str, before: object, after: object, lost: list[str]) -> KeyChange:
    if key in SECRETS:
        before, after = (HIDDEN if value else value for value in (before, after))
    tier = tier_of(key)
    note = LISTENER_NOTE if tier is Tier.NONE else ""
    if key == "engine.served_model_name" and lost:
        note = f"clients that ask for {', '.join(lost)} get 404 after it"
    return KeyChange(key=key, before=before, after=after, tier=tier, note=note)
