"""
Turn the API server's watches into a fleet that is there at once, and a word when something new is wrong with a node.

A list of a large cluster takes seconds; a watch tells of a change in milliseconds. What is held here is trusted only while every watch proves
that it lives: each is opened anew every `HOLD` seconds, and one that said nothing for longer than that, or failed, makes the fleet be listed
as if there were no watch. Before a change the executor reads the node itself, always.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import SourceError
from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.kubernetes.calls import CLAIMS, Calls
from workbench.remediation.executors.kubernetes.machine import Machines
from workbench.remediation.executors.kubernetes.marks import labels_of
from workbench.remediation.executors.kubernetes.pods import Budgets, gpus_of
from workbench.remediation.executors.kubernetes.reading import BUDGETS, EVENTS, NODES, PLACED, PODS, REBOOTED, Reader, slim
from workbench.remediation.model import FleetState, NodeState, Work
from workbench.sources.kubernetes.api import Api, Listing
from workbench.sources.kubernetes.errors import ApiError

__all__ = ["HOLD", "Feed", "Watching"]

HOLD = 30.0  # seconds that one watch lasts
_LATE = 15.0  # seconds after which a watch that should have ended is given up
_ABSENT = 60.0  # seconds after which it is asked again whether a kind is installed by now
_SHORT, _PAUSE = 1.0, 0.5
_AGAIN = (1.0, 30.0)  # seconds between two tries, first and most


class _Expired(Exception):
    """The server does not know any more what was where the watch begins: it is listed again."""


@dataclass
class Feed:
    """
    The objects of one kind, kept up to date by a thread.

    Attributes
    ----------
    api : Api
    path : str
    query : mapping
        Selectors.
    keep : callable
        What of an object is kept.
    changed : callable
        Called with the object before (None: new) and after (None: gone) each change.
    clock : callable
        Seconds that only grow.
    """

    api: Api
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    keep: Callable[[dict[str, Any]], dict[str, Any]] = lambda item: item
    changed: Callable[[dict[str, Any] | None, dict[str, Any] | None], None] = lambda before, after: None
    clock: Callable[[], float] = time.monotonic
    hold: float = HOLD
    error: str = "it was not listed yet"
    version: int = 0  # grows with each change
    _items: dict[str, dict[str, Any]] = field(default_factory=dict)
    _heard: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lives(self) -> bool:
        """Whether what is held is what the server has, as far as a watch can tell."""
        return not self.error and self.clock() - self._heard < self.hold + _LATE

    def items(self) -> list[dict[str, Any]]:
        """Return the objects that are there now."""
        with self._lock:
            return list(self._items.values())

    def run(self, ends: threading.Event) -> None:
        """List, then follow, until `ends` is set."""
        wait = _AGAIN[0]
        while not ends.is_set():
            try:
                version = self._list()
                while not ends.is_set():
                    began = self.clock()
                    version = self._follow(version)
                    wait = _AGAIN[0]
                    if self.clock() - began < _SHORT:  # whatever ends watches at once must not be asked without a pause
                        ends.wait(_PAUSE)
            except _Expired:
                continue
            except SourceError as error:
                if isinstance(error, ApiError) and error.kind == "absent":
                    self._replace({})  # the kind is not installed
                    self._heard = self.clock() + _ABSENT
                    ends.wait(_ABSENT)
                    continue
                self.error = str(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.error = f"the watch sent something unexpected: {type(error).__name__}: {error}"
            ends.wait(wait)
            wait = min(2 * wait, _AGAIN[1])

    def _list(self) -> str:
        found: dict[str, dict[str, Any]] = {}
        token, version, deadline = "", "", Deadline(120)
        while True:
            query = {**self.query, "limit": 500, **({"continue": token} if token else {})}
            try:
                document = self.api.json(self.path, deadline, query)
            except ApiError as error:
                if error.kind == "gone":
                    raise _Expired from error
                raise
            meta = document["metadata"]
            version, token = str(meta["resourceVersion"]), str(meta.get("continue") or "")
            for item in document.get("items") or []:
                found[str(item["metadata"]["uid"])] = self.keep(item)
            if not token:
                self._replace(found)
                return version

    def _replace(self, found: dict[str, dict[str, Any]]) -> None:
        with self._lock:
            before, self._items = self._items, found
            self.version += 1
            self._heard, self.error = self.clock(), ""
        for uid in {*before, *found}:
            self.changed(before.get(uid), found.get(uid))

    def _follow(self, version: str) -> str:
        """Follow the changes from a version on until the watch ends; return the version that it came to."""
        rest = b""

        def sink(block: bytes) -> None:
            nonlocal rest, version
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                version = self._event(json.loads(line)) or version
            self._heard = self.clock()

        query = {
            **self.query,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": int(self.hold),
        }
        try:
            self.api.get(self.path, Deadline(self.hold + _LATE), query, tries=1, sink=sink)
        except ApiError as error:
            if error.kind == "gone":
                raise _Expired from error
            raise
        self._heard = self.clock()
        return version

    def _event(self, event: dict[str, Any]) -> str:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item.get("code") == 410:
                raise _Expired
            raise ValueError(item.get("message") or "ERROR")
        meta = item["metadata"]
        if kind != "BOOKMARK":
            uid, after = str(meta["uid"]), None if kind == "DELETED" else self.keep(item)
            with self._lock:
                before = self._items.pop(uid, None)
                if after is not None:
                    self._items[uid] = after
                self.version += 1
            self.changed(before, after)
        return str(meta["resourceVersion"])


class Watching(Reader):
    """
    A reader whose fleet is kept up to date by watches.

    Parameters
    ----------
    calls : Calls
    clock : callable
        Returns the seconds since the epoch.
    machines : Machines
    """

    def __init__(self, calls: Calls, clock: Callable[[], float], machines: Machines) -> None:
        super().__init__(calls, clock, machines)
        self._news, self._ends = threading.Event(), threading.Event()
        self._nodes = Feed(calls.api, NODES, changed=self._new)
        self._pods = Feed(calls.api, PODS, {"fieldSelector": PLACED}, slim)
        self._budgets = Feed(calls.api, BUDGETS)
        self._all_claims = Feed(calls.api, CLAIMS)
        self._all_boots = Feed(calls.api, EVENTS, {"fieldSelector": REBOOTED})
        self._feeds = (self._nodes, self._pods, self._budgets, self._all_claims, self._all_boots)
        self._begun = False
        self._states: dict[tuple[Any, ...], NodeState] = {}
        self._works: dict[tuple[Any, ...], Work] = {}
        self._old: tuple[dict[tuple[Any, ...], NodeState], dict[tuple[Any, ...], Work]] = ({}, {})

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return the fleet as the watches have it; listed when one of them does not live. Raises as `Reader.fleet`."""
        if not self._begun:
            self._open(deadline)
            self._begun = True
            for feed in self._feeds:
                threading.Thread(target=feed.run, args=(self._ends,), daemon=True, name=f"watch {feed.path}").start()
            return super().fleet(deadline)
        if not all(feed.lives() for feed in self._feeds):
            return super().fleet(deadline)
        self._old, self._states, self._works = (self._states, self._works), {}, {}  # what is not there any more is forgotten
        nodes, pods, budgets, claims, boots = (feed.items() for feed in self._feeds)
        return self.assembled(nodes, pods, budgets, claims, boots)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; True as soon as a check shows something new on a node, or a node comes or goes."""
        if self._news.wait(seconds):
            self._news.clear()
            return True
        return False

    def close(self) -> None:
        """End the watches; each ends when the server says something next, within `HOLD` seconds."""
        self._ends.set()

    def lacks(self) -> list[str]:
        """Return why the fleet is listed and not watched, by kind."""
        return [f"{feed.path}: {feed.error or 'nothing was heard'}" for feed in self._feeds if not feed.lives()]

    # ---- what of one node's state is not the node or its pods, which are read anew each time

    def budgets(self, deadline: Deadline) -> Listing:
        """Return the disruption budgets, as watched: the server has the last word at each eviction."""
        return Listing(self._budgets.items()) if self._budgets.lives() else super().budgets(deadline)

    def _claims(self, deadline: Deadline, keep: Callable[[dict[str, Any]], bool] | None = None) -> Listing:
        if not self._all_claims.lives():
            return super()._claims(deadline, keep)
        return Listing([one for one in self._all_claims.items() if keep is None or keep(one)])

    def _boots(self, deadline: Deadline, name: str = "") -> Listing:
        if not self._all_boots.lives():
            return super()._boots(deadline, name)
        return Listing(
            [one for one in self._all_boots.items() if not name or (one.get("involvedObject") or {}).get("name") == name]
        )

    def _gpus(self, space: str, selector: str, deadline: Deadline) -> int:
        if not self._pods.lives():
            return super()._gpus(space, selector, deadline)
        key, _, value = selector.partition("=")
        pods = (one for one in self._pods.items() if one["metadata"].get("namespace") == space)
        return sum(gpus_of(one) for one in pods if labels_of(one).get(key) == value)

    # ---- the fleet

    def work_of(self, pod: dict[str, Any], covering: Budgets) -> Work:
        """Return a pod as work, made once for each version of the pod and the budgets."""
        key = (pod["metadata"].get("uid"), pod["metadata"].get("resourceVersion"), self._budgets.version)
        found = self._old[1].get(key)
        self._works[key] = found = super().work_of(pod, covering) if found is None else found
        return found

    def node_state(self, node: dict[str, Any], claim: str, booted: float | None) -> NodeState:
        """Return a node without its work, made once for each of its versions."""
        key = (node["metadata"].get("uid"), node["metadata"].get("resourceVersion"), claim, booted)
        found = self._old[0].get(key)
        self._states[key] = found = super().node_state(node, claim, booted) if found is None else found
        return found

    def _new(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        if _shown(before) != _shown(after):
            self._news.set()


def _shown(node: dict[str, Any] | None) -> Any:
    """Return what of a node a turn cannot wait for: that it is there, and what checks show, but not their heartbeats."""
    if node is None:
        return None
    rows = (node.get("status") or {}).get("conditions") or []
    return [
        (one.get("type"), one.get("status"), one.get("reason")) for one in rows if str(one.get("type")).startswith("Workbench")
    ]
