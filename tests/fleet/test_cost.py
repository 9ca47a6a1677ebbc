"""Cost: money from hours, spares from chances, and what the answer rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.fleet.test_lemons import at, table
from workbench.catalog import table as catalog_table
from workbench.errors import ConfigError
from workbench.fleet.cost import (
    act_or_wait,
    assumptions,
    benefit,
    exclude_or_repair,
    incident_costs,
    price_of,
    spares,
    tornado,
)

H100 = "NVIDIA H100 80GB HBM3"


def test_the_sites_price_comes_before_the_list_price() -> None:
    """Each says whose it is."""
    listed = price_of(H100)
    own = price_of(H100, {"H100": "2.50", "currency": "EUR", "default": "1"})
    other = price_of("NVIDIA B200", {"H100": "2.50", "default": "1"})

    assert listed is not None
    assert listed.amount == 6.155
    assert "coreweave" in listed.source
    assert "2026" in listed.source
    assert own is not None
    assert (own.amount, own.currency) == (2.5, "EUR")
    assert other is not None
    assert other.amount == 1.0


def test_a_product_without_price_has_none() -> None:
    """Not zero."""
    assert price_of("some accelerator") is None
    assert price_of(None) is None


@pytest.mark.parametrize("text", ["two", "-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    """A wrong setting must not become a cost of nothing."""
    with pytest.raises(ConfigError, match="H100"):
        price_of(H100, {"H100": text})


def test_every_shipped_price_belongs_to_a_product_and_says_from_where_and_when() -> None:
    """Rows of prices.csv are found by the catalog's products."""
    products = {row["product"] for row in catalog_table("skus")}
    for row in catalog_table("prices"):
        assert row["product"] in products
        assert float(row["price"]) > 0
        assert row["source"].startswith("https://")
        assert row["date"]


def test_an_incident_costs_its_idle_and_lost_hours_and_people() -> None:
    """16 GPUs: half an hour until known, a quarter to recover, one hour of work lost, at 2 a GPU-hour."""
    attempts = table(
        "attempts", [{"job": "j", "attempt": 1, "state": "failed", "cause": "hardware", "cls": "hardware/nvlink", "gpus": 16}]
    )
    jobs = table("jobs", [{"job": "j", "team": "llm", "user": "ada", "sku": H100, "gpus": 16}])
    phases = table(
        "phases",
        [
            {"job": "j", "attempt": 1, "kind": kind, "begin": at(begin), "end": at(end)}
            for kind, begin, end in (("step", 0, 5), ("lost", 5, 6), ("detect", 6, 6.5), ("recover", 6.5, 6.75))
        ],
    )

    row = incident_costs(attempts, jobs, phases, prices={"H100": "2", "currency": "EUR"}).iloc[0]

    assert row["idle_hours"] == pytest.approx(16 * 0.75)
    assert row["lost_hours"] == pytest.approx(16)
    assert row["gpu_cost"] == pytest.approx(2 * 28)
    assert row["people_cost"] == pytest.approx(0.2 * 2 * 100)
    assert row["cost"] == pytest.approx(56 + 40)
    assert (row["team"], row["currency"], row["missing"]) == ("llm", "EUR", "")


def test_what_is_not_known_is_missing_and_not_free() -> None:
    """No phases, no price: no cost, and it says why."""
    attempts = table(
        "attempts", [{"job": "j", "attempt": 1, "state": "failed"}, {"job": "k", "attempt": 1, "state": "completed"}]
    )

    rows = incident_costs(attempts, table("jobs", []), table("phases", []))

    assert len(rows) == 1
    assert pd.isna(rows["cost"].iloc[0])
    assert rows["missing"].iloc[0] == "number of GPUs, phases, price"


def test_waiting_pays_until_the_chance_of_failure_is_high_enough() -> None:
    """The even point is where both cost the same."""
    common: dict[str, Any] = {
        "gpus": 64,
        "price": 2.0,
        "hours_to_checkpoint": 0.5,
        "hours_since_checkpoint": 0.5,
        "restart_hours": 0.2,
    }

    low, high = act_or_wait(chance=0.1, **common), act_or_wait(chance=0.95, **common)
    even = act_or_wait(chance=0.5 / 0.75, **common)

    assert low.best == "wait"
    assert high.best == "act now"
    assert even.costs["act now"] == pytest.approx(even.costs["wait"])
    assert low.costs["act now"] == pytest.approx(64 * 2 * 0.7)


def test_waiting_costs_what_a_simulation_of_it_costs() -> None:
    """The failure comes with the chance given, at any moment until the checkpoint alike."""
    random = np.random.default_rng(4)
    fails = random.random(200_000) < 0.3
    moment = random.random(200_000) * 2.0
    lost = np.where(fails, 0.5 + moment, 0.0) + 0.25

    told = act_or_wait(gpus=8, price=3.0, chance=0.3, hours_to_checkpoint=2.0, hours_since_checkpoint=0.5, restart_hours=0.25)

    assert told.costs["wait"] == pytest.approx(8 * 3.0 * lost.mean(), rel=0.01)


