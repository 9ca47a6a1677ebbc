"""Turn files that are asked for again and again, compressed, in parts and not at all, into the same bytes each time."""

from __future__ import annotations

import asyncio
import gzip
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("panel")

from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, StaticFileHandler

from workbench.serving.squeezed import Squeezed

SCRIPT = "".join(f"let a{number} = {number * 7919 % 10007};\n" for number in range(20_000)).encode()


def answers(folder: Path, *asked: tuple[str, dict[str, str]]) -> list[Any]:
    """Serve a folder and ask for one after the other (method, headers); bodies are as they came."""

    async def ask() -> list[Any]:
        server = HTTPServer(Application([(r"/(.*)", StaticFileHandler, {"path": str(folder)})], transforms=[Squeezed]))
        socket, port = bind_unused_port()
        server.add_socket(socket)
        client = AsyncHTTPClient(force_instance=True)
        found = []
        for method, headers in asked:
            url = f"http://127.0.0.1:{port}/a.js"
            found.append(await client.fetch(url, method=method, headers=headers, decompress_response=False, raise_error=False))
        client.close()
        server.stop()
        await server.close_all_connections()
        return found

    with ThreadPoolExecutor(1) as aside:
        return aside.submit(lambda: asyncio.run(ask())).result()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Squeezed._kept.clear()
    (tmp_path / "a.js").write_bytes(SCRIPT)
    return tmp_path


def test_a_file_is_compressed_once_and_is_the_same_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how long it is."""
    zipped = ("GET", {"Accept-Encoding": "gzip"})
    first, second, head, plain = answers(folder, zipped, zipped, ("HEAD", zipped[1]), ("GET", {}))

    assert gzip.decompress(first.body) == gzip.decompress(second.body) == plain.body == SCRIPT
    assert second.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert int(second.headers["Content-Length"]) == len(second.body) < len(SCRIPT) / 2
    assert head.code == 200
    assert all(one.headers["Vary"] == "Accept-Encoding" for one in (first, second, plain))

    def never(*_: Any) -> None:
        raise AssertionError("it was compressed again")

    monkeypatch.setattr(gzip, "GzipFile", never)
    assert gzip.decompress(answers(folder, zipped)[0].body) == SCRIPT


def test_another_content_is_another_file_and_a_part_is_a_part(folder: Path) -> None:
    """What is kept is known by its content."""
    zipped = {"Accept-Encoding": "gzip"}
    answers(folder, ("GET", zipped), ("GET", zipped))
    (part,) = answers(folder, ("GET", {**zipped, "Range": "bytes=0-4095"}))
    assert part.code == 206
    body = gzip.decompress(part.body) if part.headers.get("Content-Encoding") == "gzip" else part.body
    assert body == SCRIPT[:4096]

    StaticFileHandler.reset()
    (folder / "a.js").write_bytes(SCRIPT[::-1])
    (other,) = answers(folder, ("GET", zipped))
    assert gzip.decompress(other.body) == SCRIPT[::-1]


def test_what_is_kept_has_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes."""
    monkeypatch.setattr("workbench.serving.squeezed.MOST", 10)
    answers(folder, ("GET", {"Accept-Encoding": "gzip"}))
    assert not Squeezed._kept
