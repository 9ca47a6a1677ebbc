"""What schedulers, runs, verdicts, checks and the journal tell becomes rows: once however often it is told, and nobody is blamed unseen."""

from __future__ import annotations

import json
import zlib
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from workbench.fleet.exporting import export
from workbench.fleet.ingest.lines import of_findings, of_journal, of_run
from workbench.fleet.ingest.paths import of_bytes, of_path
from workbench.fleet.ingest.told import Told, take_in
from workbench.fleet.ingest.verdicts import of_entry, of_verdict
from workbench.fleet.ledger import Ledger
from workbench.remediation.entries import Entry, line_of

T = 1_780_000_000.0
DATA = Path(__file__).resolve().parents[1] / "data"
HEAD = "JobID|JobName|User|Account|Partition|State|ExitCode|Restarts|Submit|Start|End|AllocTRES|FailedNode|NodeList\n"


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "fleet.sqlite") as one:
        yield one


def sacct(*rows: str, head: str = HEAD, recorded: float = T) -> Told:
    return of_bytes((head + "".join(f"{row}\n" for row in rows)).encode(), file="sacct.txt", recorded=recorded)


def row(
    job: str,
    state: str,
    start: str = "10:00",
    end: str = "11:00",
    restarts: str = "0",
    failed: str = "",
    nodes: str = "n[1-2]",
    code: str = "0:0",
) -> str:
    day = "2026-05-04T"
    return f"{job}|train|ada|vision|gpu|{state}|{code}|{restarts}|{day}09:00:00|{day}{start}:00|{day}{end}:00|gres/gpu:h100=16,gres/gpu=16,node=2|{failed}|{nodes}"


def verdict(cls: str = "hardware/gpu-lost", **more: Any) -> dict[str, Any]:
    return {
        "schema": "workbench.verdict/1", "class": cls, "cause": cls.split("/")[0], "confidence": 0.9, "time": "2026-05-04T10:58:00Z", "attempt": None,
        "culprit": {"node": "n2", "gpu": {"index": 3, "uuid": "GPU-3", "pci": None}, "rank": 11, "at_fault": "gpu"}, "evidence": [], **more,
    }  # fmt: skip


# ---- Slurm


def test_a_job_of_sacct_has_its_times_gpus_and_team(ledger: Ledger) -> None:
    take_in(ledger, sacct(row("4711", "COMPLETED"), "4711.batch|batch||vision||COMPLETED|0:0|0||||||n1"))
    (job,) = ledger.rows("jobs")
    assert (job["job"], job["user"], job["team"], job["pool"], job["sku"], job["nodes"], job["gpus"]) == (
        "4711",
        "ada",
        "vision",
        "gpu",
        "h100",
        2,
        16,
    )
    assert job["ended"] - job["started"] == 3600
    assert job["started"] - job["submitted"] == 3600
    (attempt,) = ledger.rows("attempts")
    assert (attempt["attempt"], attempt["node_names"], attempt["state"], attempt["cause"]) == (1, ["n1", "n2"], "completed", None)


@pytest.mark.parametrize(
    ("state", "code", "ours", "cause", "cls"),
    [
        ("FAILED", "1:0", "failed", "unknown", None),
        ("FAILED", "0:125", "failed", "user", "user/host-oom"),
        ("OUT_OF_MEMORY", "0:125", "failed", "user", "user/host-oom"),
        ("NODE_FAIL", "0:0", "failed", "platform", "platform/node-lost"),
        ("BOOT_FAIL", "0:0", "failed", "platform", "platform/node-lost"),
        ("PREEMPTED", "0:15", "preempted", "platform", "platform/preemption"),
        ("TIMEOUT", "0:15", "timeout", "platform", "platform/preemption"),
        ("CANCELLED by 1001", "0:15", "cancelled", None, None),
        ("CANCELLED by 0", "0:15", "cancelled", None, None),
        ("REQUEUED", "0:0", "failed", "unknown", None),
        ("RUNNING", "0:0", "running", None, None),
    ],
)
def test_a_state_gives_only_the_cause_that_it_says(
    ledger: Ledger, state: str, code: str, ours: str, cause: str | None, cls: str | None
) -> None:
    take_in(ledger, sacct(row("1", state, code=code)))
    for table in ("jobs", "attempts"):
        (one,) = ledger.rows(table)
        assert (one["state"], one["cause"], one["cls"]) == (ours, cause, cls)
        assert (one["ended"] is None) is (ours == "running")


