"""Values of another kind than their argument takes: a text for a switch, a word for a number.

The rule for a text where true or false is meant is field case 12: `"false"` is a text, and a text counts as true
wherever vLLM does not look twice. The kinds are those of the vLLM that this release was written against, so all else
only warns.
"""

from __future__ import annotations

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


_NO = frozenset({"", "0", "false", "no", "off", "none", "null", "f", "n"})
