"""Turn an incident and its verdict into a `CaseFile`: the frames, the rank × time map, what it cost, and what to ask a server for the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from workbench.casefile import frames as chosen
from workbench.casefile.activity import build_activity, see, state_at_end
from workbench.casefile.impact import impact_of, job_of
from workbench.casefile.model import CaseFile
from workbench.casefile.queries import queries_for
from workbench.casefile.ranks import ranks_of, tell
from workbench.collector import no_collector

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.casefile.reading import Marks
    from workbench.incident import Incident, IncidentVerdict
    from workbench.model import Verdict
    from workbench.triage.context import Context

__all__ = ["case_file", "case_id"]


def case_file(incident: Incident, verdict: Verdict | None = None, *, source: str | Path = "") -> CaseFile:
    """
    Return everything that is shown of one incident.

    Parameters
    ----------
    incident : Incident
        What `workbench.load` made of the evidence.
    verdict : Verdict, optional
        Its verdict; default: it is triaged now, which costs least, since both need the same.
    source : str or path, optional
        Where the evidence lies: the folder, archive or file that log lines are read from. Default the incident's name.

    Returns
    -------
    CaseFile
        Never raises for want of evidence: what is not known is None, NA or ``unknown`` there.
    """
    with no_collector():
        if verdict is None:
            verdict, context = _judged(incident)
        else:
            context = _context(incident)
        return _build(incident, verdict, context, str(source) or incident.name)


def _judged(incident: Incident) -> tuple[IncidentVerdict, Context]:
    from workbench.incident import IncidentVerdict
    from workbench.triage.build import build_context
    from workbench.triage.verdict import decide

    context = build_context(incident)
    verdict = decide(context)
    return IncidentVerdict(**{item.name: getattr(verdict, item.name) for item in fields(verdict)}), context


def _context(incident: Incident) -> Context:
    from workbench.triage.build import correct_events, place_context
    from workbench.triage.timeline import find_failure

    context = place_context(incident)
    context.events = correct_events(context, incident.records)
    find_failure(context)
    return context


def _build(incident: Incident, verdict: Verdict, context: Context, source: str) -> CaseFile:
    from workbench import frames
    from workbench.casefile.logs import EvidenceLogs
    from workbench.casefile.store import own_files
    from workbench.report.machines import product_of
    from workbench.report.verdict_json import to_json

    document = to_json(verdict, name=source)
    job = job_of(context, verdict)
    ranks, marks = ranks_of(context, verdict, job)
    seen = see(context)
    activity = build_activity(seen, marks)
    ranks["state"] = list(state_at_end(activity, marks))
    tell(ranks, marks, context, seen)
    picked, left_out = chosen.choose_events(context, verdict)
    events = chosen.events_frame(context, verdict, picked, left_out)
    nodes = [event.node for event in picked if event.node and event.source in ("kernel", "metrics", "smi", "bmc")]
    series, series_left = chosen.choose_series(incident, context, verdict, nodes)
    metrics = frames.metrics_frame(series)
    metrics.attrs["left_out"] = series_left
    documents = chosen.documents_frame(incident)
    table = chosen.ranks_frame(ranks)
    case = CaseFile(
        id=case_id(document),
        name=_name(job, source),
        source=source,
        verdict=document,
        ranks=table,
        events=events,
        metrics=metrics,
        conditions=frames.conditions_frame(incident.condition_records),
        placement=frames.placement_frame(incident.placement_records),
        documents=documents,
        problems=chosen.problems_frame(incident.problems),
        logs=EvidenceLogs(source, documents, own_files(table), document, _marks(incident), events),
        activity=activity,
        job=job,
        impact={**impact_of(context, verdict, job, table), "product": product_of(incident, document["culprit"])},
    )
    case.queries = queries_for(case, series, nodes=sorted(context.job_nodes))
    return case


def case_id(verdict: Mapping[str, Any]) -> str:
    """
    Return the name of a case: what its evidence says, not where it lies, so that the same evidence gives the same.

    Letters, digits and ``-``; begins with the day it failed.
    """
    evidence: list[Mapping[str, Any]] = verdict["evidence"]
    first = next((row for row in evidence if row["role"] == "cause"), None) or next(iter(evidence), {})
    parts = [
        verdict["class"], verdict["time"], verdict["culprit"]["node"], verdict["culprit"]["rank"], verdict["attempt"],
        *[first.get(name) for name in ("signature", "time", "line", "node", "text")],
        *[(row["rank"], row["since"]) for row in verdict["victims"][:16]],
    ]  # fmt: skip
    if not evidence:
        parts.append(verdict.get("incident"))
    digest = hashlib.sha256("\0".join(str(part) for part in parts).encode("utf-8", "replace")).hexdigest()[:10]
    day = (verdict["time"] or first.get("time") or "")[:10].replace("-", "")
    return "-".join(part for part in (day, re.sub(r"[^a-z]+", "-", verdict["class"]), digest) if part)


_WIDEST = 16 << 20  # bytes between two places of an index, else a line was endless and the log is counted when it is opened


def _marks(incident: Incident) -> dict[str, Marks]:
    from workbench.casefile.reading import Marks

    found = {}
    for document in incident.documents:
        mtime, marks = document.facts.get("marks") or (None, ())
        if mtime is None or not marks:
            continue
        offsets, lines = [offset for offset, _ in marks], [count for _, count in marks]
        gaps = [after - before for before, after in zip(offsets, [*offsets[1:], document.size], strict=True)]
        if offsets[0] == 0 and max(gaps) <= _WIDEST:
            found[document.name] = Marks(document.size, mtime, offsets, lines)
    return found


def _name(job: Mapping[str, Any], source: str) -> str:
    return str(job.get("name") or job.get("id") or re.split(r"[/\\]", source.rstrip("/\\"))[-1] or "incident")
