"""Turn a fleet's nodes into who is free, who is bad and who is away: the scheduler's side of a simulation, with constant-time picks."""

from __future__ import annotations

import random
from collections.abc import Collection

from workbench.simulation.spec import Fault

__all__ = ["Bag", "Machine", "Machines", "node_name"]


def node_name(index: int, count: int) -> str:
    """Return the name of a node of a fleet of so many: as wide as the last one's number, four digits at least."""
    return f"gpu-{index:0{max(4, len(str(count - 1)))}d}"


class Machine:
    """A node: its free GPUs, the jobs on it, the fault it carries, and since when it is in its state."""

    __slots__ = ("bad", "free", "gpu", "index", "jobs", "mended", "name", "since", "state", "swaps")

    def __init__(self, index: int, name: str, gpus: int, begin: float) -> None:
        self.index, self.name, self.free = index, name, gpus
        self.jobs: dict[int, int] = {}  # job → GPUs of this node that it holds
        self.bad: Fault | None = None  # a fault that the next job meets
        self.gpu = 0  # the GPU that has it
        self.state, self.since = "usable", begin
        self.swaps: dict[int, int] = {}  # slot → how often its GPU was replaced
        self.mended = 0  # how often it came back from a repair


class Bag:
    """A set of small numbers from which one is drawn at random in constant time, always the same for the same seed."""

    __slots__ = ("items", "place")

    def __init__(self) -> None:
        self.items: list[int] = []
        self.place: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: int) -> None:
        """Put an item in; nothing when it is there."""
        if item not in self.place:
            self.place[item] = len(self.items)
            self.items.append(item)

    def remove(self, item: int) -> None:
        """Take an item out; nothing when it is not there."""
        at = self.place.pop(item, None)
        if at is None:
            return
        last = self.items.pop()
        if last != item:
            self.items[at] = last
            self.place[last] = at

    def draw(self, rng: random.Random) -> int:
        """Take one out at random."""
        items = self.items
        at = int(rng.random() * len(items))
        item, last = items[at], items.pop()
        del self.place[item]
        if last != item:
            items[at] = last
            self.place[last] = at
        return item


class Machines:
    """
    All nodes of a pool.

    Whole nodes go to jobs of a node and more; smaller jobs share nodes, the fullest that has room first.
    """

    def __init__(self, count: int, gpus: int, begin: float, rng: random.Random, spares: int = 0) -> None:
        self.gpus, self.rng = gpus, rng
        self.all = [Machine(index, node_name(index, count), gpus, begin) for index in range(count)]
        self.room = [Bag() for _ in range(gpus + 1)]  # by free GPUs; a node without one is in none
        self.idle = self.room[gpus].items  # of nodes of which all are free
        self.spare: list[Machine] = self.all[count - spares :] if spares else []
        for machine in self.all[: count - spares]:
            self.room[gpus].add(machine.index)
        for machine in self.spare:
            machine.state = "held"

    def take(self, job: int, gpus: int, excluded: Collection[str]) -> list[Machine] | None:
        """Give a job its GPUs, or None when they are not there."""
        if gpus >= self.gpus:
            return self._take_whole(job, -(-gpus // self.gpus), excluded)
        for free in range(gpus, self.gpus + 1):
            bag = self.room[free]
            if not bag.items:
                continue
            aside: list[int] = []
            found = None
            while bag.items and found is None:
                index = bag.draw(self.rng)
                if excluded and self.all[index].name in excluded:
                    aside.append(index)
                else:
                    found = self.all[index]
            for index in aside:
                bag.add(index)
            if found is not None:
                self._hold(found, job, gpus)
                return [found]
        return None

    def _take_whole(self, job: int, count: int, excluded: Collection[str]) -> list[Machine] | None:
        bag = self.room[self.gpus]
        if len(bag.items) < count:
            return None
        taken: list[Machine] = []
        aside: list[int] = []
        while len(taken) < count and bag.items:
            index = bag.draw(self.rng)
            if excluded and self.all[index].name in excluded:
                aside.append(index)
            else:
                taken.append(self.all[index])
        for index in aside:
            bag.add(index)
        if len(taken) < count:
            for machine in taken:
                bag.add(machine.index)
            return None
        for machine in taken:
            machine.jobs[job] = self.gpus
            machine.free = 0
        return taken

    def _hold(self, machine: Machine, job: int, gpus: int) -> None:
        machine.jobs[job] = gpus
        self._moved(machine, machine.free - gpus)

    def _moved(self, machine: Machine, free: int) -> None:
        if machine.free:
            self.room[machine.free].remove(machine.index)
        machine.free = free
        if free and machine.state == "usable":
            self.room[free].add(machine.index)

    def give(self, machine: Machine, job: int) -> None:
        """Take a job's GPUs back."""
        self._moved(machine, machine.free + machine.jobs.pop(job))

    def away(self, machine: Machine) -> None:
        """Keep a node from new jobs."""
        self.room[machine.free].remove(machine.index)

    def back(self, machine: Machine) -> None:
        """Let a node take jobs again; its state is usable."""
        if machine.free:
            self.room[machine.free].add(machine.index)
