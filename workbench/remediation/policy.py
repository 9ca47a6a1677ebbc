"""Turn a policy file into what may be done at all, how much of it at once, when, and what needs no person."""

from __future__ import annotations

import datetime as dt
import fnmatch
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from workbench.config import time_span
from workbench.errors import ConfigError
from workbench.model import CAUSES, CLASSES
from workbench.remediation.executors.command import NODE_NAME, Command, commands_of
from workbench.remediation.executors.roster import Asks
from workbench.remediation.words import RUNGS

__all__ = ["Auto", "Limits", "Policy", "Window", "load_policy"]

SCHEMA = "workbench.policy/1"
ADOPTABLE = ("workbench check",)  # restrictions of programs of ours, of which no plan knows
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Limits:
    """
    How much at once; all of them hold at the same time, and the tightest decides.

    Attributes
    ----------
    out_count, out_percent : int, float
        Nodes that we may keep out of service at once in the whole fleet: a number, and percent of all. The percents are of whole nodes and
        at least one, since a rack of four must be able to lose one; `keep` still protects it.
    pool_count, pool_percent : int, float
        The same within one pool.
    zone_count : int
        The same within one zone.
    job_count : int
        Nodes on which work of one job may be ended or drained within an hour.
    hour_count : int
        Nodes that may be newly taken out of service within an hour.
    final_hour_count : int
        Resets, reboots and replacements that may begin within an hour.
    keep, keep_percent : int, float
        Healthy nodes that a pool keeps whatever happens: a number, and percent.
    breaker_count, breaker_percent, breaker_window : int, float, float
        So many nodes (or percent of the fleet, from three nodes on) that newly call for action within so many seconds open the breaker.
    fresh : float
        Seconds for which evidence may be acted on.
    boot_grace : float
        Seconds after a boot in which nothing but what is certain is acted on.
    plan_lives : float
        Seconds after which a plan is not begun any more.

    Notes
    -----
    NVSentinel's breaker opens at half of all nodes within five minutes (NVIDIA/NVSentinel, fault-quarantine); its issue 1686 tells why percent
    alone do not protect small pools. The other defaults are ours, on the careful side: a site that trusts it more says so.
    """

    out_count: int = 10
    out_percent: float = 5.0
    pool_count: int = 5
    pool_percent: float = 10.0
    zone_count: int = 5
    job_count: int = 2
    hour_count: int = 6
    final_hour_count: int = 4
    keep: int = 1
    keep_percent: float = 50.0
    breaker_count: int = 8
    breaker_percent: float = 20.0
    breaker_window: float = 300.0
    fresh: float = 6 * 3600.0
    boot_grace: float = 600.0
    plan_lives: float = 1800.0


@dataclass(frozen=True, slots=True)
class Auto:
    """
    What may be done without a person: all that is not named is anything.

    Attributes
    ----------
    up_to : str
        The highest rung.
    causes, classes, codes, pools : tuple of str
        Of which faults and where; codes and pools may end in ``*``.
    confidence : float
        From which confidence.
    busy : bool
        Also when work would be lost.
    loses : float
        How many GPU-hours of progress it may cost then, by the gangs that start again from their last checkpoint; what nobody knows is more.
    """

    up_to: str
    causes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    confidence: float = 0.9
    busy: bool = False
    loses: float = math.inf


@dataclass(frozen=True, slots=True)
class Window:
    """
    A time of the week: ``Sat 02:00-06:00`` or ``Mon-Fri 22:00-05:00``, in a time zone.

    Attributes
    ----------
    days : frozenset of int
        0 is Monday: the days on which it begins.
    begin, end : int
        Minutes of the day; an end before the begin is on the next day.
    zone : str
    """

    days: frozenset[int]
    begin: int
    end: int
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Window:
        """
        Return the window that a text means.

        Raises
        ------
        ValueError
            It means none.
        """
        try:
            names, span = text.strip().rsplit(" ", 1)
            days: set[int] = set()
            for part in names.replace(" ", "").lower().split(","):
                first, _, last = part.partition("-")
                low, high = _DAYS.index(first[:3]), _DAYS.index((last or first)[:3])
                days |= {(low + step) % 7 for step in range((high - low) % 7 + 1)}
            begin, end = (_minute(one) for one in span.split("-"))
            ZoneInfo(zone)
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{text!r} ({zone}) is no window, such as 'Sat 02:00-06:00' or 'Mon-Fri 22:00-05:00': {error}"
            ) from None
        return cls(frozenset(days), begin, end, zone)

    def holds(self, time: float) -> bool:
        """Whether a moment (epoch seconds) is within it."""
        local = dt.datetime.fromtimestamp(time, ZoneInfo(self.zone))
        minute = local.hour * 60 + local.minute
        if self.begin < self.end:
            return local.weekday() in self.days and self.begin <= minute < self.end
        yesterday = (local.weekday() - 1) % 7
        return (local.weekday() in self.days and minute >= self.begin) or (yesterday in self.days and minute < self.end)


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    found = int(hour) * 60 + int(minute or 0)
    if not 0 <= found <= 24 * 60 or not 0 <= int(minute or 0) < 60:
        raise ValueError(f"{text!r} is no time of day")
    return found


