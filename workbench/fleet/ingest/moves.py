"""
Turn sightings of GPUs into stretches in slots, one stretch for as long as a GPU is seen in no other place and no other GPU in its slot.

A stretch begins with the first sighting there and ends where the GPU is seen elsewhere, or another GPU in its slot; between two sightings nobody
knows when it was moved, and the later one counts. Sightings may come in any order and as often as they like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.fleet.ledger import Ledger
from workbench.parse.ids import same_node

if TYPE_CHECKING:
    from workbench.fleet.ingest.told import Told

__all__ = ["settle", "stretches"]

_ASKED = 400  # values that one question names
_Row = dict[str, Any]


def stretches(known: Iterable[Mapping[str, Any]], sightings: Iterable[Mapping[str, Any]]) -> tuple[list[_Row], list[_Row]]:
    """
    Return the stretches of one GPU, and the sightings that contradict another at the same moment and are left out.

    Parameters
    ----------
    known : iterable of mapping
        Its stretches so far (columns of the table ``gpus``; ``seen`` missing: at its begin).
    sightings : iterable of mapping
        The same columns, ``begin`` and ``seen`` equal.

    Returns
    -------
    tuple of list of dict
        Stretches in order of time; ``end`` is where the next begins, or what was told before of one that nobody has seen since.
    """
    points = [
        (float(moment), own, str(row["node"] or ""), str(row.get("slot") or ""), row)
        for own, rows in ((0, known), (1, sightings))
        for row in rows
        for moment in sorted({row["begin"], max(row["begin"], row.get("seen") or 0.0)})
    ]
    points.sort(key=lambda one: one[:4])
    runs: list[_Row] = []
    wrong: list[_Row] = []
    for moment, _, node, slot, row in points:
        last = runs[-1] if runs else None
        if last is not None and _same(last, node, slot):
            last["seen"] = max(last["seen"], moment)
            last["slot"] = last["slot"] or slot or None
            last["serial"] = last["serial"] or row.get("serial")
        elif last is not None and moment == last["begin"]:
            wrong.append(dict(row))
            continue
        else:
            fields = ("cluster", "gpu_uuid", "serial", "source")
            runs.append({**{name: row.get(name) for name in fields}, "node": node, "slot": slot or None, "begin": moment,
                         "seen": moment, "end": None, "recorded": 0.0})  # fmt: skip
        runs[-1]["recorded"] = max(runs[-1]["recorded"], float(row.get("recorded") or 0.0))
        told = row.get("end")
        runs[-1]["end"] = max(float(told), runs[-1]["end"] or 0.0) if told is not None else runs[-1]["end"]
    for one, after in zip(runs, [*runs[1:], None], strict=True):
        if after is not None:
            one["end"] = after["begin"]
        elif one["end"] is not None and one["seen"] >= one["end"]:
            one["end"] = None  # seen there since
    return runs, wrong


def _same(run: Mapping[str, Any], node: str, slot: str) -> bool:
    return same_node(run["node"], node) and (not run["slot"] or not slot or run["slot"] == slot)


def settle(ledger: Ledger, told: Told) -> int:
    """
    Make the table ``gpus`` what all sightings say together; those of `told` are replaced by the stretches that they are part of.

    Returns
    -------
    int
        Stretches that are new or changed.
    """
    rows = told.rows.get("gpus", [])
    if not rows:
        return 0
    before, after = dict[tuple[str, str], list[_Row]](), dict[tuple[str, str], list[_Row]]()
    by_gpu: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        by_gpu.setdefault((str(row.get("cluster") or ""), str(row["gpu_uuid"])), []).append(row)
    for cluster in sorted({cluster for cluster, _ in by_gpu}):
        uuids = sorted(uuid for where, uuid in by_gpu if where == cluster)
        _read(ledger, cluster, before, gpu_uuid=uuids)
        nodes = {str(one["node"]) for uuid in uuids for one in (*by_gpu[cluster, uuid], *before.get((cluster, uuid), ()))}
        _read(ledger, cluster, before, node=sorted(nodes))
        # who was in one of these nodes and went elsewhere has all its stretches here, so that none is taken for its last
        _read(ledger, cluster, before, gpu_uuid=sorted({uuid for where, uuid in before if where == cluster}))
    for key in {*before, *by_gpu}:
        after[key], wrong = stretches(before.get(key, ()), by_gpu.get(key, ()))
        for one in wrong:
            told.wrong(
                str(one.get("source") or "gpus"),
                f"{key[1]} is seen on {one['node']} and elsewhere at the same moment",
                "the sighting is left out: check the node's name",
            )
    _displace(after)
    changed = gone = 0
    for key, found in after.items():
        kept = {one["begin"] for one in found}
        gone += ledger.delete("gpus", [one for one in before.get(key, ()) if one["begin"] not in kept])
        was = {one["begin"]: one for one in before.get(key, ())}
        new = [one for one in found if any(was.get(one["begin"], {}).get(name) != value for name, value in one.items())]
        changed += ledger.put("gpus", new) if new else 0
    return changed or gone


def _read(ledger: Ledger, cluster: str, into: dict[tuple[str, str], list[_Row]], **where: list[str]) -> None:
    ((name, values),) = where.items()
    for at in range(0, len(values), _ASKED):
        asked: dict[str, Any] = {name: values[at : at + _ASKED]}
        for row in ledger.rows("gpus", cluster=cluster, **asked):
            there = into.setdefault((cluster, row["gpu_uuid"]), [])
            if all(one["begin"] != row["begin"] for one in there):
                there.append(row)


def _displace(stretches: Mapping[tuple[str, str], list[_Row]]) -> None:
    """End a stretch where another GPU is seen in its slot afterwards."""
    slots: dict[tuple[str, str, str], list[_Row]] = {}
    for (cluster, _), rows in stretches.items():
        for row in rows:
            if row["slot"]:
                slots.setdefault((cluster, row["node"], row["slot"]), []).append(row)
    for rows in slots.values():
        rows.sort(key=lambda one: (one["begin"], one["gpu_uuid"]))
        for at, row in enumerate(rows):
            later = [one["begin"] for one in rows[at + 1 :] if one["gpu_uuid"] != row["gpu_uuid"] and one["begin"] > row["seen"]]
            if later and (row["end"] is None or row["end"] > min(later)):
                row["end"] = min(later)
