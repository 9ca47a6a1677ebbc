"""
Turn the steps that the ranks of a running job told into those who became slow: who, on which node, since when, by how much, how sure.

Run as a program (`python -m workbench.training.pace ATTEMPT [--last]`) beside the job, at the lowest priority, it reads the end of the
attempt's progress file and what was found before, and writes ``stragglers.json`` anew. It only tells: nothing is ended for being slow.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.training.hangs import Progress, read_line
from workbench.training.looking import FEWEST
from workbench.training.stragglers import MINIMUM, Straggler, Stragglers, against_others, find_stragglers

__all__ = ["FILE", "NOTHING", "judged", "look", "sentence"]

SCHEMA = "workbench.stragglers/1"
FILE = "stragglers.json"
NOTHING: dict[str, Any] = {
    "schema": SCHEMA,
    "looks": 0,
    "step": None,
    "ranks": 0,
    "candidates": [],
    "told": [],
    "job": None,
    "why": "",
}
_WINDOW = 512  # steps of a look
_MOST = 64 << 20  # bytes of the progress file that are read: its end
_FRESH = 20  # steps after a look that must say the same before anybody is named
_SURE = 3.09  # standard errors: one in a thousand of what chance makes of healthy ranks passes
_ONCE = 0.01  # chance at most of who is named although no later steps could confirm it
_AHEAD = 0.02  # share of steps before the others' last one was over, from which on ranks do not wait for each other


def judged(told: Iterable[Progress], before: Mapping[str, Any], *, last: bool = False) -> dict[str, Any]:
    """
    Judge what ranks told of their steps.

    Parameters
    ----------
    told : iterable of Progress
        In the order in which it was written.
    before : mapping
        What the look before this one returned; `NOTHING` at first.
    last : bool
        The job has ended: there will be no more steps to confirm what is seen now, so it is named with ``confirmed`` false.

    Returns
    -------
    dict
        ``told``: rows of who is slow (``kind`` rank or node, ``ranks``, ``node``, ``since_step``, ``since``, ``factor``, ``low``, ``high``,
        ``chance``, ``until_step``, ``confirmed``); ``candidates``: seen once; ``job``: all ranks alike became slower, which is nobody's fault;
        ``why``: what could not be told.

    Notes
    -----
    Each look alone would name somebody in one of twenty healthy jobs. So who is seen is named only when at least 20 steps that were made
    *after* that look say the same, which chance does in one of a thousand. With the work of each step given (``samples``), a rank must be
    slow for its share of work, too: who has longer sequences is no straggler.
    """
    import numpy as np

    table = _Table(told)
    kept = {key: before[key] for key in ("told", "candidates") if before.get(key)}
    out: dict[str, Any] = {**NOTHING, **kept, "looks": int(before.get("looks") or 0) + 1}
    out["ranks"], out["step"] = len(table.ranks), table.steps[-1] if table.steps else None
    if len(table.steps) < FEWEST or len(table.ranks) < 3:
        few = f"{len(table.ranks)} ranks told {len(table.steps)} steps: too few"
        return {**out, "why": few}
    found = table.stragglers(table.times)
    rows = [one for one in found.found if one.kind != "job"]
    if table.work is not None and rows:
        fair = {rank for one in table.stragglers(table.times / table.work).found if one.kind != "job" for rank in one.ranks}
        rows = [one for one in rows if set(one.ranks) <= fair]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = against_others(np.log(np.where(table.times > 0, table.times, np.nan)))
    named = [_still(dict(one), table, ratio) for one in out["told"]]
    known = {rank for one in named if one["until_step"] is None for rank in one["ranks"]}
    waiting = []
    for one in out["candidates"]:
        if known & set(one["ranks"]):
            continue
        answer = _confirmed(one, table, ratio)
        if answer is None:
            waiting.append(one)
        elif answer:
            named.append({**one, "confirmed": True})
            known |= set(one["ranks"])
    seen = {rank for one in waiting for rank in one["ranks"]} | known
    waiting += [_row(new, table.steps[-1]) for new in rows if new.until_step is None and not seen & set(new.ranks)]
    if last:
        named += [one for one in waiting if one["low"] >= MINIMUM and (one["chance"] or 0.0) <= _ONCE]
        waiting = []
    job = next((one for one in found.found if one.kind == "job"), None)
    return {**out, "told": named, "candidates": waiting, "job": _row(job, table.steps[-1]) if job else None, "why": found.why}


class _Table:
    """Steps as columns, ranks as rows; `times` is what each rank needed by itself, as far as that can be told."""

    def __init__(self, told: Iterable[Progress]) -> None:
        import numpy as np

        moments: dict[int, dict[int, Progress]] = {}
        paused: set[int] = set()
        for one in told:
            if one.rank is None or one.time is None:
                continue
            step = int(one.step)
            if one.phase is not None:
                paused |= {step, step + 1}  # what was announced is in the time of the step that is told next
                continue
            moments.setdefault(step, {})[one.rank] = one
        ordered = sorted(moments, key=lambda step: min(one.time or 0.0 for one in moments[step].values()))[-_WINDOW - 1 :]
        self.ranks = sorted({rank for step in ordered for rank in moments[step]})
        at = {rank: row for row, rank in enumerate(self.ranks)}
        shape = (len(self.ranks), len(ordered))
        when, own, work = (np.full(shape, np.nan) for _ in range(3))
        nodes: list[str | None] = [None] * len(self.ranks)
        for column, step in enumerate(ordered):
            for rank, one in moments[step].items():
                row = at[rank]
                when[row, column] = one.time
                own[row, column] = one.seconds if one.seconds is not None else np.nan
                work[row, column] = one.samples if one.samples else np.nan
                nodes[row] = one.node or nodes[row]
        self.nodes, self.steps = nodes, ordered[1:]
        self.moments: list[float] = []
        self.times: Any = np.empty((len(self.ranks), 0))
        self.work: Any = None
        if len(ordered) < 2 or not self.ranks:
            return
        self.moments = [float(one) for one in np.nanmedian(when[:, 1:], axis=0)]
        told_own = np.isfinite(own).sum() > 0.5 * np.isfinite(when).sum()
        self.times = own[:, 1:] if told_own else _by_arrival(when, np.array(ordered))
        self.times = np.where(np.isin(ordered[1:], list(paused))[None, :], np.nan, self.times)
        if np.isfinite(work).sum() > 0.9 * np.isfinite(when).sum():
            self.work = work[:, 1:]

    def stragglers(self, times: Any) -> Stragglers:
        return find_stragglers(times, nodes=self.nodes, steps=self.steps, moments=self.moments, ranks=self.ranks)


def _by_arrival(when: Any, steps: Any) -> Any:
    """
    Return what each rank needed for its step by itself, when only the moments of its calls are known.

    Where ranks wait for each other in each step, nobody begins one before the last rank has come to the end of the one before: a rank's own
    time is from there to its call, whoever it waits for afterwards. Where they do not, it is from its own last call.
    """
    import numpy as np

    apart = np.maximum(np.diff(steps), 1)[None, :]
    together = when[:, 1:] - np.nanmax(when[:, :-1], axis=0)[None, :]
    known = np.isfinite(together)
    if (together[known] <= 0).mean() > _AHEAD:
        together = np.diff(when, axis=1)
    return together / apart


def _row(one: Straggler, step: int) -> dict[str, Any]:
    row = asdict(one)
    return {
        **{key: row[key] for key in ("kind", "node", "since_step", "factor", "low", "high", "until_step")},
        "ranks": list(one.ranks) if one.kind != "job" else [],
        "since": one.since_time,
        "chance": one.p if math.isfinite(one.p) else None,
        "seen": step,
        "confirmed": False,
    }


def _levels(one: Mapping[str, Any], table: _Table, ratio: Any, after: int) -> tuple[Any, Any] | None:
    """Return the known log ratios of a unit's ranks before it became slow, and those of the steps after one; None while there are too few."""
    import warnings

    import numpy as np

    rows = [table.ranks.index(rank) for rank in one["ranks"] if rank in table.ranks]
    if not rows:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(ratio[rows], axis=0)
    steps = np.array(table.steps)
    old, new = mean[steps < one["since_step"]], mean[steps > after]
    old, new = old[np.isfinite(old)], new[np.isfinite(new)]
    if len(new) < _FRESH:
        return None
    return (old, new) if len(old) >= _FRESH // 2 else (None, new)


