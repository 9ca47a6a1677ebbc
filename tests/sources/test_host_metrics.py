"""Metrics of hosts that are known only by an address, and coverage that says what was asked of all nodes and what was taken of few."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_api_client")

from workbench.detect.metrics import detect_metrics
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.gather import Gathered, gather
from workbench.sources.prometheus.source import Prometheus
from workbench.testing.faults import FaultServer, Reply, Request
from workbench.testing.prometheus import Prometheus as Fake
from workbench.testing.promql import Series

END = time.time() // 60 * 60 - 60
TIMES = [END - 3600 + 30 * at for at in range(121)]


def name(node: int) -> str:
    return f"gpu-node-{node:03d}"


def gpus(node: int, many: int = 8) -> Iterable[Series]:
    for gpu in range(many):
        labels = {"Hostname": name(node), "gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}", "instance": f"10.244.{node}.5:9400"}
        for field, value in (
            ("DCGM_FI_DEV_GPU_TEMP", 45.0),
            ("DCGM_FI_DEV_XID_ERRORS", 0.0),
            ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0.0),
        ):
            late = 79.0 if (node, gpu, field) == (1, 3, "DCGM_FI_DEV_XID_ERRORS") else value
            yield Series({"__name__": field, **labels}, TIMES, [late if at > 100 else value for at in range(len(TIMES))])


def host(node: int) -> Iterable[Series]:
    """The node's own exporter knows nothing but its address; on node 1 processes are killed for memory."""
    labels = {"instance": f"10.0.3.{node}:9100", "job": "node"}
    kills = [float(node == 1 and at > 100) for at in range(len(TIMES))]
    yield Series({"__name__": "node_vmstat_oom_kill", **labels}, TIMES, kills)
    yield Series({"__name__": "node_load1", **labels}, TIMES, [1.0] * len(TIMES))


class Scheduler:
    """What a scheduler tells of the job."""

    name = "slurm"

    def __init__(self, nodes: Sequence[int], addresses: Sequence[tuple[str, str]] = ()) -> None:
        self.nodes, self.addresses = tuple(map(name, nodes)), tuple(addresses)

    def locate(self, scope: Scope, deadline: Deadline) -> Scope:
        return Scope(scope.job, END - 3600, END, nodes=self.nodes, addresses=self.addresses)

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        folder.write(
            "slurm/scontrol-job.txt", f"JobId=4711 JobName=llm\n   JobState=FAILED NodeList={','.join(self.nodes)}\n".encode()
        )
        return [Answer("slurm", "ok", "job 4711")]

    def examine(self, deadline: Deadline) -> list[Any]:
        return []


def collected(fake: Any, scheduler: Scheduler, root: Path) -> Gathered:
    with FaultServer(fake) as server:
        return gather(Scope("4711", END - 3600, END), [scheduler, Prometheus(server.url)], Folder(root), seconds=30)


def metrics(gathered: Gathered) -> list[Answer]:
    return gathered.answers["prometheus"]


def killed(root: Path) -> dict[str, str | None]:
    return {one.labels["instance"]: one.node for one in load(root).series if one.field == "node_vmstat_oom_kill"}


def test_hosts_are_found_by_the_addresses_that_the_scheduler_tells(tmp_path: Path) -> None:
    fake = Fake([row for node in (1, 2) for row in (*gpus(node), *host(node))] + [*host(9)])
    gathered = collected(fake, Scheduler((1, 2), [("10.0.3.1", name(1)), ("10.0.3.2", name(2))]), tmp_path)
    assert not [answer for answer in metrics(gathered) if "host" in answer.detail and answer.status != "ok"]
    assert killed(tmp_path) == {"10.0.3.1:9100": name(1), "10.0.3.2:9100": name(2)}  # the files know it, too
    kills = [event.node for event in detect_metrics(load(tmp_path).series) if "oom" in event.signature]
    assert kills == [name(1)]


