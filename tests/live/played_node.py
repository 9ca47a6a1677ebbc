"""Turn the healthy node of tests/health into one that lives now: its clock is ours, it gets Xids and boots, and programs are run against it."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from tests.health.healthy_node import healthy

__all__ = ["SETTINGS", "PlayedNode"]

# what the site expects of it, as the command's environment
SETTINGS = {"WORKBENCH_HEALTH_GPUS": "8", "WORKBENCH_HEALTH_MOUNTS": "/scratch"}
XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=4711, name=python3, GPU has fallen off the bus."


class PlayedNode:
    """
    A node in a folder.

    Attributes
    ----------
    root : Path
        What stands for ``/``; programs are in ``<root>/bin``.
    journal : Path
        The file that its journalctl prints.
    libraries : str
        The folder of libnvidia-ml.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.journal = root, root / "journalctl.out"
        self.libraries = str(healthy(root).env["LD_LIBRARY_PATH"])
        self.boot(ago=2 * 86400.0)

    def boot(self, *, ago: float = 3600.0) -> None:
        """Boot it so long ago: another boot id, and a kernel log that begins there and has no fault."""
        self.started = time.time() - ago
        (self.root / "proc/stat").write_text(f"cpu  1 2 3 4\nbtime {int(self.started)}\n")
        (self.root / "proc/uptime").write_text(f"{ago:.2f} 5000000.00\n")
        (self.root / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        self.log()

    def log(self, *lines: str) -> None:
        """Let the journal have these lines of a minute ago, after those of the boot."""
        told = [
            (self.started, "Linux version 6.8.0-60-generic (buildd@x) #63-Ubuntu SMP"),
            (self.started + 60, "nvidia-nvlink: Nvlink Core is being initialized, major device number 511"),
            *((time.time() - 60, line) for line in lines),
        ]
        stamps = [(datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds"), text) for at, text in told]
        self.journal.write_text("".join(f"{stamp} gpu-7 kernel: {text}\n" for stamp, text in stamps))
