"""Turn the reason and message of a Kubernetes event, pod or condition into a signature, and read the GPU a message names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from workbench.model import Event, Gpu
from workbench.parse import ids

__all__ = [
    "RULES",
    "STALE_AFTER",
    "Meaning",
    "bad",
    "classify",
    "condition_row",
    "epoch",
    "event_span",
    "gpu_in",
    "parse_quantity",
    "stale_since",
]


@dataclass(slots=True)
class Meaning:
    """What a reason and message mean; `role`, `cls`, `weight` are set only where the content decides against the catalog row."""

    signature: str
    role: str | None = None
    cls: str | None = None
    weight: float | None = None
    code: int | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def apply(self, event: Event) -> Event:
        """Write what the content decided into an event."""
        event.role, event.cls = self.role or event.role, self.cls or event.cls
        event.weight = event.weight if self.weight is None else self.weight
        event.code = event.code if self.code is None else self.code
        event.data.update(self.data)
        return event


# NVRM: Xid (PCI:0000:9d:00): 95, pid=2004356, name=python, Uncontained …
_XID_KERNEL = re.compile(r"\bXid \((?:PCI:)?[0-9a-fA-F:.]+[^)]*\): (\d+)")
# XidCriticalEvent: Xid=79 on Device=GPU-…  |  ErrorCode:95 PCI:0000:9d:00  |  reason NvidiaXID79Error
_XID_WORD = re.compile(r"\bXid=(\d+)|\bErrorCode:(\d+)\b|\bNvidiaXID(\d+)")
_SXID = re.compile(r"\bSXid \((?:PCI:)?[0-9a-fA-F:.]+\): (\d+)")
_GPU_INDEX = re.compile(r"\bGPU[: ](\d{1,2})\b|nvml\.Device (\d{1,2})\b")
_PCI = re.compile(r"\bPCI:((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)")
_DCGM = re.compile(r"\bErrorCode:(DCGM_FR_\w+)|\b(DCGM_FR_\w+)")
# GPUUnhealthy | NvidiaNVLinkError | GpuFallenOffBus: what sites' own monitors call their events
_GPU_REASON = re.compile(
    r"(?:Gpu|GPU|Nvidia|NVIDIA|NVLink|NvLink|Nvlink|NVSwitch)\w*?(?:Unhealthy|Error|Errors|Failure|Failed|Fault|Lost|Missing|Degraded|OffBus|Uncorrectable)"
)
_GPU_WORDS = (
    (r"NVLink|NvLink|Nvlink|nvlink|NVSwitch|NvSwitch", "hardware/nvlink"),
    (r"E[Cc][Cc]|[Rr]ow ?[Rr]emap|[Uu]ncorrectable|MemoryError|DBE", "hardware/gpu-memory"),
    (r"Lost|Missing|OffBus|off the bus|count mismatch", "hardware/gpu-lost"),
    (r"P[Cc][Ii]e", "hardware/pcie"),
    (r"[Tt]herm|[Tt]emperature|[Pp]ower", "hardware/thermal-power"),
    (r"Driver|driver", "driver/other"),
    (r"", "hardware/gpu-other"),
)
_ACTION = re.compile(r"Recommended ?Action=(\w+)")
# NVSentinel says so of findings that do not hurt; such events make no condition
_HARMLESS = re.compile(r"can still perform workload|Recommended ?Action=NONE\b")
# Container pytorch was using 1500Gi, request is 1200Gi, has larger consumption of memory
_USING = re.compile(r"was using (\S+?), request is (\S+?)[,.]")
_VICTIM = re.compile(r"victim process: ([^,\s]+)|Killed process \d+ \(([^)]+)\)")
# processes that a training job starts; a victim of another name is somebody else's
_JOB_PROCESS = re.compile(
    r"^(?:python[\d.]*|pt_main_thread|pt_data_\w*|ray(?:::.*)?|torchrun|trainer|mpirun|accelerate|deepspeed|vllm.*|VLLM.*|sglang.*)$"
)
# a volume that did not come in time, and words that tell why
_WAITED = re.compile(r"timed out waiting for the condition|DeadlineExceeded|context deadline exceeded")
_WHY_NOT = re.compile(
    r"mount failed|exit status|refused|denied|not found|no such|unreachable|not attached|Multi-Attach|InvalidArgument"
)
_TRANSIENT = re.compile(
    r"nodes are available: pod has unbound immediate PersistentVolumeClaims|assume cache|the object has been modified"
)

# (reason, message, signature): the first row whose two patterns match decides; None matches all. Words as in the sources
# of kubelet, controllers and schedulers; what is routine maps to "" and makes no event.
RULES: tuple[tuple[str | None, str | None, str], ...] = (
    (None, r"nvml: GPU is lost", "k8s-device-plugin-gpu-lost"),
    (None, r"GetPreferredAllocation rpc failed|Unable to retrieve list of available devices", "k8s-allocate-failed"),
    (None, r"nvidia-container-cli\S* \w+ error: cuda error", "k8s-gpu-injection-cuda"),
    (None, r"unresolvable CDI devices|nvidia-container-cli\S*: |could not select device driver", "k8s-gpu-injection"),
    (
        None,
        r"executable file not found in \$PATH|no such file or directory: unknown|permission denied: unknown",
        "k8s-container-command",
    ),
    (None, r"marking device as unhealthy|XidCritical(?:Error|Event)", "k8s-device-unhealthy"),
    (
        r"Evicted|TerminationByKubelet|Terminated",
        r"usage exceeds the total limit|exceeds the limit|exceeded its local ephemeral",
        "k8s-evicted-limit",
    ),
    (
        r"Evicted|TerminationByKubelet|Terminated|Preempt\w*",
        r"DiskPressure|low on resource: (?:ephemeral-storage|inodes)",
        "k8s-evicted-disk",
    ),
    (r"Evicted|TerminationByKubelet|Terminated", r"MemoryPressure|low on resource: memory", "k8s-evicted-memory"),
    (None, r"imminent node shutdown|[Ss]hutdown manager detected|node is shutting down", "k8s-node-shutdown"),
    (r"NodeShutdown|Shutdown|GracefulNodeShutdown\w*", None, "k8s-node-shutdown"),
    (r"Preempt(?:ed|ing)|PreemptionBy\w+|Preemption", None, "k8s-preempted"),
    (None, r"Preempted to accommodate a workload|because of (?:preempt|reclaim)|[Pp]reempted by", "k8s-preempted"),
    (r"Evict\w*|QuotaReserved|Pending|Requeued|WorkloadEvicted\w*", r"PodsReady timeout|PodsReadyTimeout", "k8s-gang-waiting"),
    (
        r"EvictedDueToPodsReadyTimeout|PodGroup(?:Unschedulable|NotReady|Pending)|NotEnoughResources|NotEnoughTasks",
        None,
        "k8s-gang-waiting",
    ),
    (r"EvictedDueToMaximumExecutionTimeExceeded", None, "k8s-deadline"),
    (r"EvictedDueToNodeFailures", None, "k8s-node-lost"),
    (
        r"EvictedDueTo(?:InactiveWorkload|Deactivated\w*|ClusterQueueStopped|LocalQueueStopped|AdmissionCheck\w*)",
        None,
        "k8s-evicted",
    ),
    (r"EvictionByEvictionAPI|EvictedByEvictionAPI|EvictedByAPI", None, "k8s-evicted-api"),
    (r"Evicted|Drained?|DrainSucceeded|Descheduled", r"^(?:Evicted pod|Eviction API)|descheduler|drain", "k8s-evicted-api"),
    (r"Evicted", None, "k8s-evicted"),
    (r"EvictionThresholdMet", r"memory|pids?$", "k8s-eviction-threshold-memory"),
    (r"EvictionThresholdMet", None, "k8s-eviction-threshold"),
    (r"TaintManagerEviction", r"[Cc]ancell?ing deletion", "k8s-taint-eviction-cancelled"),
    (r"TaintManagerEviction|DeletionByTaintManager", None, "k8s-taint-eviction"),
    (r"DeletionByPodGC|PodGC\w*", None, "k8s-pod-gc"),
    (r"TerminationByKubelet", None, "k8s-terminated-by-kubelet"),
    (r"DeadlineExceeded", None, "k8s-deadline"),
    (r"Suspended|JobSuspended", None, "k8s-suspended"),
    (
        r"ScaleDown|ScaleDownEmpty|NodeScaleDown|DisruptionTerminating|Disrupt(?:ed|ing)\w*|DeletingNodeClaim",
        None,
        "k8s-scale-down",
    ),
    (
        r"DisruptionLaunching|DisruptionWaitingReadiness|DisruptionBlocked|Unconsolidatable|NodeRepairBlocked|SpotRebalanceRecommendation",
        None,
        "k8s-node-state",
    ),
    (
        (
            r"SpotInterrupt\w*|Spot(?:Instance)?(?:Terminat|Reclaim|Preempt)\w*|HostMaintenance\w*|InstanceTerminated|InstanceTerminating|InstanceStopping|(?:Preempt|Terminate|Reboot|Redeploy|Freeze)Scheduled|CSPMaintenance"
            r"|VMEventScheduled|MaintenanceEvent|MaintenanceWindow|ScheduledMaintenance|RebalanceRecommendation|ASGLifecycle|Interruption\w*|NodeTermination\w*"
        ),
        None,
        "k8s-impending-termination",
    ),
    (r"NodeNotReady|NodeStatusUnknown", None, "k8s-node-not-ready"),
    (r"NodeLost", None, "k8s-node-lost"),
    (r"DeletingNode|DeletingAllPods|RemovingNode", None, "k8s-node-removed"),
    (r"Rebooted", None, "k8s-node-rebooted"),
    (r"NodeNotSchedulable|Cordon\w*", None, "k8s-node-unschedulable"),
    (r"NodeReady|NodeSchedulable|Uncordon\w*|Starting|NodeHasSufficient\w+|NodeHasNoDiskPressure", None, "k8s-node-state"),
    (r"NodeHasDiskPressure", None, "k8s-node-disk-pressure"),
    (r"NodeHasInsufficientMemory", None, "k8s-node-memory-pressure"),
    (r"NodeHasInsufficientPID", None, "k8s-node-pid-pressure"),
    (r"FreeDiskSpaceFailed", None, "k8s-free-disk-space-failed"),
    (r"ImageGCFailed|ContainerGCFailed", None, "k8s-image-gc-failed"),
    (r"SystemOOM", None, "k8s-system-oom"),
    (r"OOMKilling", None, "k8s-npd-oom"),
    (r"OOMKilled", None, "k8s-oom-killed"),
    (r"Ext4Error", None, "k8s-npd-ext4-error"),
    (r"IOError|BlockDeviceIOError|XfsHasShutdown", None, "k8s-npd-io-error"),
    (r"FilesystemIsReadOnly", None, "k8s-npd-readonly"),
    (r"CperHardwareErrorFatal", None, "k8s-npd-hardware"),
    (r"KernelOops|KernelBug", None, "k8s-npd-oops"),
    (
        (
            r"Ext4Warning|TaskHung|MemoryReadError|CperHardwareError\w+|UnregisterNetDevice|CCPPCrash|VMcore|DockerHung|SoftLockup"
            r"|KernelHasNoDeadlock|AppBlocked|AppCrash|NTPIsDown|PLEGUnhealthy|ConntrackFull\w*"
        ),
        None,
        "k8s-npd-notice",
    ),
    (r"UnexpectedAdmissionError", None, "k8s-admission-error"),
    (None, r"no healthy devices present|requested number of devices unavailable", "k8s-admission-error"),
    (r"OutOf\S+", None, "k8s-out-of-resource"),
    (r"TopologyAffinityError", None, "k8s-topology-affinity"),
    (r"NodeAffinity|NodeSelectorMismatching|AdmissionFailed", None, "k8s-node-affinity"),
    (
        None,
        r"[Pp]od ?[Gg]roup.{0,80}(?:not ready|unschedulable|enough resources)|QuotaReserved=False|assign flavors|PodsReady time",
        "k8s-gang-waiting",
    ),
    (r"Scheduled|Started", r"^(?:Successfully assigned|Started container|Container started)", "k8s-started"),
    (r"FailedScheduling|Unschedulable|NotTriggerScaleUp|FailedScaleUp|SchedulerError", None, "k8s-failed-scheduling"),
    (r"Failed|FailedPullImage|ErrImagePull|BackOff|ImagePullBackOff", r"failed size validation", "k8s-image-size"),
    (
        r"ErrImagePull|ErrImageNeverPull|InvalidImageName|FailedPullImage|ImageInspectError|RegistryUnavailable|SignatureValidationFailed",
        None,
        "k8s-image-pull",
    ),
    (r"ImagePullBackOff", r"ErrImagePull: ", "k8s-image-pull"),  # newer kubelets repeat the cause here
    (r"ImagePullBackOff", None, "k8s-image-backoff"),
    (r"Failed|BackOff", r"[Ff]ailed to pull image|ErrImagePull|pull access denied", "k8s-image-pull"),
    (r"BackOff|Failed", r"[Bb]ack-off pulling image|ImagePullBackOff", "k8s-image-backoff"),
    (r"CreateContainerConfigError", None, "k8s-container-config"),
    (
        r"Failed|FailedMount",
        r"(?:configmap|secret)s? \"[^\"]+\" (?:not found|is forbidden)|couldn.t find key",
        "k8s-container-config",
    ),
    (
        r"RunContainerError|CreateContainerError|StartError|ContainerCannotRun|PostStartHookError|FailedPostStartHook",
        None,
        "k8s-container-start",
    ),
    (r"Failed", r"create failed|failed to (?:create|start)|shim task|RunContainerError|CreateContainer", "k8s-container-start"),
    (
        r"FailedCreatePodSandBox|Failed",
        (
            r"VF pci addr is required|LoadConf\(\)|failed to load netconf|failed to find plugin|incompatible CNI"
            r"|network-attachment-definition|NetworkAttachmentDefinition|no runtime for|RuntimeHandler|runtime class|failed to get delegate"
        ),
        "k8s-sandbox-config",
    ),
    (
        r"FailedCreatePodSandBox",
        r"no IP addresses|assign an IP|free (?:IPs|VFs)|InsufficientFreeAddresses",
        "k8s-sandbox-address",
    ),
    (r"FailedCreatePodSandBox|FailedPodSandBoxStatus|NetworkNotReady", None, "k8s-sandbox"),
    (r"FailedPrepareDynamicResources|FailedResourceClaim\w*", None, "k8s-dra-failed"),
    (r"FailedMount|FailedAttachVolume|FailedMapVolume|VolumeResizeFailed|ProvisioningFailed", None, "k8s-mount"),
    (r"CrashLoopBackOff|BackOff", None, "k8s-crash-loop"),
    (r"Killing", r"failed liveness probe", "k8s-liveness"),
    (r"Killing|FailedPreStopHook|ExceededGracePeriod", None, "k8s-killing"),
    (r"Unhealthy", r"[Ll]iveness", "k8s-liveness"),
    (r"Unhealthy|ProbeWarning", None, "k8s-not-ready"),
    (r"FailedKillPod|KillContainerError", None, "k8s-failed-kill-pod"),
    (r"ContainerStatusUnknown", None, "k8s-container-status-unknown"),
    (r"FailedCreate\w*", r"exceeded quota|denied the request|failed calling webhook", "k8s-create-refused"),
    (
        (
            r"BackoffLimitExceeded|PodFailurePolicy|FailedIndexes|MaxFailedIndexesExceeded|ExitedWithCode|\w*JobFailed|FailedJobs|FailedJobSet"
            r"|JobSetRestarting?|Restarting|FailedCreate|TooManyActivePods|Rescheduled"
        ),
        None,
        "k8s-job-failed",
    ),
)
_COMPILED = tuple(
    (re.compile(reason) if reason else None, re.compile(message) if message else None, signature)
    for reason, message, signature in RULES
)


def classify(reason: str, message: str, *, kind: str = "", severity: str = "Warning") -> Meaning | None:
    """
    Return what an event, a waiting or terminated state or a pod condition means, or None when it is routine.

    Parameters
    ----------
    reason, message : str
        As Kubernetes wrote them; the message may be cut.
    kind : str
        Kind of the object that it is about (Pod, Node, PyTorchJob …).
    severity : str
        ``Normal`` or ``Warning``; a monitor's own type (NVSentinel uses the name of its check) marks a finding that is not fatal.
    """
    health = _gpu_health(reason, message, severity)
    if health:
        return health
    for by_reason, by_message, signature in _COMPILED:
        if (by_reason is None or by_reason.fullmatch(reason)) and (by_message is None or by_message.search(message)):
            meaning = _weigh(Meaning(signature), message)
            if signature == "k8s-node-not-ready" and kind == "Pod":  # `Node is not ready`, said to each pod of the node
                meaning.role = "symptom"
            return meaning
    if severity == "Warning" and reason not in (
        "InvalidDiskCapacity",
        "CgroupV1",
        "DNSConfigForming",
        "PossibleMemoryBackedVolumesOnDisk",
    ):
        return Meaning("k8s-warning")
    return None


def _gpu_health(reason: str, message: str, severity: str) -> Meaning | None:
    sxid = _SXID.search(message)
    if sxid:
        return Meaning(f"sxid-{sxid[1]}", code=int(sxid[1]), data={"monitor": reason})
    row = condition_row(re.sub(r"(?:IsNotHealthy|HasIssues)$", "", reason)) or condition_row(severity)
    found = _XID_KERNEL.search(message) or _XID_WORD.search(f"{reason} {message}")
    if found:  # the device plugin's own line counts too: NVML gave it the code
        code = next(int(group) for group in found.groups() if group)
        return Meaning(f"xid-{code}", code=code, data={"monitor": reason})
    dcgm = _DCGM.search(message)
    if not dcgm and row is None and severity == "Warning" and _GPU_REASON.fullmatch(reason):
        cls = next(cls for words, cls in _GPU_WORDS if re.search(words, f"{reason} {message}"))
        return Meaning("k8s-gpu-health", "cause", cls, 0.5, data={"monitor": reason})
    if not dcgm and not (
        row
        and row["kind"].startswith(("node condition", "condition/event reason (Accel"))
        and row["signature"] == "k8s-condition"
    ):
        return None
    meaning = Meaning("k8s-gpu-health" if dcgm or not row else "k8s-condition", data={"monitor": reason})
    if dcgm:
        meaning.data["dcgm"] = dcgm[1] or dcgm[2]
    action = _ACTION.search(message)
    if action:
        meaning.data["action"] = action[1]
    if row:
        meaning.role, meaning.cls, meaning.weight = row["role"], row["class"], float(row["weight"] or 0)
    # harmless by its own words, or an event that bears the name of its check as type: NVSentinel makes no condition of these
    if _HARMLESS.search(message):
        meaning.role, meaning.weight = "context", 0.2
    elif severity not in ("Warning", "Normal", ""):
        grave = _grave(meaning.data.get("dcgm")) if action else None
        meaning.role, meaning.cls, meaning.weight = ("cause", grave, 0.5) if grave else ("context", meaning.cls, 0.2)
    return meaning


def _grave(name: Any) -> str | None:
    """Return the class of a finding of DCGM that takes a GPU out of service by itself, or None."""
    from workbench.catalog import table

    row = next((row for row in table("dcgm_errors") if row["name"] == name), None)
    return row["class"] if row and row["dcgm_severity"] == "ISOLATE" and row["class"] != "unknown" else None


def _weigh(meaning: Meaning, message: str) -> Meaning:
    if meaning.signature == "k8s-evicted-memory":
        using = _USING.search(message)
        used, asked = (parse_quantity(using[1]), parse_quantity(using[2])) if using else (None, None)
        # the kubelet ranks by use above request (node-pressure eviction, pod selection): a pod above it is the cause itself
        if used is not None and asked and used > asked:
            meaning.cls, meaning.weight = "user/host-oom", 0.8
    elif meaning.signature in ("k8s-system-oom", "k8s-npd-oom"):
        victim = _VICTIM.search(message)
        name = (victim[1] or victim[2]) if victim else ""
        if name:
            meaning.data["process"] = name
        if name and not _JOB_PROCESS.match(name):
            meaning.role, meaning.weight = "context", 0.2
        elif name:
            meaning.cls = "user/host-oom"
            meaning.weight = 0.75
    elif meaning.signature == "k8s-mount" and _WAITED.search(message) and not _WHY_NOT.search(message):
        meaning.weight, meaning.data["waited"] = 0.6, True  # only that it took too long
    elif meaning.signature == "k8s-failed-scheduling" and _TRANSIENT.search(message):
        meaning.role, meaning.weight = "context", 0.1
    elif meaning.signature == "k8s-allocate-failed" and re.search(r"nvml\.Init: |nvml: (?:Driver|Unknown)", message):
        meaning.cls = "platform/config"  # the plugin's container has lost the driver, or the driver is gone: no card is named
    elif meaning.signature == "k8s-gpu-injection":
        if "version mismatch" in message:
            meaning.cls, meaning.weight = "driver/version-mismatch", 0.9
        elif "unsatisfied condition" in message or "requirement error" in message:
            meaning.cls, meaning.weight = "driver/version-mismatch", 0.75  # the image asks for a newer driver
        elif re.search(r"rpc error: timed out|timed out: unknown", message):
            meaning.cls, meaning.weight = "driver/hang", 0.7
        elif re.search(r"nvml error: (?:gpu is lost|unknown error)", message):
            meaning.cls, meaning.weight = "hardware/gpu-lost", 0.65
        elif re.search(
            r"(?:mount|ldcache|permission|container) error: |could not select device driver|unresolvable CDI", message
        ):
            meaning.cls, meaning.weight = "platform/config", 0.7
        elif "unknown device" in message:
            meaning.cls, meaning.weight = "hardware/gpu-lost", 0.5
    return meaning


@lru_cache(maxsize=1)
def _conditions() -> Mapping[str, dict[str, str]]:
    # read on first use: the catalog is data of the package, not the world
    from workbench.catalog import table

    rows: dict[str, dict[str, str]] = {}
    for row in table("conditions"):
        if row["kind"] in ("node condition", "taint", "component") or row["signature"] == "k8s-condition":
            rows.setdefault(row["name"], row)
    return rows


def condition_row(name: str) -> dict[str, str] | None:
    """Return the row of the table of conditions for a condition, a taint key or a condition's reason, or None."""
    rows = _conditions()
    if name in rows:
        return rows[name]
    generic = re.sub(r"\d+", "<n>", name)
    return rows.get(generic)


