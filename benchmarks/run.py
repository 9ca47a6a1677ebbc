"""
Turn small jobs, bare and under `workbench run`, into what the supervisor costs: until they start, while they train, and for what they print.

    python benchmarks/run.py [--quick] [--runs N] [--json FILE]

The job starts later by the start of our interpreter; the peer of that is an interpreter that does nothing, by CPU. While it trains, wall time
is compared; the peer of the output is `| tee LOG`. Equal output (stdout, and the log on disk) and equal exit codes are the gate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.bench import Row, show  # noqa: E402

# steps of 50 ms that are slept, not computed: what the supervisor takes is seen, not hidden by a busy core
JOB = """
import sys, time
began = time.perf_counter()
for step in range(int(sys.argv[1])):
    print(f'step {step}/{sys.argv[1]} loss 1.0', flush=True)
    time.sleep(0.05)
print(f'trained {time.perf_counter() - began:09.4f}')
"""
# now, and the nanoseconds that its parent has had a core for
STARTED = 'read cpu rest </proc/$PPID/schedstat || cpu=0; date "+%s.%N $(printf %020d $cpu)"'
PRINTS = "import os, sys\nblock = (b'x' * 119 + b'\\n') * 500\nfor _ in range(int(sys.argv[1]) * (1 << 20) // len(block)): os.write(1, block)\n"


class Once:
    """One run of a command: seconds until it said when it started, seconds and CPU in all, its output and code."""

    def __init__(self, command: Sequence[str], under: Path | None, tee: bool = False) -> None:
        if tee:
            command = ["sh", "-c", '"$@" | tee "$0"', str(Path(tempfile.gettempdir()) / "workbench-bench-tee.log"), *command]
        words = [sys.executable, "-m", "workbench", "run", "--run-dir", str(under), "--", *command] if under else list(command)
        with tempfile.TemporaryFile() as out:
            self.began = time.time()
            started = time.perf_counter()
            process = subprocess.Popen(
                words,
                stdout=out,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                # as it is installed: with its bytecode
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""},
            )
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = self.code = os.waitstatus_to_exitcode(status)
            self.wall = time.perf_counter() - started
            self.cpu = used.ru_utime + used.ru_stime
            out.seek(0)
            self.out = out.read()
        self.log = (under / "attempt-1/logs/launcher.log").read_bytes() if under else self.out


def race(command: Sequence[str], runs: int, *, tee: bool = False) -> tuple[list[Once], list[Once], str]:
    """Run a command bare and under us in turn; returns both and why their results differ."""
    bare, ours = [], []
    with tempfile.TemporaryDirectory(prefix="workbench-bench-") as folder:
        for turn in range(runs + 1):
            peer, own = Once(command, None, tee), Once(command, Path(folder) / f"run-{turn}")
            shutil.rmtree(Path(folder) / f"run-{turn}")
            if own.code != peer.code:
                return bare, ours, f"exit code {own.code}, bare {peer.code}"
            if own.log != own.out or len(own.out) != len(peer.out):
                return bare, ours, f"{len(own.log)} bytes on disk, {len(own.out)} passed on, bare {len(peer.out)}"
            if turn:  # the first is a warm-up
                bare.append(peer)
                ours.append(own)
    return bare, ours, ""


def _start(runs: int) -> Row:
    """How much later the job starts: by the CPU time that we took until it did, since another process's work lengthens a wait."""
    bare, ours, gate = race(["sh", "-c", STARTED], runs)
    nothing = [Once([sys.executable, "-c", "pass"], None) for _ in range(runs + 1)]
    peer, least = min(one.wall for one in nothing), min(one.cpu for one in nothing)
    if gate:
        return Row("run-start", None, 4.0, False, gate=gate)
    later = min(float(one.out.split()[0]) - one.began for one in ours) - min(
        float(one.out.split()[0]) - one.began for one in bare
    )
    taken = min(int(one.out.split()[1]) / 1e9 for one in ours)
    text, share = f"{later * 1000:.0f} ms later", later / peer
    if not taken:  # a kernel that does not tell
        return Row("run-start", share, 4.0, False, text, f"{peer * 1000:.0f} ms (python -c pass)", note="by wall time")
    note = f"by CPU; by wall {share:.2f}: {text}, {peer * 1000:.0f} ms"
    mine, theirs = f"{taken * 1000:.0f} ms until it starts", f"{least * 1000:.0f} ms (python -c pass)"
    return Row("run-start", taken / least, 4.0, False, mine, theirs, note=note)


def compare(*, quick: bool = False, runs: int = 0) -> list[Row]:
    """Return the rows."""
    runs = runs or (3 if quick else 7)
    rows = []
    rows.append(_start(runs))
    steps = 100 if quick else 400
    bare, ours, gate = race([sys.executable, "-c", JOB, str(steps)], 2 if quick else 3)
    mine, theirs = (min((float(one.out[-10:]) for one in some), default=1.0) for some in (ours, bare))
    cpu = min((one.cpu for one in ours), default=0.0) - min((one.cpu for one in bare), default=0.0)
    wall = min((one.wall for one in ours), default=0.0) - min((one.wall for one in bare), default=0.0)
    note = f"{steps} steps of 50 ms; start and end included {wall:+.2f} s, CPU {cpu:+.2f} s"
    rows.append(Row("run-train", mine / theirs, 1.02, False, f"{mine:.3f} s", f"{theirs:.3f} s", gate, note))
    size = 64 if quick else 512
    bare, ours, gate = race([sys.executable, "-c", PRINTS, str(size)], 2 if quick else 3, tee=True)
    mine, theirs = min((one.wall for one in ours), default=1.0), min((one.wall for one in bare), default=1.0)
    text = f"{size / theirs:.0f} MiB/s by | tee"
    rows.append(
        Row("run-output", mine / theirs, 3.0, False, f"{size / mine:.0f} MiB/s", text, gate, f"{size} MiB, start included")
    )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What `workbench run` costs a job.")
    parser.add_argument("--quick", action="store_true", help="shorter jobs")
    parser.add_argument("--runs", type=int, default=0, help="of the start, after a warm-up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args(arguments)
    rows = compare(quick=options.quick, runs=options.runs)
    for row in rows:
        show(row)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.gate for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
