"""
A Slurm cluster is asked through its commands: here scripts that print what three releases really printed, or that misbehave.

``tests/data/slurm_live/<release>`` was recorded on real clusters; tests/live/test_slurm_live.py asks one.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

import workbench
from workbench.errors import SourceError, SourceUnavailable
from workbench.sources.contract import Answer, Deadline, Folder, Scope, SourceTimeout
from workbench.sources.slurm.examine import examine, settings
from workbench.sources.slurm.jobs import FIELDS, Allocation, chosen, from_json, from_scontrol, from_table, is_number, parts
from workbench.sources.slurm.logs import collect_logs, directives, expanded, log_paths, submitted
from workbench.sources.slurm.source import Slurm

DATA = Path(__file__).parent.parent / "data" / "slurm_live"
RELEASES = ("22.05", "24.11", "26.05")
SINCE, UNTIL = 1796000400.0, 1796004000.0  # 2026-11-30 01:00:00Z to 02:00:00Z
Tools = Callable[..., Path]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Put sacct, scontrol, sinfo, sacctmgr and sdiag of a release first on PATH; each writes down what it was asked."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")

    def write(release: str = "24.11", **instead: str) -> Path:
        data = shlex.quote(str(DATA / release))
        scripts = {
            "sacct": f"""case "$*" in
                *--version*) cat {data}/version.txt;;
                *--helpformat*) cat {data}/helpformat.txt;;
                *--batch-script*) cat {data}/script.txt;;
                *--allocations*--json*|*--json*--allocations*) cat {data}/located.json;;
                *--json*) cat {data}/located.json;;
                *--noheader*) cat {data}/located.txt;;
                *) cat {data}/sacct.txt;;
                esac""",
            "scontrol": f"""case "$*" in
                *config*) cat {data}/config.txt;;
                *ping*) cat {data}/ping.txt;;
                *oneliner*) cat {data}/scontrol-oneliner.txt;;
                *"show job"*) cat {data}/scontrol-job.txt;;
                *"show node"*) cat {data}/scontrol-node.txt;;
                esac""",
            "sinfo": f"cat {data}/sinfo.txt",
            "sacctmgr": f"""case "$*" in
                *"show event"*) echo "NodeName|TimeStart|TimeEnd|State|Reason|User";;
                *) cat {data}/cluster.txt;;
                esac""",
            "sdiag": f"""cat {data}/sdiag.txt | sed "s/([0-9]*)/($(date +%s))/" """,
        }
        for name, text in (scripts | instead).items():
            path = bin_ / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/asked\n{text}\n')
            path.chmod(0o755)
        return tmp_path / "asked"

    return write


def scope(job: str, **fields: object) -> Scope:
    return Scope(job, SINCE, UNTIL, **fields)  # type: ignore[arg-type]


def by_file(answers: list[Answer]) -> dict[str, Answer]:
    return {answer.file: answer for answer in answers if answer.file}


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
        sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; *--helpformat*) cat {DATA}/22.05/helpformat.txt;; *--noheader*) cat {_file(lines)};; esac',
    )

    assert Slurm().allocations(scope("2024"), Deadline(10))[0][0].raw == "8"
    assert Slurm().allocations(scope("a,b"), Deadline(10))[0][0].name == "a,b"
    assert "--name=a,b" not in asked.read_text()
    assert "--name=2024" in asked.read_text()


_written: list[Path] = []


@pytest.fixture(autouse=True)
def _texts(tmp_path: Path) -> None:
    _written[:] = [tmp_path]


def _file(text: str) -> str:
    path = _written[0] / f"text{len(list(_written[0].iterdir()))}"
    path.write_text(text)
    return shlex.quote(str(path))


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
        sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; *--helpformat*) cat {DATA}/22.05/helpformat.txt;; *--noheader*) cat {_file(row)};; *) echo "JobID|State"; echo "8|PENDING";; esac',
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
        sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; *--helpformat*) cat {DATA}/22.05/helpformat.txt;; *--noheader*) cat {_file(_row("gpu[0001-9999]", "big"))};; *) cat {DATA}/22.05/sacct.txt;; esac',
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


# ---- what goes wrong


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (
            "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1",
            SourceError,
            "Connection refused",
        ),
        ("sleep 30", SourceTimeout, "did not answer"),
        ("echo '<html>Single sign-on</html>'", SourceError, "something else than expected"),
        ("kill -KILL $$", SourceError, "SIGKILL"),
    ],
)
def test_locating_fails_with_its_reason(tools: Tools, script: str, error: type[SourceError], words: str) -> None:
    tools(
        "22.05",
        sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; *--helpformat*) cat {DATA}/22.05/helpformat.txt;; *) {script};; esac',
    )
    begun = time.monotonic()

    with pytest.raises(error, match=words):
        Slurm().locate(scope("1"), Deadline(1.5))
    assert time.monotonic() - begun < 4


def test_what_others_need_of_a_job_is_told(tools: Tools) -> None:
    """Its name and user, the file that it writes to, and its nodes' addresses where these are not their names."""
    nodes = "\n".join(
        f"NodeName=n{at} Arch=x86_64 State=IDLE NodeAddr={a} NodeHostName=n{at} X=1" for at, a in enumerate(ADDRESSES, 1)
    )
    table = "\x1f".join(
        ("4711", "4711", "FAILED", "2026-11-30T01:00:10", "2026-11-30T01:00:20", "2026-11-30T01:30:00", "n[1-3]", "alice", "1000",
         "gpu", "/home/alice/%x-%j.out", "", "/home/alice", "sbatch x.sh", "bert-large")
    )  # fmt: skip
    tools(
        "22.05",
        sacct=f'case "$*" in *--version*) cat {DATA}/22.05/version.txt;; *--helpformat*) echo {" ".join(FIELDS)};; *) echo {shlex.quote(table)};; esac',
        scontrol=f'case "$*" in *"show node"*) echo {shlex.quote(nodes)};; esac',
    )
    found = Slurm().locate(scope("4711"), Deadline(10))
    assert found is not None
    assert (found.names, found.user, found.paths) == (("bert-large",), "alice", ("/home/alice/bert-large-4711.out",))
    assert found.addresses == (("10.0.3.1", "n1"), ("n3-mgmt", "n3"))
    by_name = Slurm().locate(scope("bert-large"), Deadline(10))
    assert by_name is not None
    assert by_name.names == ("4711",)


