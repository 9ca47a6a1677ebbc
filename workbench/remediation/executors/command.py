"""
Turn an action into a command of the site's own (reset this GPU, reboot that node), run exactly once and looked after until it ended.

A command is a list of arguments; names of nodes and GPUs fill whole placeholders inside an argument and never pass a shell. Each action has a
folder of its own in which its command runs under `run_once`: it goes on when the controller dies, and whoever looks later sees how it ended.
"""

from __future__ import annotations

import fcntl
import json
import re
import string
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import ConfigError
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.run_once import spawn, write_whole
from workbench.remediation.model import VERBS, Action, FleetState, NodeState, Step

__all__ = ["PLACES", "Command", "Commands", "commands_of"]

# what may stand in braces in an argument
PLACES = ("node", "target", "job", "uuid", "pci", "index", "reason", "id", "folder")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")  # of names: no dash in front, so that none is taken for an option
_FORMING = 30.0  # seconds in which a command that was asked for must have begun
_FREE = frozenset({"reason"})  # words of people: one argument, whatever is in them


@dataclass(frozen=True, slots=True)
class Command:
    """
    A site's command for one verb.

    Attributes
    ----------
    argv : tuple of str
        Program and arguments, with ``{node}`` and so on: see `PLACES`.
    seconds : float
        After this time it is ended, with all that it started.
    good : tuple of int
        Exit codes that mean it was done.
    busy : tuple of int
        Exit codes that mean that it cannot be done now, and nothing has happened.
    """

    argv: tuple[str, ...]
    seconds: float = 600.0
    good: tuple[int, ...] = (0,)
    busy: tuple[int, ...] = ()


def commands_of(table: Mapping[str, Any], where: str) -> dict[str, Command]:
    """
    Return the commands of a policy's ``[commands.VERB]`` tables.

    Raises
    ------
    ConfigError
        A verb, placeholder or value is wrong; names the entry.
    """
    found = {}
    for verb, one in table.items():
        place = f"{where} [commands.{verb}]"
        if verb not in VERBS:
            raise ConfigError(f"{place}: {verb!r} is none of {', '.join(VERBS)}")
        if not isinstance(one, Mapping) or (strange := sorted(set(one) - {"argv", "seconds", "good", "busy"})):
            raise ConfigError(
                f"{place} has argv, seconds, good and busy" + (f", not {strange[0]!r}" if isinstance(one, Mapping) else "")
            )
        argv = one.get("argv")
        if not isinstance(argv, list) or not argv or not all(isinstance(word, str) and word for word in argv):
            raise ConfigError(
                f"{place}: argv is a list of words, never a line for a shell", hint='argv = ["ssh", "{node}", "sudo", "reboot"]'
            )
        for word in argv:
            for name in _places(word, place):
                if name not in PLACES:
                    raise ConfigError(f"{place}: {{{name}}} is none of {', '.join(PLACES)}")
        codes = {key: one.get(key, default) for key, default in (("good", [0]), ("busy", []))}
        for key, value in codes.items():
            if not isinstance(value, list) or not all(isinstance(code, int) and 0 <= code < 256 for code in value):
                raise ConfigError(f"{place}: {key} is a list of exit codes, not {value!r}")
        seconds = one.get("seconds", 600)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise ConfigError(f"{place}: seconds is a number above 0, not {seconds!r}")
        found[verb] = Command(tuple(argv), float(seconds), tuple(codes["good"]), tuple(codes["busy"]))
    return found


