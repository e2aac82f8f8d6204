"""A preflight as `engine-host check` prints it: one JSON object, or lines for a terminal."""

from __future__ import annotations

import json

import msgspec

from engine_host.protocol.events import Severity

from .findings import amount
from .preflight import PreflightReport

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def as_json(report: PreflightReport) -> str:
    """The wire's `Preflight` with what the switch decides by beside it."""
    return json.dumps(
        {
            **msgspec.to_builtins(report.wire),
            "fits_alone": report.fits_alone,
            "vllm_version": report.vllm_version,
        },
        ensure_ascii=False,
    )


def as_text(report: PreflightReport) -> str:
    wire = report.wire
    counts = {severity: sum(1 for finding in wire.findings if finding.severity is severity) for severity in _ORDER}
    verdict = "ok" if wire.ok else "refused"
    against = f" with vLLM {report.vllm_version}" if report.vllm_version else ""
    tally = ", ".join(_count(count, severity) for severity, count in counts.items() if count)
    lines = [f"{wire.profile} ({wire.digest}): {verdict}{against}" + (f": {tally}" if tally else "")]
    for severity in _ORDER:
        for finding in wire.findings:
            if finding.severity is severity:
                lines.append(f"  {severity.upper():<7}  {finding.text}  [{finding.id}]")
                if finding.remedy:
                    lines.append(f"           {finding.remedy}")
    if wire.needed_bytes is not None and wire.available_bytes is not None:
        lines.append(f"  memory   about {amount(wire.needed_bytes)} needed, {amount(wire.available_bytes)} free")
    if wire.kv_capacity_tokens is not None:
        lines.append(f"  KV cache {wire.kv_capacity_tokens:,} tokens, the longest request {wire.longest_tokens or 0:,}")
    lines += [f"  unchecked  {what}" for what in wire.unchecked]
    return "\n".join(lines)


def _count(count: int, severity: Severity) -> str:
    plural = "s" if count > 1 and severity is not Severity.INFO else ""
    return f"{count} {severity}{plural}"
