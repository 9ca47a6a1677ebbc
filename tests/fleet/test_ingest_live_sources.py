"""`workbench fleet ingest --slurm` and `--kubernetes` ask a site, and what cannot be asked is told and leaves exit code 3."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from workbench.cli import exits, main
from workbench.fleet.ledger import Ledger
from workbench.shipped import example_path
from workbench.testing.served import site

SACCT = """JobID|JobName|User|Account|Partition|State|ExitCode|Restarts|Submit|Start|End|AllocTRES|FailedNode|NodeList
4711|llm|ana|nlp|gpu|NODE_FAIL|1:0|0|2026-05-04T09:00:00|2026-05-04T09:01:00|2026-05-04T10:00:00|gres/gpu=16|n2|n[1-2]
4711|llm|ana|nlp|gpu|COMPLETED|0:0|1|2026-05-04T10:00:00|2026-05-04T10:02:00|2026-05-04T12:00:00|gres/gpu=16||n[1,3]
"""
EVENTS = "NodeName|TimeStart|TimeEnd|State|Reason|User\nn2|2026-05-04T10:00:00|2026-05-04T11:00:00|DOWN*|Not responding|slurm\n"
NODES = "NodeName=n1 Arch=x86_64 State=IDLE\nNodeName=n3 State=IDLE+DRAIN\n   Reason=bad disk [ana@2026-05-04T12:30:00]\n"
DISABLED = "Slurm accounting storage is disabled"
JOB = "JobId=7 JobName=eval UserId=ana(1000) Account=nlp Partition=gpu JobState=RUNNING Restarts=0 SubmitTime=2026-05-04T13:00:00 StartTime=2026-05-04T13:00:05 EndTime=Unknown NodeList=n1\n"


def _commands(folder: Path, *, sacct: str, code: int = 0) -> str:
    """Write commands of Slurm that say what was kept of real ones; return the path to look for them."""
    folder.mkdir()
    for name, text in {"sacct.out": sacct, "events.out": EVENTS, "nodes.out": NODES, "job.out": JOB}.items():
        (folder / name).write_text(text, encoding="utf-8")
    fields = SACCT.splitlines()[0].replace("|", " ")
    scripts = {
        "sacct": f'case "$*" in *helpformat*) echo {fields};; *) echo "$*" >>{folder}/asked; cat {folder}/sacct.out; exit {code};; esac',
        "sacctmgr": f"cat {folder}/events.out",
        "scontrol": f'case "$*" in *job*) cat {folder}/job.out;; *) cat {folder}/nodes.out;; esac',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(stat.S_IRWXU)
    return f"{folder}:{os.environ['PATH']}"


def test_slurm_is_asked_for_all_starts_of_jobs_and_for_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", _commands(tmp_path / "bin", sacct=SACCT))
    file = str(tmp_path / "fleet.sqlite")
    assert main(["fleet", "ingest", "--ledger", file, "--slurm", "--since", "2026-05-01"]) == exits.OK
    assert "--starttime=2026-05-01T00:00:00" in (tmp_path / "bin" / "asked").read_text()
    with Ledger.open(file, "ro") as ledger:
        starts = [(one["attempt"], one["state"], one["node"], one["gpus"]) for one in ledger.rows("attempts")]
        nodes = [(one["node"], one["state"], one["reason"]) for one in ledger.rows("node_states")]
    assert starts == [(1, "failed", "n2", 16), (2, "completed", None, 16)]
    assert [one[:2] for one in nodes] == [("n2", "down"), ("n3", "held")]
    assert main(["fleet", "ingest", "--ledger", file, "--slurm", "--since", "2026-05-01", "-o", "json"]) == exits.OK
    with Ledger.open(file, "ro") as ledger:  # asked every night, all of it counts once
        assert [ledger.size(table) for table in ("jobs", "attempts", "node_states", "signals")] == [1, 2, 2, 2]
    capsys.readouterr()


def test_without_accounts_jobs_are_those_that_slurmctld_remembers_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", _commands(tmp_path / "bin", sacct=DISABLED, code=1))
    file = str(tmp_path / "fleet.sqlite")
    assert main(["fleet", "ingest", "--ledger", file, "--slurm"]) == exits.INCOMPLETE
    assert "no accounts are kept" in capsys.readouterr().err
    with Ledger.open(file, "ro") as ledger:
        assert [(one["job"], one["state"]) for one in ledger.rows("jobs")] == [("7", "running")]
        assert [one["node"] for one in ledger.rows("node_states")] == ["n3"]


def test_slurm_that_is_not_there_is_told_and_is_no_empty_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["fleet", "ingest", "--ledger", str(tmp_path / "f.sqlite"), "--slurm"]) == exits.INCOMPLETE
    assert "sacct" in capsys.readouterr().err


def test_a_cluster_of_kubernetes_is_asked_for_jobs_pods_nodes_and_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.unpack_archive(example_path("nvlink-switch"), tmp_path / "incident", filter="data")
    file = str(tmp_path / "fleet.sqlite")
    with site(tmp_path / "incident") as served:
        for name, value in served.environ.items():
            monkeypatch.setenv(name, value)
        codes = [main(["fleet", "ingest", "--ledger", file, "--kubernetes", "-o", "json"]) for _ in range(2)]
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        served.servers["kubernetes"].fault = "401"
        assert main(["fleet", "ingest", "--ledger", str(tmp_path / "other"), "--kubernetes"]) == exits.INCOMPLETE
        assert capsys.readouterr().err.count("kubernetes pods") == 1
    assert codes == [exits.OK, exits.OK], told
    assert told[0]["changed"]["attempts"] >= 1
    with Ledger.open(file, "ro") as ledger:
        assert ledger.size("node_states") >= 1
        (job,) = {one["job"] for one in ledger.rows("attempts")}
    assert served.job in job


def test_a_server_that_cannot_be_reached_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["fleet", "ingest", "--ledger", str(tmp_path / "f.sqlite"), "--kubernetes"]) == exits.INCOMPLETE
    assert capsys.readouterr().err.count("kubernetes pods") == 1
