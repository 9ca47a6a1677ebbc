"""Turn what the parsers counted of every rank's lines, and the verdict, into the rank × time map: lines, steps and states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, log2
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.casefile.model import STATES, Activity
from workbench.casefile.sampled import divided, points_of
from workbench.triage.build import homes

if TYPE_CHECKING:
    from workbench.triage.context import Context

__all__ = ["PIECES", "Marks", "Sightings", "build_activity", "see"]

PIECES = 256  # at most; half as many at least, but of a job shorter than a minute
_FINEST = -3  # an eighth of a second, as `workbench.parse.activity`
_REGULAR = 4  # pieces in which a rank must have spoken before its silence says anything
_SLACK = 3.0  # usual gaps after which a rank is silent rather than between two lines
_DENSE = 0.95  # of a rank that speaks in so many of the pieces one without a line is a silence
ANYBODY = -1  # lines that tell no rank; the steps that they tell are the job's
_CODE = {name: code for code, name in enumerate(STATES)}


@dataclass(slots=True)
class Sightings:
    """
    What was seen of the ranks, one entry a rank and piece of a log's time.

    Times are seconds since the epoch, on the common clock; `steps` is -1 where none was told. `holes` are stretches of which lines
    are known to be there but were not looked at: (rank, from, to, lines). The rank is `ANYBODY` where no rank is told.
    """

    ranks: np.ndarray  # int64
    times: np.ndarray  # float64, middle of the piece
    lines: np.ndarray  # int64
    steps: np.ndarray  # int64
    seconds: float = 0.0  # the longest piece
    holes: list[tuple[int, float, float, int]] | None = None


@dataclass(slots=True)
class Marks:
    """What else is known of each rank, aligned with the ranks: seconds since the epoch, NaN where it is not known."""

    ranks: np.ndarray
    culprit: np.ndarray
    failed: np.ndarray
    victim: np.ndarray
    start: float | None = None  # of the job
    end: float | None = None
    ended_well: bool = False
    in_step: bool = False  # the ranks are one world, which makes each step together
    works: list[tuple[int, np.ndarray]] | None = None  # row, moments at which its GPU did arithmetic


def see(context: Context) -> Sightings:
    """Gather what the logs' parsers counted, each speaker under its rank."""
    home_of = homes(context)
    local = {(context.rank_node.get(rank), number): rank for rank, number in context.rank_local.items()}
    parts: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []  # rank, times, lines, steps
    holes: list[tuple[int, float, float, int]] = []
    extra: list[tuple[int, float, int]] = []  # sampled lines: rank, time, step
    longest = 0.0
    for document in context.incident.documents:
        told = document.facts.get("activity")
        if not told or not (told["rows"] or told["lines"]):
            continue
        owner: set[int] = set()
        for speaker, columns in (*told["rows"].items(), *told["lines"].items()):
            rank = speaker if isinstance(speaker, int) else _by_place(context, local, speaker, home_of.get(document.name))
            owner.add(rank)
            steps = np.frombuffer(columns[-1], np.int64)
            if rank == ANYBODY and steps.max(initial=-1) < 0:
                continue  # lines of nobody that tell no step say nothing of a rank
            if len(columns) == 2:
                times, lines = np.frombuffer(columns[0], np.float64), np.ones(len(steps), np.int64)
            else:
                times, lines = (np.frombuffer(columns[0], np.int64) + 0.5) * told["seconds"], np.frombuffer(columns[1], np.int64)
            shift = context.job_offset + context.skew.get(context.rank_node.get(rank, ""), 0.0)
            parts.append((rank, times - shift if shift else times, lines, steps))
        longest = max(longest, told["seconds"])
        if told["holes"]:
            whose = owner.pop() if len(owner) == 1 else ANYBODY
            shift = context.job_offset + context.skew.get(context.rank_node.get(whose, ""), 0.0)
            points = points_of(document.facts.get("samples") or (), whose)
            holes += [(whose, begin - shift, end - shift, count) for begin, end, count in divided(told["holes"], points)]
            extra += [(rank, time - shift, step) for time, rank, step in points if rank != ANYBODY or step >= 0]
    more = np.asarray(extra, np.float64).reshape(-1, 3)
    none = np.zeros(0, np.int64)
    return Sightings(
        np.concatenate(
            [np.repeat([row[0] for row in parts], [len(row[1]) for row in parts]).astype(np.int64), more[:, 0].astype(np.int64)]
        ),
        np.concatenate([*[row[1] for row in parts], more[:, 1]]),
        np.concatenate([none, *[row[2] for row in parts], np.ones(len(more), np.int64)]),
        np.concatenate([none, *[row[3] for row in parts], more[:, 2].astype(np.int64)]),
        longest,
        holes,
    )


