"""
Turn jobs, attempts and phases into segments: every microsecond of a job, from its submission to its end, is one kind of time.

Overlaps. What was told of the same moment twice is the kind that stands first in `PRIORITY`: the narrower kind of what goes on inside steps
(restore, save, data, slow) before the step, a hang that is being noticed (detect) before the step that hangs, what a job does before what
somebody does about an earlier failure (recover, diagnose), and that before waiting.

Gaps. Time in which an attempt held its nodes and of which nobody told anything is `unknown`: neither productive nor explained away. Between
attempts it is `idle`.

Lost steps. Steps that an attempt made after the checkpoint from which a later one began are lost: the last of its step time, in proportion
to their number (all steps of an attempt are taken as equally long).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.fleet.figures import NEVER, instant, micros
from workbench.fleet.tables import PHASES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KINDS", "PRIORITY", "segments"]

PRIORITY = (
    "restore",
    "save",
    "detect",
    "data",
    "lost",
    "slow",
    "step",
    "init",
    "start",
    "recover",
    "diagnose",
    "queue",
    "unknown",
    "idle",
)
# in the order in which a job meets them; `unknown` is nobody's word
KINDS = (*PHASES[:-1], "unknown", PHASES[-1])
_RANK = {kind: rank for rank, kind in enumerate(PRIORITY)}
_HELD, _JOB = _RANK["unknown"], _RANK["idle"]
_ENDED = ("completed", "failed", "cancelled", "preempted", "timeout")


def segments(
    jobs: pd.DataFrame, attempts: pd.DataFrame | None = None, phases: pd.DataFrame | None = None, *, until: Any
) -> pd.DataFrame:
    """
    Return the account of each job's time.

    Parameters
    ----------
    jobs, attempts, phases : pandas.DataFrame
        As in `workbench.fleet.tables`. Queued to started is queue. An attempt with phases has what they say; of one without, its times say:
        started to first_step init (start and init cannot be told apart), first_step to ended step; ended to detected is detect, to diagnosed
        diagnose, and from there to the next attempt recover. Without first_step its time is unknown. A job without attempts is taken as
        one attempt.
    until : time
        The present for what has not ended.

    Returns
    -------
    pandas.DataFrame
        `cluster`, `job`, `attempt`, `kind` (of `KINDS`), `begin`, `end` (whole microseconds since the epoch), `held` (whether an attempt held
        its nodes), `first_wait` (before the job's first allocation), `gpus` (of the attempt, else of the job; NA if neither was told). For
        each job the segments follow each other without gap or overlap. A job of which no beginning was told has none.
    """
    import numpy as np
    import pandas as pd

    now = instant(until)
    told, job = _attempts(jobs, attempts, now)
    empty = pd.DataFrame(
        {
            name: pd.Series(dtype=kind)
            for name, kind in zip(
                ("cluster", "job", "attempt", "kind", "begin", "end", "held", "first_wait", "gpus"),
                ("string", "string", "Int64", "string", "int64", "int64", "bool", "bool", "Int64"),
                strict=True,
            )
        }
    )
    if job.empty:
        return empty
    spans = _spans(told, job, phases, now)
    cut = _sweep(spans, told, job)
    cut = _lose(cut, told)
    names = np.array(PRIORITY, dtype=object)
    attempt = told.set_index("slice")
    gpus = attempt["gpus"].reindex(cut["slice"]).to_numpy()
    return pd.DataFrame(
        {
            "cluster": job["cluster"].to_numpy()[cut["key"]],
            "job": job["job"].to_numpy()[cut["key"]],
            "attempt": attempt["attempt"].reindex(cut["slice"]).to_numpy(),
            "kind": names[cut["kind"]],
            "begin": cut["begin"],
            "end": cut["end"],
            "held": cut["held"],
            "first_wait": cut["begin"].to_numpy() < job["allocated"].to_numpy()[cut["key"]],
            "gpus": gpus,
        }
    ).astype({"cluster": "string", "job": "string", "attempt": "Int64", "kind": "string", "gpus": "Int64"})


def _attempts(jobs: pd.DataFrame, attempts: pd.DataFrame | None, now: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Attempts and jobs with a number for each job (`key`) and attempt (`slice`), and their times in microseconds."""
    import numpy as np
    import pandas as pd

    job = pd.DataFrame({"cluster": jobs["cluster"].astype("object").fillna(""), "job": jobs["job"].astype("object")})
    job["gpus"] = jobs["gpus"].astype("Int64").to_numpy()
    job["state"] = jobs["state"].astype("object").to_numpy()
    for name in ("submitted", "started", "first_step", "ended"):
        job[name] = micros(jobs[name])
    job = job.reset_index(drop=True)
    job["key"] = np.arange(len(job))
    given = [] if attempts is None else [attempts]
    rows = pd.DataFrame(
        {
            "cluster": pd.concat([one["cluster"].astype("object").fillna("") for one in given]) if given else [],
            "job": pd.concat([one["job"].astype("object") for one in given]) if given else [],
        }
    ).reset_index(drop=True)
    if attempts is not None:
        for name in ("queued", "started", "first_step", "ended", "detected", "diagnosed"):
            rows[name] = micros(attempts[name])
        for name in ("attempt", "gpus", "step_first", "step_last", "step_saved"):
            rows[name] = attempts[name].astype("Int64").to_numpy()
        rows["state"] = attempts["state"].astype("object").to_numpy()
        rows = rows.merge(job[["cluster", "job", "key"]], on=["cluster", "job"])
    alone = job[~job["key"].isin(rows["key"])] if len(rows) else job
    alone = alone.assign(queued=alone["submitted"], attempt=1, detected=NEVER, diagnosed=NEVER)
    for name in ("step_first", "step_last", "step_saved"):
        alone[name] = pd.array([pd.NA] * len(alone), dtype="Int64")
    alone = alone.drop(columns="submitted")
    told = pd.concat([rows, alone], ignore_index=True) if len(rows) else alone
    told = told.sort_values(["key", "attempt"], kind="stable").reset_index(drop=True)
    told["gpus"] = told["gpus"].astype("Int64").fillna(job["gpus"].iloc[told["key"]].reset_index(drop=True))

    first = np.where(told["queued"] == NEVER, told["started"], told["queued"])
    known = pd.DataFrame({"key": told["key"], "first": np.where(first == NEVER, np.iinfo(np.int64).max, first)})
    earliest = known.groupby("key")["first"].min().reindex(job["key"]).to_numpy()
    job["begin"] = np.where(job["submitted"] == NEVER, earliest, np.minimum(job["submitted"], earliest))
    last = told.groupby("key")["ended"].max().reindex(job["key"]).to_numpy()
    over = job["state"].isin(_ENDED).to_numpy(dtype=bool)
    # a job that is over and whose end nobody told ended with its last attempt; one that is not is still there
    end = np.where(job["ended"] != NEVER, job["ended"], np.where(over & (last != NEVER), last, now))
    job["end"] = np.minimum(end, now)
    job = job[(job["begin"] != np.iinfo(np.int64).max) & (job["end"] > job["begin"])]
    told = told[told["key"].isin(job["key"])].copy()
    # keys count on without gaps
    number = pd.Series(np.arange(len(job)), index=job["key"].to_numpy())
    told["key"] = number.reindex(told["key"]).to_numpy()
    job = job.assign(key=np.arange(len(job))).reset_index(drop=True)
    told = told.reset_index(drop=True)

    # an attempt owns the time from when it began to wait, or was given nodes, until the next one does; the first from submission on
    start = np.where(told["queued"] == NEVER, told["started"], told["queued"])
    before, follows = told["ended"].shift(fill_value=NEVER).to_numpy(), told["key"].duplicated().to_numpy(dtype=bool)
    # one that was put in the queue while the one before it still ran begins when that ends
    waits = (
        follows & (before != NEVER) & (start != NEVER) & (before <= np.where(told["started"] == NEVER, before, told["started"]))
    )
    start = np.where(waits, np.maximum(start, before), start)
    opening = ~told["key"].duplicated().to_numpy(dtype=bool)
    start = np.where(opening | (start == NEVER), job["begin"].to_numpy()[told["key"]], start)
    told["opens"] = pd.Series(start).groupby(told["key"]).cummax().to_numpy()
    told["slice"] = np.arange(len(told))
    given_nodes = np.where(told["started"] == NEVER, np.iinfo(np.int64).max, told["started"])
    job["allocated"] = pd.Series(given_nodes).groupby(told["key"]).min().reindex(job["key"]).to_numpy()
    return told, job


def _spans(told: pd.DataFrame, job: pd.DataFrame, phases: pd.DataFrame | None, now: int) -> pd.DataFrame:
    """All that was told or follows from it, as key, kind (its rank), begin, end; overlapping as it may."""
    import numpy as np
    import pandas as pd

    parts = [pd.DataFrame({"key": job["key"], "kind": _JOB, "begin": job["begin"], "end": job["end"]})]

    def add(kind: int, rows: Any, begin: Any, end: Any) -> None:
        fit = rows & (begin != NEVER) & (end != NEVER) & (end > begin)
        parts.append(pd.DataFrame({"key": told["key"].to_numpy()[fit], "kind": kind, "begin": begin[fit], "end": end[fit]}))

    queued, started, first, ended, detected, diagnosed = (
        told[name].to_numpy() for name in ("queued", "started", "first_step", "ended", "detected", "diagnosed")
    )
    everything = np.ones(len(told), dtype=bool)
    closes = job["end"].to_numpy()[told["key"]]
    same = told["key"].to_numpy()[1:] == told["key"].to_numpy()[:-1]
    following = np.full(len(told), NEVER)
    following[:-1] = np.where(same, told["opens"].to_numpy()[1:], NEVER)
    # an attempt whose end nobody told ends with the next one's beginning, or with the job
    ends = np.where(ended != NEVER, np.minimum(ended, now), np.where(following != NEVER, following, closes))
    add(_HELD, everything, started, ends)

    silent = everything
    if phases is not None and len(phases):
        given = pd.DataFrame({"cluster": phases["cluster"].astype("object").fillna(""), "job": phases["job"].astype("object")})
        given["attempt"] = phases["attempt"].astype("Int64")
        given["kind"] = phases["kind"].astype("object").map(_RANK).astype("Float64")
        given["begin"], end = micros(phases["begin"]), micros(phases["end"])
        given["end"] = np.where(end == NEVER, now, np.minimum(end, now))
        given = given.merge(job[["cluster", "job", "key"]], on=["cluster", "job"])
        given = given[given["kind"].notna() & (given["begin"] != NEVER) & (given["end"] > given["begin"])]
        parts.append(given[["key", "kind", "begin", "end"]].astype("int64"))
        pairs = pd.MultiIndex.from_arrays([given["key"], given["attempt"]])
        silent = ~pd.MultiIndex.from_arrays([told["key"], told["attempt"]]).isin(pairs)

    # when it began to wait and was given nodes was told of the attempt itself, whatever its phases say
    add(_RANK["queue"], everything, np.where(queued == NEVER, told["opens"].to_numpy(), queued), started)
    add(_RANK["init"], silent, started, first)
    add(_RANK["step"], silent, first, ends)
    noticed = np.where(detected == NEVER, ends, np.maximum(detected, ends))
    add(_RANK["detect"], silent & (detected != NEVER), ends, detected)
    found = np.where(diagnosed == NEVER, noticed, np.maximum(diagnosed, noticed))
    add(_RANK["diagnose"], silent & (diagnosed != NEVER), noticed, found)
    # who knows the cause repairs, replaces or waits; of a gap after a failure that nobody looked at nothing is known
    add(_RANK["recover"], silent & ((detected != NEVER) | (diagnosed != NEVER)), found, following)
    return pd.concat(parts, ignore_index=True)


def _sweep(spans: pd.DataFrame, told: pd.DataFrame, job: pd.DataFrame) -> pd.DataFrame:
    """Non-overlapping pieces of each job's time: key, slice, kind, begin, end, held."""
    import numpy as np
    import pandas as pd

    key = spans["key"].to_numpy()
    low, high = job["begin"].to_numpy()[key], job["end"].to_numpy()[key]
    begin, end = np.clip(spans["begin"].to_numpy(), low, high), np.clip(spans["end"].to_numpy(), low, high)
    fit = end > begin
    key, kind, begin, end = key[fit], spans["kind"].to_numpy()[fit], begin[fit], end[fit]
    opens, owner = told["opens"].to_numpy(), told["key"].to_numpy()
    opens = np.clip(opens, job["begin"].to_numpy()[owner], job["end"].to_numpy()[owner])
    keys = np.concatenate([key, key, owner])
    times = np.concatenate([begin, end, opens])
    kinds = np.concatenate([kind, kind, np.full(len(opens), len(PRIORITY))])
    steps = np.concatenate([np.ones(len(key), np.int32), -np.ones(len(key), np.int32), np.ones(len(opens), np.int32)])
    order = np.lexsort((times, keys))
    keys, times, kinds, steps = keys[order], times[order], kinds[order], steps[order]

    # how many spans of each kind are open after each event; a job's sums are zero again at its end, so that jobs need no care
    best = np.full(len(keys), _JOB)
    held = np.zeros(len(keys), dtype=bool)
    for rank in range(len(PRIORITY) - 1, -1, -1):
        active = np.cumsum(np.where(kinds == rank, steps, 0)) > 0
        best[active] = rank
        if rank == _HELD:
            held = active
    piece = np.cumsum(kinds == len(PRIORITY)) - 1
    until = np.empty_like(times)
    until[:-1], until[-1] = times[1:], times[-1]
    inside = np.append(keys[1:] == keys[:-1], False) & (until > times)
    cut = pd.DataFrame({"key": keys, "slice": piece, "kind": best, "begin": times, "end": until, "held": held})[inside]
    # neighbours that say the same are one piece
    new = np.zeros(len(cut) - 1, dtype=bool)
    for name in ("key", "slice", "kind", "held"):
        values = cut[name].to_numpy()
        new |= values[1:] != values[:-1]
    group = np.concatenate([[0], np.cumsum(new)])
    last = cut.groupby(group)["end"].last().to_numpy()
    return cut[np.concatenate([[True], new])].assign(end=last).reset_index(drop=True)


def _lose(cut: pd.DataFrame, told: pd.DataFrame) -> pd.DataFrame:
    """The same pieces, the last steps of an attempt relabelled where a later one made them again."""
    import pandas as pd

    share = _lost_share(told)
    if not share:
        return cut
    step, slow, lost = _RANK["step"], _RANK["slow"], _RANK["lost"]
    # who tells lost steps has counted them
    counted = set(cut.loc[cut["kind"] == lost, "slice"])
    rows: list[pd.DataFrame] = []
    touched = [number for number in share if number not in counted]
    inside = cut["slice"].isin(touched) & cut["kind"].isin([step, slow])
    for number, part in cut[inside].groupby("slice"):
        again, made = share[number]
        length = (part["end"] - part["begin"]).to_numpy()
        left = int(length.sum()) * again // made
        pieces = []
        for row, size in zip(part.iloc[::-1].to_dict("records"), length[::-1], strict=True):
            taken = min(left, int(size))
            left -= taken
            if taken:
                pieces.append({**row, "kind": lost, "begin": row["end"] - taken})
            if taken < size:
                pieces.append({**row, "end": row["end"] - taken})
        rows.append(pd.DataFrame(pieces))
    if not rows:
        return cut
    merged = pd.concat([cut[~inside], *rows], ignore_index=True)
    return merged.sort_values(["key", "begin"], kind="stable").astype({"held": bool}).reset_index(drop=True)


def _lost_share(told: pd.DataFrame) -> dict[Any, tuple[int, int]]:
    """Slice → (steps lost, steps made), for those that lost any."""
    share: dict[Any, tuple[int, int]] = {}
    kept: int | None = None
    owner: Any = None
    columns = ("slice", "key", "state", "step_first", "step_last", "step_saved")
    rows = list(zip(*(told[name].tolist() for name in columns), strict=True))
    for number, key, state, first, last, saved in reversed(rows):
        newest = key != owner
        if newest:
            owner, kept = key, None
        ends = isinstance(state, str) and state in _ENDED and state != "completed"
        limit = kept
        # of an attempt that nothing followed, or one that did not say where it began, what was not saved is lost when it did not complete
        if limit is None and ends and _whole(saved):
            limit = int(saved)
        if _whole(first) and _whole(last) and limit is not None and last > limit:
            made = int(last) - int(first) + 1
            if made > 0:
                share[number] = (min(made, int(last) - limit), made)
        if _whole(first):
            kept = int(first) - 1 if kept is None else min(kept, int(first) - 1)
    return share


def _whole(value: Any) -> bool:
    return isinstance(value, int)
