"""What changes jobs in the shipped Slurm does what it does in the real one: the same commands in the same order, the same job after each."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.shapes import DATA
from tests.remediation.slurm_world import FakeCluster
from workbench.parse.slurm_scontrol import show_records

RECORDED = DATA / "slurm-job-changes.json"
NODE, OTHER = "gpu-node-001", "gpu-node-002"
_UPDATE = ("scontrol", "update", "jobid={job}")
_COLUMNS = ("squeue", "-h", "-a", "-O", "JobID:|,Requeue:|,BatchFlag:|")
_SQUEUE = ("squeue", "-h", "-a", "-t", "all", "-o", "<mark>%i|%A|%F|%T|%j")
# each is followed by a look at the job; {job} is the job that runs, {once} one that must not be requeued
STEPS: tuple[tuple[str, ...], ...] = (
    _COLUMNS,
    _SQUEUE,
    (*_UPDATE, f"excnodelist={NODE}"),
    (*_UPDATE, "admincomment=bob: mine"),
    (*_UPDATE, 'admincomment=bob: mine; gpu-workbench:a1 restart 0: [node] xid-79: it\'s "off" the bus = gone'),
    ("scontrol", "requeue", "{job}"),
    ("waits",),
    ("scontrol", "requeue", "{job}"),
    (*_UPDATE, f"excnodelist={NODE}", "admincomment=gpu-workbench:a2 exclude gpu-node-001"),
    (*_UPDATE, "excnodelist=gpu-node-[001-002]"),
    (*_UPDATE, "excnodelist=nobody"),
    (*_UPDATE, "excnodelist=", "admincomment="),
    _SQUEUE,
    ("scontrol", "requeue", "{once}"),
    ("scontrol", "requeue", "999999"),
    ("scontrol", "update", "jobid=999999", f"excnodelist={NODE}"),
    ("scontrol", "show", "job", "999999"),
    ("ended",),
    _SQUEUE,
)  # fmt: skip


class Site:
    """A cluster that the steps are made on."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.job, self.once = cluster.submit(NODE, "again", requeue=True), cluster.submit(OTHER, "once")
        for job in (self.job, self.once):
            self._until(job, "RUNNING")

    def record(self, job: str) -> dict[str, str]:
        ran = self.cluster.run(("scontrol", "show", "job", job), seconds=60.0)
        return next(one for one in show_records(ran.text) if one["JobId"] == job)

    def _until(self, job: str, state: str) -> None:
        end = time.monotonic() + 90
        while self.record(job)["JobState"] != state:
            assert time.monotonic() < end, self.record(job)
            time.sleep(0.2)

    def _told(self, text: str) -> str:
        for number, name in ((self.job, "JOB"), (self.once, "ONCE")):
            text = re.sub(rf"\b{number}\b", name, text)
        return "".join(sorted(text.splitlines(keepends=True)))

    def play(self) -> list[dict[str, Any]]:
        told = []
        for words in STEPS:
            code, out, err = 0, "", ""
            if words == ("waits",):
                self._until(self.job, "PENDING")
            elif words == ("ended",):
                self.cluster.end(self.once)
                self._until(self.once, "CANCELLED")
            else:
                ran = self.cluster.run([word.format(job=self.job, once=self.once) for word in words], seconds=60.0)
                code, out, err = ran.code or 0, self._told(ran.text), self._told(ran.err.decode())
            record = self.record(self.job)
            # the attempt that was requeued ends while it is looked at
            state = record["JobState"] if words != ("scontrol", "requeue", "{job}") else ""
            comment = record.get("AdminComment", "")
            now = {"state": state, "restarts": record["Restarts"], "excluded": record["ExcNodeList"], "comment": comment}
            told.append({"asked": " ".join(words), "code": code, "out": out, "err": err, "job": now})
        return told


def real() -> Iterator[Site]:
    """The real commands."""
    from tests.live.slurm_cluster import started

    with started(2) as cluster:
        yield Site(cluster)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.live)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "fake":
        yield Site(FakeCluster(tmp_path / "bin", [NODE, OTHER]))
    else:
        yield from real()


def test_the_same_steps_lead_to_the_same_job(site: Site) -> None:
    told = site.play()
    if not isinstance(site.cluster, FakeCluster) and os.environ.get("WORKBENCH_RECORD"):
        RECORDED.write_text(json.dumps(told, indent=1, ensure_ascii=True) + "\n")
    expected = json.loads(RECORDED.read_text())
    differ = [(real, mine) for real, mine in zip(expected, told, strict=True) if real != mine]
    assert differ == []
