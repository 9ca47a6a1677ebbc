"""Turn the parsed evidence of an incident into what a ticket needs besides the verdict: machine, GPU as a thing, and whom not to name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.model import Evidence

__all__ = ["gpu_facts", "machine_facts", "people", "product_of", "record_of"]

# labels with which a DCGM exporter tells facts of the device (`label` in its list of counters)
_LABELS = {
    "DCGM_FI_DRIVER_VERSION": "driver",
    "DCGM_FI_DEV_SERIAL": "serial",
    "DCGM_FI_DEV_VBIOS_VERSION": "vbios",
    "modelName": "product",
}


def people(evidence: Evidence) -> list[str]:
    """Return the accounts that the evidence names: no report tells them."""
    found = {str(one.user) for one in evidence.jobs if one.user}
    return sorted(name for name in found if len(name) > 1 and not name.isdigit() and name != "root")


def record_of(evidence: Evidence, job: Mapping[str, Any]) -> str | None:
    """Return the file in which the job's scheduler told of it; None when no file did."""
    for one in evidence.jobs:
        known = (one.id and one.id == job.get("id")) or (one.name and one.name == job.get("name"))
        if known and one.file and not one.data.get("step"):
            return one.file
    return None


def machine_facts(evidence: Evidence, node: str | None, *, before: float | None = None) -> dict[str, Any]:
    """
    Return what is known of a node as a machine: boot, kernel, driver, identity with its provider.

    Parameters
    ----------
    evidence : Evidence
    node : str or None
    before : float, optional
        The time of the fault, seconds since the epoch: the boot is the last one before it.
    """
    found: dict[str, Any] = {}
    if not node:
        return found
    for some in _facts(evidence, "nodes"):
        told = some.get(node) if isinstance(some, Mapping) else None
        if isinstance(told, Mapping):
            labels = told.get("labels") or {}
            facts = {
                "boot": told.get("boot_id"),
                "booted": told.get("boot"),
                "kernel": told.get("kernel"),
                "provider": told.get("provider"),
                "system": told.get("system_uuid"),
                "type": told.get("type"),
                "zone": told.get("zone"),
                "product": labels.get("nvidia.com/gpu.product"),
            }
            found |= {key: value for key, value in facts.items() if value is not None and key not in found}
    for document in evidence.documents:
        if document.node != node:
            continue
        boots = [time for time, *_ in document.facts.get("boots") or () if isinstance(time, (int, float))]
        if last := max((time for time in boots if before is None or time <= before), default=None):
            found.setdefault("booted", last)
        for key in ("driver", "cuda", "kernel", "dcgm"):
            if value := document.facts.get(key):
                found.setdefault(key, value)
    for series in evidence.series:
        if series.node == node and (driver := series.labels.get("DCGM_FI_DRIVER_VERSION")):
            found.setdefault("driver", driver)
            break
    return found


def gpu_facts(evidence: Evidence, node: str | None, gpu: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Return what is known of a GPU as a thing: index, UUID, address, serial number, VBIOS, product, part.

    A serial number is taken only from what names this GPU by UUID or address; by its index alone only where nothing contradicts.
    """
    found: dict[str, Any] = dict(gpu or {})
    if not gpu:
        return found
    rows = [
        row for some in _facts(evidence, "devices") for row in some if row.get("node") in (None, node)
    ]  # a file whose node nobody knows may be of this one: the GPU's identity decides
    rows += _labelled(evidence, node)
    for sure in (True, False):
        for row in rows:
            if _same(row, found, node) == ("sure" if sure else "likely"):
                found |= {key: value for key, value in row.items() if value and not found.get(key) and key in _KEPT}
    return found


def product_of(evidence: Evidence, culprit: Mapping[str, Any] | None) -> str | None:
    """Return the product of the GPUs that the incident held, as its evidence names it: the culprit's first."""
    node, gpu = (culprit or {}).get("node"), (culprit or {}).get("gpu")
    told = gpu_facts(evidence, node, gpu).get("product") or machine_facts(evidence, node).get("product")
    told = told or next((name for row in evidence.series if (name := row.labels.get("modelName"))), None)
    return str(told) if told else None


_KEPT = ("index", "uuid", "pci", "serial", "vbios", "product", "part", "inforom")


def _same(row: Mapping[str, Any], gpu: Mapping[str, Any], node: str | None) -> str:
    for key in ("uuid", "pci"):
        if row.get(key) and gpu.get(key):
            # an address is the same in every machine of a kind; only a UUID tells across nodes
            return "sure" if row[key] == gpu[key] and (key == "uuid" or row.get("node") == node) else ""
    known = row.get("index") is not None and row.get("index") == gpu.get("index") and row.get("node") == node
    return "likely" if known and node else ""


def _labelled(evidence: Evidence, node: str | None) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for series in evidence.series:
        gpu = series.gpu
        if series.node == node and gpu is not None and (gpu.uuid or gpu.pci or "") not in seen:
            seen.add(gpu.uuid or gpu.pci or "")
            yield {"node": node, **gpu.as_dict(), **{fact: series.labels.get(label) for label, fact in _LABELS.items()}}


def _facts(evidence: Evidence, name: str) -> Iterator[Any]:
    for document in evidence.documents:
        if value := document.facts.get(name):
            yield value
