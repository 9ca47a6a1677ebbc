"""Turn a size into a demo fleet and check that it fulfils the contract, is the same each time, and says of itself what it is."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from workbench.shipped import load_example
from workbench.site.demo import Demo, fetch
from workbench.site.frames import check_snapshot, no_snapshot

NOW = 1_796_000_000.0


@pytest.mark.parametrize("gpus", [128, 1000, 16_384])
def test_every_size_fulfils_the_contract(gpus: int) -> None:
    snapshot = fetch(gpus, now=NOW)
    check_snapshot(snapshot)
    assert gpus - 8 < len(snapshot.gpus) <= gpus
    assert snapshot.nodes["gpus"].sum() == len(snapshot.gpus)


def test_a_demo_says_that_it_is_one() -> None:
    snapshot = fetch(128, now=NOW)
    assert snapshot.data["demo"] is True
    assert "demo" in snapshot.name.lower()


def test_the_same_moment_gives_the_same_fleet_and_another_seed_another() -> None:
    one, again, other = fetch(256, now=NOW), fetch(256, now=NOW), fetch(256, now=NOW, seed=8)
    for name in ("nodes", "gpus", "findings", "jobs", "suspects", "actions", "conditions", "samples"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(again, name))
    assert not one.nodes.equals(other.nodes)


def test_values_move_from_one_poll_to_the_next_and_identities_do_not() -> None:
    one, later = fetch(256, now=NOW), fetch(256, now=NOW + 15)
    assert (one.gpus["power"] != later.gpus["power"]).mean() > 0.5
    assert one.gpus["gpu_uuid"].equals(later.gpus["gpu_uuid"])
    assert one.gpus["gpu_uuid"].is_unique


def test_all_that_can_befall_a_node_is_there() -> None:
    snapshot = fetch(1024, now=NOW)
    assert set(snapshot.nodes["health"]) == {"ok", "unknown", "warning", "critical"}
    assert {"gpu-workbench", "somebody"} <= set(snapshot.nodes["held_by"].dropna())
    assert (snapshot.nodes["sku"].nunique(), snapshot.nodes["pool"].nunique()) == (4, 4)
    assert "partial" in {one.status for one in snapshot.heard}


def test_shipped_incidents_have_their_nodes_and_make_suspects() -> None:
    snapshot = fetch(1024, now=NOW)
    assert snapshot.incidents is not None
    assert {"nvlink-switch", "gpu-memory"} <= set(snapshot.incidents["id"])
    assert set(snapshot.incidents["node"].dropna()) <= set(snapshot.nodes["node"])
    assert {"dgx-46", "gpu-node-054"} <= set(snapshot.suspects["node"])
    # what was the user's or the platform's own doing makes no node suspect
    assert not {"g1151", "g1152", "gpu-node-030"} & set(snapshot.suspects["node"])


def test_the_shipped_incidents_are_told_as_triage_tells_them() -> None:
    incidents = fetch(128, now=NOW).incidents
    assert incidents is not None
    for row in incidents.to_dict("records"):
        verdict = load_example(row["id"]).triage()
        gpu = verdict.gpu.index if verdict.gpu else None
        assert (row["node"], row["class"], row["at_fault"]) == (verdict.node, verdict.cls, verdict.at_fault)
        assert (None if pd.isna(row["gpu_index"]) else row["gpu_index"]) == gpu
        assert verdict.summary.startswith(row["summary"].removesuffix(".").partition(" of gpu-node")[0][:60])


def test_the_inbox_may_bring_its_own_incidents() -> None:
    row = {
        "id": "mine",
        "time": NOW - 60,
        "node": "gpu-x",
        "gpu_index": 2,
        "cause": "hardware",
        "class": "hardware/pcie",
        "at_fault": "gpu",
    }
    snapshot = Demo(128, clock=lambda: NOW, incidents=lambda: [row])()
    assert snapshot.suspects.iloc[0]["node"] == "gpu-x"
    assert list(snapshot.incidents["id"]) == ["mine"]


def test_nodes_that_people_look_at_have_samples_of_the_last_hour() -> None:
    demo = Demo(256, clock=lambda: NOW)
    name = demo().nodes["node"].iloc[3]
    demo.watch([name])
    samples = demo().samples
    mine = samples[samples["node"] == name]
    assert mine["field"].nunique() == 4
    assert mine["time"].max() - mine["time"].min() == pd.Timedelta(minutes=59)


@pytest.mark.parametrize("gpus", [0, 127, 16_385])
def test_a_size_that_is_no_fleet_is_refused(gpus: int) -> None:
    with pytest.raises(ValueError, match="128 to 16384"):
        Demo(gpus)


def broken(**changes: object) -> object:
    return replace(fetch(128, now=NOW), **changes)  # type: ignore[arg-type]


def test_a_snapshot_that_breaks_the_contract_is_named() -> None:
    good = fetch(128, now=NOW)
    check_snapshot(no_snapshot("empty", NOW))
    for changes, words in (
        ({"nodes": good.nodes.drop(columns="why")}, "nodes: column 'why' is missing"),
        ({"gpus": good.gpus.assign(temperature="hot")}, "gpus: column 'temperature' is"),
        ({"nodes": pd.concat([good.nodes, good.nodes.head(1)])}, "there twice"),
        (
            {"nodes": good.nodes.assign(health=pd.array(["fine"] * len(good.nodes), dtype="string"))},
            "'fine' is no word of HEALTH",
        ),
        ({"gpus": good.gpus.assign(node=pd.array(["elsewhere"] * len(good.gpus), dtype="string"))}, "elsewhere is no node"),
        ({"gpus": pd.concat([good.gpus, good.gpus.head(1)])}, "one GPU is there twice"),
        ({"nodes": good.nodes.assign(health=pd.array(["ok"] * len(good.nodes), dtype="string"))}, "better than its worst GPU"),
        ({"heard": (replace(good.heard[0], status="fine"),)}, "'fine' is none of"),
    ):
        with pytest.raises(ValueError, match=words):
            check_snapshot(broken(**changes))  # type: ignore[arg-type]
