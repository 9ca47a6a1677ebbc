"""Turn `workbench fleet tenants PAGE…` into success and latency of each tenant of inference servers, or into whom an Xid reaches."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits
from workbench.cli.fleet import add_common
from workbench.cli.fleet_table import Columns, records, written
from workbench.cli.remedy import Usage
from workbench.errors import SourceError

if TYPE_CHECKING:
    from workbench.fleet.tenants import Tenant

__all__ = ["add_arguments", "run"]

_COLUMNS: Columns = (
    ("tenant", "tenant", 30),
    ("server", "server", 8),
    ("requests", "requests", -10),
    ("ratio", "success", -9),
    ("bounds", "95 % interval", 20),
    ("p50", "p50 s", -7),
    ("p95", "p95 s", -7),
    ("p99", "p99 s", -7),
    ("within", "within target", 18),
    ("waiting", "waiting", -7),
    ("missing", "not told", 30),
)
_REACHED: Columns = (
    ("tenant", "tenant", 40),
    ("gpu", "GPU", 42),
    ("instance", "instance", -8),
    ("sharing", "shares", 12),
    ("reached", "ended", 8),
    ("caused", "caused it", 9),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument(
        "pages",
        metavar="PAGE",
        type=Path,
        nargs="+",
        help="/metrics of a replica, as a file; its name is the replica's. With --xid: /metrics of dcgm-exporter, or a table of tenants "
        "(CSV or JSON: name, gpu, instance, compute, sharing, pids)",
    )
    parser.add_argument(
        "--xid", metavar="CODE", type=int, help="instead: which tenants this Xid reaches, and whose process caused it"
    )
    parser.add_argument("--gpu", metavar="UUID", help="with --xid: the GPU in the line (default: the only one of the pages)")
    parser.add_argument("--instance", metavar="N", type=int, help="with --xid: GPU instance in the line (GPU-I:05)")
    parser.add_argument("--pid", metavar="N", type=int, help="with --xid: process in the line")
    parser.add_argument(
        "--shared-by",
        choices=("time-sliced", "mps"),
        default="time-sliced",
        help="with --xid: how pods share a GPU or instance, which DCGM does not tell (default: time-sliced)",
    )
    parser.add_argument(
        "--before", metavar="DIR", type=Path, help="folder with pages of the same names, from the begin of the window"
    )
    parser.add_argument("--target", metavar="SECONDS", type=float, help="within which a request should be answered")
    parser.add_argument(
        "--latency",
        choices=("latency", "first-token", "between-tokens"),
        default="latency",
        help="which latency (default: of the whole request)",
    )
    parser.add_argument(
        "--label", metavar="NAME", action="append", help="label that names the tenant (default: namespace, then the model's)"
    )
    add_common(parser, window=False)


def run(options: argparse.Namespace) -> int:
    """Print one row a tenant."""
    from workbench.cli.entry import complain
    from workbench.fleet.tenants import TENANT, objectives

    def read(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}", hint="curl -s http://REPLICA:8000/metrics > PAGE") from None

    if options.xid is not None:
        return _reach(options, {str(path): read(path) for path in options.pages})
    if options.gpu or options.instance is not None or options.pid is not None:
        raise Usage("--gpu, --instance and --pid are of an Xid", hint="give --xid CODE")
    after = {path.name: read(path) for path in options.pages}
    before = None
    if options.before is not None:
        before = {name: read(options.before / name) for name in after if (options.before / name).exists()}
        if lacking := sorted(set(after) - set(before)):
            complain(f"no page from the begin of the window for {', '.join(lacking)}: all since they began counts")
    found = objectives(after, before, target=options.target, histogram=options.latency, labels=tuple(options.label or TENANT))
    if found.empty:
        complain(
            "none of the pages is of vLLM, SGLang, TGI or Triton with requests",
            hint="catalog/inference_metrics.csv has the names",
        )
        return exits.DATA
    rows = records(found)

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.3g}"

    shown = [
        {
            **row,
            "requests": None if row["requests"] is None else int(row["requests"]),
            "ratio": "–" if row["ratio"] is None else f"{100 * row['ratio']:.3f} %",
            "bounds": "–" if row["ratio"] is None else f"{100 * row['ratio_low']:.3f} to {100 * row['ratio_high']:.3f}",
            **{name: number(row[name]) for name in ("p50", "p95", "p99")},
            "within": "–" if row["within_low"] is None else _within(row["within_low"], row["within_high"]),
            "waiting": number(row["waiting"]),
        }
        for row in rows
    ]
    sys.stdout.write(written(_COLUMNS, shown, options.output, raw=rows))
    return exits.INCOMPLETE if any(row["missing"] for row in rows) else exits.OK


def _reach(options: argparse.Namespace, pages: dict[str, bytes]) -> int:
    """Print whom an Xid reaches; 3 when the line or the pages tell too little to be sure."""
    from workbench.cli.entry import complain
    from workbench.fleet.occupants import occupants
    from workbench.fleet.tenants import reach

    tenants, problems = occupants(pages, sharing=options.shared_by)
    for problem in problems:
        complain(problem)
    gpus = sorted({one.gpu for one in tenants})
    gpu = options.gpu or (gpus[0] if len(gpus) == 1 else None)
    if not tenants:
        return exits.DATA
    if gpu is None:
        raise Usage(f"the pages tell of {len(gpus)} GPUs", hint="--gpu UUID says on which the Xid was")
    if gpu not in gpus:
        complain(f"no tenant of {gpu} is told: who used it is not known", hint="the page must be of its node, and of that time")
        return exits.DATA
    told = reach(options.xid, tenants, gpu=gpu, instance=options.instance, pid=options.pid)

    def row(one: Tenant) -> dict[str, object]:
        return {
            "tenant": one.name,
            "gpu": one.gpu,
            "instance": one.instance,
            "compute": one.compute,
            "sharing": one.sharing,
            "reached": one in told.reached,
            "caused": one == told.caused_by,
            "xid": options.xid,
            "scope": told.scope,
            "certain": told.certain,
            "why": told.why,
        }

    raw = [row(one) for one in tenants if one.gpu == gpu]
    shown = [
        {
            **one,
            "instance": "–" if one["instance"] is None else one["instance"],
            "reached": ("yes" if told.certain else "may be") if one["reached"] else "no",
            "caused": "yes" if one["caused"] else "",
        }
        for one in raw
    ]
    text = written(_REACHED, shown, options.output, raw=raw)
    if options.output in ("table", "md"):
        number = len(told.reached)
        text = f"Xid {options.xid} reaches {number} of {len(raw)} tenants of this GPU ({told.scope}): {told.why}\n\n{text}"
        if told.caused_by is None:
            text += "\nWho caused it is not told: a fault of hardware or driver, or a process that no page names.\n"
    sys.stdout.write(text)
    return exits.OK if told.certain and not problems else exits.INCOMPLETE


def _within(low: float, high: float) -> str:
    return f"{100 * low:.2f} %" if low == high else f"{100 * low:.1f} to {100 * high:.1f} %"
