"""
Turn a folder of evidence into an `Incident`: every document read and parsed, with frames to look at and a verdict on demand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.collector import no_collector
from workbench.model import DocumentSummary, Evidence, Parsed, Problem, Verdict

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pandas as pd

    from workbench.sources.files import Document
    from workbench.triage.windows import Windows
    from workbench.workers import Outcome, Pool

__all__ = [
    "Incident",
    "IncidentVerdict",
    "from_documents",
    "load",
    "needs_year",
    "parse_document",
    "triage_path",
    "without_input",
]


class IncidentVerdict(Verdict):
    """A verdict as people look at it in Python: its evidence and victims as frames, itself as a card in a notebook."""

    @cached_property
    def evidence(self) -> pd.DataFrame:
        """The evidence in its order (columns of `workbench.frames.EVENTS`); first row with role `cause` is the first evidence."""
        from workbench import frames

        return frames.events_frame(self.evidence_records, ordered=False)

    @cached_property
    def victims(self) -> pd.DataFrame:
        """The ranks that failed only because another did (columns of `workbench.frames.VICTIMS`)."""
        from workbench import frames

        return frames.victims_frame(self.victim_records)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict in the schema ``workbench.verdict/1``."""
        from workbench.report.verdict_json import to_json

        return to_json(self)

    def _repr_html_(self) -> str:
        from html import escape

        document = self.to_dict()
        rows = "".join(
            f"<tr><td>{escape(str(row['role']))}</td><td>{escape(str(row['signature']))}</td><td>{escape(str(row['time'] or ''))}</td>"
            f"<td>{escape(str(row['file']))}:{row['line'] or ''}</td><td><code>{escape(str(row['text'])[:160])}</code></td></tr>"
            for row in document["evidence"][:8]
        )
        steps = "".join(f"<li>{escape(step)}</li>" for step in document["next_steps"])
        return (
            f"<h3>{escape(self.cls)} <small>confidence {self.confidence:.0%}</small></h3><p>{escape(self.summary)}</p>"
            f"<p>Retry: <b>{escape(str(self.retry))}</b> · remediation: <b>{escape(str(self.remediation))}</b></p><ol>{steps}</ol>"
            f"<table><tr><th>role</th><th>signature</th><th>time (UTC)</th><th>where</th><th>line</th></tr>{rows}</table>"
        )


class Incident(Evidence):
    """The evidence of one failed job, with frames to look at and a verdict on demand; see `workbench.model.Evidence`."""

    def triage(self, windows: Windows | None = None) -> IncidentVerdict:
        """
        Return the verdict: what failed first, where, why, who is a victim, what could not be seen, what to do.

        `windows` (`workbench.triage.windows.Windows`, seconds) replaces the documented time windows.
        """
        from workbench.triage.verdict import judge

        with no_collector():
            verdict = judge(self, windows)
        return IncidentVerdict(**{item.name: getattr(verdict, item.name) for item in fields(verdict)})

    @cached_property
    def events(self) -> pd.DataFrame:
        """All events as a frame (columns of `workbench.frames.EVENTS`), ordered by time, then file order."""
        from workbench import frames

        return frames.events_frame(self.records)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """All metric samples as a long frame (columns of `workbench.frames.METRICS`)."""
        from workbench import frames

        return frames.metrics_frame(self.series)

    @cached_property
    def conditions(self) -> pd.DataFrame:
        """Node and pod conditions, taints and states (columns of `workbench.frames.CONDITIONS`)."""
        from workbench import frames

        return frames.conditions_frame(self.condition_records)

    @cached_property
    def placement(self) -> pd.DataFrame:
        """Which rank ran on which node and GPU, by which source (columns of `workbench.frames.PLACEMENT`)."""
        from workbench import frames

        return frames.placement_frame(self.placement_records)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{escape(doc.name)}</td><td>{escape(doc.kind)}</td><td>{escape(doc.node or '')}</td>"
            f"<td>{doc.lines:,}</td><td>{doc.events:,}</td></tr>"
            for doc in self.documents
        )
        return (
            f"<b>Incident {escape(self.name)}</b>: {len(self.documents)} documents, {len(self.records):,} events, "
            f"{len(self.problems)} problems<table>"
            f"<tr><th>document</th><th>taken for</th><th>node</th><th>lines</th><th>events</th></tr>{rows}</table>"
        )

    def __repr__(self) -> str:
        return (
            f"<Incident {self.name}: {len(self.documents)} documents, {len(self.records)} events, {len(self.problems)} problems>"
        )


