"""
Turn an action into a command of the site's own (reset this GPU, reboot that node), run exactly once and looked after until it ended.

A command is a list of arguments; names of nodes and GPUs fill whole placeholders inside an argument and never pass a shell. Each action has a
folder of its own in which its command runs under `run_once`: it goes on when the controller dies, and whoever looks later sees how it ended.
"""

from __future__ import annotations

import contextlib
import json
import re
import string
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import ConfigError
from workbench.remediation.executors.beside import Beside
from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.executors.expects import misfit, same_boot
from workbench.remediation.executors.places import place, there
from workbench.remediation.executors.replacers import instance_of
from workbench.remediation.executors.run_once import FORMING, asked_now, held, locked, since_asked, spawn, write_whole
from workbench.remediation.model import VERBS, Action, NodeState, Step

__all__ = ["NODE_NAME", "PLACES", "Command", "Commands", "commands_of"]

# what may stand in braces in an argument
PLACES = ("node", "target", "job", "uuid", "pci", "index", "reason", "id", "folder", "provider", "instance")
# of names: no dash in front, so that none is taken for an option; and a node has no @, which would be an account to ssh
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LATE = 1.5 * FORMING  # seconds after which one that was asked for cannot have begun any more
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
        for number, word in enumerate(argv):
            for name in _places(word, place):
                if name not in PLACES:
                    raise ConfigError(f"{place}: {{{name}}} is none of {', '.join(PLACES)}")
                if number == 0:
                    raise ConfigError(f"{place}: the program is named by the policy, not by {{{name}}}")
        codes = {key: one.get(key, default) for key, default in (("good", [0]), ("busy", []))}
        for key, value in codes.items():
            if not isinstance(value, list) or not all(type(code) is int and 0 <= code < 256 for code in value):
                raise ConfigError(f"{place}: {key} is a list of exit codes, not {value!r}")
        seconds = one.get("seconds", 600)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise ConfigError(f"{place}: seconds is a number above 0, not {seconds!r}")
        if both := sorted(set(codes["good"]) & set(codes["busy"])):
            raise ConfigError(f"{place}: {both[0]} cannot be both good and busy")
        found[verb] = Command(tuple(argv), float(seconds), tuple(codes["good"]), tuple(codes["busy"]))
    return found


def _places(word: str, where: str) -> list[str]:
    try:
        found = [(name, spec, kind) for _, name, spec, kind in string.Formatter().parse(word) if name is not None]
    except ValueError as error:
        raise ConfigError(f"{where}: {word!r}: {error}", hint="write {{ for a brace") from None
    if any(spec or kind for _, spec, kind in found):
        raise ConfigError(f"{where}: {word!r}: a placeholder is a name alone", hint="write {{ for a brace")
    return [name for name, _, _ in found]


