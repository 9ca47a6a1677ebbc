"""
Turn the attempts of a run into what they cost: five lines for people, and rows for the fleet's ledger.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.report.text import clean, duration, shorten
from workbench.training.attempts import Attempt
from workbench.training.retry import Decision
from workbench.training.rundir import RunFolder

__all__ = ["ACCOUNT", "Cost", "Told", "cost_of", "gpus_of", "keep", "rows", "summary", "write"]

ACCOUNT = "workbench.run-account/1"


@dataclass(slots=True)
class Told:
    """What a supervisor knows of one attempt beside its record: times, steps, places; seconds since the epoch."""

    attempt: Attempt
    steps: Mapping[int, float] = field(default_factory=dict)  # step → when it was first seen
    detected: float | None = None
    diagnosed: float | None = None
    resumed: int | None = None  # step that the next attempt began from
    nodes: tuple[str, ...] = ()
    gpus: int | None = None


@dataclass(slots=True)
class Cost:
    """What failures cost: steps made again, seconds lost, GPU-hours lost and in all (None where the number of GPUs is not known)."""

    steps: int | None
    seconds: float
    whole: float
    gpu_hours: float | None
    all_gpu_hours: float | None


def gpus_of(env: Mapping[str, str], nodes: int) -> int | None:
    """Return how many GPUs the job holds, as far as the environment tells."""
    nodes = nodes or 1
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        text = env.get(name, "").rpartition(":")[2]
        if text.isdigit():
            return int(text) * nodes
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() and one.strip() != "-1"]) * nodes
    try:
        return len([name for name in os.listdir("/proc/driver/nvidia/gpus") if name]) * nodes or None
    except OSError:
        return None


def kept_step(one: Told, after: Told | None) -> int | None:
    """Return the step up to which an attempt's work was kept: that of the checkpoint, else the one before the next attempt's first."""
    if one.resumed is not None or after is None or after.attempt.step_first is None:
        return one.resumed
    return after.attempt.step_first - 1


def lost_from(one: Told, after: Told | None = None) -> float | None:
    """Return since when an attempt's work was lost: when it made the last step that was kept, or its start."""
    begun, kept = one.attempt.started, kept_step(one, after)
    if kept is None:
        return begun
    seen = [moment for step, moment in one.steps.items() if step <= kept]
    return max(seen, default=begun)


def cost_of(told: Sequence[Told]) -> Cost:
    """Return what the failures of a run cost: all time after the work that the next attempt could go on from, waits included."""
    steps, seconds, known = 0, 0.0, True
    for one, after in zip(told, [*told[1:], None], strict=True):
        attempt = one.attempt
        if attempt.state in ("completed", "cancelled", "running"):
            continue
        since, kept = lost_from(one, after), kept_step(one, after)
        until = after.attempt.started if after is not None else attempt.ended
        if since is not None and until is not None and (after is not None or attempt.state != "preempted"):
            seconds += max(0.0, until - since)
        if attempt.step_last is None:
            known = known and attempt.step_first is None and not one.steps
        else:
            steps += max(0, attempt.step_last - (kept if kept is not None else (attempt.step_first or 0)))
    starts = [one.attempt.started for one in told if one.attempt.started is not None]
    ends = [one.attempt.ended for one in told if one.attempt.ended is not None]
    whole = max(ends) - min(starts) if starts and ends else 0.0
    gpus = next((one.gpus for one in reversed(told) if one.gpus), None)
    return Cost(
        steps if known else None,
        seconds,
        whole,
        None if gpus is None else gpus * seconds / 3600,
        None if gpus is None else gpus * whole / 3600,
    )


def summary(
    told: Sequence[Told], decisions: Sequence[Decision], *, folder: Path, state: str, status: int, notes: Sequence[str] = ()
) -> list[str]:
    """Return the five lines: how it ended, what failed, what was done, what was lost, what next."""
    cost = cost_of(told)
    bad = [one.attempt for one in told if one.attempt.state in ("failed", "preempted", "timeout")]
    count = f"{len(told)} attempt{'s' if len(told) != 1 else ''}"
    lines = [f"workbench run: {state} after {count} in {duration(cost.whole)}, exit code {status}; all of it is in {folder}"]
    if bad:
        last = bad[-1]
        where = ", ".join(str(one) for one in (last.at_fault, last.node, last.gpu_uuid) if one)
        rank = f", rank {last.rank}" if last.rank is not None else ""
        known = last.confidence is not None and last.cls not in (None, "unknown", "none")
        sure = f" {last.confidence:.0%}" if known else ""  # how sure one is of knowing nothing tells nobody anything
        more = f" ({len(bad)} failures in all)" if len(bad) > 1 else ""
        what = last.cls or ("preempted" if last.state == "preempted" else "unknown")
        lines.append(f"  failed: attempt {last.number}{more}: {what}{sure} [{where or 'nobody blamed'}{rank}] {last.summary}")
    else:
        lines.append("  failed: nothing")
    lines.append("  done:   " + ("; ".join(one.reason for one in decisions[-3:]) or "nothing"))
    hours = (
        f"{cost.gpu_hours:.2f} of {cost.all_gpu_hours:.2f} GPU-hours"
        if cost.gpu_hours is not None and cost.all_gpu_hours is not None
        else f"{duration(cost.seconds)} of {duration(cost.whole)} (how many GPUs it held is not known)"
    )
    steps = "an unknown number of steps" if cost.steps is None else f"{cost.steps} steps"
    lines.append(f"  lost:   {steps}, {hours}")
    lines.append("  next:   " + _next(decisions, state, notes))
    return [shorten(clean(line), 400) for line in lines]