ADDRESSES = ("10.0.3.1", "n2.cluster.local", "n3-mgmt")


def test_a_controller_that_hangs_costs_no_address_and_no_job(tools: Tools) -> None:
    tools("22.05", scontrol="echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1")
    found = Slurm().locate(scope("1"), Deadline(10))
    assert found is not None
    assert found.nodes
    assert found.addresses == ()


def test_no_slurm_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("workbench.sources.command.environment", lambda extra=None: {"PATH": str(tmp_path)})
    with pytest.raises(SourceUnavailable, match="no such program"):
        Slurm().locate(scope("1"), Deadline(5))
    (answer,) = Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(5))
    assert (answer.status, "prefix" in answer.hint) == ("failed", True)
    (reach,) = Slurm().examine(Deadline(5))
    assert reach.status == "critical"
    assert "platform/node-lost" in reach.blind_to


def test_an_unknown_job_is_missing_never_empty(tools: Tools, tmp_path: Path) -> None:
    tools("22.05", sacct='case "$*" in *--version*) echo slurm 22.05.8;; esac')

    assert Slurm().locate(scope("nobody"), Deadline(5)) is None
    (answer,) = Slurm().collect(scope("nobody"), Folder(tmp_path / "out"), Deadline(5))
    assert answer.status == "missing"
    assert "PrivateData" in answer.hint


def test_json_that_cannot_be_had_becomes_text(tools: Tools) -> None:
    """A Slurm built without JSON says so and ends with 1."""
    asked = tools(
        "24.11",
        sacct=f'case "$*" in *--json*) echo "sacct: fatal: JSON plugin load failure" >&2; exit 1;; *--version*) cat {DATA}/24.11/version.txt;; *--helpformat*) cat {DATA}/24.11/helpformat.txt;; *) cat {DATA}/24.11/located.txt;; esac',
    )

    found = Slurm().locate(scope("1"), Deadline(10))
    assert found is not None
    assert found.nodes == ("gpu-node-001", "gpu-node-002")
    assert "--json" in asked.read_text()


