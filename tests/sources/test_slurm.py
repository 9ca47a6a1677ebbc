"""
A Slurm cluster is asked through its commands: here scripts that print what three releases really printed, or that misbehave.

``tests/data/slurm_live/<release>`` was recorded on real clusters; tests/live/test_slurm_live.py asks one.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

import workbench
from tests.sources.slurm_commands import DATA, RELEASES, UNTIL, Tools, by_file, scope
from workbench.sources.contract import Deadline, Folder, Scope
from workbench.sources.slurm.examine import examine, settings
from workbench.sources.slurm.jobs import FIELDS, from_json, from_table
from workbench.sources.slurm.logs import expanded
from workbench.sources.slurm.source import Slurm

# ---- what a release prints


@pytest.mark.parametrize("release", RELEASES)
def test_text_and_json_of_a_release_say_the_same(release: str) -> None:
    help_ = (DATA / release / "helpformat.txt").read_text().split()
    fields = [name for name in FIELDS if name in help_]
    rows = {(row.id, row.submit): row for row in from_table((DATA / release / "located.txt").read_text(), fields)}
    import json

    others = {(row.id, row.submit): row for row in from_json(json.loads((DATA / release / "located.json").read_text()))}

    assert rows.keys() == others.keys()
    for key, row in rows.items():
        other = others[key]
        assert (row.raw, row.group, row.name, row.nodes, row.start, row.end, row.partition, row.workdir) == (
            other.raw, other.group, other.name, other.nodes, other.start, other.end, other.partition, other.workdir,
        )  # fmt: skip
        assert row.state.split()[0] == other.state
        if "StdOut" in fields:
            assert expanded(row.stdout, row) == other.stdout or row.task or other.stdout.startswith("/")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("form", ["auto", "text", "json"])
def test_arrays_components_and_tries_are_found(tools: Tools, release: str, form: str) -> None:
    tools(release)
    slurm = Slurm(form=form)

    array = slurm.locate(scope("sweep"), Deadline(10))
    assert array is not None
    assert array.nodes == ("gpu-node-001",)
    taken, _ = slurm.allocations(scope("sweep"), Deadline(10))
    assert {row.task for row in taken} == {"0", "1", "2"}
    het, _ = slurm.allocations(scope("het"), Deadline(10))
    assert [row.nodes for row in het] == [("gpu-node-001",), ("gpu-node-002",)]
    tries, _ = slurm.allocations(scope("3"), Deadline(10))
    assert len(tries) == 2
    assert tries[0].state.startswith("REQUEUED")
    second, _ = slurm.allocations(scope("3", attempt=2), Deadline(10))
    assert second == [tries[1]]
    assert slurm.locate(scope("3", attempt=7), Deadline(10)) is None


@pytest.mark.parametrize("release", RELEASES)
def test_the_newest_of_a_name_is_taken_and_it_is_said(tools: Tools, tmp_path: Path, release: str) -> None:
    tools(release)
    taken, others = Slurm().allocations(scope("llm-oom"), Deadline(10))
    assert [row.group for row in others] == ["1"]
    newest = taken[0].group
    assert newest in ("6", "9")

    answers = Slurm().collect(scope("llm-oom"), Folder(tmp_path / "out"), Deadline(10))

    assert f"job {newest} (llm-oom)" in answers[0].detail
    assert "the newest of 2 jobs of this name, not 1" in answers[0].detail
    assert "number" in answers[0].hint


def test_times_are_utc_and_clipped_to_the_window(tools: Tools) -> None:
    asked = tools("24.11", sacct='[ "$TZ" = UTC ] || exit 9\n' + _sacct("24.11"))
    found = Slurm().locate(scope("1"), Deadline(10))

    assert found is not None
    assert found.job == "1"
    assert found.nodes == ("gpu-node-001", "gpu-node-002")
    assert (found.since, found.until) == (1796002602.0 - 120, 1796002607.0 + 120)  # 01:36:42 to 01:36:47, and a margin
    tight = Slurm().locate(Scope("1", 1796002600.0, 1796002610.0), Deadline(10))
    assert tight is not None
    assert (tight.since, tight.until) == (1796002600.0, 1796002610.0)
    assert "--starttime=2026-11-30T01:00:00" in asked.read_text()


def _sacct(release: str) -> str:
    data = shlex.quote(str(DATA / release))
    return f"""case "$*" in *--version*) cat {data}/version.txt;; *--helpformat*) cat {data}/helpformat.txt;;
        *--json*) cat {data}/located.json;; *--noheader*) cat {data}/located.txt;; *) cat {data}/sacct.txt;; esac"""


def test_a_name_that_is_a_number_and_one_with_a_comma(tools: Tools) -> None:
    row = "\x1f".join(
        ("8", "8", "FAILED", "2026-11-30T01:10:00", "2026-11-30T01:10:00", "2026-11-30T01:11:00", "n1", "a", "1", "p", "/", "s")
    )
    lines = f"{row}\x1f2024\n{row.replace('8', '9', 1)}\x1fa,b\n"
    asked = tools(
        "22.05",
        sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; *--helpformat*) cat {DATA}/22.05/helpformat.txt;; *--noheader*) printf %s {shlex.quote(lines)};; esac',
    )

    assert Slurm().allocations(scope("2024"), Deadline(10))[0][0].raw == "8"
    assert Slurm().allocations(scope("a,b"), Deadline(10))[0][0].name == "a,b"
    assert "--name=a,b" not in asked.read_text()
    assert "--name=2024" in asked.read_text()


# ---- what is collected


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("form", ["auto", "json"])
def test_a_folder_that_triage_reads(tools: Tools, tmp_path: Path, release: str, form: str) -> None:
    tools(release)
    folder = Folder(tmp_path / "out")
    answers = Slurm(form=form).collect(scope("1"), folder, Deadline(10))
    accounts = "slurm/sacct.json" if form == "json" else "slurm/sacct.txt"

    files = by_file(answers)
    assert {accounts, "slurm/scontrol-job.txt", "slurm/scontrol-node.txt", "slurm/sinfo.txt"} == set(files)
    assert all(answer.status == "ok" for answer in files.values())
    (log,) = [answer for answer in answers if answer.source == "job"]
    assert log.status == "missing"
    assert "/scratch/alice/oom-1.out" in log.detail
    incident = workbench.load(folder.root)
    assert not incident.problems
    assert {document.kind for document in incident.documents} == {"slurm-text"}
    assert [job.nodes for job in incident.jobs if job.id == "1" and job.nodes]


@pytest.mark.parametrize("release", RELEASES)
def test_only_what_the_release_knows_is_asked(tools: Tools, tmp_path: Path, release: str) -> None:
    asked = tools(release)
    Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(10))
    known = (DATA / release / "helpformat.txt").read_text().split()

    formats = [
        word.split("=", 1)[1]
        for line in asked.read_text().splitlines()
        for word in line.split()
        if word.startswith("--format=") and "JobID" in word
    ]
    assert formats
    assert all(set(text.split(",")) <= set(known) for text in formats)
    assert "--duplicates" in asked.read_text()


def test_an_interrupted_collection_goes_on(tools: Tools, tmp_path: Path) -> None:
    asked = tools()
    folder = Folder(tmp_path / "out")
    Slurm().collect(scope("1"), folder, Deadline(10))
    asked.unlink()
    answers = Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(10))

    assert "scontrol" not in asked.read_text()
    assert "sinfo" not in asked.read_text()
    assert all("before" in answer.detail for answer in answers if answer.file)


def test_states_of_today_are_called_so(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools()
    monkeypatch.setattr("workbench.sources.slurm.source.time.time", lambda: UNTIL + 72 * 3600)
    answers = by_file(Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(10)))

    assert "as they are now, 3 days after the job ended" in answers["slurm/sinfo.txt"].detail


def test_the_troubles_that_nodes_had_then_are_kept(tools: Tools, tmp_path: Path) -> None:
    """slurmctld tells of a node only what holds now."""
    row = "gpu-node-002|2026-11-30T01:36:45|2026-11-30T01:50:00|DRAIN|NHC: GPU 4 Xid 95|root(0)"
    asked = tools(
        sacctmgr=f'case "$*" in *"show event"*) echo "NodeName|TimeStart|TimeEnd|State|Reason|User"; echo "{row}";; *) cat {DATA}/24.11/cluster.txt;; esac'
    )
    answers = by_file(Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(10)))

    assert (answers["slurm/node-events.txt"].status, answers["slurm/node-events.txt"].rows) == ("ok", 2)
    assert "nodes=gpu-node-[001-002] start=2026-11-30T01:00:00 end=2026-11-30T02:00:00" in asked.read_text()
    events = workbench.load(tmp_path / "out").events
    (told,) = events[events["file"].str.endswith("node-events.txt")].to_dict("records")
    assert (told["node"], told["signature"]) == ("gpu-node-002", "slurm-drain-health")


@pytest.mark.parametrize(
    ("script", "statuses"),
    [
        ('echo "NodeName|TimeStart|TimeEnd|State|Reason|User"', ["ok"]),
        ("echo 'sacctmgr: error: Connection refused' >&2; exit 1", ["failed"]),
        ("true", ["missing"]),
        ("echo 'You are not running a supported accounting_storage plugin' >&2; exit 1", []),
    ],
)
def test_no_troubles_is_not_the_same_as_no_answer(tools: Tools, tmp_path: Path, script: str, statuses: list[str]) -> None:
    tools(sacctmgr=f'case "$*" in *"show event"*) {script};; *) cat {DATA}/24.11/cluster.txt;; esac')
    folder = tmp_path / "out"
    answers = Slurm().collect(scope("1"), Folder(folder), Deadline(10))

    assert [answer.status for answer in answers if "show event" in answer.asked] == statuses
    assert not (folder / "slurm" / "node-events.txt").exists()


def test_a_forgotten_job_is_stale_not_missing(tools: Tools, tmp_path: Path) -> None:
    tools(
        scontrol=f'case "$*" in *"show job"*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;; *) cat {DATA}/24.11/scontrol-node.txt;; esac'
    )
    answers = Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(10))

    assert [answer.status for answer in answers if answer.asked.startswith("scontrol --details")] == ["stale"]


def test_a_job_without_nodes_shows_its_partition(tools: Tools, tmp_path: Path) -> None:
    row = "\x1f".join(
        ("8", "8", "PENDING", "2026-11-30T01:10:00", "Unknown", "Unknown", "None assigned", "a", "1", "train", "/", "s", "wait")
    )
    asked = tools(
        "22.05",
        sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; *--helpformat*) cat {DATA}/22.05/helpformat.txt;; *--noheader*) printf %s {shlex.quote(row)};; *) echo "JobID|State"; echo "8|PENDING";; esac',
    )
    found = Slurm().locate(scope("wait"), Deadline(10))
    answers = Slurm().collect(scope("wait"), Folder(tmp_path / "out"), Deadline(10))

    assert found is not None
    assert found.nodes == ()
    assert found.until == UNTIL
    assert "--partition=train" in asked.read_text()
    assert any("PENDING and has no nodes" in answer.detail for answer in answers)


def test_a_long_node_list_is_folded_and_split(tools: Tools, tmp_path: Path) -> None:
    asked = tools(
        "22.05",
        sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; *--helpformat*) cat {DATA}/22.05/helpformat.txt;; *--noheader*) printf %s {shlex.quote(_row("gpu[0001-9999]", "big"))};; *) cat {DATA}/22.05/sacct.txt;; esac',
    )
    found = Slurm().locate(scope("big"), Deadline(10))
    assert found is not None
    assert len(found.nodes) == 9999
    Slurm().collect(scope("big"), Folder(tmp_path / "out"), Deadline(10))
    assert "show node gpu[0001-9999]" in asked.read_text()


def _row(nodes: str, name: str, job: str = "8") -> str:
    return "\x1f".join(
        (
            job,
            job,
            "FAILED",
            "2026-11-30T01:10:00",
            "2026-11-30T01:10:00",
            "2026-11-30T01:11:00",
            nodes,
            "a",
            "1",
            "p",
            "/",
            "s",
            name,
        )
    )


# ---- doctor


@pytest.mark.parametrize("release", RELEASES)
def test_a_sound_cluster(tools: Tools, release: str) -> None:
    tools(release)
    found = {reach.item: reach for reach in examine(Slurm(), Deadline(10))}

    assert {item for item, reach in found.items() if reach.status != "ok"} == {"setting ConstrainDevices"}
    assert found["slurmctld"].detail.endswith("is UP")
    assert found["setting AccountingStorageTRES"].status == "ok"
    assert found["version"].detail.startswith(f"Slurm {release}")
    assert found["clock"].status == "ok"


def test_each_lack_has_the_line_that_changes_it(tools: Tools) -> None:
    text = (DATA / "24.11" / "config.txt").read_text()
    import re

    for name, value in (
        ("AccountingStorageType", "(null)"),
        ("AccountingStorageTRES", "cpu,mem"),
        ("JobAcctGatherType", "(null)"),
        ("TaskPlugin", "task/affinity"),
        ("HealthCheckProgram", "(null)"),
        ("HealthCheckInterval", "0 sec"),
        ("SlurmdTimeout", "0 sec"),
        ("MinJobAge", "30 sec"),
        ("PrivateData", "jobs,nodes"),
        ("GresTypes", "(null)"),
    ):
        text = re.sub(rf"(?m)^({name}\s+=).*$", rf"\1 {value}", text)
    tools(scontrol=f'case "$*" in *config*) printf %s {shlex.quote(text)};; *ping*) echo "Slurmctld(primary) at c1 is UP"; echo "Slurmctld(backup1) at c2 is DOWN";; esac',
          sacctmgr='case "$*" in *user*) echo None;; *) echo gpu;; esac', id="echo alice")  # fmt: skip
    found = {reach.item: reach for reach in examine(Slurm(), Deadline(10))}

    bad = {item.removeprefix("setting ") for item, reach in found.items() if reach.status in ("warning", "critical")}
    assert bad >= {"AccountingStorageType", "AccountingStorageTRES", "JobAcctGatherType", "TaskPlugin", "HealthCheckProgram", "SlurmdTimeout", "MinJobAge", "GresTypes", "rights", "slurmctld"}  # fmt: skip
    assert found["setting AccountingStorageType"].fix == "AccountingStorageType=accounting_storage/slurmdbd"
    assert "platform/node-lost" in found["setting SlurmdTimeout"].blind_to
    assert "AdminLevel=Operator" in found["rights"].fix
    assert all(reach.fix for reach in found.values() if reach.status in ("warning", "critical"))


def test_daemons_that_are_down_and_clocks_that_differ(tools: Tools) -> None:
    tools(
        scontrol=f'case "$*" in *config*) cat {DATA}/24.11/config.txt;; *) echo "Slurmctld(primary) at c1 is DOWN"; exit 1;; esac',
        sacctmgr="echo 'sacctmgr: error: Problem talking to the database: Connection refused' >&2; exit 1",
        sdiag='echo "sdiag output at Mon Nov 30 01:00:00 2026 ($(($(date +%s) - 600)))"',
    )
    found = {reach.item: reach for reach in examine(Slurm(), Deadline(10))}

    assert found["slurmctld"].status == found["slurmdbd"].status == "critical"
    assert "Connection refused" in found["slurmdbd"].detail
    assert found["clock"].status == "warning"
    assert "behind" in found["clock"].detail


def test_what_hangs_is_unknown_never_ok(tools: Tools) -> None:
    tools(scontrol="sleep 30", sacctmgr="sleep 30", sdiag="sleep 30")
    begun = time.monotonic()
    found = examine(Slurm(), Deadline(1.5))

    assert time.monotonic() - begun < 4
    assert [reach.status for reach in found if reach.item != "version"].count("ok") == 0


def test_settings_are_read() -> None:
    assert settings(
        "Configuration data as of x\nAccountingStorageType   = (null)\n\nCgroup Support Configuration:\nConstrainRAMSpace       = yes\n"
    ) == {
        "AccountingStorageType": "(null)",
        "ConstrainRAMSpace": "yes",
    }


def test_the_table_of_settings_is_sound() -> None:
    import re

    from workbench.catalog import table
    from workbench.model import CLASSES

    rows = table("slurm_settings")
    assert rows
    for row in rows:
        re.compile(row["wanted"])
        assert row["status"] in ("warning", "critical")
        assert row["lack"]
        assert row["fix"]
        assert row["source"].startswith("https://")
        assert set(row["blind_to"].split()) <= set(CLASSES)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"])
