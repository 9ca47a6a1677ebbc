"""
Turn an entry of the inbox into five lines for people, and those into what a terminal, a webhook or a Slack-compatible receiver takes.

Names, reasons and log lines are hostile text: whoever can write a log could otherwise ring everybody's phone (``<!channel>``, ``@here``)
or put a link under our name. Secrets are blanked in every line.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO
from urllib.parse import quote

from workbench.inbox.model import Entry
from workbench.inbox.post import post
from workbench.inbox.rows import to_json
from workbench.report.redact import redact, redact_tree
from workbench.report.text import clean, clock, iso, percent, plural, shorten
from workbench.sources.webhook import checked, place

__all__ = [
    "Note",
    "Printed",
    "Slack",
    "Way",
    "Webhook",
    "link_of",
    "note_of",
    "signature_of",
    "slack_payload",
    "state_note",
    "storm_note",
]

_SECRET = "put the secret into its path, or set notify.token_file"
SCHEMA = "workbench.note/1"
_LINE = 400  # characters of a line; Slack shows 3,000 of a section
_hide = redact()


@dataclass(frozen=True, slots=True)
class Note:
    """
    What people are told.

    Attributes
    ----------
    id : str
        That of the entry or the storm.
    kind : str
        ``incident``, ``changed`` (told before, and cause or culprit is another now), ``state`` (a person has set it) or ``storm``.
    lines : tuple of str
        Five: what failed; cause, culprit and confidence; who is affected and what it cost; what to do; where to look.
    key : str
        The same for the same message: receivers that get it twice can tell.
    link : str
        Address of the page; empty when none is configured.
    entry : mapping
        The row, for programs.
    again : bool
        It may have been sent before: we ended before the answer came.
    """

    id: str
    kind: str
    lines: tuple[str, ...]
    key: str
    link: str = ""
    entry: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


class Way(Protocol):
    """A way to people; `send` returns when the message was taken, and raises `workbench.inbox.post.NotTold`."""

    name: str

    def send(self, note: Note) -> None:
        """Send one message."""


def signature_of(entry: Entry) -> list[Any]:
    """Return what must change for people to be told again: the cause and the culprit."""
    return [entry.cause, entry.node, entry.gpu, entry.rank]


def link_of(base: str, id: str) -> str:
    """Return the address of an entry's page; ``{id}`` in the base says where the id goes, else it is that of `workbench serve`."""
    if not base:
        return ""
    return base.replace("{id}", quote(id, safe="")) if "{id}" in base else f"{base.rstrip('/')}/incident?id={quote(id, safe='')}"


def _line(*parts: object) -> str:
    """Return one line: no secret, nothing that drives a terminal, and not too long."""
    return shorten(clean(_hide(" ".join(" ".join(str(part) for part in parts if part not in (None, "")).split()))), _LINE)


def note_of(
    entry: Entry, verdict: Mapping[str, Any] | None = None, *, link: str = "", changed: bool = False, again: bool = False
) -> Note:
    """
    Return the five lines on an entry.

    Parameters
    ----------
    entry : Entry
    verdict : mapping, optional
        Its verdict, for the next step.
    link : str, optional
        See `link_of`.
    changed : bool, optional
        People were told another cause or culprit before.
    again : bool, optional
        The message may have been sent before.
    """
    failure = entry.data.get("failure") or {}
    what = entry.job or next(iter(failure.get("nodes") or ()), None) or entry.id
    about = ", ".join(
        part
        for part in (entry.namespace and f"namespace {entry.namespace}", entry.attempt and f"attempt {entry.attempt}")
        if part
    )
    when = clock(iso(entry.time)) if entry.time is not None else "at a time not known"
    alerts = entry.data.get("alerts") or {}
    if entry.source == "alert":
        names = list(dict.fromkeys(str(one.get("name")) for one in alerts.values() if isinstance(one, Mapping)))
        first = f"Alert {', '.join(names[:3]) or '(no name)'} on {what}, since {when}"
    else:
        first = f"Job {what}{f' ({about})' if about else ''} failed, {when}"
        if alerts:
            first += f"; {plural(len(alerts), 'alert')} rang"
    first = ("Changed: " if changed else "") + first + (" (sent again: the first may not have arrived)" if again else "")
    return Note(
        entry.id,
        "changed" if changed else "incident",
        (
            _line(first),
            _line(_judged(entry)),
            _line(_affected(entry)),
            _line(_to_do(entry, verdict or {})),
            _where(link, entry.id),
        ),
        key=hashlib.sha256(json.dumps([entry.id, signature_of(entry), bool(entry.problem)]).encode()).hexdigest()[:32],
        link=link,
        entry=_public(entry),
        again=again,
    )


