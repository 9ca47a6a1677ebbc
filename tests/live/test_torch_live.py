"""Products of matrices by the real PyTorch: every flipped bit is found where it is, and no way of multiplying changes a right answer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.health.gpu_node import UUIDS, Node, one
from tests.nvml_fake import build
from workbench.health import Finding
from workbench.sources.node import matmul

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "tests/services/torch/python"
CHILD = Path(matmul.__file__).with_name("matmul_child.py")
HOOKED = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("child", sys.argv[2])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)

def hook(product, kind, size, repeat):
    import torch
    if os.environ["CUDA_VISIBLE_DEVICES"] == "{uuid}" and kind == "{kind}" and repeat == {repeat}:
        product = product.clone()
        product.view(torch.int16)[{row}, {column}] ^= 1 << {bit}
    return product

sys.exit(child.main(["--device", "cpu", "--seconds", "0", "--sizes", "128", "--repeats", "3"], hook))
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node of two GPUs."""
    return Node(tmp_path, build(tmp_path))


def check(node: Node, script: str = "") -> list[Finding]:
    """Run the check with a Python that calculates on the host, and breaks what the script breaks; or with the real one as it is."""
    (node.root / "hooked.py").write_text(script)
    words = f"'{node.root}/hooked.py' \"$@\"" if script else '"$@"'
    path = "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    node.file("bin/site-python", f"#!/bin/sh\n{path}\ncd '{ROOT}'\nexec '{PYTHON}' {words}\n").chmod(0o755)
    node.settings["probe_python"] = str(node.tools / "site-python")
    return node.check("arithmetic", context="idle", env={"FAKE_NVML": "count=2"})


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What the program beside this says of every type."""
    words = [str(PYTHON), str(Path(__file__).with_name("torch_products.py")), str(CHILD)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_every_bit_of_every_type_is_found_where_it_is(kind: str, said: dict[str, Any]) -> None:
    bits = said[kind]["bits"]
    assert bits["clean"] == []
    assert bits["width"] == {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}[kind]
    # the sign of a zero is no number that changed
    assert bits["located"] + len(bits["unseen"]) == bits["width"]
    assert set(bits["unseen"]) <= {bits["width"] - 1}


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_no_way_of_multiplying_changes_a_right_answer(kind: str, said: dict[str, Any]) -> None:
    ways = said[kind]["ways"]
    assert len(ways) >= 6
    assert [name for name, same in ways.items() if not same] == []


def test_the_gpu_and_the_element_are_named(node: Node) -> None:
    findings = check(node, HOOKED.format(uuid=UUIDS[1], kind="bfloat16", repeat=2, row=77, column=31, bit=9))
    found = one(findings, "matmul-wrong")
    assert found.gpu is not None
    assert (found.gpu.uuid, found.cls) == (UUIDS[1], "hardware/sdc")
    assert "(bfloat16): row 77 column 31 is" in found.summary
    (well,) = [each for each in findings if each.status == "ok"]
    assert well.gpu is not None
    assert well.gpu.uuid == UUIDS[0]
    assert "float64, float32, float16, bfloat16, by torch of" in well.summary


def test_a_torch_that_sees_no_gpu_says_so_and_never_uses_the_host_instead(node: Node) -> None:
    (found,) = check(node)
    assert (found.status, found.code) == ("unknown", "unread-missing")
    assert "it sees no GPU" in found.summary
    assert "cupy" in found.summary
    assert "health.probe_python" in found.hint
