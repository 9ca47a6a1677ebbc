"""Turn `workbench watch` into looks at Kubernetes and Slurm, entries of the inbox, and messages to people, until it is told to stop."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits
from workbench.cli.entry import complain
from workbench.cli.live import add_site, config_of
from workbench.cli.remedy import Usage
from workbench.cli.stopping import stopping
from workbench.errors import ConfigError

if TYPE_CHECKING:
    from workbench.config import Config
    from workbench.inbox.notify import Way
    from workbench.inbox.store import Inbox
    from workbench.inbox.watch import Follower, Round, Watch

__all__ = ["add_arguments", "run"]

_LEAST = 5.0  # seconds between two looks: a large cluster takes some to list
_HOUR = 3600.0  # seconds between two times of forgetting what is old


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--once", action="store_true", help="one look; ends when all that is due is collected and told")
    how.add_argument("--every", metavar="TIME", help="a look each 30s, until SIGTERM")
    parser.add_argument("--inbox", metavar="DIR", type=Path, help="default: inbox.folder")
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        action="append",
        default=[],
        help="of Kubernetes; may be repeated; default: all that may be read",
    )
    parser.add_argument(
        "--selector", metavar="LABELS", default="", help="follow the pods with these labels, whatever owns them: app=infer"
    )
    parser.add_argument("--all-jobs", action="store_true", help="also Kubernetes jobs that want no GPU")
    parser.add_argument(
        "--notify",
        metavar="WAY",
        action="append",
        default=[],
        help="stdout, slack or webhook, or slack=FILE or webhook=FILE that holds the address; may be repeated; default: those of notify.*",
    )
    parser.add_argument("--link", metavar="URL", help="address of `workbench serve`, for links in messages (inbox.link)")
    parser.add_argument("--at-once", metavar="N", type=int, default=2, help="most collections at the same time (default 2)")
    parser.add_argument(
        "--storm", metavar="N", type=int, default=20, help="more failures than this in 5 minutes are told as one (default 20)"
    )
    parser.add_argument(
        "--settle", metavar="TIME", default="20s", help="wait so long for more victims before collecting (default 20s)"
    )
    parser.add_argument("--since", metavar="TIME", default="1h", help="how far back the very first look counts (default 1h)")
    parser.add_argument("--listen", metavar="ADDRESS", help="serve /metrics, /healthz and /readyz there: 127.0.0.1:9813")
    parser.add_argument("--textfile", metavar="FILE.prom", type=Path, help="write the metrics there after each look")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Look once, or again and again until told to stop."""
    from workbench.cli.scrape import serve, write_textfile
    from workbench.inbox.metrics import watch_metrics
    from workbench.report.text import clean

    seconds = 0.0 if options.once else _span("--every", options.every)
    if not options.once and seconds < _LEAST:
        raise Usage(f"--every {options.every} is too often", hint=f"every {_LEAST:.0f}s at most; 30s is usual")
    if options.textfile and options.textfile.suffix != ".prom":
        raise Usage(f"{options.textfile}: the textfile collector reads *.prom only")
    config = config_of(options, inbox_link=options.link)
    watch, inbox = _watch(options, config)
    stop = stopping("what is open is done by the next workbench watch")
    told: set[str] = set()

    def problems(found: tuple[str, ...]) -> None:
        """Complain of what is new: a source that is down for hours is told once."""
        for problem in found:
            if problem not in told:
                complain(clean(problem))
        told.intersection_update(found)
        told.update(found)

    def done(turn: Round) -> None:
        if turn.new:
            sys.stderr.write(f"{turn.new} new\n")
        if options.textfile:
            write_textfile(options.textfile, watch_metrics(watch))
        forget()

    with watch:
        forget = _forgetting(inbox, config)
        why_not = "the last look is too old, or did not see every scheduler whole"
        fresh = 3 * seconds + 120
        server = (
            serve(options.listen, lambda: watch_metrics(watch), lambda: watch.ready(fresh), why_not) if options.listen else None
        )
        try:
            if not options.once:
                watch.every(
                    seconds,
                    stop=stop,
                    done=done,
                    after=lambda: problems((*(watch.last.problems if watch.last else ()), *watch.problems)),
                )
                return exits.OK
            turn = watch.once(stop.is_set)
            done(turn)
            problems((*turn.problems, *watch.problems))
            return exits.INCOMPLETE if turn.problems or watch.problems or watch.collected["failed"] else exits.OK
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()


