"""
Turn the configuration of a running site into its fleet as it is now: every source that is there is asked at once, each within its deadline.

A source that does not answer keeps what it said last, marked stale and as old as it is; one that never answered is failed. What was not
configured is missing, and said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

from workbench.owners import Teams
from workbench.site.assemble import assemble
from workbench.site.model import Heard, Snapshot
from workbench.site.parts import Part, failed
from workbench.sources.contract import Deadline
from workbench.sources.gather import in_parallel
from workbench.sources.site import sources_of

if TYPE_CHECKING:
    from workbench.config import Config

__all__ = ["Live", "Reader", "fetch", "incident_row", "readers_of"]

_WORDS = {"metrics": "prometheus", "workbench": "scheduler"}
_ACTIONS = 2000  # the newest entries of the journal that a page shows


class Reader(Protocol):
    """One source of the fleet."""

    name: str

    def read(self, deadline: Deadline, watched: tuple[str, ...] = ()) -> Part:
        """Return its part; raises `SourceError` when it has none."""
        ...


class Live:
    """
    A running site, to be called again and again; see `workbench.site.poller.Poller`.

    Parameters
    ----------
    config : Config
    incidents : callable, optional
        Returns the entries of an inbox (`workbench.inbox.model.Entry`); called in the poller's thread.
    period : float, optional
        Seconds between two calls, as snapshots say.
    readers : iterable of Reader, optional
        Default those of the configuration.
    clock : callable, optional
        Returns the seconds since the epoch.
    """

    def __init__(
        self,
        config: Config,
        *,
        incidents: Callable[[], Iterable[Any]] | None = None,
        period: float = 30.0,
        readers: Iterable[Reader] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        found, self._missing = readers_of(config) if readers is None else (list(readers), [])
        self._readers: list[Reader] = list(found)
        if config["remediation.journal"]:
            self._readers.append(JournalReader(Path(config["remediation.journal"])))
        if incidents is not None:
            self._readers.append(InboxReader(incidents))
        self._seconds, self.period, self._clock = float(config["deadline"]), period, clock
        self._name, self._teams = config.profile or "", Teams.of(config)
        self._last: dict[str, Part] = {}
        self._watched: tuple[str, ...] = ()
        self._lock = Lock()
        self._asked = 0

    def watch(self, nodes: Iterable[str]) -> None:
        """Take the nodes that people look at."""
        self._watched = tuple(nodes)

    def __call__(self) -> Snapshot:
        """
        Ask every source and return the fleet; never raises because of a source.

        What comes after the deadline is not waited for, and its source counts as failed this time.
        """
        with self._lock:
            self._asked += 1
            watched = self._watched
            answers = in_parallel(
                self._readers,  # type: ignore[arg-type]  # all that is asked of a source there is its name
                lambda reader: reader.read(Deadline(self._seconds), watched),  # type: ignore[attr-defined]
                self._seconds + 1.0,
            )
            parts = []
            for name, (result, _) in answers.items():
                part = failed(name, result, self._last.get(name)) if isinstance(result, Exception) else result
                if not isinstance(result, Exception):
                    self._last[name] = result
                parts.append(part)
            data = {"demo": False, "asked": self._asked}
            whole = assemble(parts, self._clock(), name=self._name, period=self.period, heard=self._missing, data=data)
            return replace(whole, jobs=_owned(whole.jobs, self._teams))


def _owned(jobs: pd.DataFrame, teams: Teams) -> pd.DataFrame:
    """Return the jobs with the teams that the site's tables name."""
    if not teams or not len(jobs):
        return jobs
    told = zip(jobs["team"].astype(object), jobs["namespace"].astype(object), strict=True)
    named = [teams.team(*(one if isinstance(one, str) else None for one in pair)) for pair in told]
    return jobs.assign(team=pd.Series(named, index=jobs.index, dtype="string"))


def fetch(config: Config, *, incidents: Callable[[], Iterable[Any]] | None = None) -> Snapshot:
    """
    Return the fleet of a site once.

    Parameters
    ----------
    config : Config
        See `workbench.config.load_config`.
    incidents : callable, optional
        Returns the entries of an inbox.
    """
    return Live(config, incidents=incidents)()