def bad(name: str, status: str, reason: str = "") -> bool | None:
    """
    Tell whether a node condition is bad: True, False, or None when nobody knows.

    Polarity differs by emitter: `Ready` and the EKS conditions are good when True, all other known ones are bad when True;
    an unknown condition is judged by its reason (`…IsNotHealthy`, `…HasIssues`) and left open otherwise.
    """
    row = condition_row(name)
    polarity = row["polarity"] if row and row["kind"].startswith("node condition") else ""
    if polarity.startswith("False"):
        return status != "True"
    if polarity.startswith("True"):
        # Unknown of a pressure condition says that the kubelet is silent, which Ready says already
        return True if status == "True" else (False if status == "False" else None)
    if re.search(r"(?:IsNotHealthy|HasIssues|Unhealthy|IsDown|Failed)$", reason):
        return True
    if re.search(r"(?:IsHealthy|HasNoIssues|IsReady|IsUp)$", reason):
        return False
    return None


# Seconds. Our own checker renews its conditions every five minutes (`workbench.health.conditions.HEARTBEAT`), as the kubelet does: three
# heartbeats missed, and nobody checks any more
STALE_AFTER = 900.0
_OURS = "GPU Reliability Workbench"


def stale_since(raw: Mapping[str, Any], now: float) -> float | None:
    """
    Return when a node condition of ours was renewed last, if that is so long ago that it says nothing of the node at `now`; else None.

    Parameters
    ----------
    raw : mapping
        An item of a node's ``status.conditions``.
    now : float
        Seconds since the epoch; of kept evidence the newest heartbeat of the same node, which its kubelet renews as often.
    """
    row = condition_row(str(raw.get("type")))
    if row is None or row["emitter"] != _OURS or row["kind"] != "node condition":
        return None
    heartbeat = epoch(raw.get("lastHeartbeatTime"))
    return heartbeat if heartbeat is not None and now - heartbeat > STALE_AFTER else None


