"""Turn the GPUs of a node into the list that is kept between boots, and two such lists into what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.health.finding import Finding
from workbench.parse.gpu_state import NodeGpus
from workbench.sources.node.kept import reference

__all__ = ["NAME", "changes", "inventory", "next_inventory", "whole"]

NAME = "gpus"  # of the state, see `workbench.health.history`


def inventory(gpus: NodeGpus, *, boot_id: str, now: float) -> dict[str, Any]:
    """
    Return what `workbench.health.history.remember` keeps: UUID, serial number, address and product of each GPU.

    Parameters
    ----------
    gpus : NodeGpus
        As they are now. Keep them only when all answer: a lost GPU has no serial number.
    boot_id : str
        Of the running kernel.
    now : float
        Seconds since the epoch.
    """
    return {
        "boot_id": boot_id,
        "time": now,
        "gpus": [
            {"uuid": state.gpu.uuid, "pci": state.gpu.pci, "serial": _serial(state.get("serial")), "name": state.product}
            for state in gpus.states
        ],
    }


def whole(findings: Sequence[Finding], gpus: NodeGpus, expected: object = None) -> bool:
    """
    Tell whether these are the GPUs that the node should have, so that later boots may be compared with them.

    All that are on the bus answer and tell their UUID. One that was here before and is not any more makes the node incomplete for as long
    as the site does not say by ``health.gpus`` that so many are right: what does not come back after a boot must not be forgotten by it.

    Parameters
    ----------
    findings : sequence of Finding
        Of a run of ``gpu-count`` and ``gpu-inventory``.
    gpus : NodeGpus
        As they are now.
    expected : number, optional
        ``health.gpus``.
    """
    count = [one.status for one in findings if one.check == "gpu-count"]
    if not gpus.states or not count or set(count) != {"ok"} or any(not one.gpu.uuid or one.lost for one in gpus.states):
        return False
    if any(one.code == "smi-index-gap" for one in findings):
        return False
    return expected == len(gpus.states) or not any(one.code == "gpu-gone" for one in findings)


def next_inventory(kept: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any] | None:
    """
    Return what to keep when the node was found whole; None when this boot's GPUs are kept already.

    The list of the boot before stays the one to compare with until the next boot, so that a swapped GPU is told of for as long as the
    node runs, not once.

    Parameters
    ----------
    kept : mapping or None
        What is there.
    now : mapping
        `inventory` of this boot.
    """
    if kept is None:
        return dict(now)
    before = reference(kept, str(now["boot_id"]))
    following = kept.get("next")
    if now["boot_id"] in (before.get("boot_id"), following.get("boot_id") if isinstance(following, Mapping) else None):
        return None
    return {"boot_id": before.get("boot_id"), "time": before.get("time"), "gpus": before["gpus"], "next": dict(now)}


def _serial(value: object) -> str | None:
    # GPUs without one say 0 or N/A
    text = str(value or "").strip()
    return text if text and text.strip("0") and text.upper() != "N/A" else None


def changes(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any], str]]:
    """
    Return (kind, GPU, sentence) for each difference.

    ``gone`` (it was here and is nowhere now), ``new`` (it was not here), ``swapped`` (another one at its address), ``moved`` (the same one
    at another address), ``serial`` (the same UUID with another serial number: one of the two is not what it seems).
    """
    old = {one["uuid"]: one for one in before if one.get("uuid")}
    new = {one["uuid"]: one for one in after if one.get("uuid")}
    places = {one.get("pci"): one for one in before if one.get("pci")}
    found: list[tuple[str, Mapping[str, Any], str]] = []
    replaced = set()
    for uuid, one in new.items():
        if uuid not in old:
            earlier = places.get(one.get("pci"))
            if earlier is not None and earlier.get("uuid") not in new:
                replaced.add(earlier.get("uuid"))
                found.append(("swapped", one, f"{uuid} is at {one.get('pci')} where {earlier.get('uuid')} was"))
            else:
                found.append(("new", one, f"{uuid} at {one.get('pci')} was not here before"))
            continue
        was = old[uuid]
        if was.get("pci") and one.get("pci") and was["pci"] != one["pci"]:
            found.append(("moved", one, f"{uuid} is at {one['pci']}, it was at {was['pci']}"))
        if was.get("serial") and one.get("serial") and was["serial"] != one["serial"]:
            found.append(("serial", one, f"{uuid} has the serial number {one['serial']}, it had {was['serial']}"))
    for uuid, one in old.items():
        if uuid not in new and uuid not in replaced:
            found.append(
                ("gone", one, f"{uuid} at {one.get('pci')} is no more here (serial number {one.get('serial') or 'not known'})")
            )
    return found
