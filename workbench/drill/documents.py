"""Turn the log files of a simulated incident into documents as Filebeat ships them from a Kubernetes cluster, each with its moment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.parse.kubernetes_reasons import epoch
from workbench.parse.prefix import context, split_prefix

__all__ = ["MAPPING", "documents"]

# as Filebeat's own template maps them, as far as anything here has the field; the mark says whose index it is
MAPPING: dict[str, Any] = {
    "settings": {"number_of_replicas": 0},
    "mappings": {
        "_meta": {"workbench_game_day": True},
        "dynamic_templates": [{"words": {"match_mapping_type": "string", "mapping": {"type": "keyword"}}}],
        "properties": {
            "@timestamp": {"type": "date"},
            "message": {"type": "text"},
            "log": {"properties": {"offset": {"type": "long"}}},
        },
    },
}


def documents(folder: Path, pods: Mapping[str, str], namespace: str) -> Iterator[tuple[float, dict[str, Any]]]:
    """
    Yield (seconds since the epoch, document) of all lines of the nodes' logs, file by file.

    Parameters
    ----------
    folder : Path
        What `workbench.simulation.evidence.write_incident` wrote.
    pods : mapping
        Node → the job's pod on it; what no pod wrote (a scheduler's log) is left out: nobody ships it.
    namespace : str
        Of the pods.
    """
    for path in sorted((folder / "logs").glob("*.log")):
        node = path.stem
        if node not in pods:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        about = context(lines, _year(folder))
        moment: float | None = None
        offset = 0
        fields = {
            "kubernetes": {
                "pod": {"name": pods[node]}, "namespace": namespace, "node": {"name": node}, "container": {"name": "pytorch"},
            },
        }  # fmt: skip
        for line in lines:
            time = split_prefix(line, about).time
            moment = time if time is not None else moment
            if moment is not None:
                place = {"path": f"/var/log/containers/{pods[node]}.log"}
                yield moment, {**fields, "@timestamp": _iso(moment), "message": line, "log": {"file": place, "offset": offset}}
            offset += len(line.encode()) + 1
    for path in sorted((folder / "kernel").glob("*.log")):
        offset = 0
        for line in path.read_text(encoding="utf-8").splitlines():
            stamp, _, rest = line.partition(" ")
            moment = epoch(stamp)
            if moment is not None:
                yield (
                    moment,
                    {
                        "@timestamp": _iso(moment),
                        "message": re.sub(r"^\S+ kernel: ", "", rest),
                        "log": {
                            "offset": offset,
                            "file": {"path": "/var/log/kern.log"},
                            "syslog": {"facility": {"name": "kern"}, "appname": "kernel"},
                        },
                        "host": {"name": path.stem},
                    },
                )
            offset += len(line.encode()) + 1


def _year(folder: Path) -> int:
    return datetime.fromtimestamp(next(iter(sorted(folder.rglob("*.log")))).stat().st_mtime, UTC).year


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
