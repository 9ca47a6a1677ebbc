"""Turn what was read into coverage: for each source asked, whether it answered, and which classes can therefore not be seen."""

from __future__ import annotations

from collections import defaultdict

from workbench.catalog import table
from workbench.model import Coverage, Hypothesis
from workbench.triage.context import Context

__all__ = ["assess_coverage"]

_KINDS = {
    "job": ("job-log", "text"),
    "kernel": ("kernel-log",),
    "metrics": ("metrics-text", "metrics-json"),
    "kubernetes": ("kubernetes", "kubernetes-text"),
    "slurm": ("slurm-text",),
    "smi": ("smi",),
    "flight-recorder": ("flight-recorder",),
    "stacks": ("stacks",),
    "bmc": ("bmc",),
}


def assess_coverage(context: Context, best: Hypothesis) -> list[Coverage]:
    """
    Return one entry per source, the ones that are missing or broken first.

    A class is blind when every source that could show it is missing.
    """
    documents = defaultdict(list)
    for document in context.incident.documents:
        for source, kinds in _KINDS.items():
            if document.kind in kinds:
                documents[source].append(document)
    failed = {problem.source: problem.message for problem in context.incident.problems if problem.status == "failed"}
    told = _collected(context)
    present = {source for source, docs in documents.items() if any(doc.lines or doc.size for doc in docs)}
    entries = []
    for source in _KINDS:
        blind = [
            row["class"]
            for row in table("classes")
            if row["seen_by"] and source in row["seen_by"].split(";") and not (set(row["seen_by"].split(";")) & present)
        ]
        docs = documents.get(source, [])
        if not docs:
            if source in ("flight-recorder", "stacks", "bmc", "smi", "slurm", "kubernetes") and not blind:
                continue
            if source in failed:  # asked and not answered is another thing than never asked
                entries.append(Coverage(source, "failed", failed[source], blind))
            else:
                entries.append(Coverage(source, "missing", "no such evidence in what was given", blind))
            continue
        nodes = {context.node(doc.node) for doc in docs if doc.node}
        if source == "metrics":
            nodes |= {context.node(name) for name in {one.node for one in context.incident.series} if name}
        nodes |= {context.node(name) for name in told["covered"].get(source, ())}
        lacking = sorted(context.job_nodes - nodes) if source in ("kernel", "metrics") and context.job_nodes else []
        cut = [doc.name for doc in docs if not doc.lines and not doc.size]
        detail = "; ".join([f"{len(docs)} document{'s' if len(docs) > 1 else ''}", *told["notes"].get(source, ())])
        status = "ok"
        if lacking:
            status, detail = "partial", f"{detail}; none of {', '.join(lacking[:8])}{' …' if len(lacking) > 8 else ''}"
        if cut:
            status, detail = "partial", f"{detail}; empty: {', '.join(cut[:5])}"
        entries.append(Coverage(source, status, detail, [] if status == "ok" else blind))
    said = {(entry.source, entry.detail) for entry in entries}
    for problem in context.incident.problems:
        if (problem.source, problem.message) in said and not problem.hint:
            continue
        where = f"{problem.file}:{problem.line}" if problem.line else problem.file
        entries.append(
            Coverage(
                problem.source, problem.status, f"{where}: {problem.message}" + (f" ({problem.hint})" if problem.hint else "")
            )
        )
    undated = sum(1 for one in context.incident.series if len(one.times) and one.times[0] != one.times[0])
    if undated:
        entries.append(
            Coverage("metrics", "partial", f"{undated} series without a time: their states are read, growth cannot be")
        )
    blanks = sum(one.blanks for one in context.incident.series)
    if blanks:
        entries.append(Coverage("metrics", "partial", f"{blanks} blank sentinel values were masked"))
    order = {"failed": 0, "missing": 1, "partial": 2, "stale": 3, "ok": 4}
    return sorted(entries, key=lambda entry: order.get(entry.status, 5))


def _collected(context: Context) -> dict[str, dict[str, list[str]]]:
    """Return what the manifests of a collection say beside their files: notes, and nodes that were asked, by source."""
    found: dict[str, dict[str, list[str]]] = {"notes": {}, "covered": {}}
    for document in context.incident.documents:
        for kind, by_source in found.items():
            facts = document.facts.get(kind) if document.kind == "manifest" else None
            for source, words in facts.items() if isinstance(facts, dict) else ():
                by_source.setdefault(source, []).extend(words)
    return found
