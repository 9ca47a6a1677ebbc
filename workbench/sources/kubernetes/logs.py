"""Turn the container logs of a job's pods, as their kubelets still have them, into one file a container in the incident folder."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from workbench.errors import SourceError
from workbench.parse.kubernetes_reasons import epoch
from workbench.sources.contract import Answer, Deadline, Folder, FolderFull, Scope, SourceTimeout
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.collect import ODD, rule
from workbench.sources.kubernetes.errors import ApiError
from workbench.sources.kubernetes.jobs import Found, Wanted, path_of

__all__ = ["Log", "collect_logs", "logs_of"]

_THREADS = 8
_SILENT = 32  # kubelets that do not answer while none does: then the way to all of them is closed
_ONE = 20.0  # most seconds for one log: a dead node must not eat the time of the others
# the API server's words when it cannot reach a kubelet
_KUBELET = re.compile(
    r"dial tcp|proxy error|no route to host|connection refused|i/o timeout|no preferred addresses|remote error|EOF|context deadline"
    r"|nodes \"?\S+\"? not found",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Log:
    """One log to fetch: the current or the previous run of a container."""

    pod: str
    container: str
    node: str
    previous: bool
    file: str


def logs_of(pods: list[dict[str, Any]]) -> list[Log]:
    """Return the logs that pods have, those of the containers that failed first."""
    wanted: list[tuple[tuple[int, float], Log]] = []
    for pod in pods:
        spec, status, name = pod.get("spec") or {}, pod.get("status") or {}, str(pod["metadata"]["name"])
        if not spec.get("nodeName"):
            continue  # it never ran
        states = {
            str(one.get("name")): one for key in ("initContainerStatuses", "containerStatuses") for one in status.get(key) or []
        }
        mains = [str(one.get("name")) for one in spec.get("containers") or []]
        inits = [
            str(one.get("name"))
            for one in spec.get("initContainers") or []
            if _failed(states.get(str(one.get("name")), {}))[0] == 0
        ]
        for container in [*mains, *inits]:
            state = states.get(container, {})
            part = f".{container}" if len(mains) > 1 or container in inits else ""
            order = _failed(state)
            node = str(spec["nodeName"])
            if "waiting" not in (state.get("state") or {}) or state.get("restartCount"):
                wanted.append((order, Log(name, container, node, False, f"logs/{name}{part}.log")))
            if state.get("restartCount"):
                wanted.append((order, Log(name, container, node, True, f"logs/{name}{part}.previous.log")))
    return [log for _, log in sorted(wanted, key=lambda row: (row[0], row[1].file))]


def _failed(state: Mapping[str, Any]) -> tuple[int, float]:
    """Return 0 and when it ended for a container that failed, 1 for others: what is fetched first when time is short."""
    for key in ("state", "lastState"):
        ended = (state.get(key) or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return 0, epoch(ended.get("finishedAt")) or 0.0
    return 1, 0.0


def collect_logs(
    api: Api, found: Found, scope: Scope, folder: Folder, deadline: Deadline, *, lines: int, most: int
) -> list[Answer]:
    """
    Write the logs of a job's pods and return what became of them, as one answer of the source ``job``.

    Parameters
    ----------
    lines : int
        Last lines of each container.
    most : int
        Most bytes of each; of more the end is kept, where failures are.
    """
    try:
        logs = logs_of(found.pods)
    except ODD as error:
        detail = f"the pods have an unexpected shape ({type(error).__name__}: {error})"
        return [Answer("job", "failed", detail, "please report what the API server sends", "pods/log")]
    if not logs:
        detail = (
            "no pod of the job has run, so there is no log"
            if found.pods
            else "the pods are not known or gone, and their logs with them"
        )
        hint = "read them where they are shipped to: Elasticsearch, Loki, the shared file system"
        return [Answer("job", "missing", detail, hint, "pods/log")]
    began = time.monotonic()
    most = max(min(most, (folder.limit - folder.size) // (2 * len(logs))), 64 << 10)
    work = _Work(api, str(found.namespace), scope, folder, deadline, lines, most)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="kubernetes") as pool:
        list(pool.map(work.fetch, logs))
    return [work.answer(len(logs), time.monotonic() - began)]


class _Work:
    """What the threads share: whom not to ask again, and what came."""

    def __init__(self, api: Api, namespace: str, scope: Scope, folder: Folder, deadline: Deadline, lines: int, most: int) -> None:
        self.api, self.namespace, self.scope, self.folder, self.deadline = api, namespace, scope, folder, deadline
        self.lines, self.most = lines, most
        self.stop: SourceError | None = None  # nothing more is asked
        self.silent: dict[str, str] = {}  # node → why its kubelet does not answer
        self.errors: list[str] = []
        self.came = self.empty = self.kept = self.cut = self.late = self.size = self.unasked = 0
        self._lock = threading.Lock()

    def fetch(self, log: Log) -> None:
        """Fetch one log; whatever goes wrong is counted."""
        if self.stop is not None or self.deadline.over or log.node in self.silent:
            with self._lock:
                self.unasked += 1
            return
        if self.folder.has(log.file):
            with self._lock:
                self.kept += 1
            return
        tail = _Tail(self.most)
        late: SourceError | None = None
        try:
            self._ask(log, tail)
        except SourceTimeout as error:
            late = error
            if not tail.size:
                with self._lock:
                    self.late += 1
                    self.silent.setdefault(log.node, "no answer in time")
                return
        except ApiError as error:
            self._failed(log, error)
            return
        self._write(log, tail, late)

    def _ask(self, log: Log, tail: _Tail) -> None:
        query: dict[str, Any] = {"container": log.container, "timestamps": "true", "tailLines": self.lines}
        if log.previous:
            query["previous"] = "true"
        elif (since := self.scope.since - 60 - abs(self.api.offset or 0.0)) > 0:
            query["sinceTime"] = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = path_of("", "v1", "pods", self.namespace, log.pod) + "/log"
        # one try only: a kubelet that is not there stays away for longer than we wait
        self.api.get(path, Deadline(self.deadline.left(_ONE)), query, accept="*/*", tries=1, sink=tail.add)

    def _failed(self, log: Log, error: ApiError) -> None:
        with self._lock:
            if error.kind in ("forbidden", "auth", "refused", "tls", "not-json"):
                self.stop = self.stop or error
            elif error.kind == "absent" or error.status == 400:
                self.errors.append(f"{log.pod}: {error}")  # the pod went meanwhile, or the container has no such run
            elif error.kind == "server" and _KUBELET.search(str(error)):
                self.silent[log.node] = _why(str(error))
                if len(self.silent) >= _SILENT and not self.came:
                    self.stop = self.stop or SourceError("no kubelet answers, so the rest was not asked")
            else:
                self.errors.append(f"{log.pod}: {error}")

    def _write(self, log: Log, tail: _Tail, late: SourceError | None) -> None:
        if not tail.size:
            with self._lock:
                self.empty += 1
            return
        try:
            self.folder.write(log.file, tail.content())
        except (FolderFull, OSError, ValueError) as error:
            with self._lock:
                self.stop = error if isinstance(error, SourceError) else SourceError(f"{log.file} could not be written: {error}")
            return
        with self._lock:
            self.came += 1
            self.size += min(tail.size, self.most)
            self.cut += tail.size > self.most or late is not None or tail.lines >= self.lines

    def answer(self, count: int, seconds: float) -> Answer:
        """Return what became of all of them."""
        asked = "pods/log?" + urlencode({"tailLines": self.lines, "timestamps": "true"})
        have = self.came + self.kept
        said = [f"{have} of {count} container logs" + (f", {self.size / 2**20:.1f} MiB" if self.size else "")]
        hint = ""
        if self.kept:
            said.append(f"{self.kept} from an earlier collection")
        if self.empty:
            said.append(f"{self.empty} empty")
        if self.cut:
            said.append(f"of {self.cut} the end only ({self.lines} lines or {self.most >> 10} KiB)")
        if self.silent:
            node, why = next(iter(self.silent.items()))
            said.append(
                f"the kubelet of {node} does not answer ({why})"
                + (f", nor those of {len(self.silent) - 1} other nodes" if len(self.silent) > 1 else "")
            )
            hint = "read the logs where they are shipped to, or on the node: /var/log/pods"
        if self.late or (self.deadline.over and have < count):
            said.append("the deadline came first")
            hint = hint or "give it more time: --deadline 120s"
        if self.errors:
            said.append(self.errors[0] + (f" and {len(self.errors) - 1} more" if len(self.errors) > 1 else ""))
        if self.stop is not None:
            said.append(str(self.stop))
            forbidden = isinstance(self.stop, ApiError) and self.stop.kind == "forbidden"
            hint = rule(Wanted("get", "", "pods/log", self.namespace)) if forbidden else self.stop.hint
        if not have:
            status = "missing" if self.empty and not (self.silent or self.stop or self.errors or self.late) else "failed"
        else:
            status = "ok" if have + self.empty >= count and not self.cut else "partial"
        return Answer("job", status, "; ".join(said), hint, asked, "logs/" if have else "", have, seconds)


def _why(said: str) -> str:
    """Return why a kubelet does not answer, without the address that was asked, in which our own question stands again."""
    return re.sub(r"^.*?(?=" + _KUBELET.pattern + ")", "", said, flags=re.IGNORECASE)[:120]


class _Tail:
    """Keeps the last bytes of what comes."""

    def __init__(self, most: int) -> None:
        self.most, self.size, self.lines = most, 0, 0
        self._blocks: deque[bytes] = deque()
        self._held = 0

    def add(self, block: bytes) -> None:
        """Take a block and forget what is too old for the limit."""
        self._blocks.append(block)
        self.size += len(block)
        self._held += len(block)
        self.lines += block.count(b"\n")
        while self._held - len(self._blocks[0]) >= self.most:
            self._held -= len(self._blocks.popleft())

    def content(self) -> bytes:
        """Return whole lines only, at most the limit."""
        kept = b"".join(self._blocks)
        if len(kept) <= self.most and self.size == len(kept):
            return kept
        kept = kept[-self.most :]
        return kept[kept.find(b"\n") + 1 :]
