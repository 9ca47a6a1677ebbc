"""
Turn a fleet's history into its lemons: nodes and GPUs that fail more often than chance, each with the reason, and the list to exclude.

`workbench.fleet.blames` makes one blame of all signs of a fault, and the failure of a job weighs 1 whatever its size: for a healthy node the
expected weight is then its hours times the fleet's rate in small and large jobs alike. Blames over hours are judged by `workbench.fleet.excess`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.fleet.blames import blames, boards_of, named, seconds_of, signal_weights, texts
from workbench.fleet.excess import Excess, excess, selected
from workbench.parse.nodeset import fold

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "Lemons", "lemons"]

# whole blames below which a unit is not listed, however short its hours: two failures in its first two jobs may have one cause that is not
# the node's (the same job started again), and are no two independent events, as the fit takes them to be
LEAST = 2.5
START = 3600.0  # seconds that a start counts as at least
FEW = 20  # units with hours: below that what is usual is not known
COLUMNS = ("unit", "kind", "node", "hours", "blames", "expected", "rate", "times", "chance", "listed", "why")


@dataclass(frozen=True)
class Lemons:
    """
    The judgement of a fleet.

    Attributes
    ----------
    units : DataFrame
        `COLUMNS`; a row a node or GPU that has hours: `hours` in jobs, `blames` (shares add up), `expected` blames of a healthy unit in so
        many hours, `rate` blames per 1,000 days after shrinkage, `times` that rate over the usual one, `chance` that it is a lemon, `listed`,
        `why` in words. Ordered by chance.
    exclude : str
        Host list of the listed nodes, and of the nodes where listed GPUs are now, as Slurm's ``--exclude`` takes it; empty when there is none.
    fits : dict
        `Excess` by kind (and product, where the fleet has several).
    problems : tuple of str
        What could not be judged, and why. A unit that is not among `units` is not cleared.
    rate : float
        The false-discovery rate asked for.
    """

    units: pd.DataFrame
    exclude: str
    fits: dict[str, Excess] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    rate: float = 0.05


class _Busy:
    """Hours that each node was in jobs, up to any moment."""

    def __init__(self, attempts: pd.DataFrame, node_states: pd.DataFrame, until: float) -> None:
        import numpy as np

        spans: dict[str, list[tuple[float, float]]] = {}
        if len(attempts):
            begins, ends = seconds_of(attempts["started"]), seconds_of(attempts["ended"])
            for cluster, names, begin, end in zip(texts(attempts, "cluster"), attempts["node_names"], begins, ends, strict=True):
                end = until if np.isnan(end) else min(end, until)
                if isinstance(names, (list, tuple, np.ndarray)) and end >= begin:
                    end = max(end, begin + START)  # a start is a risk of its own, however short the job
                    for name in names:
                        spans.setdefault(f"{cluster}/{name}" if cluster else str(name), []).append((begin, end))
        self.from_jobs = bool(spans)
        if not spans and len(node_states):  # nobody told which job ran where: time in which it could have
            begins, ends = seconds_of(node_states["begin"]), seconds_of(node_states["end"])
            names = named(texts(node_states, "cluster"), texts(node_states, "node"))
            for name, state, begin, end in zip(names, texts(node_states, "state"), begins, ends, strict=True):
                end = until if np.isnan(end) else min(end, until)
                if state == "usable" and end > begin:
                    spans.setdefault(name, []).append((begin, end))
        self.spans = {name: np.array(rows) for name, rows in spans.items()}

    def hours(self, node: str, begin: float, end: float) -> float:
        import numpy as np

        rows = self.spans.get(node)
        if rows is None or end <= begin:
            return 0.0
        return float(np.clip(np.minimum(rows[:, 1], end) - np.maximum(rows[:, 0], begin), 0.0, None).sum() / 3600.0)


def lemons(
    signals: pd.DataFrame,
    attempts: pd.DataFrame,
    node_states: pd.DataFrame,
    gpus: pd.DataFrame,
    *,
    rate: float = 0.05,
    until: float | None = None,
) -> Lemons:
    """
    Judge every node and GPU of a fleet.

    Parameters
    ----------
    signals, attempts, node_states, gpus : DataFrame
        As in `workbench.fleet.tables`; any may be empty.
    rate : float
        False-discovery rate: at most this share of the listed units is expected to be healthy.
    until : float, optional
        Epoch seconds at which what still runs is taken to end; default the latest time in the tables.

    Returns
    -------
    Lemons
    """
    import numpy as np
    import pandas as pd

    columns = [
        (attempts, "ended"),
        (attempts, "started"),
        (signals, "time"),
        (node_states, "begin"),
        (node_states, "end"),
        (gpus, "begin"),
    ]
    times = [seconds_of(frame[name]) for frame, name in columns if len(frame)]
    known = np.concatenate(times) if times else np.array([])
    known = known[np.isfinite(known)]
    end = until if until is not None else float(known.max()) if len(known) else 0.0
    faults = blames(signals, attempts, node_states, gpus)
    faults = faults[faults["time"] <= end]
    busy = _Busy(attempts, node_states, end)
    problems = (
        []
        if busy.from_jobs or not busy.spans
        else ["nobody told which nodes jobs ran on: hours are those in which a node was usable"]
    )
    homes = _homes(gpus, end)
    places = {board: spans[-1][0] for board, spans in homes.items()}
    # what a GPU did on a node that it has left is the GPU's, not the node's
    pairs = zip(faults["node"], faults["gpu"], strict=True)
    left = np.array([bool(gpu) and places.get(gpu, node) != node for node, gpu in pairs], dtype=bool)
    products = _products(node_states)
    rows = [
        {"unit": node, "kind": "node", "node": node, "hours": busy.hours(node, -np.inf, np.inf), "sku": products.get(node, "")}
        for node in sorted(busy.spans)
    ]
    for board, spans in sorted(homes.items()):
        hours = sum(busy.hours(node, begin, stop) for node, begin, stop in spans)
        rows.append({"unit": board, "kind": "gpu", "node": places[board], "hours": hours, "sku": products.get(places[board], "")})
    units = pd.DataFrame(rows, columns=["unit", "kind", "node", "hours", "sku"])
    units = units[units["hours"] > 0].reset_index(drop=True)
    grouped: dict[str, dict[str, list[dict[str, Any]]]] = {"node": {}, "gpu": {}}
    for one, gone in zip(faults.to_dict("records"), left, strict=True):
        if not gone:
            grouped["node"].setdefault(str(one["node"]), []).append({str(key): value for key, value in one.items()})
        if one["gpu"]:
            grouped["gpu"].setdefault(str(one["gpu"]), []).append({str(key): value for key, value in one.items()})
    mine = [grouped[str(kind)].get(str(unit), []) for kind, unit in zip(units["kind"], units["unit"], strict=True)]
    units["blames"] = [sum(float(fault["weight"]) for fault in own) for own in mine]
    for kind, word in (("node", "node"), ("gpu", "GPU")):
        unjudged = sorted(set(grouped[kind]) - {str(unit) for unit in units.loc[units["kind"] == kind, "unit"]} - {""})
        if unjudged:
            shown = ", ".join(unjudged[:3]) + ("" if len(unjudged) <= 3 else ", …")
            problems.append(
                f"{len(unjudged)} {word}s have signs against them and no known hours, so they cannot be judged: {shown}"
            )
    fits = _judge(units, rate, problems)
    rows_of: list[Any] = units.to_dict("records")
    units["why"] = [_why(row, own) for row, own in zip(rows_of, mine, strict=True)]
    units = units.sort_values(["chance", "blames", "unit"], ascending=[False, False, True], na_position="last", kind="stable")
    listed = sorted({str(node) for node in units.loc[units["listed"], "node"] if node})
    if len({name.rpartition("/")[0] for name in listed}) > 1:
        problems.append("listed nodes are of several clusters, which no one list can exclude: judge one cluster at a time")
        listed = []
    exclude = fold(name.rpartition("/")[2] for name in listed)
    return Lemons(units[list(COLUMNS)].reset_index(drop=True), exclude, fits, tuple(problems), rate)


def _judge(units: pd.DataFrame, rate: float, problems: list[str]) -> dict[str, Excess]:
    """Fill the columns of judgement: kinds are listed apart, products of enough units have rates of their own."""
    import numpy as np

    fits: dict[str, Excess] = {}
    for name in ("expected", "rate", "times", "chance"):
        units[name] = np.nan
    units["listed"] = False
    for kind in ("node", "gpu"):
        of_kind = units["kind"] == kind
        if not of_kind.any():
            continue
        if of_kind.sum() < FEW:
            problems.append(
                f"{of_kind.sum()} {kind}s have hours: too few to know what is usual ({FEW} are needed); none is judged"
            )
            continue
        sizes = units.loc[of_kind, "sku"].value_counts()
        own = {str(sku) for sku, size in sizes.items() if size >= FEW}
        group = units["sku"].where(units["sku"].isin(own), "")
        # a product of few nodes is judged with the largest group rather than by itself
        if (group[of_kind] == "").sum() < FEW and own:
            group = group.where(group != "", str(sizes.index[0]))
        for sku in sorted(set(group[of_kind])):
            rows = of_kind & (group == sku)
            fit = excess(units.loc[rows, "blames"].to_numpy(), units.loc[rows, "hours"].to_numpy())
            fits[f"{kind} {sku}".strip()] = fit
            units.loc[rows, "expected"] = fit.usual * units.loc[rows, "hours"]
            units.loc[rows, "rate"] = fit.rate * 24_000.0
            units.loc[rows, "times"] = fit.times
            units.loc[rows, "chance"] = fit.lemon
        enough = units.loc[of_kind, "blames"].to_numpy() >= LEAST
        units.loc[of_kind, "listed"] = selected(np.where(enough, units.loc[of_kind, "chance"].to_numpy(), 0.0), rate)
    return fits


def _homes(gpus: pd.DataFrame, until: float) -> dict[str, list[tuple[str, float, float]]]:
    """Return for each board the nodes it was on with begin and end, the latest last."""
    import numpy as np

    homes: dict[str, list[tuple[str, float, float]]] = {}
    if not len(gpus):
        return homes
    boards, nodes = boards_of(gpus), named(texts(gpus, "cluster"), texts(gpus, "node"))
    for uuid, node, begin, end in zip(
        texts(gpus, "gpu_uuid"), nodes, seconds_of(gpus["begin"]), seconds_of(gpus["end"]), strict=True
    ):
        if uuid and node:
            start = -np.inf if np.isnan(begin) else begin
            homes.setdefault(boards[uuid], []).append((node, start, until if np.isnan(end) else min(end, until)))
    return {board: sorted(spans, key=lambda span: span[1]) for board, spans in homes.items()}


def _products(node_states: pd.DataFrame) -> dict[str, str]:
    if not len(node_states) or "sku" not in node_states:
        return {}
    names = named(texts(node_states, "cluster"), texts(node_states, "node"))
    return {name: sku for name, sku in zip(names, texts(node_states, "sku"), strict=True) if sku}


def _why(row: dict[str, Any], faults: list[dict[str, Any]]) -> str:
    """Return the reason in words, in the order in which a person asks: how much, against what, what kind, where in it."""
    import math
    from collections import Counter
    from datetime import UTC, datetime

    if not faults:
        return f"nothing against it in {row['hours']:,.0f} hours"
    names = signal_weights()
    whole = [
        one for one in faults if one["weight"] >= 0.2
    ]  # shares of large jobs are in the sum; they are no reason by themselves
    kinds = Counter(kind for one in whole for kind in one["kinds"])
    codes = Counter(code for one in whole for code in one["codes"])
    text = f"{row['blames']:.3g} blames in {row['hours']:,.0f} hours in jobs"
    if not math.isnan(row["expected"]):
        text += f" where a healthy one has {row['expected']:.2g}; probably {row['times']:.2g} times the usual rate"
    parts = [f"{number} {names.get(kind, (0, kind))[1]}" for kind, number in kinds.most_common()]
    wide = sum(bool(one["wide"]) for one in whole)
    if wide:
        parts.append(f"{wide} of them in jobs on several nodes")
    if codes:
        parts.append("Xid " + ", ".join(f"{code} ×{number}" if number > 1 else code for code, number in codes.most_common(4)))
    boards = Counter(one["gpu"] for one in whole if one["gpu"])
    if row["kind"] == "node" and boards and boards.most_common(1)[0][1] >= max(2, len(whole) // 2):
        board, number = boards.most_common(1)[0]
        parts.append(f"{number} of {len(whole)} on GPU {board}: replace that, not the node")
    nodes = sorted({str(one["node"]) for one in whole if one["node"]})
    if row["kind"] == "gpu" and len(nodes) > 1:
        parts.append(f"on {len(nodes)} nodes in turn ({', '.join(nodes[:4])}), so it is the GPU")
    last = datetime.fromtimestamp(max(float(one["time"]) for one in faults), UTC).date().isoformat()
    if not row["listed"] and row["chance"] >= 0.9 and row["blames"] < LEAST:
        parts.append("too few to be listed")
    return text + (": " + "; ".join(parts) if parts else "") + f"; last on {last}"
