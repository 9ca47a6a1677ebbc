"""
Turn one question of an assistant, as JSON on standard input, into its answer, as JSON on standard output.

It runs as a process of its own (``python -m workbench.assistants.work``), so that a question can be given up in the middle: whoever asked
ends the process, and what it held is gone with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.assistants.untrusted import NOTICE, tidy, untrusted
from workbench.errors import ParseError, SourceUnavailable, WorkbenchError

__all__ = ["QUESTIONS", "answer"]

_EVENTS, _ROWS, _LINES = 40, 60, 200
_Hide = Callable[[str], str]


def _case(ask: Mapping[str, Any]) -> tuple[Any, _Hide]:
    """Return the case file of what was asked for, and what takes secrets, people and the site's names out of a text."""
    from workbench.report.redact import redact

    if inbox := ask.get("incident"):
        from workbench.inbox.store import Inbox

        case = Inbox(ask["inbox"]).case(str(inbox))
    else:
        from workbench.casefile.opening import open_path

        _small(Path(ask["path"]), int(ask["bytes"]))
        case = open_path(ask["path"])
    people = [str(case.job["user"])] if case.job.get("user") else []
    return case, redact(ask.get("names") or (), people=people)


def _small(path: Path, most: int) -> None:
    """Refuse evidence that is larger than an assistant may have read."""
    total = 0
    for folder, _, names in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
        if total > most:
            raise SourceUnavailable(
                f"the evidence is larger than {most >> 20} MiB", hint="workbench mcp --bytes lets assistants read more"
            )