@dataclass(frozen=True, slots=True)
class Policy:
    """
    All that a site decides about remediation.

    Attributes
    ----------
    limits : Limits
    auto : tuple of Auto
        Empty: everything is proposed, nothing is done without a person.
    windows : tuple of Window
        When what cannot be taken back may be done; empty: any time.
    freezes : tuple of Window
        When nothing but recovery is done.
    never : tuple of str
        Names of nodes, ending in ``*`` for all that begin so, that are never touched.
    adopt : tuple of str
        Owners whose restriction of a node may be taken over: ``workbench check`` is what the shipped drain timer of Slurm writes. All others
        are never touched.
    stop_file : str
        While it exists, nothing is done: asked before each step.
    commands : mapping of str to Command
        The site's own commands by verb.
    commands_first : bool
        Whether they are used also for what the scheduler could do.
    propose : bool
        Whether the loop puts what needs a person into the queue.
    nodes : tuple of str
        The nodes of a site without a scheduler; empty: those that are named.
    asks : Asks
        What tells of them.
    tickets : str
        Folder for reports.
    webhook, webhook_file : str
        Where reports and pages are posted; the file holds an address that is itself a secret.
    origin : str
        The file, for the verdict of who decided.
    """

    limits: Limits = field(default_factory=Limits)
    auto: tuple[Auto, ...] = ()
    windows: tuple[Window, ...] = ()
    freezes: tuple[Window, ...] = ()
    never: tuple[str, ...] = ()
    adopt: tuple[str, ...] = ()
    stop_file: str = "/etc/workbench/stop"
    commands: Mapping[str, Command] = field(default_factory=dict)
    commands_first: bool = False
    propose: bool = True
    nodes: tuple[str, ...] = ()
    asks: Asks = field(default_factory=Asks)
    tickets: str = ""
    webhook: str = ""
    webhook_file: str = ""
    origin: str = "default"

    def untouchable(self, node: str) -> bool:
        """Whether a node is never touched."""
        return any(fnmatch.fnmatchcase(node, one) for one in self.never)

    def open(self, time: float) -> bool:
        """Whether what cannot be taken back may be done now."""
        return not self.windows or any(one.holds(time) for one in self.windows)

    def frozen(self, time: float) -> bool:
        """Whether nothing but recovery is done now."""
        return any(one.holds(time) for one in self.freezes)


def load_policy(path: str | Path | None) -> Policy:
    """
    Return the policy of a file; without one the defaults, which do nothing without a person.

    Raises
    ------
    ConfigError
        It cannot be read, or something in it is wrong: names file and entry. Never a policy of which a part was left out.
    """
    if path is None:
        return Policy()
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="see docs/remediation.md for a policy to begin with") from None
    known = {
        "schema",
        "limits",
        "auto",
        "windows",
        "freezes",
        "zone",
        "never",
        "adopt",
        "stop_file",
        "commands",
        "commands_first",
        "nodes",
        "propose",
        "tickets",
    }
    if strange := sorted(set(table) - set(known)):
        raise ConfigError(f"{path}: {strange[0]!r} is none of {', '.join(sorted(known))}")
    if table.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: schema is {table.get('schema')!r}", hint=f'the file begins with schema = "{SCHEMA}"')
    zone = str(table.get("zone", "UTC"))
    tickets = table.get("tickets", {})
    if not isinstance(tickets, Mapping) or set(tickets) - {"folder", "webhook", "webhook_file"}:
        raise ConfigError(f"{path}: [tickets] has folder, webhook and webhook_file")
    rules = table.get("auto", [])
    if not isinstance(rules, list):
        raise ConfigError(f"{path}: write [[auto]], since there may be several")
    nodes, asks = _nodes(table.get("nodes", {}), f"{path}: [nodes]")
    limits = Limits(
        **_values(Limits, table.get("limits", {}), f"{path}: [limits]", ("breaker_window", "fresh", "boot_grace", "plan_lives"))
    )
    autos = tuple(_auto(one, f"{path}: [[auto]] {number}") for number, one in enumerate(rules, 1))
    return Policy(
        limits=limits,
        auto=autos,
        windows=_windows(table.get("windows", []), zone, f"{path}: windows"),
        freezes=_windows(table.get("freezes", []), zone, f"{path}: freezes"),
        never=_words(table.get("never", []), f"{path}: never"),
        adopt=_adopted(table.get("adopt", []), f"{path}: adopt"),
        stop_file=_text(table, "stop_file", str(path)) or Policy().stop_file,
        commands=commands_of(table.get("commands", {}), str(path)),
        commands_first=bool(table.get("commands_first", False)),
        propose=_flag(table, "propose", True, str(path)),
        nodes=nodes,
        asks=asks,
        tickets=_text(tickets, "folder", f"{path}: [tickets]"),
        webhook=_text(tickets, "webhook", f"{path}: [tickets]"),
        webhook_file=_text(tickets, "webhook_file", f"{path}: [tickets]"),
        origin=str(path),
    )