def test_a_requeued_job_has_all_its_starts_and_the_end_of_the_last(ledger: Ledger) -> None:
    told = sacct(
        row("7", "NODE_FAIL", "10:00", "10:30", "0", "n2"),
        row("7", "PREEMPTED", "10:40", "11:00", "1"),
        row("7", "COMPLETED", "11:10", "12:00", "2"),
    )
    take_in(ledger, told)
    assert [(one["attempt"], one["state"]) for one in ledger.rows("attempts")] == [
        (1, "failed"),
        (2, "preempted"),
        (3, "completed"),
    ]
    (job,) = ledger.rows("jobs")
    assert (job["state"], job["cause"], job["ended"] - job["started"]) == ("completed", None, 7200)
    (blame,) = ledger.rows("signals")
    assert (blame["node"], blame["weight"], blame["kind"], blame["cls"]) == ("n2", 1.0, "job-failure", "platform/node-lost")


def test_starts_without_numbers_go_on_from_those_that_the_account_has(ledger: Ledger) -> None:
    head = HEAD.replace("Restarts|", "")
    cut = lambda text: "|".join(part for at, part in enumerate(text.split("|")) if at != 7)  # noqa: E731
    first, second = cut(row("7", "NODE_FAIL", "10:00", "10:30")), cut(row("7", "COMPLETED", "10:40", "11:00"))
    take_in(ledger, sacct(first, head=head))
    take_in(ledger, sacct(second, head=head, recorded=T + 9))
    take_in(ledger, sacct(second, head=head, recorded=T + 10))
    take_in(ledger, sacct(first, second, head=head, recorded=T + 11))
    assert [(one["attempt"], one["state"]) for one in ledger.rows("attempts")] == [(1, "failed"), (2, "completed")]
    assert ledger.rows("jobs")[0]["state"] == "completed"


def test_of_nodes_one_of_which_was_lost_each_has_its_share(ledger: Ledger) -> None:
    take_in(ledger, sacct(row("1", "NODE_FAIL", nodes="n[1-4]"), row("2", "FAILED", code="1:0")))
    rows = ledger.rows("signals")
    assert [(one["job"], one["node"], one["weight"]) for one in rows] == [("1", f"n{number}", 0.25) for number in range(1, 5)]


def test_a_bad_line_is_named_and_the_others_are_used(ledger: Ledger) -> None:
    told = sacct(row("1", "COMPLETED"), "2|train|ada|vision|gpu|FAI", row("3", "EXPLODED"), row("4", "FAILED"))
    take_in(ledger, told)
    assert [one["job"] for one in ledger.rows("jobs")] == ["1", "4"]
    assert any(problem.line == 3 and problem.file == "sacct.txt" for problem in told.problems)
    assert any("EXPLODED" in problem.message for problem in told.problems)


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_what_real_slurms_said_is_taken_in_as_text_and_as_json(ledger: Ledger, release: str) -> None:
    folder = DATA / "slurm_live" / release
    texts = [path for path in sorted(folder.glob("sacct*")) if path.suffix in (".txt", ".json")]
    assert texts
    seen = {}
    for path in texts:
        told, bare = of_path(path)
        assert not bare
        assert not told.problems
        seen[path.suffix] = {(one["job"], one["state"], one["gpus"], one["cause"]) for one in told.rows["jobs"]}
        take_in(ledger, told)
    assert all(one for one in seen.values())
    assert ledger.check() == []


