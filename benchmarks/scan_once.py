"""Turn one log into counts, as a whole process: what `bench.py` times against ripgrep. Prints one JSON object."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time

from workbench.catalog import scan_patterns
from workbench.parse.scan import Scanner, ScanResult


def _folder(scanner: Scanner, path: str, workers: int) -> ScanResult:
    """Scan every file of a folder, whatever it is: the least that reading it can cost."""
    from concurrent.futures import ThreadPoolExecutor

    files = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    total = ScanResult()
    with ThreadPoolExecutor(workers) as pool:
        for each in pool.map(scanner.scan, files):
            total.lines += each.lines
            total.matched_lines += each.matched_lines
            total.total_lines += each.total_lines
            total.total_bytes += each.total_bytes
            for name, count in each.counts.items():
                total.counts[name] = total.counts.get(name, 0) + count
    return total


def main(path: str, workers: int = 2, tail: int = 0) -> None:
    """Scan a file (or its last `tail` bytes) with all signatures and extract the fields of every line that is kept."""
    started = time.perf_counter()
    patterns = scan_patterns()
    scanner = Scanner(patterns)
    if os.path.isdir(path):
        result = _folder(scanner, path, workers)
    elif path.endswith((".gz", ".zst")) or tail:
        from workbench.sources.archive import Budget, Member, opened

        with open(path, "rb", buffering=0) as stream:
            if tail:
                stream.seek(max(stream.seek(0, 2) - tail, 0))
                result = scanner.scan(stream)
            else:
                member = next(each for each in opened(path, stream, Budget()) if isinstance(each, Member))
                result = scanner.scan(member.stream)
    else:
        result = scanner.scan(path, workers=workers)
    expressions = dict(patterns)
    compiled: dict[str, re.Pattern[str]] = {}
    fields = 0
    for line in result.lines:
        for name in line.hits:
            pattern = compiled.get(name)
            if pattern is None:
                pattern = compiled[name] = re.compile(expressions[name])
            found = pattern.search(line.text)
            fields += len(found.groupdict()) if found else 0
    print(
        json.dumps(
            {
                "matched": result.matched_lines,
                "lines": result.total_lines,
                "bytes": result.total_bytes,
                "kept": len(result.lines),
                "fields": fields,
                "error": result.error,
                "seconds": time.perf_counter() - started,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "counts": result.counts,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], *(int(each) for each in sys.argv[2:]))
