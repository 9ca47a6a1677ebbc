"""
Turn what we change on a node into marks that stand on the node itself, and a node with such marks back into what we changed.

A mark is the annotation ``gpu-workbench/did-VERB``: JSON with the action's id and, for each field, what it was before and what it is
after. So a controller that has lost its journal sees what is its own, and an undo can tell what somebody has changed since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from workbench.parse.kubernetes_reasons import epoch

__all__ = [
    "EXCLUDES",
    "EXPIRES",
    "LAST",
    "MANAGER",
    "OP",
    "OWNED_BY",
    "PREFIX",
    "REASON",
    "RESTRICTING",
    "SINCE",
    "Change",
    "Mark",
    "annotations_of",
    "did",
    "labels_of",
    "manager_of",
    "mark_of",
    "marks_of",
    "stamp",
    "taints_of",
]

PREFIX = "gpu-workbench/"
EXCLUDES = "exclude.gpu-workbench/"  # label of a node that a job's retries leave out; the job's name follows
OWNED_BY, OP, REASON, SINCE, EXPIRES = (PREFIX + word for word in ("owner", "op", "reason", "since", "expires"))
LAST = PREFIX + "last"  # the uncordon that took our marks away
MANAGER = "gpu-reliability-workbench"  # our field manager: by it the API server tells whose a cordon is
RESTRICTING = ("cordon", "drain", "taint", "label")  # what an uncordon takes back
_DID = PREFIX + "did-"


def stamp(moment: float) -> str:
    """Return seconds since the epoch as Kubernetes writes them."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def annotations_of(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of an object."""
    return dict((item.get("metadata") or {}).get("annotations") or {})


