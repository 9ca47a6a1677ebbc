"""Turn how far the watch came (signs seen, windows asked) into a file that the next watch goes on from, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.inbox.files import InboxError, write_json

__all__ = ["Cursor"]

SCHEMA = "workbench.watch/1"
_EXACT = 3600.0  # seconds; a file of a hundred thousand signs is not written anew at every look
_KEPT = 7 * 86400.0  # seconds for which the signs of things that are not shown any more are remembered


@dataclass
class Cursor:
    """
    Where the watch came to.

    Attributes
    ----------
    file : Path
    started : float or None
        When the first watch of this inbox looked first, in seconds since the epoch.
    seen : dict
        Sign → when it was seen last, give or take an hour.
    positions : dict
        Scheduler → up to when it was seen whole.
    storm : dict
        The last storm: ``id``, ``began``, ``last``, ``first``, ``tell``.
    """

    file: Path
    started: float | None = None
    seen: dict[str, float] = field(default_factory=dict)
    positions: dict[str, float] = field(default_factory=dict)
    storm: dict[str, Any] = field(default_factory=dict)
    _changed: bool = False

    def begin(self, now: float) -> float:
        """Return when the first watch looked first: now, when there was none before."""
        if self.started is None:
            self.started, self._changed = now, True
        return self.started

    def mark(self, item: str, now: float) -> None:
        """Remember that a sign was seen."""
        if now - self.seen.get(item, 0.0) > _EXACT:
            self.seen[item], self._changed = now, True

    def reach(self, name: str, position: float | None, now: float) -> None:
        """Remember that a scheduler was seen whole; `position` is up to when, for one that is asked for windows."""
        if position is not None or name not in self.positions:
            self.positions[name], self._changed = now if position is None else position, True

    def read(self) -> None:
        """
        Go on from the file, or begin when there is none.

        Raises
        ------
        InboxError
            It cannot be read or is damaged. To begin anew by itself would lose what failed meanwhile, or tell all of it again.
        """
        try:
            table = json.loads(self.file.read_text(encoding="utf-8"))
            self.started = None if table["started"] is None else float(table["started"])
            self.seen = {str(item): float(when) for item, when in table["seen"].items()}
            self.positions = {str(name): float(when) for name, when in table["positions"].items()}
            self.storm = dict(table.get("storm") or {})
        except FileNotFoundError:
            return
        except OSError as error:
            raise InboxError(f"{self.file} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InboxError(
                f"{self.file} is damaged: {error}",
                hint="remove it to begin anew: of what failed before, only the last hour counts then",
            ) from None

    def write(self, now: float | None = None) -> None:
        """
        Keep it. With the time now only when something changed, and what was not seen for a week is forgotten.

        Raises
        ------
        InboxError
            It cannot be written.
        """
        if now is not None:
            if not self._changed:
                return
            self.seen = {item: when for item, when in self.seen.items() if now - when <= _KEPT}
        table = {"started": self.started, "seen": self.seen, "positions": self.positions, "storm": self.storm}
        try:
            write_json(self.file, {"schema": SCHEMA, **table})
        except OSError as error:
            raise InboxError(f"{self.file} cannot be written: {error.strerror or error}") from error
        self._changed = False
