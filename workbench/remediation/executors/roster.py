"""
Turn a list of nodes in a file into what stands in for a scheduler where there is none: who is out of service, by whom, why, until when.

For a rack that two people run by hand. The list is a JSON file that whoever starts jobs reads (``workbench journal`` shows who wrote what); it
keeps nobody away by itself, and says so. A person may write names of their own into it: those are theirs. What runs on a node and which boot it
is in tell commands of the site (`Asks`); without them nobody knows, and nothing is done that would end work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.durable import write_whole
from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.executors.expects import misfit
from workbench.remediation.model import OWNER, Action, FleetState, NodeState, Step, Work

__all__ = ["SCHEMA", "Asks", "Roster"]

SCHEMA = "workbench.out-of-service/1"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # no dash in front, so that none is taken for an option
_AT_ONCE = 8  # nodes that are asked at the same time
_KEPT = 1000  # actions that the list remembers: what it has forgotten is done or undone long ago


@dataclass(frozen=True, slots=True)
class Asks:
    """
    Commands that tell of a node: lists of words with ``{node}``, never a line for a shell.

    Attributes
    ----------
    boot : tuple of str
        Prints the boot's id, and may print ``btime SECONDS`` as ``/proc/stat`` does.
    work : tuple of str
        Prints a line for each thing that runs there and would be lost; nothing, and exit code 0, when the node is idle.
    seconds : float
        Each may take so long.
    """

    boot: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    seconds: float = 20.0


class Roster:
    """
    Nodes given by name, and the list of those out of service; see `workbench.remediation.executors.contract.Executor`.

    Parameters
    ----------
    file : Path
        The list.
    names : iterable of str, optional
        The nodes there are. Empty: whoever is named (`know`) is believed to be one.
    asks : Asks, optional
    clock : callable, optional
        Seconds since the epoch.
    """

    name = "roster"

    def __init__(
        self, file: Path, names: Iterable[str] = (), asks: Asks | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.file, self.asks = file, asks or Asks()
        self.listed = tuple(dict.fromkeys(names))
        self.verbs = frozenset({"cordon", "uncordon", *(("drain",) if self.asks.work else ())})
        self._named: dict[str, None] = {}
        self._clock = clock
        with contextlib.suppress(OSError):  # whoever looks says so
            file.parent.mkdir(parents=True, exist_ok=True)

    def know(self, names: Iterable[str]) -> None:
        """Believe that these are nodes; only where the site has not said which there are."""
        if not self.listed:
            self._named.update(dict.fromkeys(one for one in names if one))

    # reading

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return the nodes that are known by name, with what cannot be known told; complete, since there are no others."""
        entries = self._read()["nodes"]
        names = self.listed or tuple(dict.fromkeys([*self._named, *entries]))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="roster") as pool:
            states = list(pool.map(lambda name: self._state(name, entries.get(name), deadline), names))
        return FleetState(self._clock(), {one.name: one for one in states}, "no scheduler", True, self._unknown())

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return one node; None when the site says which there are and this is none of them."""
        entries = self._read()["nodes"]
        if name not in (self.listed or (*self._named, *entries)):
            return None
        return self._state(name, entries.get(name), deadline)

    def _unknown(self) -> tuple[str, ...]:
        found = [f"Nothing keeps new work away from a node but the list {self.file}: whoever starts jobs must read it."]
        if not self.listed:
            found.append(
                "Nobody said which nodes there are: only those that were named count, so no share of a fleet protects the rest."
            )
        if not self.asks.work:
            found.append("Nobody can tell what runs on the nodes and would be lost: name a command in the policy ([nodes] work).")
        if not self.asks.boot:
            found.append(
                "Nobody can tell which boot the nodes are in and since when: name a command in the policy ([nodes] boot)."
            )
        return tuple(found)

    def _state(self, name: str, entry: Mapping[str, Any] | None, deadline: Deadline) -> NodeState:
        unseen: list[str] = []
        boot, booted, ready = "", None, None
        if said := self._ask(self.asks.boot, name, deadline):
            ready = True
            boot = said[0]
            booted = next((float(one.split()[1]) for one in said if one.startswith("btime ")), None)
        else:
            unseen.append("boot")
        runs = self._ask(self.asks.work, name, deadline)
        if runs is None:
            unseen.append("work")
        return NodeState(
            name,
            uid=name,
            boot=boot,
            booted=booted,
            ready=ready,
            schedulable=entry is None,
            owner="" if entry is None else str(entry.get("owner") or "somebody"),
            op="" if entry is None else str(entry.get("op") or ""),
            reason="" if entry is None else str(entry.get("reason") or ""),
            restricted=None if entry is None else _number(entry.get("since")),
            expires=None if entry is None else _number(entry.get("expires")),
            work=tuple(Work(one, uid=one, controlled=False) for one in dict.fromkeys(runs or ())),
            unseen=tuple(unseen),
        )

    def _ask(self, argv: tuple[str, ...], name: str, deadline: Deadline) -> list[str] | None:
        """Return the lines that a command says; None when there is none, or it fails: then nobody knows."""
        if not argv or not _NODE.fullmatch(name):
            return None
        words = [word.replace("{node}", name) for word in argv]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=deadline.left(self.asks.seconds),
                check=False,
            )
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        if done.returncode != 0:
            return None
        return [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]

    # acting

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Write the node into the list, or take it out; what another wrote there stays."""
        self._can(action)
        with self._changing() as table:
            step = self._look(action, table)
            if step.status != "absent":
                return self._drained(action, step, deadline)
            entry = table["nodes"].get(action.node)
            state = self.node(action.node, deadline)
            expects = dict(action.expects)
            if action.verb == "uncordon" and action.args.get("op"):
                expects["op"] = action.args["op"]  # whose restriction is lifted: one that came since stays
            if why := misfit(expects, state):
                return Step("changed", why)
            before = {"entry": entry}
            fence(deadline)
            if action.verb == "uncordon":
                table["nodes"].pop(action.node, None)
            else:
                table["nodes"][action.node] = {
                    "owner": OWNER,
                    "op": action.id,
                    "reason": str(action.args.get("reason") or action.why),
                    "since": self._clock(),
                    "expires": action.args.get("expires"),
                }
            self._write(table, action.id, {"node": action.node, "verb": action.verb, **before})
        return self._drained(action, Step("done", f"written into {self.file}", before), deadline)

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell whether the list says so, and of a drain whether work still runs."""
        self._can(action)
        return self._drained(action, self._look(action, self._read()), deadline)

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Bring back the node's line in the list, if it still is as the action made it."""
        self._can(action)
        with self._changing() as table:
            step = self._look(action, table)
            if step.status in ("absent", "changed"):
                return step
            entry = table["done"][action.id]["entry"]
            fence(deadline)
            if entry is None:
                table["nodes"].pop(action.node, None)
            else:
                table["nodes"][action.node] = entry
            del table["done"][action.id]
            self._write(table)
        return Step("done", f"as before in {self.file}")

    def _can(self, action: Action) -> None:
        if action.verb not in self.verbs:
            raise ExecutorError(
                f"a list of nodes cannot do {action.verb!r}", hint=f"it can {', '.join(sorted(self.verbs))}", sent=False
            )

    def _look(self, action: Action, table: Mapping[str, Any]) -> Step:
        done, entry = table["done"].get(action.id), table["nodes"].get(action.node)
        if done is None:
            return Step("absent", "the list has nothing of it")
        stands = entry is None if action.verb == "uncordon" else entry is not None and entry.get("op") == action.id
        if not stands:
            return Step("changed", f"somebody has changed the line of {action.node} since")
        return Step("done", "", {"entry": done["entry"]})

    def _drained(self, action: Action, step: Step, deadline: Deadline) -> Step:
        if action.verb != "drain" or step.status != "done":
            return step
        runs = self._ask(self.asks.work, action.node, deadline)
        if runs is None:
            raise ExecutorError(f"what runs on {action.node} cannot be told", sent=True, again=30.0)
        if not runs:
            return step
        return Step("pending", f"{len(runs)} still run: {', '.join(runs[:3])}"[:200], dict(step.before), again=30.0)

    # the file

    def _read(self) -> dict[str, Any]:
        try:
            return _whole(json.loads(self.file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            if not self.file.parent.is_dir():
                raise ExecutorError(
                    f"{self.file.parent} is not there: who is out of service cannot be told", sent=False
                ) from None
            return {"schema": SCHEMA, "nodes": {}, "done": {}}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ExecutorError(f"the list {self.file} cannot be read: {error}", sent=False) from None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Yield the list while no other process of ours changes it."""
        try:
            lock = os.open(self.file.with_name(self.file.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise ExecutorError(f"the list {self.file} cannot be changed: {error.strerror or error}", sent=False) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(lock)

    def _write(self, table: dict[str, Any], action: str = "", done: Mapping[str, Any] | None = None) -> None:
        if done is not None:
            table["done"][action] = dict(done)
            for old in list(table["done"])[:-_KEPT]:
                del table["done"][old]
        try:
            write_whole(self.file, table)
        except OSError as error:
            raise ExecutorError(f"the list {self.file} cannot be written: {error.strerror or error}", sent=True) from None


def _whole(table: Any) -> dict[str, Any]:
    if table.get("schema") != SCHEMA or not all(isinstance(one, dict) for one in table["nodes"].values()):
        raise ValueError(f"it is no list of the schema {SCHEMA}")
    return {**table, "done": dict(table.get("done") or {})}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
