"""Turn products of matrices with a known answer, made on one GPU after another, into what each GPU got wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.model import Gpu
from workbench.parse.gpu_state import NodeGpus
from workbench.sources.command import Ran, run
from workbench.sources.contract import Deadline
from workbench.sources.node.active import free_gpus
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["Product", "Tested", "Tests", "outcome"]

_CHILD = Path(__file__).with_name("matmul_child.py")
_PROBE = 15.0  # seconds of multiplying on each GPU
# The first round is made whole however long it takes: on a busy host generating and checking 16 products takes half a minute (own measure)
_SECONDS = 120.0
_GPUS = 16
# said by CUDA when the GPU, and not this program, failed: the program and its data are the same on every GPU
_FAULT = re.compile(
    r"uncorrectable ECC|unspecified launch failure|illegal memory access|illegal instruction|misaligned address|hardware stack|"
    r"GPU is lost|fallen off the bus|launch timed out|CUBLAS_STATUS_EXECUTION_FAILED|invalid program counter|nvlink",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Product:
    """One product: type, size, how often it was made, how many elements were wrong, how many repeats differed, and some of the places."""

    kind: str
    size: int
    repeats: int
    wrong: int
    differ: int
    places: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Tested:
    """
    What became of one GPU, or of a MIG instance of it (`part`).

    `ending` is ``ok`` (it came to an end), ``hang`` (it had begun and did not), ``fault`` (CUDA says that the GPU failed), or why there is
    no answer; `said` the sentence to that.
    """

    gpu: Gpu
    part: str
    ending: str
    products: tuple[Product, ...]
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tests:
    """All GPUs of the node, and what they were tested with."""

    library: str
    gpus: tuple[Tested, ...]


def _targets(gpus: NodeGpus) -> Iterator[tuple[Gpu, str, str]]:
    for state in gpus.states:
        instances = state.get("mig.instances")
        if state.flag("mig.mode.current") and isinstance(instances, list):
            for one in instances:
                yield state.gpu, str(one.get("uuid") or one.get("index")), str(one.get("uuid") or "")
        else:
            yield state.gpu, "", state.gpu.uuid or ""


def outcome(ran: Ran, gpu: Gpu, part: str = "") -> tuple[str, Tested, tuple[str, ...]]:
    """Return the library that a run of the child used, what it found, and what was missing when it could not begin."""
    library, began, ended = "", False, False
    missing: tuple[str, ...] = ()
    products = []
    for text in ran.text.splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # torn by the kill, or printed by a library
            continue
        if not isinstance(line, dict):
            continue
        if "missing" in line:
            missing = tuple(map(str, line["missing"]))
        elif "library" in line:
            library, began = str(line["library"]), True
        elif "kind" in line:
            products.append(
                Product(line["kind"], line["size"], line["repeats"], line["wrong"], line["differ"], tuple(line["places"]))
            )
        elif "end" in line:
            ended = True
    if ran.ok and ended and products:
        ending, said = "ok", ""
    elif ran.ending == "time-out" and began:
        last = f" after {products[-1].kind} {products[-1].size}" if products else ""
        ending, said = "hang", f"it did not come back within {ran.seconds:.0f} s{last}"
    elif _FAULT.search(ran.err.decode("utf-8", "replace")):
        ending, said = "fault", ran.said
    else:
        ending, said = ("garbage" if ran.ok else ran.ending), ran.sentence
    return library, Tested(gpu, part, ending, tuple(products), said, ran.seconds), missing


def _pythons(world: World) -> tuple[str, ...]:
    named = str(world.settings.get("probe_python") or "")
    return (named,) if named else tuple(dict.fromkeys(("python3", sys.executable)))


def _matmul(world: World, deadline: Deadline) -> Tests:
    gpus = free_gpus(world, deadline, whole=False)
    targets = list(_targets(gpus))
    if not targets:
        raise Unread("absent", "there is no GPU")
    lacks: list[str] = []
    for python in _pythons(world):
        library, out = "", []
        for gpu, part, uuid in targets:
            if not uuid:
                out.append(Tested(gpu, part, "garbage", (), "its UUID is not known: no program can be told to use this one"))
                continue
            if deadline.over or deadline.left() < 1.0:
                out.append(Tested(gpu, part, "time-out", (), "not begun: the others took all the time"))
                continue
            env = {**world.env, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            argv = (python, "-I", str(_CHILD), "--seconds", str(_PROBE))
            ran = run(argv, seconds=deadline.left(_SECONDS), limit=1 << 20, env=env)
            used, one, missing = outcome(ran, gpu, part)
            if ran.ending in ("missing", "not-executable"):
                lacks.append(ran.sentence)
                break
            if missing:
                lacks.append(f"{python} has nothing to multiply with ({'; '.join(missing)})")
                break
            library = library or used
            out.append(one)
        else:
            return Tests(f"{library or 'nothing'} of {python}", tuple(out))
    hint = "name a Python that has torch or cupy, such as that of your jobs: health.probe_python"
    raise Unread("missing", "; ".join(lacks)[:600], hint)


reader(
    "matmul",
    "products of integer matrices, whose answer is known to the last bit",
    seconds=_GPUS * _SECONDS + 30.0,
    ways=(Way("matrix products", _matmul, ("faults that a product of matrices does not meet",)),),
    active=True,
)
