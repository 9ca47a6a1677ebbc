"""
Turn a job's name, nodes or pods into PromQL matchers for what this server has of them, whatever its labels are called.

Every site spells the node of a GPU differently (`Hostname`, `hostname`, `exported_node`, `node`, only an address). The server is asked
which labels and values it has; the nodes are looked up among them here, and the query then names exact values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

from workbench.catalog import table
from workbench.parse.addresses import agreed
from workbench.parse.ids import short_node
from workbench.parse.prom_labels import OTHER_NAMES, address_of, canonical
from workbench.sources.contract import Deadline, Scope
from workbench.sources.prometheus.api import Api, first
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.query import any_of, equals, literal, quote, selector

__all__ = ["GPU_NAMES", "Gpus", "Question", "View", "by_labels", "families", "find_gpus", "lookup", "question_of", "questions"]

GPU_NAMES = "{__name__=~" + quote("DCGM_.+|nvidia_smi_.+|nvidia_gpu_.+|nv_gpu_.+") + "}"
NODE_LABELS = ("Hostname", "hostname", "exported_node", "node", "kubernetes_node", "node_name", "nodename", "host", "instance")
POD_LABELS = ("exported_pod", "pod", "pod_name")
SPACE_LABELS = ("exported_namespace", "namespace", "pod_namespace")
JOB_LABELS = ("hpc_job", "slurm_job_id", "slurm_job", "jobid", "job_id", "exported_job_id")
ENTITY_LABELS = (*NODE_LABELS, "UUID", "uuid", "gpu_uuid", "gpu", "GPU", "gpu_index", "index", "device", "pci_bus_id", "GPU_I_ID")
# each GPU has one of these at every scrape, whichever exporter it is
ANCHORS = (
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_XID_ERRORS",
)
_NO_NODE = ("", "localhost", "127.0.0.1", "0.0.0.0", "::1")


@dataclass(frozen=True, slots=True)
class Question:
    """A row of ``metric_questions.csv``: what to ask of a field, and what the answer is good for."""

    field: str
    exporter: str
    kind: str
    changed: str
    score: float
    classes: tuple[str, ...]
    switch_on: str
    why: str

    def promql(self, name: str, matchers: Sequence[str], window: str, step: str) -> str:
        """Return the question whether a metric changed, for the series that match."""

        def fill(found: re.Match[str]) -> str:
            if found[1] == "x":
                return selector(name, [*matchers, *(part for part in (found[2] or "").split(",") if part)])
            return {"w": window, "s": step}[found[1]]

        return re.sub(r"\{([xws])(?:,([^}]*))?\}", fill, self.changed)


@lru_cache(maxsize=1)
def questions() -> tuple[Question, ...]:
    """Return all rows of ``metric_questions.csv``."""
    return tuple(
        Question(
            row["field"],
            row["exporter"],
            row["kind"],
            row["changed"],
            float(row["score"]),
            tuple(name for name in row["classes"].split(";") if name),
            row["switch_on"],
            row["why"],
        )
        for row in table("metric_questions")
    )


@lru_cache(maxsize=4096)
def question_of(name: str) -> Question | None:
    """Return the row for a metric as a server names it, None when nothing is known of it."""
    field_name = canonical(name)[0]
    return next((row for row in questions() if re.fullmatch(row.field, field_name)), None)


@lru_cache(maxsize=8)
def families(exporter: str) -> str:
    """Return a selector of all metrics of an exporter that have a row."""
    return "{__name__=~" + quote("|".join(row.field for row in questions() if row.exporter == exporter)) + "}"


@dataclass(slots=True)
class Gpus:
    """
    What a server has of a job's GPUs.

    Attributes
    ----------
    names : list of str
        GPU metrics on this server.
    matchers : list of str
        Select the series of the job's nodes; empty when nothing was found.
    nodes : dict
        Value of `label` → addresses (``instance``) of its exporters.
    missing : tuple of str
        Nodes of the scope of which the server has no GPU.
    asked_for : tuple of str
        The others, as the scope names them; without a scope as the server does.
    """

    names: list[str] = field(default_factory=list)
    anchor: str = ""
    label: str = ""
    identity: tuple[str, ...] = ()
    matchers: list[str] = field(default_factory=list)
    nodes: dict[str, set[str]] = field(default_factory=dict)
    gpus: int = 0
    missing: tuple[str, ...] = ()
    asked_for: tuple[str, ...] = ()
    by: str = ""
    interval: float = 30.0
    asked: str = ""

    def only(self, nodes: Iterable[str]) -> list[str]:
        """Return the matchers of some of the nodes."""
        return [any_of(self.label, nodes)]


@dataclass(frozen=True, slots=True)
class View:
    """Metrics of another exporter, and which values of which of their labels are nodes of the job."""

    names: tuple[str, ...]
    label: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)


def anchor_of(names: Sequence[str]) -> str:
    """Return the metric that stands for the presence of a GPU."""
    spelled = {canonical(name)[0]: name for name in names}
    return next((spelled[name] for name in ANCHORS if name in spelled), names[0] if names else "")


def lookup(values: Iterable[str], nodes: Iterable[str], addresses: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    Return label value → node for the values that mean one of the nodes.

    Parameters
    ----------
    addresses : mapping, optional
        Address → node, for servers that know a node only by its address.
    """
    whole = {node.lower(): node for node in nodes}
    short: dict[str, str] = {}
    for node in whole.values():
        short.setdefault(short_node(node).lower(), node)
    known = {address.lower(): node for address, node in (addresses or {}).items() if node in whole.values()}
    found: dict[str, str] = {}
    for value in values:
        host = (address_of(value) or "" if ":" in value else value).lower()
        if host in whole:
            found[value] = whole[host]
        elif host in known:
            found[value] = known[host]
        else:
            near = short.get(short_node(host), "")
            if near and ("." not in host or "." not in near):  # two names with different domains are two nodes
                found[value] = near
    return found


