"""
Turn a simulated fleet and a real kube-apiserver with 1,500 nodes each into the time from a fatal finding to the cordon, alone and in a storm.

    python benchmarks/cordon.py [--nodes 1500] [--pods 3000] [--rounds 30] [--storm 200] [--json FILE]

Four figures, each with what it includes. **simulator**: as **loop**, on a fleet in memory (`workbench.testing.Fleet`) whose requests take 50 ms
each; what it says is that time and the computing of this machine together. **executor**: a decided action until the API server has stored cordon, reason, owner and expiry in
one patch, conditional on the node's version. **loop**: a condition is written to a node, as `workbench check --publish kubernetes` does, until
the loop (read the whole fleet, judge, plan, guards, journal on the disk, fresh read of the node, lease) has cordoned it, as `workbench loop --every 60s`
does, whose watches begin a turn when a node shows something new. **storm**: many nodes at once, with caps and breaker lifted: no site should do so.

Published beside it, from NVSentinel's own scale tests: 0.37 s from event to cordon, and 2.5 nodes/s. Nothing is asserted but that every node
was cordoned, once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# what stands beside this file is named like the clients
sys.path[:] = [str(ROOT), *(each for each in sys.path if Path(each or ".").resolve() != ROOT / "benchmarks")]

from tests.live.kubernetes_site import SERVICE, Site, run, stamp, until  # noqa: E402
from workbench.remediation.engine import Outcome  # noqa: E402
from workbench.remediation.executors.contract import Deadline  # noqa: E402
from workbench.remediation.executors.kubernetes.executor import Kubernetes  # noqa: E402
from workbench.remediation.executors.kubernetes.lease import LeaseLock  # noqa: E402
from workbench.remediation.journal import Journal  # noqa: E402
from workbench.remediation.loop import Loop  # noqa: E402
from workbench.remediation.model import OWNER, Action, Trouble  # noqa: E402
from workbench.remediation.policy import Auto, Limits, Policy  # noqa: E402
from workbench.remediation.troubles import Checked  # noqa: E402
from workbench.sources.kubernetes.api import Api  # noqa: E402
from workbench.testing.fleet import Effect, Fleet  # noqa: E402
from workbench.testing.fleet_executor import FleetExecutor  # noqa: E402

MANIFEST = ROOT / "workbench/remediation/executors/kubernetes/rbac-remediation.yaml"
PEER = {"seconds": 0.37, "nodes_per_second": 2.5}  # NVSentinel, published
MANY = 1_000_000
LIFTED = Limits(
    out_count=MANY, out_percent=100, pool_count=MANY, pool_percent=100, zone_count=MANY, job_count=MANY, hour_count=MANY,
    final_hour_count=MANY, keep=0, keep_percent=0, breaker_count=MANY, breaker_percent=100,
)  # fmt: skip


def fill(site: Site, nodes: int, pods: int) -> list[str]:
    """Make nodes as clouds have them, and pods on them; return the names of the nodes."""
    names = [f"gpu-{number:04d}" for number in range(nodes)]
    size = {"cpu": "208", "memory": "1800Gi", "pods": "110", "nvidia.com/gpu": "8"}

    def node(number: int) -> None:
        name = names[number]
        labels = {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": f"test-1{'abc'[number % 3]}",
            "karpenter.sh/nodepool": f"pool-{number % 4}",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.count": "8",
        }
        site.core.create_node({"metadata": {"name": name, "labels": labels}, "spec": {"providerID": f"aws:///{name}"}})
        conditions = [
            {"type": kind, "status": state, "reason": "Kubelet", "message": "kubelet is well", "lastTransitionTime": stamp(9000)}
            for kind, state in (
                ("Ready", "True"),
                ("MemoryPressure", "False"),
                ("DiskPressure", "False"),
                ("PIDPressure", "False"),
            )
        ]
        status = {"capacity": size, "allocatable": size, "conditions": [*conditions, *shown(False)]}
        site.core.patch_node_status(name, {"status": status})

    def pod(number: int) -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
        labels = {"training.kubeflow.org/job-name": f"job-{number % 40}"}
        spec = {"nodeName": names[number % nodes], "containers": [container]}
        site.core.create_namespaced_pod("train", {"metadata": {"name": f"pod-{number:05d}", "labels": labels}, "spec": spec})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(node, range(nodes)))
        list(pool.map(pod, range(pods)))
    return names


def shown(bad: bool) -> list[dict[str, str]]:
    """Return the conditions of a node whose driver is not loaded, or is."""
    state, reason = ("True", "DriverNotLoaded") if bad else ("False", "DriverHealthy")
    rows = (("WorkbenchNodeUnfit", reason if bad else "NodeFit"), ("WorkbenchDriverProblem", reason))
    said = "driver: the kernel module is not loaded" if bad else "nothing was found that makes the node unfit"
    return [
        {
            "type": kind,
            "status": state,
            "reason": why,
            "message": said,
            "lastHeartbeatTime": stamp(),
            "lastTransitionTime": stamp(),
        }
        for kind, why in rows
    ]


def spread(seconds: Sequence[float]) -> str:
    """Return p50 and p90 in words."""
    return f"p50 {statistics.median(seconds):.3f} s, p90 {statistics.quantiles(seconds, n=10)[-1]:.3f} s"


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def executors(kubeconfig: Path, names: Sequence[str], nodes: dict[str, Any]) -> dict[str, Any]:
    """Cordon nodes one after another, then with eight threads."""
    one = Kubernetes(kubeconfig, events=False)

    def cordon(name: str) -> float:
        expects = {"uid": nodes[name].uid, "owner": "", "schedulable": True}
        action = Action(f"bench-{name}", "cordon", "cordon", name, why="driver", expects=expects, args={"reason": "bench"})

        def work() -> None:
            step = one.begin(action, Deadline(30))
            assert step.status == "done", step

        return timed(work)

    cordon(names[0])
    half = len(names) // 2
    alone = [cordon(name) for name in names[1:half]]
    began = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(cordon, names[half:]))
    took = time.perf_counter() - began
    return {"p50": statistics.median(alone), "p90": statistics.quantiles(alone, n=10)[-1], "alone": (half - 1) / sum(alone),
            "threads": (len(names) - half) / took, "words": spread(alone)}  # fmt: skip


class Turning:
    """A loop as `workbench loop --every 60s` runs it, and when it cordoned what."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.cordoned: dict[str, list[float]] = {}
        self.turns: list[float] = []
        self._ends = threading.Event()
        self.lock = LeaseLock(Api(str(kubeconfig)))
        until("the lease", lambda: self.lock.acquire(Deadline(10)), 60)
        policy = Policy(LIFTED, auto=(Auto("cordon", busy=True),), stop_file=str(folder / "stop"))
        executor = Kubernetes(kubeconfig)
        executor.watch()
        self.loop = Loop(
            executor, Journal(folder / "journal.jsonl"), policy, lock=self.lock, stop=self._ends.is_set, tell=self.tell, wake=executor.wait
        )  # fmt: skip
        self._thread = threading.Thread(target=self._turn)
        self.executor = executor

    def tell(self, outcome: Outcome) -> None:
        if outcome.action.verb == "cordon":
            assert outcome.status == "done", outcome
            self.cordoned.setdefault(outcome.action.node, []).append(time.perf_counter())

    def _turn(self) -> None:
        self.loop.every(60.0, lambda turn: self.turns.append(turn.ended - turn.began))

    def __enter__(self) -> Turning:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.executor.close()
        self.lock.release()


