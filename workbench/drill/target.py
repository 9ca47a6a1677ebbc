"""Turn the servers that a user names into a place for game days, or into every reason why nothing may be written there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from workbench.drill.documents import MAPPING
from workbench.drill.objects import MARK, SIMULATED
from workbench.drill.remote_write import HEADERS, body
from workbench.errors import SourceError, WorkbenchError
from workbench.parse.kubernetes_reasons import epoch
from workbench.simulation.metrics import Sample
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError

if TYPE_CHECKING:
    from workbench.config import Config

__all__ = ["SHARED", "YES", "NotATarget", "Target", "configured"]

YES, SHARED = "yes", "beside-real-nodes"  # values of the mark: a cluster with simulated nodes only, or with others too
LABEL = ("workbench_game_day", "yes")  # on each series: real ones of the same nodes' names are told apart by it
_MERGE, _STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
_SECONDS = 30.0
_ALIVE = 45.0  # seconds since a simulated node's last heartbeat within which somebody still feeds it; they come each 10 s
_DOCUMENTS = 2000  # of one bulk request


class NotATarget(WorkbenchError):
    """A server is not marked for game days, or could not be asked whether it is."""

    exit_code = 78


def configured(
    kubeconfig: str, context: str | None, namespace: str, prometheus: str | None, elasticsearch: str | None, index: str
) -> Config:
    """
    Return the settings with which the live path reads: the servers that are named and no other, whatever files and the environment say.

    Credentials and certificates are the settings' own (``prometheus.token_file`` …).
    """
    from workbench.config import load_config

    flags: dict[str, Any] = {
        "kubernetes.kubeconfig": kubeconfig, "kubernetes.context": context, "kubernetes.namespace": namespace,
        "kubernetes.enabled": "true", "prometheus.url": prometheus, "elasticsearch.url": elasticsearch, "elasticsearch.index": index,
        "prometheus.enabled": "true" if prometheus else "false", "elasticsearch.enabled": "true" if elasticsearch else "false",
        "slurm.enabled": "false", "node.enabled": "false",
    }  # fmt: skip
    return load_config(flags=flags)


@dataclass(slots=True)
class Target:
    """
    What is written to, and how; `config` is of `configured`.

    Attributes
    ----------
    index : str
        Of Elasticsearch: a game day's own.
    """

    config: Config
    api: Api
    namespace: str
    index: str
    _log: Any = None
    _metrics: Any = None

    @classmethod
    def of(cls, config: Config) -> Target:
        """Return the target that settings name; nothing is asked yet."""
        from workbench.sources.elasticsearch.server import Server
        from workbench.sources.prometheus.source import Prometheus
        from workbench.sources.site import sources_of

        made = cls(
            config, Api(config["kubernetes.kubeconfig"], config["kubernetes.context"]), str(config["kubernetes.namespace"]),
            str(config["elasticsearch.index"]),
        )  # fmt: skip
        for source in sources_of(config)[0]:
            if source.name == "elasticsearch":
                made._log = Server(source.access)  # type: ignore[attr-defined]
            elif isinstance(source, Prometheus):
                made._metrics = source
        return made

    @property
    def has_logs(self) -> bool:
        """Whether an Elasticsearch is named."""
        return self._log is not None

    @property
    def has_metrics(self) -> bool:
        """Whether a Prometheus is named."""
        return self._metrics is not None

    # ---- whether anything may be written

    def check(self, nodes: Sequence[str]) -> None:
        """
        Make sure that a game day may write here; only reads.

        Raises
        ------
        NotATarget
            With every reason. What could not be asked is a reason, too.
        """
        reasons = [*self._cluster(nodes), *self._index(), *self._series(nodes)]
        if reasons:
            raise NotATarget(
                "no game day here: " + "; ".join(reasons),
                hint=f"who may decide it marks the cluster: kubectl create namespace {self.namespace}; "
                f"kubectl annotate namespace {self.namespace} {MARK}={YES}",
            )

    def _cluster(self, nodes: Sequence[str]) -> list[str]:
        try:
            space = self.api.json(f"/api/v1/namespaces/{quote(self.namespace, safe='')}", Deadline(_SECONDS))
        except SourceError as error:
            return [f"namespace {self.namespace} of the cluster could not be read: {error}"]
        mark = ((space.get("metadata") or {}).get("annotations") or {}).get(MARK)
        if mark not in (YES, SHARED):
            return [f"namespace {self.namespace} has no annotation {MARK}={YES}"]
        try:
            listing = self.api.list("/api/v1/nodes", Deadline(_SECONDS))
        except SourceError as error:
            return [f"the cluster's nodes could not be read: {error}"]
        if listing.error is not None:
            return [f"not all of the cluster's nodes could be read: {listing.error}"]
        real = {one["metadata"]["name"] for one in listing.items if SIMULATED not in (one["metadata"].get("labels") or {})}
        if same := sorted(real.intersection(nodes)):
            return [f"the cluster has a node {same[0]} that no game day made"]
        if real and mark != SHARED:
            return [f"the cluster has {len(real)} nodes that no game day made, and its mark is not {SHARED}"]
        return self._another(listing.items)

    def _another(self, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
        """A game day that runs deletes what every other made: there is one at a time."""
        try:
            pods = self.api.list(self.pods_path(), Deadline(_SECONDS), {"labelSelector": SIMULATED})
        except SourceError as error:
            return [f"the pods of namespace {self.namespace} could not be read: {error}"]
        busy = {
            (one.get("spec") or {}).get("nodeName") for one in pods.items if (one.get("status") or {}).get("phase") == "Running"
        }
        for one in nodes:
            ready = [row for row in (one.get("status") or {}).get("conditions") or [] if row.get("status") == "True"]
            beats = [epoch(row.get("lastHeartbeatTime")) or 0.0 for row in ready]
            if one["metadata"]["name"] in busy and max(beats, default=0.0) > time.time() - _ALIVE:
                return ["another game day runs in this cluster"]
        return []

    def _index(self) -> list[str]:
        if self._log is None:
            return []
        if not re.fullmatch(r"game-day-[a-z0-9-]{1,60}", self.index):
            return [f"the index of a game day begins with game-day-, not {self.index!r}"]
        try:
            found = self._log.ask(
                "GET", f"/{self.index}/_mapping", Deadline(_SECONDS), params={"ignore_unavailable": "true"}
            ).body
        except SourceError as error:
            return [f"Elasticsearch could not be asked for its indices: {error}"]
        for name, about in found.items():
            if not ((about.get("mappings") or {}).get("_meta") or {}).get("workbench_game_day"):
                return [f"index {name} is there, and no game day made it"]
        return []

    def _series(self, nodes: Sequence[str]) -> list[str]:
        if self._metrics is None:
            return []
        names = "|".join(map(re.escape, nodes))
        matcher = f'__name__=~"DCGM_.+",Hostname=~"{names}",{LABEL[0]}=""'.replace("\\", "\\\\")
        try:
            rows, _ = self._metrics.api.instant(f"count(last_over_time({{{matcher}}}[1d]))", time.time(), Deadline(_SECONDS))
        except SourceError as error:
            return [f"Prometheus could not be asked whether it knows such nodes: {error}"]
        return ["Prometheus has GPU metrics of nodes of these names that no game day wrote"] if rows else []

    # ---- Kubernetes

    def make(self, path: str, item: Mapping[str, Any]) -> None:
        """Make an object; one of a game day that is there already stays as it is."""
        try:
            self.api.send("POST", path, item, Deadline(_SECONDS), tries=1)
        except ApiError as error:
            if error.status != 409:
                raise
            there = self.api.json(f"{path}/{item['metadata']['name']}", Deadline(_SECONDS))
            if SIMULATED not in (there["metadata"].get("labels") or {}):
                raise NotATarget(f"{item['kind']} {item['metadata']['name']} is there, and no game day made it") from None

    def status(self, path: str, change: Mapping[str, Any]) -> None:
        """Write the status of an object that a game day made, as its kubelet would."""
        kind = _STRATEGIC if "/nodes/" in path else _MERGE
        self.api.send("PATCH", f"{path}/status", change, Deadline(_SECONDS), kind=kind)

    def remove_node(self, name: str) -> None:
        """Delete a simulated node; one that a game day did not make is left alone."""
        path = f"/api/v1/nodes/{name}"
        if SIMULATED in (self.api.json(path, Deadline(_SECONDS))["metadata"].get("labels") or {}):
            self.api.send("DELETE", path, {}, Deadline(_SECONDS))

    def pods_path(self, name: str = "") -> str:
        """Return the path of the game day's pods, or of one."""
        return f"/api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")

    def clear(self, *, nodes: bool) -> None:
        """Delete the pods of game days in the namespace, and with `nodes` the simulated nodes and the index; nothing that bears no mark."""
        self._delete(self.pods_path(), {"gracePeriodSeconds": 0})
        if not nodes:
            return
        self._delete("/api/v1/nodes", {})
        if self._log is not None and not self._index():
            self._log.ask("DELETE", f"/{self.index}", Deadline(_SECONDS), params={"ignore_unavailable": "true"})

    def _delete(self, path: str, options: Mapping[str, Any]) -> None:
        listing = self.api.list(path, Deadline(_SECONDS), {"labelSelector": SIMULATED})
        for item in listing.items:
            try:
                self.api.send("DELETE", f"{path}/{item['metadata']['name']}", options, Deadline(_SECONDS))
            except ApiError as error:
                if error.status != 404:
                    raise

    # ---- logs and metrics

    def open_index(self) -> None:
        """Make the index, if it is not there."""
        if self._log is None:
            return
        if not self._log.ask("GET", f"/{self.index}/_mapping", Deadline(_SECONDS), params={"ignore_unavailable": "true"}).body:
            self._log.ask("PUT", f"/{self.index}", Deadline(_SECONDS), body=MAPPING)

    def index_lines(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """
        Index documents; they can be searched when this returns.

        Raises
        ------
        SourceError
            One was refused.
        """
        for at in range(0, len(rows), _DOCUMENTS):
            lines: list[Mapping[str, Any]] = []
            for row in rows[at : at + _DOCUMENTS]:
                lines += [{"create": {}}, row]
            answer = self._log.ask(
                "POST", f"/{self.index}/_bulk", Deadline(_SECONDS), body=lines, params={"refresh": "true"}
            ).body
            if answer.get("errors"):
                bad = next(one["create"] for one in answer["items"] if one["create"].get("error"))
                raise SourceError(f"Elasticsearch refused a line: {str(bad['error'])[:300]}")

    def write_samples(self, samples: Iterable[Sample]) -> None:
        """
        Send samples by remote write.

        Raises
        ------
        SourceError
            The server refused them, or has no receiver for remote writes.
        """
        import requests

        client = self._metrics.api.http.client
        session = client._session
        url = client.url.rstrip("/") + "/api/v1/write"
        try:
            answer = session.post(
                url, data=body(samples, (LABEL,)), headers=HEADERS, timeout=_SECONDS, allow_redirects=False,
                verify=None if session.verify is True else session.verify,
            )  # fmt: skip
        except requests.RequestException as error:
            raise SourceError(f"Prometheus did not take the samples: {type(error).__name__}") from error
        if answer.status_code >= 300:
            raise SourceError(
                f"Prometheus did not take the samples (HTTP {answer.status_code}): {answer.text[:200].strip()}",
                hint="it takes them with --web.enable-remote-write-receiver" if answer.status_code == 404 else "",
            )
