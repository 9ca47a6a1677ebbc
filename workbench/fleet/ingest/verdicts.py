"""Turn a verdict (``workbench.verdict/1``), with what is known of its job, into an attempt and the signs against nodes that it shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workbench.fleet.ingest.told import Told

__all__ = ["moment", "of_entry", "of_verdict"]

_STATES = {"platform/preemption": "preempted", "user/stopped": "cancelled"}


def moment(stamp: Any) -> float | None:
    """Return the epoch seconds of an ISO time or a number; None when it is neither."""
    if stamp is None or isinstance(stamp, bool):
        return None
    try:
        if isinstance(stamp, int | float):
            value = float(stamp)
        else:
            told = datetime.fromisoformat(str(stamp)[:64])
            value = (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and 0 <= value <= 1e11 else None


def of_verdict(
    verdict: Mapping[str, Any],
    *,
    source: str,
    recorded: float,
    job: Mapping[str, Any] | None = None,
    cluster: str = "",
    incident: str = "",
) -> Told:
    """
    Return the attempt that a verdict is about, its job, and the signs (Xids) in its evidence.

    Parameters
    ----------
    verdict : mapping
        Schema ``workbench.verdict/1``.
    source : str
        ``folder:PATH`` or ``inbox:ID``.
    recorded : float
        When it was given, seconds since the epoch.
    job : mapping, optional
        ``id``, ``name``, ``namespace``, ``user``, ``team``, ``start``, ``end``, ``state``, ``nodes``, ``gpus``: as a case file or an entry of
        the inbox has them; ``seen``: when people could know of it.
    cluster, incident : str
        Name of the cluster; folder or id of the evidence.
    """
    told, job = Told(), job or {}
    schema = str(verdict.get("schema") or "")
    if not schema.startswith("workbench.verdict/1"):
        told.wrong(
            source, f"it is {schema[:40] or 'no document of ours'}, not a verdict", "give what `workbench triage -o json` prints"
        )
        return told
    cls = str(verdict.get("class") or "unknown")
    name = _name(job) or str(verdict.get("incident") or incident)
    if not name:
        told.wrong(source, "it does not say of which job it is", "give the folder of its evidence")
        return told
    if cls == "none":
        return told  # nothing failed, so nothing ended badly; that it went well is the scheduler's to tell
    culprit = _mapping(verdict.get("culprit"))
    gpu = _mapping(culprit.get("gpu"))
    number, when = _whole(verdict.get("attempt")), moment(verdict.get("time"))
    ended = moment(job.get("end")) or when
    state = _STATES.get(cls, "failed")
    cause = None if state == "cancelled" else cls.split("/")[0]
    common = {"cluster": cluster, "job": name, "source": source, "recorded": recorded}
    nodes = job.get("nodes")
    told.add(
        "attempts",
        **common,
        attempt=max(number or 1, 1),
        started=moment(job.get("start")),
        ended=ended,
        state=state,
        cause=cause,
        cls=cls if cause else None,
        confidence=_number(verdict.get("confidence")),
        at_fault=_text(culprit.get("at_fault")),
        node=_text(culprit.get("node")),
        gpu_uuid=_text(gpu.get("uuid")),
        rank=_whole(culprit.get("rank")),
        node_names=[str(one) for one in nodes] if isinstance(nodes, list | tuple) else None,
        gpus=_whole(job.get("gpus")),
        detected=moment(job.get("seen")),
        diagnosed=moment(job.get("seen")) if cls != "unknown" else None,
        incident=incident or None,
    )
    told.add(
        "jobs",
        **common,
        name=_text(job.get("name")) or name,
        user=_text(job.get("user")),
        team=_text(job.get("team")),
        nodes=len(nodes) if isinstance(nodes, list | tuple) else _whole(nodes),
        gpus=_whole(job.get("gpus")),
        started=moment(job.get("start")),
        ended=ended,
        state=state,
        cause=cause,
        cls=cls if cause else None,
    )
    for event in verdict.get("evidence") or ():
        _sign(_mapping(event), told, common)
    return told


def of_entry(entry: Mapping[str, Any], verdict: Mapping[str, Any] | None, *, cluster: str = "") -> Told:
    """Return what an entry of the inbox (``workbench.inbox/1``) tells, with its verdict when it has one."""
    told = Told()
    seen, name = moment(entry.get("seen")), str(entry.get("id") or "")
    if seen is None or not name:
        told.wrong(f"inbox:{name[:60]}", "it is no entry of an inbox", "give the folder of inbox.folder")
        return told
    job = {
        "name": entry.get("job"),
        "namespace": entry.get("namespace"),
        "user": entry.get("user"),
        "team": entry.get("team"),
        "end": entry.get("time"),
        "seen": seen,
        "nodes": entry.get("nodes"),
        "gpus": entry.get("gpus"),
    }
    document = dict(verdict) if verdict else _as_verdict(entry)
    document.setdefault("incident", name)
    if document.get("attempt") is None:
        document["attempt"] = entry.get("attempt")
    return of_verdict(document, source=f"inbox:{name}", recorded=seen, job=job, cluster=cluster, incident=name)


def _as_verdict(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry that could not be triaged says that something failed, and not why."""
    culprit = {"node": entry.get("node"), "gpu": None, "rank": entry.get("rank"), "at_fault": entry.get("at_fault")}
    return {
        "schema": "workbench.verdict/1",
        "class": entry.get("cls") or "unknown",
        "confidence": entry.get("confidence"),
        "time": entry.get("time"),
        "culprit": culprit,
    }


def _name(job: Mapping[str, Any]) -> str:
    """A scheduler's number tells more than a name, which many jobs share; in Kubernetes names are the identity, within a namespace."""
    if job.get("namespace") and job.get("name"):
        return f"{job['namespace']}/{job['name']}"
    return str(job.get("id") or job.get("name") or "").split(".")[0]


def _sign(event: Mapping[str, Any], told: Told, common: Mapping[str, Any]) -> None:
    """An Xid or SXid with a node and a time is a sign of its own, whatever the job's end was put down to."""
    kind = str(event.get("signature") or "").partition("-")[0]
    when, code = moment(event.get("time")), _whole(event.get("code"))
    if kind not in ("xid", "sxid") or event.get("role") != "cause" or not event.get("node") or when is None or code is None:
        return
    gpu = _mapping(event.get("gpu"))
    told.add(
        "signals",
        **{key: common[key] for key in ("cluster", "job", "source", "recorded")},
        node=str(event["node"]),
        gpu_uuid=str(gpu.get("uuid") or ""),
        kind=kind,
        time=when,
        code=str(code),
        weight=1.0,
        detail=str(event.get("text") or "")[:400],
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return str(value) if value not in (None, "") else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number != int(number) else int(number)
