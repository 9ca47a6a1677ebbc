"""Turn findings of checks and verdicts on jobs into troubles: what is wrong with which node or GPU, how sure that is, and when it was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.health.finding import Finding
from workbench.model import CLASSES, REMEDIATIONS, Gpu, Verdict
from workbench.remediation.device_facts import Report, both, facts_in, facts_of, seconds_of
from workbench.remediation.model import Evidence, Trouble, digest

__all__ = ["Checked", "Report", "of_findings", "of_verdict", "read_document", "together"]

_TEXT = 300  # characters of a line that a plan carries; the whole line is in the file that it names


@dataclass(frozen=True, slots=True)
class Checked:
    """That a node was checked, when, in which context, and whether it was fit: what recovery goes by."""

    node: str
    time: float
    fit: bool
    context: str = ""


def of_findings(report: Report) -> tuple[list[Trouble], Checked | None]:
    """
    Return what a run of checks says is wrong, and that the node was checked.

    A finding that calls for no action and does not make the node unfit is none; one that could not be checked is a trouble of severity
    ``unknown``, only where the check is required.

    Parameters
    ----------
    report : Report

    Returns
    -------
    list of Trouble
    Checked or None
        None when nobody knows when it was.
    """
    found = []
    for one in report.findings:
        unseen = one.status == "unknown" and one.unfit
        if not unseen and (one.status not in ("critical", "warning") or (one.action == "none" and not one.unfit)):
            continue
        lines = one.evidence or (one.summary,)
        found.append(
            Trouble(
                node=one.node or report.node,
                code=one.code or one.check,
                cls="" if unseen else one.cls,
                action="none" if unseen else one.action,
                severity="unknown" if unseen else one.status,
                gpu=one.gpu,
                cause="" if unseen else one.cls.split("/")[0],
                confidence=0.0 if unseen else 1.0,
                seen=report.time,
                since=one.since if one.since is not None else report.time,
                boot=report.boot,
                summary=one.summary,
                evidence=tuple(
                    Evidence(
                        digest(["check", report.node, one.check, one.code, line]), f"check {one.check}", line[:_TEXT], report.time
                    )
                    for line in lines[:3]
                ),
                facts=facts_of(one, report),
            )
        )
    if unseen_ones := [one for one in found if one.severity == "unknown"]:
        # one blind agent makes many checks unknown: that is one trouble of the node, not thirty
        first = min(unseen_ones, key=lambda one: one.since or 0.0)
        names = ", ".join(sorted({one.evidence[0].source.removeprefix("check ") for one in unseen_ones}))
        merged = replace(
            first,
            code="not-checked",
            gpu=None,
            summary=f"{report.node} could not be checked ({names}): {first.summary}",
            evidence=tuple(piece for one in unseen_ones[:5] for piece in one.evidence[:1]),
        )
        found = [one for one in found if one.severity != "unknown"] + [merged]
    fit = not any(one.unfit for one in report.findings) and bool(report.findings)
    checked = None if report.time is None else Checked(report.node, report.time, fit, report.context)
    return found, checked


def of_verdict(verdict: Verdict | Mapping[str, Any], *, job: str = "") -> Trouble | None:
    """
    Return what a verdict says is wrong with a node; None when nothing failed, or when it blames no node.

    A verdict that blames its job's code or the platform outside the nodes names the node only as the place where it happened, and nothing acts
    on a place: ``at_fault`` decides.

    Parameters
    ----------
    verdict : Verdict or mapping
        The record, or its JSON.
    job : str, optional
        The job that it is about.

    Raises
    ------
    ValueError
        The JSON is no verdict.
    """
    table = verdict if isinstance(verdict, Mapping) else _json(verdict)
    try:
        culprit, cls = table["culprit"], str(table["class"])
        if cls not in CLASSES or (table.get("remediation") or "none") not in REMEDIATIONS:
            raise ValueError(f"class {cls!r} or remediation {table.get('remediation')!r} is none that the workbench knows")
        if culprit.get("at_fault") not in ("gpu", "node") or not culprit.get("node"):
            return None
        at_gpu = culprit["at_fault"] == "gpu" and culprit.get("gpu")
        lines = [one for one in table.get("evidence", []) if one.get("role") == "cause"] or list(table.get("evidence", []))
        return Trouble(
            node=str(culprit["node"]),
            code=str(lines[0]["signature"]) if lines else cls,
            cls=cls,
            action=str(table.get("remediation") or "none"),
            severity="critical",
            gpu=Gpu(**culprit["gpu"]) if at_gpu else None,
            cause=cls.split("/")[0],
            retry=str(table.get("retry") or ""),
            confidence=float(table["confidence"]),
            seen=seconds_of(table.get("time")),
            since=seconds_of(table.get("time")),
            job=job or str(table.get("job") or ""),
            summary=str(table["summary"]),
            facts=facts_in(table, str(culprit["node"])),
            evidence=tuple(
                Evidence(
                    digest(
                        [one.get("source"), one.get("node"), one.get("signature"), seconds_of(one.get("time")), one.get("text")]
                    ),
                    str(one.get("source") or ""),
                    str(one.get("text") or "")[:_TEXT],
                    seconds_of(one.get("time")),
                    f"{one.get('file', '')}:{one['line']}" if one.get("line") else str(one.get("file") or ""),
                )
                for one in lines[:8]
                # what other nodes say is no evidence on this one
                if one.get("node") in (None, culprit["node"])
            ),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it is no verdict of ours: {type(error).__name__}: {error}") from None


def _json(verdict: Verdict) -> Mapping[str, Any]:
    """Return the fields that matter here as the verdict's JSON names them."""
    return {
        "class": verdict.cls,
        "confidence": verdict.confidence,
        "summary": verdict.summary,
        "culprit": {"node": verdict.node, "gpu": verdict.gpu.as_dict() if verdict.gpu else None, "at_fault": verdict.at_fault},
        "time": verdict.time,
        "retry": verdict.retry,
        "remediation": verdict.remediation,
        "evidence": [
            {
                "role": one.role,
                "signature": one.signature,
                "time": one.time,
                "source": one.source,
                "file": one.file,
                "line": one.line,
                "node": one.node,
                "gpu": one.gpu.as_dict() if one.gpu else None,
                "text": one.text,
            }
            for one in verdict.evidence_records
        ],
    }


