"""Case files for tests of views: one of a shipped incident, made by hand from its frames, and small or hostile ones."""

from __future__ import annotations

import gzip
import tarfile
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from workbench import frames
from workbench.casefile.model import RANKS, STATES, Activity, CaseFile, LogLine, LogWindow

DOCUMENTS = {
    "name": "string",
    "kind": "string",
    "node": "string",
    "size": "Int64",
    "lines": "Int64",
    "complete": "boolean",
    "events": "Int64",
}
PROBLEMS = {"file": "string", "line": "Int64", "message": "string", "hint": "string", "source": "string", "status": "string"}
EVENTS = {**frames.EVENTS, "lane": "string", "evidence": "Int64"}
EVIL = "<script>window.evil=1</script><img src=x onerror=window.evil=2>\x1b[31mred\x1b[0m \u202egnp.exe"


class TextLogs:
    """Logs held in memory: file → its lines."""

    def __init__(self, texts: dict[str, list[str]]) -> None:
        self.texts = texts

    def files(self) -> pd.DataFrame:
        return pd.DataFrame({"file": list(self.texts), "lines": [len(lines) for lines in self.texts.values()]})

    def window(self, file: str, line: int, *, before: int = 40, after: int = 40, width: int = 4_000) -> LogWindow:
        if file not in self.texts:
            return LogWindow(file, problem="there is no such log")
        lines = self.texts[file]
        first, last = max(1, line - before), min(len(lines), line + after)
        return LogWindow(
            file,
            tuple(LogLine(no, lines[no - 1][:width], cut=len(lines[no - 1]) > width) for no in range(first, last + 1)),
            before=first > 1,
            after=last < len(lines),
        )

    def search(
        self, text: str, *, file: str | None = None, rank: int | None = None, node: str | None = None, limit: int = 200
    ) -> pd.DataFrame:
        rows = [
            (name, no, None, None, line)
            for name, lines in self.texts.items()
            if file in (None, name)
            for no, line in enumerate(lines, 1)
            if text.lower() in line.lower()
        ]
        frame = pd.DataFrame(rows[:limit], columns=["file", "line", "rank", "node", "text"])
        frame.attrs["left_out"] = max(0, len(rows) - limit)
        return frame


def empty(contract: dict[str, str]) -> pd.DataFrame:
    return frames.empty_frame(contract)


