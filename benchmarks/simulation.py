"""
Turn the shipped fleet of 16,384 GPUs into two ratios: its CPU seconds to the 60 allowed for 90 days, its memory at three times the days.

The 60 seconds are allowed on two cores; it takes one, so its CPU seconds are what it takes on a machine that does nothing else.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench import ROOT, Row

__all__ = ["rows"]

ALLOWED = 60.0  # seconds for DAYS
DAYS = 90


def _once(days: int, folder: Path) -> tuple[float, float, int]:
    """CPU seconds, wall seconds and the largest resident set (KiB) of one command, which is one process; its ledger included."""
    words = [
        sys.executable,
        "-m",
        "workbench",
        "simulate",
        "--days",
        str(days),
        "--ledger",
        str(folder / f"{days}.sqlite"),
        "-o",
        "json",
    ]
    began = time.perf_counter()
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"workbench simulate ended with {process.returncode}")
    assert isinstance(used, resource.struct_rusage)
    return used.ru_utime + used.ru_stime, wall, used.ru_maxrss


def rows(*, quick: bool) -> list[Row]:
    """Return the rows; quick means 9 days instead of 90, which says the same of the rate."""
    days = DAYS // 10 if quick else DAYS
    with tempfile.TemporaryDirectory() as name:
        short, _, small = _once(days // 3, Path(name))
        taken, wall, large = _once(days, Path(name))
    return [
        Row(
            "simulate", taken / (ALLOWED * days / DAYS), 1.0, more=False, ours=f"{taken:.1f} CPU-s for {days} days with its ledger",
            peer=f"{ALLOWED * days / DAYS:.0f} s allowed", note=f"16,384 GPUs, one process; wall {wall:.1f} s at load {os.getloadavg()[0]:.1f}",
        ),
        Row(
            "simulate-memory", large / small, 1.3, more=False, ours=f"{large / 1024:.0f} MiB for {days} days",
            peer=f"{small / 1024:.0f} MiB for {days // 3}", note=f"{taken / short:.1f} times the seconds",
        ),
    ]  # fmt: skip
