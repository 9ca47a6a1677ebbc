"""
Turn what is known of one incident into the records and frames that plots, views, notebooks and postmortems share.

A case file is made once, after triage, from the `Incident`; from then on it stands alone: it can be saved, opened in a fraction of a
second for 16,384 ranks, and shown without reading the evidence again. Only log lines in context go back to the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = ["LANES", "RANKS", "STATES", "Activity", "CaseFile", "Logs", "LogLine", "LogWindow"]

UTC = "datetime64[us, UTC]"

# What a rank was doing in a piece of time, by rising severity: when many ranks share a pixel, the most severe is drawn.
STATES: tuple[str, ...] = ("unknown", "absent", "done", "running", "starting", "silent", "victim", "failed", "culprit")

# The lanes of the timeline, from the thing blamed outwards.
LANES: tuple[str, ...] = ("culprit", "node", "victims", "platform", "other")

RANKS: dict[str, str] = {
    "rank": "Int64",
    "local_rank": "Int64",
    "node": "string",
    "gpu_index": "Int64",
    "gpu_uuid": "string",
    "pci": "string",
    "pod": "string",
    "attempt": "Int64",
    "state": "string",  # how it ended, a word of STATES
    "by": "string",  # of a victim: what told so
    "first_error": UTC,
    "last_line": UTC,
    "lines": "Int64",
    "errors": "Int64",
    "step": "Int64",  # the last step it told
    "file": "string",  # its log
}


@dataclass(frozen=True, slots=True)
class Activity:
    """
    What each rank did over time.

    Attributes
    ----------
    ranks : ndarray of int64, shape (n,)
        Global ranks, rising.
    edges : ndarray of float64, shape (m + 1,)
        Seconds since the epoch (UTC), the borders of the pieces of time.
    states : ndarray of uint8, shape (n, m)
        Index into `STATES`.
    steps : ndarray of float32, shape (n, m), or None
        The last step told up to the end of that piece, NaN before the first; None when no log tells of steps.
    lines : ndarray of uint32, shape (n, m), or None
        Log lines in that piece; None when logs have no stamps.
    """

    ranks: np.ndarray
    edges: np.ndarray
    states: np.ndarray
    steps: np.ndarray | None = None
    lines: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log as it was: hostile text, to be escaped where it is shown."""

    no: int  # 1-based
    text: str
    signature: str = ""  # what the catalog knows it as
    evidence: int | None = None  # position in the verdict's evidence
    cut: bool = False  # it was longer than is shown


@dataclass(frozen=True, slots=True)
class LogWindow:
    """A piece of a log: its lines, whether there is more before and after, and why it is empty when it is."""

    file: str
    lines: tuple[LogLine, ...] = ()
    before: bool = False
    after: bool = False
    problem: str = ""


class Logs(Protocol):
    """The way back from a case file to the text of its evidence; never raises because of what is there, a window tells its problem."""

    def files(self) -> pd.DataFrame:
        """Return the documents: file, kind, node, rank, size (bytes), lines."""
        ...

    def window(self, file: str, line: int, *, before: int = 40, after: int = 40, width: int = 4_000) -> LogWindow:
        """Return the lines around a line (1-based), each at most `width` characters."""
        ...

    def search(
        self, text: str, *, file: str | None = None, rank: int | None = None, node: str | None = None, limit: int = 200
    ) -> pd.DataFrame:
        """Return lines that contain `text` (no expression, case ignored): file, line, rank, node, text; `attrs` tell what was left out."""
        ...


@dataclass(slots=True)
class CaseFile:
    """
    Everything that is shown of one incident.

    Attributes
    ----------
    id : str
        Stable name: letters, digits and ``-``; the same evidence gives the same.
    name, source : str
        What people call it; the folder, archive or job that it came from.
    verdict : Mapping
        The verdict (``workbench.verdict/1``), the very document that ``workbench triage --output json`` prints.
    ranks : DataFrame
        Columns of `RANKS`, one row a rank of the failed attempt.
    activity : Activity or None
        None when no rank is known.
    events : DataFrame
        Columns of `workbench.frames.EVENTS`, ``lane`` (a word of `LANES`) and ``evidence`` (Int64, position in the verdict's
        evidence); of a large incident those that matter, ``attrs["left_out"]`` says how many are not there.
    metrics : DataFrame
        Columns of `workbench.frames.METRICS`: all of a small incident; of a large one those of the culprit's node, of nodes with
        findings and of a few healthy ranks to compare with; ``attrs["left_out"]`` says how many series are not there.
    conditions, placement : DataFrame
        Columns of `workbench.frames.CONDITIONS` and `PLACEMENT`.
    documents : DataFrame
        name, kind, node, size, lines, complete, events.
    problems : DataFrame
        file, line, message, hint, source, status.
    job : Mapping
        id, name, namespace, user, team, scheduler, cluster, start, end (epoch seconds), state, ranks, nodes, gpus, as far as known (else None).
    impact : Mapping
        ranks, nodes, gpus, gpu_hours (held from the first failure to the end), gpu_hours_lost (since the last checkpoint, when
        known), detection_seconds; None where it cannot be told, with ``why`` (key → sentence).
    queries : Mapping
        Number or panel id → {"promql": …, "es": …, "slurm": …, "kubectl": …}: what asks a server for the same.
    logs : Logs
        The way back to the lines.
    """

    id: str
    name: str
    source: str
    verdict: Mapping[str, Any]
    ranks: pd.DataFrame
    events: pd.DataFrame
    metrics: pd.DataFrame
    conditions: pd.DataFrame
    placement: pd.DataFrame
    documents: pd.DataFrame
    problems: pd.DataFrame
    logs: Logs
    activity: Activity | None = None
    job: Mapping[str, Any] = field(default_factory=dict)
    impact: Mapping[str, Any] = field(default_factory=dict)
    queries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
