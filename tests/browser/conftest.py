"""Turn a test session into one served demonstration and Debian's Chromium, with tabs that remember what went wrong in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.served import Served
from workbench.shipped import examples

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
_SCHEMES = ("http", "https", "ws", "wss")
LOCAL = (*(f"{scheme}://{name}:" for scheme in _SCHEMES for name in ("127.0.0.1", "localhost")), "data:", "blob:")
SIZES = {"wide": (1440, 900), "laptop": (1024, 768)}
ARTIFACTS = os.environ.get("WORKBENCH_ARTIFACTS", "")  # a folder: screenshots are kept there


def chromium() -> str:
    """Return the path of Chromium, installed from Debian when it is not there (root only)."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    assert os.getuid() == 0, "there is no chromium, and only root may install Debian's: apt-get install chromium"
    packages = Path(__file__).resolve().parents[1] / "services" / "packages"
    subprocess.run([packages, "chromium", "fonts-dejavu-core"], check=True, capture_output=True, timeout=900)
    found = shutil.which("chromium")
    assert found
    return found


class Tab:
    """A page with what it complained about (`problems`) and what it asked of other machines (`outside`)."""

    def __init__(self, page: Any, base: str) -> None:
        self.page, self.base = page, base
        self.problems: list[str] = []
        self.outside: list[str] = []
        page.on("request", lambda request: None if request.url.startswith(LOCAL) else self.outside.append(request.url))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def open(self, path: str) -> Tab:
        """Go to a path below the dashboard and wait until the view is drawn."""
        self.page.goto(self.base + path)
        return self.drawn()

    def drawn(self) -> Tab:
        """Wait until the view has taken the place of its skeleton, and what is read in threads is there."""
        self.page.locator("#skeleton").wait_for(state="detached", timeout=60_000)
        self.page.locator(".missing.wait").wait_for(state="detached", timeout=60_000)
        return self

    def query(self) -> str:
        """Return the query of the address."""
        return str(self.page.evaluate("location.search"))

    def keep(self, name: str) -> None:
        """Keep a screenshot, when ``WORKBENCH_ARTIFACTS`` names a folder."""
        if ARTIFACTS:
            Path(ARTIFACTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(ARTIFACTS) / f"{re.sub(r'[^a-z0-9-]+', '-', name.lower())}.png"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Debian's Chromium; ended with this folder's tests, since its loop runs in this thread and others want one of their own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(FLAGS))
        yield one
        one.close()


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demonstration, filled."""
    with Served(("--demo",), {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}) as served:
        served.filled(len(examples()))
        yield served


@pytest.fixture
def new_tab(browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Tab]]:
    """
    Open tabs, each in a browser context of its own: nothing is shared but the server. All are looked at in the end.

    Without a base they show the demonstration, which is started only then: it triages what is shipped, beside whoever has a server of his own.
    """
    contexts, tabs = [], []

    def make(base: str = "", *, size: str = "wide", **more: Any) -> Tab:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        contexts.append(context)
        tab = Tab(context.new_page(), base or request.getfixturevalue("dashboard").url)
        tabs.append(tab)
        return tab

    yield make
    for context in contexts:
        context.close()
    for tab in tabs:
        assert not tab.outside, f"asked of another machine: {tab.outside}"
        assert not tab.problems, f"complaints of the browser: {tab.problems}"


@pytest.fixture
def tab(new_tab: Callable[..., Tab]) -> Tab:
    """One tab of the demonstration, wide and light."""
    return new_tab(color_scheme="light")
