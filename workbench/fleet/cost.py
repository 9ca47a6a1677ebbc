"""
Turn failures, prices and assumptions into money: cost of an incident, act or wait, exclude or repair, spares, and whether it all pays.

Every number that is not measured is a row of ``catalog/cost_assumptions.csv`` with a low and a high value, and can be replaced by a site's
own (a TOML file of ``name = value`` or ``name = [low, value, high]``). Results say which of them they rest on.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.catalog import table
from workbench.catalog.skus import sku_of
from workbench.errors import CatalogError, ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COSTS",
    "Assumption",
    "Choice",
    "Price",
    "act_or_wait",
    "assumptions",
    "benefit",
    "exclude_or_repair",
    "incident_costs",
    "price_of",
    "spares",
    "tornado",
]

COSTS = (
    *("cluster", "job", "attempt", "team", "user", "cause", "cls", "sku", "idle_hours", "lost_hours", "people_hours"),
    *("gpu_cost", "people_cost", "cost", "currency", "price_source", "missing"),
)
HOURS_A_MONTH = 730.0  # 365 × 24 / 12


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a GPU-hour; `source` says whose it is: a public list price with its date, or the site's setting."""

    amount: float
    currency: str
    product: str
    source: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """A number that was not measured here, the range in which it may be, and where it is from."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    meaning: str
    source: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Two ways and what each is expected to cost, in money; `best` names the cheaper, `why` the numbers, `even` where they are equal."""

    costs: dict[str, float]
    best: str
    why: str
    even: str


def price_of(product: str | None, site: Mapping[str, str] | None = None) -> Price | None:
    """
    Return the price of a GPU-hour of a product: the site's (``report.prices``) before the public list price; None when neither has one.

    Parameters
    ----------
    product : str or None
        As the driver or the scheduler spells it.
    site : mapping, optional
        The setting ``report.prices``: product → price; ``default`` for all others, ``currency`` names the currency. Of the site's names the
        longest that occurs in the product counts.
    """
    rows = dict(site or {})
    currency = str(rows.pop("currency", "")).strip()
    said = (product or "").lower().replace("-", " ")
    names = [name for name in rows if name != "default" and name.lower().replace("-", " ") in said]
    name = max(names, key=len) if names else "default"
    if name in rows:
        try:
            amount = float(str(rows[name]).strip())
        except ValueError:
            amount = -1.0
        if not (amount >= 0 and math.isfinite(amount)):
            raise ConfigError(f"report.prices: {name} is {rows[name]!r}, no price", hint='write it as H100 = "2.50"')
        return Price(amount, currency, product or "", f"setting report.prices, {name}")
    known = sku_of(product or "")
    for row in table("prices"):
        if row["product"] == (known.product if known else product):
            return Price(
                float(row["price"]),
                row["currency"],
                row["product"],
                f"list price, {row['date']}: {row['offer']} ({row['source']})",
            )
    return None


def assumptions(file: Path | None = None) -> dict[str, Assumption]:
    """
    Return all assumptions by name, a site's own over the shipped ones.

    Parameters
    ----------
    file : Path, optional
        TOML; each line ``name = value`` or ``name = [low, value, high]``.

    Raises
    ------
    ConfigError
        The file cannot be read, names an assumption that there is not, or a value is no number within its range.
    """
    rows: dict[str, Assumption] = {}
    for row in table("cost_assumptions"):
        try:
            low, value, high = (float(row[name]) for name in ("low", "value", "high"))
        except ValueError as error:
            raise CatalogError(f"cost_assumptions.csv: {row['name']}: {error}", hint="correct the row") from None
        rows[row["name"]] = Assumption(row["name"], value, low, high, row["unit"], row["meaning"], row["source"])
    if file is None:
        return rows
    try:
        own = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}", hint="see docs/cost.md for the form") from None
    for name, given in own.items():
        if name not in rows:
            raise ConfigError(f"{file}: there is no assumption {name!r}", hint=f"known are {', '.join(rows)}")
        numbers = given if isinstance(given, list) else [given]
        if any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in numbers) or len(numbers) not in (1, 3):
            raise ConfigError(f"{file}: {name} is {given!r}", hint="write one number, or [low, value, high]")
        low, value, high = (numbers[0], numbers[0], numbers[0]) if len(numbers) == 1 else numbers
        if not 0 <= low <= value <= high:
            raise ConfigError(f"{file}: {name}: {low} ≤ {value} ≤ {high} does not hold", hint="order them as low, value, high")
        old = rows[name]
        rows[name] = Assumption(name, float(value), float(low), float(high), old.unit, old.meaning, f"{file.name}")
    return rows


