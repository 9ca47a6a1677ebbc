"""
Turn a number of nodes into the history that dcgm-exporter, node-exporter and kube-state-metrics would have of them, as OpenMetrics text.

usage: dcgm_history.py [--nodes 4] [--hours 1] [--step 30] [--end EPOCH] [--fields all|basic|twenty] [--hostname Hostname]
                       [--healthy | --lost NODE:GPU [--ago 600]] [--first 1] [--pods trainer] > history.om

The job (pods trainer-N in namespace ml, one a node) loses a GPU: on the last node GPU 3 counts uncorrectable memory errors 15 minutes
before the end, shows Xid 95 one scrape later, its siblings wait; GPU 7 of the node before it shows Xid 79 and has no samples for the
last ten minutes. With --healthy nothing of that; with --lost only one GPU that shows Xid 79 and is gone from --ago seconds before the end on.
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


class Faults(NamedTuple):
    """Where and how many seconds before the end: memory errors, a GPU off the bus, and from when on the job waits; None is nowhere."""

    ecc: tuple[int, int] | None
    lost: tuple[int, int] | None
    ago: int
    stopped: int


def fields(step: float, faults: Faults) -> list[Field]:
    """Return the fields; `None` is no sample."""

    def failed(node: int, gpu: int, left: float) -> bool:
        return left <= 900 and (node, gpu) == faults.ecc

    def stopped(left: float) -> bool:
        return left <= faults.stopped

    def wobble(node: int, gpu: int, left: float) -> float:
        return ((node * 7 + gpu * 13 + int(left // step)) * 2654435761 % 1000) / 100

    def xid(node: int, gpu: int, left: float) -> float:
        if left <= faults.ago + step and (node, gpu) == faults.lost:
            return 79
        return 95 if left <= 900 - step and (node, gpu) == faults.ecc else 0

    def busy(node: int, gpu: int, left: float) -> float:
        return round(0.9 + wobble(node, gpu, left) / 102.7, 6)

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
        Field("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", lambda n, g, t: 2619),
        Field(
            "DCGM_FI_DEV_MEMORY_TEMP",
            "gauge",
            "Memory temperature (in C).",
            lambda n, g, t: 61 + g % 3 + int(wobble(n, g, t)) % 4,
        ),
        Field("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", lambda n, g, t: 40 + int(wobble(n, g, t))),
        Field(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            "unknown",
            "Total energy consumption since boot (in mJ).",
            lambda n, g, t: 91_000_000_000_000 + n * 1_000_003 - int(t) * 640_125,
        ),
        Field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "unknown", "Rows remapped for correctable errors.", lambda n, g, t: 0),
        Field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "unknown", "Rows remapped for uncorrectable errors.", lambda n, g, t: 0),
        Field(
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
            "unknown",
            "Total number of NVLink bandwidth counters for all lanes.",
            lambda n, g, t: 7_000_000_000 + g - int(t) * 12_345,
        ),
        Field(
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "gauge",
            "Ratio of time the graphics engine is active.",
            lambda n, g, t: busy(n, g, t),
        ),
        Field(
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "gauge",
            "Ratio of cycles the tensor pipe is active.",
            lambda n, g, t: round(busy(n, g, t) / 2, 6),
        ),
        Field(
            "DCGM_FI_PROF_DRAM_ACTIVE",
            "gauge",
            "Ratio of cycles the memory interface is active.",
            lambda n, g, t: round(busy(n, g, t) / 3, 6),
        ),
    ]


MANY = {"basic": 5, "all": 10, "twenty": 20}


def main() -> None:
    """Write the history to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--step", type=int, default=30)
    parser.add_argument("--end", type=int, default=0)
    parser.add_argument(
        "--fields", choices=sorted(MANY), default="all", help="all and twenty have the host's metrics beside them"
    )
    parser.add_argument("--hostname", default="Hostname", help="label of the node: Hostname, or hostname since May 2026")
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--lost", metavar="NODE:GPU", help="the only fault: this GPU falls off the bus")
    parser.add_argument("--ago", type=int, default=600, help="seconds before the end at which it does")
    parser.add_argument("--first", type=int, default=1, help="number of the first node")
    parser.add_argument("--pods", default="trainer", help="name of the job")
    options = parser.parse_args()
    step, first = options.step, options.first
    end = options.end or int(time.time()) // step * step
    times = range(end - int(options.hours * 3600) // step * step, end + 1, step)
    numbers = range(first, first + options.nodes)
    faults = Faults((numbers[-1], 3), (max(numbers[-1] - 1, first), 7), options.ago, 870)
    if options.healthy:
        faults = Faults(None, None, 0, -1)
    elif options.lost:
        node, _, gpu = options.lost.partition(":")
        faults = Faults(None, (int(node), int(gpu)), options.ago, options.ago)
    out = sys.stdout
    for field in fields(step, faults)[: MANY[options.fields]]:
        out.write(f"# HELP {field.name} {field.help}\n# TYPE {field.name} {field.kind}\n")
        for node in numbers:
            for gpu in range(8):
                series = (
                    f'{field.name}{{gpu="{gpu}",UUID="GPU-{node:08d}-0000-0000-0000-{gpu:012d}",'
                    f'pci_bus_id="00000000:{0x1B + gpu * 16:02X}:00.0",'
                    f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",{options.hostname}="gpu-node-{node:03d}",'
                    f'instance="10.{node // 62500}.{node // 250 % 250}.{node % 250 + 1}:9400",job="dcgm-exporter",'
                    f'namespace="ml",pod="{options.pods}-{node - first}",DCGM_FI_DRIVER_VERSION="550.163.01"}}'
                )
                is_lost = (node, gpu) == faults.lost
                rows = (
                    (moment, field.value(node, gpu, end - moment))
                    for moment in times
                    if not (is_lost and end - moment < faults.ago)
                )
                out.write("".join(f"{series} {value:.15g} {moment}\n" for moment, value in rows if value is not None))
    if options.fields != "basic":
        hosts(numbers, times, options.pods, None if faults.ecc is None else faults.ecc[0], out.write)
    out.write("# EOF\n")


def hosts(nodes: range, times: range, pods: str, unhealthy: int | None, write: Callable[[str], object]) -> None:
    """Write what node-exporter and kube-state-metrics know; the condition GpuUnhealthy of a node turns 10 minutes before the end."""

    def family(name: str, kind: str, rows: Callable[[int], list[tuple[str, Callable[[float], float]]]]) -> None:
        write(f"# TYPE {name} {kind}\n")
        for node in nodes:
            for labels, value in rows(node):
                write("".join(f"{name}{{{labels}}} {value(times[-1] - moment):g} {moment}\n" for moment in times))

    def host(node: int) -> str:
        return f'instance="10.{node // 62500}.{node // 250 % 250}.{node % 250 + 1}:9100",job="node-exporter"'

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
                lambda left: float(node == unhealthy and left <= 600),
            ),
        ],
    )
    family(
        "kube_pod_info",
        "gauge",
        lambda node: [
            (f'namespace="ml",pod="{pods}-{node - nodes[0]}",node="gpu-node-{node:03d}",job="kube-state-metrics"', lambda left: 1)
        ],
    )


if __name__ == "__main__":
    main()
