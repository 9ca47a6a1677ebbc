"""Turn a file's name into a small simulated account of nine weeks that end now, to look at before one has an account of one's own."""

from __future__ import annotations

from pathlib import Path

from workbench.fleet.ledger import Ledger
from workbench.simulation.engine import simulate
from workbench.simulation.spec import Spec

__all__ = ["WEEKS", "demo_ledger"]

WEEKS = 9
_WEEK = 7 * 86400.0
# worse than a usual fleet, so that eight weeks of 512 GPUs show what eight months would: more faults, three lemons, slow to notice, few retries
_CHANGES = {
    "seed": 3,
    "nodes__count": 64,
    "faults__per_1000_node_days": 14.0,
    "faults__lemons": 0.05,
    "faults__lemon_factor": 40.0,
    "faults__storage_per_day": 0.05,
    "jobs__mix": [[8, 0.30, 4.0, 1.1], [16, 0.28, 5.0, 1.0], [32, 0.22, 6.0, 1.0], [64, 0.14, 9.0, 0.9], [128, 0.06, 12.0, 0.8]],
    "jobs__user_fails": 0.08,
    "jobs__start": 300.0,
    "policy__interval": 5400.0,
    "policy__save": 90.0,
    "policy__detect_crash": 180.0,
    "policy__detect_hang": 1800.0,
    "policy__hardware": 1,
    "policy__platform": 1,
    "policy__phases_from": 8,
}


def demo_ledger(path: Path, now: float) -> Path:
    """
    Write the account.

    Parameters
    ----------
    path : Path
        A file that is not there yet.
    now : float
        Seconds since the epoch; the account ends there.

    Returns
    -------
    Path
        The same. It takes about half a second.
    """
    monday = ((now // 86400 + 3) // 7 * 7 - 3) * 86400.0
    begin = monday - (WEEKS - 1) * _WEEK
    spec = Spec.read(None).with_(**_CHANGES, begin=begin, days=(now - begin) / 86400.0)
    with Ledger.open(path) as ledger, ledger.batch():
        simulate(spec, ledger.put)
    return path