def state_note(entry: Entry, *, link: str = "", again: bool = False) -> Note:
    """Return the five lines on a state that a person has set: which, who, why, of what, and where to look."""
    marked = entry.data.get("marked") or {}
    time = marked.get("time")
    when = clock(iso(time)) if isinstance(time, (int, float)) else "at a time not known"
    what = entry.job or next(iter((entry.data.get("failure") or {}).get("nodes") or ()), None) or entry.id
    first = f"{entry.state.capitalize()}: {what}, by {marked.get('by') or 'somebody'}, {when}"
    return Note(
        entry.id,
        "state",
        (
            _line(first + (" (sent again: the first may not have arrived)" if again else "")),
            _line(f"Why: {marked.get('note') or 'no reason was given'}"),
            _line(_judged(entry)),
            _line(_affected(entry)),
            _where(link, entry.id),
        ),
        key=hashlib.sha256(json.dumps([entry.id, "state", entry.state, time]).encode()).hexdigest()[:32],
        link=link,
        entry=_public(entry),
        again=again,
    )


def _where(link: str, id: str) -> str:
    return link or f"workbench inbox show {id}"


def _judged(entry: Entry) -> str:
    if entry.problem:
        reasons = (entry.data.get("failure") or {}).get("reasons") or []
        return f"Not triaged: {entry.problem}" + (f"; the scheduler says: {reasons[0]}" if reasons else "")
    if entry.cause == "unknown":
        return f"Cause not known. {entry.summary}"
    if entry.cause == "none":
        return f"Nothing failed, as far as can be seen. {entry.summary}"
    who = [f"node {entry.node}" if entry.node else "", f"GPU {entry.gpu}" if entry.gpu is not None else ""]
    who += [f"rank {entry.rank}" if entry.rank is not None else ""]
    culprit = ", ".join(part for part in who if part) or "no node or GPU to blame"
    return f"{entry.cls}, {culprit}, confidence {percent(entry.confidence)}. {entry.summary}"


def _affected(entry: Entry) -> str:
    size = [
        plural(number, word)
        for number, word in ((entry.ranks, "rank"), (entry.gpus, "GPU"), (entry.nodes, "node"))
        if number is not None
    ]
    whose = [f"user {entry.user}" if entry.user else "", f"team {entry.team}" if entry.team else ""]
    cost = [
        f"{entry.gpu_hours:,.1f} GPU-hours" if entry.gpu_hours is not None else "",
        f"cost {entry.cost:,.0f}" if entry.cost is not None else "",
    ]
    told = [part for part in (*size, *whose, *cost) if part]
    return "Affected: " + (", ".join(told) if told else "not known")


def _to_do(entry: Entry, verdict: Mapping[str, Any]) -> str:
    steps = verdict.get("next_steps") or []
    words = []
    if entry.remediation and entry.remediation != "none":
        on = (
            f" ({entry.node}{f', GPU {entry.gpu}' if entry.gpu is not None else ''})"
            if entry.node and entry.at_fault in ("gpu", "node")
            else ""
        )
        words.append(f"{entry.remediation}{on}")
    if entry.retry:
        words.append(f"retry: {entry.retry}")
    if isinstance(steps, Sequence) and not isinstance(steps, str) and steps:
        words.append(str(steps[0]))
    if entry.problem and not words:
        words.append("workbench doctor tells what can be reached; the collection is tried again")
    return "Do: " + ("; ".join(words) if words else "look at the evidence")


def _public(entry: Entry) -> dict[str, Any]:
    """Return the row for other programs: without what the watch remembers, and without secrets."""
    row = to_json(entry)
    del row["data"], row["told"]
    found: dict[str, Any] = redact_tree(row, _hide)
    return found


def storm_note(id: str, began: float, entries: Iterable[Entry], *, link: str = "", queued: int = 0, at_once: int = 0) -> Note:
    """Return the five lines on many failures at once: how many, where, what the schedulers say, and that each is being looked at."""
    rows = list(entries)
    jobs = Counter(entry.job or entry.id for entry in rows)
    spaces = Counter(entry.namespace or entry.source for entry in rows)
    nodes = Counter(node for entry in rows for node in dict.fromkeys((entry.data.get("failure") or {}).get("nodes") or ()))
    reasons = Counter(_kind(reason) for entry in rows for reason in ((entry.data.get("failure") or {}).get("reasons") or ())[:1])
    where = ", ".join(f"{name} {count:,}" for name, count in spaces.most_common(4))
    shared = f"; on most: {', '.join(f'{name} ({count:,})' for name, count in nodes.most_common(3))}" if nodes else ""
    said = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common(3)) or "nothing"
    some = ", ".join(name for name, _ in jobs.most_common(3))
    return Note(
        id,
        "storm",
        (
            _line(f"Storm: {len(rows):,} failures at once, since {clock(iso(began))}: {where}"),
            _line(f"The schedulers say: {said}{shared}"),
            _line(f"Affected: {plural(len(jobs), 'job')}, such as {some}"),
            _line(
                f"Do: look first for what they share (a node, the network, storage, a drain); evidence of all is collected, {at_once} at once,"
                f" {queued:,} wait. Nobody is told of each of them"
            ),
            link or "workbench inbox list",
        ),
        key=hashlib.sha256(id.encode()).hexdigest()[:32],
        link=link,
        entry={"id": id, "failures": len(rows), "ids": [entry.id for entry in rows[:1000]]},
    )


