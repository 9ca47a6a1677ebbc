"""Build a tree that stands for a node with eight H100 and four NVSwitches: PCI bus, device files, /proc, kernel log, tools; NVML is the fake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.health import Finding, run
from workbench.sources.node.world import World

NOW = 1_777_900_000.0  # 2026-05-04T13:06:40Z
BOOT = NOW - 5 * 86400
BUSES = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")
UUIDS = tuple(f"GPU-00000000-0000-0000-0000-{number:012d}" for number in range(8))


class Node:
    """A node in a folder; each method changes one thing of it."""

    def __init__(self, root: Path, library: str) -> None:
        self.root, self.library = root, library
        self.plays, self.tools = "", root / "bin"
        self.settings: dict[str, Any] = {}
        self.tools.mkdir()
        (self.tools / "cat").symlink_to("/bin/cat")
        for bus in BUSES:
            self.device(f"0000:{bus}:00.0", "0x030200")
        for number in range(4):
            self.device(f"0000:{number + 3:02x}:00.0", "0x068000")
        for name in (*(f"nvidia{number}" for number in range(8)), "nvidiactl", "nvidia-uvm"):
            self.file(f"dev/{name}")
        self.file("proc/stat", f"cpu  1 2 3\nbtime {int(BOOT)}\n")
        self.file("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
        self.file("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme sse2\n")
        self.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30\n")
        for bus in BUSES:
            self.file(
                f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information",
                "Model: \t\t NVIDIA H100 80GB HBM3\nGPU Firmware: \t 570.133.20\n",
            )
        self.process(1, "systemd", ())
        self.log()
        self.tool("nvidia-smi", "".join(f"GPU {at}: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n" for at, uuid in enumerate(UUIDS)))
        self.systemctl()

    def file(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def device(self, address: str, kind: str, above: str = "") -> None:
        real = self.root / "sys/devices/pci0000:00" / above / address
        real.mkdir(parents=True)
        (real / "vendor").write_text("0x10de\n")
        (real / "class").write_text(f"{kind}\n")
        link = self.root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(real)

    def process(self, pid: int, name: str, files: Iterable[str], state: str = "S") -> None:
        self.file(f"proc/{pid}/stat", f"{pid} ({name}) {state} 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 {100 + pid} 1 1\n")
        self.file(f"proc/{pid}/comm", f"{name}\n")
        self.file(f"proc/{pid}/wchan", "_nv000123rm" if state == "D" else "0")
        self.file(f"proc/{pid}/task/{pid}/stat", (self.root / f"proc/{pid}/stat").read_text())
        self.file(f"proc/{pid}/task/{pid}/wchan", (self.root / f"proc/{pid}/wchan").read_text())
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(exist_ok=True)
        for number, target in enumerate(files):
            (folder / str(number)).symlink_to(target)

    def tool(self, name: str, out: str, code: int = 0) -> None:
        self.file(f"bin/{name}.out", out)
        path = self.file(f"bin/{name}", f"#!/bin/sh\n/bin/cat '{self.tools}/{name}.out'\nexit {code}\n")
        path.chmod(0o755)

    def systemctl(self, manager: str = "active", imex: str = "inactive") -> None:
        blocks = [
            f"Id=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState={manager}\nSubState=x\nResult=success\nUnitFileState=enabled\n",
            f"Id=nvidia-imex.service\nLoadState=not-found\nActiveState={imex}\nSubState=dead\nResult=success\nUnitFileState=\n",
        ]
        self.tool("systemctl", "\n".join(blocks))

    def log(self, *lines: tuple[float, str] | str, first: float = BOOT) -> None:
        """Write kern.log: the boot at `first`, then each line so many seconds before now (or an hour before)."""
        told = (
            [(NOW - first, "Linux version 6.8.0-45-generic (buildd@x) #45-Ubuntu SMP")]
            if first == BOOT
            else [(NOW - first, "usb 1-1: new device")]
        )
        told += [(3600.0, line) if isinstance(line, str) else line for line in lines]
        stamped = [
            f"{datetime.fromtimestamp(NOW - ago, UTC).isoformat(timespec='microseconds')} gpu-7 kernel: {text}\n"
            for ago, text in told
        ]
        self.file("var/log/kern.log", "".join(stamped))

    def check(self, *names: str, context: str = "allocation", env: Mapping[str, str] | None = None) -> list[Finding]:
        world = World(
            "gpu-7",
            self.root,
            {"PATH": str(self.tools), "LD_LIBRARY_PATH": self.library, "FAKE_NVML": self.plays, **(env or {})},
            lambda: NOW,
            self.settings,
        )
        return run(context, world=world, only=names)


def one(findings: list[Finding], code: str) -> Finding:
    """Return the only finding of a code."""
    (found,) = [each for each in findings if each.code == code]
    return found
