"""
Turn the labels of a Prometheus sample, in every spelling in use, into the entity it speaks of, and its name into one for all.

Shared by the text exposition and the JSON parser. The canonical name of a DCGM field is the one seen in the wild
(`dcgm_fields.prometheus_name`); other GPU exporters' metrics are mapped to it with their unit converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from workbench.model import Condition, Gpu, Placement, Series
from workbench.parse.ids import pci

__all__ = [
    "NODE_LABELS",
    "UUID_LABELS",
    "BLANKS",
    "STATUS_METRICS",
    "Entity",
    "SampledSeries",
    "address_of",
    "canonical",
    "conditions_of",
    "entity_of",
    "mask_blanks",
    "parse_labels",
    "placements_of",
    "resolve_nodes",
    "to_seconds",
]

# DCGM's "no value" numbers (dcgm_structs.h): int32 0x7ffffff0 and the three after it (not found, not supported, no permission),
# int64 0x7ffffffffffffff0 (all four are one float64), double 2**47 and the three after it.
BLANKS = (2147483632.0, 2147483633.0, 2147483634.0, 2147483635.0, 9223372036854775792.0, *(2.0**47 + i for i in range(4)))

# Names of other GPU exporters → (DCGM field, factor to its unit). nvidia_smi_*: utkuozdemir/nvidia_gpu_exporter; nvidia_gpu_*:
# mindprince/nvidia_gpu_prometheus_exporter; nv_*: Triton's own metrics.
_MIB = 1 / 1048576
OTHER_NAMES: dict[str, tuple[str, float]] = {
    "nvidia_smi_utilization_gpu_ratio": ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    "nvidia_smi_temperature_gpu": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "nvidia_smi_temperature_memory": ("DCGM_FI_DEV_MEMORY_TEMP", 1.0),
    "nvidia_smi_power_draw_watts": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "nvidia_smi_memory_used_bytes": ("DCGM_FI_DEV_FB_USED", _MIB),
    "nvidia_smi_memory_free_bytes": ("DCGM_FI_DEV_FB_FREE", _MIB),
    "nvidia_smi_memory_total_bytes": ("DCGM_FI_DEV_FB_TOTAL", _MIB),
    "nvidia_smi_clocks_current_sm_clock_hz": ("DCGM_FI_DEV_SM_CLOCK", 1e-6),
    "nvidia_smi_clocks_current_memory_clock_hz": ("DCGM_FI_DEV_MEM_CLOCK", 1e-6),
    "nvidia_smi_clocks_throttle_reasons_active": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1.0),
    "nvidia_smi_clocks_event_reasons_active": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1.0),
    "nvidia_smi_pcie_link_gen_current": ("DCGM_FI_DEV_PCIE_LINK_GEN", 1.0),
    "nvidia_smi_pcie_link_gen_max": ("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", 1.0),
    "nvidia_smi_pcie_link_width_current": ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 1.0),
    "nvidia_smi_pcie_link_width_max": ("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", 1.0),
    "nvidia_smi_ecc_errors_corrected_volatile_total": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0),
    "nvidia_smi_ecc_errors_uncorrected_volatile_total": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
    "nvidia_smi_retired_pages_double_bit_count": ("DCGM_FI_DEV_RETIRED_DBE", 1.0),
    "nvidia_smi_retired_pages_single_bit_ecc_count": ("DCGM_FI_DEV_RETIRED_SBE", 1.0),
    "nvidia_gpu_duty_cycle": ("DCGM_FI_DEV_GPU_UTIL", 1.0),
    "nvidia_gpu_temperature_celsius": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "nvidia_gpu_power_usage_milliwatts": ("DCGM_FI_DEV_POWER_USAGE", 1e-3),
    "nvidia_gpu_memory_used_bytes": ("DCGM_FI_DEV_FB_USED", _MIB),
    "nvidia_gpu_memory_total_bytes": ("DCGM_FI_DEV_FB_TOTAL", _MIB),
    "nv_gpu_utilization": ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    "nv_gpu_power_usage": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "nv_gpu_memory_used_bytes": ("DCGM_FI_DEV_FB_USED", _MIB),
    "nv_gpu_memory_total_bytes": ("DCGM_FI_DEV_FB_TOTAL", _MIB),
    # the sample name that some dcgm-exporter releases print under the HELP of DCGM_EXP_XID_ERRORS_COUNT
    "DCGM_FI_DEV_XID_ERRORS_ACTIVE": ("DCGM_EXP_XID_ERRORS_COUNT", 1.0),
    "DCGM_EXP_XID_ERRORS_TOTAL": ("DCGM_EXP_XID_ERRORS_COUNT", 1.0),
}

NODE_LABELS = (
    "Hostname",
    "hostname",
    "exported_node",
    "node",
    "kubernetes_node",
    "node_name",
    "nodename",
    "host",
    "exported_hostname",
)
UUID_LABELS = ("UUID", "uuid", "gpu_uuid", "GPU_UUID", "gpuUuid")
_INDEX_LABELS = ("gpu", "GPU", "gpu_index", "index", "minor_number", "device")
_DEVICE_LABELS = ("device", "mountpoint", "controller", "nvswitch", "interface", "disk")
_GPU_LABELS = ("gpu", "GPU", "gpu_index", "modelName", "model_name", "minor_number")
_NO_NODE = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "unknown", "none")
# the exporter's own pod is not the pod that uses the GPU
_EXPORTER_POD = re.compile(r"dcgm-exporter|node-exporter|kube-state-metrics|nvidia-gpu-exporter|prometheus")
# gpu="0",UUID="GPU-5b4e…",err_msg="said \"no\""  and, since Prometheus 3, a quoted metric name or label name
_LABEL = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([A-Za-z_][\w.:/-]*))(?:\s*=\s*"((?:[^"\\]|\\.)*)")?\s*(,|$)', re.DOTALL)
_INDEX = re.compile(r"(?:/dev/)?(?:nvidia)?(\d{1,3})$")


class Entity(NamedTuple):
    """What a set of labels speaks of."""

    node: str | None
    weak: bool  # the node is only the scraped address, not a name that the exporter gave
    gpu: Gpu | None
    device: str | None
    mig: str | None
    pod: str | None
    namespace: str | None


@dataclass(slots=True)
class SampledSeries(Series):
    """A series that can still quote its samples as they stood in the file."""

    name: str = ""  # as in the file
    raw: str = ""  # the label text as in the file
    lines: Any = None  # int32: the line of each sample, None when there is one sample
    scale: float = 1.0  # value = number in the file * scale
    weak_node: bool = False
    token: bytes = b""  # "value [time]" of the first sample as it stands in the file: shows how numbers are printed there

    def line_of(self, at: int) -> int | None:
        """Return the line of sample `at`, 1-based."""
        return self.line if self.lines is None else int(self.lines[at])

    def quote(self, at: int) -> str:
        """Return sample `at` in exposition form, as the file has it as far as its number format can be inferred."""
        labels = f"{{{self.raw}}}" if self.raw else ""
        parts = self.token.decode("ascii", "replace").split()
        shape = parts[1] if len(parts) > 1 else ""
        try:
            style = style_of(parts[0], float(parts[0]))
        except (ValueError, IndexError):
            style = "g"
        moment = float(self.times[at])
        stamp = (
            f" {moment:.3f}"
            if "." in shape
            else f" {moment * 1000:.0f}"
            if len(shape) > 11
            else f" {moment:.0f}"
            if shape
            else ""
        )
        return f"{self.name}{labels} {styled(float(self.values[at]) / self.scale, style)}{stamp}"


def styled(number: float, style: str) -> str:
    """Return a number as client libraries in Go (`g`), DCGM (`d`, `f6`) or Prometheus's JSON (`f`) print it."""
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    if style == "f6":
        return f"{number:.6f}"
    if number == 0:
        return "0"
    text = repr(number)
    power = int(f"{number:.16e}".partition("e")[2])
    # Go's FormatFloat(x, 'g', -1) turns to an exponent below 1e-4 and from 1e6 on: 81388, but 1.754325332e+09
    if style == "g" and not -5 < power < 6:
        return next(shown for digits in range(17) if float(shown := f"{number:.{digits}e}") == number or digits == 16)
    if number == int(number) and power < 300:
        return str(int(number))
    return text


