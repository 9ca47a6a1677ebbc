"""Turn placement, logs and verdict into one row a rank, and the moments from which its states are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.casefile.activity import Marks, Sightings

if TYPE_CHECKING:
    import numpy as np

    from workbench.model import Verdict
    from workbench.triage.context import Context

__all__ = ["ranks_of", "tell"]


def ranks_of(context: Context, verdict: Verdict, job: Mapping[str, Any]) -> tuple[dict[str, list[Any]], Marks]:
    """Return the columns of `RANKS`, and the moments that states are drawn from."""
    import numpy as np

    size = context.world_size or 0
    victims = {victim.rank: victim for victim in verdict.victim_records if victim.rank is not None}
    known = set(context.rank_node) | set(context.rank_last) | set(victims) | set(context.rank_local)
    for document in context.incident.documents:
        told = document.facts.get("activity")
        known |= {rank for rank in (*told["rows"], *told["lines"]) if isinstance(rank, int)} if told else set()
    if verdict.rank is not None:
        known.add(verdict.rank)
    if 0 < size <= _MOST_RANKS:
        known |= set(range(size))
    numbers = sorted(known)
    pods = {
        one.rank: one.pod for one in context.incident.placement_records if one.rank is not None and one.pod
    }  # the last word counts
    attempt = verdict.attempt
    columns: dict[str, list[Any]] = {
        name: [None] * len(numbers) for name in ("step", "lines", "first_error", "last_line", "file")
    }
    gpus = [context.rank_gpu.get(rank) for rank in numbers]
    columns.update(
        rank=numbers,
        local_rank=[context.rank_local.get(rank) for rank in numbers],
        node=[context.rank_node.get(rank) for rank in numbers],
        gpu_index=[gpu.index if gpu else None for gpu in gpus],
        gpu_uuid=[gpu.uuid if gpu else None for gpu in gpus],
        pci=[gpu.pci if gpu else None for gpu in gpus],
        pod=[pods.get(rank) for rank in numbers],
        attempt=[attempt] * len(numbers),
        by=[victims[rank].by if rank in victims else None for rank in numbers],
        errors=[0] * len(numbers),
        state=["unknown"] * len(numbers),
    )
    row_of = {rank: row for row, rank in enumerate(numbers)}
    failed = np.full(len(numbers), np.nan)
    for event in context.events:
        row = row_of.get(event.rank) if event.rank is not None else None
        if (
            row is None
            or context.role(event) not in ("cause", "symptom")
            or context.weight(event) <= 0
            or event.data.get("handled")
        ):
            continue
        columns["errors"][row] += event.count
        if event.time is not None and event.source != "metrics" and not event.time > failed[row]:
            failed[row] = event.time
    columns["first_error"] = [None if np.isnan(time) else float(time) for time in failed]
    since = np.full(len(numbers), np.nan)
    culprit = np.full(len(numbers), np.nan)
    end = job.get("end")
    fail = verdict.time if verdict.time is not None else context.fail
    for rank, victim in victims.items():
        moment = victim.since if victim.since is not None else end if end is not None else fail
        since[row_of[rank]] = np.nan if moment is None else moment
    blamed = _blamed(context, verdict)
    if fail is not None:
        culprit[[row_of[rank] for rank in blamed if rank in row_of]] = fail
    failed[~np.isnan(since) | ~np.isnan(culprit)] = np.nan
    if verdict.cls == "none":
        failed[:] = np.nan
    begin = context.start
    if job.get("start") is not None and (begin is None or job["start"] <= begin):
        begin = job["start"]
    well = verdict.cls == "none" and _ended(context, job)
    marks = Marks(np.asarray(numbers, np.int64), culprit, failed, since, begin, end, well, size > 1)
    marks.works = _at_work(context, marks)
    return columns, marks


_MOST_RANKS = 1_000_000  # a world size beyond is a number that means something else


# A kernel that waits in a collective uses no tensor core; a step of training or serving does for some percent of the time at least
# (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html).
_TENSOR, _BUSY = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.01


def _at_work(context: Context, marks: Marks) -> list[tuple[int, np.ndarray]]:
    """Return the moments at which metrics show a rank's GPU at work, by row."""
    import numpy as np

    owner: dict[tuple[str | None, Any], int] = {}
    for row, rank in enumerate(marks.ranks.tolist()):
        gpu = context.rank_gpu.get(rank)
        for identity in (gpu.uuid, gpu.pci, gpu.index) if gpu is not None else ():
            if identity is not None:
                owner.setdefault((context.rank_node.get(rank), identity), row)
    found = []
    for one in context.incident.series if owner else ():
        if one.field != _TENSOR or one.gpu is None or one.mig:
            continue
        node = context.node(one.node)
        gpu = context.identify(node, one.gpu)
        row = next((owner[node, each] for each in (gpu.uuid, gpu.pci, gpu.index) if (node, each) in owner), -1)
        if row >= 0:
            moments = np.asarray(one.times, np.float64)[np.asarray(one.values, np.float64) >= _BUSY]
            found.append((row, moments[np.isfinite(moments)]))
    return found


def _blamed(context: Context, verdict: Verdict) -> set[int]:
    if verdict.at_fault == "node" and verdict.node is not None:
        return set(context.ranks_of(verdict.node))
    if verdict.at_fault in ("gpu", "rank") and verdict.rank is not None:
        return {verdict.rank}
    return set()


def _ended(context: Context, job: Mapping[str, Any]) -> bool:
    return bool(context.finished) or str(job.get("state") or "").upper().startswith(("COMPLETED", "SUCCEEDED"))


def tell(ranks: dict[str, list[Any]], marks: Marks, context: Context, seen: Sightings) -> None:
    """Fill in, per rank, its lines, its last step and line, and which log is its own."""
    row_of = {rank: row for row, rank in enumerate(ranks["rank"])}
    best: dict[int, int] = {}
    counted = [0] * len(row_of)
    for document in context.incident.documents:
        facts = document.facts
        told = facts.get("ranks") or {}
        alone = len(told) == 1
        for rank, state in told.items():
            row = row_of.get(rank)
            if row is None:
                continue
            lines = document.lines if alone else state.get("lines") or 0
            counted[row] += lines
            if lines > best.get(row, 0):
                best[row] = lines
                ranks["file"][row] = document.name
    for rank, state in context.rank_last.items():
        row = row_of.get(rank)
        if row is not None:
            ranks["step"][row] = state.get("last_step")
            ranks["last_line"][row] = state.get("last_time")
    ranks["lines"] = [counted[row] if row in best else None for row in range(len(row_of))]
    _last_lines(ranks, marks, seen)


def _last_lines(ranks: dict[str, list[Any]], marks: Marks, seen: Sightings) -> None:
    """A log need not be in order of time: the last line is the latest, where pieces tell of later ones than the last in the file."""
    import numpy as np

    if not len(seen.ranks):
        return
    latest = np.full(len(marks.ranks), -np.inf)
    rows = np.searchsorted(marks.ranks, seen.ranks)
    np.maximum.at(latest, np.minimum(rows, len(latest) - 1), seen.times - seen.seconds / 2)
    for row, time in enumerate(latest):
        have = ranks["last_line"][row]
        if np.isfinite(time) and (have is None or time > have + seen.seconds):
            ranks["last_line"][row] = float(time)