def read_document(table: Any) -> Report | Mapping[str, Any]:
    """
    Return what a JSON document of the workbench is: the findings of ``workbench check -o json``, or a verdict.

    Raises
    ------
    ValueError
        It is neither.
    """
    schema = table.get("schema", "") if isinstance(table, Mapping) else ""
    if str(schema).startswith("workbench.verdict/1"):
        return dict(table)
    if not str(schema).startswith("workbench.findings/1"):
        raise ValueError("it is neither a verdict (workbench triage -o json) nor findings (workbench check -o json)")
    try:
        return Report(
            str(table["node"]),
            tuple(_finding(one) for one in table["findings"]),
            seconds_of(table.get("time")),
            str(table.get("boot") or ""),
            str(table.get("context") or ""),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"these are no findings of ours: {type(error).__name__}: {error}") from None


def _finding(table: Mapping[str, Any]) -> Finding:
    values = {("cls" if key == "class" else key): value for key, value in table.items()}
    values["gpu"] = Gpu(**values["gpu"]) if values.get("gpu") else None
    for key in ("evidence", "blind", "tried"):
        values[key] = tuple(values.get(key) or ())
    values["since"] = seconds_of(values.get("since"))
    return Finding(**values)


def together(troubles: Iterable[Trouble]) -> list[Trouble]:
    """
    Return troubles with those of the same fault made one: the worst severity, the highest confidence, all evidence.

    A GPU that one source names by address and another by UUID is the same: the UUID is told to both, when one of them knows both.
    """
    known: dict[tuple[str, str], str] = {}
    items = list(troubles)
    for one in items:
        if one.gpu is not None and one.gpu.uuid and one.gpu.pci:
            known[one.node, one.gpu.pci] = one.gpu.uuid
    found: dict[str, Trouble] = {}
    for one in items:
        if one.gpu is not None and not one.gpu.uuid and one.gpu.pci and (uuid := known.get((one.node, one.gpu.pci))):
            one = replace(one, gpu=replace(one.gpu, uuid=uuid))
        before = found.get(one.id)
        found[one.id] = one if before is None else _merged(before, one)
    return list(found.values())


_SEVERITY = ("unknown", "warning", "critical")


def _merged(one: Trouble, other: Trouble) -> Trouble:
    heavy, light = sorted((one, other), key=lambda each: (_SEVERITY.index(each.severity), each.confidence), reverse=True)
    evidence: dict[str, Evidence] = {piece.id: piece for piece in (*heavy.evidence, *light.evidence)}
    return replace(
        heavy,
        seen=_latest((one.seen, other.seen), max),
        since=_latest((one.since, other.since), min),
        retry=heavy.retry or light.retry,
        job=heavy.job or light.job,
        boot=heavy.boot or light.boot,
        evidence=tuple(evidence.values()),
        facts=both(heavy.facts, light.facts),
    )


def _latest(values: Sequence[float | None], pick: Any) -> float | None:
    known = [one for one in values if one is not None]
    return pick(known) if known else None
