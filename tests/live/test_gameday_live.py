"""A game day in a real kube-apiserver, Prometheus and Elasticsearch: the watch names the node and rank; what is not marked stays as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.kubernetes_site import Site, control_plane, until

pytestmark = pytest.mark.live

MARK, SIMULATED = "workbench-game-day/target", "workbench-game-day/simulated"
INDEX = f"game-day-{os.getpid()}"
CLASSES = ("hardware/gpu-memory", "driver/hang", "platform/node-lost")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A control plane with a node, a namespace and a pod that are no game day's; the namespace game-day is not marked yet."""
    work = tmp_path_factory.mktemp("kubernetes")
    with control_plane(work):
        site = Site(work / "admin.kubeconfig")
        for name in ("game-day", "train"):
            site.namespace(name)
        site.node("dgx-1")
        site.pod("train", "llm-0", "dgx-1", labels={"app": "llm"})
        site.pod("game-day", "somebody", "dgx-1", labels={"app": "llm"})
        yield work


@pytest.fixture(scope="module")
def words(cluster: Path, start_prometheus: Callable[..., str], elasticsearch: str) -> list[str]:
    """The options that name the servers."""
    return [
        "--live", "--kubeconfig", str(cluster / "admin.kubeconfig"), "--prometheus", start_prometheus(), "--elasticsearch", elasticsearch,
        "--index", INDEX,
    ]  # fmt: skip


def gameday(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {key: one for key, one in os.environ.items() if key not in ("KUBECONFIG", "PROMETHEUS_URL", "ELASTICSEARCH_URL")}
    return subprocess.run(
        [sys.executable, "-m", "workbench", "gameday", *words], capture_output=True, text=True, timeout=300,
        env=environ | {"no_proxy": "127.0.0.1"},
    )  # fmt: skip


def asked(url: str) -> Any:
    with _OPENER.open(url, timeout=30) as reply:
        return json.load(reply)


def strangers(site: Site) -> list[Any]:
    """What no game day made, as the server has it."""
    found = []
    for item in [*site.core.list_node().items, *site.core.list_pod_for_all_namespaces().items]:
        if SIMULATED not in (item.metadata.labels or {}):
            kept = site.api.sanitize_for_serialization(item)
            found.append((kept["metadata"]["uid"], kept["metadata"].get("labels"), kept["spec"], kept["status"]))
    return sorted(found, key=lambda one: str(one[0]))


def test_an_unmarked_cluster_is_left_alone(words: list[str], cluster: Path, tmp_path: Path) -> None:
    """And one that is marked for simulated nodes only, and has others; and without --yes every one."""
    site, prometheus, elastic = Site(cluster / "admin.kubeconfig"), words[4], words[6]
    before = strangers(site)

    plain = gameday(*words, "--yes", "--into", str(tmp_path / "a"))
    site.core.patch_namespace("game-day", {"metadata": {"annotations": {MARK: "yes"}}})
    nodes = gameday(*words, "--yes", "--into", str(tmp_path / "b"))
    site.core.patch_namespace("game-day", {"metadata": {"annotations": {MARK: "beside-real-nodes"}}})
    shown = gameday(*words, "--into", str(tmp_path / "c"))

    assert (plain.returncode, nodes.returncode, shown.returncode) == (78, 78, 0), plain.stderr + nodes.stderr + shown.stderr
    assert "has no annotation" in plain.stderr
    assert "1 nodes that no game day made" in nodes.stderr
    assert "nothing was written" in shown.stdout
    assert strangers(site) == before
    assert [one.metadata.name for one in site.core.list_node().items] == ["dgx-1"]
    assert INDEX not in asked(f"{elastic}/_alias")
    assert asked(f"{prometheus}/api/v1/label/Hostname/values")["data"] == []


def test_the_live_path_names_node_and_rank(words: list[str], cluster: Path, tmp_path: Path) -> None:
    """A crash, a hang and a node that falls silent, sixty times as fast as time; then all of it is gone but what was there before."""
    site, prometheus, elastic = Site(cluster / "admin.kubeconfig"), words[4], words[6]
    site.core.patch_namespace("game-day", {"metadata": {"annotations": {MARK: "beside-real-nodes"}}})
    before = strangers(site)
    into, began = tmp_path / "day", time.monotonic()

    done = gameday(
        *words, "--yes", "--keep", "--clean", "--rounds", "3", "--only", *CLASSES, "--ranks", "32", "--speed", "60", "--settle", "2s",
        "--every", "1s", "--into", str(into), "-o", "json",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr + done.stdout
    card = json.loads(done.stdout)
    assert card == json.loads((into / "scorecard.json").read_text())
    assert {one["truth"] for one in card["rounds"]} == set(CLASSES)
    for one in card["rounds"]:
        assert one["said"] == one["truth"]
        assert one["blamed"] == one["node"]
        if one["rank"] is not None:
            assert one["named"] == one["rank"]
        assert one["plan_right"]
        assert one["actions"]
        assert {what: one["fed"][what] > 0 for what in ("lines", "samples", "objects")} == dict.fromkeys(
            ("lines", "samples", "objects"), True
        )
        assert 0 <= one["seen"] < 60
        assert 0 <= one["judged"] < 60
        assert 0 < one["planned"] < 30
    assert time.monotonic() - began < 280

    # the truth is in the card only
    held = json.dumps(asked(f"{elastic}/{INDEX}/_search?size=10000")) + json.dumps(
        [
            site.api.sanitize_for_serialization(one)
            for one in [*site.core.list_node().items, *site.core.list_event_for_all_namespaces().items]
        ]
    )
    assert "worker-0" in held
    assert not [cls for cls in CLASSES if cls in held]
    series = asked(f"{prometheus}/api/v1/series?match%5B%5D=DCGM_FI_DEV_XID_ERRORS")["data"]
    assert series
    assert {one["workbench_game_day"] for one in series} == {"yes"}
    simulated = {one.metadata.name for one in site.core.list_node(label_selector=SIMULATED).items}
    assert len(simulated) == 16
    assert card["rounds"][-1]["node"] in simulated
    assert not simulated.intersection(one["node"] for one in card["rounds"][:-1]), (
        "each job has nodes of which nothing is known yet"
    )
    assert strangers(site) == before

    # the next game day begins with a clean place, and leaves one
    again = gameday(
        *words, "--yes", "--clean", "--rounds", "1", "--only", "user/exception", "--ranks", "16", "--speed", "120", "--settle", "1s",
        "--every", "1s", "--seed", "2", "--into", str(tmp_path / "next"), "-o", "json",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr + again.stdout
    assert json.loads(again.stdout)["rounds"][0]["said"] == "user/exception"
    until("the simulated nodes' end", lambda: [one.metadata.name for one in site.core.list_node().items] == ["dgx-1"])
    assert INDEX not in asked(f"{elastic}/_alias")
    assert strangers(site) == before