class Simulated:
    """A fleet in memory, what checks say of it, and the loop that watches it."""

    def __init__(self, nodes: int, pods: int, folder: Path) -> None:
        self.fleet = fleet = Fleet(seed=0)
        for number in range(nodes):
            fleet.add(f"gpu-{number:04d}", pool=f"pool-{number % 4}", zone="abc"[number % 3], claim=f"claim-{number}")
        for number in range(pods):
            fleet.run(f"gpu-{number % nodes:04d}", f"train/pod-{number:05d}", job=f"job-{number % 40}", gpus=4)
        self.news = False
        self.cordoned: dict[str, tuple[float, float]] = {}
        fleet.on_effect = self.changed
        policy = Policy(LIFTED, auto=(Auto("cordon", busy=True),), stop_file=str(folder / "stop"))
        self.loop = Loop(
            FleetExecutor(fleet), Journal(folder / "simulated.jsonl", clock=fleet.clock), policy, seen=(self.seen,), wake=self.wake,
            clock=fleet.clock, steady=fleet.steady, sleep=fleet.sleep,
        )  # fmt: skip

    def moment(self) -> tuple[float, float]:
        """Return the fleet's time and this machine's."""
        return self.fleet.now, time.perf_counter()

    def changed(self, effect: Effect) -> None:
        self.cordoned.setdefault(effect.node, self.moment())

    def seen(self, now: float) -> tuple[list[Trouble], list[Checked]]:
        """Return what checks say: as the nodes' conditions do in the other figures."""
        bad = [one for one in self.fleet.nodes.values() if one.faults]
        wrong = [
            Trouble(
                one.name,
                "driver-not-loaded",
                "driver/missing",
                "fix-platform",
                cause="driver",
                seen=now,
                since=now,
                boot=one.boot,
            )
            for one in bad
        ]
        return wrong, [Checked(one.name, now, not one.faults, "running") for one in self.fleet.nodes.values()]

    def wake(self, seconds: float) -> bool:
        """Wait as a watch does, which tells within 20 ms."""
        until = self.fleet.now + seconds
        while not self.news and self.fleet.now < until:
            self.fleet.sleep(min(0.02, until - self.fleet.now))
        told, self.news = self.news, False
        return told

    def cordons(self, names: Sequence[str], after: float) -> list[float]:
        """Let findings come at once, `after` seconds from now, and return how long each took to its cordon."""
        told: list[tuple[float, float]] = []

        def come() -> None:
            for name in names:
                self.fleet.break_down(name, "driver-not-loaded")
            self.news = True
            told.append(self.moment())

        self.fleet.later(after, come)
        self.loop.stop = lambda: all(name in self.cordoned for name in names)
        self.loop.every(60.0)
        return [sum(self.cordoned[name]) - sum(told[0]) for name in names]


