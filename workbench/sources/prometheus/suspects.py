"""Turn a large job into the few nodes worth a closer look, by asking the server what changed, and on which GPU."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workbench.errors import SourceError
from workbench.parse.nodeset import fold
from workbench.sources.contract import Answer, Deadline, Scope
from workbench.sources.prometheus.api import Api
from workbench.sources.prometheus.http import QueryError, each, shown
from workbench.sources.prometheus.jobs import Gpus, View, lookup, question_of
from workbench.sources.prometheus.query import any_of, choose_step, selector

__all__ = ["Suspects", "find_suspects"]

MOST = 16  # nodes that are looked at closely
ROWS = 256  # of one answer
DECISIVE = 80.0  # score of what still counts when many show it: a storm of Xids is told by who began
COMMON = 0.25  # of the job's GPUs: what more of them show is the job's state, not one GPU's
FOR_QUESTIONS = 0.6  # of the time left; the rest is for the series themselves
MISSED = 3  # scrapes: one or two are lost now and then
PRESENCE = 60.0  # score of a GPU that is not there


@dataclass(slots=True)
class Suspects:
    """
    What was found.

    Attributes
    ----------
    chosen : tuple of str
        Nodes (values of the GPU metrics' node label): those with changes, the worst first, then healthy ones for comparison.
    hits : dict
        Metric → nodes on which it changed.
    """

    chosen: tuple[str, ...] = ()
    hits: dict[str, set[str]] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)


def _peers(nodes: Iterable[str], suspects: set[str], many: int) -> list[str]:
    """Return nodes spread over all the others: neighbours share switches and power, so not the first ones."""
    others = sorted(set(nodes) - suspects)
    if len(others) <= many:
        return others
    return [others[int((at + 0.5) * len(others) / many)] for at in range(many)]


def find_suspects(api: Api, scope: Scope, gpus: Gpus, deadline: Deadline, views: Sequence[View] = ()) -> Suspects:
    """Ask every question of the catalog over all nodes of a job at once and choose the nodes to be looked at."""
    began = time.monotonic()
    span = max(scope.until - scope.since, 1.0)
    window = f"{span:.0f}s"
    step = choose_step(scope.since, scope.until, 240, gpus.interval)
    by = ",".join(gpus.identity)
    asked: list[tuple[str, str, float, View | None]] = []  # metric, query, score, whose it is when not the GPUs'
    for name in gpus.names:
        row = question_of(name)
        if row and row.changed:
            inner = row.promql(name, gpus.matchers, window, f"{step:.0f}s")
            asked.append((name, f"topk({ROWS}, max by ({by}) ({inner}))", row.score, None))
    anchor = selector(gpus.anchor, gpus.matchers)
    present = f"sum by ({by}) (count_over_time({anchor}[{window}]))"
    late = f"{max(4 * gpus.interval, 60):.0f}s"
    few = max(span / gpus.interval - MISSED, 1.0)
    asked.append(
        ("gone at the end", f"topk({ROWS}, {present} unless sum by ({by}) (count_over_time({anchor}[{late}])))", PRESENCE, None)
    )
    asked.append(("fewer samples", f"bottomk({ROWS}, {present} < {few:.0f})", PRESENCE / 2, None))
    for view in views:
        for name in view.names if view.nodes else ():
            row = question_of(name)
            if row and row.changed:
                inner = row.promql(name, [any_of(view.label, view.nodes)], window, f"{step:.0f}s")
                asked.append((name, f"topk({ROWS}, max by ({view.label}) ({inner}))", row.score, view))
    found = Suspects()
    scores: dict[str, float] = defaultdict(float)
    told: list[str] = []
    asked.sort(key=lambda question: -question[2])  # when time is short, the most telling ones are answered
    limit = Deadline(deadline.left() * FOR_QUESTIONS)
    calls = [lambda query=query: api.instant(query, scope.until, limit) for _, query, _, _ in asked]
    errors: dict[str, list[tuple[str, BaseException, str]]] = {}
    warned: set[str] = set()
    for number, result in each(calls, limit):
        name, query, score, view_of = asked[number]
        if isinstance(result, BaseException):
            errors.setdefault(str(result), []).append((name, result, query))
            continue
        rows, notes = result
        warned |= set(notes)
        total = len(view_of.nodes) if view_of else gpus.gpus
        common = len(rows) >= min(ROWS, max(COMMON * total, 4))
        nodes = {labels.get(view_of.label if view_of else gpus.label, "") for labels, _ in rows}
        for node in {_gpu_node(value, gpus, view_of) for value in nodes} if view_of else nodes:
            if not node:
                continue
            if not common or score >= DECISIVE:
                scores[node] += score * (0.1 if common else 1.0)
            if not view_of and not common:
                found.hits.setdefault(name, set()).add(node)
        if rows:
            told.append(f"{name} {len(rows)}{'+' if len(rows) >= ROWS else ''}")
    worst = sorted(scores, key=lambda node: (-scores[node], node))[:MOST]
    suspects = {node for node in worst if node in gpus.nodes}
    peers = _peers(gpus.nodes, set(scores), max(4, min(16, 2 * len(suspects))))
    if not peers:
        peers = _peers(gpus.nodes, suspects, 4)
    found.chosen = tuple([node for node in worst if node in suspects] + peers)
    for group in errors.values():
        names = [name for name, _, _ in group]
        error = group[0][1]
        found.answers.append(
            Answer(
                "metrics",
                "failed",
                f"{len(names)} questions what changed ({', '.join(names[:4])}{' …' if len(names) > 4 else ''}): {shown(str(error), 300)}",
                error.hint if isinstance(error, SourceError) else "",
                shown(error.query if isinstance(error, QueryError) and error.query else group[0][2], 2000),
            )
        )
    # a question that failed, or was answered in part, leaves nodes of which nothing is known
    whole = not errors and not warned
    left = f"of {len(gpus.nodes)} nodes all were asked what changed; the series of {len(found.chosen)} of them were taken"
    found.answers.append(
        Answer(
            "metrics",
            "partial" if warned else "ok",
            f"{len(asked)} questions what changed on {gpus.gpus} GPUs of {len(gpus.nodes)} nodes: "
            + (f"changes on {len(scores)} nodes ({', '.join(sorted(told)[:8])})" if told else "nothing changed")
            + f"; {len(suspects)} nodes and {len(peers)} others for comparison are taken"
            + (f"; {'; '.join(sorted(warned))}" if warned else ""),
            asked=shown(asked[0][1], 2000),
            rows=len(scores),
            seconds=round(time.monotonic() - began, 3),
            note=left if whole else "",
            nodes=fold(gpus.asked_for) if whole else "",
        )
    )
    return found


def _gpu_node(value: str, gpus: Gpus, view: View) -> str:
    """Return the node, as the GPU metrics spell it, of a label value of another exporter."""
    node = view.nodes.get(value, "")
    if node in gpus.nodes:
        return node
    return next(iter(lookup(gpus.nodes, [node])), "") if node else ""
