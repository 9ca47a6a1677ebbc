"""Turn what `dcgmi health` and `dcgmi diag` printed into the state as a whole and every subtest: also those that passed or were not run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Diag", "Subtest", "overall_health", "subtests"]

# "| Overall Health            | Failure                  |" | DCGM 1: "| Overall Health: Healthy |"
_OVERALL = re.compile(r"^\s*\|\s*Overall Health\s*[|:]\s*(\w[\w ]*?)\s*\|", re.M)
_STATUSES = {"pass": "pass", "passed": "pass", "fail": "fail", "failed": "fail", "warn": "warn", "warning": "warn", "skip": "skip",
             "skipped": "skip", "not run": "not-run", "notrun": "not-run"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subtest:
    """
    What one test said of one entity.

    `status` is ``pass``, ``fail``, ``warn``, ``skip``, ``not-run``, or DCGM's own word when it is none of these; `entity` is ``GPU 3`` or
    empty for the test as a whole, `gpu` the number that DCGM gives the GPU; `said` its sentences.
    """

    test: str
    category: str
    status: str
    entity: str = ""
    gpu: int | None = None
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diag:
    """One run of `dcgmi diag`: its subtests, DCGM's version, and why it could not run when it says so."""

    subtests: tuple[Subtest, ...]
    version: str = ""
    error: str = ""


def overall_health(text: str) -> str:
    """Return ``Healthy``, ``Warning``, ``Failure`` or another word that `dcgmi health -c` says of the whole; empty when it says none."""
    start = text.find("{")
    if start >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, start)
            word = value["body"]["Overall Health"]["value"]
        except (ValueError, RecursionError, KeyError, TypeError):
            word = None
        if isinstance(word, str):
            return word
    found = _OVERALL.search(text)
    return found[1] if found else ""


def subtests(text: str) -> Diag | None:
    """Return what `dcgmi diag -j` (DCGM 2 to 4) said of each subtest; None when it is no whole JSON of a diagnostic."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    root = next((value[key] for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if isinstance(value.get(key), dict)), None)
    if root is None:
        return None
    metadata = value.get("metadata")
    version = root.get("version") or root.get("DCGM Version") or (metadata.get("version") if isinstance(metadata, dict) else "")
    error = root.get("runtime_error") or value.get("runtime_error")
    found = [one for group in _dicts(root.get("test_categories")) for one in _group(group)]
    return Diag(tuple(found), str(version or ""), str(error or ""))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _group(group: Mapping[str, Any]) -> Iterator[Subtest]:
    category = str(group.get("category") or "")
    for test in _dicts(group.get("tests")):
        name = str(test.get("name") or "")
        results = _dicts(test.get("results"))
        for one in results:
            yield from _result(name, category, one)
        summary = test.get("test_summary")
        if isinstance(summary, dict):
            whole = Subtest(name, category, _status(summary), said=_said(summary))
            # it repeats the worst of its entities; what no entity says counts by itself
            if not results or whole.status not in {_status(one) for one in results}:
                yield whole
        elif not results:
            yield Subtest(name, category, "not-run", said=("no result was given",))


def _result(name: str, category: str, one: Mapping[str, Any]) -> Iterator[Subtest]:
    status, said = _status(one), _said(one)
    if "entity_id" in one:
        kind, number = str(one.get("entity_group") or "GPU"), one["entity_id"]
        gpu = number if kind.upper() == "GPU" and isinstance(number, int) else None
        yield Subtest(name, category, status, f"{kind} {number}", gpu, said)
        return
    numbers = re.findall(r"\d{1,4}", str(one.get("gpu_ids", one.get("gpu_id", ""))))
    for number in numbers:
        yield Subtest(name, category, status, f"GPU {number}", int(number), said)
    if not numbers:
        yield Subtest(name, category, status, said=said)


def _status(one: Mapping[str, Any]) -> str:
    word = str(one.get("status") or "").strip().lower()
    return _STATUSES.get(word, word or "not-run")


def _said(one: Mapping[str, Any]) -> tuple[str, ...]:
    out: list[str] = []
    for key in ("warnings", "warning", "info"):
        for item in one[key] if isinstance(one.get(key), list) else [one.get(key)]:
            text = item.get("warning") if isinstance(item, dict) else item
            if isinstance(text, str) and text.strip():
                out.append(text.strip())
    return tuple(out)
