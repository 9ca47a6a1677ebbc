"""Turn the metrics that somebody kept of nodes (exposition pages, answers of Prometheus) into what in them is a fault of a node."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.catalog import signatures
from workbench.catalog.xid_rules import XidContext, rule_for
from workbench.model import Event
from workbench.sources.files import Document

__all__ = ["METRICS", "metric_faults"]

METRICS = ("metrics-text", "metrics-json")

_OF_A_NODE = ("hardware/", "driver/")
_TOLD = 0.3  # weight from which it is worth a word: below, it is what every fleet shows every day


def metric_faults(document: Document) -> Iterator[Event]:
    """
    Yield what began in the metrics of one file, or stands in them, and is a fault of a node's hardware or driver.

    One file is judged at a time, as a node's own exporter tells it: its GPUs are compared with their own past and with each other, and what is
    in memory at once is one file.

    Parameters
    ----------
    document : Document
        Of one of the kinds `METRICS`.

    Yields
    ------
    Event
        As of `workbench.detect.metrics.detect_metrics`; `weight` is always set, and an Xid has the class that its rule gives it.
    """
    # NumPy comes with them: only who has metrics to read pays for it
    from workbench.detect.metrics import detect_metrics
    from workbench.parse.prom_json import parse_query_range
    from workbench.parse.prom_text import parse_exposition

    if document.kind == "metrics-json":
        parsed = parse_query_range(document.data, file=document.name)
    else:
        parsed = parse_exposition(document.raw or b"", file=document.name, node=document.node)
    document.raw = document.data = None  # what was parsed needs it no more
    for event in detect_metrics(parsed.series):
        kind = signatures()[event.signature]
        if event.signature == "metric-xid-change" and event.code is not None:
            rule = rule_for(XidContext(event.code))
            event.cls = rule.cls or signatures()[f"xid-{event.code}"].cls
            event.weight = {"critical": 0.7, "warning": 0.4}.get(rule.status, 0.0)
            event.role, event.data["remediation"] = "cause", rule.action
        if event.weight is None:
            event.weight = kind.weight
        # what is only context for a job's end (it was outside the job) is of the node all the same
        if kind.role != "cause" and event.role != "cause":
            continue
        if (event.cls or kind.cls).startswith(_OF_A_NODE) and event.weight >= _TOLD:
            event.role = "cause"
            yield event
