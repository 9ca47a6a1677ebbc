"""
Turn a fleet's history into its lemons: nodes and GPUs that fail more often than chance, each with the reason, and the list to exclude.

All signs of one fault are one blame: job failure, Xid, drain and ticket within hours of each other on a unit. What nobody could lay on a node is
shared among the job's nodes, so that a job's failure weighs 1 whatever its size; for a healthy node the expected weight is then its hours
times the fleet's rate in small and large jobs alike. Blames over hours are judged by `workbench.fleet.excess`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from workbench.catalog import table
from workbench.catalog.xid_facts import xid_row
from workbench.errors import CatalogError
from workbench.fleet.excess import Excess, excess, selected
from workbench.parse.nodeset import fold

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "Lemons", "blames", "lemons", "signal_weights"]

MERGE = (
    12 * 3600.0
)  # seconds: signs of one unit that follow each other within a shift are one fault with its drain, ticket and repair
# whole blames below which a unit is not listed, however short its hours: two failures in its first two jobs may have one cause that is not
# the node's (the same job started again), and are no two independent events, as the fit takes them to be
LEAST = 2.5
START = 3600.0  # seconds that a start counts as at least
FEW = 20  # units with hours: below that what is usual is not known
_GUILTY = ("hardware", "driver", "unknown")
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


@lru_cache(maxsize=1)
def signal_weights() -> dict[str, tuple[float, str]]:
    """
    Return for each kind of sign what it weighs, 0 to 1, and its name in the plural.

    Raises
    ------
    CatalogError
        A weight is no number between 0 and 1: above 1 the counts' variance would exceed what the fit takes it to be.
    """
    rows = {}
    for row in table("lemon_signals"):
        try:
            weight = float(row["weight"])
        except ValueError:
            weight = -1.0
        if not 0.0 <= weight <= 1.0:
            raise CatalogError(
                f"lemon_signals.csv: weight {row['weight']!r} of {row['kind']} is not between 0 and 1", hint="correct the row"
            )
        rows[row["kind"]] = (weight, row["label"])
    return rows


def _seconds(times: Any) -> Any:
    """Return epoch seconds of a column of times; NaN where there is none."""
    import numpy as np
    import pandas as pd

    column = pd.to_datetime(times, utc=True)
    known = column.notna().to_numpy()
    out = np.full(len(column), np.nan)
    out[known] = column[known].dt.as_unit("us").astype("int64").to_numpy() / 1e6
    return out


def _texts(frame: pd.DataFrame, name: str) -> Any:
    """Return a text column as an array of str, empty where nobody told."""
    import numpy as np

    if name not in frame.columns:
        return np.full(len(frame), "", dtype=object)
    return frame[name].astype("object").where(frame[name].notna(), "").astype(str).to_numpy(dtype=object)


def _named(clusters: Any, names: Any) -> Any:
    """Return names with their cluster in front where there is one: two clusters have a node of the same name."""
    import numpy as np

    return np.array(
        [f"{cluster}/{name}" if cluster and name else name for cluster, name in zip(clusters, names, strict=True)], dtype=object
    )


def _counts_against(kinds: Any, classes: Any, codes: Any) -> Any:
    """Return which signs speak against the machine: not those of users and of the platform, nor Xids that programs cause."""
    import numpy as np

    keep = []
    for kind, cls, code in zip(kinds, classes, codes, strict=True):
        guilty = not cls or cls.split("/")[0] in _GUILTY or cls == "platform/node-lost"
        if guilty and kind == "xid" and not cls and str(code).isdigit():
            # named by the catalog as the program's, or as a mere consequence (45, 154); a code that it does not know counts
            guilty = xid_row(int(code)).get("attribution") not in ("user", "informational")
        keep.append(guilty)
    return np.array(keep, dtype=bool)


def blames(signals: pd.DataFrame, attempts: pd.DataFrame, node_states: pd.DataFrame, gpus: pd.DataFrame) -> pd.DataFrame:
    """
    Return every blame of a node or GPU, one row a fault.

    Parameters
    ----------
    signals, attempts, node_states, gpus : DataFrame
        As in `workbench.fleet.tables`; any may be empty.

    Returns
    -------
    DataFrame
        Columns node, gpu (its serial where known, else its UUID; empty when it is the node's), time (epoch seconds), weight, kinds (list),
        codes (list), wide (whether a job on several nodes failed).
    """
    import numpy as np
    import pandas as pd

    weights = signal_weights()
    parts = []
    if len(signals):
        kinds, classes = _texts(signals, "kind"), _texts(signals, "cls")
        base = np.array([weights.get(kind, (0.5, kind))[0] for kind in kinds])
        own = (
            signals["weight"].astype("Float64").to_numpy(dtype=float, na_value=1.0)
            if "weight" in signals
            else np.ones(len(signals))
        )
        clusters = _texts(signals, "cluster")
        part = pd.DataFrame(
            {
                "node": _named(clusters, _texts(signals, "node")),
                "gpu": _texts(signals, "gpu_uuid"),
                "time": _seconds(signals["time"]),
                "job": _named(clusters, _texts(signals, "job")),
                "kind": kinds,
                "code": _texts(signals, "code"),
                "weight": base * np.clip(own, 0.0, 1.0),
                "shared": (kinds == "job-failure") & (own < 1.0),
                "wide": False,
            }
        )
        parts.append(part[_counts_against(kinds, classes, part["code"])])
    if len(attempts):
        parts.append(_of_attempts(attempts, weights))
    if len(node_states):
        states, causes = _texts(node_states, "state"), _texts(node_states, "cause")
        down = (states == "down") & ~np.isin(causes, ("user", "platform"))
        rows = node_states[down]
        parts.append(
            pd.DataFrame(
                {
                    "node": _named(_texts(rows, "cluster"), _texts(rows, "node")),
                    "gpu": "",
                    "time": _seconds(rows["begin"]),
                    "job": "",
                    "kind": "out-of-service",
                    "code": "",
                    "weight": weights["out-of-service"][0],
                    "shared": False,
                    "wide": False,
                }
            )
        )
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame({name: [] for name in ("node", "gpu", "time", "weight", "kinds", "codes", "wide")})
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[rows["time"].notna() & (rows["weight"] > 0) & ((rows["node"] != "") | (rows["gpu"] != ""))]
    boards = _boards(gpus)
    rows["gpu"] = [boards.get(one, one) for one in rows["gpu"]]
    return _faults(_once_a_job(rows))


def _of_attempts(attempts: pd.DataFrame, weights: dict[str, tuple[float, str]]) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    causes, classes = _texts(attempts, "cause"), _texts(attempts, "cls")
    failed = (_texts(attempts, "state") == "failed") & (np.isin(causes, _GUILTY) | (classes == "platform/node-lost"))
    rows = attempts[failed]
    out: list[tuple[Any, ...]] = []
    clusters, jobs, nodes, uuids = (_texts(rows, name) for name in ("cluster", "job", "node", "gpu_uuid"))
    for cluster, job, node, gpu, cause, when, names in zip(
        clusters, jobs, nodes, uuids, causes[failed], _seconds(rows["ended"]), rows["node_names"], strict=True
    ):
        held = [str(one) for one in names] if isinstance(names, (list, tuple, np.ndarray)) else []
        kind = "unknown-failure" if cause == "unknown" else "job-failure"
        weight = weights[kind][0]
        front = f"{cluster}/" if cluster else ""
        if node or gpu:
            out.append((front + node if node else "", gpu, when, front + job, kind, "", weight, False, len(held) > 1))
        else:
            out += [
                (front + one, "", when, front + job, kind, "", weight / len(held), len(held) > 1, len(held) > 1) for one in held
            ]
    return pd.DataFrame(out, columns=["node", "gpu", "time", "job", "kind", "code", "weight", "shared", "wide"])


def _once_a_job(rows: pd.DataFrame) -> pd.DataFrame:
    """Make the blame for one failure of a job weigh 1 at most: what is laid on a node replaces what its nodes shared."""
    import numpy as np

    rows = rows.sort_values(["job", "time"], kind="stable").reset_index(drop=True)
    new = (rows["job"] != rows["job"].shift()) | (rows["time"] - rows["time"].shift() > MERGE)
    failure = new.cumsum().to_numpy()
    of_job = rows["job"].to_numpy() != ""
    direct = np.zeros(failure.max() + 1, dtype=bool)
    direct[failure[of_job & ~rows["shared"].to_numpy(bool)]] = True
    rows = rows[~(of_job & rows["shared"].to_numpy(bool) & direct[failure])]
    failure = failure[rows.index.to_numpy()]
    of_job = rows["job"].to_numpy() != ""
    rows = rows.assign(failure=failure)
    # a GPU and its node are one machine here
    each = rows[of_job].groupby(["failure", "node"], sort=False)["weight"].max()
    total = each.groupby("failure").sum()
    scale = np.ones(len(rows))
    scale[of_job] = 1.0 / np.maximum(1.0, total.reindex(rows.loc[of_job, "failure"]).to_numpy())
    return rows.assign(weight=rows["weight"].to_numpy() * scale)


def _faults(rows: pd.DataFrame) -> pd.DataFrame:
    """Merge the signs of a unit that follow each other closely into one fault that weighs as its heaviest sign."""
    import pandas as pd

    rows = rows.sort_values(["node", "time"], kind="stable").reset_index(drop=True)
    new = (rows["node"] != rows["node"].shift()) | (rows["time"] - rows["time"].shift() > MERGE)
    groups = rows.groupby(new.cumsum(), sort=False)
    out = groups.agg(node=("node", "first"), time=("time", "first"), weight=("weight", "max"), wide=("wide", "any"))
    boards = [{one for one in column if one} for column in groups["gpu"].agg(list)]
    out["gpu"] = [next(iter(one)) if len(one) == 1 else "" for one in boards]
    out["kinds"] = groups["kind"].agg(lambda column: sorted(set(column)))
    out["codes"] = [
        sorted({str(code) for kind, code in zip(kinds, codes, strict=True) if kind in ("xid", "sxid") and code})
        for kinds, codes in zip(groups["kind"].agg(list), groups["code"].agg(list), strict=True)
    ]
    return pd.DataFrame(out[["node", "gpu", "time", "weight", "kinds", "codes", "wide"]]).reset_index(drop=True)


def _boards(gpus: pd.DataFrame) -> dict[str, str]:
    """Return UUID → the name under which a GPU is counted: its serial number where somebody told it."""
    if not len(gpus):
        return {}
    pairs = zip(_texts(gpus, "gpu_uuid"), _texts(gpus, "serial"), strict=True)
    return {uuid: serial or uuid for uuid, serial in sorted(pairs, key=lambda pair: bool(pair[1])) if uuid}


class _Busy:
    """Hours that each node was in jobs, up to any moment."""

    def __init__(self, attempts: pd.DataFrame, node_states: pd.DataFrame, until: float) -> None:
        import numpy as np

        spans: dict[str, list[tuple[float, float]]] = {}
        if len(attempts):
            begins, ends = _seconds(attempts["started"]), _seconds(attempts["ended"])
            for cluster, names, begin, end in zip(_texts(attempts, "cluster"), attempts["node_names"], begins, ends, strict=True):
                end = until if np.isnan(end) else min(end, until)
                if isinstance(names, (list, tuple, np.ndarray)) and end >= begin:
                    end = max(end, begin + START)  # a start is a risk of its own, however short the job
                    for name in names:
                        spans.setdefault(f"{cluster}/{name}" if cluster else str(name), []).append((begin, end))
        self.from_jobs = bool(spans)
        if not spans and len(node_states):  # nobody told which job ran where: time in which it could have
            begins, ends = _seconds(node_states["begin"]), _seconds(node_states["end"])
            names = _named(_texts(node_states, "cluster"), _texts(node_states, "node"))
            for name, state, begin, end in zip(names, _texts(node_states, "state"), begins, ends, strict=True):
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
    times = [_seconds(frame[name]) for frame, name in columns if len(frame)]
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
    boards, nodes = _boards(gpus), _named(_texts(gpus, "cluster"), _texts(gpus, "node"))
    for uuid, node, begin, end in zip(
        _texts(gpus, "gpu_uuid"), nodes, _seconds(gpus["begin"]), _seconds(gpus["end"]), strict=True
    ):
        if uuid and node:
            start = -np.inf if np.isnan(begin) else begin
            homes.setdefault(boards[uuid], []).append((node, start, until if np.isnan(end) else min(end, until)))
    return {board: sorted(spans, key=lambda span: span[1]) for board, spans in homes.items()}


def _products(node_states: pd.DataFrame) -> dict[str, str]:
    if not len(node_states) or "sku" not in node_states:
        return {}
    names = _named(_texts(node_states, "cluster"), _texts(node_states, "node"))
    return {name: sku for name, sku in zip(names, _texts(node_states, "sku"), strict=True) if sku}


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
