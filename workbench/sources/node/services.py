"""Turn the services that a GPU node may have, and those that the site named, into one reading: by systemd, else by what runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.catalog.node_units import node_units
from workbench.parse.units import PROPERTIES, Unit, parse_units
from workbench.sources.contract import Deadline
from workbench.sources.node.host_processes import running
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["Services", "named_units"]

# a name of a unit, and nothing that a command could take for an option
_NAME = re.compile(r"[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]*")


@dataclass(frozen=True, slots=True)
class Services:
    """Units by name, and the seconds since boot (None when not known)."""

    units: Mapping[str, Unit]
    uptime: float | None = None


def named_units(world: World) -> tuple[str, ...]:
    """Return the units that the site wants, without ``.service``."""
    return tuple(str(name).removesuffix(".service") for name in world.settings.get("units") or ())


def _systemctl(world: World, deadline: Deadline) -> Services:
    if not world.path("/run/systemd/system").is_dir():
        raise Unread("missing", "systemd does not run here")
    names = tuple(dict.fromkeys((*named_units(world), *node_units())))
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise Unread("garbage", f"{wrong[0]!r} is no name of a unit", "correct health.units")
    argv = (
        "systemctl",
        "show",
        "--no-pager",
        "-p",
        ",".join(PROPERTIES),
        *(name if "." in name else f"{name}.service" for name in names),
    )
    ran = tool(world, argv, deadline, limit=1 << 20, seconds=8.0)
    units = parse_units(ran.text, names)
    if len(units) < len(names):
        raise Unread("garbage", f"systemctl was asked for {len(names)} units and told of {len(units)}", "run it by hand")
    return Services(units, _uptime(world))


def _by_process(world: World, deadline: Deadline) -> Services:
    rows = node_units()
    wanted = named_units(world)
    if not wanted and not world.path("/run/systemd/system").is_dir():
        raise Unread("absent", "systemd does not run here, and health.units names no service")
    names = {row.name for row in running(world).values()}
    units = {}
    for name in dict.fromkeys((*wanted, *rows)):
        process = (rows[name].process if name in rows else name.split("@")[0])[:15]
        if process in names:
            units[name] = Unit(name, "loaded", "active", "running", "")
        elif name in wanted:
            units[name] = Unit(name, "loaded", "inactive", "no such process", "")
    return Services(units, _uptime(world))


def _uptime(world: World) -> float | None:
    try:
        return float(world.text("/proc/uptime").split()[0])
    except (Unread, ValueError, IndexError):
        return None


reader(
    "services",
    "services of the node",
    seconds=10.0,
    ways=(
        Way("systemctl", _systemctl),
        Way("process list", _by_process, ("services that are installed and do not run", "restarts", "how the last run ended")),
    ),
)