def _next(decisions: Sequence[Decision], state: str, notes: Sequence[str]) -> str:
    if notes:
        return "; ".join(notes)
    if state == "completed":
        return "nobody has to do anything"
    if state == "preempted":
        return "the scheduler starts it again; with the same --run-dir it goes on from here"
    if not decisions:
        return "nobody has to do anything"
    last = decisions[-1]
    return f"{last.who}: {'; '.join(last.todo) or last.reason}"


def rows(told: Sequence[Told], *, run: Path, env: Mapping[str, str], name: str, state: str) -> dict[str, list[dict[str, Any]]]:
    """
    Return the run as rows of `workbench.fleet.tables`: one job, its attempts, and what each spent its time on.

    The phases of an attempt do not overlap: start until the first step, steps until the one that the next attempt begins from, lost steps,
    detection until it was known, diagnosis until the decision, recovery until the next start.
    """
    cluster = env.get("SLURM_CLUSTER_NAME", "")
    job = env.get("SLURM_JOB_ID") or str(run)
    last = told[-1].attempt
    first = next((min(one.steps.values()) for one in told if one.steps), None)
    common = {"cluster": cluster, "job": job, "source": "run"}
    whole = {
        **common,
        "name": name or env.get("SLURM_JOB_NAME") or run.name,
        "user": env.get("SLURM_JOB_USER") or env.get("USER", ""),
        "team": env.get("SLURM_JOB_ACCOUNT", ""),
        "pool": env.get("SLURM_JOB_PARTITION", ""),
        "nodes": len(told[-1].nodes) or None,
        "gpus": told[-1].gpus,
        "submitted": told[0].attempt.started,
        "started": told[0].attempt.started,
        "first_step": first,
        "ended": last.ended if state != "running" else None,
        "state": state,
        "cause": last.cause if state == "failed" else "",
        "cls": last.cls if state == "failed" else "",
    }
    attempts, phases = [], []
    for one, after in zip(told, [*told[1:], None], strict=True):
        attempt = one.attempt
        begun = min(one.steps.values()) if one.steps else None
        attempts.append(
            {
                **common,
                "attempt": attempt.number,
                "started": attempt.started,
                "first_step": begun,
                "ended": attempt.ended,
                "state": attempt.state,
                "exit_code": attempt.exit_code,
                "cause": attempt.cause,
                "cls": attempt.cls,
                "confidence": attempt.confidence,
                "at_fault": attempt.at_fault,
                "node": attempt.node,
                "gpu_uuid": attempt.gpu_uuid,
                "rank": attempt.rank,
                "node_names": list(one.nodes),
                "excluded": list(attempt.excluded),
                "gpus": one.gpus,
                "step_first": attempt.step_first,
                "step_last": attempt.step_last,
                "step_saved": attempt.checkpoint_step,
                "detected": one.detected,
                "diagnosed": one.diagnosed,
                "incident": attempt.incident,
            }
        )
        for kind, begin, end in _phases(one, after):
            phases.append({**common, "attempt": attempt.number, "kind": kind, "begin": begin, "end": end})
    return {"jobs": [whole], "attempts": attempts, "phases": phases}


def _phases(one: Told, following: Told | None) -> list[tuple[str, float, float]]:
    attempt = one.attempt
    after = following.attempt.started if following is not None else None
    if attempt.started is None or attempt.ended is None:
        return []
    well = attempt.state == "completed"
    marks: list[tuple[str, float]] = []
    if one.steps:
        begun, last = min(one.steps.values()), max(one.steps.values())
        marks.append(("start", begun))
        if well:
            marks.append(("step", attempt.ended))
        else:
            kept = lost_from(one, following)
            marks += [
                ("step", max(begun, kept if kept is not None else begun)),
                ("lost", last),
                ("detect", one.detected or attempt.ended),
            ]
    else:
        marks.append(("step" if well else "start", attempt.ended))
    if not well:
        marks.append(("detect", max(attempt.ended, one.detected or attempt.ended)))
        if one.diagnosed is not None:
            marks.append(("diagnose", one.diagnosed))
        if after is not None:
            marks.append(("recover", after))
    out: list[tuple[str, float, float]] = []
    at = attempt.started
    for kind, until in marks:
        if until > at:
            if out and out[-1][0] == kind:
                out[-1] = (kind, out[-1][1], until)
            else:
                out.append((kind, at, until))
            at = until
    return out


def keep(folder: RunFolder, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """
    Write rows as ``account.json`` of a run's folder, so that who takes the folder in later knows as much as who was told at once.

    A supervisor knows only the attempts that it saw; those of one before it in the same folder stay.
    """
    before = folder.read("account.json")
    whole: dict[str, Any] = {"schema": ACCOUNT, **tables}
    if isinstance(before, dict) and before.get("schema") == ACCOUNT:
        for table in ("attempts", "phases"):
            now = {row["attempt"] for row in tables["attempts"]}
            earlier = [row for row in before.get(table) or () if isinstance(row, dict) and row.get("attempt") not in now]
            whole[table] = [*earlier, *tables[table]]
    folder.write("account.json", whole)


def write(path: str | Path, tables: Mapping[str, Sequence[Mapping[str, Any]]], *, seconds: float = 10.0) -> str:
    """Put rows into the fleet's ledger; returns why that failed. It is given up after some seconds: the job is worth more than its account."""
    import threading

    trouble = ["it took too long"]

    def work() -> None:
        try:
            from workbench.fleet.ledger import Ledger

            with Ledger.open(path) as ledger:
                for table, lines in tables.items():
                    ledger.put(table, lines)
            trouble[0] = ""
        except Exception as error:
            trouble[0] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=work, name="workbench-ledger", daemon=True)
    thread.start()
    thread.join(seconds)
    return trouble[0]
