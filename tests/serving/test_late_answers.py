"""Turn browsers that are slow into whether their page has everything in the end: what was read meanwhile, and its own style sheets."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("panel")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.soak import close_page, open_page
from tests.serving.served import Served

ROOT = Path(__file__).resolve().parents[2]
# the dashboard as it is, but for an account that is not read before a file is there, and a sign that it has been read
SERVER = """
import sys, time, warnings
from pathlib import Path
from typing import Any
from workbench.cli import main
from workbench.serving.books import Books

go, read = Path(sys.argv[1]), Books.sheet

def slow(self, wish):
    while not go.exists():
        time.sleep(0.05)
    try:
        return read(self, wish)
    finally:
        go.with_name("read").touch()

Books.sheet = slow
sys.exit(main(["serve", "--demo", "--port", "0"]))
"""

PAGE = {"headers": {}, "cookies": {}, "arguments": {}}  # what a token tells of the request


async def _hear(socket: Any, texts: list[str], seconds: float, *words: str) -> str:
    """Return what is told from now on, until one of the words is in it or the time is over; `texts` keeps all that was ever told."""
    begin, until = len(texts), time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not any(word in text for text in texts[begin:] for word in words):
        try:
            message = await asyncio.wait_for(socket.read_message(), left)
        except TimeoutError:
            break
        if message is None:
            break
        texts.append(message if isinstance(message, str) else "")
    return "\n".join(texts[begin:])


async def _visit(address: str, go: Path) -> tuple[str, str]:
    """Pull the account's page, let the account be read before the page says that it is drawn; return what came before and after that."""
    socket, drawn = await open_page(address, "/account")
    texts: list[str] = []

    try:
        document = await _hear(socket, texts, 60, '{"doc"')
        go.touch()
        until = time.monotonic() + 60
        while not go.with_name("read").exists():
            assert time.monotonic() < until, "nobody read the account"
            await asyncio.sleep(0.05)
        early = document + await _hear(socket, texts, 2, "nothing has this")
        await drawn()
        return early, await _hear(socket, texts, 60, "job-start success")
    finally:
        await close_page(socket)


@pytest.mark.live
def test_what_was_read_while_the_browser_drew_the_page_is_shown_when_it_has_drawn(tmp_path: Path) -> None:
    """Panel drops what changes between the pull of a page and the word of the browser that it has drawn it."""
    go = tmp_path / "go"
    command = [sys.executable, "-W", "ignore", "-u", "-c", SERVER, str(go)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip().rstrip("/")
        with ThreadPoolExecutor(1) as aside:  # a browser's test may have left a loop in this thread
            early, late = aside.submit(lambda: asyncio.run(_visit(address, go))).result()
    finally:
        server.terminate()
        server.wait(30)
        if server.stdout is not None:
            server.stdout.close()

    assert "Simulating a small fleet" in early
    assert "job-start success" not in early
    assert "job-start success" in late


async def _came_back(address: str) -> str:
    """Return the document that a page gets whose session the server does not know any more."""
    from bokeh.util.token import generate_jwt_token, generate_session_id

    socket, _ = await open_page(address, "/fleet", token=generate_jwt_token(generate_session_id(), extra_payload=PAGE))
    try:
        while not (message := await asyncio.wait_for(socket.read_message(), 60)).startswith('{"doc"'):
            pass
        return str(message)
    finally:
        await close_page(socket)


@pytest.mark.live
def test_a_page_whose_session_had_ended_gets_its_style_sheets_from_this_server() -> None:
    """A laptop that slept, or a browser that took longer for the scripts than an unused session lives."""
    with Served(("--demo", "--gpus", "128")) as served, ThreadPoolExecutor(1) as aside:
        document = aside.submit(lambda: asyncio.run(_came_back(served.url))).result()

    assert "static/extensions/panel/css" in document
    assert "://cdn." not in document


async def _ranks(address: str) -> tuple[str, list[str]]:
    """Return what a page of ranks brings with it, and what each time that its browser has nothing to do."""
    socket, drawn = await open_page(address, "/incident?id=gpu-memory&tab=ranks")
    texts: list[str] = []
    try:
        document = await _hear(socket, texts, 60, '{"doc"')
        await drawn()
        idle = re.search(r'"name":"Unhurried\d+","id":"(p\d+)"', document)
        assert idle is not None
        wanted = re.compile(rf'"model":{{"id":"{idle[1]}"}},"attr":"wanted","new":(\d+)')
        pieces, number = [], "1"
        while number != "0":
            change = {"kind": "ModelChanged", "model": {"id": idle[1]}, "attr": "asked", "new": int(number)}
            await socket.write_message('{"msgid":"3","msgtype":"PATCH-DOC"}')
            await socket.write_message("{}")
            await socket.write_message(json.dumps({"events": [change]}))
            pieces.append(await _hear(socket, texts, 60, '"attr":"wanted"'))
            found = wanted.findall(pieces[-1])
            assert found, "the browser is told that there is more, or that there is none"
            number = found[-1]
        return document, pieces
    finally:
        await close_page(socket)


@pytest.mark.live
def test_the_map_of_ranks_is_sent_alone_and_the_rest_piece_by_piece_to_a_browser_that_is_idle() -> None:
    """Nine figures, a table and a log would hold up what is waited for: the map at first, then the answer to a click."""
    with Served(("--demo",)) as served, ThreadPoolExecutor(1) as aside:
        served.filled(1)
        while served.ask("/api/verdict?id=gpu-memory").status != 200:
            time.sleep(0.2)
        first, pieces = aside.submit(lambda: asyncio.run(_ranks(served.url))).result()

    heavy = ("stopped by", "Temperature", "Copy lines", "Copy the query of")
    assert "What each rank did" in first
    assert [word for word in heavy if word in first] == []
    where = [next(number for number, piece in enumerate(pieces) if word in piece) for word in heavy]
    assert len(set(where)) > 2, "each comes by itself"
    assert max(piece.count('"name":"Figure"') for piece in pieces) == 1
