"""Turn `workbench check --publish` and `--watch` into publishers and a loop that ends with SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from workbench.cli import exits
from workbench.cli.check import code_of, look, show
from workbench.cli.entry import complain
from workbench.config import Config
from workbench.errors import SourceError, WorkbenchError
from workbench.health import Finding
from workbench.health.publish import KubernetesEvents, KubernetesNode, Publisher, Textfile
from workbench.health.state import boot_id
from workbench.health.watch import Watch
from workbench.report.findings import FORMATS, headline

__all__ = ["run"]

_LEAST = 10.0  # seconds: below that a check would mostly look at itself


class _Usage(WorkbenchError):
    exit_code = exits.USAGE


def _say(message: str, hint: str) -> None:
    complain(message, hint=hint)


def _node(options: argparse.Namespace) -> str | None:
    """Return the node's name in the cluster: host names and node names differ in some."""
    return options.node or (os.environ.get("NODE_NAME") if "kubernetes" in options.publish else None) or None


def _publishers(options: argparse.Namespace, config: Config) -> list[Publisher]:
    found: list[Publisher] = []
    for where in dict.fromkeys(options.publish):
        kind, _, path = where.partition("=")
        if where == "kubernetes":
            from workbench.sources.kubernetes.api import Api
            from workbench.sources.kubernetes.write import NodeWriter
            from workbench.sources.node.world import World

            api = Api(config["kubernetes.kubeconfig"], config["kubernetes.context"])
            writer = NodeWriter(api, _node(options) or World().node)
            boot = boot_id(World(root=Path(options.root)))
            found += [KubernetesNode(writer, _say, boot=boot), KubernetesEvents(writer)]
        elif kind == "textfile" and path:
            if not path.endswith(".prom"):
                raise _Usage(f"{path}: the textfile collector reads *.prom only", hint="--publish textfile=/…/workbench.prom")
            found.append(Textfile(Path(path), lambda findings: FORMATS["prom"](findings, verbose=False)))
        else:
            raise _Usage(f"{where!r} is no place to publish at", hint="there are kubernetes and textfile=PATH")
    return found


def run(options: argparse.Namespace, config: Config) -> int:
    """Check once and publish, or for ever; the exit code of one run is that of the node, or 69 when it could not be published."""
    publishers, settings = _publishers(options, config), config.section("health")
    if options.watch is not None:
        return _watch(options, config, publishers)
    options.context = options.context or "allocation"
    findings = look(options, settings, node=_node(options))
    show(FORMATS[options.output](findings, verbose=options.verbose))
    code = code_of(findings, options.output)
    for publisher in publishers:
        try:
            publisher.publish(findings, time.time())
        except SourceError as error:
            complain(f"{publisher.name}: {error}", hint=error.hint)
            code = exits.UNAVAILABLE
    return code


def _watch(options: argparse.Namespace, config: Config, publishers: list[Publisher]) -> int:
    if not options.watch >= _LEAST:
        raise _Usage(f"--watch {options.watch:g} is too often", hint=f"every {_LEAST:.0f} s at most; every minute is usual")
    options.context = options.context or "running"
    settings, last = config.section("health"), [""]

    def shown(findings: Sequence[Finding]) -> None:
        told = headline(findings)
        if told != last[0]:
            sys.stdout.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {told}\n")
            sys.stdout.flush()
            last[0] = told

    loop = Watch(lambda: look(options, settings, node=_node(options)), publishers, seconds=options.watch, say=_say, shown=shown)
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: loop.stop())
    loop.run()
    return exits.OK
