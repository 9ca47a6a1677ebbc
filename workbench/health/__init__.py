"""Turn a node into findings: what is fit, what is not, what could not be checked, and what to do about each."""

from __future__ import annotations

# Before the function of the same name: loading the package later would put it in the function's place.
import workbench.health.checks  # noqa: F401
from workbench.health.across_nodes import compare
from workbench.health.finding import STATUSES, Finding
from workbench.health.registry import Check, check, checks
from workbench.health.runner import CONTEXTS, fitness, run

__all__ = ["CONTEXTS", "STATUSES", "Check", "Finding", "check", "checks", "compare", "fitness", "run"]