def _by_place(
    context: Context,
    local: Mapping[tuple[str | None, int], int],
    speaker: tuple[str | None, str | None, int | None],
    home: str | None,
) -> int:
    node, pod, number = speaker
    return ANYBODY if number is None else local.get((context.node(node or pod or home), number), ANYBODY)


def build_activity(seen: Sightings, marks: Marks) -> Activity | None:
    """
    Return the map of all ranks, or None when no rank is known or nothing has a time.

    A rank is drawn as running only in a piece in which it wrote a line, or between two of its lines that are no farther apart than its
    lines usually are. Where its log was not looked at, or it never said much, the state is unknown.
    """
    edges = _edges(seen, marks)
    if edges is None or not len(marks.ranks):
        return None
    marks = _with_anybody(marks)
    count, width = len(edges) - 1, edges[1] - edges[0]
    shape = (len(marks.ranks), count)
    rows = np.searchsorted(marks.ranks, seen.ranks)
    rows[rows == shape[0]] = 0
    inside = (marks.ranks[rows] == seen.ranks) & (seen.times >= edges[0]) & (seen.times < edges[-1])
    at = ((seen.times - edges[0]) // width).astype(np.int64)
    flat = (rows * count + at)[inside]
    lines = np.bincount(flat, seen.lines[inside], shape[0] * count).astype(np.float64, copy=False).reshape(shape)
    steps, told = _steps(seen, inside, flat, shape)
    unseen = _fill_holes(seen, marks, edges, lines)
    states = _states(marks, edges, lines, steps, unseen)
    if steps is not None:
        _advanced(states, steps, told)
    _work(marks, edges, states, steps)
    stamped = bool(inside.any())
    told_of_ranks = steps is not None and not np.isnan(steps[1:]).all()
    return Activity(
        marks.ranks[1:],
        edges,
        states[1:],
        steps[1:] if steps is not None and told_of_ranks else None,
        np.minimum(np.rint(lines[1:]), 2**32 - 1).astype(np.uint32) if stamped else None,
    )


def _with_anybody(marks: Marks) -> Marks:
    """Put a row for lines of no rank before the others."""
    unknown = np.full(1, np.nan)
    return replace(
        marks,
        ranks=np.concatenate([np.full(1, ANYBODY), marks.ranks]),
        culprit=np.concatenate([unknown, marks.culprit]),
        failed=np.concatenate([unknown, marks.failed]),
        victim=np.concatenate([unknown, marks.victim]),
        works=[(row + 1, moments) for row, moments in marks.works or ()],
    )


def _edges(seen: Sightings, marks: Marks) -> np.ndarray | None:
    known = [seen.times] + [times[~np.isnan(times)] for times in (marks.culprit, marks.failed, marks.victim)]
    moments = np.concatenate([*known, [time for time in (marks.start, marks.end) if time is not None]])
    if not len(moments):
        return None
    # one line with the stamp of another year must not stretch the map until nothing can be told apart on it
    middle = float(np.median(moments[:: max(len(moments) // 10_000, 1)]))
    moments = moments[np.abs(moments - middle) <= _YEAR / 4]
    first, last = float(moments.min()), float(moments.max())
    finest = log2(seen.seconds) if seen.seconds else _FINEST
    width = 2.0 ** max(finest, _FINEST, ceil(log2(max(last - first, 1.0) / (PIECES - 4))))
    begin = floor(first / width)
    end = max(floor(last / width) + 2, begin + 2)  # one piece after the end, in which nobody works any more
    return np.arange(begin, end + 1, dtype=np.float64) * width


_YEAR = 365.25 * 86400.0


def _steps(seen: Sightings, inside: np.ndarray, flat: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the last step up to the end of each piece, and in which pieces one was told."""
    told = seen.steps[inside] >= 0
    if not told.any():
        return None, np.zeros(shape, bool)
    places, numbers, times = flat[told], seen.steps[inside][told], seen.times[inside][told]
    steps = np.full(shape[0] * shape[1], np.nan, np.float32)
    steps[places] = numbers
    several = np.bincount(places, minlength=len(steps))[places] > 1
    order = np.argsort(times[several], kind="stable")  # of several in a piece the last stays
    steps[places[several][order]] = numbers[several][order]
    steps = steps.reshape(shape)
    known = ~np.isnan(steps)
    last = np.where(known, np.arange(shape[1]), 0)
    np.maximum.accumulate(last, axis=1, out=last)
    return np.take_along_axis(steps, last, axis=1), known


def _fill_holes(seen: Sightings, marks: Marks, edges: np.ndarray, lines: np.ndarray) -> np.ndarray | None:
    """Spread lines that were not looked at evenly over their stretch; return the pieces in which nobody looked at anything."""
    if not seen.holes:
        return None
    count, width = lines.shape[1], edges[1] - edges[0]
    holes = np.asarray(seen.holes, np.float64)
    holes = holes[(holes[:, 2] > edges[0]) & (holes[:, 1] < edges[-1])]
    holes = holes[np.isin(holes[:, 0], marks.ranks)]
    rows = np.searchsorted(marks.ranks, holes[:, 0])
    begin, end = (np.clip((holes[:, at] - edges[0]) / width, 0.0, count - 1e-9) for at in (1, 2))
    first, last = begin.astype(np.int64), end.astype(np.int64)
    hidden = np.zeros((len(marks.ranks), count + 1))
    inside = last > first
    np.add.at(hidden, (rows[inside], first[inside] + 1), 1.0)
    np.add.at(hidden, (rows[inside], last[inside]), -1.0)
    own = holes[:, 0] != ANYBODY
    rate = np.where(own, holes[:, 3] / np.maximum((holes[:, 2] - holes[:, 1]) / width, 1e-9), 0.0)  # lines a piece
    np.add.at(lines, (rows, first), rate * (np.minimum(end, first + 1) - begin))
    np.add.at(lines, (rows[inside], last[inside]), (rate * (end - last))[inside])
    whole = np.zeros((len(marks.ranks), count + 1))
    np.add.at(whole, (rows[inside], first[inside] + 1), rate[inside])
    np.add.at(whole, (rows[inside], last[inside]), -rate[inside])
    lines += np.maximum(np.cumsum(whole, axis=1)[:, :count], 0.0)
    lines[lines < _TRACE] = 0.0  # what is left of adding and taking away
    unseen: np.ndarray = np.cumsum(hidden, axis=1)[:, :count] > 0.5
    unseen |= unseen[0].copy()  # the first row is of anybody
    return unseen


_TRACE = 1e-3  # of a line


def _states(
    marks: Marks, edges: np.ndarray, lines: np.ndarray, steps: np.ndarray | None, unseen: np.ndarray | None
) -> np.ndarray:
    count = lines.shape[1]
    pieces = np.arange(count, dtype=np.int32)
    width = edges[1] - edges[0]

    def piece(times: Any) -> Any:
        """Number of the piece a time lies in; `count` when it is not known."""
        times = np.asarray(times, np.float64)
        return np.where(np.isnan(times), count, np.clip((times - edges[0]) // width, 0, count)).astype(np.int64)

    spoke = lines > 0
    any_line = np.asarray(spoke.any(axis=1))
    first = np.where(any_line, spoke.argmax(axis=1), count)
    last = np.where(any_line, count - 1 - spoke[:, ::-1].argmax(axis=1), -1)
    end = int(piece(np.nan if marks.end is None else marks.end))
    end = count - 1 if end == count else end
    before = np.maximum.accumulate(np.where(spoke, pieces, -1), axis=1)
    after = np.minimum.accumulate(np.where(spoke, pieces, count)[:, ::-1], axis=1)[:, ::-1]
    gap = np.where(after == count, np.maximum(end, before + 1), after) - before
    allowed, regular = _usual(spoke, before, first, last)

    states = np.full(lines.shape, _CODE["unknown"], np.uint8)
    within = (pieces >= first[:, None]) & (pieces <= end)
    quiet = within & ~spoke
    states[spoke | (quiet & (gap <= allowed[:, None]))] = _CODE["running"]
    silent = quiet & (gap > allowed[:, None]) & (regular if unseen is None else regular & ~unseen)
    states[silent] = _CODE["silent"]
    begin = piece(np.nan if marks.start is None else marks.start)
    begun = int(begin) if begin < count else int(first.min())
    if steps is not None:
        told = ~np.isnan(steps)
        works = np.where(told.any(axis=1), told.argmax(axis=1), count)
        earliest = int(works.min())
        works = np.minimum(works, np.where(works < count, works, earliest))  # who tells no steps works when the others do
        states[(states == _CODE["running"]) & (pieces < works[:, None])] = _CODE["starting"]
        # a rank whose first stamped line comes later than the job's first step may have been there long before
        late = any_line & (first <= earliest)
        states[late[:, None] & (pieces < first[:, None])] = _CODE["absent"]
    states[:, pieces < begun] = _CODE["absent"]

    over = np.full(count, False)
    if marks.end is not None:
        over[end + 1 :] = True
    for name, since in (("failed", marks.failed), ("victim", marks.victim), ("culprit", marks.culprit)):
        states[(pieces >= piece(since)[:, None]) & ~over] = _CODE[name]
    states[:, over] = _CODE["done"]
    return states


_STEADY = 0.5  # of its pace over the whole job


def _advanced(states: np.ndarray, steps: np.ndarray, told: np.ndarray) -> None:
    """Draw as running the time between two steps of a rank that it made at about its usual pace, though it wrote nothing in between."""
    count = states.shape[1]
    pieces = np.arange(count, dtype=np.int32)
    before = np.maximum.accumulate(np.where(told, pieces, -1), axis=1)
    after = np.minimum.accumulate(np.where(told, pieces, count)[:, ::-1], axis=1)[:, ::-1]
    between = (before >= 0) & (after < count) & ~told
    if not between.any():
        return
    later = np.take_along_axis(steps, np.minimum(after, count - 1), axis=1)
    pace = (later - steps) / np.maximum(after - before, 1)
    first, last = told.argmax(axis=1), count - 1 - told[:, ::-1].argmax(axis=1)
    rows = np.arange(len(states))
    usual = (steps[rows, last] - steps[rows, first]) / np.maximum(last - first, 1)
    steady = between & (usual[:, None] > 0) & (pace >= _STEADY * usual[:, None])
    states[steady & ((states == _CODE["unknown"]) | (states == _CODE["silent"]))] = _CODE["running"]


def _work(marks: Marks, edges: np.ndarray, states: np.ndarray, steps: np.ndarray | None) -> None:
    """
    Draw as running what others than the rank's own lines show at work.

    A step that one rank of a world tells was made by all of them, since each step ends with a collective; and a GPU whose tensor cores
    are busy computes, which a kernel that waits in a collective does not.
    """
    quiet = (states == _CODE["unknown"]) | (states == _CODE["silent"])
    if marks.in_step and steps is not None:
        told = ~np.isnan(steps)
        moved = told[:, 1:] & (~told[:, :-1] | (steps[:, 1:] != steps[:, :-1]))
        telling = told.any(axis=1)
        at_work = ((states == _CODE["running"]) & telling[:, None]).any(axis=0)
        if moved.any():
            # after the last step that was told nobody is known to work
            at_work[int(np.flatnonzero(moved.any(axis=0))[-1]) + 2 :] = False
        states[quiet & at_work] = _CODE["running"]
    if marks.works:
        rows = np.repeat([row for row, _ in marks.works], [len(moments) for _, moments in marks.works])
        at = ((np.concatenate([moments for _, moments in marks.works]) - edges[0]) // (edges[1] - edges[0])).astype(np.int64)
        inside = (at >= 0) & (at < states.shape[1])
        rows, at = rows[inside], at[inside]
        inside = quiet[rows, at]
        states[rows[inside], at[inside]] = _CODE["running"]


def _usual(spoke: np.ndarray, before: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return per rank the gap between two of its lines that says nothing yet (pieces), and per piece whether it had spoken regularly."""
    count = spoke.shape[1]
    pieces = np.arange(count, dtype=np.int32)
    earlier = np.concatenate([np.full((len(spoke), 1), -1), before[:, :-1]], axis=1)
    gaps = np.where(spoke & (earlier >= 0), pieces - earlier, 0)
    number = spoke.sum(axis=1)
    longest = gaps.max(axis=1)
    # the mean of all gaps but the longest, which may be the silence that is looked for
    mean = np.where(number > 2, (last - first - longest) / np.maximum(number - 2, 1), longest)
    allowed = np.where(1.0 / np.maximum(mean, 1.0) >= _DENSE, 1.0, 1.0 + _SLACK * mean)
    allowed[number < _REGULAR] = 1.0  # of who hardly speaks nothing is known between two lines
    return allowed, np.cumsum(spoke, axis=1, dtype=np.int32) >= _REGULAR


def state_at_end(activity: Activity | None, marks: Marks) -> Iterable[str]:
    """Return, rank by rank, how it ended."""
    ends = np.full(len(marks.ranks), _CODE["unknown"])
    if activity is not None and marks.ended_well:
        ends[(activity.states == _CODE["running"]).any(axis=1) | (activity.states == _CODE["starting"]).any(axis=1)] = _CODE[
            "done"
        ]
    for name, since in (("failed", marks.failed), ("victim", marks.victim), ("culprit", marks.culprit)):
        ends[~np.isnan(since)] = _CODE[name]
    return [STATES[code] for code in ends]