def test_sacct_json_says_what_its_text_says(ledger: Ledger) -> None:
    number = lambda value: {"set": True, "infinite": False, "number": value}  # noqa: E731
    document = {
        "jobs": [
            {
                "job_id": 4711, "name": "train", "user": "ada", "account": "vision", "partition": "gpu", "nodes": "n[1-2]", "restart_cnt": 0, "failed_node": "n2",
                "state": {"current": ["NODE_FAIL"]}, "time": {"submission": T - 60, "start": T, "end": T + 3600}, "exit_code": {"return_code": number(0)},
                "tres": {"allocated": [{"type": "gres", "name": "gpu:h100", "count": 16}, {"type": "gres", "name": "gpu", "count": 16}]},
            },
            {"job_id": None},
            "nonsense",
        ]
    }  # fmt: skip
    told = of_bytes(json.dumps(document).encode(), file="sacct.json", recorded=T)
    take_in(ledger, told)
    (job,) = ledger.rows("jobs")
    assert (job["job"], job["team"], job["gpus"], job["sku"], job["cls"], job["started"]) == (
        "4711",
        "vision",
        16,
        "h100",
        "platform/node-lost",
        T,
    )
    assert [(one["node"], one["weight"]) for one in ledger.rows("signals")] == [("n2", 1.0)]
    assert len(told.problems) == 2


def test_rows_of_sacctmgr_show_event_are_stretches_of_a_nodes_life(ledger: Ledger) -> None:
    take_in(ledger, of_path(DATA / "slurm" / "sacctmgr-event-bars.txt", cluster="gpu")[0])
    rows = {one["node"]: one for one in ledger.rows("node_states")}
    assert (rows["gpu-node-060"]["state"], rows["gpu-node-060"]["end"] - rows["gpu-node-060"]["begin"]) == ("down", 1200)
    assert (rows["gpu-node-059"]["state"], rows["gpu-node-059"]["end"], rows["gpu-node-059"]["cls"]) == (
        "held",
        None,
        "hardware/gpu-lost",
    )
    assert rows["gpu-node-054"]["cause"] == "hardware"
    padded, _ = of_path(DATA / "slurm" / "sacctmgr-event-padded.txt")
    keys = [(one["cluster"], one["node"], one["begin"], one["end"], one["state"]) for one in padded.rows["node_states"]]
    assert keys == [("gpu", one["node"], one["begin"], one["end"], one["state"]) for one in ledger.rows("node_states")]


def test_a_state_of_a_node_ends_where_the_next_begins_in_whichever_order_they_are_told(tmp_path: Path) -> None:
    for turn, order in enumerate(permutations([(T, "down"), (T + 50, "held"), (T + 90, "usable")])):
        with Ledger.open(tmp_path / f"{turn}.sqlite") as ledger:
            for begin, state in (*order, order[0]):
                told = Told()
                told.add("node_states", node="n1", begin=begin, state=state, source="kubernetes", recorded=begin)
                take_in(ledger, told)
            assert [row["end"] for row in ledger.rows("node_states")] == [T + 50, T + 90, None]


# ---- verdicts


