"""
Turn what Alertmanager posts (webhook version 4) into the incidents that its alerts ring for: attached to one that is there, or begun.

An alert that rings for an incident that is known is written into it and tells nobody again; one that nothing is known of begins the entry
of its job or node, which the watch then collects. https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from workbench.catalog import table
from workbench.errors import WorkbenchError
from workbench.inbox.files import locked
from workbench.inbox.model import Entry
from workbench.inbox.rows import moment
from workbench.inbox.sightings import Failure, failure_of, name_of
from workbench.inbox.store import OPEN, Inbox
from workbench.parse.ids import same_node
from workbench.parse.prom_labels import entity_of

__all__ = ["ACTIONS", "AlertsRefused", "Received", "adoptable", "fold", "home_of", "matching", "receive"]

# attached to an incident; a new incident begun; told before; over now; of nothing that can be looked at; not understood
ACTIONS = ("attached", "started", "repeated", "resolved", "ignored", "refused")
BYTES = 4 << 20  # a group of 1,000 alerts with 30 labels has half of that
MANY = 1000  # alerts of one payload that are read
LABELS, LONG = 100, 2000  # labels and annotations of one alert, characters of one value
_KEPT = 200  # alerts that a row describes; more are counted by their fingerprints
# An alert rings later than what it tells of (its `for`, the group's wait), and a job dies later than its GPU: ten minutes with the default
# time-out of collectives. https://prometheus.io/docs/alerting/latest/configuration/#route: group_interval is five minutes by default.
BEFORE, AFTER = 1800.0, 3600.0


class AlertsRefused(WorkbenchError):
    """What was posted are no alerts of Alertmanager; the message says what is wrong with it."""

    exit_code = 65


@dataclass(frozen=True, slots=True)
class Received:
    """What became of one alert: its fingerprint, a word of `ACTIONS`, the entry it is in (None: in none), and why."""

    fingerprint: str
    action: str
    entry: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Alert:
    fingerprint: str
    name: str
    firing: bool
    starts: float
    ends: float | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    generator: str
    job: str
    namespace: str
    pod: str
    node: str
    weak: bool  # the node is the scraped address only
    gpu: int | None
    uuid: str

    @property
    def summary(self) -> str:
        return self.annotations.get("summary") or self.annotations.get("message") or self.annotations.get("description") or ""


# ---- reading


def _parsed(payload: Any) -> Mapping[str, Any]:
    if isinstance(payload, (bytes, bytearray, str)):
        if len(payload) > BYTES:
            raise AlertsRefused(
                f"the payload has more than {BYTES >> 20} MiB", hint="set max_alerts of the webhook in alertmanager.yml"
            )
        try:
            payload = json.loads(payload)
        except (ValueError, RecursionError):
            raise AlertsRefused("the payload is no JSON") from None
    if not isinstance(payload, Mapping):
        raise AlertsRefused("the payload is no JSON object")
    version = payload.get("version")
    if version != "4":
        raise AlertsRefused(
            f"the payload is not that of Alertmanager's webhook: its version is {str(version)[:20]!r}, not '4'",
            hint="point a webhook_configs receiver of Alertmanager here, nothing else",
        )
    if not isinstance(payload.get("alerts"), list):
        raise AlertsRefused("the payload has no list of alerts")
    return payload


def _texts(value: Any, what: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"its {what} are no object")
    if len(value) > LABELS:
        raise ValueError(f"it has more than {LABELS} {what}")
    if not all(isinstance(key, str) and isinstance(one, str) for key, one in value.items()):
        raise ValueError(f"its {what} are not all texts")
    return {key[:LONG]: one[:LONG] for key, one in value.items()}


@lru_cache(maxsize=1)
def _named() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels that name a job, and those that name its namespace, the surest first (``catalog/alert_labels.csv``)."""
    rows = table("alert_labels")
    return tuple(row["label"] for row in rows if row["what"] == "job"), tuple(
        row["label"] for row in rows if row["what"] == "namespace"
    )


