"""Turn a scenario of tests/data/nvml into a node for tests that need GPUs and have none: libnvidia-ml, PCI bus and files of one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from workbench.sources.node.world import World

SOURCE = Path(__file__).resolve().parent / "services" / "nvml" / "fake_nvml.c"
SCENARIOS = Path(__file__).resolve().parent / "data" / "nvml"
# where the built-in scenario has its GPUs
BUS = tuple(f"0000:{number}:00.0" for number in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db"))


def build(folder: Path, without: Iterable[str] = ()) -> str:
    """Compile the library into a folder, without some symbols as an old driver is, and return the folder, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the fake libnvidia-ml cannot be built")
    script = folder / "symbols"
    script.write_text("{ global: *; local: __none__; " + "".join(f"{name}; " for name in without) + "};\n")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={script}", "-o", library, SOURCE], check=True, timeout=60
    )  # fmt: skip
    return str(folder)


@lru_cache(maxsize=8)
def library(without: frozenset[str] = frozenset()) -> str:
    """Return the folder of a library without these symbols, compiled once a process."""
    return build(Path(mkdtemp(prefix="fake-nvml-")), sorted(without))


def lines(scenario: Path) -> list[list[str]]:
    """Return a scenario's lines, those that it includes in their place, as words; no comments."""
    out: list[list[str]] = []
    for text in scenario.read_text(encoding="utf-8").splitlines():
        words = text.split()
        if words[:1] == ["include"]:
            out += [line for line in lines(scenario.parent / words[1]) if line[0] != "expect"]
        elif words and not words[0].startswith("#"):
            out.append(words)
    return out


def pci_tree(root: Path, addresses: Iterable[str]) -> None:
    """Write the GPUs into /sys/bus/pci of a tree, as the kernel lists them, with the driver that holds them."""
    driver = root / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    for address in addresses:
        folder = devices / address
        folder.mkdir()
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        (folder / "driver").symlink_to(os.path.relpath(driver, folder))


def node(scenario: Path, folder: Path, **settings: object) -> World:
    """
    Return the world of a scenario: NVML as it says, its GPUs on the PCI bus, and no program but those of a bare system.

    A line ``bus N`` says how many GPUs the kernel lists (default: as many as NVML counts, and eight when it counts none),
    ``without SYMBOL`` what an old library lacks.
    """
    told = lines(scenario)
    counts = [line[3] for line in told if line[:3] == ["node", "nvmlDeviceGetCount_v2", "="]]
    bus = next((int(line[1]) for line in reversed(told) if line[0] == "bus"), int(counts[-1]) if counts else 8)
    pci_tree(folder, BUS[:bus])
    (folder / "bin").mkdir()
    without = frozenset(line[1] for line in told if line[0] == "without")
    env = {"LD_LIBRARY_PATH": library(without), "FAKE_NVML_FILE": str(scenario), "PATH": str(folder / "bin")}
    return World("gpu-7", folder, env, settings=settings)