def load(
    *paths: str | Path, progress: Callable[..., None] | None = None, stdin: Any = None, pool: Pool | None = None
) -> Incident:
    """
    Read a folder, a file, or an archive with the evidence of one incident.

    Parameters
    ----------
    paths : str or Path
        Folders, log files or archives; ``-`` reads standard input. Several paths are one incident.
    progress : callable, optional
        Called by the reader as bytes are read.
    pool : Pool, optional
        Workers that read the logs, such as `workbench.cluster.Cluster`; default: this process, and for the logs of a large job
        processes beside it.

    Returns
    -------
    Incident
        What could not be read is in its `problems`; reading never raises because of a file's content.

    Raises
    ------
    SourceUnavailable
        A path does not exist.
    """
    from workbench.errors import SourceUnavailable
    from workbench.sources.files import nothing, read_files
    from workbench.sources.survey import Limits, survey
    from workbench.sources.walk import find
    from workbench.workers import cores, read_parsed

    for path in paths:
        if str(path) != "-" and not Path(path).exists():
            raise SourceUnavailable(
                f"{path}: no such file or folder",
                hint="give a folder of evidence, a log file, an archive, or - for standard input",
            )
    incident = Incident(name=" ".join(str(path) for path in paths))
    limits = Limits()
    found, incident.problems = find([str(path) for path in paths], limits.files)
    if not found and not incident.problems:
        incident.problems.append(nothing([str(path) for path in paths]))
    about = survey(found, limits)
    with no_collector():
        if pool is not None or (len(found) >= _MANY and cores() > 1):
            return _assembled(_sound(read_parsed(found, about, progress, pool), incident), incident)
        return _assembled(_all_parsed(read_files(found, about, progress=progress, stdin=stdin), incident), incident)


def triage_path(path: str) -> dict[str, Any]:
    """Return the verdict on one incident as JSON (``workbench.verdict/1``); whatever goes wrong becomes an `unknown` that says so."""
    from workbench.errors import WorkbenchError
    from workbench.report.verdict_json import failed, to_json

    try:
        return to_json(load(path).triage(), name=path)
    except WorkbenchError as error:
        return failed(path, str(error), hint=error.hint)
    except OSError as error:
        return failed(path, f"{path}: {error.strerror or error}", hint="check the path and that you may read it")
    except Exception as error:  # one bad incident must not cost the verdicts of the others
        return failed(path, f"internal error: {type(error).__name__}: {error}", source="workbench", hint="please report it")


def from_documents(documents: Iterable[Document | Problem], *, name: str = "") -> Incident:
    """Parse documents into an `Incident`; the live sources of a site give the same documents as a folder."""
    incident = Incident(name=name)
    with no_collector():
        return _assembled(_all_parsed(documents, incident), incident)


def _assembled(found: Iterable[tuple[Document, Parsed]], incident: Incident) -> Incident:
    order = 0
    ready: list[tuple[Document, Parsed]] = []
    waiting: list[tuple[Document, Parsed]] = []  # logs whose stamps have no year, until the others have told it
    for document, parsed in found:
        if needs_year(parsed):
            waiting.append((document, parsed))
        else:
            ready.append((document, parsed))
            without_input(parsed, document)
    reference = _reference([parsed for _, parsed in ready])
    for document, parsed in waiting:
        problems = len(incident.problems)
        dated = _parsed(document, incident, reference)
        ready.append((document, parsed if len(incident.problems) > problems else dated))
        without_input(ready[-1][1], document)
    _name_series(ready)
    for document, parsed in ready:
        for event in parsed.events:
            event.order = order
            order += 1
            event.file = event.file or document.name
        incident.records += parsed.events
        incident.series += parsed.series
        incident.condition_records += parsed.conditions
        incident.placement_records += parsed.placements
        incident.jobs += parsed.jobs
        incident.problems += parsed.problems
        incident.documents.append(
            DocumentSummary(
                document.name,
                document.kind,
                parsed.facts.get("node") or document.node,
                document.size,
                document.total_lines,
                document.complete,
                len(parsed.events),
                parsed.facts,
            )
        )
    return incident


def _name_series(ready: Sequence[tuple[Document, Parsed]]) -> None:
    """Give series that are known only by an address the name of the node which another document says it to be."""
    from workbench.parse.addresses import addresses_of, name_series

    series = [row for _, parsed in ready for row in parsed.series]
    if any(getattr(row, "weak_node", False) for row in series):
        known = {str(name) for document, parsed in ready for name in (parsed.facts.get("node"), document.node) if name}
        known |= {condition.node for _, parsed in ready for condition in parsed.conditions if condition.node}
        name_series(series, addresses_of([parsed.facts for _, parsed in ready], series, sorted(known)))


# Starting a process costs what parsing a thousand logs of ranks does; large documents cost more to send than to parse.
_MANY = 2000