class Commands(Beside):
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
    what = "the site's commands"

    def __init__(
        self, commands: Mapping[str, Command], folder: Path, *, node: Callable[[str, Deadline], NodeState | None] | None = None
    ) -> None:
        super().__init__(node)
        self.verbs = frozenset(commands)
        self._commands, self._folder = dict(commands), folder
        if commands:
            with contextlib.suppress(OSError):  # whoever looks says so
                folder.mkdir(parents=True, exist_ok=True)

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Start the command in the action's folder, unless it was started before; one that said that it could not do it now starts again."""
        step = self.look(action, deadline)
        busy = step.status == "blocked"
        if step.status != "absent" and not busy:
            return step
        command, folder = self._commands[action.verb], place(self._folder, action.id)
        try:
            argv = [_filled(word, action, folder) for word in command.argv]
        except ValueError as error:
            return Step("failed", str(error))
        if action.node and self._node is not None and (why := misfit(action.expects, self._node(action.node, deadline))):
            return Step("changed", why)
        if (
            action.verb == "reboot"
            and self._node is not None
            and not (action.expects.get("boot") or action.expects.get("booted"))
        ):
            return Step("changed", "nobody said which boot shall end, so nobody could tell when it has")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if busy:
                self._clear(command, folder)
            # what is written here last is what a later look at it goes by
            fence(deadline)
            order = {"argv": argv, "seconds": command.seconds, "action": action.to_dict(), "asked": asked_now()}
            write_whole(folder / "command.json", order)
            spawn(folder)
        except OSError as error:
            raise ExecutorError(f"{folder}: the command cannot be begun: {error.strerror or error}", sent=False) from None
        # most commands are over in a moment: then one answer tells all
        until = time.monotonic() + min(1.0, deadline.left(1.0))
        while time.monotonic() < until:
            time.sleep(0.05)
            step = self.look(action, deadline)
            if step.status not in ("absent", "pending"):
                return step
        return Step("pending", step.detail, again=2.0)

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell from the action's folder how far its command is; of a reboot or replacement also whether the node is another boot or machine."""
        if action.verb not in self._commands:
            raise ExecutorError(f"no command of the site does {action.verb!r}", sent=False)
        command, folder = self._commands[action.verb], place(self._folder, action.id)
        try:
            if not there(self._folder, folder / "started"):
                return self._not_begun(folder)
            if not (folder / "end.json").exists():
                if held(folder):
                    return Step("pending", "the command runs", again=2.0)
                if not (folder / "end.json").exists():  # it may have ended between the two looks
                    return Step("unknown", f"the command was cut off, and nobody knows what it had done; see {folder}")
            end = json.loads((folder / "end.json").read_text(encoding="utf-8"))
            code, cut, error = end["code"], end["cut"], end.get("error")
        except FileNotFoundError:  # it was busy, and somebody begins it again at this moment
            return Step("pending", "the command begins again", again=1.0)
        except (OSError, ValueError, KeyError, TypeError) as damage:
            raise ExecutorError(f"{folder} cannot be read: {damage}") from None
        if error:
            return Step("failed", str(error))
        said = _last_line(folder)
        if cut or code is None or code < 0:
            how = cut or f"signal {-(code or 0)} ended it"
            return Step("unknown", f"the command was ended ({how}) and may have done its work or not: {said}".rstrip(": "))
        if code in command.busy:
            return Step("blocked", said or f"exit code {code}", again=60.0)
        if code not in command.good:
            return Step("failed", f"exit code {code}: {said}".rstrip(": "))
        if action.verb == "reboot" and self._node is not None:
            return self._rebooted(action, deadline)
        if action.verb == "replace" and self._node is not None and action.expects.get("uid"):
            return self._replaced(action, deadline)
        return Step("done", said)

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Nothing that a command does can be taken back."""
        return Step("failed", f"{action.verb} by a command of the site cannot be taken back")

    @staticmethod
    def _clear(command: Command, folder: Path) -> None:
        """Make room for another try of a command that said that it had done nothing; whoever is quicker has done it."""
        with locked(folder) as mine:
            if not mine or not (folder / "started").exists():
                return
            end = json.loads((folder / "end.json").read_text(encoding="utf-8"))
            if end["code"] in command.busy and not end["cut"]:
                (folder / "started").unlink()  # its end goes when the next one starts

    @staticmethod
    def _not_begun(folder: Path) -> Step:
        """Whoever was asked to run it may still be on his way; after a while he does not begin any more."""
        file = folder / "command.json"
        if not file.exists():
            return Step("absent", "the command was not asked for")
        asked = json.loads(file.read_text(encoding="utf-8"))["asked"]
        if held(folder) or since_asked(asked) < _LATE:
            return Step("pending", "the command is about to begin", again=1.0)
        return Step("absent", "the command was asked for and has not begun")

    def _replaced(self, action: Action, deadline: Deadline) -> Step:
        """The provider took the order; the machine is replaced when its node is gone or is another one."""
        assert self._node is not None
        node = self._node(action.node, deadline)
        if node is not None and node.uid == action.expects["uid"]:
            return Step("pending", f"the machine of {action.node} is still there", again=30.0)
        return Step("done", "the machine is gone" if node is None else "a new machine has its name")

    def _rebooted(self, action: Action, deadline: Deadline) -> Step:
        assert self._node is not None
        node, boot, booted = self._node(action.node, deadline), action.expects.get("boot"), action.expects.get("booted")
        if node is None or node.ready is not True:
            return Step("pending", f"{action.node} is not back yet", again=15.0)
        if boot and node.boot == boot:
            return Step("pending", f"{action.node} still runs the boot {boot}", again=15.0)
        if not boot and booted is not None:
            now = node.booted
            if now is None or same_boot(now, float(booted)) or now < float(booted):
                return Step("pending", f"{action.node} still runs the boot before", again=15.0)
        return Step("done", f"{action.node} is back")


def _filled(word: str, action: Action, folder: Path) -> str:
    """Return an argument with its placeholders filled; ValueError when a value is missing or could be taken for something else."""
    gpu = action.gpu
    values = {
        "node": action.node,
        "target": action.target.removeprefix("command:"),
        "job": str(action.args.get("job") or ""),
        "uuid": (gpu.uuid if gpu else None) or "",
        "pci": (gpu.pci if gpu else None) or "",
        "index": "" if gpu is None or gpu.index is None else str(gpu.index),
        "reason": str(action.args.get("reason") or action.why),
        "id": action.id,
        "folder": str(folder),
        "provider": str(action.args.get("provider") or ""),
        "instance": instance_of(str(action.args.get("provider") or "")),
    }
    names = [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
    for name in names:
        if not values[name]:
            raise ValueError(f"the command wants {{{name}}}, and nobody knows it for {action.node}")
        form = NODE_NAME if name == "node" else _SAFE
        if name not in _FREE and name != "folder" and not form.fullmatch(values[name]):
            raise ValueError(f"{name} {values[name]!r} is no name that can be given to a command")
    # nothing in front that a program takes for an option, a file to read (@) or a variable (=)
    reason = re.sub(r"^[^A-Za-z0-9\[(]+", "", re.sub(r"[^\x20-\x7e]", "?", values["reason"]))[:200]
    return word.format_map({**values, "reason": reason or "no reason given"})


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
