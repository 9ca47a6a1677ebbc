#!/usr/bin/env python3
"""
Turn labelled failure cases and a triage command into figures: how often cause, class, place and advice are right.

    score.py CASES [--command "workbench triage {inputs} --output jsonl"] [--kinds] [--ablations] [--json] [--gate]

Any tool can be scored: the command gets all input folders in place of {inputs} and prints one JSON object a line, in the same
order (README.md says which fields are read). Folders are copied to neutral names first, so that no path gives an answer away.
Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CAUSES = ("hardware", "driver", "platform", "user", "unknown", "none")
# Which team acts is what matters first; which rung of the ladder is scored apart ("remediation exact").
ACTS = {
    "none": "restart",
    "restart-task": "restart",
    "reset-gpu": "repair",
    "reboot-node": "repair",
    "drain": "repair",
    "replace-node": "repair",
    "fix-user-code": "user",
    "fix-platform": "platform",
}
RIGHT = ("cause", "class", "node", "gpu", "rank", "line@3", "retry", "remediation")
WRONG = ("symptom blamed", "false hardware", "innocent blamed")
# what a build of ours must reach on cases it has not been tuned to; the gate is checked on every set it is run on
GATES: dict[str, tuple[str, float]] = {
    "cause": (">=", 0.95),
    "class": (">=", 0.90),
    "class macro-F1": (">=", 0.85),
    "node": (">=", 0.95),
    "gpu": (">=", 0.95),
    "rank": (">=", 0.95),
    "line@3": (">=", 0.90),
    "symptom blamed": ("<=", 0.02),
    "false hardware": ("<=", 0.0),
    "innocent blamed": ("<=", 0.0),
    "retry": (">=", 0.90),
    "remediation": (">=", 0.90),
    "Brier": ("<=", 0.08),
}
ABLATIONS: dict[str, Callable[[Path], bool]] = {
    "logs only": lambda path: path.parts[0] == "logs",
    "without kernel": lambda path: path.parts[0] not in ("kernel", "pstore"),
    "without metrics": lambda path: path.parts[0] != "metrics",
}
Case = dict[str, Any]


def load_cases(root: Path) -> list[Case]:
    """Return the cases under a folder, by name."""
    cases = []
    for file in sorted(root.glob("*/truth.json")):
        truth: Case = json.loads(file.read_text(encoding="utf-8"))
        source = str(truth.get("source") or "")
        kind = "simulated" if source == "simulated" else "run" if source.startswith("generated") else "report"
        cases.append({**truth, "id": file.parent.name, "input": file.parent / "input", "kind": kind})
    return cases


def evidence_of(case: Case, keep: Callable[[Path], bool] | None) -> list[Path]:
    """Return the files of a case, relative to its input folder, that an ablation keeps."""
    files = [path.relative_to(case["input"]) for path in sorted(case["input"].rglob("*")) if path.is_file()]
    return [path for path in files if keep is None or keep(path)]


def run(cases: list[Case], command: str, timeout: float, keep: Callable[[Path], bool] | None = None) -> tuple[list[Any], float]:
    """Run the command once over all cases; return its verdicts and its seconds."""
    with tempfile.TemporaryDirectory(prefix="attribution-") as scratch:
        folders = []
        for number, case in enumerate(cases):
            folder = Path(scratch) / f"incident-{number:04d}"
            folder.mkdir()
            for path in evidence_of(case, keep):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(case["input"] / path, folder / path)
            folders.append(str(folder))
        words = [word for part in shlex.split(command) for word in (folders if part == "{inputs}" else [part])]
        started = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
        seconds = time.monotonic() - started
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if len(lines) != len(cases):
        sys.exit(
            f"score: {len(cases)} cases, but {len(lines)} lines came back (exit code {done.returncode})\n{done.stderr[-2000:]}"
        )
    return [json.loads(line) for line in lines], seconds


def same_gpu(truth: Any, gpu: dict[str, Any] | None) -> bool:
    """Say whether a verdict's GPU is the true one, which is known by index, UUID or PCI address, in whatever spelling."""
    wanted = str(truth).lower()
    for key in ("index", "uuid", "pci"):
        have = (gpu or {}).get(key)
        if have is None:
            continue
        if str(have).lower() == wanted or (key == "pci" and _address(str(have)) == _address(wanted)):
            return True
    return False


