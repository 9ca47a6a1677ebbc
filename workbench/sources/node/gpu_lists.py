"""Turn the lists of GPUs that nvidia-smi and DCGM print into readings, to be compared with NVML's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.parse.ids import pci, uuid
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, lines_of, reader, tool

__all__ = ["GpuList"]


@dataclass(frozen=True, slots=True)
class GpuList:
    """How many GPUs, and their UUIDs in the order of the list."""

    count: int
    uuids: tuple[str, ...]
    pcis: tuple[str, ...] = ()


def _smi(world: World, deadline: Deadline) -> GpuList:
    ran = tool(world, ("nvidia-smi", "-L"), deadline, codes=(0, 14), seconds=15.0)
    # GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-4a1f…)
    lines = [line for line in lines_of(ran.text) if re.match(r"GPU \d+: ", line)]
    uuids = [found for line in lines if (match := re.search(r"\(UUID: (\S+?)\)", line)) and (found := uuid(match[1]))]
    if not lines:
        if re.search(r"No devices", ran.text):
            return GpuList(0, ())
        raise Unread("garbage", f"{ran.asked} printed no list of GPUs: {ran.text.strip()[:120]!r}", "run it by hand")
    if len(uuids) != len(lines):
        raise Unread("garbage", f"{ran.asked} printed {len(lines)} GPUs and {len(uuids)} UUIDs", "run it by hand")
    return GpuList(len(lines), tuple(uuids))


def _dcgm(world: World, deadline: Deadline) -> GpuList:
    ran = tool(world, ("dcgmi", "discovery", "-l"), deadline, seconds=15.0)
    said = re.search(r"^(\d+) GPUs? found", ran.text, re.M)
    uuids = [found for match in re.findall(r"Device UUID:\s*(\S+)", ran.text) if (found := uuid(match))]
    pcis = [found for match in re.findall(r"PCI Bus ID:\s*(\S+)", ran.text) if (found := pci(match))]
    if not said or int(said[1]) != len(uuids):
        what = said[0] if said else "no count of GPUs"
        raise Unread("garbage", f"{ran.asked} printed {what} and {len(uuids)} UUIDs", "run it by hand; is nv-hostengine running?")
    return GpuList(int(said[1]), tuple(uuids), tuple(pcis))


reader("smi-list", "the GPUs that nvidia-smi lists", seconds=15.0, ways=(Way("nvidia-smi -L", _smi),))
reader("dcgm-list", "the GPUs that DCGM lists", seconds=15.0, ways=(Way("dcgmi discovery -l", _dcgm),))
