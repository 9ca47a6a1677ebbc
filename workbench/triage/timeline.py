"""
Turn the stamps of many clocks into one timeline: skew and time zones corrected, unstamped lines bounded, the job's life line found.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from statistics import median

from workbench.model import Event
from workbench.triage.context import JOB_SOURCES, Context, Life

__all__ = [
    "anchor_uptimes",
    "bound_times",
    "correct_local_time",
    "estimate_skew",
    "find_failure",
    "find_job_zone",
    "read_progress",
]

_HALF_HOUR = 1800.0
# no place on earth is less than an hour from UTC, or more than fourteen (tzdata 2025b): what is off by half an hour is a clock that is wrong
_NEAREST, _FARTHEST = 3600.0, 14 * 3600.0


def read_progress(context: Context) -> None:
    starts: list[tuple[int, float]] = []
    for document in context.incident.documents:
        facts = document.facts
        for row in facts.get("progress") or []:
            time, rank, step = row[0], row[1], row[2]
            if time is not None:
                context.progress.append((time, rank, step, row[3] if len(row) > 3 else None))
        for rank, last in (facts.get("ranks") or {}).items():
            have = context.rank_last.get(rank)
            if have is None or (last.get("last_time") or 0) > (have.get("last_time") or 0):
                context.rank_last[rank] = last
        starts += [
            (int(attempt.get("attempt") or 0), float(attempt["time"]))
            for attempt in facts.get("attempts") or []
            if isinstance(attempt.get("time"), (int, float))
        ]
        evidence = facts.get("finished_evidence")
        if isinstance(evidence, Event):
            context.finished.append(evidence)
    context.progress.sort(key=lambda row: row[0])
    by_number: dict[int, float] = {}
    for number, time in starts:
        by_number[number] = min(time, by_number.get(number, time))
    for number, time in sorted(by_number.items(), key=lambda item: item[1]):
        if context.lives and time - context.lives[-1].start < 10.0:
            continue  # the ranks of one start announce themselves within seconds
        if context.lives:
            context.lives[-1].until = time
        context.lives.append(Life(number, time))


def find_job_zone(context: Context) -> None:
    """
    Find by how many half-hours the job's stamps, which have no zone, are ahead of UTC, and bring its life line to UTC.

    The platform's record of the job's pods is in UTC and ends when the log does; exporters' stamps are in UTC and reach past the job's
    end, by at most the time that a collection takes. Both ends of a job that agree leave no doubt, one alone may.
    """
    stamps = [
        (row["first_time"] - ahead, row["last_time"] - ahead)
        for rank, row in context.rank_last.items()
        if row.get("last_time") and row.get("first_time")
        for ahead in [context.skew.get(context.rank_node.get(rank) or "", 0.0)]  # one wrong clock among many is no time zone
    ]
    if not stamps or any(document.facts.get("zoned") for document in context.incident.documents if document.kind == "job-log"):
        return
    first, last = min(first for first, _ in stamps), max(last for _, last in stamps)
    offset = _by_pods(context, first, last)
    if offset is None:
        offset = _by_metrics(context, last)
    if not offset or not _NEAREST <= abs(offset) <= _FARTHEST:
        return
    context.job_offset = offset
    context.progress = [(time - offset, rank, step, seconds) for time, rank, step, seconds in context.progress]
    context.rank_last = {
        rank: {**row, **{name: row[name] - offset for name in ("first_time", "last_time") if row.get(name)}}
        for rank, row in context.rank_last.items()
    }
    for life in context.lives:
        life.start -= offset
        life.until -= offset


def _by_pods(context: Context, first: float, last: float) -> float | None:
    pods: dict[str, dict[str, float]] = {}
    for document in context.incident.documents:
        found = document.facts.get("pods")
        if isinstance(found, dict):
            pods.update({name: facts for name, facts in found.items() if name in context.job_pods})
    starts = [facts["start"] for facts in pods.values() if facts.get("start")]
    ends = [facts["end"] for facts in pods.values() if facts.get("end")]
    for sure, seen in ((max(ends, default=None), last), (min(starts, default=None), first)):
        if sure is None:
            continue
        offset = round((seen - sure) / _HALF_HOUR) * _HALF_HOUR
        if abs(seen - sure - offset) < 180.0:
            return offset
    return None


def _by_metrics(context: Context, last: float) -> float | None:
    ends = sorted(float(one.times[-1]) for one in context.incident.series if len(one.times) > 1 and one.node in context.job_nodes)
    if not ends:
        return None
    end = ends[len(ends) // 2]
    begin = min(float(one.times[0]) for one in context.incident.series if len(one.times) > 1)
    if begin <= last <= end + 120.0:
        return 0.0
    return math.ceil((last - end - 120.0) / _HALF_HOUR) * _HALF_HOUR


def anchor_uptimes(context: Context, events: list[Event]) -> None:
    """Give kernel lines that carry only the time since boot a wall time, where another source tells when the node last booted."""
    boots: dict[str, float] = {}
    for one in context.incident.series:
        if one.field == "node_boot_time_seconds" and one.node and len(one.values):
            boots[context.node(one.node) or one.node] = float(one.values[-1])
    for condition in context.incident.condition_records:
        if condition.name == "BootTime" and condition.node and condition.since:
            boots.setdefault(context.node(condition.node) or condition.node, condition.since - context.job_offset)
    newest: dict[str, int] = {}
    for event in events:
        if event.source == "kernel" and isinstance(event.data.get("boot"), int):
            newest[event.file] = max(newest.get(event.file, 0), event.data["boot"])
    for event in events:
        uptime = event.data.get("uptime")
        if event.source != "kernel" or event.time is not None or not isinstance(uptime, (int, float)) or event.node not in boots:
            continue
        if event.data.get("boot", 0) == newest.get(event.file, 0):
            event.time = boots[event.node] + float(uptime)
            event.last = event.time + max(0.0, float(event.data.get("last_uptime", uptime)) - float(uptime))
            event.data["time_from"] = "boot"


def estimate_skew(context: Context, homes: Callable[[Context], dict[str, str]]) -> None:
    """
    Estimate how far each node's clock is ahead, from steps that all ranks finish together.

    A step of synchronous training ends everywhere with the same collective, so the stamps of one step number differ between
    nodes by their clocks; the median over steps is robust against a rank that logs late.
    """
    by_step: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for time, rank, step, _ in context.progress:
        node = context.rank_node.get(rank) if rank is not None else None
        if node is not None and step is not None:
            by_step[step][node].append(time)
    if not by_step or all(len(nodes) < 2 for nodes in by_step.values()):
        _skew_by_ends(context, homes)
        return
    offsets: dict[str, list[float]] = defaultdict(list)
    for nodes in by_step.values():
        if len(nodes) < 2:
            continue
        stamps = {node: median(times) for node, times in nodes.items()}
        middle = median(stamps.values()) if len(stamps) > 2 else min(stamps.values())
        for node, time in stamps.items():
            offsets[node].append(time - middle)
    for node, values in offsets.items():
        ahead = median(values)
        spread = median(abs(value - ahead) for value in values)
        if len(values) >= 3 and abs(ahead) > 2.0 and spread < abs(ahead) / 4:
            context.skew[node] = round(ahead, 3)


_ENDS_AGREE = 20.0  # seconds within which a node's first and last lines must be off alike


def _skew_by_ends(context: Context, homes: Callable[[Context], dict[str, str]]) -> None:
    """
    Without steps that several nodes tell: a node whose ranks begin and end earlier (or later) than all others by the same time.

    Ranks of one job come up together (nothing begins before all have joined) and end together when one fails; a node that only
    starts late, or only ends early, is off at one end.
    """
    ends: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for rank, row in context.rank_last.items():
        node = context.rank_node.get(rank)
        if node is not None and row.get("first_time") and row.get("last_time"):
            ends[node][0].append(row["first_time"])
            ends[node][1].append(row["last_time"])
    if len(ends) < 3 or not context.progress:
        return  # without a step, one that joins late may also give up late: its time-out is as long as the others'
    written = homes(context)
    for record in context.incident.records:
        if record.source in JOB_SOURCES and record.time is not None and not record.data.get("time_from"):
            node = context.node(record.node) or written.get(record.file)
            if node in ends:
                ends[node][1].append(record.time)
    first = {node: median(times[0]) for node, times in ends.items()}
    last = {node: max(times[1]) for node, times in ends.items()}
    for node in ends:
        others = [other for other in ends if other != node]
        begin = first[node] - median(first[other] for other in others)
        end = last[node] - median(last[other] for other in others)
        spread = max(max(side[other] for other in others) - min(side[other] for other in others) for side in (first, last))
        if abs(begin) > 3 * _ENDS_AGREE and abs(begin - end) < _ENDS_AGREE and spread < abs(begin) / 4:
            context.skew[node] = round(begin, 3)


def find_failure(context: Context) -> None:
    """Establish, per start of the job, when it began, stopped making steps, failed first and ended."""
    skew = context.skew

    def shift(time: float, rank: int | None) -> float:
        return time - skew.get(context.rank_node.get(rank, "") if rank is not None else "", 0.0) if skew else time

    context.progress = sorted(
        ((shift(time, rank), rank, step, seconds) for time, rank, step, seconds in context.progress), key=lambda row: row[0]
    )
    events = [event for event in context.events if event.source in JOB_SOURCES and event.time is not None]
    stamps = [shift(last["last_time"], rank) for rank, last in context.rank_last.items() if last.get("last_time")]
    firsts = [shift(last["first_time"], rank) for rank, last in context.rank_last.items() if last.get("first_time")]
    begin = firsts + [event.time for event in events if event.time is not None] + [row[0] for row in context.progress[:1]]
    finish = stamps + [event.time for event in events if event.time is not None] + [row[0] for row in context.progress[-1:]]
    # a log that was cut to its end: what timed out in it was begun that long before, by a job that ran
    begin += [event.time - float(event.data["ran_ms"]) / 1000.0 for event in events if event.time and event.data.get("ran_ms")]
    if not begin:
        begin = [job.start - context.job_offset for job in context.incident.jobs if job.start]
    finish += [job.end - context.job_offset for job in context.incident.jobs if job.end] if not finish else []
    context.start = min(begin) if begin else None
    context.end = max(finish) if finish else None
    if context.start is None:
        return
    if not context.lives:
        context.lives = [Life(1, context.start)]
    context.lives[0].start = min(context.lives[0].start, context.start)
    for life in context.lives:
        steps = [row[0] for row in context.progress if life.start <= row[0] < life.until]
        life.stop = max(steps) if steps else None
        _loosen(events, steps)
        errors = [
            event.time
            for event in events
            if event.time is not None
            and life.start <= event.time < life.until
            and context.role(event) in ("cause", "symptom")
            and context.weight(event) > 0
            and not event.data.get("handled")
        ]
        late = [time for time in errors if life.stop is None or time >= life.stop - context.windows.survived]
        life.fail = min(late, default=None)
        life.slack = min((float(event.data.get("slack") or 0.0) for event in events if event.time == life.fail), default=0.0)
        inside = [time for time in finish if life.start <= time < life.until]
        life.end = max(inside + errors + steps, default=life.start)
        if life.fail is None and (finish or errors or steps):
            life.fail = life.end
    first = context.lives[0]
    context.stop, context.fail = first.stop, first.fail


def _loosen(events: list[Event], steps: list[float]) -> None:
    """
    Say how much later than the last stamped line an unstamped error at the end of a log may be: two of the job's usual steps.

    A traceback that follows the line of a step came while the next one ran, which takes as long as the steps before.
    """
    moments = sorted(set(steps))
    gaps = [after - before for before, after in pairwise(moments) if after - before >= 1.0]
    if not gaps:
        return
    for event in events:
        if event.data.get("time_from") == "previous" and event.time == moments[-1]:
            event.data["slack"] = min(600.0, 2.0 * median(gaps[-20:]))


def correct_local_time(context: Context, events: list[Event]) -> None:
    """
    Correct kernel logs in local time without zone: whole half-hours bring their last line to the others' end.

    Logs are collected together, so the newest kernel lines of all nodes lie close; a log that ends hours away is in another zone. With
    no log of known zone the job's own end is the reference, which collection may follow by minutes but not precede.
    """
    ends: dict[str, float] = {}
    naive: set[str] = set()
    for document in context.incident.documents:
        if document.kind != "kernel-log":
            continue
        last = document.facts.get("last")
        if not isinstance(last, (int, float)):
            last = max((event.time for event in events if event.file == document.name and event.time is not None), default=None)
        if last is not None:
            ends[document.name] = float(last)
            if document.facts.get("naive_local"):
                naive.add(document.name)
    sure = [time for name, time in ends.items() if name not in naive]
    stamps = [last["last_time"] for last in context.rank_last.values() if last.get("last_time")]
    begin = min((row["first_time"] for row in context.rank_last.values() if row.get("first_time")), default=None)
    reference = max(sure) if sure else max(stamps, default=None)
    if reference is None:
        return
    for name in naive:
        ahead = ends[name] - reference
        if not sure and begin is not None and begin - 900.0 <= ends[name] <= reference + _HALF_HOUR:
            continue  # an excerpt may end with the fault, before the job noticed: it fits as it is
        offset = round(ahead / 900.0) * 900.0 if sure else math.floor((ahead + 120.0) / _HALF_HOUR) * _HALF_HOUR
        if not offset or not _NEAREST <= abs(offset) <= _FARTHEST or (sure and abs(ahead - offset) >= 400.0):
            continue
        for event in events:
            if event.file == name and event.time is not None:
                event.time -= offset
                event.last = event.last - offset if event.last is not None else None
                event.data["utc_offset"] = offset


_ENDED = ("elastic-failure", "torchelastic-root-cause", "torchelastic-failure")


def _seen_to_end(event: Event, ends: dict[int, list[Event]]) -> float | None:
    """Return when the agent of a rank saw it end, the first time after a moment; None when none did, or in another start of the job."""
    seen = [
        end.time
        for end in (ends.get(event.rank, ()) if event.rank is not None else ())
        if end.time is not None
        and end.time >= float(event.data["not_before"]) - 1.0
        and (event.attempt is None or end.attempt is None or event.attempt == end.attempt)
    ]
    return min(seen, default=None)


def bound_times(events: list[Event], latest: float | None = None) -> None:
    """
    Give lines without a stamp of their own a time between the stamped lines around them.

    A traceback inherits the stamp of the line before it, which may be hours old in a log that was cut or is quiet; then the next
    stamped line of the file is the better witness, and without one the moment at which its agent saw the rank end (to the second).
    Without that the time is not known. `latest` is the time of the job's last step.
    """
    ends: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.signature in _ENDED and event.rank is not None and event.time is not None:
            ends[event.rank].append(event)
    by_file: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.source in (*JOB_SOURCES, "slurm") and event.line is not None:
            by_file[event.file].append(event)
    newest = max(
        (
            event.time
            for event in events
            if event.source in JOB_SOURCES and event.time is not None and not event.data.get("time_from")
        ),
        default=latest,
    )
    newest = newest if newest is None or latest is None else max(newest, latest)
    for rows in by_file.values():
        rows.sort(key=lambda event: event.line or 0, reverse=True)
        following: float | None = None
        for event in rows:
            if not event.data.get("time_from"):
                following = event.time if event.time is not None else following
            elif event.time is not None:
                limit = event.data.get("not_after")
                if isinstance(limit, float):
                    limit -= event.data.get("clock_ahead", 0.0)
                    following = limit if following is None else min(limit, following)
                if following is not None and following - event.time > 60.0:
                    event.data["not_before"] = event.time
                    event.time = event.last = following
                elif following is None and newest is not None and newest - event.time > 120.0:
                    event.data["not_before"] = event.time
                    event.time = event.last = _seen_to_end(event, ends)