def _all_parsed(documents: Iterable[Document | Problem], incident: Incident) -> Iterator[tuple[Document, Parsed]]:
    """Yield each document with what its parser found, in order; when an archive holds the logs of a large job, processes parse them."""
    from workbench.workers import BATCH, Workers, cores

    spare = cores() > 1
    workers: Workers | None = None
    logs = 0
    batch: list[Document] = []
    answers: list[Future[list[Parsed | Exception]]] = []
    found: list[tuple[Document, Parsed | tuple[int, int]]] = []  # what was found, or number of the batch and place in it
    try:
        for document in documents:
            if isinstance(document, Problem):
                incident.problems.append(document)
            elif document.raw is not None or document.data is not None or not spare or logs < _MANY:
                logs += bool(document.lines)
                parsed = _parsed(document, incident)
                if not needs_year(parsed):
                    without_input(parsed, document)
                found.append((document, parsed))
            else:
                workers = workers or Workers(min(cores(), 16))
                found.append((document, (len(answers), len(batch))))
                batch.append(document)
                if len(batch) == BATCH:
                    answers.append(workers.parse(batch))
                    batch = []
        if batch and workers is not None:
            answers.append(workers.parse(batch))
        for document, result in found:
            outcome = result if isinstance(result, Parsed) else answers[result[0]].result()[result[1]]
            yield document, outcome if isinstance(outcome, Parsed) else _failed(document, incident, outcome)
    finally:
        if workers is not None:
            workers.close()


def _sound(outcomes: Iterable[Outcome], incident: Incident) -> Iterator[tuple[Document, Parsed]]:
    """Yield the documents that were read, each with what its parser found; note what was not."""
    for outcome in outcomes:
        if isinstance(outcome, Problem):
            incident.problems.append(outcome)
        else:
            document, result = outcome
            yield document, result if isinstance(result, Parsed) else _failed(document, incident, result)


def needs_year(parsed: Parsed) -> bool:
    """Tell whether a log's stamps have no year, so that it must be read again when the other evidence has told it."""
    return bool(parsed.facts.get("yearless_stamps") or parsed.facts.get("year_from") == "reference")


def _parsed(document: Document, incident: Incident, reference: float | None = None) -> Parsed:
    try:
        return parse_document(document, reference)
    except Exception as error:  # a parser's defect must not cost the rest of the evidence
        return _failed(document, incident, RuntimeError(f"{type(error).__name__}: {error}"))


def _failed(document: Document, incident: Incident, error: Exception) -> Parsed:
    incident.problems.append(
        Problem(document.name, f"the {document.kind} parser failed: {error}", "please report this file's format")
    )
    return Parsed()


def without_input(parsed: Parsed | Exception, document: Document) -> None:
    """Let go of the text that a document was parsed from, so that memory holds what was found and not what was read."""
    if isinstance(parsed, Parsed):
        parsed.facts.setdefault("has_lines", bool(document.lines))  # kept when it was let go of before
        if document.samples:
            parsed.facts.setdefault("samples", document.samples)
        if document.marks:
            parsed.facts.setdefault("marks", (document.mtime, document.marks))
    document.lines, document.raw, document.data = [], None, None
    document.samples, document.marks = [], []