def test_a_verdict_and_the_scheduler_tell_of_one_failure_in_any_order_and_it_is_blamed_once(tmp_path: Path) -> None:
    scheduler = sacct(row("4711", "NODE_FAIL"))
    entry = {
        "schema": "workbench.inbox/1",
        "id": "e1",
        "seen": T + 5,
        "source": "slurm",
        "evidence": "",
        "job": "4711",
        "time": T,
        "attempt": 1,
    }
    inbox = of_entry(entry, verdict())
    late = sacct(row("4711", "NODE_FAIL"), recorded=T + 1000)
    exports = set()
    for turn, order in enumerate(permutations([scheduler, inbox, late])):
        with Ledger.open(tmp_path / f"{turn}.sqlite") as ledger:
            for told in (*order, order[0]):
                take_in(ledger, told)
            (job,) = ledger.rows("jobs")
            (attempt,) = ledger.rows("attempts")
            (blame,) = ledger.rows("signals", kind="job-failure")
            assert ledger.check() == []
            exports.add(b"".join(path.read_bytes() for path in export(ledger, tmp_path / str(turn), format="csv")))
        assert (job["cause"], job["cls"], job["gpus"]) == ("hardware", "hardware/gpu-lost", 16)
        assert (attempt["node"], attempt["gpu_uuid"], attempt["at_fault"], attempt["detected"]) == ("n2", "GPU-3", "gpu", T + 5)
        assert (blame["node"], blame["gpu_uuid"], blame["weight"]) == ("n2", "GPU-3", 1.0)
    assert len(exports) == 1


@pytest.mark.parametrize("cls", ["user/exception", "unknown", "platform/storage"])
def test_a_node_on_which_something_happened_is_not_blamed_for_it(ledger: Ledger, cls: str) -> None:
    culprit = {"node": "n2", "gpu": None, "rank": 3, "at_fault": "rank"}
    take_in(ledger, of_verdict(verdict(cls, culprit=culprit, incident="j"), source="folder:j", recorded=T))
    assert ledger.rows("signals") == []
    assert ledger.rows("jobs")[0]["cause"] == cls.split("/")[0]


def test_failures_of_one_job_on_several_nodes_share_one_blame(ledger: Ledger) -> None:
    for number, node in enumerate(("n1", "n2", "n2"), 1):
        culprit = {"node": node, "gpu": None, "rank": None, "at_fault": "node"}
        take_in(
            ledger,
            of_verdict(
                verdict("hardware/host", attempt=number, culprit=culprit, incident="j"), source=f"folder:{number}", recorded=T
            ),
        )
    shares = {one["node"]: one["weight"] for one in ledger.rows("signals")}
    assert shares == {"n1": pytest.approx(1 / 3), "n2": pytest.approx(2 / 3)}


def test_a_corrected_verdict_takes_the_old_blame_away(ledger: Ledger) -> None:
    take_in(ledger, of_verdict(verdict(incident="j"), source="folder:j", recorded=T))
    assert len(ledger.rows("signals")) == 1
    take_in(
        ledger,
        of_verdict(
            verdict("user/exception", incident="j", culprit={"at_fault": "rank", "rank": 1}), source="folder:j", recorded=T + 1
        ),
    )
    assert ledger.rows("signals") == []


def test_a_verdict_that_nothing_failed_and_one_without_a_job_add_nothing(ledger: Ledger) -> None:
    told = of_verdict(verdict("none", incident="j"), source="folder:j", recorded=T)
    assert len(told) == 0
    told = of_verdict(verdict(), source="folder:j", recorded=T)
    assert told.problems
    assert len(told) == 0


def test_an_xid_in_the_evidence_is_a_sign_of_its_own(ledger: Ledger) -> None:
    event = {
        "signature": "xid-79",
        "role": "cause",
        "node": "n2",
        "time": "2026-05-04T10:58:00Z",
        "code": 79,
        "gpu": {"uuid": "GPU-3"},
        "text": "NVRM: Xid",
    }
    take_in(
        ledger, of_verdict(verdict(incident="j", evidence=[event, {"signature": "xid-1"}, "x"]), source="folder:j", recorded=T)
    )
    (sign,) = ledger.rows("signals", kind="xid")
    assert (sign["node"], sign["gpu_uuid"], sign["code"]) == ("n2", "GPU-3", "79")