def find_gpus(api: Api, scope: Scope, deadline: Deadline, job_label: str = "") -> Gpus:
    """
    Return what the server has of the GPUs on the nodes where the job ran.

    Nodes of the scope come first, then its pods, then pods and job labels by the job's name. Found by pod or job, the nodes that
    these tell are taken whole: a GPU loses its pod label when the pod ends, and that is when it matters.
    """
    since, until = scope.since, scope.until
    gpus = Gpus(names=api.values("__name__", [GPU_NAMES], since, until, deadline))
    gpus.names = [name for name in gpus.names if name.startswith("DCGM_") or name in OTHER_NAMES]
    if not gpus.names:
        return gpus
    gpus.anchor = anchor_of(gpus.names)
    labels = api.labels([selector(gpus.anchor)], since, until, deadline)
    here = [name for name in NODE_LABELS if name in labels]
    gpus.identity = tuple(name for name in dict.fromkeys(ENTITY_LABELS) if name in labels)
    known: dict[str, list[str]] = {}

    def values(label: str) -> list[str]:
        if label not in known:
            known[label] = api.values(label, [selector(gpus.anchor)], since, until, deadline)
        return known[label]

    # the exporter's own pod is no node; a label that says localhost everywhere is none either
    gpus.label = next((name for name in here if any(value.lower() not in _NO_NODE for value in values(name))), "")
    if scope.nodes:
        addresses: dict[str, str] = {}
        for name in here:
            if name == "instance":
                addresses = node_addresses(api, scope, deadline)
            found = lookup(values(name), scope.nodes, addresses)
            if found:
                gpus.label, gpus.by = name, "nodes"
                gpus.matchers = [any_of(name, found)]
                gpus.missing = tuple(sorted(set(scope.nodes) - set(found.values())))
                break
    if not gpus.matchers:
        for matchers, by in by_labels(scope, labels, job_label):
            rows, _ = api.instant(
                f"count by ({gpus.label}) (count_over_time({selector(gpus.anchor, matchers)}[{_span(scope)}]))", until, deadline
            )
            found_nodes = [row[gpus.label] for row, _ in rows if row.get(gpus.label)]
            if found_nodes:
                gpus.by = by
                gpus.matchers = [any_of(gpus.label, found_nodes)]
                break
    if not gpus.matchers:
        gpus.missing = scope.nodes
        return gpus
    _count(api, scope, gpus, deadline)
    lost = set(gpus.missing)
    gpus.asked_for = tuple(node for node in scope.nodes if node not in lost) or tuple(node for node in gpus.nodes if node)
    return gpus


