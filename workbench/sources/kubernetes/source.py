"""
Turn a Kubernetes cluster into what it knows of a job: where it ran, and the files of an incident folder that tell how it ended.

Reads only: it lists, gets, and asks for reviews of its own rights. What it may do is the manifest ``rbac.yaml``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workbench.errors import SourceError
from workbench.sources.contract import Answer, Deadline, Folder, Reach, Scope
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.collect import ODD, Collection, rule
from workbench.sources.kubernetes.doctor import Doctor
from workbench.sources.kubernetes.errors import ApiError
from workbench.sources.kubernetes.jobs import Finder, Found, path_of, window_of
from workbench.sources.kubernetes.logs import collect_logs

__all__ = ["Kubernetes"]


class Kubernetes:
    """
    One Kubernetes cluster as a source; see `workbench.sources.contract.Source`.

    Parameters
    ----------
    kubeconfig : str or Path, optional
        Path of a kubeconfig; default ``$KUBECONFIG``, ``~/.kube/config``, or the service account of the pod we run in.
    context : str, optional
        Context of the kubeconfig; default its current one.
    namespace : str, optional
        Where jobs are looked for when the scope does not say; default all namespaces, or, when pods may not be listed in all of
        them, the context's own.
    page : int
        Objects a page of a list.
    log_lines : int
        Last lines of each container's log; 0 leaves logs out.
    log_bytes : int
        Most bytes of each container's log.
    clock : callable, optional
        Returns the seconds since the epoch.
    """

    name = "kubernetes"

    def __init__(
        self,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        *,
        namespace: str | None = None,
        page: int = 500,
        log_lines: int = 20_000,
        log_bytes: int = 16 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = Api(str(kubeconfig) if kubeconfig else None, context, clock)
        self._namespace, self._page, self._clock = namespace, page, clock
        self._log_lines, self._log_bytes = log_lines, log_bytes

    def _placed(self, scope: Scope) -> Scope:
        return scope if scope.namespace or not self._namespace else replace(scope, namespace=self._namespace)

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        """
        Return the scope with the job's pods, nodes, namespace and window, or None when the cluster does not know the job.

        The window is that of the job (made, started, last container ended, and ten minutes of what follows) within the scope's; when
        the two do not overlap, the job's.

        Raises
        ------
        SourceError
            The server did not answer, may not be asked, or several namespaces have a job of this name.
        """
        self._api.open(deadline)
        try:
            return self._located(scope, deadline)
        except ODD as error:
            raise SourceError(
                f"the API server sent an object of an unexpected shape ({type(error).__name__}: {error})",
                hint="please report what the API server sends",
            ) from error

    def _located(self, scope: Scope, deadline: Deadline) -> Scope | None:
        found = Finder(self._api, self._page).find(self._placed(scope), deadline)
        if not found.way:
            if found.lacks:  # could not look is not: is not there
                wanted, error = found.lacks[0]
                refused = isinstance(error, ApiError) and error.kind == "forbidden"
                raise SourceError(
                    f"job {scope.job} was not found, and not all could be asked: {wanted.verb} {wanted.resource}: {error}",
                    hint=rule(wanted) if refused else error.hint,
                )
            return None
        since, until = window_of(found, scope)
        nodes = tuple(dict.fromkeys([*scope.nodes, *found.nodes]))
        pods = tuple(dict.fromkeys([*found.names, *scope.pods]))
        addresses = tuple(dict.fromkeys([*scope.addresses, *found.addresses, *self._addresses(found, nodes, deadline)]))
        return replace(scope, namespace=found.namespace, nodes=nodes, pods=pods, since=since, until=until, addresses=addresses)

    def _addresses(self, found: Found, nodes: tuple[str, ...], deadline: Deadline) -> list[tuple[str, str]]:
        """Return the addresses of the nodes that no pod tells the address of, by the nodes' own word."""
        known = {node for _, node in found.addresses}
        wanted = {node for node in nodes if node not in known}
        if not wanted:
            return []
        path = path_of("", "v1", "nodes", None)
        try:
            items = self._api.list(
                path, deadline, page=self._page, keep=lambda item: str(item["metadata"]["name"]) in wanted
            ).items
        except SourceError:  # a help to others, not evidence; whether nodes may be read is told where they are collected
            return []
        return [
            (str(address["address"]), str(item["metadata"]["name"]))
            for item in items
            for address in (item.get("status") or {}).get("addresses") or ()
            if isinstance(address, dict) and address.get("address") and address["address"] != item["metadata"]["name"]
        ]

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """
        Write ``nodes.json``, ``pods.json``, ``events.json``, ``owners.json``, ``pdbs.json`` and ``logs/`` of the job's pods.

        Never raises; an answer tells of each of them. Values that look secret are left out before anything is written.
        """
        began = time.monotonic()
        try:
            self._api.open(deadline)
            collection = Collection(self._api, self._placed(scope), folder, deadline, page=self._page, clock=self._clock)
            answers = collection.objects()
        except SourceError as error:
            asked = f"job {scope.job}"
            answers = [Answer("kubernetes", "failed", str(error), error.hint, asked, seconds=time.monotonic() - began)]
            return [*answers, Answer("job", "failed", f"no container log: {error}", error.hint, "pods/log")]
        if self._log_lines <= 0:
            return answers
        failed = next(
            (one for one in answers if one.status == "failed" and one.asked in (f"job {scope.job}", "pods", "list pods")), None
        )
        if failed is not None and not collection.found.pods:
            return [
                *answers,
                Answer(
                    "job", "failed", f"no container log, since the pods are not known: {failed.detail}", failed.hint, "pods/log"
                ),
            ]
        return answers + collect_logs(
            self._api, collection.found, scope, folder, deadline, lines=self._log_lines, most=self._log_bytes
        )

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return version, identity, rights, clock, age of events, GPUs, device plugin and monitors; never raises."""
        return Doctor(self._api, self._namespace, self._page, self._clock).examine(deadline)