def _places(word: str, where: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
    except ValueError as error:
        raise ConfigError(f"{where}: {word!r}: {error}", hint="write {{ for a brace") from None


class Commands:
    """
    Commands of the site as an executor.

    Parameters
    ----------
    commands : mapping of str to Command
        By verb.
    folder : Path
        Where each action gets its folder; it must survive a reboot of the controller's machine.
    node : callable, optional
        Returns a node as its scheduler sees it now: how it is known that a reboot has really happened.
    """

    name = "command"

    def __init__(
        self, commands: Mapping[str, Command], folder: Path, *, node: Callable[[str, Deadline], NodeState | None] | None = None
    ) -> None:
        self.verbs = frozenset(commands)
        self._commands, self._folder, self._node = dict(commands), folder, node

    def fleet(self, deadline: Deadline) -> FleetState:
        """Commands see no fleet: always an `ExecutorError`."""
        raise ExecutorError(
            "the site's commands do not tell which nodes there are", hint="use a scheduler's executor", sent=False
        )

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return what the scheduler's executor says of the node."""
        if self._node is None:
            return self.fleet(deadline).nodes.get(name)
        return self._node(name, deadline)

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Start the command in the action's folder, unless it was started before."""
        step = self.look(action, deadline)
        if step.status != "absent":
            return step
        command, folder = self._commands[action.verb], self._folder / action.id
        try:
            argv = [_filled(word, action, folder) for word in command.argv]
        except ValueError as error:
            return Step("failed", str(error))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(
                folder / "command.json",
                {"argv": argv, "seconds": command.seconds, "action": action.to_dict(), "asked": time.time()},
            )
            spawn(folder)
        except OSError as error:
            raise ExecutorError(f"{folder} cannot be written: {error.strerror or error}", sent=False) from None
        # most commands are over in a moment: then one answer tells all
        for _ in range(20):
            time.sleep(0.05)
            step = self.look(action, deadline)
            if step.status not in ("absent", "pending"):
                return step
        return Step("pending", step.detail, again=2.0)

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell from the action's folder how far its command is; of a reboot also whether the node has come up again since."""
        if action.verb not in self._commands:
            return Step("failed", f"no command of the site does {action.verb!r}")
        command, folder = self._commands[action.verb], self._folder / action.id
        try:
            if not (folder / "started").exists():
                return self._not_begun(folder)
            if not (folder / "end.json").exists():
                if _held(folder / "lock"):
                    return Step("pending", "the command runs", again=2.0)
                if not (folder / "end.json").exists():  # it may have ended between the two looks
                    return Step("unknown", f"the command was cut off, and nobody knows what it had done; see {folder}")
            end = json.loads((folder / "end.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{folder} cannot be read: {error}") from None
        if end.get("error"):
            return Step("failed", str(end["error"]))
        said = _last_line(folder)
        if end["late"]:
            return Step("unknown", f"the command was ended after {command.seconds:g} s and may have done its work or not: {said}")
        if end["code"] in command.busy:
            return Step("blocked", said or f"exit code {end['code']}")
        if end["code"] not in command.good:
            return Step("failed", f"exit code {end['code']}: {said}")
        if action.verb == "reboot" and self._node is not None:
            return self._rebooted(action, deadline)
        return Step("done", said)

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Nothing that a command does can be taken back."""
        return Step("failed", f"{action.verb} by a command of the site cannot be taken back")

    @staticmethod
    def _not_begun(folder: Path) -> Step:
        """Whoever was asked to run it may still be on his way; after a while he is not, and he could not begin any more."""
        file = folder / "command.json"
        if not file.exists():
            return Step("absent", "the command was not asked for")
        if _held(folder / "lock") or time.time() - file.stat().st_mtime < _FORMING:
            return Step("pending", "the command is about to begin", again=1.0)
        return Step("absent", "the command was asked for and has not begun")

    def _rebooted(self, action: Action, deadline: Deadline) -> Step:
        assert self._node is not None
        node, boot = self._node(action.node, deadline), action.expects.get("boot")
        if node is None or node.ready is not True:
            return Step("pending", f"{action.node} is not back yet", again=15.0)
        if boot and node.boot == boot:
            return Step("pending", f"{action.node} still runs the boot {boot}", again=15.0)
        return Step("done", f"{action.node} is back")


def _filled(word: str, action: Action, folder: Path) -> str:
    """Return an argument with its placeholders filled; ValueError when a value is missing or could be taken for something else."""
    gpu = action.gpu
    values = {
        "node": action.node,
        "target": action.target,
        "job": str(action.args.get("job") or ""),
        "uuid": (gpu.uuid if gpu else None) or "",
        "pci": (gpu.pci if gpu else None) or "",
        "index": "" if gpu is None or gpu.index is None else str(gpu.index),
        "reason": str(action.args.get("reason") or action.why),
        "id": action.id,
        "folder": str(folder),
    }
    names = [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
    for name in names:
        if not values[name]:
            raise ValueError(f"the command wants {{{name}}}, and nobody knows it for {action.node}")
        if name not in _FREE and name != "folder" and not _SAFE.fullmatch(values[name]):
            raise ValueError(f"{name} {values[name]!r} is no name that can be given to a command")
    return word.format_map({**values, "reason": re.sub(r"[^\x20-\x7e]", "?", values["reason"]).lstrip("-")[:200]})


def _held(path: Path) -> bool:
    """Whether somebody holds the lock of a file."""
    try:
        with path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _last_line(folder: Path) -> str:
    """Return the last line that the command said, its complaints first."""
    for name in ("err", "out"):
        try:
            with (folder / name).open("rb") as stream:
                stream.seek(max(0, stream.seek(0, 2) - 4096))
                lines: Sequence[str] = stream.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            continue
        if lines:
            return re.sub(r"[^\x20-\x7e\xa0-\uffff]", "?", lines[-1])[:300]
    return ""
