"""Turn what tools, metrics and Kubernetes say of GPUs into sightings: which UUID and serial number was in which slot of which node, and when."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.fleet.ingest.told import Told
from workbench.model import Evidence, Parsed, Placement, Series
from workbench.parse import ids

__all__ = ["of_devices", "of_evidence", "of_parsed"]

_ADDRESS = re.compile(r"[\d.]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*")


def of_parsed(parsed: Parsed, *, node: str | None, file: str, recorded: float, source: str, cluster: str = "") -> Told:
    """
    Return the GPUs that one document shows.

    Parameters
    ----------
    parsed : Parsed
        Of the output of nvidia-smi, of NVML, of metrics, or of Kubernetes objects.
    node : str, optional
        The node that the document is of, for rows that do not name one.
    file : str
    recorded : float
        When it was told, seconds since the epoch: the time of a sighting that has none of its own.
    source : str
        Who told: ``folder:NAME``, ``smi``, ``metrics``, ``kubernetes``.
    cluster : str
    """
    told, seen = Told(), _Seen(recorded)
    seen.facts(parsed.facts, node)
    seen.series(parsed.series)
    seen.placements(parsed.placements)
    seen.tell(told, file, source, cluster)
    return told


def of_evidence(evidence: Evidence, *, recorded: float, source: str, cluster: str = "") -> Told:
    """Return the GPUs that an incident's documents show; as `of_parsed`."""
    told, seen = Told(), _Seen(recorded)
    for document in evidence.documents:
        seen.facts(document.facts, document.node)
    seen.series(evidence.series)
    seen.placements(evidence.placement_records)
    seen.tell(told, evidence.name, source, cluster)
    return told


def of_devices(
    devices: Iterable[Mapping[str, Any]], *, file: str, recorded: float, source: str = "kubernetes", cluster: str = ""
) -> Told:
    """Return the GPUs of rows with ``node``, ``uuid`` and perhaps ``pci``, ``serial``, seen when they were told."""
    told, seen = Told(), _Seen(recorded)
    for one in devices:
        seen.add(one.get("uuid"), one.get("node"), one.get("pci"), one.get("serial"), (recorded,))
    seen.tell(told, file, source, cluster)
    return told


class _Seen:
    """Sightings of one document: UUID, node, slot → serial, first and last time."""

    def __init__(self, recorded: float) -> None:
        self.recorded = recorded
        self.rows: dict[tuple[str, str, str], tuple[str, float, float]] = {}
        self.placeless: set[str] = set()

    def add(self, uuid: Any, node: Any, pci: Any, serial: Any, times: Iterable[float]) -> None:
        uuid = ids.uuid(str(uuid)) if uuid else None
        if uuid is None or not uuid.startswith("GPU-"):  # a MIG device has no slot of its own
            return
        name = str(node or "")
        if not name or _ADDRESS.fullmatch(name):  # an address names the same node otherwise than others do: no place to compare
            self.placeless.add(uuid)
            return
        # NaN is the time of a sample that has none
        found = [float(one) for one in times if one == one and 0 < float(one) < 1e11] or [self.recorded]
        key = (uuid, name, ids.pci(str(pci)) or "" if pci else "")
        before = self.rows.get(key)
        known, first, last = before or ("", min(found), max(found))
        self.rows[key] = (known or str(serial or ""), min(first, *found), max(last, *found))

    def facts(self, facts: Mapping[str, Any], node: str | None) -> None:
        # nvidia-smi and NVML say when they looked; Kubernetes and a list of GPUs do not
        captured = facts.get("captured")
        times = (float(captured),) if isinstance(captured, int | float) else ()
        devices = facts.get("devices")
        rows = devices.values() if isinstance(devices, Mapping) else devices if isinstance(devices, list) else ()
        for one in rows:
            if isinstance(one, Mapping):
                self.add(one.get("uuid"), one.get("node") or node, one.get("pci"), one.get("serial"), times)
        told = {str(one.get("node") or node) for one in rows if isinstance(one, Mapping)}
        if node and told <= {node}:  # `nvidia-smi -L` tells no serial; of several nodes' output nobody knows whose GPU it is
            for gpu in facts.get("gpus") or ():
                if getattr(gpu, "uuid", None):
                    self.add(gpu.uuid, node, gpu.pci, None, times)

    def series(self, series: Iterable[Series]) -> None:
        for one in series:
            if one.gpu is None or not one.gpu.uuid:
                continue
            times = (float(one.times[0]), float(one.times[-1])) if len(one.times) else ()
            self.add(one.gpu.uuid, one.node, one.gpu.pci, one.labels.get("serial") or one.labels.get("gpu_serial"), times)

    def placements(self, placements: Iterable[Placement]) -> None:
        for one in placements:
            if one.gpu is not None and one.gpu.uuid and one.time is not None:
                self.add(one.gpu.uuid, one.node, one.gpu.pci, None, (one.time,))

    def tell(self, told: Told, file: str, source: str, cluster: str) -> None:
        slots: dict[tuple[str, str], set[str]] = {}
        for uuid, node, slot in self.rows:
            slots.setdefault((uuid, node), set()).add(slot)
        for (uuid, node, slot), (serial, first, last) in sorted(self.rows.items()):
            if not slot and len(slots[uuid, node]) > 1:
                continue  # another line of the same document says in which slot
            for moment in dict.fromkeys((first, last)):
                told.add(
                    "gpus",
                    cluster=cluster,
                    gpu_uuid=uuid,
                    serial=serial or None,
                    node=node,
                    slot=slot or None,
                    begin=moment,
                    seen=moment,
                    source=source,
                    recorded=self.recorded,
                )
        if lost := self.placeless - {uuid for uuid, _, _ in self.rows}:
            told.wrong(
                file,
                f"{len(lost)} GPUs have no node's name beside them",
                "name the node: a folder or file of its name, pdsh's prefix, the label Hostname or node",
            )
