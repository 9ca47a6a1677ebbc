"""Build the fake libnvidia-ml of tests/services/nvml once a session, for the tests that need a GPU and have none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent / "services" / "nvml" / "fake_nvml.c"


def build(folder: Path) -> str:
    """Compile the library into a folder and return the folder, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the fake libnvidia-ml cannot be built")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, SOURCE], check=True, timeout=60
    )  # fmt: skip
    return str(folder)