def style_of(token: str, number: float) -> str:
    """Return the style that prints `number` as it stands in the file."""
    return next((style for style in ("g", "f", "f6") if styled(number, style) == token), "g")


@lru_cache(maxsize=1)
def _aliases() -> dict[str, str]:
    from workbench.catalog import table

    # In all 325 rows the old name is the one in the wild (dcgm_fields.prometheus_name); a test holds that.
    return {
        row["current_name_dcgm_4_6"]: row["old_name"] for row in table("dcgm_field_aliases") if row.get("current_name_dcgm_4_6")
    }


@lru_cache(maxsize=8192)
def canonical(name: str) -> tuple[str, float]:
    """
    Return (canonical metric name, factor to its unit) for any spelling.

    Examples
    --------
    >>> canonical("DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
    ('DCGM_FI_DEV_CLOCK_THROTTLE_REASONS', 1.0)
    """
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    if name.startswith("DCGM_"):
        return _aliases().get(name, name), 1.0
    return name, 1.0


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text, flags=re.DOTALL) if "\\" in text else text


def parse_labels(text: str) -> tuple[dict[str, str], str | None] | None:
    """Return (labels, quoted metric name or None) of the text between the braces, or None when it is malformed."""
    if "\\" not in text and '", ' not in text and text[-1:] == '"':
        # the common form, several times faster: without escapes no value can hold a quote
        parts = text[:-1].split('",')
        if text.count('"') == 2 * len(parts):
            try:
                return dict([part.split('="', 1) for part in parts]), None
            except ValueError:
                pass
    labels: dict[str, str] = {}
    name: str | None = None
    at = 0
    text = text.strip()
    while at < len(text):
        found = _LABEL.match(text, at)
        if not found or found.end() == at:
            return None
        key = found[2] if found[1] is None else _unescape(found[1])
        if found[3] is None:
            if found[1] is None or name is not None:
                return None
            name = key
        else:
            labels[key] = _unescape(found[3])
        at = found.end()
    return labels, name


