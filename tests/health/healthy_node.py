"""A folder that stands for a healthy node of eight H100: files, programs, libnvidia-ml, and the settings that make every check apply."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.nvml_fake import BUS, library, pci_tree
from workbench.sources.node.world import World

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
BOOT = NOW - 2 * 86400
# what the checks may run of a bare system, as it is on every node
_SYSTEM = ("cat", "grep", "stat", "sh")
SETTINGS: dict[str, object] = {"gpus": 8, "mounts": ["/scratch"], "probe_python": "gpu-python"}


def _gpu(at: int, address: str) -> str:
    return f"""\t<gpu id="0000{address.upper()}">
\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
\t\t<serial>165000000000{at}</serial>
\t\t<uuid>GPU-00000000-0000-0000-0000-00000000000{at}</uuid>
\t\t<minor_number>{at}</minor_number>
\t\t<gpu_recovery_action>None</gpu_recovery_action>
\t\t<pci>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
\t\t\t\t<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
\t\t\t</pci_gpu_link_info>
\t\t\t<replay_counter>0</replay_counter>
\t\t</pci>
\t\t<compute_mode>Default</compute_mode>
\t\t<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t\t<sram_threshold_exceeded>No</sram_threshold_exceeded>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>0</remapped_row_unc>
\t\t\t<remapped_row_pending>No</remapped_row_pending>
\t\t\t<remapped_row_failure>No</remapped_row_failure>
\t\t</remapped_rows>
\t\t<temperature><gpu_temp>34 C</gpu_temp><memory_temp>41 C</memory_temp></temperature>
\t\t<fabric><state>Completed</state><status>Success</status></fabric>
\t</gpu>
"""


_SMI = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Fri Jan 15 08:00:00 2027</timestamp>
\t<driver_version>570.133.20</driver_version>
\t<cuda_version>12.8</cuda_version>
\t<attached_gpus>8</attached_gpus>
{"".join(_gpu(at, address) for at, address in enumerate(BUS))}</nvidia_smi_log>
"""
_MOUNTS = """22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
25 22 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw
36 22 0:45 / /scratch rw,relatime shared:90 - nfs4 10.0.0.9:/scratch rw,vers=4.2,hard
"""
_JOURNAL = """2027-01-13T08:00:05.000000+00:00 gpu-7 kernel: Linux version 6.8.0-60-generic
2027-01-13T08:01:00.000000+00:00 gpu-7 kernel: nvidia-nvlink: Nvlink Core is being initialized, major device number 511
2027-01-15T07:30:00.000000+00:00 gpu-7 kernel: nvidia 0000:19:00.0: enabling device (0140 -> 0142)
"""


_UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{at}" for at in range(len(BUS))]
_LIST = "".join(f"GPU {at}: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n" for at, uuid in enumerate(_UUIDS))
_LINKS = "".join(
    f"GPU {at}: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n" + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for at, uuid in enumerate(_UUIDS)
)
_LINE = f"+--------+{'-' * 70}+\n"
_DISCOVERY = f"8 GPUs found.\n{_LINE}| GPU ID | {'Device Information':<69}|\n{_LINE}" + "".join(
    f"| {at:<7}| {'Name: NVIDIA H100 80GB HBM3':<69}|\n|        | {f'PCI Bus ID: 0000{address.upper()}':<69}|\n"
    f"|        | {f'Device UUID: {uuid}':<69}|\n{_LINE}"
    for at, (address, uuid) in enumerate(zip(BUS, _UUIDS, strict=True))
)
_TRACKING = """Reference ID    : 0A000001 (10.0.0.1)
Stratum         : 3
Ref time (UTC)  : Fri Jan 15 07:59:40 2027
System time     : 0.000012 seconds fast of NTP time
Last offset     : +0.000008 seconds
RMS offset      : 0.000021 seconds
Frequency       : 4.123 ppm slow
Residual freq   : +0.001 ppm
Skew            : 0.012 ppm
Root delay      : 0.000310 seconds
Root dispersion : 0.000450 seconds
Update interval : 64.2 seconds
Leap status     : Normal
"""
_SMART = """{"json_format_version": [1, 0], "smartctl": {"version": [7, 2], "exit_status": 0}, "device": {"name": "/dev/nvme0n1", "type": "nvme"},
 "model_name": "SAMSUNG MZQL23T8HCLS", "smart_status": {"passed": true, "nvme": {"value": 0}},
 "nvme_smart_health_information_log": {"critical_warning": 0, "temperature": 35, "available_spare": 100, "available_spare_threshold": 10,
 "percentage_used": 2, "media_errors": 0, "num_err_log_entries": 0, "power_on_hours": 9000}}
"""
_IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 12
\t\tLink layer: InfiniBand
"""
_RDMA = "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 12 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP\n"
_MEMORY = "MemTotal:       2113443044 kB\nMemFree:        1900000000 kB\nMemAvailable:   2000000000 kB\nHardwareCorrupted:     0 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"
_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max core file size        0                    unlimited            bytes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
Max processes             8255000              8255000              processes
"""
_SHOW = """for unit; do case $unit in *.service) echo "Id=$unit
Names=$unit
LoadState=loaded
ActiveState=active
SubState=running
Result=success
UnitFileState=enabled
NRestarts=0
MainPID=900
";; esac; done"""


