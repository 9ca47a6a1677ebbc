"""Turn proposals and the journal's rows into what the remediation page writes: a line and a sheet for each plan, and the journal as a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.remediation.queue import WAITING, Proposal
from workbench.remediation.words import VERBS
from workbench.report.plan import gpu_name
from workbench.views.markup import cut

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "SHOWS", "counts", "journal_frame", "line", "queue_frame", "sheet", "shown"]

SUMMARY, WHY = 300, 900  # characters: a summary may hold a line of a log, and that may be a megabyte
SHOWS = {"waiting": "Waiting", "over": "Over", "all": "All"}
COLUMNS = {
    "time": "time",
    "node": "node",
    "verb": "action",
    "rung": "rung",
    "status": "ended",
    "detail": "detail",
    "by": "by",
}


def shown(proposals: Iterable[Proposal], show: str) -> list[Proposal]:
    """Return the proposals of a part of the queue, in the queue's order."""
    return [one for one in proposals if show == "all" or (one.state in WAITING) == (show == "waiting")]


def counts(proposals: Sequence[Proposal]) -> dict[str, int]:
    """Return how many there are of each state, and of each part."""
    found: dict[str, int] = {}
    for one in proposals:
        found[one.state] = found.get(one.state, 0) + 1
    return found | {part: len(shown(proposals, part)) for part in SHOWS}


def _nodes(one: Proposal) -> list[str]:
    return list(dict.fromkeys(action.node or action.target for action in one.plan.actions))


def _most(values: Iterable[float | None]) -> float | None:
    return max((one for one in values if one is not None), default=None)


def line(one: Proposal) -> dict[str, Any]:
    """Return what the list says of a plan: where, how far, what it takes away, what it costs, since when and until when."""
    actions = one.plan.actions
    blasts = [action.blast for action in actions]
    jobs = list(dict.fromkeys(job for blast in blasts for job in blast.jobs))
    rungs = list(dict.fromkeys(action.rung for action in actions))
    waits_only = bool(jobs) and all(action.verb == "drain" for action in actions if action.blast.work)
    return {
        "id": one.id,
        "kind": one.kind,
        "state": one.state,
        "waiting": one.state in WAITING,
        "nodes": _nodes(one),
        "rung": ", ".join(rungs),
        "why": cut(actions[0].why, WHY) if actions else "",
        "summary": cut(next((trouble.summary for trouble in one.plan.troubles if trouble.summary), "") or actions[0].why, SUMMARY)
        if actions
        else "",
        "jobs": jobs,
        "waits_only": waits_only,
        "ranks": max((blast.ranks for blast in blasts), default=0),
        "tasks": max((len(blast.work) for blast in blasts), default=0),
        "lost": _most(blast.gpu_hours for blast in blasts if blast.work),
        "lost_unknown": any(blast.work and blast.gpu_hours is None for blast in blasts),
        "budgets": list(dict.fromkeys(name for blast in blasts for name in blast.budgets)),
        "now": _most(action.cost.now for action in actions),
        "wait": _most(action.cost.wait for action in actions),
        "final": [action.verb for action in actions if action.destructive] if one.kind == "plan" else [],
        "since": one.since,
        "expires": round(one.plan.expires),
        "last": one.last,
        "problem": one.problem,
    }