def labels_of(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an object."""
    return dict((item.get("metadata") or {}).get("labels") or {})


def taints_of(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the taints of a node: ``key:effect`` → value."""
    rows = (node.get("spec") or {}).get("taints") or []
    return {f"{row.get('key')}:{row.get('effect')}": str(row.get("value") or "") for row in rows}


def manager_of(node: Mapping[str, Any], *path: str) -> tuple[str, float | None]:
    """
    Return who set a field last, and when, as the API server has it in ``managedFields``; empty when it does not say.

    A cordon is a field without an owner: whoever asks sees ``unschedulable: true``. The server notes for each field which client
    changed its value last, so a cordon of ours that somebody lifted and set again by hand is not taken for ours.
    """
    for row in (node.get("metadata") or {}).get("managedFields") or []:
        part: Any = row.get("fieldsV1")
        for word in path:
            part = part.get(f"f:{word}") if isinstance(part, Mapping) else None
        if part is not None:
            return str(row.get("manager") or ""), epoch(row.get("time"))
    return "", None


@dataclass(frozen=True, slots=True)
class Change:
    """
    Fields of a node, each with what it was and what it becomes.

    Attributes
    ----------
    labels, taints : mapping
        Name (of a taint ``key:effect``) → (before, after); None where it is not there.
    unschedulable : tuple of bool or None
        None when it is not touched: also when the node was unschedulable already.
    """

    labels: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    taints: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    unschedulable: tuple[bool, bool] | None = None

    def fields(self, node: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
        """Yield (name, now, before, after) of each field."""
        labels, taints = labels_of(node), taints_of(node)
        for key, (before, after) in self.labels.items():
            yield f"label {key}", labels.get(key), before, after
        for key, (before, after) in self.taints.items():
            yield f"taint {key}", taints.get(key), before, after
        if self.unschedulable is not None:
            yield "unschedulable", bool((node.get("spec") or {}).get("unschedulable")), *self.unschedulable

    def stands(self, node: Mapping[str, Any]) -> str:
        """Return in words what of it is not (any more) as it was made; empty when all is."""
        return ", ".join(_told(name, now) for name, now, _, after in self.fields(node) if now != after)

    def foreign(self, node: Mapping[str, Any]) -> str:
        """Return in words what is neither as it was made nor as it was before: somebody has changed it since."""
        return ", ".join(_told(name, now) for name, now, before, after in self.fields(node) if now not in (before, after))

    def turned(self) -> Change:
        """Return the change that takes it back."""
        return Change(
            {key: (after, before) for key, (before, after) in self.labels.items()},
            {key: (after, before) for key, (before, after) in self.taints.items()},
            None if self.unschedulable is None else (self.unschedulable[1], self.unschedulable[0]),
        )

    def patch(self, node: Mapping[str, Any], annotations: Mapping[str, str | None]) -> dict[str, Any]:
        """
        Return the merge patch that makes the change, conditional on the node being this very object in this very version.

        The list of taints has no merge key, so it goes whole; the condition on ``resourceVersion`` keeps it from undoing another's.
        """
        meta = node.get("metadata") or {}
        metadata: dict[str, Any] = {"uid": meta.get("uid"), "resourceVersion": meta.get("resourceVersion")}
        if annotations:
            metadata["annotations"] = dict(annotations)
        if self.labels:
            metadata["labels"] = {key: after for key, (_, after) in self.labels.items()}
        spec: dict[str, Any] = {}
        if self.taints:
            rows = (node.get("spec") or {}).get("taints") or []
            kept = [row for row in rows if f"{row.get('key')}:{row.get('effect')}" not in self.taints]
            for name, (_, after) in self.taints.items():
                key, _, effect = name.rpartition(":")
                if after is not None:
                    kept.append({"key": key, "effect": effect, **({"value": after} if after else {})})
            spec["taints"] = kept
        if self.unschedulable is not None:
            spec["unschedulable"] = self.unschedulable[1] or None
        return {"metadata": metadata, **({"spec": spec} if spec else {})}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        made: dict[str, Any] = {}
        for name in ("labels", "taints"):
            if rows := getattr(self, name):
                made[name] = {key: list(pair) for key, pair in rows.items()}
        if self.unschedulable is not None:
            made["unschedulable"] = list(self.unschedulable)
        return made

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Change:
        """Return the change that `to_dict` gave; raises `ValueError` when it is none."""
        try:
            rows = [
                {str(key): (_text(pair[0]), _text(pair[1])) for key, pair in dict(value.get(name) or {}).items()}
                for name in ("labels", "taints")
            ]
            pair = value.get("unschedulable")
            return cls(rows[0], rows[1], None if pair is None else (bool(pair[0]), bool(pair[1])))
        except (TypeError, IndexError, KeyError) as error:
            raise ValueError(f"no change: {error}") from None


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands on a node of one action: its id, when, and what it changed; `more` is what else the verb keeps there."""

    op: str
    at: float | None = None
    change: Change = field(default_factory=Change)
    more: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return it as the annotation has it."""
        at = {} if self.at is None else {"at": stamp(self.at)}
        return json.dumps({"op": self.op, **at, **self.change.to_dict(), **self.more}, separators=(",", ":"), ensure_ascii=False)


def did(verb: str) -> str:
    """Return the name of the annotation that a verb leaves."""
    return _DID + verb


def marks_of(node: Mapping[str, Any]) -> dict[str, Mark]:
    """Return our marks by verb; one that cannot be read (somebody edited it) has no op, so it is nobody's action."""
    found: dict[str, Mark] = {}
    for key, text in annotations_of(node).items():
        if key.startswith(_DID):
            try:
                value = json.loads(text)
                more = {name: one for name, one in value.items() if name not in ("op", "at", "labels", "taints", "unschedulable")}
                found[key.removeprefix(_DID)] = Mark(str(value["op"]), epoch(value.get("at")), Change.of(value), more)
            except (ValueError, TypeError, AttributeError, KeyError):
                found[key.removeprefix(_DID)] = Mark("")
    return found


def mark_of(node: Mapping[str, Any], verb: str) -> Mark | None:
    """Return the mark of one verb."""
    return marks_of(node).get(verb)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _told(name: str, now: Any) -> str:
    return f"{name} is {'not there' if now is None else now}"
