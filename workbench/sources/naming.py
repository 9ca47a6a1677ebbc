"""Turn the name of an evidence file into the node it speaks of, when the name plausibly says so."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["node_of", "nodes_in"]

# words that tools and people put around the node's name
_WORDS = frozenset(
    re.findall(
        r"\S+",
        """
    0 1 2 a agent b bmc boot bug collect console containerd crio dcgm dcgmi deepspeed describe device devinfo df diag
    dmesg docker efi err ethtool events exporter fabric fabricmanager fabricmgr fm get gpu health host ibstat ibstatus
    ibv idrac ilo imex iml ipmi journal journalctl json jsonl k kern kernel klog kubelet l last launcher log logs
    lsmod lspci manager meminfo messages metrics mlxlink modinfo mount mpirun nccl netconsole node numa nvidia nvlink
    old operator out plugin prev previous prom ps pstore q query r1 r2 r3 r4 ramoops rank0 recovery redfish report s
    scan sel show slurmctld slurmd slurmstepd smi srun stats stderr stdout summary syslog t top topo torchrun txt
    uptime vvv x
    aer after before burn burnin check clocks counters diagnostic dmon ecc gpuburn hca iostat link links lsblk nfsstat pages pci
    perfquery pmon power rdma remap remapped retired rows smartctl snapshot state status temperature temps throttle topology
    validation xid lclog systemctl services gpustat nvitop nvtop rocm amd
        """,
    )
)
# names that say what, not where
_GENERIC = frozenset(
    re.findall(
        r"\S+",
        """
    all app cluster container controller data driver error errors eval head job launch launcher main master node nodes
    output pod pods rank run sacct scheduler scontrol server service sinfo squeue test train trainer training worker
        """,
    )
)
_PER_NODE = re.compile(r"(?:^|/)(?:kernel|metrics|smi|pstore|bmc|dmesg|ipmi|dcgm|host|nodes?|stacks|sel|redfish)/(?:.*/)?", re.I)
_EXTENSION = re.compile(
    r"\.(?:log|txt|out|err|prom|om|json|jsonl|ya?ml|csv|xml|gz|zst|xz|bz2|\d{1,3}|stdout|stderr|metrics|dmesg|agent|kern|klog|sel)$",
    re.I,
)
_HOSTLIKE = re.compile(
    r"(?:[a-z]+-)*(?:gpu-?|dgx-?|hgx-?|node-?|host-?|nid|ip-|compute-?|cn|gn|worker-node-|aks-|gke-|server-?)"
    r"[\w-]*?(?:\d[\w-]*|-[a-z]\d*)(?:\.[\w.-]+)?",
    re.I,
)


def nodes_in(names: Iterable[str]) -> frozenset[str]:
    """Return the nodes that the names of files in per-node folders (``kernel/``, ``metrics/``, ``smi/`` …) give away."""
    found = (node_of(name, "kernel-log") for name in names if _PER_NODE.search(name))
    return frozenset(node for node in found if node)


def node_of(name: str, kind: str, known: frozenset[str] = frozenset()) -> str | None:
    """
    Return the node named by a path such as ``kernel/gpu-7.log.gz`` or ``smi/gpu-7-nvidia-smi.txt``, or None.

    A job's own logs (``logs/rank-3.log``, ``logs/llm-worker-0.log``) name ranks and pods, not nodes: of those only names that
    look like a host are taken, or that other evidence shows to be a node (`known`).
    """
    path = name.replace("!", "/")
    if re.search(r"(?:^|/)metrics/(?:.*/)?DCGM_", path):
        return None
    # pstore/dgx-37/dmesg-efi-1752 and nodes/dgx-37/dmesg.txt: the folder is the node
    inside = re.search(r"(?:^|/)(?:pstore|nodes?|hosts?|kernel|smi|bmc)/([\w.-]+)/", path, re.I)
    if inside and _stem(inside[1]):
        return _stem(inside[1])
    stem = _stem(path.rsplit("/", 1)[-1])
    if not stem:
        return None
    if stem in known:
        return stem
    about_node = kind in ("kernel-log", "smi", "bmc", "fabricmanager-log", "metrics-text", "stacks") or stem != _bare(path)
    if kind in ("metrics-json", "kubernetes", "launch", "flight-recorder", "torchelastic-error"):
        return None
    if _PER_NODE.search(path) and kind != "stacks":
        return stem if re.search(r"\d|-\w$|\.", stem) or kind in ("kernel-log", "metrics-text") else None
    return (
        stem
        if (about_node and _HOSTLIKE.fullmatch(stem)) or (kind == "job-log" and _HOSTLIKE.fullmatch(stem) and _node_log(stem))
        else None
    )


def _node_log(stem: str) -> bool:
    # logs/node-a.log and logs/dgx-42.log are a node's; logs/gpu-job-3.log or logs/server-1.log may be anything
    return re.match(r"(?:gpu-?)?(?:node|dgx|hgx|host|ip-|nid|aks-|gke-)", stem, re.I) is not None


def _bare(path: str) -> str:
    base = path.rsplit("/", 1)[-1]
    while (cut := _EXTENSION.sub("", base)) != base:
        base = cut
    return base


def _stem(base: str) -> str | None:
    base = _bare(base)
    parts = re.split(r"([-_.])", base)
    while len(parts) > 2 and (
        # dgx-37-dmesg-efi-175263681601001: the number of a dump, or the day it was taken, behind a tool's word
        (len(parts) > 4 and re.fullmatch(r"\d{6,}", parts[-1]) and parts[-3].lower() in _WORDS)
        or (parts[-1].lower() in _WORDS and not _tail_is_name(parts))
    ):
        del parts[-2:]
    while len(parts) > 2 and parts[0].lower() in _WORDS and parts[0].lower() not in ("gpu", "node", "host"):
        del parts[:2]
    stem = "".join(parts)
    low = stem.lower()
    if (
        len(stem) < 2  # smi/nvlink-e.txt: the tool's flag
        or low in _WORDS
        or low in _GENERIC
        or (re.fullmatch(r"[\d_.-]+", stem) and not re.fullmatch(r"\d+(?:\.\d+){3}", stem))
    ):
        return None
    if re.match(
        r"(?:rank|worker|local_rank|proc|task|replica|attempt|shard|fr_trace|dmesg|journal)[-_.]?\d*", low
    ) and not re.match(r"worker-node", low):
        return None
    return stem


def _tail_is_name(parts: list[str]) -> bool:
    # gpu-node-0, node-a, host-1: the last part belongs to the name although it is also a tool's flag
    last, before = parts[-1].lower(), parts[-3].lower()
    if last.isdigit() and before not in _WORDS:
        return True  # b200-1: a number behind a tool's word is the tool's, any other counts machines
    return (last.isdigit() or len(last) == 1) and before in (
        "node",
        "host",
        "gpu",
        "dgx",
        "hgx",
        "server",
        "worker",
        "ip",
        "cn",
        "gn",
    )
