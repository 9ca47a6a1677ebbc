"""Turn runs of `nvbandwidth` and of nccl-tests on this node's GPUs into readings."""

from __future__ import annotations

from dataclasses import dataclass
from shutil import which

from workbench.parse.gpu_state import NodeGpus
from workbench.parse.nccl_tests import NcclRun, parse_nccl
from workbench.parse.nvbandwidth import Bandwidths, parse_nvbandwidth
from workbench.sources.command import environment, run
from workbench.sources.contract import Deadline
from workbench.sources.node.active import free_gpus
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["TESTS", "NcclOutcome"]

TESTS = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")
# eight H100 take about a minute for these three: five are for a node that is sick (our own measure)
_SECONDS = 300.0
# eight H100 take some 20 s for 8 MB to 1 GB, most of it for setting up (our own measure)
_NCCL_SECONDS = 240.0
# CUDA's own order begins with the fastest GPU: a number would not mean what it means to NVML
_ENV = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass(frozen=True, slots=True)
class NcclOutcome:
    """A run of all_reduce_perf: what it said, on how many GPUs, whether it hung after it had begun, its exit code and last words."""

    run: NcclRun
    gpus: int
    hung: bool
    code: int | None
    said: str
    seconds: float


def _found(world: World, *names: str) -> str:
    """Return the first of some programs that is there; raises `Unread` when none is."""
    path = environment(world.env)["PATH"]
    found = next((name for name in names if which(name, path=path)), None)
    if found is None:
        raise Unread("missing", f"{names[0]} is not installed", "put it on the PATH of this service")
    return found


def _nvbandwidth(world: World, deadline: Deadline) -> Bandwidths:
    free_gpus(world, deadline)
    program = _found(world, "nvbandwidth")
    inside = World(world.node, world.root, {**world.env, **_ENV}, world.clock, world.settings)
    said = ""
    for more in (("-j",), ()):  # versions before 0.5 know no -j: they print how they are used, and end with 1
        # it ends with 1 also when one of its tests fails, and has measured the others
        try:
            ran = tool(inside, (program, *more, "-t", *TESTS), deadline, codes=(0, 1), limit=4 << 20, seconds=_SECONDS)
        except Unread as error:
            if error.ending != "garbage" or not more:
                raise
            continue
        found = parse_nvbandwidth(ran.text)
        if found.tests:
            return found
        others = "; ".join(f"{name}: {word}" for name, word in found.others.items())
        said = found.error or others or ran.said or said
    raise Unread("garbage", f"nvbandwidth measured nothing: {said[:300]}", "run it by hand")


def _whole(gpus: NodeGpus) -> int:
    if len(gpus.states) < 2:
        raise Unread("absent", f"{len(gpus.states)} GPU: there is nobody to talk to")
    return len(gpus.states)


def _nccl(world: World, deadline: Deadline) -> NcclOutcome:
    count = _whole(free_gpus(world, deadline))
    program = _found(world, "all_reduce_perf", "all_reduce_perf_mpi")
    argv = (program, "-b", "8M", "-e", "1G", "-f", "2", "-g", str(count), "-c", "1")
    ran = run(argv, seconds=deadline.left(_NCCL_SECONDS), limit=4 << 20, env={**world.env, **_ENV})
    found = parse_nccl(ran.text + "\n" + ran.err.decode("utf-8", "replace"))
    hung = ran.ending == "time-out" and found.began
    failed = ran.ending in ("exit", "signal") and found.began
    if not (ran.ok or hung or failed):
        raise Unread(ran.ending, f"{ran.asked} {ran.sentence}", "run it by hand as the same user")
    if ran.ok and not found.whole:
        raise Unread("garbage", f"{ran.asked} came to no summary: {ran.said or ran.text.strip()[:120]!r}", "run it by hand")
    return NcclOutcome(found, count, hung, ran.code, ran.said, ran.seconds)


reader(
    "nvbandwidth",
    "bandwidth between host and GPUs, and of each pair of GPUs",
    seconds=2 * _SECONDS + 30.0,
    ways=(Way("nvbandwidth", _nvbandwidth),),
    active=True,
)
reader(
    "nccl-tests",
    "an all-reduce over the node's GPUs",
    seconds=_NCCL_SECONDS + 30.0,
    ways=(Way("all_reduce_perf", _nccl, ("which GPU is slow: the slowest sets the pace of all",)),),
    active=True,
)