def _address(text: str) -> str:
    """`00000000:3B:00.0`, `0000:3b:00.0` and `0000:3b:00` are one address."""
    return re.sub(r"\.[0-7]$", "", text.lower()).lstrip("0:") if ":" in text else text.lower()


def judge(truth: Case, verdict: dict[str, Any]) -> dict[str, bool | None]:
    """Return measure → right or not; None where the case does not decide it."""
    classes = {truth["class"], *truth.get("also", [])}
    causes = {truth["cause"], *(name.split("/")[0] for name in classes)}
    culprit = verdict.get("culprit") or {}
    evidence = verdict.get("evidence") or []
    blamed = [row for row in evidence if row.get("role") == "cause"]

    def accepted(field: str) -> set[str]:
        return {truth[field], *(truth.get(f"{field}_also") or [])}

    def quoted(needles: Iterable[str], rows: list[dict[str, Any]]) -> bool:
        return any(needle.lower() in str(row.get("text") or "").lower() for needle in needles for row in rows)

    result: dict[str, bool | None] = dict.fromkeys((*RIGHT, *WRONG, "remediation exact", "line@1"))
    result["cause"] = verdict.get("cause") in causes
    result["class"] = verdict.get("class") in classes
    if truth.get("retry"):
        result["retry"] = verdict.get("retry") in accepted("retry")
    if truth.get("remediation"):
        result["remediation"] = ACTS.get(str(verdict.get("remediation"))) in {ACTS[name] for name in accepted("remediation")}
        result["remediation exact"] = verdict.get("remediation") in accepted("remediation")
    if truth.get("node"):
        result["node"] = culprit.get("node") == truth["node"]
    if truth.get("gpu") is not None:
        result["gpu"] = same_gpu(truth["gpu"], culprit.get("gpu"))
    if truth.get("rank") is not None:
        result["rank"] = culprit.get("rank") in truth.get("rank_accept", [truth["rank"]])
    if truth.get("culprit_first_line"):
        needles = [truth["culprit_first_line"], *(truth.get("lines_also") or [])]
        result["line@1"] = quoted(needles, (blamed or evidence)[:1])
        result["line@3"] = quoted(needles, (blamed or evidence)[:3])
    if truth.get("symptom_lines"):
        result["symptom blamed"] = quoted(truth["symptom_lines"], blamed)
    if truth["cause"] in ("user", "platform"):
        result["false hardware"] = verdict.get("cause") == "hardware"
    if truth["cause"] == "user" or (not truth.get("node") and not {"hardware", "driver"} & causes):
        result["innocent blamed"] = culprit.get("at_fault") in ("gpu", "node")
    return result


def macro_f1(pairs: list[tuple[str, str]]) -> float:
    """Return the mean F1 over all names that occur, from (true, said) pairs."""
    names = {name for pair in pairs for name in pair}
    total = 0.0
    for name in names:
        hit = sum(true == said == name for true, said in pairs)
        count = sum(true == name for true, _ in pairs) + sum(said == name for _, said in pairs)
        total += 2 * hit / count if count else 0.0
    return total / len(names) if names else 0.0