def _span(option: str, text: str) -> float:
    from workbench.config import time_span

    try:
        return time_span(text)
    except ValueError as error:
        raise Usage(f"{option}: {error}") from None


def _watch(options: argparse.Namespace, config: Config) -> tuple[Watch, Inbox]:
    from workbench.inbox.collecting import Collector
    from workbench.inbox.store import Inbox
    from workbench.inbox.storms import Settings
    from workbench.inbox.tell import Teller
    from workbench.inbox.watch import Watch
    from workbench.owners import Teams

    if options.at_once < 1 or options.storm < 1:
        raise Usage("--at-once and --storm are 1 at least")
    settings = Settings(
        at_once=options.at_once,
        settle=_span("--settle", options.settle),
        storm=options.storm,
        first=_span("--since", options.since),
        deadline=max(60.0, float(config["deadline"])),
    )
    inbox = Inbox(options.inbox or config["inbox.folder"], prices=config["report.prices"], teams=Teams.of(config))
    link, states = config["inbox.link"] or "", bool(config["notify.states"])
    teller = Teller(inbox, ways(options.notify, config), link=link, states=states, clock=time.time)
    return Watch(inbox, _followers(options, config), Collector(config), teller, settings), inbox


def _followers(options: argparse.Namespace, config: Config) -> list[Follower]:
    from workbench.sources.site import sources_of

    found: list[Follower] = []
    for source in sources_of(config)[0]:
        if source.name == "kubernetes":
            from workbench.inbox.kubernetes import KubernetesJobs
            from workbench.sources.kubernetes.api import Api

            api = Api(config["kubernetes.kubeconfig"], config["kubernetes.context"])
            spaces = tuple(options.namespace) or ((config["kubernetes.namespace"],) if config["kubernetes.namespace"] else ())
            found.append(KubernetesJobs(api, namespaces=spaces, selector=options.selector, every=options.all_jobs))
        elif source.name == "slurm":
            from workbench.inbox.slurm import SlurmJobs
            from workbench.sources.slurm.source import Slurm

            found.append(SlurmJobs(Slurm(config["slurm.prefix"])))
    if not found:
        raise ConfigError(
            "there is neither Kubernetes nor Slurm to watch",
            hint="give a kubeconfig, or run it where sacct is; workbench doctor tells what is reached",
        )
    return found


def ways(named: list[str], config: Config) -> list[Way]:
    """Return the ways to people that are named (``slack``, ``webhook=FILE``, ``stdout``), or those that the configuration has."""
    from workbench.inbox.notify import Printed, Slack, Webhook

    if not named:
        named = [kind for kind in ("slack", "webhook") if config[f"notify.{kind}"]]
    found: dict[str, Way] = {}
    for word in named:
        kind, _, file = word.partition("=")
        if kind == "stdout" and not file:
            found[kind] = Printed()
            continue
        if kind not in ("slack", "webhook"):
            raise Usage(f"--notify {kind!r} is no way", hint="there are stdout, slack, webhook, slack=FILE and webhook=FILE")
        address = _secret(kind, file) if file else config[f"notify.{kind}"]
        if not address:
            raise ConfigError(
                f"--notify {kind}: no address is set",
                hint=f"set notify.{kind}_file in workbench.toml, WORKBENCH_NOTIFY_{kind.upper()}, or give --notify {kind}=FILE",
            )
        found[kind] = Slack(address) if kind == "slack" else Webhook(address, config["notify.token"] or "")
    return list(found.values())


def _secret(kind: str, file: str) -> str:
    if "://" in file:  # on the command line everybody on this machine can read it
        raise Usage(f"--notify {kind}=… names a file that holds the address, not the address")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--notify {kind}={file}: {getattr(error, 'strerror', None) or 'it is no text'}") from None


def _forgetting(inbox: Inbox, config: Config) -> Callable[[], None]:
    last = [0.0]

    def forget() -> None:
        from workbench.inbox.store import InboxError

        if time.monotonic() - last[0] < _HOUR and last[0]:
            return
        last[0] = time.monotonic()
        try:
            for line in inbox.forget(
                older=config["inbox.keep"],
                evidence_older=config["inbox.keep_evidence"],
                most=int(config["inbox.limit"]),
                by="watch",
            ):
                sys.stderr.write(line + "\n")
        except InboxError as error:
            complain(str(error), hint=error.hint)

    return forget
