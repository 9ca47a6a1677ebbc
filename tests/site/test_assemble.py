"""Turn what single sources say of a node into what is shown of it: unknown is never healthy, a symptom of one GPU is none of the others'."""

from __future__ import annotations

from typing import Any

from workbench.errors import SourceUnavailable
from workbench.model import Condition
from workbench.site.assemble import NOT_TOLD, assemble
from workbench.site.frames import check_snapshot
from workbench.site.model import Snapshot
from workbench.site.parts import NodeSeen, Part, failed

NOW = 1_796_000_000.0


def scheduler(*nodes: NodeSeen, **more: Any) -> Part:
    return Part("kubernetes", NOW, nodes=nodes, **more)


def up(name: str = "gpu-1", **more: Any) -> NodeSeen:
    return NodeSeen(name, **({"gpus": 8, "usable": 8, "ready": True, "schedulable": True, "state": "Ready"} | more))


def exporter(name: str = "gpu-1", gpus: int = 8, **more: Any) -> Part:
    rows = tuple(
        {"node": name, "gpu_index": i, "gpu_uuid": f"GPU-{name}-{i}", "temperature": 40.0, "judged": True, **more}
        for i in range(gpus)
    )
    return Part("prometheus", NOW, gpus=rows)


def made(*parts: Part) -> Snapshot:
    snapshot = assemble(parts, NOW)
    check_snapshot(snapshot)
    return snapshot


def health(snapshot: Snapshot, name: str = "gpu-1") -> tuple[str, str, dict[str, int]]:
    row = snapshot.nodes.set_index("node").loc[name]
    mine = snapshot.gpus[snapshot.gpus["node"] == name]
    return row["health"], "" if row.isna()["why"] else row["why"], mine["health"].value_counts().to_dict()


def test_a_node_that_is_only_ready_is_unknown() -> None:
    assert health(made(scheduler(up()))) == ("unknown", NOT_TOLD, {"unknown": 8})


def test_a_fresh_check_or_an_exporter_that_would_have_told_makes_a_node_ok() -> None:
    assert health(made(scheduler(up(fit=True, checked=NOW - 60))))[0] == "ok"
    assert health(made(scheduler(up()), exporter()))[0] == "ok"


def test_an_exporter_that_does_not_tell_of_xids_makes_nothing_healthy() -> None:
    assert health(made(scheduler(up()), exporter(judged=False)))[0] == "unknown"


def test_a_check_of_an_hour_ago_says_nothing_of_now() -> None:
    word, why, gpus = health(made(scheduler(up(fit=True, checked=NOW - 3600)), exporter()))
    assert (word, gpus) == ("unknown", {"unknown": 8})
    assert why == "nobody has checked it for 60 min"


def test_a_checker_that_could_not_look_outweighs_metrics_without_trouble() -> None:
    word, why, _ = health(made(scheduler(up(unchecked="NVML does not answer", checked=NOW)), exporter()))
    assert (word, why) == ("unknown", "NVML does not answer")


def test_a_finding_of_one_gpu_leaves_the_others_as_they_are() -> None:
    finding = {
        "node": "gpu-1",
        "gpu_index": 3,
        "gpu_uuid": "GPU-gpu-1-3",
        "check": "xid",
        "code": "xid-95",
        "status": "critical",
        "class": "hardware/gpu-memory",
        "message": "uncontained",
    }
    snapshot = made(scheduler(up(fit=False, checked=NOW)), exporter(), Part("workbench check", NOW, findings=(finding,)))
    assert health(snapshot) == ("critical", "GPU 3: uncontained", {"ok": 7, "critical": 1})
    assert snapshot.gpus.set_index("gpu_index").loc[3, "cause"] == "hardware"


def test_the_uuid_decides_which_gpu_it_is_not_the_index() -> None:
    finding = {"node": "gpu-1", "gpu_index": 3, "gpu_uuid": "GPU-gpu-1-5", "check": "xid", "status": "critical", "message": "x"}
    snapshot = made(scheduler(up()), exporter(), Part("workbench check", NOW, findings=(finding,)))
    assert snapshot.gpus.set_index("gpu_index")["health"].to_dict()[5] == "critical"
    assert snapshot.gpus.set_index("gpu_index")["health"].to_dict()[3] == "ok"


