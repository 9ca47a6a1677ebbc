"""Turn the manifest of a collected incident into what could not be seen: one problem for each question that was not answered well."""

from __future__ import annotations

from typing import Any

from workbench.model import Parsed, Problem
from workbench.parse.nodeset import expand

__all__ = ["SCHEMA", "parse_manifest"]

SCHEMA = "workbench.manifest/"
_STATUSES = ("partial", "missing", "stale", "failed")


def parse_manifest(data: Any, *, file: str) -> Parsed:
    """
    Return the problems that a collection met, and what it was asked for.

    Parameters
    ----------
    data : Any
        The parsed JSON of ``manifest.json`` (schema ``workbench.manifest/1``, written by `workbench.sources.gather`).
    file : str
        Its name, for problems of its own.

    Returns
    -------
    Parsed
        `problems`: one for each answer that is not ``ok``, with its source, status and way out. `facts`: ``scope`` (what was asked
        for), ``collected`` (when), ``asked`` (number of questions by source), ``notes`` (what to know of answers that are well, by
        source), ``covered`` (nodes that were asked although nothing of them had to come, by source) and ``addresses`` (of the nodes).
    """
    parsed = Parsed()
    sources = data.get("sources") if isinstance(data, dict) else None
    if not isinstance(sources, list):
        parsed.problems.append(
            Problem(file, "it is no manifest of a collected incident", "collect it again", None, "workbench", "partial")
        )
        return parsed
    if data.get("schema") != SCHEMA + "1":
        parsed.problems.append(
            Problem(
                file,
                f"it was written by a newer workbench ({data.get('schema')}); what is known of it is used",
                "use the version that wrote it",
                None,
                "workbench",
                "partial",
            )
        )
    asked: dict[str, int] = {}
    notes: dict[str, list[str]] = {}
    covered: dict[str, list[str]] = {}
    for source in sources:
        answers = source.get("answers") if isinstance(source, dict) else None
        for answer in answers if isinstance(answers, list) else []:
            if not isinstance(answer, dict):
                continue
            word, status = str(answer.get("source") or "workbench"), answer.get("status")
            asked[word] = asked.get(word, 0) + 1
            if status == "ok" and isinstance(answer.get("note"), str) and answer["note"]:
                notes.setdefault(word, []).append(answer["note"])
            if status == "ok" and isinstance(answer.get("nodes"), str):
                covered.setdefault(word, []).extend(expand(answer["nodes"]))
            if status in _STATUSES:
                what = str(answer.get("asked") or "")
                parsed.problems.append(
                    Problem(
                        str(answer.get("file") or source.get("name") or file),
                        str(answer.get("detail") or "it was not answered") + (f" [{what[:200]}]" if what else ""),
                        str(answer.get("hint") or ""),
                        None,
                        word,
                        str(status),
                    )
                )
    scope = data.get("scope")
    told = scope.get("addresses") if isinstance(scope, dict) else None
    parsed.facts |= {
        "scope": scope if isinstance(scope, dict) else {},
        "collected": data.get("collected"),
        "asked": asked,
        "notes": notes,
        "covered": covered,
        "addresses": told if isinstance(told, list) else [],
    }
    return parsed
