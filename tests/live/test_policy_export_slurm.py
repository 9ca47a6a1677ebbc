"""What `workbench policy export slurm` writes is taken by a real sbatch, and a real requeue comes back without the node that was left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.slurm_cluster import RealCluster, started
from tests.training.jobs import told, verdict
from workbench.cli import main
from workbench.training.attempts import Attempt, History, RunLedger
from workbench.training.export import Shape, export
from workbench.training.policy import Policy, load_policy
from workbench.training.retry import decide

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with started(3) as made:
        yield made


def until(what: str, question: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.3)
    raise AssertionError(f"{what} did not come in {seconds} s")


def script(cluster: RealCluster, text: str, body: str) -> Path:
    """Return an exported script whose last line, the job itself, is another one."""
    lines = text.rstrip("\n").split("\n")
    assert lines[-1].startswith("exec workbench run")
    path = cluster.root / "job.sh"
    path.write_text("\n".join([*lines[:-1], body, ""]), encoding="utf-8")
    return path


@pytest.mark.parametrize("which", ["shipped", "elastic"])
@pytest.mark.parametrize("exclude", [(), ("gpu-node-001",)])
def test_sbatch_takes_it(cluster: RealCluster, tmp_path: Path, which: str, exclude: tuple[str, ...]) -> None:
    """All options are known to it, and it says where the job would run."""
    file = tmp_path / "retry.toml"
    file.write_text('schema = "workbench.retry/1"\n[nodes]\nmin = 1\n', encoding="utf-8")
    text = export("slurm", load_policy(file) if which == "elastic" else Policy(), Shape("llm", nodes=2, exclude=exclude))
    path = cluster.root / "try.sh"
    path.write_text(text, encoding="utf-8")
    ran = cluster.run(["sbatch", "--test-only", str(path)], seconds=60.0)

    assert ran.ok, ran.sentence
    job = cluster.ask("sbatch", "--parsable", "--hold", f"--chdir={cluster.root}", "--output=/dev/null", str(path)).strip()
    shown = cluster.ask("scontrol", "show", "job", job)
    cluster.end(job)
    assert "Requeue=1" in shown
    assert f"ExcNodeList={exclude[0] if exclude else '(null)'}" in shown
    assert ("NumNodes=1-2" if which == "elastic" else "NumNodes=2-2") in shown


def test_a_requeued_job_comes_back_without_the_blamed_node(cluster: RealCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The decision leaves out the node, the export of the run names it, and Slurm runs both starts elsewhere."""
    run = cluster.root / "run"
    run.mkdir()
    said = verdict("hardware/gpu-lost", node="gpu-node-001", uuid="GPU-1")
    begun = time.time() - 120  # a node that was blamed a week ago is used again
    first = told(Attempt(1, started=begun, ended=begun + 60, exit_code=1), said)
    decision = decide(said, History((first,), now=begun + 60))
    with RunLedger(run / "attempts.jsonl") as ledger:
        ledger.put(first)
        ledger.put(Attempt(2, started=begun + 70, state="running", excluded=decision.excluded))
    assert main(["policy", "export", "slurm", "--run", str(run), "--nodes", "2"]) == 0
    body = 'echo "$SLURM_RESTART_COUNT $SLURM_JOB_NODELIST" >>starts; sleep 300'
    path = script(cluster, capsys.readouterr().out, body)

    job = cluster.ask("sbatch", "--parsable", f"--chdir={cluster.root}", "--output=/dev/null", str(path)).strip()
    seen = cluster.root / "starts"
    until("the first start", lambda: seen.exists() and seen.read_text().count("\n") == 1, seconds=180.0)
    cluster.ask("scontrol", "requeue", job)
    # after a requeue Slurm waits two minutes for the credential of the first start to expire, unless an operator says that it may start
    until("the queue", lambda: "JobState=PENDING" in cluster.ask("scontrol", "show", "job", job), seconds=180.0)

    def again() -> bool:
        """Ask for a start now, as often as it takes: on a slow machine the step of the first start may still be ending."""
        if seen.read_text().count("\n") < 2:
            cluster.run(["scontrol", "update", f"jobid={job}", "starttime=now"], seconds=30.0)
            time.sleep(5.0)
        return seen.read_text().count("\n") == 2

    until("the second start", again, seconds=400.0)
    cluster.end(job)

    assert [line.split() for line in seen.read_text().splitlines()] == [["gpu-node-[002-003]"], ["1", "gpu-node-[002-003]"]]
    assert len((cluster.root / f".workbench-starts-{job}").read_text().split()) == 2


def test_a_job_that_is_restarted_without_end_is_held_by_slurm(cluster: RealCluster) -> None:
    """Held and not ended: `scontrol release` lets it go on."""
    path = script(cluster, export("slurm", Policy()), "sleep 300")
    job = cluster.ask("sbatch", "--parsable", "--hold", f"--chdir={cluster.root}", "--output=/dev/null", str(path)).strip()
    (cluster.root / f".workbench-starts-{job}").write_text(f"{int(time.time())}\n" * 7, encoding="utf-8")
    cluster.ask("scontrol", "release", job)

    shown = until("the hold", lambda: held(cluster, job), seconds=90.0)
    cluster.end(job)
    assert "Reason=job_requeued_in_held_state" in shown or "Reason=JobHeld" in shown


def held(cluster: RealCluster, job: str) -> str:
    """Return what Slurm shows of a job that waits for a person."""
    shown = cluster.ask("scontrol", "show", "job", job)
    return shown if "JobState=PENDING" in shown and "Restarts=1" in shown else ""
