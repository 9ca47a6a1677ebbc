"""Turn the services of a node into which of those that should run do not."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.catalog.node_units import node_units
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.parse.units import Unit
from workbench.sources.node.services import Services

__all__ = ["services"]

# Five restarts of which the last is minutes ago: it comes and goes. Restarts before the node was set up are history. NVSentinel counts three
# within the same ten minutes (ADR-050); systemd tells one look only how many there were in all, so ours is wider.
_RESTARTS, _SETTLED = 5, 600.0


@check(
    "services",
    "the services that jobs need run",
    needs=("services",),
    cls="platform/config",
    required=False,
    required_when=("health.units",),
)
def services(seen: Seen) -> Iterator[Finding]:
    """
    Judge the units of ``health.units``, and of the table of known ones those that are enabled here.

    A unit that the site names and that does not run is critical; one that is merely enabled and does not run is a warning.
    """
    value: Services = seen.value("services")
    wanted = [str(name).removesuffix(".service") for name in seen.setting("units") or ()]
    found = [_wanted(seen, name, value) for name in wanted]
    for name, row in node_units().items():
        unit = value.units.get(name)
        if name in wanted or unit is None or not unit.there:
            continue
        found += _known(seen, unit, row.meaning, value.uptime)
    yield from found
    if not found:
        yield seen.absent("none of the services that this check knows is installed, and health.units names none")


def _state(unit: Unit) -> str:
    words = f"{unit.active} ({unit.sub})" if unit.sub else unit.active
    ended = f", result {unit.result}" if unit.result not in ("", "success") else ""
    code = f", exit code {unit.status}" if unit.status else ""
    return words + ended + code


def _wanted(seen: Seen, name: str, value: Services) -> Finding:
    unit = value.units.get(name)
    if unit is None:
        return seen.unknown(f"systemd told nothing of {name}", part=name, hint=f"systemctl status {name}")
    if not unit.there:
        return seen.found(
            "unit-wanted-down", f"{name} is not installed ({unit.load})", part=name, evidence=[f"health.units has {name}"]
        )
    if not unit.runs:
        return seen.found("unit-wanted-down", f"{name} is {_state(unit)}", part=name, hint=f"journalctl -u {name}")
    return _restarted(seen, unit, value.uptime) or seen.ok(f"{name} is {_state(unit)}", part=name)


def _known(seen: Seen, unit: Unit, meaning: str, uptime: float | None) -> Iterator[Finding]:
    if unit.runs:
        yield _restarted(seen, unit, uptime) or seen.ok(f"{unit.name} is {_state(unit)}", part=unit.name)
    elif unit.active == "failed" or unit.meant or unit.sub == "auto-restart":  # else it is installed, and not meant to run
        yield seen.found(
            "unit-down", f"{unit.name} is {_state(unit)}: {meaning}", part=unit.name, hint=f"journalctl -u {unit.name}"
        )


def _restarted(seen: Seen, unit: Unit, uptime: float | None) -> Finding | None:
    if not unit.restarts or unit.restarts < _RESTARTS or unit.entered is None or uptime is None:
        return None
    since = uptime - unit.entered
    if since >= _SETTLED:
        return None
    return seen.found(
        "unit-restarts", f"{unit.name} was restarted {unit.restarts} times, the last {since:.0f} s ago", part=unit.name
    )
