"""A folder that stands for a healthy node of eight H100: files, programs, libnvidia-ml, and the settings that make every check apply."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.nvml_fake import BUS, library, pci_tree
from workbench.sources.node.world import World

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
BOOT = NOW - 2 * 86400
# what the checks may run of a bare system, as it is on every node
_SYSTEM = ("cat", "grep", "stat", "sh")
SETTINGS: dict[str, object] = {"gpus": 8, "mounts": ["/scratch"]}


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
36 22 0:45 / /scratch rw,relatime shared:90 - nfs4 10.0.0.9:/scratch rw,vers=4.2,hard
"""
_JOURNAL = """2027-01-13T08:00:05.000000+00:00 gpu-7 kernel: Linux version 6.8.0-60-generic
2027-01-13T08:01:00.000000+00:00 gpu-7 kernel: nvidia-nvlink: Nvlink Core is being initialized, major device number 511
2027-01-15T07:30:00.000000+00:00 gpu-7 kernel: nvidia 0000:19:00.0: enabling device (0140 -> 0142)
"""


def healthy(root: Path) -> World:
    """Write the node below a folder and return it as a world whose tools are those of ``<root>/bin`` and no others."""
    pci_tree(root, BUS)
    files = {
        "proc/stat": f"cpu  1 2 3 4\nbtime {int(BOOT)}\n",
        "proc/uptime": "172800.00 5000000.00\n",
        "proc/self/mountinfo": _MOUNTS,
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Mon Mar 17 12:00:00 UTC 2025\n",
        "scratch/there": "",
    }
    for at, address in enumerate(BUS):
        files[f"proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 99\nGPU UUID: \t GPU-00000000-0000-0000-0000-00000000000{at}\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {at}\n"
        )
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tools = root / "bin"
    tools.mkdir()
    for name in _SYSTEM:
        found = shutil.which(name)
        assert found, f"{name} is on every node, and not here"
        (tools / name).symlink_to(found)
    for name, text in (("nvidia-smi", _SMI), ("journalctl", _JOURNAL)):
        (root / f"{name}.out").write_text(text)
        tool(tools, name, f"exec cat {root}/{name}.out")
    env = {"PATH": str(tools), "LD_LIBRARY_PATH": library(), "FAKE_NVML": ""}
    return World("gpu-7", root, env, lambda: NOW, dict(SETTINGS))


def tool(folder: Path, name: str, script: str, mode: int = 0o755) -> None:
    """Write a small program."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
