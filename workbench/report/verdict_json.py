"""Turn a `Verdict` into its JSON form, schema `workbench.verdict/1` (docs/reference/verdict.md), and that into text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.report.redact import redact_tree
from workbench.report.text import iso

if TYPE_CHECKING:
    from workbench.model import Event, Gpu, Verdict

__all__ = ["SCHEMA", "dumps", "failed", "to_json"]

SCHEMA = "workbench.verdict/1"


def to_json(verdict: Verdict, *, name: str | None = None, redact: Callable[[str], str] | None = None) -> dict[str, Any]:
    """
    Return a verdict as plain dictionaries, lists, numbers and text.

    Parameters
    ----------
    verdict : Verdict
    name : str, optional
        What the verdict is about (a folder), kept as `incident`.
    redact : callable, optional
        Applied to every text, see `workbench.report.redact.redact`.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "cause": verdict.cause,
        "class": verdict.cls,
        "confidence": _number(verdict.confidence),
        "summary": verdict.summary,
        "culprit": {"node": verdict.node, "gpu": _gpu(verdict.gpu), "rank": _whole(verdict.rank), "at_fault": verdict.at_fault},
        "time": iso(verdict.time),
        "attempt": _whole(verdict.attempt),
        "evidence": [_event(event) for event in verdict.evidence_records],
        "degraded": [_degraded(row) for row in verdict.degraded],
        "victims": [
            {"rank": _whole(victim.rank), "node": victim.node, "since": iso(victim.since), "by": victim.by}
            for victim in verdict.victim_records
        ],
        "counter_evidence": [_event(event) for event in verdict.counter_records],
        "hypotheses": [
            {
                "class": hypothesis.cls,
                "confidence": _number(hypothesis.score),
                "why_not": hypothesis.why_not,
                "why": list(hypothesis.why),
                "node": hypothesis.node,
                "gpu": _gpu(hypothesis.gpu),
                "rank": _whole(hypothesis.rank),
                "time": iso(hypothesis.time),
            }
            for hypothesis in verdict.hypotheses
        ],
        "coverage": [
            {"source": row.source, "status": row.status, "detail": row.detail, "blind_to": list(row.blind_to)}
            for row in verdict.coverage
        ],
        "retry": verdict.retry,
        "remediation": verdict.remediation,
        "next_steps": list(verdict.next_steps),
        "decided_by": list(verdict.decided_by),
        "clock_skew": {node: _number(ahead, 6) for node, ahead in verdict.clock_skew.items()},
        "ties": list(verdict.ties),
    }
    if name is not None:
        document["incident"] = name
    plain: dict[str, Any] = _plain(document)
    if redact is not None:
        # keys and closed vocabularies stay, whatever a site lists: a machine reads them
        fixed = {key: plain[key] for key in ("schema", "cause", "class", "retry", "remediation")}
        plain = {**{key: redact_tree(item, redact) for key, item in plain.items()}, **fixed}
    return plain


def failed(name: str, reason: str, *, source: str = "files", hint: str = "") -> dict[str, Any]:
    """Return the verdict of an incident that could not be looked at: `unknown`, with the reason as failed coverage."""
    from workbench.model import CLASSES, Coverage, Verdict

    blind = [key for key in CLASSES if "/" in key]
    verdict = Verdict(
        cls="unknown",
        confidence=0.0,
        summary=f"The evidence could not be read: {reason}",
        coverage=[Coverage(source, "failed", reason, blind)],
        next_steps=[hint] if hint else [],
    )
    return to_json(verdict, name=name)


def dumps(document: Any, *, indent: int | None = None) -> str:
    """
    Return JSON text in ASCII.

    Log text is hostile: written as escapes, no character of it can drive a terminal or break a line of a JSON Lines stream,
    and a lone surrogate from a broken file cannot fail the output.
    """
    return json.dumps(document, ensure_ascii=True, allow_nan=False, indent=indent)


def _event(event: Event) -> dict[str, Any]:
    row: dict[str, Any] = {
        "role": event.role,
        "signature": event.signature,
        "time": iso(event.time),
        "source": event.source,
        "file": event.file,
        "line": _whole(event.line),
        "node": event.node,
        "gpu": _gpu(event.gpu),
        "rank": _whole(event.rank),
        "text": event.text,
    }
    if event.code is not None:
        row["code"] = _whole(event.code)
    if event.attempt is not None:
        row["attempt"] = _whole(event.attempt)
    if event.count > 1:
        row["count"], row["last"] = _whole(event.count), iso(event.last)
    return row


def _gpu(gpu: Gpu | None) -> dict[str, Any] | None:
    if gpu is None:
        return None
    return {"index": _whole(gpu.index), "uuid": gpu.uuid, "pci": gpu.pci}


def _degraded(row: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"node": None, "gpu": None, "since": None, "slowdown": None, **row}
    if out["gpu"] is not None and hasattr(out["gpu"], "as_dict"):
        out["gpu"] = out["gpu"].as_dict()
    if out["since"] is not None and not isinstance(out["since"], str):
        out["since"] = iso(float(out["since"]))
    return out


def _number(value: float | None, digits: int = 4) -> float | None:
    return round(float(value), digits) if value is not None and math.isfinite(value) else None


def _whole(value: int | None) -> int | None:
    return None if value is None or value != value else int(value)


def _plain(value: Any) -> Any:
    """Make numpy scalars, missing values and odd containers what `json` knows; never fail on a value."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # numpy scalars
        return _plain(value.item())
    return str(value)
