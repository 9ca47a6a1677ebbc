"""Turn a failure that was seen into its evidence, verdict and case file, while the evidence is fresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from workbench.inbox.sightings import Failure
from workbench.sources.contract import Answer, Source

if TYPE_CHECKING:
    from workbench.casefile.model import CaseFile
    from workbench.config import Config

__all__ = ["Collect", "Collector", "Found"]

_BEFORE = 600.0  # seconds before a job began in which what made it fail may already show
_LISTED = 16  # sources and nodes that a sentence names


@dataclass(frozen=True, slots=True)
class Found:
    """
    What came of one collection.

    Attributes
    ----------
    case : CaseFile or None
        None when there is nothing to triage; `problem` then says why.
    lacking : tuple of str
        Sources that failed this time, in words: asked again later, they may answer.
    problem : str
    nodes, pods : tuple of str
        Where the job ran, as the sources told.
    """

    case: CaseFile | None
    lacking: tuple[str, ...] = ()
    problem: str = ""
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


class Collect(Protocol):
    """Collects the evidence of a failure into a folder that is not there yet, and triages it; may raise whatever went wrong."""

    def __call__(self, failure: Failure, place: Path, now: float) -> Found: ...


class Collector:
    """
    Collects from the sources of a site, as `workbench collect` does, and makes the case file.

    Parameters
    ----------
    config : Config
    sources : sequence of Source, optional
        Default those of the configuration.
    """

    def __init__(self, config: Config, *, sources: Sequence[Source] | None = None, missing: Sequence[Answer] = ()) -> None:
        self._config, self._sources, self._missing = config, sources, missing

    def __call__(self, failure: Failure, place: Path, now: float) -> Found:
        """Collect and triage; a source that fails is told, and nothing but a full disk or a defect raises."""
        from workbench.casefile.build import case_file
        from workbench.incident import load
        from workbench.live import collect, scope_for

        last = max(failure.first - float(self._config["since"]), 0.0)
        begin = last if failure.begin is None else max(failure.begin, last)
        scope = scope_for(
            failure.job_id or failure.job,
            self._config,
            since=begin - _BEFORE,
            until=max(now, failure.last),
            namespace=failure.namespace or None,
            attempt=failure.attempt,
        )
        scope = replace(scope, nodes=failure.nodes, pods=failure.pods, user=failure.user)
        done = collect(scope, place, self._config, sources=self._sources, missing=self._missing)
        answers = [answer for some in done.gathered.answers.values() for answer in some]
        lacking = tuple(dict.fromkeys(f"{one.source}: {one.detail}" for one in answers if one.status == "failed"))
        scope = done.gathered.scope
        if not any(one.file for one in answers):
            said = "; ".join(lacking[:3]) or "; ".join(one.detail for one in answers if one.status != "ok")[:500]
            return Found(None, lacking, f"no source gave any evidence: {said or 'none is configured'}", scope.nodes, scope.pods)
        incident = load(done.path)
        incident.name = f"job {failure.job}"
        return Found(case_file(incident, source=done.path), lacking, "", scope.nodes, scope.pods)
