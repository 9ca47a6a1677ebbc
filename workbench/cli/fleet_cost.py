"""Turn `workbench fleet cost` into money: what failures cost and whom, act now or wait, spares, and whether the workbench pays."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.fleet import add_common, open_ledger
from workbench.cli.fleet_table import Columns, records, written
from workbench.cli.live import config_of, moment
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.fleet.cost import Choice, Price

__all__ = ["add_arguments", "run"]

_INCIDENTS: Columns = (
    ("who", "who lost", 24),
    ("cause", "cause", 9),
    ("failures", "failures", -8),
    ("idle_hours", "GPU-hours held", -14),
    ("lost_hours", "GPU-hours redone", -16),
    ("people_hours", "people's hours", -14),
    ("cost", "cost", -16),
    ("unknown", "of unknown cost", -15),
)
_BARS: Columns = (
    ("name", "assumption", 28),
    ("low", "low", -8),
    ("value", "taken", -8),
    ("high", "high", -8),
    ("unit", "unit", 20),
    ("at_low", "a month at low", -14),
    ("at_high", "at high", -14),
    ("flips", "decides", 7),
    ("source", "source", 60),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument("--each", action="store_true", help="every failed attempt instead of the sums by team and cause")
    parser.add_argument("--assume", metavar="FILE", type=Path, help="TOML with your own assumptions; see docs/cost.md")
    parser.add_argument(
        "--spares",
        metavar="TARGET",
        type=float,
        help="how many spare nodes keep --nodes usable for this share of the time, such as 0.99",
    )
    parser.add_argument(
        "--pays", action="store_true", help="whether the workbench pays, with every assumption and what hangs on it"
    )
    parser.add_argument("--node", metavar="NAME", help="what is cheapest with this node: use it on, keep it out, repair it")
    parser.add_argument(
        "--act-now",
        metavar="GPUS",
        type=int,
        help="whether to stop a job of so many GPUs now, or to wait for its next checkpoint",
    )
    parser.add_argument(
        "--chance",
        metavar="SHARE",
        type=float,
        help="with --act-now: that the fault kills the job before, 0 to 1; without it: from which on",
    )
    parser.add_argument("--last-checkpoint", metavar="TIME", help="with --act-now: how long ago, such as 40m")
    parser.add_argument("--next-checkpoint", metavar="TIME", help="with --act-now: in how long, such as 20m")
    parser.add_argument(
        "--restart", metavar="TIME", help="with --act-now: from the stop to the first step (default: restart_hours)"
    )
    parser.add_argument("--nodes", metavar="N", type=int, help="nodes of the fleet (default: those of the account)")
    parser.add_argument("--node-gpus", metavar="N", type=int, default=8, help="GPUs of a node (default 8)")
    parser.add_argument(
        "--sku", metavar="NAME", default="NVIDIA H100 80GB HBM3", help="product of --pays and --act-now (default: H100 SXM)"
    )
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Answer one of the questions."""
    from workbench.fleet.cost import assumptions, incident_costs

    config = config_of(options)
    assumed = assumptions(options.assume)
    if options.act_now is not None:
        return _act(options, config["report.prices"], assumed)
    now = time.time()
    since, until = moment(options.since, now), moment(options.until, now)
    where = {} if options.cluster is None else {"cluster": options.cluster}
    if options.pays and options.nodes:
        return _pays(options, config["report.prices"], assumed, options.nodes)
    if options.node:
        return _node(options, config["report.prices"], assumed, since, until, where)
    with open_ledger(options) as ledger:
        names = ("node_states",) if options.pays or options.spares is not None else ("attempts", "jobs", "phases")
        frames = [ledger.frame(name, since, until, **where) for name in names]
    if options.pays:
        return _pays(options, config["report.prices"], assumed, int(frames[0]["node"].nunique()))
    if options.spares is not None:
        return _spares(options, frames[0], until if until is not None else now)
    rows = incident_costs(*frames, prices=config["report.prices"], assumed=assumed)
    if options.each:
        raw = records(rows)
        columns: Columns = tuple((name, name, 40) for name in rows.columns)
        sys.stdout.write(written(columns, raw, options.output, raw=raw))
        return exits.OK
    raw = _by_team(rows)
    if not raw and options.output in ("table", "md"):
        sys.stdout.write("no failed attempt is in the account\n")
        return exits.OK
    shown = [
        {
            **row,
            **{name: f"{row[name]:,.1f}" for name in ("idle_hours", "lost_hours", "people_hours")},
            "cost": f"{row['cost']:,.2f} {row['currency']}",
        }
        for row in raw
    ]
    sys.stdout.write(written(_INCIDENTS, shown, options.output, raw=raw))
    sources = sorted({str(one) for one in rows["price_source"] if one})
    if options.output == "table":
        sys.stdout.write("".join(f"price: {one}\n" for one in sources) or "no price is known: set report.prices\n")
    return exits.INCOMPLETE if any(row["unknown"] for row in raw) else exits.OK


