"""Turn port events of many nodes into causes: flaps that transports ride out, one bad port, a switch that takes several."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from workbench.model import Event
from workbench.triage.context import Context, life_of
from workbench.triage.groups import Group
from workbench.triage.rules.outcome import Outcome

__all__ = ["everywhere", "full_connection_table", "link_flaps", "named_port", "odd_interface"]

# igb 0000:e1:00.0 eno1: igb: eno1 NIC Link is Down | e1000e …: eth0 NIC Link is Down | tg3 0000:02:00.0 eno1: Link is down
_MANAGEMENT = re.compile(r"\b(?:igb|igc|e1000e?|tg3|r8169|cdc_ether|usbnet|rndis_host|atlantic)\b")
_LINK = ("nic-link-down", "nic-cable-unplugged", "metric-port-down", "nccl-ib-async")


def _down_seconds(group: Group) -> float | None:
    values = [event.data["down_seconds"] for event in group.events if isinstance(event.data.get("down_seconds"), (int, float))]
    return max(values) if values else None


def link_flaps(context: Context, outcome: Outcome) -> None:
    """
    A port that is back within seconds is ridden out by the transport's retries (about 7 s with NCCL's defaults); a port that stays
    down longer ends the job; the same rail of three or more nodes at once is the switch.
    """
    groups = [group for group in outcome.alive(*_LINK) if group.source == "kernel"]
    for group in groups:
        if all(_MANAGEMENT.search(event.text) for event in group.events):
            group.lower(0.3, "a management port carries none of the job's traffic")
        down = _down_seconds(group)
        if down is not None and down < context.windows.flap:
            group.lower(0.2, f"the port was back after {down:.1f} s, within the transport's retries")
    serious = [group for group in groups if group.score >= 0.3]
    if not serious:
        return
    for group in outcome.alive("nccl-ib", "ofi-", "ucx-", "nccl-connect"):
        # a kernel line may trail the first completion error on another node by the join's tolerance; the port is the cause of both
        if group.cls == "platform/network" and any(
            port.first is not None and group.first is not None and abs(port.first - group.first) <= context.windows.xid_after
            for port in serious
        ):
            group.lower(0.4, f"a port of {serious[0].node} went down in the same seconds")
    life = life_of(context, serious[0].first)
    near = [
        g
        for g in serious
        if g.first is not None
        and (life is None or life.fail is None or g.last is None or g.last >= min(life.fail, life.stop or life.fail) - 120.0)
    ]
    by_time: dict[str, list[float]] = defaultdict(list)
    for group in near:
        if group.node is not None and group.first is not None:
            for event in group.events:
                if event.time is not None:
                    by_time[group.node].append(event.time)
    if len(by_time) >= 3 or (len(by_time) == 2 and len(context.job_nodes) == 2):
        firsts = sorted(min(times) for times in by_time.values())
        if firsts[len(firsts) // 2] - firsts[0] <= context.windows.simultaneous and firsts[-1] - firsts[0] <= 60.0:
            events = sorted((event for group in near for event in group.events), key=lambda e: (e.time or 0.0, e.order))
            for group in near:
                group.dismiss("several nodes lost the same kind of port at once: the switch, not this port")
            for group in outcome.groups:
                if (
                    group.cls == "hardware/network-link"
                    and not group.dismissed
                    and group.source in ("metrics", "job", "launcher")
                ):
                    group.cls = "platform/network"
                    group.node = None
            outcome.add(
                context,
                near[0].signature,
                "platform/network",
                0.9,
                events,
                note=f"{len(by_time)} nodes lost a port within seconds of one another",
            )


def named_port(context: Context, outcome: Outcome) -> None:
    """
    A port that a tool shows as down may be one that nobody uses; one that the job's own transport error names was in use.
    """
    down = [event for event in context.events if event.signature == "ib-port-down" and event.data.get("device")]
    if not down:
        return
    for line in (event for event in context.events if event.signature.startswith(("ucx-", "nccl-ib"))):
        for event in down:
            name = str(event.data["device"])
            same = event.node is None or line.node is None or event.node == line.node
            if same and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", line.text):
                note = f"{name} is down, and it is the port that the job's transport names"
                outcome.add(
                    context, "ib-port-down", "hardware/network-link", 0.75, [event], node=line.node, rank=line.rank, note=note
                )
                return


def odd_interface(context: Context, outcome: Outcome) -> None:
    """
    A node whose ranks bootstrap over another interface than all other nodes cannot be reached: its interface list does not fit.
    """
    by_node: dict[str, Counter[str]] = defaultdict(Counter)
    lines: dict[str, list[Event]] = defaultdict(list)
    for event in context.events:
        if event.signature == "nccl-bootstrap-interface" and event.node:
            name = str(event.data.get("iface") or event.data.get("interface") or "")
            if name:
                by_node[event.node][name] += event.count
                lines[event.node].append(event)
    if len(by_node) < 3:
        return
    usual = Counter(counts.most_common(1)[0][0] for counts in by_node.values()).most_common(1)[0]
    odd = [node for node, counts in by_node.items() if counts.most_common(1)[0][0] != usual[0]]
    if len(odd) == 1 and usual[1] >= 2:
        outcome.add(
            context,
            "nccl-bootstrap-interface",
            "platform/config",
            0.8,
            lines[odd[0]],
            node=odd[0],
            note=f"{odd[0]} took {by_node[odd[0]].most_common(1)[0][0]}, all others {usual[0]}",
        )


_SEVERAL = 2  # nodes
_DROPS = 3  # bursts that are more than one busy moment (the kernel prints at most a few lines each five seconds)


def full_connection_table(context: Context, outcome: Outcome) -> None:
    """
    A node that drops packets for want of room in its connection table takes no new connections: who cannot reach it cannot for that.

    One burst on a busy node harms nobody; repeated ones in the minutes in which the job's connections time out do.
    """
    waits = [event for event in context.events if event.signature in ("nccl-connect-unreachable", "store-connect-timeout")]
    ends = [event.time for event in waits if event.time is not None]
    if not waits or context.progress:
        return
    by_node: dict[str | None, list[Event]] = defaultdict(list)
    for event in context.events:
        if event.signature != "conntrack-full" or context.in_job(event.node) is False:
            continue
        if event.time is None or not ends or min(ends) - 1800.0 <= (event.last or event.time) <= max(ends) + 60.0:
            by_node[event.node].append(event)
    for node, events in by_node.items():
        if sum(event.count for event in events) >= _DROPS:
            outcome.add(
                context,
                "conntrack-full",
                "platform/network",
                0.75,
                events,
                node=node,
                note=f"{node} dropped connections while the job's could not be made",
            )


def everywhere(context: Context, outcome: Outcome) -> None:
    """
    An adapter that may not reach memory is refused on its own node; when it is so on several nodes, all were set up alike.

    NCCL's status 4 (local protection error) names the node that sends, whoever the peer is.
    """
    groups = [group for group in outcome.alive("nccl-ib-wc-4") if group.node]
    if len({group.node for group in groups}) < _SEVERAL:
        return
    events = sorted((event for group in groups for event in group.events), key=lambda event: event.order)
    for group in groups:
        group.dismiss("several nodes say the same of themselves: their set-up, not this node")
    note = f"{len({group.node for group in groups})} nodes say the same of themselves"
    outcome.add(context, "nccl-ib-wc-4", "platform/config", max(group.weight for group in groups), events, note=note)