def address_of(instance: str | None) -> str | None:
    """Return the host part of an `instance` label: ``10.1.2.3:9400`` becomes ``10.1.2.3``; a loopback address is none."""
    if not instance:
        return None
    text = instance.split("://")[-1]
    host = text[1 : text.find("]")] if text.startswith("[") else text.rsplit(":", 1)[0] if text.count(":") == 1 else text
    return None if host.lower() in _NO_NODE else host


def entity_of(labels: Mapping[str, str]) -> Entity:
    """
    Return what a set of labels speaks of.

    ``localhost`` (a remote host engine) and the exporter's own pod name are no node; `exported_*` labels win over those that the
    scraper added, since they come from the exporter.
    """
    get = labels.get
    node = spare = None
    for key in NODE_LABELS:
        value = get(key)
        if not value or value.lower() in _NO_NODE:
            continue
        if _EXPORTER_POD.search(value):
            spare = spare or value
            continue
        node = value
        break
    weak = node is None
    if node is None and not get("job", "").startswith(("kube-state", "slurm")):
        node = address_of(get("exported_instance") or get("instance")) or spare
    uuid = next((labels[key] for key in UUID_LABELS if get(key)), None)
    bus = pci(get("pci_bus_id") or get("PCI_BUS_ID") or get("pci_busid"))
    index: int | None = None
    for key in _INDEX_LABELS:
        value = get(key)
        if not value or (key == "device" and not uuid and not value.startswith(("nvidia", "/dev/nvidia"))):
            continue
        if value.isdigit():
            index = int(value)
            break
        if value.startswith("GPU-"):
            uuid = uuid or value
        elif found := _INDEX.match(value):
            index = int(found[1])
            break
    named = uuid or bus or (index is not None and any(key in labels for key in _GPU_LABELS))
    gpu = Gpu(index, uuid, bus) if named else None
    device = None
    if gpu is None:
        device = next((labels[key] for key in _DEVICE_LABELS if labels.get(key)), None)
        if "mountpoint" in labels:
            device = labels["mountpoint"]
    else:
        device = labels.get("nvlink") or labels.get("link")
    pod = labels.get("exported_pod") or labels.get("pod") or labels.get("pod_name") or None
    space = labels.get("exported_namespace") or labels.get("namespace") or labels.get("pod_namespace") or None
    if pod and _EXPORTER_POD.search(pod):
        pod = space = None
    return Entity(node, weak, gpu, device, labels.get("GPU_I_ID") or None, pod, space if pod else None)


