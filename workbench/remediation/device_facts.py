"""Turn the findings of a node, or a verdict, into what a provider asks for besides the fault: serial number, VBIOS, what the diagnostic said."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.health.finding import Finding
from workbench.health.same import same
from workbench.model import Gpu

__all__ = ["Report", "both", "facts_in", "facts_of", "seconds_of"]

_LINES = 12  # of a diagnostic: a level 3 run has about as many subtests
_TEXT = 300
_DIAG = "dcgm-diag"  # the check
_SIGNATURES = ("dcgmi-", "dcgm-")  # of a verdict's evidence
# as nvidia-smi -q, dcgmi and our own findings write them
_SAID = {
    "serial": re.compile(r"(?i)\bserial(?:[ _-]?number)?\s*[:=]?\s+([0-9][0-9A-Z-]{5,29})\b"),
    "vbios": re.compile(r"(?i)\bvbios(?:[ _-]?version)?\s*[:=]?\s+([0-9A-F]{2}(?:\.[0-9A-F]{2}){3,6})\b"),
}


@dataclass(frozen=True, slots=True)
class Report:
    """
    The findings of one run of checks on one node, with when and in which boot they were made.

    Without `time` nobody knows how old they are, and nothing is done because of them.
    """

    node: str
    findings: tuple[Finding, ...]
    time: float | None
    boot: str = ""
    context: str = ""


def facts_of(finding: Finding, report: Report) -> dict[str, Any]:
    """
    Return what the findings of a node tell of the thing that one of them blames.

    What the same run says of the same GPU in other findings counts as well; what names no GPU counts for the whole node.
    """
    mine = [one for one in report.findings if _about(one.gpu, finding.gpu)]
    facts: dict[str, Any] = {}
    for one in (finding, *mine):
        if finding.gpu is not None and one.gpu is not None:
            facts = {**one.device, **_said((one.part, one.summary, *one.evidence)), **facts}
    diagnostics = [
        {"time": report.time, "text": f"{one.status}: {one.who}{one.summary}"[:_TEXT]}
        for one in sorted(mine, key=lambda one: one.status in ("ok", "not-applicable"))
        if one.check == _DIAG and one.status != "not-applicable"
    ]
    return facts | ({"diagnostics": diagnostics[:_LINES]} if diagnostics else {})


def facts_in(verdict: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return what the evidence of a verdict (its JSON) tells of the GPU that it blames."""
    culprit = verdict["culprit"]
    gpu = Gpu(**culprit["gpu"]) if culprit.get("at_fault") == "gpu" and culprit.get("gpu") else None
    facts: dict[str, Any] = {}
    diagnostics = []
    for one in verdict.get("evidence", []):
        if one.get("node") not in (None, node):
            continue
        of = Gpu(**one["gpu"]) if one.get("gpu") else None
        if not _about(of, gpu):
            continue
        if gpu is not None and of is not None:
            facts = {**_said([str(one.get("text") or "")]), **facts}
        if str(one.get("signature") or "").startswith(_SIGNATURES):
            diagnostics.append({"time": seconds_of(one.get("time")), "text": str(one.get("text") or "")[:_TEXT]})
    return facts | ({"diagnostics": diagnostics[:_LINES]} if diagnostics else {})


def both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two sources tell of one fault: the first counts where they differ, and all lines of diagnostics are kept."""
    lines = {str(one.get("text")): one for one in (*second.get("diagnostics", ()), *first.get("diagnostics", ()))}
    return {**second, **first, **({"diagnostics": list(lines.values())[:_LINES]} if lines else {})}


def _about(one: Gpu | None, blamed: Gpu | None) -> bool:
    return blamed is None or one is None or same(one, blamed)


def _said(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        for key, pattern in _SAID.items():
            if key not in found and (hit := pattern.search(text)):
                found[key] = hit[1]
    return found


def seconds_of(value: Any) -> float | None:
    """Return seconds since the epoch, to the millisecond that JSON keeps, so that a record and its JSON give the same ids."""
    if value is None or isinstance(value, int | float):
        return None if value is None else round(float(value), 3)
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return round(moment.replace(tzinfo=moment.tzinfo or dt.UTC).timestamp(), 3)