def typed(rows: list[dict[str, Any]], contract: dict[str, str]) -> pd.DataFrame:
    """Rows as a frame of a contract; times are epoch seconds."""
    out = {}
    for name, dtype in contract.items():
        values = [row.get(name) for row in rows]
        if dtype.startswith("datetime64"):
            out[name] = pd.to_datetime(pd.Series(values, dtype="float64"), unit="s", utc=True).dt.as_unit("us")
        else:
            out[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(out)


def verdict(**more: Any) -> dict[str, Any]:
    """A verdict document, unknown when nothing else is said."""
    return {
        "schema": "workbench.verdict/1", "cause": "unknown", "class": "unknown", "confidence": 0.0, "summary": "The evidence does not decide.",
        "culprit": {"node": None, "gpu": None, "rank": None, "at_fault": None}, "time": None, "attempt": None, "evidence": [], "degraded": [],
        "victims": [], "counter_evidence": [], "hypotheses": [], "coverage": [], "retry": None, "remediation": None, "next_steps": [],
        "decided_by": [], "clock_skew": {}, "ties": [], "incident": "test", **more,
    }  # fmt: skip


def bare(texts: dict[str, list[str]] | None = None, **more: Any) -> CaseFile:
    """A case file that knows nothing but what is given."""
    texts = texts or {}
    documents = typed(
        [{"name": name, "kind": "job log", "size": sum(map(len, lines)), "lines": len(lines), "complete": True, "events": 0} for name, lines in texts.items()],
        DOCUMENTS,
    )  # fmt: skip
    given: dict[str, Any] = {
        "id": "bare-1", "name": "bare", "source": "/cases/bare", "verdict": verdict(), "ranks": empty(RANKS), "events": empty(EVENTS),
        "metrics": empty(frames.METRICS), "conditions": empty(frames.CONDITIONS), "placement": empty(frames.PLACEMENT), "documents": documents,
        "problems": empty(PROBLEMS), "logs": TextLogs(texts), **more,
    }  # fmt: skip
    return CaseFile(**given)


def hostile() -> CaseFile:
    """A small job whose every text wants to be markup: two ranks on one node, a log with a line of a megabyte."""
    name = f"logs/{EVIL[:40]}.log"
    lines = ["step 1", EVIL, "x" * 1_000_000 + EVIL, "\x1b]0;title\x07\x1b[1;31mERROR\x1b[0m boom", "last"]
    event = {
        "role": "cause", "signature": "python-exception", "time": "2026-05-04T11:02:03.120Z", "source": "job", "file": name, "line": 2,
        "node": f"node-{EVIL}", "gpu": {"index": 0, "uuid": f"GPU-{EVIL}", "pci": None}, "rank": 1, "text": EVIL,
    }  # fmt: skip
    doc = verdict(
        cause="user", confidence=0.9, summary=f"It broke: {EVIL}", culprit={"node": f"node-{EVIL}", "gpu": event["gpu"], "rank": 1, "at_fault": "rank"},
        time=event["time"], evidence=[event], counter_evidence=[{**event, "role": "counter"}], ties=[EVIL], next_steps=[EVIL], decided_by=[EVIL],
        victims=[{"rank": 0, "node": f"node-{EVIL}", "since": event["time"], "by": EVIL}],
        hypotheses=[{"class": "user/exception", "confidence": 0.9, "why_not": EVIL, "why": [EVIL], "node": EVIL, "gpu": None, "rank": 1, "time": None}],
        coverage=[{"source": "metrics", "status": "missing", "detail": EVIL, "blind_to": [EVIL]}], retry="fix-first", remediation="fix-user-code",
        incident=EVIL,
    )  # fmt: skip
    doc["class"] = "user/exception"
    start = 1777892400.0
    ranks = typed(
        [
            {"rank": rank, "local_rank": rank, "node": f"node-{EVIL}", "gpu_index": rank, "gpu_uuid": f"GPU-{EVIL}", "pod": EVIL, "attempt": 0,
             "state": "culprit" if rank else "victim", "by": EVIL, "first_error": start + 123, "last_line": start + 200, "lines": 5, "errors": 1,
             "step": 7, "file": name}
            for rank in range(2)
        ],
        RANKS,
    )  # fmt: skip
    events = typed(
        [{"time": start + 123.12, "last": start + 123.12, "count": 1, "source": "job", "signature": "python-exception", "role": "cause",
          "class": "user/exception", "node": f"node-{EVIL}", "rank": 1, "file": name, "line": 2, "text": EVIL, "lane": "culprit", "evidence": 0}],
        EVENTS,
    )  # fmt: skip
    activity = Activity(
        np.arange(2), start + np.arange(9) * 30.0, np.array([[3, 3, 3, 3, 6, 6, 6, 6], [3, 3, 3, 3, 8, 8, 8, 8]], "uint8")
    )
    placement = typed(
        [{"rank": 1, "node": f"node-{EVIL}", "pod": EVIL, "origin": "log", "file": name, "line": 1}], frames.PLACEMENT
    )
    conditions = typed(
        [{"node": EVIL, "kind": "node", "name": EVIL, "status": "True", "bad": True, "message": EVIL}], frames.CONDITIONS
    )
    problems = typed([{"file": name, "line": 3, "message": EVIL, "hint": EVIL, "source": "files", "status": "partial"}], PROBLEMS)
    return bare(
        {name: lines}, id="hostile-1", name=EVIL, verdict=doc, ranks=ranks, events=events, activity=activity, placement=placement,
        conditions=conditions, problems=problems, queries={"gpu_hours": {"promql": f'up{{job="{EVIL}"}}'}}, impact={"gpu_hours": 2.5, "why": {"gpu_hours_lost": EVIL}},
        job={"name": EVIL, "team": EVIL},
    )  # fmt: skip


@lru_cache(maxsize=2)
def shipped(name: str = "gpu-memory") -> CaseFile:
    """The case file of a shipped incident, made by hand from its frames."""
    from workbench.report.verdict_json import to_json
    from workbench.shipped import example_path, load_example

    incident = load_example(name)
    doc = to_json(incident.triage(), name=name)
    events = incident.events.copy()
    numbers = {(row["file"], row["line"], row["signature"]): place for place, row in reversed(list(enumerate(doc["evidence"])))}
    keys = list(zip(events["file"], events["line"], events["signature"], strict=True))
    events["evidence"] = pd.array([numbers.get(key) for key in keys], dtype="Int64")
    node = doc["culprit"]["node"]
    events["lane"] = pd.array(["culprit" if key in numbers else "node" if str(where) == node else "other" for key, where in zip(keys, events["node"], strict=True)], dtype="string")  # fmt: skip
    place = incident.placement.dropna(subset=["rank"]).drop_duplicates("rank").sort_values("rank")
    victims = {victim["rank"]: victim for victim in doc["victims"]}
    logs = {}
    with tarfile.open(example_path(name)) as archive:
        for member in archive:
            if member.isfile():
                raw = archive.extractfile(member).read()
                text = gzip.decompress(raw) if member.name.endswith(".gz") else raw
                logs[f"{name}.tar.gz!{member.name.removeprefix('./')}"] = text.decode("utf-8", "replace").splitlines()
    rows = []
    for row in place.to_dict("records"):
        rank = int(row["rank"])
        own = incident.events[(incident.events["rank"] == rank).fillna(False)]
        first = own["time"].dropna().min()
        state = "culprit" if rank == doc["culprit"]["rank"] else "victim" if rank in victims else "unknown"
        rows.append({**row, "state": state, "by": victims.get(rank, {}).get("by"), "lines": 100, "errors": len(own), "step": 120,
                     "first_error": None if first is pd.NaT else first.timestamp(), "last_line": None, "file": own["file"].iloc[0] if len(own) else None})  # fmt: skip
    ranks = typed(rows, RANKS)
    start = pd.Timestamp(doc["time"]).timestamp() - 600
    states = np.full((len(ranks), 80), STATES.index("running"), "uint8")
    for number, word in enumerate(ranks["state"]):
        states[number, 61:] = STATES.index(word)
    documents = typed([{"name": one.name, "kind": one.kind, "node": one.node, "size": 0, "lines": one.lines, "complete": True, "events": one.events} for one in incident.documents], DOCUMENTS)  # fmt: skip
    return CaseFile(
        id=f"{name}-1", name=f"example {name}", source=str(example_path(name)), verdict=doc, ranks=ranks, events=events, metrics=incident.metrics,
        conditions=incident.conditions, placement=incident.placement, documents=documents, problems=empty(PROBLEMS), logs=TextLogs(logs),
        activity=Activity(ranks["rank"].to_numpy("int64"), start + np.arange(81) * 10.0, states),
        impact={"gpu_hours": 12.5, "why": {"gpu_hours_lost": "no checkpoint is told of in the logs"}},
        queries={"gpu_hours": {"promql": "sum(kube_pod_container_resource_requests)"}},
    )  # fmt: skip
