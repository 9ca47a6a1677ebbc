"""Turn the first bytes of a file into what kind of evidence it is, by what it says rather than by what it is called."""

from __future__ import annotations

import re

from workbench.parse.addresses import looks_like_hosts
from workbench.sources import sniff_rules as rules
from workbench.sources.documents import unwrapped

__all__ = ["KINDS", "is_json", "kind_of", "looks_binary"]

KINDS = (
    "kernel-log",
    "job-log",
    "metrics-text",
    "metrics-json",
    "kubernetes",
    "kubernetes-text",
    "kubelet-devices",
    "slurm-text",
    "smi",
    "flight-recorder",
    "torchelastic-error",
    "stacks",
    "bmc",
    "fabricmanager-log",
    "launch",
    "hosts",
    "manifest",
    "text",
    "binary",
)

HEAD = 64 << 10
SAMPLE = 16 << 10  # characters of a text that are looked at
ROWS = 100  # lines of it


def looks_binary(head: bytes) -> bool:
    """Tell whether the bytes are no text: too many control characters or broken UTF-8 (NULs left by a crash do not count)."""
    sample = head[:8192].replace(b"\0", b"") or head[:0]
    if not sample:
        return bool(head)
    if sum(sample.translate(_CONTROL)) > len(sample) // 20:
        return True
    return sample.decode("utf-8", "replace").count("\ufffd") > len(sample) // 4


_CONTROL = bytes(1 if code < 32 and code not in (8, 9, 10, 12, 13, 27) else 0 for code in range(256))


def kind_of(name: str, head: bytes) -> str:
    """
    Return the kind of a document: one of `KINDS`.

    Parameters
    ----------
    name : str
        Path of the file; breaks ties only.
    head : bytes
        The first 64 KiB or so, uncompressed.
    """
    name = name.lower()
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 2:
        return (
            "flight-recorder"
            if re.search(rb"entries|nccl_version|pg_config|comm_lib_version", head) or _flight_name(name)
            else "binary"
        )
    if not head.strip():
        return _by_name(name)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        head = head[: len(head) // 2 * 2].decode("utf-16", "replace").encode()
    elif looks_binary(head):
        return "binary"
    text = head[:HEAD].removeprefix(b"\xef\xbb\xbf").replace(b"\0", b"").decode("utf-8", "replace")
    if is_json(head):
        return _json_kind(name, text.lstrip())
    if _SMI_XML.match(text):  # nvidia-smi -q -x, whatever the file is called
        return "smi"
    if "apiVersion: " in text and re.search(r"^apiVersion: \S", text, re.M) and re.search(r"^kind: \S", text, re.M):
        return "kubernetes"
    return _text_kind(name, text)


_SMI_XML = re.compile(r"\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)?(?:<!DOCTYPE\s+nvidia_smi_log\b|<nvidia_smi_log\b)", re.S)


def is_json(head: bytes) -> bool:
    """Tell whether a text begins as a JSON object or list does (a log line may begin with a bracket as well)."""
    return _JSON_START.match(head) is not None


# an object or a list of objects; a warning that kubectl wrote before it is passed over
_JSON_START = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*(?:\{\s*(?:"|\})|\[\s*(?:[{"]|\]\s*$)|(?:[^\n]*\n){1,5}?\s*\{\s*"(?:apiVersion|kind|items|metadata|status)")'
)


def _flight_name(name: str) -> bool:
    return bool(re.search(r"fr_trace|flight|nccl_trace|trace_rank", name))


def _by_name(name: str) -> str:
    if _flight_name(name):
        return "flight-recorder"
    if re.search(r"(?:^|/)(?:kernel|pstore)/|dmesg|kern\.log", name):
        return "kernel-log"
    if re.search(r"\.(?:log|out|err)(?:\.\d+)?$|stderr|stdout", name):
        return "job-log"
    return "text"


