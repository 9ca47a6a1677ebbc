"""
Turn the logs that Elasticsearch or OpenSearch hold of a job into log files of an incident folder, and of its nodes into kernel logs.

A small job comes whole. Of a large one the server is asked what matters: the lines that may match a signature, what stands around the first
failures, and how the log of each rank begins and ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.errors import ConfigError, SourceError, SourceUnavailable, WorkbenchError
from workbench.sources.contract import Answer, Deadline, Folder, FolderFull, Reach, Scope, SourceTimeout
from workbench.sources.elasticsearch.examine import examined
from workbench.sources.elasticsearch.fields import Fields, detect
from workbench.sources.elasticsearch.files import REST, Stream, file_name, job_text, kernel_text, rest_text
from workbench.sources.elasticsearch.job import Asked, Found, find, streams_of, terms_of
from workbench.sources.elasticsearch.pull import pull
from workbench.sources.elasticsearch.push import pushed
from workbench.sources.elasticsearch.query import job_needles, kernel_needles
from workbench.sources.elasticsearch.server import Access, Refused, Server
from workbench.sources.elasticsearch.whole import PAGE, whole

__all__ = ["Access", "LogIndex"]

_KERNEL_FIRST = (
    3600.0  # seconds before the window from which kernel lines are asked for: what broke a node may have come before the job
)


_LINES_A_FILE = 2000  # of a job of which only some lines come, one file in so many lines is written


@dataclass
class LogIndex:
    """
    Logs in Elasticsearch (8, 9) or OpenSearch.

    Parameters
    ----------
    access : Access
        Address, product and credentials.
    index : str
        Index, alias, data stream or pattern that holds the logs, e.g. ``logs-*,filebeat-*``.
    preset : str
        Names of the fields: one of ``ecs``, ``beats``, ``fluentbit``, ``vector``, ``otel``, ``custom``; empty to detect them.
    fields : mapping
        Meaning → field, before the preset's.
    whole : int
        Lines up to which a job's logs come whole.
    most : int
        Lines that are fetched at most.
    clock : callable
        The time of day, seconds since the epoch.
    """

    access: Access
    index: str = "*"
    preset: str = ""
    fields: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    whole: int = 200_000
    most: int = 400_000
    clock: Any = time.time
    name: str = "elasticsearch"
    _server: Server | None = field(default=None, repr=False)
    _fields: Fields | None = field(default=None, repr=False)

    @property
    def server(self) -> Server:
        """The server, behind its client; made at first use."""
        if self._server is None:
            self._server = Server(self.access)
        return self._server

    def close(self) -> None:
        """Let go of the connections."""
        if self._server is not None:
            self._server.close()

    def detected(self, deadline: Deadline) -> Fields:
        """Return what the fields of the index mean; asked once."""
        if self._fields is None:
            self._fields = detect(self.server, self.index, deadline, preset=self.preset, custom=self.fields)
        return self._fields

    # -- the Source protocol --------------------------------------------------------------------------------------------

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        """
        Return the scope with the pods, nodes and namespace that the job's log lines name, or None when there is no such line.

        Raises
        ------
        SourceError
            The server did not answer.
        """
        fields = self.detected(deadline)
        if not fields.message or not fields.time:
            return None
        asked = Asked(self.server, self.index, fields, deadline)
        found = find(asked, scope)
        if not found.total or not found.sure:
            return None
        seen = terms_of(asked, found, ("pod", "node", "namespace"))
        spaces = seen["namespace"]
        return replace(
            scope,
            pods=scope.pods or tuple(sorted(seen["pod"])),
            nodes=scope.nodes or tuple(sorted(seen["node"])),
            namespace=scope.namespace or (next(iter(spaces)) if len(spaces) == 1 else None),
        )

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """Write the logs of the job and the kernel logs of its nodes; every failure is an `Answer`, none is raised."""
        answers: list[Answer] = []
        # what has come is written after the server was asked for the last time, and a point in time is closed
        began = time.monotonic()
        left = max(deadline.left() if not deadline.over else 0.0, 0.0)
        work = Deadline(left - min(4.0, 0.2 * left))
        nodes: tuple[str, ...] = scope.nodes
        try:
            found = self._job(scope, folder, work, deadline, answers)
            if found is not None and not nodes:
                nodes = tuple(found.nodes)
        except Exception as error:
            answers.append(self._failure("job", error, began))
        try:
            if not any(each.status == "failed" for each in answers):
                self._kernel(replace(scope, nodes=nodes), folder, work, deadline, answers)
        except Exception as error:
            answers.append(self._failure("kernel", error, began))
        return answers

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return what ``workbench doctor`` says of this server; never raises."""
        try:
            return examined(self.server, self.index, deadline, lambda: self.detected(deadline), self.clock)
        except Exception as error:
            hint = error.hint if isinstance(error, WorkbenchError) else ""
            return [Reach("elasticsearch", "reachable", "critical", self.access.hidden(str(error)), hint, _BLIND)]

    # -- the job ----------------------------------------------------------------------------------------------------------

    def _job(self, scope: Scope, folder: Folder, deadline: Deadline, end: Deadline, answers: list[Answer]) -> Found | None:
        began, received, moved = time.monotonic(), self.server.received, self.server.moved
        fields = self.detected(deadline)
        where = f"{self.access.place}/{self.index}"
        if not fields.message or not fields.time:
            detail, hint = _unfit(where, fields)
            answers.append(Answer("job", "missing", detail, hint, where, seconds=time.monotonic() - began))
            return None
        asked = Asked(self.server, self.index, fields, deadline)
        found = find(asked, scope)
        if not found.total:
            why = f" ({'; '.join(found.trouble)})" if found.trouble else ""
            status = "failed" if found.trouble else "missing"
            answers.append(
                Answer(
                    "job",
                    status,
                    f"no log line of job {scope.job!r} in {where} within the window{why}",
                    'check the window and the index; name the field that holds the job: [elasticsearch.fields] job = "…"',
                    where,
                    seconds=time.monotonic() - began,
                )
            )
            return found
        trouble = list(found.trouble)
        # many small files take longer to write than their lines take to come
        many = asked.streams(found) if found.total > 20_000 else 0
        if found.total > self.whole:
            many = min(many, found.total // _LINES_A_FILE)
        left = end.left()
        asked.deadline = Deadline(left - min(max(4.0, many / 700), 0.4 * left))
        if found.total <= self.whole:
            streams, more = self._whole(asked, found, asked.deadline)
            trouble += more
            how = "whole"
        else:
            streams, more, remark = pushed(asked, found, job_needles(), most=self.most)
            trouble += more
            how = "the lines that matter" + (f": {remark}" if remark else "")
        try:
            trouble += found.rolled(asked)
        except SourceError:
            trouble = trouble or ["whether the index rolled over meanwhile could not be asked any more"]
        newest = max((each.time for stream in streams for each in stream.entries), default=found.last)
        names, lines = self._written(folder, "logs", streams, end, trouble)
        ahead = max(found.last, newest) - self.clock()
        if ahead > 60:
            trouble.append(f"its newest line is {ahead:.0f} s in the future: a clock is off")
        if abs(asked.offset) > 30:
            trouble.append(f"the server's clock is {asked.offset:+.0f} s off ours")
        detail = f"{lines:,} of {found.total:,} lines of {len(streams):,} streams ({how}) from {where}"
        detail += f", found {found.words}" if found.words else ""
        status, hint = "ok", ""
        if not found.sure:
            status, hint = "partial", 'name the field that holds the job: [elasticsearch.fields] job = "…"'
        late = scope.until - max(found.last, newest)
        if trouble:
            status, detail = "partial", f"{detail}; {'; '.join(trouble)}"
            hint = "ask again with a longer --deadline or a shorter window, or look at the server's health"
        elif late > max(900.0, 0.5 * (scope.until - scope.since)):
            status = "stale"
            detail += f"; the last one is {late / 60:.0f} min older than the window's end"
            hint = "check that the shipper still sends, or end the window where the job ended"
        size = f"{(self.server.moved - moved) / 1e6:.1f} MB moved ({(self.server.received - received) / 1e6:.1f} MB unpacked)"
        answers.append(
            Answer(
                "job", status, f"{detail}; {size}", hint, where,
                names[0] if names else "", lines, time.monotonic() - began,
                note=f"found {found.words}" if found.how not in ("job", "pod") else "",
            )
        )  # fmt: skip
        return found

    def _whole(self, asked: Asked, found: Found, deadline: Deadline) -> tuple[list[Stream], list[str]]:
        """Return all lines by stream, and what was wrong on the way; of more than may be fetched the first in time."""
        if found.total <= self.most:
            got = whole(asked, found, deadline, most=self.most, page=PAGE)
            return got.streams(asked, found), got.trouble
        wanted = asked.wanted(found)
        some = pull(asked.server, asked.index, found.query, asked.fields, wanted, deadline, most=self.most, page=PAGE)
        return streams_of(asked, found, some.rows), some.trouble

    def _written(
        self, folder: Folder, place: str, streams: Sequence[Stream], end: Deadline, trouble: list[str]
    ) -> tuple[list[str], int]:
        names: list[str] = []
        lines = 0
        rest = [stream for stream in streams if not stream.entries and stream.rank is not None]
        if rest:  # first: it is the shortest way to say the most
            name = f"{place}/{REST}.log"
            try:
                if not folder.has(name):
                    folder.write(name, b"".join(rest_text(rest, streams)))
                names.append(name)
            except FolderFull as error:
                trouble.append(str(error))
                return names, lines
            streams = [stream for stream in streams if stream.entries or stream.rank is None]
        for stream in streams:
            if end.over:
                trouble.append(f"the time was over when {len(names):,} of {len(streams):,} files were written")
                break
            name = f"{place}/{stream.name}.log"
            try:
                if not folder.has(name):
                    content = job_text(stream) if place == "logs" else kernel_text(stream, stream.name)
                    folder.write(name, b"".join(content))
                names.append(name)
                lines += stream.lines
            except FolderFull as error:
                trouble.append(str(error))
                break
        return names, lines

    # -- the kernel -------------------------------------------------------------------------------------------------------

    def _kernel(self, scope: Scope, folder: Folder, deadline: Deadline, end: Deadline, answers: list[Answer]) -> None:
        began = time.monotonic()
        fields = self.detected(deadline)
        node = fields.first("node")
        where = f"{self.access.place}/{self.index}"
        if not (fields.message and fields.time and node and fields.kernel and scope.nodes):
            return  # no kernel log comes here: another source may have it, and who has none is told by the coverage
        asked = Asked(self.server, self.index, fields, deadline)
        query = asked.kernel(scope, scope.since - _KERNEL_FIRST)
        total, first_trouble = asked.count(query)
        trouble = list(first_trouble)
        if not total:
            if trouble:
                answers.append(
                    Answer("kernel", "failed", f"{where}: {'; '.join(trouble)}", asked=where, seconds=time.monotonic() - began)
                )
            elif asked.count(asked.any_kernel(scope))[0]:
                answers.append(
                    Answer(
                        "kernel", "missing", f"{where} has kernel lines, but none of the job's {len(scope.nodes)} nodes",
                        "check that the shipper on these nodes reads the journal or /var/log/kern.log", where, seconds=time.monotonic() - began,
                    )
                )  # fmt: skip
            return
        found = Found(query, total, key=(_most_told(asked, query, total),), kernel=True)
        if total <= self.whole:
            streams, more = self._whole(asked, found, deadline)
            trouble += more
        else:
            streams, more, _ = pushed(asked, found, kernel_needles(), most=self.most // 2)
            trouble += more
        names, lines = self._written(folder, "kernel", streams, end, trouble)
        silent = [each for each in scope.nodes if file_name(each) not in {stream.name for stream in streams}]
        if silent:
            trouble.append(f"no kernel line of {len(silent)} nodes ({', '.join(silent[:3])}{' …' if len(silent) > 3 else ''})")
        detail = f"{lines:,} of {total:,} kernel lines of {len(streams):,} nodes from {where}"
        answers.append(
            Answer(
                "kernel", "partial" if trouble else "ok", "; ".join([detail, *trouble]), "", where,
                names[0] if names else "", lines, time.monotonic() - began,
            )
        )  # fmt: skip

    def _failure(self, source: str, error: Exception, began: float) -> Answer:
        hint = error.hint if isinstance(error, WorkbenchError) else "this is a defect of the workbench: please report it"
        if isinstance(error, ConfigError):
            hint = error.hint or "correct the configuration"
        detail = self.access.hidden(str(error) or type(error).__name__)
        if not isinstance(error, (SourceUnavailable, SourceTimeout, SourceError, ConfigError, Refused)):
            detail = f"{type(error).__name__}: {detail}"
        return Answer(source, "failed", detail, hint, f"{self.access.place}/{self.index}", seconds=time.monotonic() - began)


_BLIND = ("user/exception", "user/gpu-oom", "user/collective-mismatch", "user/hang", "platform/network")


def _unfit(where: str, fields: Fields) -> tuple[str, str]:
    if not fields.indices and not fields.named.get("message"):
        return (
            f"no index matches {where}, or we may see none",
            '[elasticsearch] index = "…"; grant read and view_index_metadata on it',
        )
    lacks = "message" if not fields.message else "time"
    return f"{where} has no field for the {lacks} of a line", f'name it: [elasticsearch.fields] {lacks} = "…"'


def _most_told(asked: Asked, query: Mapping[str, Any], total: int) -> str:
    """Return the node's field that most of the lines have: a shipper names it one way for pods and another for its own machine."""
    best, most = asked.fields.first("node"), -1
    for name in asked.fields.named["node"]:
        count, _ = asked.count({"bool": {"filter": [query, {"exists": {"field": name.removesuffix(".keyword")}}]}})
        if count > most:
            best, most = name, count
        if count >= total:
            break
    return best
