"""Nothing is written where nobody marked it for game days, or where that cannot be known; and only what a game day made is deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.drill.recording import Recording
from workbench.cli import main
from workbench.drill.objects import MARK, SIMULATED, node_status
from workbench.drill.play import play_live
from workbench.drill.target import SHARED, NotATarget, Target, configured
from workbench.errors import SourceError
from workbench.simulation import Spec
from workbench.testing.faults import FaultServer, Reply, Request
from workbench.testing.kubernetes import kubeconfig

NAMES = ["gd00000-0000", "gd00000-0001"]


class Servers:
    """An API server, an Elasticsearch and a Prometheus, as far as it takes to say who is marked; every write is kept."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {MARK: "yes"}
        self.nodes: dict[str, dict[str, str]] = {}
        self.pods: dict[str, dict[str, str]] = {}
        self.more: dict[str, dict[str, Any]] = {}
        self.index: dict[str, Any] = {}
        self.series: list[Any] = []
        self.writes: list[tuple[str, str]] = []

    def cluster(self, request: Request) -> Reply:
        path = urlsplit(request.path)
        if request.method != "GET":
            self.writes.append((request.method, path.path))
            return Reply(b'{"kind": "Status"}')
        if path.path == "/api/v1/namespaces/game-day":
            return Reply(json.dumps({"metadata": {"name": "game-day", "annotations": self.annotations}}).encode())
        kept = {"nodes": self.nodes, "pods": self.pods}.get(path.path.rpartition("/")[2])
        if kept is None:
            return Reply(b'{"kind": "Status", "message": "not there"}', 404)
        wanted = parse_qs(path.query).get("labelSelector", [""])[0]
        items = [
            {"metadata": {"name": name, "labels": labels}, **self.more.get(name, {})}
            for name, labels in kept.items()
            if not wanted or wanted in labels
        ]
        return Reply(json.dumps({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items}).encode())

    def logs(self, request: Request) -> Reply:
        headers = {"Content-Type": "application/json", "X-Elastic-Product": "Elasticsearch"}
        if request.method != "GET":
            self.writes.append((request.method, urlsplit(request.path).path))
        return Reply(json.dumps(self.index).encode(), headers=headers)

    def metrics(self, request: Request) -> Reply:
        data: dict[str, Any] = {"resultType": "vector", "result": self.series}
        if "buildinfo" in request.path:
            data = {"version": "2.42.0", "goVersion": "go1.19"}
        elif "write" in request.path:
            self.writes.append((request.method, request.path))
        return Reply(json.dumps({"status": "success", "data": data}).encode())


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def names(servers: Servers, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The options that name the three."""
    with FaultServer(servers.cluster) as one, FaultServer(servers.logs) as two, FaultServer(servers.metrics) as three:
        config = kubeconfig(tmp_path, one.url)
        yield {"kubeconfig": str(config), "elasticsearch": two.url, "prometheus": three.url}


@pytest.fixture
def target(names: dict[str, str]) -> Target:
    return made(names)


def made(names: dict[str, str], index: str = "game-day-logs") -> Target:
    return Target.of(configured(names["kubeconfig"], None, "game-day", names["prometheus"], names["elasticsearch"], index))


def test_what_is_marked_may_be_written_to(target: Target, servers: Servers) -> None:
    servers.nodes = {name: {SIMULATED: "true"} for name in NAMES}
    servers.index = {"game-day-logs": {"mappings": {"_meta": {"workbench_game_day": True}}}}

    target.check(NAMES)

    assert servers.writes == []


REFUSED: dict[str, tuple[Callable[[Servers], None], str]] = {
    "no mark": (lambda site: site.annotations.clear(), "has no annotation"),
    "another mark": (lambda site: site.annotations.update({MARK: "no"}), "has no annotation"),
    "real nodes": (lambda site: site.nodes.update({"dgx-1": {}}), "1 nodes that no game day made"),
    "the same name": (
        lambda site: (site.nodes.update({NAMES[1]: {}}), site.annotations.update({MARK: SHARED}))[0],
        f"a node {NAMES[1]}",
    ),
    "an index of somebody": (lambda site: site.index.update({"game-day-logs": {"mappings": {}}}), "index game-day-logs is there"),
    "series of real nodes": (lambda site: site.series.append({"metric": {}, "value": [1, "8"]}), "no game day wrote"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_place_that_is_not_marked_is_refused_and_nothing_is_written(
    target: Target, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("workbench.drill.play.node_names", lambda *_: NAMES)
    change, words = REFUSED[case]
    change(servers)

    with pytest.raises(NotATarget, match=words) as refused:
        play_live(Spec.read().with_(nodes__count=2), target, 1, tmp_path / "day")

    assert f"annotate namespace game-day {MARK}=yes" in refused.value.hint
    assert servers.writes == []
    assert not (tmp_path / "day").exists()


@pytest.mark.parametrize(("ago", "phase", "runs"), [(5, "Running", True), (300, "Running", False), (5, "Failed", False)])
def test_there_is_one_game_day_at_a_time(target: Target, servers: Servers, ago: float, phase: str, runs: bool) -> None:
    """One that was killed, or that left its last job there, keeps nobody away."""
    servers.nodes, servers.pods = {"gd1-0": {SIMULATED: "true"}}, {"gd-1-worker-0": {SIMULATED: "true"}}
    servers.more = {
        "gd1-0": node_status(time.time() - ago, 0.0, gpus=8),
        "gd-1-worker-0": {"spec": {"nodeName": "gd1-0"}, "status": {"phase": phase}},
    }

    if runs:
        with pytest.raises(NotATarget, match="another game day runs"):
            target.check(NAMES)
    else:
        target.check(NAMES)


def test_beside_real_nodes_it_is_the_cluster_s_owner_who_lets_it(target: Target, servers: Servers) -> None:
    servers.nodes = {"dgx-1": {}}
    servers.annotations = {MARK: SHARED}

    target.check(NAMES)


@pytest.mark.parametrize("down", ["kubeconfig", "elasticsearch", "prometheus"])
def test_who_cannot_be_asked_is_not_written_to(names: dict[str, str], servers: Servers, tmp_path: Path, down: str) -> None:
    nobody = "http://127.0.0.1:9"
    named = names | {down: str(kubeconfig(Path(names["kubeconfig"]).parent, nobody)) if down == "kubeconfig" else nobody}

    with pytest.raises(NotATarget, match="could not be"):
        made(named).check(NAMES)

    assert servers.writes == []


def test_an_index_that_is_not_a_game_day_s_by_its_name_is_refused(names: dict[str, str]) -> None:
    with pytest.raises(NotATarget, match="begins with game-day-"):
        made(names, "filebeat-prod").check(NAMES)


def test_only_what_a_game_day_made_is_deleted(target: Target, servers: Servers) -> None:
    servers.nodes = {"gpu-0000": {SIMULATED: "true"}, "dgx-1": {}}
    servers.pods = {"gd-1-worker-0": {SIMULATED: "true"}, "llm-0": {}}
    servers.index = {"game-day-logs": {"mappings": {}}}

    target.clear(nodes=True)

    assert servers.writes == [
        ("DELETE", "/api/v1/namespaces/game-day/pods/gd-1-worker-0"),
        ("DELETE", "/api/v1/nodes/gpu-0000"),
    ]


def test_no_other_server_is_asked_than_those_that_are_named(
    names: dict[str, str], servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment and a file of settings say."""
    other = FaultServer(lambda _: b"{}")
    with other:
        monkeypatch.setenv("PROMETHEUS_URL", other.url)
        monkeypatch.setenv("ELASTICSEARCH_URL", other.url)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / ".", other.url)))
        alone = Target.of(configured(str(kubeconfig(tmp_path, other.url)), None, "game-day", None, None, "game-day-logs"))
        assert not alone.has_logs
        assert not alone.has_metrics
        before = len(other.requests)
        (tmp_path / "named").mkdir()
        with FaultServer(servers.cluster) as one:
            named = names | {"kubeconfig": str(kubeconfig(tmp_path / "named", one.url))}
            made(named).check(NAMES)
        assert len(other.requests) == before


