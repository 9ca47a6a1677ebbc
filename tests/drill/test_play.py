"""A whole game day against a small API server in memory: the watch's own code sees it, the card says what it made of it, and all is gone after."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from workbench.cli import main
from workbench.drill.objects import MARK, SIMULATED
from workbench.testing.faults import FaultServer, Reply, Request
from workbench.testing.kubernetes import kubeconfig

_LISTS = {"nodes": "NodeList", "pods": "PodList", "events": "EventList", "namespaces": "NamespaceList"}


class Cluster:
    """Objects by path, made, changed and deleted as an API server does it, as far as a game day asks."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.made: list[str] = []
        self._lock = threading.Lock()
        self._number = 0
        self.put("/api/v1/namespaces", {"metadata": {"name": "game-day", "annotations": {MARK: "yes"}}})

    def put(self, where: str, item: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        meta = item["metadata"]
        name = meta.setdefault("name", f"{meta.get('generateName', '')}{self._number}")
        meta |= {"uid": f"uid-{self._number}", "resourceVersion": str(self._number), "creationTimestamp": "2026-01-01T00:00:00Z"}
        if "/namespaces/" in where:
            meta["namespace"] = where.split("/")[4]
        self.objects[f"{where}/{name}"] = item
        self.made.append(f"{where}/{name}")
        return item

    def answer(self, request: Request) -> Reply:
        with self._lock:
            return self._answer(request)

    def _answer(self, request: Request) -> Reply:
        parts = urlsplit(request.path)
        path, body = parts.path, json.loads(request.body or b"null")
        kind = path.rpartition("/")[2]
        if request.method == "POST":
            if f"{path}/{body['metadata'].get('name')}" in self.objects:
                return _json({"kind": "Status", "reason": "AlreadyExists"}, 409)
            return _json(self.put(path, body), 201)
        if request.method == "PATCH":
            item = self.objects[path.removesuffix("/status")]
            item.setdefault("status", {}).update(body["status"])
            return _json(item)
        if request.method == "DELETE":
            del self.objects[path]
            return _json({"kind": "Status"})
        if path in self.objects:
            return _json(self.objects[path])
        if kind in _LISTS and path.startswith("/api/v1"):
            wanted = parse_qs(parts.query).get("labelSelector", [""])[0]
            here = [item for name, item in self.objects.items() if _holds(path, name.rpartition("/")[0], kind)]
            items = [item for item in here if _fits(item, wanted)]
            return _json({"kind": _LISTS[kind], "apiVersion": "v1", "metadata": {}, "items": items})
        return _json({"kind": "Status", "message": "the server could not find the requested resource"}, 404)


def _holds(asked: str, where: str, kind: str) -> bool:
    """Whether a list is asked of where an object lies, or of all namespaces."""
    return where == asked or (asked == f"/api/v1/{kind}" and where.endswith(f"/{kind}"))


def _fits(item: dict[str, Any], selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    return all(
        labels.get(key) == value if value else key in labels
        for key, _, value in (one.partition("=") for one in selector.split(","))
        if key
    )


def _json(body: object, status: int = 200) -> Reply:
    return Reply(json.dumps(body).encode(), status)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def played(cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    with FaultServer(cluster.answer) as server:
        config = kubeconfig(folder, server.url)
        code = main(
            [
                *(
                    "gameday",
                    "--live",
                    "--yes",
                    "--clean",
                    "--kubeconfig",
                    str(config),
                    "--nodes",
                    "4",
                    "--ranks",
                    "16",
                    "--speed",
                    "300",
                ),
                *("--settle", "300ms", "--every", "300ms", "--into", str(folder / "day"), "-o", "json", *words),
            ]
        )
    return code, json.loads(capsys.readouterr().out)


def test_a_silent_node_and_a_preemption_are_told_by_the_cluster_alone(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No Prometheus and no Elasticsearch is named: nothing is fed there, and what Kubernetes shows is enough for these two."""
    _, card = played(cluster, tmp_path, capsys, "--rounds", "2", "--only", "platform/node-lost", "platform/preemption")

    rounds = {one["truth"]: one for one in card["rounds"]}
    lost, taken = rounds["platform/node-lost"], rounds["platform/preemption"]
    assert (lost["said"], lost["blamed"], lost["cause_right"], lost["innocent"]) == (
        "platform/node-lost",
        lost["node"],
        True,
        False,
    )
    assert lost["node"] is not None
    assert (taken["said"], taken["blamed"], taken["node_right"], taken["retry"]) == (
        "platform/preemption",
        None,
        True,
        "same-nodes",
    )
    assert (taken["shown"], lost["shown"]) == (2.0, 6.0)
    for one in card["rounds"]:
        assert one["fed"]["lines"] == one["fed"]["samples"] == 0
        assert one["fed"]["objects"] >= 2
        assert min(one["seen"], one["judged"], one["planned"]) >= 0
    assert card == json.loads((tmp_path / "day" / "scorecard.json").read_text())


def test_rounds_in_real_servers_are_summed_by_what_is_wrong_with_their_evidence(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks as well, which a game day on paper asks nobody for; a round with two troubles counts for both."""
    spec = tmp_path / "fleet.toml"
    spec.write_text(
        "schema = 'workbench.fleet-spec/1'\n[dirt]\nclock_skew = 0\nno_metrics = 1\nno_kernel = 1\nforeign_xid = 0\nsecond_fault = 0\ntruncated = 0\n",
        encoding="utf-8",
    )
    words = ["gameday", str(spec), "--live", "--yes", "--nodes", "4", "--ranks", "16", "--speed", "300", "--settle", "300ms"]
    words += ["--every", "300ms", "--into", str(tmp_path / "day"), "--rounds", "1", "--only", "platform/preemption"]
    with FaultServer(cluster.answer) as server:
        code = main([*words, "--kubeconfig", str(kubeconfig(tmp_path, server.url))])

    out, err = capsys.readouterr()
    assert code == 0, err
    card = json.loads((tmp_path / "day" / "scorecard.json").read_text())
    assert set(card["by_dirt"]) == {"no_metrics", "no_kernel"}
    assert card["by_dirt"]["no_kernel"] == card["by_dirt"]["no_metrics"] == card["score"]
    assert card["score"]["rank_right"] == {"count": 1, "of": 1}
    lines = [line.split() for line in out.splitlines()]
    assert [
        "by",
        "what",
        "is",
        "wrong",
        "with",
        "the",
        "evidence",
        "rounds",
        "cause",
        "node",
        "rank",
        "advice",
        "plan",
        "unknown",
        "innocent",
    ] in lines
    assert ["no", "GPU", "metrics", "1", "1", "1", "1", "1", "1", "0", "0"] in lines


def test_what_a_game_day_made_is_gone_after_it_and_the_truth_was_never_there(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(cluster.objects)
    seen: list[str] = []
    put = cluster.put
    cluster.put = lambda where, item: (seen.append(json.dumps(item)), put(where, item))[1]  # type: ignore[method-assign,func-returns-value]

    _, card = played(cluster, tmp_path, capsys, "--rounds", "1", "--only", "platform/preemption")

    assert {name for name in cluster.objects if "/events/" not in name} == before
    nodes = [name for name in cluster.made if "/nodes/" in name]
    assert len(nodes) == len(set(nodes)) == 4 + 2, "no name is used twice: the job's two nodes were replaced"
    assert all(SIMULATED in text for text in seen)
    assert not [text for text in seen if card["rounds"][0]["truth"] in text]


def test_a_verdict_that_never_comes_is_nothing_said_and_wrong(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that cannot see the pods must not look like one that is right."""
    import workbench.drill.play as play
    from workbench.inbox.kubernetes import KubernetesJobs
    from workbench.inbox.sightings import Seen

    monkeypatch.setattr(play, "_PATIENCE", 0.5)
    monkeypatch.setattr(KubernetesJobs, "look", lambda *_: Seen(problems=["forbidden"]))

    code, card = played(cluster, tmp_path, capsys, "--rounds", "1", "--only", "platform/preemption")

    (one,) = card["rounds"]
    assert code == 3
    assert (one["said"], one["seen"], one["judged"], one["planned"]) == ("nothing", None, None, None)
    assert not one["cause_right"]
    assert not one["retry_right"]
