"""Turn `workbench fleet warnings FOLDER…` into what grows, drifts or drops out in metrics before it fails."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workbench.cli import exits
from workbench.cli.fleet import add_common
from workbench.cli.fleet_table import Columns, records, written

__all__ = ["add_arguments", "run"]

_COLUMNS: Columns = (
    ("time", "time (UTC)", 16),
    ("node", "node", 20),
    ("where", "GPU or port", 12),
    ("rule", "warning", 18),
    ("level", "level", 30),
    ("meaning", "meaning", 200),
)
_RULES: Columns = (
    ("rule", "warning", 18),
    ("status", "status", 10),
    ("series", "series", -8),
    ("node_days", "node-days", -10),
    ("alarms", "alarms", -7),
    ("per_node_day", "per node-day", -12),
    ("budget", "budget", -7),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=Path,
        nargs="+",
        help="folders or archives with metrics over some days, as `workbench collect` writes them",
    )
    parser.add_argument("--rules", action="store_true", help="show each rule with what it could see, instead of the warnings")
    add_common(parser, window=False)


def run(options: argparse.Namespace) -> int:
    """Look at the metrics of each path; a rule that had nothing to look at is told on stderr."""
    import pandas as pd

    from workbench.cli.entry import complain
    from workbench.fleet.warnings import early_warnings
    from workbench.incident import load

    frames = [load(path).metrics for path in options.paths]
    # each folder is a job's, whose ranks are compared with each other
    jobs = {
        str(node): str(path)
        for path, frame in zip(options.paths, frames, strict=True)
        for node in frame["node"].dropna().unique()
    }
    found = early_warnings(pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0], jobs=jobs)
    blind = found.coverage.loc[found.coverage["status"] != "ok", "rule"].tolist()
    if blind:
        complain(f"no metrics, or too few, for {', '.join(blind)}", hint="workbench fleet warnings --rules shows what was there")
    code = exits.INCOMPLETE if blind else exits.OK
    if options.rules:
        rows = records(found.coverage)
        shown = [
            {
                **row,
                "node_days": f"{row['node_days']:.3g}",
                "per_node_day": "–" if row["per_node_day"] is None else f"{row['per_node_day']:.3g}",
            }
            for row in rows
        ]
        sys.stdout.write(written(_RULES, shown, options.output, raw=rows))
        return code
    rows = records(found.alarms)
    if not rows and options.output in ("table", "md"):
        looked = int((found.coverage["status"] == "ok").sum())
        sys.stdout.write(f"no warning by the {looked} of {len(found.coverage)} rules that could look\n")
        return code
    shown = [
        {
            **row,
            "time": str(row["time"])[:16].replace("T", " "),
            "where": row["device"] or (f"GPU {row['gpu_index']}" if row["gpu_index"] is not None else row["gpu_uuid"]),
            "level": f"{row['value']:.4g} (from {row['threshold']:g} {row['unit']})",
        }
        for row in rows
    ]
    sys.stdout.write(written(_COLUMNS, shown, options.output, raw=rows))
    return code
