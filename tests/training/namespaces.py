"""Turn network namespaces on one bridge into the nodes of a job: made, cut off and removed, each with its own address and host name."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator

__all__ = ["Nodes", "nodes"]

_COUNT = itertools.count()


class Nodes:
    """``node-a``, ``node-b`` … on one switch; a node is a network namespace with one interface, ``eth0``."""

    def __init__(self, number: int) -> None:
        self._prefix = f"wb{os.getpid()}-{next(_COUNT)}"
        self.names = tuple(f"node-{chr(ord('a') + at)}" for at in range(number))
        self.switch = f"{self._prefix}-switch"
        self.spaces = {name: f"{self._prefix}-{name[-1]}" for name in self.names}

    def make(self) -> None:
        _ip("netns", "add", self.switch)
        self._switch("link", "add", "br0", "type", "bridge")
        self._switch("link", "set", "br0", "up")
        for at, (name, space) in enumerate(self.spaces.items(), 1):
            _ip("netns", "add", space)
            self._switch("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._switch("link", "set", name, "master", "br0", "up")
            _ip("-n", space, "addr", "add", f"10.77.0.{at}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", space, "link", "set", link, "up")

    def cut(self, name: str) -> None:
        """Pull the cable of a node: no connection is closed, nothing arrives any more."""
        self._switch("link", "set", name, "down")

    def mend(self, name: str) -> None:
        self._switch("link", "set", name, "up")

    @property
    def hosts(self) -> str:
        """What the launcher takes: name=namespace=address, with commas."""
        return ",".join(f"{name}={space}=10.77.0.{at}" for at, (name, space) in enumerate(self.spaces.items(), 1))

    def remove(self) -> None:
        for space in (*self.spaces.values(), self.switch):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    def _switch(self, *words: str) -> None:
        _ip("-n", self.switch, *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def nodes(number: int) -> Iterator[Nodes]:
    """Give so many nodes; they are gone afterwards, whatever ran on them."""
    made = Nodes(number)
    try:
        made.make()
        yield made
    finally:
        made.remove()
