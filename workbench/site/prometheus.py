"""
Turn a Prometheus into a part of the fleet: the last values of each GPU, what changed on it within the hour, and which exporters fell silent.

All of it are instant queries that the server reduces itself, one series a GPU, so that of 16,384 GPUs a few megabytes travel. What is asked is
the table ``catalog/metric_questions.csv``; only nodes that people look at are asked for an hour of samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.catalog import signatures
from workbench.catalog.findings import findings_table
from workbench.catalog.xid_rules import XidContext, rule_for
from workbench.errors import SourceError
from workbench.health.finding import STATUSES
from workbench.parse.prom_labels import canonical, entity_of
from workbench.site.parts import NodeSeen, Part
from workbench.sources.contract import Deadline, Scope
from workbench.sources.prometheus.api import Api, first
from workbench.sources.prometheus.http import each
from workbench.sources.prometheus.jobs import ENTITY_LABELS, GPU_NAMES, NODE_LABELS, anchor_of, node_addresses, question_of
from workbench.sources.prometheus.query import any_of, selector

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PrometheusFleet"]

WINDOW = 3600  # seconds in which a change is news
LATE = 300.0  # seconds after which Prometheus itself forgets a series
STEP = 30.0
KNOWN = 600.0  # seconds for which the names that the server has are taken as they were
# what the page shows of each GPU → where it stands in a snapshot
FIELDS: Mapping[str, str] = {
    "DCGM_FI_DEV_GPU_TEMP": "temperature",
    "DCGM_FI_DEV_POWER_USAGE": "power",
    "DCGM_FI_DEV_GPU_UTIL": "utilization",
    "DCGM_FI_DEV_FB_USED": "memory_used",
    "DCGM_FI_DEV_XID_ERRORS": "xid",
}
# beside them in the hour of a node that people look at
MORE = (
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
)
_MODEL = ("modelName", "model_name", "name")
_POD = ("exported_pod", "pod", "pod_name", "exported_namespace", "namespace", "pod_namespace")
_KINDS = (
    "event",
    "counter",
    "flag",
    "state",
)  # of questions that say something of a GPU by itself; levels need the peers of a job
LEAST = 40.0  # score from which a change is shown
CERTAIN = 85.0  # from which it makes a GPU critical: no healthy GPU shows it
_WATCHED = 8  # nodes whose samples are asked for at once


@dataclass(slots=True)
class _Names:
    """What the server has, asked once in a while."""

    at: float
    anchor: str = ""
    metrics: dict[str, str] = field(default_factory=dict)  # canonical name → as the server spells it
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    textfile: bool = False


class PrometheusFleet:
    """
    One server; `read` gives its part, see `workbench.site.live`.

    Parameters
    ----------
    api : Api
    """

    name = "prometheus"

    def __init__(self, api: Api) -> None:
        self._api = api
        self._names: _Names | None = None

    def read(self, deadline: Deadline, watched: tuple[str, ...] = ()) -> Part:
        """
        Return what the server tells now; questions that fail leave it partial, and no GPU is called healthy by those that were answered.

        Raises
        ------
        SourceError
            The server did not answer, or has no names.
        """
        now = time.time()
        self._api.build(deadline)
        known = self._known(now, deadline)
        if not known.anchor:
            return Part(
                self.name, now, "missing", "the server has no metric of any GPU exporter within the last hour", "scrape dcgm-exporter",
                **self._checks(known, now, deadline, []),
            )  # fmt: skip
        asked = _Asked(known)
        answers: dict[str, list[tuple[dict[str, str], float]]] = {}
        lacks: list[str] = []
        hint = ""
        todo = list(asked.queries.items())
        calls = [lambda query=query: self._api.instant(query, now, deadline) for _, query in todo]
        for number, result in each(calls, deadline):
            if isinstance(result, BaseException):
                lacks.append(f"{todo[number][0]}: {result}")
                hint = hint or str(getattr(result, "hint", ""))
            else:
                answers[todo[number][0]] = result[0]
                if result[1]:
                    lacks.append("; ".join(result[1]))
        if "anchor" not in answers:
            raise SourceError(f"the GPUs could not be asked for: {lacks[0] if lacks else 'no answer'}", hint=hint)
        whole = not lacks and not {"DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"}.isdisjoint(known.metrics)
        gpus = asked.gpus(answers, judged=whole)
        findings = [*asked.changed(answers), *asked.vanished(answers, gpus, now)]
        if not lacks and not whole:
            lacks.append("the exporter does not tell of Xids, so nobody is called healthy by its metrics")
            hint = "add to dcgm-exporter's counters file: DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error encountered."
        more = self._checks(known, now, deadline, lacks)
        samples = self._samples(known, asked, watched, gpus, now, deadline, lacks)
        return Part(
            self.name,
            now,
            "partial" if lacks else "ok",
            "; ".join(dict.fromkeys(lacks))[:600],
            hint,
            gpus=tuple(gpus),
            samples=samples,
            queries={key: {"promql": asked.queries[name]} for name, key in FIELDS.items() if name in asked.queries},
            addresses=self._addresses(asked, now, deadline),
            nodes=more["nodes"],
            findings=(*findings, *more["findings"]),
        )

    def _known(self, now: float, deadline: Deadline) -> _Names:
        """Return the names and labels that the server has; asked anew every ten minutes, and while it has none."""
        if self._names is not None and self._names.anchor and now - self._names.at < KNOWN:
            return self._names
        names = tuple(self._api.values("__name__", [GPU_NAMES], now - WINDOW, now, deadline))
        found = _Names(now, anchor_of([one for one in names if one.startswith("DCGM_")] or names), names=names)
        for one in names:
            found.metrics.setdefault(canonical(one)[0], one)
        if found.anchor:
            found.labels = tuple(self._api.labels([selector(found.anchor)], now - WINDOW, now, deadline))
        own = self._api.values("__name__", ['{__name__=~"workbench_finding|workbench_node_fit"}'], now - WINDOW, now, deadline)
        found.textfile = bool(own)
        self._names = found
        return found

    def _addresses(self, asked: _Asked, now: float, deadline: Deadline) -> dict[str, str]:
        if asked.node != "instance":
            return {}
        try:
            return node_addresses(self._api, Scope("", now - WINDOW, now), deadline)
        except SourceError:  # a help, not evidence
            return {}

    # -- what `workbench check` wrote for node-exporter -------------------------------------------------------------------

    def _checks(self, known: _Names, now: float, deadline: Deadline, lacks: list[str]) -> dict[str, Any]:
        """Return nodes and findings of the textfiles of `workbench check`."""
        none: dict[str, Any] = {"nodes": (), "findings": ()}
        if not known.textfile:
            return none
        try:
            fit, _ = self._api.instant("workbench_node_fit", now, deadline)
            bad, _ = self._api.instant(f"workbench_finding >= {STATUSES.index('warning')}", now, deadline)
            written, _ = self._api.instant(
                'max by (instance) (node_textfile_mtime_seconds{file=~".*workbench.*"})', now, deadline
            )
        except SourceError as error:
            lacks.append(f"what health checks wrote could not be asked for: {error}")
            return none
        age = {labels.get("instance", ""): value for labels, value in written}
        nodes, checked = [], {}
        for labels, value in fit:
            name = _own_node(labels)
            if not name:
                continue
            when = age.get(labels.get("instance", ""))
            checked[name] = when
            if when is None:
                nodes.append(
                    NodeSeen(name, unchecked="a health check wrote of it, and nobody tells when (node_textfile_mtime_seconds)")
                )
            else:
                nodes.append(NodeSeen(name, fit=value == 1.0, checked=when))
        findings = [row for labels, value in bad if (row := _finding(labels, value, checked, now))]
        return {"nodes": tuple(nodes), "findings": tuple(findings)}

    # -- an hour of the nodes that people look at ---------------------------------------------------------------------------

    def _samples(
        self,
        known: _Names,
        asked: _Asked,
        watched: Sequence[str],
        gpus: Iterable[Mapping[str, Any]],
        now: float,
        deadline: Deadline,
        lacks: list[str],
    ) -> pd.DataFrame | None:
        spelled = {str(row["node"]): str(row["label"]) for row in gpus if row.get("label")}
        short = {name.split(".")[0]: label for name, label in spelled.items()}
        values = [label for node in watched[:_WATCHED] if (label := spelled.get(node) or short.get(node.split(".")[0]))]
        if not values or not asked.node:
            return None
        names = [known.metrics[name] for name in (*FIELDS, *MORE) if name in known.metrics]
        calls = [
            lambda name=name: self._api.range(selector(name, [any_of(asked.node, values)]), now - WINDOW, now, STEP, deadline)
            for name in names
        ]
        found = []
        for number, result in each(calls, deadline):
            if isinstance(result, BaseException):
                lacks.append(f"the last hour of {names[number]}: {result}")
            else:
                found.append(result)
        return _as_metrics(found)


def _as_metrics(answers: Sequence[Any]) -> pd.DataFrame | None:
    """Return range answers in the columns of `workbench.frames.METRICS`."""
    import pandas as pd

    from workbench.frames import METRICS
    from workbench.sources.prometheus.frame import matrix_frame

    if not answers:
        return None
    told = matrix_frame(answers)
    columns: dict[str, Any] = {}
    for name, dtype in METRICS.items():
        if name not in told.columns:
            columns[name] = pd.Series([None] * len(told), dtype="Int64" if dtype == "Int64" else "category")
        elif name == "gpu_index":
            columns[name] = told[name].astype("object").astype("Int64")
        else:
            columns[name] = told[name]
    return pd.DataFrame(columns)


class _Asked:
    """The instant queries of one poll, and what their answers mean."""

    def __init__(self, known: _Names) -> None:
        self.known = known
        labels = known.labels
        self.node = first(labels, NODE_LABELS)
        identity = [name for name in dict.fromkeys((*ENTITY_LABELS, *_MODEL, *_POD)) if name in labels]
        uuid = first(labels, ("UUID", "uuid", "gpu_uuid"))
        # what tells one GPU from all others in as few bytes as do
        self.key = (uuid,) if uuid else tuple(name for name in ENTITY_LABELS if name in labels)
        by, key = ",".join(identity), ",".join(self.key)
        anchor = selector(known.anchor)
        self.queries: dict[str, str] = {
            "anchor": f"max by ({by}) ({anchor})",
            "seen": f"max by ({key}) (timestamp({anchor}))",
            "vanished": f"max by ({by}) (max_over_time({anchor}[{WINDOW}s])) unless on ({key}) {anchor}",
        }
        for name in FIELDS:
            if name in known.metrics and known.metrics[name] != known.anchor:
                self.queries[name] = f"max by ({key}) ({selector(known.metrics[name])})"
        self.questions: dict[str, Any] = {}
        for name in known.names:
            row = question_of(name)
            if row is None or not row.changed or row.kind not in _KINDS or row.score < LEAST or row.exporter != "dcgm":
                continue
            inner = row.promql(name, [], f"{WINDOW}s", "60s")
            beside = ",xid" if canonical(name)[0] == "DCGM_EXP_XID_ERRORS_COUNT" else ""
            self.questions[name] = row
            self.queries[f"? {name}"] = f"max by ({key}{beside}) ({inner})"

    def _key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(labels.get(name, "") for name in self.key)

    def gpus(self, answers: Mapping[str, Any], *, judged: bool) -> list[dict[str, Any]]:
        """Return the rows of all GPUs that have a sample now."""
        self.by_key: dict[tuple[str, ...], dict[str, Any]] = {}
        for labels, value in answers["anchor"]:
            row = self._row(labels)
            if row is None:
                continue
            if canonical(self.known.anchor)[0] in FIELDS:
                row[FIELDS[canonical(self.known.anchor)[0]]] = value * canonical(self.known.anchor)[1]
            self.by_key[self._key(labels)] = row | {"judged": judged}
        for name, column in (*FIELDS.items(), ("seen", "seen")):
            scale = 1.0 if name == "seen" else canonical(self.known.metrics.get(name, name))[1]
            for labels, value in answers.get(name, ()):
                if (row := self.by_key.get(self._key(labels))) is not None and value == value:
                    row[column] = int(value) if column == "xid" else value * scale
        return list(self.by_key.values())

    @staticmethod
    def _row(labels: Mapping[str, str]) -> dict[str, Any] | None:
        entity = entity_of(labels)
        if entity.node is None or entity.gpu is None:
            return None
        return {
            "node": entity.node,
            "gpu_index": entity.gpu.index,
            "gpu_uuid": entity.gpu.uuid,
            "pci": entity.gpu.pci,
            "sku": first_value(labels, _MODEL),
            "pod": entity.pod,
            "label": next((labels[name] for name in NODE_LABELS if labels.get(name)), None),
        }

    def changed(self, answers: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a finding for each change that says something of the GPU on which it was seen."""
        out: list[dict[str, Any]] = []
        seen: set[tuple[tuple[str, ...], str]] = set()
        for name, question in self.questions.items():
            for labels, value in answers.get(f"? {name}", ()):
                gpu = self.by_key.get(self._key(labels))
                if gpu is None or value != value:
                    continue
                field_name = canonical(name)[0]
                if field_name in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"):
                    told = labels.get("xid") or gpu.get("xid")
                    if not told or not str(told).isdigit() or int(told) == 0:
                        continue
                    code, status, cls, action, words = _xid(int(told))
                else:
                    code, cls, action = field_name, question.classes[0] if question.classes else "", "none"
                    status = "critical" if question.score >= CERTAIN else "warning"
                    words = f"{field_name} changed within the hour: {question.why}"
                if (self._key(labels), code) in seen:
                    continue
                seen.add((self._key(labels), code))
                out.append(
                    {
                        **_of(gpu),
                        "check": "metrics",
                        "code": code,
                        "status": status,
                        "class": cls,
                        "message": words,
                        "action": action,
                    }
                )
        for row in out:
            row |= {"time": time.time(), "source": "prometheus"}
        return out

    def vanished(self, answers: Mapping[str, Any], gpus: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
        """Return findings of GPUs and exporters that had samples within the hour and have none now; their GPUs are added to `gpus`."""
        alive = {row["node"] for row in gpus}
        uuids = {row["gpu_uuid"] for row in gpus if row["gpu_uuid"]}
        out: list[dict[str, Any]] = []
        silent: set[str] = set()
        for labels, _ in answers.get("vanished", ()):
            row = self._row(labels)
            if row is None or row["gpu_uuid"] in uuids:
                continue
            common = {"check": "metrics", "action": "none", "time": now, "source": "prometheus"}
            if row["node"] in alive:
                sign = signatures()["metric-gpu-vanished"]
                words = f"{sign.meaning} (last seen within the hour)"
                out.append({**_of(row), **common, "code": sign.id, "status": "critical", "class": sign.cls, "message": words})
            elif row["node"] not in silent:
                silent.add(row["node"])
                words = "its GPU exporter told of it within the hour and is silent now"
                out.append({"node": row["node"], **common, "code": "metric-exporter-gone", "status": "unknown", "message": words})
            gpus.append({**row, "judged": False, "gone": row["node"] not in alive})
        return out


def first_value(labels: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return the value of the first of some labels that is there."""
    return next((labels[name] for name in names if labels.get(name)), None)


def _of(gpu: Mapping[str, Any]) -> dict[str, Any]:
    return {"node": gpu["node"], "gpu_index": gpu["gpu_index"], "gpu_uuid": gpu["gpu_uuid"] or gpu["pci"]}


def _xid(code: int) -> tuple[str, str, str, str, str]:
    """Return code, status, class, action and words of an Xid when nothing more is known of it."""
    rule, row = rule_for(XidContext(code)), signatures()[f"xid-{code}"]
    cls = rule.cls or row.cls
    return (
        f"xid-{code}",
        rule.status,
        "" if cls == "unknown" else cls,
        rule.action,
        f"Xid {code} within the hour: {row.meaning or rule.why}",
    )


def _own_node(labels: Mapping[str, str]) -> str:
    """Return the node that a textfile of ours speaks of: its own word, not the scraper's."""
    return labels.get("exported_node") or labels.get("node") or ""


def _finding(labels: Mapping[str, str], value: float, checked: Mapping[str, float | None], now: float) -> dict[str, Any] | None:
    node = _own_node(labels)
    if not node or not 0 <= int(value) < len(STATUSES):
        return None
    gpu, row = labels.get("gpu") or labels.get("exported_gpu") or "", findings_table().get(labels.get("code", ""))
    part = labels.get("part", "")
    when = checked.get(node)
    return {
        "node": node,
        "gpu_index": int(gpu) if gpu.isdigit() else None,
        "gpu_uuid": gpu if gpu and not gpu.isdigit() else None,
        "check": labels.get("check", ""),
        "code": labels.get("code", ""),
        "status": STATUSES[int(value)],
        "class": row.cls if row else "",
        "message": f"{f'{part}: ' if part else ''}{row.meaning if row else labels.get('code') or labels.get('check', '')}",
        "action": labels.get("action", "none"),
        "time": when if when is not None else now,
        "source": "workbench check",
    }
