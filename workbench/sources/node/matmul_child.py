"""
Turn products of integer matrices with a known answer into lines of JSON, one a product: wrong elements, where they are and which bits.

Run as ``python -I matmul_child.py --seconds 20`` by a Python that has torch or CuPy; CUDA_VISIBLE_DEVICES names the one GPU. It must not
import anything of the workbench, which that Python need not have.

Why the answer is known to the last bit: all elements are whole numbers, small enough that every partial sum, in whatever order and on
whatever unit it is made, is a number that the type holds exactly. Nothing is ever rounded, so a right GPU has one right answer:

- float64: |a|, |b| <= 2^20, 4096 terms: |sum| <= 2^52, below 2^53
- float32: |a|, |b| <= 64, 4096 terms: |sum| <= 2^24; TF32 holds 64 and multiplies exactly, and sums in float32
- float16: |a|, |b| <= 2, 512 terms: |sum| <= 2048 = 2^11, what float16 holds exactly, whether it sums in float16 or float32
- bfloat16: a, b = -1 or 1, 256 terms: |sum| <= 256 = 2^8, what bfloat16 holds exactly, split sums in bfloat16 included

How a wrong element is found without the whole product being made a second time: C x and A (B x), y C and (y A) B must be equal for
whole-number vectors x and y (checksums by row and by column; Huang and Abraham, 1984), in 64-bit integers on the host, where overflow
is arithmetic modulo 2^64 and loses nothing. Weights are odd, so no single wrong element can hide. The wrong rows are then made anew on the
host, element for element. Repeats are compared on the GPU bit by bit with the first, which was checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

# type → (largest element, terms of a sum)
KINDS = {"float64": (1 << 20, 4096), "float32": (64, 4096), "float16": (2, 512), "bfloat16": (1, 256)}
SIZES = (1024, 4096)
_SHOWN = 5  # wrong elements that are told of one product
_ROWS = 8  # wrong rows that are made anew


def _none(product: Any, kind: str, size: int, repeat: int) -> Any:
    """What tests replace: gives the product back as it is."""
    return product


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # at once: whoever kills us reads what came before


class Numpy:
    """The host's numpy: what tests use in place of a GPU, and the host's side of CuPy."""

    name = "numpy"

    def __init__(self, xp: Any, device: Any = None) -> None:
        self.np, self.xp = xp, device or xp

    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if kind != "bfloat16")

    def integers(self, seed: int, shape: tuple[int, int], most: int) -> Any:
        source = self.np.random.default_rng(seed)
        if most == 1:
            return source.integers(0, 2, shape, self.np.int64) * 2 - 1
        return source.integers(-most, most + 1, shape, self.np.int64)

    def again(self, a: Any, b: Any, kind: str) -> tuple[Any, Any]:
        return self.xp.asarray(a).astype(kind), self.xp.asarray(b).astype(kind)

    def multiply(self, a: Any, b: Any) -> Any:
        return self.xp.matmul(a, b)

    def equal(self, one: Any, other: Any) -> bool:
        return bool((one == other).all())

    def host(self, product: Any) -> Any:
        """The product as float64 on the host: every type's numbers fit."""
        product = product.get() if hasattr(product, "get") else product
        return product.astype(self.np.float64)

    def whole(self, product: Any) -> Any:
        return self.np.isfinite(product) & (self.np.floor(product) == product)

    def exact(self, product: Any, fine: Any) -> Any:
        return self.np.where(fine, product, 0.0).astype(self.np.int64)

    def weights(self, seed: int, count: int) -> Any:
        return self.np.random.default_rng(seed).integers(0, 1 << 20, (count, 1), self.np.int64) * 2 + 1

    def places(self, mask: Any) -> list[list[int]]:
        return [list(map(int, place)) for place in self.np.argwhere(mask)[:10_000]]

    def wrong_rows(self, left: Any, right: Any) -> list[int]:
        return [int(at) for at in self.np.argwhere((left != right).reshape(-1)).reshape(-1)[:10_000]]

    def device(self) -> str:
        if self.xp is self.np:
            return "cpu"
        name = self.xp.cuda.runtime.getDeviceProperties(0)["name"]
        return name.decode() if isinstance(name, bytes) else str(name)


class Torch:
    """PyTorch, on a GPU or (tests) the host."""

    name = "torch"

    def __init__(self, torch: Any, place: str) -> None:
        self.torch, self.place = torch, place

    def kinds(self) -> tuple[str, ...]:
        return tuple(KINDS)

    def integers(self, seed: int, shape: tuple[int, int], most: int) -> Any:
        source = self.torch.Generator().manual_seed(seed)
        if most == 1:
            return self.torch.randint(0, 2, shape, generator=source, dtype=self.torch.int64) * 2 - 1
        return self.torch.randint(-most, most + 1, shape, generator=source, dtype=self.torch.int64)

    def again(self, a: Any, b: Any, kind: str) -> tuple[Any, Any]:
        dtype = getattr(self.torch, kind)
        return a.to(dtype).to(self.place), b.to(dtype).to(self.place)

    def multiply(self, a: Any, b: Any) -> Any:
        return self.torch.matmul(a, b)

    def equal(self, one: Any, other: Any) -> bool:
        return bool(self.torch.equal(one, other))

    def host(self, product: Any) -> Any:
        return product.to("cpu").to(self.torch.float64)

    def whole(self, product: Any) -> Any:
        return self.torch.isfinite(product) & (self.torch.floor(product) == product)

    def exact(self, product: Any, fine: Any) -> Any:
        return self.torch.where(fine, product, self.torch.zeros_like(product)).to(self.torch.int64)

    def weights(self, seed: int, count: int) -> Any:
        return (
            self.torch.randint(0, 1 << 20, (count, 1), generator=self.torch.Generator().manual_seed(seed), dtype=self.torch.int64)
            * 2
            + 1
        )

    def places(self, mask: Any) -> list[list[int]]:
        return [list(map(int, place)) for place in self.torch.nonzero(mask)[:10_000].tolist()]

    def wrong_rows(self, left: Any, right: Any) -> list[int]:
        return [int(at) for at in self.torch.nonzero((left != right).reshape(-1)).reshape(-1)[:10_000].tolist()]

    def device(self) -> str:
        return str(self.torch.cuda.get_device_name(0)) if self.place != "cpu" else "cpu"