def _confirmed(one: Mapping[str, Any], table: _Table, ratio: Any) -> bool | None:
    """Tell whether steps after the look say the same; None: not yet to be told."""
    import numpy as np

    levels = _levels(one, table, ratio, one["seen"])
    if levels is None:
        return None
    old, new = levels
    if old is None:
        return False  # what it was before is out of sight: it is found anew or not at all
    rise = float(np.median(new) - np.median(old))
    rest = np.concatenate([old - np.median(old), new - np.median(new)])
    spread = max(float(np.quantile(np.abs(rest), 0.68)), 1e-3)
    error = 1.2533 * spread * math.sqrt(1.0 / len(old) + 1.0 / len(new))
    return rise > _SURE * error and rise > 0.5 * math.log(one["factor"])


def _still(one: dict[str, Any], table: _Table, ratio: Any) -> dict[str, Any]:
    """Return a named one, with the step from which it was as before again where that is so."""
    import numpy as np

    if one["until_step"] is not None or (levels := _levels(one, table, ratio, table.steps[-_FRESH - 1])) is None:
        return one
    old, new = levels
    if old is not None and float(np.median(new) - np.median(old)) < 0.3 * math.log(one["factor"]):
        # where the sum of what lies above the middle of both levels is largest, the lower one begins
        after = _levels(one, table, ratio, one["since_step"] - 1)
        above = np.cumsum((after or levels)[1] - math.log(one["factor"]) / 2 - float(np.median(old)))
        one["until_step"] = int(table.steps[-len(above) :][min(int(above.argmax()) + 1, len(above) - 1)])
    return one