def triage(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict: victims in words, the best of the evidence."""
    from workbench.report import view
    from workbench.report.redact import hide_document

    case, hide = _case(ask)
    document = case.verdict
    # paths of this machine say nothing to an assistant; names below the evidence do
    short = {key: value for key, value in document.items() if key not in ("victims", "clock_skew", "incident")}
    short["evidence"] = document["evidence"][:_EVENTS]
    short["counter_evidence"] = document["counter_evidence"][:_EVENTS]
    short["hypotheses"] = document["hypotheses"][:10]
    short["victims"] = view.victims(document)[:_ROWS]
    short["left_out"] = {"evidence": max(0, len(document["evidence"]) - _EVENTS)}
    short["advice"] = view.todo(document)
    job = {key: case.job.get(key) for key in ("id", "name", "namespace", "scheduler", "state", "ranks", "nodes", "gpus")}
    answer: dict[str, Any] = tidy(hide_document({"verdict": short, "job": job}, hide))
    return answer


def evidence_around(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines around a line of one document of the evidence."""
    case, hide = _case(ask)
    names = {hide(str(name)): str(name) for name in case.documents["name"]}
    file = names.get(str(ask["file"]))
    if file is None:
        near = [name for name in names if name.rsplit("/", 1)[-1] == str(ask["file"]).rsplit("/", 1)[-1]]
        said = f"; there is {near[0]}" if near else ""
        raise ParseError(f"{str(ask['file'])[:200]!r} is no document of this evidence{said}", hint="coverage lists the documents")
    before, after = (max(0, min(int(ask.get(key, 20)), _LINES // 2)) for key in ("before", "after"))
    window = case.logs.window(file, int(ask["line"]), before=before, after=after)
    lines = [
        {
            "line": row.no,
            **untrusted(hide(row.text)),
            "signature": row.signature or None,
            "evidence": row.evidence,
            "cut": row.cut,
        }
        for row in window.lines
    ]
    more = {"more_before": window.before, "more_after": window.after, "problem": hide(window.problem) or None}
    return {"file": tidy(str(ask["file"])), "lines": lines, **more}


def coverage(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return what could be seen, by source, the documents that were read, and what could not be."""
    from workbench.report.redact import hide_document

    case, hide = _case(ask)
    documents = [
        {"file": row.name, "kind": row.kind, "node": row.node if isinstance(row.node, str) else None, "lines": int(row.lines)}
        for row in case.documents.itertuples(index=False)
    ]
    problems = [
        {key: str(getattr(row, key)) for key in ("file", "message", "hint", "status")}
        for row in case.problems.itertuples(index=False)
    ]
    said = {
        "coverage": list(case.verdict["coverage"]),
        "documents": documents[: 4 * _ROWS],
        "problems": problems[:_ROWS],
        "left_out": {"documents": max(0, len(documents) - 4 * _ROWS), "problems": max(0, len(problems) - _ROWS)},
    }
    made: dict[str, Any] = tidy(hide_document(said, hide))
    return made


def explain(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the catalog knows of a signature, Xid, SXid, DCGM field, condition or class."""
    from workbench.report.knowledge import explain as cards

    rows = [
        {"kind": card.kind, "title": card.title, "origin": card.origin, "facts": card.facts}
        for card in cards(str(ask["signature"])[:200])
    ]
    made: dict[str, Any] = tidy({"cards": rows})
    return made


def check_node(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings of the checks that only look: of this node, or of what a folder holds of nodes."""
    from workbench.health import STATUSES, fitness
    from workbench.report.redact import hide_document, redact

    # executables of the site are no part of what an assistant may start
    settings = {key: value for key, value in (ask.get("settings") or {}).items() if key != "checks_folder"}
    if path := ask.get("path"):
        from workbench.health.folder import check_folder

        _small(Path(path), int(ask["bytes"]))
        findings = check_folder(path, context="running", settings=settings)
    else:
        from workbench.health import run

        findings = run("running", settings=settings, seconds=float(ask.get("seconds") or 30.0) * 0.8)
    nodes = []
    for node in dict.fromkeys(one.node for one in findings):
        mine = sorted((one for one in findings if one.node == node), key=lambda one: -STATUSES.index(one.status))
        rows = [one.to_dict() for one in mine if one.status not in ("ok", "not-applicable")]
        counts = {status: sum(one.status == status for one in mine) for status in STATUSES}
        nodes.append({"node": node, "status": fitness(mine), "counts": counts, "findings": rows[:_ROWS]})
    said = {"nodes": nodes[:_ROWS], "left_out": {"nodes": max(0, len(nodes) - _ROWS)}}
    if not nodes:
        raise SourceUnavailable(
            "nothing of a node is in this folder", hint="it needs kernel logs, or outputs of nvidia-smi or dcgmi"
        )
    made: dict[str, Any] = tidy(hide_document(said, redact(ask.get("names") or ())))
    return made


def list_incidents(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the inbox, newest first."""
    from workbench.inbox.rows import to_json
    from workbench.inbox.store import Inbox
    from workbench.report.redact import hide_document, redact

    inbox = Inbox(ask["inbox"])
    entries = inbox.entries(ask.get("state") or None)
    people = [entry.user for entry in entries if entry.user]
    keep = (
        "id", "time", "seen", "source", "state", "job", "attempt", "namespace", "cause", "cls", "confidence", "summary", "node", "gpu",
        "rank", "at_fault", "retry", "remediation", "ranks", "nodes", "gpus", "gpu_hours", "problem",
    )  # fmt: skip
    rows = [{key: value for key, value in to_json(entry).items() if key in keep} for entry in entries[:_ROWS]]
    said = {"incidents": rows, "left_out": max(0, len(entries) - _ROWS), "problems": inbox.problems[:10]}
    made: dict[str, Any] = tidy(hide_document(said, redact(ask.get("names") or (), people=people)))
    return made


QUESTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "triage": triage,
    "evidence_around": evidence_around,
    "coverage": coverage,
    "explain": explain,
    "check_node": check_node,
    "list_incidents": list_incidents,
}


def answer(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a question, with the notice in front of it; or what went wrong in one sentence, and the way out."""
    try:
        return {"notice": NOTICE, **QUESTIONS[ask["question"]](ask)}
    except WorkbenchError as error:
        return {"error": tidy(str(error)), "hint": tidy(error.hint)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"error": tidy(f"{type(error).__name__}: {error}"), "hint": "look at the evidence with workbench triage --debug"}


def main() -> int:
    """Read one question, write its answer."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # nothing that a library prints gets among the answer
    json.dump(answer(json.load(sys.stdin)), out, allow_nan=False, default=str)
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