def readers_of(config: Config) -> tuple[list[Reader], list[Heard]]:
    """Return the readers of the sources that a configuration names, and a word about each that it does not."""
    sources, lacking = sources_of(config)
    found: list[Reader] = []
    for source in sources:
        if source.name == "kubernetes":
            from workbench.site.kubernetes import KubernetesFleet
            from workbench.sources.kubernetes.api import Api

            api = Api(config["kubernetes.kubeconfig"], config["kubernetes.context"])
            found.append(KubernetesFleet(api, config["kubernetes.namespace"]))
        elif source.name == "slurm":
            from workbench.site.slurm import SlurmFleet

            found.append(SlurmFleet(source))  # type: ignore[arg-type]  # by its name it is that one
        elif source.name == "prometheus":
            from workbench.site.prometheus import PrometheusFleet

            found.append(PrometheusFleet(source.api))  # type: ignore[attr-defined]
    missing = [
        Heard(_WORDS[answer.source], "missing", None, answer.detail, answer.hint) for answer in lacking if answer.source in _WORDS
    ]
    return found, missing


class JournalReader:
    """Reads what was done to nodes: the journal of remediation; read anew only when it has changed."""

    name = "journal"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, int] | None = None
        self._rows: tuple[Mapping[str, Any], ...] = ()
        self._problems: tuple[str, ...] = ()

    def read(self, deadline: Deadline, watched: tuple[str, ...] = ()) -> Part:
        """Return the newest actions; a journal that is not there yet holds none, one that is damaged is partial."""
        del deadline, watched
        now = time.time()
        try:
            about = os.stat(self._path)
        except FileNotFoundError:
            return Part(
                self.name,
                now,
                "missing",
                f"there is no journal at {self._path}: nothing was done from here, or it is elsewhere",
                "set remediation.journal",
            )
        if (about.st_mtime_ns, about.st_size) != self._state:
            from workbench.remediation.journal import Journal

            journal = Journal(self._path)
            self._rows = tuple(_action(one) for one in journal.entries() if one.kind in ("intent", "outcome"))[-_ACTIONS:]
            self._problems = tuple(journal.problems)
            self._state = about.st_mtime_ns, about.st_size
        detail = f"the journal is damaged: {self._problems[0]}" if self._problems else ""
        hint = "`workbench journal` shows it" if self._problems else ""
        return Part(self.name, now, "partial" if self._problems else "ok", detail, hint, actions=_settled(self._rows))


def _action(one: Any) -> dict[str, Any]:
    keys = ("time", "node", "plan", "action", "verb", "rung", "detail", "by")
    return {**{key: getattr(one, key) for key in keys}, "status": one.status or "begun"}


def _settled(rows: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return one row an action and verb: how it ended, or that it began."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for number, row in enumerate(rows):
        found[str(row["action"] or number), str(row["verb"])] = row
    return tuple(found.values())


class InboxReader:
    """Takes the incidents of an inbox."""

    name = "inbox"

    def __init__(self, entries: Callable[[], Iterable[Any]]) -> None:
        self._entries = entries

    def read(self, deadline: Deadline, watched: tuple[str, ...] = ()) -> Part:
        """Return the incidents that were triaged."""
        del deadline, watched
        return Part(self.name, time.time(), incidents=tuple(incident_row(one) for one in self._entries()))


def incident_row(entry: Any) -> dict[str, Any]:
    """Return the row of `workbench.site.model.INCIDENTS` for an entry of an inbox."""
    return {
        "id": entry.id,
        "time": entry.time if entry.time is not None else entry.seen,
        "node": entry.node,
        "gpu_index": entry.gpu,
        "job": entry.job,
        "cause": entry.cause,
        "class": entry.cls,
        "at_fault": entry.at_fault,
        "confidence": entry.confidence,
        "state": entry.state,
        "summary": entry.summary,
    }
