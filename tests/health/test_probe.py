"""Products of matrices with a known answer: right ones pass to the last bit, one flipped bit is found and located."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.health.gpu_node import UUIDS, Node, one
from workbench.health import Finding
from workbench.sources.node import matmul

CHILD = Path(matmul.__file__).with_name("matmul_child.py")


def load() -> ModuleType:
    """The child as a module: it is a program of its own, outside of any package's imports."""
    spec = importlib.util.spec_from_file_location("matmul_child", CHILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


child = load()


def probe(hook: Any = child._none, sizes: tuple[int, ...] = (48,), repeats: int = 3) -> list[dict[str, Any]]:
    lines: list[str] = []
    child.probe(child.Numpy(np), 0.0, sizes, repeats, hook, lines.append)
    return [json.loads(line) for line in lines]


def flip(product: Any, row: int, column: int, bit: int) -> Any:
    """The product with one bit of one element flipped, as a cosmic ray or a bad multiplier would."""
    out = product.copy()
    view = out.view(f"u{out.dtype.itemsize}")
    view[row, column] ^= type(view[row, column])(1 << bit)
    return out


def test_right_products_are_right_in_every_type_and_size() -> None:
    lines = probe(sizes=(16, 200), repeats=4)
    assert [line["kind"] for line in lines if "kind" in line] == ["float64", "float32", "float16"] * 2
    assert all(line["wrong"] == line["differ"] == 0 for line in lines if "kind" in line)
    assert lines[0] == {"library": "numpy", "device": "cpu"}
    assert lines[-1]["end"]


@pytest.mark.parametrize(("kind", "bits"), [("float64", 64), ("float32", 32), ("float16", 16)])
def test_every_single_bit_flip_is_found_and_located(kind: str, bits: int) -> None:
    with_ = child.Numpy(np)
    most, terms = child.KINDS[kind]
    size, terms = 24, min(terms, 24)
    a, b = with_.integers(1, (size, terms), most), with_.integers(2, (terms, size), most)
    product = with_.multiply(*with_.again(a, b, kind))
    assert child.check(with_, a, b, product, most, terms, 1) == []
    for bit in range(bits):
        row, column = (bit * 7) % size, (bit * 11) % size
        with np.errstate(invalid="ignore"):
            found = child.check(with_, a, b, flip(product, row, column, bit), most, terms, 1)
        if not found:  # the sign of a zero: no number changed
            assert product[row, column] == 0
            assert bit == bits - 1
            continue
        assert [(place["row"], place["column"]) for place in found] == [(row, column)], (kind, bit)
        assert found[0]["right"] == int(product[row, column])


def test_every_sum_is_a_number_that_its_type_holds() -> None:
    digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
    for kind, (most, terms) in child.KINDS.items():
        assert most * most * terms <= 2 ** digits[kind]
        assert most <= 2 ** min(digits[kind], 11 if kind == "float32" else 99)  # TF32 multiplies with 11 digits


def test_a_fault_of_a_later_repeat_is_found() -> None:
    def hook(product: Any, kind: str, size: int, repeat: int) -> Any:
        return flip(product, 3, 5, 10) if (kind, repeat) == ("float32", 2) else product

    bad = [line for line in probe(hook) if line.get("wrong")]
    assert [(line["kind"], line["differ"], line["places"][0]["row"], line["places"][0]["column"]) for line in bad] == [
        ("float32", 1, 3, 5)
    ]


def test_two_faults_that_cancel_in_the_plain_sum_of_a_row_are_found() -> None:
    def hook(product: Any, kind: str, size: int, repeat: int) -> Any:
        out = product.copy()
        out[7, 1] += 4
        out[7, 2] -= 4
        return out

    bad = [line for line in probe(hook, repeats=1) if "kind" in line]
    assert all({(place["row"], place["column"]) for place in line["places"]} == {(7, 1), (7, 2)} for line in bad)


def test_nan_and_infinity_are_wrong() -> None:
    for value in (float("nan"), float("inf")):

        def hook(product: Any, kind: str, size: int, repeat: int, value: float = value) -> Any:
            out = product.copy()
            out[0, 0] = value
            return out

        lines = probe(hook, repeats=1)
        assert all(line["wrong"] == 1 and line["places"][0]["got"] == str(value) for line in lines if "kind" in line)


def test_a_python_without_a_library_says_what_is_missing() -> None:
    with_, missing = child.backend("cuda")
    assert with_ is None  # a machine with a GPU and torch runs this test on its GPU: then it has to be written anew
    assert {word.split(":")[0].split()[0] for word in missing} == {"torch", "cupy"}


# ---- as a check: a Python of the site's is played by one that calculates on the host, and breaks what a test wants broken


def python(
    node: Node, body: str = "", *, arguments: str = "'--device', 'cpu', '--seconds', '0', '--sizes', '32', '--repeats', '2'"
) -> None:
    hook = f"def hook(product, kind, size, repeat):\n    uuid = os.environ['CUDA_VISIBLE_DEVICES']\n{body}\n    return product\n"
    text = (
        f"#!{sys.executable}\nimport importlib.util, os, sys, time\nassert sys.argv[1] == '-I', sys.argv\n{hook}"
        "spec = importlib.util.spec_from_file_location('child', sys.argv[2])\nchild = importlib.util.module_from_spec(spec)\n"
        f"spec.loader.exec_module(child)\nsys.exit(child.main([{arguments}], hook))\n"
    )
    node.file("bin/site-python", text).chmod(0o755)
    node.settings["probe_python"] = str(node.tools / "site-python")


def check(node: Node, plays: str = "count=2") -> list[Finding]:
    return node.check("arithmetic", context="idle", env={"FAKE_NVML": plays})


def test_each_gpu_is_tested_by_its_uuid(node: Node) -> None:
    python(node)
    findings = check(node)
    assert [(each.status, each.gpu.uuid if each.gpu else None) for each in findings] == [("ok", UUIDS[0]), ("ok", UUIDS[1])]
    assert "right to the last bit (float64, float32, float16, by numpy of" in findings[0].summary
    assert all(each.required for each in findings)


def test_the_gpu_that_calculates_wrongly_is_named(node: Node) -> None:
    python(
        node,
        f"    if uuid == {UUIDS[1]!r} and kind == 'float32' and repeat == 1:\n        product = product.copy()\n        product[4, 9] += 2.0",
    )
    findings = check(node)
    found = one(findings, "matmul-wrong")
    assert found.gpu is not None
    assert (found.gpu.uuid, found.status, found.cls, found.action) == (UUIDS[1], "critical", "hardware/sdc", "drain")
    assert "row 4 column 9 is" in found.summary
    assert [each.gpu.uuid for each in findings if each.status == "ok" and each.gpu] == [UUIDS[0]]


def test_a_gpu_that_hangs_and_one_that_cuda_gives_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_SECONDS", 8.0)
    python(
        node,
        f"    if uuid == {UUIDS[0]!r} and kind == 'float16':\n        time.sleep(60)\n"
        f"    if uuid == {UUIDS[1]!r}:\n        raise RuntimeError('CUDA error: uncorrectable ECC error encountered')",
    )
    findings = check(node)
    assert {(each.code, each.gpu.index) for each in findings if each.gpu} == {("matmul-hang", 0), ("matmul-fault", 1)}
    assert {each.status for each in findings} == {"critical"}


@pytest.mark.parametrize(
    "body",
    [
        "import sys; sys.exit(1)",
        "import sys; sys.exit(0)",
        "print('garbage')",
        'print(\'{"library": "torch", "device": "x"}\')',
        "print('{\"end\": true}')",
        "raise MemoryError('out of memory')",
    ],
)
def test_a_python_that_does_something_else_is_unknown(node: Node, body: str) -> None:
    node.file("bin/site-python", f"#!{sys.executable}\n{body}\n").chmod(0o755)
    node.settings["probe_python"] = str(node.tools / "site-python")
    assert {each.status for each in check(node)} == {"unknown"}


def test_nothing_to_multiply_with_says_what_is_missing(node: Node) -> None:
    node.settings["probe_python"] = sys.executable
    (found,) = check(node)
    assert found.status == "unknown"
    assert "torch" in found.summary
    assert "cupy" in found.summary
    assert "health.probe_python" in found.hint
    node.settings["probe_python"] = "/nowhere/python"
    (found,) = check(node)
    assert (found.status, found.code) == ("unknown", "unread-missing")


def test_it_is_not_begun_where_somebody_computes(node: Node) -> None:
    python(node)
    (found,) = check(node, "count=2,busy=1")
    assert found.status == "unknown"
    assert "somebody computes" in found.summary


def test_mig_instances_are_tested_by_themselves(node: Node) -> None:
    python(node)
    findings = check(node, "count=2,mig=1")
    assert [each.gpu.index for each in findings if each.gpu] == [0, 1, 1]
    assert all(each.status == "ok" for each in findings)
    assert len({each.part for each in findings}) == 3
