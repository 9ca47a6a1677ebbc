"""Turn `workbench serve` into the dashboard, until it is told to stop."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.entry import complain
from workbench.errors import ConfigError, SourceUnavailable

if TYPE_CHECKING:
    from workbench.serving.server import Listen
    from workbench.serving.site import Site

__all__ = ["add_arguments", "run"]

PORT = 5010


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--demo", action="store_true", help="the incidents that ship with the package, and a fleet that is played")
    shown.add_argument(
        "--gpus", metavar="N", type=int, default=1024, help="of the fleet that --demo plays, 128 to 16384 (default 1024)"
    )
    shown.add_argument(
        "--inbox",
        metavar="DIR",
        type=Path,
        help="the inbox that `workbench watch` and `workbench inbox` fill; default: inbox.folder",
    )
    shown.add_argument(
        "--live", action="store_true", help="ask the site's servers for fleet and nodes, as `workbench doctor` does"
    )
    shown.add_argument(
        "--root",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="incident?path= may open evidence below; may be repeated",
    )
    shown.add_argument("--config", metavar="FILE", help="default: ./workbench.toml, then ~/.config/workbench/workbench.toml")
    shown.add_argument("--profile", metavar="NAME", help="one of the file's [profiles.NAME]")
    shown.add_argument("--deadline", metavar="TIME", help="how long one source may take (default 30s)")
    shown.add_argument("--every", metavar="TIME", default="30s", help="how often the site is asked (default 30s)")
    where = parser.add_argument_group("where it listens")
    where.add_argument("--port", metavar="N", type=int, default=PORT, help=f"0 for any that is free (default {PORT})")
    where.add_argument("--address", metavar="IP", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    where.add_argument("--unix-socket", metavar="PATH", help="listen there instead: no other user of the machine can connect")
    where.add_argument("--prefix", metavar="PATH", default="", help="serve below this path, as a proxy passes it on")
    where.add_argument(
        "--allow-origin",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="a name that browsers use for it, such as gpu.example.org:443; may be repeated",
    )
    where.add_argument(
        "--behind-proxy", action="store_true", help="believe X-Forwarded-For and -Proto: only behind a proxy that sets them"
    )
    who = parser.add_argument_group("who may do what")
    who.add_argument("--basic-auth", metavar="FILE", type=Path, help='users and passwords: {"maria": "secret"}')
    who.add_argument(
        "--oauth", metavar="PROVIDER", help="a provider of Panel (github, okta, azure, generic …); key and secret: PANEL_OAUTH_*"
    )
    who.add_argument("--cookie-secret", metavar="FILE", type=Path, help="key of the login cookies: logins outlive a restart")
    who.add_argument("--roles", metavar="FILE", type=Path, help='roles: {"maria": "approver", "*": "reader"}')
    who.add_argument(
        "--allow-approve", action="store_true", help="approvers may approve, reject and undo; without it all is read-only"
    )
    who.add_argument(
        "--alerts-token", metavar="FILE", type=Path, help="what who posts to /api/alerts must show as a bearer token"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    missing = [name for name in ("panel", "bokeh", "hvplot") if importlib.util.find_spec(name) is None]
    if missing:
        complain(
            f"the dashboard needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install 'gpu-reliability-workbench[ui]'",
        )
        return exits.UNAVAILABLE
    listen = _listen(options)
    site = _site(options, listen)
    try:
        return _serve(site, listen)
    finally:
        site.close()


def _serve(site: Site, listen: Listen) -> int:
    from workbench.serving.server import address_of, make_server

    try:
        server = make_server(site, listen)
    except OSError as error:
        place = listen.unix_socket or f"{listen.address}:{listen.port}"
        raise SourceUnavailable(
            f"cannot listen on {place}: {error.strerror or error}",
            hint="another program has it: give --port, or 0 for any that is free",
        ) from None
    loop = server.io_loop

    def stop(*_: Any) -> None:
        loop.add_callback_from_signal(loop.stop)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.start()
        sys.stdout.write(f"{address_of(server, listen)}\n")
        sys.stdout.flush()
        if not listen.local and not listen.login:
            complain(
                "everybody who reaches this address sees all incidents, logs included",
                hint="--basic-auth FILE or --oauth PROVIDER gives it a login",
            )
        loop.start()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        server.stop(wait=False)
    return exits.OK


def _listen(options: argparse.Namespace) -> Listen:
    from workbench.serving.server import Listen

    if options.basic_auth and options.oauth:
        raise ConfigError("--basic-auth and --oauth exclude each other")
    if options.roles and not (options.basic_auth or options.oauth):
        raise ConfigError("--roles needs users to give roles to", hint="add --basic-auth FILE or --oauth PROVIDER")
    if options.unix_socket and options.port != PORT:
        raise ConfigError("--unix-socket and --port exclude each other")
    if options.basic_auth:
        _secret(options.basic_auth, "--basic-auth")
    return Listen(
        port=options.port,
        address=options.address,
        prefix=options.prefix,
        origins=tuple(options.allow_origin),
        unix_socket=options.unix_socket or "",
        xheaders=options.behind_proxy,
        token=_secret(options.alerts_token, "--alerts-token") if options.alerts_token else "",
        basic_auth=str(options.basic_auth) if options.basic_auth else "",
        oauth=options.oauth or "",
        cookie_secret=_secret(options.cookie_secret, "--cookie-secret")
        if options.cookie_secret
        else os.environ.get("PANEL_COOKIE_SECRET", ""),
    )


def _site(options: argparse.Namespace, listen: Listen) -> Site:
    from workbench.cli.live import config_of
    from workbench.config import time_span
    from workbench.serving.roles import Roles
    from workbench.serving.start import make_site

    for root in options.root:
        if not root.is_dir():
            raise SourceUnavailable(f"--root {root}: there is no such folder")
    try:
        period = time_span(options.every)
    except ValueError as error:
        raise ConfigError(f"--every {options.every}: {error}") from None
    if not 128 <= options.gpus <= 16384:
        raise ConfigError(f"--gpus {options.gpus}: a played fleet has 128 to 16384 GPUs")
    config = config_of(options)
    inbox = options.inbox
    if inbox is None and not options.demo:
        inbox = Path(config["inbox.folder"])
        if not inbox.is_dir() and config.origin("inbox.folder") == "default" and not (options.live or options.root):
            raise SourceUnavailable(
                f"there is nothing to show: {inbox}, where the inbox is by default, is not there",
                hint="workbench serve --demo shows shipped incidents; `workbench watch` fills an inbox; --live shows the fleet",
            )
    return make_site(
        inbox=inbox,
        demo=options.demo,
        roots=tuple(options.root),
        roles=Roles.read(options.roles, allow_approve=options.allow_approve, login=listen.login),
        config=config,
        period=period,
        gpus=options.gpus,
        live=options.live,
    )


def _secret(path: Path, option: str) -> str:
    """Return a secret from a file; one that others may read is told, and used."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            complain(f"{option} {path}: others may read it", hint=f"chmod 600 {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from None
    if not text:
        raise ConfigError(f"{option} {path} is empty", hint="an empty secret would let everybody in")
    return text
