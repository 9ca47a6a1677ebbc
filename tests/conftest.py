"""Turn a verdict with everything in it into fixtures that report and command-line tests share."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from workbench.model import Coverage, Event, Gpu, Hypothesis, Verdict, Victim
from workbench.report.verdict_json import to_json

# a loaded machine is no defect: how long an example takes is measured by benchmarks
settings.register_profile("workbench", deadline=None)
settings.load_profile("workbench")
ROOT = Path(__file__).resolve().parent.parent
# what a hostile job could write into its own log: terminal control, markup of three languages, a reordering character, a torn code point
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J[bold red]x[/] <script>alert(1)</script> `rm -rf` | "
    "\u202egnp.exe \udc80 &amp; {{7*7}} ![x](http://evil/)"
)
START = 1777892523.12  # 2026-05-04T11:02:03.120Z


@pytest.fixture
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture
def verdict() -> Verdict:
    """A verdict of a 32-rank job in which every field says something and one log line is hostile."""
    gpu = Gpu(3, "GPU-8f1c0a52-aaaa-bbbb-cccc-0123456789ab", "0000:3b:00.0")
    node = "gpu-node-017"
    return Verdict(
        cls="hardware/gpu-memory",
        confidence=0.97,
        summary="GPU 3 of gpu-node-017 had an uncontained memory error; rank 27 died with it.",
        node=node,
        gpu=gpu,
        rank=27,
        at_fault="gpu",
        time=START,
        attempt=1,
        evidence_records=[
            Event(
                "xid-95",
                "kernel",
                HOSTILE,
                START,
                f"kernel/{node}.log",
                812,
                node,
                gpu,
                role="cause",
                code=95,
                count=3,
                last=START + 2,
            ),
            Event(
                "nccl-remote-closed",
                "job",
                "Connection closed by remote peer",
                START + 3,
                "logs/rank12.log",
                99,
                "gpu-node-001",
                rank=12,
                role="symptom",
            ),
            Event("launcher-summary", "launcher", "no stamp here", None, "logs/launcher.log", None, role="symptom"),
        ],
        counter_records=[Event("job-step", "job", "step 1200", START - 1, "logs/rank27.log", 7, node, rank=27, role="counter")],
        victim_records=[
            Victim(rank, f"gpu-node-{rank // 8:03d}", START + 3, "connection closed")
            for rank in [*range(16), *range(24, 27), *range(28, 32)]
        ],
        hypotheses=[
            Hypothesis("hardware/gpu-memory", 0.97),
            Hypothesis("platform/network", 0.02, why_not="the closed connections come after the Xid"),
        ],
        degraded=[{"node": "gpu-node-002", "gpu": None, "since": START - 600, "slowdown": 1.31}],
        coverage=[
            Coverage("job", "ok"),
            Coverage("kernel", "partial", "logs of 3 of 4 nodes", ["driver/hang"]),
            Coverage("metrics", "missing", "no DCGM metrics were given", ["hardware/thermal-power", "hardware/sdc"]),
        ],
        retry="exclude-node",
        remediation="reset-gpu",
        next_steps=["Run dcgmi diag -r 3 on gpu-node-017 before it takes work again."],
        decided_by=["xid.csv:95"],
        clock_skew={node: 1.42, "gpu-node-001": 0.01},
        ties=["ranks 3 and 4 stopped in the same millisecond"],
    )


@pytest.fixture
def document(verdict: Verdict) -> dict[str, Any]:
    """The same as JSON."""
    return to_json(verdict, name="incident-0001")


@pytest.fixture
def workbench() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own, as a user does."""

    def run(*words: str, stdin: str | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "WORKBENCH_CATALOG")}
        return subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
            env={**clean, **(env or {})},
        )

    return run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """
    With ``-n N --dist loadfile`` let also those files share a process that share the one Elasticsearch; each file has its servers to itself.

    xdist's own groups (3.8) are without effect in pytest 9.2, whose `nodeid` is no longer what they change.
    """
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "loadfile":
        return None
    shared = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests" / "live").glob("test_*.py")
        if re.search(r"^def .*\b(?:elasticsearch|archive): ", file.read_text(encoding="utf-8"), re.M)
    }

    class ByServer(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "elasticsearch" if file in shared else file

    return ByServer(config, log)


# what no run against real servers starts by itself: what it is, the variable that switches it on (empty: none does), and why
LEFT_OUT = (
    (
        "Slurm 24.11 and 26.05",
        "WORKBENCH_SLURM_SUITES",
        'WORKBENCH_SLURM_SUITES="trixie sid" runs them, in 600 MB each; here Debian\'s own version ran, and recordings of the others.',
    ),
    (
        "Elasticsearch 8",
        "WORKBENCH_TEST_ELASTICSEARCH_MAJOR",
        "WORKBENCH_TEST_ELASTICSEARCH_MAJOR=8 runs it in the place of 9.",
    ),
    ("Mimir, Amazon's and Google's managed Prometheus", "", "no server of them can be started here; their answers are played."),
    ("a GPU with its driver", "", "NVIDIA's own library without a driver and a library played by the tests stand in its place."),
    ("kubelet and a container engine", "", "pods are played on the real control plane."),
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what did not run here and how it is run: a test that nobody sees left out tests nothing."""
    if config.option.markexpr == "live or slow":
        terminalreporter.section("left out here")
        for what, variable, why in LEFT_OUT:
            if not variable or not os.environ.get(variable):
                terminalreporter.write_line(f"{what}: {why}")
    if config.option.markexpr != "not live and not slow":
        return
    terminalreporter.section("left out here")
    for folder, needs in (
        ("live", "needs a real server, `make test-live` starts it"),
        ("browser", "needs Chromium, `make test-live` starts it"),
    ):
        for file in sorted((ROOT / "tests" / folder).glob("test_*.py")):
            about = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0]
            terminalreporter.write_line(f"tests/{folder}/{file.name}: {needs}. {about}")
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if "pytest.mark.slow" in file.read_text(encoding="utf-8"):
            terminalreporter.write_line(f"{file.relative_to(ROOT)}: its slow tests run with `make test-live`.")
    for file in sorted((ROOT / "tests" / "conformance").glob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "pytest.mark.live" in text or "import Server, server" in text:
            kinds = re.findall(r'"(\w+)": ', table[0]) if (table := re.search(r"^REAL = .*$", text, re.M)) else ["real"]
            terminalreporter.write_line(
                f"tests/conformance/{file.name}[{', '.join(kinds)}]: needs a real server; here it held the fake to what that one said."
            )