def figures(cases: list[Case], verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return measure → [right, of, share] or a number."""
    tally: dict[str, list[bool]] = collections.defaultdict(list)
    causes, classes, squares = [], [], []
    for case, verdict in zip(cases, verdicts, strict=True):
        result = judge(case, verdict)
        for name, value in result.items():
            if value is not None:
                tally[name].append(value)
        causes.append((case["cause"], case["cause"] if result["cause"] else str(verdict.get("cause"))))
        classes.append((case["class"], case["class"] if result["class"] else str(verdict.get("class"))))
        sure = verdict.get("confidence")
        if isinstance(sure, int | float) and verdict.get("cause") not in ("unknown", "none"):
            squares.append((sure - float(bool(result["class"]))) ** 2)
    table: dict[str, Any] = {
        name: [sum(tally[name]), len(tally[name]), round(sum(tally[name]) / len(tally[name]), 4)]
        for name in (*RIGHT, "line@1", "remediation exact", *WRONG)
        if tally[name]
    }
    table["cause macro-F1"] = round(macro_f1(causes), 4)
    table["class macro-F1"] = round(macro_f1(classes), 4)
    if squares:
        table["Brier"] = round(sum(squares) / len(squares), 4)
    table["cases"] = len(cases)
    return table


def missed(table: dict[str, Any]) -> list[str]:
    """Return the gates that figures do not pass."""
    out = []
    for name, (sign, limit) in GATES.items():
        value = table.get(name)
        share = value[2] if isinstance(value, list) else value
        if share is not None and (share < limit if sign == ">=" else share > limit):
            out.append(f"{name} {share} is not {sign} {limit}")
    return out


def print_cases(cases: list[Case], verdicts: list[dict[str, Any]], show: str) -> None:
    """Print one line per case: what was said, what is true, what is wrong."""
    for case, verdict in zip(cases, verdicts, strict=True):
        result = judge(case, verdict)
        bad = [name for name in RIGHT if result[name] is False] + [name for name in WRONG if result[name]]
        if show == "all" or (show == "wrong" and bad):
            said = f"said {verdict.get('class')} ({verdict.get('confidence')}), truth {case['class']}"
            print(f"{'MISS' if bad else 'ok  '} {case['id']}: {said}; {', '.join(bad) or 'all right'}")


def print_table(tables: dict[str, dict[str, Any]]) -> None:
    """Print figures side by side, a column per table."""
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    print(f"{'':18}" + "".join(f"{title:>24}" for title in tables))
    for name in names:
        cells = []
        for table in tables.values():
            value = table.get(name)
            cells.append(
                "" if value is None else f"{value[0]}/{value[1]} {value[2]:.3f}" if isinstance(value, list) else f"{value}"
            )
        print(f"{name:18}" + "".join(f"{cell:>24}" for cell in cells))


def print_confusion(cases: list[Case], verdicts: list[dict[str, Any]]) -> None:
    """Print which cause was said for which."""
    count = collections.Counter((case["cause"], str(verdict.get("cause"))) for case, verdict in zip(cases, verdicts, strict=True))
    print(f"\n{'truth ↓ said →':18}" + "".join(f"{name:>10}" for name in CAUSES))
    for true in CAUSES:
        print(f"{true:18}" + "".join(f"{count[true, said]:10}" for said in CAUSES))


def main() -> int:
    """Score, print, and return 1 when a gate was asked for and is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--command", default="workbench triage {inputs} --output jsonl")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run of the command (default: 1800)")
    parser.add_argument("--show", choices=("wrong", "all", "none"), default="wrong", help="which cases to print (default: wrong)")
    parser.add_argument(
        "--kinds", action="store_true", help="figures per kind of case, too: simulated, real runs, public reports"
    )
    parser.add_argument("--ablations", action="store_true", help="figures with sources left out, too")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--gate", action="store_true", help="exit with 1 when a figure misses its gate")
    options = parser.parse_args()

    cases = load_cases(options.cases)
    if not cases:
        sys.exit(f"score: there are no cases under {options.cases}")
    verdicts, seconds = run(cases, options.command, options.timeout)
    tables = {"all": {**figures(cases, verdicts), "seconds a case": round(seconds / len(cases), 3)}}
    if options.kinds:
        for kind in sorted({case["kind"] for case in cases}):
            chosen = [number for number, case in enumerate(cases) if case["kind"] == kind]
            tables[kind] = figures([cases[number] for number in chosen], [verdicts[number] for number in chosen])
    ablated: dict[str, dict[str, Any]] = {}
    if options.ablations:
        for name, keep in ABLATIONS.items():
            # only where there is something to leave out, and something left
            fit = [case for case in cases if 0 < len(evidence_of(case, keep)) < len(evidence_of(case, None))]
            if fit:
                ablated[name] = figures(fit, run(fit, options.command, options.timeout, keep)[0])
                ablated[f"{name}: whole"] = figures(fit, [verdicts[cases.index(case)] for case in fit])
    failures = missed(tables["all"])
    if options.json:
        print(json.dumps({"figures": tables, "ablations": ablated, "missed": failures}))
    else:
        print_cases(cases, verdicts, options.show)
        print_table(tables)
        if ablated:
            print("\nwith sources left out, on the cases that have them (beside each: the same cases, whole)")
            print_table(ablated)
        print_confusion(cases, verdicts)
        for line in failures:
            print(f"gate missed: {line}")
    return int(options.gate and bool(failures))


if __name__ == "__main__":
    sys.exit(main())
