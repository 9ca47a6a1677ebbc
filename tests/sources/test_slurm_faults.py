"""What goes wrong with the commands of a Slurm cluster is an answer with its reason, and the rest is still used."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from tests.sources.slurm_commands import DATA, RELEASES, Tools, by_file, scope
from workbench.errors import SourceError, SourceUnavailable
from workbench.sources.contract import Deadline, Folder, SourceTimeout
from workbench.sources.slurm.jobs import FIELDS
from workbench.sources.slurm.source import Slurm

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
