"""Turn a site of fakes into a snapshot, and break it in every way that sites break: what nobody told is never healthy, and is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("kubernetes")
pytest.importorskip("prometheus_api_client")

from tests.site.small_site import condition, exporter, fit, gpu, node, pod, series, small, warning
from workbench.inbox.model import Entry
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action
from workbench.site.frames import check_snapshot
from workbench.site.live import Live, fetch
from workbench.site.model import Snapshot
from workbench.testing import Slurm


def row(snapshot: Snapshot, name: str) -> dict[str, Any]:
    (one,) = snapshot.nodes[snapshot.nodes["node"] == name].to_dict("records")
    return {str(key): None if pd.isna(value) else value for key, value in one.items()}


def heard(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    return {one.source: (one.status, one.detail) for one in snapshot.heard}


def test_a_healthy_site_is_told_whole(tmp_path: Path) -> None:
    objects = [
        node("gpu-1", fit()),
        node("gpu-2", fit()),
        pod("llm-0", "gpu-1", "llm", team="speech"),
        pod("llm-1", "gpu-2", "llm"),
    ]
    with small(tmp_path, objects, [*exporter("gpu-1"), *exporter("gpu-2")]) as here:
        snapshot = fetch(here.config)
    check_snapshot(snapshot)
    assert heard(snapshot)["kubernetes"][0] == heard(snapshot)["prometheus"][0] == "ok", heard(snapshot)
    one = row(snapshot, "gpu-1")
    assert (one["health"], one["pool"], one["zone"], one["gpus"], one["gpus_ready"], one["job"]) == (
        "ok",
        "h100-train",
        "zone-a",
        8,
        8,
        "llm",
    )
    assert (one["schedulable"], one["state"]) == (True, "Ready")
    first = snapshot.gpus.iloc[0]
    assert (first["temperature"], first["power"], first["utilization"], first["memory_used"], first["xid"]) == (
        41,
        610.5,
        98,
        70000,
        0,
    )
    assert (first["gpu_uuid"], first["pci"], first["job"]) == ("GPU-gpu-1-0", "0000:10:00.0", "llm")
    (job,) = snapshot.jobs.to_dict("records")
    assert (job["job"], job["team"], job["nodes"], job["gpus"]) == ("llm", "speech", 2, 16)
    assert "DCGM_FI_DEV_POWER_USAGE" in snapshot.queries["power"]["promql"]
    assert not snapshot.data["demo"]


def test_without_checks_and_metrics_a_ready_node_is_unknown(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1")]) as here:
        snapshot = fetch(here.config)
    assert row(snapshot, "gpu-1")["health"] == "unknown"
    assert set(snapshot.gpus["health"]) == {"unknown"}
    assert heard(snapshot)["prometheus"][0] == "missing"


def test_a_node_without_gpus_is_none_of_the_fleet_and_one_that_lost_all_is(tmp_path: Path) -> None:
    plain = node("cpu-1")
    plain["metadata"]["labels"], plain["status"]["capacity"], plain["status"]["allocatable"] = {}, {"cpu": "8"}, {"cpu": "8"}
    with small(tmp_path, [plain, node("gpu-1", usable=0, gpus=8)]) as here:
        snapshot = fetch(here.config)
    assert list(snapshot.nodes["node"]) == ["gpu-1"]
    assert row(snapshot, "gpu-1")["gpus_ready"] == 0


def test_our_own_conditions_become_findings_of_the_gpu_they_name(tmp_path: Path) -> None:
    bad = condition("WorkbenchGpuMemoryProblem", "True", "SmiRemapFailure", "gpu-memory: GPU 3: a row could not be remapped")
    good = condition("WorkbenchGpuLost", "False", "AllGpusPresent", "nothing was found that makes the node unfit")
    with small(tmp_path, [node("gpu-1", fit("True"), bad, good)], exporter("gpu-1")) as here:
        snapshot = fetch(here.config)
    found = snapshot.findings.set_index("code").loc["smi-remap-failure"]
    assert (found["gpu_index"], found["status"], found["class"], found["action"], found["check"]) == (
        3,
        "critical",
        "hardware/gpu-memory",
        "replace-node",
        "gpu-memory",
    )
    assert snapshot.gpus["health"].tolist() == ["ok"] * 3 + ["critical"] + ["ok"] * 4
    assert row(snapshot, "gpu-1")["cause"] == "hardware"
    assert "ok" in set(snapshot.findings["status"])  # what was looked at and is well is told as well


def test_a_checker_that_is_gone_makes_its_node_unknown(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit(ago=4000))], exporter("gpu-1")) as here:
        snapshot = fetch(here.config)
    assert row(snapshot, "gpu-1")["health"] == "unknown"
    assert "its checker is gone" in row(snapshot, "gpu-1")["why"]


def test_a_checker_that_could_not_look_makes_its_node_unknown(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit("Unknown"))], exporter("gpu-1")) as here:
        assert row(fetch(here.config), "gpu-1")["health"] == "unknown"


def test_a_warning_that_our_checker_told_in_an_event_is_a_finding(tmp_path: Path) -> None:
    said = warning("gpu-1", "SmiRemapPending", "gpu-memory: GPU 2: a row waits for a reset")
    others = warning("gpu-1", "NodeSysctlChange", "something else", component="kubelet")
    with small(tmp_path, [node("gpu-1", fit()), said, others], exporter("gpu-1")) as here:
        snapshot = fetch(here.config)
    (found,) = snapshot.findings[snapshot.findings["status"] == "warning"].to_dict("records")
    assert (found["code"], found["gpu_index"], found["class"]) == ("smi-remap-pending", 2, "hardware/gpu-memory")
    assert snapshot.gpus["health"].tolist()[2] == "warning"


def test_who_holds_a_node_is_told(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit(), unschedulable=True)], exporter("gpu-1")) as here:
        one = row(fetch(here.config), "gpu-1")
    assert (one["schedulable"], one["held_by"], one["health"], one["state"]) == (
        False,
        "somebody",
        "ok",
        "Ready,SchedulingDisabled",
    )


def test_a_node_that_does_not_answer_is_critical(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit(ago=4000), ready="Unknown")]) as here:
        one = row(fetch(here.config), "gpu-1")
    assert (one["health"], one["cause"], one["state"]) == ("critical", "platform", "Unknown")


def test_an_xid_of_within_the_hour_is_a_finding_with_the_rule_of_its_code(tmp_path: Path) -> None:
    metrics = [
        one for one in exporter("gpu-1") if not (one.labels["gpu"] == "4" and one.labels["__name__"] == "DCGM_FI_DEV_XID_ERRORS")
    ]
    metrics.append(series("DCGM_FI_DEV_XID_ERRORS", gpu("gpu-1", 4), *([0] * 40 + [79] * 20)))
    with small(tmp_path, [node("gpu-1", fit())], metrics) as here:
        snapshot = fetch(here.config)
    found = snapshot.findings.set_index("code").loc["xid-79"]
    assert (found["gpu_index"], found["status"], found["class"]) == (4, "critical", "hardware/gpu-lost")
    assert snapshot.gpus["health"].tolist()[4] == "critical"
    assert snapshot.gpus["xid"].tolist()[4] == 79


def test_an_old_xid_that_the_gauge_does_not_clear_is_no_news(tmp_path: Path) -> None:
    metrics = [
        one for one in exporter("gpu-1") if not (one.labels["gpu"] == "4" and one.labels["__name__"] == "DCGM_FI_DEV_XID_ERRORS")
    ]
    metrics.append(series("DCGM_FI_DEV_XID_ERRORS", gpu("gpu-1", 4), 79))
    with small(tmp_path, [node("gpu-1", fit())], metrics) as here:
        snapshot = fetch(here.config)
    assert set(snapshot.gpus["health"]) == {"ok"}
    assert snapshot.gpus["xid"].tolist()[4] == 79  # shown, and judged nothing


def test_a_gpu_that_vanished_while_its_siblings_are_there_is_critical(tmp_path: Path) -> None:
    metrics = [*exporter("gpu-1", [0, 1, 2, 3, 4, 5, 6]), *exporter("gpu-1", [7], until=1200)]
    with small(tmp_path, [node("gpu-1", fit())], metrics) as here:
        snapshot = fetch(here.config)
    assert snapshot.gpus["health"].tolist() == ["ok"] * 7 + ["critical"]
    assert snapshot.findings.iloc[0]["code"] == "metric-gpu-vanished"


def test_an_exporter_that_fell_silent_leaves_its_gpus_unknown(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1"), node("gpu-2")], [*exporter("gpu-1"), *exporter("gpu-2", until=1200)]) as here:
        snapshot = fetch(here.config)
    assert row(snapshot, "gpu-1")["health"] == "ok"
    assert row(snapshot, "gpu-2")["health"] == "unknown"
    assert "silent" in row(snapshot, "gpu-2")["why"]


def test_a_node_that_was_taken_away_is_not_missed(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1")], [*exporter("gpu-1"), *exporter("gpu-9", until=1200)]) as here:
        assert list(fetch(here.config).nodes["node"]) == ["gpu-1"]


def test_without_a_scheduler_a_silent_node_stays_in_sight(tmp_path: Path) -> None:
    with small(tmp_path, (), [*exporter("gpu-1"), *exporter("gpu-9", until=1200)]) as here:
        snapshot = fetch(here.config)
    assert row(snapshot, "gpu-9")["health"] == "unknown"
    assert heard(snapshot)["scheduler"][0] == "missing"


def test_an_exporter_that_does_not_tell_of_xids_calls_nobody_healthy(tmp_path: Path) -> None:
    metrics = [one for one in exporter("gpu-1") if one.labels["__name__"] != "DCGM_FI_DEV_XID_ERRORS"]
    with small(tmp_path, [node("gpu-1")], metrics) as here:
        snapshot = fetch(here.config)
    assert row(snapshot, "gpu-1")["health"] == "unknown"
    assert heard(snapshot)["prometheus"][0] == "partial"
    assert "does not tell of Xids" in heard(snapshot)["prometheus"][1]


def test_what_checks_wrote_for_the_textfile_collector_counts_while_its_file_is_fresh(tmp_path: Path) -> None:
    import time

    def written(ago: float) -> list[Any]:
        at = {"instance": "gpu-1:9100", "job": "node"}
        return [
            series("workbench_node_fit", {**at, "node": "gpu-1"}, 0),
            series(
                "workbench_finding",
                {**at, "node": "gpu-1", "check": "network", "gpu": "", "part": "mlx5_4", "code": "port-down", "action": "drain"},
                4,
            ),
            series(
                "workbench_finding",
                {**at, "node": "gpu-1", "check": "clock", "gpu": "", "part": "", "code": "", "action": "none"},
                1,
            ),
            series("node_textfile_mtime_seconds", {**at, "file": "/var/lib/node_exporter/workbench.prom"}, time.time() - ago),
        ]

    with small(tmp_path, [node("gpu-1")], [*exporter("gpu-1"), *written(60)]) as here:
        snapshot = fetch(here.config)
    assert row(snapshot, "gpu-1")["health"] == "critical"
    (found,) = snapshot.findings.to_dict("records")
    assert (found["check"], found["code"], found["status"], found["class"], found["action"]) == (
        "network",
        "port-down",
        "critical",
        "hardware/network-link",
        "drain",
    )
    with small(
        tmp_path, [node("gpu-1")], [*exporter("gpu-1"), *written(4000)][:-4] + written(4000)[:1] + written(4000)[3:]
    ) as here:
        assert row(fetch(here.config), "gpu-1")["health"] == "unknown"  # a file of long ago


def test_a_source_that_goes_away_keeps_its_last_answer_as_stale(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit())], exporter("gpu-1"), WORKBENCH_DEADLINE="10s") as here:
        site = Live(here.config)
        assert heard(site())["prometheus"][0] == "ok"
        assert here.prometheus is not None
        here.prometheus.fault = "500"
        snapshot = site()
        assert heard(snapshot)["prometheus"][0] == "stale"
        assert heard(snapshot)["kubernetes"][0] == "ok"
        assert snapshot.gpus["temperature"].notna().all()
        here.prometheus.fault = None
        assert heard(site())["prometheus"][0] == "ok"
        assert here.kubernetes is not None
        here.kubernetes.fault = "html"
        snapshot = site()
        assert heard(snapshot)["kubernetes"][0] == "stale"
        assert row(snapshot, "gpu-1")["pool"] == "h100-train"


def test_a_source_that_never_answered_is_failed_and_its_reason_told(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit())], exporter("gpu-1"), WORKBENCH_DEADLINE="10s") as here:
        assert here.prometheus is not None
        here.prometheus.fault = "401"
        snapshot = fetch(here.config)
    status, detail = heard(snapshot)["prometheus"]
    assert status == "failed"
    assert detail
    assert row(snapshot, "gpu-1")["health"] == "ok"  # by its own check


def test_pods_that_may_not_be_listed_leave_the_jobs_unknown_and_name_the_right(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit()), pod("llm-0", "gpu-1", "llm")]) as here:
        assert here.kubernetes is not None
        here.kubernetes.upstream.forbidden.add("pods")  # type: ignore[union-attr]
        snapshot = fetch(here.config)
    one = next(one for one in snapshot.heard if one.source == "kubernetes")
    assert one.status == "partial"
    assert '"pods"' in one.hint
    assert len(snapshot.jobs) == 0


def test_nodes_that_people_look_at_bring_an_hour_of_samples(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit()), node("gpu-2", fit())], [*exporter("gpu-1"), *exporter("gpu-2")]) as here:
        site = Live(here.config)
        assert len(site().samples) == 0
        site.watch(["gpu-2"])
        snapshot = site()
    check_snapshot(snapshot)
    assert set(snapshot.samples["node"]) == {"gpu-2"}
    assert {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"} <= set(snapshot.samples["field"])
    assert snapshot.samples["gpu_index"].nunique() == 8


def test_slurm_tells_nodes_states_and_jobs(tmp_path: Path) -> None:
    slurm = Slurm(nodes=["g1", "g2"])
    slurm.state["nodes"]["g2"] = (
        slurm.state["nodes"]["g2"].replace("State=IDLE", "State=DOWN*+DRAIN")
        + "   Reason=Xid 79 on GPU 3 [root@2026-03-01T10:00:59]\n"
    )
    slurm.state["queue"] = [
        {
            "id": "4711",
            "user": "carol",
            "state": "R",
            "start": "2026-03-01T09:00:00",
            "nodes": ["g1"],
            "gres": "gres/gpu:8",
            "name": "llm",
        }
    ]
    with small(tmp_path, (), (), slurm) as here:
        snapshot = fetch(here.config)
    check_snapshot(snapshot)
    assert heard(snapshot)["slurm"] == ("ok", "")
    one, two = row(snapshot, "g1"), row(snapshot, "g2")
    assert (one["health"], one["job"], one["state"], one["sku"]) == ("unknown", "4711", "MIXED", "h100")
    assert (two["health"], two["schedulable"]) == ("critical", False)
    (finding,) = snapshot.findings.to_dict("records")
    assert (finding["code"], finding["class"], finding["gpu_index"]) == ("xid-79", "hardware/gpu-lost", 3)
    (job,) = snapshot.jobs.to_dict("records")
    assert (job["job"], job["user"], job["gpus"]) == ("4711", "carol", 8)


def test_jobs_have_the_team_that_the_table_of_the_site_names(tmp_path: Path) -> None:
    """Of a namespace, of an account; where the table has neither it is what the job's labels say."""
    slurm = Slurm(nodes=["g1"])
    row = {"user": "carol", "state": "R", "start": "2026-03-01T09:00:00", "nodes": ["g1"], "gres": "gres/gpu:8", "name": "llm"}
    slurm.state["queue"] = [{**row, "id": "4711", "account": "proj0042"}]
    objects = [
        node("gpu-1", fit()),
        node("gpu-2", fit()),
        pod("a-0", "gpu-1", "a", team="queue-7"),
        pod("b-0", "gpu-2", "b", team="speech"),
    ]
    objects[3]["metadata"]["namespace"] = "other"
    table = {"WORKBENCH_TEAMS_NAMESPACES": "ml=language", "WORKBENCH_TEAMS_ACCOUNTS": "proj*=vision"}
    with small(tmp_path, objects, (), slurm, **table) as here:
        snapshot = fetch(here.config)
    check_snapshot(snapshot)
    assert dict(zip(snapshot.jobs["job"], snapshot.jobs["team"], strict=True)) == {
        "4711": "vision",
        "a": "language",
        "b": "speech",
    }


