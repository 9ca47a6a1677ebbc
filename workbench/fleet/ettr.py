"""
Turn segments of jobs' time into ETTR as it was, ETTR as RSC's formula expects it, and the difference of the two, term by term.

ETTR is productive time over the time in which a job ran or could have run (queueing of restarts included). The formula, by A. Kokolis et al.,
https://arxiv.org/abs/2410.21680, with N nodes, r failures per node and second, u0 seconds to restart, q of queueing, dt between checkpoints and
w for one of them:

    E[ETTR] = (1 - N r (u0 + q + dt / 2)) / (1 + w / dt)

1 - E[ETTR] is exactly the sum of three terms: saving w / (dt + w), restarts N r (u0 + q) / (1 + w / dt), and lost steps
N r dt / 2 / (1 + w / dt). Each has its counterpart in the waterfall; detection, diagnosis, repair, slow steps and waiting for data have
none: the formula takes them as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from workbench.fleet.figures import Figure, instant, micros
from workbench.fleet.goodput import Waterfall, waterfall

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "MEANS",
    "TERMS",
    "Ettr",
    "Parameters",
    "compare",
    "ettr_of",
    "expected",
    "measured_parameters",
    "response_times",
    "with_checkpoints",
]

# term of the difference → kinds of the waterfall that belong to it. What the formula has no word for stands below
TERMS: Mapping[str, tuple[str, ...]] = {
    "saving": ("save",),
    "queue": ("queue",),
    "restart": ("start", "init", "restore"),
    "lost steps": ("lost",),
    "detection": ("detect",),
    "diagnosis": ("diagnose",),
    "recovery": ("recover",),
    "data": ("data",),
    "slow steps": ("slow",),
    "idle": ("idle",),
    "unknown": ("unknown",),
}
# term → what its difference means
MEANS: Mapping[str, str] = {
    "first wait": "waiting before the first allocation; the formula counts restarts alone",
    "saving": "steps wait while a checkpoint is written",
    "queue": "a restart waits for nodes; failures or waits came otherwise than their means say",
    "restart": "from nodes to the first step, at restarts; the first start of a job is in no formula",
    "lost steps": "done again; the formula takes half an interval for each failure",
    "detection": "failed or hung and nobody knew: not in the formula",
    "diagnosis": "known, and the cause was being found: not in the formula",
    "recovery": "repair, replacement, back-off: not in the formula",
    "data": "steps waited for input: not in the formula",
    "slow steps": "slower than usual: not in the formula",
    "idle": "between attempts, with nothing told: not in the formula",
    "unknown": "held, and nobody told for what",
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """
    What the formula needs.

    Attributes
    ----------
    nodes : float
        N.
    rate : float
        Failures per node-day.
    overhead : float
        u0, seconds from allocation to the first step of a restart.
    interval : float
        dt, productive seconds between checkpoints.
    save : float
        w, seconds that steps wait for one checkpoint.
    queue : float
        q, seconds of waiting for an allocation after a failure.
    """

    nodes: float
    rate: float
    overhead: float
    interval: float
    save: float
    queue: float = 0.0

    def __post_init__(self) -> None:
        if self.interval <= 0:
            raise ValueError("the time between checkpoints must be above zero")
        if min(self.nodes, self.rate, self.overhead, self.save, self.queue) < 0:
            raise ValueError("nodes, rate and times cannot be negative")

    @property
    def failures(self) -> float:
        """Failures a second of the job: N r."""
        return self.nodes * self.rate / 86_400


@dataclass(frozen=True, slots=True)
class Ettr:
    """
    ETTR as it was and as expected.

    Attributes
    ----------
    measured, expected : float or None
        None if it cannot be said.
    terms : tuple of (name, measured share lost, expected share lost)
        Measured ones add up to 1 - `measured`, expected ones to 1 - `expected`.
    parameters : Parameters or None
    notes : tuple of str
        What could not be measured, and where the formula does not hold.
    """

    measured: float | None
    expected: float | None
    terms: tuple[tuple[str, float, float], ...]
    parameters: Parameters | None
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Expected less measured: the sum over `terms` of measured less expected loss."""
        return None if self.measured is None or self.expected is None else self.expected - self.measured


def expected(parameters: Parameters) -> tuple[float, dict[str, float], tuple[str, ...]]:
    """
    Return E[ETTR], the share that each term of it takes, and where the formula does not hold.

    The formula takes losses as small: with more than about one failure per ten times the time to come back, failures during a restart matter and
    the true value is higher than what it says; below zero it says nothing.
    """
    slowed = 1 + parameters.save / parameters.interval
    rate = parameters.failures
    terms = {
        "saving": (parameters.save / parameters.interval) / slowed,
        "queue": rate * parameters.queue / slowed,
        "restart": rate * parameters.overhead / slowed,
        "lost steps": rate * parameters.interval / 2 / slowed,
    }
    value = (1 - rate * (parameters.overhead + parameters.queue + parameters.interval / 2)) / slowed
    lost = rate * (parameters.overhead + parameters.queue + parameters.interval / 2)
    notes: tuple[str, ...] = ()
    if value < 0:
        notes = ("the formula does not hold: it expects more time lost than there is",)
    elif lost > 0.1:
        notes = (f"the formula takes losses as small; failures take {lost:.0%} here, and the true value is higher",)
    return value, terms, notes


