"""
Turn sources and a job's name into an incident folder with a manifest: what was asked, what answered, what did not.

All sources are asked at once, each for as long as its deadline and no longer: one that hangs is left behind and told of, the others
still count. First those that know where the job ran are asked for it, then all are asked for what they know of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

from workbench.errors import WorkbenchError
from workbench.sources.contract import Answer, Deadline, Folder, Scope, Source

__all__ = ["AROUND", "MANIFEST", "SCHEMA", "Gathered", "gather", "in_parallel"]

MANIFEST = "manifest.json"
SCHEMA = "workbench.manifest/1"
AROUND = 600.0  # seconds before and after the job: what ended it may stand just outside
_GRACE = 2.0  # seconds beyond the deadline in which a source may still say itself what it lacks
_WORDS = {"prometheus": "metrics", "elasticsearch": "job", "node": "kernel"}  # a source's word in the coverage
_Result = TypeVar("_Result")


@dataclass
class Gathered:
    """What a collection found: where the job ran, and what each source answered."""

    scope: Scope
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> list[Answer]:
        """The answers that are not ``ok``."""
        return [answer for answers in self.answers.values() for answer in answers if answer.status != "ok"]


def in_parallel(
    sources: Sequence[Source], work: Callable[[Source], _Result], seconds: float
) -> dict[str, tuple[_Result | Exception, float]]:
    """
    Do the same with all sources at once and return, by name, the result or the exception, and the seconds it took.

    A source that does not come back in time is left behind (its thread ends with the process) and gives a `TimeoutError`.
    """
    done: SimpleQueue[tuple[str, _Result | Exception, float]] = SimpleQueue()
    begun = monotonic()

    def run(source: Source) -> None:
        try:
            result: _Result | Exception = work(source)
        except Exception as error:  # a source's defect must not cost the others
            result = error
        done.put((source.name, result, monotonic() - begun))

    for source in sources:
        Thread(target=run, args=(source,), name=f"source-{source.name}", daemon=True).start()
    results: dict[str, tuple[_Result | Exception, float]] = {}
    end = begun + seconds
    while len(results) < len(sources):
        try:
            name, result, took = done.get(timeout=max(end - monotonic(), 0.001))
        except Empty:
            break
        results[name] = result, took
    for source in sources:
        if source.name not in results:
            results[source.name] = TimeoutError(f"no answer within {seconds:g} s"), seconds
    return results


def gather(
    scope: Scope, sources: Sequence[Source], folder: Folder, *, seconds: float = 30.0, missing: Sequence[Answer] = ()
) -> Gathered:
    """
    Collect what all sources know of a job into a folder.

    Parameters
    ----------
    scope : Scope
        The job and the window; what is missing in it is asked of the sources first.
    sources : sequence of Source
        Each with a name of its own.
    folder : Folder
        Where the files go; a `manifest.json` is written last.
    seconds : float
        How long each source may take, twice: to find the job, and to tell of it.
    missing : sequence of Answer
        What is known not to be there; it is noted with the rest.

    Returns
    -------
    Gathered
        With at least one answer of each source; nothing is raised because of a source.
    """
    located = in_parallel(sources, lambda source: source.locate(scope, Deadline(seconds)), seconds + _GRACE)
    lost = {name: result for name, (result, _) in located.items() if isinstance(result, Exception)}
    known = [result for result, _ in located.values() if isinstance(result, Scope)]
    for found in known:
        scope = _joined(scope, found)
    gathered = Gathered(scope)
    asked = [source for source in sources if not isinstance(lost.get(source.name), TimeoutError)]
    collected = in_parallel(asked, lambda source: source.collect(scope, folder, Deadline(seconds)), seconds + _GRACE)
    for source in sources:
        name = source.name
        result, took = collected.get(name, (lost.get(name), 0.0))
        answers = [_failed(name, result)] if isinstance(result, Exception) or result is None else list(result)
        if name in lost and name in collected:
            answers.append(_failed(name, lost[name]))
        if not answers:
            answers = [Answer(_WORDS.get(name, name), "missing", f"{name} was asked nothing that it could answer")]
        gathered.answers[name] = answers
        gathered.seconds[name] = round(took + located[name][1], 3)
    if missing:
        gathered.answers["site"] = list(missing)
    if not known and sources:
        gathered.answers.setdefault("workbench", []).append(
            Answer(
                "workbench",
                "partial",
                f"no source could tell where {scope.job!r} ran",
                hint="check its name, give --namespace, or a window in which it ran with --since and --until",
            )
        )
    folder.close()
    _write_manifest(gathered, folder)
    return gathered


def _joined(scope: Scope, found: Scope) -> Scope:
    """Return a scope with what another knows added: places are united, the window follows whoever narrowed it first."""
    return replace(
        scope,
        namespace=scope.namespace or found.namespace,
        attempt=scope.attempt if scope.attempt is not None else found.attempt,
        nodes=tuple(dict.fromkeys((*scope.nodes, *found.nodes))),
        pods=tuple(dict.fromkeys((*scope.pods, *found.pods))),
        names=tuple(dict.fromkeys((*scope.names, *found.names))),
        user=scope.user or found.user,
        paths=tuple(dict.fromkeys((*scope.paths, *found.paths))),
        addresses=tuple(dict.fromkeys((*scope.addresses, *found.addresses))),
        since=max(scope.since, found.since - AROUND) if found.since < scope.until else scope.since,
        until=min(scope.until, found.until + AROUND) if found.until > scope.since else scope.until,
    )


def _failed(name: str, error: Exception | None) -> Answer:
    hint = error.hint if isinstance(error, WorkbenchError) else ""
    detail = f"{name} did not answer" + (f": {error}" if error is not None and str(error) else "")
    if error is not None and not isinstance(error, (WorkbenchError, TimeoutError, OSError)):
        detail = f"{name}: internal error: {type(error).__name__}: {error}"
        hint = "this is a defect of the workbench: report it with `workbench --version`"
    return Answer(_WORDS.get(name, name), "failed", detail, hint or "`workbench doctor` tells what of it can be reached")


def _write_manifest(gathered: Gathered, folder: Folder) -> None:
    from workbench import __version__

    document: dict[str, Any] = {
        "schema": SCHEMA,
        "workbench": __version__,
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
        "scope": asdict(gathered.scope),
        "sources": [
            {"name": name, "seconds": gathered.seconds.get(name), "answers": [asdict(answer) for answer in answers]}
            for name, answers in gathered.answers.items()
        ],
        "files": [asdict(file) for _, file in sorted(folder.files.items())],
    }
    path = folder.root / MANIFEST
    partial = path.with_name(MANIFEST + ".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