def sentence(one: Mapping[str, Any]) -> str:
    """Return who is slow since when and by how much, in the words that triage reads (signature ``run-straggler``)."""
    from workbench.report.text import clean, iso

    ranks = ", ".join(map(str, one["ranks"][:8])) + (" …" if len(one["ranks"]) > 8 else "")
    node = clean(str(one["node"])) if one["node"] else ""
    on = f" on node {node}" if node else ""
    who = f"rank {one['ranks'][0]}{on}" if one["kind"] == "rank" else f"node {node} (ranks {ranks})"
    times = f"{one['factor']:.2f} times ({one['low']:.2f} to {one['high']:.2f})"
    when = f" ({iso(one['since'])})" if one["since"] is not None else ""
    if one["until_step"] is not None:
        return f"{who} is as fast as before again since step {one['until_step']}"
    chance = f"; chance makes this of one healthy job in {max(2, round(1 / one['chance']))}" if one["chance"] else ""
    sure = "; later steps say the same" if one["confirmed"] else f"; seen once{chance}"
    what = f"straggler: {who} takes {times} as long as before for its own part of a step, against the other ranks"
    return f"{what}, since step {one['since_step']}{when}{sure}"


def look(folder: Path, *, last: bool = False) -> dict[str, Any]:
    """Judge an attempt's progress file, and write what is known now beside it."""
    from workbench.durable import write_bytes

    try:
        before = json.loads((folder / FILE).read_bytes())
        before = before if isinstance(before, dict) and before.get("schema") == SCHEMA else NOTHING
    except (OSError, ValueError):
        before = NOTHING
    found = judged(_tail(folder / "progress"), before, last=last) | {"cpu": round(time.process_time(), 3)}
    if found["told"] or found["candidates"] or found["looks"] > 1 or not last:
        write_bytes(folder / FILE, json.dumps(found, indent=1).encode() + b"\n")
    return found


def _tail(path: Path) -> list[Progress]:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _MOST))
            if size > _MOST:
                stream.readline()
            data = stream.read(_MOST)
    except OSError:
        return []
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [one for line in lines if (one := read_line(line.decode("ascii", "replace"))) is not None]


def main(arguments: Sequence[str]) -> int:
    """Look at the attempt's folder that is named, and print what was found."""
    os.nice(19)  # the job comes first
    found = look(Path(arguments[0]), last="--last" in arguments)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
