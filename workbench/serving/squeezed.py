"""Turn answers into compressed ones; a file of the server, such as BokehJS, is compressed once a process and not once a visit."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import ClassVar

from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import GZipContentEncoding

__all__ = ["MOST", "Squeezed"]

MOST = 16 << 20  # bytes kept, compressed; the scripts of all pages are 1 MB
# of a file: the hash of its content, as Tornado's handler of files gives it
_HASH = re.compile(r'"[0-9a-f]{64,}"')


class Squeezed(GZipContentEncoding):
    """
    Compresses what a browser takes compressed, and keeps what it made of files.

    A fresh browser loads 3.5 MB of scripts; to compress them takes 0.15 s of the one thread that serves all sessions, just when that
    visitor waits for the page.
    """

    _kept: ClassVar[OrderedDict[tuple[str, str], bytes]] = OrderedDict()  # of the process: a transform lives for one answer

    def __init__(self, request: HTTPServerRequest) -> None:
        super().__init__(request)
        self._path, self._key = request.path, ("", "")
        self._made: list[bytes] = []
        self._sent = False

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Begin an answer; all of it, when it was compressed before."""
        etag = headers.get("Etag", "")
        asked = self._gzipping
        # a file comes in pieces, and only of a whole one (200) is the hash that of the answer
        if status_code == 200 and not finishing and _HASH.fullmatch(etag) and "Content-Encoding" not in headers:
            self._key = self._path, etag
            kept = self._kept.get(self._key) if asked else None
            if kept is not None:
                self._kept.move_to_end(self._key)
                self._gzipping, self._sent = False, True
                status_code, headers, _ = super().transform_first_chunk(status_code, headers, b"", finishing)
                headers["Content-Encoding"], headers["Content-Length"] = "gzip", str(len(kept))
                return status_code, headers, kept
        return super().transform_first_chunk(status_code, headers, chunk, finishing)

    def transform_chunk(self, chunk: bytes, finishing: bool) -> bytes:
        """Go on with an answer."""
        if self._sent:
            return b""
        made = super().transform_chunk(chunk, finishing)
        if self._gzipping and self._key[1]:
            self._made.append(made)
            if finishing:
                self._keep(b"".join(self._made))
        return made

    def _keep(self, made: bytes) -> None:
        self._kept[self._key] = made
        while sum(map(len, self._kept.values())) > MOST:
            self._kept.popitem(last=False)
