"""
Turn what is known of a job into the ways in which its log lines can be found, the surest first: fields, pods, paths, nodes.

Asked by its number, a Slurm job's lines are often under its name only: what Slurm told of it (name, user, output files, nodes, window) is
asked as well, and the answer says which of it found the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.sources.contract import Scope
from workbench.sources.elasticsearch.fields import Fields

__all__ = ["MOST_NAMES", "Way", "all_of", "any_of", "on_nodes", "ways_of"]

MOST_NAMES = 60_000  # values of one terms query; a server takes 65,536
_NUMBERS = 512  # of an array, whose tasks have one each
_REGEXP = 900  # characters of one expression; a server takes 1,000 (index.max_regex_length)
_SHORTEST = 3  # characters of a name or user that a path is searched for
_NUMBER = re.compile(r"\d+(?:[_+]\d+)?$")


@dataclass
class Way:
    """One way to find lines: the query, how a person would say it, and, where it is several in one, the query of each."""

    query: dict[str, Any]
    words: str
    sure: bool = True  # lines that are found so are the job's
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # words → query


def any_of(queries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the query of which one must match."""
    return dict(queries[0]) if len(queries) == 1 else {"bool": {"should": list(queries), "minimum_should_match": 1}}


def all_of(*queries: Mapping[str, Any], none: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the query of which all must match, and none of `none`; nothing is scored."""
    return {"bool": {"filter": list(queries), **({"must_not": list(none)} if none else {})}}


def on_nodes(fields: Fields, nodes: Sequence[str]) -> dict[str, Any]:
    """Return the query for lines of some nodes; a name with a domain and one without are the same node."""
    short = [each.partition(".")[0] if not re.fullmatch(r"[\d.]+", each) else each for each in nodes]
    return any_of([{"terms": {name: sorted({*nodes, *short})[:MOST_NAMES]}} for name in fields.named["node"]])


def ways_of(
    fields: Fields, scope: Scope, common: Sequence[Mapping[str, Any]], none: Sequence[Mapping[str, Any]]
) -> dict[str, Way]:
    """
    Return how a job's lines can be found, surest first: name of the way → `Way`.

    Parameters
    ----------
    fields : Fields
        Of the index.
    scope : Scope
        The job; `names`, `user`, `paths` and `nodes` are used where they are known.
    common : sequence of mapping
        Queries that each line must match: the window.
    none : sequence of mapping
        Queries of which it must match none: kernel lines.
    """
    named = fields.named
    given = [scope.job, *scope.names]
    numbers = list(dict.fromkeys(name for name in given if _NUMBER.match(name)))[:_NUMBERS]
    titles = list(dict.fromkeys(name for name in scope.names if not _NUMBER.match(name) and len(name) >= _SHORTEST))[:8]
    ways: dict[str, Way] = {}

    def add(name: str, words: str, query: Mapping[str, Any], *, sure: bool = True) -> None:
        ways[name] = Way(all_of(*common, query, none=none), words, sure)

    exact: list[dict[str, Any]] = [
        {"match": {name: {"query": job, "lenient": True}}}
        for name in named["job"]
        for job in dict.fromkeys([scope.job, *numbers[:32]])
    ]
    if scope.pods:
        exact += [{"terms": {name: list(scope.pods)[:MOST_NAMES]}} for name in named["pod"]]
    if exact:
        add("job", "by the fields that name its job or pods", any_of(exact))
    if named["pod"] and scope.job:
        add("pod", "by pods that are named after it", any_of([{"prefix": {name: f"{scope.job}-"}} for name in named["pod"]]))
    here = on_nodes(fields, scope.nodes) if named["node"] and scope.nodes else None
    parts = dict(_by_path(fields, scope, numbers, titles, here))
    if parts:
        whole = all_of(*common, any_of(list(parts.values())), none=none)
        ways["file"] = Way(
            whole, next(iter(parts)), parts={words: all_of(*common, query, none=none) for words, query in parts.items()}
        )
    if named["file"] and titles and here is None:
        words = f"by its name {titles[0]} in the path alone: those of another job of this name may be among them"
        add("name", words, any_of(list(_in_paths(named["file"], titles))), sure=False)
    if here is not None:
        if named["file"] and len(scope.user) >= _SHORTEST:
            words = f"by its user {scope.user} in the path, its {_nodes(scope)} and its window: other jobs of this user may be among them"
            add("user", words, all_of(here, any_of(list(_in_paths(named["file"], [scope.user])))), sure=False)
        add("node", f"by its {_nodes(scope)} and its window alone: what else ran there may be among them", here, sure=False)
    return ways


def _by_path(
    fields: Fields, scope: Scope, numbers: Sequence[str], titles: Sequence[str], here: Mapping[str, Any] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (words, query) of the ways in which the path of a log file can show that it is the job's."""
    files = fields.named["file"]
    if not files:
        return
    if numbers:
        yield "by its number in the path", any_of(list(_in_paths(files, numbers)))
    if scope.job and not _NUMBER.match(scope.job):
        wild = re.sub(r"([\\*?])", r"\\\1", scope.job)
        yield "by its name in the path", any_of([{"wildcard": {name: {"value": f"*{wild}*"}}} for name in files])
    if scope.paths:
        yield "by the output file that Slurm names", any_of([{"terms": {name: list(scope.paths)[:MOST_NAMES]}} for name in files])
    if titles and here is not None:
        shown = " or ".join(titles[:2])
        fits = [*_in_paths(files, titles)]
        fits += [{"match": {name: {"query": title, "lenient": True}}} for name in fields.named["job"] for title in titles]
        yield f"by its name {shown} in the path, on its {_nodes(scope)}", all_of(here, any_of(fits))


def _nodes(scope: Scope) -> str:
    return f"{len(scope.nodes)} node{'s' if len(scope.nodes) > 1 else ''}"


def _in_paths(files: Iterable[str], words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield queries for paths that hold one of the words as a whole: 4711 is not in 147110, bert not in robert."""
    chunks: list[list[str]] = [[]]
    for word in words:
        text = re.sub(r"([^A-Za-z0-9])", r"\\\1", word)
        if chunks[-1] and sum(map(len, chunks[-1])) + len(chunks[-1]) + len(text) > _REGEXP:
            chunks.append([])
        chunks[-1].append(text)
    for name in files:
        for chunk in chunks:
            value = f"(.*[^A-Za-z0-9])?({'|'.join(chunk)})([^A-Za-z0-9].*)?"
            yield {"regexp": {name: {"value": value, "flags": "NONE"}}}
