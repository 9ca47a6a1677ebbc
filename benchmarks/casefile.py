"""
Turn a made-up job of 16,384 ranks into the time that its case file takes to build, to save and to open from disk.

    python benchmarks/casefile.py [--ranks N] [--pieces N] [--runs N]

Every rank tells a step in each of 240 pieces of time, the most that parsers hand on; a GPU falls off the bus and all other ranks time
out. Prints one JSON object; seconds are of CPU, since a busy machine would decide the rest. Opening is a process of its own, with
and without what it has to import.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from workbench.casefile import case_file  # noqa: E402
from workbench.casefile.store import save  # noqa: E402
from workbench.incident import Incident  # noqa: E402
from workbench.model import DocumentSummary, Event, Gpu, Placement  # noqa: E402

START = 1777888800  # 2026-05-04T10:00:00Z
SECONDS = 16
_OPEN = """
import sys, time
began = time.process_time()
import pandas
import workbench.casefile.logs
from workbench.casefile.store import open_case
imported = time.process_time()
case = open_case(sys.argv[1])
print(time.process_time() - imported, time.process_time() - began, len(case.ranks), case.activity.states.shape[1])
"""


def incident(ranks: int, pieces: int) -> Incident:
    """Return what parsers make of a job in which one GPU is lost after three quarters of the time."""
    made = Incident("made up")
    lost, culprit = START + SECONDS * pieces * 3 // 4, ranks // 3
    first = START // SECONDS
    for rank in range(ranks):
        node, local = f"gpu-node-{rank // 8:04d}", rank % 8
        count = pieces * 3 // 4
        rows = (array("q", range(first, first + count)), array("q", [2] * count), array("q", range(count)))
        file = f"logs/rank-{rank:05d}.log"
        facts = {
            "activity": {"seconds": float(SECONDS), "rows": {rank: rows}, "lines": {}, "holes": []},
            "ranks": {rank: {"first_time": float(START), "last_time": float(lost), "last_step": count - 1, "last_line": 2 * count, "lines": 2 * count}},
            "progress": [(float(START + SECONDS * at), rank, at, 16.0, 2.0, at) for at in (0, count - 1)],
            "world_size": ranks,
        }  # fmt: skip
        end = START + SECONDS * pieces - 60.0
        if rank != culprit:
            made.records.append(
                Event(
                    "c10d-watchdog-timeout",
                    "job",
                    "Watchdog caught collective operation timeout",
                    end,
                    file,
                    2 * count,
                    node,
                    rank=rank,
                )
            )
        gpu = Gpu(local, f"GPU-{rank:08x}", f"0000:{0x1B + 0x10 * local:02x}:00.0")
        made.placement_records.append(
            Placement(rank, node, local, gpu, 10_000 + rank, time=float(START), origin="nccl-init", file=file)
        )
        made.documents.append(DocumentSummary(file, "job-log", None, 20_000, 2 * count, True, 1, facts))
    node = f"gpu-node-{culprit // 8:04d}"
    made.records.append(
        Event(
            "xid-79", "kernel", "NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.", float(lost), f"kernel/{node}.log", 60, node,
            Gpu(pci=f"0000:{0x1B + 0x10 * (culprit % 8):02x}:00.0"), code=79,
        )
    )  # fmt: skip
    made.documents.append(DocumentSummary(f"kernel/{node}.log", "kernel-log", node, 5_000, 60, True, 1, {}))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--pieces", type=int, default=240)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    made = incident(options.ranks, options.pieces)
    verdict = made.triage()
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "case"
        for _ in range(options.runs):
            began = time.process_time()
            case = case_file(made, verdict, source="made up")
            best["build"] = min(best.get("build", 1e9), time.process_time() - began)
            began = time.process_time()
            save(case, place)
            best["save"] = min(best.get("save", 1e9), time.process_time() - began)
            done = subprocess.run([sys.executable, "-c", _OPEN, str(place)], capture_output=True, text=True, check=True, cwd=ROOT)
            alone, whole, ranks, pieces = done.stdout.split()
            best["open"] = min(best.get("open", 1e9), float(alone))
            best["open with imports"] = min(best.get("open with imports", 1e9), float(whole))
        size = sum(path.stat().st_size for path in place.iterdir())
    if verdict.cls != "hardware/gpu-lost" or int(ranks) != options.ranks:
        raise SystemExit(f"GATE: {verdict.cls}, {ranks} ranks")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        json.dumps(
            {
                **{name: round(value, 3) for name, value in best.items()},
                "pieces": int(pieces),
                "MB on disk": round(size / 1e6, 1),
                "peak MB": peak,
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
