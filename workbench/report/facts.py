"""Turn a verdict, its job, what it held and what was done into one set of facts, which every postmortem only puts into another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.catalog import signatures, table
from workbench.report import view
from workbench.report.redact import hide_document
from workbench.report.text import clock, duration, iso, plural, shorten
from workbench.report.timeline import seconds
from workbench.report.tried import tried

__all__ = ["SCHEMA", "VARIABLES", "Facts", "cost_of", "gather", "price_of"]

SCHEMA = "workbench.postmortem/1"
_LINES = 60  # rows of the timeline: more belong into the verdict
_TEXT = 300

# what a template may use: name → what it holds. None stands for "to be filled" wherever it is written.
VARIABLES: dict[str, str] = {
    "title": "one line: what failed, where",
    "incident": "what people call the incident: its folder, archive or id in the inbox",
    "made": "when this was written, UTC",
    "summary": "the verdict's sentence",
    "cause": "hardware, driver, platform, user, unknown or none",
    "failure": "the class: hardware/gpu-memory",
    "meaning": "what belongs in that class, in a few words",
    "confidence": "how sure the verdict is: 98 %; None for unknown",
    "where": "node, GPU and rank where it began",
    "at_fault": "which of them is to blame, in words; None when nothing can be blamed",
    "began": "when the root cause was first seen, UTC",
    "job": "id, namespace, state, began, ended (UTC): of the job; no account, no person",
    "impact": "list of what, value (None: not known), note, number (of GPU-hours)",
    "detection": "list of what, value (None: not known), note, ref",
    "timeline": "list of time (UTC), kind, what, where, ref (file:line), text (the line as it was)",
    "trigger": "what, time, where, ref, text of the first evidence of the root cause; None when nothing can be named",
    "reasons": "sentences: why the verdict is this one",
    "evidence": "list of what, time, where, ref, text: all that speaks for the verdict, best first",
    "contributing": "list like evidence: what was there before the root cause, on the same node or around it; may be empty",
    "victims": "sentences: who failed only because of it",
    "ruled_out": "list of failure, meaning, confidence, where, why: the other explanations",
    "against": "list like evidence: what speaks against the verdict",
    "unseen": "list of source, status, detail, blind (classes that can therefore not be seen)",
    "seen": "names of the sources that were whole",
    "retry": "advice in words: whether and where the job may be started again",
    "advice": "sentences: what to do, best first",
    "remediation": "list of time (UTC), node, what, ended, detail, ref: what was done, from the journal; None without a journal",
    "actions": "list of type (prevent, detect, mitigate), action, owner, due: suggestions, to be decided on",
    "decided_by": "rows of the catalog and rules that decided",
    "to_be_filled": "the words for what people must add",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an incident; the fields are `VARIABLES`, None is what nobody knows."""

    title: str
    incident: str
    made: str
    summary: str
    cause: str
    failure: str
    meaning: str
    confidence: str | None
    where: str | None
    at_fault: str | None
    began: str | None
    job: Mapping[str, Any]
    impact: tuple[Mapping[str, Any], ...]
    detection: tuple[Mapping[str, Any], ...]
    timeline: tuple[Mapping[str, Any], ...]
    trigger: Mapping[str, Any] | None
    reasons: tuple[str, ...]
    evidence: tuple[Mapping[str, Any], ...]
    contributing: tuple[Mapping[str, Any], ...]
    victims: tuple[str, ...]
    ruled_out: tuple[Mapping[str, Any], ...]
    against: tuple[Mapping[str, Any], ...]
    unseen: tuple[Mapping[str, Any], ...]
    seen: tuple[str, ...]
    retry: str | None
    advice: tuple[str, ...]
    remediation: tuple[Mapping[str, Any], ...] | None
    actions: tuple[Mapping[str, Any], ...]
    decided_by: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, schema ``workbench.postmortem/1``."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"schema": SCHEMA, **{name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}}


