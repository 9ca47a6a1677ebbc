"""Turn what remediation can be asked to do, and how it can end, into fixed words, and plain values into ids that every process agrees on."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["FINAL", "OUTCOMES", "OWNER", "PLAN_SCHEMA", "RECOVERY", "RUNGS", "STEPS", "VERBS", "digest", "height"]

PLAN_SCHEMA = "workbench.plan/1"
OWNER = "gpu-reliability-workbench"  # what stands on everything that we changed

# the ladder, from what costs nothing to what costs most; `catalog/ladders.toml` says when one climbs
RUNGS = (
    "tolerate",
    "restart-task",
    "exclude-node",
    "cordon",
    "evacuate",
    "reset-gpu",
    "reboot-node",
    "replace-node",
    "report",
)

# what an executor can be asked to do; the value says what it is, in words for a plan
VERBS: dict[str, str] = {
    "restart-task": "end the failed task so that its controller starts it again",
    "exclude": "tell the job's retries to leave out the node",
    "cordon": "give the node no new work",
    "taint": "keep away what does not tolerate our taint",
    "label": "mark the node for schedulers and people",
    "evict": "ask the node's work to leave, with its disruption budgets and grace",
    "drain": "let running work end and give the node no more",
    "collect": "keep the node's evidence before it is lost",
    "reset-gpu": "reset the GPU",
    "reboot": "reboot the node",
    "replace": "delete the machine so that its provider gives another",
    "validate": "check the node under load before it returns",
    "uncordon": "give the node work again: takes back our cordon, taint and label",
    "ticket": "write the report for the provider or the people of the data centre",
    "page": "tell a person",
}
# what takes a restriction of ours away again or only tells: the breaker and the caps never hold these back
RECOVERY = frozenset({"uncordon", "validate", "collect", "ticket", "page"})
# what cannot be taken back
FINAL = frozenset({"restart-task", "evict", "reset-gpu", "reboot", "replace"})

# how far a step is, as an executor sees it
STEPS = ("absent", "pending", "done", "failed", "blocked", "changed", "unknown")
# how an action ended, as the journal has it; ``held``: a disruption budget holds it and its time is not over, so its plan asks again
OUTCOMES = ("done", "failed", "expired", "refused", "unknown", "undone", "held")


def digest(value: Any, length: int = 12) -> str:
    """Return a short stable hash of plain values: the same content gives the same id in every process."""
    data = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(data.encode()).hexdigest()[:length]


def height(rung: str) -> int:
    """Return how far up a rung is: 0 costs nothing."""
    return RUNGS.index(rung)
