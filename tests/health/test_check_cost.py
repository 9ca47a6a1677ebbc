"""`workbench check` runs beside jobs, every minute: it stays small, and loads nothing that it does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.nvml_fake import library

_CODE = """
import json, sys
from workbench.cli import main
code = main(["check", "--context", "running", "-o", "json", "--state", sys.argv[1]])
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
heavy = ["pandas", "numpy", "pyarrow", "requests", "kubernetes", "elasticsearch", "yaml", "jinja2", "rich", "pynvml"]
print(json.dumps({"peak": peak, "heavy": [name for name in heavy if name in sys.modules]}), file=sys.stderr)
"""


def test_a_check_of_eight_gpus_takes_little_memory_and_loads_nothing_heavy(tmp_path: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": library(), "FAKE_NVML": ""}
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120, env=env
    )
    findings = json.loads(done.stdout)["findings"]
    told = json.loads(done.stderr.splitlines()[-1])

    assert len([one for one in findings if one["check"] == "gpu-memory" and one["status"] == "ok"]) == 8
    assert told["heavy"] == []
    assert told["peak"] < 80 * 1024  # KiB, of which the test library's answers are read by a child of 20 MiB