def test_what_befalls_the_node_befalls_its_gpus() -> None:
    finding = {
        "node": "gpu-1",
        "check": "network",
        "code": "port-down",
        "status": "critical",
        "class": "hardware/network-link",
        "message": "mlx5_4 is down",
    }
    snapshot = made(scheduler(up(fit=False, checked=NOW)), exporter(), Part("workbench check", NOW, findings=(finding,)))
    assert health(snapshot) == ("critical", "mlx5_4 is down", {"critical": 8})
    assert set(snapshot.gpus["why"]) == {"the whole node: mlx5_4 is down"}


def test_a_node_that_is_called_unfit_without_a_reason_is_critical() -> None:
    assert health(made(scheduler(up(fit=False, checked=NOW)), exporter()))[:2] == ("critical", "its health check calls it unfit")


def test_a_node_that_does_not_answer_is_critical_and_keeps_its_name() -> None:
    snapshot = made(scheduler(up(ready=False, state="NotReady", since=NOW - 600)))
    word, why, gpus = health(snapshot)
    assert (word, gpus) == ("critical", {"critical": 8})
    assert "does not answer" in why
    assert snapshot.nodes["cause"].iloc[0] == "platform"


def test_a_gpu_that_should_be_there_and_nobody_tells_of_is_unknown() -> None:
    snapshot = made(scheduler(up(fit=True, checked=NOW)), exporter(gpus=7))
    word, why, gpus = health(snapshot)
    assert (word, gpus) == ("unknown", {"ok": 7, "unknown": 1})
    assert why == "GPU 7: the node should have 8 GPUs, and only 7 of them are told of"


def test_another_monitors_condition_counts_and_an_unknown_one_does_not() -> None:
    bad = Condition("GpuXidError", "True", "gpu-1", bad=True, reason="NvidiaXID79Error", message="lost")
    open_ = Condition("SomethingOfTheirs", "True", "gpu-1", bad=None)
    assert health(made(scheduler(up(fit=True, checked=NOW), conditions=(open_,))))[0] == "ok"
    assert health(made(scheduler(up(fit=True, checked=NOW), conditions=(bad,))))[0] in ("critical", "warning")


def test_a_cordon_is_no_illness() -> None:
    snapshot = made(scheduler(up(fit=True, checked=NOW, schedulable=False, held_by="somebody")))
    assert health(snapshot)[0] == "ok"
    assert snapshot.nodes["held_by"].iloc[0] == "somebody"


def test_a_node_that_prometheus_calls_by_its_full_name_is_the_same() -> None:
    snapshot = made(scheduler(up()), exporter("gpu-1.cluster.local"))
    assert list(snapshot.nodes["node"]) == ["gpu-1"]
    assert health(snapshot)[0] == "ok"


def test_two_full_names_with_different_domains_are_two_nodes() -> None:
    snapshot = made(scheduler(up("gpu-1.a.example")), exporter("gpu-1.b.example"))
    assert sorted(snapshot.nodes["node"]) == ["gpu-1.a.example", "gpu-1.b.example"]


def test_jobs_are_put_together_from_their_nodes() -> None:
    work = tuple(
        {"node": f"gpu-{i}", "job": "trainer", "namespace": "ml", "gpus": 8, "ranks": 8, "start": NOW - 60 * i} for i in (1, 2)
    )
    snapshot = made(scheduler(up("gpu-1"), up("gpu-2"), work=(*work, {"node": "gpu-1", "job": "daemon", "gpus": 0})))
    (row,) = snapshot.jobs.to_dict("records")
    assert (row["job"], row["nodes"], row["gpus"], row["node_names"]) == ("trainer", 2, 16, ("gpu-1", "gpu-2"))
    assert set(snapshot.gpus["job"]) == {"trainer"}


def test_with_two_jobs_on_a_node_nobody_knows_which_gpu_is_whose() -> None:
    work = ({"node": "gpu-1", "job": "a", "gpus": 4}, {"node": "gpu-1", "job": "b", "gpus": 4})
    snapshot = made(scheduler(up(), work=work))
    assert snapshot.gpus["job"].isna().all()
    assert snapshot.nodes["job"].iloc[0] == "a, b"


def test_a_source_that_fails_keeps_what_it_said_as_old_as_it_is() -> None:
    last = exporter()
    part = failed("prometheus", SourceUnavailable("refused", hint="is it up?"), last)
    assert (part.status, part.time, len(part.gpus)) == ("stale", NOW, 8)
    never = failed("prometheus", SourceUnavailable("refused"))
    assert (never.status, never.time) == ("failed", None)
    heard = made(scheduler(up()), never).heard
    assert [(one.source, one.status) for one in heard] == [("kubernetes", "ok"), ("prometheus", "failed")]
