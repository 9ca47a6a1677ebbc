"""Turn options into the site that the dashboard shows: an inbox of one's own or the shipped incidents, and who asks the fleet."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.owners import Teams
from workbench.serving.board import Board
from workbench.serving.roles import Roles
from workbench.serving.site import Site

__all__ = ["demo_site", "fill", "make_site", "open_path"]


def open_path(path: str) -> Any:
    """Return the case file of a folder or archive."""
    from workbench.casefile import open_path as opened

    return opened(path)


# whose the namespaces of the shipped incidents are, as a site's settings would say
_TEAMS = Teams({"speech": "speech", "vision": "vision", "foundation": "foundation models"})


def make_site(
    *,
    inbox: str | Path | None = None,
    demo: bool = False,
    roots: tuple[Path, ...] = (),
    roles: Roles | None = None,
    config: Any = None,
    period: float = 30.0,
    gpus: int = 1024,
    live: bool = False,
) -> Site:
    """
    Return the site; its inbox is read, its poller runs.

    Parameters
    ----------
    inbox : path, optional
        The folder of the inbox; with `demo` one that is gone at the end.
    demo : bool
        Whether the shipped incidents are put into it.
    roots : tuple of Path
        Below which ``?path=`` may open evidence.
    roles : Roles, optional
    config : Config, optional
        The site's settings.
    period : float
        Seconds between two looks at the fleet.
    live : bool
        Whether the site's servers are asked for it.
    gpus : int
        Of the fleet that `demo` plays.
    """
    from workbench.inbox.store import Inbox

    folder = Path(inbox) if inbox is not None else Path(tempfile.mkdtemp(prefix="workbench-demo-"))
    own: dict[str, Any] = {
        "prices": None if config is None else config["report.prices"],
        "teams": Teams.of(config) or (_TEAMS if demo else None),
    }
    desk = _desk(config, demo, roles or Roles(), folder, gpus)
    site = Site(
        Inbox(folder, **own),
        Board(Inbox(folder, **own)),
        roles=roles or Roles(),
        roots=tuple(root.resolve() for root in roots),
        poller=_poller(config if live else None, desk if demo else None, period, Inbox(folder, **own), gpus),
        demo=demo,
        note="demonstration" if demo else "",
        config=config,
        desk=desk,
        books=_books(config, demo, folder),
    )
    if inbox is None:
        site.leaving.append(lambda: shutil.rmtree(folder, ignore_errors=True))
    site.board.start()
    if demo:
        site.filling = "reading the shipped incidents"
        threading.Thread(target=fill, args=(site,), name="workbench-demo", daemon=True).start()
    return site


def _desk(config: Any, demo: bool, roles: Roles, folder: Path, gpus: int) -> Any:
    """Return where plans wait for a person, already looked at: the site's queue and journal, or those of the demonstration."""
    if demo:
        from workbench.serving.desk_demo import demo_desk

        return demo_desk(folder / "remediation", roles, gpus=gpus)
    from workbench.remediation.queue import Queue
    from workbench.serving.desk import Desk

    if config is None:
        from workbench.config import defaults

        config = defaults()
    return Desk(Queue(Path(config["remediation.folder"]) / "queue"), Path(config["remediation.journal"]), roles).start()


def _books(config: Any, demo: bool, folder: Path) -> Any:
    """Return what reads the fleet's ledger; that of the demonstration is simulated when somebody first looks at it."""
    from workbench.serving.books import Books

    if demo:
        from workbench.simulation.demo import demo_ledger

        return Books(folder / "account.sqlite", make=lambda path: demo_ledger(path, time.time())).start()
    if config is None:
        from workbench.config import defaults

        config = defaults()
    objectives, gamedays = config["fleet.objectives"], config["fleet.gamedays"]
    return Books(
        Path(config["fleet.ledger"]).expanduser(),
        prices=config["report.prices"],
        objectives=Path(objectives).expanduser() if objectives else None,
        gamedays=Path(gamedays).expanduser() if gamedays else None,
    ).start()


def _poller(config: Any, stage: Any, period: float, inbox: Any, gpus: int) -> Any:
    """Return what asks the fleet, already at it; None when there is no fleet to show."""
    from workbench.site.poller import Poller

    if config is not None:
        from workbench.site.live import Live

        return Poller(Live(config, incidents=inbox.entries, period=period), period).start()
    if stage is not None:
        from workbench.site.demo import Demo

        return Poller(Demo(gpus, period=period, played=stage.played), period, name="demo fleet").start()
    return None


def demo_site() -> Site:
    """Return the site of the demonstration, its inbox still being filled by a thread."""
    return make_site(demo=True)


def fill(site: Site) -> None:
    """Triage the shipped incidents into the inbox, one after the other."""
    from workbench.shipped import example_path, examples

    about = examples()
    for number, name in enumerate(about):
        site.filling = f"reading the shipped incidents: {number} of {len(about)}"
        path = str(example_path(name))
        if name in site.inbox:
            continue
        try:
            site.inbox.add(open_path(path), id=name, source="folder", evidence=path, note=about[name], by="demonstration")
        except (WorkbenchError, OSError) as error:
            site.inbox.add(id=name, evidence=path, source="folder", problem=str(error))
        site.board.refresh()
    site.filling = ""