def _reference(parts: Sequence[Parsed]) -> float | None:
    """A moment near the incident, from the sources that carry whole dates: the middle of what they tell, the job's own word first."""

    def told(*sources: str) -> list[float]:
        return [
            event.time
            for parsed in parts
            for event in parsed.events
            if event.time is not None and not event.data.get("time_from") and event.source in sources
        ]

    times = told("job", "launcher", "kubernetes", "slurm")
    last = [float(one.times[-1]) for parsed in parts for one in parsed.series[:1] if len(one.times)]
    times += [time for time in last if isfinite(time)]  # samples of a page without stamps are of no known time
    times = times or told("kernel", "bmc", "smi")
    return sorted(times)[len(times) // 2] if times else None


def parse_document(document: Document, reference: float | None = None) -> Parsed:
    """
    Hand one document to the parser of its kind; text that fits no kind is read as a job log, since most evidence is.

    `reference` (seconds since the epoch) settles the year of stamps that have none.
    """
    kind, lines, file, node = document.kind, document.lines, document.name, document.node
    year = datetime.fromtimestamp(reference, UTC).year if reference is not None else None
    if kind == "kernel-log":
        from workbench.parse.kernel import parse_kernel

        return parse_kernel(lines, file=file, node=node, reference=reference or document.mtime)
    if kind == "metrics-text":
        from workbench.parse.prom_text import parse_exposition

        return parse_exposition(document.raw or b"", file=file, node=node)
    if kind == "metrics-json":
        from workbench.parse.prom_json import parse_query_range

        return parse_query_range(document.data, file=file)
    if kind == "kubernetes":
        from workbench.parse.kubernetes import Locator, parse_objects

        locator = Locator((document.raw or b"").decode("utf-8", "replace")) if document.raw else None
        return parse_objects(_objects(document.data), file=file, lines=locator)
    if kind == "kubelet-devices":
        from workbench.parse.kubernetes_devices import parse_checkpoint

        return parse_checkpoint(document.data, file=file)
    if kind == "kubernetes-text":
        from workbench.parse.kubernetes_text import parse_describe

        return _with_job_lines(parse_describe(lines, file=file, node=node), lines, file, node)
    if kind == "slurm-text":
        from workbench.parse.slurm import parse_slurm, parse_slurm_json
        from workbench.parse.slurm_log import parse_slurm_log

        if document.data is not None:
            return parse_slurm_json(document.data, file=file)
        parsed = parse_slurm(lines, file=file, node=node)
        parsed.extend(parse_slurm_log(lines, file=file, node=node))
        return parsed
    if kind == "smi":
        from workbench.parse.kernel import parse_kernel
        from workbench.parse.nvml_doc import is_nvml, parse_nvml
        from workbench.parse.smi import parse_smi

        if is_nvml(document.data):
            return parse_nvml(document.data, file=file, node=node, lines=lines)
        parsed = parse_smi(lines, file=file, node=node)
        if parsed.facts.get("has_kernel_lines"):
            parsed.extend(parse_kernel(lines, file=file, node=node, reference=reference or document.mtime))
        return parsed
    if kind == "flight-recorder":
        from workbench.parse.flight_recorder import parse_dump

        return parse_dump(document.raw or b"", file=file)
    if kind == "torchelastic-error":
        from workbench.parse.torchelastic import as_in_a_log, parse_error_file

        return as_in_a_log(parse_error_file(document.data, file=file))
    if kind == "stacks" or (kind == "text" and any(_PS.match(line.text) for line in lines[:5])):
        from workbench.parse.stacks import parse_stacks

        return parse_stacks(lines, file=file)
    if kind == "bmc":
        from workbench.parse.bmc import parse_bmc

        return parse_bmc(lines, document.data, file=file, node=node)
    if kind == "fabricmanager-log":
        from workbench.parse.fabric_manager import parse_fabric_manager

        return parse_fabric_manager(lines, file=file, node=node)
    if kind == "launch":
        from workbench.parse.launch import parse_launch

        return parse_launch(document.data if document.data is not None else lines, file=file)
    if kind == "hosts":
        from workbench.parse.addresses import parse_hosts

        return parse_hosts(lines, file=file)
    if kind == "manifest":
        from workbench.parse.manifest import parse_manifest

        return parse_manifest(document.data, file=file)
    from workbench.parse.bounds import bound_times
    from workbench.parse.job import parse_job
    from workbench.sources.paste import quotations

    parsed = parse_job(lines, file=file, node=node, year=year, scanned=True)
    bound_times(parsed.events, lines)
    if any(_ZONED.search(line.text, 0, 80) for line in lines[:200]):
        parsed.facts["zoned"] = True
    if any("(most recent call first)" in line.text for line in lines):
        # faulthandler writes its dump into the rank's own log
        from workbench.parse.stacks import parse_stacks

        stacks = parse_stacks(lines, file=file, headed=True)
        parsed.events += [event for event in stacks.events if event.signature != "stack-fatal-error"]
    for part in quotations(document):
        said = parse_document(part, reference)
        if said.events:
            rows = {line.no for line in part.lines}
            parsed.events = [event for event in parsed.events if event.line not in rows]
            parsed.extend(said)
    return parsed


# 2024-03-06T17:53:22.335714Z | 2024-03-06 17:53:22+00:00
_ZONED = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z\b| ?[+-]\d\d:?\d\d\b| UTC)")
# PID  PPID STAT WCHAN … | USER  PID %CPU … | F S UID PID PPID …
_PS = re.compile(r"\s*(?:F\s+S\s+)?(?:USER|UID|PID|PPID)\s.*\b(?:STAT|WCHAN|COMMAND|CMD)\b")


def _with_job_lines(parsed: Parsed, lines: Sequence[Any], file: str, node: str | None) -> Parsed:
    """Text that came out of a platform tool may quote job output; a job-log reading of it may add what the tool's parser left."""
    if parsed.events:
        return parsed
    from workbench.parse.job import parse_job

    parsed.extend(parse_job(lines, file=file, node=node))
    return parsed


def _objects(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return [data]  # a list keeps its kind, which says what its items are
    flat: list[Any] = []
    for item in data or []:
        flat += _objects(item) if isinstance(item, (dict, list)) else []
    return flat
