"""
Turn the catalog's patterns into a list of those that slow the scanner down most, with how much faster it would be without each.

    python benchmarks/slow_patterns.py [SAMPLE.log] [--top N]

A pattern is slow when it begins with something common or vague (a class of characters, a word of every log line) before its
first rare text. Begin it with the rare text instead, and let the parser read what stands before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import generate
from workbench.catalog import scan_patterns
from workbench.parse.engines import engine

Pattern = tuple[str, str]


def rate(patterns: Sequence[Pattern], sample: bytes, runs: int = 2) -> float:
    """Return MB scanned in a second of CPU with these patterns, the best of some runs."""
    matcher = engine([pattern for _, pattern in patterns], cache=False)
    best = float("inf")
    for _ in range(runs):
        started = time.process_time()
        for at in range(0, len(sample), 1 << 20):
            matcher.matches(sample, at, min(at + (1 << 20), len(sample)))
        best = min(best, time.process_time() - started)
    return len(sample) / best / 1e6


def slowest(patterns: Sequence[Pattern], sample: bytes, top: int) -> list[tuple[float, Pattern]]:
    """Return (rate without it, pattern) for the worst ones: groups are left out first, then the members of the worst groups."""
    step = max(int(len(patterns) ** 0.5), 1)
    groups = [range(at, min(at + step, len(patterns))) for at in range(0, len(patterns), step)]

    def without(left_out: range) -> float:
        return rate([each for place, each in enumerate(patterns) if place not in left_out], sample)

    worst = sorted(groups, key=without, reverse=True)[: max(top // 2, 1)]
    single = [(without(range(place, place + 1)), patterns[place]) for group in worst for place in group]
    return sorted(single, key=lambda pair: -pair[0])[:top]


def main() -> None:
    """Print the rate with all patterns and the patterns whose absence helps most."""
    parser = argparse.ArgumentParser(description="Which patterns slow the scanner down.")
    parser.add_argument("sample", nargs="?", type=Path, help="an ordinary log without failures; default a generated one")
    parser.add_argument("--top", type=int, default=8)
    options = parser.parse_args()
    path = options.sample or generate.training_log(64 << 20)
    with path.open("rb") as stream:
        sample = stream.read(16 << 20)
    patterns = scan_patterns()
    print(f"{len(patterns)} patterns: {rate(patterns, sample):.0f} MB/s")
    for faster, (name, pattern) in slowest(patterns, sample, options.top):
        print(f"  {faster:6.0f} MB/s without {name}: {pattern[:120]}")


if __name__ == "__main__":
    main()
