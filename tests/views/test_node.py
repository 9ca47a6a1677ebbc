"""Turn snapshots into the page of one node, and check values with units, findings with ages, history, and what is said when nobody told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("panel")

from tests.views.fleets import EVIL, NOW, Still, demo, hostile, unwell
from workbench.frames import events_frame
from workbench.model import Event
from workbench.site.demo import Demo
from workbench.site.frames import no_snapshot
from workbench.views.node import NodeView, kernel_lines


def made(poller: Any, node: str | None, gpu: int | None = None, **more: Any) -> NodeView:
    view = NodeView(poller, clock=lambda: NOW, **more)
    view.set_state({key: str(value) for key, value in (("node", node), ("gpu", gpu)) if value is not None})
    view.__panel__()
    return view


@pytest.fixture(scope="module")
def fleet() -> Any:
    return demo(1024)


def sick(fleet: Any, code: str) -> tuple[str, int]:
    row = fleet.findings[fleet.findings["code"] == code].iloc[0]
    return row["node"], int(row["gpu_index"])


def parts(view: NodeView) -> str:
    return "".join(one.html for one in (view._head, view._gpus, view._findings, view._conditions, view._history, view._events))


def test_all_gpus_are_told_with_their_values(fleet: Any) -> None:
    view = made(Still(fleet), "gpu-node-054", 4)
    mine = fleet.gpus[fleet.gpus["node"] == "gpu-node-054"]
    for uuid in mine["gpu_uuid"]:
        assert uuid in view._gpus.html
    for unit in ("°C", ">W<", "use %", "memory GiB", "Xid"):
        assert unit in view._gpus.html
    assert f"{mine['memory_used'].iloc[0] / 1024:.1f}" in view._gpus.html
    assert "DCGM_FI_DEV_POWER_USAGE" in view._gpus.html  # each number has its query
    assert view.state() == {"node": "gpu-node-054", "gpu": "4"}


def test_findings_have_ages_and_what_they_call_for(fleet: Any) -> None:
    name, gpu = sick(fleet, "xid-95")
    view = made(Still(fleet), name)
    assert f"uncontained memory error on GPU {gpu}" in view._findings.html
    assert "reset-gpu" in view._findings.html
    assert " ago" in view._findings.html
    assert "critical" in view._head.html


def test_the_plan_command_is_there_to_copy(fleet: Any) -> None:
    assert 'data-copy="workbench plan --node gpu-node-054"' in made(Still(fleet), "gpu-node-054")._head.html


def test_the_plan_command_of_an_odd_name_is_quoted() -> None:
    snapshot = demo(128)
    name = "gpu 1; rm -rf /"
    nodes = snapshot.nodes.assign(node=snapshot.nodes["node"].mask(snapshot.nodes.index == 0, name))
    view = made(Still(replace(snapshot, nodes=nodes)), name)
    assert "workbench plan --node &#39;gpu 1; rm -rf /&#39;" in view._head.html


def test_history_has_incidents_with_their_link_and_actions(fleet: Any) -> None:
    view = made(Still(fleet), "dgx-46")
    assert "./incident?id=nvlink-switch" in view._history.html
    name, _ = sick(fleet, "gpu-off-bus")
    said = made(Still(fleet), name)._history.html
    assert "cordon" in said
    assert "waits for a person" in said


def test_kernel_lines_are_there_also_from_case_files(fleet: Any) -> None:
    name, _ = sick(fleet, "xid-95")
    assert "NVRM: Xid" in made(Still(fleet), name)._events.html
    more = events_frame([Event("xid-79", "kernel", "NVRM: of the case file", NOW - 60, node="dgx-46")])
    asked: list[Any] = []

    def events_of(ids: list[str], node: str) -> pd.DataFrame:
        asked.append((ids, node))
        return more

    view = made(Still(fleet), "dgx-46", events_of=events_of)
    assert asked == [(["nvlink-switch"], "dgx-46")]
    assert "of the case file" in view._events.html


def test_case_files_are_asked_for_once_and_only_their_kernel_lines_of_the_node_are_taken() -> None:
    events = events_frame(
        [
            Event("xid-79", "kernel", "mine", NOW, node="gpu-1"),
            Event("xid-79", "kernel", "another's", NOW, node="gpu-2"),
            Event("python-exception", "job", "no kernel's", NOW, node="gpu-1"),
        ]
    )
    cases: dict[str, Any] = {}
    asked: list[str] = []
    lines = kernel_lines(cases.get, asked.append, most=2)
    assert lines(["a", "b", "c"], "gpu-1") is None
    assert lines(["a", "b", "c"], "gpu-1") is None
    assert asked == ["a", "b"]
    cases["a"] = SimpleNamespace(events=events)
    found = lines(["a", "b", "c"], "gpu-1")
    assert found is not None
    assert found["text"].tolist() == ["mine"]


def test_conditions_that_are_well_are_folded_away(fleet: Any) -> None:
    name, _ = sick(fleet, "xid-95")
    said = made(Still(fleet), name)._conditions.html
    assert said.index("WorkbenchGpuMemoryProblem") < said.index("<details>") < said.index("WorkbenchHostProblem")


def test_an_unknown_node_is_told_of_with_names_like_it(fleet: Any) -> None:
    view = made(Still(fleet), "gpu-node-05")
    assert "No source knows a node gpu-node-05" in view._head.html
    assert "gpu-node-054" in view._head.html
    assert not view._rest.visible
    view.set_state({"node": "gpu-node-054"})
    assert view._rest.visible


def test_without_a_name_it_leads_to_the_fleet(fleet: Any) -> None:
    assert "Which node?" in made(Still(fleet), None)._head.html


def test_before_the_first_answer_it_waits(fleet: Any) -> None:
    poller = Still(no_snapshot("x", NOW), version=0)
    view = made(poller, "gpu-node-054")
    assert "Asking the site" in view._head.html
    poller.show(fleet)
    view.refresh()
    assert "GPU" in view._gpus.html


def test_without_a_poller_it_says_how_to_get_a_fleet() -> None:
    assert "No fleet is watched" in made(None, "x")._head.html


def test_a_node_that_nobody_told_of_is_not_called_well() -> None:
    snapshot = demo(128)
    name = snapshot.nodes["node"].iloc[0]
    none = {
        "findings": snapshot.findings.head(0),
        "conditions": snapshot.conditions.head(0),
        "gpus": snapshot.gpus[snapshot.gpus["node"] != name],
    }
    never = pd.Series(pd.NaT, index=snapshot.nodes.index, dtype="datetime64[us, UTC]")
    nodes = snapshot.nodes.assign(checked=never, health=snapshot.nodes["health"].mask(snapshot.nodes["node"] == name, "unknown"))
    view = made(Still(replace(snapshot, nodes=nodes, **none)), name)
    said = parts(view)
    assert "that says nothing" in said
    assert "No source told of its GPUs" in said
    assert "never, as far as known" in said
    assert "No condition is known" in said


def test_looking_at_a_node_asks_for_its_hour_and_shows_it_when_it_comes() -> None:
    site = Demo(1024, clock=lambda: NOW)
    poller = Still(site())
    healthy = poller.snapshot.nodes[poller.snapshot.nodes["health"] == "ok"]["node"].iloc[5]
    view = made(poller, healthy)
    assert poller.watched == [healthy, healthy]  # when the address named it, and when it was drawn
    assert view._figures == []
    assert "is being asked for" in str(view._hour.object)
    site.watch([healthy])
    poller.show(site())
    view.refresh()
    assert {one.name for one in view._figures} >= {"panel-temperature", "panel-power"}


def test_a_new_snapshot_goes_into_the_figures_there_are() -> None:
    moment = [NOW]
    site = Demo(1024, clock=lambda: moment[0])
    site.watch(["gpu-node-054"])
    poller = Still(site())
    view = made(poller, "gpu-node-054")
    figures = list(view._figures)
    lines = [x.copy() for one in figures[0].renderers if one.data_source.name == "lines" for x in one.data_source.data["xs"]]
    moment[0] += 120
    poller.show(site())
    view.refresh()
    assert view._figures == figures
    newer = [x for one in figures[0].renderers if one.data_source.name == "lines" for x in one.data_source.data["xs"]]
    assert max(newer[0]) > max(lines[0])
    view.heard("gpu=3")
    assert view.gpu == 3
    assert view._figures != figures  # one GPU among its peers is another picture
    view.heard("gpu=3")
    assert view.gpu is None


def test_the_hour_may_wait_until_the_page_is_there() -> None:
    site = Demo(1024, clock=lambda: NOW)
    site.watch(["gpu-node-054"])
    view = made(Still(site()), "gpu-node-054", later=True)
    assert view._figures == []
    view.show_hour()
    assert view._figures
    unknown = made(Still(site()), "nobody", later=True)
    unknown.show_hour()
    assert unknown._figures == []


def test_stale_sources_are_told(fleet: Any) -> None:
    view = made(Still(unwell(fleet)), "gpu-node-054")
    assert "is it up?" in view._head.html
    old = NodeView(Still(fleet), clock=lambda: NOW + 1000)
    old.set_state({"node": "gpu-node-054"})
    old.__panel__()
    assert "What you see is old" in old._head.html


def test_hostile_words_stay_text() -> None:
    view = made(Still(hostile()), "gpu-1", 0)
    said = parts(view)
    assert "<script>" not in said
    assert "<img" not in said
    assert "&lt;script&gt;" in said
    assert "\x1b" not in said
    assert EVIL not in said


def test_what_is_seen_before_scripts_run_is_the_node_and_its_gpus(fleet: Any) -> None:
    view = NodeView(Still(fleet), clock=lambda: NOW)
    assert view.first() == ""  # no node is named
    view.set_state({"node": "gpu-node-054"})
    first = view.first()
    assert "gpu-node-054" in first
    assert first.count("GPU-") == 8


def test_a_gpu_that_makes_no_sense_is_left_out(fleet: Any) -> None:
    view = NodeView(Still(fleet), clock=lambda: NOW)
    view.set_state({"node": "gpu-node-054", "gpu": "x"})
    assert view.state() == {"node": "gpu-node-054"}