# what earlier runs kept: the same GPUs at the boot before, no row lost, ports that were up
_KEPT = {
    "gpus": {"schema": "workbench.state.gpus/1", "boot_id": "00000000-4b5a-6978-8796-a5b4c3d2e1f0", "time": BOOT - 86400,
             "gpus": [{"uuid": uuid, "pci": BUS[at], "serial": None, "name": "NVIDIA H100 80GB HBM3"} for at, uuid in enumerate(_UUIDS)]},
    "rows": {"schema": "workbench.state.rows/1", "gpus": {uuid: [[BOOT, 0]] for uuid in _UUIDS}},
    "ports": {"schema": "workbench.state.ports/1", "boot_id": "", "ports": {}},
}  # fmt: skip
_TOOLKIT = "NVRM version:   570.133.20\nCUDA version:   12.8\n" + "".join(
    f"\nDevice Index:   {at}\nDevice Minor:   {at}\nModel:          NVIDIA H100 80GB HBM3\nBrand:          Nvidia\nGPU UUID:       {uuid}\n"
    f"Bus Location:   0000{BUS[at]}\nArchitecture:   9.0\n"
    for at, uuid in enumerate(_UUIDS)
)
_CDI = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": str(at), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{at}"}]}} for at in range(len(BUS))],
}


_HEALTH = '{"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}\n'
_DIAG = json.dumps(
    {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "category": "Deployment",
                    "tests": [
                        {
                            "name": "software",
                            "results": [
                                {"entity_group": "GPU", "entity_group_id": 1, "entity_id": at, "status": "Pass"}
                                for at in range(8)
                            ],
                            "test_summary": {"status": "Pass"},
                        }
                    ],
                }
            ]
        },
        "metadata": {"Driver Version Detected": "570.133.20", "version": "4.2.3"},
    },
    indent=2,
)
_BANDWIDTH = json.dumps(
    {
        "nvbandwidth": {
            "version": "v0.8",
            "testcases": [
                {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.37"] * 8]},
                {"name": "device_to_host_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.21"] * 8]},
                {
                    "name": "device_to_device_memcpy_read_ce",
                    "status": "Passed",
                    "bandwidth_matrix": [["N/A" if at == to else "370.9" for to in range(8)] for at in range(8)],
                },
            ],
        }
    },
    indent=2,
)
_REDUCE = """# nThread 1 nGpus 8 minBytes 8388608 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on      gpu-7 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   5190.2  206.88  362.04      0   5188.9  206.93  362.13      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 362.085
#
"""
_PRODUCTS = (
    '{"library": "torch", "device": "NVIDIA H100 80GB HBM3"}\n'
    '{"kind": "float32", "size": 4096, "terms": 4096, "repeats": 20, "wrong": 0, "differ": 0, "places": []}\n{"end": true, "seconds": 15.1}\n'
)


