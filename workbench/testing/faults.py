"""
Turn a server that works, or a function that answers in its place, into one that fails on demand: refuses, hangs, drips, lies.

Used by the tests of every live source, so that "time-out in the middle" and "login page" mean the same for all of them. Standard library
only; listens on loopback; ends with its ``with`` block, together with every connection that still hangs.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

__all__ = ["FAULTS", "FaultServer", "Reply", "Request", "self_signed"]

FAULTS = (
    "refused",  # nobody listens at the port
    "hang",  # the connection is taken, an answer never comes
    "slow",  # the upstream's answer, one byte at a time
    "cut",  # the upstream's answer, half of it, with the length of the whole
    "reset",  # the connection is reset before an answer
    "401",
    "403",
    "429",  # with Retry-After; `times` says how often before it passes
    "500",
    "503",
    "login-page",  # 302 to an HTML page
    "html",  # 200 text/html where JSON was expected
    "empty",  # 200 with the `empty` body of the test
)

_LOGIN = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body><form action='/login'>Password</form></body></html>\n"
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "proxy-connection", "te", "trailer", "upgrade"}
_ERRORS = {
    "401": (401, "Unauthorized", {"WWW-Authenticate": 'Basic realm="site"'}, b"Unauthorized\n", "text/plain"),
    "403": (403, "Forbidden", {}, b'{"status":"error","errorType":"forbidden","error":"not yours","message":"not yours"}', ""),
    "429": (429, "Too Many Requests", {}, b'{"status":"error","errorType":"too_many_requests","error":"slow down"}', ""),
    "500": (500, "Internal Server Error", {}, b'{"status":"error","errorType":"internal","error":"it broke"}', ""),
    "503": (503, "Service Unavailable", {}, b"upstream connect error or disconnect/reset before headers\n", "text/plain"),
}


class Request(NamedTuple):
    """A request that came in: `path` with its query string, `headers` with lower-case names, `body` as bytes."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """What a canned handler answers; `delay` seconds pass before it is sent."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    delay: float = 0.0


Handler = Callable[[Request], "Reply | bytes"]


