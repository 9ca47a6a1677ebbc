"""
Turn the events that a job logged with ml-goodput-measurement into rows of jobs, attempts and phases, so that one account holds both.

The library (AI-Hypercomputer/ml-goodput-measurement, Apache-2.0; read 2026-11-30: README.md and the rules of its calculator) has its own
categories. `CATEGORIES` says which of ours hold the same time: its three kinds of beginning are one of ours, and its recovery is all of ours
between a failure and the next start. Its rules, which are followed here:

- a step lasts until the next one starts; the last one until the job's end, if that was logged;
- when a job starts again from step s, steps before s were productive and those from s on are wasted progress; the time from the start of
  the last step that was begun (nobody knows whether it ended) until the job's new start is infrastructure recovery;
- when it starts again with the step after the last one begun, that last step counts with the mean time of its run's steps;
- the first step of a run, as far as it took longer than the mean of the run's others, is program startup;
- loading data counts once after each start, later loads run beside steps; writing checkpoints counts where steps wait for it.

Where ours differs: what the library counts twice (a restore within training preparation) is here the narrower kind once, so that all adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CATEGORIES", "Rows", "categories", "rows_of_events"]

# its categories → ours
CATEGORIES: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("PRODUCTIVE",): ("step", "slow"),
    ("TPU_INITIALIZATION", "TRAINING_PREP", "PROGRAM_STARTUP"): ("start", "init"),
    ("DATA_LOADING_SYNC",): ("data",),
    ("UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",): ("save",),
    ("UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",): ("restore",),
    ("WASTED_PROGRESS_FROM_DISRUPTION",): ("lost",),
    ("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",): ("detect", "diagnose", "recover", "queue"),
    ("OTHER",): ("unknown", "idle"),
}
_BEGINS = {
    "tpu_init_start_time": ("tpu_init_end_time", "init"),
    "training_prep_start_time": ("training_prep_end_time", "init"),
    "data_loading_start_time": ("data_loading_end_time", "data"),
}
_ENDS = {end: (begin, kind) for begin, (end, kind) in _BEGINS.items()}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for `workbench.fleet.tables`, and what could not be understood."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Step:
    number: int
    begin: float
    end: float | None
    attempt: int
    lost: bool = False


def categories(parts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    """Return a waterfall's parts (any whole unit) by the library's categories, those that are one of ours together."""
    return {theirs: sum(parts.get(kind, 0) for kind in ours) for theirs, ours in CATEGORIES.items()}


def rows_of_events(events: Iterable[Mapping[str, Any]], *, cluster: str = "", gpus: int | None = None) -> Rows:
    """
    Return a job's account from its events.

    Parameters
    ----------
    events : iterable of mapping
        In the order of their logging, with the library's keys: ``job_name`` and one of ``job_start_time``, ``job_end_time``,
        ``step_count`` with ``step_start_time``, ``tpu_init_start_time`` and ``…_end_time``, ``training_prep_…``, ``data_loading_…``; and the
        checkpoint manager's, with ``event_type`` ``save`` or ``restore``. Times are seconds since the epoch. Events of another kind are
        counted in `problems`.
    cluster : str
        For the rows.
    gpus : int, optional
        For the rows.

    Returns
    -------
    Rows
        Empty, with a problem, if the job's start was not logged.
    """
    events = list(events)
    name = next((str(event["job_name"]) for event in events if event.get("job_name")), "")
    starts: list[float] = []
    steps: list[_Step] = []
    spans: list[tuple[str, float, float]] = []  # kind, begin, end
    recoveries: list[tuple[float, float]] = []
    open_spans: dict[str, float] = {}
    ended: float | None = None
    strange = 0
    loaded = False
    for event in events:
        if "job_start_time" in event:
            starts.append(float(event["job_start_time"]))
            ended, loaded = None, False
        elif "job_end_time" in event:
            ended = float(event["job_end_time"])
        elif "step_start_time" in event and starts:
            _step(steps, recoveries, starts, int(event["step_count"]), float(event["step_start_time"]))
        elif found := [key for key in _BEGINS if key in event]:
            open_spans[found[0]] = float(event[found[0]])
        elif found := [key for key in _ENDS if key in event]:
            begin_key, kind = _ENDS[found[0]]
            begin = open_spans.pop(begin_key, None)
            if begin is None:
                strange += 1
            elif kind != "data" or not loaded:
                spans.append((kind, begin, float(event[found[0]])))
                loaded = loaded or kind == "data"
        elif span := _checkpoint(event):
            spans.append(span)
        else:
            strange += 1
    problems = (f"{strange} events were not understood",) if strange else ()
    if not starts:
        return Rows(problems=("the job's start was not logged", *problems))
    if steps and ended is not None:
        steps[-1].end = ended
    return _rows(name, cluster, gpus, starts, ended, steps, spans, recoveries, problems)


def _step(steps: list[_Step], recoveries: list[tuple[float, float]], starts: list[float], number: int, begin: float) -> None:
    attempt = len(starts)
    last = steps[-1] if steps else None
    if last is not None and last.attempt == attempt:
        last.end = begin
    elif last is not None:
        again = starts[-1]
        if number == last.number + 1:
            run = [one for one in steps if one.attempt == last.attempt and one.end is not None]
            usual = _productive(run) / len(run) if run else 0.0
            last.end = min(again, last.begin + usual)
            recoveries.append((last.end, again))
        else:
            for one in steps:
                one.lost = one.lost or one.number >= number
            recoveries.append((last.begin, again))
    steps.append(_Step(number, begin, None, attempt))


def _startup(run: list[_Step]) -> float:
    """Return how much longer the first step of a run took than the mean of its others."""
    kept = [one for one in run if one.end is not None and not one.lost]
    if len(kept) < 2:
        return 0.0
    first, *others = ((one.end or 0.0) - one.begin for one in kept)
    return max(0.0, first - sum(others) / len(others))


def _productive(run: list[_Step]) -> float:
    return sum((one.end or 0.0) - one.begin for one in run if one.end is not None) - _startup(run)


def _checkpoint(event: Mapping[str, Any]) -> tuple[str, float, float] | None:
    kind = event.get("event_type")
    # the names under which the checkpoint manager (Orbax) logs what steps waited for
    keys = {
        "save": ("checkpoint_manager_blocking_start_time", "checkpoint_manager_blocking_duration_secs"),
        "restore": ("checkpoint_manager_start_time", "checkpoint_manager_duration_secs"),
    }.get(str(kind))
    if keys is None or event.get(keys[0]) is None or event.get(keys[1]) is None:
        return None
    begin = float(event[keys[0]])
    return str(kind), begin, begin + float(event[keys[1]])


def _rows(
    name: str,
    cluster: str,
    gpus: int | None,
    starts: list[float],
    ended: float | None,
    steps: list[_Step],
    spans: list[tuple[str, float, float]],
    recoveries: list[tuple[float, float]],
    problems: tuple[str, ...],
) -> Rows:
    key = {"cluster": cluster, "job": name}
    state = "running" if ended is None else "completed"
    first = steps[0].begin if steps else None
    job: dict[str, Any] = {
        **key,
        "gpus": gpus,
        "submitted": starts[0],
        "started": starts[0],
        "first_step": first,
        "ended": ended,
        "state": state,
    }
    attempts: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []

    def phase(attempt: int, kind: str, begin: float, end: float) -> None:
        if end > begin:
            phases.append({**key, "attempt": attempt, "kind": kind, "begin": begin, "end": end})

    def owner(moment: float) -> int:
        return max(1, sum(start <= moment for start in starts))

    for number, start in enumerate(starts, 1):
        run = [one for one in steps if one.attempt == number]
        over = (
            next((begin for begin, end in recoveries if end == starts[number]), starts[number]) if number < len(starts) else ended
        )
        attempts.append(
            {
                **key,
                "attempt": number,
                "gpus": gpus,
                "queued": start,
                "started": start,
                "first_step": run[0].begin if run else None,
                "ended": over,
                "state": "failed" if number < len(starts) else state,
                "step_first": run[0].number if run else None,
                "step_last": run[-1].number if run else None,
            }
        )
        extra = _startup(run)
        for one in run:
            if one.end is None:
                continue
            kept = one.begin
            if extra and not one.lost:
                kept, extra = one.begin + extra, 0.0
                phase(number, "init", one.begin, kept)
            phase(number, "lost" if one.lost else "step", kept, one.end)
    for kind, begin, end in spans:
        phase(owner(begin), kind, begin, end)
    for begin, end in recoveries:
        phase(owner(begin), "recover", begin, end)
    # two phases of one kind and beginning would be one row of the ledger
    unique = {(row["attempt"], row["kind"], row["begin"]): row for row in sorted(phases, key=lambda row: row["end"])}
    return Rows([job], attempts, list(unique.values()), problems)
