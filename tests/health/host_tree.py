"""A host made of files and small programs: what stands for a node under test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.health import Finding, run
from workbench.sources.node.world import World

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
BOOT = NOW - 30 * 86400


@dataclass
class Host:
    """Files below a folder that stands for ``/``, and a folder of programs that stands for the PATH."""

    root: Path
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "bin").mkdir(parents=True)
        for name in ("grep", "stat", "cat", "sh", "sleep"):
            found = shutil.which(name)
            assert found, name
            (self.root / "bin" / name).symlink_to(found)
        self.file("/proc/uptime", "2592000.00 5000000.00\n")
        self.file("/proc/stat", f"cpu  1 2 3 4\nbtime {int(BOOT)}\n")
        for folder in ("/sys/bus/pci/devices", "/sys/class/net", "/sys/class/block"):
            self.path(folder).mkdir(parents=True)
        self.kernel_log()

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def file(self, name: str, text: str) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def files(self, folder: str, texts: Mapping[str, object]) -> None:
        for name, text in texts.items():
            self.file(f"{folder}/{name}", f"{text}\n")

    def tool(self, name: str, out: str = "", *, code: int = 0, err: str = "", script: str = "") -> None:
        """A program that prints a text, whatever it is asked; or a shell script of its own."""
        said = self.root / f"{name}.out"
        said.write_text(out)
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script or f'cat {said}; echo {err!r} >&2; exit {code}'}\n")
        path.chmod(0o755)

    def kernel_log(self, *lines: str) -> None:
        """A syslog of kernel lines; those without a stamp are of half an hour ago."""
        first = "2026-12-16T08:00:05.000000+00:00 n1 kernel: [    0.000000] Linux version 6.8.0-60-generic"
        stamped = [
            line if line[:2] == "20" else f"2027-01-15T07:30:00.000000+00:00 n1 kernel: [2590000.0] {line}" for line in lines
        ]
        path = self.file("/var/log/kern.log", "\n".join((first, *stamped)) + "\n")
        os.utime(path, (NOW, NOW))

    def world(self, **settings: object) -> World:
        env = {"PATH": str(self.root / "bin")}
        return World("n1", self.root, env, lambda: NOW, {**self.settings, **settings})

    def run(self, check: str, context: str = "allocation", **settings: object) -> list[Finding]:
        return [one for one in run(context, only=[check], world=self.world(**settings)) if one.check == check]


def codes(findings: Sequence[Finding]) -> set[tuple[str, str]]:
    """The part and code (or status, when all is well) of each finding."""
    return {(one.part, one.code or one.status) for one in findings}
