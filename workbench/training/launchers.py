"""
Turn a job's command and what must be left out into the next attempt's command: without the bad nodes, with spare ones in their place,
from the chosen checkpoint.

How each launcher is told is a row of ``catalog/launchers.csv``. A command is a list of words and stays one; nothing passes through a shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from workbench.catalog import HERE, read_rows
from workbench.parse.nodeset import expand, fold

__all__ = ["Launcher", "Plan", "filled", "launcher_of", "next_command", "nodes_of"]

_WORD = re.compile(r"\{(resume_from|attempt|exclude)\}")
# words that may stand in front of a launcher: env A=1 nice timeout 3h numactl --cpunodebind=0 srun …
_WRAPPERS = frozenset(
    {"env", "nice", "nohup", "time", "timeout", "numactl", "stdbuf", "taskset", "exec", "ionice", "setsid", "chrt"}
)
_SLOTS = re.compile(r"[\s:]")


@dataclass(frozen=True, slots=True)
class Launcher:
    """
    A program that starts ranks, and how it is kept off nodes.

    Attributes
    ----------
    name : str
    programs : tuple of str
        Names of its program.
    excludes : str
        ``option`` (it has one for that), ``hosts`` (its list of hosts is shortened), ``here`` (it starts ranks on this node alone).
    option, separator : str
        That option, and what stands between two names.
    lists, files, counts : tuple of str
        Options that name nodes, a file of nodes, and how many nodes.
    sizes : str
        Variable of the environment with the nodes that it may use.
    """

    name: str
    programs: tuple[str, ...]
    excludes: str
    option: str = ""
    separator: str = ","
    lists: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    sizes: str = ""


@dataclass(slots=True)
class Plan:
    """
    How the next attempt is started.

    Attributes
    ----------
    command : list of str
    how : str
        How nodes are left out, in words; empty when none had to be.
    unable : str
        Why they cannot be; empty when they are.
    """

    command: list[str]
    how: str = ""
    unable: str = ""
    spares_used: list[str] = field(default_factory=list)


@lru_cache(maxsize=1)
def _launchers() -> tuple[Launcher, ...]:
    return tuple(
        Launcher(
            row["launcher"],
            tuple(row["programs"].split()),
            row["excludes"],
            row["option"],
            row["separator"] or ",",
            tuple(row["lists"].split()),
            tuple(row["files"].split()),
            tuple(row["counts"].split()),
            row["sizes"],
        )
        for _, row in read_rows(HERE / "launchers.csv")
    )


def launcher_of(command: Sequence[str]) -> tuple[Launcher | None, int]:
    """Return the launcher of a command and where its word stands; None when the program is none that is known."""
    names = {program: one for one in _launchers() for program in one.programs}
    wrapped = False
    for at, word in enumerate(command[:24]):
        name = os.path.basename(word)
        if re.fullmatch(r"python\d(?:\.\d+)?t?", name):
            name = "python"
        if name == "python" and (module := _module(command, at)) in names:
            return names[module], at
        if name in names:
            return names[name], at
        if name in _WRAPPERS:
            wrapped = True
        elif not wrapped:
            return None, 0
    return None, 0


def _module(command: Sequence[str], at: int) -> str:
    """``python -m torch.distributed.run`` is torchrun."""
    known = {
        "torch.distributed.run": "torchrun",
        "torch.distributed.launch": "torchrun",
        "accelerate.commands.launch": "accelerate",
    }
    return known.get(command[at + 2], "") if command[at + 1 : at + 2] == ["-m"] and len(command) > at + 2 else ""


def filled(command: Sequence[str], *, attempt: int, resume_from: str | None, exclude: Sequence[str]) -> list[str]:
    """
    Return the command with ``{resume_from}``, ``{attempt}`` and ``{exclude}`` replaced.

    A word whose placeholder has no value (no checkpoint, nothing left out) is left out, and so is the option in front of it when the
    placeholder is all of the word: ``--resume {resume_from}`` and ``--resume={resume_from}`` both vanish on the first attempt.
    """
    values = {"resume_from": resume_from or "", "attempt": str(attempt), "exclude": ",".join(exclude)}
    out: list[str] = []
    for word in command:
        names = _WORD.findall(word)
        if any(not values[name] for name in names):
            if _WORD.fullmatch(word) and len(out) > 1 and out[-1].startswith("-") and "=" not in out[-1]:
                out.pop()
            continue
        out.append(_WORD.sub(lambda found: values[found[1]], word))
    return out


def _value(words: Sequence[str], options: Sequence[str]) -> tuple[int, str, bool] | None:
    """Return (place, value, whether it is the next word) of the first of some options."""
    for at, word in enumerate(words):
        for option in options:
            if word == option and at + 1 < len(words):
                return at, words[at + 1], True
            if option.startswith("--") and word.startswith(option + "="):
                return at, word[len(option) + 1 :], False
            if len(option) == 2 and word.startswith(option) and len(word) > 2 and option != "-h":
                return at, word[2:], False
    return None


def _put(words: list[str], found: tuple[int, str, bool], value: str) -> None:
    at, _, beside = found
    if beside:
        words[at + 1] = value
    elif "=" in words[at] and words[at].startswith("--"):
        words[at] = words[at].partition("=")[0] + "=" + value
    else:
        words[at] = words[at][:2] + value


def _own(command: Sequence[str], at: int, launcher: Launcher) -> int:
    """Return where the launcher's own words end: at the next program that is known, or at ``--``."""
    names = {program for one in _launchers() for program in one.programs}
    for place in range(at + 1, len(command)):
        word = os.path.basename(command[place])
        if (
            command[place] == "--"
            or word in names
            or re.fullmatch(r"python\d?(?:\.\d+)?|bash|sh", word)
            or word.endswith((".py", ".sh"))
        ):
            return place
    return len(command)


