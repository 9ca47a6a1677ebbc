"""Turn the GPUs of a node into the list that is kept between boots, and two such lists into what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.parse.gpu_state import NodeGpus

__all__ = ["NAME", "changes", "inventory"]

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
