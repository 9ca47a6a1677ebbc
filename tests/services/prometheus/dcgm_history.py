"""
Turn a number of nodes into the history that dcgm-exporter, node-exporter and kube-state-metrics would have of them, as OpenMetrics text.

usage: dcgm_history.py [--nodes 4] [--hours 1] [--step 30] [--end EPOCH] [--fields all|basic] [--hostname Hostname] [--healthy] > history.om

The job (pods trainer-N in namespace ml, one a node) loses a GPU: on the last node GPU 3 counts uncorrectable memory errors 15 minutes
before the end, shows Xid 95 one scrape later, its siblings wait; GPU 7 of the node before it shows Xid 79 and has no samples for the
last ten minutes. With --healthy nothing of that.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import NamedTuple


class Field(NamedTuple):
    """Name, type and help of a metric, and its value for (node, gpu, seconds before the end)."""

    name: str
    kind: str
    help: str
    value: Callable[[int, int, float], float | None]


def fields(nodes: int, step: float, healthy: bool) -> list[Field]:
    """Return the fields; `None` is no sample."""
    ecc, lost = (nodes, 3), (max(nodes - 1, 1), 7)

    def failed(node: int, gpu: int, left: float) -> bool:
        return not healthy and (node, gpu) == ecc and left <= 900

    def stopped(left: float) -> bool:
        return not healthy and left <= 870

    def wobble(node: int, gpu: int, left: float) -> float:
        return ((node * 7 + gpu * 13 + int(left // step)) * 2654435761 % 1000) / 100

    def xid(node: int, gpu: int, left: float) -> float:
        if healthy:
            return 0
        if (node, gpu) == lost and left <= 600 + step:
            return 79
        return 95 if (node, gpu) == ecc and left <= 900 - step else 0

    return [
        Field("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda n, g, t: 52 + g % 4 + int(wobble(n, g, t)) % 3),
        Field(
            "DCGM_FI_DEV_GPU_UTIL",
            "gauge",
            "GPU utilization (in %).",
            lambda n, g, t: 0 if stopped(t) and failed(n, g, t) else 100,
        ),
        Field(
            "DCGM_FI_DEV_POWER_USAGE",
            "gauge",
            "Power draw (in W).",
            lambda n, g, t: (
                72.5 + wobble(n, g, t) / 10 if failed(n, g, t) else 230.25 if stopped(t) else 640.125 + wobble(n, g, t)
            ),
        ),
        Field(
            "DCGM_FI_DEV_SM_CLOCK",
            "gauge",
            "SM clock frequency (in MHz).",
            lambda n, g, t: 1980 - 15 * (int(wobble(n, g, t)) % 3),
        ),
        Field("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", lambda n, g, t: 61234),
        Field("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", lambda n, g, t: 19746),
        Field("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", xid),
        # the exporter's counters have no _total: OpenMetrics would demand it of a counter, so the type is unknown here
        Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "unknown", "Total number of PCIe retries.", lambda n, g, t: 3),
        Field(
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            "unknown",
            "Total number of double-bit volatile ECC errors.",
            lambda n, g, t: 4 if failed(n, g, t) else 0,
        ),
        Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed", lambda n, g, t: 0),
    ]


def main() -> None:
    """Write the history to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--step", type=int, default=30)
    parser.add_argument("--end", type=int, default=0)
    parser.add_argument("--fields", choices=("all", "basic"), default="all")
    parser.add_argument("--hostname", default="Hostname", help="label of the node: Hostname, or hostname since May 2026")
    parser.add_argument("--healthy", action="store_true")
    options = parser.parse_args()
    step = options.step
    end = options.end or int(time.time()) // step * step
    times = range(end - int(options.hours * 3600) // step * step, end + 1, step)
    lost = None if options.healthy else (max(options.nodes - 1, 1), 7)
    out = sys.stdout
    for field in fields(options.nodes, step, options.healthy)[: 20 if options.fields == "all" else 5]:
        out.write(f"# HELP {field.name} {field.help}\n# TYPE {field.name} {field.kind}\n")
        for node in range(1, options.nodes + 1):
            for gpu in range(8):
                labels = (
                    f'gpu="{gpu}",UUID="GPU-{node:08d}-0000-0000-0000-{gpu:012d}",pci_bus_id="00000000:{0x1B + gpu * 16:02X}:00.0",'
                    f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",{options.hostname}="gpu-node-{node:03d}",'
                    f'instance="10.0.{node // 250}.{node % 250 + 1}:9400",job="dcgm-exporter",'
                    f'namespace="ml",pod="trainer-{node - 1}",DCGM_FI_DRIVER_VERSION="550.163.01"'
                )
                for moment in times:
                    left = end - moment
                    value = None if (node, gpu) == lost and left < 600 else field.value(node, gpu, left)
                    if value is not None:
                        out.write(f"{field.name}{{{labels}}} {value:g} {moment}\n")
    if options.fields == "all":
        hosts(options.nodes, times, options.healthy, out.write)
    out.write("# EOF\n")


def hosts(nodes: int, times: range, healthy: bool, write: Callable[[str], object]) -> None:
    """Write what node-exporter and kube-state-metrics know; the condition GpuUnhealthy of the last node turns 10 minutes before the end."""

    def family(name: str, kind: str, rows: Callable[[int], list[tuple[str, Callable[[float], float]]]]) -> None:
        write(f"# TYPE {name} {kind}\n")
        for node in range(1, nodes + 1):
            for labels, value in rows(node):
                for moment in times:
                    write(f"{name}{{{labels}}} {value(times[-1] - moment):g} {moment}\n")

    def host(node: int) -> str:
        return f'instance="10.0.{node // 250}.{node % 250 + 1}:9100",job="node-exporter"'

    family(
        "node_uname_info",
        "gauge",
        lambda node: [(f'{host(node)},nodename="gpu-node-{node:03d}",machine="x86_64"', lambda left: 1)],
    )
    family("node_boot_time_seconds", "gauge", lambda node: [(host(node), lambda left: 1700000000)])
    family("node_load1", "gauge", lambda node: [(host(node), lambda left: 12.5)])
    family(
        "node_infiniband_state_id",
        "gauge",
        lambda node: [(f'{host(node)},device="mlx5_{port}",port="1"', lambda left: 4) for port in range(2)],
    )
    family(
        "up",
        "gauge",
        lambda node: [
            (host(node), lambda left: 1),
            (host(node).replace("9100", "9400").replace("node-", "dcgm-"), lambda left: 1),
        ],
    )
    family(
        "kube_node_status_condition",
        "gauge",
        lambda node: [
            (f'node="gpu-node-{node:03d}",condition="Ready",status="true",job="kube-state-metrics"', lambda left: 1),
            (
                f'node="gpu-node-{node:03d}",condition="GpuUnhealthy",status="true",job="kube-state-metrics"',
                lambda left: float(not healthy and node == nodes and left <= 600),
            ),
        ],
    )
    family(
        "kube_pod_info",
        "gauge",
        lambda node: [
            (f'namespace="ml",pod="trainer-{node - 1}",node="gpu-node-{node:03d}",job="kube-state-metrics"', lambda left: 1)
        ],
    )


if __name__ == "__main__":
    main()