def incident_costs(
    attempts: pd.DataFrame,
    jobs: pd.DataFrame,
    phases: pd.DataFrame,
    *,
    prices: Mapping[str, str] | None = None,
    assumed: Mapping[str, Assumption] | None = None,
) -> pd.DataFrame:
    """
    Return what each failed attempt cost, and who lost it.

    Parameters
    ----------
    attempts, jobs, phases : DataFrame
        As in `workbench.fleet.tables`.
    prices : mapping, optional
        The setting ``report.prices``.
    assumed : mapping, optional
        As `assumptions` returns them.

    Returns
    -------
    DataFrame
        One row a failed attempt: cluster, job, attempt, team, user, cause, cls, sku; `idle_hours` GPU-hours between failure and next start
        (phases detect, diagnose, recover, idle), `lost_hours` GPU-hours of work done again (phase lost), `people_hours`, `gpu_cost`,
        `people_cost`, `cost`, `currency`, `price_source`, `missing` (what nobody told; its part is not in the sum and no zero).
    """
    import pandas as pd

    known = assumed or assumptions()
    people = known["manual_share"].value * known["diagnose_hours"].value
    by_job = {(_text(row.cluster), _text(row.job)): row for row in _rows(jobs)}
    spent: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in _rows(phases):
        if not pd.isna(row.begin) and not pd.isna(row.end) and not pd.isna(row.attempt):
            key = (_text(row.cluster), _text(row.job), int(row.attempt))
            hours = (row.end - row.begin).total_seconds() / 3600.0
            spent.setdefault(key, {})[row.kind] = spent.get(key, {}).get(row.kind, 0.0) + hours
    out = []
    for row in _rows(attempts):
        if row.state != "failed":
            continue
        key = (_text(row.cluster), _text(row.job), int(row.attempt))
        job = by_job.get(key[:2])
        sku = "" if job is None else _text(job.sku)
        gpus = row.gpus if not pd.isna(row.gpus) else None if job is None or pd.isna(job.gpus) else job.gpus
        phase = spent.get(key)
        missing = []
        idle = lost = None
        if gpus is None:
            missing.append("number of GPUs")
        if phase is None:
            missing.append("phases")
        if gpus is not None and phase is not None:
            idle = int(gpus) * sum(phase.get(kind, 0.0) for kind in ("detect", "diagnose", "recover", "idle"))
            lost = int(gpus) * phase["lost"] if "lost" in phase else None
            if lost is None:
                missing.append("work lost")
        price = price_of(sku, prices)
        if price is None:
            missing.append("price")
        hours = sum(part for part in (idle, lost) if part is not None)
        gpu_cost = None if price is None or (idle is None and lost is None) else hours * price.amount
        people_cost = people * known["person_hour"].value
        out.append(
            {
                "cluster": key[0],
                "job": key[1],
                "attempt": key[2],
                "team": "" if job is None else _text(job.team),
                "user": "" if job is None else _text(job.user),
                "cause": _text(row.cause),
                "cls": _text(row.cls),
                "sku": sku,
                "idle_hours": idle,
                "lost_hours": lost,
                "people_hours": people,
                "gpu_cost": gpu_cost,
                "people_cost": people_cost,
                "cost": None if gpu_cost is None else gpu_cost + people_cost,
                "currency": "" if price is None else price.currency,
                "price_source": "" if price is None else price.source,
                "missing": ", ".join(missing),
            }
        )
    frame = pd.DataFrame(out, columns=list(COSTS))
    numbers = ["idle_hours", "lost_hours", "people_hours", "gpu_cost", "people_cost", "cost"]
    return frame.astype(dict.fromkeys(numbers, "Float64"))


def _rows(frame: pd.DataFrame) -> Any:
    """Return rows with a name for each cell."""
    return frame.itertuples(index=False)


def _text(value: Any) -> str:
    import pandas as pd

    return "" if value is None or value is pd.NA or value != value else str(value)


