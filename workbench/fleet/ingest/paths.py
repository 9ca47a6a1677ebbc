"""Turn a path into what it tells the account: a run, a verdict, an inbox, tables of Slurm, objects of Kubernetes, a journal, findings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.fleet.ingest.kubernetes import of_kubernetes
from workbench.fleet.ingest.lines import of_findings, of_journal, of_run
from workbench.fleet.ingest.slurm import of_slurm, of_slurm_json
from workbench.fleet.ingest.told import Told
from workbench.fleet.ingest.verdicts import of_entry, of_verdict
from workbench.model import Line

__all__ = ["of_bytes", "of_path", "newest"]

_MOST = 1 << 30  # bytes of one document
_LONGEST = 64 * 1024  # characters of one line


def of_path(path: Path, *, cluster: str = "") -> tuple[Told, list[Path]]:
    """
    Return what a file or folder tells, and the folders in it that hold evidence without a verdict.

    A folder is that of a run (``attempts.jsonl``), of an inbox (``entries/``), of an incident or case (``verdict.json``), or one that holds such
    folders. Nothing is raised for what cannot be read: it is a problem.
    """
    told, bare = Told(), list[Path]()
    try:
        if path.is_dir():
            for one in _folder(path, told, cluster):
                bare.append(one)
        else:
            with path.open("rb") as stream:
                data = stream.read(_MOST + 1)
            if len(data) > _MOST:
                told.wrong(str(path), "it is larger than 1 GiB", "give it in parts")
            else:
                told.extend(of_bytes(data, file=str(path), recorded=path.stat().st_mtime, cluster=cluster))
    except OSError as error:
        told.wrong(str(path), f"it cannot be read: {error.strerror or error}", "check the path and its rights")
    return told, bare


def _folder(path: Path, told: Told, cluster: str, deep: int = 2) -> Iterator[Path]:
    """Read a folder; yield those below (or itself) that hold evidence and no verdict."""
    if (path / "attempts.jsonl").is_file():
        told.extend(of_run(path, cluster=cluster))
    elif (path / "entries").is_dir() and not (path / "verdict.json").exists():
        _inbox(path, told, cluster)
    elif (path / "verdict.json").is_file():
        told.extend(_verdict(path, cluster))
    else:
        below = sorted(one for one in path.iterdir() if one.is_dir()) if deep else []
        known = [one for one in below if _is_one(one)]
        if not known:
            yield path
        for one in known:
            yield from _folder(one, told, cluster, deep - 1)


def _is_one(path: Path) -> bool:
    return any((path / name).exists() for name in ("attempts.jsonl", "verdict.json", "entries", "manifest.json", "incident.json"))


def _verdict(folder: Path, cluster: str) -> Told:
    path, told = folder / "verdict.json", Told()
    verdict = _load(path, told)
    job: Mapping[str, Any] = {}
    if isinstance(verdict, list) and len(verdict) == 1:
        verdict = verdict[0]
    if (folder / "case.json").is_file():
        case = _load(folder / "case.json", told)
        inner = case.get("job") if isinstance(case, Mapping) else None
        job = inner if isinstance(inner, Mapping) else {}
    if isinstance(verdict, Mapping):
        found = of_verdict(
            {"incident": folder.name, **verdict},
            source=f"folder:{folder.name}",
            recorded=path.stat().st_mtime,
            job=job,
            cluster=cluster,
            incident=str(folder),
        )
        told.extend(found)
    elif verdict is not None:
        told.wrong(str(path), "it is no verdict", "give what `workbench triage -o json` prints")
    return told


def _inbox(root: Path, told: Told, cluster: str) -> None:
    for folder in sorted((root / "entries").iterdir()):
        path = folder / "entry.json"
        if not path.is_file():
            continue
        entry = _load(path, told)
        verdict = _load(folder / "verdict.json", told) if (folder / "verdict.json").is_file() else None
        if isinstance(entry, Mapping) and str(entry.get("schema") or "").startswith("workbench.inbox/"):
            told.extend(of_entry(entry, verdict if isinstance(verdict, Mapping) else None, cluster=cluster))
        elif entry is not None:
            told.wrong(str(path), "it is no entry of an inbox", "it is left out")


def _load(path: Path, told: Told) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        told.wrong(str(path), f"it cannot be read: {error.strerror or error}", "check its rights")
    except (ValueError, RecursionError) as error:
        told.wrong(str(path), f"it is no JSON: {str(error)[:80]}", "it is left out", getattr(error, "lineno", None))
    return None


def of_bytes(data: bytes, *, file: str, recorded: float, cluster: str = "") -> Told:
    """
    Return what a document tells, by what it looks like.

    Parameters
    ----------
    data : bytes
        JSON, JSON lines, or text of Slurm.
    file : str
        Its name.
    recorded : float
        When it was told, seconds since the epoch.
    cluster : str
    """
    told = Told()
    if data.lstrip()[:1] not in (b"{", b"["):
        lines = data.decode("utf-8", "replace").split("\n")
        return of_slurm(
            [Line(no, text[:_LONGEST].rstrip("\r")) for no, text in enumerate(lines, 1)],
            file=file,
            recorded=recorded,
            cluster=cluster,
        )
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        first = data.lstrip().split(b"\n", 1)[0]
        if b'"workbench.journal/' in first:
            return of_journal(data, file=file, cluster=cluster)
        if b"\n" in data.strip():
            return _lines(data, file, recorded, cluster)
        told.wrong(file, f"it is no JSON: {str(error)[:80]}", "give it whole", getattr(error, "lineno", None))
        return told
    if isinstance(document, Mapping) and document.get("schema") == "workbench.journal/1":
        return of_journal(data, file=file, cluster=cluster)
    return _document(document, file, recorded, cluster)


def _lines(data: bytes, file: str, recorded: float, cluster: str) -> Told:
    told = Told()
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            told.wrong(file, f"the line is no JSON: {str(error)[:80]}", "it is left out; all others are used", number)
            continue
        told.extend(_document(document, f"{file}:{number}", recorded, cluster))
    return told


def _document(document: Any, file: str, recorded: float, cluster: str) -> Told:
    told = Told()
    if isinstance(document, list):
        if any(isinstance(one, Mapping) and one.get("schema") for one in document):
            for one in document:
                told.extend(_document(one, file, recorded, cluster))
            return told
        return of_kubernetes(document, file=file, recorded=recorded, cluster=cluster)
    if not isinstance(document, Mapping):
        told.wrong(file, "it is JSON of no kind that the account knows", "see docs/fleet.md")
        return told
    schema = str(document.get("schema") or "")
    if schema.startswith("workbench.verdict/"):
        name = str(document.get("incident") or Path(file).stem)
        found = of_verdict(document, source=f"folder:{name}", recorded=recorded, cluster=cluster, incident=name)
        told.extend(found)
    elif schema.startswith("workbench.findings/"):
        told.extend(of_findings(document, file=file, recorded=recorded, cluster=cluster))
    elif schema.startswith("workbench.inbox/"):
        told.extend(of_entry(document, None, cluster=cluster))
    elif "kind" in document or "items" in document:
        told.extend(of_kubernetes(document, file=file, recorded=recorded, cluster=cluster))
    elif any(key in document for key in ("jobs", "nodes", "sinfo")):
        told.extend(of_slurm_json(document, file=file, recorded=recorded, cluster=cluster))
    else:
        told.wrong(file, "it is JSON of no kind that the account knows", "see docs/fleet.md")
    return told


def newest(folder: Path) -> float:
    """Return when a folder's youngest file was written: the same however often it is asked."""
    times = [0.0]
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                times.append(os.stat(os.path.join(where, name)).st_mtime)
            except OSError:
                continue
    return max(times)
