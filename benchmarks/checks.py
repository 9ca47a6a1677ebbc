"""
Turn a node of eight GPUs, played by the tests' libnvidia-ml, into what one `workbench check` costs: CPU, wall time, memory.

    python benchmarks/checks.py [--runs N] [--context running] [--nvidia-smi FILE] [--json FILE]

CPU is that of the process and everything it ran. Memory is sampled: the largest process at its peak (VmHWM), and all of them together at the
worst moment (PSS, so that shared pages count once), which is what the limit of a unit or a pod meets. Beside it stand what others ask for:
node-problem-detector (deployment/node-problem-detector.yaml of kubernetes/node-problem-detector v0.8.18: 10m CPU, 80Mi) and NVSentinel's GPU
health monitor (values.yaml of its chart: 100m, 128Mi); the start of an interpreter that does nothing; our reading of NVML alone (the same
questions that `nvidia-smi -q` asks the library); and NVIDIA's `nvidia-smi -q` where there is one. Without a driver that is the least it can
cost: its start and a refusal. NVIDIA's program does not run on the tests' library ("Mismatch in versions"): the two speak to each other by
functions that no header has. A program of ours that played it would say nothing of its cost.
Exit code 1 when a check of the GPUs did not say ok: what is not read costs nothing.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
LIMIT_MIB = 80.0  # of memory, and
LIMIT_CPU = 1.0  # seconds of CPU a minute, for what runs beside a job


@dataclass
class Cost:
    """The least of some runs, seconds and MiB; `out` is what the last one printed."""

    wall: float = float("inf")
    cpu: float = float("inf")
    largest: float = float("inf")
    all: float = float("inf")
    out: str = ""

    @property
    def text(self) -> str:
        """In a few words."""
        memory = f"largest process {self.largest:.0f} MiB, all together {self.all:.0f} MiB"
        seen = memory if self.largest < float("inf") else "over before its memory could be looked at"
        return f"{self.cpu:.2f} s CPU, {self.wall:.2f} s, {seen}"


def measure(command: Sequence[str], env: Mapping[str, str], runs: int) -> Cost:
    """Run a command some times after a warm-up and return the least of each; a disturbance only adds."""
    best = Cost()
    for turn in range(runs + 1):
        with tempfile.TemporaryFile() as out:
            begun = time.perf_counter()
            process = subprocess.Popen(
                list(command), stdout=out, stderr=subprocess.DEVNULL, env=dict(env), start_new_session=True
            )
            largest = together = 0.0
            # every second run is left alone: looking at its memory takes time from it
            while turn % 2 and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                one, all_of_them = _memory(process.pid)
                largest, together = max(largest, one), max(together, all_of_them)
                time.sleep(0.005)
            _, _, used = os.wait4(process.pid, 0)
            process.returncode = 0
            wall = time.perf_counter() - begun
            out.seek(0)
            best.out = out.read().decode("utf-8", "replace")
        if turn:
            best.wall, best.cpu = min(best.wall, wall), min(best.cpu, used.ru_utime + used.ru_stime)
            if together:
                best.largest, best.all = min(best.largest, largest), min(best.all, together)
    return best


def _memory(leader: int) -> tuple[float, float]:
    """MiB of the largest of a process and all that descend from it, and of all of them."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):  # it ended meanwhile
                continue
    mine, added = {leader}, True
    while added:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine |= more
        added = bool(more)
    return max((_kib(pid, "status", "VmHWM:") for pid in mine), default=0) / 1024, sum(
        _kib(pid, "smaps_rollup", "Pss:") for pid in mine
    ) / 1024


def _kib(pid: int, file: str, name: str) -> int:
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))


STATE = Path(tempfile.gettempdir()) / "workbench-bench-state"


def environment() -> dict[str, str]:
    """Return an environment in which NVML is that of the tests."""
    sys.path.insert(0, str(ROOT))
    from tests.nvml_fake import library

    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", "LD_LIBRARY_PATH": library(), "FAKE_NVML": ""}


def command(context: str) -> list[str]:
    """Return what is measured."""
    # a state of its own: the test library's GPUs must not be looked for on this machine afterwards
    return [sys.executable, "-m", "workbench", "check", "--context", context, "-o", "json", "--state", str(STATE)]


def reading() -> list[str]:
    """Return the child that asks NVML, as `workbench.sources.node.nvml` starts it."""
    spec = find_spec("pynvml")
    assert spec is not None, "pip install nvidia-ml-py"
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    return [sys.executable, "-P", "-I", str(ROOT / "workbench/sources/node/nvml_child.py"), str(folder)]


def unread(out: str) -> str:
    """Return why the figures would be worth nothing; empty when the eight GPUs were read."""
    findings = json.loads(out)["findings"]
    memory = [one for one in findings if one["check"] == "gpu-memory" and one["status"] == "ok"]
    return "" if len(memory) == 8 else f"the memory of {len(memory)} GPUs of 8 was read"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What one run of the node checks costs.")
    parser.add_argument("--runs", type=int, default=6, help="after a warm-up; default 6")
    parser.add_argument("--context", choices=("running", "allocation"), default="running")
    parser.add_argument("--nvidia-smi", metavar="FILE", default=shutil.which("nvidia-smi"), help="default: that of the PATH")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args(arguments)
    env = environment()
    ours = measure(command(options.context), env, options.runs)
    nothing = measure([sys.executable, "-c", "pass"], env, options.runs)
    found = json.loads(ours.out)["findings"]
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, 8 GPUs")
    print(f"workbench check --context {options.context} ({len({one['check'] for one in found})} checks): {ours.text}")
    print(f"  asked for: {LIMIT_MIB:.0f} MiB and {LIMIT_CPU:.0f} s of CPU a minute, so {LIMIT_CPU / ours.cpu:.1f} runs a minute")
    print("  node-problem-detector asks for 80 MiB and 0.6 s of CPU a minute (10m), before any plugin runs")
    print("  NVSentinel's GPU health monitor asks for 128 MiB and 6 s of CPU a minute (100m), beside DCGM's own")
    print(f"python -c pass: {nothing.text}")
    nvml = measure(reading(), env, options.runs)
    print(f"NVML alone, all that is asked of 8 GPUs: {nvml.text}")
    costs = {"ours": asdict(ours), "python": asdict(nothing), "nvml": asdict(nvml)}
    if options.nvidia_smi:
        smi = measure([options.nvidia_smi, "-q"], dict(os.environ), options.runs)
        costs["nvidia-smi -q"] = asdict(smi)
        whole = "Attached GPUs" in smi.out
        print(
            f"nvidia-smi -q, {'of this machine' if whole else 'refused for want of a driver, so the least that it costs'}: {smi.text}"
        )
    else:
        print("nvidia-smi -q: there is none here, and a program that plays it would say nothing of its cost")
    if options.json:
        options.json.write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")
    why = unread(ours.out)
    if why:
        print(why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
