"""Turn output of ``nvidia-imex-ctl`` (text and JSON) into one event for each node of an NVLink domain that is not ready."""

from __future__ import annotations

import json
import re

from workbench.parse.smi_doc import Document, Out

__all__ = ["read_imex"]

# Node #0   * 10.0.3.1 *    - READY                - Version: 580.95.05   - Hostname: tray-0   (the stars mark who was asked)
_NODE = re.compile(
    r"\s{0,8}Node #(?P<number>\d+)\s{0,8}[*-]\s{0,8}(?P<address>[\w.:-]{1,80}?)\s{0,40}\*?\s{1,40}-\s{0,8}(?P<state>[A-Z_]+)"
    r"(?:\s{0,40}-\s{0,8}Version: ?(?P<version>[\d.]*))?(?:\s{0,40}-\s{0,8}Hostname: ?(?P<host>[\w.-]*))?"
)
_READY = ("READY", "UP")
# on the way up: bad only when it stays so
_STARTING = ("INITIALIZING", "STARTING_AUTH_SERVER", "WAITING_FOR_PEERS", "CONNECTING")


def _node(out: Out, doc: Document, at: int, name: str, state: str, address: str) -> None:
    event = out.event(
        "imex-node-down", doc.rows[at], key=name, state=state, address=address,
        weight=0.4 if state in _STARTING else None,
    )  # fmt: skip
    if event is not None:
        event.node = name


def read_imex(doc: Document, at: int, out: Out) -> int:
    """Read one node's line, or the JSON, of ``nvidia-imex-ctl -N`` at row `at`; returns the row after it, or the same."""
    text = doc.rows[at].text
    if found := _NODE.match(text):
        if found["state"] not in _READY:
            _node(out, doc, at, found["host"] or found["address"], found["state"], found["address"])
        return at + 1
    if not text.lstrip().startswith("{"):
        return at
    whole = "\n".join(row.text for row in doc.rows[at:])
    if '"nodes"' not in whole or '"connections"' not in whole:
        return at
    try:
        value, length = json.JSONDecoder().raw_decode(whole, len(whole) - len(whole.lstrip()))
    except (ValueError, RecursionError):
        return at
    nodes = value.get("nodes") if isinstance(value, dict) else None
    if not isinstance(nodes, dict):
        return at
    for number, node in nodes.items():
        if not isinstance(node, dict):
            continue
        state = str(node.get("status") or "")
        address = str(node.get("host") or number)
        if state and state not in _READY:
            where = next((row for row in range(at, len(doc.rows)) if f'"{address}"' in doc.rows[row].text), at)
            _node(out, doc, where, str(node.get("hostname") or address), state, address)
    if str(value.get("status") or "UP") not in _READY:
        where = next((row for row in range(len(doc.rows) - 1, at, -1) if '"status"' in doc.rows[row].text), at)
        out.event("imex-domain-down", doc.rows[where], state=str(value["status"]))
    return at + whole.count("\n", 0, length) + 1
