"""Turn a verdict (its JSON form) into the phrases that all reports share: where, when, who is a victim, what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.report.text import clock, duration, fold, percent, plural

__all__ = [
    "at_fault",
    "blind",
    "confidence",
    "degraded",
    "entity",
    "gpu",
    "grouped",
    "lacking",
    "location",
    "meaning",
    "other",
    "others",
    "place",
    "skews",
    "stamp",
    "todo",
    "unseen",
    "victims",
    "when",
    "where",
]

_RETRY = {
    "same-nodes": "Retry on the same nodes.",
    "exclude-node": "Retry without {node}.",
    "fix-first": "Do not retry before the fix: it would fail again.",
}
_REPAIR = {
    "none": "No repair of the nodes is called for.",
    "restart-task": "Restart the task; the nodes need no repair.",
    "reset-gpu": "Reset {gpu} of {node} once nothing runs on it.",
    "reboot-node": "Drain and reboot {node}.",
    "drain": "Drain {node} and look at it before it takes work again.",
    "replace-node": "Drain {node} and have it repaired or replaced.",
    "fix-user-code": "Hand it to the job's owner: the fix is in the job's code, data or configuration.",
    "fix-platform": "Hand it to the platform's team: the fix is in the platform.",
}
_FAULT = {
    "gpu": "the GPU",
    "node": "the node",
    "rank": "this rank's code or data",
    "job": "the job as a whole (its code or configuration)",
    "platform": "the platform, outside the nodes",
}


def meaning(cls: str) -> str:
    """Return what belongs in a class, in a few words."""
    from workbench.model import CLASSES

    return CLASSES.get(cls, "")


def confidence(document: Mapping[str, Any]) -> str:
    """Return the confidence as a percentage; for `unknown` it would be a number about nothing."""
    return "" if document.get("class") == "unknown" else percent(document.get("confidence"))


def gpu(value: Mapping[str, Any] | None, *, short: bool = False) -> str:
    """Return a GPU's names: `GPU 3 (0000:3b:00.0, GPU-8f1c0a52-…)`; `short` drops the UUID where an address says the same."""
    if not value:
        return ""
    index, uuid, pci = value.get("index"), value.get("uuid"), value.get("pci")
    if short and uuid and (pci or index is not None):
        uuid = None
        if not pci:
            return f"GPU {index}"
    identities = ", ".join(str(part) for part in (pci, uuid) if part)
    if index is not None:
        return f"GPU {index} ({identities})" if identities else f"GPU {index} (index only)"
    return f"GPU {identities}" if identities else ""


def where(document: Mapping[str, Any]) -> str:
    """Return where it began: node, GPU, rank; says so when the evidence names none."""
    culprit = document.get("culprit") or {}
    parts = [gpu(culprit.get("gpu"))]
    if culprit.get("rank") is not None:
        parts.insert(0, f"rank {culprit['rank']}")
    on_node = ", ".join(part for part in parts if part)
    node = culprit.get("node")
    if node:
        return f"{node}: {on_node}" if on_node else f"{node}"
    if on_node:
        return f"{on_node}, node not known"
    return "" if document.get("cause") == "none" else "no rank, node or GPU can be named"


def when(document: Mapping[str, Any]) -> str:
    """Return when the root cause was first seen, and in which attempt."""
    if not document.get("time"):
        return ""
    attempt = document.get("attempt")
    return clock(document["time"]) + (f", attempt {attempt}" if attempt is not None else "")


def at_fault(document: Mapping[str, Any]) -> str:
    """Return which of the places named is to blame."""
    return _FAULT.get(str((document.get("culprit") or {}).get("at_fault")), "")


def todo(document: Mapping[str, Any]) -> list[str]:
    """Return what to do, in order: retry advice, repair, then the verdict's own next steps."""
    culprit = document.get("culprit") or {}
    words = {"node": culprit.get("node") or "the node", "gpu": gpu(culprit.get("gpu"), short=True) or "the GPU"}
    steps = []
    if retry := document.get("retry"):
        steps.append(_RETRY.get(retry, f"Retry: {retry}.").format_map(words))
    repair = document.get("remediation")
    if repair and not (repair == "none" and document.get("next_steps")):
        steps.append(_REPAIR.get(repair, f"Repair: {repair}.").format_map(words))
    return steps + [str(step) for step in document.get("next_steps") or []]


def stamp(event: Mapping[str, Any], head: str | None = None) -> str:
    """Return an event's time; without its date when that is the date of `head`, the time on top of the report."""
    when = event.get("time")
    if not when:
        return "no time"
    return str(when)[11:] if head and str(when)[:10] == head[:10] else clock(str(when))


