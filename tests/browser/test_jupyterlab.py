"""The dashboard inside JupyterLab: the launcher's tile, a prefix as JupyterHub gives it, web sockets through the proxy, no open port."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Tab
from tests.serving.served import ROOT
from workbench.shipped import examples

pytestmark = pytest.mark.live

BASE = "/user/maria/"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """A JupyterLab below a prefix, with the entry point of pyproject.toml; its address."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    # By the distribution's own name: of two with one name Python takes the first, so what is installed does not show a second tile
    about = tmp_path / "site" / "gpu_reliability_workbench-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gpu-reliability-workbench\nVersion: 0\n")
    (about / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items()) for group, rows in points.items())
    )
    settings = tmp_path / "jupyter" / "lab" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    (tmp_path / "work").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (tmp_path / "lab.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip", "127.0.0.1", "--port", str(port)),
                *("--ServerApp.port_retries=0", "--IdentityProvider.token=t", f"--ServerApp.base_url={BASE}"),
                f"--ServerApp.root_dir={tmp_path / 'work'}",
            ],
            cwd=tmp_path / "work",
            stdout=log,
            stderr=log,
            env=os.environ
            | {
                "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'site'}",
                "JUPYTER_CONFIG_DIR": str(tmp_path / "jupyter"),
                "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"),
                "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "jupyter" / "lab"),
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                "WORKBENCH_INBOX_FOLDER": str(tmp_path / "no-inbox"),
            },
        )
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"{address}{BASE}api", timeout=5).close()
                    break
                except (urllib.error.URLError, OSError):
                    assert process.poll() is None, (tmp_path / "lab.log").read_text()
                    time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait(30)


def test_the_launcher_s_tile_opens_the_dashboard(new_tab: Callable[..., Tab], lab: str) -> None:
    """Inbox, an incident and a deep link, all below Hub's prefix and with live web sockets."""
    tab = new_tab(lab, color_scheme="light")
    tab.goto(f"{lab}{BASE}lab?token=t&reset")
    tile = tab.locator(".jp-LauncherCard", has_text="GPU Reliability Workbench")
    tile.wait_for(timeout=90_000)
    tab.wait_for_timeout(1500)
    tab.keep("jupyterlab-launcher")
    icon = tab.request.get(f"{lab}{BASE}server-proxy/icon/workbench?token=t")
    assert icon.ok
    assert b"<svg" in icon.body()
    with tab.context.expect_page() as opened:
        tile.click()
    inside = Tab(opened.value, f"{lab}{BASE}workbench")
    inside.wait_for_url(re.compile(rf"{BASE}workbench/"), timeout=90_000)
    inside.drawn()
    inside.get_by_text(f"1–{len(examples())} of {len(examples())}").wait_for(timeout=90_000)
    inside.keep("jupyterlab-inbox")
    inside.locator("a.chip-cause", has_text="user").click()
    inside.get_by_text("1–1 of 1").wait_for()
    inside.get_by_role("link", name="user/hang").click()
    inside.wait_for_url(re.compile(rf"{BASE}workbench/incident\?id=hang-data-loader"))
    inside.drawn().get_by_text("user/hang").first.wait_for()
    inside.keep("jupyterlab-incident")
    inside.open("/?cause=platform").get_by_text("1–2 of 2").wait_for()

    assert not inside.outside
    assert not inside.problems
    inside.close(), tab.close()
    tab.problems.clear()  # JupyterLab's own, of extensions that are not asked here
    tab.outside.clear()


def test_nobody_else_on_the_machine_reaches_it() -> None:
    """It listens on no port; without Jupyter's token the proxy lets nobody in."""
    from workbench.serving.jupyter import server

    told = server()

    assert told["unix_socket"] is True
    assert "--port" not in told["command"]
    assert "{unix_socket}" in told["command"]
    assert told["absolute_url"] is True
    assert Path(told["launcher_entry"]["icon_path"]).is_file()
