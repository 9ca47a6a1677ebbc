"""The files of panels/: small, found in a checkout and in the wheel, and each of them a page that one can also serve by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.serving.conftest import free_port
from tests.serving.served import ROOT, Served
from workbench.serving.pages import ADDRESSES, folder, pages
from workbench.views import shell

FILES = sorted((ROOT / "panels").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_page_is_a_few_lines_that_open_with_what_it_shows(file: Path) -> None:
    """Under 40: what it shows is made by a view."""
    text = file.read_text(encoding="utf-8")

    assert text.startswith('"""')
    assert len(text.splitlines()) < 40
    assert ".servable()" in text


def test_every_page_has_an_address_and_is_in_the_navigation_or_behind_a_link() -> None:
    """A file that nobody reaches is none."""
    assert folder() == ROOT / "panels"
    assert {file.stem for file in FILES} <= set(ADDRESSES.values())
    assert set(pages()) == {address for address, name in ADDRESSES.items() if (ROOT / "panels" / f"{name}.py").is_file()}
    assert {"/" + path for path in shell.PAGES} <= set(ADDRESSES)


def test_the_pages_of_an_installed_package_are_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel has no folder beside the package."""
    inside = tmp_path / "workbench" / "_panels"
    inside.mkdir(parents=True)
    monkeypatch.setattr("workbench.__file__", str(tmp_path / "workbench" / "__init__.py"))

    assert folder() == inside


def test_every_page_answers(demo: Served) -> None:
    """With its title; none fails to be made."""
    for address in pages():
        body = demo.ask(address).body.decode()
        assert "could not be made" not in body, address
        assert "GPU Reliability Workbench</title>" in body, address
    assert not any("Traceback" in line for line in demo.said), "".join(demo.said)


def test_the_first_words_wait_for_no_script(demo: Served) -> None:
    """Of three megabytes of scripts each is deferred, in a page of any address: a browser shows the verdict while they come."""
    for address in pages():
        scripts = re.findall(r"<script[^>]*>", demo.ask(address).body.decode())
        loaded = [tag for tag in scripts if " src=" in tag]
        assert any("bokeh.min.js" in tag for tag in loaded)
        assert [tag for tag in loaded if " defer " not in tag] == []


def test_a_page_is_served_by_hand_too(tmp_path: Path) -> None:
    """`panel serve panels/inbox.py` shows the demonstration."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "panel", "serve", "panels/inbox.py", "--address", "127.0.0.1", "--port", str(port)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        body = ""
        for _ in range(150):
            try:
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                    f"http://127.0.0.1:{port}/inbox", timeout=30
                ) as answer:
                    body = answer.read().decode()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None
                time.sleep(0.2)
        assert "Skip to the content" in body
    finally:
        process.terminate()
        process.wait(30)