def _act(options: argparse.Namespace, prices: Any, assumed: Any) -> int:
    """Weigh stopping a threatened job now against waiting for its next checkpoint."""
    from workbench.cli.entry import complain
    from workbench.config import time_span
    from workbench.fleet.cost import act_or_wait, price_of

    hours: dict[str, float] = {}
    for name in ("last_checkpoint", "next_checkpoint", "restart"):
        text = getattr(options, name)
        if text is None and name != "restart":
            raise Usage(f"--act-now needs --{name.replace('_', '-')}", hint="such as --last-checkpoint 40m --next-checkpoint 20m")
        try:
            hours[name] = assumed["restart_hours"].value if text is None else time_span(text) / 3600.0
        except ValueError as error:
            raise Usage(f"--{name.replace('_', '-')}: {error}") from None
    if options.act_now < 1 or not 0.0 <= (options.chance or 0.0) <= 1.0:
        raise Usage("a job has GPUs, and a chance is between 0 and 1")
    price = price_of(options.sku, prices)
    if price is None:
        complain(f"no price of {options.sku} is known", hint="set report.prices, or give --sku")
        return exits.UNAVAILABLE
    told = act_or_wait(
        gpus=options.act_now,
        price=price.amount,
        chance=options.chance or 0.0,
        hours_to_checkpoint=hours["next_checkpoint"],
        hours_since_checkpoint=hours["last_checkpoint"],
        restart_hours=hours["restart"],
    )
    if options.chance is None:
        row = {"even": told.even, "currency": price.currency}
        sys.stdout.write(written((("even", "act now or wait", 60),), [row], options.output, raw=[row]))
        return exits.OK
    return _ways(options, told, price, "cheaper", f"price: {price.source}")


def _ways(options: argparse.Namespace, told: Choice, price: Price, best: str, rests_on: str) -> int:
    """Print what each way is expected to cost, and why one is the best."""
    raw = [{"way": way, "cost": cost, "currency": price.currency, "best": way == told.best} for way, cost in told.costs.items()]
    columns: Columns = (("way", "way", 10), ("cost", "expected cost", -16), ("best", best, 8))
    shown = [{**one, "cost": f"{one['cost']:,.0f} {price.currency}", "best": "yes" if one["best"] else ""} for one in raw]
    sys.stdout.write(written(columns, shown, options.output, raw=raw))
    if options.output == "table":
        sys.stdout.write(f"\n{told.why}; {told.even}\n{rests_on}\n")
    return exits.OK


def _by_team(rows: Any) -> list[dict[str, Any]]:
    """Return sums by who lost and by cause; attempts of unknown cost are counted, and not as free."""
    if not len(rows):
        return []
    rows = rows.assign(who=[team or user or "(not told)" for team, user in zip(rows["team"], rows["user"], strict=True)])
    out = []
    for (who, cause, currency), part in rows.groupby(["who", "cause", "currency"], sort=True):
        out.append(
            {
                "who": who,
                "cause": cause,
                "failures": len(part),
                **{name: float(part[name].sum()) for name in ("idle_hours", "lost_hours", "people_hours", "cost")},
                "currency": currency,
                "unknown": int((part["missing"] != "").sum()),
            }
        )
    return sorted(out, key=lambda row: -row["cost"])


def _spares(options: argparse.Namespace, states: Any, end: float) -> int:
    from workbench.cli.entry import complain
    from workbench.fleet.cost import spares

    begin = states["begin"].astype("int64") / 1e6
    stop = (states["end"].astype("int64") / 1e6).where(states["end"].notna(), end)
    hours = (stop - begin).clip(lower=0)
    out = states["state"].isin(["down", "held"])
    counted = states["state"] != "maintenance"
    total = float(hours[counted].sum())
    if not total:
        complain("the account has no states of nodes, so their availability is not known", hint="workbench fleet ingest")
        return exits.UNAVAILABLE
    availability = 1.0 - float(hours[counted & out].sum()) / total
    needed = options.nodes or int(states["node"].nunique())
    try:
        number = spares(needed, availability, options.spares)
    except ValueError as error:
        complain(str(error))
        return exits.USAGE
    row = {"needed": needed, "availability": availability, "target": options.spares, "spares": number}
    columns: Columns = (
        ("needed", "nodes", -8),
        ("availability", "availability", -12),
        ("target", "target", -8),
        ("spares", "spares", -8),
    )
    sys.stdout.write(written(columns, [{**row, "availability": f"{availability:.4f}"}], options.output, raw=[row]))
    return exits.OK


