"""Turn an incident's view into its quieter parts: explanations side by side, and the tables of events, placement and documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import panel as pn

from workbench.report import view as words
from workbench.views.markup import known, render
from workbench.views.surface import Surface
from workbench.views.tables import Table, display, kept

if TYPE_CHECKING:
    import pandas as pd

    from workbench.views.incident import IncidentView

__all__ = ["documents", "events", "explanations", "hypotheses", "placement"]


def hypotheses(view: IncidentView) -> pn.viewable.Viewable:
    """Return the explanations side by side, the verdict's first."""
    return Surface(render("incident.j2", "hypotheses", rows=explanations(view.document)[:8]), heard=view.heard, margin=0)


def explanations(doc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was weighed, the verdict first: of a verdict that is no hypothesis itself, what its evidence says."""
    whole: dict[str, Any] = {"why": [], "why_not": "", "confidence": None, "time": None, "node": None, "gpu": None, "rank": None}
    lost = [{**whole, **row, "chosen": False} for row in words.others(doc)]
    won = [row for row in doc["hypotheses"] if row.get("class") == doc["class"] and not row.get("why_not")]
    if doc["class"] in ("unknown", "none") and not won:
        return lost
    first = {**whole, **{key: doc["culprit"][key] for key in ("node", "gpu", "rank")}, "class": doc["class"], "time": doc["time"],
             "confidence": doc["confidence"], **(won[0] if won else {}), "chosen": True}  # fmt: skip
    if not first["why"]:
        first["why"] = [_because(event, more) for event, more in words.grouped(doc["evidence"]) if event.get("role") == "cause"]
    if not first["why_not"]:
        first["why_not"] = "; ".join(_because(event, more) for event, more in words.grouped(doc["counter_evidence"]))
    return [first, *lost]


def _because(event: Mapping[str, Any], more: int) -> str:
    at = words.entity(event)
    return str(event.get("signature") or "") + (f" on {at}" if at else "") + (f" and {more} more" if more else "")


def events(view: IncidentView) -> pn.viewable.Viewable:
    """Return all events of the case as a table, the verdict's evidence first and numbered as everywhere; a row opens its line."""
    # by time alone a kernel log of months would open at its oldest line, and the evidence be on the fourteenth page
    frame = view.case.events.sort_values("evidence", kind="stable", na_position="last").reset_index(drop=True)
    columns = {
        "evidence": "#", "time": "time", "role": "role", "signature": "what", "lane": "lane", "node": "node", "rank": "rank",
        "gpu_index": "GPU", "source": "source", "file": "file", "line": "line", "text": "text",
    }  # fmt: skip
    return pn.Column(
        kept(view, "events", Table(
            frame,
            shown=display(frame.assign(evidence=frame["evidence"] + 1), columns),
            columns=columns,
            name=f"{view.case.id}-events",
            noun="event",
            filters=("role", "signature", "node", "rank", "text"),
            widths={
                "evidence": 52, "time": 205, "role": 90, "signature": 170, "lane": 90, "node": 140, "rank": 70, "gpu_index": 70,
                "source": 90, "file": 180, "line": 75,
            },
            empty="No event was found in the evidence.",
            chosen=lambda at: view.select(_event(frame, at), tab="log"),
        )),
        sizing_mode="stretch_width",
    )  # fmt: skip


def _event(frame: pd.DataFrame, at: int) -> dict[str, Any]:
    return {str(name): value for name, value in frame.iloc[at].items()}


def placement(view: IncidentView) -> pn.viewable.Viewable:
    """Return which rank ran where, and what is said of the nodes."""
    places, conditions = view.case.placement, view.case.conditions

    def chosen(at: int) -> None:
        rank = known(places["rank"].iloc[at])
        if rank is not None and rank in view.ranks.index:
            view.go(rank=str(rank), tab="ranks")

    return pn.Column(
        _heading("Which rank ran where"),
        kept(view, "placement", Table(
            places,
            columns={
                "rank": "rank", "local_rank": "local", "node": "node", "gpu_index": "GPU", "pci": "PCI", "gpu_uuid": "UUID", "pod": "pod",
                "attempt": "attempt", "origin": "told by", "file": "file",
            },
            name=f"{view.case.id}-placement", noun="placement", filters=("rank", "node", "pod"),
            widths={"rank": 80, "local_rank": 70, "gpu_index": 74, "attempt": 80},
            empty="Where ranks ran is not known: no log, pod or scheduler record tells.", chosen=chosen,
        )),
        _heading("What is said of the nodes"),
        kept(view, "conditions", Table(
            conditions,
            columns={
                "node": "node", "kind": "kind", "name": "condition", "status": "status", "bad": "bad", "since": "since", "reason": "reason",
                "message": "message", "source": "source",
            },
            name=f"{view.case.id}-conditions", noun="condition", filters=("node", "name", "message"), widths={"bad": 60, "status": 80},
            empty="No condition, taint or state of a node is in the evidence.",
        )),
        sizing_mode="stretch_width",
    )  # fmt: skip


def documents(view: IncidentView) -> pn.viewable.Viewable:
    """Return what was read, what could not be, and how to ask for it again."""
    read, problems = view.case.documents, view.case.problems
    window = view.case.queries.get("window") or {}
    asks = [
        (key, kind, text) for key, kinds in view.case.queries.items() for kind, text in kinds.items() if text and key != "window"
    ]

    def opened(frame: pd.DataFrame, column: str) -> Callable[[int], None]:
        def chosen(at: int) -> None:
            name = str(frame[column].iloc[at])
            if name in view.files:
                view.param.update(file=name, line=1, tab="log")

        return chosen

    parts: list[Any] = []
    if len(problems):
        parts += [
            _heading("Problems"),
            kept(view, "problems", Table(
                problems, columns={"status": "status", "source": "source", "file": "file", "line": "line", "message": "problem",
                         "hint": "what to do"},
                name=f"{view.case.id}-problems", noun="problem", filters=("file", "message"), widths={"status": 90, "source": 100, "line": 75},
                chosen=opened(problems, "file"),
            )),
        ]  # fmt: skip
    parts += [
        Surface(render("incident.j2", "coverage", doc=view.document), margin=(0, 0, 14, 0)),
        _heading("Documents"),
        kept(view, "documents", Table(
            read, columns={"name": "document", "kind": "taken for", "node": "node", "size": "bytes", "lines": "lines", "events": "events",
                     "complete": "whole"},
            name=f"{view.case.id}-documents", noun="document", filters=("name", "kind", "node"),
            widths={"size": 110, "lines": 90, "events": 80, "complete": 80}, empty="No document was read.", chosen=opened(read, "name"),
        )),
        Surface(render("incident.j2", "asks", rows=asks, window=window), margin=(14, 0, 0, 0)),
    ]  # fmt: skip
    return pn.Column(*parts, sizing_mode="stretch_width")


def _heading(text: str) -> Surface:
    return Surface(render("incident.j2", "heading", text=text), margin=(10, 0, 0, 0))
