"""A case file holds what its contract says, of a small incident and of a large one."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from workbench import frames
from workbench.casefile import case_file
from workbench.casefile import frames as chosen
from workbench.casefile.model import LANES, RANKS
from workbench.shipped import examples, load_example


@pytest.mark.parametrize("name", examples())
def test_every_frame_keeps_its_contract(name):
    case = case_file(load_example(name), source="x")
    frames.check_frame(case.ranks, RANKS)
    frames.check_frame(case.events, {**frames.EVENTS, "lane": "string", "evidence": "Int64"})
    frames.check_frame(case.metrics, frames.METRICS)
    frames.check_frame(case.conditions, frames.CONDITIONS)
    frames.check_frame(case.placement, frames.PLACEMENT)
    frames.check_frame(case.documents, chosen.DOCUMENTS)
    frames.check_frame(case.problems, chosen.PROBLEMS)
    assert set(case.events["lane"]) <= set(LANES)
    assert re.fullmatch(r"[a-z0-9-]+", case.id)
    assert case.logs.files().columns.tolist() == ["file", "kind", "node", "rank", "size", "lines"]


@pytest.mark.parametrize("name", examples())
def test_every_piece_of_evidence_is_an_event_of_the_timeline(name):
    case = case_file(load_example(name), source="x")
    marked = case.events[case.events["evidence"].notna()].set_index("evidence")
    assert sorted(marked.index) == list(range(len(case.verdict["evidence"])))
    for number, row in enumerate(case.verdict["evidence"]):
        assert marked.loc[number, "signature"] == row["signature"]
        assert marked.loc[number, "text"] == row["text"]


def test_events_on_what_is_blamed_are_in_its_lane_and_those_of_victims_in_theirs():
    case = case_file(load_example("gpu-memory"), source="x")
    first = case.events[case.events["evidence"] == 0].iloc[0]
    assert first["lane"] == "culprit"
    victims = {row["rank"] for row in case.verdict["victims"]}
    of_victims = case.events[case.events["rank"].isin(victims)]
    assert len(of_victims)
    assert set(of_victims["lane"]) == {"victims"}


def test_of_many_events_the_evidence_stays_and_the_rest_is_counted(monkeypatch):
    incident = load_example("gpu-memory")
    verdict = incident.triage()
    whole = case_file(incident, verdict, source="x").events
    monkeypatch.setattr(chosen.choose_events, "__defaults__", (40,))
    case = case_file(incident, verdict, source="x")
    assert len(case.events) == 40
    assert case.events.attrs["left_out"] == len(whole) - 40
    assert case.events["evidence"].notna().sum() == len(verdict.evidence_records)
    assert whole.attrs["left_out"] == 0


def test_of_many_metrics_those_of_the_culprits_node_and_of_healthy_nodes_stay(monkeypatch):
    incident = load_example("gpu-memory")
    verdict = incident.triage()
    monkeypatch.setattr(chosen.choose_series, "__defaults__", (25_000,))
    case = case_file(incident, verdict, source="x")
    nodes = set(case.metrics["node"])
    assert verdict.node in nodes
    assert len(nodes) > 1
    assert len(case.metrics) <= 25_000
    assert case.metrics.attrs["left_out"] > 0


def test_an_incident_without_anything_is_a_case_all_the_same(tmp_path):
    from workbench.incident import load

    (tmp_path / "empty.log").write_text("")
    case = case_file(load(tmp_path), source=str(tmp_path))
    assert case.activity is None
    assert case.ranks.empty
    assert case.verdict["class"] in ("unknown", "none")
    assert case.name == tmp_path.name


def test_times_of_events_are_on_the_clock_of_the_verdict():
    for name in ("gpu-memory", "nvlink-switch"):
        case = case_file(load_example(name), source="x")
        first = case.events[case.events["evidence"] == 0].iloc[0]
        assert abs(first["time"] - pd.Timestamp(case.verdict["evidence"][0]["time"])) < pd.Timedelta("1ms")