def _json_kind(name: str, text: str) -> str:
    def has(*keys: str) -> bool:
        return all(f'"{key}"' in text for key in keys)

    if '"workbench.nvml/' in text[:200]:
        return "smi"
    if '"workbench.manifest/' in text[:200]:
        return "manifest"
    if has("Data", "PodDeviceEntries"):  # the checkpoint of a kubelet's device manager
        return "kubelet-devices"
    if has("resultType") or has("metric", "values") or (has("status", "data") and has("result") and has("metric")):
        return "metrics-json"
    if (has("apiVersion") and (has("kind") or has("items"))) or (has("kind", "metadata") and (has("items") or has("spec"))):
        return "kubernetes"
    if has("entries") and re.search(
        r'"(?:collective_seq_id|pg_config|profiling_name|record_id|pg_status|comm_lib_version|nccl_version)"', text
    ):
        return "flight-recorder"
    if has("pg_config") or has("nccl_version", "entries"):
        return "flight-recorder"
    if re.match(r'\s*\{\s*"dmesg"\s*:\s*\[', text):
        return "kernel-log"
    if has("__REALTIME_TIMESTAMP") or has("MESSAGE", "_BOOT_ID"):
        return "kernel-log" if re.search(r'"_TRANSPORT"\s*:\s*"kernel"|"SYSLOG_IDENTIFIER"\s*:\s*"kernel"', text) else "job-log"
    if rules.HEALTH_RECORD.search(text[:20000]):
        return "kubernetes"
    if re.search(r'"@odata|"OriginOfCondition"|"MessageArgs"|"SensorType"|"EntryType"\s*:\s*"SEL"', text):
        return "bmc"
    if re.match(r'\{\s*"message"\s*:\s*(?:\{|")', text) and re.search(
        r'"extraInfo"|"py_callstack"|"errorCode"|"timestamp"', text[:20000]
    ):
        return "torchelastic-error"
    if re.search(r'DCGM (?:GPU )?Diagnostic|"Overall Health"|"dcgm_?version"', text, re.I) and not has("msg"):
        return "smi"
    if has("query_time", "gpus", "memory.total"):  # gpustat --json
        return "smi"
    if has("nodes", "connections", "status", "host"):  # nvidia-imex-ctl -N -j
        return "smi"
    if (
        has("agents", "exit_status")
        or has("asked_to_end", "answered")
        or has("supervisors", "waited")
        or (has("exit_code") and len(text) < 4096)
    ):
        return "launch"
    if re.search(r'"slurm"\s*:|"job_id"|"data_parser"|"openapi/slurm', text) and (has("jobs") or has("nodes")):
        return "slurm-text"
    if re.match(r'\{\s*"message"\s*:\s*(?:\{|")', text) and ("\n{" not in text.strip()):
        return "torchelastic-error"
    return _wrapped_kind(name, text) or ("job-log" if _WRAPPED.match(text) else "text")


_WRAPPED = re.compile(r'\{[^{}\n]*"(?:log|msg|message|level|textPayload)"\s*:')


def _wrapped_kind(name: str, text: str) -> str:
    """Return the kind of a node's log that a collector made an object a line of; empty for others."""
    inner = unwrapped(text[: text.rfind("\n") + 1].encode())
    if inner is None:
        return ""
    rows = [row[12:].partition(" ")[2] if _ISO.match(row) else row for row in inner[0].decode("utf-8", "replace").split("\n")]
    kernel = _OF_KERNEL.search(text) or _text_kind(name, "\n".join(row for row in rows if row[:1] != "{")) == "kernel-log"
    return "kernel-log" if kernel else ""


_OF_KERNEL = re.compile(
    r'"(?:transport|syslog_identifier|job|unit)"\s*:\s*"kernel"', re.IGNORECASE
)  # Promtail's and Vector's labels
_ISO = re.compile(r"\d{4}-\d\d-\d\dT")