def _alert(raw: Any, now: float) -> _Alert:
    """Return one alert; ValueError says what is wrong with it."""
    if not isinstance(raw, Mapping):
        raise ValueError("it is no object")
    labels, notes = _texts(raw.get("labels"), "labels"), _texts(raw.get("annotations"), "annotations")
    if not labels:
        raise ValueError("it has no labels")
    status = raw.get("status")
    if status not in ("firing", "resolved"):
        raise ValueError(f"its status is {str(status)[:20]!r}, neither firing nor resolved")
    starts, ends = moment(raw.get("startsAt")), moment(raw.get("endsAt"))
    if starts is None or not 0 < starts <= now + 86400:
        raise ValueError(f"its startsAt {str(raw.get('startsAt'))[:40]!r} is no time")
    told = raw.get("fingerprint")
    plain = json.dumps(sorted(labels.items())).encode("utf-8", "replace")
    fingerprint = (
        told if isinstance(told, str) and 0 < len(told) <= 64 and told.isalnum() else hashlib.sha256(plain).hexdigest()[:16]
    )
    entity = entity_of(labels)
    job, space = (next((labels[key] for key in keys if labels.get(key)), "") for keys in _named())
    return _Alert(
        fingerprint,
        labels.get("alertname", ""),
        status == "firing",
        starts,
        ends if status == "resolved" else None,
        labels,
        notes,
        str(raw.get("generatorURL") or "")[:LONG],
        job,
        space,
        entity.pod or "",
        entity.node or "",
        entity.weak,
        entity.gpu.index if entity.gpu else None,
        (entity.gpu.uuid or "") if entity.gpu else "",
    )


# ---- matching


def _window(entry: Entry) -> tuple[float, float]:
    failure = entry.data.get("failure") or {}
    told = [one for one in (entry.time, moment(failure.get("first")), moment(failure.get("last"))) if one is not None]
    rang = [moment(one.get("starts")) for one in _alerts(entry).values()]
    told += [one for one in rang if one is not None]
    return min(told, default=entry.seen), max(told, default=entry.seen)


def _alerts(entry: Entry) -> dict[str, Mapping[str, Any]]:
    found = entry.data.get("alerts")
    return {str(key): one for key, one in found.items() if isinstance(one, Mapping)} if isinstance(found, Mapping) else {}


def _fit(alert: _Alert, entry: Entry) -> int:
    """Return how well an alert fits an incident: 0 is not at all; what both tell must not differ."""
    failure = entry.data.get("failure") or {}
    first, last = _window(entry)
    if not first - BEFORE <= alert.starts <= last + AFTER:
        return 0
    jobs = {str(one) for one in (entry.job, failure.get("job"), failure.get("job_id")) if one}
    if alert.job and jobs and alert.job not in jobs:
        child = any(alert.job.startswith(job + "-") for job in jobs)  # the Job of a JobSet bears its name and more
        if not child:
            return 0
    space = entry.namespace or failure.get("namespace") or ""
    if (alert.job or alert.pod) and alert.namespace and space and alert.namespace != space:
        return 0
    score = 0
    if alert.job and jobs:
        score += 8
    pods = failure.get("pods") or ()
    if alert.pod and alert.pod in pods:
        score += 8
    elif alert.pod and any(alert.pod.startswith(job + "-") for job in jobs) and (not space or alert.namespace == space):
        score += 6
    if alert.node:
        if entry.node and same_node(alert.node, entry.node):
            score += 4
            score += 2 if alert.gpu is not None and alert.gpu == entry.gpu else 0
        elif any(same_node(alert.node, str(node)) for node in failure.get("nodes") or ()):
            score += 2
    return score


def matching(alert_labels: Mapping[str, str], starts: float, entries: Sequence[Entry]) -> Entry | None:
    """Return the incident that an alert with these labels and that beginning (epoch seconds) rings for; None when there is none."""
    alert = _alert({"labels": dict(alert_labels), "status": "firing", "startsAt": starts}, starts)
    return _match(alert, entries)


def _match(alert: _Alert, entries: Sequence[Entry]) -> Entry | None:
    best: tuple[int, float, Entry] | None = None
    for entry in entries:
        score = _fit(alert, entry)
        first, last = _window(entry)
        near = -max(first - alert.starts, alert.starts - last, 0.0)
        if score and (best is None or (score, near) > best[:2]):
            best = score, near, entry
    return best[2] if best else None


