"""Turn a fleet on paper into its account: what virtual months did to its jobs, and what another policy would have made of the same faults."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.simulation import Result, Spec

__all__ = ["add_arguments", "run"]

SCHEMA = "workbench.simulation/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "spec", metavar="FLEET.toml", nargs="?", help="the fleet; default: 16,384 GPUs with published failure rates"
    )
    parser.add_argument("--days", type=float, help="virtual days")
    parser.add_argument("--seed", type=int, help="another seed: other jobs, other faults")
    parser.add_argument(
        "--set", dest="changes", metavar="KEY=VALUE", action="append", default=[], help="change a value: policy.interval=10m"
    )
    parser.add_argument(
        "--vary",
        metavar="KEY=V1,V2,…",
        help="compare: the same jobs and faults under each of these values, policy.interval=10m,30m,2h",
    )
    parser.add_argument("--ledger", metavar="FILE", help="write the account there, for workbench fleet")
    parser.add_argument("--incidents", metavar="FOLDER", help="write evidence of failures there, an incident folder each")
    parser.add_argument(
        "--most", type=int, default=20, metavar="N", help="of so many failures, all classes in turn (default: 20)"
    )
    parser.add_argument("--truth", metavar="FILE", help="write what really happened there (JSON lines); nothing else holds it")
    parser.add_argument(
        "--print-spec", action="store_true", help="print the shipped fleet with all its values, as a file to begin with"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")


def run(options: argparse.Namespace) -> int:
    """Simulate; the exit code is 0 when it ran to its end."""
    from workbench.simulation import Spec

    if options.print_spec:
        from workbench.catalog import HERE

        sys.stdout.write((HERE / "simulation.toml").read_text(encoding="utf-8"))
        return exits.OK
    spec = Spec.read(options.spec)
    changes = dict(_pair(text) for text in options.changes)
    if options.days is not None:
        changes["days"] = options.days
    if options.seed is not None:
        changes["seed"] = options.seed
    spec = _changed(spec, changes)
    if options.vary:
        return _compare(spec, options)
    result = _simulated(spec, options)
    if options.output == "json":
        sys.stdout.write(_json([_figures(result, spec)]))
    else:
        sys.stdout.write(_told(result, spec, options))
    return exits.OK


def _pair(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise Usage(f"{text!r} is not KEY=VALUE", hint="such as --set policy.interval=10m; --print-spec shows all keys")
    return key.strip(), _typed(value.strip())


def _typed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _changed(spec: Spec, changes: Mapping[str, Any]) -> Spec:
    return spec.with_(**{key.replace(".", "__"): value for key, value in changes.items()}) if changes else spec


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """A simulation makes millions of objects and no cycles of them: looking for cycles takes a seventh of its time and finds none."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _simulated(spec: Spec, options: argparse.Namespace) -> Result:
    from workbench.cli.progress import Progress
    from workbench.simulation import simulate

    with _seldom_collected(), Progress(enabled=sys.stderr.isatty()) as progress:

        def tick(share: float) -> None:
            progress(share, 1.0, "simulating")

        if not options.ledger:
            result = simulate(spec, tick=tick)
        else:
            from workbench.fleet.ledger import Ledger

            with Ledger.open(options.ledger) as ledger, ledger.batch():
                result = simulate(spec, ledger.put, tick=tick)
    evidence: list[dict[str, Any]] = []
    if options.incidents:
        from workbench.gameday import write_failures

        for path, fault in write_failures(result.truth.faults, spec, Path(options.incidents), options.most):
            evidence.append({"incident": path.name, "cls": fault["cls"], "node": fault["node"], "dirt": fault["dirt"]})
    if options.truth:
        import json

        from workbench.durable import write_bytes

        rows = [{"lemons": result.truth.lemons}, *result.truth.faults, *evidence]
        write_bytes(Path(options.truth), ("\n".join(json.dumps(one) for one in rows) + "\n").encode())
    return result


def _figures(result: Result, spec: Spec) -> dict[str, Any]:
    """All figures, each with what it is a part of."""
    gpu_hours = {name: seconds / 3600 for name, seconds in sorted(result.seconds.items(), key=lambda one: -one[1])}
    return {
        "schema": SCHEMA, "spec": spec.origin, "seed": spec["seed"], "days": spec["days"], "gpus": spec["nodes.count"] * spec["nodes.gpus"],
        "jobs": dict(result.jobs), "failed_attempts": dict(result.causes), "gpu_hours": gpu_hours, "held_gpu_hours": result.held / 3600,
        "capacity_gpu_hours": result.capacity / 3600, "goodput_of_held": result.goodput, "restarts": result.restarts,
        "most_restarts_in_an_hour": result.busiest_hour, "repairs": result.repairs, "faults": len(result.truth.faults),
        "lemons": len(result.truth.lemons),
    }  # fmt: skip


