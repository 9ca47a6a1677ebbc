"""Turn an entry of the journal into its line, with a sum that tells whether it is whole, and such a line back into the entry."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.remediation.model import Action
from workbench.remediation.records import plain, record

__all__ = ["JOURNAL_SCHEMA", "KINDS", "Entry", "entry_of", "line_of"]

JOURNAL_SCHEMA = "workbench.journal/1"
KINDS = ("plan", "intent", "outcome", "note")
_SUM = b',"sum":"'
_TAIL = len(_SUM) + len('xxxxxxxx"}')


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One line of the journal.

    Attributes
    ----------
    seq : int
        Grows by one a line; a gap is a lost line.
    time : float
        When it was written, by the controller's clock.
    kind : str
        One of `KINDS`. An ``intent`` is written before anything is done, its ``outcome`` after; a refusal is an outcome without an intent.
    plan, action, node, verb, rung, trouble : str
        What it is about; of an undo, `verb` is the verb that takes back, but of the outcome ``undone`` the action's own.
    status : str
        One of `workbench.remediation.model.OUTCOMES`; only of outcomes.
    detail : str
        One sentence.
    before : mapping
        What was there before, as far as an undo needs it.
    data : mapping
        Of an intent ``action``, the whole action; ``undo`` is true when it is about taking the action back; of a plan ``plan``.
    by : str
        The controller that wrote it.
    steady, base : float or None, str
        When it was written by a clock that nobody can set, and which one that is: see `workbench.remediation.moments`.
    """

    seq: int
    time: float
    kind: str
    plan: str = ""
    action: str = ""
    node: str = ""
    verb: str = ""
    rung: str = ""
    trouble: str = ""
    status: str = ""
    detail: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    steady: float | None = None
    base: str = ""

    @property
    def undo(self) -> bool:
        """Whether it is about taking the action back."""
        return bool(self.data.get("undo"))

    def intended(self) -> Action | None:
        """Return the whole action of an intent; None when the line does not hold one."""
        try:
            return record(Action, self.data["action"])
        except (KeyError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return it as the journal's line has it, without the sum."""
        return {"schema": JOURNAL_SCHEMA, **plain(self)}


def line_of(entry: Entry) -> bytes:
    """Return an entry as the line that the journal has of it."""
    body = json.dumps(entry.to_dict(), separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    return body + _SUM + b'%08x"}\n' % zlib.crc32(body)


def entry_of(line: bytes) -> Entry | None:
    """Return the entry of a line; None when the line is damaged."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail != _SUM + b'%08x"}' % zlib.crc32(body):
        return None
    try:
        value = json.loads(body + b"}")
        if value.pop("schema") != JOURNAL_SCHEMA or value["kind"] not in KINDS:
            return None
        return record(Entry, value)
    except (KeyError, ValueError, AttributeError, TypeError):
        return None