def with_checkpoints(cut: pd.DataFrame) -> pd.DataFrame:
    """Return the segments of those jobs that told a checkpoint's write: the formula is about no others."""
    if cut.empty:
        return cut
    keys = cut["cluster"].fillna("") + "\0" + cut["job"]
    return cut[keys.isin(set(keys[cut["kind"] == "save"]))]


def measured_parameters(
    cut: pd.DataFrame,
    jobs: pd.DataFrame,
    attempts: pd.DataFrame,
    *,
    rate: float | None = None,
    interval: float | None = None,
) -> tuple[Parameters | None, tuple[str, ...]]:
    """
    Return the formula's parameters as these jobs had them: means over what was told.

    Parameters
    ----------
    cut : pandas.DataFrame
        Segments of jobs that told their checkpoints (`with_checkpoints`); other jobs in it make the means wrong.
    jobs, attempts : pandas.DataFrame
        As in `workbench.fleet.tables`; those of other jobs are passed over.
    rate : float, optional
        Failures per node-day; default what these jobs had (failed attempts over node-days held).
    interval : float, optional
        Productive seconds between checkpoints; default one checkpoint for each stretch of kind save, which is wrong where a source tells one
        sum for an attempt.

    Returns
    -------
    parameters : Parameters or None
        None if one of them cannot be measured; the notes say which.
    notes : tuple of str
    """
    kinds = cut["kind"]
    saves = kinds == "save"
    if not saves.any():
        return None, ("no checkpoint's write was told: phases of kind save are needed",)
    known = cut[["cluster", "job"]].drop_duplicates()
    asked = jobs.assign(cluster=jobs["cluster"].fillna(""))[["cluster", "job", "nodes"]]
    mine = attempts.assign(cluster=attempts["cluster"].fillna("")).merge(known, on=["cluster", "job"])
    width = cut[["cluster", "job"]].merge(asked, on=["cluster", "job"], how="left")["nodes"]
    seconds = ((cut["end"] - cut["begin"]) / 1e6).to_numpy()
    held = cut["held"].to_numpy(dtype=bool)
    nodes = width.astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    held_seconds, node_seconds = float(seconds[held].sum()), float((seconds * nodes)[held].sum())
    if not held_seconds or node_seconds != node_seconds:
        return None, ("the number of nodes was not told" if held_seconds else "no attempt held nodes",)
    notes: list[str] = []
    again, first = (cut["attempt"] > 1).to_numpy(dtype=bool), (cut["attempt"] == 1).to_numpy(dtype=bool)
    restarts = int((mine["attempt"] > 1).sum())
    come_back = kinds.isin(["start", "init", "restore"]).to_numpy(dtype=bool)
    if restarts:
        overhead = float(seconds[again & come_back].sum()) / restarts
        queue = float(seconds[again & (kinds == "queue").to_numpy(dtype=bool)].sum()) / restarts
    else:
        overhead, queue = float(seconds[first & come_back].sum()) / len(known), 0.0
        notes.append("no restart happened: the first start stands for one")
    productive = float(seconds[kinds.isin(["step", "slow", "lost", "data"])].sum())
    if interval is None:
        interval = productive / int(saves.sum())
        notes.append(f"one checkpoint for each stretch of saving: every {interval:,.0f} s; --interval says it better")
    if not productive:
        return None, (*notes, "no step was told")
    if rate is None:
        failures = int((mine["state"] == "failed").sum())
        rate = failures / (node_seconds / 86_400)
        notes.append(f"rate from these jobs: {failures} failures in {node_seconds / 86_400:,.4g} node-days")
    save = float(seconds[saves].sum()) / (productive / interval)
    return Parameters(node_seconds / held_seconds, rate, overhead, interval, save, queue), tuple(notes)


