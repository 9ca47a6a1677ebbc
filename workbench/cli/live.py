"""Turn the options that commands on a running site share into a configuration and a scope."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.config import Config
    from workbench.sources.contract import Scope

__all__ = ["add_scope", "add_site", "config_of", "moment", "scope_of"]


def add_site(parser: argparse._ActionsContainer) -> None:
    """Declare the options that say which site."""
    parser.add_argument("--config", metavar="FILE", help="default: ./workbench.toml, then ~/.config/workbench/workbench.toml")
    parser.add_argument("--profile", metavar="NAME", help="one of the file's [profiles.NAME]")
    parser.add_argument("--deadline", metavar="TIME", help="how long one source may take (default 30s)")


def add_scope(parser: argparse._ActionsContainer, *, required: bool) -> None:
    """Declare the options that say which job and when."""
    parser.add_argument("--job", metavar="NAME", required=required, help="the job's name (with Slurm also its number)")
    parser.add_argument("--namespace", metavar="NAME", help="its Kubernetes namespace; default: all that may be read")
    parser.add_argument("--attempt", metavar="N", type=int, help="one start of the job; default: all in the window")
    parser.add_argument("--since", metavar="TIME", help="begin of the window: 6h ago as 6h, or 2026-05-04T10:00Z (default 6h)")
    parser.add_argument("--until", metavar="TIME", help="its end, in the same forms; default: now")


def config_of(options: argparse.Namespace, **flags: str | None) -> Config:
    """Return the configuration that the options name; `flags` are a command's own, by key with ``_`` for the dot."""
    from workbench.config import load_config

    return load_config(
        options.config,
        profile=options.profile,
        flags={"deadline": options.deadline} | {key.replace("_", ".", 1): one for key, one in flags.items()},
    )


def moment(text: str | None, now: float) -> float | None:
    """
    Return the seconds since the epoch that ``6h`` (ago) or ``2026-05-04T10:00Z`` means, None for None.

    A date without a zone is UTC, as everywhere here.
    """
    if text is None:
        return None
    from workbench.config import moment_of

    try:
        return moment_of(text, now)
    except ValueError as error:
        raise _Usage(str(error), hint="write 6h (ago), 2026-05-04 or 2026-05-04T10:00:00Z") from None


class _Usage(WorkbenchError):
    exit_code = 64


def scope_of(options: argparse.Namespace, config: Config) -> Scope:
    """Return the scope that the options name."""
    from workbench.live import scope_for

    now = time.time()
    since, until = moment(options.since, now), moment(options.until, now)
    if since is not None and since >= (now if until is None else until):
        raise _Usage(
            "the window is empty: --since is not before --until", hint="give --since 2h, or --since and --until as dates"
        )
    return scope_for(options.job, config, since=since, until=until, namespace=options.namespace, attempt=options.attempt)