def _span(scope: Scope) -> str:
    return f"{max(scope.until - scope.since, 1):.0f}s"


def by_labels(scope: Scope, labels: Sequence[str], job_label: str) -> Iterable[tuple[list[str], str]]:
    """Yield ways to find the job by its labels, the surest first."""
    pod, space = first(labels, POD_LABELS), first(labels, SPACE_LABELS)
    spaces = [equals(space, scope.namespace)] if space and scope.namespace else []
    if scope.pods and pod:
        yield [any_of(pod, scope.pods), *spaces], "pod labels"
    for label in (job_label, *JOB_LABELS):
        if label in labels:
            yield [equals(label, scope.job)], f"label {label}"
    if pod:
        yield [f"{pod}=~{quote(literal(scope.job) + '(-.+)?')}", *spaces], "names in the pod labels"


def _count(api: Api, scope: Scope, gpus: Gpus, deadline: Deadline) -> None:
    """Note nodes, their exporters, the number of GPUs and the interval of the samples."""
    present = f"sum by ({','.join(gpus.identity)}) (count_over_time({selector(gpus.anchor, gpus.matchers)}[{_span(scope)}]))"
    by = ",".join(dict.fromkeys((gpus.label, *(["instance"] if "instance" in gpus.identity else []))))
    gpus.asked = f"count by ({by}) ({present})"
    rows, _ = api.instant(gpus.asked, scope.until, deadline)
    for labels, number in rows:
        gpus.nodes.setdefault(labels.get(gpus.label, ""), set()).update({labels["instance"]} if "instance" in labels else ())
        gpus.gpus += int(number)
    points = api.value(f"max({present})", scope.until, deadline)
    if points and points > 1:
        gpus.interval = min(max((scope.until - scope.since) / points, 1.0), 300.0)


def node_addresses(api: Api, scope: Scope, deadline: Deadline) -> dict[str, str]:
    """
    Return address → node: by the scheduler's word, else by that of the two exporters that know both.

    An address that two nodes had within the window, by the word of one of them, is nobody's.
    """
    found = agreed(scope.addresses)
    for query, node, address in (
        (f"count by (node, internal_ip) (last_over_time(kube_node_info[{_span(scope)}]))", "node", "internal_ip"),
        (f"count by (nodename, instance) (last_over_time(node_uname_info[{_span(scope)}]))", "nodename", "instance"),
    ):
        rows: list[tuple[dict[str, str], float]] = []
        with suppress(QueryError):  # a help, not evidence
            rows, _ = api.instant(query, scope.until, deadline)
        pairs = [(labels.get(address, ""), labels.get(node, "")) for labels, _ in rows]
        hosts = [(address_of(value) or "" if ":" in value else value, name) for value, name in pairs if value and name]
        mine = agreed(hosts)
        found |= {host.lower(): mine.get(host.lower(), "") for host, _ in hosts if host and host.lower() not in found}
    found = {host: name for host, name in found.items() if name}
    if scope.nodes:  # a short name in one exporter is a long one in another
        names = lookup(set(found.values()), scope.nodes)
        found = {address: names.get(node, node) for address, node in found.items()}
    return found
