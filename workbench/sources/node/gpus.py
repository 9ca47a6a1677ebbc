"""Turn the GPUs of this node into one reading: by NVML, else nvidia-smi, else what /proc and the PCI bus still show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.model import Gpu, Line
from workbench.parse.gpu_state import GpuState, NodeGpus, from_nvml, from_smi
from workbench.parse.ids import pci, uuid
from workbench.parse.mig import instances_of
from workbench.parse.smi_links import links_of
from workbench.sources.contract import Deadline
from workbench.sources.node.nvml import read_nvml
from workbench.sources.node.world import Unread, Way, World, lines_of, reader, tool

__all__ = ["on_bus", "said_by"]

_NO_DRIVER = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND: also what a node without a GPU says
# the same of nvidia-smi, by its manual: "driver is not loaded", "library couldn't be found or loaded"
_SMI_NO_DRIVER = (9, 12)
_SECONDS = 20.0  # a healthy node of eight GPUs answers in two; without persistence mode in ten
_NVML_ENDINGS = {"hang": "time-out", "init": "exit", "crash": "signal", "no-pynvml": "missing", "not-started": "not-executable"}


def on_bus(world: World) -> list[dict[str, str]]:
    """
    Return NVIDIA's GPUs as the kernel lists them: address, and the driver that holds it.

    Raises
    ------
    Unread
        The kernel's list of PCI devices cannot be read: then nothing is known, not even that there is none.
    """
    found = []
    root = "/sys/bus/pci/devices"
    addresses, gone = world.names(root), 0
    for address in addresses:
        try:
            vendor, kind = (world.text(f"{root}/{address}/{name}").strip() for name in ("vendor", "class"))
        except Unread as error:
            if error.ending == "missing" and gone + 1 < len(addresses):  # it went away meanwhile; all of them did not
                gone += 1
                continue
            raise
        if not re.fullmatch(r"0x[0-9a-f]{4}", vendor) or not re.fullmatch(r"0x[0-9a-f]{6}", kind):
            raise Unread("garbage", f"{root}/{address} does not say what it is")
        if vendor != "0x10de" or not kind.startswith("0x03"):
            continue
        driver = world.path(f"{root}/{address}/driver")
        found.append({"pci": pci(address) or address, "driver": driver.resolve().name if driver.exists() else ""})
    return found


def _bus(world: World) -> tuple[str, ...]:
    try:
        return tuple(one["pci"] for one in on_bus(world))
    except Unread:
        return ()


def _document(world: World, deadline: Deadline) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        document = read_nvml(min(deadline.left(), _SECONDS / 2), node=world.node, env=world.env)
        try:
            document["bus"] = on_bus(world)
        except Unread as error:
            document["bus"], document["bus_unread"] = [], error.detail
        return document

    document: dict[str, Any] = world.once("nvml", read)
    code = (document.get("error") or {}).get("code")
    if document["ending"] == "init" and code in _NO_DRIVER and not document["bus"] and "bus_unread" not in document:
        raise Unread("absent", f"no NVIDIA GPU on the PCI bus, and no driver: {said_by(document)}")
    return document


def said_by(document: Mapping[str, Any]) -> str:
    """Return in a sentence why NVML gave no whole answer."""
    if document["ending"] == "hang":
        hung = document.get("hung") or {}
        return f"{hung.get('call') or 'a call'} did not return" + (f" (GPU {hung['gpu']})" if hung.get("gpu") is not None else "")
    return str((document.get("error") or {}).get("error") or document["ending"])


def _nvml(world: World, deadline: Deadline) -> NodeGpus:
    document = _document(world, deadline)
    if document["ending"] == "whole" and document.get("count") is None:
        why = (document["why_not"].get("count") or {}).get("error") or "not told"
        raise Unread("exit", f"NVML cannot say how many GPUs there are: {why}", "see the kernel log for NVRM")
    if document["ending"] == "whole":
        return from_nvml(document)
    ending = _NVML_ENDINGS.get(document["ending"], "garbage")
    raise Unread(ending, said_by(document), "see the kernel log for NVRM; nvidia-smi may say more")


def _smi(world: World, deadline: Deadline) -> NodeGpus:
    # 14: infoROM is corrupt, and it answered
    ran = tool(world, ("nvidia-smi", "-q", "-x"), deadline, codes=(0, 14, *_SMI_NO_DRIVER), seconds=_SECONDS)
    if ran.code in _SMI_NO_DRIVER:
        if not on_bus(world):  # the driver's tools are in every image of many sites, also on nodes without a GPU
            raise Unread("absent", f"no NVIDIA GPU on the PCI bus, and no driver: nvidia-smi ended with {ran.code}")
        raise Unread(
            "exit", f"{ran.asked} ended with {ran.code}: {ran.text.strip()[:200]}", "see the kernel log for NVRM; modprobe nvidia"
        )
    lines = [Line(at, text) for at, text in enumerate(lines_of(ran.text), 1)]
    if "</nvidia_smi_log>" not in ran.text:
        raise Unread("garbage", f"{ran.asked} printed {len(lines)} lines that are no whole answer", "run it by hand")
    gpus = from_smi(lines)
    if not gpus.states or (gpus.count is not None and gpus.count != len(gpus.states)):
        raise Unread("garbage", f"{ran.asked} says {gpus.count} GPUs and shows {len(gpus.states)}", "run it by hand")
    states = _with_instances(world, _with_links(world, gpus.states, deadline), deadline)
    return NodeGpus(states, gpus.driver, gpus.cuda, "", gpus.count, _bus(world), gpus.events, gpus.problems)


def _with_links(world: World, states: tuple[GpuState, ...], deadline: Deadline) -> tuple[GpuState, ...]:
    """`nvidia-smi -q` prints no NVLinks: ask for them, too; what is not told stays not told."""
    try:
        ran = tool(world, ("nvidia-smi", "nvlink", "-s"), deadline, seconds=_SECONDS / 4)
    except Unread as error:
        return tuple(replace(state, why_not={**state.why_not, "nvlink": error.detail}) for state in states)
    links = links_of(lines_of(ran.text))
    out = []
    for state in states:
        mine = next(
            (
                found
                for index, name, found in links
                if (name and name == state.gpu.uuid) or (not name and index == state.gpu.index)
            ),
            [],
        )
        out.append(replace(state, facts={**state.facts, "nvlink": mine}) if mine else state)
    return tuple(out)


def _with_instances(world: World, states: tuple[GpuState, ...], deadline: Deadline) -> tuple[GpuState, ...]:
    """`nvidia-smi -q` prints no profiles: with MIG on, ask for the list that does; what is not told stays not told."""
    if not any(state.flag("mig.mode.current") for state in states):
        return states
    try:
        ran = tool(world, ("nvidia-smi", "-L"), deadline, seconds=_SECONDS / 4)
        found = instances_of(lines_of(ran.text))
    except Unread as error:
        return tuple(replace(state, why_not={**state.why_not, "mig.instances": error.detail}) for state in states)
    return tuple(
        replace(state, facts={**state.facts, "mig.instances": found[state.gpu.uuid]})
        if state.flag("mig.mode.current") and state.gpu.uuid in found
        else state
        for state in states
    )


def _proc(world: World, deadline: Deadline) -> NodeGpus:
    """What the driver's own files tell: names and addresses, no counters. Read by a process of its own, since a wedged driver blocks it."""
    bus = on_bus(world)
    if not bus:
        raise Unread("absent", "no NVIDIA GPU on the PCI bus")
    folder = "/proc/driver/nvidia/gpus"
    try:
        listed = world.names(folder)
    except Unread:
        listed = []
    states = []
    for address in listed:
        ran = tool(world, ("cat", str(world.path(f"{folder}/{address}/information"))), deadline, seconds=3)
        told = dict(re.findall(r"^([\w. ]+?):[ \t]+(.+?)[ \t]*$", ran.text, re.M))
        minor = told.get("Device Minor", "")
        name = {"name": told["Model"]} if "Model" in told else {}
        states.append(
            GpuState(Gpu(int(minor) if minor.isdigit() else None, uuid(told.get("GPU UUID", "")), pci(address)), name, {})
        )
    if not states:
        raise Unread(
            "missing", f"{len(bus)} GPUs on the PCI bus and none in {folder}: the driver does not hold them", "modprobe nvidia"
        )
    version = ""
    try:
        found = re.search(r"Module\s+([\d.]+)", world.text("/proc/driver/nvidia/version"))
        version = found[1] if found else ""
    except Unread:
        pass
    return NodeGpus(tuple(states), version, "", "", None, tuple(one["pci"] for one in bus))


def _listed(world: World, deadline: Deadline) -> list[dict[str, str]]:
    return on_bus(world)


reader(
    "pci-bus",
    "NVIDIA's GPUs as the kernel lists them",
    seconds=5.0,
    ways=(Way("/sys/bus/pci", _listed, ("a GPU that the kernel took off the bus",)),),
)
reader(
    "nvml",
    "whether the driver answers NVML, and how not",
    seconds=_SECONDS / 2,
    ways=(Way("NVML", _document),),
)
reader(
    "gpus",
    "state of each GPU",
    seconds=_SECONDS,
    ways=(
        Way("NVML", _nvml),
        Way("nvidia-smi", _smi, ("error counters of each NVLink", "processes of MIG instances")),
        Way("/proc/driver/nvidia", _proc, ("every counter, temperature, clock and mode: only that the driver holds the GPU",)),
    ),
)