def gather(
    document: Mapping[str, Any],
    *,
    made: float,
    job: Mapping[str, Any] | None = None,
    impact: Mapping[str, Any] | None = None,
    entry: Mapping[str, Any] | None = None,
    journal: Iterable[Mapping[str, Any]] | None = None,
    prices: Mapping[str, str] | None = None,
    product: str | None = None,
    hide: Callable[[str], str] = str,
) -> Facts:
    """
    Return the facts of an incident.

    Parameters
    ----------
    document : mapping
        The verdict (``workbench.verdict/1``).
    made : float
        Now, seconds since the epoch.
    job, impact : mapping, optional
        As `workbench.casefile.model.CaseFile` has them.
    entry : mapping, optional
        The incident's row of the inbox, when it has one: when it came in and who was told.
    journal : iterable of mapping, optional
        Lines of the remediation journal; None when there is none.
    prices : mapping, optional
        Price of a GPU-hour by product; ``currency`` names the currency, ``default`` holds for products not listed.
    product : str, optional
        The GPUs' product, as the evidence names it; default what the impact has.
    hide : callable, optional
        Applied to every text first: see `workbench.report.redact.redact`.
    """
    verdict: Mapping[str, Any] = hide_document(document, hide)
    job = {key: hide(value) if isinstance(value, str) else value for key, value in (job or {}).items()}
    began = seconds(verdict.get("time"))
    culprit = verdict.get("culprit") or {}
    done = None
    if journal is not None:
        nodes = {str(node) for node in ((document.get("culprit") or {}).get("node"),) if node}
        start = began if began is not None else job.get("start")
        done = hide_document(tried(journal, nodes, since=start) if nodes else [], hide)
    place = view.where(verdict)
    causes = [one for one in verdict["evidence"] if one.get("role") == "cause"]
    best: Mapping[str, Any] = next(
        (row for row in verdict["hypotheses"] if row["class"] == verdict["class"] and not row.get("why_not")), {}
    )
    return Facts(
        title=_title(verdict, job, causes),
        incident=str(verdict.get("incident") or job.get("id") or job.get("name") or "incident"),
        made=clock(iso(made)),
        summary=str(verdict["summary"]),
        cause=str(verdict["cause"]),
        failure=str(verdict["class"]),
        meaning=view.meaning(str(verdict["class"])),
        confidence=view.confidence(verdict) or None,
        where=place or None,
        at_fault=view.at_fault(verdict) or None,
        began=clock(verdict["time"]) if verdict.get("time") else None,
        job={
            "id": job.get("id") or job.get("name"),
            "namespace": job.get("namespace"),
            "state": job.get("state"),
            "began": _clock(job.get("start")),
            "ended": _clock(job.get("end")),
        },
        impact=tuple(_impact(verdict, job, dict(impact or {}), prices, product or (impact or {}).get("product"))),
        detection=tuple(_detection(verdict, job, impact or {}, entry or {})),
        timeline=tuple(_timeline(verdict, job, done or [])),
        trigger={**_told(causes[0]), "time": clock(verdict["time"]) if verdict.get("time") else None} if causes else None,
        reasons=tuple(str(why) for why in best.get("why") or []),
        evidence=tuple(_told(one) for one, _ in view.grouped(verdict["evidence"]) if one.get("role") != "symptom"),
        contributing=tuple(_contributing(verdict, culprit, causes)),
        victims=tuple(view.victims(verdict)),
        ruled_out=tuple(
            {
                "failure": row["class"],
                "meaning": view.meaning(str(row["class"])),
                "confidence": f"{100 * row['confidence']:.2g} %" if row.get("confidence") is not None else None,
                "where": view.place(row) or None,
                "why": row.get("why_not") or None,
            }
            for row in view.others(verdict)
        ),
        against=tuple(_told(one) for one in verdict["counter_evidence"]),
        unseen=tuple(
            {"source": row["source"], "status": row["status"], "detail": row["detail"] or None, "blind": view.blind(row) or None}
            for row in verdict["coverage"]
            if row["status"] != "ok"
        ),
        seen=tuple(str(row["source"]) for row in verdict["coverage"] if row["status"] == "ok"),
        retry=next(iter(view.todo({**verdict, "remediation": None, "next_steps": []})), None),
        advice=tuple(view.todo(verdict)),
        remediation=None if done is None else tuple(_done(row) for row in done),
        actions=tuple(_actions(verdict, culprit)),
        decided_by=tuple(str(row) for row in verdict.get("decided_by") or []),
    )