def test_a_lemon_is_kept_out_when_its_failures_cost_more_than_its_gpus() -> None:
    """A bad one in a wide job goes out or is repaired; an ordinary one stays."""
    common: dict[str, Any] = {
        "node_gpus": 8, "price": 2.0, "failures_per_day": 0.0065, "job_gpus": 2048, "hours_lost": 1.0, "days": 30.0, "repair_hours": 72.0, "repair_cost": 500.0, "success": 0.8,
    }  # fmt: skip

    assert exclude_or_repair(times=1.0, **common).best == "use on"
    assert exclude_or_repair(times=60.0, **common).best == "repair"
    assert exclude_or_repair(times=60.0, **(common | {"success": 0.0, "repair_cost": 5e4})).best == "keep out"
    even = exclude_or_repair(times=192.0 / (0.0065 * 2048), **common)
    assert even.costs["use on"] == pytest.approx(even.costs["keep out"])


def brute(needed: int, total: int, availability: float) -> float:
    """Return the chance that enough nodes are usable, adding one node after the other to the distribution of how many are."""
    chances = np.array([1.0])
    for _ in range(total):
        chances = np.convolve(chances, [1 - availability, availability])
    return float(chances[needed:].sum())


@pytest.mark.parametrize("availability", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("target", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("needed", [1, 2, 5])
def test_spares_are_the_fewest_that_reach_the_target_by_brute_force(needed: int, availability: float, target: float) -> None:
    """Enough, and one less is not."""
    number = spares(needed, availability, target)

    assert brute(needed, needed + number, availability) >= target
    assert number == 0 or brute(needed, needed + number - 1, availability) < target


def test_spares_of_a_large_fleet_are_those_of_a_simulation() -> None:
    """2,000 nodes at 99 %: about 20 are down, and 95 % of the time not many more."""
    number = spares(2000, 0.99, 0.95)
    down = np.random.default_rng(2).binomial(2000 + number, 0.01, 400_000)

    assert (down <= number).mean() >= 0.948
    assert (down <= number - 2).mean() < 0.95
    assert spares(10, 1.0, 0.99) == 0


def test_spares_refuse_what_cannot_be() -> None:
    """A share of 0 needs infinitely many."""
    for bad in ((0, 0.9, 0.9), (3, 0.0, 0.9), (3, 0.9, 1.0)):
        with pytest.raises(ValueError, match="share"):
            spares(*bad)


def test_every_assumption_may_be_replaced_and_has_a_source_and_a_range(tmp_path: Path) -> None:
    """One number fixes it, three give a new range."""
    file = tmp_path / "own.toml"
    file.write_text("person_hour = 80\njob_nodes = [4, 8, 32]\n", encoding="utf-8")

    own = assumptions(file)

    assert (own["person_hour"].low, own["person_hour"].value, own["person_hour"].high) == (80, 80, 80)
    assert (own["job_nodes"].low, own["job_nodes"].value) == (4, 8)
    assert own["person_hour"].source == "own.toml"
    for row in assumptions().values():
        assert row.source
        assert row.low <= row.value <= row.high


@pytest.mark.parametrize(
    "text",
    ["persson_hour = 80", "person_hour = true", "person_hour = [3, 2, 1]", "person_hour = [1, 2]", "person_hour = 'x'", "="],
)
def test_a_wrong_assumption_is_refused(tmp_path: Path, text: str) -> None:
    """A misspelt name must not leave the shipped value in force."""
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError):
        assumptions(file)


def test_the_tornado_says_which_assumption_decides() -> None:
    """Each bar is the figure at the ends of one range, the widest first; its base is the figure itself."""
    known, price = assumptions(), price_of(H100)
    assert price is not None
    rows = tornado(known, nodes=64, node_gpus=8, price=price)
    values = {name: row.value for name, row in known.items()}
    base = benefit(values, nodes=64, node_gpus=8, price=price.amount)["saved"]

    assert set(rows["name"]) == {*known, "price"}
    assert (rows["base"] == base).all()
    assert rows["swing"].is_monotonic_decreasing
    bar = rows.set_index("name").loc["detect_hours"]
    assert (
        bar["at_high"]
        == benefit({**values, "detect_hours": known["detect_hours"].high}, nodes=64, node_gpus=8, price=price.amount)["saved"]
    )
    assert rows.set_index("name").loc["managed_per_gpu_hour", "swing"] == 0.0  # has no part in this figure


def test_a_tool_without_effect_saves_nothing() -> None:
    """Then only its operation is left."""
    values = {name: row.value for name, row in assumptions().items()}
    for name in ("detect_hours", "diagnose_hours", "repeat_share"):
        values[f"{name}_with"] = values[name]

    told = benefit(values, nodes=64, node_gpus=8, price=2.0)

    assert told["saved"] == pytest.approx(-told["operation"])
    assert told["loss_managed"] == pytest.approx(told["loss"])
