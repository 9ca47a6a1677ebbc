"""Turn `workbench mcp` into a server of read-only tools for assistants, on standard input and output."""

from __future__ import annotations

import argparse

from workbench.cli import exits
from workbench.cli.live import add_site, config_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder below which evidence may be read; may be given several times; nothing else is read",
    )
    parser.add_argument("--inbox", metavar="DIR", help="the inbox whose incidents may be read (inbox.folder)")
    parser.add_argument("--seconds", metavar="S", type=float, default=120.0, help="how long one question may take; default 120")
    parser.add_argument("--bytes", metavar="SIZE", default="2GiB", help="how much evidence one question may read; default 2GiB")
    parser.add_argument(
        "--redact", metavar="NAME", action="append", default=[], help="a name that no answer may show; @FILE: one name a line"
    )
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until standard input is closed."""
    from workbench.assistants.roots import Roots
    from workbench.assistants.server import Limits, Site, build
    from workbench.config import size_of
    from workbench.errors import ConfigError
    from workbench.report.redact import names_in

    config = config_of(options)
    try:
        limits = Limits(options.seconds, size_of(options.bytes))
    except ValueError as error:
        raise ConfigError(f"--bytes: {error}") from None
    site = Site(
        roots=Roots(options.root),
        inbox=str(options.inbox or config.get("inbox.folder") or ""),
        names=names_in([*(config["report.redact"] or ()), *options.redact]),
        settings={key: value for key, value in config.section("health").items() if key != "state"},
        limits=limits,
    )
    build(site).run("stdio")
    return exits.OK