def compare(
    cut: pd.DataFrame,
    parameters: Parameters | None,
    *,
    notes: tuple[str, ...] = (),
    fall: Waterfall | None = None,
    first_wait: int = 0,
) -> Ettr:
    """
    Return ETTR as it was beside ETTR as the formula expects it.

    Parameters
    ----------
    cut : pandas.DataFrame
        Segments of one job run, or of several (then of all their time together).
    parameters : Parameters or None
        None: only what was measured is told.
    notes : tuple of str
        Of who measured the parameters.
    fall : Waterfall, optional
        The waterfall of `cut`; default over elapsed time. ETTR's denominator is `elapsed`, or `scheduled` for who does not count the first wait.
    first_wait : int
        How much of `fall` lies before first allocations; the formula's queue is that of restarts alone, so it is a term of its own.
    """
    whole = fall if fall is not None else waterfall(cut)[0]
    value: float | None = None
    wanted = dict.fromkeys(TERMS, 0.0)
    if parameters is not None:
        value, terms, more = expected(parameters)
        notes = (*notes, *more)
        if value < 0:
            value = None
        else:
            wanted |= terms
    if not whole.total:
        return Ettr(None, value, (), parameters, (*notes, "no time was told"))
    lost = {name: sum(whole.parts.get(kind, 0) for kind in kinds) / whole.total for name, kinds in TERMS.items()}
    # before its first allocation a job waits, or nobody told what for
    early = min(first_wait, whole.parts.get("queue", 0)) / whole.total
    lost["queue"] -= early
    lost["idle"] -= first_wait / whole.total - early
    lost, wanted = {"first wait": first_wait / whole.total, **lost}, {"first wait": 0.0, **wanted}
    rows = tuple((name, lost[name], wanted[name]) for name in lost)
    return Ettr(whole.parts["step"] / whole.total, value, rows, parameters, notes)


def ettr_of(
    cut: pd.DataFrame,
    jobs: pd.DataFrame,
    attempts: pd.DataFrame,
    *,
    since: Any = None,
    until: Any = None,
    weight: Literal["gpus", "time"] = "gpus",
    interval: float | None = None,
) -> Ettr:
    """
    Return ETTR of jobs that told their checkpoints, or of all if none did: of the time that they ran or waited.

    Parameters
    ----------
    cut : pandas.DataFrame
        Segments of the jobs (`workbench.fleet.timeline.segments`).
    jobs, attempts : pandas.DataFrame
        As in `workbench.fleet.tables`.
    since, until : time, optional
        Window.
    weight : {"gpus", "time"}
        Each second times its GPUs, or alone.
    interval : float, optional
        Productive seconds between checkpoints; default as `measured_parameters` finds it.
    """
    own = with_checkpoints(cut)
    parameters, notes = measured_parameters(own, jobs, attempts, interval=interval)
    base = own if len(own) else cut
    whole = waterfall(base, denominator="elapsed", weight=weight, since=since, until=until, jobs=jobs)[0]
    later = waterfall(base, denominator="scheduled", weight=weight, since=since, until=until, jobs=jobs)[0]
    if len(own):
        notes = (f"of {whole.jobs:,} jobs that told their checkpoints, from submission to end", *notes)
    return compare(own, parameters, notes=notes, fall=whole, first_wait=whole.total - later.total)


def response_times(attempts: pd.DataFrame, *, since: Any, until: Any) -> list[Figure]:
    """
    Return how long failures of the window went unnoticed, and how long their causes were unknown: means, with medians in the notes.

    Parameters
    ----------
    attempts : pandas.DataFrame
        As in `workbench.fleet.tables`; failed ones that ended in the window count.
    since, until : time
        Window.

    Returns
    -------
    list of Figure
        Detection (from the attempt's end; one that was noticed before it ended, as hangs are, took no time after it, and phases tell how long it
        hung) and diagnosis (from detection, or the end). Without a told moment a failure is in no mean, and the notes count it.
    """
    import numpy as np

    begin, stop = instant(since), instant(until)
    ended = micros(attempts["ended"])
    failed = (attempts["state"] == "failed").to_numpy(dtype=bool) & (ended >= begin) & (ended < stop)
    detected, diagnosed = micros(attempts["detected"]), micros(attempts["diagnosed"])
    never = -(2**63)
    known = np.where(detected == never, ended, detected)
    figures = []
    for name, told, length in (
        ("time to detect", detected != never, detected - ended),
        ("time to diagnose", diagnosed != never, diagnosed - known),
    ):
        fit = failed & told
        values = np.maximum(length[fit], 0) / 1e6
        missing = int((failed & ~told).sum())
        notes = (f"{missing} failures left out: nobody told when",) if missing else ()
        if len(values):
            notes = (f"median {float(np.median(values)):.4g} s, longest {float(values.max()):.4g} s", *notes)
        figures.append(
            Figure(
                name,
                float(values.mean()) if len(values) else None,
                float(values.sum()),
                float(len(values)),
                "seconds of failures",
                method="no bounds: times of failures are no sample of one kind" if len(values) else "no data",
                definition="sum of seconds / failures that were told, of attempts that failed in the window",
                since=begin / 1e6,
                until=stop / 1e6,
                notes=notes,
            )
        )
    return figures
