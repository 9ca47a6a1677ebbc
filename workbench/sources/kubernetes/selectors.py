"""Turn a label selector, or a disruption budget that has one, and the labels of a pod into whether it is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["covers", "selects"]


def covers(budget: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tell whether a disruption budget (policy/v1) of the pod's namespace selects a pod with these labels."""
    return selects((budget.get("spec") or {}).get("selector"), labels)


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """
    Tell whether a selector means something with these labels.

    In ``policy/v1`` no selector means no pod, and an empty one all:
    https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/pod-disruption-budget-v1/.
    """
    if selector is None:
        return False
    equal, tests = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    return all(labels.get(key) == value for key, value in equal.items()) and all(_fits(test, labels) for test in tests)


def _fits(test: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = str(test.get("key")), test.get("values") or []
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(str(test.get("operator")), False)