def grouped(events: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """
    Return each first event of its kind with how many more like it there are, in the order of the first ones.

    Causes are of one kind on the same rank and GPU only, since which of them failed is the question.
    """
    kinds: dict[tuple[Any, ...], tuple[Mapping[str, Any], int]] = {}
    for event in events:
        device = event.get("gpu") or {}
        key: tuple[Any, ...] = (event.get("role"), event.get("signature"))
        if event.get("role") == "cause":
            key += (event.get("node"), event.get("rank"), *map(device.get, ("index", "uuid", "pci")))
        first, more = kinds.get(key, (event, -1))
        kinds[key] = (first, more + 1)
    return list(kinds.values())


def location(event: Mapping[str, Any]) -> str:
    """Return `file:line` of an event, as editors and grep write it."""
    if not event.get("file"):
        return str(event.get("source") or "")
    return f"{event['file']}:{event['line']}" if event.get("line") is not None else str(event["file"])


def entity(event: Mapping[str, Any]) -> str:
    """Return on what an event was seen."""
    parts = [
        f"rank {event['rank']}" if event.get("rank") is not None else "",
        str(event.get("node") or ""),
        gpu(event.get("gpu"), short=True),
    ]
    return " ".join(part for part in parts if part)


def victims(document: Mapping[str, Any]) -> list[str]:
    """Return victims folded by what stopped them: `ranks 0-15,24-31 on 4 nodes: connection closed (since …)`."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for victim in document.get("victims") or []:
        groups[str(victim.get("by") or "not known")].append(victim)
    lines = []
    for by, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        ranks = [int(victim["rank"]) for victim in members if victim.get("rank") is not None]
        nodes = sorted({str(victim["node"]) for victim in members if victim.get("node")})
        who = ("rank " if len(set(ranks)) == 1 else "ranks ") + fold(ranks) if ranks else ""
        at = nodes[0] if len(nodes) == 1 else plural(len(nodes), "node") if nodes else ""
        subject = " on ".join(part for part in (who, at) if part) or plural(len(members), "process")
        since = min((str(victim["since"]) for victim in members if victim.get("since")), default="")
        lines.append(f"{subject}: {by}" + (f" (since {since[11:]})" if since else ""))
    return lines


def others(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the hypotheses that lost, best first."""
    rows = [row for row in document.get("hypotheses") or [] if row.get("why_not") or row.get("class") != document.get("class")]
    return sorted(rows, key=lambda row: -(row.get("confidence") or 0.0))


def other(row: Mapping[str, Any]) -> str:
    """Return one losing hypothesis with why it lost."""
    at = place(row)
    return (
        f"{row['class']} {percent(row.get('confidence'))}"
        + (f" ({at})" if at else "")
        + (f": {row['why_not']}" if row.get("why_not") else "")
    )


def place(row: Mapping[str, Any]) -> str:
    """Return the node, GPU and rank of a row, as far as it names them."""
    rank = f"rank {row['rank']}" if row.get("rank") is not None else ""
    return ", ".join(part for part in (str(row.get("node") or ""), gpu(row.get("gpu"), short=True), rank) if part)


def blind(row: Mapping[str, Any]) -> str:
    """Return the classes that a source's absence hides; many are counted instead of listed."""
    classes = [str(name) for name in row.get("blind_to") or []]
    return ", ".join(classes) if len(classes) <= 6 else f"{', '.join(classes[:4])} and {len(classes) - 4} more"


def unseen(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (status, text) of what could not be seen whole; sources with the same trouble in one row."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in document["coverage"]:
        if row["status"] != "ok":
            alike[str(row["status"]), str(row["detail"])].append(row)
    rows = []
    for (status, detail), members in alike.items():
        classes = list(dict.fromkeys(str(name) for row in members for name in row["blind_to"]))
        hidden = blind({"blind_to": classes})
        text = ", ".join(str(row["source"]) for row in members) + (f": {detail}" if detail else "")
        rows.append((status, text + (f" (blind to {hidden})" if hidden else "")))
    return rows


def lacking(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the coverage rows that are not whole; a job has one scheduler, so the other one is not missing when that told."""
    status = {str(row["source"]): row["status"] for row in document["coverage"]}
    other = {
        name for name, own in (("kubernetes", "slurm"), ("slurm", "kubernetes"))
        if status.get(name) == "missing" and status.get(own) in ("ok", "partial")
    }  # fmt: skip
    return [row for row in document["coverage"] if row["status"] != "ok" and row["source"] not in other]


def degraded(row: Mapping[str, Any]) -> str:
    """Return one slow entity with since when and by how much."""
    slow = f"{row['slowdown']:.2f} times slower" if isinstance(row.get("slowdown"), int | float) else "slow"
    since = f" since {clock(row['since'])}" if row.get("since") else ""
    why = str(row.get("why") or row.get("metric") or row.get("reason") or "")
    return f"{place(row) or 'the job'}: {slow}{since}" + (f" ({why})" if why else "")


def skews(document: Mapping[str, Any]) -> str:
    """Return the clock corrections worth telling (a tenth of a second and more)."""
    rows = [(node, ahead) for node, ahead in (document.get("clock_skew") or {}).items() if ahead and abs(ahead) >= 0.1]
    shown = [
        f"{node} {duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
        for node, ahead in sorted(rows, key=lambda row: -abs(row[1]))[:8]
    ]
    return ", ".join(shown) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
