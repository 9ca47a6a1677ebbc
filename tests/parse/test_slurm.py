"""Slurm: who ended the job, which node was at fault, and which drain is somebody's maintenance."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from workbench.catalog import signatures, table
from workbench.model import Event, Line, Parsed
from workbench.parse.slurm import parse_slurm, parse_slurm_json
from workbench.parse.slurm_log import parse_slurm_log
from workbench.parse.slurm_words import base_state, duration, local_epoch, reason_meaning

DATA = Path(__file__).parent.parent / "data" / "slurm"


def lines(text: str) -> list[Line]:
    return [Line(number, part) for number, part in enumerate(text.split("\n"), 1)]


def read(name: str) -> Parsed:
    return parse_slurm(lines((DATA / name).read_text()), file=name)


def log(*rows: str) -> list[Event]:
    return parse_slurm_log(lines("\n".join(rows)), file="job.log").events


def role(event: Event) -> str:
    return event.role or signatures()[event.signature].role


# ---- accounting


def test_sacct_reads_comments_with_newlines_and_bars() -> None:
    parsed = read("sacct-comment.txt")
    job = next(job for job in parsed.jobs if job.id == "9002")
    assert (job.state, job.exit_code, job.time_limit) == ("NODE_FAIL", 1, 172_800)
    assert job.nodes == ["gpu01", "gpu02", "gpu03", "gpu04"]
    assert job.data["admincomment"] == "drained by hand\nsee ticket | OPS-7"
    assert (job.start, job.end) == (local_epoch("2026-03-01T09:00:00"), local_epoch("2026-03-01T10:00:00"))
    assert not parsed.problems


def test_sacct_an_earlier_try_is_context_and_the_last_one_decides() -> None:
    events = read("sacct-comment.txt").events
    first = next(event for event in events if event.data["job"] == "9001")
    assert (first.signature, role(first)) == ("slurm-cancelled-by", "context")
    last = next(event for event in events if event.data["job"] == "9002")
    assert (last.signature, role(last), last.line) == ("slurm-node-fail", "cause", 3)
    assert last.text.startswith("9002|pretrain|u1|NODE_FAIL")
    step = next(event for event in events if event.data["job"] == "9002.0")
    assert step.signature == "slurm-oom"


def test_sacct_padded_with_cut_states() -> None:
    parsed = read("sacct-padded.txt")
    assert [job.state for job in parsed.jobs] == ["OUT_OF_MEMORY", "CANCELLED", "FAILED"]
    assert parsed.events[0].signature == "slurm-oom"
    assert parsed.jobs[0].signal == 125


def test_sacct_without_header_and_torn() -> None:
    parsed = parse_slurm(lines("4711|train|TIMEOUT|0:0|2026-03-01T09:00:00|2026-03-01T10:00:00|gpu[1-2]"), file="x")
    assert parsed.jobs[0].nodes == ["gpu1", "gpu2"]
    assert parsed.events[0].signature == "slurm-time-limit"
    torn = parse_slurm(lines("JobID|State|ExitCode|NodeList\n4711|FAI"), file="x")
    assert torn.problems[0].line == 2
    assert "columns" in torn.problems[0].message


@pytest.mark.parametrize(
    ("by", "uid", "signature"),
    [("1001", "1001", "slurm-cancelled-by"), ("0", "1001", "slurm-cancelled-admin"), ("1002", "1001", "slurm-cancelled-admin")],
)
def test_who_cancelled(by: str, uid: str, signature: str) -> None:
    text = f"JobId=1 JobName=x\n   UserId=ada({uid}) GroupId=g(1)\n   JobState=CANCELLED by {by} Reason=None\n   ExitCode=0:0"
    assert parse_slurm(lines(text), file="x").events[0].signature == signature


def test_succeeded_and_running_jobs_are_no_events() -> None:
    text = "JobID|State|ExitCode|NodeList\n1|COMPLETED|0:0|n1\n2|RUNNING|0:0|n2"
    parsed = parse_slurm(lines(text), file="x")
    assert parsed.events == []
    assert [job.state for job in parsed.jobs] == ["COMPLETED", "RUNNING"]


def test_scontrol_job() -> None:
    parsed = read("scontrol-job-requeued.txt")
    job = parsed.jobs[0]
    assert (job.name, job.state, job.restarts, job.time_limit, job.user) == ("llm run 7", "PREEMPTED", 2, 28_800, "ada")
    assert job.data["gres"] == {"gpu01": "gpu:h100:8(IDX:0-7)", "gpu02": "gpu:h100:8(IDX:0-7)"}
    assert job.data["admincomment"] == "made room for 9011 (reason=urgent)"
    assert (parsed.events[0].signature, parsed.events[0].time) == ("slurm-preempted", local_epoch("2026-03-01T10:00:00"))


# ---- nodes


def test_scontrol_nodes_many_lines_and_one() -> None:
    parsed = read("scontrol-node-states.txt")
    found = {event.node: event for event in parsed.events}
    assert {node: event.signature for node, event in found.items()} == {
        "gpu01": "slurm-gres-low",
        "gpu02": "slurm-node-not-responding",
        "gpu04": "slurm-drain-admin",
        "gpu05": "slurm-drain-health",
    }
    assert found["gpu01"].text == "Reason=gres/gpu count reported lower than configured (7 < 8) [slurm@2026-03-01T09:59:00]"
    assert found["gpu01"].line == 10
    assert found["gpu02"].time == local_epoch("2026-03-01T10:01:00")
    assert role(found["gpu04"]) == "context"
    assert (found["gpu05"].cls, found["gpu05"].code) == ("hardware/gpu-lost", 79)
    states = {condition.node: condition.bad for condition in parsed.conditions if condition.name == "State"}
    assert states == {"gpu01": True, "gpu02": True, "gpu03": False, "gpu04": True, "gpu05": True}
    assert parsed.facts["nodes"]["gpu01"]["boot"] == local_epoch("2026-02-01T08:00:00")


def test_sinfo_reasons_with_and_without_header() -> None:
    padded = read("sinfo-R-padded.txt").events
    assert [(event.node, event.signature) for event in padded] == [
        ("gpu06", "slurm-kill-task-failed"),
        ("gpu07", "slurm-kill-task-failed"),
        ("gpu08", "slurm-low-memory"),
    ]
    bare = parse_slurm(lines("Kill task failed root 2026-03-01T10:02:00 node-b"), file="x").events
    assert (bare[0].node, bare[0].time) == ("node-b", local_epoch("2026-03-01T10:02:00"))


@pytest.mark.parametrize("file", ["sacctmgr-event-bars.txt", "sacctmgr-event-padded.txt"])
def test_troubles_that_nodes_had_are_events_and_no_conditions(file: str) -> None:
    """Printed by 22.05; what is over, and what still is. Columns of a fixed width cut the words that would have told the class."""
    parsed = read(file)
    found = {event.node: event for event in parsed.events}
    assert {node: (event.signature, event.cls, event.code) for node, event in found.items()} == {
        "gpu-node-054": ("slurm-drain-health", "hardware/gpu-memory", 95),
        "gpu-node-059": ("slurm-drain-health", "hardware/gpu-lost" if "bars" in file else None, None),
        "gpu-node-060": ("slurm-node-not-responding", None, None),
    }
    assert found["gpu-node-054"].time == local_epoch("2025-05-15T09:27:30")
    assert found["gpu-node-054"].data["until"] == local_epoch("2025-05-16T08:00:00")
    assert found["gpu-node-054"].data["by"] == "root"
    assert found["gpu-node-059"].data["until"] is None
    assert not parsed.conditions
    assert not parsed.problems


def test_squeue_pending_reasons() -> None:
    parsed = read("squeue-waiting.txt")
    assert [event.signature for event in parsed.events] == ["slurm-pending-nodes", "slurm-pending"]
    assert (parsed.jobs[1].name, parsed.jobs[2].nodes) == ("big run", ["gpu03", "gpu04"])


@pytest.mark.parametrize(
    ("reason", "signature", "cls"),
    [
        ("gres/gpu count reported lower than configured (0 < 8)", "slurm-gres-none", None),
        ("Node unexpectedly rebooted", "slurm-node-rebooted", None),
        ("Prolog error", "slurm-prolog-failed", None),
        ("NHC: check_ib: mlx5_3 port down", "slurm-drain-health", "hardware/network-link"),
        ("healthcheck: uncorrectable ECC on GPU 3", "slurm-drain-health", "hardware/gpu-memory"),
        ("PDU swap CHG080300", "slurm-drain-admin", None),
        ("moving to new rack", "slurm-drain-admin", None),
    ],
)
def test_drain_reasons(reason: str, signature: str, cls: str | None) -> None:
    meaning = reason_meaning(reason)
    assert (meaning["signature"], meaning.get("cls")) == (signature, cls)


# ---- JSON


def test_sacct_json_new_and_old_numbers() -> None:
    new: dict[str, Any] = {
        "jobs": [
            {
                "job_id": 77,
                "name": "t",
                "state": {"current": ["NODE_FAIL"], "reason": "NodeDown"},
                "exit_code": {
                    "status": ["ERROR"],
                    "return_code": {"set": True, "infinite": False, "number": 1},
                    "signal": {"id": {"set": False, "number": 0}},
                },
                "time": {"start": 1000, "end": 2000, "limit": {"set": True, "infinite": False, "number": 60}},
                "nodes": "gpu[1-2]",
                "user": "ada",
                "steps": [
                    {
                        "step": {"id": "77.0", "name": "torchrun"},
                        "state": ["FAILED"],
                        "exit_code": {"return_code": 1},
                        "nodes": {"list": ["gpu1"]},
                    }
                ],
            }
        ]
    }
    parsed = parse_slurm_json(new, file="sacct.json")
    job = parsed.jobs[0]
    assert (job.id, job.state, job.exit_code, job.start, job.end, job.time_limit) == (
        "77",
        "NODE_FAIL",
        1,
        1000.0,
        2000.0,
        3600.0,
    )
    assert parsed.events[0].signature == "slurm-node-fail"
    old = parse_slurm_json(
        {"jobs": [{"job_id": 78, "job_state": "TIMEOUT", "exit_code": 0, "nodes": "n1", "end_time": 5}]}, file="x"
    )
    assert (old.events[0].signature, old.events[0].time) == ("slurm-time-limit", 5.0)


def test_node_json_and_junk() -> None:
    parsed = parse_slurm_json(
        {
            "nodes": [
                {
                    "name": "gpu1",
                    "state": ["IDLE", "DRAIN"],
                    "reason": "Kill task failed",
                    "reason_set_by_user": "root",
                    "reason_changed_at": {"set": True, "number": 99},
                }
            ]
        },
        file="x",
    )
    assert (parsed.events[0].signature, parsed.events[0].node, parsed.events[0].time) == ("slurm-kill-task-failed", "gpu1", 99.0)
    assert parse_slurm_json([1, 2], file="x").problems


# ---- logs


def test_controller_log_tells_attempts_and_nodes() -> None:
    parsed = parse_slurm_log(lines((DATA / "slurmctld-day.log").read_text()), file="slurmctld.log")
    assert [(job.nodes, job.end is not None) for job in parsed.jobs] == [(["gpu01", "gpu02"], True), (["gpu03", "gpu04"], True)]
    by_line: dict[int | None, list[tuple[str, str | None]]] = {}
    for event in parsed.events:
        by_line.setdefault(event.line, []).append((event.signature, event.node))
    assert by_line[2] == [("slurm-preempted-ctld", None)]
    assert by_line[4] == [("slurm-node-not-responding", "gpu03"), ("slurm-node-not-responding", "gpu04")]
    assert by_line[5] == [("slurm-node-down", "gpu04")]
    assert by_line[7] == [("slurm-cancelled-admin", None)]
    assert by_line[8] == [("slurm-drain-admin", "gpu05")]
    assert by_line[10] == [("slurm-drain-health", "gpu06")]
    assert by_line[11] == [("slurm-node-rebooted", "gpu04")]
    assert by_line[12] == [("slurm-time-limit-ctld", None)]


@pytest.mark.parametrize(
    ("row", "signature", "is_cause"),
    [
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***", "slurm-time-limit", True),
        (
            "0: slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO PREEMPTION ***",
            "slurm-preempted",
            True,
        ),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T10:00:00 ***", "slurm-job-cancelled", True),
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 ***", "slurm-step-cancelled", False),
        (
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
            "slurm-node-fail",
            True,
        ),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO JOB REQUEUE ***", "slurm-requeue", True),
        ("srun: error: Node failure on n1", "slurm-node-failure-srun", True),
        ("srun: Force Terminated StepId=1.0", "slurm-force-terminated", False),
        (
            "slurmstepd: error: Detected 2 oom_kill events in StepId=1.0. Some of the step tasks have been OOM Killed.",
            "slurm-oom",
            True,
        ),
        (
            "srun: error: Unable to create step for job 1: Invalid generic resource (gres) specification",
            "slurm-invalid-gres",
            True,
        ),
        ("slurmd[77]: error: [job 1] prolog failed status=1:0", "slurm-prolog-failed", True),
    ],
)
def test_lines_anywhere(row: str, signature: str, is_cause: bool) -> None:
    events = log("step 100 | loss 2.1", row)
    assert [event.signature for event in events] == [signature]
    assert (role(events[0]) == "cause") is is_cause
    assert events[0].line == 2


def test_time_and_node_come_from_the_line() -> None:
    (event,) = log("slurmstepd: error: *** JOB 17 ON gpu-07 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***")
    assert (event.node, event.time, event.data["job"]) == ("gpu-07", local_epoch("2026-03-01T10:00:00"), "17")
    (anonymous,) = log("slurmstepd: error: *** JOB 17 ON ... CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***")
    assert anonymous.node is None
    (shifted,) = parse_slurm_log(lines("[2026-03-01T12:00:00.5] Time limit exhausted for JobId=17"), file="x", offset=7200).events
    assert shifted.time == local_epoch("2026-03-01T10:00:00.5")


def test_tasks_are_expanded() -> None:
    (event,) = log("srun: error: gpu-07: tasks 0-2,5: Exited with exit code 1")
    assert (event.data["tasks"], event.code, event.node) == ([0, 1, 2, 5], 1, "gpu-07")
    assert event.rank is None  # a task is a rank only when srun starts one process a rank


def test_a_match_far_into_a_long_line_is_shown() -> None:
    (event,) = log("1it [00:01]" * 3000 + "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-03-01T10:00:00 ***")
    assert "CANCELLED AT" in event.text
    assert len(event.text) <= 2000


def test_tables_are_not_read_as_log_lines() -> None:
    assert (
        log(
            "4711|CANCELLED by 1001|0:15|",
            "   Reason=Kill task failed [root@2026-03-01T10:00:00]",
            "Kill task failed root 2026-03-01T10:02:00 n1",
        )
        == []
    )


# ---- words and rows


def test_words() -> None:
    assert duration("2-01:00:30") == 176_430
    assert duration("UNLIMITED") is None
    assert base_state("CANCELLED by 1001") == "CANCELLED"
    assert base_state("OOM") == "OUT_OF_MEMORY"
    assert base_state("nonsense") is None
    assert local_epoch("Unknown") is None
    assert local_epoch("2026-13-45T99:00:00") is None


@pytest.mark.parametrize("row", [row for row in table("signatures_slurm") if row["pattern"]], ids=lambda row: row["id"])
def test_each_pattern_matches_its_example(row: dict[str, str]) -> None:
    assert re.search(row["pattern"], row["example"])
    assert not re.search(row["pattern"], "[rank0]: step 100 loss 2.31 lr 1e-4 | tokens 1,024 | time 0.31s")


def test_junk_is_survived() -> None:
    long = "1 2 " + " " * 60_000 + "x 2026-03-01T10:00:00"
    for text in ("", long, "|" * 500, "JobID|State\n" + "x|y|z\n" * 50, "NodeName=\nJobId=\n   =", "JobID State\n---- ----\n"):
        parse_slurm(lines(text), file="x")
        parse_slurm_log(lines(text), file="x")


@pytest.mark.parametrize(
    ("reason", "signature", "cls"),
    [
        ("Low socket*core*thread count, Low CPUs", "slurm-low-cpus", None),
        ("ResumeTimeout reached", "slurm-resume-failed", None),
        ("SlurmdSpoolDir is full", "slurm-spool-full", None),
        ("bad DIMM", "slurm-drain-health", "hardware/host"),
        ("psu failed", "slurm-drain-health", "hardware/thermal-power"),
        ("GPU falling off bus", "slurm-drain-health", "hardware/gpu-lost"),
        ("lustre not mounted", "slurm-drain-health", "platform/storage"),
        ("nvidia-smi hung", "slurm-drain-health", "driver/hang"),
        ("replace failed fan", "slurm-drain-admin", None),
        ("GPU firmware update, link down expected", "slurm-drain-admin", None),
    ],
)
def test_reasons_that_people_write(reason: str, signature: str, cls: str | None) -> None:
    """A note that names a fault is a finding; one about planned work is none, whatever parts it names."""
    meaning = reason_meaning(reason)
    assert (meaning["signature"], meaning.get("cls")) == (signature, cls)


def test_the_node_that_reports_a_node_failure_is_not_the_one_that_failed() -> None:
    (event,) = log("slurmstepd: error: *** STEP 4711.0 ON gpu-07 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE ***")
    assert event.node is None
    assert event.data["reported_by"] == "gpu-07"


def test_a_missing_script_is_not_the_users() -> None:
    spool, users = log(
        "slurmstepd: error: execve(): /var/spool/slurmd/job00089/slurm_script: No such file or directory",
        "slurmstepd: error: execve(): pyhton: No such file or directory",
    )
    rows = signatures()
    assert rows[spool.signature].cls == "platform/config"
    assert rows[users.signature].cls == "user/config"


def test_the_node_that_failed_is_named_where_the_accounts_name_it() -> None:
    rows = [
        "JobID|JobName|State|ExitCode|NodeList|FailedNode",
        "4711|llm|NODE_FAIL|1:0|gpu-node-[003-004]|gpu-node-004",
    ]
    parsed = parse_slurm([Line(no, row) for no, row in enumerate(rows, 1)], file="slurm/sacct.txt")
    (event,) = [event for event in parsed.events if event.signature == "slurm-node-fail"]
    assert event.node == "gpu-node-004"


def test_a_try_that_was_requeued_says_so_in_json_as_in_text() -> None:
    raw = {"jobs": [{"job_id": 4711, "name": "llm", "state": {"current": ["PENDING", "REQUEUED"]}, "nodes": "gpu-node-001"}]}
    parsed = parse_slurm_json(raw, file="slurm/sacct.json")
    assert parsed.jobs[0].state == "REQUEUED"
