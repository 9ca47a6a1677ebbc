"""Turn the remediation journal into what was done to some nodes since a moment, and how it ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from workbench.remediation.words import VERBS
from workbench.report.text import iso

__all__ = ["tried"]

# what an outcome means to somebody who was not there
_ENDED = {
    "done": "done",
    "failed": "failed",
    "expired": "not done in time",
    "refused": "refused",
    "unknown": "nobody knows how it ended",
    "undone": "taken back",
    "held": "held up, and asked for again",
}


def tried(
    entries: Iterable[Mapping[str, Any]], nodes: Collection[str], *, since: float | None = None, until: float | None = None
) -> list[dict[str, Any]]:
    """
    Return what was done to some nodes, in the order of the journal.

    Parameters
    ----------
    entries : iterable of mapping
        Lines of the journal as `workbench.remediation.journal.Entry.to_dict` gives them.
    nodes : collection of str
        The nodes; empty: all of them.
    since, until : float, optional
        Seconds since the epoch.

    Returns
    -------
    list of dict
        ``time`` (ISO), ``node``, ``verb``, ``what`` (in words), ``rung``, ``ended`` (in words; None while nobody has written an end),
        ``detail``, ``plan``, ``action``, ``ref`` (``journal:SEQ``). A note of a person is a row with the verb ``note``.
    """
    rows: list[dict[str, Any]] = []
    open_rows: dict[str, dict[str, Any]] = {}
    for one in entries:
        when = float(one.get("time") or 0.0)
        if (
            (nodes and one.get("node") not in nodes)
            or (since is not None and when < since)
            or (until is not None and when > until)
        ):
            continue
        kind, action = str(one.get("kind")), str(one.get("action") or "")
        undo = bool((one.get("data") or {}).get("undo"))
        verb = str(one.get("verb") or "")
        if kind == "note":
            rows.append(_row(one, "note", str(one.get("detail") or ""), None))
        elif kind == "intent":
            open_rows[action] = row = _row(one, verb, _words(verb, undo), None)
            rows.append(row)
        elif kind == "outcome":
            row = open_rows.pop(action, {})
            if not row:  # a refusal has no intent
                row = _row(one, verb, _words(verb, undo), None)
                rows.append(row)
            status = str(one.get("status") or "")
            row |= {"ended": _ENDED.get(status, status), "detail": str(one.get("detail") or ""), "end": iso(when)}
    return rows


def _words(verb: str, undo: bool) -> str:
    said = VERBS.get(verb, verb)
    return f"take back: {said}" if undo and verb != "uncordon" else said


def _row(one: Mapping[str, Any], verb: str, what: str, ended: str | None) -> dict[str, Any]:
    return {
        "time": iso(float(one.get("time") or 0.0)),
        "node": str(one.get("node") or ""),
        "verb": verb,
        "what": what,
        "rung": str(one.get("rung") or ""),
        "ended": ended,
        "end": None,
        "detail": "",
        "plan": str(one.get("plan") or ""),
        "action": str(one.get("action") or ""),
        "ref": f"journal:{one.get('seq')}",
    }
