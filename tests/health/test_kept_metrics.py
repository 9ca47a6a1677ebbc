"""`workbench check --from` judges the metrics that a folder holds, and stays small while it does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.health.folder import check_folder

START = 1_758_676_200
FIELDS = (
    "GPU_TEMP",
    "SM_CLOCK",
    "GPU_UTIL",
    "CLOCK_THROTTLE_REASONS",
    "XID_ERRORS",
    "ROW_REMAP_FAILURE",
    "ECC_DBE_VOL_TOTAL",
    "PCIE_REPLAY_COUNTER",
)
USUAL = {"GPU_TEMP": 64, "SM_CLOCK": 1935, "GPU_UTIL": 98}


def page(value: Callable[[int, str, int], float], *, scrapes: int = 40, gpus: int = 8, stamped: bool = True) -> str:
    """An exporter's page: `value` gives the number of GPU, field and scrape."""
    lines = []
    for field in FIELDS:
        lines.append(f"# TYPE DCGM_FI_DEV_{field} gauge")
        for gpu in range(gpus):
            labels = (
                f'gpu="{gpu}",UUID="GPU-0831ac63-59da-6bc2-af07-44258e74f1d{gpu}",pci_bus_id="00000000:{gpu + 1}B:00.0",device="nvidia{gpu}",'
                'modelName="NVIDIA H100 80GB HBM3",Hostname="gpu-node-5",DCGM_FI_DRIVER_VERSION="535.183.01"'
            )
            for scrape in range(scrapes):
                stamp = f" {START + 30 * scrape}" if stamped else ""
                lines.append(f"DCGM_FI_DEV_{field}{{{labels}}} {value(gpu, field, scrape):g}{stamp}")
    return "\n".join([*lines, "# EOF" if stamped else "", ""])


def healthy(gpu: int, field: str, scrape: int) -> float:
    return USUAL.get(field, 0) + (15 * (scrape % 3) if field == "SM_CLOCK" else 0)


def hot(gpu: int, field: str, scrape: int) -> float:
    if gpu == 3 and scrape >= 20:
        return {"GPU_TEMP": 93, "SM_CLOCK": 495, "CLOCK_THROTTLE_REASONS": 0x48}.get(field, healthy(gpu, field, scrape))
    return healthy(gpu, field, scrape)


def lost(gpu: int, field: str, scrape: int) -> float:
    return 79 if (gpu, field) == (5, "XID_ERRORS") and scrape >= 20 else healthy(gpu, field, scrape)


def asked(gpu: int, field: str, scrape: int) -> float:
    return 31 if (gpu, field) == (5, "XID_ERRORS") and scrape >= 20 else healthy(gpu, field, scrape)


def spent(gpu: int, field: str, scrape: int) -> float:
    return 1 if (gpu, field) == (2, "ROW_REMAP_FAILURE") else healthy(gpu, field, scrape)


@pytest.mark.parametrize(
    ("value", "stamped", "found"),
    [
        (healthy, True, set()),
        (healthy, False, set()),
        (hot, True, {("hardware/thermal-power", "drain", "0000:4b:00.0")}),
        (lost, True, {("hardware/gpu-lost", "reboot-node", "0000:6b:00.0")}),
        (asked, True, set()),  # an application's own fault
        (spent, False, {("hardware/gpu-memory", "replace-node", "0000:3b:00.0")}),  # one page, fetched by hand
    ],
)
def test_a_fault_that_only_metrics_show_is_found(
    tmp_path: Path, value: Callable[[int, str, int], float], stamped: bool, found: set[tuple[str, str, str]]
) -> None:
    (tmp_path / "gpu-node-5.prom").write_text(page(value, stamped=stamped, scrapes=40 if stamped else 1))
    bad = [one for one in check_folder(tmp_path) if one.status in ("critical", "warning")]
    assert {(one.cls, one.action, one.gpu.pci if one.gpu else None) for one in bad} == found
    assert {one.node for one in bad} <= {"gpu-node-5"}
    assert {one.status for one in bad} <= {"critical"}


def test_the_numbers_are_told(tmp_path: Path) -> None:
    (tmp_path / "gpu-node-5.prom").write_text(page(hot))
    (one,) = [one for one in check_folder(tmp_path) if one.status == "critical"]
    assert "→ 495, 93 °C" in one.summary
    assert one.since == START + 30 * 20


def test_it_stays_small(tmp_path: Path) -> None:
    """Megabytes of metrics of several nodes; pandas is never loaded, NumPy only where there are metrics."""
    text = page(hot, scrapes=240)
    for number in range(6):
        (tmp_path / f"gpu-node-{number}.prom").write_text(text.replace("gpu-node-5", f"gpu-node-{number}"))
    code = (
        "import json, sys\nfrom workbench.health.folder import check_folder\nfound = check_folder(sys.argv[1])\n"
        "peak = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM:'))\n"
        "print(json.dumps([len(found), peak, 'pandas' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120)
    found, peak, pandas = json.loads(done.stdout)
    assert found
    assert not pandas
    assert peak < 80 * 1024  # KiB


def test_metrics_that_are_too_many_are_told_and_never_fine(tmp_path: Path) -> None:
    (tmp_path / "gpu-node-5.prom").write_text(page(healthy, scrapes=900))
    (cut,) = [one for one in check_folder(tmp_path) if one.code == "unread"]
    assert (cut.status, cut.node) == ("unknown", "gpu-node-5")
    assert "only the first 8 MiB" in cut.summary
