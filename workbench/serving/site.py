"""
Turn how the dashboard was started into what every page and route of the process shares: inbox, poller, roles, roots.

Made once a process; sessions only read. A page that is run by hand (`panel serve panels/incident.py`) gets the demonstration.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from workbench.errors import SourceUnavailable, WorkbenchError
from workbench.serving.board import Board
from workbench.serving.roles import Roles

if TYPE_CHECKING:
    from workbench.casefile.model import CaseFile

__all__ = ["Forbidden", "Site", "current", "use"]

KEPT = 24  # case files held in memory; one of 16,384 ranks takes some 30 MB
WORKERS = 4


class Forbidden(WorkbenchError):
    """What was asked for is there, or not, and may not be seen this way."""

    exit_code = 69


@dataclass(slots=True)
class Site:
    """
    What the pages and routes of one process share.

    Attributes
    ----------
    inbox : Inbox
    board : Board
        The inbox's rows, for sessions to take without waiting.
    roles : Roles
    roots : tuple of Path
        Folders below which ``?path=`` may name evidence; resolved.
    poller : Poller or None
        Asks the fleet; None when there is none.
    desk : Desk or None
        Where plans wait for a person; None when nothing is known of any.
    books : Books or None
        Reads the fleet's ledger for the account's page.
    demo : bool
        Whether the shipped incidents are shown.
    note : str
        One line in the header.
    config : object
        The site's configuration when started with ``--live``.
    """

    inbox: Any
    board: Board
    roles: Roles = field(default_factory=Roles)
    roots: tuple[Path, ...] = ()
    poller: Any = None
    desk: Any = None
    books: Any = None
    demo: bool = False
    note: str = ""
    config: Any = None
    started: float = field(default_factory=time.time)
    filling: str = ""  # what is still being read in, for the inbox's empty state
    leaving: list[Callable[[], object]] = field(default_factory=list)  # what is to be cleaned up at the end
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(WORKERS, thread_name_prefix="workbench"))
    _cases: OrderedDict[tuple[str, str], CaseFile] = field(default_factory=OrderedDict)
    _making: dict[tuple[str, str], threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allowed(self, path: str) -> Path:
        """
        Return the path that ``?path=`` names, when it lies below a root or is a shipped incident of the demonstration.

        Links are followed first: what counts is where the file really is. A relative path is one below a root.

        Raises
        ------
        Forbidden
            It lies elsewhere; the message does not tell whether there is something.
        """
        if "\0" not in path and path:
            for root in self.roots:
                found = (root / path).resolve()
                if found.is_relative_to(root) and found.exists():
                    return found
            if self.demo:
                from workbench.shipped import example_path, examples

                shipped = {str(example_path(name)): example_path(name) for name in examples()}
                if path in shipped:
                    return shipped[path]
        roots = ", ".join(map(str, self.roots))
        raise Forbidden(
            "nothing is shown from there",
            hint=f"paths must lie below {roots}"
            if roots
            else "start the dashboard with --root FOLDER to open evidence by its path",
        )

    def case(self, *, id: str = "", path: str = "") -> CaseFile:
        """
        Return a case file; blocking, to be called in `pool`. The newest `KEPT` are held, and one is made once however many ask.

        Raises
        ------
        WorkbenchError
            There is none, or its path may not be read.
        """
        key = self._key(id, path)
        with self._lock:
            if found := self._held(key):
                return found
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if found := self._held(key):
                    return found
            made: CaseFile = self._of_inbox(id) if id else _open(key[1])
            with self._lock:
                self._cases[key] = made
                while len(self._cases) > KEPT:
                    self._cases.popitem(last=False)
                self._making.pop(key, None)
            return made

    def _of_inbox(self, id: str) -> CaseFile:
        """Return an entry's case file, with the team that the site's table names."""
        case: CaseFile = self.inbox.case(id)
        entry = self.inbox.get(id)
        return replace(case, job={**case.job, "team": entry.team}) if entry.team else case

    def held(self, *, id: str = "", path: str = "") -> CaseFile | None:
        """Return the case file when it is in memory: never waits, never reads."""
        with self._lock:
            return self._held(self._key(id, path))

    def _key(self, id: str, path: str) -> tuple[str, str]:
        if not id and not path:
            raise Forbidden("no incident is named", hint="open one from the inbox")
        return ("id", id) if id else ("path", str(self.allowed(path)))

    def _held(self, key: tuple[str, str]) -> CaseFile | None:
        if key in self._cases:
            self._cases.move_to_end(key)
            return self._cases[key]
        return None

    def downloads(self, which: Mapping[str, str]) -> dict[str, str]:
        """Return title → address of the files that are offered of an incident (``id`` or ``path``)."""
        asked = urlencode(which)
        return {
            "Verdict (JSON)": f"./api/verdict?{asked}&download=1",
            "Evidence": f"./download/bundle?{asked}",
            "Postmortem": f"./download/postmortem?{asked}",
        }

    def setting(self, key: str) -> Any:
        """Return a setting of the site; its default when no configuration was read."""
        return None if self.config is None else self.config.get(key)

    def currency(self) -> str:
        """Return what is put before a cost: the site's currency, empty when it names none."""
        word = str((self.setting("report.prices") or {}).get("currency", "")).strip()
        return f"{word} " if word[-1:].isalpha() else word  # EUR 12, but €12

    def who(self) -> str:
        """Return the user of the current session with the role, for the header; empty without login."""
        if not self.roles.login:
            return ""
        import panel as pn

        user = pn.state.user
        return f"{user} ({self.roles.role_of(user)})" if user else ""

    def user(self) -> str | None:
        """Return the user of the current session; None without login."""
        import panel as pn

        return pn.state.user if self.roles.login else None

    def role(self) -> str:
        """Return the role of the current session's user."""
        import panel as pn

        return self.roles.role_of(pn.state.user if self.roles.login else None)

    def count_held(self) -> int:
        """Return how many case files are in memory."""
        return len(self._cases)

    def close(self) -> None:
        """Stop what runs beside the server."""
        self.board.stop()
        if self.poller is not None:
            self.poller.stop()
        if self.desk is not None:
            self.desk.stop()
        if self.books is not None:
            self.books.stop()
        self.pool.shutdown(wait=False, cancel_futures=True)
        for leave in self.leaving:
            leave()


def _open(path: str) -> Any:
    if not Path(path).exists():
        raise SourceUnavailable(f"there is nothing at {path}")
    from workbench.serving.start import open_path

    return open_path(path)


_CURRENT: list[Site] = []
_FIRST = threading.Lock()


def use(site: Site) -> None:
    """Make `site` that of the process."""
    _CURRENT[:] = [site]


def current() -> Site:
    """Return the process's site; without any, the demonstration is made."""
    with _FIRST:
        if not _CURRENT:
            from workbench.serving.start import demo_site

            use(demo_site())
    return _CURRENT[0]