def _below_a_switch(root: Path, address: str) -> None:
    """Put a GPU where it really is: below a port of a switch below a root port, each with a configuration space."""
    bus = root / "sys/bus/pci/devices"
    above = root / "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0"
    above.mkdir(parents=True)
    (bus / address).rename(above / address)
    # sysfs's links are relative: they hold where another root is mounted, as in a container with the host's files
    (bus / address).symlink_to(os.path.relpath(above / address, bus))
    for kind, folder in ((4, above.parents[1]), (5, above.parents[0]), (6, above)):
        # PCI Express capability at 0x40; Access Control Services, which redirect nothing, behind AER
        space = bytearray(4096)
        space[0:2], space[0x06], space[0x34] = b"\x4c\x11", 0x10, 0x40
        space[0x40:0x44] = bytes((0x10, 0x00, kind << 4 | 2, 0x01))
        space[0x100:0x104] = (0x0001 | 1 << 16 | 0x200 << 20).to_bytes(4, "little")
        space[0x200:0x208] = (0x000D | 1 << 16).to_bytes(4, "little") + bytes((0x5F, 0, 0, 0))
        (folder / "config").write_bytes(bytes(space))
        (folder / "vendor").write_text("0x1000\n")
        (folder / "class").write_text("0x060400\n")
        (bus / folder.name).symlink_to(os.path.relpath(folder, bus))


def _processes() -> dict[str, str]:
    out = {"proc/self/limits": _LIMITS, "proc/1/mountinfo": _MOUNTS}
    for pid, name in ((1, "systemd"), (900, "slurmd"), (950, "nv-fabricmanager"), (960, "nvidia-persistenced"), (1200, "sshd")):
        at = f"proc/{pid}"
        out |= {
            f"{at}/stat": f"{pid} ({name[:15]}) S 1 {pid} {pid} 0 -1 4194560 9000 1 0 0 10 20 0 0 20 0 1 0 {pid} 170000000 3000 18446744073709551615\n",
            f"{at}/comm": f"{name[:15]}\n",  # the kernel keeps so many letters
            f"{at}/cmdline": f"/usr/sbin/{name}\0",
            f"{at}/status": f"Name:\t{name[:15]}\nState:\tS (sleeping)\nPid:\t{pid}\nPPid:\t1\nUid:\t0\t0\t0\t0\nThreads:\t1\n",
            f"{at}/limits": _LIMITS,
            f"{at}/cgroup": f"0::/system.slice/{name}.service\n",
            f"{at}/task/{pid}/stat": f"{pid} ({name[:15]}) S 1 {pid} {pid} 0 -1 4194560 9000 1 0 0 10 20 0 0 20 0 1 0 {pid} 170000000 3000 0\n",
            f"{at}/fd/.keep": "",
        }
    return out


def _devices() -> dict[str, str]:
    port, disk = "sys/class/infiniband/mlx5_0", "sys/block/nvme0n1"
    out = {
        f"{port}/hca_type": "MT4129\n",
        f"{port}/board_id": "MT_0000000838\n",
        f"{port}/ports/1/state": "4: ACTIVE\n",
        f"{port}/ports/1/phys_state": "5: LinkUp\n",
        f"{port}/ports/1/link_layer": "InfiniBand\n",
        f"{port}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/bus/pci/devices/0000:18:00.0/vendor": "0x15b3\n",
        "sys/bus/pci/devices/0000:18:00.0/class": "0x020700\n",
        "sys/bus/pci/devices/0000:18:00.0/infiniband/mlx5_0/hca_type": "MT4129\n",
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/carrier": "1\n",
        "sys/class/net/eth0/speed": "25000\n",
        f"{disk}/device/model": "SAMSUNG MZQL23T8HCLS\n",
        f"{disk}/device/state": "live\n",
        "sys/class/nvme/nvme0/state": "live\n",
        "sys/class/dmi/id/sys_vendor": "NVIDIA\n",
        "sys/class/dmi/id/product_name": "DGXH100\n",
        "sys/module/nvidia/version": "570.133.20\n",
        "sys/devices/system/node/has_memory": "0-1\n",
        "sys/devices/system/edac/mc/mc0/dimm0/dimm_label": "CPU0_DIMM_A1\n",
        "sys/devices/system/edac/mc/mc0/dimm0/dimm_ce_count": "0\n",
        "sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count": "0\n",
        "sys/devices/system/edac/mc/mc0/ce_noinfo_count": "0\n",
        "sys/devices/system/edac/mc/mc0/ue_noinfo_count": "0\n",
        "sys/devices/system/edac/mc/mc0/seconds_since_reset": "172800\n",
        "etc/cdi/nvidia.json": json.dumps(_CDI),
        "run/systemd/system/.keep": "",
        "dev/shm/.keep": "",
    }
    counters = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors",
                "excessive_buffer_overrun_errors")  # fmt: skip
    out |= {f"{port}/ports/1/counters/{name}": "0\n" for name in counters}
    for number in ("05", "06", "07", "08"):  # NVSwitches
        out |= {
            f"sys/bus/pci/devices/0000:{number}:00.0/vendor": "0x10de\n",
            f"sys/bus/pci/devices/0000:{number}:00.0/class": "0x068000\n",
        }
    return out | {
        f"dev/{name}": "" for name in (*(f"nvidia{at}" for at in range(8)), "nvidiactl", "nvidia-uvm", "nvidia-modeset")
    }


