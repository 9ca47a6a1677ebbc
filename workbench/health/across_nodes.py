"""Turn the findings of several nodes of one job into what differs between them: the minority is named, as it is what must change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.catalog.findings import finding_row
from workbench.health.finding import Finding

__all__ = ["compare"]

_CHECK = "versions"
# CUDA and NVML's library follow the driver: one difference is one finding
_FOLLOWS = {"cuda": "driver", "libnvidia-ml": "driver"}


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    versions: Mapping[str, frozenset[str]]


def compare(documents: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """
    Compare the versions of a job's nodes.

    Parameters
    ----------
    documents : iterable of mapping
        What ``workbench check -o json`` printed on each node (schema ``workbench.findings/1``).

    Returns
    -------
    list of Finding
        One for each node and thing of which it has another version than most; ``unknown`` for a node that did not tell its versions; one
        ``ok`` when all agree. With as many nodes on either side, all are named.
    """
    nodes, findings = [], []
    for document in documents:
        name = str(document.get("node") or "?")
        told = _told(document)
        if not told:
            summary = "its versions are not known, so they cannot be compared with those of the job's other nodes"
            findings.append(_finding("unknown", "unread", summary, name, ()))
        else:
            nodes.append(_Node(name, told))
    keys = sorted({key for node in nodes for key in node.versions})
    different = set()
    for key in sorted(keys, key=lambda key: key in _FOLLOWS):
        values = Counter(node.versions[key] for node in nodes if key in node.versions)
        if len(values) < 2:
            continue
        different.add(key)
        if _FOLLOWS.get(key) in different:
            continue
        (first, most), (_, second) = values.most_common(2)
        for node in nodes:
            mine = node.versions.get(key)
            if mine is None or (mine == first and most > second):
                continue
            others = ", ".join(f"{'/'.join(sorted(value))} on {count}" for value, count in values.most_common() if value != mine)
            summary = f"{key} {'/'.join(sorted(mine))} here, {others} of the job's nodes"
            code = "versions-differ-across-nodes" if key in ("driver", *_FOLLOWS) else "firmware-differs-across-nodes"
            findings.append(_finding("", code, summary, node.name, (f"{key} {'/'.join(sorted(mine))}",)))
    if not findings:
        status = "ok" if nodes else "unknown"
        summary = f"{len(nodes)} nodes have the same versions" if nodes else "no node told its versions"
        findings.append(_finding(status, "" if nodes else "unread", summary, "", ()))
    return findings


def _told(document: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for one in document.get("findings") or ():
        if not isinstance(one, Mapping) or one.get("check") != _CHECK or one.get("status") != "ok":
            continue
        for line in one.get("evidence") or ():
            key, _, version = str(line).rpartition(" ")
            if key and version:
                found.setdefault(key.rstrip(":"), set()).add(version)
    return {key: frozenset(values) for key, values in found.items()}


def _finding(status: str, code: str, summary: str, node: str, evidence: tuple[str, ...]) -> Finding:
    row = finding_row(code) if code else None
    return Finding(
        _CHECK,
        status or (row.status if row else "ok"),
        summary,
        code,
        node,
        cls=row.cls if row else "",
        action=row.action if row else "none",
        evidence=evidence,
        path="workbench check -o json",
    )
