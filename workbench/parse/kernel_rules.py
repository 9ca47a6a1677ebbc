"""Turn a kernel message into the catalog rows it may match, by words that must stand in it."""

from __future__ import annotations

import re
from functools import lru_cache

from workbench import catalog

__all__ = ["WORDS", "match"]

# Word that a message must hold → signatures to try, in this order over the whole table: the specific before the general.
WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Kernel panic", ("kernel-panic",)),
    ("off the bus", ("gpu-off-bus",)),
    ("GPU_IS_LOST", ("gpu-lost-assert",)),
    ("rpcSendMessage failed", ("gpu-lost-assert",)),
    ("SANITY_CHECK failed", ("gpu-not-on-bus",)),
    ("GPU reg read", ("gpu-not-on-bus",)),
    ("GPU lost", ("gpu-not-on-bus",)),
    ("bad register read", ("gpu-not-on-bus", "gpu-register-error")),
    ("RmFetchGspRmImages", ("gsp-image-missing",)),
    ("RESET_REQUIRED", ("gpu-reset-required",)),
    ("RmInitAdapter", ("rm-init-failed",)),
    ("rm_init_adapter", ("rm-init-failed",)),
    ("likely needs to be reset", ("gsp-needs-reset",)),
    ("eartbeat timed out", ("gsp-heartbeat-timeout",)),
    ("GSP", ("gsp-image-mismatch", "gsp-timeout", "gsp-crash", "gsp-boot-failed", "gsp-init-failed")),
    ("kfsp", ("gsp-boot-failed",)),
    ("kgsp", ("gsp-boot-failed",)),
    ("rror cqe", ("nic-cqe-error",)),
    ("ERR CQE", ("nic-cqe-error",)),
    ("dump_cqe", ("nic-cqe-error",)),
    ("_kgsp", ("gsp-image-mismatch", "gsp-boot-failed")),
    ("ooter", ("gsp-init-failed",)),
    ("FWSEC", ("gsp-init-failed",)),
    ("PMU has halted", ("pmu-halted",)),
    ("Notifier Write", ("gpu-watchdog",)),
    ("Memory Subsystem Error", ("gpu-memsys-error",)),
    ("NVIDIA probe routine", ("nvidia-not-probed", "nvidia-probe-failed")),
    ("No NVIDIA", ("nvidia-no-gpu",)),
    ("API mismatch", ("nvidia-api-mismatch",)),
    ("power cables", ("gpu-power-cable",)),
    ("installed in this system", ("nvidia-unsupported",)),
    ("requires use of the NVIDIA", ("nvidia-unsupported",)),
    ("PCI I/O region", ("pci-region-invalid",)),
    ("disagrees about version", ("nvidia-peermem", "nvidia-module-mismatch")),
    ("version magic", ("nvidia-module-mismatch",)),
    ("Module nvidia", ("nvidia-module-missing",)),
    ("could not insert", ("nvidia-peermem-refused", "nvidia-module-mismatch", "nvidia-module-missing")),
    ("rejected", ("nvidia-module-missing", "pids-limit")),
    ("nvidia_peermem", ("nvidia-peermem",)),
    ("loading NVIDIA UNIX", ("nvidia-loaded",)),
    ("global fatal error", ("uvm-fatal",)),
    ("already bound to", ("nvidia-not-probed",)),
    ("request_mem_region", ("nvidia-not-probed",)),
    ("probably locked", ("gpu-watchdog",)),
    ("nvidia-uvm:", ("uvm-fatal", "nvidia-unloaded")),
    ("nvidia-modeset: Unload", ("nvidia-unloaded",)),
    ("nvidia-nvlink:", ("nvlink-core", "nvidia-unloaded")),
    ("nvlink_core_train", ("nvlink-core",)),
    ("nouveau", ("nouveau",)),
    ("failed with error", ("gpu-firmware-load",)),
    ("NVRM:", ("nvrm-assert",)),
    ("ncorrectable", ("amdgpu-ras-memory", "amdgpu-ras")),
    (" timeout, ", ("amdgpu-ring-timeout",)),
    ("hub", ("amdgpu-page-fault",)),
    ("amdgpu", ("amdgpu-init-failed", "amdgpu-scheduler-hang", "amdgpu-reset")),
    ("qcm fence", ("amdgpu-scheduler-hang",)),
    ("cp might be", ("amdgpu-scheduler-hang",)),
    ("VRAM is lost", ("amdgpu-reset",)),
    ("failed with error", ("nvidia-probe-error",)),
    ("ms after ", ("pci-not-ready",)),
    ("type 7f", ("pci-header-ff",)),
    (": BAR ", ("pci-bar-unassigned",)),
    ("change power state", ("pci-power-state",)),
    ("PCIe Bus Error", ("aer-uncorrected-fatal", "aer-uncorrected-nonfatal", "aer-corrected")),
    ("AER:", ("aer-uncorrected-fatal", "aer-uncorrected-nonfatal", "aer-corrected", "aer-recovery-failed")),
    ("pciehp:", ("pcie-slot-down",)),
    ("bring link up", ("pcie-training-failed",)),
    ("retraining", ("pcie-training-failed",)),
    ("link training", ("pcie-training-failed",)),
    ("Link Active not set", ("pcie-training-failed",)),
    ("DPC:", ("pcie-dpc",)),
    ("available PCIe bandwidth, limited", ("pcie-width-limited",)),
    ("IO_PAGE_FAULT", ("iommu-fault",)),
    ("DMAR:", ("iommu-fault",)),
    ("arm-smmu", ("iommu-fault",)),
    ("SError", ("arm-serror",)),
    ("xternal abort", ("arm-serror",)),
    ("Bad mode in", ("arm-serror",)),
    ("Port module event", ("nic-cable-unplugged", "nic-cable-plugged", "nic-cable-error")),
    ("health", ("nic-health", "nic-fw-fatal")),
    (
        "mlx5_core",
        (
            "nic-pci-error",
            "nic-fw-fatal",
            "nic-cmd-timeout",
            "nic-cmd-error",
            "nic-temperature",
            "nic-slot-power",
            "nic-fw-reset",
            "nic-device-reset",
        ),
    ),
    ("NETDEV WATCHDOG", ("nic-tx-timeout",)),
    ("TX timeout", ("nic-tx-timeout",)),
    ("transmit timeout", ("nic-tx-timeout",)),
    ("cxi_", ("nic-hsn-down",)),
    ("hfi1", ("nic-hsn-down",)),
    ("neighbor table", ("neighbour-overflow",)),
    ("file-max", ("file-limit",)),
    ("ink", ("bond-slave-down", "nic-link-down", "nic-link-up")),
    ("efa", ("efa-admin-timeout", "efa-cmd-failed", "nic-device-reset")),
    ("ena ", ("nic-device-reset",)),
    ("gve ", ("nic-device-reset",)),
    ("ice ", ("nic-device-reset",)),
    ("i40e ", ("nic-device-reset",)),
    ("bnxt_en ", ("nic-device-reset",)),
    ("bnxt_re ", ("nic-device-reset",)),
    ("irdma ", ("nic-device-reset",)),
    ("table full", ("conntrack-full",)),
    ("tcp_mem", ("tcp-memory",)),
    ("unregister_netdevice", ("netns-leak",)),
    ("EDAC", ("edac-ue", "edac-ce")),
    ("Hardware Error]", ("mce-fatal", "mce-uncorrected", "mce-corrected", "ghes-fatal", "ghes-corrected", "mce-logged")),
    ("achine check", ("mce-fatal",)),
    ("MCE broadcast", ("mce-fatal",)),
    ("Memory failure", ("memory-failure",)),
    ("temperature", ("cpu-throttled", "thermal-critical")),
    ("thermal shutdown", ("thermal-critical",)),
    ("NMI", ("hard-lockup", "nmi-unknown")),
    ("soft lockup", ("soft-lockup",)),
    ("hard LOCKUP", ("hard-lockup",)),
    ("stall", ("rcu-stall",)),
    ("blocked for more than", ("hung-task",)),
    ("blocked in I/O wait", ("hung-task",)),
    ("kthread", ("rcu-stall",)),
    ("state:D", ("hung-task",)),
    ("segfault at", ("segfault",)),
    ("traps:", ("process-trap",)),
    ("BUG:", ("kernel-oops",)),
    ("Oops", ("kernel-oops",)),
    ("Unable to handle kernel", ("kernel-oops",)),
    ("general protection fault", ("kernel-oops",)),
    ("kernel BUG at", ("kernel-oops",)),
    ("oom-killer", ("oom-kill-global",)),
    ("out of memory", ("oom-kill-cgroup",)),
    ("Out of memory", ("oom-kill-global",)),
    ("page allocation failure", ("page-allocation",)),
    ("locksource", ("clocksource-unstable",)),
    ("USB disconnect", ("usb-disconnect",)),
    ("Linux version", ("kernel-boot",)),
    ("reboot:", ("node-shutdown",)),
    ("systemd", ("node-shutdown",)),
    ("nvme", ("nvme-io-error", "nvme-down", "nvme-timeout")),
    ("ata", ("ata-error",)),
    ("hostbyte=DID_", ("scsi-path-error",)),
    ("Sense", ("scsi-medium-error", "disk-io-error")),
    ("multipath", ("scsi-path-error",)),
    ("session recovery timed out", ("scsi-path-error",)),
    ("connection", ("scsi-path-error",)),
    ("rbd", ("netblock-error",)),
    ("block nbd", ("netblock-error",)),
    ("I/O", ("disk-io-error", "fs-shutdown")),
    ("critical ", ("thin-pool-full", "disk-io-error")),
    ("switching pool", ("thin-pool-full",)),
    ("data space", ("thin-pool-full",)),
    ("JBD2", ("fs-shutdown",)),
    ("read-only", ("fs-readonly",)),
    ("readonly", ("fs-readonly",)),
    ("Aborting journal", ("fs-readonly",)),
    ("XFS (", ("fs-shutdown",)),
    ("EXT4-fs", ("fs-shutdown",)),
    ("BTRFS", ("fs-shutdown",)),
    ("md/raid", ("md-failed",)),
    ("nfs: server", ("nfs-not-responding", "nfs-ok")),
    ("NFS: ", ("nfs-state-lost",)),
    ("nfs4_", ("nfs-state-lost",)),
    ("lockd: ", ("nfs-state-lost",)),
    ("AUTH_GSS", ("nfs-state-lost",)),
    ("NodeConn", ("beegfs-client-error",)),
    ("Remoting (", ("beegfs-client-error",)),
    ("beegfs", ("beegfs-client-error", "beegfs-error")),
    ("expel", ("gpfs-expelled",)),
    ("Lost membership", ("gpfs-expelled",)),
    ("unmounted by the system", ("gpfs-unmounted", "gpfs-error")),
    ("Lost quorum", ("gpfs-unmounted",)),
    ("Disk failure", ("gpfs-unmounted", "gpfs-error")),
    ("mmfs", ("gpfs-error",)),
    ("GPFS", ("gpfs-error",)),
    ("weka", ("weka-disconnected", "weka-error")),
    ("was evicted", ("lustre-evicted",)),
    ("LNet", ("lnet-timeout",)),
    ("Lustre", ("lustre-restored", "lustre-error")),
    ("ceph", ("ceph-error",)),
    ("CIFS", ("cifs-down",)),
    ("fuse", ("fuse-disconnected", "mount-failed")),
    ("mount.", ("mount-failed",)),
    ("mmmount", ("mount-failed",)),
    ("s3", ("fuse-disconnected",)),
    ("juicefs", ("fuse-disconnected",)),
    ("goofys", ("fuse-disconnected",)),
)


_ONE_DIGIT = str.maketrans("123456789", "000000000")
_Rules = tuple[tuple[str, re.Pattern[str]], ...]


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[str, str, _Rules], ...]:
    rows = catalog.signatures()
    return tuple(
        (
            word,
            word.translate(_ONE_DIGIT),
            tuple((name, re.compile(rows[name].pattern)) for name in names if rows[name].pattern),
        )
        for word, names in WORDS
    )


@lru_cache(maxsize=4096)
def _possible(shape: str) -> tuple[tuple[str, _Rules], ...]:
    # a node says the same things again and again, with other numbers
    return tuple((word, rules) for word, masked, rules in _compiled() if masked in shape)


def match(text: str) -> tuple[str, re.Match[str]] | None:
    """Return (signature id, match) of the first catalog row that a kernel message fits, or None for ordinary messages."""
    for word, rules in _possible(text.translate(_ONE_DIGIT)):
        if word in text:
            for name, pattern in rules:
                found = pattern.search(text)
                if found:
                    return name, found
    return None
