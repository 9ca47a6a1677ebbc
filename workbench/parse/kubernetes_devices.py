"""Turn what says which devices a pod was given (claims, device slices, annotations, the kubelet's checkpoint) into GPUs by UUID or index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from workbench.catalog import table
from workbench.model import Gpu, Parsed, Problem
from workbench.parse import ids

__all__ = ["annotated", "parse_checkpoint", "parse_claim", "parse_slice", "plugin_devices", "pod_claims"]

_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# keys of plugins that no row of the table knows
_DEVICE_NOTE = re.compile(r"gpu|device|nvidia|uuid", re.IGNORECASE)
_MOST = 1024  # devices of one pod


@lru_cache(maxsize=1)
def _keys() -> dict[str, str]:
    return {row["key"]: row["form"] for row in table("device_annotations")}


@lru_cache(maxsize=1)
def _attributes() -> dict[str, str]:
    return {row["attribute"]: row["tells"] for row in table("dra_attributes")}


# ---- dynamic resource allocation


def parse_claim(item: Mapping[str, Any], part: Parsed, _: Mapping[str, str]) -> None:
    """
    Read a ResourceClaim (``resource.k8s.io``, all versions since v1alpha3): its devices, and the pods that they are reserved for.

    A pod that has ended is taken out of ``reservedFor``; the claim that was made for it still has it as its owner.
    """
    meta, status = item["metadata"], item.get("status") or {}
    pods = [
        (str(row.get("name") or ""), str(row.get("uid") or ""))
        for row in status.get("reservedFor") or []
        if row.get("resource", "pods") == "pods"
    ]
    pods += [
        (str(row.get("name") or ""), str(row.get("uid") or ""))
        for row in meta.get("ownerReferences") or []
        if row.get("kind") == "Pod"
    ]
    devices = [
        (str(row.get("driver") or ""), str(row.get("pool") or ""), str(row.get("device") or ""))
        for row in ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        if not row.get("adminAccess")  # a monitor looks at it; it was given to nobody
    ]
    part.facts.setdefault("claims", {})[f"{meta.get('namespace') or ''}/{meta['name']}"] = {
        "pods": list(dict.fromkeys(pods)),
        "devices": devices[:_MOST],
    }


def parse_slice(item: Mapping[str, Any], part: Parsed, _: Mapping[str, str]) -> None:
    """Read a ResourceSlice: UUID, PCI address and, of a MIG device, the GPU and profile, of each device of a pool."""
    spec = item["spec"]
    driver, pool = str(spec.get("driver") or ""), spec.get("pool") or {}
    found = part.facts.setdefault("devices", {})
    for device in spec.get("devices") or []:
        inner = device.get("basic") if isinstance(device.get("basic"), Mapping) else device  # v1alpha3 and v1beta1 nest them
        told: dict[str, Any] = {
            "node": spec.get("nodeName") or device.get("nodeName"),
            "generation": int(pool.get("generation") or 0),
        }
        for name, value in (inner.get("attributes") or {}).items():
            tells = _attributes().get(str(name).rsplit("/", 1)[-1])  # a bare name is in the driver's own domain
            if tells and isinstance(value, Mapping):
                said = next((str(one) for one in value.values() if one is not None), "")
                told[tells] = ids.pci(said) if tells == "pci" else said
        key = (driver, str(pool.get("name") or ""), str(device.get("name") or ""))
        if key not in found or found[key]["generation"] <= told["generation"]:
            found[key] = told


def pod_claims(item: Mapping[str, Any]) -> list[str]:
    """Return the names of the claims of a pod: named in its spec, made from a template, or made for an extended resource."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    names = [row.get("resourceClaimName") for row in spec.get("resourceClaims") or []]
    names += [row.get("resourceClaimName") for row in status.get("resourceClaimStatuses") or []]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return list(dict.fromkeys(str(name) for name in names if name))


# ---- device plugins


def annotated(notes: Mapping[str, Any], *, surely: bool = False) -> list[Gpu]:
    """
    Return the GPUs that a device plugin or scheduler wrote into a pod's annotations, in their order.

    Which keys tell it, and which only tell a wish, is the table ``catalog/device_annotations.csv``; of other keys that speak of GPUs
    the one with most UUIDs counts, unless `surely` leaves only the table's.
    """
    best: list[Gpu] = []
    for key, value in notes.items():
        form = _keys().get(str(key))
        if form == "indices":
            numbers = re.fullmatch(r"\s*\d{1,3}(?:\s*,\s*\d{1,3})*\s*", str(value))
            found = [Gpu(index=int(each)) for each in numbers[0].split(",")] if numbers else []
        elif form == "uuids" or (form is None and not surely and _DEVICE_NOTE.search(str(key)) and "use-gpu" not in str(key)):
            found = [Gpu(uuid=each) for each in dict.fromkeys(_UUID.findall(str(value)))]
        else:
            continue
        if form and found:
            return found[:_MOST]
        best = found if len(found) > len(best) else best
    return best[:_MOST]


def plugin_devices(names: Iterable[Any]) -> list[Gpu]:
    """
    Return the GPUs of device ids as NVIDIA's device plugin makes them.

    These are ``GPU-…``, ``MIG-…`` or ``MIG-GPU-…/3/0``; with time slicing or MPS several replicas ``GPU-…::2`` are one GPU.
    """
    found = (ids.uuid(re.sub(r"^MIG-(?=GPU-)", "", str(name))) for name in names)
    return [Gpu(uuid=uuid) for uuid in dict.fromkeys(each for each in found if each)][:_MOST]


def parse_checkpoint(data: Any, *, file: str) -> Parsed:
    """
    Read ``/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint``: which container was given which devices.

    Parameters
    ----------
    data : Any
        The document as parsed; one of another shape is a problem. ``DeviceIDs`` is by NUMA node since Kubernetes 1.20, before that a plain list.
    file : str
        Name of the document.

    Returns
    -------
    Parsed
        ``facts["kubelet_devices"]``: UID of the pod → its GPUs.
    """
    parsed = Parsed(facts={"kubelet_devices": {}})
    wrong = 0
    inner = data.get("Data") if isinstance(data, Mapping) else None
    entries = inner.get("PodDeviceEntries", ()) if isinstance(inner, Mapping) else ()
    if entries is None:  # a kubelet that has given nothing yet
        entries = []
    if not isinstance(entries, list):
        entries, wrong = [], 1
    for entry in entries:
        try:
            given = entry["DeviceIDs"]
            rows = list(given.values()) if isinstance(given, Mapping) else [given]
            gpus = plugin_devices(name for row in rows for name in row or [])
            uid = str(entry["PodUID"])
        except (AttributeError, KeyError, TypeError):
            wrong += 1
            continue
        if gpus:
            have = parsed.facts["kubelet_devices"].setdefault(uid, [])
            have += [gpu for gpu in gpus if gpu not in have]
    if wrong:
        parsed.problems.append(
            Problem(
                file,
                "some of the kubelet's device assignments have an unexpected shape",
                "please report the kubelet's version",
                source="kubernetes",
                status="partial",
            )
        )
    return parsed