def test_json_of_22_is_not_trusted(tools: Tools) -> None:
    asked = tools("22.05")
    assert Slurm().locate(scope("1"), Deadline(10)) is not None
    assert "--json" not in asked.read_text()


@pytest.mark.parametrize("release", RELEASES)
def test_without_accounts_the_controller_is_asked(tools: Tools, tmp_path: Path, release: str) -> None:
    tools(
        release,
        sacct=f'case "$*" in *--version*) cat {DATA}/{release}/version.txt;; *--helpformat*) cat {DATA}/{release}/helpformat.txt;; *) echo "Slurm accounting storage is disabled" >&2; exit 1;; esac',
    )
    slurm = Slurm()
    number = "9" if release == "22.05" else "6"
    found = slurm.locate(scope(number), Deadline(10))
    assert found is not None
    assert found.nodes
    assert slurm.locate(scope("llm-oom"), Deadline(10)) is not None
    answers = slurm.collect(scope(number), Folder(tmp_path / "out"), Deadline(10))
    assert [answer.status for answer in answers if answer.asked.startswith("sacct --parsable2")] == ["failed"]
    assert "slurm/scontrol-job.txt" in by_file(answers)


@pytest.mark.parametrize(
    ("asked", "ending"),
    [
        ("*--helpformat*) cat {data}/helpformat.txt;; *)", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"),
        ("*--helpformat*) cat {data}/helpformat.txt;; *)", "sleep 30"),
        ("*)", "sleep 30"),  # 22.05 asks slurmdbd before it tells which fields it has
    ],
)  # fmt: skip
def test_what_slurmctld_still_knows_counts_when_slurmdbd_does_not_answer(
    tools: Tools, tmp_path: Path, asked: str, ending: str
) -> None:
    tools("22.05", sacct=f'case "$*" in *--version*) echo slurm 22.05.8;; {asked.format(data=DATA / "22.05")} {ending};; esac')
    found = Slurm().locate(scope("9"), Deadline(3))
    assert found is not None
    assert found.nodes
    answers = Slurm().collect(scope("9"), Folder(tmp_path / "out"), Deadline(3))
    assert by_file(answers)["slurm/scontrol-job.txt"].status == "ok"
    assert [answer.status for answer in answers if "sacct -" in answer.asked + answer.detail] == ["failed"]


def test_half_an_answer_is_kept_and_partial(tools: Tools, tmp_path: Path) -> None:
    tools(sinfo=f"cat {DATA}/24.11/sinfo.txt; sleep 30")
    answers = Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(2))

    assert by_file(answers)["slurm/sinfo.txt"].status == "partial"


def test_the_deadline_ends_the_collection(tools: Tools, tmp_path: Path) -> None:
    tools(scontrol="sleep 30")
    begun = time.monotonic()
    answers = Slurm().collect(scope("1"), Folder(tmp_path / "out"), Deadline(1.5))

    assert time.monotonic() - begun < 4
    assert any(answer.status == "failed" for answer in answers)


def test_a_full_folder_is_an_answer(tools: Tools, tmp_path: Path) -> None:
    tools()
    answers = Slurm().collect(scope("1"), Folder(tmp_path / "out", limit=100), Deadline(10))

    assert any(answer.status == "failed" and "not written" in answer.detail for answer in answers)


def test_commands_run_behind_a_prefix(tools: Tools, tmp_path: Path) -> None:
    """What ssh runs at the other end is a shell, and a job's name is its user's."""
    tools()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "ssh $*" >> {tmp_path}/ssh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    hostile = "x; touch /tmp/owned $(id)"

    assert Slurm(("ssh", "login-1")).locate(scope("1"), Deadline(10)) is not None
    assert Slurm(("ssh", "login-1")).locate(scope(hostile), Deadline(10)) is None
    asked = (tmp_path / "ssh").read_text()
    assert "login-1 env LC_ALL=C TZ=UTC" in asked
    assert f"'--name={hostile}'" in asked
    ssh.write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2; exit 255\n")
    with pytest.raises(SourceUnavailable, match="Permission denied") as caught:
        Slurm(("ssh", "login-1")).locate(scope("1"), Deadline(10))
    assert "key" in caught.value.hint


