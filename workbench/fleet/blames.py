"""
Turn signs of trouble on nodes and GPUs into blames: one row a fault, with its weight and what it rests on.

All signs of one fault are one blame: job failure, Xid, drain and ticket within hours of each other on a unit. What nobody could lay on a node is
shared among the job's nodes, so that a job's failure weighs 1 whatever its size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from workbench.catalog import table
from workbench.catalog.xid_facts import xid_row
from workbench.errors import CatalogError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["blames", "boards_of", "named", "seconds_of", "signal_weights", "texts"]

MERGE = (
    12 * 3600.0
)  # seconds: signs of one unit that follow each other within a shift are one fault with its drain, ticket and repair
PRIOR = 20  # failures of known cause that the catalog's weight of an unknown one is worth, until the fleet's own say better
TOGETHER = 30.0  # seconds between nodes that go out of service at once, and between two who tell of the same
MANY = (
    3  # nodes from which on that is no chance: 16,384 GPUs with usual faults have two by chance in a hundred, three hardly ever
)
_OUT = "out-of-service"
_GUILTY = ("hardware", "driver", "unknown")


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


def seconds_of(times: Any) -> Any:
    """Return epoch seconds of a column of times; NaN where there is none."""
    import numpy as np
    import pandas as pd

    column = pd.to_datetime(times, utc=True)
    known = column.notna().to_numpy()
    out = np.full(len(column), np.nan)
    out[known] = column[known].dt.as_unit("us").astype("int64").to_numpy() / 1e6
    return out


def texts(frame: pd.DataFrame, name: str) -> Any:
    """Return a text column as an array of str, empty where nobody told."""
    import numpy as np

    if name not in frame.columns:
        return np.full(len(frame), "", dtype=object)
    return frame[name].astype("object").where(frame[name].notna(), "").astype(str).to_numpy(dtype=object)


def named(clusters: Any, names: Any) -> Any:
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

    weights = dict(signal_weights())
    weights["unknown-failure"] = (_hidden(attempts, weights["unknown-failure"][0]), weights["unknown-failure"][1])
    parts = []
    if len(signals):
        kinds, classes = texts(signals, "kind"), texts(signals, "cls")
        base = np.array([weights.get(kind, (0.5, kind))[0] for kind in kinds])
        own = (
            signals["weight"].astype("Float64").to_numpy(dtype=float, na_value=1.0)
            if "weight" in signals
            else np.ones(len(signals))
        )
        clusters = texts(signals, "cluster")
        part = pd.DataFrame(
            {
                "node": named(clusters, texts(signals, "node")),
                "gpu": texts(signals, "gpu_uuid"),
                "time": seconds_of(signals["time"]),
                "job": named(clusters, texts(signals, "job")),
                "kind": kinds,
                "code": texts(signals, "code"),
                "weight": base * np.clip(own, 0.0, 1.0),
                "shared": (kinds == "job-failure") & (own < 1.0),
                "wide": False,
            }
        )
        parts.append(part[_counts_against(kinds, classes, part["code"])])
    if len(attempts):
        parts.append(_of_attempts(attempts, weights))
    if len(node_states):
        states, causes = texts(node_states, "state"), texts(node_states, "cause")
        down = (states == "down") & ~np.isin(causes, ("user", "platform"))
        rows = node_states[down]
        stretches = pd.DataFrame(
            {
                "node": named(texts(rows, "cluster"), texts(rows, "node")),
                "gpu": "",
                "time": seconds_of(rows["begin"]),
                "job": "",
                "kind": _OUT,
                "code": "",
                "weight": weights[_OUT][0],
                "shared": False,
                "wide": False,
            }
        )
        parts.append(stretches[(causes[down] != "") | ~_explained(stretches, signals)])
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame({name: [] for name in ("node", "gpu", "time", "weight", "kinds", "codes", "wide")})
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[rows["time"].notna() & (rows["weight"] > 0) & ((rows["node"] != "") | (rows["gpu"] != ""))]
    boards = boards_of(gpus)
    rows["gpu"] = [boards.get(one, one) for one in rows["gpu"]]
    return _faults(_once_a_job(_at_once(rows)))


def _explained(stretches: pd.DataFrame, signals: pd.DataFrame) -> Any:
    """Return of which stretches out of service a signal of the same moment tells as well: it knows the class, and counts itself or does not."""
    import numpy as np

    out = signals[texts(signals, "kind") == _OUT] if len(signals) else signals
    if not len(out):
        return np.zeros(len(stretches), dtype=bool)
    told: dict[str, list[float]] = {}
    for node, moment in zip(named(texts(out, "cluster"), texts(out, "node")), seconds_of(out["time"]), strict=True):
        told.setdefault(node, []).append(float(moment))
    return np.array(
        [
            any(abs(moment - begin) <= TOGETHER for moment in told.get(node, ()))
            for node, begin in zip(stretches["node"], stretches["time"], strict=True)
        ],
        dtype=bool,
    )


def _at_once(rows: pd.DataFrame) -> pd.DataFrame:
    """Share one blame among nodes that go out of service together: a switch, a rack's power or a command took them, and no one of them."""
    import numpy as np

    out = rows[(rows["kind"] == _OUT) & (rows["job"] == "")].sort_values("time", kind="stable")
    if not len(out):
        return rows
    group = (out["time"].diff() > TOGETHER).cumsum()
    many = out["node"].groupby(group).transform("nunique").to_numpy()
    weight = rows["weight"].to_numpy(dtype=float, copy=True)
    at = rows.index.get_indexer(out.index)
    weight[at] /= np.where(many >= MANY, many, 1)
    return rows.assign(weight=weight)


def _hidden(attempts: pd.DataFrame, most: float) -> float:
    """
    Return what a failure of unknown cause weighs: the chance that it was the machine's, as often as it was where the cause was found.

    Where users' own failures are many, most unknown ones are theirs as well. Counted at the catalog's weight they would be most of every node's
    blames, and a lemon would drown in them.
    """
    if not len(attempts):
        return most
    causes, classes = texts(attempts, "cause"), texts(attempts, "cls")
    found = (texts(attempts, "state") == "failed") & (causes != "") & (causes != "unknown")
    machine = int((found & ((causes == "hardware") | (causes == "driver") | (classes == "platform/node-lost"))).sum())
    return min(most, (machine + most * PRIOR) / (int(found.sum()) + PRIOR))


def _of_attempts(attempts: pd.DataFrame, weights: dict[str, tuple[float, str]]) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    causes, classes = texts(attempts, "cause"), texts(attempts, "cls")
    failed = (texts(attempts, "state") == "failed") & (np.isin(causes, _GUILTY) | (classes == "platform/node-lost"))
    rows = attempts[failed]
    out: list[tuple[Any, ...]] = []
    clusters, jobs, nodes, uuids = (texts(rows, name) for name in ("cluster", "job", "node", "gpu_uuid"))
    for cluster, job, node, gpu, cause, when, names in zip(
        clusters, jobs, nodes, uuids, causes[failed], seconds_of(rows["ended"]), rows["node_names"], strict=True
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


def boards_of(gpus: pd.DataFrame) -> dict[str, str]:
    """Return UUID → the name under which a GPU is counted: its serial number where somebody told it."""
    if not len(gpus):
        return {}
    pairs = zip(texts(gpus, "gpu_uuid"), texts(gpus, "serial"), strict=True)
    return {uuid: serial or uuid for uuid, serial in sorted(pairs, key=lambda pair: bool(pair[1])) if uuid}