def test_a_feed_that_fails_ends_the_game_day_and_takes_away_what_it_made(tmp_path: Path) -> None:
    class Failing(Recording):
        def check(self, nodes: list[str]) -> None:
            self.done.append("checked")

        def open_index(self) -> None:
            self.done.append("index")

        def clear(self, *, nodes: bool) -> None:
            self.done.append(f"cleared {nodes}")

    target = Failing(broken=True)
    import workbench.drill.play as play

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play, "_watch", lambda *_: _Watching())
        with pytest.raises(SourceError, match="disk is full"):
            play_live(Spec.read().with_(nodes__count=4), target, 1, tmp_path, only=["user/exception"], speed=500, ranks_most=16)  # type: ignore[arg-type]

    assert target.done[0] == "checked"
    assert target.done[-1] == "cleared True"
    assert not (tmp_path / "scorecard.json").exists()


class _Watching:
    """A watch that sees nothing."""

    class inbox:
        @staticmethod
        def entries() -> list[Any]:
            return []

    def __enter__(self) -> _Watching:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def look(self) -> None:
        pass

    def work(self) -> None:
        pass

    def busy(self) -> bool:
        return False


class TestCommand:
    def test_the_cluster_must_be_named(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", "/etc/production")

        assert main(["gameday", "--live", "--yes"]) == 64
        assert "--live needs --kubeconfig" in capsys.readouterr().err

    def test_without_a_yes_nothing_is_written(
        self, names: dict[str, str], servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["gameday", "--live", "--nodes", "2", "--into", str(tmp_path / "day")]
        for name, value in names.items():
            words += [f"--{name}", value]

        assert main(words) == 0
        told = capsys.readouterr().out
        assert "nothing was written; --yes does it" in told
        assert "2 nodes at a time, such as gd" in told
        assert servers.writes == []

    def test_an_unmarked_cluster_is_a_setting_that_is_wrong(
        self, names: dict[str, str], servers: Servers, capsys: pytest.CaptureFixture[str]
    ) -> None:
        servers.annotations = {}

        assert main(["gameday", "--live", "--kubeconfig", names["kubeconfig"], "--yes"]) == 78
        assert "no game day here" in capsys.readouterr().err
        assert servers.writes == []
