"""Turn a simulated failure into the samples that dcgm-exporter would have given of the job's GPUs, and into its exposition."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from workbench.catalog import table
from workbench.simulation.account import gpu_uuid
from workbench.simulation.evidence import Failure

__all__ = ["BEFORE", "STEP", "Sample", "exposition", "samples", "span"]

STEP = 30.0  # seconds between two scrapes: dcgm-exporter's own interval (--collect-interval)
BEFORE = 600.0  # seconds before the fault; as long as the job's simulated log
_WOBBLE = {"DCGM_FI_DEV_GPU_TEMP": 2.0, "DCGM_FI_DEV_POWER_USAGE": 6.0, "DCGM_FI_DEV_SM_CLOCK": 15.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series: `time` in seconds since the epoch; `labels` as dcgm-exporter gives them, in order of their names."""

    time: float
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


def span(failure: Failure) -> float:
    """Return the seconds after the fault that the metrics, and whatever else is told of it, go on for."""
    return 660.0 if failure.told_by == "hang" else 360.0 if failure.told_by == "silence" else 120.0


def samples(
    failure: Failure, *, nodes: Sequence[str] | None = None, pods: Sequence[str] = (), namespace: str = ""
) -> Iterator[Sample]:
    """
    Yield the samples scrape by scrape.

    Parameters
    ----------
    failure : Failure
    nodes : sequence of str, optional
        These nodes only; default all of the job.
    pods : sequence of str, optional
        The pod on each node of the job, for the exporter's labels; none: the exporter does not know of pods.
    namespace : str
        Of the pods.

    Notes
    -----
    Each node is scraped at a moment of its own within the interval, as real ones are. What a class or the way it is told by does to
    which field is ``catalog/simulated_metrics.csv``; a row without a value ends the series.
    """
    usual = {row["field"]: float(row["value"]) for row in table("simulated_metrics") if not row["when"]}
    changes = [row for row in table("simulated_metrics") if row["when"] and row["when"] in (failure.told_by, failure.cls)]
    culprit = failure.nodes.index(failure.node) if failure.node is not None else None
    count = int((BEFORE + span(failure)) / STEP)
    for tick in range(count + 1):
        for index, node in enumerate(failure.nodes):
            if nodes is not None and node not in nodes:
                continue
            after = tick * STEP - BEFORE + _part(node) * STEP
            if after > span(failure):
                continue
            for slot in range(min(failure.per_node, failure.gpus - index * failure.per_node)):
                where = {"all"}
                if index == culprit:
                    where |= {"node", "gpu"} if index * failure.per_node + slot == failure.rank else {"node"}
                said = dict(usual)
                for row in changes:
                    if row["where"] in where and after >= float(row["after"]):
                        if row["field"] == "*":
                            said = {}
                        elif row["field"] in said:
                            said[row["field"]] = float(row["value"])
                labels = _labels(node, slot, pods[index] if pods else "", namespace)
                for name, value in said.items():
                    wobble = _WOBBLE.get(name, 0.0) * (_part(f"{node} {slot} {name} {tick}") - 0.5)
                    yield Sample(failure.time + after, name, labels, round(value + wobble, 3))


def _part(text: str) -> float:
    """A number from 0 to 1 that is always the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


def _labels(node: str, slot: int, pod: str, namespace: str) -> tuple[tuple[str, str], ...]:
    told = {
        "Hostname": node, "UUID": gpu_uuid(node, slot, 0), "device": f"nvidia{slot}", "gpu": str(slot), "job": "dcgm-exporter",
        "modelName": "NVIDIA H100 80GB HBM3", "pci_bus_id": f"00000000:{0x10 * (slot + 1):02X}:00.0",
    }  # fmt: skip
    if pod:
        told |= {"container": "pytorch", "namespace": namespace, "pod": pod}
    return tuple(sorted(told.items()))


def exposition(rows: Iterable[Sample]) -> str:
    """Return samples as OpenMetrics text: a family's samples together, times in seconds."""
    families: dict[str, list[Sample]] = {}
    for row in rows:
        families.setdefault(row.name, []).append(row)
    lines: list[str] = []
    for name, found in families.items():
        lines.append(f"# TYPE {name} unknown")
        for row in sorted(found, key=lambda one: (one.labels, one.time)):
            labels = ",".join(f'{key}="{value}"' for key, value in row.labels)
            lines.append(f"{name}{{{labels}}} {row.value:g} {row.time:.3f}")
    return "\n".join([*lines, "# EOF"]) + "\n"
