"""Turn this machine into a source: what NVML, nvidia-smi, DCGM and the kernel log say of the node that the workbench runs on."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from workbench.errors import SourceError
from workbench.parse.ids import same_node
from workbench.sources.command import Ran, run
from workbench.sources.contract import Answer, Deadline, Folder, FolderFull, Reach, Scope
from workbench.sources.node.kernel import Reading, collect_kernel, places
from workbench.sources.node.kubelet import KUBELET, collect_checkpoint
from workbench.sources.node.nvml import read_nvml

__all__ = ["ThisNode"]

# a healthy node answers in two seconds; a driver that needs longer than this is hung, or has persistence mode off
_MOST = 20.0
_RESERVE = 2.0  # seconds kept to end what hangs and to write what came
_GPU_CLASSES = (
    "hardware/gpu-memory",
    "hardware/gpu-lost",
    "hardware/nvlink",
    "hardware/thermal-power",
    "driver/hang",
    "driver/fabric-manager",
)
_KERNEL_CLASSES = ("hardware/gpu-lost", "hardware/gpu-memory", "hardware/pcie", "hardware/host", "driver/hang", "user/host-oom")
# read-only, quick, and understood by parse/smi: tool → arguments, and the end of the file's name
_TOOLS = {
    "nvidia-smi": (("nvidia-smi", "-q"), "nvidia-smi-q.txt"),
    "dcgmi": (("dcgmi", "health", "-g", "0", "-c"), "dcgmi-health.txt"),
}
_NO_GPU = (9, 12)  # NVML: driver not loaded, library not found


class ThisNode:
    """
    The machine that the workbench runs on, when it is one of the job's nodes.

    Parameters
    ----------
    names : sequence of str, optional
        What this node may be called; default the host name, and what Slurm and Kubernetes call it in the environment.
    env : mapping, optional
        Added to the environment of NVML's reader and of the tools, e.g. ``LD_LIBRARY_PATH``.
    kubelet : str
        Root of the kubelet's files.
    """

    name = "node"

    def __init__(self, names: Sequence[str] = (), *, env: Mapping[str, str] | None = None, kubelet: str = KUBELET) -> None:
        told = [os.environ.get(word, "") for word in ("SLURMD_NODENAME", "NODE_NAME", "K8S_NODE_NAME")]
        host = socket.gethostname()
        self.names = tuple(dict.fromkeys(name for name in (names or (*told, host, host.split(".")[0])) if name))
        self.env, self.kubelet = dict(env or {}), kubelet

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        """A node knows no jobs: None."""
        return None

    # ---- collect

    def _me(self, scope: Scope) -> str | None:
        """This node's name as the job's scheduler spells it; None when it is none of the job's nodes."""
        return next((node for node in scope.nodes if any(same_node(node, name) for name in self.names)), None)

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """
        Write ``kernel/<node>.log``, ``smi/<node>-nvml.json``, what the tools that are here print, and the kubelet's device assignments.

        Only on a node of the job: another machine's log says nothing of it, and could be blamed. When the job's nodes are not known,
        a machine with GPUs counts as one.
        """
        me = self._me(scope)
        if me is None and scope.nodes:
            where = scope.nodes[0]
            detail = f"this machine ({self.names[0]}) is none of the job's {len(scope.nodes)} nodes, so it was not looked at"
            hint = f"on each node: workbench collect --job {scope.job}, e.g. ssh {where}"
            return [Answer(word, "missing", detail, hint) for word in ("kernel", "smi")]
        if me is None and not _gpus_here():
            detail = f"where the job ran is not known, and this machine ({self.names[0]}) has no GPU: it was not looked at"
            return [Answer(word, "missing", detail, "run it on the job's nodes") for word in ("kernel", "smi")]
        node = me or self.names[0]
        # side by side: a hung driver stops every tool that asks it, and costs its time once
        jobs: list[Callable[[], list[Answer]]] = [
            lambda: [collect_kernel(node, scope.since, scope.until, folder, deadline)],
            lambda: [self._nvml(node, folder, deadline)],
            *(partial(self._tool, tool, node, folder, deadline) for tool in _TOOLS),
            lambda: collect_checkpoint(node, folder, self.kubelet),
        ]
        with ThreadPoolExecutor(len(jobs), "workbench-node") as pool:
            answers = [answer for future in [pool.submit(job) for job in jobs] for answer in _result(future)]
        if not scope.nodes:
            answers.append(Answer("smi", "ok", f"the job's nodes are not known: {node} is taken for one, since it has GPUs"))
        return answers

    def _seconds(self, deadline: Deadline) -> float:
        return min(_MOST, max(0.5, deadline.left() - _RESERVE))

    def _nvml(self, node: str, folder: Folder, deadline: Deadline) -> Answer:
        name = f"smi/{_safe(node)}-nvml.json"
        if folder.has(name):
            return Answer("smi", "ok", "NVML was read before", file=name)
        document = read_nvml(self._seconds(deadline), node=node, env=self.env)
        folder.write(name, json.dumps(document, indent=1).encode() + b"\n")
        status, detail, hint = _said(document)
        return Answer("smi", status, detail, hint, "NVML", name, len(document["gpus"]), document["seconds"])

    def _tool(self, tool: str, node: str, folder: Folder, deadline: Deadline) -> list[Answer]:
        argv, end = _TOOLS[tool]
        name = f"smi/{_safe(node)}-{end}"
        if folder.has(name):
            return [Answer("smi", "ok", f"{tool} was asked before", file=name)]
        ran = run(argv, seconds=self._seconds(deadline), limit=8 << 20, env=self.env)
        if ran.ending == "missing" and ran.about:
            # NVML says the same, and more; only both together would be missed
            return []
        if ran.out.strip() and not (ran.code == 9 and not _gpus_here()):  # a message of failure is evidence as well
            folder.write(name, ran.out + ran.err)
            status = "ok" if ran.ok else "partial"
            return [
                Answer(
                    "smi",
                    status,
                    f"{ran.asked} {ran.sentence}",
                    _tool_hint(ran),
                    ran.asked,
                    name,
                    ran.out.count(b"\n"),
                    ran.seconds,
                )
            ]
        status = "missing" if ran.ok or ran.code == 9 else "failed"
        return [Answer("smi", status, f"{ran.asked} {ran.sentence}", _tool_hint(ran), ran.asked, "", 0, ran.seconds)]

    # ---- examine

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return what this machine shows of itself: NVML and the GPUs that the kernel lists, the tools, the kernel log."""
        jobs: list[Callable[[], list[Reach]]] = [lambda: self._see_gpus(deadline), lambda: self._see_log(deadline)]
        jobs += [partial(self._see_tool, tool, deadline) for tool in _TOOLS]
        with ThreadPoolExecutor(len(jobs), "workbench-node") as pool:
            futures = [pool.submit(job) for job in jobs]
            found: list[Reach] = []
            for future in futures:
                try:
                    found += future.result()
                except (SourceError, OSError) as error:
                    found.append(_reach("node", "unknown", f"not looked at: {error}", getattr(error, "hint", "")))
        if not _gpus_here():  # what a machine without GPUs lacks is nothing to mend
            found = [one for one in found if not (one.item.startswith("tool") and one.status == "warning")]
        return found

    def _see_gpus(self, deadline: Deadline) -> list[Reach]:
        document = read_nvml(self._seconds(deadline), node=self.names[0], env=self.env)
        status, detail, hint = _said(document)
        code = (document["error"] or {}).get("code")
        bus = document["bus"]
        if document["ending"] == "init" and code in _NO_GPU and not bus:
            return [_reach("gpu", "ok", "this machine has no NVIDIA GPU: the job's nodes are where its GPUs can be asked")]
        worst = {"ok": "ok", "partial": "warning", "missing": "critical", "failed": "critical", "stale": "warning"}[status]
        found = [_reach("gpu", worst, detail, hint, () if status == "ok" else _GPU_CLASSES)]
        off = [str(gpu["index"]) for gpu in document["gpus"] if gpu.get("persistence") is False]
        if off:
            fix = "systemctl enable --now nvidia-persistenced"
            found.append(
                _reach("persistence", "warning", f"off on GPU {', '.join(off)}: every question loads the driver anew", fix)
            )
        ecc = [str(gpu["index"]) for gpu in document["gpus"] if (gpu.get("ecc.mode") or {}).get("current") is False]
        if ecc:
            fix = "nvidia-smi -e 1, and a reset of the GPU"
            found.append(
                _reach(
                    "ecc", "warning", f"off on GPU {', '.join(ecc)}: memory errors are not seen", fix, ("hardware/gpu-memory",)
                )
            )
        return found

    def _see_log(self, deadline: Deadline) -> list[Reach]:
        readings: list[Reading] = []
        now = time.time()
        try:
            readings.extend(places(now - 60, now, deadline))
        except SourceError:  # the deadline: what was asked until then counts
            pass
        words = "; ".join(f"{reading.place} {reading.status}: {reading.detail}" for reading in readings)
        if any(reading.usable and reading.place in ("journal", "files") for reading in readings):
            return [_reach("kernel log", "ok", words)]
        if any(reading.usable for reading in readings):
            lack = f"only the ring buffer, which a reboot empties: {words}"
            return [_reach("kernel log", "warning", lack, "mkdir /var/log/journal && systemctl restart systemd-journald")]
        return [
            _reach(
                "kernel log", "critical" if readings else "unknown", words, "usermod -aG systemd-journal USER", _KERNEL_CLASSES
            )
        ]

    def _see_tool(self, tool: str, deadline: Deadline) -> list[Reach]:
        ran = run((tool, "--version"), seconds=min(5.0, self._seconds(deadline)), env=self.env)
        if ran.ending == "missing":
            lack = "nvidia-smi is not here" if tool == "nvidia-smi" else "dcgmi is not here: DCGM's health watches are not asked"
            fix = "install the driver's nvidia-utils" if tool == "nvidia-smi" else "install datacenter-gpu-manager"
            return [_reach(f"tool {tool}", "warning", lack, fix)]
        version = re.search(r"\d+\.\d+(?:\.\d+)*", ran.text)
        if ran.ok:
            return [_reach(f"tool {tool}", "ok", f"{tool} {version[0] if version else 'is here'}")]
        return [_reach(f"tool {tool}", "unknown", f"{tool} --version {ran.sentence}", "the driver may hang: see the kernel log")]


def _result(future: Future[list[Answer]]) -> list[Answer]:
    try:
        return future.result()
    except FolderFull as error:
        return [Answer("smi", "failed", f"not written: {error}", error.hint)]
    except (SourceError, OSError) as error:
        return [Answer("smi", "failed", f"not asked: {error}", getattr(error, "hint", ""))]


def _reach(item: str, status: str, detail: str, fix: str = "", blind: tuple[str, ...] = ()) -> Reach:
    return Reach("node", item, status, detail, fix, blind)


def _safe(node: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", node)


def _gpus_here() -> bool:
    """Whether the kernel or its driver lists an NVIDIA GPU; names are read, no device is opened."""
    driver = "/proc/driver/nvidia/gpus"
    if os.path.isdir(driver) and os.listdir(driver):
        return True
    root = "/sys/bus/pci/devices"
    for address in os.listdir(root) if os.path.isdir(root) else ():
        try:
            with open(f"{root}/{address}/vendor") as vendor, open(f"{root}/{address}/class") as kind:
                if vendor.read().strip() == "0x10de" and kind.read().startswith("0x03"):
                    return True
        except OSError:
            continue
    return False


def _said(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return status, one sentence and the way out of what NVML said."""
    ending, bus, gpus = document["ending"], document["bus"], document["gpus"]
    error = (document["error"] or {}).get("error") or ""
    code = (document["error"] or {}).get("code")
    if ending == "hang":
        index = (document["hung"] or {}).get("gpu")
        where = f" of GPU {index}" if index is not None else ""
        return (
            "partial" if gpus else "failed",
            f"the driver did not answer: {error}{where}",
            "the kernel log tells why; reboot the node",
        )
    if ending == "init":
        if code in _NO_GPU and not bus:
            return "missing", f"NVML: {error}, and the kernel lists no NVIDIA GPU here", ""
        hints = {9: "modprobe nvidia, and the kernel log", 12: "install the driver's libnvidia-compute", 18: "reboot the node"}
        return "failed", f"NVML: {error}, with {len(bus)} GPUs on the bus", hints.get(code or 0, "nvidia-smi may say more")
    if ending != "whole":
        hint = "pip install nvidia-ml-py" if ending == "no-pynvml" else ""
        return "partial" if gpus else "failed", f"NVML was not read to its end ({ending}): {error}", hint
    broken = [str(gpu["index"]) for gpu in gpus if any(why.get("code") in (15, 16, 999) for why in gpu["why_not"].values())]
    versions = f"driver {document.get('driver')}, CUDA {document.get('cuda')}"
    if broken:
        return "partial", f"{len(gpus)} GPUs, {versions}; GPU {', '.join(broken)} did not answer all questions", ""
    if document["why_not"]:
        return "partial", f"NVML did not tell {', '.join(document['why_not'])}", "nvidia-smi may say more"
    if bus and len(bus) > len(gpus):
        return (
            "partial",
            f"NVML knows {len(gpus)} GPUs, the bus has {len(bus)}",
            "nvidia-smi and the kernel log tell which is lost",
        )
    return "ok" if gpus else "missing", f"{len(gpus)} GPUs, {versions}", ""


def _tool_hint(ran: Ran) -> str:
    if ran.ending == "time-out":
        return "the driver may hang: see the kernel log"
    return "" if ran.ok else "its own words are in the folder"
