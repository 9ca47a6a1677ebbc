"""
Real PyTorch jobs on nodes of their own: one torchrun agent with two ranks in each of two network namespaces, joined by a bridge, under
`workbench run`. Each is broken once; the decision is right, the right node is left out, and the final loss is that of an undisturbed run.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.servers import free_port
from tests.training.namespaces import Nodes, nodes
from tests.training.test_run_torch import LONG, ROOT, TORCHRUN, Job, went_on
from workbench.training.lineage import marked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site() -> Iterator[Nodes]:
    """Three nodes, of which a job takes two: one is to spare."""
    with nodes(3) as made:
        yield made


def launcher(site: Nodes) -> tuple[str, ...]:
    """Return the site's own launcher, which starts an agent on each of two nodes and is told by `{exclude}` which ones it must not take."""
    script = str(ROOT / "tests/training/on_nodes.py")
    sizes = ("--nodes", "2", "--nproc", "2", "--port", str(free_port()))
    return (sys.executable, script, "--hosts", site.hosts, *sizes, "--exclude={exclude}", TORCHRUN)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, site: Nodes) -> str:
    """The final loss of a job that nothing happens to."""
    job = Job(tmp_path_factory.mktemp("undisturbed"))
    assert job.done(launcher=launcher(site)) == 0, job.told()
    assert "workbench run:" not in job.err
    return job.loss


@pytest.fixture
def folder(tmp_path: Path, site: Nodes) -> Iterator[Path]:
    """A folder for one job; whatever the job left is ended, and every cable is in its place again."""
    yield tmp_path
    for pid in marked(f"WORKBENCH_RUN={(tmp_path / 'run').resolve()}"):
        os.kill(pid, signal.SIGKILL)
    for name in site.names:
        site.mend(name)


def once(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def ran_on(job: Job, attempt: int) -> set[str]:
    """Return the nodes from which lines of an attempt came."""
    return {line.partition(": ")[0] for line in job.log(attempt).splitlines() if line.startswith("node-")}


def test_a_rank_that_is_killed(folder: Path, site: Nodes, undisturbed: str) -> None:
    """Nobody knows why it was killed: no node is to blame for that."""
    job = Job(folder, "--grace=3s")
    went_on(job, job.done("--fault", "kill@2", launcher=launcher(site)), undisturbed, 8)
    assert job.decisions[-1]["exclude_nodes"] == []
    assert ran_on(job, 1) == ran_on(job, 2) == {"node-a", "node-b"}


def test_a_gpu_whose_memory_failed_keeps_its_node_out(folder: Path, site: Nodes, undisturbed: str) -> None:
    job = Job(folder, "--grace=3s")
    went_on(job, job.done("--fault", "ecc@2", launcher=launcher(site)), undisturbed, 8)
    assert (job.decisions[-1]["cls"], job.decisions[-1]["exclude_nodes"]) == ("hardware/gpu-memory", ["node-b"]), job.told()
    assert ran_on(job, 1) == {"node-a", "node-b"}
    assert ran_on(job, 2) == {"node-a", "node-c"}


@pytest.mark.parametrize(
    ("kind", "gone"),
    [("node@3", "node-b"), ("node-killed@3", "node-b"), ("node-killed@0", "node-a")],
    ids=["frozen", "killed", "killed, with the rendezvous"],
)
def test_a_node_that_is_gone_with_all_its_processes(folder: Path, site: Nodes, undisturbed: str, kind: str, gone: str) -> None:
    """Its ranks and its agent fall silent while the others go on to complain: it is left out, and the spare node takes its place."""
    job = Job(folder, "--grace=3s", "--max-hang=20s")
    went_on(job, job.done("--fault", kind, "--timeout", "8", launcher=launcher(site)), undisturbed, 8)
    assert (job.decisions[-1]["cls"], job.decisions[-1]["exclude_nodes"]) == ("platform/node-lost", [gone]), job.told()
    assert ran_on(job, 2) == {"node-a", "node-b", "node-c"} - {gone}


def test_a_node_whose_cable_is_pulled(folder: Path, site: Nodes, undisturbed: str) -> None:
    """No connection is closed; the others wait until their own deadline."""
    job = Job(folder, "--grace=3s", "--max-hang=20s")
    job.start("--pause", "0.3", "--timeout", "8", launcher=launcher(site))
    once(lambda: (folder / "checkpoints/step-000008.pt").exists())
    site.cut("node-b")
    once(lambda: (job.run / "attempt-1.verdict.json").exists())
    site.mend("node-b")
    code = job.end()
    assert (code, job.actions()) == (0, ["restart"]), job.told()
    assert job.loss == undisturbed
    assert job.decisions[-1]["cause"] != "user", job.told()
    assert "node-a" not in job.decisions[-1]["exclude_nodes"], job.told()


def test_a_hang_in_a_collective(folder: Path, site: Nodes, undisturbed: str) -> None:
    job = Job(folder, "--max-hang=8s", "--grace=3s")
    went_on(job, job.done("--fault", "hang@1", "--timeout", "600", launcher=launcher(site)), undisturbed, 8)
    assert job.about(1)["why"] == "hang"
    stacks = {path.name for path in (job.run / "attempt-1/stacks").glob("rank-*.txt")}
    assert {f"rank-{rank}.txt" for rank in range(4)} <= stacks, job.told()


def test_a_bug_of_the_user_ends_it(folder: Path, site: Nodes) -> None:
    job = Job(folder, "--grace=3s")
    assert job.done("--fault", "bug@2", launcher=launcher(site)) == 1, job.told()
    (decision,) = job.decisions
    assert (decision["action"], decision["cls"], decision["who"]) == ("stop", "user/exception", "user"), job.told()
    assert not (job.run / "attempt-2").exists()


def test_a_preemption(folder: Path, site: Nodes, undisturbed: str) -> None:
    job = Job(folder, "--grace=15s")
    job.start("--pause", "0.4", launcher=launcher(site))
    once(lambda: (folder / "checkpoints/step-000008.pt").exists())
    assert job.process is not None
    job.process.terminate()
    assert job.end() != 0
    assert (job.actions(), job.about(1)["state"]) == ([], "preempted")
    assert job.done(launcher=launcher(site)) == 0, job.told()
    assert "resumed at step" in job.log(2)
    assert job.loss == undisturbed
