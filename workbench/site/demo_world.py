"""
Turn a seed and a size into what the sources of an invented fleet would tell: nodes, jobs, GPU values, findings, past actions.

Everything here is made up by us but the incidents, which are the shipped ones, moved to the last days. Same arguments, same world.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["SKUS", "TROUBLES", "Trouble", "World", "world"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    Something that is wrong with a simulated node.

    Attributes
    ----------
    code : str
        Of a finding (``catalog/findings.csv``) or signature; what it means is looked up there.
    per : float
        How many nodes of a thousand have it; each occurs at least once in a fleet of 64 nodes.
    gpu : bool
        Whether it is of one GPU.
    xid : int or None
        What the exporter shows of it.
    held : str
        Who keeps work away: ``gpu-workbench``, ``somebody`` or nobody.
    """

    code: str
    check: str
    status: str
    cls: str
    action: str
    message: str
    per: float
    gpu: bool = True
    xid: int | None = None
    held: str = ""
    kernel: str = ""


# Rates are of the order that Meta tells of 16,384 H100 (arXiv 2407.21783, table 5: 419 interruptions in 54 days), so that a map looks as
# one does; which and how they look is in the words of our own catalog
TROUBLES: tuple[Trouble, ...] = (
    Trouble(
        "gpu-off-bus", "driver-log", "critical", "hardware/gpu-lost", "reboot-node",
        "GPU {gpu} has fallen off the bus (Xid 79); the driver does not answer for it", 2.0, xid=79, held="gpu-workbench",
        kernel="NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ),
    Trouble(
        "xid-95", "xid", "critical", "hardware/gpu-memory", "reset-gpu",
        "uncontained memory error on GPU {gpu} (Xid 95): every process on it is lost", 3.0, xid=95, held="gpu-workbench",
        kernel="NVRM: Xid (PCI:{pci}): 95, pid=81734, name=python, Uncontained: LTC TEX (0x2,0x0). RST: Yes, D-RST: No",
    ),
    Trouble(
        "smi-remap-pending", "gpu-memory", "warning", "hardware/gpu-memory", "reset-gpu",
        "GPU {gpu}: a row of memory waits for a reset to be remapped", 6.0, xid=63,
        kernel="NVRM: Xid (PCI:{pci}): 63, pid=81734, name=python, Row remapper: Remapped row pending",
    ),
    Trouble(
        "smi-nvlink-inactive", "nvlink", "critical", "hardware/nvlink", "drain",
        "GPU {gpu}: 1 of 18 NVLinks is inactive", 1.5, xid=74, held="gpu-workbench",
        kernel="NVRM: Xid (PCI:{pci}): 74, pid=0, name=nv-fabricmanager, NVLink: fatal error detected on link 11(0x0, 0x0, 0x10000, 0x0)",
    ),
    Trouble(
        "smi-throttle-thermal", "thermal-power", "warning", "hardware/thermal-power", "none",
        "GPU {gpu} slows down for heat: 91 °C", 3.0,
    ),
    Trouble(
        "pcie-slower-than-peers", "pcie", "warning", "hardware/pcie", "drain", "GPU {gpu}: PCIe at generation 3, its peers run at 5", 1.0,
    ),
    Trouble(
        "port-down", "network", "critical", "hardware/network-link", "drain", "mlx5_4 port 1 is down: no cable or no light", 2.0, gpu=False,
        held="gpu-workbench",
        kernel="mlx5_core 0000:9a:00.0: Port module event[error]: module 4, Cable error, One or more network ports have been powered down",
    ),
    Trouble(
        "port-rate-low", "network", "warning", "hardware/network-link", "drain", "mlx5_7 runs at 200 Gb/s instead of 400", 2.0, gpu=False,
    ),
    Trouble(
        "gsp-timeout", "driver-log", "critical", "driver/hang", "reset-gpu", "GPU {gpu}: the GSP does not answer (Xid 119)", 1.0, xid=119,
        kernel="NVRM: Xid (PCI:{pci}): 119, pid=44021, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
    ),
    Trouble(
        "versions-differ-across-nodes", "versions", "warning", "driver/version-mismatch", "fix-platform",
        "driver 570.86.15, its pool has 570.133.20", 2.0, gpu=False,
    ),
    Trouble(
        "mount-nearly-full", "mounts", "warning", "platform/storage", "fix-platform", "/scratch has 3 % of its space left", 2.0, gpu=False,
    ),
)  # fmt: skip
SILENT = 2.0  # of a thousand nodes: gone, no agent answers
UNCHECKED = 4.0  # whose checker stopped
MAINTENANCE = 5.0  # held by people, nothing wrong


@dataclass(frozen=True, slots=True)
class Model:
    """A product: its name as exporters give it, GPUs a node, and what is usual of one: idle and busy watts, MiB."""

    name: str
    each: int
    idle: float
    busy: float
    memory: float


SKUS: tuple[tuple[str, float, Model], ...] = (
    ("h100-train", 0.72, Model("NVIDIA H100 80GB HBM3", 8, 92.0, 655.0, 81559.0)),
    ("h200-train", 0.18, Model("NVIDIA H200", 8, 96.0, 660.0, 143771.0)),
    ("gb200-lab", 0.05, Model("NVIDIA GB200", 4, 150.0, 1080.0, 189471.0)),
    ("a100-dev", 0.05, Model("NVIDIA A100-SXM4-80GB", 8, 62.0, 352.0, 81920.0)),
)
_TEAMS = ("pretraining", "post-training", "multimodal", "speech", "evaluation", "ranking")
_WORDS = (
    "atlas",
    "birch",
    "comet",
    "delta",
    "ember",
    "fjord",
    "gale",
    "heron",
    "iris",
    "juno",
    "kite",
    "lumen",
    "mesa",
    "nova",
    "onyx",
    "pine",
)
_PCI = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")


@dataclass(slots=True)
class World:
    """
    An invented fleet.

    Attributes
    ----------
    names, pools, zones : list of str
        By node.
    models : list of Model
        By node.
    troubles : dict
        Node → (trouble, GPU or None, hours ago).
    silent, unchecked, maintenance : set of str
    jobs : dict
        Name → user, team, nodes, hours ago.
    """

    names: list[str]
    pools: list[str]
    zones: list[str]
    models: list[Model]
    first: Any  # ndarray: number of the first GPU of each node
    troubles: dict[str, list[tuple[Trouble, int | None, float]]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    unchecked: set[str] = field(default_factory=set)
    maintenance: set[str] = field(default_factory=set)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    job_of: dict[str, str] = field(default_factory=dict)
    actions: list[dict[str, Any]] = field(default_factory=list)
    seeds: Any = None  # ndarray: of each GPU, what makes it differ from its peers

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        return int(self.first[-1])

    def uuid(self, node: int, gpu: int) -> str:
        """Return the UUID of a GPU: the same for ever."""
        number = int(self.first[node]) + gpu
        return f"GPU-{number * 2654435761 % 2**32:08x}-{number % 2**16:04x}-4de0-8000-{number * 40503 % 2**48:012x}"

    def pci(self, gpu: int) -> str:
        """Return the address of a GPU of any node."""
        return f"0000:{_PCI[gpu % 8]}:00.0"


def _share(count: int, per: float) -> int:
    return max(1 if count >= 64 else 0, round(count * per / 1000))


@lru_cache(maxsize=4)
def world(gpus: int, seed: int, named: tuple[str, ...] = ()) -> World:
    """
    Return the fleet of a size.

    Parameters
    ----------
    gpus : int
        As many as the last node that fits.
    seed : int
    named : tuple of str
        Names that some nodes bear: those of incidents.
    """
    draw = random.Random(seed)
    models, pools = _machines(gpus)
    count = len(models)
    names = [f"gpu-{'abcdefgh'[i * 8 // count] if count > 64 else 'a'}{i + 1:04d}" for i in range(count)]
    # nodes of incidents get their place among those with eight GPUs, spread over the fleet
    room = [i for i in range(count) if models[i].each == 8]
    for number, name in enumerate(named[: len(room)]):
        names[room[(number * 2 + 1) * len(room) // (2 * len(named))]] = name
    zones = [f"zone-{'abc'[i * 3 // count]}" for i in range(count)]
    first = np.concatenate([[0], np.cumsum([model.each for model in models])])
    made = World(names, pools, zones, models, first, seeds=np.random.default_rng(seed).random(int(first[-1])))
    _break(made, draw, set(named))
    _fill(made, draw)
    _past(made, draw)
    return made


def _machines(gpus: int) -> tuple[list[Model], list[str]]:
    models: list[Model] = []
    pools: list[str] = []
    left = gpus
    for number, (pool, share, model) in enumerate(SKUS):
        wanted = left if number == len(SKUS) - 1 else min(left, round(gpus * share))
        for _ in range(wanted // model.each):
            models.append(model)
            pools.append(pool)
            left -= model.each
    while left >= 4 and not left % 4 and len(models) < gpus:  # what the shares left over
        models.append(SKUS[0][2] if left >= 8 else SKUS[2][2])
        pools.append(SKUS[0][0] if left >= 8 else SKUS[2][0])
        left -= models[-1].each
    order = sorted(range(len(models)), key=lambda i: [pool for pool, *_ in SKUS].index(pools[i]))
    return [models[i] for i in order], [pools[i] for i in order]


def _break(made: World, draw: random.Random, spared: set[str]) -> None:
    count = len(made.names)
    left = [i for i in range(count) if made.names[i] not in spared]
    draw.shuffle(left)

    def take(per: float) -> list[int]:
        many = min(_share(count, per), len(left))
        return [left.pop() for _ in range(many)]

    for trouble in TROUBLES:
        for i in take(trouble.per):
            gpu = draw.randrange(made.models[i].each) if trouble.gpu else None
            made.troubles.setdefault(made.names[i], []).append((trouble, gpu, draw.uniform(0.1, 30.0)))
    made.silent = {made.names[i] for i in take(SILENT)}
    made.unchecked = {made.names[i] for i in take(UNCHECKED)}
    made.maintenance = {made.names[i] for i in take(MAINTENANCE)}
    if count < 64 and left:  # a small fleet has a little of it, too
        for trouble, i in zip((TROUBLES[1], TROUBLES[2]), left, strict=False):
            made.troubles.setdefault(made.names[i], []).append((trouble, i % made.models[i].each, 1.5))


def _fill(made: World, draw: random.Random) -> None:
    """Let gangs hold most of the nodes that take work."""
    away = made.silent | made.maintenance | {n for n, rows in made.troubles.items() if any(t.held for t, *_ in rows)}
    at = 0
    free = [i for i in range(len(made.names)) if made.names[i] not in away]
    while at < len(free):
        pool = made.pools[free[at]]
        most = max(1, len(made.names) // 6)
        size = min(2 ** draw.randint(0, max(0, int(math.log2(most)))), most)
        group: list[int] = []
        while at < len(free) and len(group) < size and made.pools[free[at]] == pool:
            group.append(free[at])
            at += 1
        if draw.random() < 0.12:  # some idle
            continue
        team = draw.choice(_TEAMS)
        name = f"{draw.choice(_WORDS)}-{draw.choice(('7b', '13b', '70b', '405b', 'vit', 'asr'))}-{draw.randint(1, 999):03d}"
        if name in made.jobs:
            continue
        made.jobs[name] = {
            "team": team,
            "user": team[:2] + "-bot",
            "nodes": [made.names[i] for i in group],
            "hours": draw.uniform(0.3, 90.0),
        }
        made.job_of.update((made.names[i], name) for i in group)


def _past(made: World, draw: random.Random) -> None:
    """Write a journal of the last weeks: what is held now, and repairs of before."""
    for name, rows in made.troubles.items():
        for trouble, gpu, hours in rows:
            if trouble.held == "gpu-workbench":
                made.actions.append(_act(name, "cordon", "drain", "done", "no new work comes", hours - 0.05, draw))
                target = f" of GPU {gpu}" if gpu is not None else ""
                detail = f"{trouble.action}{target} waits for a person's approval"
                made.actions.append(_act(name, trouble.action, trouble.action, "refused", detail, hours - 0.06, draw))
    others = [name for name in made.names if name not in made.silent]
    for _ in range(max(3, len(made.names) // 25)):
        name, hours = draw.choice(others), draw.uniform(30.0, 600.0)
        verb, rung, detail = draw.choice(
            (
                ("reset-gpu", "reset-gpu", "the GPU answers again, its check is ok"),
                ("reboot", "reboot-node", "it is back with a new boot, fit"),
                ("uncordon", "drain", "it takes work again"),
                ("cordon", "drain", "no new work comes"),
            )
        )
        status = "done" if draw.random() < 0.9 else "failed"
        made.actions.append(
            _act(name, verb, rung, status, detail if status == "done" else "it did not come back in time", hours, draw)
        )
    # one node that is repaired again and again: what a lemon looks like
    lemon = draw.choice(others)
    for hours in (40.0, 130.0, 260.0):
        made.actions.append(_act(lemon, "reset-gpu", "reset-gpu", "done", "the GPU answers again, its check is ok", hours, draw))


def _act(node: str, verb: str, rung: str, status: str, detail: str, hours: float, draw: random.Random) -> dict[str, Any]:
    number = f"{draw.randrange(16**10):010x}"
    return {
        "hours": hours, "node": node, "plan": f"demo-{number[:6]}", "action": number, "verb": verb, "rung": rung, "status": status,
        "detail": detail, "by": "gpu-workbench",
    }  # fmt: skip


def values(made: World, now: float) -> Mapping[str, Any]:
    """
    Return temperature (°C), power (W), utilisation (%) and memory (MiB) of all GPUs at a moment: slowly moving, the same for the same moment.
    """
    each = np.diff(made.first)
    busy = np.repeat([name in made.job_of for name in made.names], each)
    idle_w, busy_w, memory = (
        np.repeat([getattr(model, key) for model in made.models], each) for key in ("idle", "busy", "memory")
    )
    wave = np.sin(now / 47.0 + made.seeds * 6.28)
    fast = np.sin(now / 7.3 + made.seeds * 913.0)
    power = np.where(busy, busy_w * (0.94 + 0.05 * wave) + 8 * fast, idle_w + 3 * wave)
    temperature = 27 + 38 * power / busy_w + 7 * (made.seeds - 0.5) + fast
    used = np.where(busy, memory * (0.86 + 0.08 * made.seeds), 4.0)
    return {
        "temperature": np.round(temperature, 0),
        "power": np.round(power, 1),
        "utilization": np.round(np.where(busy, np.clip(97 + 3 * wave, 0, 100), 0)),
        "memory_used": np.round(used),
    }