def sheet(one: Proposal) -> dict[str, Any]:
    """Return what a person reads before saying yes: every step, what it expects of the world, the evidence, and what happened to the plan."""
    plan = one.plan
    steps = [
        {
            "id": action.id,
            "verb": action.verb,
            "undo_of": one.kind == "undo",
            "meaning": VERBS.get(action.verb, ""),
            "final": action.destructive and one.kind == "plan",
            "back": action.undo,
            "does": _DOES.get(action.verb, "changes nothing that stays"),
            "waits": action.waits,
            "target": "" if action.target in ("", action.node) else action.target,
            "deadline": action.deadline,
            "work": action.blast.work,
            "jobs": action.blast.jobs,
            "budgets": action.blast.budgets,
            "lost": action.blast.gpu_hours,
        }
        for action in plan.actions
    ]
    expects = _expects([action.expects for action in plan.actions])
    evidence = [(trouble, piece) for trouble in plan.troubles for piece in trouble.evidence]
    return {
        **line(one),
        "gpu": next((name for action in plan.actions if (name := gpu_name(action))), ""),
        "classes": list(dict.fromkeys(trouble.cls for trouble in plan.troubles if trouble.cls)),
        "cause": next((trouble.cause for trouble in plan.troubles if trouble.cause), ""),
        "confidence": max((trouble.confidence for trouble in plan.troubles), default=None),
        "cost_note": next((action.cost.note for action in plan.actions if action.cost.note), ""),
        "steps": steps,
        "expects": expects,
        "evidence": [
            {"time": piece.time, "source": piece.source, "text": cut(piece.text), "file": piece.file} for _, piece in evidence[:8]
        ],
        "more_evidence": max(0, len(evidence) - 8),
        "refused": [
            {"guard": refusal.guard, "rung": refusal.rung, "why": cut(refusal.why, WHY), "until": refusal.until}
            for refusal in plan.refused
        ],
        "notes": [cut(note, WHY) for note in (*plan.notes, plan.breaker) if note],
        "digest": one.digest,
        "made": plan.made,
        "policy": plan.policy,
        "events": [
            {
                "time": event.time,
                "state": event.state,
                "by": event.by,
                "reason": event.reason,
                "ended": dict(event.data.get("ended") or {}),
            }
            for event in one.events
        ],
    }


_DOES = {
    "collect": "only looks",
    "validate": "only looks",
    "ticket": "tells",
    "page": "tells",
    "uncordon": "is the way back",
}
_SAID = {
    "uid": "the same machine",
    "boot": "the same boot",
    "booted": "the same boot",
    "owner": "nobody else has taken the node out of service",
    "schedulable": "the node takes work, or not, as now",
    "work": "no other work runs there than what is named",
}


def _expects(all_of: Iterable[Mapping[str, Any]]) -> list[str]:
    names = [name for one in all_of for name in one]
    return list(dict.fromkeys(_SAID.get(name, name) for name in names))


def journal_frame(acts: Sequence[Mapping[str, Any]], left_out: int = 0, node: str = "") -> pd.DataFrame:
    """
    Return the journal's rows as a frame, newest first.

    Parameters
    ----------
    acts : sequence of mapping
        As `workbench.serving.desk.Sheet` has them.
    left_out : int, optional
        Older rows that are not among them.
    node : str, optional
        Only of nodes whose name holds this.
    """
    import pandas as pd

    rows = [one for one in acts if not node or node in str(one["node"])]
    columns = [*COLUMNS, "plan", "action", "undo", "ended"]
    frame = pd.DataFrame([{name: one.get(name) for name in columns} for one in rows], columns=columns)
    for name in ("time", "ended"):
        frame[name] = pd.to_datetime(pd.Series(frame[name], dtype="float64"), unit="s", utc=True).astype("datetime64[us, UTC]")
    for name in ("node", "verb", "rung", "status", "detail", "by", "plan", "action"):
        frame[name] = frame[name].astype("string")
    frame["undo"] = frame["undo"].astype("boolean")
    if left_out:
        frame.attrs["left_out"] = left_out
    return frame


def queue_frame(proposals: Iterable[Proposal]) -> pd.DataFrame:
    """Return the queue as a frame for export: a row a plan."""
    import pandas as pd

    rows = []
    for one in proposals:
        told = line(one)
        rows.append(
            {
                "id": one.id,
                "kind": one.kind,
                "state": one.state,
                "nodes": " ".join(told["nodes"]),
                "rung": told["rung"],
                "why": told["why"],
                "jobs": " ".join(told["jobs"]),
                "ranks": told["ranks"],
                "gpu_hours_lost": told["lost"],
                "gpu_hours_now": told["now"],
                "gpu_hours_each_hour_of_waiting": told["wait"],
                "cannot_be_undone": " ".join(told["final"]),
                "waiting_since": one.since,
                "expires": one.plan.expires,
                "by": one.last.by,
                "reason": one.last.reason,
                "digest": one.digest,
            }
        )
    frame = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["id"])
    for name in ("waiting_since", "expires"):
        if name in frame:
            frame[name] = pd.to_datetime(frame[name].astype("float64"), unit="s", utc=True).astype("datetime64[us, UTC]")
    return frame
