"""
Turn a folder that all nodes of a job share into what their supervisors know of each other: who lives, whose job hangs, all stacks.

    DIR/NODE.json                 a sign of life every few seconds: a count, the attempt, the last step, how it ended
    DIR/hangs/ID.json             a supervisor says that the job hangs: all others take the stacks of their own ranks, too …
    DIR/hangs/ID/stacks/          … and put them here, the common place
    DIR/hangs/ID/NODE.done        … and say that all of theirs are there

Signs are compared by their count and by the file server's times, never by the clocks of two nodes. All of it happens in a thread of its own, so
that a file server which hangs holds up neither the job nor its supervisor.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["BEAT", "SILENT", "Together"]

BEAT = 5.0  # seconds between two signs of life, and between two looks whether somebody hangs
SILENT = 30.0  # seconds without a sign in which all others gave one
_LOOK = 1.0  # seconds between two looks while somebody waits for an answer
_FEW = 8  # files of others that are looked at at once for who tells steps
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class Together:
    """
    One supervisor's part in it.

    Parameters
    ----------
    folder : Path
        Shared by the job's nodes; made when it is not there.
    node : str
        This node.
    beat, silent : float
        Seconds, see above.
    """

    def __init__(self, folder: Path, node: str, *, beat: float = BEAT, silent: float = SILENT) -> None:
        self.folder, self.node, self.beat, self.silent = folder, node, beat, silent
        self.trouble = ""  # why no sign of life can be given
        self.hang: dict[str, Any] | None = None  # what another one said of this attempt
        self.step: int | None = None  # the last that this node's part of the job told
        self.heard: int | None = None  # where it tells none: the last that another node told
        self._follows: Path | None = None
        self._own = folder / f"{_NAME.sub('_', node)}.json"
        self._state: dict[str, Any] = {"attempt": 0, "state": "running", "code": None}
        self._count = 0
        self._known: set[str] = set()  # hangs that were told before this attempt began
        self._mine: list[str] = []  # hangs of this attempt, ours and others'
        self._began = 0.0  # the file server's time
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="workbench-together", daemon=True)

    # Signs of life -----------------------------------------------------------------------------------------------------------

    def begin(self, attempt: int) -> None:
        """Say that an attempt begins: what was told of earlier ones is over."""
        with self._lock:
            self._state = {"attempt": attempt, "state": "running", "code": None}
            self.hang, self.step, self.heard, self._mine = None, None, None, []
        self._give()
        try:
            (self.folder / "hangs").mkdir(parents=True, exist_ok=True)
            self._known = {path.name for path in (self.folder / "hangs").glob("*.json")}
            self._began = self._own.stat().st_mtime
        except OSError as error:
            self.trouble = f"{self.folder}: {error.strerror or error}"
        if not self._thread.is_alive():
            self._thread.start()

    def close(self, code: int) -> None:
        """Say that this node is done, and how."""
        self._stop.set()
        with self._lock:
            self._state |= {"state": "ended", "code": code}
        self._give()

    def _give(self) -> None:
        from workbench.durable import write_bytes

        with self._lock:
            self._count += 1
            row = {
                "node": self.node,
                "pid": os.getpid(),
                "count": self._count,
                "time": time.time(),
                "step": self.step,
                **self._state,
            }
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_bytes(self._own, json.dumps(row).encode() + b"\n")
                self.trouble = ""
            except OSError as error:
                self.trouble = f"{self._own}: {error.strerror or error}"

    def _work(self) -> None:
        while not self._stop.wait(self.beat):
            self._give()
            try:
                self._listen()
                if self.step is None:
                    self._follow()
            except (OSError, ValueError):  # it is tried again
                pass

    def _follow(self) -> None:
        """
        Take the steps of a node that tells some: in most jobs one rank prints them, and the others' supervisors would not see the job hang.

        A few files are looked at each time, and then that one alone: with thousands of nodes all reading all would be the file server's end.
        """
        paths = [self._follows] if self._follows is not None else [one for one in self.folder.glob("*.json") if one != self._own]
        for path in random.sample(paths, min(_FEW, len(paths))):
            row = json.loads(path.read_bytes())
            if isinstance(row.get("step"), int) and path.stat().st_mtime >= self._began:
                self._follows, self.heard = path, row["step"]
                return
        self._follows = None

    def others(self) -> dict[str, dict[str, Any]]:
        """Return the last sign of each other node that gave one since this attempt began, with ``at``, the file server's time of it."""
        found: dict[str, dict[str, Any]] = {}
        try:
            paths = [path for path in self.folder.glob("*.json") if path != self._own]
        except OSError:
            return found
        for path in paths:
            try:
                at = path.stat().st_mtime
                row = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(row, dict) and isinstance(row.get("node"), str) and at >= self._began:
                found[row["node"]] = {**row, "at": at}
        return found

    def settled(self, wait: Callable[[float], object] = time.sleep) -> dict[str, Any]:
        """
        Tell who still lives: each other one has to give a new sign within `silent` seconds from now.

        Returns
        -------
        dict
            ``supervisors``: rows of ``node``, ``state`` (alive, ended, silent), ``last`` (s since the epoch), ``step``; ``waited`` (s), and
            ``trouble`` when this node could give no sign itself, so that the others' silence may be its own deafness.
        """
        first, begun = self.others(), time.monotonic()
        state = {node: "ended" if row["state"] == "ended" else "" for node, row in first.items()}
        while not all(state.values()) and time.monotonic() - begun < self.silent:
            wait(_LOOK)
            for node, row in self.others().items():
                if row["state"] == "ended":
                    state[node] = "ended"
                elif node not in first or row["count"] != first[node]["count"]:
                    state[node] = "alive"
        rows = [
            {"node": node, "state": state[node] or "silent", "last": row["at"], "step": row.get("step")}
            for node, row in sorted(first.items())
        ]
        own = {"node": self.node, "state": "failed" if self.trouble else "alive", "last": time.time(), "step": self.step}
        return {"supervisors": [own, *rows], "waited": round(time.monotonic() - begun, 1), "trouble": self.trouble}

    # Hangs -------------------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """See whether another one says that the job hangs."""
        for path in sorted((self.folder / "hangs").glob("*.json")):
            if path.name in self._known:
                continue
            self._known.add(path.name)
            row = json.loads(path.read_bytes())
            if row.get("node") != self.node:
                with self._lock:
                    self._mine.append(path.stem)
                    self.hang = self.hang or {"id": path.stem, "node": str(row.get("node")), "reason": str(row.get("reason"))}

    def declare(self, reason: str) -> None:
        """Say that the job hangs, so that all others take the stacks of their ranks, too."""
        from workbench.durable import write_bytes

        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{_NAME.sub('_', self.node)}"
        with self._lock:
            self._mine.append(name)
        self._known.add(f"{name}.json")
        try:
            write_bytes(
                self.folder / "hangs" / f"{name}.json", json.dumps({"node": self.node, "reason": reason}).encode() + b"\n"
            )
        except OSError as error:
            self.trouble = f"{self.folder}: {error.strerror or error}"

    def give(self, stacks: Path) -> None:
        """Put the stacks of this node's ranks into the common place of each hang of this attempt."""
        for name in tuple(self._mine):
            try:
                shutil.copytree(stacks, self.folder / "hangs" / name / "stacks", dirs_exist_ok=True)
                (self.folder / "hangs" / name / f"{self._own.stem}.done").touch()
            except (OSError, shutil.Error):
                pass  # they are in the attempt's own folder all the same

    def take(self, stacks: Path, until: float) -> int:
        """Wait (`time.monotonic`) for the stacks of all others that give signs of life, and copy them to ours; returns how many files came."""
        first, begun = self.others(), time.monotonic()
        while time.monotonic() < until and not self._complete(first if time.monotonic() - begun > self.silent else {}):
            time.sleep(_LOOK)
        came = 0
        for name in tuple(self._mine):
            for path in sorted((self.folder / "hangs" / name / "stacks").glob("*")):
                target = stacks / path.name
                try:
                    if not target.exists():
                        stacks.mkdir(parents=True, exist_ok=True)
                        shutil.copy2(path, target)
                        came += 1
                except OSError:
                    continue
        return came

    def _complete(self, first: dict[str, dict[str, Any]]) -> bool:
        """Whether all have given theirs but those that ended, or gave no sign since `first`."""
        living = {
            _NAME.sub("_", node)
            for node, row in self.others().items()
            if row["state"] != "ended" and (node not in first or row["count"] != first[node]["count"])
        }
        try:
            done = {path.stem for name in self._mine for path in (self.folder / "hangs" / name).glob("*.done")}
        except OSError:
            return True
        return living <= done
