"""Turn the folder of pages, in a checkout or in the installed package, into the addresses that serve them."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Callable
from pathlib import Path

import workbench
from workbench.errors import SourceUnavailable

__all__ = ["ADDRESSES", "folder", "pages"]

_LOG = logging.getLogger(__name__)

# address → file of panels/; the inbox is the first thing one sees
ADDRESSES = {
    "/": "inbox",
    "/incident": "incident",
    "/fleet": "fleet",
    "/node": "node",
    "/account": "account",
    "/remediation": "remediation",
}


def folder(kind: str = "panels") -> Path:
    """
    Return the folder of ``panels`` or ``notebooks``: the wheel's ``workbench/_panels``, or the checkout's beside the package.

    Raises
    ------
    SourceUnavailable
        There is neither: the installation is not whole.
    """
    package = Path(workbench.__file__).resolve().parent
    for place in (package / f"_{kind}", package.parent / kind):
        if place.is_dir():
            return place
    raise SourceUnavailable(f"the {kind} are not installed", hint="install the wheel again, or run from a checkout")


def pages() -> dict[str, Callable[[], None]]:
    """Return address → what makes the page, for each page there is."""
    place = folder()
    return {address: _page(place / f"{name}.py") for address, name in ADDRESSES.items() if (place / f"{name}.py").is_file()}


def _own_resources() -> None:
    """
    Let what the page is made of name style sheets of this server.

    Panel (1.9.4) does so when it writes the page; of a session that is made anew for a page already at a browser, which came back or was so
    slow that its session had ended, it would name those of a CDN, which the page may not load.
    """
    import panel as pn
    from panel.io.resources import LOCAL_DIST

    document = pn.state.curdoc
    if document is not None and document.session_context is not None:
        here = f"{pn.state.rel_path}/" if pn.state.rel_path else ""
        document.template_variables.setdefault("dist_url", f"{here}{LOCAL_DIST}")


def _page(file: Path) -> Callable[[], None]:
    """Return a function that runs a page's script for a session; one that fails becomes a page that says so."""

    def run() -> None:
        try:
            _own_resources()
            runpy.run_path(str(file), run_name="workbench_page")
        except Exception:
            _LOG.exception("the page %s could not be made", file.stem)
            import panel as pn

            from workbench.views.later import sentence
            from workbench.views.shell import Shell

            pn.state.curdoc.clear()
            said = sentence(
                "This page could not be made",
                "It is a defect of the workbench, or of the data that it was given; the other pages work.",
                "The server's log says what went wrong.",
                kind="error",
            )
            Shell(said, here="", title="Not made").servable()

    return run
