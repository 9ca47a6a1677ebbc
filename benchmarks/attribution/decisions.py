#!/usr/bin/env python3
"""
Turn labelled failure cases into what `workbench.training.retry.decide` makes of their verdicts, beside what the labels call for.

    python benchmarks/attribution/decisions.py [CASES …] [--json] [--show]

Each case is triaged as it lies there, and the decision is asked for as after the first attempt of a job that had made steps and saved nothing.
Where it starts again, the same failure comes a second time: a fault of the user must end there.

Counted are false stops (a case whose label lets it be tried again, on the same nodes or without one, and that is neither the user's nor over),
false restarts (a certain fault of the user that starts again, or any fault of the user that starts a third time) and wrong exclusions (a
node that the label does not blame).
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from workbench.training.attempts import Attempt, History
from workbench.training.policy import Policy
from workbench.training.retry import Decision, attempt_of, certain, decide

HERE = Path(__file__).resolve().parent
ERRORS = ("false stop", "false restart", "wrong exclusion")
Truth = dict[str, Any]


def cases_of(root: Path) -> list[tuple[str, Truth, Path]]:
    """Return name, label and input folder of each case under a folder, by name."""
    files = sorted(root.glob("*/truth.json"))
    return [(file.parent.name, json.loads(file.read_text(encoding="utf-8")), file.parent / "input") for file in files]


def decided(verdict: Any, policy: Policy) -> tuple[Decision, Decision | None]:
    """Return the decisions after the first attempt, and after the same failure once more where it was started again."""
    first = Attempt(1, started=0.0, ended=100.0, exit_code=1, step_first=1, step_last=10)
    once = decide(verdict, History((first,), now=100.0), policy)
    if once.action != "restart":
        return once, None
    again = Attempt(2, started=200.0, ended=300.0, exit_code=1, step_first=11, step_last=20, excluded=once.excluded)
    return once, decide(verdict, History((attempt_of(verdict, first, policy), again), now=300.0), policy)


def errors_of(truth: Truth, verdict: Any, once: Decision, twice: Decision | None, policy: Policy) -> list[str]:
    """Return which of `ERRORS` a case shows."""
    found = []
    wanted = {truth.get("retry"), *(truth.get("retry_also") or ())} - {None}
    users = truth["cause"] == "user" and truth["class"] != "user/stopped"
    over = truth["class"] in ("user/stopped", "none")
    if not users and not over and once.action == "stop" and wanted & {"same-nodes", "exclude-node", "fix-first"}:
        found.append("false stop")
    if users and wanted == {"fix-first"}:
        sure = truth["class"] in policy.certain_classes and certain(verdict, policy)
        third = once.cause == "user" and twice is not None and twice.action == "restart"
        if (sure and once.action == "restart") or third:
            found.append("false restart")
    left_out = set(once.exclude_nodes)
    if left_out and (users or (truth.get("node") and left_out != {truth["node"]})):
        found.append("wrong exclusion")
    return found


def account(root: Path, policy: Policy | None = None) -> dict[str, Any]:
    """Triage and decide all cases of a folder: counts by cause and action, errors by kind, and the rows."""
    from workbench.incident import load

    rules = policy or Policy()
    actions: collections.Counter[str] = collections.Counter()
    errors: dict[str, list[str]] = {name: [] for name in ERRORS}
    rows = []
    with tempfile.TemporaryDirectory(prefix="decisions-") as scratch:
        for number, (name, truth, folder) in enumerate(cases_of(root)):
            neutral = Path(scratch) / f"incident-{number:04d}"  # no path gives the answer away
            neutral.symlink_to(folder.resolve(), target_is_directory=True)
            verdict = load(neutral).triage()
            once, twice = decided(verdict, rules)
            kind = (
                "user, certain class"
                if truth["class"] in rules.certain_classes
                else truth["class"]
                if truth["class"] == "user/stopped"
                else truth["cause"]
            )
            what = once.action + (" without the node" if once.exclude_nodes else "")
            actions[f"{kind}: {what}"] += 1
            for error in errors_of(truth, verdict, once, twice, rules):
                errors[error].append(name)
            rows.append(
                {
                    "case": name,
                    "class": truth["class"],
                    "verdict": verdict.cls,
                    "confidence": verdict.confidence,
                    "action": what,
                    "then": twice and twice.action,
                    "reason": once.reason,
                }
            )
    return {"cases": len(rows), "actions": dict(sorted(actions.items())), "errors": errors, "rows": rows}


def main() -> int:
    """Print the account of each folder; 1 when there is an error."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", type=Path, default=[HERE / "cases"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true", help="also every case")
    options = parser.parse_args()
    bad = 0
    for root in options.cases:
        result = account(root)
        bad += sum(map(len, result["errors"].values()))
        if options.json:
            print(json.dumps(result))
            continue
        print(f"{root}: {result['cases']} cases")
        for what, count in result["actions"].items():
            print(f"  {count:4d}  {what}")
        for what, names in result["errors"].items():
            print(f"  {what}: {len(names)}" + (f"  {' '.join(names)}" if names else ""))
        for row in result["rows"] if options.show else ():
            print(f"  {row['case']}: {row['verdict']} {row['confidence']:.2f} → {row['action']}: {row['reason']}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