@pytest.mark.parametrize(
    "addresses", [(), (("10.0.3.1", name(1)), ("10.0.3.1", name(2)), ("10.0.3.2", name(1)), ("10.0.3.2", name(2)))]
)
def test_nothing_is_guessed_where_nobody_tells_or_two_tell_otherwise(
    tmp_path: Path, addresses: Sequence[tuple[str, str]]
) -> None:
    fake = Fake([row for node in (1, 2) for row in (*gpus(node), *host(node))])
    gathered = collected(fake, Scheduler((1, 2), addresses), tmp_path)
    (lost,) = [answer for answer in metrics(gathered) if "node-exporter metrics are there, but none of" in answer.detail]
    assert lost.status == "missing"
    assert "let Kubernetes or Slurm be asked for addresses" in lost.hint
    assert not list(tmp_path.glob("metrics/node_*"))


def test_a_host_that_is_not_known_is_named(tmp_path: Path) -> None:
    fake = Fake([row for node in (1, 2) for row in (*gpus(node), *host(node))])
    gathered = collected(fake, Scheduler((1, 2), [("10.0.3.1", name(1))]), tmp_path)
    (lost,) = [answer for answer in metrics(gathered) if "no host metrics of" in answer.detail]
    assert (lost.status, lost.detail) == ("partial", f"no host metrics of 1 of 2 nodes: {name(2)}")


@pytest.mark.parametrize("exporter", ["node_uname_info", "kube_node_info"])
def test_what_an_exporter_tells_of_addresses_stands_in_the_files(tmp_path: Path, exporter: str) -> None:
    """Nobody else tells them here."""
    rows = [row for node in (1, 2) for row in (*gpus(node), *host(node))]
    for node in (1, 2):
        own = {"nodename": name(node), "instance": f"10.0.3.{node}:9100"}
        theirs = {"node": name(node), "internal_ip": f"10.0.3.{node}", "instance": "10.9.9.9:8080"}
        labels = own if exporter == "node_uname_info" else theirs
        rows.append(Series({"__name__": exporter, **labels}, TIMES, [1.0] * len(TIMES)))
    collected(Fake(rows), Scheduler((1, 2)), tmp_path)
    assert killed(tmp_path) == {"10.0.3.1:9100": name(1), "10.0.3.2:9100": name(2)}


def row(root: Path, source: str = "metrics") -> list[tuple[str, str]]:
    return [(each["status"], each["detail"]) for each in load(root).triage().to_dict()["coverage"] if each["source"] == source]


MANY = tuple(range(1, 13))


def test_of_a_fleet_all_were_asked_and_few_were_taken_which_is_well(tmp_path: Path) -> None:
    collected(Fake([each for node in MANY for each in gpus(node)]), Scheduler(MANY), tmp_path)
    taken = {one.node for one in load(tmp_path).series}
    assert len(taken) < len(MANY)
    (whole,) = [each for each in row(tmp_path) if "document" in each[1]]
    assert whole[0] == "ok", whole
    assert whole[1].endswith(f"; of 12 nodes all were asked what changed; the series of {len(taken)} of them were taken"), whole
    told = json.loads((tmp_path / "manifest.json").read_text())
    assert "gpu-node-[001-012]" in {answer["nodes"] for source in told["sources"] for answer in source["answers"]}


def test_a_node_of_a_fleet_without_metrics_is_still_named(tmp_path: Path) -> None:
    collected(Fake([each for node in MANY[:-1] for each in gpus(node)]), Scheduler(MANY), tmp_path)
    (whole,) = [each for each in row(tmp_path) if "document" in each[1]]
    assert whole[0] == "partial"
    assert whole[1].endswith("; none of gpu-node-012"), whole


def test_when_a_question_failed_the_others_nodes_count_as_not_seen(tmp_path: Path) -> None:
    fake = Fake([each for node in MANY for each in gpus(node)])

    def broken(request: Request) -> Reply:
        text = request.path + request.body.decode()
        if "topk" in text and "changes" in text and "ECC" in text:
            return Reply(b'{"status":"error","errorType":"execution","error":"no"}', 422)
        return fake(request)

    collected(broken, Scheduler(MANY), tmp_path)
    (whole,) = [each for each in row(tmp_path) if "document" in each[1]]
    assert whole[0] == "partial"
    assert "; none of gpu-node-" in whole[1], whole
    assert "all were asked" not in whole[1]
