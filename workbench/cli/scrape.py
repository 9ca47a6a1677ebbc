"""Turn functions that tell how a long-running command goes into /metrics, /healthz and /readyz, or into a file for the node exporter."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from workbench.cli.remedy import Usage

__all__ = ["serve", "write_textfile"]


def serve(address: str, metrics: Callable[[], str], ready: Callable[[], bool], why_not: str) -> ThreadingHTTPServer:
    """
    Serve at ``host:port`` in a thread and return the server, for `shutdown`.

    Parameters
    ----------
    address : str
        ``127.0.0.1:9812``.
    metrics : callable
        Returns Prometheus's text format.
    ready : callable
        Tells whether it does what it is there for.
    why_not : str
        What ``/readyz`` says when it does not.

    Raises
    ------
    Usage
        It is no address, or cannot be had.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise Usage(f"--listen {address!r} is no address", hint="--listen 127.0.0.1:9812")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = 404, "there are /metrics, /healthz and /readyz\n"
            if self.path == "/metrics":
                code, text = 200, metrics()
            elif self.path == "/healthz":
                code, text = 200, "alive\n"
            elif self.path == "/readyz":
                code, text = (200, "ready\n") if ready() else (503, why_not + "\n")
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Handler)
    except (OSError, OverflowError) as error:
        raise Usage(f"--listen {address}: {getattr(error, 'strerror', None) or error}") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def write_textfile(path: Path, text: str) -> None:
    """Write metrics where node_exporter's textfile collector reads them, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
