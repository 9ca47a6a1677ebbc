"""Turn a served dashboard into one behind a reverse proxy with TLS, as docs/dashboard.md wants it: path unchanged, Host, web sockets."""

from __future__ import annotations

import re
import select
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType

__all__ = ["Proxy"]


def certificate(folder: Path) -> Path:
    """Return a file with a key and a certificate for 127.0.0.1, made by openssl."""
    file = folder / "proxy.pem"
    if not file.exists():
        key = folder / "key.pem"
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(folder / "cert.pem")]
        subprocess.run(words, check=True, capture_output=True, timeout=120)
        file.write_text(key.read_text() + (folder / "cert.pem").read_text())
    return file


class Proxy:
    """
    A proxy on `port` that passes all to 127.0.0.1:`upstream`, whatever it was when a request comes; other paths than `prefix` are its own.

    It ends each connection after one answer, so that each request is one whose head it has seen; a web socket stays.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.prefix, self.upstream = prefix, 0
        self.seen: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(folder))
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._socket.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"https://{self.host}{prefix}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._socket.close()
        self._thread.join(10)

    def _accept(self) -> None:
        self._socket.settimeout(0.2)
        while not self._over.is_set():
            try:
                wire, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            plain.settimeout(120)
            with self._context.wrap_socket(plain, server_side=True) as wire:
                head = b""
                while b"\r\n\r\n" not in head:
                    more = wire.recv(65536)
                    if not more:
                        return
                    head += more
                head, _, body = head.partition(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode("latin-1")
                self.seen.append(path)
                if not path.startswith(self.prefix + "/"):
                    wire.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    return
                if not re.search(rb"\r\nupgrade: *websocket", head, re.I):
                    head = re.sub(rb"\r\nconnection:[^\r]*", b"", head, flags=re.I) + b"\r\nConnection: close"
                head = re.sub(rb"\r\nx-forwarded-[a-z]+:[^\r]*", b"", head, flags=re.I)
                head += b"\r\nX-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\n\r\n"
                with socket.create_connection(("127.0.0.1", self.upstream), timeout=120) as behind:
                    behind.sendall(head + body)
                    self._pass(wire, behind)
        except OSError:
            return  # a browser that goes away

    def _pass(self, wire: ssl.SSLSocket, behind: socket.socket) -> None:
        """Pass bytes both ways until one end is closed; in one thread, since one of OpenSSL's connections bears no two."""
        while not self._over.is_set():
            ready = [wire] if wire.pending() else select.select([wire, behind], [], [], 0.5)[0]
            for source, target in ((wire, behind), (behind, wire)):
                if source in ready:
                    data = source.recv(65536)
                    if not data:
                        return
                    target.sendall(data)