def test_slurm_that_does_not_answer_is_failed(tmp_path: Path) -> None:
    slurm = Slurm(nodes=["g1"])
    slurm.state["up"] = False
    with small(tmp_path, (), (), slurm) as here:
        snapshot = fetch(here.config)
    assert heard(snapshot)["slurm"][0] == "failed"
    assert len(snapshot.nodes) == 0


def test_the_journal_and_the_inbox_are_part_of_the_fleet(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    action = Action("act-1", "cordon", "drain", "gpu-1")
    with journal:
        journal.intent(action, "plan-1", {})
        journal.outcome(action, "plan-1", "done", "no new work comes")
        journal.intent(Action("act-2", "reset-gpu", "reset-gpu", "gpu-1"), "plan-1", {})
    entry = Entry(
        "incident-1",
        None,
        1_796_000_000.0,
        "folder",
        "x",
        cause="hardware",
        cls="hardware/pcie",
        node="gpu-1",
        gpu=2,
        at_fault="gpu",
        confidence=0.9,
    )
    with small(tmp_path, [node("gpu-1", fit())]) as here:
        snapshot = fetch(here.config, incidents=lambda: [entry])
    check_snapshot(snapshot)
    assert set(zip(snapshot.actions["verb"], snapshot.actions["status"], strict=True)) == {
        ("cordon", "done"),
        ("reset-gpu", "begun"),
    }
    assert snapshot.incidents is not None
    assert snapshot.incidents.iloc[0]["id"] == "incident-1"


def test_a_damaged_journal_is_partial(tmp_path: Path) -> None:
    with small(tmp_path, [node("gpu-1", fit())]) as here:
        site = Live(here.config)
        assert heard(site())["journal"][0] == "missing"
        (tmp_path / "journal.jsonl").write_text('{"schema":"x"}\n{"torn', encoding="utf-8")
        assert heard(site())["journal"][0] == "partial"


def test_a_reader_with_a_defect_costs_the_others_nothing(tmp_path: Path) -> None:
    def broken() -> list[Any]:
        raise RuntimeError("a defect")

    with small(tmp_path, [node("gpu-1", fit())]) as here:
        snapshot = fetch(here.config, incidents=broken)
    assert heard(snapshot)["inbox"] == ("failed", "RuntimeError: a defect")
    assert row(snapshot, "gpu-1")["health"] == "ok"