def event_span(item: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return when an event (of either API) was seen first and last, seconds since the epoch."""
    meta, series = (one if isinstance(one, Mapping) else {} for one in (item.get("metadata"), item.get("series")))
    told = item.get("firstTimestamp") or item.get("deprecatedFirstTimestamp") or item.get("eventTime")
    first = epoch(told or meta.get("creationTimestamp"))
    last = epoch(item.get("lastTimestamp") or item.get("deprecatedLastTimestamp") or series.get("lastObservedTime"))
    return first, last if last is not None else first


def epoch(text: Any) -> float | None:
    """Return an RFC 3339 stamp (``2026-03-01T10:00:00Z``, also with fractions) as seconds since the epoch, or None."""
    if isinstance(text, datetime):  # YAML readers make these
        return (text if text.tzinfo else text.replace(tzinfo=UTC)).timestamp()
    if not isinstance(text, str) or len(text) < 19:
        return None
    try:
        stamp = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        return None
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


def gpu_in(text: str) -> Gpu | None:
    """Return the GPU that a message names by index, PCI address or UUID, or None."""
    index, pci = _GPU_INDEX.search(text), _PCI.search(text) or re.search(r"Xid \(PCI:([0-9a-fA-F:.]+)", text)
    found = Gpu(
        index=next((int(group) for group in index.groups() if group), None) if index else None,
        uuid=ids.uuid(text),
        pci=ids.pci(pci[1]) if pci else None,
    )
    return found if found != Gpu() else None


_UNITS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "m": 1e-3,
}


def parse_quantity(text: Any) -> float | None:
    """Return a Kubernetes quantity (``256Gi``, ``1500M``, ``188854781952``, ``500m``) as a number (memory: bytes), or None."""
    found = re.match(r"([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)([KMGTP]i|[kKMGTPm]?)$", str(text).strip())
    return float(found[1]) * _UNITS[found[2]] if found else None
