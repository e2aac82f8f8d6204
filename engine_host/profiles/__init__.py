"""Profiles: TOML files read into typed, frozen values, compared, checked, imported and exported.

Imports neither vLLM nor torch nor psutil: the same code runs on the host and in a console on a laptop.
"""

from engine_host.profiles.changes import changes
from engine_host.profiles.diff import diff_profiles
from engine_host.profiles.directory import ProfileDirectory, detail_of, find_profile
from engine_host.profiles.document import MAX_PROFILE_BYTES, read_document
from engine_host.profiles.keys import ValidNames, check_keys
from engine_host.profiles.profile import (
    EngineArguments,
    Profile,
    build_profile,
    check_files,
    digest_of,
    load_profile,
)
from engine_host.profiles.shape import Switch

__all__ = [
    "MAX_PROFILE_BYTES",
    "EngineArguments",
    "Profile",
    "ProfileDirectory",
    "Switch",
    "ValidNames",
    "build_profile",
    "changes",
    "check_files",
    "check_keys",
    "detail_of",
    "diff_profiles",
    "digest_of",
    "find_profile",
    "load_profile",
    "read_document",
]