def price_of(product: str | None, prices: Mapping[str, str] | None) -> tuple[float, str] | None:
    """
    Return the price of a GPU-hour and its currency; None when the site's table has none for this product.

    The longest name of the table that occurs in the product's counts: ``H100`` for ``NVIDIA H100 80GB HBM3``.
    """
    rows = dict(prices or {})
    currency = str(rows.pop("currency", "")).strip()
    said = (product or "").lower().replace("-", " ")
    names = [name for name in rows if name != "default" and name.lower().replace("-", " ") in said]
    raw = rows.get(max(names, key=len)) if names else rows.get("default")
    try:
        price = float(str(raw).strip())
    except ValueError:
        return None
    return (price, currency) if price >= 0 else None


def cost_of(hours: Iterable[Any], product: str | None, prices: Mapping[str, str] | None) -> tuple[float, str] | None:
    """
    Return what GPU-hours cost and the currency: those held after the failure and those of lost work, as far as they are known.

    None when none is known or the site has no price for the product: never a zero.
    """
    known = [float(one) for one in hours if isinstance(one, (int, float)) and not isinstance(one, bool)]
    price = price_of(product, prices)
    return (sum(known) * price[0], price[1]) if price is not None and known else None


def _clock(when: Any) -> str | None:
    stamp = iso(when) if isinstance(when, (int, float)) else None
    return clock(stamp) if stamp else None


def _title(verdict: Mapping[str, Any], job: Mapping[str, Any], causes: Sequence[Mapping[str, Any]]) -> str:
    name = job.get("id") or job.get("name")
    subject = f"Job {name}" if name else "A job"
    if verdict["cause"] == "none":
        return f"{subject}: nothing failed"
    if verdict["cause"] == "unknown":
        return f"{subject} failed, and the evidence does not decide why"
    what = _what({**causes[0], "count": 1}) if causes else ""
    if not what or len(what) > 100 or ": " in what:
        what = view.meaning(str(verdict["class"]))
    culprit = verdict.get("culprit") or {}
    node = culprit.get("node") if culprit.get("at_fault") in ("gpu", "node", "rank") else None
    ended = "was stopped" if verdict["class"] in ("platform/preemption", "user/stopped") else "failed"
    # a word in capitals (ECC, NVLink) stays one
    what = what if what[1:2].isupper() else what[:1].lower() + what[1:]
    return f"{subject} {ended}: {what}" + (f" ({node})" if node else "")


def _row(what: str, value: Any, note: str = "", ref: str = "", number: float | None = None) -> dict[str, Any]:
    return {"what": what, "value": value, "note": note or None, "ref": ref or None, "number": number}


