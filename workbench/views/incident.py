"""Turn a case file into the incident's page: the verdict, and the way from it down to the line of the log that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import panel as pn
import param

from workbench.views import incident_tables, incident_tabs
from workbench.views.card import document, first_evidence, verdict_card_css, verdict_card_html
from workbench.views.incident_map import COLOURS
from workbench.views.markup import known, render, short_file
from workbench.views.permalink import choice, moments, parse, query, ranks, read, text, whole, write
from workbench.views.surface import Surface

if TYPE_CHECKING:
    import pandas as pd

    from workbench.casefile.model import CaseFile

__all__ = ["FIELDS", "TABS", "IncidentView", "verdict_card_css", "verdict_card_html"]

TABS = {
    "overview": "Overview",
    "ranks": "Ranks",
    "log": "Logs",
    "hypotheses": "Explanations",
    "events": "Events",
    "placement": "Placement",
    "documents": "Documents",
}
_PARTS = {
    **{key: getattr(incident_tabs, key) for key in ("overview", "ranks", "log")},
    **{key: getattr(incident_tables, key) for key in ("hypotheses", "events", "placement", "documents")},
}
SCOPES = {"all": "all logs", "rank": "this rank", "node": "this node", "file": "this file"}
FIELDS = {
    "tab": choice(*TABS),
    "rank": whole(),
    "node": text(253),
    "gpu": text(96),
    "file": text(1024),
    "line": whole(1),
    "query": text(200),
    "scope": choice(*SCOPES),
    "time_range": moments(),
    "rank_range": ranks(),
    "colour": choice(*COLOURS),
    "tables": text(2000),
}


DASHBOARD = "http://127.0.0.1:5010/incident"  # where `workbench serve` listens when nothing else is said
_FOLLOWERS = ("node", "gpu", "file", "line")


class IncidentView(pn.viewable.Viewer):
    """
    One incident.

    In a notebook it shows itself; served, the shell keeps its state in the page's address.

    Parameters
    ----------
    case : CaseFile
    base : mapping, optional
        What the page's address holds beside the state, such as ``{"id": "…"}``.
    address : str
        Of the page, when it is not the one that the view is in: a notebook's links lead to a dashboard.
    downloads : mapping, optional
        Title → address of what the server offers; without it the view makes the files itself.
    dark : bool
        The appearance of plots.
    prices : mapping, optional
        The site's price table (``report.prices``): what the failure cost by it is told.
    standing : StateBar, optional
        What tells, and changes, the incident's state in the inbox.
    state : mapping, optional
        What a link says, so that only the part that it names is built.

    Attributes
    ----------
    rank, node, gpu
        What is looked at; of a rank that is chosen, node, GPU and log follow.
    time_range, rank_range
        What the map of ranks is zoomed to (epoch seconds; ranks); None is all.
    file, line
        The line of a log that is looked at.
    query, scope
        What is searched in logs, and in which.
    colour : str
        What the map of ranks is coloured by: ``state``, or ``steps`` behind the median.
    tables : str
        How tables are sorted and filtered, a query of queries by the table's name.
    tab : str
        The part that is seen, a key of `TABS`; only parts that were seen are built.
    notice : str
        What a link asked for and is not there, a sentence a line.
    """

    rank = param.Integer(default=None, allow_None=True, bounds=(0, None))
    node = param.String(default=None, allow_None=True)
    gpu = param.String(default=None, allow_None=True, doc="UUID, else PCI address, else index.")
    time_range = param.NumericTuple(default=None, allow_None=True, length=2)
    rank_range = param.NumericTuple(default=None, allow_None=True, length=2)
    file = param.String(default=None, allow_None=True)
    line = param.Integer(default=None, allow_None=True, bounds=(1, None))
    query = param.String(default="")
    scope = param.Selector(default="all", objects=list(SCOPES))
    colour = param.Selector(default="state", objects=list(COLOURS))
    tables = param.String(default="")
    tab = param.Selector(default="overview", objects=list(TABS))
    notice = param.String(default="")

    def __init__(
        self,
        case: CaseFile,
        *,
        base: Mapping[str, str] | None = None,
        address: str = "",
        downloads: Mapping[str, str] | None = None,
        dark: bool = False,
        prices: Mapping[str, str] | None = None,
        standing: Any = None,
        state: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> None:
        self.case, self.base, self.address, self.dark = case, dict(base or {}), address, dark
        self.downloads, self.prices, self.standing = dict(downloads or {}), prices, standing
        self.document = document(case)
        self.defaults = self._start()
        super().__init__(**{**self.defaults, **params})
        self._given: set[str] = set()
        self.built: dict[str, Any] = {}
        self._layout: pn.Column | None = None
        self.param.watch(self._follow, ["rank", "node", "gpu"])
        if params:
            self._given = set(params)
            self._follow_names(set(params))
            self._given = set()
        if state:
            self.set_state(state)

    # what is known of the case ------------------------------------------------------------------------------------------------

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """The ranks by their number, each once."""
        frame = self.case.ranks.dropna(subset=["rank"]).drop_duplicates("rank", keep="last")
        return frame.set_index(frame["rank"].astype("int64"), drop=False).sort_index()

    @cached_property
    def nodes(self) -> list[str]:
        """All nodes that any of the evidence names, sorted."""
        found: set[str] = set()
        for frame in (self.case.ranks, self.case.placement, self.case.conditions, self.case.events):
            if "node" in frame:
                found |= set(frame["node"].dropna().astype(str).unique())
        metrics = self.case.metrics
        if len(metrics) and "node" in metrics:
            found |= {str(node) for node in metrics["node"].dropna().unique()}
        if self.document["culprit"]["node"]:
            found.add(str(self.document["culprit"]["node"]))
        return sorted(found)

    @cached_property
    def files(self) -> set[str]:
        """The documents that may be opened."""
        return set(self.case.documents["name"].dropna().astype(str)) if "name" in self.case.documents else set()

    def row(self, rank: int | None) -> dict[str, Any] | None:
        """Return what is known of a rank, missing as None; None when the rank is not known."""
        if rank is None or rank not in self.ranks.index:
            return None
        return {str(name): known(value) for name, value in self.ranks.loc[rank].items()}

    def _start(self) -> dict[str, Any]:
        """Return what is looked at at first: what the verdict blames, and its first evidence."""
        culprit, first = self.document["culprit"], first_evidence(self.document) or {}
        rank = culprit["rank"] if culprit["rank"] is not None else first.get("rank")
        rank = rank if rank is not None and rank in self.ranks.index else None
        row = self.row(rank) or {}
        return {
            "tab": "overview",
            "rank": rank,
            "node": known(culprit["node"]) or row.get("node") or known(first.get("node")),
            "gpu": gpu_name(culprit["gpu"]) or gpu_name(row) or gpu_name(first.get("gpu")),
            "file": known(first.get("file")),
            "line": known(first.get("line")) or (1 if first.get("file") else None),
            "query": "",
            "scope": "all",
            "time_range": None,
            "rank_range": None,
            "colour": "state",
            "tables": "",
        }

    # the state, as a link holds it --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, str]:
        """Return the query of a link to exactly this; what is as at the start is left out."""
        now = {name: getattr(self, name) for name in FIELDS}
        state = write(FIELDS, now, self.defaults)
        if "rank" in state:
            # node, GPU and log follow a rank that a link names: where they do not, or are as at the start, the link must say so
            state |= write({name: FIELDS[name] for name in _FOLLOWERS}, now)
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Become what a link says; what it leaves out is as at the start, what it says wrongly is told in `notice`."""
        self._become(state, self.defaults)

    def go(self, **state: str) -> None:
        """Change some of the state, given as a link would say it."""
        self._become(state, {})

    def link(self) -> str:
        """Return the address of exactly this; in a notebook that of the dashboard that `workbench serve --root` gives."""
        if not self.base and not self.address:
            return DASHBOARD + query({"path": self.case.source, **self.state()})
        return self.address + (query({**self.base, **self.state()}) or "?")

    def _become(self, state: Mapping[str, Any], start: Mapping[str, Any]) -> None:
        values, refused = read(FIELDS, state)
        told = [f"The link's {name} makes no sense: {why}." for name, why in refused.items()]
        for name in ("tab", "query", "scope", "colour", "tables"):
            if values.get(name, "") is None:
                values[name] = self.defaults[name]
        if (rank := values.get("rank")) is not None and rank not in self.ranks.index:
            told.append(f"The link names rank {rank}, which is not in this incident.")
            del values["rank"]
        if (node := values.get("node")) is not None and node not in self.nodes:
            told.append(f"The link names node {node[:80]}, which is not in this incident.")
            del values["node"]
        if (file := values.get("file")) is not None and file not in self.files:
            told.append(f"The link names file {short_file(file)[:80]}, which is not among the documents of this incident.")
            del values["file"]
            values.pop("line", None)
        # of a rank that a link names, what the link does not name follows; without a rank it is as at the start
        followed = _FOLLOWERS if values.get("rank") is not None else ()
        whole = {**{name: value for name, value in start.items() if name not in followed}, **values}
        self._given = set(whole)
        try:
            self.param.update(notice="\n".join(told), **whole)
            self._follow_names({"rank"} if "rank" in values else set())
        finally:
            self._given = set()

    def _follow(self, *events: Any) -> None:
        self._follow_names({event.name for event in events})

    def _follow_names(self, names: set[str]) -> None:
        """Let node, GPU and log follow the rank; let the rank go when another node or GPU is chosen."""
        changes: dict[str, Any] = {}
        if "rank" in names and (row := self.row(self.rank)):
            file, line = self._place(self.rank, row)
            changes = {"node": row.get("node"), "gpu": gpu_name(row), "file": file, "line": line}
        elif "node" in names or "gpu" in names:
            row = self.row(self.rank)
            if row and row.get("node") != self.node:
                changes = {"rank": None} | ({} if "gpu" in names else {"gpu": None})
            elif row and "gpu" in names and self.gpu is not None and gpu_name(row) != self.gpu:
                changes = {"rank": None}
        changes = {name: value for name, value in changes.items() if name not in self._given}
        if changes:
            given, self._given = self._given, self._given | set(changes)
            try:
                self.param.update(**changes)
            finally:
                self._given = given

    def _place(self, rank: int | None, row: Mapping[str, Any]) -> tuple[str | None, int | None]:
        """Return where to look in the logs for a rank: its evidence, its first error, else the end of its log."""
        evidence = [event for event in self.document["evidence"] if event.get("rank") == rank and event.get("file")]
        for wanted in ("cause", None):
            for event in evidence:
                if wanted is None or event.get("role") == wanted:
                    return str(event["file"]), int(event.get("line") or 1)
        own = self.case.events
        own = own[(own["rank"] == rank).fillna(False) & own["file"].notna() & own["line"].notna()]
        if len(own):
            bad = own[own["role"].isin(["cause", "symptom"])]
            first = (bad if len(bad) else own.tail(1)).iloc[0]
            return str(first["file"]), int(first["line"])
        file = row.get("file")
        if file is None:
            return None, None
        documents = self.case.documents
        lines = documents.loc[documents["name"] == file, "lines"].dropna().tolist() if "lines" in documents else []
        return file, max(1, int(lines[0])) if lines else 1

    # what people do -----------------------------------------------------------------------------------------------------------

    def select_evidence(self, number: int) -> None:
        """Open a piece of evidence (its position in the verdict) in its log, and look at the rank, node and GPU that it is about."""
        evidence = self.document["evidence"]
        if not 0 <= number < len(evidence):
            return
        self.select(evidence[number], tab="log" if evidence[number].get("file") else self.tab)

    def select_event(self, number: int) -> None:
        """Open an event (its place among the case's) in its log, as `select_evidence` does; one that no line tells of changes no part."""
        event = {str(name): value for name, value in self.case.events.iloc[number].items()}
        if (evidence := known(event.get("evidence"))) is not None:
            self.select_evidence(int(evidence))
        else:
            self.select(event, tab="log" if known(event.get("file")) in self.files else None)

    def select(self, event: Mapping[str, Any], *, tab: str | None = None) -> None:
        """Look at what an event is about: its line, rank, node and GPU, as far as it names them."""
        rank = known(event.get("rank"))
        rank = int(rank) if rank is not None and int(rank) in self.ranks.index else None
        row = self.row(rank) or {}
        node = known(event.get("node")) or row.get("node")
        gpu = gpu_name(event.get("gpu") or {key: event.get(key) for key in ("gpu_uuid", "pci", "gpu_index")}) or gpu_name(row)
        changes: dict[str, Any] = {}
        if rank is not None or node:
            changes |= {"rank": rank, "node": node, "gpu": gpu}
        if (file := known(event.get("file"))) and file in self.files:
            changes |= {"file": file, "line": max(1, int(known(event.get("line")) or 1))}
        if tab is not None:
            changes["tab"] = tab
        self._given = {"rank", "node", "gpu", "file", "line"}
        try:
            self.param.update(notice="", **changes)
        finally:
            self._given = set()

    def step(self, by: int) -> None:
        """Look at the next rank in order (1), or the one before (-1)."""
        order = self.ranks.index
        if not len(order):
            return
        if self.rank is None:
            self.rank = int(order[0 if by > 0 else -1])
            return
        at = int(order.searchsorted(self.rank)) + by
        self.rank = int(order[max(0, min(at, len(order) - 1))])

    def open_line(self, file: str, line: int) -> None:
        """Look at a line of a log; rank and node stay."""
        if file in self.files:
            self.param.update(file=file, line=max(1, line))

    def heard(self, asked: str) -> None:
        """Do what the page asks for, a query as `Surface` sends it."""
        words = parse(asked)
        if words.get("evidence", "").isdecimal() and len(words["evidence"]) < 9:
            self.select_evidence(int(words["evidence"]))
        elif words.get("step") in ("-1", "1"):
            self.step(int(words["step"]))
        else:
            self.go(**{name: value for name, value in words.items() if name in FIELDS})

    def refresh(self) -> None:
        """Take what may have changed since the page was made: the incident's state; waits for nothing."""
        if self.standing is not None:
            self.standing.refresh()

    # the page -----------------------------------------------------------------------------------------------------------------

    def __panel__(self) -> pn.Column:
        if self._layout is None:
            self._layout = self._build()
        return self._layout

    def _build(self) -> pn.Column:
        card = Surface(heard=self.heard, bridge=self.case.id, margin=0)
        bar = Surface(heard=self.heard, margin=(10, 0, 12, 0))
        notice = Surface(margin=(8, 0, 0, 0), visible=False)
        body = pn.Column(sizing_mode="stretch_width", margin=0)

        def head(*_: Any) -> None:
            card.html = verdict_card_html(self.case, self.base, compact=self.tab != "overview", prices=self.prices)

        def tabs(*_: Any) -> None:
            bar.html = render("incident.j2", "tabs", items=self._tabs(), current=self.tab, base=self.base, link=self.link(),
                              downloads=self.downloads)  # fmt: skip

        def said(*_: Any) -> None:
            notice.html = render("incident.j2", "notice", lines=self.notice.splitlines())
            notice.visible = bool(self.notice)

        def part(*_: Any) -> None:
            if self.tab not in self.built:
                self.built[self.tab] = _PARTS[self.tab](self)
                body.append(self.built[self.tab])
            for key, built in self.built.items():
                built.visible = key == self.tab

        for draw in (head, tabs, said, part):
            draw()
        self.param.watch(head, "tab")
        self.param.watch(tabs, list(FIELDS))
        self.param.watch(said, "notice")
        self.param.watch(part, "tab")
        own = [] if self.downloads else [incident_tabs.takeaways(self)]
        standing = [] if self.standing is None else [self.standing]
        return pn.Column(card, *standing, notice, bar, *own, body, sizing_mode="stretch_width", margin=0)

    def _tabs(self) -> list[tuple[str, str, str, bool]]:
        counts: dict[str, tuple[str, bool]] = {
            "ranks": (f"{len(self.ranks):,}" if len(self.ranks) else "", False),
            "log": (f"{len(self.files):,}" if self.files else "", False),
            "hypotheses": (str(len(incident_tables.explanations(self.document)) or ""), False),
            "events": (f"{len(self.case.events):,}" if len(self.case.events) else "", False),
            "documents": (
                f"{len(self.case.problems)} problem{'s' if len(self.case.problems) != 1 else ''}"
                if len(self.case.problems)
                else "",
                True,
            ),
        }
        return [(key, title, *counts.get(key, ("", False))) for key, title in TABS.items()]


def gpu_name(gpu: Mapping[str, Any] | None) -> str | None:
    """Return what a GPU is called in a link: its UUID, else its PCI address, else its index."""
    for key in ("uuid", "gpu_uuid", "pci", "index", "gpu_index"):
        if gpu and (value := known(gpu.get(key))) is not None and value != "":
            return str(value)
    return None