def test_folders_with_verdicts_and_an_inbox_are_found_and_bare_evidence_is_named(tmp_path: Path) -> None:
    (tmp_path / "all" / "a").mkdir(parents=True)
    (tmp_path / "all" / "a" / "verdict.json").write_text(json.dumps(verdict()))
    (tmp_path / "all" / "b" / "logs").mkdir(parents=True)
    (tmp_path / "all" / "b" / "manifest.json").write_text("{}")
    entry = tmp_path / "inbox" / "entries" / "e1"
    entry.mkdir(parents=True)
    (entry / "entry.json").write_text(
        json.dumps(
            {"schema": "workbench.inbox/1", "id": "e1", "seen": T, "source": "x", "evidence": "", "job": "9", "cls": "unknown"}
        )
    )
    (tmp_path / "inbox" / "entries" / "e2").mkdir()
    (tmp_path / "inbox" / "entries" / "e2" / "entry.json").write_text("{torn")
    told, bare = of_path(tmp_path / "all")
    assert [one["job"] for one in told.rows["attempts"]] == ["a"]
    assert bare == [tmp_path / "all" / "b"]
    told, bare = of_path(tmp_path / "inbox")
    assert [one["job"] for one in told.rows["attempts"]] == ["9"]
    assert ["e2" in problem.file for problem in told.problems] == [True]
    told, _ = of_path(tmp_path / "nowhere")
    assert told.problems


# ---- runs, journal, checks


def _line(schema: str, **value: Any) -> bytes:
    body = json.dumps({"schema": schema, **value}, separators=(",", ":")).encode()[:-1]
    return body + b',"sum":"%08x"}\n' % zlib.crc32(body)


def test_a_run_tells_its_attempts_and_which_node_it_was_kept_off(ledger: Ledger, tmp_path: Path) -> None:
    folder = tmp_path / "slurm-4711"
    folder.mkdir()
    first = {"number": 1, "started": T, "ended": T + 60, "state": "failed", "exit_code": -9, "cause": "hardware", "cls": "hardware/gpu-lost", "confidence": 0.9,
             "at_fault": "gpu", "node": "n2", "gpu_uuid": "GPU-3", "step_first": 1, "step_last": 70, "checkpoint_step": 50}  # fmt: skip
    lines = [_line("workbench.attempt/1", number=1, started=T, state="running"), _line("workbench.attempt/1", **first), b'{"torn',
             _line("workbench.attempt/1", number=2, started=T + 90, ended=T + 900, state="completed", exit_code=0, excluded=["n2"], step_first=51)]  # fmt: skip
    (folder / "attempts.jsonl").write_bytes(lines[0] + lines[1] + lines[2] + b"\n" + lines[3])
    told = of_run(folder, recorded=T + 1000)
    assert [problem.line for problem in told.problems] == [3]
    take_in(ledger, told)
    one, two = ledger.rows("attempts")
    assert (one["job"], one["state"], one["exit_code"], one["step_last"], one["step_saved"], one["cls"]) == (
        "4711",
        "failed",
        -9,
        70,
        50,
        "hardware/gpu-lost",
    )
    assert (two["excluded"], two["state"]) == (["n2"], "completed")
    (job,) = ledger.rows("jobs")
    assert (job["state"], job["cause"], job["started"], job["ended"]) == ("completed", None, T, T + 900)
    assert {(sign["kind"], sign["node"], sign["weight"]) for sign in ledger.rows("signals")} == {
        ("excluded", "n2", 1.0),
        ("job-failure", "n2", 1.0),
    }


def test_a_run_that_is_about_to_start_again_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / "attempts.jsonl").write_bytes(
        _line("workbench.attempt/1", number=1, started=T, ended=T + 60, state="failed", cause="platform")
    )
    (tmp_path / "decisions.jsonl").write_bytes(_line("workbench.decision/1", action="restart"))
    assert of_run(tmp_path).rows["jobs"][0]["state"] == "running"
    (tmp_path / "decisions.jsonl").write_bytes(
        _line("workbench.decision/1", action="restart") + _line("workbench.decision/1", action="stop")
    )
    assert of_run(tmp_path).rows["jobs"][0]["state"] == "failed"


