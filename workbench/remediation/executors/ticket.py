"""Turn an action into words for people: a report for the provider or the data centre as Markdown and JSON, a page for whoever is on call."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.durable import write_whole
from workbench.remediation.executors.beside import Beside
from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.executors.places import place, there
from workbench.remediation.model import Action, NodeState, Step
from workbench.remediation.records import plain
from workbench.sources.webhook import SECONDS, checked, deliver

__all__ = ["Tickets"]

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
        self._folder, self._render, self._headers = folder, render, dict(headers or {})
        self._webhook = checked(webhook, "the webhook", "put the secret into its path, as receivers do") if webhook else ""
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
        fence(deadline)
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
            fence(deadline)
            write_whole(file, {**record, "withdrawn": True})
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{file} cannot be changed: {error}", sent=False) from None
        return Step("done", "marked as withdrawn; tell those who got it")

    def _mine(self, action: Action) -> None:
        if action.verb not in self.verbs:
            raise ExecutorError(f"reports cannot do {action.verb!r}", sent=False)

    def _post(self, record: Mapping[str, Any], deadline: Deadline) -> None:
        """Post a record; what a receiver sends drop by drop is given up at the deadline, too."""
        headers = {"Idempotency-Key": str(record["id"]), **self._headers}
        why = deliver(self._webhook, json.dumps(record).encode(), headers, deadline.left(SECONDS))
        if why is not None:
            repeat = why.unsure or (why.code is not None and (why.code in _AGAIN or why.code >= 500))
            raise ExecutorError(why.said, sent=repeat, again=30.0 if why.again is None else why.again)


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
