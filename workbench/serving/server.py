"""Turn a site and where to listen into a running Panel server: pages, routes, login, headers, origins."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.serving import prefetch
from workbench.serving.handlers import routes
from workbench.serving.headers import SecurityHeaders, guard
from workbench.serving.pages import pages
from workbench.serving.roles import NOBODY
from workbench.serving.site import Site, use
from workbench.serving.squeezed import Squeezed
from workbench.views import shell

__all__ = ["Listen", "address_of", "make_server"]

# seconds: a slow browser on a slow network must have the scripts and be at the websocket by then, or its page is made a second time
UNUSED = 45
LOGIN = Path(shell.__file__).parent / "static" / "login.html.j2"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where and for whom the server listens."""

    port: int = 5010
    address: str = "127.0.0.1"
    prefix: str = ""
    origins: tuple[str, ...] = ()  # host:port as people's browsers name it; "*" for any
    unix_socket: str = ""
    xheaders: bool = False
    token: str = field(default="", repr=False)  # of /api/alerts
    basic_auth: str = ""
    oauth: str = ""
    cookie_secret: str = field(default="", repr=False)

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return bool(self.unix_socket) or self.address in ("127.0.0.1", "::1", "localhost")

    @property
    def login(self) -> bool:
        """Whether users log in."""
        return bool(self.basic_auth or self.oauth)


def make_server(site: Site, listen: Listen) -> Any:
    """
    Return a server that listens already; its loop is to be started by the caller.

    Parameters
    ----------
    site : Site
    listen : Listen
    """
    import panel as pn
    from panel.util import edit_readonly
    from tornado.ioloop import IOLoop

    use(site)
    prefetch.install()
    pn.config.reconnect = True
    pn.config.notifications = False
    # what runs as a server must not depend on a CDN, whatever the environment says
    os.environ["BOKEH_RESOURCES"] = "server"
    prefix = "/" + listen.prefix.strip("/") if listen.prefix.strip("/") else ""
    more: dict[str, Any] = {}
    if listen.unix_socket:
        more["unix_socket"] = listen.unix_socket
        hosts = {"*"}
        port = 0
    else:
        more["address"] = listen.address or None
        port = listen.port or _free(listen.address)
        hosts = set(listen.origins) | {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        if listen.address not in ("", "0.0.0.0", "::", "::1"):
            hosts.add(f"{listen.address}:{port}")
    page = str(LOGIN)
    if listen.login:
        more["cookie_secret"] = listen.cookie_secret or secrets.token_hex(32)
    if listen.basic_auth:
        from workbench.serving.login import FileLogin

        more["auth_provider"] = FileLogin(listen.basic_auth, login_template=page, logout_template=page, error_template=page)
    elif listen.oauth:
        from workbench.serving.login import offer_oauth

        offer_oauth(listen.oauth)
        more["oauth_provider"] = listen.oauth  # key, secret and the rest: Panel's own variables, PANEL_OAUTH_*
        more["oauth_error_template"] = more["logout_template"] = page
    if listen.login:
        more["cookie_path"] = prefix or "/"
        pn.config.auth_template = page
        pn.config.authorize_callback = lambda _: site.roles.role_of(pn.state.user) != NOBODY
    with edit_readonly(pn.state):
        pn.state.base_url = f"{prefix}/"  # where a login leads back to
    behind = _Lag()
    found = pages()
    shell.offer(found)
    server = pn.io.server.get_server(
        found,
        port=port,
        websocket_origin=sorted(host for host in hosts if not host.startswith("[")),
        prefix=prefix,
        title=None,
        show=False,
        start=False,
        extra_patterns=routes(site, token=listen.token, open_alerts=listen.local and not listen.login, lag=behind.seconds),
        transforms=[SecurityHeaders, Squeezed],
        use_xheaders=listen.xheaders,
        use_index=False,
        check_unused_sessions_milliseconds=5000,
        unused_session_lifetime_milliseconds=UNUSED * 1000,
        http_server_kwargs={"max_body_size": 4 << 20, "max_header_size": 64 << 10},
        **more,
    )
    guard(server._tornado, hosts, prefix)
    behind.start()
    IOLoop.current().asyncio_loop.set_exception_handler(_untold)  # type: ignore[attr-defined]
    return server


def _untold(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell of what went wrong in the loop, but not of a browser that left while something was on its way to it: they all do."""
    from tornado.iostream import StreamClosedError
    from tornado.websocket import WebSocketClosedError

    if not isinstance(context.get("exception"), StreamClosedError | WebSocketClosedError):
        loop.default_exception_handler(context)


def _free(address: str) -> int:
    """Return a port that is free now: which one it is must be known before the server is made, for the origins."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def address_of(server: Any, listen: Listen) -> str:
    """Return where a server is found, as a person types it."""
    if listen.unix_socket:
        return f"unix:{listen.unix_socket}{server.prefix}/"
    host = "127.0.0.1" if listen.address in ("", "0.0.0.0") else "[::1]" if listen.address == "::" else listen.address
    return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{server.port}{server.prefix}/"


class _Lag:
    """By how much the event loop runs behind: what a session would feel as a page that does not answer."""

    STEP = 0.5

    def __init__(self) -> None:
        self._due = 0.0
        self._worst: deque[tuple[float, float]] = deque(maxlen=120)

    def start(self) -> None:
        """Begin to look, in the loop of the calling thread."""
        from tornado.ioloop import IOLoop

        self._loop = IOLoop.current()
        self._next()

    def _next(self) -> None:
        now = time.monotonic()
        if self._due:
            self._worst.append((now, max(0.0, now - self._due)))
        self._due = now + self.STEP
        self._loop.call_later(self.STEP, self._next)

    def seconds(self) -> float | None:
        """Return the worst of the last minute."""
        return max((late for _, late in self._worst), default=None)