def backend(device: str) -> tuple[Any, list[str]]:
    """Return what multiplies, or None and why each that could does not; a GPU never falls back on the host."""
    missing = []
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]

        if device == "cpu" or torch.cuda.is_available():
            return Torch(torch, "cpu" if device == "cpu" else "cuda:0"), []
        missing.append(f"torch {torch.__version__}: it sees no GPU")
    except Exception as error:
        missing.append(f"torch: {type(error).__name__}: {error}")
    try:
        import numpy as np

        if device == "cpu":
            return Numpy(np), []
        import cupy  # type: ignore[import-not-found, unused-ignore]

        if cupy.cuda.runtime.getDeviceCount() > 0:
            return Numpy(np, cupy), []
        missing.append("cupy: it sees no GPU")
    except Exception as error:
        missing.append(f"cupy: {type(error).__name__}: {error}")
    return None, missing


def check(with_: Any, a: Any, b: Any, product: Any, most: int, terms: int, seed: int) -> list[dict[str, Any]]:
    """Return the wrong elements of a product: row, column, what is there and what should be; empty when it is right to the last bit."""
    got = with_.host(product)
    fine = with_.whole(got) & (got <= most * most * terms) & (got >= -most * most * terms)
    whole = with_.exact(got, fine)
    odd = with_.places(~fine)
    rows = {row for row, _ in odd}
    x, y = with_.weights(seed, b.shape[1]), with_.weights(seed + 1, a.shape[0])
    rows |= set(with_.wrong_rows(whole @ x, a @ (b @ x)))
    columns = with_.wrong_rows(whole.T @ y, b.T @ (a.T @ y))
    found: list[dict[str, Any]] = []
    for row in sorted(rows)[:_ROWS]:
        right = a[row : row + 1] @ b
        columns_here = {*with_.wrong_rows(whole[row : row + 1], right), *(column for line, column in odd if line == row)}
        for at in sorted(columns_here):
            value = float(got[row, at])
            found.append(_wrong(row, at, value, int(right[0, at])))
    for column in columns[:_ROWS] if not found else ():  # faults that cancel in the checksum of their row
        right = a @ b[:, column : column + 1]
        lines = with_.wrong_rows(whole[:, column : column + 1], right)
        found += [_wrong(row, column, float(got[row, column]), int(right[row, 0])) for row in lines]
    return found


def _wrong(row: int, column: int, value: float, right: int) -> dict[str, Any]:
    told = value if value == value and abs(value) != float("inf") else str(value)  # JSON has no NaN
    return {"row": row, "column": column, "got": told, "right": right}


def probe(with_: Any, seconds: float, sizes: Any = SIZES, repeats: int = 20, hook: Any = _none, say: Any = _say) -> None:
    """Multiply each type and size once and check it, and then again and again until the time is over; a line of JSON for each."""
    begun = time.monotonic()
    turn = 0
    say(json.dumps({"library": with_.name, "device": with_.device()}))
    while turn == 0 or time.monotonic() - begun < seconds:
        for size in sizes:
            for kind in with_.kinds():
                most, terms = KINDS[kind]
                # each type and size is multiplied once whatever the time is: what was never asked would look right
                if turn and time.monotonic() - begun > seconds:
                    break
                terms = min(terms, size)
                seed = turn * 1000 + size
                a, b = with_.integers(seed, (size, terms), most), with_.integers(seed + 1, (terms, size), most)
                there = with_.again(a, b, kind)
                first = hook(with_.multiply(*there), kind, size, 0)
                wrong = check(with_, a, b, first, most, terms, seed)
                differ, made = 0, 1
                for repeat in range(1, repeats):
                    made += 1
                    other = hook(with_.multiply(*there), kind, size, repeat)
                    if not wrong and not with_.equal(first, other):
                        differ += 1
                        wrong = check(with_, a, b, other, most, terms, seed) or [
                            {"row": -1, "column": -1, "got": 0.0, "right": 0}
                        ]
                    if time.monotonic() - begun > seconds and turn:
                        break
                say(json.dumps({"kind": kind, "size": size, "terms": terms, "repeats": made, "wrong": len(wrong), "differ": differ,
                                "places": wrong[:_SHOWN]}))  # fmt: skip
        turn += 1
    say(json.dumps({"end": True, "seconds": round(time.monotonic() - begun, 2)}))


def main(argv: list[str], hook: Any = _none) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args(argv)
    with_, missing = backend(options.device)
    if with_ is None:
        _say(json.dumps({"missing": missing}))
        return 0
    probe(with_, options.seconds, options.sizes, options.repeats, hook)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
