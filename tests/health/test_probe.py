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


def rounded(value: Any, kind: str) -> Any:
    """A number as the type holds it; numpy has no bfloat16, which is the upper half of a float32, rounded to even."""
    if kind != "bfloat16":
        return value.astype(kind)
    bits = value.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def summed(a: Any, b: Any, kind: str, order: Any, parts: int) -> Any:
    """A product whose terms are added in some order, in so many partial sums that are added last, rounded to the type after each step."""
    sums = [np.zeros((len(a), b.shape[1])) for _ in range(parts)]
    for at, term in enumerate(order):
        one = sums[at % parts]
        one[...] = rounded(one + rounded(np.outer(a[:, term], b[term]).astype(np.float64), kind), kind)
    total = sums[0]
    for other in sums[1:]:
        total = rounded(total + other, kind).astype(np.float64)
    return total


@pytest.mark.parametrize("kind", child.KINDS)
def test_no_order_of_summing_and_no_split_changes_a_right_answer(kind: str) -> None:
    """Split-K, atomics, other tiles: whatever a library does, rounding to the type after every single addition, loses nothing."""
    most, terms = child.KINDS[kind]
    chance = np.random.default_rng(7)
    few = child.Numpy(np)
    pairs = [
        (few.integers(1, (3, terms), most), few.integers(2, (terms, 3), most)),
        (np.full((3, terms), most), np.full((terms, 3), most)),  # the largest sum that there can be
        (np.full((3, terms), most), np.where(np.arange(terms)[:, None] % 2, most, -most) * np.ones((1, 3), np.int64)),
    ]
    for a, b in pairs:
        right = a @ b
        orders = [np.arange(terms), np.argsort(b[:, 0], kind="stable"), chance.permutation(terms)]
        for order, parts in zip(orders, (1, 1, 7), strict=True):
            assert (summed(a, b, kind, order, parts) == right).all(), (kind, parts)
    # TF32 and bfloat16 take factors with 11 and 8 digits: what a float32 product may be made of on tensor cores
    if kind in ("float32", "bfloat16"):
        assert (rounded(np.arange(-most, most + 1).astype(np.float64), "bfloat16") == np.arange(-most, most + 1)).all()


def test_larger_elements_would_make_the_answer_depend_on_the_order() -> None:
    """What the test above sees: without these bounds a right GPU could have several answers."""
    terms = child.KINDS["float16"][1]
    a, b = np.full((1, terms), 5), np.where(np.arange(terms)[:, None] < terms - 3, 5, -1)
    up, down = (summed(a, b, "float16", order, 1) for order in (np.arange(terms), np.arange(terms)[::-1]))
    assert up != down


def test_faults_that_cancel_in_the_checksum_of_their_row_are_found_by_the_columns() -> None:
    with_ = child.Numpy(np)
    most, _ = child.KINDS["float64"]
    a, b = with_.integers(1, (16, 16), most), with_.integers(2, (16, 16), most)
    product = with_.multiply(*with_.again(a, b, "float64"))
    x = with_.weights(1, 16).reshape(-1)
    product[5, 2] += x[3]
    product[5, 3] -= x[2]
    found = child.check(with_, a, b, product, most, 16, 1)
    assert {(place["row"], place["column"]) for place in found} == {(5, 2), (5, 3)}


def test_a_round_that_is_cut_short_counts_what_was_made() -> None:
    ticks = iter(range(10_000))
    lines: list[dict[str, Any]] = []
    slow = type("Clock", (), {"monotonic": staticmethod(lambda: float(next(ticks)))})
    before, child.time = child.time, slow
    try:
        child.probe(child.Numpy(np), 30.0, (16,), 5, child._none, lambda line: lines.append(json.loads(line)))
    finally:
        child.time = before
    made = [line["repeats"] for line in lines if "kind" in line]
    assert made[:3] == [5, 5, 5]
    assert made[-1] < 5


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
    ("body", "said"),
    [
        ("    product = product.copy()\n    product[4, 9] += 2.0", "products were wrong on each of 2"),
        ("    raise RuntimeError('CUDA error: unspecified launch failure')", "CUDA failed on each of 2"),
    ],
)
def test_the_same_on_every_gpu_blames_none(node: Node, body: str, said: str) -> None:
    python(node, body)
    (found,) = check(node)
    assert (found.code, found.gpu, found.status, found.cls) == ("matmul-everywhere", None, "critical", "unknown")
    assert said in found.summary
    assert [line.split(":")[0] for line in found.evidence] == ["GPU 0", "GPU 1"]
    (alone,) = check(node, "count=1")
    assert alone.gpu is not None


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