def akin(told: Failure, failure: Failure) -> tuple[int, float]:
    """Return how surely what an alert began and a job's failure are one incident (0: they are not), and minus the seconds between them."""
    apart = max(told.first - failure.last, failure.first - told.last, 0.0)
    if apart > BEFORE:
        return 0, -apart
    same_job = told.job in (failure.job, failure.job_id) or told.job.startswith(failure.job + "-")
    if told.job and failure.job and not same_job:
        return 0, -apart
    if told.namespace and failure.namespace and told.namespace != failure.namespace:
        return 0, -apart
    shared = any(same_node(mine, theirs) for mine in told.nodes for theirs in failure.nodes)
    score = 4 * bool(told.job and failure.job) + 2 * shared + 4 * bool(set(told.pods) & set(failure.pods))
    return score, -apart


def adoptable(failure: Failure, entries: Sequence[Entry]) -> list[str]:
    """Return the entries that alerts began and a failure belongs to, the surest first: the alerts rang before the job failed."""
    found = []
    for entry in entries:
        told = failure_of(entry)
        if entry.source == "alert" and told is not None and entry.state in OPEN:
            score, near = akin(told, failure)
            if score:
                found.append((score, near, entry.id))
    return [name for _, _, name in sorted(found, reverse=True)]


def home_of(entry: Entry, entries: Sequence[Entry]) -> str:
    """Return the incident that an entry which an alert began turns out to be, now that it is collected; empty when it stands alone."""
    told, best = failure_of(entry), (0, 0.0, 0.0, "")
    for other in entries:
        failure = failure_of(other)
        if told is None or failure is None or other.id == entry.id:
            continue
        # between two that alerts began, that of a job is the incident, or the older
        if other.source == "alert" and ((bool(failure.job), -other.seen, other.id) <= (bool(told.job), -entry.seen, entry.id)):
            continue
        score, near = akin(told, failure) if other.source != "alert" or failure.job else akin(failure, told)
        best = max(best, (score, near, -other.seen, other.id if score else ""))
    return best[3]


def fold(inbox: Inbox, name: str, into: str, by: str) -> None:
    """
    Make one incident of two: the alerts of an entry go to another, which stays.

    An entry that people were told of stays too, closed and with a word where it went; of one that nobody knows nothing is left.
    """
    entry = inbox.get(name)
    rows = _alerts(entry)
    inbox.change(
        into,
        lambda one: replace(
            one, alerts=tuple(dict.fromkeys((*one.alerts, *entry.alerts))), data={**one.data, "alerts": {**rows, **_alerts(one)}}
        ),
        what="alert",
        by=by,
        note=f"{name} is the same incident: {len(entry.alerts)} alerts",
    )
    if not entry.told:
        inbox.remove(name)
        return
    watch = {**(entry.data.get("watch") or {}), "stage": "folded"}
    inbox.change(name, lambda one: replace(one, data={**one.data, "folded": into, "watch": watch}))
    inbox.set_state(name, "closed", by, f"the same incident as {into}")


# ---- writing


def receive(inbox: Inbox, payload: Any, *, now: float | None = None, by: str = "alertmanager") -> list[Received]:
    """
    Take the alerts of one webhook call into the inbox and return what became of each, in their order.

    Parameters
    ----------
    inbox : Inbox
    payload : mapping, bytes or str
        The body that Alertmanager posts.
    now : float, optional
        Seconds since the epoch; default the inbox's clock.
    by : str, optional
        Who posted, for the history.

    Returns
    -------
    list of Received
        Nobody is told here: an incident that is known was told, and the watch collects and tells one that is begun.

    Raises
    ------
    AlertsRefused
        It is no payload of version 4. A single alert that is not understood is ``refused`` in the list, and the others count.
    InboxError
        The inbox cannot be written: Alertmanager shall post it again (answer 503).
    """
    document = _parsed(payload)
    now = inbox._clock() if now is None else now
    found: list[Received] = []
    with locked(inbox.root / "match.lock"):
        for raw in document["alerts"][:MANY]:
            try:
                alert = _alert(raw, now)
            except ValueError as error:
                found.append(Received("", "refused", None, str(error)))
                continue
            found.append(_take(inbox, alert, by))
    found += [Received("", "refused", None, f"more than {MANY} alerts in one payload")] * (len(document["alerts"]) > MANY)
    return found


