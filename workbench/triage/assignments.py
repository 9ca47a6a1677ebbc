"""Turn what the platform says of devices given to pods into GPUs of each pod, in the order in which its processes number them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.model import Gpu
from workbench.triage.context import Context, slot

__all__ = ["Assigned", "assignments"]

Device = tuple[str, str, str]  # driver, pool, name


@dataclass(slots=True)
class Assigned:
    """
    The GPUs of one pod.

    Attributes
    ----------
    gpus : list of Gpu
        In the order of the local ranks when `ordered`.
    ordered : bool
        Whether it is known which of them is the first, the second … for a process in the pod.
    whole : bool
        Whether all devices that were given are known as GPUs.
    node : str or None
        Where the pod ran.
    """

    gpus: list[Gpu]
    ordered: bool
    whole: bool
    node: str | None = None

    def of(self, local: int | None) -> Gpu | None:
        """Return the GPU of a local rank, or None when that is not sure."""
        if len(self.gpus) == 1 and self.whole and not local:
            return self.gpus[0]
        return self.gpus[local] if self.ordered and local is not None and local < len(self.gpus) else None


@dataclass(slots=True)
class _Told:
    """What the documents of an incident say of devices, before it is put together."""

    pods: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    claims: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # namespace/name → pods and devices
    devices: dict[Device, Mapping[str, Any]] = field(default_factory=dict)
    kubelet: dict[str, list[Gpu]] = field(default_factory=dict)  # UID of the pod → GPUs
    mig: dict[str, Gpu] = field(default_factory=dict)  # UUID of a MIG device → its GPU
    pci: dict[str, str] = field(default_factory=dict)  # UUID of a GPU → address


def assignments(context: Context) -> dict[str, Assigned]:
    """
    Return pod → its GPUs, from the source that says it most surely.

    These are, in this order: the allocation of its claims, the kubelet's report in the pod's status, the kubelet's checkpoint, and the
    annotations of a device plugin. A process in a container numbers its GPUs by PCI address, whatever the order in which they were
    listed (CUDA numbers equal devices so, and NVML all), so several GPUs are ordered by address, or by index where the node's other
    sources tell it.
    """
    told = _told(context)
    found: dict[str, Assigned] = {}
    for pod, facts in told.pods.items():
        devices = _claimed(told, pod, facts)
        node = context.node(str(facts["node"])) if facts.get("node") else None
        uid = str(facts.get("uid") or "")
        gpus = [_of_device(told, device) for device in devices] or facts.get("devices") or told.kubelet.get(uid) or []
        if gpus:
            found[pod] = _ordered(context, told, gpus, node)
    return found


def _told(context: Context) -> _Told:
    told = _Told()
    for document in context.incident.documents:
        for name in ("pods", "claims", "devices"):
            more = document.facts.get(name)
            if isinstance(more, dict):
                getattr(told, name).update(more)
        for uid, gpus in (document.facts.get("kubelet_devices") or {}).items():
            told.kubelet.setdefault(uid, []).extend(gpu for gpu in gpus if gpu not in told.kubelet[uid])
    for device in told.devices.values():
        uuid, pci, parent = device.get("uuid"), device.get("pci"), device.get("parent")
        if uuid and parent:
            told.mig[uuid] = Gpu(uuid=parent, pci=pci)
        whole = parent or uuid
        if pci and whole:
            told.pci[whole] = pci
            node = context.node(device.get("node"))
            if node:
                context.unnumbered.setdefault(node, []).append(Gpu(uuid=whole, pci=pci))
    return told


def _claimed(told: _Told, pod: str, facts: Mapping[str, Any]) -> list[Device]:
    """Return the devices of a pod's claims, GPUs only as far as their driver's slices tell."""
    space, uid = str(facts.get("namespace") or ""), facts.get("uid")
    names = {f"{space}/{name}" for name in facts.get("claims") or []}
    devices: list[Device] = []
    for name, claim in told.claims.items():
        reserved = any(
            (theirs == uid if theirs and uid else name.split("/")[0] == space and whose == pod) for whose, theirs in claim["pods"]
        )
        if reserved or name in names:
            devices += [device for device in claim["devices"] if _is_gpu(told, device)]
    return list(dict.fromkeys(devices))


def _is_gpu(told: _Told, device: Device) -> bool:
    """Tell whether a device is a GPU or a part of one; a channel of a compute domain or a network port is none."""
    known = told.devices.get(device)
    return bool(known.get("uuid")) if known is not None else device[0].startswith("gpu.")


def _of_device(told: _Told, device: Device) -> Gpu | None:
    known = told.devices.get(device)
    if known is None:
        return None
    return Gpu(uuid=known.get("parent") or known.get("uuid"), pci=known.get("pci"))


def _ordered(context: Context, told: _Told, gpus: Iterable[Gpu | None], node: str | None) -> Assigned:
    known: list[Gpu] = []
    whole, count = True, 0
    for gpu in gpus:
        count += 1
        if gpu is not None and (gpu.uuid or "").startswith("MIG-"):
            gpu = told.mig.get(gpu.uuid or "")
        if gpu is None:
            whole = False
            continue
        gpu = context.identify(node, Gpu(gpu.index, gpu.uuid, gpu.pci or told.pci.get(gpu.uuid or "")))
        if gpu not in known:  # two parts of one GPU, or two replicas of it
            known.append(gpu)
    sure = whole and len(known) == count  # a process with several parts of one GPU numbers the parts
    if sure and all(gpu.pci for gpu in known):
        return Assigned(sorted(known, key=lambda gpu: slot(gpu.pci or "")), True, whole, node)
    if sure and all(gpu.index is not None for gpu in known):
        return Assigned(sorted(known, key=lambda gpu: gpu.index or 0), True, whole, node)
    return Assigned(known, False, whole, node)
