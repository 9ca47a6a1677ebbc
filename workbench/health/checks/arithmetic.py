"""Turn products of matrices with a known answer into the GPUs that calculate wrongly and say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.sources.node.matmul import Tested, Tests

__all__ = ["arithmetic"]

_CODES = {"hang": "matmul-hang", "fault": "matmul-fault"}
_EVERYWHERE = {
    "matmul-wrong": "products were wrong",
    "matmul-hang": "products began and did not end",
    "matmul-fault": "CUDA failed",
}


@check(
    "arithmetic",
    "every GPU calculates rightly: products of matrices whose answer is known to the last bit",
    needs=("matmul",),
    contexts=("idle",),
    cls="hardware/sdc",
    required=False,
    required_when=("health.probe_python",),
)
def arithmetic(seen: Seen) -> Iterator[Finding]:
    """Judge each GPU: one wrong element is one too many, since nothing in these products is ever rounded."""
    tests: Tests = seen.value("matmul")
    ways = {_code(one) for one in tests.gpus}
    if len({one.gpu for one in tests.gpus}) > 1 and len(ways) == 1 and "" not in ways:
        # the same on each: what they have in common is more likely than that all of them are broken
        (code,) = ways
        lines = [f"{_name(one)}: {one.said or _first(one)}" for one in tests.gpus]
        yield seen.found(
            "matmul-everywhere", f"{_EVERYWHERE[code]} on each of {len(tests.gpus)} (by {tests.library})", evidence=lines
        )
        return
    for one in tests.gpus:
        wrong = [product for product in one.products if product.wrong or product.differ]
        if wrong:
            first = wrong[0]
            kinds = ", ".join(dict.fromkeys(product.kind for product in wrong))
            some = (
                f"a product of {first.size} x {first.size}"
                if len(wrong) == 1
                else f"{len(wrong)} of {len(one.products)} products"
            )
            lines = [f"{product.kind} {product.size}: {_place(place)}" for product in wrong for place in product.places]
            summary = f"{some} wrong ({kinds}): {_first(one)}"
            yield seen.found("matmul-wrong", summary, gpu=one.gpu, part=one.part, evidence=lines)
        if one.ending in _CODES:
            yield seen.found(_CODES[one.ending], one.said, gpu=one.gpu, part=one.part)
        elif one.ending != "ok":
            yield seen.unknown(one.said, gpu=one.gpu, part=one.part, code=f"unread-{one.ending}")
        elif not wrong:
            yield seen.ok(_told(one, tests), gpu=one.gpu, part=one.part)


def _name(one: Tested) -> str:
    """Return a GPU or an instance as a person names it."""
    return one.part or (f"GPU {one.gpu.index}" if one.gpu.index is not None else str(one.gpu.uuid))


def _code(one: Tested) -> str:
    """The code of what went wrong with a GPU; empty when nothing did, or when there is no answer."""
    if any(product.wrong or product.differ for product in one.products):
        return "matmul-wrong"
    return _CODES.get(one.ending, "")


def _first(one: Tested) -> str:
    places = [place for product in one.products if product.wrong or product.differ for place in product.places[:1]]
    return _place(places[0]) if places else "repeats differ"


def _told(one: Tested, tests: Tests) -> str:
    kinds = ", ".join(dict.fromkeys(product.kind for product in one.products))
    return f"{sum(product.repeats for product in one.products)} products right to the last bit ({kinds}, by {tests.library})"


def _place(place: dict[str, Any]) -> str:
    if place["row"] < 0:
        return "a repeat differs from the first and is right when it is read again"
    got, right = place["got"], place["right"]
    bits = f" ({_bits(got, right)})" if isinstance(got, float) and got == int(got) else ""
    return f"row {place['row']} column {place['column']} is {got}, must be {right}{bits}"


def _bits(got: float, right: int) -> str:
    flipped = int(got) ^ right
    count = (flipped & ((1 << 64) - 1)).bit_count()
    return f"{count} bit{'s' if count != 1 else ''} of the number differ{'s' if count == 1 else ''}"