def _node(options: argparse.Namespace, prices: Any, assumed: Any, since: float | None, until: float | None, where: Any) -> int:
    """Weigh what to do with a node, with its failure rate and what its failures cost taken from the account."""
    from workbench.cli.entry import complain
    from workbench.fleet.cost import exclude_or_repair, incident_costs, price_of
    from workbench.fleet.lemons import lemons

    with open_ledger(options) as ledger:
        tables = ("signals", "attempts", "node_states", "gpus", "jobs", "phases")
        signals, attempts, states, gpus, jobs, phases = (ledger.frame(name, since, until, **where) for name in tables)
    units = lemons(signals, attempts, states, gpus, until=until).units
    row = units[(units["kind"] == "node") & (units["unit"] == options.node) & units["chance"].notna()]
    losses = incident_costs(attempts, jobs, phases, prices=prices, assumed=assumed)
    known = losses[losses["cause"].isin(["hardware", "driver"]) & losses["idle_hours"].notna()]
    products = [str(one) for one in states.loc[states["node"] == options.node, "sku"].dropna()] or [options.sku]
    price = price_of(products[-1], prices)
    if row.empty or known.empty or price is None:
        what = "its failure rate" if row.empty else "what failures cost" if known.empty else f"a price of {products[-1]}"
        complain(f"{options.node}: {what} is not known", hint="workbench fleet lemons --all shows what can be judged")
        return exits.UNAVAILABLE
    one = row.iloc[0]
    hours = known["idle_hours"].fillna(0.0) + known["lost_hours"].fillna(0.0)
    size = attempts.merge(known[["cluster", "job", "attempt"]], on=["cluster", "job", "attempt"])["gpus"].dropna()
    width = float(size.median()) if len(size) else float(options.node_gpus)
    told = exclude_or_repair(
        node_gpus=options.node_gpus,
        price=price.amount,
        times=float(one["times"]),
        failures_per_day=float(one["rate"]) / 1000.0 / float(one["times"]),
        job_gpus=round(width),
        hours_lost=float(hours.mean()) / width,
        days=assumed["horizon_days"].value,
        repair_hours=assumed["repair_hours"].value,
        repair_cost=assumed["repair_cost"].value,
        success=assumed["repair_success"].value,
    )
    rests_on = f"the node: {float(one['times']):.2g} times the usual rate; {price.source}"
    return _ways(options, told, price, "cheapest", rests_on)


def _pays(options: argparse.Namespace, prices: Any, assumed: Any, nodes: int) -> int:
    from workbench.cli.entry import complain
    from workbench.fleet.cost import benefit, price_of, tornado

    price = price_of(options.sku, prices)
    if price is None or nodes < 1:
        complain(
            f"no price of {options.sku} is known" if price is None else "the account has no nodes",
            hint="set report.prices, or give --nodes",
        )
        return exits.UNAVAILABLE
    bars = tornado(assumed, nodes=nodes, node_gpus=options.node_gpus, price=price)
    raw = records(bars)
    if options.output not in ("table", "md"):
        sys.stdout.write(written(_BARS, [], options.output, raw=raw))
        return exits.OK
    told = benefit(
        {name: row.value for name, row in assumed.items()}, nodes=nodes, node_gpus=options.node_gpus, price=price.amount
    )
    unit = f"{price.currency} a month"
    sys.stdout.write(
        f"{nodes:,} nodes of {options.node_gpus} GPUs at {price.amount:g} {price.currency} a GPU-hour ({price.source})\n"
        f"failures a month                 {told['failures']:,.1f}\n"
        f"they cost, with nothing          {told['loss']:,.0f} {unit}\n"
        f"they cost, with the workbench    {told['loss_with']:,.0f} {unit}, and its operation {told['operation']:,.0f}: "
        f"saves {told['saved']:,.0f}\n"
        f"they cost, with a managed offer  {told['loss_managed']:,.0f} {unit}, and its price {told['managed']:,.0f}: "
        f"saves {told['saved_managed']:,.0f}\n"
        "\nwhat the saving hangs on, each assumption at the ends of its range, the widest first:\n\n"
    )
    shown = [
        {
            **row,
            **{name: f"{row[name]:g}" for name in ("low", "value", "high")},
            **{name: f"{row[name]:,.0f}" for name in ("at_low", "at_high")},
            "flips": "yes" if row["flips"] else "",
        }
        for row in raw
        if row["swing"] > 0  # the others have no part in this figure
    ]
    sys.stdout.write(written(_BARS, shown, options.output))
    return exits.OK