def test_a_form_must_be_known() -> None:
    with pytest.raises(ValueError, match="no form"):
        Slurm(form="xml")


# ---- names, numbers, torn rows


@pytest.mark.parametrize("job", ["4711", "4711_3", "4711+1", "4711.batch", "4711_3.0", "4711_[3-5]"])
def test_numbers(job: str) -> None:
    assert is_number(job)
    assert parts(job)[1] == "4711"


@pytest.mark.parametrize("job", ["llm-70b", "4711a", "", "47 11", "4711.x", "1" * 11])
def test_names(job: str) -> None:
    assert not is_number(job)


def test_torn_rows_and_other_texts_are_left_out() -> None:
    fields = ("JobID", "JobName")
    assert [row.id for row in from_table("1\x1fa\n2\nsacct: error\n3.batch\x1fbatch\nx\x1fy\n4_[1-3]\x1fb", fields)] == [
        "1",
        "4_[1-3]",
    ]
    assert from_json(None) == from_json({"jobs": "no"}) == from_json({"jobs": [None, {}, {"job_id": "x"}]}) == []
    assert from_scontrol("slurm_load_jobs error: Invalid job id specified") == []


def test_scontrol_of_a_running_job_has_no_end_yet() -> None:
    text = "JobId=7 JobName=my job UserId=alice(1000) GroupId=x JobState=RUNNING StartTime=2026-11-30T01:00:00 EndTime=2026-12-01T01:00:00 NodeList=n[1-2] StdOut=/scratch/a b.out Power="
    (row,) = from_scontrol(text)

    assert (row.name, row.uid, row.end, row.nodes, row.stdout) == ("my job", 1000, None, ("n1", "n2"), "/scratch/a b.out")


def test_a_job_outside_the_window_is_not_taken() -> None:
    old = Allocation("1", "1", "1", "a", "FAILED", submit=10, start=10, end=20)
    new = Allocation("2", "2", "2", "a", "RUNNING", submit=100, start=100)

    assert chosen([old, new], "a", 50, 200)[0] == [new]
    assert chosen([old, new], "a", 0, 50)[0] == [old]
    assert chosen([old], "1", 50, 200)[0] == []
    assert chosen([old, new], "a", 0, 200) == ([new], [old])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["set", "number", "infinite", "job_id", "task_id", "current", "start", "end", "job_offset"]), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip


@settings_of(max_examples=200, deadline=None)
@given(jobs=st.lists(st.dictionaries(st.sampled_from(["job_id", "array", "het", "time", "state", "nodes", "name", "user_id"]), JSON, max_size=6) | JSON, max_size=3))  # fmt: skip
def test_hostile_json_raises_nothing(jobs: list[object]) -> None:
    chosen(from_json({"jobs": jobs}), "1", 0, 4e9)
    chosen(from_json({"jobs": jobs}), "a", 0, 4e9)


@settings_of(max_examples=200, deadline=None)
@given(text=st.text(alphabet="JobId=Name 12[]_+-\x1f\n|State:T(", max_size=200))
def test_hostile_text_raises_nothing(text: str) -> None:
    from_scontrol("JobId=1 " + text)
    chosen(from_table(text, FIELDS), text, 0, 4e9)
    submitted(text)
    directives("#SBATCH " + text)


# ---- output files


def test_patterns_are_expanded() -> None:
    row = Allocation("12_3", "14", "12", "llm", "FAILED", ("gpu7.cluster", "gpu8"), user="alice")

    assert expanded("/s/%x-%A_%a-%j-%4a-%u-%N-%%", row) == "/s/llm-12_3-14-0003-alice-gpu7-%"
    assert expanded("log-%c", row) is None
    assert expanded("\\%j", row) == "%j"


