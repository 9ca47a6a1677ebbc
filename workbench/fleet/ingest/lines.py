"""Turn files of JSON lines that others write (runs, the remediation journal) and findings of checks into rows of the account."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.fleet.ingest.told import Told
from workbench.fleet.ingest.verdicts import moment

__all__ = ["of_findings", "of_journal", "of_run"]

_SUM = re.compile(rb',"sum":"([0-9a-f]{8})"\}$')
_ACCOUNT = "workbench.run-account/1"
# what only the account of a run has
_SPENT = ("first_step", "detected", "diagnosed", "node_names", "gpus")
_RUN = re.compile(r"slurm-(\d+(?:_\d+)?)$")
# findings that speak against a node; unknown is no sign: nobody saw anything
_BAD = ("critical",)
# how an action ended → ours (docs/reference/journal.md)
_OUTCOMES = ("done", "failed", "expired", "refused", "undone", "unknown", "held")


def _objects(data: bytes, schema: str, file: str, told: Told) -> Iterator[dict[str, Any]]:
    """
    Yield the objects of lines with a sum: ``…,"sum":"xxxxxxxx"}`` is the CRC-32 of the bytes before its comma.

    A line that is damaged, or of another kind, becomes a problem.
    """
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        line = line.rstrip(b"\r")
        found = _SUM.search(line)
        try:
            if found is None or int(found[1], 16) != zlib.crc32(line[: found.start()]):
                raise ValueError("its sum does not fit")
            value = json.loads(line[: found.start()] + b"}")
            if not isinstance(value, dict) or value.pop("schema", None) != schema:
                raise ValueError(f"it is no {schema}")
        except (ValueError, RecursionError) as error:
            told.wrong(file, f"the line is damaged: {str(error)[:80]}", "it is left out; all others are used", number)
            continue
        yield value


# ---- runs


def of_run(folder: Path, *, recorded: float | None = None, cluster: str = "") -> Told:
    """
    Return what the folder of a run (``workbench run``) tells: ``attempts.jsonl``, ``decisions.jsonl`` and, when it has ended, ``account.json``.

    Parameters
    ----------
    folder : Path
        Its name is the job: ``slurm-4711`` is job 4711 of Slurm, any other is the job's name by its whole path.
    recorded : float, optional
        When it was told; default the time of ``attempts.jsonl``.
    cluster : str
        Name of the cluster.

    Raises
    ------
    OSError
        It cannot be read.
    """
    told, path = Told(), folder / "attempts.jsonl"
    if recorded is None:
        recorded = path.stat().st_mtime
    rows: dict[int, dict[str, Any]] = {}
    for value in _objects(path.read_bytes(), "workbench.attempt/1", str(path), told):
        number = value.get("number")
        if isinstance(number, int) and number >= 1:
            rows[number] = value  # the last line of a number counts
        else:
            told.wrong(str(path), f"an attempt has no number: {str(number)[:20]!r}", "it is left out")
    if not rows:
        told.wrong(str(path), "no attempt is told", "the job never started, or its folder is another's")
        return told
    found = _RUN.search(folder.resolve().name)
    job = found[1] if found else str(folder.resolve())
    common = {"cluster": cluster, "job": job, "source": "run", "recorded": recorded}
    account = _account(folder, told)
    spent = {row.get("attempt"): row for row in account["attempts"]}
    seen: set[str] = set()
    for number in sorted(rows):
        one = rows[number]
        more = spent.get(number, {})
        failed = one.get("state") in ("failed", "preempted", "timeout")
        excluded = [str(name) for name in one.get("excluded") or ()]
        told.add(
            "attempts",
            **common,
            attempt=number,
            **{name: one.get(name) for name in ("exit_code", "confidence", "at_fault", "node", "gpu_uuid", "rank")},
            **{name: one.get(name) for name in ("step_first", "step_last", "state")},
            started=moment(one.get("started")),
            ended=moment(one.get("ended")),
            cause=one.get("cause") or None if failed and one.get("cause") != "none" else None,
            cls=one.get("cls") or None if failed and one.get("cls") != "none" else None,
            step_saved=one.get("checkpoint_step"),
            excluded=excluded,
            incident=one.get("incident") or None,
            **{name: more[name] for name in _SPENT if more.get(name) is not None},
        )
        for name in excluded:
            if name in seen or name.startswith(("GPU-", "MIG-")):
                continue
            seen.add(name)
            node = name.split("/")[0]
            before = rows.get(number - 1, {})
            told.add(
                "signals",
                **common,
                node=node,
                kind="excluded",
                time=moment(before.get("ended")) or moment(one.get("started")) or recorded,
                cls=before.get("cls") or None,
                weight=1.0,
                detail=f"kept off attempt {number}",
            )
    last = rows[max(rows)]
    state, ended = str(last.get("state") or "failed"), moment(last.get("ended"))
    begun = [when for one in rows.values() if (when := moment(one.get("started"))) is not None]
    # a failure that is started anew is not the end of the job
    if state in ("failed", "timeout", "preempted") and _goes_on(folder, told, max(rows)):
        state, ended = "running", None
    for row in account["phases"]:
        if row.get("attempt") in rows and row.get("kind"):
            told.add("phases", **common, **{name: row.get(name) for name in ("attempt", "kind", "begin", "end")})
    whole = account["jobs"][-1] if account["jobs"] else {}
    begun_at = [when for row in account["attempts"] if (when := moment(row.get("first_step"))) is not None]
    told.add(
        "jobs",
        **common,
        name=folder.resolve().name,
        **{name: whole[name] for name in ("user", "team", "pool", "nodes", "gpus") if whole.get(name) is not None},
        first_step=min(begun_at, default=None),
        submitted=min(begun, default=None),
        started=min(begun, default=None),
        ended=ended,
        state=state,
        cause=last.get("cause") or None if state == "failed" else None,
        cls=last.get("cls") or None if state == "failed" else None,
    )
    return told


def _account(folder: Path, told: Told) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows that the supervisor left, by table; none while it works, or of a version that left none."""
    path = folder / "account.json"
    value: Any = {}
    if path.exists():
        try:
            value = json.loads(path.read_bytes())
            if not isinstance(value, dict) or value.get("schema") != _ACCOUNT:
                raise ValueError(f"it is no {_ACCOUNT}")
        except (OSError, ValueError, RecursionError) as error:
            told.wrong(str(path), f"it cannot be used: {str(error)[:80]}", "what the attempts spent their time on is not known")
            value = {}
    found = {name: value.get(name) for name in ("jobs", "attempts", "phases")}
    return {
        name: [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else [] for name, rows in found.items()
    }


def _goes_on(folder: Path, told: Told, attempt: int) -> bool:
    path = folder / "decisions.jsonl"
    if not path.exists():
        return False
    last: dict[str, Any] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            told.wrong(str(path), f"the line is damaged: {str(error)[:80]}", "it is left out; all others are used", number)
            continue
        last = value
    about = last.get("attempt")
    return last.get("action") in ("restart", "wait") and (about is None or about == attempt)


# ---- remediation journal


def of_journal(data: bytes, *, file: str, cluster: str = "") -> Told:
    """
    Return the rungs that the remediation journal (``workbench.journal/1``) says were taken, and the signs that they are.

    Parameters
    ----------
    data : bytes
        Its lines; what is damaged is left out and told.
    file, cluster : str
    """
    told = Told()
    began: dict[str, tuple[float, str]] = {}
    rows: dict[tuple[str, str, float], dict[str, Any]] = {}
    called: dict[tuple[str, str], set[tuple[str, str]]] = {}  # plan, node → class and GPU of what is wrong there
    for one in _objects(data, "workbench.journal/1", file, told):
        when, node, rung = moment(one.get("time")), str(one.get("node") or ""), str(one.get("rung") or one.get("verb") or "")
        kind, action = one.get("kind"), str(one.get("action") or "")
        data_of = _mapping(one.get("data"))
        if kind == "plan":
            for trouble in _mapping(data_of.get("plan")).get("troubles") or ():
                row = _mapping(trouble)
                what = (str(row.get("cls") or ""), str(_mapping(row.get("gpu")).get("uuid") or ""))
                called.setdefault((str(one.get("plan") or ""), str(row.get("node") or "")), set()).add(what)
            continue
        if when is None or not node or not rung or data_of.get("undo"):
            continue
        if kind == "intent":
            began[action] = (when, rung)
            key = (node, rung, when)
            end, outcome = None, None
        elif kind == "outcome":
            key = (node, began[action][1], began[action][0]) if action in began else (node, rung, when)
            end, outcome = when, str(one.get("status") or "unknown")
            outcome = outcome if outcome in _OUTCOMES else "unknown"
        else:
            continue
        # an action of a plan that names several faults of the node may be for any of them
        about = called.get((str(one.get("plan") or ""), node), set())
        cls, gpu = next(iter(about)) if len(about) == 1 else ("", "")
        rows[key] = {
            "cluster": cluster,
            "node": node,
            "gpu_uuid": gpu or None,
            "rung": key[1],
            "begin": key[2],
            "end": end,
            "outcome": outcome,
            "cls": cls or None,
            "plan": str(one.get("plan") or "") or None,
            "source": "journal",
            "recorded": when,
        }
    for row in rows.values():
        told.add("actions", **row)
        if row["outcome"] == "done":
            told.add(
                "signals",
                cluster=cluster,
                node=row["node"],
                gpu_uuid=row["gpu_uuid"] or "",
                kind="remediation",
                time=row["begin"],
                cls=row["cls"],
                code=row["rung"],
                weight=1.0,
                detail=f"{row['rung']} was done",
                source="journal",
                recorded=row["recorded"],
            )
    return told


# ---- checks


def of_findings(document: Mapping[str, Any], *, file: str, recorded: float, cluster: str = "") -> Told:
    """
    Return what ``workbench check -o json`` found on a node.

    Parameters
    ----------
    document : mapping
        Schema ``workbench.findings/1``.
    file : str
    recorded : float
        When it was told, for documents that do not say when they were made.
    cluster : str
    """
    told = Told()
    when = moment(document.get("time") or document.get("made")) or recorded
    found = document.get("findings")
    for place, one in enumerate(found if isinstance(found, list) else (), 1):
        if not isinstance(one, Mapping) or not one.get("check") or not one.get("status"):
            told.wrong(file, f"finding {place} has no check or status", "it is left out")
            continue
        gpu = _mapping(one.get("gpu"))
        node = str(one.get("node") or document.get("node") or "")
        common = {
            "cluster": cluster,
            "node": node,
            "gpu_uuid": str(gpu.get("uuid") or ""),
            "time": when,
            "cls": one.get("class") or None,
            "source": f"check:{node}",
            "recorded": when,
        }
        name = str(one["check"]) + (f"/{one['code']}" if one.get("code") else "") + (f"/{one['part']}" if one.get("part") else "")
        told.add(
            "findings",
            **common,
            check_name=name,
            status=str(one["status"]),
            action=one.get("action") or None,
            message=str(one.get("summary") or "") or None,
        )
        if one["status"] in _BAD:
            told.add("signals", **common, kind="finding", code=name, weight=1.0, detail=str(one.get("summary") or ""))
    if not isinstance(found, list):
        told.wrong(file, "it holds no findings", "workbench check -o json")
    return told


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
