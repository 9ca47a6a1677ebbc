"""Turn `workbench check` into findings of this node and an exit code: 0 ok, 1 warning, 2 critical, 3 unknown."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.health.finding import Finding

__all__ = ["add_arguments", "code_of", "look", "run", "show"]

# Nagios's numbers, which Slurm's and Kubernetes' helpers read, too
_CODES = {"not-applicable": 0, "ok": 0, "warning": 1, "unknown": 3, "critical": 2}  # worst last
# node-problem-detector's custom plugin protocol has three: 0 OK, 1 NonOK, all others Unknown (pkg/custompluginmonitor/plugin/plugin.go);
# a warning is no problem of the node there
_NPD = {"not-applicable": 0, "ok": 0, "warning": 0, "unknown": 2, "critical": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="run these only; default all of the context")
    parser.add_argument(
        "--context",
        choices=("allocation", "running", "idle"),
        help="before a job gets the node (default), while one runs (disturbs nothing; default with --watch), between jobs (may use the GPUs)",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "nagios", "npd", "npd-warnings", "prom"),
        default="table",
        help="default: table",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="also what is as it should be, and how it was looked at")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="with the check xid: which rule decided on each Xid and why, and what other tools would do",
    )
    parser.add_argument(
        "--from",
        dest="kept",
        metavar="PATH",
        nargs="+",
        help="do not look at this node: say what the checks make of kept kernel logs, metrics and outputs of nvidia-smi, dcgmi, ibstat …,"
        " node by node (json: one document a node)",
    )
    parser.add_argument("--node", help="this node's name; default its host name, in a pod that publishes $NODE_NAME")
    parser.add_argument("--root", metavar="DIR", default="/", help="where the host's / is mounted, in a container; default /")
    parser.add_argument("--state", metavar="DIR", help="folder of what earlier runs saw; default the setting health.state")
    parser.add_argument("--no-state", action="store_true", help="judge by this run alone, and keep nothing of it")
    parser.add_argument(
        "--forget",
        action="store_true",
        help="first forget what earlier runs saw (of the named checks; default all): it was mended, or never so",
    )
    parser.add_argument(
        "--publish",
        metavar="WHERE",
        action="append",
        default=[],
        help="kubernetes: conditions, events and a label of this node; textfile=PATH: for node-exporter; may be given twice",
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=float,
        help="check again and again, about every so many seconds, until SIGTERM; then what was published is taken back",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="what is not read by then is unknown; default 45, and with --context idle as long as each probe takes at most",
    )
    parser.add_argument(
        "--compare",
        metavar="FILE",
        nargs="+",
        help="do not look at this node: compare what `workbench check versions -o json` printed on the nodes of a job; - is stdin",
    )
    parser.add_argument(
        "--pairs",
        metavar="NODES",
        help="do not look at this node: run --command on pairs of these, such as gpu[01-16], until it is clear which node is bad",
    )
    parser.add_argument(
        "--command",
        dest="pair_command",
        metavar="COMMAND",
        help="with --pairs: what is run, {a} and {b} for the nodes, no shell: 'srun -N2 --gpus-per-node=8 -w {a},{b} all_reduce_perf -g 8'",
    )
    parser.add_argument(
        "--pair-seconds", type=float, default=300.0, metavar="S", help="after this time a pair hangs; default 300"
    )
    parser.add_argument(
        "--least", type=float, metavar="GB/S", help="bus bandwidth below which a pair is bad; default any will do"
    )
    parser.add_argument("--at-once", type=int, default=16, metavar="N", help="pairs run at the same time; default 16")
    parser.add_argument("--config", metavar="FILE", help="default: ./workbench.toml, then ~/.config/workbench/workbench.toml")
    parser.add_argument("--profile", metavar="NAME", help="one of the file's [profiles.NAME]")


def run(options: argparse.Namespace) -> int:
    """Check this node, print the findings, return the code of the node's status."""
    if not options.output.startswith("npd"):
        return _run(options)
    try:
        return _run(options)
    except Exception as error:
        # node-problem-detector shows what stands on standard output, and of a plugin that says nothing what it said last, whatever that was
        from workbench.report.findings import npd_line

        sys.stdout.write(npd_line(f"workbench: {error}" if isinstance(error, WorkbenchError) else f"internal error: {error!r}"))
        sys.stdout.flush()
        raise  # the two lines on stderr, which it logs, and an exit code that it takes for unknown


def _run(options: argparse.Namespace) -> int:
    from workbench.config import load_config
    from workbench.report.findings import FORMATS

    config = load_config(options.config, profile=options.profile, flags={})
    settings = config.section("health")
    if (options.publish or options.watch is not None) and (
        options.checks or options.kept or options.explain or options.pairs or options.compare
    ):
        raise _Usage(
            "only a run of all checks can be published or watched: what was not looked at would be taken for not there",
            hint="leave out the names of checks; health.optional names those that do not count",
        )
    if options.watch is not None or options.publish:
        from workbench.cli import publishing

        return publishing.run(options, config)
    options.context = options.context or "allocation"
    if options.explain:
        return _explain(options, settings)
    if options.kept:
        return _kept(options, settings)
    if options.compare:
        from workbench.cli.check_compare import run_compare

        return _CODES[run_compare(options)]
    if options.pairs:
        from workbench.cli.check_pairs import run_pairs

        return _CODES[run_pairs(options)]
    findings = look(options, settings)
    about = {"about": _about(options)} if options.output == "json" else {}
    show(FORMATS[options.output](findings, verbose=options.verbose, **about))
    return code_of(findings, options.output)


