"""Turn every answer of the server into one with security headers, and every request with a foreign host into a refusal."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Collection
from typing import Any

from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import Application, OutputTransform, RequestHandler

from workbench.views.shell import NONCE

__all__ = ["SecurityHeaders", "guard", "policy"]

_FIXED = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",  # JupyterLab shows the dashboard in a frame of the same origin
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


def policy(nonce: str) -> str:
    """
    Return the Content-Security-Policy of a page whose own scripts carry `nonce`.

    ``unsafe-eval`` is there because BokehJS makes functions of the code of CustomJS and templates (`new Function`);
    ``style-src 'unsafe-inline'`` because every widget's shadow root holds its own style element. Scripts of a page run only with its
    nonce, so that a log line that became markup by some mistake would still not run.
    """
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'self'",
        )
    )


class SecurityHeaders(OutputTransform):
    """Adds the headers to whatever a handler answers: pages, files, JSON, errors."""

    def __init__(self, request: HTTPServerRequest) -> None:
        self._nonce = secrets.token_urlsafe(24)[: len(NONCE)]

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Set the headers; the page's placeholder becomes this answer's own nonce, of the same length."""
        for name, value in _FIXED.items():
            headers[name] = value
        headers["Content-Security-Policy"] = policy(self._nonce)
        if "Server" in headers:
            headers["Server"] = "workbench"
        return status_code, headers, self.transform_chunk(chunk, finishing)

    def transform_chunk(self, chunk: bytes, finishing: bool) -> bytes:
        """Put the nonce where the page has the placeholder."""
        return chunk.replace(NONCE.encode(), self._nonce.encode())


class _Refused(RequestHandler):
    """Answers what may not be asked."""

    def initialize(self, status: int, reason: str) -> None:
        self._status, self._sentence = status, reason

    def prepare(self) -> None:
        self.set_status(self._status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self._sentence + "\n")


def guard(application: Application, hosts: Collection[str], prefix: str = "") -> None:
    """
    Let an application answer only requests that name one of `hosts`.

    A page of another site whose name was made to point here (DNS rebinding) names its own host and is refused; Bokeh itself looks at
    the origin of web sockets only. And a request may not import modules: Panel's route for components imports whatever module the
    path names, here only what is loaded already.

    Parameters
    ----------
    application : tornado.web.Application
    hosts : collection of str
        ``host:port`` or ``host``; ``*`` for any.
    prefix : str
        The path below which all is served.
    """
    allowed = {host.lower() for host in hosts}
    bare = {
        host.rpartition(":")[0] if ":" in host else host for host in allowed if host.endswith((":80", ":443")) or ":" not in host
    }
    components = f"{prefix}/components/"
    inner: Callable[..., Any] = application.find_handler

    def find_handler(request: HTTPServerRequest, **more: Any) -> Any:
        host = (request.host or "").lower()
        if "*" not in allowed and host not in allowed and host not in bare and request.host_name.lower() not in bare:
            return application.get_handler_delegate(
                request,
                _Refused,
                {
                    "status": 403,
                    "reason": f"this dashboard is not served as {host[:200]!r}; start it with --allow-origin HOST:PORT",
                },
            )
        if request.path.startswith(components):
            module = request.path[len(components) :].split("/")[0]
            if module not in sys.modules:
                return application.get_handler_delegate(
                    request, _Refused, {"status": 404, "reason": "there is no such component"}
                )
        return inner(request, **more)

    application.find_handler = find_handler  # type: ignore[method-assign]
