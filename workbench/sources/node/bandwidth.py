"""Turn runs of `nvbandwidth` and of nccl-tests on this node's GPUs into readings."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.parse.gpu_state import NodeGpus
from workbench.parse.nccl_tests import NcclRun, parse_nccl
from workbench.parse.nvbandwidth import Bandwidths, parse_nvbandwidth
from workbench.sources.command import run
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
_INSTALL = "put it on the PATH of this service, or make the check not run: health.optional"


@dataclass(frozen=True, slots=True)
class NcclOutcome:
    """A run of all_reduce_perf: what it said, on how many GPUs, whether it hung after it had begun, its exit code and last words."""

    run: NcclRun
    gpus: int
    hung: bool
    code: int | None
    said: str
    seconds: float


def _found(world: World, names: tuple[str, ...], what: str) -> str:
    """Return the first of some programs that is there; so that GPUs are not looked at for nothing."""
    from shutil import which

    from workbench.sources.command import environment

    path = environment(world.env)["PATH"]
    for name in names:
        if which(name, path=path):
            return name
    raise Unread("missing", f"{what}: none of {', '.join(names)} is there", _INSTALL)


def _nvbandwidth(world: World, deadline: Deadline, *more: str) -> Bandwidths:
    program = _found(world, ("nvbandwidth",), "nvbandwidth is not installed")
    free_gpus(world, deadline)
    inside = World(world.node, world.root, {**world.env, **_ENV}, world.clock, world.settings)
    seconds = max(deadline.left() - 2.0, 1.0)
    # it ends with 1 when one of its tests fails, and has measured the others
    ran = tool(inside, (program, *more, "-t", *TESTS), deadline, codes=(0, 1), limit=4 << 20, seconds=min(seconds, _SECONDS))
    found = parse_nvbandwidth(ran.text)
    if not found.tests:
        said = found.error or "; ".join(f"{name}: {word}" for name, word in found.others.items()) or ran.said
        raise Unread("garbage", f"{ran.asked} measured nothing: {said[:300]}", "run it by hand")
    return found


def _nvbandwidth_json(world: World, deadline: Deadline) -> Bandwidths:
    return _nvbandwidth(world, deadline, "-j")


def _whole(gpus: NodeGpus) -> int:
    if len(gpus.states) < 2:
        raise Unread("absent", f"{len(gpus.states)} GPU: there is nobody to talk to")
    return len(gpus.states)


def _nccl(world: World, deadline: Deadline) -> NcclOutcome:
    program = _found(world, ("all_reduce_perf", "all_reduce_perf_mpi"), "nccl-tests are not installed")
    count = _whole(free_gpus(world, deadline))
    argv = (program, "-b", "8M", "-e", "1G", "-f", "2", "-g", str(count), "-c", "1")
    seconds = min(_NCCL_SECONDS, max(deadline.left() - 2.0, 1.0))
    ran = run(argv, seconds=seconds, limit=4 << 20, env={**world.env, **_ENV})
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
    ways=(Way("nvbandwidth -j", _nvbandwidth_json), Way("nvbandwidth", _nvbandwidth)),
    active=True,
)
reader(
    "nccl-tests",
    "an all-reduce over the node's GPUs",
    seconds=_NCCL_SECONDS + 30.0,
    ways=(Way("all_reduce_perf", _nccl, ("which GPU is slow: the slowest sets the pace of all",)),),
    active=True,
)
