"""The Slurm source against real slurmctld, slurmdbd and slurmd: jobs die in the usual ways, and triage of what was collected says how."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.live.servers import free_port
from workbench.incident import IncidentVerdict, load
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.slurm.jobs import Allocation
from workbench.sources.slurm.source import Slurm

pytestmark = pytest.mark.live

SERVICES = Path(__file__).resolve().parent.parent / "services" / "slurm"
# Debian 12's release is asked where it is; the others run in root folders of other suites, made when they are named here
# (tests/services/slurm/README.md): WORKBENCH_SLURM_SUITES="trixie sid" for 24.11 and 26.05, 600 MB and 45 s each
SUITES = os.environ.get("WORKBENCH_SLURM_SUITES", "").split()
PACKAGES = "munge,slurm-wlm,slurmdbd,slurmrestd,mariadb-server,procps,iproute2,hostname,python3-minimal"
ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED"}


@dataclass
class Cluster:
    """A cluster of four nodes, and the jobs that were handed in."""

    root: Path
    work: Path
    began: float
    slurm: Slurm
    env: dict[str, str]
    prefix: tuple[str, ...] = ()
    jobs: dict[str, str] = field(default_factory=dict)

    def run(self, *argv: str) -> str:
        return subprocess.run(
            [*self.prefix, *argv], env=self.env, cwd=self.work, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def submit(self, name: str, body: str, *options: str) -> str:
        script = self.work / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH --job-name={name}\n{body}\n")
        self.jobs[name] = self.run("sbatch", "--parsable", *options, str(script)).strip().split(";")[0]
        return self.jobs[name]

    def pid(self, name: str) -> int:
        return next(int(line.split()[0]) for line in (self.root / "pids").read_text().splitlines() if line.split()[1] == name)

    def scope(self, job: str, **fields: int) -> Scope:
        return Scope(job, self.began - 60, time.time() + 60, **fields)  # type: ignore[arg-type]

    def ended(self, job: str, states: set[str] = ENDED, seconds: float = 150) -> list[Allocation]:
        """Wait until all of a job has ended, by slurmdbd's word, which comes a few seconds late."""
        until = time.monotonic() + seconds
        while True:
            rows, _ = self.slurm.allocations(self.scope(job), Deadline(20))
            if (
                rows
                and {row.id: row.state.split()[0] for row in rows}.keys()
                and all(state in states for state in {row.id: row.state.split()[0] for row in rows}.values())
            ):
                return rows
            assert time.monotonic() < until, f"job {job} did not end: {rows}"
            time.sleep(1)

    def verdict(self, job: str, folder: Path) -> tuple[IncidentVerdict, list[Answer], Scope]:
        """Locate, collect, triage: as `workbench triage --job` does."""
        found = self.slurm.locate(self.scope(job), Deadline(20))
        assert found is not None
        answers = self.slurm.collect(found, Folder(folder), Deadline(20))
        return load(folder).triage(), answers, found