def simulated(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the times on a fleet in memory, printed on the way."""
    made = Simulated(options.nodes, options.pods, folder)
    names = list(made.fleet.nodes)
    random.Random(0).shuffle(names)
    waits = [made.cordons([name], 2.0)[0] for name in names[: options.rounds]]
    stormed = made.cordons(names[options.rounds : options.rounds + options.storm], 2.0)
    rate = len(stormed) / max(stormed)
    print(f"simulator {spread(waits)} from the finding to the cordon; {len(stormed)} nodes at once: {rate:.0f} nodes/s")
    assert sum(one.verb == "cordon" for one in made.fleet.effects) == options.rounds + options.storm, (
        "a node was cordoned twice, or never"
    )
    return {"seconds": waits, "storm": {"nodes_per_second": rate, "seconds": stormed}}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1500)
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=30, help="findings that come one at a time")
    parser.add_argument("--storm", type=int, default=200, help="findings that come at once")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cordon-") as scratch:
        work = Path(scratch) / "kubernetes"
        in_memory = simulated(Path(scratch), options)
        try:
            run(SERVICE / "start", work)
            found = {"simulator": in_memory} | measure(work, Path(scratch), options)
        finally:
            subprocess.run([SERVICE / "stop", work], check=False, timeout=60, capture_output=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(work: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures, printed on the way."""
    site = Site(work / "admin.kubeconfig")
    site.namespace("train")
    run(Path(run(SERVICE / "build")) / "kubectl", "--kubeconfig", work / "admin.kubeconfig", "apply", "-f", MANIFEST)
    until("the account", lambda: site.core.list_namespaced_service_account("gpu-workbench").items)
    names = fill(site, options.nodes, options.pods)
    kubeconfig = Path(run(SERVICE / "kubeconfig-for", work, "gpu-workbench", "gpu-workbench-remediation"))
    reader = Kubernetes(kubeconfig)
    time.sleep(2)  # grants reach the authorizer a moment later
    fleet = reader.fleet(Deadline(60))
    assert len(fleet.nodes) == options.nodes, fleet.problems
    assert fleet.complete, fleet.problems
    reads = [timed(lambda: reader.fleet(Deadline(60))) for _ in range(5)]
    print(f"fleet     {options.nodes} nodes and {options.pods} pods read in {spread(reads)}")

    random.Random(0).shuffle(names)
    first, second, third = (
        names[:200], names[200 : 200 + options.rounds], names[200 + options.rounds : 200 + options.rounds + options.storm]
    )  # fmt: skip
    direct = executors(kubeconfig, first, dict(fleet.nodes))
    print(
        f"executor  {direct['words']}; {direct['alone']:.0f} nodes/s one after another, {direct['threads']:.0f} with eight threads"
    )

    def show(name: str) -> float:
        site.core.patch_node_status(name, {"status": {"conditions": shown(True)}})
        return time.perf_counter()

    with Turning(kubeconfig, folder) as turning:
        until("the watches", lambda: turning.turns and not turning.executor.unwatched(), 60)
        told = {}
        for name in second:
            told[name] = show(name)
            until(f"the cordon of {name}", lambda name=name: name in turning.cordoned, 60)
            time.sleep(random.Random(name).uniform(1.0, 2.5))
        waits = [turning.cordoned[name][0] - when for name, when in told.items()]
        print(f"loop      {spread(waits)} from the condition on the node to the cordon")
        with ThreadPoolExecutor(8) as pool:
            stormed = dict(zip(third, pool.map(show, third), strict=True))
        until("the storm's end", lambda: all(name in turning.cordoned for name in third), 300)
        ends = [turning.cordoned[name][0] for name in third]
        rate = len(third) / (max(ends) - min(stormed.values()))
        after = [turning.cordoned[name][0] - when for name, when in stormed.items()]
        print(f"storm     {len(third)} nodes at once: {rate:.0f} nodes/s, {spread(after)}")
    assert all(len(times) == 1 for times in turning.cordoned.values()), "a node was cordoned twice"
    fleet = reader.fleet(Deadline(60))
    assert sum(one.owner == OWNER for one in fleet.nodes.values()) == len(first) + len(second) + len(third)
    print(f"published NVSentinel: {PEER['seconds']} s, {PEER['nodes_per_second']} nodes/s")
    return {
        "fleet": reads, "executor": direct, "loop": {"seconds": waits},
        "storm": {"nodes_per_second": rate, "seconds": after}, "published": PEER,
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
