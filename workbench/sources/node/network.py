"""Turn the network ports that jobs talk over into one reading: from the kernel's files, else ibstat, else `rdma link`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from workbench.catalog.port_counters import port_counters
from workbench.parse.rdma_ports import RdmaPort, from_ibstat, from_rdma_link, from_sys
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["Interface", "Network", "texts"]

_RDMA, _PCI, _NET = "/sys/class/infiniband", "/sys/bus/pci/devices", "/sys/class/net"
_SECONDS = 10.0  # a file of a network card is answered by its firmware: milliseconds each, a minute when that is dead
_PORT_FILES = ("state", "phys_state", "link_layer", "rate", "lid")


@dataclass(frozen=True, slots=True)
class Interface:
    """An Ethernet interface: whether it has a carrier (None when it did not tell, as one that is switched off), and its speed in Gb/s."""

    name: str
    carrier: bool | None
    speed: float | None


@dataclass(frozen=True, slots=True)
class Network:
    """
    The ports of this node.

    `ports` are its RDMA ports; `unbound` the PCI addresses of InfiniBand adapters that no driver holds; `interfaces` the Ethernet
    interfaces that the site named, as far as they are no RDMA device; `counted` whether error counters were read, and `uptime` the seconds
    over which they may have grown (None when not known).
    """

    ports: tuple[RdmaPort, ...]
    unbound: tuple[str, ...] = ()
    interfaces: Mapping[str, Interface] = field(default_factory=dict)
    counted: bool = False
    uptime: float | None = None


def texts(world: World, names: Iterable[str], deadline: Deadline, *, seconds: float = 10.0) -> dict[str, str]:
    """
    Return the first lines of many small files by name, read by a process of its own, which can be left behind when a driver does not answer.

    Files that cannot be read, or are empty, are left out.

    Raises
    ------
    Unread
    """
    wanted = {str(world.path(name)): name for name in names}
    if not wanted:
        return {}
    ran = tool(world, ("grep", "-s", "-m", "1", "-H", "", *wanted), deadline, codes=(0, 1, 2), seconds=seconds)
    out: dict[str, str] = {}
    for line in ran.text.splitlines():
        if path := _owner(line, wanted):
            out[wanted[path]] = line[len(path) + 1 :]
    if not out:
        raise Unread("garbage", f"{len(wanted)} files were asked for and none was printed", "run grep by hand on one of them")
    return out


def _owner(line: str, wanted: Mapping[str, str]) -> str:
    """The file that a line of ``grep -H`` is from, whose name may itself hold colons; empty when it is none of ours."""
    at = line.find(":")
    while at >= 0 and line[:at] not in wanted:
        at = line.find(":", at + 1)
    return line[:at] if at >= 0 else ""


def _unbound(world: World) -> tuple[str, ...]:
    """InfiniBand adapters (PCI class 0x0207) without an RDMA device; raises `Unread` when the bus cannot be listed."""
    found = []
    for address in world.names(_PCI):
        try:
            if not world.text(f"{_PCI}/{address}/class").startswith("0x0207"):
                continue
        except Unread:  # it went away meanwhile
            continue
        if not world.path(f"{_PCI}/{address}/infiniband").is_dir():
            found.append(address)
    return tuple(found)


def _devices(world: World) -> tuple[list[str], tuple[str, ...]]:
    """The RDMA devices and what has no driver; raises `Unread`, ``absent`` only when the kernel lists classes and buses and none of it."""
    try:
        unbound = _unbound(world)
    except Unread as error:
        if "pci" in world.names("/sys/bus"):
            raise
        unbound, _ = (), error  # a virtual machine without a PCI bus
    devices = world.names(_RDMA) if "infiniband" in world.names("/sys/class") else []
    if not devices and not unbound and not _named(world):
        raise Unread("absent", "the kernel knows no RDMA device, and there is no InfiniBand adapter on the PCI bus")
    return devices, unbound


def _named(world: World) -> tuple[str, ...]:
    return tuple(world.settings.get("port_names") or ())


def _interfaces(world: World, devices: list[str], deadline: Deadline) -> dict[str, Interface]:
    there = world.names(_NET) if "net" in world.names("/sys/class") else []
    named = [name for name in _named(world) if name in there and name not in devices]
    if not named:
        return {}
    told = texts(world, [f"{_NET}/{name}/{what}" for name in named for what in ("operstate", "carrier", "speed")], deadline)
    out = {}
    for name in named:
        carrier, speed = told.get(f"{_NET}/{name}/carrier"), told.get(f"{_NET}/{name}/speed", "")
        # -1 is what the kernel prints of a link that is down or has no speed, such as a virtual one
        known = float(speed) / 1000 if speed.isdigit() and speed != "0" else None
        out[name] = Interface(name, None if carrier is None else carrier == "1", known)
    return out


def _uptime(world: World) -> float | None:
    try:
        return float(world.text("/proc/uptime").split()[0])
    except (Unread, ValueError, IndexError):
        return None


def _sys(world: World, deadline: Deadline) -> Network:
    devices, unbound = _devices(world)
    wanted, links = [], {}
    rows = port_counters().values()
    for device in devices:
        base = f"{_RDMA}/{device}"
        wanted += [f"{base}/board_id", f"{base}/hca_type"]
        wanted += [f"{base}/hw_counters/{row.counter}" for row in rows if row.folder == "device"]
        for port in world.names(f"{base}/ports"):
            wanted += [f"{base}/ports/{port}/{name}" for name in _PORT_FILES]
            wanted += [f"{base}/ports/{port}/counters/{row.counter}" for row in rows if row.folder == "port"]
            # some adapters count by port what others count by device
            wanted += [f"{base}/ports/{port}/hw_counters/{row.counter}" for row in rows if row.folder == "device"]
        below = world.path(f"{base}/device")
        if below.exists():
            links[f"{device}/address"] = below.resolve().name
            if (driver := below / "driver").exists():
                links[f"{device}/driver"] = driver.resolve().name
        try:
            (links[f"{device}/netdev"],) = world.names(f"{base}/device/net")
        except (Unread, ValueError):  # none: InfiniBand without IP; several: which belongs to which port is not told here
            pass
    told = {name.removeprefix(f"{_RDMA}/"): text for name, text in texts(world, wanted, deadline).items()}
    ports = from_sys({**links, **told})
    if devices and not ports:
        raise Unread("garbage", f"{len(devices)} RDMA devices are listed and none of them shows a port")
    return Network(ports, unbound, _interfaces(world, devices, deadline), True, _uptime(world))


def _ibstat(world: World, deadline: Deadline) -> Network:
    devices, unbound = _devices(world)
    ran = tool(world, ("ibstat",), deadline, seconds=_SECONDS)
    ports = from_ibstat(ran.text)
    if {port.device for port in ports} < set(devices) or not ports:
        raise Unread("garbage", f"ibstat shows {len(ports)} ports, and the kernel lists {len(devices)} devices", "run it by hand")
    return Network(ports, unbound, _interfaces(world, devices, deadline), False, _uptime(world))


def _rdma(world: World, deadline: Deadline) -> Network:
    devices, unbound = _devices(world)
    ran = tool(world, ("rdma", "link"), deadline, seconds=_SECONDS)
    ports = from_rdma_link(ran.text)
    if {port.device for port in ports} < set(devices) or not ports:
        raise Unread(
            "garbage", f"`rdma link` shows {len(ports)} ports, the kernel lists {len(devices)} devices", "run it by hand"
        )
    return Network(ports, unbound, _interfaces(world, devices, deadline), False, _uptime(world))


reader(
    "network",
    "RDMA ports: state, rate and error counters",
    seconds=_SECONDS,
    ways=(
        Way("/sys/class/infiniband", _sys),
        Way("ibstat", _ibstat, ("error counters",)),
        Way("rdma link", _rdma, ("error counters", "rates")),
    ),
)
