"""Checkpoints of the real PyTorch (Debian's, for the CPU): the writer is killed while it saves, again and again; what is called whole loads."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from workbench.training.checkpoints import inspect, newest

# one thread: the machine that runs this has few, and torch would start as many as it has cores
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PYTHON = Path(__file__).resolve().parent.parent / "services" / "torch" / "python"
pytestmark = [pytest.mark.slow]

WRITER = """
import os, sys, time, torch, torch.distributed.checkpoint as dcp
folder = sys.argv[1]
state = {"w": torch.arange(2_000_000, dtype=torch.float32), "step": 0}
open(folder + "/pid", "w").write(str(os.getpid()))
for step in range(1, 10_000):
    state["step"] = step
    state["w"] += 1
    torch.save(state, f"{folder}/zip/step-{step}.pt")
    torch.save(state, f"{folder}/legacy/step-{step}.pth", _use_new_zipfile_serialization=False)
    dcp.save(state, checkpoint_id=f"{folder}/dcp/step-{step}", no_dist=True)
    for old in (f"zip/step-{step - 3}.pt", f"legacy/step-{step - 3}.pth"):
        if os.path.exists(f"{folder}/{old}"):
            os.remove(f"{folder}/{old}")
"""
LOADER = """
import sys, torch, torch.distributed.checkpoint as dcp
for line in sys.stdin:
    form, step, path = line.rstrip("\\n").split("\\t")
    try:
        if form == "dcp":
            state = {"w": torch.zeros(2_000_000), "step": 0}
            dcp.load(state, checkpoint_id=path, no_dist=True)
        else:
            state = torch.load(path)
        right = state["step"] == int(step or state["step"]) and bool((state["w"] == torch.arange(2_000_000.0) + state["step"]).all())
        print("whole" if right else "wrong", path, flush=True)
    except BaseException:  # torch's CheckpointException is no Exception
        print("broken", path, flush=True)
"""


def test_what_is_whole_loads_and_what_is_not_does_not(tmp_path: Path) -> None:
    """Four writers, killed at different moments; then PyTorch itself tries to load all that they left."""
    folders = []
    for number in range(4):
        folder = tmp_path / f"run-{number}"
        for form in ("zip", "legacy", "dcp"):
            (folder / form).mkdir(parents=True)
        folders.append(folder)
        writer = subprocess.Popen(
            [str(PYTHON), "-W", "ignore", "-c", WRITER, str(folder)], start_new_session=True, env=ENVIRONMENT
        )
        until = time.monotonic() + 300
        while len(list((folder / "dcp").glob("*/.metadata"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        # half of them die in the middle of a save in parts: the folder is there, its index is not yet
        while number % 2 and not (folder / "dcp" / "step-3").exists() and time.monotonic() < until:
            time.sleep(0.0005)
        time.sleep(0.003 * number if number % 2 else 0.017 * number)
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        writer.wait(timeout=60)
    found = [row for folder in folders for form in ("zip", "legacy", "dcp") for row in inspect(folder / form, settle=0)]
    asked = "".join(f"{row.format}\t{'' if row.step is None else row.step}\t{row.path}\n" for row in found)
    loaded = subprocess.run(
        [str(PYTHON), "-W", "ignore", "-c", LOADER], input=asked, capture_output=True, text=True, timeout=400, env=ENVIRONMENT
    )
    said = dict(reversed(line.split(" ", 1)) for line in loaded.stdout.splitlines())

    assert len(said) == len(found) >= 12, loaded.stderr[-2000:]
    assert {row.path: row.state == "complete" for row in found} == {row.path: said[row.path] == "whole" for row in found}
    for folder in folders:
        best, _ = newest(inspect(folder, settle=0))
        assert best is not None
        assert said[best.path] == "whole"


def test_any_file_that_is_cut_is_one_that_torch_cannot_load(tmp_path: Path) -> None:
    """The other direction, on real files of a mebibyte: nothing that PyTorch loads is called torn."""
    make = (
        "import sys, torch; m = torch.nn.Linear(300, 300); o = torch.optim.AdamW(m.parameters()); m(torch.ones(300)).sum().backward(); o.step();"
        "s = {'model': m.state_dict(), 'optimizer': o.state_dict(), 'step': torch.tensor(9), 'half': torch.ones(7, dtype=torch.bfloat16),"
        " 'view': torch.arange(10)[2:5], 'none': torch.zeros(0), 'complex': torch.ones(3, dtype=torch.complex64),"
        " 'f8': torch.ones(4).to(torch.float8_e4m3fn), 'rng': torch.get_rng_state(), 'bool': torch.ones(5, dtype=torch.bool)};"
        "torch.save(s, sys.argv[1] + '/whole.pt'); torch.save(s, sys.argv[1] + '/old.pth', _use_new_zipfile_serialization=False);"
        "torch.save(m, sys.argv[1] + '/module.pt')"
    )
    subprocess.run(
        [str(PYTHON), "-W", "ignore", "-c", make, str(tmp_path)], check=True, timeout=400, capture_output=True, env=ENVIRONMENT
    )
    found = {Path(row.path).name: row for row in inspect(tmp_path, settle=0, deep=True)}

    assert {name: (row.state, row.step) for name, row in found.items()} == {
        "whole.pt": ("complete", 9),
        "old.pth": ("complete", None),
        "module.pt": ("complete", None),
    }
    raw = (tmp_path / "whole.pt").read_bytes()
    for size in range(0, len(raw), len(raw) // 50):
        (tmp_path / "cut.pt").write_bytes(raw[:size])
        assert inspect(tmp_path / "cut.pt", settle=0)[0].state == "torn"