def _json(rows: list[dict[str, Any]]) -> str:
    from workbench.report.verdict_json import dumps

    return dumps(rows if len(rows) > 1 else rows[0], indent=2) + "\n"


def _told(result: Result, spec: Spec, options: argparse.Namespace) -> str:
    gpus, held = spec["nodes.count"] * spec["nodes.gpus"], result.held
    lines = [
        f"{gpus:,} GPUs on {spec['nodes.count']:,} nodes, {spec['days']:g} days, seed {spec['seed']}: simulated, nothing of it happened",
        f"jobs       {result.jobs['started']:,} started: "
        + _counts(result.jobs, ("completed", "failed", "cancelled", "running", "pending")),
        f"attempts   {sum(result.causes.values()):,} failed, by their true cause: "
        + _counts(result.causes, tuple(result.causes)),
        f"faults     {len(result.truth.faults):,} of nodes and outages; {result.repairs:,} repairs; {len(result.truth.lemons)} lemon nodes",
        f"restarts   {result.restarts:,}; {result.busiest_hour:,} in the worst hour",
        f"held       {_share(held, result.capacity)} of {result.capacity / 3600:,.0f} GPU-hours that nodes were there",
        f"goodput    {_share(result.seconds.get('step', 0.0), held)} of {held / 3600:,.0f} GPU-hours held by attempts that ended",
        "",
        "where the held GPU-hours went",
    ]
    outside = ("queue", "recover", "idle")  # nobody holds GPUs then
    inside = [(name, seconds) for name, seconds in result.seconds.items() if name not in outside and seconds > 0]
    lines += [
        f"  {name:<9} {seconds / 3600:>14,.0f}  {_share(seconds, held):>7}"
        for name, seconds in sorted(inside, key=lambda one: -one[1])
    ]
    for what, where in (("account", options.ledger), ("evidence", options.incidents), ("truth", options.truth)):
        if where:
            lines.append(
                f"{what} in {where}" + (f"; look with: workbench fleet summary --ledger {where}" if what == "account" else "")
            )
    return "\n".join(lines) + "\n"


def _counts(counts: Mapping[str, int], names: tuple[str, ...]) -> str:
    return ", ".join(f"{counts[name]:,} {name}" for name in names if counts.get(name)) or "none"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _compare(spec: Spec, options: argparse.Namespace) -> int:
    """The same fleet under several values of one key, all at once on the cores there are."""
    import os
    from concurrent.futures import ProcessPoolExecutor

    if options.ledger or options.incidents or options.truth:
        raise Usage(
            "--vary compares figures and writes no account, evidence or truth",
            hint="run the value that you choose without --vary",
        )
    key, sign, rest = options.vary.partition("=")
    values = [_typed(text.strip()) for text in rest.split(",") if text.strip()]
    if not sign or len(values) < 2:
        raise Usage(f"{options.vary!r} is not KEY=V1,V2", hint="such as --vary policy.interval=10m,30m,2h")
    specs = [_changed(spec, {key.strip(): value}) for value in values]
    with ProcessPoolExecutor(min(len(specs), os.cpu_count() or 1)) as pool:
        results = list(pool.map(_one, specs))
    if options.output == "json":
        sys.stdout.write(
            _json([{key: value} | _figures(one, each) for value, one, each in zip(values, results, specs, strict=True)])
        )
        return exits.OK
    head = f"{key:<22} {'goodput':>9} {'lost':>8} {'save':>8} {'restarts':>9} {'worst hour':>10} {'completed':>10} {'failed':>8}"
    lines = [f"the same jobs and faults (seed {spec['seed']}), {spec['days']:g} days; shares are of the GPU-hours held", head]
    for value, one in zip(values, results, strict=True):
        lines.append(
            f"{value!s:<22} {_share(one.seconds.get('step', 0.0), one.held):>9} {_share(one.seconds.get('lost', 0.0), one.held):>8} "
            f"{_share(one.seconds.get('save', 0.0), one.held):>8} {one.restarts:>9,} {one.busiest_hour:>10,} {one.jobs['completed']:>10,} "
            f"{one.jobs['failed']:>8,}"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return exits.OK


def _one(spec: Spec) -> Result:
    from workbench.simulation import simulate

    with _seldom_collected():
        return simulate(spec)
