"""The incident's view: what follows what is chosen, what a link holds, and what is said when something is not there."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import panel as pn
import pytest

from tests.views.view_cases import bare, hostile, shipped, verdict
from workbench.casefile import open_path
from workbench.views.incident import TABS, IncidentView, verdict_card_html
from workbench.views.incident_tables import explanations
from workbench.views.incident_tabs import find
from workbench.views.surface import Surface


def surfaces(part) -> list[Surface]:
    """All surfaces below a part of a page."""
    return list(part.select(Surface))


def text_of(part) -> str:
    return "\n".join(surface.html for surface in surfaces(part))


@pytest.fixture
def view() -> IncidentView:
    return IncidentView(shipped("gpu-memory"))


def test_it_begins_at_the_culprit_and_its_first_evidence(view):
    assert (view.rank, view.node) == (20, "gpu-node-054")
    assert view.gpu == "GPU-a8dd4b53-6a76-0560-36b6-dcf7c20b405e"
    assert view.file.endswith("kernel/gpu-node-054.log")
    assert view.line == 123
    assert view.state() == {}


def test_node_gpu_and_log_follow_the_rank(view):
    view.rank = 3
    row = view.ranks.loc[3]
    assert view.node == row["node"]
    assert view.gpu == row["pci"]
    assert view.file.endswith("worker-0.log")
    events = view.case.events
    there = events[(events["file"] == view.file) & (events["line"] == view.line)]
    assert 3 in there["rank"].tolist()


def test_another_node_lets_the_rank_go(view):
    view.node = "gpu-node-060"
    assert (view.rank, view.gpu) == (None, None)


def test_a_piece_of_evidence_opens_its_line_and_what_it_is_about(view):
    number = next(no for no, event in enumerate(view.document["evidence"]) if event["rank"] == 24)
    view.heard(f"evidence={number}")
    event = view.document["evidence"][number]
    assert (view.rank, view.node, view.file, view.line, view.tab) == (24, event["node"], event["file"], event["line"], "log")


def test_a_mark_of_the_timeline_is_the_same_state_as_its_evidence_or_the_line_of_its_event(view):
    page = view.__panel__()
    source = next(found for pane in page.select(pn.pane.Bokeh) if (found := pane.object.select_one({"name": "events"})))
    marks = list(enumerate(source.data["event"]))
    loose = [mark for mark in marks if source.data["evidence"][mark[0]] < 0][:4]
    evidence = [mark for mark in marks if source.data["evidence"][mark[0]] >= 0][:4]
    assert loose
    assert evidence
    for at, place in loose:
        source.selected.indices = [at]
        event = view.case.events.iloc[int(place)]
        assert (view.tab, view.file, view.line) == ("log", event["file"], event["line"])
    for at, _ in evidence:
        source.selected.indices = [at]
        marked = view.state()
        view.set_state({})
        view.heard(f"evidence={source.data['evidence'][at]}")
        assert view.state() == marked
        assert marked["tab"] == "log"


def test_the_next_rank_in_order(view):
    view.heard("step=1")
    assert view.rank == 21
    for _ in range(40):
        view.step(1)
    assert view.rank == 31


def test_only_parts_that_were_seen_are_built(view):
    view.__panel__()
    assert set(view.built) == {"overview"}
    view.tab = "log"
    assert set(view.built) == {"overview", "log"}
    assert not view.built["overview"].visible
    assert view.built["log"].visible


def test_a_link_builds_only_the_part_that_it_names():
    view = IncidentView(shipped("gpu-memory"), state={"tab": "log", "rank": "3"})
    view.__panel__()
    assert set(view.built) == {"log"}
    assert view.node == "gpu-node-060"


def test_every_state_survives_the_way_through_a_link(view):
    states = [
        {"tab": "ranks", "rank": 3},
        {"rank": 3, "file": view.file, "line": 123},
        {"rank": None, "node": "gpu-node-060", "gpu": None},
        {"query": "a&b=<c>", "scope": "rank", "tab": "log"},
        {"time_range": (1747300000.5, 1747301000.25), "rank_range": (0, 7)},
        {"file": None, "line": None},
        {"node": None},
    ]
    for values in states:
        one, other = IncidentView(view.case), IncidentView(view.case)
        one.param.update(**values)
        other.set_state(one.state())
        assert other.state() == one.state()
        for name in view.defaults:
            assert getattr(one, name) == getattr(other, name), (values, name)
        # and back to the start: what a link leaves out is as at the start
        other.set_state({})
        assert other.state() == {}


def test_what_a_link_says_wrongly_is_told_and_the_rest_is_taken(view):
    view.set_state(
        {"rank": "99999", "node": "nowhere", "tab": "<script>", "file": "../../etc/passwd", "line": "3", "scope": "rank"}
    )
    assert view.scope == "rank"
    assert (view.rank, view.tab) == (20, "overview")
    assert view.file.endswith("kernel/gpu-node-054.log")
    for word in ("99999", "nowhere", "passwd", "tab"):
        assert word in view.notice
    view.heard("rank=3")
    assert view.notice == ""


@pytest.mark.parametrize(
    "asked",
    [
        "rank=-1",
        "evidence=99999",
        "evidence=x",
        "step=7",
        "tab=nope",
        "line=0",
        "file=&line=&rank=",
        "\x00",
        "%ff=%ff",
        "a" * 9999,
    ],
)
def test_what_a_browser_asks_for_is_not_trusted(view, asked):
    view.heard(asked)
    assert view.tab in TABS
    assert view.rank is None or view.rank in view.ranks.index
    surface = Surface(heard=view.heard)
    for sent in ("", "[", "[1]", '["a"]', '["a", 5]', "[" * 9000, json.dumps(["a", asked])):
        surface.asked = sent


def test_the_same_verdict_byte_for_byte(view):
    from workbench.report.verdict_json import dumps
    from workbench.views import files

    assert files.verdict(view.case) == (dumps(view.case.verdict, indent=2) + "\n").encode()


def test_a_postmortem_is_made_without_a_server_and_hides_the_user():
    from dataclasses import replace

    from workbench.views import files

    case = replace(shipped("gpu-memory"), job={"name": "train", "user": "alice.example"})
    text = files.postmortem(case).decode()
    assert "gpu-node-054" in text
    assert "alice" not in text


def test_a_link_of_a_notebook_leads_to_a_dashboard_and_one_of_a_page_to_the_page():
    case = shipped("gpu-memory")
    assert IncidentView(case, state={"rank": "3"}).link().startswith("http://127.0.0.1:5010/incident?path=%2F")
    assert IncidentView(case, base={"id": "a b"}, state={"tab": "log"}).link() == "?id=a+b&tab=log"


def test_the_bundle_holds_every_table():
    import io
    import zipfile

    from workbench.views import files

    case = hostile()
    with zipfile.ZipFile(io.BytesIO(files.bundle(case))) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        events = archive.read("hostile-1/events.csv").decode()
    assert {"verdict.json", "verdict.md", "ranks.csv", "events.csv", "metrics.csv", "problems.csv"} <= names
    assert len(pd.read_csv(io.StringIO(events))) == len(case.events)


# -- states of little evidence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tab", TABS)
def test_a_case_that_knows_nothing_is_shown(tab):
    view = IncidentView(bare(), tab=tab)
    assert text_of(view.__panel__())


def test_the_table_of_events_begins_with_the_evidence_in_the_order_of_the_verdict(view):
    """However old the oldest line of a kernel log is; a row opens its own line, and nothing is left out."""
    view.tab = "events"
    table = next(one for one in view.__panel__().select(pn.widgets.Tabulator) if "signature" in one.value)
    many = int(view.case.events["evidence"].notna().sum())
    assert many
    assert len(table.value) == len(view.case.events)
    numbers = [int(one) for one in table.value["evidence"].iloc[:many]]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    first = view.document["evidence"][0]
    assert (table.value["line"].iloc[0], table.value["signature"].iloc[0]) == (first["line"], first["signature"])


def test_without_ranks_it_says_why_and_nodes_can_still_be_looked_at():
    doc = verdict(
        coverage=[{"source": "job", "status": "missing", "detail": "no logs were given", "blind_to": ["user/exception"]}]
    )
    case = bare({"kernel.log": ["a line"]}, verdict=doc, metrics=shipped("gpu-memory").metrics)
    view = IncidentView(case, tab="ranks")
    page = text_of(view.__panel__())
    assert "No rank is known" in page
    assert "no logs were given" in page
    view.go(node="gpu-node-054")
    assert view.node == "gpu-node-054"


def test_without_ranks_and_metrics_it_shows_what_happened_when_and_what_would_bring_the_map(tmp_path):
    """A kernel log alone: one note, the timeline, whose marks open their lines, and the log; no second box that says "none"."""
    log = tmp_path / "dmesg.log"
    log.write_text(
        "[Mon May  4 11:02:03 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "[Mon May  4 11:02:03 2026] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n"
    )
    case = open_path(str(log))
    view = IncidentView(case, tab="ranks")
    shown = view.__panel__()
    page = text_of(shown)
    assert len(case.ranks) == 0
    assert "No rank is known, so there is no map of ranks" in page
    assert "workbench collect --job NAME" in page
    assert "No metrics" not in page
    assert "has fallen off the bus" in page
    source = next(found for pane in shown.select(pn.pane.Bokeh) if (found := pane.object.select_one({"name": "events"})))
    source.selected.indices = [0]
    assert (view.file.rpartition("/")[2], view.line) in {("dmesg.log", 1), ("dmesg.log", 2)}


def test_without_metrics_or_logs_it_says_what_coverage_tells():
    doc = verdict(coverage=[{"source": "metrics", "status": "failed", "detail": "Prometheus did not answer", "blind_to": []}])
    case = shipped("gpu-memory")
    without = bare(verdict=doc, ranks=case.ranks, activity=case.activity)
    page = text_of(IncidentView(without, tab="ranks").__panel__())
    assert "No metrics" in page
    assert "Prometheus did not answer" in page
    assert "No logs" in page


def test_a_log_of_one_line_is_shown():
    view = IncidentView(bare({"log.txt": ["CUDA out of memory"]}), file="log.txt", line=1, tab="log")
    assert "CUDA out of memory" in text_of(view.__panel__())


@pytest.mark.parametrize(("cause", "said"), [("unknown", "No source is named"), ("none", "No source is named")])
def test_unknown_and_none_are_shown_as_such(cause, said):
    doc = verdict(cause=cause)
    doc["class"] = cause
    card = verdict_card_html(bare(verdict=doc))
    assert f"<h1>{cause}</h1>" in card
    assert said in card
    assert explanations(IncidentView(bare(verdict=doc)).document) == []


def test_what_speaks_against_and_what_was_not_seen_are_on_the_card():
    doc = verdict(
        coverage=[{"source": "kernel", "status": "missing", "detail": "no kernel log", "blind_to": ["hardware/gpu-lost"]}],
        ties=["a before b"],
    )
    card = verdict_card_html(bare(verdict=doc))
    assert "no kernel log (blind to hardware/gpu-lost)" in card
    assert "a before b" in card


def test_numbers_offer_what_asks_a_server_for_them_and_a_missing_one_says_why():
    case = bare(
        queries={"gpu_hours": {"promql": 'sum(x{a="b"})'}},
        impact={"gpu_hours": 12.5, "gpu_hours_lost": None, "why": {"gpu_hours_lost": "no checkpoint"}},
    )
    card = verdict_card_html(case)
    assert 'data-copy="sum(x{a=&#34;b&#34;})"' in card
    assert 'title="no checkpoint"' in card
    assert ">0 GPU-hours" not in card


def test_the_verdict_stands_first_among_the_explanations(view):
    rows = explanations(view.document)
    assert rows[0]["class"] == "hardware/gpu-memory"
    assert rows[0]["chosen"]
    assert any("xid-48" in why for why in rows[0]["why"])
    assert not any(row["chosen"] for row in rows[1:])


def test_a_search_says_what_it_has_not_looked_at(view):
    view.param.update(query="Xid", scope="all")
    rows, told = find(view)
    assert rows
    assert told.startswith(f"{len(rows)} lines found")
    view.scope = "rank"
    view.rank = None
    assert "No rank is chosen" in find(view)[1]


def test_links_in_the_card_keep_the_page_and_work_without_script():
    card = verdict_card_html(shipped("gpu-memory"), {"id": "a&b"})
    assert 'href="?id=a%26b&amp;tab=log&amp;file=' in card
    assert 'data-wb="gpu-memory-1"' in card


def test_the_map_marks_the_rank_that_is_looked_at(view):
    from bokeh.models import Span

    view.tab = "ranks"
    page = view.__panel__()
    figure = next(pane.object for pane in page.select(pn.pane.Bokeh) if pane.object.select_one({"name": "map"}))
    line = next(one for one in figure.center if isinstance(one, Span) and one.name == "chosen")
    assert (line.visible, line.location) == (True, 20.5)
    view.rank = 3
    assert line.location == 3.5
    view.rank = None
    assert not line.visible


def test_metrics_follow_the_gpu_in_the_figures_that_are_there(view):
    view.tab = "ranks"
    page = view.__panel__()

    def figures():
        return [pane.object for pane in page.select(pn.pane.Bokeh) if str(pane.object.name).startswith("panel-")]

    def powers(figure):
        lines = next(drawn.data_source.data for drawn in figure.renderers if drawn.data_source.name == "lines")
        return list(lines["ys"][lines["field"].index("DCGM_FI_DEV_POWER_USAGE")])

    before = figures()
    assert before
    power = next(figure for figure in before if figure.name == "panel-power")
    culprit = powers(power)
    view.rank = 21  # the same node's next GPU
    assert figures() == before
    assert powers(power) != culprit


def test_what_the_map_is_zoomed_to_is_in_the_link_and_shown_from_it(view):
    from bokeh.events import RangesUpdate

    view.tab = "ranks"
    page = view.__panel__()
    figure = next(pane.object for pane in page.select(pn.pane.Bokeh) if pane.object.select_one({"name": "map"}))
    edges = view.case.activity.edges
    figure._trigger_event(RangesUpdate(figure, x0=edges[10] * 1e3, x1=edges[20] * 1e3, y0=7.6, y1=2.2))
    assert view.rank_range == (2, 7)
    assert view.time_range == (edges[10], edges[20])
    other = IncidentView(view.case, state=view.state())
    shown = next(pane.object for pane in other.__panel__().select(pn.pane.Bokeh) if pane.object.select_one({"name": "map"}))
    assert (shown.y_range.start, shown.y_range.end) == (8, 2)
    assert shown.x_range.start == edges[10] * 1e3


def stepping():
    """Two ranks of which one stands still at step 10 while the other goes on to 100."""
    case = hostile()
    steps = np.tile(np.linspace(0, 100, 8, dtype="float32"), (2, 1))
    steps[1] = np.minimum(steps[1], 10)
    return dataclasses.replace(case, activity=dataclasses.replace(case.activity, steps=steps))


def drawn(view) -> object:
    """The map that the page shows."""
    return next(
        pane.object
        for pane in view.__panel__().select(pn.pane.Bokeh)
        if getattr(pane.object, "title", None) and pane.object.select_one({"name": "map"})
    )


def test_the_map_is_coloured_by_steps_when_asked_and_the_link_says_so():
    view = IncidentView(stepping(), state={"tab": "ranks"})
    assert drawn(view).title.text == "What each rank did"
    states = drawn(view).select_one({"name": "map"}).data_source.data["image"][0]

    view.rank_range = (1, 1)
    view.heard("colour=steps")
    made = drawn(view)
    assert made.title.text == "Steps behind the median"
    behind = made.select_one({"name": "map"}).data_source.data["image"][0]
    assert behind.shape[0] == 1  # what it was zoomed to stays
    assert behind[0, -1] > behind[0, 0]
    assert (behind != states[1:]).any()
    view.rank_range = None
    assert made.select_one({"name": "map"}).data_source.data["image"][0].shape[0] == 2

    assert view.state()["colour"] == "steps"
    assert drawn(IncidentView(view.case, state=view.state())).title.text == "Steps behind the median"
    view.heard("colour=state")
    assert drawn(view).title.text == "What each rank did"
    assert "colour" not in view.state()


def test_where_no_log_tells_of_steps_the_map_shows_states_and_says_why(view):
    view.set_state({"tab": "ranks", "colour": "steps"})
    assert drawn(view).title.text == "What each rank did"
    assert "no log tells of a training step" in text_of(view.built["ranks"])


def table_of(view: IncidentView) -> pn.widgets.Tabulator:
    """The table of the part that is seen."""
    view.__panel__()
    return view.built[view.tab].select(pn.widgets.Tabulator)[0]


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Panel (1.9.4) sorts so
def test_a_link_holds_how_its_table_is_sorted_and_filtered(view):
    view.tab = "events"
    table = table_of(view)
    table.sorters = [{"field": "time", "dir": "desc"}]
    table.filters = [
        {"field": "node", "type": "like", "value": "node-054"},
        {"field": "lane", "type": "like", "value": "no such filter"},
    ]
    state = view.state()
    assert state["tables"] == "events=sort%3D-time%26node%3Dnode-054"

    other = IncidentView(view.case, state=state)
    again = table_of(other)
    assert other.state() == state
    shown = again.current_view
    assert set(shown["node"]) == {"gpu-node-054"}
    assert shown["time"].tolist() == sorted(shown["time"], reverse=True)
    assert 0 < len(shown) < len(view.case.events)

    other.set_state({"tab": "events"})
    assert "tables" not in other.state()
    assert len(table_of(other).current_view) == len(view.case.events)


@pytest.mark.parametrize("said", ["events=sort%3Dno-such", "events=%26%26", "nothing", "x" * 4000, "%ff=%ff"])
def test_a_link_that_arranges_a_table_wrongly_shows_all_of_it(view, said):
    view.set_state({"tab": "events", "tables": said})

    assert len(table_of(view).current_view) == len(view.case.events)
