"""Turn files, folders, a running Slurm or Kubernetes, the inbox and the remediation journal into rows of the fleet's ledger."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits
from workbench.cli.entry import complain
from workbench.cli.fleet import add_common, open_ledger
from workbench.cli.fleet_asked import from_kubernetes, from_slurm, gpus_of, only_gpus, shows_gpus
from workbench.cli.live import config_of, moment
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.fleet.ingest.told import Told

__all__ = ["add_arguments", "run"]

_SHOWN = 20  # problems that are written out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="sacct -D -P or --json, sacctmgr show event -P, sinfo, scontrol show node, kubectl get … -o json, nvidia-smi -q, DCGM metrics, "
        "a folder of `workbench run`, an incident, verdict.json, an inbox, "
        "findings of `workbench check -o json`, a remediation journal, or a folder of such; - is stdin",
    )
    parser.add_argument(
        "--slurm", action="store_true", help="also ask Slurm's commands (slurm.prefix) for jobs and nodes since --since"
    )
    parser.add_argument(
        "--kubernetes", action="store_true", help="also ask the API server for jobs, pods, nodes, events, device slices"
    )
    parser.add_argument("--since", metavar="TIME", help="from when --slurm tells, e.g. 2d ago as 2d, or 2026-05-04 (default 30d)")
    parser.add_argument("--inbox", action="store_true", help="also what the inbox holds (inbox.folder)")
    parser.add_argument("--journal", action="store_true", help="also the remediation journal (remediation.journal)")
    parser.add_argument("--no-gpus", action="store_true", help="do not look in folders for which GPU was seen in which slot")
    parser.add_argument("--no-triage", action="store_true", help="leave out folders of evidence that have no verdict")
    add_common(parser, window=False, outputs=("table", "json"))


def run(options: argparse.Namespace) -> int:
    """Take everything in; the exit code is 3 when a part of it could not be used."""
    from workbench.fleet.ingest.paths import of_bytes, of_path
    from workbench.fleet.ingest.told import Told, take_in
    from workbench.owners import Teams

    config = config_of(options)
    cluster = options.cluster if options.cluster is not None else str(config["fleet.cluster"] or "")
    paths = [Path(path) for path in options.paths]
    paths += [Path(config["inbox.folder"]).expanduser()] if options.inbox else []
    paths += [Path(config["remediation.journal"]).expanduser()] if options.journal else []
    if not paths and not options.slurm and not options.kubernetes:
        raise Usage("there is nothing to take in", hint="give PATH, --slurm, --kubernetes, --inbox or --journal; - is stdin")
    told, now = Told(), time.time()
    if options.slurm:
        since = moment(options.since, now)
        told.extend(from_slurm(config, now - 30 * 86400 if since is None else since, now, cluster=cluster))
    if options.kubernetes:
        told.extend(from_kubernetes(config, cluster=cluster))
    for path in paths:
        if str(path) == "-":
            data = sys.stdin.buffer.read()
            if shows_gpus("stdin", data):
                told.extend(gpus_of(path, cluster=cluster, data=data))
            else:
                told.extend(of_bytes(data, file="stdin", recorded=now, cluster=cluster))
            continue
        if _shows_gpus(path):
            told.extend(gpus_of(path, cluster=cluster))
            continue
        found, bare = of_path(path, cluster=cluster)
        told.extend(found)
        if path.is_dir() and not options.no_gpus:
            told.extend(gpus_of(path, cluster=cluster))
        for folder in bare:
            if only_gpus(folder):
                continue
            if options.no_triage:
                told.wrong(str(folder), "it has no verdict", "leave out --no-triage")
            else:
                told.extend(_triaged(folder, cluster))
    Teams.of(config).name(told.rows.get("jobs", ()))
    with open_ledger(options, "rw") as ledger:
        changed = take_in(ledger, told)
        where = ledger.path
    for problem in told.problems[:_SHOWN]:
        place = f"{problem.file}:{problem.line}" if problem.line else problem.file
        complain(f"{place}: {problem.message}", hint=problem.hint)
    if len(told.problems) > _SHOWN:
        complain(f"{len(told.problems) - _SHOWN} more like these")
    if options.output == "json":
        import json

        rows = {table: len(rows) for table, rows in told.rows.items()}
        sys.stdout.write(
            json.dumps({"ledger": str(where), "told": rows, "changed": changed, "problems": len(told.problems)}) + "\n"
        )
    else:
        sys.stdout.write(_said(changed, told, where))
    return exits.INCOMPLETE if told.problems else exits.OK


def _shows_gpus(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return shows_gpus(path.name, stream.read(1 << 16))
    except OSError:  # a folder, or told by who reads it
        return False


def _said(changed: dict[str, int], told: Told, where: Path) -> str:
    lines = []
    for table, number in changed.items():
        rows = len(told.rows.get(table, ()))
        lines.append(
            f"  {table:<12} {number:>9,} new or changed" + (f" of {rows:,} told" if rows else ", from all attempts of these jobs")
        )
    return f"{where}\n" + ("\n".join(lines) + "\n" if lines else "  nothing was told\n")


def _triaged(folder: Path, cluster: str) -> Told:
    """Return what an incident's evidence says, told when its youngest file was written: the same however often it is taken in."""
    from workbench.casefile.build import case_file
    from workbench.errors import WorkbenchError
    from workbench.fleet.ingest.paths import newest
    from workbench.fleet.ingest.told import Told
    from workbench.fleet.ingest.verdicts import of_verdict
    from workbench.incident import load

    told = Told()
    try:
        case = case_file(load(str(folder)), source=str(folder))
    except WorkbenchError as error:
        told.wrong(str(folder), str(error), error.hint)
        return told
    return of_verdict(
        {"incident": folder.name, **case.verdict},
        source=f"folder:{folder.name}",
        recorded=newest(folder),
        job=case.job,
        cluster=cluster,
        incident=str(folder),
    )