def act_or_wait(
    *, gpus: int, price: float, chance: float, hours_to_checkpoint: float, hours_since_checkpoint: float, restart_hours: float
) -> Choice:
    """
    Weigh stopping a job now against waiting for its next checkpoint, when a fault threatens it.

    Parameters
    ----------
    gpus : int
        GPUs of the job.
    price : float
        Of a GPU-hour.
    chance : float
        That the fault kills the job before its next checkpoint, 0 to 1: of a warning, what its record says.
    hours_to_checkpoint, hours_since_checkpoint : float
        Until the next one, and since the last.
    restart_hours : float
        From the stop to the first step.

    Returns
    -------
    Choice
        Stopping now loses the work since the last checkpoint. Waiting loses nothing when the fault holds off; otherwise the work up to the
        moment of the failure, taken to be in the middle of the time that is left. The restart is needed either way.
    """
    if not 0.0 <= chance <= 1.0 or min(hours_to_checkpoint, hours_since_checkpoint, restart_hours, price) < 0:
        raise ValueError("a chance is between 0 and 1, hours and prices are not negative")
    now = gpus * price * (hours_since_checkpoint + restart_hours)
    wait = gpus * price * (chance * (hours_since_checkpoint + hours_to_checkpoint / 2.0) + restart_hours)
    best = "act now" if now < wait else "wait"
    even = hours_since_checkpoint / (hours_since_checkpoint + hours_to_checkpoint / 2.0) if hours_since_checkpoint else 0.0
    why = (
        f"now: {hours_since_checkpoint:.3g} h of work of {gpus} GPUs are done again; waiting: with {chance:.0%} chance "
        f"{hours_since_checkpoint + hours_to_checkpoint / 2:.3g} h are"
    )
    return Choice({"act now": now, "wait": wait}, best, why, f"equal at a chance of {even:.0%}")


def exclude_or_repair(
    *,
    node_gpus: int,
    price: float,
    times: float,
    failures_per_day: float,
    job_gpus: int,
    hours_lost: float,
    days: float,
    repair_hours: float,
    repair_cost: float,
    success: float,
) -> Choice:
    """
    Weigh three ways with a node that fails more often: use it on, keep it out, repair it.

    Parameters
    ----------
    node_gpus : int
        GPUs of the node.
    price : float
        Of a GPU-hour.
    times : float
        By how much its failure rate exceeds the usual (as lemons say it).
    failures_per_day : float
        Of a usual node.
    job_gpus : int
        GPUs of a job that its failure stops.
    hours_lost : float
        Hours that such a job loses each time.
    days : float
        Over which to look.
    repair_hours, repair_cost : float
        How long it is away for repair, and what that costs besides.
    success : float
        Share of repairs after which it is as the others.

    Returns
    -------
    Choice
    """
    if (
        min(node_gpus, price, times, failures_per_day, job_gpus, hours_lost, days, repair_hours, repair_cost) < 0
        or not 0 <= success <= 1
    ):
        raise ValueError("nothing may be negative, and success is between 0 and 1")
    each = job_gpus * hours_lost * price
    use = failures_per_day * times * days * each
    out = node_gpus * 24.0 * days * price
    away = min(repair_hours / 24.0, days)
    left = days - away
    # a repair that did not help is followed by keeping it out
    repair = repair_cost + node_gpus * 24.0 * away * price
    repair += left * (success * failures_per_day * each + (1.0 - success) * node_gpus * 24.0 * price)
    costs = {"use on": use, "keep out": out, "repair": repair}
    best = min(costs, key=lambda name: costs[name])
    number = failures_per_day * times * days
    why = (
        f"{number:.2g} failures of {job_gpus} GPUs for {hours_lost:g} h in {days:g} days against {node_gpus} GPUs standing still"
    )
    even = node_gpus * 24.0 / (failures_per_day * job_gpus * hours_lost) if failures_per_day * job_gpus * hours_lost else math.inf
    return Choice(costs, best, why, f"keeping it out pays from {even:.3g} times the usual failure rate on")


def spares(needed: int, availability: float, target: float) -> int:
    """
    Return how many spare nodes keep at least `needed` nodes usable for `target` of the time.

    Nodes fail independently and each is usable for a share `availability` of the time, so that the number usable of n is binomial: the
    smallest s with P(usable ≥ needed | n = needed + s) ≥ target. Faults that take several nodes at once (a rack's power, a switch) are
    not in it: add one such group.

    Raises
    ------
    ValueError
        A share is not between 0 and 1, or no number of spares is enough.
    """
    if needed < 1 or not 0.0 < availability <= 1.0 or not 0.0 < target < 1.0:
        raise ValueError("needed is at least 1; availability and target are shares above 0, the target below 1")
    if availability == 1.0:
        return 0
    # P(all needed usable before the (s+1)-th unusable one): the negative binomial's mass, summed over how many are down
    log_up, down = math.log(availability), 1.0 - availability
    for limit in range(100 * needed + 100):
        total = needed + limit
        # P(down ≤ limit) of a binomial(total, down), from its mass at 0 upwards in logarithms
        log_term = total * log_up
        terms = [log_term]
        for count in range(1, limit + 1):
            log_term += math.log((total - count + 1) / count) + math.log(down) - log_up
            terms.append(log_term)
        top = max(terms)
        if math.exp(top) * math.fsum(math.exp(term - top) for term in terms) >= target:
            return limit
    raise ValueError("no number of spares is enough")


