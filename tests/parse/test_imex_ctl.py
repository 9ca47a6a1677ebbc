"""``nvidia-imex-ctl`` names the node of an NVLink domain that is not up, in text and JSON."""

from __future__ import annotations

import json

from workbench.model import Line
from workbench.parse.smi import parse_smi

TEXT = """\
Connectivity Table Legend:
C - Connected
Nodes:
Node #0   * 10.0.3.1 *    - READY                - Version: 580.95.05
Node #1   - 10.0.3.2      - READY                - Version: 580.95.05
Node #2   - 10.0.3.3      - UNAVAILABLE          - Version:
Domain State: DEGRADED
"""


def _lines(text: str) -> list[Line]:
    return [Line(number, row) for number, row in enumerate(text.splitlines(), 1)]


def test_text() -> None:
    events = parse_smi(_lines(TEXT), file="imex.txt").events
    assert [(event.signature, event.node, event.line) for event in events][:1] == [("imex-node-down", "10.0.3.3", 6)]
    assert events[-1].signature == "imex-domain-down"


def test_all_ready_says_nothing() -> None:
    assert parse_smi(_lines(TEXT.replace("UNAVAILABLE", "READY").replace("DEGRADED", "UP")), file="imex.txt").events == []


def test_json() -> None:
    document = {
        "nodes": {
            "0": {"status": "READY", "host": "10.0.3.1", "connections": {}},
            "1": {"status": "UNAVAILABLE", "host": "10.0.3.2", "hostname": "tray-1", "connections": {}},
        },
        "status": "DOWN",
    }
    events = parse_smi(_lines(json.dumps(document, indent=1)), file="imex.json").events
    assert [(event.signature, event.node) for event in events] == [("imex-node-down", "tray-1"), ("imex-domain-down", None)]