@pytest.fixture(scope="module", params=["host", *SUITES])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if not shutil.which("slurmctld") and os.getuid() != 0:
        pytest.skip("no slurmctld on the path, and only root may install Debian's")
    root = Path(tempfile.mkdtemp(prefix="wb-slurm-"))  # short: the name of a socket may have 107 letters
    prefix: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    if request.param != "host":
        prefix, install = (str(SERVICES / "debian-root"), request.param, "slurm", PACKAGES), ("--no-install",)
    began = time.time()
    try:
        # the root folder has no $HOME of ours: a folder that both see is where it starts
        start = [
            *prefix,
            str(SERVICES / "start"),
            *install,
            "--dir",
            str(root / "run"),
            "--port",
            str(free_port(1, 2, *range(101, 105))),
        ]
        subprocess.run(start, check=True, timeout=900, cwd=root)
        env = {**os.environ, "SLURM_CONF": str(root / "run" / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin"}
        work = root / "work"
        work.mkdir()
        made = Cluster(root / "run", work, began, Slurm(prefix, env={"SLURM_CONF": env["SLURM_CONF"]}), env, prefix)
        _submit(made)
        yield made
    finally:
        subprocess.run(
            [*prefix, str(SERVICES / "stop"), "--dir", str(root / "run"), "--purge"], check=False, timeout=120, cwd="/tmp"
        )
        shutil.rmtree(root, ignore_errors=True)


def _submit(cluster: Cluster) -> None:
    """Hand in all jobs at once: the slowest waits a minute for its time limit."""
    eat = 'python3 -c "x = bytearray(600 << 20); import time; time.sleep(20)"'
    cluster.submit("llm-time", "#SBATCH --time=1 --nodes=1\nsrun sleep 300")
    cluster.submit(
        "llm-memory", f"#SBATCH --nodes=2 --ntasks-per-node=1 --mem=200 --output=memory-%j.out\nsrun bash -c 'echo rank $SLURM_PROCID; if [ $SLURM_PROCID = 1 ]; then {eat}; fi; sleep 3'"
    )  # fmt: skip
    cluster.submit(
        "sweep",
        "#SBATCH --array=0-2 --output=logs/sweep-%A_%a.out\nif [ $SLURM_ARRAY_TASK_ID = 1 ]; then python3 -c 'raise ValueError(\"lr is negative\")'; fi",
    )
    cluster.submit(
        "llm-node", "#SBATCH --nodes=2 --nodelist=gpu-node-[003-004] --no-requeue\nsrun sleep 300", "--output=node.out"
    )
    cluster.submit("llm-requeue", "#SBATCH --nodes=1 --nodelist=gpu-node-001 --requeue\nsleep 300")
    cluster.submit("llm-cancel", "#SBATCH --nodes=1 --nodelist=gpu-node-002\nsleep 300")
    cluster.run("sbatch", "--job-name=twice", "--wrap=exit 3")
    cluster.jobs["twice"] = cluster.run("sbatch", "--parsable", "--job-name=twice", "--wrap=true").strip()
    (cluster.work / "logs").mkdir()
    cluster.jobs["het"] = cluster.run("sbatch", "--parsable", "--job-name=het", "-N1", "--wrap=srun --het-group=0,1 hostname", ":", "-N1").strip().split(";")[0]  # fmt: skip
    time.sleep(4)
    cluster.run(str(SERVICES / "node"), "gpu-node-004", "kill", "--dir", str(cluster.root))
    cluster.run("scontrol", "requeue", cluster.jobs["llm-requeue"])
    cluster.run("scancel", cluster.jobs["llm-cancel"])


def test_killed_for_memory(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ended("llm-memory")
    verdict, answers, found = cluster.verdict("llm-memory", tmp_path)

    assert verdict.cls == "user/host-oom"
    assert found.nodes == ("gpu-node-001", "gpu-node-002")
    assert found.until - found.since < 600
    assert [answer.file for answer in answers if answer.source == "job"] == [f"logs/memory-{cluster.jobs['llm-memory']}.out"]
    assert {answer.status for answer in answers} == {"ok"}
    assert verdict.node == "gpu-node-002"


def test_json_gives_the_same_verdict_as_text(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ended("llm-memory")
    slurm = Slurm(cluster.prefix, form="json", env={"SLURM_CONF": cluster.env["SLURM_CONF"]})
    scope = cluster.scope("llm-memory")
    assert slurm.locate(scope, Deadline(20)) == cluster.slurm.locate(scope, Deadline(20))
    answers = slurm.collect(scope, Folder(tmp_path), Deadline(20))

    assert "slurm/sacct.json" in {answer.file for answer in answers}
    assert load(tmp_path).triage().cls == "user/host-oom"


def test_an_array_with_an_error_in_one_task(cluster: Cluster, tmp_path: Path) -> None:
    rows = cluster.ended("sweep")
    verdict, answers, _ = cluster.verdict("sweep", tmp_path)

    assert {row.task for row in rows} == {"0", "1", "2"}
    assert verdict.cls == "user/exception"
    assert "3 tasks" in answers[0].detail
    one, _, _ = cluster.verdict(f"{cluster.jobs['sweep']}_1", tmp_path / "one")
    assert one.cls == "user/exception"
    other, _, _ = cluster.verdict(f"{cluster.jobs['sweep']}_0", tmp_path / "other")
    assert other.cls == "none"


def test_components_and_names_that_repeat(cluster: Cluster, tmp_path: Path) -> None:
    rows = cluster.ended("het")
    cluster.ended("twice")

    assert [row.id for row in rows] == [f"{cluster.jobs['het']}+0", f"{cluster.jobs['het']}+1"]
    verdict, answers, _ = cluster.verdict("twice", tmp_path)
    assert verdict.cls == "none"
    assert f"job {cluster.jobs['twice']} (twice)" in answers[0].detail
    assert "the newest of 2 jobs of this name" in answers[0].detail


def test_cancelled_by_root(cluster: Cluster, tmp_path: Path) -> None:
    (row,) = cluster.ended("llm-cancel")
    verdict, _, _ = cluster.verdict("llm-cancel", tmp_path)

    assert row.state.startswith("CANCELLED")
    assert verdict.cls in ("user/stopped", "platform/preemption")


def test_requeued(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.ended("llm-requeue", {"REQUEUED", "PENDING", "RUNNING"})
    until = time.monotonic() + 30
    while not first[0].state.startswith("REQUEUED"):
        assert time.monotonic() < until, first
        time.sleep(1)
        first, _ = cluster.slurm.allocations(cluster.scope("llm-requeue"), Deadline(20))
    scope = cluster.scope("llm-requeue", attempt=1)
    found = cluster.slurm.locate(scope, Deadline(20))
    assert found is not None
    verdict, answers, _ = cluster.verdict("llm-requeue", tmp_path)

    assert found.nodes == ("gpu-node-001",)
    assert verdict.cls == "platform/preemption"
    assert verdict.evidence_records[0].signature == "slurm-requeue"
    assert answers[0].status == "ok"


def test_preempted(cluster: Cluster, tmp_path: Path) -> None:
    """Accounting has two rows: PREEMPTED, which ended, and the try that waits; and the job's own output says so too."""
    whole = "#SBATCH --nodes=1 --nodelist=gpu-node-002 --exclusive"
    victim = cluster.submit("llm-victim", f"{whole} --requeue --output=victim.out\nsrun sleep 300")
    cluster.ended(victim, {"RUNNING"})  # by slurmdbd's word: who is preempted before it heard of the start has no name there
    cluster.submit("llm-urgent", f"{whole} --partition=urgent\nsleep 3", "--output=/dev/null")
    until = time.monotonic() + 60
    rows: list[Allocation] = []
    while [row.state for row in rows] != ["PREEMPTED", "PENDING"]:
        assert time.monotonic() < until, rows
        time.sleep(1)
        rows, _ = cluster.slurm.allocations(cluster.scope(victim), Deadline(20))
    verdict, answers, found = cluster.verdict(victim, tmp_path)
    first, _ = cluster.slurm.allocations(cluster.scope(victim, attempt=1), Deadline(20))

    assert (verdict.cls, verdict.at_fault) == ("platform/preemption", "platform")
    assert verdict.evidence_records[0].signature == "slurm-preempted"
    assert found.nodes == ("gpu-node-002",)
    assert "2 starts" in answers[0].detail
    assert [(row.state, row.nodes) for row in first] == [("PREEMPTED", ("gpu-node-002",))]
    cluster.run("scancel", victim)


def test_a_node_that_dies(cluster: Cluster, tmp_path: Path) -> None:
    (row,) = cluster.ended("llm-node", {"NODE_FAIL"})
    verdict, _, found = cluster.verdict("llm-node", tmp_path)

    assert row.state == "NODE_FAIL"
    assert verdict.cls == "platform/node-lost"
    # in the same second accounts say NODE_FAIL of both nodes, and sinfo says which one is down: the order decides who is named
    assert verdict.node in ("gpu-node-004", None)
    assert found.nodes == ("gpu-node-003", "gpu-node-004")
    assert "Not responding" in (tmp_path / "slurm" / "sinfo.txt").read_text()
    assert re.search(r"(?m)^gpu-node-004\|.*\|DOWN\*?\|Not responding", (tmp_path / "slurm" / "node-events.txt").read_text())


def test_over_its_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    (row,) = cluster.ended("llm-time")
    verdict, _, _ = cluster.verdict("llm-time", tmp_path)

    assert row.state == "TIMEOUT"
    assert verdict.cls == "platform/preemption"
    assert verdict.evidence_records[0].signature == "slurm-time-limit"


def test_doctor(cluster: Cluster) -> None:
    found = {reach.item: reach for reach in cluster.slurm.examine(Deadline(20))}

    assert {item for item, reach in found.items() if reach.status != "ok"} <= {"setting ConstrainDevices"}
    assert found["clock"].status == found["rights"].status == found["slurmdbd"].status == "ok"


def test_a_controller_that_hangs(cluster: Cluster, tmp_path: Path) -> None:
    """SIGSTOP is a slurmctld that neither answers nor refuses; slurmdbd still knows the job."""
    cluster.ended("llm-memory")
    os.kill(cluster.pid("slurmctld"), signal.SIGSTOP)
    begun = time.monotonic()
    try:
        found = cluster.slurm.locate(cluster.scope("llm-memory"), Deadline(5))
        answers = cluster.slurm.collect(cluster.scope("llm-memory"), Folder(tmp_path), Deadline(5))
        reaches = {reach.item: reach.status for reach in cluster.slurm.examine(Deadline(5))}
        took = time.monotonic() - begun
    finally:
        os.kill(cluster.pid("slurmctld"), signal.SIGCONT)

    assert took < 20
    assert found is not None
    assert any(answer.status == "failed" for answer in answers)
    assert any(answer.file == "slurm/sacct.txt" and answer.status == "ok" for answer in answers)
    assert reaches["slurmctld"] != "ok"
    assert load(tmp_path).triage().cls == "user/host-oom"


def test_accounts_that_do_not_answer(cluster: Cluster, tmp_path: Path) -> None:
    """What ended just now, slurmctld knows as well."""
    cluster.jobs["late"] = cluster.run("sbatch", "--parsable", "--job-name=late", "--wrap=exit 3").strip()
    cluster.ended("late")
    os.kill(cluster.pid("slurmdbd"), signal.SIGSTOP)
    begun = time.monotonic()
    try:
        answers = cluster.slurm.collect(cluster.scope("late"), Folder(tmp_path), Deadline(6))
        took = time.monotonic() - begun
    finally:
        os.kill(cluster.pid("slurmdbd"), signal.SIGCONT)

    assert took < 12
    assert f"job {cluster.jobs['late']} (late), FAILED on gpu-node-" in answers[0].detail
    assert {answer.status for answer in answers if re.search(r"\bsacct", answer.asked)} == {"failed"}
    assert "ExitCode=3:0" in (tmp_path / "slurm" / "scontrol-job.txt").read_text()


def test_without_slurmdbd_an_older_job_is_not_called_unknown(cluster: Cluster, tmp_path: Path) -> None:
    os.kill(cluster.pid("slurmdbd"), signal.SIGSTOP)
    begun = time.monotonic()
    try:
        answers = cluster.slurm.collect(cluster.scope("7"), Folder(tmp_path), Deadline(4))
        took = time.monotonic() - begun
    finally:
        os.kill(cluster.pid("slurmdbd"), signal.SIGCONT)

    assert took < 8
    assert [answer.status for answer in answers] == ["failed"]
    assert "did not answer" in answers[0].detail