def benefit(assumed: Mapping[str, float], *, nodes: int, node_gpus: int, price: float) -> dict[str, float]:
    """
    Return what failures cost a fleet in a month: with nothing, with this tool, with a managed offer; and what the ways themselves cost.

    Parameters
    ----------
    assumed : mapping of str to float
        Values of `assumptions`.
    nodes, node_gpus : int
        The fleet.
    price : float
        Of a GPU-hour.

    Returns
    -------
    dict
        ``failures`` a month, ``loss``, ``loss_with``, ``loss_managed``, ``operation``, ``managed``, ``saved`` (this tool against nothing),
        ``saved_managed``, and ``net``: this tool against the managed offer.
    """
    a = assumed
    failures = a["failures_per_1000_node_days"] / 1000.0 * nodes * HOURS_A_MONTH / 24.0
    gpus = min(nodes, a["job_nodes"]) * node_gpus

    def loss(detect: float, diagnose: float, repeat: float) -> float:
        hours = detect + a["restart_hours"] + a["checkpoint_hours"] / 2.0
        # a failure by a node that should have been out comes again, and that again: a geometric series
        many = failures / max(1e-9, 1.0 - min(repeat, 0.99))
        return many * (gpus * hours * price + a["manual_share"] * diagnose * a["person_hour"])

    nothing = loss(a["detect_hours"], a["diagnose_hours"], a["repeat_share"])
    ours = loss(a["detect_hours_with"], a["diagnose_hours_with"], a["repeat_share_with"])
    effect = a["managed_effect"]
    managed = nothing - effect * (nothing - ours)
    operation = (a["operation_hours"] + a["setup_hours"] / 36.0) * a["person_hour"] + a["tool_machines"]
    fee = a["managed_per_gpu_hour"] * nodes * node_gpus * HOURS_A_MONTH + a["managed_operation_hours"] * a["person_hour"]
    return {
        "failures": failures,
        "loss": nothing,
        "loss_with": ours,
        "loss_managed": managed,
        "operation": operation,
        "managed": fee,
        "saved": nothing - ours - operation,
        "saved_managed": nothing - managed - fee,
        "net": (managed + fee) - (ours + operation),
    }


def tornado(
    assumed: Mapping[str, Assumption],
    *,
    nodes: int,
    node_gpus: int,
    price: Price,
    price_range: tuple[float, float] = (0.4, 1.2),
    figure: str = "saved",
) -> pd.DataFrame:
    """
    Return how a figure of `benefit` moves when one assumption after the other goes to the ends of its range: rows of a tornado plot.

    Parameters
    ----------
    assumed : mapping
        As `assumptions` returns them.
    nodes, node_gpus : int
    price : Price
    price_range : tuple of float
        Factors of the price at its ends: discounts of long reservations, dearer clouds.
    figure : str
        A key of `benefit`.

    Returns
    -------
    DataFrame
        Columns name, unit, low, value, high (the assumption), at_low, base, at_high (the figure), swing, flips (whether its sign changes
        within the range), meaning, source; widest swing first.
    """
    import pandas as pd

    values = {name: row.value for name, row in assumed.items()}

    def at(amount: float, **change: float) -> float:
        return benefit({**values, **change}, nodes=nodes, node_gpus=node_gpus, price=amount)[figure]

    base = at(price.amount)
    rows = []
    for name, row in assumed.items():
        low, high = at(price.amount, **{name: row.low}), at(price.amount, **{name: row.high})
        rows.append((name, row.unit, row.low, row.value, row.high, low, base, high, row.meaning, row.source))
    low, high = at(price.amount * price_range[0]), at(price.amount * price_range[1])
    ends = (price.amount * price_range[0], price.amount, price.amount * price_range[1])
    rows.append(("price", f"{price.currency}/GPU-hour", *ends, low, base, high, "price of a GPU-hour", price.source))
    frame = pd.DataFrame(rows, columns=["name", "unit", "low", "value", "high", "at_low", "base", "at_high", "meaning", "source"])
    frame.insert(8, "swing", (frame["at_high"] - frame["at_low"]).abs())
    frame.insert(9, "flips", (frame["at_low"] * frame["base"] < 0) | (frame["at_high"] * frame["base"] < 0))
    return frame.sort_values(["swing", "name"], ascending=[False, True], ignore_index=True)
