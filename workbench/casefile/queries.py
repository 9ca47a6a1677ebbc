"""Turn a case into the queries that ask a site's own servers for the same: PromQL, Elasticsearch, kubectl and Slurm, all escaped."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.report.text import iso
from workbench.sources.prometheus.query import any_of, equals, selector

if TYPE_CHECKING:
    from workbench.casefile.model import CaseFile
    from workbench.model import Series
    from workbench.sources.elasticsearch.fields import Fields

__all__ = ["PRESET", "queries_for"]

PRESET = "ecs"  # names of fields where nobody told the site's: https://www.elastic.co/docs/reference/ecs
_BEFORE, _AFTER = 900.0, 300.0  # seconds around the failure (or the job, where its length is known and shorter)
_EVIDENCE = 20
_AROUND = 2.0  # seconds around a line
_SACCT = "JobID,JobName,User,Account,State,ExitCode,Start,End,Elapsed,NodeList,AllocTRES"
# a node's name by the exporter's own word; `instance` is where it was scraped
_NODE_LABELS = ("Hostname", "hostname", "node", "nodename", "kubernetes_node", "exported_instance", "host", "instance")
# names of nodes, pods and jobs that a program could take for an option, or that no scheduler gives
_PLAIN = re.compile(r"[A-Za-z0-9_.\[][\w.:@+,\[\]%-]*")
_NUMBERS = ("gpu_hours", "gpu_hours_lost", "detection_seconds", "ranks", "nodes", "gpus")


def queries_for(case: CaseFile, series: Iterable[Series] = (), *, nodes: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """
    Return what asks a server for the numbers and panels of a case.

    Parameters
    ----------
    case : CaseFile
    series : iterable of Series
        Its metrics as they were scraped: their labels tell what the site calls a node.
    nodes : sequence of str
        The job's nodes.

    Returns
    -------
    dict
        ``job``, ``placement``, ``conditions``, ``events``, ``logs``, ``kernel``, each number of `CaseFile.impact`, each field of
        `CaseFile.metrics` and ``evidence/N`` → language (``promql``, ``es``, ``kubectl``, ``slurm``) → text. ``window`` has the times
        that PromQL does not carry (``since``, ``until``, ISO in UTC).
    """
    since, until = _window(case)
    nodes = _plain(nodes)
    made: dict[str, dict[str, str]] = {"window": {"since": iso(since) or "", "until": iso(until) or ""}}
    scheduler = _scheduler(case, nodes, since, until)
    made.update(scheduler)
    for name in _NUMBERS:
        made[name] = dict(made.get("job", {}))
    made.update(_metrics(case, series))
    for name, more in _logs(case, nodes, since, until).items():
        made.setdefault(name, {}).update(more)
    return {name: texts for name, texts in made.items() if texts}


def _window(case: CaseFile) -> tuple[float, float]:
    start, end = case.job.get("start"), case.job.get("end")
    moment = _seconds(case.verdict.get("time"))
    if moment is None:
        moment = end if end is not None else start
    if moment is None:
        return 0.0, 0.0
    since = moment - _BEFORE if start is None else max(start - 60.0, moment - _BEFORE)
    return since, max(moment, end if end is not None and end < moment + 86400.0 else moment) + _AFTER


def _seconds(stamp: str | None) -> float | None:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp() if stamp else None


# -- schedulers ------------------------------------------------------------------------------------------------------------


def _scheduler(case: CaseFile, nodes: Sequence[str], since: float, until: float) -> dict[str, dict[str, str]]:
    job = case.job
    made: dict[str, dict[str, str]] = {}
    if job.get("scheduler") == "slurm" and (job.get("id") or job.get("name")):
        which = f"--jobs={job['id']}" if job.get("id") else f"--name={job['name']}"
        begin = min(since, job["start"]) if job.get("start") is not None else since
        window = [f"--starttime={_stamp(begin)}", f"--endtime={_stamp(until + 1)}"] if until else []
        # as `workbench.sources.slurm` asks: local times without a zone would be ambiguous
        made["job"] = {
            "slurm": _shell("env", "TZ=UTC", "sacct", which, *window, "--duplicates", "--parsable2", f"--format={_SACCT}")
        }
        if job.get("id"):
            made["placement"] = {"slurm": _shell("scontrol", "--details", "show", "job", str(job["id"]))}
        if nodes:
            made["conditions"] = {"slurm": _shell("scontrol", "show", "node", ",".join(sorted(nodes)))}
            made["events"] = {
                "slurm": _shell(
                    "env",
                    "TZ=UTC",
                    "sacctmgr",
                    "show",
                    "event",
                    f"nodes={','.join(sorted(nodes))}",
                    f"start={_stamp(since)}",
                    "--parsable2",
                )
            }
    elif job.get("scheduler") == "kubernetes":
        space = ["--namespace", str(job["namespace"])] if job.get("namespace") else ["--all-namespaces"]
        pods = _plain(case.ranks["pod"].dropna().tolist())
        if pods:
            made["job"] = {"kubectl": _shell("kubectl", "get", "pods", *space, *pods[:64], "--output", "json")}
        else:
            made["job"] = {"kubectl": _shell("kubectl", "get", "pods", *space, "--output", "wide")}
        made["placement"] = made["job"]
        made["events"] = {"kubectl": _shell("kubectl", "get", "events", *space, "--sort-by=.lastTimestamp", "--output", "json")}
        if nodes:
            made["conditions"] = {"kubectl": _shell("kubectl", "get", "nodes", *sorted(nodes)[:64], "--output", "json")}
        culprit = _culprit_pod(case)
        if culprit and job.get("namespace"):
            made["logs"] = {
                "kubectl": _shell(
                    "kubectl", "logs", *space, culprit, "--all-containers", "--timestamps", f"--since-time={_second(since)}"
                )
            }
    return made


def _culprit_pod(case: CaseFile) -> str | None:
    rank = case.verdict["culprit"]["rank"]
    node = case.verdict["culprit"]["node"]
    own = case.ranks[case.ranks["rank"] == rank] if rank is not None else case.ranks[case.ranks["node"] == node]
    pods = own["pod"].dropna().tolist()
    return next(iter(_plain(pods)), None)


def _plain(names: Iterable[Any]) -> list[str]:
    return sorted({str(name) for name in names if _PLAIN.fullmatch(str(name))})


def _shell(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words)


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(seconds, 0.0)))


def _second(seconds: float) -> str:
    return _stamp(seconds) + "Z"


# -- metrics ---------------------------------------------------------------------------------------------------------------


def _metrics(case: CaseFile, series: Iterable[Series]) -> dict[str, dict[str, str]]:
    culprit = case.verdict["culprit"]
    node, gpu = culprit["node"], culprit["gpu"] or {}
    picked: dict[str, Series] = {}
    for one in series:
        have = picked.get(one.field)
        if have is None or (_fits(one, node, gpu) > _fits(have, node, gpu)):
            picked[one.field] = one
    made = {}
    for field, one in picked.items():
        matchers = []
        if node is not None and _fits(one, node, gpu) >= 1:
            matchers = [*_node_matcher(one), *(_gpu_matcher(one) if _fits(one, node, gpu) == 2 else [])]
        elif one.node is not None and (label := _node_label(one)):
            matchers = [any_of(label, sorted(_values(case, label, one)))]
        made[field] = {"promql": selector(field, matchers)}
    return made


def _fits(one: Series, node: str | None, gpu: Mapping[str, Any]) -> int:
    if node is None or one.node is None or one.node.split(".")[0] != node.split(".")[0]:
        return 0
    return 2 if one.gpu is not None and gpu.get("uuid") and one.gpu.uuid == gpu["uuid"] else 1


def _node_label(one: Series) -> str:
    # the label that says what we call the node, else the first that tells nodes apart
    return next((name for name in _NODE_LABELS if one.labels.get(name) == one.node), "") or next(
        (name for name in _NODE_LABELS if name in one.labels), ""
    )


def _node_matcher(one: Series) -> list[str]:
    label = _node_label(one)
    return [equals(label, one.labels[label])] if label else []


def _gpu_matcher(one: Series) -> list[str]:
    label = next((name for name in ("UUID", "uuid", "gpu_uuid", "gpu") if one.labels.get(name)), "")
    return [equals(label, one.labels[label])] if label else []


def _values(case: CaseFile, label: str, one: Series) -> set[str]:
    if one.labels.get(label) != one.node:
        return {one.labels[label]}
    return {str(name) for name in case.ranks["node"].dropna().unique()} or {one.labels[label]}


# -- logs ------------------------------------------------------------------------------------------------------------------


def _fields() -> Fields:
    from workbench.sources.elasticsearch.fields import MEANINGS, Fields, presets

    meanings = presets()[PRESET]
    named = {name: tuple(each.partition("=")[0] for each in fields) for name, fields in meanings.items()}
    named = {**dict.fromkeys(MEANINGS, ()), **named}
    kernel = tuple((each.partition("=")[0], each.partition("=")[2]) for each in meanings.get("kernel", ()) if "=" in each)
    return Fields(PRESET, named, named["message"][0], named["time"][0], "", kernel)


def _logs(case: CaseFile, nodes: Sequence[str], since: float, until: float) -> dict[str, dict[str, str]]:
    """The searches that `workbench.sources.elasticsearch` makes, for an index whose fields have the names of the preset."""
    from workbench.sources.contract import Deadline, Scope
    from workbench.sources.elasticsearch.job import Asked, all_of
    from workbench.sources.elasticsearch.ways import on_nodes

    if not until:
        return {}
    job = case.job
    asked = Asked(None, "", _fields(), Deadline(1.0))  # type: ignore[arg-type] # nothing is asked
    pods = tuple(sorted({str(pod) for pod in case.ranks["pod"].dropna().tolist()}))
    scope = Scope(
        str(job.get("id") or job.get("name") or ""), since, until, namespace=job.get("namespace"), nodes=tuple(sorted(nodes)), pods=pods,
        names=tuple(str(job[name]) for name in ("name",) if job.get(name)), user=str(job.get("user") or ""),
    )  # fmt: skip
    made: dict[str, dict[str, str]] = {}
    ways = asked.job(scope) if scope.job or pods or nodes else {}
    if ways:
        made["logs"] = {"es": _search(next(iter(ways.values())).query)}
    if nodes:
        made["kernel"] = {"es": _search(asked.kernel(scope, since))}
    for number, row in enumerate(case.verdict["evidence"][:_EVIDENCE]):
        moment = _seconds(row["time"])
        if moment is None or row["source"] not in ("job", "launcher", "torchelastic", "kernel"):
            continue
        parts = [asked.window(moment - _AROUND, moment + _AROUND)]
        if row["node"]:
            parts.append(on_nodes(asked.fields, [row["node"]]))
        made[f"evidence/{number}"] = {"es": _search(all_of(*parts))}
    return made


def _search(query: Mapping[str, Any]) -> str:
    # the body of a search; ASCII, so that no name in it can be more than a name
    return json.dumps({"query": query, "sort": [{"@timestamp": "asc"}], "size": 500}, ensure_ascii=True)
