"""
Turn objectives into OpenSLO documents (openslo/v1, kind SLO) and back; what is not ours is kept, given back as it was, and told.

The words are those of the specification at https://github.com/OpenSLO/OpenSLO (README.md, read 2026-11-30): ratioMetric with good or
bad and total, timeWindow, budgetingMethod, objectives with target or targetPercent. Queries that we write are Prometheus's, on our own
metrics, and an annotation says which indicator it is; so other tools can use the file, and we know it again.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.fleet.budgets import Objective
from workbench.fleet.rules import INDICATORS, queries

__all__ = ["ANNOTATION", "OpenSlo", "dump", "load"]

ANNOTATION = "workbench.indicator"
_LIMIT = 4_000_000  # characters; a file of objectives is some kilobytes
_DAYS = {"m": 1 / 1440, "h": 1 / 24, "d": 1, "w": 7, "M": 30, "Q": 90, "Y": 365}  # as the specification's own library counts
_ANY: dict[str, Any] = {"*": {}}
_SOURCE = {"metricSource": {"metricSourceRef": {}, "type": {}, "spec": _ANY}}
_META = {"name": {}, "displayName": {}, "labels": _ANY, "annotations": _ANY}
_METRIC = {
    "description": {},
    "ratioMetric": {"counter": {}, "good": _SOURCE, "bad": _SOURCE, "total": _SOURCE, "rawType": {}, "raw": _SOURCE},
    "thresholdMetric": _SOURCE,
}
# what the specification knows of an SLO; `*` is anything
_KNOWN: dict[str, Any] = {
    "apiVersion": {},
    "kind": {},
    "metadata": _META,
    "spec": {
        "description": {},
        "service": {},
        "indicator": {"metadata": _META, "spec": _METRIC},
        "indicatorRef": {},
        "timeWindow": {"duration": {}, "isRolling": {}, "calendar": {"startTime": {}, "timeZone": {}}},
        "budgetingMethod": {},
        "objectives": {
            name: {}
            for name in (
                "displayName",
                "op",
                "value",
                "target",
                "targetPercent",
                "timeSliceTarget",
                "timeSliceWindow",
                "compositeWeight",
            )
        }
        | {"indicator": _ANY, "indicatorRef": {}},
        "alertPolicies": _ANY,
    },
}


@dataclass(frozen=True, slots=True)
class OpenSlo:
    """What a file held: objectives, documents of other kinds as they were, and what a reader must know."""

    objectives: tuple[Objective, ...] = ()
    others: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


def dump(
    objectives: Sequence[Objective], others: Iterable[Mapping[str, Any]] = (), *, service: str = "gpu-fleet", match: str = ""
) -> str:
    """
    Return objectives as OpenSLO YAML, one document each.

    Parameters
    ----------
    objectives : sequence of Objective
        One that came from a document goes back into it: target and window as they are now, all else as it was.
    others : iterable of mapping
        Documents of other kinds to give back.
    service : str
        For objectives that come from no document.
    match : str
        As in `workbench.fleet.rules.queries`.

    Raises
    ------
    ValueError
        For an objective that is not ours and comes from no document.
    """
    import yaml

    documents: list[dict[str, Any]] = []
    at: dict[str, int] = {}
    for one in objectives:
        if not one.document:
            documents.append(_made(one, service, match))
            continue
        name = str((one.document.get("metadata") or {}).get("name"))
        if name not in at:
            at[name] = len(documents)
            documents.append(copy.deepcopy(one.document))
        _written(documents[at[name]], one)
    documents += [copy.deepcopy(dict(other)) for other in others]
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1000, explicit_start=len(documents) > 1)


def load(text: str) -> OpenSlo:
    """
    Read OpenSLO YAML: documents one after another, or a list of them.

    Parameters
    ----------
    text : str

    Returns
    -------
    OpenSlo
        Never raises on bad text: `problems` says what could not be read. An objective whose indicator is not ours has an empty `indicator`.
    """
    import yaml

    if len(text) > _LIMIT:
        return OpenSlo(problems=(f"longer than {_LIMIT} characters: no file of objectives",))
    try:
        read = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return OpenSlo(problems=(f"no YAML: {' '.join(str(error).split())}",))
    documents = [one for part in read for one in (part if isinstance(part, list) else [part]) if one is not None]
    problems: list[str] = []
    objectives: list[Objective] = []
    others: list[Mapping[str, Any]] = []
    indicators = {
        str((one.get("metadata") or {}).get("name")): one
        for one in documents
        if isinstance(one, dict) and one.get("kind") == "SLI" and isinstance(one.get("metadata"), dict)
    }
    for number, one in enumerate(documents, 1):
        if not isinstance(one, dict):
            problems.append(f"document {number}: no mapping")
        elif one.get("kind") != "SLO":
            others.append(one)
        elif one.get("apiVersion") != "openslo/v1":
            problems.append(f"document {number}: {one.get('apiVersion')!r} is not openslo/v1; kept as it is")
            others.append(one)
        else:
            try:
                found, told = _objectives(one, indicators)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                problems.append(f"document {number}: {error}; kept as it is")
                others.append(one)
                continue
            objectives += found
            problems += told
    return OpenSlo(tuple(objectives), tuple(others), tuple(problems))


def _made(one: Objective, service: str, match: str) -> dict[str, Any]:
    if one.indicator not in INDICATORS:
        raise ValueError(f"{one.name}: its indicator is none of {', '.join(INDICATORS)}")
    bad, everything = queries(one.indicator, match)

    def source(query: str) -> dict[str, Any]:
        return {"metricSource": {"type": "Prometheus", "spec": {"query": f"sum({query})"}}}

    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {"name": one.name, "annotations": {ANNOTATION: one.indicator}},
        "spec": {
            **({"description": one.description} if one.description else {}),
            "service": service,
            "indicator": {
                "metadata": {"name": f"{one.name}-ratio"},
                "spec": {"ratioMetric": {"counter": True, "bad": source(bad), "total": source(everything)}},
            },
            "timeWindow": [{"duration": _duration(one.days), "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"target": one.target}],
        },
    }


def _written(document: dict[str, Any], one: Objective) -> None:
    """Put target and window into the document, where they are not what it says already."""
    place = document["spec"]["objectives"][one.position]
    if abs(_target(place) - one.target) > 1e-12:
        if "targetPercent" in place:
            place["targetPercent"] = round(one.target * 100, 10)
        else:
            place["target"] = one.target
    windows = document["spec"].get("timeWindow")
    if not windows or abs(_days(windows[0]["duration"]) - one.days) > 1e-9:
        document["spec"]["timeWindow"] = [{"duration": _duration(one.days), "isRolling": True}]


def _objectives(document: dict[str, Any], indicators: Mapping[str, Any]) -> tuple[list[Objective], list[str]]:
    meta, spec = document.get("metadata"), document.get("spec")
    if not isinstance(meta, dict) or not isinstance(spec, dict):
        raise ValueError("an SLO has metadata and spec")
    name = str(meta["name"])
    told = [f"{name}: {path} is not of openslo/v1; kept" for path in _unknown(document, _KNOWN, "")]
    windows = spec.get("timeWindow") or []
    days = _days(windows[0]["duration"]) if windows else 30.0
    if not windows:
        told.append(f"{name}: no timeWindow; 30 days taken")
    elif windows[0].get("calendar"):
        told.append(f"{name}: a window of the calendar; computed as a rolling one of {days:g} days")
    indicator = _indicator(meta, spec, indicators)
    if not indicator:
        told.append(f"{name}: its indicator is none of ours; kept, and not computed")
    elif spec.get("budgetingMethod", "Occurrences") != "Occurrences":
        told.append(f"{name}: budgetingMethod {spec['budgetingMethod']}: kept, and not computed (ours counts occurrences)")
        indicator = ""
    places = spec["objectives"]
    if not isinstance(places, list) or not places:
        raise ValueError(f"{name}: no objectives")
    found = []
    for position, place in enumerate(places):
        label = name if len(places) == 1 else f"{name}-{position + 1}"
        text = str(spec.get("description") or place.get("displayName") or "")
        found.append(Objective(label, indicator, _target(place), days, text, document, position))
    return found, told


def _indicator(meta: dict[str, Any], spec: dict[str, Any], indicators: Mapping[str, Any]) -> str:
    told = (meta.get("annotations") or {}).get(ANNOTATION)
    if told is not None:
        return str(told) if told in INDICATORS else ""
    metric = spec.get("indicator") or indicators.get(str(spec.get("indicatorRef"))) or {}
    ratio = (metric.get("spec") or {}).get("ratioMetric") or {}
    wanted = tuple(_query(ratio.get(part)) for part in ("bad", "total"))
    return next((name for name in INDICATORS if tuple(map(_plain, queries(name))) == wanted), "")


def _query(part: Any) -> str:
    source = (part or {}).get("metricSource") or {}
    return _plain(re.sub(r"^sum\((.*)\)$", r"\1", str((source.get("spec") or {}).get("query", "")).strip()))


def _plain(query: str) -> str:
    return re.sub(r"\s+", "", query)


def _unknown(value: Any, known: Mapping[str, Any], path: str) -> list[str]:
    if "*" in known or not known:
        return []
    if isinstance(value, list):
        return [line for one in value for line in _unknown(one, known, path)]
    if not isinstance(value, dict):
        return []
    found = []
    for name, inner in value.items():
        here = f"{path}.{name}" if path else str(name)
        found += _unknown(inner, known[name], here) if name in known else [here]
    return found


def _target(place: Mapping[str, Any]) -> float:
    if ("target" in place) == ("targetPercent" in place):
        raise ValueError("an objective has either target or targetPercent")
    return float(place["target"]) if "target" in place else round(float(place["targetPercent"]) / 100, 12)


def _days(duration: Any) -> float:
    found = re.fullmatch(r"(\d+)([mhdwMQY])", str(duration))
    if found is None or not int(found[1]):
        raise ValueError(f"{duration!r} is no duration such as 30d")
    return int(found[1]) * _DAYS[found[2]]


def _duration(days: float) -> str:
    for unit, size in (("d", 1.0), ("h", 1 / 24), ("m", 1 / 1440)):
        if abs(days / size - round(days / size)) < 1e-6:
            return f"{round(days / size)}{unit}"
    return f"{max(1, round(days * 1440))}m"
