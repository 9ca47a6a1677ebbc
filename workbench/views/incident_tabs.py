"""Turn an incident's view into its parts, each built when it is first seen: overview, ranks and logs."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import panel as pn

from workbench.report import view as words
from workbench.report.text import plural
from workbench.views import files
from workbench.views.fresh import afterwards
from workbench.views.incident_map import figure_pane, map_of_ranks, missing, unseen
from workbench.views.logpane import LogPane
from workbench.views.markup import known, render, seconds
from workbench.views.surface import Surface
from workbench.views.tables import Table, file_button, kept
from workbench.views.unhurried import Unhurried

if TYPE_CHECKING:
    from workbench.views.incident import IncidentView

__all__ = ["log", "overview", "ranks", "takeaways"]

EVIDENCE = 40  # kinds of evidence in the list
HITS = 200
NEAR = 72  # ranks of a node that are offered: a rack that is one node has as many
WINDOW = 900.0  # seconds of metrics before and after what is looked at
BRINGS = (
    "What would bring it: the output of each rank or of the launcher beside what was given (a folder with all of it), or `workbench collect "
    "--job NAME`, which asks the scheduler where the job ran."
)


def _grid(columns: str, *parts: Any, gap: str = "14px") -> pn.Column:
    """Return parts side by side where there is room, below each other where there is not."""
    return pn.Column(
        *parts, sizing_mode="stretch_width", margin=0, styles={"display": "grid", "grid-template-columns": columns, "gap": gap}
    )


def _sides(wide: int) -> str:
    return f"repeat(auto-fit, minmax(min(100%, {wide}px), 1fr))"


# overview ---------------------------------------------------------------------------------------------------------------------


def takeaways(view: IncidentView) -> pn.Row:
    """Return the buttons that make the files here; a server offers them by address instead."""
    buttons = [file_button(title, name, partial(_made, make, view.case)) for title, name, make in files.offered(view.case)]
    return pn.Row(*buttons, margin=(6, 0, 0, 0), align="end")


def _made(make: Any, case: Any) -> io.BytesIO:
    return io.BytesIO(make(case))


def overview(view: IncidentView) -> pn.viewable.Viewable:
    """Return timeline, evidence, what speaks against, and what was looked at."""
    from workbench.plots.timeline import on_tap, timeline

    doc = view.document
    made = timeline(view.case.events, dark=view.dark, zero=seconds(doc["time"])) if len(view.case.events) else None
    if made is not None:
        on_tap(made, view.select_event)
    top = (
        figure_pane(made)
        if made is not None
        else missing(
            "Nothing has a time", unseen(view) or ["No event was found in the evidence."], "Without events there is no timeline."
        )
    )
    listed = Surface(heard=view.heard, margin=0)
    rows = list(_numbered(doc["evidence"]))

    def draw(*_: Any) -> None:
        here = (view.file, view.line)
        chosen = next((no for no, event, _ in rows if (event.get("file"), event.get("line")) == here), None)
        listed.html = render("incident.j2", "evidence", rows=rows[:EVIDENCE], head=doc["time"], chosen=chosen, base=view.base,
                             more=max(0, len(rows) - EVIDENCE), queries={**view.case.queries})  # fmt: skip

    draw()
    view.param.watch(draw, ["file", "line"])
    side = pn.Column(
        Surface(render("incident.j2", "against", doc=doc, base=view.base), heard=view.heard, margin=(0, 0, 14, 0)),
        Surface(render("incident.j2", "coverage", doc=doc), margin=0),
        sizing_mode="stretch_width",
        margin=0,
    )
    return pn.Column(
        top,
        _grid("minmax(0, 3fr) minmax(300px, 2fr)", listed, side),
        sizing_mode="stretch_width",
        margin=0,
        styles={"gap": "14px"},
    )


def _numbered(evidence: Any) -> Any:
    """Yield (position, event, how many more are like it): each kind once, as reports show it."""
    places = {id(event): number for number, event in enumerate(evidence)}
    for event, more in words.grouped(evidence):
        yield places[id(event)], event, more


# ranks, GPU, metrics ----------------------------------------------------------------------------------------------------------


def ranks(view: IncidentView) -> pn.viewable.Viewable:
    """Return the map of ranks, the rank that is chosen, its metrics and its log."""
    more = Unhurried("The rest is being drawn …", margin=0)
    if not len(view.ranks):
        return _without_ranks(view, more)
    facts = Surface(heard=view.heard, margin=0)

    def draw(*_: Any) -> None:
        facts.html = _rank_html(view)

    draw()
    view.param.watch(draw, "rank")
    # the map and what it says of the rank are waited for: a browser has them in half the time when nothing else comes with them
    below = pn.Column(sizing_mode="stretch_width", margin=0, styles={"gap": "14px"})

    def rest() -> Iterator[None]:
        pair = _grid("minmax(0, 1fr) minmax(0, 1fr)", _logs(view, 560))
        below[:] = [pair]
        yield
        metrics = _metrics(view, more)
        pair.append(metrics)
        more.add(table())

    def table() -> Iterator[None]:
        made = _rank_table(view)
        yield
        below.append(made)
        yield

    more.add(rest())
    return pn.Column(
        _grid("minmax(0, 8fr) minmax(320px, 5fr)", map_of_ranks(view), facts),
        below,
        more,
        sizing_mode="stretch_width",
        margin=0,
        styles={"gap": "14px"},
    )


def _without_ranks(view: IncidentView, more: Unhurried) -> pn.viewable.Viewable:
    """Return what is known of a job whose ranks nobody names: when things happened on which node and GPU, and what would bring the map."""
    from workbench.plots.timeline import on_tap, timeline

    why = unseen(view, "job", "kubernetes", "slurm", "placement") or ["No log, placement or scheduler record names a rank."]
    events = view.case.events
    timed = events[events["time"].notna()] if len(events) else events
    told = f" Below is what happened when: {plural(len(timed), 'event')} with a time." if len(timed) else ""
    parts: list[Any] = [
        missing("No rank is known, so there is no map of ranks", [*why, BRINGS], f"The verdict does not need it.{told}")
    ]
    if len(timed):
        made = timeline(events, dark=view.dark, zero=seconds(view.document["time"]))
        if made is not None:
            on_tap(made, view.select_event)
            parts.append(figure_pane(made))
    # without metrics a node to choose would choose nothing, and a second box that says "none" would push the log off the screen
    parts += [_machines(view), _metrics(view, more)] if len(view.case.metrics) else []
    return pn.Column(*parts, _logs(view, 360), more, sizing_mode="stretch_width", margin=0, styles={"gap": "14px"})


def _rank_html(view: IncidentView) -> str:
    row = view.row(view.rank)
    if row is None:
        return render(
            "incident.j2", "missing", title="No rank is chosen", why=["Choose one in the map or in the table."], what=""
        )
    gpu = (
        words.gpu({"index": row.get("gpu_index"), "uuid": row.get("gpu_uuid"), "pci": row.get("pci")}, short=True) or "not known"
    )
    near: list[Any] = []
    if row.get("node"):
        same = view.ranks[(view.ranks["node"] == row["node"]).fillna(False)]
        near = [
            SimpleNamespace(rank=int(rank), state=str(state))
            for rank, state in zip(same["rank"], same["state"].fillna("unknown"), strict=True)
        ]
    own = view.case.events
    own = own[(own["rank"] == view.rank).fillna(False)]
    marked = own[own["evidence"].notna()] if "evidence" in own else own.head(0)
    loud = own[own["role"].isin(["cause", "symptom"])]
    chosen = (marked if len(marked) else loud).head(3)
    events = [
        SimpleNamespace(
            role=known(event["role"]), time=event["time"], signature=event["signature"], text=known(event["text"]) or "",
            go=_open_query(known(event["file"]), known(event["line"])),
        )
        for _, event in chosen.iterrows()
    ]  # fmt: skip
    return render("incident.j2", "rank", row={**row, "state": row.get("state") or "unknown", "gpu": gpu}, near=near if len(near) <= NEAR else [],
                  base=view.base, queries={**view.case.queries}, events=events)  # fmt: skip


def _open_query(file: Any, line: Any) -> str:
    from workbench.views.permalink import query

    return query({"file": str(file), "line": str(int(line or 1))})[1:] if file else ""


def _rank_table(view: IncidentView) -> Table:
    frame = view.case.ranks
    table = Table(
        frame,
        columns={
            "rank": "rank", "state": "state", "node": "node", "gpu_index": "GPU", "pci": "PCI", "by": "stopped by", "first_error": "first error",
            "last_line": "last line", "step": "step", "errors": "errors", "lines": "lines",
        },
        name=f"{view.case.id}-ranks",
        noun="rank",
        filters=("rank", "state", "node", "by"),
        widths={
            "rank": 80, "state": 95, "node": 130, "gpu_index": 74, "pci": 130, "by": 110, "first_error": 205, "last_line": 205, "step": 85,
            "errors": 85,
        },
        page=12,
        chosen=lambda at: view.go(rank=str(int(frame["rank"].iloc[at]))),
    )  # fmt: skip

    def mark(*_: Any) -> None:
        found = (frame["rank"] == view.rank).fillna(False).to_numpy().nonzero()[0]
        table.selected = int(found[-1]) if len(found) else None

    mark()
    view.param.watch(mark, "rank")
    return kept(view, "ranks", table)


def _machines(view: IncidentView) -> Any:
    if not view.nodes:
        return pn.Spacer(height=0)
    chooser = pn.widgets.Select(
        label="Node", options=["", *view.nodes], value=view.node if view.node in view.nodes else "", width=280
    )
    chooser.param.watch(lambda event: view.go(node=event.new), "value")
    view.param.watch(lambda event: chooser.param.update(value=event.new if event.new in view.nodes else ""), "node")
    return chooser


def _metrics(view: IncidentView, more: Unhurried) -> Any:
    """Return the small multiples of the chosen GPU around the incident; the figures come one by one."""
    if not len(view.case.metrics):
        return missing(
            "No metrics", unseen(view, "metrics") or ["The evidence holds no metrics."],
            "With DCGM metrics of the nodes, temperature, power, clocks, ECC, NVLink, PCIe and memory are shown here.",
        )  # fmt: skip
    from workbench.plots.metrics import each_panel, panels, update_panels

    box = _grid(_sides(280), gap="8px")
    fields = set(view.case.metrics["field"].astype(str).unique())
    asked = [
        (f"{name}: {row['field']}", view.case.queries[row["field"]]["promql"])
        for name, rows in panels()
        for row in rows
        if row["field"] in fields and _promql(view, row["field"])
    ]
    figures: list[Any] = []  # all of them, or none: of a GPU that is left before they are drawn nothing stays
    drawing: list[Any] = []

    def anew(wanted: Mapping[str, Any]) -> Iterator[None]:
        made: list[Any] = []
        box[:] = []
        for figure in each_panel(view.case.metrics, **wanted, dark=view.dark):
            made.append(figure)
            box.append(figure_pane(figure))
            yield
        figures[:] = made

    def draw(*_: Any) -> None:
        wanted = {"node": view.node, "gpu": view.gpu, "around": seconds(view.document["time"])}
        if figures and update_panels(figures, view.case.metrics, **wanted):
            return
        figures.clear()
        while drawing:
            drawing.pop().close()
        drawing.append(anew(wanted))
        more.add(drawing[0])

    draw()
    # a browser needs longer for nine figures than for the facts and the log line, which people wait for
    view.param.watch(afterwards(draw, 120), ["node", "gpu"])
    return pn.Column(
        box, Surface(render("incident.j2", "panel_asks", rows=asked), margin=(6, 0, 0, 0)), sizing_mode="stretch_width", margin=0
    )


def _promql(view: IncidentView, field: str) -> bool:
    return bool((view.case.queries.get(field) or {}).get("promql"))


# logs -------------------------------------------------------------------------------------------------------------------------


def _logs(view: IncidentView, height: int) -> Any:
    if not view.files:
        return missing(
            "No logs",
            unseen(view) or ["No document was read."],
            "Give the job's logs, and the lines of each rank are shown here.",
        )
    pane = LogPane(view.case, file=view.file, line=view.line, needle=view.query, height=height, chosen=view.open_line)

    def follow(*_: Any) -> None:
        pane.param.update(file=view.file, line=view.line, needle=view.query)

    view.param.watch(follow, ["file", "line", "query"])
    return pane


def log(view: IncidentView) -> pn.viewable.Viewable:
    """Return the search in all logs, what it found, and the lines around what is chosen."""
    from workbench.views.incident import SCOPES

    if not view.files:
        return pn.Column(_logs(view, 560), sizing_mode="stretch_width")
    form = Surface(heard=view.heard, margin=0)
    found = Surface(heard=view.heard, margin=0, styles={"--log-height": "520px"})

    def search(*_: Any) -> None:
        scopes = [
            (key, title + (f" ({view.rank})" if key == "rank" and view.rank is not None else "")) for key, title in SCOPES.items()
        ]
        form.html = render("log.j2", "search", needle=view.query, scope=view.scope, scopes=scopes)
        rows, told = find(view)
        results[:] = [rows, told]
        draw()

    def draw(*_: Any) -> None:
        listed = [] if view.query else _files(view)
        found.html = render("log.j2", "hits", needle=view.query, rows=results[0], file=view.file, line=view.line, base=view.base,
                            told=results[1], files=listed)  # fmt: skip

    results: list[Any] = [[], ""]
    search()
    view.param.watch(search, ["query", "scope"])
    view.param.watch(lambda *_: search() if view.query and view.scope != "all" else draw(), ["rank", "node", "file", "line"])
    side = pn.Column(form, found, sizing_mode="stretch_width", margin=0, css_classes=["side"])
    return _grid("minmax(240px, 340px) minmax(0, 1fr)", side, _logs(view, 560))


def find(view: IncidentView) -> tuple[list[Any], str]:
    """Return what the logs hold of the text that is searched, and a sentence on how much and what was left out."""
    if not view.query:
        return [], f"{plural(len(view.files), 'document')}. Choose one, or find a text in all of them."
    where: dict[str, Any] = {}
    if view.scope != "all":
        where = {view.scope: getattr(view, view.scope)}
        if where[view.scope] is None:
            return [], f"No {view.scope} is chosen: choose one, or search in all logs."
    try:
        frame = view.case.logs.search(view.query, limit=HITS, **where)
    except (OSError, ValueError) as error:
        return [], f"The logs could not be searched: {error}"
    rows = [
        SimpleNamespace(file=str(row["file"]), line=int(row["line"]), rank=known(row.get("rank")), text=known(row["text"]) or "")
        for row in frame.to_dict("records")
    ]
    told = plural(len(rows), "line") + (" found." if rows else ": nothing that was searched holds this text.")
    return rows, " ".join([told, *_left(frame.attrs)])


def _left(attrs: Mapping[Any, Any]) -> list[str]:
    """Return sentences on what a search did not look at: it is no answer for that."""
    problems, left_out = attrs.get("problems") or {}, attrs.get("left_out") or 0
    told = []
    if attrs.get("more"):
        told.append("There are more: narrow the search.")
    if left_out:
        told.append(f"{plural(int(left_out), 'document')} not looked at.")
    if problems:
        told.append(f"{plural(len(problems), 'document')} could not be read: {next(iter(problems.values()))}")
    return told


def _files(view: IncidentView) -> list[Any]:
    """Return the documents to choose from: those that the verdict names first."""
    named = list(dict.fromkeys(str(event["file"]) for event in view.document["evidence"] if event.get("file")))
    order = {name: place for place, name in enumerate(named)}
    rows = []
    for row in view.case.documents.to_dict("records"):
        name = str(row["name"])
        about = " · ".join(
            part
            for part in (
                "in evidence" if name in order else "",
                str(known(row.get("kind")) or ""),
                str(known(row.get("node")) or ""),
                plural(int(row["lines"]), "line") if known(row.get("lines")) else "",
            )
            if part
        )
        rows.append((order.get(name, len(order)), name, SimpleNamespace(file=name, about=about)))
    return [row for _, _, row in sorted(rows, key=lambda row: row[:2])][:300]
