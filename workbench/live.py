"""
Turn a job's name into evidence and a verdict, against a running site: collect, triage, and tell what can be reached.

The verdict of a live site is that of the incident folder which `collect` writes: both go through the same files.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.sources.bundle import is_bundle, pack
from workbench.sources.contract import Answer, Deadline, Folder, Reach, Scope, Source
from workbench.sources.gather import Gathered, gather, in_parallel
from workbench.sources.site import sources_of

if TYPE_CHECKING:
    from workbench.config import Config
    from workbench.incident import Incident

__all__ = ["Collected", "collect", "examine", "load_job", "scope_for", "unseen"]


@dataclass(frozen=True, slots=True)
class Collected:
    """A collection that is done: where it lies, how large it is in bytes, and what each source answered."""

    path: Path
    size: int
    gathered: Gathered


def scope_for(
    job: str,
    config: Config,
    *,
    since: float | None = None,
    until: float | None = None,
    namespace: str | None = None,
    attempt: int | None = None,
) -> Scope:
    """Return the scope of a job; without a window it is the last hours, as configured by ``since``."""
    end = time.time() if until is None else until
    begin = end - config["since"] if since is None else since
    return Scope(job, begin, end, namespace=namespace or config["kubernetes.namespace"], attempt=attempt)


def collect(
    scope: Scope, out: str | Path, config: Config, *, sources: Sequence[Source] | None = None, missing: Sequence[Answer] = ()
) -> Collected:
    """
    Collect all that is known of a job into a folder or, when the name ends like one, an archive.

    Parameters
    ----------
    scope : Scope
        The job and the window; see `scope_for`.
    out : str or Path
        A folder, or a file that ends with ``.tar.zst``, ``.tar.gz``, ``.tar`` or ``.zip``. What an interrupted collection left is
        used again.
    config : Config
        The site; see `workbench.config.load_config`.
    sources : sequence of Source, optional
        Default those of the configuration.
    missing : sequence of Answer, optional
        What is known not to be there, beside `sources`.
    """
    if sources is None:
        sources, missing = sources_of(config)
    target = Path(out)
    root = target.with_name(target.name + ".partial") if is_bundle(target) else target
    root.mkdir(parents=True, exist_ok=True)
    folder = Folder.resume(root, int(config["limit"]))
    gathered = gather(scope, sources, folder, seconds=float(config["deadline"]), missing=missing)
    if is_bundle(target):
        pack(root, target)
        shutil.rmtree(root, ignore_errors=True)
        return Collected(target, target.stat().st_size, gathered)
    return Collected(target, folder.size, gathered)


def load_job(
    scope: Scope,
    config: Config,
    *,
    keep: str | Path | None = None,
    sources: Sequence[Source] | None = None,
    missing: Sequence[Answer] = (),
) -> Incident:
    """
    Return the incident of a job from a running site; `incident.triage()` gives the verdict.

    `keep` names a folder or an archive in which the evidence stays; without it nothing is left on the disk.
    """
    from workbench.incident import load

    if keep is not None:
        incident = load(collect(scope, keep, config, sources=sources, missing=missing).path)
    else:
        with tempfile.TemporaryDirectory(prefix="workbench-") as place:
            incident = load(collect(scope, Path(place) / "incident", config, sources=sources, missing=missing).path)
    incident.name = f"job {scope.job}"
    return incident


# the words of `seen_by` in catalog/classes.csv for which each backend can speak
_SPEAKS_FOR = {
    "prometheus": {"metrics"},
    "kubernetes": {"kubernetes"},
    "elasticsearch": {"job", "kernel"},
    "slurm": {"slurm"},
    "node": {"kernel", "smi"},
}


def unseen(rows: Sequence[Reach]) -> list[str]:
    """Return the failure classes that this site cannot show: some source lacks what it takes, and no other can speak for it."""
    from workbench.catalog import table

    seen_by = {row["class"]: set((row["seen_by"] or "").split(";")) for row in table("classes")}
    blind: dict[str, set[str]] = {}
    for row in rows:
        for name in row.blind_to:
            blind.setdefault(name, set()).add(row.source)
    here = {row.source for row in rows if row.status == "ok"}
    return sorted(
        name
        for name, sources in blind.items()
        if not any(_SPEAKS_FOR.get(source, set()) & seen_by.get(name, set()) for source in here - sources)
    )


def examine(config: Config, *, sources: Sequence[Source] | None = None) -> list[Reach]:
    """Return what ``workbench doctor`` says of a site: for each source what it has and lacks; never raises because of one."""
    lacking: Sequence[Answer] = ()
    if sources is None:
        sources, lacking = sources_of(config)
    seconds = float(config["deadline"])
    rows = [Reach(answer.source, "configuration", "warning", answer.detail, answer.hint) for answer in lacking]
    for name, (result, _) in in_parallel(sources, lambda source: source.examine(Deadline(seconds)), seconds + 2).items():
        if isinstance(result, Exception):
            rows.append(Reach(name, "reachability", "unknown", f"it could not be examined: {result}"))
        else:
            rows += result
    return rows
