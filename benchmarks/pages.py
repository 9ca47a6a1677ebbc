"""
Turn the pages of the dashboard, at 16,384 ranks and GPUs, into what a person waits for and what a network carries.

    python benchmarks/pages.py [--gpus 16384] [--ranks 16384] [--rounds 3] [--clicks 5] [--only fleet|node|incident]

Budgets: first useful paint at most 2.5 s, click to detail at most 300 ms, weight at most 5 MB. The server is warm (one look came before),
the browser is not: each round is a fresh context without a cache. Of the rounds the median is told, and the worst behind it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.browsing import Visit, browser, serve, visit  # noqa: E402

PAINT, CLICK, WEIGHT = 2.5, 0.3, 5e6


def big_incident(folder: Path, ranks: int) -> str:
    """Put the case file of an invented job of 16,384 ranks into an inbox and return its id."""
    from benchmarks.generate import incident
    from workbench.casefile import open_path
    from workbench.inbox.store import Inbox

    if ranks != 16_384:
        raise SystemExit("the generator knows 16384 ranks only")
    path = incident(64 << 20)
    inbox = Inbox(folder)
    return inbox.add(open_path(str(path)), source="folder", evidence=str(path), by="benchmark").id


def ready(address: str, seconds: float = 120.0) -> None:
    """Wait until the dashboard has a snapshot of its fleet."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{address}/api/fresh", timeout=30) as answer:
            if (json.load(answer).get("fleet") or {}).get("time"):
                return
        time.sleep(0.5)
    raise SystemExit("no snapshot of the fleet came")


def _row(name: str, values: list[float], budget: float, unit: str = "s") -> bool:
    if not values:
        return True
    middle, worst = statistics.median(values), max(values)
    good = middle <= budget
    shown = f"{middle:.2f} {unit} (worst {worst:.2f})"
    print(f"  {name:<28}{shown:<28}budget {budget:g} {unit:<4}{'ok' if good else 'OVER'}", flush=True)
    return good


def _tell(title: str, visits: list[Visit]) -> bool:
    print(title, flush=True)
    good = _row("words", [one.text for one in visits if one.text is not None], PAINT)
    good &= _row("first useful paint", [one.paint for one in visits if one.paint is not None], PAINT)
    good &= _row("click to detail", [seconds for one in visits for seconds in one.clicks], CLICK)
    good &= _row("weight", [one.weight / 1e6 for one in visits], WEIGHT / 1e6, "MB")
    _row("on the wire", [one.wire / 1e6 for one in visits], WEIGHT / 1e6, "MB")
    for one in visits:
        for line in {*one.problems, *(f"request to {url}" for url in one.outside)}:
            print(f"  problem: {line[:200]}")
            good = False
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=16_384)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clicks", type=int, default=5)
    parser.add_argument("--only", choices=("fleet", "node", "incident"))
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as place, browser() as one:
        identity = big_incident(Path(place), options.ranks) if options.only in (None, "incident") else ""
        pages = {
            "fleet": ("/fleet", ".figures b", True, ".side-card h2", options.clicks),
            "node": ("/node?node=gpu-node-054", ".head h1", True, "", 0),
            "incident": (f"/incident?id={identity}", ".title h1, .verdict h1, h1.class, .card .title", False, "", 0),
            "incident, ranks": (f"/incident?id={identity}&tab=ranks", ".tab.on", True, ".block > header h2", options.clicks),
        }
        with serve("--demo", "--gpus", str(options.gpus), "--every", "15s", "--inbox", place) as address:
            ready(address)
            for name, (path, text, canvas, detail, clicks) in pages.items():
                if options.only and not name.startswith(options.only):
                    continue
                look = {"text": text, "canvas": canvas, "detail": detail, "clicks": clicks}
                visit(one, address + path, **look)  # the server's first
                visits = [visit(one, address + path, **look) for _ in range(options.rounds)]
                size = f"{options.gpus:,} GPUs" if name in ("fleet", "node") else f"{options.ranks:,} ranks"
                good &= _tell(f"{name} ({size})", visits)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
