"""Turn the name of a ledger into an account for a notebook, and into the dashboard's page of it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.fleet.account import DEFAULT, Account, NoLedger
from workbench.fleet.ledger import Ledger

if TYPE_CHECKING:
    from workbench.views.account import AccountView
    from workbench.views.account_model import Sheet, Wish

__all__ = ["account", "account_view"]


def account(ledger: str = "", *, window: str = DEFAULT, cluster: str = "", config: str = "") -> Account:
    """
    Return the account of some weeks.

    Parameters
    ----------
    ledger : str
        The path of a ledger; ``demo`` is a small simulated one; empty: that of the settings (``fleet.ledger``).
    window : str
        As `workbench.fleet.account.span_of` reads it.
    cluster : str, optional
        Of this cluster only.
    config : str, optional
        The file of settings; default as for the command line.

    Raises
    ------
    NoLedger
        There is none.
    ValueError
        The window makes no sense.
    """
    path, prices = _place(ledger, config)
    return _read(path, window, cluster or None, prices)


def account_view(ledger: str = "", *, window: str = DEFAULT, cluster: str = "", by: str = "", config: str = "") -> AccountView:
    """Return the dashboard's page of an account; the parameters are those of `account`, and `by` the groups."""
    from workbench.views.account import AccountView
    from workbench.views.account_model import Wish
    from workbench.views.account_tabs import sheet

    path, prices = _place(ledger, config)
    held: dict[tuple[str, str | None], Account] = {}

    def load(wish: Wish) -> Sheet:
        key = (wish.window, wish.cluster)
        if key not in held:
            held[key] = _read(path, *key, prices)
        return sheet(held[key], wish)

    view = AccountView(load, simulated=ledger == "demo", where="" if ledger == "demo" else str(path))
    view.wish = Wish(window=window, cluster=cluster or None, by=by)
    return view


def _place(ledger: str, config: str) -> tuple[Path, Any]:
    """Return where the ledger is, and the site's prices."""
    if ledger == "demo":
        return _simulated(), None
    from workbench.config import load_config

    settings = load_config(config or None, profile=None, flags={})
    return Path(ledger or str(settings["fleet.ledger"])).expanduser(), settings["report.prices"]


def _read(path: Path, window: str, cluster: str | None, prices: Any) -> Account:
    if not path.is_file():
        raise NoLedger(
            f"there is no ledger {path}",
            hint="workbench run -- COMMAND or workbench fleet ingest FILES makes one; demo is simulated",
        )
    with Ledger.open(path, "ro") as opened:
        return Account.read(opened, window, cluster=cluster, prices=prices, now=time.time())


@lru_cache(maxsize=1)
def _simulated() -> Path:
    """Make the simulated ledger, once a process and gone with it."""
    from workbench.simulation.demo import demo_ledger

    folder = Path(tempfile.mkdtemp(prefix="workbench-account-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return demo_ledger(folder / "fleet.sqlite", time.time())
