"""`df.fleet` answers the usual questions of every frame of ours, and never counts what is not known as well."""

from __future__ import annotations

import pandas as pd
import pytest

from workbench.casefile import open_path
from workbench.casefile.model import CaseFile
from workbench.lab import snapshot
from workbench.shipped import example_path
from workbench.site.demo import fetch
from workbench.site.model import HEALTH, Snapshot


@pytest.fixture(scope="module")
def fleet() -> Snapshot:
    """A small invented fleet at a fixed moment."""
    return fetch(128, now=1_780_000_000.0)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> CaseFile:
    """A shipped incident."""
    return open_path(example_path("gpu-memory"), cache=tmp_path_factory.mktemp("cases"))


class TestKinds:
    def test_every_frame_of_ours_is_known(self, fleet: Snapshot, case: CaseFile) -> None:
        """By its columns, whatever it is called."""
        frames = {
            "gpus": fleet.gpus, "nodes": fleet.nodes, "findings": fleet.findings, "suspects": fleet.suspects, "jobs": fleet.jobs,
            "actions": fleet.actions, "metrics": case.metrics, "events": case.events, "ranks": case.ranks,
        }  # fmt: skip

        assert {name: frame.fleet.kind for name, frame in frames.items()} == {name: name for name in frames}

    def test_a_frame_that_is_none_of_ours_says_so(self) -> None:
        """With what it is for."""
        with pytest.raises(AttributeError, match="frames of gpus, nodes"):
            _ = pd.DataFrame({"a": [1]}).fleet


class TestRows:
    def test_unknown_is_never_well(self, fleet: Snapshot) -> None:
        """What nobody told of is among what is not well, before what is only absent."""
        gpus = fleet.gpus.copy()
        gpus["health"] = "ok"
        gpus.loc[[3, 5, 7], "health"] = ["unknown", pd.NA, "critical"]

        unwell = gpus.fleet.unwell()

        assert list(unwell.index) == [7, 3, 5]

    def test_the_worst_comes_first(self, fleet: Snapshot) -> None:
        """By the order of severity, as the map draws it."""
        words = list(fleet.nodes.fleet.worst(n=1000)["health"])

        assert words == sorted(words, key=lambda word: -HEALTH.index(word))
        assert len(words) == len(fleet.nodes)

    def test_rows_of_a_node_and_a_gpu_by_any_of_its_names(self, fleet: Snapshot) -> None:
        """Index, UUID, address; an index as a number or a text."""
        row = fleet.gpus.iloc[10]

        for name in (int(row["gpu_index"]), str(row["gpu_index"]), row["gpu_uuid"], row["pci"]):
            found = fleet.gpus.fleet.of(node=row["node"], gpu=name)
            assert list(found.index) == [10]
        with pytest.raises(KeyError, match="does not tell the GPU"):
            fleet.nodes.fleet.of(gpu=1)

    def test_ranks_of_a_case_are_chosen_by_rank(self, case: CaseFile) -> None:
        """The culprit's row."""
        assert case.ranks.fleet.of(rank=20)["node"].tolist() == ["gpu-node-054"]
        assert case.ranks.fleet.worst(1)["rank"].tolist() == [20]


class TestCounts:
    def test_every_word_has_a_column_and_the_sum_is_all(self, fleet: Snapshot) -> None:
        """Also the words that none has, and rows without a pool."""
        made = fleet.gpus.assign(pool=fleet.gpus["pool"].mask(fleet.gpus.index < 8)).fleet.count(by="pool")

        assert set(made.columns) == set(HEALTH)
        assert int(made.to_numpy().sum()) == len(fleet.gpus)
        assert "(not told)" in made.index
        assert int(fleet.nodes.fleet.count()["rows"].sum()) == len(fleet.nodes)


class TestMetrics:
    def test_one_metric_becomes_a_column_a_gpu_and_a_gap_stays_one(self, case: CaseFile) -> None:
        """Nothing is interpolated."""
        wide = case.metrics.fleet.wide("DCGM_FI_DEV_GPU_TEMP", node="gpu-node-054")

        assert wide.shape[1] == 8
        assert str(wide.index.tz) == "UTC"
        assert wide.to_numpy(float).size > 0

    def test_figures_come_only_of_their_kind(self, fleet: Snapshot, case: CaseFile) -> None:
        """A map of events would be nonsense."""
        assert fleet.gpus.fleet.map().title.text
        assert case.events.fleet.timeline().title.text
        assert case.metrics.fleet.panels("gpu-node-054", 4)
        for frame, name in ((case.events, "map"), (fleet.gpus, "timeline"), (fleet.gpus, "wide")):
            with pytest.raises(AttributeError, match="is for frames of"):
                getattr(frame.fleet, name)(*(["x"] if name == "wide" else []))


def test_a_source_that_is_none_is_told() -> None:
    """demo or live."""
    from workbench.errors import SourceUnavailable

    with pytest.raises(SourceUnavailable) as caught:
        snapshot("production")
    assert caught.value.hint == "demo or live"
