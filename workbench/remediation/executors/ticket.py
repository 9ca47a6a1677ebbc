"""Turn an action into words for people: a report for the provider or the data centre as Markdown and JSON, a page for whoever is on call."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.run_once import write_whole
from workbench.remediation.model import Action, FleetState, NodeState, Step
from workbench.remediation.records import plain

__all__ = ["Tickets"]


class Tickets:
    """
    Reports and pages as an executor.

    Each is a pair of files, ``ID.md`` and ``ID.json``; where a webhook is set the JSON is posted there as well, with the action's id as
    ``Idempotency-Key``, so that a receiver who gets it twice (its answer was lost) can tell.

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
    """

    name = "ticket"
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
        self._folder, self._render, self._webhook, self._headers, self._node = folder, render, webhook, dict(headers or {}), node

    def fleet(self, deadline: Deadline) -> FleetState:
        """Reports see no fleet: always an `ExecutorError`."""
        raise ExecutorError("reports do not tell which nodes there are", hint="use a scheduler's executor", sent=False)

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return what the scheduler's executor says of the node."""
        if self._node is None:
            return self.fleet(deadline).nodes.get(name)
        return self._node(name, deadline)

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
        file = self._folder / f"{action.id}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                write_whole(file, record)
                _write_text(file.with_suffix(".md"), record["text"])
            if self._webhook:
                self._post(record, deadline)
                write_whole(file, {**record, "posted": True})
        except OSError as error:
            raise ExecutorError(f"{self._folder} cannot be written: {error.strerror or error}", sent=False) from None
        return self.look(action, deadline)

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell whether the report is written, and posted where it must be."""
        file = self._folder / f"{action.id}.json"
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Step("absent", "no report was written")
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{file} cannot be read: {error}", sent=False) from None
        if record.get("withdrawn"):
            return Step("changed", f"the report {file} was withdrawn")
        if self._webhook and not record.get("posted"):
            return Step("absent", f"the report {file} is written and was not posted")
        return Step("done", f"see {file.with_suffix('.md')}")

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Mark the report as withdrawn; whoever has read it must be told by a person."""
        file = self._folder / f"{action.id}.json"
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            write_whole(file, {**record, "withdrawn": True})
        except FileNotFoundError:
            return Step("done", "there was no report")
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{file} cannot be changed: {error}", sent=False) from None
        return Step("done", "marked as withdrawn; tell those who got it")

    def _post(self, record: Mapping[str, Any], deadline: Deadline) -> None:
        """Post a record; a redirect is not followed, since it would carry our headers to somebody else."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(record["id"]), **self._headers}
        request = urllib.request.Request(self._webhook, json.dumps(record).encode(), headers, method="POST")
        where = self._webhook.split("?")[0]
        try:
            with urllib.request.build_opener(_Stay).open(request, timeout=deadline.left(15.0)):
                pass
        except urllib.error.HTTPError as error:
            again = error.headers.get("Retry-After", "")
            raise ExecutorError(
                f"{where} answered {error.code} {error.reason}", again=float(again) if again.isdigit() else 30.0
            ) from None
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{where} did not take it: {getattr(error, 'reason', None) or error}", again=30.0) from None


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
