"""
Turn a Lease of Kubernetes (coordination.k8s.io/v1) into the lock that one controller of a cluster holds.

No two clocks are compared: that another let its lease expire is concluded from its not changing for so long by a clock of ours that only grows,
and our own lease is given up by that clock before anybody else may take it, since it counts from the moment before the renewal was sent. Right
before each change the server is asked once more, since a process may stand still between its decision and its request.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from workbench.errors import SourceError
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.kubernetes.calls import Conflict, told
from workbench.remediation.moments import steady
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError

__all__ = ["LeaseLock"]

SPACE, NAME = "gpu-workbench", "gpu-workbench-controller"
_GROUP = "coordination.k8s.io"
_MARGIN = 0.2  # part of the lease's time before its end from which it counts as lost, and by which another waits longer
_RENEW = 5.0  # seconds that a renewal may take at most


class LeaseLock:
    """
    A lock that a controller takes, renews and gives back; see `workbench.remediation.executors.contract.Lock`.

    Parameters
    ----------
    api : Api
        The server, with the rights of ``workbench config rbac --remediation``.
    name, namespace : str
        Of the Lease.
    identity : str, optional
        Who we are, not to be shared by two processes; default host, process and a random part.
    seconds : float
        How long a lease lasts without a renewal.
    clock : callable, optional
        Returns seconds that only grow.
    now : callable, optional
        Returns seconds since the epoch: for the times that people read in the Lease.

    Attributes
    ----------
    token : str
        Number of the holder, with leading zeros: it grows with each new one, also as text.
    """

    def __init__(
        self,
        api: Api,
        *,
        name: str = NAME,
        namespace: str = SPACE,
        identity: str = "",
        seconds: float = 30.0,
        clock: Callable[[], float] = steady,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.api, self.seconds = api, seconds
        self.identity = identity or f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self.token = ""
        self._name, self._space = name, namespace
        self._clock, self._now = clock, now
        self._until = 0.0  # by our clock: when it is not surely ours any more
        self._half = 0.0  # from when it is renewed
        self._version = ""
        self._seen: tuple[str, float] | None = None  # another's lease: its version, and when we saw it first

    @property
    def _path(self) -> str:
        return f"/apis/{_GROUP}/v1/namespaces/{quote(self._space, safe='')}/leases"

    def acquire(self, deadline: Deadline) -> bool:
        """
        Take the lease when nobody holds it or its holder let it expire; False when another holds it, or may.

        A lease of another is watched by being asked again: it takes one lease's time, and a margin, from the first call until an
        abandoned one is taken over.

        Raises
        ------
        ExecutorError
            The server did not answer or refused: whether we hold it is not known, and `held` says no.
        """
        if self.held():
            return True
        began = self._clock()
        lease = self._read(deadline)
        try:
            if lease is None:
                taken = self._send("POST", self._path, self._body({}, 0), deadline)
            else:
                spec, version = lease.get("spec") or {}, str(lease["metadata"].get("resourceVersion"))
                holder = str(spec.get("holderIdentity") or "")
                if holder and holder != self.identity and not self._expired(version, spec):
                    return False
                transitions = int(spec.get("leaseTransitions") or 0) + (holder != self.identity)
                taken = self._send("PUT", f"{self._path}/{self._name}", self._body(lease, transitions), deadline)
        except Conflict:
            self._seen = None
            return False  # another was faster
        self._take(taken, began)
        return True

    def held(self) -> bool:
        """Tell whether it is surely ours; renews it after half its time."""
        if not self._version or self._clock() >= self._until:
            return False
        if self._clock() >= self._half:
            self._renew()
        return bool(self._version) and self._clock() < self._until

    def confirm(self, deadline: Deadline) -> bool:
        """
        Tell whether it is ours by our clock and by what the server has at this moment.

        A machine that was paused by its hypervisor did not see time pass: by its clock the lease is fresh, and the server knows better.

        Raises
        ------
        ExecutorError
            The server does not answer.
        """
        if not self.held():
            return False
        lease = self._read(Deadline(deadline.left(_RENEW)))
        spec = (lease or {}).get("spec") or {}
        if spec.get("holderIdentity") != self.identity or f"{int(spec.get('leaseTransitions') or 0):010d}" != self.token:
            self._version = ""
        return bool(self._version) and self._clock() < self._until

    def release(self) -> None:
        """Give it back, so that another need not wait for its end; that this fails costs the others that time only."""
        if not self._version:
            return
        deadline = Deadline(_RENEW)
        try:
            lease = self._read(deadline)
            if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                body = self._body(lease, int(lease["spec"].get("leaseTransitions") or 0))
                body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                self._send("PUT", f"{self._path}/{self._name}", body, deadline)
        except (ExecutorError, SourceError):
            pass
        self._version = ""

    def _renew(self) -> None:
        """Renew it; what goes wrong leaves it ours until its time is over, unless another holds it."""
        began = self._clock()
        deadline = Deadline(min(_RENEW, max(self._until - began, 0.1)))
        try:
            lease = self._read(deadline)
            if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self.identity:
                self._version = ""
                return
            transitions = int(lease["spec"].get("leaseTransitions") or 0)
            self._take(self._send("PUT", f"{self._path}/{self._name}", self._body(lease, transitions), deadline), began)
        except (ExecutorError, SourceError):
            # asked again soon, not at each question: a server that is away must not cost each step five seconds
            self._half = self._clock() + self.seconds / 20

    def _take(self, lease: Mapping[str, Any], began: float) -> None:
        self._version = str(lease["metadata"].get("resourceVersion"))
        self.token = f"{int((lease.get('spec') or {}).get('leaseTransitions') or 0):010d}"
        self._until, self._half = began + self.seconds * (1 - _MARGIN), began + self.seconds / 2
        self._seen = None

    def _expired(self, version: str, spec: Mapping[str, Any]) -> bool:
        """Tell whether another's lease stayed the same for its whole time and our margin, by our clock."""
        if self._seen is None or self._seen[0] != version:
            self._seen = version, self._clock()
            return False
        lasts = max(float(spec.get("leaseDurationSeconds") or 0), self.seconds)
        return self._clock() - self._seen[1] >= lasts * (1 + _MARGIN)

    def _body(self, lease: Mapping[str, Any], transitions: int) -> dict[str, Any]:
        stamp = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = lease.get("spec") or {}
        meta = lease.get("metadata") or {}
        kept = {"resourceVersion": meta["resourceVersion"]} if "resourceVersion" in meta else {}
        return {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._space, **kept},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(int(self.seconds), 1),
                "acquireTime": old.get("acquireTime") if old.get("holderIdentity") == self.identity else stamp,
                "renewTime": stamp,
                "leaseTransitions": transitions,
            },
        }

    def _read(self, deadline: Deadline) -> dict[str, Any] | None:
        try:
            return self.api.json(f"{self._path}/{self._name}", deadline)
        except SourceError as error:
            if isinstance(error, ApiError) and error.kind == "absent":
                return None
            raise told(error, ("get", _GROUP, "leases"), wrote=False) from error

    def _send(self, method: str, path: str, body: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        try:
            return self.api.send(method, path, body, deadline, tries=1)
        except SourceError as error:
            raise told(error, ("create" if method == "POST" else "update", _GROUP, "leases"), wrote=True) from error