def _text_kind(name: str, text: str) -> str:
    text = text[:SAMPLE]
    plain = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text) if "\x1b" in text else text
    rows = [row[:2000] for row in re.split(r"[\r\n]+", plain) if row.strip()][:ROWS]
    if len(text) >= SAMPLE and 1 < len(rows) < ROWS:
        rows.pop()  # torn by the end of the sample
    if not rows:
        return _by_name(name)
    count = len(rows)

    def share(pattern: re.Pattern[str]) -> float:
        return sum(1 for row in rows if pattern.match(row)) / count

    metrics = [row for row in rows if rules.METRIC.match(row)]
    if (len(metrics) + sum(1 for row in rows if rules.METRIC_META.match(row))) / count >= 0.6 and any(
        "{" in row or "_" in row.split(" ")[0] for row in metrics
    ):
        return "metrics-text"
    if _has(plain, rules.FABRIC_SURE) and share(rules.FABRIC) >= 0.3 and ".service - " not in rows[0]:  # the state of the unit
        return "fabricmanager-log"
    if any(rules.SMI_CSV.match(row) and re.search(r"[a-z]\.[a-z]|gpu_|uuid|pstate|driver_v", row) for row in rows[:3]):
        return "smi"
    if share(rules.HOSTENGINE) >= 0.5:
        return "smi"
    if any(rules.SLURM_TABLE.match(row) for row in rows[:3]):
        return "slurm-text"
    if _has(text, rules.BMC_SURE) and share(rules.BMC) >= 0.4:
        return "bmc"
    # a crash that dumped its stacks is told by the job-log parser; a dump on request is a kind of its own
    if (
        _has(text, rules.STACK_SURE)
        and "Fatal Python error" not in text
        and rules.STACK.match(rows[0])
        and share(rules.STACK) >= 0.6
    ):
        return "stacks"
    if looks_like_hosts(rows):
        return "hosts"
    kernel = sum(1 for row in rows if _kernel(row)) / count
    if kernel >= 0.5:
        return "kernel-log"
    if share(rules.KUBE_BARE) >= 0.7:
        return "kubernetes-text"
    if any(rules.KUBE_TEXT.match(row) for row in rows[:5]) and share(re.compile(r"\[|\d{4}-|Traceback")) < 0.3:
        return "kubernetes-text"
    if _has(plain, rules.SMI_SURE) and share(rules.SMI) >= (
        0.5 if re.search(r"smi|dcgm|lspci|ibstat|topo|nvlink", name) else 0.7
    ):
        return "smi"
    if re.match(r"\s*(?:USER\s+)?PID\s+(?:PPID|%CPU|TTY|USER|STAT)", rows[0]):
        return "text"  # ps
    if (
        _has(text, rules.SLURM_SURE)
        and ("slurm" in name or not _has(text, rules.JOB_SURE))
        and share(rules.SLURM_LOG) >= (0.5 if "slurm" in name else 0.7)
    ):
        return "slurm-text"
    if (
        count <= 30
        and all(rules.LAUNCH.match(row) or row.startswith((" ", "\t", "--", "#", "+")) for row in rows)
        and any(rules.LAUNCH.match(row) for row in rows)
    ):
        return "launch"
    if kernel >= 0.25 and re.search(r"kernel|dmesg|kern|syslog|pstore|messages", name):
        return "kernel-log"
    if re.search(r"(?:^|/)smi/|nvidia-smi|dcgmi", name) and _has(text, rules.SMI_SURE):
        return "smi"
    if (
        re.search(r"(?:^|/)launch(?!er)[^/]*$", name)
        and count <= 30
        and not any(rules.JOB.search(row) or row.lstrip().startswith("Traceback (") for row in rows)
    ):
        return "launch"
    if re.search(r"kubectl|(?:^|/)(?:get|describe)-(?:pods?|nodes?|events?)|pod-status", name):
        return "kubernetes-text"
    if re.search(r"\.(?:log|out|err)(?:\.\d+)?(?:\.gz|\.zst)?$|(?:^|/)logs/|stdout|stderr", name) or sum(
        1 for row in rows if rules.JOB.search(row)
    ) >= max(1, count // 20):
        return "job-log"
    return "text"


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _kernel(row: str) -> bool:
    return bool(
        rules.KERNEL_STAMP.match(row) or rules.KERNEL_BODY.match(row) or ("kernel" in row[:100] and rules.KERNEL_NAME.match(row))
    )