def _kernel() -> dict[str, str]:
    out = {
        "proc/stat": f"cpu  1 2 3 4\nbtime {int(BOOT)}\n",
        "proc/uptime": "172800.00 5000000.00\n",
        "proc/meminfo": _MEMORY,
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu vme de pse tsc msr\n",
        "proc/self/mountinfo": _MOUNTS,
        "proc/sys/kernel/tainted": "4097\n",
        "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
        "proc/sys/kernel/random/boot_id": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n",
        "proc/sys/kernel/numa_balancing": "0\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Mon Mar 17 12:00:00 UTC 2025\n",
        "scratch/there": "",
        **{f"var/lib/workbench/{name}.json": json.dumps(value) for name, value in _KEPT.items()},
        "sys/fs/cgroup/system.slice/slurmd.service/memory.max": "max\n",
        "sys/fs/cgroup/system.slice/slurmd.service/pids.max": "max\n",
        "sys/fs/cgroup/system.slice/slurmd.service/pids.current": "34\n",
    }
    for at, address in enumerate(BUS):
        out[f"proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 99\nGPU UUID: \t {_UUIDS[at]}\nVideo BIOS: \t 96.00.99.00.01\n"
            f"Bus Type: \t PCIe\nBus Location: \t {address}\nDevice Minor: \t {at}\nGPU Firmware: \t 570.133.20\n"
        )
    return out


def healthy(root: Path) -> World:
    """Write the node below a folder and return it as a world whose tools are those of ``<root>/bin`` and no others."""
    pci_tree(root, BUS)
    _below_a_switch(root, BUS[0])
    for name, text in {**_kernel(), **_devices(), **_processes()}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for keep in root.rglob(".keep"):
        keep.unlink()
    tools = root / "bin"
    tools.mkdir()
    for name in _SYSTEM:
        found = shutil.which(name)
        assert found, f"{name} is on every node, and not here"
        (tools / name).symlink_to(found)
    (root / "list.out").write_text(_LIST)
    (root / "links.out").write_text(_LINKS)
    said = {"nvidia-smi": _SMI, "journalctl": _JOURNAL, "dcgmi": _DISCOVERY, "chronyc": _TRACKING, "smartctl": _SMART, "ibstat": _IBSTAT,
            "rdma": _RDMA, "modinfo": "570.133.20\n", "nvidia-container-cli": _TOOLKIT}  # fmt: skip
    for name, text in said.items():
        (root / f"{name}.out").write_text(text)
        tool(tools, name, f"exec /bin/cat {root}/{name}.out")
    asked = f'case "$*" in -L) exec /bin/cat {root}/list.out;; nvlink*) exec /bin/cat {root}/links.out;; esac'
    tool(tools, "nvidia-smi", f"{asked}; exec /bin/cat {root}/nvidia-smi.out")
    probes = {
        "dcgmi-health": _HEALTH,
        "dcgmi-diag": _DIAG,
        "nvbandwidth": _BANDWIDTH,
        "all_reduce_perf": _REDUCE,
        "gpu-python": _PRODUCTS,
    }
    for name, text in probes.items():
        (root / f"{name}.out").write_text(text)
    tool(tools, "dcgmi", f'case "$1" in health|diag) exec /bin/cat {root}/dcgmi-$1.out;; esac; exec /bin/cat {root}/dcgmi.out')
    for name in ("nvbandwidth", "all_reduce_perf", "gpu-python"):
        tool(tools, name, f"exec /bin/cat {root}/{name}.out")
    tool(tools, "systemctl", _SHOW)
    env = {"PATH": str(tools), "LD_LIBRARY_PATH": library(), "FAKE_NVML": ""}
    return World("gpu-7", root, env, lambda: NOW, dict(SETTINGS))


def tool(folder: Path, name: str, script: str, mode: int = 0o755) -> None:
    """Write a small program."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