def _impact(
    verdict: Mapping[str, Any],
    job: Mapping[str, Any],
    impact: dict[str, Any],
    prices: Mapping[str, str] | None,
    product: str | None,
) -> Iterable[dict[str, Any]]:
    why: Mapping[str, str] = impact.get("why") or {}
    name = job.get("id") or job.get("name")
    yield _row("Job", f"1 ({name})" if name else None, str(job.get("state") or ""))
    ranks, nodes, gpus = (impact.get(key) for key in ("ranks", "nodes", "gpus"))
    size = ", ".join(
        plural(count, word) for count, word in ((ranks, "rank"), (nodes, "node"), (gpus, "GPU")) if isinstance(count, int)
    )
    yield _row("Size", size or None)
    victims = len(verdict["victims"])
    if victims:
        yield _row("Ranks that failed only because of it", f"{victims:,}")
    began, end = seconds(verdict.get("time")), job.get("end")
    hours = impact.get("gpu_hours")
    note = why.get("gpu_hours", "")
    if isinstance(gpus, int) and began is not None and isinstance(end, (int, float)) and end >= began:
        note = f"{plural(gpus, 'GPU')} × {duration(end - began)}, from the first evidence to the job's end"
        hours = gpus * (end - began) / 3600.0 if hours is None else hours
    yield _row("GPU-hours held after the failure", None if hours is None else _hours(hours), note, number=hours)
    lost = impact.get("gpu_hours_lost")
    yield _row(
        "GPU-hours of work lost since the last checkpoint",
        None if lost is None else _hours(lost),
        why.get("gpu_hours_lost", "") or ("" if lost is not None else "when the last checkpoint was written is not known"),
        number=lost,
    )
    known = [float(one) for one in (hours, lost) if isinstance(one, (int, float))]
    price, cost = price_of(product, prices), cost_of(known, product, prices)
    if price is None or cost is None:
        yield _row("Cost", None, "the site has no price of a GPU-hour for this product" if known else "GPU-hours are not known")
    else:
        money = f"{cost[0]:,.2f} {price[1]}".strip()
        part = "" if len(known) == 2 else ", the part that is known"
        yield _row("Cost", money, f"{_hours(sum(known))} GPU-hours × {price[0]:g} {price[1]}".strip() + part)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _detection(
    verdict: Mapping[str, Any], job: Mapping[str, Any], impact: Mapping[str, Any], entry: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    began = seconds(verdict.get("time"))
    first = _first(verdict)
    if first is not None:
        yield _row("First seen by", str(first["source"]), clock(first["time"]), view.location(first))
    told = [one for one in verdict["evidence"] if one.get("source") in ("job", "launcher") and one.get("time")]
    if told:
        first = min(told, key=lambda one: str(one["time"]))
        yield _row("First word of it in the job's log", clock(first["time"]), _after(began, seconds(first["time"])))
    if isinstance(job.get("end"), (int, float)):
        yield _row("The job ended", _clock(job["end"]), _after(began, job["end"]))
    if isinstance(entry.get("seen"), (int, float)):
        yield _row("It came into the inbox", _clock(entry["seen"]), _after(began, entry["seen"]))
        ways = ", ".join(f"{way} {_clock(when)}" for way, when in sorted((entry.get("told") or {}).items()))
        yield _row("People were told", ways or None)
    delay = impact.get("detection_seconds")
    if delay is not None:
        yield _row("From the root cause to detection", duration(float(delay)))
    alerts = len(entry.get("alerts") or ())
    yield _row(
        "How people came to know", None, f"{plural(alerts, 'alert')} rang for it" if alerts else "alert, or somebody looked?"
    )


def _first(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the event in which the root cause was first seen: the one with the verdict's time, else the best with any."""
    dated = [one for one in verdict["evidence"] if one.get("role") in ("cause", "context") and one.get("time")]
    same = [one for one in dated if one["time"] == verdict.get("time")]
    return next(iter(sorted(same, key=lambda one: one["role"]) or [one for one in dated if one["role"] == "cause"]), None)


def _after(began: float | None, when: float | None) -> str:
    if began is None or when is None:
        return ""
    gap = when - began
    if abs(gap) < 0.001:
        return "with the root cause"
    if gap < 0:  # logs of several nodes, some with whole seconds: the order within moments is the verdict's to judge
        return f"{duration(-gap)} before the root cause's first evidence, by the log's own clock"
    return f"{duration(gap)} after the root cause's first evidence"


def _what(event: Mapping[str, Any]) -> str:
    """Return what an event means, in the catalog's words, not in the log's."""
    row = signatures()[str(event.get("signature"))]
    said = row.meaning or str(event.get("signature"))
    times = f" ({event['count']:,} times)" if event.get("count", 1) > 1 else ""
    return said[0].upper() + said[1:] + times


def _told(event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "what": _what(event),
        "time": clock(event["time"]) if event.get("time") else None,
        "where": view.entity(event) or None,
        "ref": view.location(event),
        "text": shorten(str(event.get("text") or ""), _TEXT),
    }


def _timeline(verdict: Mapping[str, Any], job: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    rows: list[tuple[str, int, dict[str, Any]]] = []

    def add(stamp: str | None, kind: str, what: str, where: str, ref: str, text: str = "") -> None:
        if stamp and ref:
            row = {"time": clock(stamp), "kind": kind, "what": what, "where": where or None, "ref": ref, "text": text or None}
            rows.append((stamp, len(rows), row))

    record = str(job.get("file") or "the scheduler's record")
    name = str(job.get("id") or job.get("name") or "")
    add(iso(job.get("start")), "job", "The job starts", name, record)
    events = [*verdict["evidence"], *({**one, "role": "counter"} for one in verdict["counter_evidence"])]
    first = _first(verdict)
    for event, more in view.grouped(sorted(events, key=lambda one: (one.get("role") != "cause", str(one.get("time") or "~")))):
        root = first is not None and view.location(event) == view.location(first) and event["signature"] == first["signature"]
        kind = "root cause" if root else str(event.get("role") or "context")
        kind = "against" if kind == "counter" else kind
        what = _what(event) + (f" (and {more} more like it)" if more else "")
        add(event.get("time"), kind, what, view.entity(event), view.location(event), shorten(str(event.get("text") or ""), _TEXT))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for victim in verdict["victims"]:
        groups.setdefault(str(victim.get("by")), []).append(victim)
    for by, members in groups.items():
        stamp = min((str(one["since"]) for one in members if one.get("since")), default=None)
        said = next(iter(view.victims({"victims": members})), "").split(": ")[0]
        add(stamp, "victims", f"The first of {plural(len(members), 'victim')}: {by}", said, "verdict.json: victims")
    for row in verdict["degraded"]:
        add(row.get("since"), "slow", view.degraded(row), view.place(row), str(row.get("file") or "verdict.json: degraded"))
    state = f" ({job['state']})" if job.get("state") else ""
    add(iso(job.get("end")), "job", f"The job ends{state}", name, record)
    for row in done:
        ended = row.get("ended") or ("" if row.get("verb") == "note" else "no end is written")
        add(row.get("time"), "remediation", str(row["what"]) + (f": {ended}" if ended else ""), str(row["node"]), str(row["ref"]))
    rows.sort(key=lambda one: one[:2])
    keep = {number for _, number, row in rows if row["kind"] in ("root cause", "job", "victims", "remediation")}
    keep |= set([number for _, number, _ in rows if number not in keep][: max(0, _LINES - len(keep))])
    return [row for _, number, row in rows if number in keep]


def _contributing(
    verdict: Mapping[str, Any], culprit: Mapping[str, Any], causes: Sequence[Mapping[str, Any]]
) -> Iterable[dict[str, Any]]:
    """What was there before the root cause, on its node or on the platform: what came after is its trace, not its condition."""
    began = str(verdict.get("time") or "")
    first = view.location(causes[0]) if causes else ""
    events = [one for one in verdict["evidence"] if one.get("role") in ("cause", "context") and view.location(one) != first]
    for event, _ in view.grouped(events):
        if event.get("time") and str(event["time"]) < began and event.get("node") in (None, culprit.get("node")):
            yield _told(event)
    for row in verdict["degraded"]:
        if not row.get("since") or str(row["since"]) < began:
            said = {"what": view.degraded(row), "time": None, "where": view.place(row) or None}
            yield {**said, "ref": str(row.get("file") or "verdict.json: degraded"), "text": ""}


def _done(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time": clock(row.get("time")),
        "node": row["node"],
        "what": row["what"],
        "ended": row["ended"] or (None if row["verb"] != "note" else "noted"),
        "detail": row["detail"] or None,
        "ref": row["ref"],
    }


_RETRIES = {
    "same-nodes": "on the same nodes",
    "exclude-node": "without the node",
    "fix-first": "only after the fix",
}


def _actions(verdict: Mapping[str, Any], culprit: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Suggestions of the catalog for the class, its cause and for all, most exact first; owner and date are people's to fill."""
    cls, cause = str(verdict["class"]), str(verdict["cause"])
    if cause == "none":
        return
    missing = [str(row["source"]) for row in view.lacking(verdict)]
    words = {
        "node": culprit.get("node") or "the node",
        "missing": ", ".join(missing),
        "retry": _RETRIES.get(str(verdict.get("retry")), ""),
    }
    order = {cls: 0, cause: 1, "*": 2}
    kinds = ("mitigate", "prevent", "detect")
    rows = [row for row in table("follow_ups") if row["class"] in order]
    rows.sort(key=lambda row: (kinds.index(row["type"]), order[row["class"]]))
    for row in rows:
        if any("{" + key + "}" in row["action"] and not value for key, value in words.items()):
            continue
        yield {"type": row["type"], "action": row["action"].format_map(words), "owner": None, "due": None}
