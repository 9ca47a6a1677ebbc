"""
Turn what the documents of an incident say of nodes' addresses into address → node, and series known by an address into series of a node.

Nothing is guessed: an address that two nodes have, by the word of the same kind of source, is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from workbench.model import Line, Parsed, Series
from workbench.parse.ids import same_node
from workbench.parse.prom_labels import address_of

__all__ = ["addresses_of", "agreed", "looks_like_hosts", "name_series", "parse_hosts"]

# 10.0.3.7  gpu-node-007.cluster.local gpu-node-007   # rack 3; getent hosts prints the same
_ROW = re.compile(
    r"\s*((?:\d{1,3}\.){3}\d{1,3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+)[ \t]+([A-Za-z0-9][\w.-]*(?:[ \t]+[\w.-]+)*)\s*(?:#.*)?$"
)
# every node has these
_NOWHERE = re.compile(r"127\.|0\.0\.0\.0$|255\.|::1$|fe80:|ff0|localhost", re.IGNORECASE)


def parse_hosts(lines: Sequence[Line], *, file: str) -> Parsed:
    """
    Return the table of ``/etc/hosts`` or of ``getent hosts``.

    Parameters
    ----------
    lines : sequence of Line
        The file.
    file : str
        Its name.

    Returns
    -------
    Parsed
        `facts`: ``host_table``, (address, names) of each row, in order; addresses that every node has are left out.
    """
    rows = [(found[1].lower(), tuple(found[2].split())) for line in lines if (found := _row(line.text)) and _tells(found[1])]
    return Parsed(facts={"host_table": rows})


def looks_like_hosts(rows: Sequence[str]) -> bool:
    """Tell whether all lines but comments are those of a table of hosts."""
    table = [row for row in rows if row.strip() and not row.lstrip().startswith("#")]
    return bool(table) and all(map(_row, table))


def _row(text: str) -> re.Match[str] | None:
    found = _ROW.match(text)
    if found:
        try:  # 12:30:01 is no address
            ip_address(found[1])
        except ValueError:
            return None
    return found


def _tells(address: str) -> bool:
    return bool(address) and not _NOWHERE.match(address)


def agreed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return address → node for the addresses that belong to one node, or to one under a long and a short name."""
    found: dict[str, str] = {}
    torn: set[str] = set()
    for address, node in pairs:
        key = address.lower()
        if key in found and not same_node(found[key], node):
            torn.add(key)
        found.setdefault(key, node)
    return {address: node for address, node in found.items() if address not in torn}


def addresses_of(facts: Sequence[Mapping[str, Any]], series: Iterable[Series], known: Iterable[str] = ()) -> dict[str, str]:
    """
    Return address → node.

    The word of a scheduler (Kubernetes' ``status.addresses``, Slurm's ``NodeAddr``, what a collection asked them) goes before what
    kube-state-metrics exports of it, a table of hosts, and series that name both their node and the address they were scraped at.

    Parameters
    ----------
    facts : sequence of mapping
        Of each document.
    series : iterable of Series
        All of them; those that name their node tell its address.
    known : iterable of str
        Names of nodes, as the other sources spell them: a table of hosts gives a machine several names.
    """
    seen: dict[tuple[int, str, str | bool], Series] = {}  # many fields share one set of labels: each tells it once
    for row in list(series):
        if row.node and not getattr(row, "weak_node", False):
            about = row.field if row.field == "kube_node_info" else row.field.startswith("kube_")
            seen.setdefault((id(row.labels), row.node, about), row)
    rows = list(seen.values())
    nodes = dict.fromkeys([*known, *(str(row.node) for row in rows)])
    told = (
        _scheduled(facts),
        ((row.labels.get("internal_ip", ""), str(row.node)) for row in rows if row.field == "kube_node_info"),
        _in_tables(facts, nodes),
        # what kube-state-metrics says of a node was scraped at its own address, not at the node's
        ((address_of(row.labels.get("instance")) or "", str(row.node)) for row in rows if not row.field.startswith("kube_")),
    )
    found: dict[str, str] = {}
    for source in told:
        pairs = [(address, node) for address, node in source if _tells(address)]
        spoken = {address.lower() for address, _ in pairs}
        mine = agreed(pairs)
        found |= {address: mine.get(address, "") for address in spoken if address not in found}
    return {address: node for address, node in found.items() if node}


def _scheduled(facts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for each in facts:
        for pair in each.get("addresses") or ():
            if isinstance(pair, (list, tuple)) and len(pair) == 2:
                yield str(pair[0]), str(pair[1])
        nodes = each.get("nodes")
        for node, about in nodes.items() if isinstance(nodes, Mapping) else ():
            about = about if isinstance(about, Mapping) else {}
            for address in (*(about.get("addresses") or ()), about.get("address")):
                # a name that is the node's own says nothing new
                if address and not same_node(str(address), str(node)):
                    yield str(address), str(node)


def _in_tables(facts: Sequence[Mapping[str, Any]], nodes: Iterable[str]) -> Iterator[tuple[str, str]]:
    known = list(nodes)
    spelled = {node.lower(): node for node in known}
    for each in facts:
        for address, names in each.get("host_table") or ():
            meant = {
                node for name in names for node in ([spelled[name.lower()]] if name.lower() in spelled else _alike(name, known))
            }
            for node in meant or {names[0]}:
                yield address, node


def _alike(name: str, known: Iterable[str]) -> list[str]:
    return [node for node in known if same_node(name.lower(), node.lower())]


def name_series(series: Iterable[Series], addresses: Mapping[str, str]) -> int:
    """Name the node of series that carry only the address at which they were scraped, in place; return of how many."""
    count = 0
    for row in series:
        if getattr(row, "weak_node", False) and (node := addresses.get((row.node or "").lower())):
            row.node, row.weak_node = node, False  # type: ignore[attr-defined]
            count += 1
    return count
