"""Values of another kind than their argument takes: a text for a switch, a word for a number.

The rule for a text where true or false is meant is field case 12: `"false"` is a text, and a text counts as true
wherever vLLM does not look twice. The kinds are those of the vLLM that this release was written against, so all else
only warns.
"""

from __future__ import annotations

import re

from engine_host.profiles import Profile
from engine_host.profiles.shape_check import wrong_kinds
from engine_host.protocol.profiles import Finding

from .findings import error, warning


def check_kinds(profile: Profile) -> list[Finding]:
    findings = []
    for wrong in wrong_kinds(profile):
        if wrong.is_text_for_a_flag:
            findings.append(
                error(
                    "option.text_flag",
                    f"{wrong.key} = {wrong.value!r} is a text, and a text counts as true wherever vLLM does not look "
                    "twice",
                    f"write true or false without quotes: {wrong.key.rpartition('.')[2]} = "
                    f"{'false' if str(wrong.value).strip().lower() in _NO else 'true'}",
                )
            )
        else:
            findings.append(
                warning(
                    "option.kind",
                    f"{wrong.key} = {wrong.value!r}: vLLM takes {wrong.wanted} there",
                    f"write {wrong.wanted}, or leave it out",
                )
            )
    return findings


def with_refusal(kinds: list[Finding], built: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """What was only a warning is an error once vLLM refuses, and tells the key where vLLM's own words do not: "'<' not
    supported between instances of 'int' and 'str'"."""
    wrong = [found for found in kinds if found.id == "option.kind"]
    if not wrong or not any(found.id == "config.refused" for found in built):
        return kinds, built
    raised = [error(found.id, found.text, found.remedy) if found in wrong else found for found in kinds]
    return raised, [found for found in built if found.id != "config.refused" or not _OF_PYTHON.search(found.text)]


_OF_PYTHON = re.compile(
    r"not supported between instances|unsupported operand|must be (real )?(number|str)|cannot be interpreted"
    r"|can only concatenate|invalid literal|could not convert|has no attribute|object is not|Input should be"
)
"""Complaints about a type of value that name no key, or only a class of vLLM's."""

_NO = frozenset({"", "0", "false", "no", "off", "none", "null", "f", "n"})
