"""
Turn a Kubernetes node into a `NodeState`: who restricted it, its pool, zone, GPUs and environment.

Which labels tell what is the table ``catalog/kubernetes_node_facts.csv``; how other tools show that they hold a node is
``catalog/kubernetes_node_holders.csv``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.catalog import table
from workbench.health.publish import BOOT as CHECKED_BOOT
from workbench.health.publish import LABEL as FIT
from workbench.health.publish import OWNER as FIT_BY
from workbench.parse.kubernetes_reasons import epoch
from workbench.remediation.executors.kubernetes.marks import (
    EXCLUDES,
    EXPIRES,
    MANAGER,
    OP,
    OWNED_BY,
    PREFIX,
    REASON,
    RESTRICTING,
    SINCE,
    annotations_of,
    labels_of,
    manager_of,
    marks_of,
    taints_of,
)
from workbench.remediation.model import OWNER, NodeState, Work

__all__ = ["node_state", "restriction"]

_AWAY = (":NoSchedule", ":NoExecute")
_SOMEBODY = "somebody"


@dataclass(frozen=True, slots=True)
class Restriction:
    """Who keeps work away from a node; `owner` is empty when nobody does."""

    owner: str = ""
    op: str = ""
    reason: str = ""
    since: float | None = None
    expires: float | None = None
    schedulable: bool = True


def restriction(node: Mapping[str, Any]) -> Restriction:
    """
    Return who restricted a node.

    Another tool's sign counts more than our own: a node that both hold is the other's. A cordon is ours only when our mark says so and
    the API server says that we set the field; whoever lifted it and set it again by hand owns it.
    """
    notes, marks, taints = annotations_of(node), marks_of(node), taints_of(node)
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    manager, when = manager_of(node, "spec", "unschedulable")
    mine = [marks[verb] for verb in RESTRICTING if verb in marks and marks[verb].op]
    our_cordon = cordoned and manager == MANAGER and any(one.change.unschedulable for one in mine)
    our_taints = [
        name for one in mine for name, (_, after) in one.change.taints.items() if after is not None and taints.get(name) == after
    ]
    away = [name for name in our_taints if name.endswith(_AWAY)]
    if held := next(_holders(node), None):
        return Restriction(held[0], reason=held[1], since=when if cordoned else None, schedulable=False)
    if cordoned and not our_cordon:
        if manager == MANAGER:
            return Restriction(_SOMEBODY, reason="our cordon, whose marks somebody removed", since=when, schedulable=False)
        return Restriction(manager or _SOMEBODY, reason=notes.get(REASON, "") if not mine else "", since=when, schedulable=False)
    if our_cordon or away:
        owner = notes.get(OWNED_BY, OWNER)  # who writes another name there takes it over
        return Restriction(
            owner,
            (notes.get(OP) or mine[0].op) if owner == OWNER else "",
            notes.get(REASON, ""),
            epoch(notes.get(SINCE)) or mine[0].at,
            epoch(notes.get(EXPIRES)),
            False,
        )
    return Restriction()


def _holders(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (who, what it means) for each sign of another tool that holds the node."""
    places = {
        "label": labels_of(node),
        "annotation": annotations_of(node),
        "taint": {name.rpartition(":")[0]: value for name, value in taints_of(node).items()},
    }
    for row in table("kubernetes_node_holders"):
        start = row["key"].removesuffix("*") if row["key"].endswith("*") else ""
        for key, value in places[row["where"]].items():
            if (key == row["key"] or (start and key.startswith(start))) and re.search(row["pattern"], value):
                yield row["holder"], f"{row['where']} {key}: {row['meaning']}"


def node_state(
    node: Mapping[str, Any], work: tuple[Work, ...] = (), *, claim: str = "", booted: float | None = None
) -> NodeState:
    """
    Return a node as its scheduler sees it.

    Parameters
    ----------
    node : mapping
        The object as the API server has it, with ``managedFields``.
    work : tuple of Work
        What runs there.
    claim : str
        What stands for its machine with the provider, as far as known.
    booted : float, optional
        When it came up, seconds since the epoch, when somebody told: the object itself does not say.
    """
    meta, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    held = restriction(node)
    conditions = {str(row.get("type")): str(row.get("status")) for row in status.get("conditions") or []}
    facts = _facts(node)
    sizes = [int(value) for value in facts.get("gpus", [])]
    return NodeState(
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        boot=str((status.get("nodeInfo") or {}).get("bootID") or ""),
        booted=booted,
        ready={"True": True, "False": False}.get(conditions.get("Ready", ""), None if "Ready" not in conditions else False),
        schedulable=held.schedulable and not spec.get("unschedulable"),
        owner=held.owner,
        op=held.op,
        reason=held.reason,
        restricted=held.since,
        expires=held.expires,
        marks=_marks(node),
        pool=_first(facts, "pool"),
        zone=_first(facts, "zone"),
        sku=_first(facts, "sku"),
        environment=_first(facts, "environment"),
        gpus=max(sizes, default=0),
        claim=claim,
        provider=str(spec.get("providerID") or ""),
        version=str(meta.get("resourceVersion") or ""),
        conditions=tuple(
            {str(key): str(value) for key, value in one.items()}
            for one in status.get("conditions") or []
            if str(one.get("type", "")).startswith("Workbench")
        ),
        checked_boot=annotations_of(node).get(CHECKED_BOOT, ""),
        work=work,
    )


def _facts(node: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what the catalog's labels tell: fact → values, the most telling first."""
    places: dict[str, Mapping[str, Any]] = {
        "label": labels_of(node),
        "annotation": annotations_of(node),
        "capacity": (node.get("status") or {}).get("capacity") or {},
        "provider": {"": str((node.get("spec") or {}).get("providerID") or "")},
    }
    found: dict[str, list[str]] = {}
    for row in table("kubernetes_node_facts"):
        value = str(places[row["where"]].get(row["key"]) or "")
        if value and re.search(row["pattern"], value):
            found.setdefault(row["fact"], []).append(row["value"] or value)
    return found


def _first(facts: Mapping[str, list[str]], fact: str) -> str:
    return facts.get(fact, [""])[0]


def _marks(node: Mapping[str, Any]) -> dict[str, str]:
    """Return what of ours is on a node, but for what ``workbench check`` shows there."""
    found = {**annotations_of(node), **labels_of(node), **taints_of(node)}
    return {
        key: value
        for key, value in found.items()
        if key.startswith((PREFIX, EXCLUDES)) and key not in (FIT, FIT_BY, CHECKED_BOOT)
    }
