"""Turn a served page into what a person at a browser has of it: seconds until it shows something useful, seconds from a click to its detail, bytes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "FLAGS", "Visit", "browser", "serve", "visit"]

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Runs before the page's own scripts. A plot counts as painted when a large canvas has several colours where its middle is: an empty figure
# has one. What stands in shadow roots is looked for there.
_WATCH = """
(() => {
  const deep = (root, found = []) => { for (const one of root.querySelectorAll('*')) { found.push(one); if (one.shadowRoot) deep(one.shadowRoot, found) } return found }
  const wb = window.wbench = {deep: selector => deep(document).filter(one => one.matches(selector)), paint: null, text: null, clicked: null, told: null}
  const coloured = canvas => {
    if (canvas.width < 200 || canvas.height < 100) return false
    let data; try { data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data } catch { return false }
    const seen = new Set()
    for (let i = 1; i < 24; i++) for (let j = 1; j < 12; j++) {
      const at = 4 * (Math.floor(canvas.height * j / 12) * canvas.width + Math.floor(canvas.width * i / 24))
      if (data[at + 3]) seen.add((data[at] << 16) + (data[at + 1] << 8) + data[at + 2])
    }
    return seen.size >= 2
  }
  wb.look = (text, canvas) => {
    const step = () => {
      if (wb.text === null && wb.deep(text).some(one => one.textContent.trim())) wb.text = performance.now()
      if (wb.paint === null && canvas && wb.deep('canvas').some(coloured)) wb.paint = performance.now()
      if (wb.text === null || (canvas && wb.paint === null)) requestAnimationFrame(step)
    }
    step()
  }
  // where the largest canvas is coloured otherwise than in its corner, as near as can be to a place (shares of its width and height)
  wb.spot = (a, b) => {
    const canvas = wb.deep('canvas').filter(one => one.width > 200).sort((p, q) => q.width * q.height - p.width * p.height)[0]
    const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width, context = canvas.getContext('2d')
    const at = (x, y) => { const [r, g, b] = context.getImageData(x, y, 1, 1).data; return r * 65536 + g * 256 + b }
    const card = at(3, 3)
    for (let far = 0; far < 200; far++) for (const [dx, dy] of [[0, 1], [0, -1], [1, 0], [-1, 0]]) {
      const x = Math.round(canvas.width * a) + dx * far, y = Math.round(canvas.height * b) + dy * far
      if (x > 0 && y > 0 && x < canvas.width - 8 && y < canvas.height - 8 && at(x, y) !== card) return [box.x + x / scale, box.y + y / scale]
    }
    return [box.x + box.width * a, box.y + box.height * b]
  }
  document.addEventListener('pointerdown', () => { wb.clicked = performance.now(); wb.told = null }, true)
  wb.after = selector => {
    const before = wb.deep(selector).map(one => one.textContent).join('|')
    const step = () => {
      const now = wb.deep(selector).map(one => one.textContent).join('|')
      if (wb.clicked !== null && now && now !== before) { wb.told = performance.now(); return }
      requestAnimationFrame(step)
    }
    step()
  }
})()
"""


@dataclass
class Visit:
    """
    One look at a page.

    Attributes
    ----------
    text, paint : float or None
        Seconds from the begin of navigation until the words, and until the plot, can be seen.
    clicks : list of float
        Seconds from pressing the button until the detail stands there.
    weight, wire : int
        Bytes of all answers as the page has them, and as they came (compressed), those of the websocket among both.
    problems, outside : list of str
        Errors in the console, and requests to other places.
    """

    text: float | None = None
    paint: float | None = None
    clicks: list[float] = field(default_factory=list)
    weight: int = 0
    wire: int = 0
    problems: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serve(*words: str, seconds: float = 60.0) -> Iterator[str]:
    """Run ``workbench serve`` with these words on a free port and yield its address."""
    command = [sys.executable, "-m", "workbench", "serve", "--port", "0", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert done.stdout is not None
        begun = time.monotonic()
        address = done.stdout.readline().strip()
        if not address.startswith("http") or time.monotonic() - begun > seconds:
            raise RuntimeError(f"the server did not start: {address!r}")
        serve.process = done.pid  # type: ignore[attr-defined]
        yield address.rstrip("/")
    finally:
        done.terminate()
        try:
            done.wait(10)
        except subprocess.TimeoutExpired:
            done.kill()
            done.wait()
        if done.stdout is not None:
            done.stdout.close()


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Yield a Chromium of Debian, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        try:
            yield one
        finally:
            one.close()


def visit(
    one: Any,
    url: str,
    *,
    text: str,
    canvas: bool = True,
    detail: str = "",
    clicks: int = 0,
    size: tuple[int, int] = (1440, 900),
    limit: float = 60.0,
) -> Visit:
    """
    Look at a page in a fresh context, as somebody who never was there.

    Parameters
    ----------
    one : Browser
    text : str
        Selector of the words that are useful.
    canvas : bool
        Whether a plot is waited for.
    detail : str
        Selector of what a click on the plot changes.
    clicks : int
        How many clicks, at different places of the largest canvas.
    """
    context = one.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    found = Visit()
    page.add_init_script(_WATCH)
    page.on("console", lambda message: found.problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    local = ("http://127.0.0.1", "http://localhost", "ws://127.0.0.1", "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(local) else found.outside.append(request.url))
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.dataReceived", lambda event: _add(found, weight=event["dataLength"]))
    network.on("Network.loadingFinished", lambda event: _add(found, wire=int(event["encodedDataLength"])))

    def frame(event: Any) -> None:
        payload = event["response"]["payloadData"]
        length = len(payload) * 3 // 4 if event["response"]["opcode"] == 2 else len(payload)
        _add(found, weight=length, wire=length)

    network.on("Network.webSocketFrameReceived", frame)
    try:
        page.goto(url, wait_until="commit")
        page.evaluate("([text, canvas]) => wbench.look(text, canvas)", [text, canvas])
        page.wait_for_function(
            "canvas => wbench.text !== null && (!canvas || wbench.paint !== null)", arg=canvas, timeout=limit * 1000
        )
        told = page.evaluate("() => [wbench.text, wbench.paint]")
        found.text, found.paint = (None if value is None else value / 1000 for value in told)
        page.wait_for_timeout(800)
        for number in range(clicks):
            x, y = page.evaluate(
                "([a, b]) => wbench.spot(a, b)", [0.2 + 0.6 * ((number * 0.381) % 1), 0.45 + 0.35 * ((number * 0.618) % 1)]
            )
            page.evaluate("selector => { wbench.clicked = wbench.told = null; wbench.after(selector) }", detail)
            page.mouse.click(x, y)
            page.wait_for_function("() => wbench.told !== null", timeout=limit * 1000)
            found.clicks.append(page.evaluate("() => (wbench.told - wbench.clicked) / 1000"))
            page.wait_for_timeout(400)
    finally:
        context.close()
    return found


def _add(found: Visit, *, weight: int = 0, wire: int = 0) -> None:
    found.weight += weight
    found.wire += wire