def mask_blanks(field: str, values: Any) -> int:
    """Replace DCGM's blank numbers in a float64 array by NaN, in place; return how many."""
    if not field.startswith("DCGM_") or not len(values):
        return 0
    import numpy as np

    if float(values.max(initial=0.0, where=~np.isnan(values))) < BLANKS[0]:
        return 0
    hit = np.isin(values, BLANKS)
    values[hit] = np.nan
    return int(hit.sum())


def to_seconds(stamps: Any) -> Any:
    """Return time stamps as epoch seconds: what is too large for seconds (after the year 5000) is ms, us or ns."""
    import numpy as np

    size = np.abs(stamps)
    return np.where(size > 1e17, stamps / 1e9, np.where(size > 1e14, stamps / 1e6, np.where(size > 1e11, stamps / 1e3, stamps)))


def resolve_nodes(series: Iterable[Series], fallback: str | None = None) -> None:
    """
    Name the node of series that carry only a scraped address, from those of the same address that carry a name, in place.

    Parameters
    ----------
    fallback : str, optional
        The node that the caller knows the document to come from; used only when the document speaks of one node.
    """
    rows = list(series)
    unsure = [row for row in rows if not row.node or getattr(row, "weak_node", False)]
    if not unsure:
        return
    names: dict[str, set[str]] = {}
    for row in rows:
        if row.node and not getattr(row, "weak_node", False) and (address := address_of(row.labels.get("instance"))):
            names.setdefault(address, set()).add(row.node)
    addresses = {row.node for row in unsure if row.node}
    sole = fallback if fallback and len(addresses | {n for known in names.values() for n in known}) <= 1 + bool(names) else None
    for row in unsure:
        known = names.get(row.node or "", set())
        if len(known) == 1:
            row.node = next(iter(known))
        elif sole and not row.field.startswith(("kube_", "slurm_")):
            row.node = sole
        else:
            continue
        if isinstance(row, SampledSeries):
            row.weak_node = False


STATUS_METRICS = {
    # metric → (kind, label that names the condition, label that gives its status)
    "kube_node_status_condition": ("condition", "condition", "status"),
    "kube_node_spec_taint": ("taint", "key", "effect"),
    "kube_pod_container_status_terminated_reason": ("pod", "reason", ""),
    "kube_pod_container_status_last_terminated_reason": ("pod", "reason", ""),
    "kube_pod_container_status_waiting_reason": ("pod", "reason", ""),
    "kube_pod_status_reason": ("pod", "reason", ""),
}


def conditions_of(series: Iterable[Series]) -> list[Condition]:
    """Return the states that kube-state-metrics reports (value 1) as conditions; `since` only when the change was seen."""
    found = []
    for row in series:
        if row.field not in STATUS_METRICS or not len(row.values) or row.values[-1] != 1:
            continue
        kind, key, status = STATUS_METRICS[row.field]
        off = (row.values != 1).nonzero()[0]
        since = float(row.times[off[-1] + 1]) if len(off) else None
        pod = f"{row.namespace}/{row.pod}" if row.pod and kind == "pod" else ""
        word = row.labels.get(status, "true") if status else "true"
        found.append(
            Condition(
                name=row.labels.get(key, ""),
                status={"true": "True", "false": "False", "unknown": "Unknown"}.get(word, word),
                node=row.node,
                kind=kind,
                since=since if since == since else None,
                reason=row.labels.get("reason", ""),
                message=pod,
                file=row.file,
                line=row.line,
            )
        )
    return found


def placements_of(series: Iterable[Series]) -> list[Placement]:
    """Return which pod held which GPU, from the exporter's pod labels: one row per (node, GPU, pod)."""
    seen: dict[tuple[str | None, str | None, int | None, str], Placement] = {}
    for row in series:
        gpu, pod = row.gpu, row.pod
        if gpu is None or pod is None or not row.field.startswith("DCGM_"):
            continue
        key = (row.node, gpu.uuid or gpu.pci, gpu.index, pod)
        if key not in seen and len(row.times):
            first = float(row.times[0])
            seen[key] = Placement(
                None,
                row.node,
                gpu=gpu,
                pod=pod,
                time=first if first == first else None,
                origin="dcgm-pod-label",
                file=row.file,
                line=row.line,
            )
    return list(seen.values())