def _kind(reason: str) -> str:
    """Return a reason without what differs from pod to pod."""
    text = re.sub(r"^(?:pod|job|\w+Job|\w+Set) \S+: |^Slurm: job \S+ \(.*?\) ", "", reason)
    return shorten(re.sub(r"\d{3,}", "N", text), 60)


# ---- ways


class Printed:
    """Writes the lines to a stream, for a log or a terminal."""

    name = "stdout"

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def send(self, note: Note) -> None:
        """Write one message."""
        stream = self._stream or sys.stdout
        stream.write(note.text + "\n\n")
        stream.flush()


class Webhook:
    """
    Posts JSON: ``schema``, ``kind``, ``id``, ``key``, ``text``, ``lines``, ``link``, ``entry`` (see docs/inbox.md).

    Parameters
    ----------
    address : str
        An http(s) address; its path may be a secret, which is never shown.
    token : str, optional
        Sent as ``Authorization: Bearer``.
    """

    name = "webhook"

    def __init__(self, address: str, token: str = "") -> None:
        self._address, self._token = checked(address, "the webhook's address", _SECRET), token

    def __repr__(self) -> str:
        return f"<Webhook {place(self._address)}>"

    def send(self, note: Note) -> None:
        """Post one message."""
        headers = {"Idempotency-Key": note.key, **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        document = {
            "schema": SCHEMA,
            "kind": note.kind,
            "id": note.id,
            "key": note.key,
            "again": note.again,
            "text": note.text,
            "lines": list(note.lines),
            "link": note.link,
            "entry": dict(note.entry),
        }
        post(self._address, document, headers)


class Slack:
    """Posts what Slack's incoming webhooks take, and Mattermost, Rocket.Chat and Google's after them: ``text`` and ``blocks``."""

    name = "slack"

    def __init__(self, address: str) -> None:
        self._address = checked(address, "the address for Slack", _SECRET)

    def __repr__(self) -> str:
        return f"<Slack {place(self._address)}>"

    def send(self, note: Note) -> None:
        """Post one message."""
        post(self._address, slack_payload(note), {"Idempotency-Key": note.key})


_NARROW = "\u200b"  # no width: a person sees the same text, and no receiver a mention or an address


def harmless(text: str) -> str:
    """
    Return text in which nothing calls anybody or leads anywhere, in Slack's and Mattermost's syntax.

    Slack reads ``<!channel>``, ``<@U1>``, ``<https://…|text>`` and bare addresses; Mattermost reads ``@channel`` and Markdown links.
    https://docs.slack.dev/messaging/formatting-message-text/#escaping: only ``&``, ``<`` and ``>`` are escaped.
    """
    text = re.sub(r"@(?=\w)", "@" + _NARROW, text)
    text = re.sub(r"(?i)\b([a-z][a-z0-9+.-]{1,15}):(?=//)", rf"\1:{_NARROW}", text)
    text = re.sub(r"(?i)\b(mailto|tel|javascript):", rf"\1{_NARROW}:", text)
    text = re.sub(r"(?i)\bwww\.(?=\w)", f"www{_NARROW}.", text)
    text = text.replace("](", f"]{_NARROW}(")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_payload(note: Note) -> dict[str, Any]:
    """Return the JSON for an incoming webhook: markup is off, so that log text is text; the link alone is a link."""
    *said, last = note.lines
    lines = [harmless(line) for line in said]
    where = (
        f"<{note.link.replace('&', '&amp;').replace('<', '%3C').replace('>', '%3E').replace('|', '%7C')}>"
        if note.link
        else harmless(last)
    )
    # `text` alone is read by other receivers than Slack
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "plain_text", "emoji": False, "text": shorten("\n".join(lines), 2900)}},
        {"type": "context", "elements": [{"type": "mrkdwn", "verbatim": True, "text": where}]},
    ]
    return {"text": "\n".join([*lines, where]), "mrkdwn": False, "unfurl_links": False, "unfurl_media": False, "blocks": blocks}