def test_output_options_of_command_line_and_script() -> None:
    assert submitted("sbatch -o a.out --error=b.err run.sh -o other") == ("a.out", "b.err")
    assert submitted("sbatch --output a.out -eb.err run.sh") == ("a.out", "b.err")
    assert submitted("sbatch 'unclosed") == ("", "")
    assert directives("#!/bin/bash\n#SBATCH -o x-%j.out # where\n#SBATCH --error=x.err\n") == ("x-%j.out", "x.err")
    row = Allocation("5", "5", "5", "a", "FAILED", workdir="/w", submit_line="sbatch -o logs/%j.out -e logs/%j.err x.sh")
    assert log_paths(row)[0] == ["/w/logs/5.out", "/w/logs/5.err"]


def job(path: Path, **fields: object) -> Allocation:
    return Allocation("5", "5", "5", "llm", "FAILED", start=1.0, stdout=str(path), uid=os.getuid(), **fields)  # type: ignore[arg-type]


def test_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "train.out"
    log.write_text("Traceback (most recent call last):\n")
    (answer,) = collect_logs([job(log)], Folder(tmp_path / "out"), Deadline(10))

    assert (answer.status, answer.file, answer.rows) == ("ok", "logs/5-train.out", 1)
    assert (tmp_path / "out" / answer.file).read_text() == log.read_text()


def test_of_a_large_log_begin_and_end_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sources.slurm.logs.HEAD", 100)
    monkeypatch.setattr("workbench.sources.slurm.logs.TAIL", 100)
    log = tmp_path / "slurm-5.out"
    log.write_text("begin\n" + "x" * 5000 + "\nend\n")
    (answer,) = collect_logs([job(log)], Folder(tmp_path / "out"), Deadline(10))
    text = (tmp_path / "out" / "logs" / "slurm-5.out").read_text()

    assert answer.status == "partial"
    assert "4,811 bytes in its middle" in answer.detail
    assert text.startswith("begin\n")
    assert text.endswith("\nend\n")
    assert "[workbench: 4811 bytes" in text


def test_only_regular_files_of_the_jobs_own_user_are_read(tmp_path: Path) -> None:
    """The path is the user's choice: an operator's rights must not carry it further."""
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0\n")
    link = tmp_path / "link.out"
    link.symlink_to(secret)
    other = Allocation("5", "5", "5", "llm", "FAILED", start=1.0, stdout=str(link), uid=os.getuid() + 1)
    fifo = tmp_path / "fifo.out"
    os.mkfifo(fifo)
    folder = Folder(tmp_path / "out")

    (answer,) = collect_logs([other], folder, Deadline(5))
    assert (answer.status, answer.file) == ("failed", "")
    assert "belongs to uid" in answer.detail
    for path in (fifo, Path("/dev/zero"), tmp_path):
        (answer,) = collect_logs([job(path)], folder, Deadline(5))
        assert answer.status == "failed", path
    assert not (tmp_path / "out").exists()


def test_missing_empty_and_unnamed_logs_are_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty.out"
    empty.touch()
    answers = collect_logs(
        [job(tmp_path / "no.out"), job(empty), Allocation("9", "9", "9", "x", "FAILED")],
        Folder(tmp_path / "out"),
        Deadline(5),
        away="login-1",
    )

    assert [answer.status for answer in answers] == ["missing"] * 3
    assert any("login-1" in answer.hint for answer in answers)


def test_names_of_logs_stay_in_the_folder(tmp_path: Path) -> None:
    log = tmp_path / "..sh;rm -rf.out"
    log.write_text("x\n")
    (answer,) = collect_logs([job(log)], Folder(tmp_path / "out"), Deadline(5))

    assert answer.file == "logs/5-sh_rm_-rf.out"


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
    tools(scontrol=f'case "$*" in *config*) cat {_file(text)};; *ping*) echo "Slurmctld(primary) at c1 is UP"; echo "Slurmctld(backup1) at c2 is DOWN";; esac',
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
