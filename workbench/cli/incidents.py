"""Turn what a person calls an incident (folder, archive, verdict, saved case, number in the inbox, example) into what reports are made of."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.live import add_site
from workbench.errors import ParseError, SourceUnavailable, WorkbenchError

if TYPE_CHECKING:
    from workbench.config import Config
    from workbench.incident import Incident

__all__ = ["Given", "add_incident", "done_to", "hider", "journal_of", "open_incident", "product_of"]


@dataclass(slots=True)
class Given:
    """An incident: its verdict always, the rest as far as it was given."""

    name: str
    document: Mapping[str, Any]
    job: Mapping[str, Any] = field(default_factory=dict)
    impact: Mapping[str, Any] = field(default_factory=dict)
    evidence: Incident | None = None
    entry: Mapping[str, Any] = field(default_factory=dict)

    def people(self) -> list[str]:
        """Return the accounts that the incident names: no report shows them."""
        from workbench.report.machines import people

        found = people(self.evidence) if self.evidence is not None else []
        return [*found, *(str(one["user"]) for one in (self.job, self.entry) if one.get("user"))]

    def job_facts(self) -> dict[str, Any]:
        """Return the job with the file that tells of it."""
        from workbench.report.machines import record_of

        file = record_of(self.evidence, self.job) if self.evidence is not None else None
        return {**self.job, "file": file}


def add_incident(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Declare the options that say which incident, and what of the site belongs to it."""
    words = (
        "folder or archive with its evidence, verdict.json, a saved case, an id of the inbox, or a name of `workbench examples`"
    )
    if several:
        parser.add_argument("incidents", metavar="INCIDENT", nargs="+", help=words)
    else:
        parser.add_argument("incident", metavar="INCIDENT", help=words)
    parser.add_argument("--journal", metavar="FILE", help="what was done to nodes (remediation.journal)")
    parser.add_argument("--inbox", metavar="DIR", help="where ids are looked up (inbox.folder)")
    parser.add_argument(
        "--redact",
        metavar="NAME",
        action="append",
        default=[],
        help="replace this name as well (beside report.redact, secrets and people, which never show); @FILE: one name a line",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write there instead of stdout")
    add_site(parser)


def open_incident(word: str, config: Config, *, inbox: str | None = None, evidence: bool = False) -> Given:
    """
    Return the incident of that name.

    Parameters
    ----------
    word : str
    config : Config
    inbox : str, optional
        The inbox's folder; default the setting.
    evidence : bool
        Whether the evidence itself is needed, also where a saved case says all else.

    Raises
    ------
    SourceUnavailable
        Nothing is called so.
    ParseError
        A file is JSON and no verdict.
    """
    path = Path(word)
    if path.is_file() and path.suffix.lower() == ".json" and (document := _verdict(path)) is not None:
        return Given(str(document.get("incident") or path.stem), document)
    if path.is_dir() and (path / "case.json").is_file() and (path / "verdict.json").is_file():
        from workbench.casefile.store import open_case

        return _of_case(open_case(path), evidence)
    if path.exists():
        return _of_evidence(word)
    found = _of_inbox(word, inbox or config.get("inbox.folder"), evidence)
    if found is not None:
        return found
    from workbench.shipped import example_path, examples

    if word in examples():
        given = _of_evidence(str(example_path(word)))
        return Given(word, {**given.document, "incident": word}, given.job, given.impact, given.evidence)
    raise SourceUnavailable(
        f"{word}: no such folder, file, entry of the inbox or example",
        hint="give a folder of evidence, an archive, a verdict.json, an id of `workbench inbox`, or a name of `workbench examples`",
    )


def _verdict(path: Path) -> dict[str, Any] | None:
    """Return the verdict that a file holds; None when it is JSON of another kind, which may be evidence."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(table, list) and len(table) == 1:
        table = table[0]
    schema = str(table.get("schema", "")) if isinstance(table, dict) else ""
    if not schema.startswith("workbench."):
        return None
    if not schema.startswith("workbench.verdict/1"):
        raise ParseError(f"it is {schema}, not a verdict", file=str(path), hint="give what `workbench triage -o json` printed")
    wanted = (
        "cause",
        "class",
        "summary",
        "culprit",
        "evidence",
        "hypotheses",
        "victims",
        "counter_evidence",
        "coverage",
        "degraded",
    )
    if missing := [name for name in wanted if name not in table]:
        raise ParseError(
            f"the verdict has no {missing[0]}", file=str(path), hint="give what `workbench triage -o json` printed, whole"
        )
    return dict(table)


def _of_evidence(path: str) -> Given:
    from workbench.casefile.build import case_file
    from workbench.incident import load

    incident = load(path)
    case = case_file(incident, source=path)
    return Given(Path(path).name, case.verdict, case.job, case.impact, incident)


def _of_case(case: Any, evidence: bool, entry: Mapping[str, Any] | None = None) -> Given:
    incident = None
    if evidence and case.source and Path(case.source).exists():
        from workbench.incident import load

        incident = load(case.source)
    return Given(case.id, case.verdict, case.job, case.impact, incident, entry or {})


def _of_inbox(word: str, folder: str | None, evidence: bool) -> Given | None:
    if not folder or not Path(folder).is_dir():
        return None
    from workbench.inbox.rows import to_json
    from workbench.inbox.store import Inbox

    inbox = Inbox(folder)
    if word not in inbox:
        return None
    entry = inbox.get(word)
    document = inbox.verdict(word)
    try:
        given = _of_case(inbox.case(word), evidence, to_json(entry))
    except WorkbenchError:
        if not document:
            raise
        given = Given(
            word, document, {"name": entry.job, "namespace": entry.namespace, "user": entry.user}, {}, None, to_json(entry)
        )
    return Given(word, {**(document or given.document), "incident": word}, given.job, given.impact, given.evidence, given.entry)


def hider(given: Sequence[Given], config: Config, listed: Iterable[str]) -> Callable[[str], str]:
    """Return what takes secrets, people and a site's names out of a text."""
    from workbench.report.redact import names_in, redact

    people = [name for one in given for name in one.people()]
    return redact(names_in([*(config["report.redact"] or ()), *listed]), people=people)


def journal_of(named: str | None, config: Config) -> list[dict[str, Any]] | None:
    """Return the lines of the remediation journal; None when there is none and nobody named one."""
    from workbench.remediation.journal import Journal

    path = Path(named or config["remediation.journal"])
    if not path.exists():
        if named:
            raise SourceUnavailable(f"{path}: there is no such journal", hint="give the file of remediation.journal")
        return None
    return [entry.to_dict() for entry in Journal(path).entries()]


def done_to(given: Given, journal: list[dict[str, Any]] | None, hide: Callable[[str], str]) -> list[dict[str, Any]] | None:
    """Return what was done to the node of an incident since it failed; None without a journal."""
    from workbench.report.redact import hide_document
    from workbench.report.timeline import seconds
    from workbench.report.tried import tried

    node = (given.document.get("culprit") or {}).get("node")
    if journal is None:
        return None
    since = seconds(given.document.get("time")) or given.job.get("start")
    rows: list[dict[str, Any]] = hide_document(tried(journal, {str(node)}, since=since) if node else [], hide)
    return rows


def product_of(given: Given) -> str | None:
    """Return the product of the GPUs that the incident held, as its evidence names it."""
    if given.evidence is None:
        return None
    from workbench.report import machines

    return machines.product_of(given.evidence, given.document.get("culprit"))
