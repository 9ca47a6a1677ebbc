"""
Turn a seed into a simulated fleet's ledger and its list of lemons, and that list into how right it is.

Unlike `tests.fleet.lemon_truth`, which draws counts, this begins with faults, jobs, users' own failures, switches that fail, repairs that do not
hold, and verdicts. Run as a program it prints one row a design: ``PYTHONPATH=. python tests/fleet/lemon_fleets.py [SEEDS]``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.fleet.lemon_truth import benjamini_hochberg, poisson_tails, score
from workbench.fleet.ledger import Ledger
from workbench.fleet.lemons import Lemons, lemons
from workbench.simulation.engine import simulate
from workbench.simulation.spec import Spec

BEGIN, DAYS = 1_777_000_000.0, 91.0
# nodes, share of lemons, by how much they fail more, share of the fleet that jobs hold
FLEETS = ((160, 0.05, 25.0, 0.4), (400, 0.02, 15.0, 0.8))


def simulated(seed: int, nodes: int, share: float, factor: float, used: float) -> tuple[Lemons, set[str]]:
    """Return the judgement of a fleet over thirteen weeks by its ledger, and who its lemons are."""
    spec = Spec.read(None).with_(
        seed=seed,
        nodes__count=nodes,
        days=DAYS,
        begin=BEGIN,
        faults__lemons=share,
        faults__lemon_factor=factor,
        jobs__utilisation=used,
    )
    until = BEGIN + DAYS * 86400.0
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "fleet.sqlite") as ledger:
        with ledger.batch():
            truth = set(simulate(spec, ledger.put).truth.lemons)
        frames = [ledger.frame(name, BEGIN, until) for name in ("signals", "attempts", "node_states", "gpus")]
    return lemons(*frames, until=until), truth


def scores(found: Lemons, truth: set[str]) -> dict[str, tuple[float, int]]:
    """Return false share and found lemons of the list, and of the exact Poisson test of each node on the same blames at 5 %."""
    nodes = found.units[found.units["kind"] == "node"]
    right = nodes["unit"].isin(list(truth)).to_numpy(dtype=bool)
    blames, hours = nodes["blames"].to_numpy(dtype=float), nodes["hours"].to_numpy(dtype=float)
    tails: Any = poisson_tails(np.floor(blames + 1e-9), blames.sum() / hours.sum() * hours)
    return {
        "ours": score(nodes["listed"].to_numpy(dtype=bool), right),
        "test": score(benjamini_hochberg(tails, 0.05), right),
    }


def main(seeds: int) -> None:
    """Print a table."""
    print("| nodes | lemons | times | FDR | found | exact Poisson test + BH: FDR | found |\n|---|---|---|---|---|---|---|")
    for design in FLEETS:
        lemons_of, told = 0, []
        for seed in range(1, seeds + 1):
            found, truth = simulated(seed, *design)
            lemons_of += len(truth)
            told.append(scores(found, truth))
        cells = [(np.mean([one[name][0] for one in told]), sum(one[name][1] for one in told)) for name in ("ours", "test")]
        (ours, mine), (test, theirs) = cells
        print(
            f"| {design[0]} | {design[1]:.0%} | {design[2]:g} | {ours:.1%} | {mine} of {lemons_of} | {test:.1%} | {theirs} |",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
