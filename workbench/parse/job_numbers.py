"""Turn losses and gradient norms that are no numbers into events, once the steps after them say that the training did not go on."""

from __future__ import annotations

import math
from typing import Any

from workbench.model import Line
from workbench.parse.job_state import JobState, add
from workbench.parse.prefix import Prefix
from workbench.parse.progress import Step

__all__ = ["numbers"]


def numbers(job: JobState, line: Line, head: Prefix, moment: float | None, step: Step) -> None:
    """Look at the numbers of one progress line; a later one takes back what an earlier one seemed to say."""
    _norm(job, line, head, moment, step)
    _lost(job, line, head, moment, step)


def _lost(job: JobState, line: Line, head: Prefix, moment: float | None, step: Step) -> None:
    """A loss that is no number broke the training; one that the program warns of is passed over when the next ones are numbers again."""
    if step.loss is None or head.level in ("ERROR", "CRITICAL"):
        return
    if math.isfinite(step.loss):
        _take_back(job, "loss-nan", head.rank)
        return
    data: dict[str, Any] = {"loss": str(step.loss), "step": step.step}
    if head.level == "WARNING":
        data["warned"] = True
        job.doubtful.add(("loss-nan", head.rank))
    add(job, job.matcher.rows["loss-nan"], line.no, line.text, head, moment, data)


def _take_back(job: JobState, signature: str, rank: int | None) -> None:
    if (signature, rank) not in job.doubtful:
        return  # each step comes by here: the events are looked through when there is one to be found
    job.doubtful.discard((signature, rank))
    for event in job.parsed.events:
        if event.signature == signature and event.rank == rank and (signature != "loss-nan" or event.data.get("warned")):
            event.role, event.data["handled"] = "context", True


def _norm(job: JobState, line: Line, head: Prefix, moment: float | None, step: Step) -> None:
    """Two steps in a row whose gradients are NaN (or infinite) diverged; one alone is a loss scale that finds its size."""
    if step.norm is None:
        if step.loss is not None:
            job.norms.pop(head.rank, None)
        return
    if math.isfinite(step.norm):
        job.norms.pop(head.rank, None)
        _take_back(job, "grad-norm-nan", head.rank)
        return
    first = job.norms.get(head.rank)
    if first is None:
        job.norms[head.rank] = (line.no, line.text, head, moment, 1)
        return
    job.norms[head.rank] = (*first[:4], first[4] + 1)
    if first[4] == 1:
        job.doubtful.add(("grad-norm-nan", head.rank))
        add(job, job.matcher.rows["grad-norm-nan"], first[0], first[1], first[2], first[3], {"norm": str(step.norm)})
