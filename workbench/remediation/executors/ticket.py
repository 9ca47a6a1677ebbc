"""Turn an action into words for people: a report for the provider or the data centre as Markdown and JSON, a page for whoever is on call."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workbench.errors import ConfigError
from workbench.remediation.executors.beside import Beside
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.places import place, there
from workbench.remediation.executors.run_once import write_whole
from workbench.remediation.model import Action, NodeState, Step
from workbench.remediation.records import plain
from workbench.sources.http_words import retry_after

__all__ = ["Tickets"]

_POST = 15.0  # seconds that a receiver gets
# answers after which a repetition may help: it was too much, too early or the receiver's own trouble
_AGAIN = frozenset({408, 425, 429})


class Tickets(Beside):
    """
    Reports and pages as an executor.

    Each is a pair of files, ``ID.md`` and ``ID.json``; where a webhook is set the JSON is posted there as well, with the action's id as
    ``Idempotency-Key``, so that a receiver who gets it twice (its answer was lost) can tell. They touch no node, so what an action expects
    of the node is not asked: a person is told even, and especially, when the node cannot be seen.

    Parameters
    ----------
    folder : Path
        Where reports are kept.
    render : callable
        Returns the Markdown of an action.
    webhook : str, optional
        An http(s) address.
    headers : mapping, optional
        Sent with each request; may hold a secret, which is never shown.
    node : callable, optional
        As of `Commands`.

    Raises
    ------
    ConfigError
        The webhook is no http(s) address.
    """

    name = "ticket"
    what = "reports"
    verbs = frozenset({"ticket", "page"})

    def __init__(
        self,
        folder: Path,
        render: Callable[[Action], str],
        *,
        webhook: str = "",
        headers: Mapping[str, str] | None = None,
        node: Callable[[str, Deadline], NodeState | None] | None = None,
    ) -> None:
        super().__init__(node)
        self._folder, self._render, self._webhook, self._headers = folder, render, webhook, dict(headers or {})
        # its path and account may be the secret: never shown
        self._where = _shown(webhook) if webhook else ""
        with contextlib.suppress(OSError):  # whoever looks says so
            folder.mkdir(parents=True, exist_ok=True)

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Write the report, then post it; what was written and not posted is posted now."""
        step = self.look(action, deadline)
        if step.status == "done":
            return step
        record = {
            "schema": "workbench.ticket/1",
            "kind": action.verb,
            "posted": False,
            **plain(action),
            "text": self._render(action),
        }
        file = place(self._folder, action.id, ".json")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                _write_text(file.with_suffix(".md"), record["text"])
                write_whole(file, record)  # the last: a report is there when this is
            if self._webhook:
                self._post(record, deadline)
                write_whole(file, {**record, "posted": True})
        except OSError as error:
            raise ExecutorError(f"{self._folder} cannot be written: {error.strerror or error}", sent=False) from None
        return self.look(action, deadline)

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell whether the report is written, and posted where it must be."""
        self._mine(action)
        file = place(self._folder, action.id, ".json")
        if not there(self._folder, file):
            return Step("absent", "no report was written")
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{file} cannot be read: {error}", sent=False) from None
        if record.get("withdrawn"):
            return Step("changed", f"the report {file} was withdrawn")
        if self._webhook and not record.get("posted"):
            return Step("absent", f"the report {file} is written and was not posted")
        return Step("done", f"see {file.with_suffix('.md')}")

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Mark the report as withdrawn; whoever has read it must be told by a person."""
        self._mine(action)
        file = place(self._folder, action.id, ".json")
        if not there(self._folder, file):
            return Step("absent", "there was no report")
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            if record.get("withdrawn"):
                return Step("absent", "it is withdrawn already")
            write_whole(file, {**record, "withdrawn": True})
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{file} cannot be changed: {error}", sent=False) from None
        return Step("done", "marked as withdrawn; tell those who got it")

    def _mine(self, action: Action) -> None:
        if action.verb not in self.verbs:
            raise ExecutorError(f"reports cannot do {action.verb!r}", sent=False)

    def _post(self, record: Mapping[str, Any], deadline: Deadline) -> None:
        """Post a record; what a receiver sends drop by drop is given up at the deadline, too."""
        failed: list[Exception | None] = []
        worker = threading.Thread(target=lambda: failed.append(self._posted(record, deadline.left(_POST))), daemon=True)
        worker.start()
        worker.join(deadline.left(_POST) + 1.0)
        if not failed:
            raise ExecutorError(f"{self._where} did not answer in time", again=30.0)
        if failed[0] is not None:
            raise failed[0] from None

    def _posted(self, record: Mapping[str, Any], seconds: float) -> Exception | None:
        """Return what went wrong; a redirect is not followed, since it would carry our headers to somebody else."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(record["id"]), **self._headers}
        try:
            request = urllib.request.Request(self._webhook, json.dumps(record).encode(), headers, method="POST")
            with urllib.request.build_opener(_Stay).open(request, timeout=seconds):
                return None
        except urllib.error.HTTPError as error:
            with error:
                wait = retry_after(error.headers.get("Retry-After"), error.headers.get("Date"))
            repeat = error.code in _AGAIN or error.code >= 500
            said = f"{self._where} answered {error.code} {_plain(error.reason)}"
            return ExecutorError(said, sent=repeat, again=30.0 if wait is None else wait)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            never = isinstance(reason, ConnectionRefusedError | socket.gaierror)
            return ExecutorError(f"{self._where} did not take it: {_plain(reason)}", sent=not never, again=30.0)


def _shown(webhook: str) -> str:
    """Return what of an address may be shown."""
    try:
        parts = urlsplit(webhook)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("the webhook is no http or https address")
    if parts.username is not None:
        raise ConfigError(
            "the webhook's address has an account in it, which is not sent: put the secret into its path, as receivers do"
        )
    return f"{parts.scheme}://{parts.hostname}{port}"


def _plain(text: object) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))[:200]


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