def _take(inbox: Inbox, alert: _Alert, by: str) -> Received:
    entries = [entry for entry in inbox.entries() if not entry.data.get("folded")]
    mine = [entry for entry in entries if alert.fingerprint in entry.alerts]
    same = next((one for one in mine if _starts(one, alert) == alert.starts), None)
    if same is not None:
        known = _alerts(same)[alert.fingerprint]
        if known.get("status") == ("firing" if alert.firing else "resolved"):
            return Received(alert.fingerprint, "repeated", same.id)
        _attach(inbox, same, alert, by)
        return Received(alert.fingerprint, "attached" if alert.firing else "resolved", same.id)
    if not alert.firing:
        home = _match(alert, mine)
        if home is None:
            return Received(alert.fingerprint, "ignored", None, "it is resolved, and nothing was known of it")
        _attach(inbox, home, alert, by)
        return Received(alert.fingerprint, "resolved", home.id)
    home = _match(alert, entries)
    if home is not None:
        _attach(inbox, home, alert, by)
        return Received(alert.fingerprint, "attached", home.id)
    if alert.labels.get("severity") == "none":
        return Received(alert.fingerprint, "ignored", None, "its severity is none: it shows that alerting works")
    return _start(inbox, alert, by)


def _starts(entry: Entry, alert: _Alert) -> float | None:
    return moment(_alerts(entry).get(alert.fingerprint, {}).get("starts"))


def _row(alert: _Alert, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        **(before or {}),
        "name": alert.name,
        "status": "firing" if alert.firing else "resolved",
        "starts": alert.starts,
        "ends": alert.ends,
        "labels": dict(alert.labels),
        "summary": alert.summary,
        "generator": alert.generator,
    }


def _attach(inbox: Inbox, entry: Entry, alert: _Alert, by: str) -> None:
    def change(one: Entry) -> Entry:
        rows = _alerts(one)
        if alert.fingerprint in rows or len(rows) < _KEPT:
            rows[alert.fingerprint] = _row(alert, rows.get(alert.fingerprint))
        return replace(one, alerts=tuple(dict.fromkeys((*one.alerts, alert.fingerprint))), data={**one.data, "alerts": rows})

    inbox.change(
        entry.id, change, what="alert", by=by, note=f"{'' if alert.firing else 'resolved: '}{alert.name} {alert.summary}".strip()
    )


def _start(inbox: Inbox, alert: _Alert, by: str) -> Received:
    if alert.job:
        key, title = f"alert/job/{alert.namespace}/{alert.job}", alert.job
    elif alert.pod:
        key, title = f"alert/pod/{alert.namespace}/{alert.pod}", alert.pod
    elif alert.node and not alert.weak:
        key, title = f"alert/node/{alert.node}", alert.node
    else:
        why = "its labels name neither a job nor a node nor a pod"
        if alert.node:
            why += f"; {alert.node[:80]} is only the address that was scraped"
        return Received(alert.fingerprint, "ignored", None, why)
    now = inbox._clock()
    failure = Failure(
        key,
        "alert",
        alert.job or alert.pod,
        alert.namespace if alert.job or alert.pod else "",
        first=alert.starts,
        last=alert.starts,
        nodes=(alert.node,) if alert.node and not alert.weak else (),
        pods=(alert.pod,) if alert.pod else (),
        reasons=(f"alert {alert.name}: {alert.summary}".strip(": "),),
        items=(f"alert/{alert.fingerprint}@{alert.starts:.0f}",),
    )
    name = name_of(title, f"{key}|{alert.starts:.0f}")
    inbox.add(
        id=name,
        source="alert",
        job=failure.job or None,
        namespace=failure.namespace or None,
        time=alert.starts,
        alerts=(alert.fingerprint,),
        summary=failure.reasons[0],
        data={
            "failure": failure.to_dict(),
            "watch": {"stage": "queued", "first": now, "sign": now},
            "alerts": {alert.fingerprint: _row(alert)},
        },
        by=by,
        note=failure.reasons[0],
    )
    return Received(alert.fingerprint, "started", name)
