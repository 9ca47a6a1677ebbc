"""
Turn PyTorch's products into a line of JSON: every bit of an element flipped, and the same product made in other ways.

Run by tests/services/torch/python, with the path of matmul_child.py; that Python has no pytest.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

SIZE = 192
BITS = {"float64": torch.int64, "float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}


def load(path: str) -> ModuleType:
    """Return the child as a module."""
    spec = importlib.util.spec_from_file_location("matmul_child", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flipped(product: Any, row: int, column: int, bit: int, whole: Any) -> Any:
    """Return the product with one bit of one element flipped."""
    out = product.clone()
    view = out.view(whole)
    width = view.element_size() * 8
    view[row, column] ^= torch.tensor(-(1 << bit) if bit == width - 1 else 1 << bit, dtype=whole)
    return out


def bits(child: ModuleType, kind: str) -> dict[str, Any]:
    """Return what became of each bit: found where it was, or not seen since no number changed."""
    with_ = child.Torch(torch, "cpu")
    most, terms = child.KINDS[kind]
    terms = min(terms, SIZE)
    a, b = with_.integers(1, (SIZE, terms), most), with_.integers(2, (terms, SIZE), most)
    product = with_.multiply(*with_.again(a, b, kind))
    clean = child.check(with_, a, b, product, most, terms, 1)
    located, unseen = 0, []
    width = torch.empty(0, dtype=BITS[kind]).element_size() * 8
    for bit in range(width):
        row, column = bit * 7 % SIZE, bit * 11 % SIZE
        bad = flipped(product, row, column, bit, BITS[kind])
        found = child.check(with_, a, b, bad, most, terms, 1)
        if [(one["row"], one["column"], one["right"]) for one in found] == [(row, column, int(product[row, column]))]:
            located += 1
        elif not found and float(bad[row, column]) == float(product[row, column]):
            unseen.append(bit)  # minus zero
    return {"clean": clean, "width": width, "located": located, "unseen": unseen}


def ways(child: ModuleType, kind: str) -> dict[str, bool]:
    """Return for each other way of making the product whether it is the same to the last bit."""
    with_ = child.Torch(torch, "cpu")
    most, terms = child.KINDS[kind]
    a, b = with_.integers(3, (SIZE, terms), most), with_.integers(4, (terms, SIZE), most)
    left, right = with_.again(a, b, kind)
    product = with_.multiply(left, right)
    order = torch.randperm(terms, generator=torch.Generator().manual_seed(5))
    parts = torch.chunk(torch.arange(terms), 8)
    split = torch.zeros_like(product)
    for part in parts:
        split += left[:, part] @ right[part]
    said = {
        "exact": bool((product.to(torch.float64) == (a @ b).to(torch.float64)).all()),
        "permuted": bool(torch.equal(left[:, order] @ right[order], product)),
        "split": bool(torch.equal(split, product)),
        "transposed": bool(torch.equal((right.T.contiguous() @ left.T.contiguous()).T, product)),
        "rows": bool(torch.equal(torch.cat([left[at : at + 1] @ right for at in range(SIZE)]), product)),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    said["one thread"] = bool(torch.equal(left @ right, product))
    torch.set_num_threads(threads)
    if kind == "float32":
        torch.set_float32_matmul_precision("medium")  # factors as bfloat16
        said["medium"] = bool(torch.equal(left @ right, product))
        torch.set_float32_matmul_precision("highest")
    return said


def main() -> None:
    """Print it."""
    child = load(sys.argv[1])
    assert set(child.KINDS) == set(BITS)
    print(json.dumps({kind: {"bits": bits(child, kind), "ways": ways(child, kind)} for kind in child.KINDS}))


if __name__ == "__main__":
    main()
