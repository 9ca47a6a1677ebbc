"""Turn the ports of a node and what the site expects into which are down, slow, flapping or full of errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.catalog.findings import finding_row, findings_table
from workbench.catalog.port_counters import port_counters
from workbench.health.finding import Finding
from workbench.health.port_history import down_spans, growth
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.model import Event
from workbench.parse.rdma_ports import RdmaPort
from workbench.sources.node.kernel_events import KernelLog
from workbench.sources.node.kernel_state import KernelState
from workbench.sources.node.network import Network

__all__ = ["down_seconds", "network"]

# A link that is away for less than half a minute altogether is survived by NCCL's retries. NVIDIA Health Validation fails a node at one outage
# of 30 s (rdma_linkflap_fatal), Azure at two losses of the carrier within six hours, gcm at one.
_FLAP_SECONDS = 30.0
_WINDOW = 86400.0  # a day
_BOOTING = 600.0  # seconds after boot in which links train and switches are still being asked


@check(
    "network",
    "network ports are up, at full rate and without errors",
    needs=("network",),
    wants=("kernel", "kept-ports", "kernel-state"),
    cls="hardware/network-link",
    required=False,
    required_when=("health.ports", "health.port_rate", "health.port_names"),
)
def network(seen: Seen) -> Iterator[Finding]:
    """
    Judge each port, then how many there are.

    Without settings only what was there and is not any more is a warning: a port that nobody cabled is down for good. With
    ``health.ports``, ``health.port_rate`` and ``health.port_names`` what is missing is critical.
    """
    net: Network = seen.value("network")
    log = seen.value("kernel")
    links = [event for event in log.events if event.signature == "nic-link-down"] if log else []
    for address in net.unbound:
        yield seen.found(
            "port-driver-missing", f"the InfiniBand adapter {address} has no RDMA driver", part=address, hint="modprobe mlx5_ib"
        )
    for port in net.ports:
        yield from _port(seen, port, net, [event for event in links if _same(event, port)], log.boot if log else None)
    yield from _named(seen, net)
    yield from _count(seen, net)
    yield from _complaints(seen, net, log)


def down_seconds(events: list[Event], *, since: float, now: float) -> float:
    """
    Return for how many seconds a link was down altogether.

    Parameters
    ----------
    events : list of Event
        Its ``nic-link-down``, each with ``data["down_seconds"]`` when it came back; one that did not is down until now.
    since, now : float
        Seconds since the epoch; what was down before does not count.
    """
    total = 0.0
    for event in events:
        if event.time is None:
            continue
        end = event.time + event.data["down_seconds"] if "down_seconds" in event.data else now
        total += max(min(end, now) - max(event.time, since), 0.0)
    return total


def _same(event: Event, port: RdmaPort) -> bool:
    return bool(
        (port.netdev and event.data.get("port") == port.netdev) or (port.address and event.data.get("device") == port.address)
    )


# rdma/ib_verbs.h, ib_port_state, as the tools spell them
_STATES = ("nop", "down", "init", "initializing", "armed", "active", "activedefer")


def _is_named(seen: Seen, port: RdmaPort) -> bool:
    return bool({port.device, port.name, port.netdev} & set(seen.setting("port_names") or ()))


def _port(seen: Seen, port: RdmaPort, net: Network, lost: list[Event], boot: float | None) -> Iterator[Finding]:
    named, said = _is_named(seen, port), f"state {port.state}, physical state {port.physical or 'not told'}"
    if port.state not in _STATES:
        what = f"{port.state!r} is no state" if port.state else "its state was not told"
        yield seen.unknown(f"{port.name}: {what}", part=port.name)
        return
    if port.state in ("init", "armed"):
        summary = f"{port.name} has a link, and no subnet manager made it active"
        yield seen.found("port-initializing", summary, part=port.name, evidence=[said])
        return
    if not port.active:
        was_up = port.counters.get("link_downed", 0) > 0 or any("down_seconds" not in event.data for event in lost)
        if port.lid is not None:
            was_up, said = True, f"{said}, LID {port.lid} from a subnet manager"
        if named:
            yield seen.found(
                "port-down", f"{port.name} is down ({port.physical or 'no physical state'})", part=port.name, evidence=[said]
            )
        elif was_up and port.physical != "disabled":  # that is somebody's will
            yield seen.found("port-lost", f"{port.name} was up and is down", part=port.name, evidence=[said, *_lines(lost)])
        else:
            why = (
                "is switched off"
                if port.physical == "disabled"
                else "is down and was not up since its driver was loaded: not in use"
            )
            yield seen.absent(f"{port.name} {why}", part=port.name)
        return
    problems = [*_rate(seen, port, net, named=named), *_errors(seen, port, net), *_flaps(seen, port, lost, boot)]
    yield from problems
    if not problems:
        rate = f" at {port.rate:g} Gb/s" if port.rate and port.driver != "efa" else ""
        counted = "without errors" if net.counted and port.counters else "error counters were not read"
        blind = (
            () if seen.value("kernel") else ("the kernel log was not read: whether it was down lately is not known from there",)
        )
        yield seen.ok(f"{port.name} is active{rate}, {counted}", part=port.name, evidence=blind)


def _complaints(seen: Seen, net: Network, log: KernelLog | None) -> Iterator[Finding]:
    """What the kernel said within a day of the adapters that have these ports; the catalog says which of it matters."""
    if log is None:
        return
    mine = {code for code, row in findings_table().items() if row.check == "network" and code.startswith(("nic-", "efa-"))}
    since = max(log.boot or 0.0, seen.now - _WINDOW)
    by_kind: dict[tuple[str, str], list[Event]] = {}
    for event in log.events:
        if event.signature in mine and (event.time is None or event.time >= since):  # of an unknown time may be of today
            port = next((one.name for one in net.ports if _same(event, one)), "")
            where = port or str(event.data.get("port") or event.data.get("device") or "")
            by_kind.setdefault((event.signature, where), []).append(event)
    for (code, where), events in by_kind.items():
        summary = (
            f"{finding_row(code).meaning}, {len(events)} times within a day" if len(events) > 1 else finding_row(code).meaning
        )
        yield seen.found(code, summary, part=where, evidence=_lines(events), since=events[0].time)


def _lines(events: list[Event]) -> list[str]:
    return [event.text for event in events[-3:]]


def _rate(seen: Seen, port: RdmaPort, net: Network, *, named: bool) -> Iterator[Finding]:
    wanted = seen.setting("port_rate")
    if port.driver == "efa" or port.rate is None:  # EFA's driver shows one rate for all
        return
    mine = named or (not seen.setting("ports") and not seen.setting("port_names"))
    if wanted and mine and port.rate < wanted:
        yield seen.found(
            "port-rate-below",
            f"{port.name} runs at {port.rate:g} Gb/s, {wanted:g} should be",
            part=port.name,
            evidence=[f"health.port_rate = {wanted:g}"],
        )
        return
    rates = Counter(
        other.rate
        for other in net.ports
        if other.active and other.rate and (other.product, other.layer) == (port.product, port.layer)
    )
    usual, twins = rates.most_common(1)[0]
    # a fault strikes one port; two that are slow together, of three or more, were built so: storage beside the fabric of the GPUs
    if port.product and port.rate < usual and twins >= 3 and rates[port.rate] == 1:
        summary = f"{port.name} runs at {port.rate:g} Gb/s, and {twins} ports of the same product at {usual:g}"
        yield seen.found("port-rate-low", summary, part=port.name, evidence=[f"product {port.product}"])


def _errors(seen: Seen, port: RdmaPort, net: Network) -> Iterator[Finding]:
    by_code: dict[str, list[str]] = {}
    state: KernelState | None = seen.value("kernel-state")
    boot_id = state.boot_id if state else ""
    for row in port_counters().values():
        if row.per_hour is None or not port.counters.get(row.counter):
            continue
        grown = growth(seen.value("kept-ports"), port, row.counter, boot_id=boot_id, uptime=net.uptime, now=seen.now)
        value = port.counters[row.counter]
        if row.per_hour == 0 or (grown is not None and grown.an_hour > row.per_hour):
            each = "" if grown is None else f", {grown.value} of them within {grown.seconds / 3600:.1f} h"
            by_code.setdefault(row.code, []).append(f"{row.counter} {value}{each}: {row.meaning}")
    for code, evidence in by_code.items():
        names = "; ".join(text.split(":")[0] for text in evidence)
        yield seen.found(code, f"{port.name} counts {names}", part=port.name, evidence=evidence)


def _flaps(seen: Seen, port: RdmaPort, lost: list[Event], boot: float | None) -> Iterator[Finding]:
    """By the kernel log, which names each time a link of Ethernet went down, and by earlier looks, which see InfiniBand, too."""
    since = max(seen.now - _WINDOW, (boot + _BOOTING) if boot else 0.0)
    recent = [event for event in lost if event.time is not None and event.time >= since and "down_seconds" in event.data]
    spans = [span for span in down_spans(seen.value("kept-ports"), port, now=seen.now) if span[1] > since]
    logged, looked = down_seconds(recent, since=since, now=seen.now), sum(end - max(begin, since) for begin, end in spans)
    total, times = max((logged, len(recent)), (looked, len(spans)))
    if total >= _FLAP_SECONDS:
        starts = [event.time for event in recent if event.time is not None] or [spans[0][0]]
        summary = f"{port.name} was down for {total:.0f} s altogether within a day, {times} times"
        yield seen.found("port-flaps", summary, part=port.name, evidence=_lines(recent), since=starts[0])


def _named(seen: Seen, net: Network) -> Iterator[Finding]:
    """The names that the site expects and no RDMA port bears: Ethernet interfaces, or what is missing."""
    known = {name for port in net.ports for name in (port.device, port.name, port.netdev)}
    rate = seen.setting("port_rate")
    for name in seen.setting("port_names") or ():
        if name in known:
            continue
        interface = net.interfaces.get(name)
        if interface is None:
            yield seen.found("port-missing", f"there is no port {name}", part=name, evidence=[f"health.port_names has {name}"])
        elif not interface.carrier:
            said = "has no carrier" if interface.carrier is False else "is switched off, or does not tell its carrier"
            yield seen.found("port-down", f"{name} {said}", part=name)
        elif rate and interface.speed is not None and interface.speed < rate:
            yield seen.found("port-rate-below", f"{name} runs at {interface.speed:g} Gb/s, {rate:g} should be", part=name)
        elif rate and interface.speed is None:
            yield seen.unknown(f"{name} has a carrier and does not tell its speed", part=name)
        else:
            yield seen.ok(f"{name} has a carrier" + (f" at {interface.speed:g} Gb/s" if interface.speed else ""), part=name)


def _count(seen: Seen, net: Network) -> Iterator[Finding]:
    wanted, rate = seen.setting("ports"), seen.setting("port_rate")
    if wanted is None:
        return
    kinds: Mapping[bool | None, list[RdmaPort]] = _sorted(net.ports, rate)
    good, unsure = len(kinds[True]), len(kinds[None])
    what = f"active at {rate:g} Gb/s or more" if rate else "active"
    facts: dict[str, Any] = {
        "evidence": [f"{port.name}: {port.state or 'state not told'}, {port.rate or '?'} Gb/s" for port in kinds[False]]
    }
    if good >= wanted:
        yield seen.ok(f"{good} ports are {what}, {int(wanted)} should be")
    elif good + unsure >= wanted:
        yield seen.unknown(f"{good} ports are {what}, {int(wanted)} should be, and {unsure} do not tell")
    else:
        yield seen.found("ports-missing", f"{good} ports are {what}, {int(wanted)} should be", **facts)


def _sorted(ports: tuple[RdmaPort, ...], rate: float | None) -> Mapping[bool | None, list[RdmaPort]]:
    """Ports by whether they count: None for one that does not tell enough to know."""
    kinds: dict[bool | None, list[RdmaPort]] = {True: [], False: [], None: []}
    for port in ports:
        if not port.state or (port.active and rate and port.rate is None and port.driver != "efa"):
            kinds[None].append(port)
        else:
            kinds[port.active and (not rate or port.driver == "efa" or (port.rate or 0) >= rate)].append(port)
    return kinds