def nodes_of(command: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes that a command can use, as far as its words, its host file and the environment tell; empty when they do not."""
    launcher, at = launcher_of(command)
    if launcher is None or (launcher.excludes == "here" and any("{exclude}" in word for word in command)):
        return ()  # a script of the site's that takes nodes to leave out starts ranks on others, too
    if launcher.excludes == "here":
        return (here(env),)
    own = command[at + 1 : _own(command, at, launcher)]
    if launcher.lists and (found := _value(own, launcher.lists)):
        return tuple(_SLOTS.split(name)[0] for name in expand(found[1]))
    if launcher.files and (found := _value(own, launcher.files)):
        return tuple(_SLOTS.split(line)[0] for line in _lines(found[1]))
    if launcher.sizes and env.get(launcher.sizes):
        return tuple(expand(env[launcher.sizes]))
    return ()


def here(env: Mapping[str, str]) -> str:
    """Return this node's name, as its scheduler calls it when there is one."""
    return env.get("SLURMD_NODENAME") or env.get("NODE_NAME") or os.uname().nodename


def _lines(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def least_nodes(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Return how many nodes the job cannot do without: what torchrun's ``--nnodes MIN:MAX`` or the launcher's own count says, else all."""
    for word, value in zip(command, [*command[1:], ""], strict=False):
        text = word.partition("=")[2] if word.startswith("--nnodes=") else value if word == "--nnodes" else ""
        if found := re.fullmatch(r"(\d+)(?::\d+)?", text):
            return int(found[1])
    launcher, at = launcher_of(command)
    if launcher is not None and launcher.counts:
        given = _value(command[at + 1 : _own(command, at, launcher)], launcher.counts)
        if given is not None and (found := re.match(r"\d+", given[1])):
            return int(found[0])
    return len(nodes_of(command, env)) or 1


def next_command(
    command: Sequence[str],
    *,
    attempt: int,
    resume_from: str | None,
    exclude: Sequence[str],
    spares: Sequence[str] = (),
    folder: Path,
    env: Mapping[str, str],
) -> Plan:
    """
    Return how the next attempt is started.

    Parameters
    ----------
    command : sequence of str
        As the user gave it.
    exclude : sequence of str
        Nodes that must not be used.
    spares : sequence of str
        Nodes that may be used in their place, where the command names its nodes.
    folder : Path
        Where a shortened host file is written.

    Returns
    -------
    Plan
        With `unable` when the nodes cannot be left out: nothing should be started then.
    """
    placed = any("{exclude}" in word for word in command)
    words = filled(command, attempt=attempt, resume_from=resume_from, exclude=exclude)
    if not exclude:
        return Plan(words)
    names = fold(exclude)
    if placed:
        return Plan(words, f"{{exclude}} is {','.join(exclude)}")
    launcher, at = launcher_of(words)
    if launcher is None:
        return Plan(words, f"WORKBENCH_EXCLUDE_NODES is {','.join(exclude)}: the command itself has to heed it")
    if launcher.excludes == "here":
        if here(env) in exclude:
            return Plan(words, unable=f"{launcher.name} starts its ranks on this node, {here(env)}, which is to be left out")
        return Plan(words, f"WORKBENCH_EXCLUDE_NODES is {','.join(exclude)}: the agents on these nodes must not be started")
    end = _own(words, at, launcher)
    own, rest = words[at + 1 : end], words[end:]
    free = [node for node in spares if node not in exclude]
    used: list[str] = []
    changed = _without(own, launcher, exclude, free, used, folder)
    if launcher.excludes == "option":
        given = _value(
            own, (launcher.option, *(("-x",) if launcher.option == "--exclude" and launcher.name != "deepspeed" else ()))
        )
        wanted = names if launcher.separator == "," else launcher.separator.join(exclude)
        if given:
            _put(own, given, f"{given[1]}{launcher.separator}{wanted}")
        else:
            own.insert(0, f"{launcher.option}={wanted}" if launcher.option.startswith("--") else launcher.option)
            if not launcher.option.startswith("--"):
                own.insert(1, wanted)
        if launcher.sizes and env.get(launcher.sizes):
            _shrunk(own, launcher, words, [node for node in expand(env[launcher.sizes]) if node not in exclude], env)
        how = f"{launcher.option} {wanted}"
    elif changed:
        how = f"its list of hosts has {names} no more"
    else:
        return Plan(words, unable=f"{launcher.name} names no hosts in its command: {names} cannot be left out")
    if used:
        how += f", {', '.join(used)} in place of it"
    return Plan([*words[: at + 1], *own, *rest], how, spares_used=used)


def _shrunk(own: list[str], launcher: Launcher, words: Sequence[str], left: Sequence[str], env: Mapping[str, str]) -> None:
    """Within an allocation: ask for no more nodes than are left of it, where the job can do with fewer."""
    given = _value(own, launcher.counts)
    asked = int(found[0]) if given and (found := re.match(r"\d+", given[1])) else len(expand(env[launcher.sizes]))
    size = min(asked, len(left))
    if size < max(1, least_nodes(words, env)) or (size == asked and given):
        return
    if given:
        _put(own, given, str(size))
    else:
        own.insert(0, f"--nodes={size}")


def _without(own: list[str], launcher: Launcher, exclude: Sequence[str], free: list[str], used: list[str], folder: Path) -> bool:
    """Take nodes out of the launcher's list or file of hosts, a spare one into each place; tells whether there is such a list."""
    changed = False
    if launcher.lists and (found := _value(own, launcher.lists)):
        entries = [part for part in found[1].split(",") if part] if "[" not in found[1] else expand(found[1])
        _put(own, found, ",".join(_kept(entries, exclude, free, used)))
        changed = True
    if launcher.files and (found := _value(own, launcher.files)):
        lines = _lines(found[1])
        if lines:
            path = folder / "hosts"
            path.write_text("\n".join(_kept(lines, exclude, free, used)) + "\n", encoding="utf-8")
            _put(own, found, str(path))
            changed = True
    return changed


def _kept(entries: Sequence[str], exclude: Sequence[str], free: list[str], used: list[str]) -> list[str]:
    out = []
    for entry in entries:
        name = _SLOTS.split(entry)[0]
        if name not in exclude:
            out.append(entry)
        elif free:
            spare = free.pop(0)
            used.append(spare)
            out.append(spare + entry[len(name) :])  # with as many slots
    return out