def self_signed(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """Write a self-signed certificate for loopback and its key, and return both paths; needs openssl on the path."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *(shutil.which("openssl") or "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


class FaultServer:
    """
    An HTTP/1.1 server on loopback, in front of an upstream or of a canned handler, that fails when told to.

    Parameters
    ----------
    upstream : str or callable
        URL of the real server; requests go there with method, path, headers and body, and its answer comes back as it is. Or a
        function from `Request` to `Reply` (or to the bytes of a JSON body).
    fault : str, optional
        One of `FAULTS`, or None to pass everything on. Can be set at any time; it counts for requests that come from then on.
    tls : bool or (certificate, key)
        Serve https; True makes a self-signed certificate, which no client trusts (`certificate` is its path for one that shall).
    when : callable, optional
        The fault strikes only requests for which this is true, e.g. ``lambda request: "/query_range" in request.path``.
    after : int
        The fault strikes only after so many requests (for which `when` is true) went well.
    times : int, optional
        How many requests the fault strikes before it passes; None means all. ``fault="429", times=2`` passes at the third.
    retry_after : str
        Header of 429 and 503: seconds or an HTTP date.
    empty : bytes
        Body of the fault ``empty``.
    drip : float
        Seconds between two bytes of the fault ``slow``.
    trust : path, optional
        Certificate of the upstream's authority when it speaks https.
    clock_offset : float
        Seconds by which the ``Date`` header of every answer is wrong.

    Attributes
    ----------
    requests : list of Request
        All that came in, in order, struck by a fault or not (a refused one never comes in).
    certificate : path
        Of the server with `tls`; for a client that shall trust it.
    context : ssl.SSLContext
        With `tls`; a test may demand a client certificate of it.

    Examples
    --------
    >>> with FaultServer(lambda request: b'{"ok": true}', fault="429", times=1) as server:  # doctest: +SKIP
    ...     client.get(server.url)  # 429, then 200
    """

    def __init__(
        self,
        upstream: str | Handler,
        *,
        fault: str | None = None,
        tls: bool | tuple[Path, Path] = False,
        when: Callable[[Request], bool] | None = None,
        after: int = 0,
        times: int | None = None,
        retry_after: str = "1",
        empty: bytes = b"{}",
        drip: float = 0.05,
        trust: Path | None = None,
        clock_offset: float = 0.0,
    ) -> None:
        self.upstream = upstream
        self.when, self.after, self.times = when, after, times
        self.retry_after, self.empty, self.drip, self.clock_offset = retry_after, empty, drip, clock_offset
        self.requests: list[Request] = []
        self.certificate: Path | None = None
        self._fault: str | None = None
        self._tls = tls
        self._trust = trust
        self._lock = threading.Lock()
        self._passed = self._struck = 0
        self._ended = threading.Event()
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.context: ssl.SSLContext | None = None
        self._port = 0
        self.fault = fault

    # -- what a test says ---------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Address of the server, without a slash at the end; the port stays the same while it refuses."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    @property
    def fault(self) -> str | None:
        """What is wrong at the moment; setting it starts the counts of `after` and `times` anew."""
        return self._fault

    @fault.setter
    def fault(self, fault: str | None) -> None:
        if fault is not None and fault not in FAULTS:
            raise ValueError(f"{fault!r} is none of {', '.join(FAULTS)}")
        with self._lock:
            before, self._fault = self._fault, fault
            self._passed = self._struck = 0
        if self._port and fault == "refused":
            self._close_listener()
        elif self._port and before == "refused":
            self._listen()

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> FaultServer:
        if self._tls:
            pair = self._tls
            if pair is True:
                self._folder = tempfile.TemporaryDirectory(prefix="fault-server-")
                pair = self_signed(Path(self._folder.name))
            assert not isinstance(pair, bool)
            self.certificate = pair[0]
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*pair)
        self._listen()
        if self._fault == "refused":
            self._close_listener()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._close_listener()
        with self._lock:
            open_now = list(self._connections)
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(5)
        if self._folder:
            self._folder.cleanup()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(64)
        self._port = listener.getsockname()[1]
        self._listener = listener
        self._start(self._accept, listener)

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            listener.close()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        with self._lock:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    # -- one connection -----------------------------------------------------------------------------------------------

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        with self._lock:
            self._connections.add(connection)
        try:
            if self.context is not None:
                plain, connection = connection, self.context.wrap_socket(connection, server_side=True)
                with self._lock:
                    self._connections.discard(plain)
                    self._connections.add(connection)
            with connection.makefile("rb") as stream:
                while not self._ended.is_set() and (request := _read(stream)) is not None:
                    with self._lock:
                        self.requests.append(request)
                    if not self._answer(connection, request):
                        break
        except (OSError, ValueError, http.client.HTTPException):
            pass  # the client went, or did not trust our certificate
        finally:
            with self._lock:
                self._connections.discard(connection)
            with contextlib.suppress(OSError):
                connection.close()

    def _strikes(self, request: Request) -> str | None:
        with self._lock:
            fault = self._fault
            if fault is None or fault == "refused" or (self.when and not self.when(request)):
                return None
            if self._passed < self.after:
                self._passed += 1
                return None
            if self.times is not None and self._struck >= self.times:
                return None
            self._struck += 1
            return fault

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer one request; return whether the connection can be used again."""
        fault = self._strikes(request)
        if request.path.startswith("/fault-server/login"):
            return self._send(connection, request, 200, {"Content-Type": "text/html; charset=utf-8"}, _LOGIN)
        if fault == "hang":
            self._ended.wait()
            return False
        if fault == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if fault in _ERRORS:
            status, _, more, body, kind = _ERRORS[fault]
            headers = {"Content-Type": kind or "application/json", **more}
            if fault in ("429", "503"):
                headers["Retry-After"] = self.retry_after
            return self._send(connection, request, status, headers, body)
        if fault == "login-page":
            return self._send(connection, request, 302, {"Location": f"{self.url}/fault-server/login"}, b"")
        if fault == "html":
            return self._send(connection, request, 200, {"Content-Type": "text/html; charset=utf-8"}, _LOGIN)
        if fault == "empty":
            return self._send(connection, request, 200, {"Content-Type": "application/json"}, self.empty)
        status, headers, body = self._pass_on(request)
        if fault == "cut":
            self._send(connection, request, status, headers, body, part=max(len(body) // 2, 1))
            return False
        if fault == "slow":
            self._send(connection, request, status, headers, body, part=0)
            for at in range(len(body)):
                connection.sendall(body[at : at + 1])
                if self._ended.wait(self.drip):
                    return False
            return True
        return self._send(connection, request, status, headers, body)

    def _send(
        self,
        connection: socket.socket,
        request: Request,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        part: int | None = None,
    ) -> bool:
        """Send an answer with the length of the whole body, and of it the first `part` bytes."""
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, 'Unknown')}"]
        if not any(name.lower() == "date" for name in headers) or self.clock_offset:
            headers = {name: value for name, value in headers.items() if name.lower() != "date"}
            stamp = time.gmtime(time.time() + self.clock_offset)
            lines.append(f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', stamp)}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not any(name.lower() == "content-length" for name in headers):
            lines.append(f"Content-Length: {len(body)}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        connection.sendall(head + (b"" if request.method == "HEAD" else body if part is None else body[:part]))
        return part is None

    def _pass_on(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the upstream's (or the canned) answer."""
        if callable(self.upstream):
            reply = self.upstream(request)
            reply = Reply(reply) if isinstance(reply, bytes) else reply
            if reply.delay:
                self._ended.wait(reply.delay)
            return reply.status, dict(reply.headers), reply.body
        parts = urlsplit(self.upstream)
        assert parts.hostname is not None
        client: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=str(self._trust) if self._trust else None)
            client = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=60, context=context)
        else:
            client = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        try:
            client.request(request.method, parts.path.rstrip("/") + request.path, request.body or None, headers)
            answer = client.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 502, {"Content-Type": "text/plain"}, f"the upstream did not answer: {error}\n".encode()
        finally:
            client.close()
        # a HEAD answer keeps its length, everything else gets the length of what we send
        keep = {"content-length"} if request.method == "HEAD" else set()
        return answer.status, {k: v for k, v in answer.getheaders() if k.lower() not in _HOP - keep}, body


def _read(stream: Any) -> Request | None:
    """Read one request; None when the client closed the connection."""
    first = stream.readline(65537)
    if not first.strip():
        return None
    method, path, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := stream.readline(65537)).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", ""):
        body = b""
        while size := int(stream.readline(100).split(b";")[0], 16):
            body += stream.read(size)
            stream.readline(10)
        stream.readline(10)
    else:
        body = stream.read(int(headers.get("content-length") or 0))
    return Request(method, path, body, headers)