def test_the_remediation_journal_tells_which_rungs_were_taken_and_how_they_ended(ledger: Ledger) -> None:
    entries = [
        Entry(
            1,
            T,
            "plan",
            plan="p1",
            data={"plan": {"troubles": [{"node": "n2", "cls": "hardware/gpu-memory", "gpu": {"uuid": "GPU-3"}}]}},
        ),
        Entry(2, T + 1, "intent", plan="p1", action="a1", node="n2", verb="reset", rung="reset-gpu", trouble="t"),
        Entry(3, T + 9, "outcome", plan="p1", action="a1", node="n2", verb="reset", rung="reset-gpu", status="done"),
        Entry(4, T + 20, "intent", plan="p1", action="a2", node="n3", verb="reboot", rung="reboot-node"),
        Entry(5, T + 30, "outcome", plan="p2", action="a3", node="n4", verb="drain", rung="drain", status="refused"),
    ]
    data = b"".join(line_of(one) for one in entries)
    told = of_bytes(data + b'{"schema":"workbench.journal/1","sum":"00000000"}\n', file="journal.jsonl", recorded=T)
    take_in(ledger, told)
    rows = [(one["node"], one["rung"], one["begin"], one["end"], one["outcome"]) for one in ledger.rows("actions")]
    assert rows == [
        ("n2", "reset-gpu", T + 1, T + 9, "done"),
        ("n3", "reboot-node", T + 20, None, None),
        ("n4", "drain", T + 30, T + 30, "refused"),
    ]
    assert [one["cls"] for one in ledger.rows("actions")] == ["hardware/gpu-memory", None, None]
    assert [(one["node"], one["gpu_uuid"]) for one in ledger.rows("signals")] == [
        ("n2", "GPU-3")
    ]  # what was refused or is under way is no sign
    assert [problem.line for problem in told.problems] == [6]
    assert of_journal(data, file="x").rows == told.rows


def test_findings_are_kept_and_only_critical_ones_are_signs(ledger: Ledger) -> None:
    finding = {
        "check": "gpu-count",
        "status": "critical",
        "summary": "7 of 8",
        "code": "gpu-missing",
        "node": "n1",
        "gpu": None,
        "class": "hardware/gpu-lost",
        "action": "drain",
    }
    document = {"schema": "workbench.findings/1", "node": "n1", "time": "2026-05-04T10:00:00Z",
                "findings": [finding, {**finding, "check": "clock", "status": "unknown", "code": "unread"}, {"nonsense": 1}]}  # fmt: skip
    told = of_findings(document, file="f.json", recorded=T)
    take_in(ledger, told)
    assert {(one["check_name"], one["status"]) for one in ledger.rows("findings")} == {
        ("gpu-count/gpu-missing", "critical"),
        ("clock/unread", "unknown"),
    }
    assert [one["code"] for one in ledger.rows("signals")] == ["gpu-count/gpu-missing"]
    assert len(told.problems) == 1


@pytest.mark.parametrize("data", [b"", b"\x00\xff", b"{", b"[]", b"3", b'{"a": 1}', b"hello\nworld\n", b"[" * 100_000], ids=str)
def test_what_is_none_of_these_is_a_problem_and_never_an_exception(data: bytes) -> None:
    told = of_bytes(data, file="x", recorded=T)
    assert told.problems
    assert len(told) == 0


def test_a_row_that_the_ledger_refuses_is_left_out_and_told(ledger: Ledger) -> None:
    told = Told()
    told.add("jobs", job="1", state="completed", recorded=T)
    told.add("jobs", job="2", state="exploded", source="x", recorded=T)
    told.add("jobs", job="3", gpus="many", recorded=T)
    assert take_in(ledger, told)["jobs"] == 1
    assert len(told.problems) == 2