def _flag(table: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {key} is true or false, not {value!r}")
    return value


def _nodes(table: Any, where: str) -> tuple[tuple[str, ...], Asks]:
    known = {"names", "boot", "work", "seconds"}
    if not isinstance(table, Mapping) or set(table) - known:
        raise ConfigError(f"{where} has {', '.join(sorted(known))}")
    argvs = {key: _words(table.get(key, []), f"{where} {key}") for key in ("boot", "work")}
    for key, argv in argvs.items():
        if argv and (not any("{node}" in word for word in argv) or "{" in argv[0]):
            raise ConfigError(
                f"{where}: {key} is a list of words with {{node}} in one, and names its program itself",
                hint=f'{key} = ["ssh", "{{node}}", "cat", "/proc/sys/kernel/random/boot_id", "/proc/stat"]',
            )
    names = _words(table.get("names", []), f"{where} names")
    for name in names:
        if not NODE_NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} is no name of a node that can be given to a command")
    seconds = table.get("seconds", 20.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        raise ConfigError(f"{where}: seconds is a number above 0, not {seconds!r}")
    return names, Asks(argvs["boot"], argvs["work"], float(seconds))


def _adopted(value: Any, where: str) -> tuple[str, ...]:
    words = _words(value, where)
    if strange := sorted(set(words) - set(ADOPTABLE)):
        # a person's drain is a person's: nothing here takes one over
        raise ConfigError(f"{where}: {strange[0]!r} is none of {', '.join(ADOPTABLE)}")
    return words


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} is a text, not {value!r}")
    return value


def _windows(value: Any, zone: str, where: str) -> tuple[Window, ...]:
    try:
        return tuple(Window.parse(one, zone) for one in _words(value, where))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _words(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{where} is a list of words, not {value!r}")
    return tuple(value)


def _auto(table: Any, where: str) -> Auto:
    values = _values(Auto, table, where, ())
    for key, allowed in (("causes", CAUSES), ("classes", tuple(CLASSES))):
        for one in values.get(key, ()):
            if one not in allowed:
                raise ConfigError(f"{where}: {key}: {one!r} is none of {', '.join(allowed)}")
    if values.get("up_to") not in RUNGS:
        raise ConfigError(f"{where}: up_to is one of {', '.join(RUNGS)}, not {values.get('up_to')!r}")
    if not 0.0 <= values.get("confidence", 0.9) <= 1.0:
        raise ConfigError(f"{where}: confidence is between 0 and 1")
    return Auto(**values)


def _values(cls: type[Any], table: Any, where: str, times: Sequence[str]) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is a table")
    kinds = {one.name: str(one.type) for one in fields(cls)}
    found: dict[str, Any] = {}
    for key, value in table.items():
        kind = kinds.get(key)
        if kind is None:
            raise ConfigError(f"{where} has no {key!r}: {', '.join(kinds)}")
        if key in times:
            try:
                found[key] = time_span(str(value))
            except ValueError as error:
                raise ConfigError(f"{where} {key}: {error}") from None
        elif kind.startswith("tuple"):
            found[key] = _words(value, f"{where} {key}")
        elif kind == "bool" and isinstance(value, bool):
            found[key] = value
        elif kind in ("int", "float") and isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            if kind == "int" and value != int(value):
                raise ConfigError(f"{where} {key} is a whole number, not {value!r}")
            found[key] = int(value) if kind == "int" else float(value)
        elif kind == "str" and isinstance(value, str):
            found[key] = value
        else:
            raise ConfigError(f"{where} {key} is a {kind}, not {value!r}")
    return found
