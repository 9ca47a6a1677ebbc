"""Turn one node into a canned API server that takes what `workbench check --publish kubernetes` writes, and counts it."""

from __future__ import annotations

import json
import re
from typing import Any

from workbench.testing.faults import Reply, Request


class CannedNode:
    """A server with one node and its events; merges conditions by type, as the real one does (tests/live/test_conditions_live.py)."""

    def __init__(self, name: str = "gpu-7") -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": name, "labels": {"zone": "a"}, "annotations": {}},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]},
        }
        self.events: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.forbidden: set[str] = set()

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        path = request.path.split("?")[0]
        kind = "events" if "/events" in path else "status" if path.endswith("/status") else "nodes"
        self.asked.append(f"{request.method} {kind}")
        if kind in self.forbidden:
            return _answer(403, {"message": f'{kind} is forbidden: User "w" cannot {request.method.lower()} resource "{kind}"'})
        body = json.loads(request.body) if request.body else {}
        if kind == "events":
            return self._event(request.method, re.sub(r".*/events/?", "", path), body)
        if request.method == "PATCH":
            assert request.headers["content-type"] == "application/strategic-merge-patch+json"
            assert kind == "status", "only the status may be written"
            for part in ("labels", "annotations"):
                self.node["metadata"][part] |= body.get("metadata", {}).get(part, {})
            for one in body.get("status", {}).get("conditions", []):
                rest = [each for each in self.node["status"]["conditions"] if each["type"] != one["type"]]
                self.node["status"]["conditions"] = [*rest, one]
        return _answer(200, self.node)

    def _event(self, method: str, name: str, body: dict[str, Any]) -> Reply:
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.events:
                return _answer(409, {"message": f'events "{name}" already exists'})
            self.events[name] = body
        elif name not in self.events:
            return _answer(404, {"message": f'events "{name}" not found'})
        elif method == "PATCH":
            self.events[name] |= body
        return _answer(200, self.events[name])

    def condition(self, name: str) -> dict[str, str]:
        """Return one condition."""
        (found,) = [one for one in self.node["status"]["conditions"] if one["type"] == name]
        return dict(found)

    @property
    def writes(self) -> list[str]:
        """What was asked but reading."""
        return [one for one in self.asked if not one.startswith("GET")]


def _answer(status: int, body: dict[str, Any]) -> Reply:
    return Reply(json.dumps(body).encode(), status)