def _about(options: argparse.Namespace) -> dict[str, str]:
    """Return when, in which boot and in which context the checks ran: what a plan needs to know whether they still hold."""
    import datetime as dt

    from workbench.health.state import boot_id
    from workbench.sources.node.world import World

    now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": now, "boot": boot_id(World(root=Path(options.root))), "context": options.context}


class _Usage(WorkbenchError):
    exit_code = exits.USAGE


def show(text: str) -> None:
    """Print what was found; a reader that went away (head) must not change the exit code, since 0 would say that the node is fit."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def code_of(findings: Sequence[Finding], output: str) -> int:
    """Return the exit code of what was found: Nagios's, or what node-problem-detector expects of a plugin."""
    from workbench.health import fitness

    if output == "npd-warnings":
        return int(any(one.warns for one in findings))
    return (_NPD if output == "npd" else _CODES)[fitness(findings)]


def look(options: argparse.Namespace, settings: Mapping[str, Any], *, node: str | None = None) -> list[Finding]:
    """Return the findings of one run, and say on stderr when its history was lost."""
    from workbench.cli.entry import complain
    from workbench.health import run as run_checks
    from workbench.health.history import FOLDER
    from workbench.health.state import CHECK, forget
    from workbench.sources.node.world import World

    world = World(root=Path(options.root), settings=dict(settings))
    state = None if options.no_state else str(options.state or settings.get("state") or FOLDER)
    if options.forget and state is not None:
        forget(world.path(str(Path(state).absolute())), options.checks)
        options.forget = False  # once, not in each round of --watch
    findings = run_checks(
        options.context,
        node=node or options.node,
        only=options.checks,
        seconds=options.seconds,
        world=world,
        state=state,
    )
    for one in findings:
        if one.check == CHECK:
            complain(f"history: {one.summary}", hint=one.hint)
    return findings


def _kept(options: argparse.Namespace, settings: Mapping[str, Any]) -> int:
    from workbench.cli.entry import complain
    from workbench.health import fitness
    from workbench.health.folder import check_folder
    from workbench.report.findings import FORMATS
    from workbench.report.text import clean

    for path in options.kept:
        if not Path(path).exists():
            complain(f"{path}: no such file or folder", hint="name a folder, an archive or files with what was kept of the node")
            return _CODES["unknown"]
    findings = check_folder(*options.kept, context=options.context, settings=settings)
    if options.checks:
        findings = [one for one in findings if one.check in options.checks]
    if not findings:
        complain("nothing of a node is among the files", hint="give kernel logs, or what nvidia-smi -q or dcgmi printed")
        return _CODES["unknown"]
    if options.output == "prom":  # one exposition holds each metric once
        show(FORMATS["prom"](findings, verbose=options.verbose))
        return _CODES[fitness(findings)]
    for node in dict.fromkeys(one.node for one in findings):
        mine = [one for one in findings if one.node == node]
        if options.output == "table" and not options.verbose:  # a log alone leaves most checks without what they need: said once
            unseen = {one.check for one in mine if one.code == "unread-missing"}
            shown = [one for one in mine if one.code != "unread-missing"]
            lines = FORMATS["table"](shown, verbose=False).split("\n", 1)
            if fitness(shown) != "critical":  # files that hold little show little: no node is fit by them
                lines[0] = f"{clean(node) or 'a node without a name'}: nothing in these files makes it unfit"
            show("\n".join(lines) + (f"  {len(unseen)} checks need more than these files hold\n" if unseen else ""))
        else:
            show(FORMATS[options.output](mine, verbose=options.verbose))
    return _CODES[fitness(findings)]


def _explain(options: argparse.Namespace, settings: Mapping[str, Any]) -> int:
    from workbench.errors import ConfigError
    from workbench.health.runner import read
    from workbench.health.xid_rulings import rulings
    from workbench.report.text import clean
    from workbench.report.xid_explained import explained
    from workbench.sources.node.world import World

    if options.checks != ["xid"]:
        raise ConfigError("only one check can be explained", hint="workbench check xid --explain")
    readings = read(("kernel", "gpus", "machine"), World(root=Path(options.root), settings=settings), options.seconds)
    kernel, machine = readings["kernel"], readings["machine"].value
    if not kernel.usable:
        sys.stdout.write(clean(f"no kernel log could be read, so nobody knows: {kernel.detail}") + "\n")
        return _CODES["unknown"]
    log = kernel.value
    kinds = (machine.kind,) if machine and machine.kind else ()
    found, cleared = rulings(log, readings["gpus"].value, environment=kinds)
    whole = "back to the last boot" if log.whole else "not back to the last boot"
    show(explained(found, cleared, f"the {log.place} reaches {whole}"))
    return _CODES[max((one.rule.status for one in found), key=list(_CODES).index, default="ok" if log.whole else "unknown")]
