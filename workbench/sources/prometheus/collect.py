"""
Turn "what do you know of this job" into the metric files of an incident folder and an answer for each question asked.

A small job's series are taken whole. Of a large one the server is asked what changed, and where; only the nodes with changes and some
healthy ones beside them, for comparison, are taken: of 16,384 GPUs a few hundred travel.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from workbench.errors import SourceError
from workbench.parse.prom_labels import address_of, canonical
from workbench.sources.contract import Answer, Deadline, Folder, Scope, SourceTimeout
from workbench.sources.prometheus.api import Api
from workbench.sources.prometheus.http import QueryError, each, shown
from workbench.sources.prometheus.jobs import (
    NODE_LABELS,
    Gpus,
    View,
    families,
    find_gpus,
    lookup,
    node_addresses,
    question_of,
    questions,
)
from workbench.sources.prometheus.query import Matrix, any_of, equals, literal, quote, selector
from workbench.sources.prometheus.samples import inspect
from workbench.sources.prometheus.suspects import find_suspects

__all__ = ["CLOCK_OFF", "SMALL", "STALE", "Collection", "failure"]

SMALL = 64  # GPUs whose series are all taken
STALE = 300.0  # seconds without a sample while the job was up; Prometheus itself forgets a series after five minutes
CLOCK_OFF = 5.0  # seconds; the Date header has whole ones
MOST_FIELDS = 150
MOST_MISSING = 16  # nodes without GPU metrics of which the host's are taken all the same
SHARE = 0.6  # of the time left that one kind of metrics may take: GPUs that hang must not cost the hosts
EVIDENCE = 80  # score from which a field is taken of every node on which it changed
HINT_NAMES = "give node-exporter's series a node label (relabelling), scrape node_uname_info, or let Kubernetes or Slurm be asked for addresses"
HINT_WINDOW = "check name and window of the job: --since, --until; or name its nodes"


def failure(error: BaseException, what: str, asked: str = "", seconds: float = 0.0) -> Answer:
    """Return the answer that an error stands for."""
    hint = error.hint if isinstance(error, SourceError) else "please report this"
    text = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
    query = error.query if isinstance(error, QueryError) else ""
    return Answer("metrics", "failed", f"{what}: {shown(text, 500)}", hint, asked or query, seconds=round(seconds, 3))


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to be written: a metric and the series of it."""

    name: str
    selector: str
    interval: float
    file: str


@dataclass
class Collection:
    """One collection from one server; `run` fills `answers`."""

    api: Api
    scope: Scope
    folder: Folder
    deadline: Deadline
    job_label: str = ""
    answers: list[Answer] = field(default_factory=list)
    newest: float = 0.0
    addresses: dict[str, str] | None = None
    gpus: Gpus = field(default_factory=Gpus)
    views: dict[str, View] = field(default_factory=dict)

    def run(self) -> list[Answer]:
        """Collect and return the answers; nothing is raised."""
        for what, step in (
            ("the server could not be asked", self._server),
            ("the job's GPUs could not be found", self._gpus),
            ("the metrics of the hosts could not be found", self._hosts),
            ("the scrape state could not be found", self._up),
            ("the state of the cluster could not be found", self._kube),
            ("the age of the data could not be told", self._age),
            ("what the server warned of could not be told", self._warned),
        ):
            began = time.monotonic()
            try:
                if not step():
                    break
            except Exception as error:  # the promise of this source: an answer, never an exception
                self.answers.append(failure(error, what, seconds=time.monotonic() - began))
                if step in (self._server, self._gpus) and self._hopeless(error):
                    break
        return self.answers

    def _hopeless(self, error: Exception) -> bool:
        """Tell whether further questions would only fail the same way."""
        return isinstance(error, SourceTimeout) or (isinstance(error, QueryError) and error.status in (0, 200, 302, 401, 403))

    def _note(self, status: str, detail: str, hint: str = "", asked: str = "", rows: int = 0, file: str = "") -> None:
        self.answers.append(Answer("metrics", status, detail, hint, asked, file, rows))

    # -- steps ------------------------------------------------------------------------------------------------------------

    def _server(self) -> bool:
        self.api.build(self.deadline)
        offset = self.api.http.offset
        if offset is not None and abs(offset) > CLOCK_OFF:
            way = "ahead of" if offset > 0 else "behind"
            self._note(
                "partial",
                f"the server's clock is {abs(offset):.0f} s {way} this machine's: times of metrics may not line up with logs",
                "synchronise the clocks (chronyc tracking), or shift the window by as much",
                "/api/v1/status/buildinfo",
            )
        # what is not yet cannot have been seen
        now = time.time() + (offset or 0.0)
        if self.scope.until > now:
            self.scope = _until(self.scope, max(now, self.scope.since + 60))
        return True

    def _gpus(self) -> bool:
        scope = self.scope
        self.gpus = gpus = find_gpus(self.api, scope, self.deadline, self.job_label)
        if not gpus.names:
            self._nothing()
            return True
        if not gpus.nodes:
            self._note(
                "missing",
                f"{len(gpus.names)} GPU metrics are there, but none of this job: "
                + (f"no series of {_few(scope.nodes)}" if scope.nodes else f"no pod or job label is like {scope.job!r}"),
                HINT_WINDOW,
                gpus.asked or selector(gpus.anchor),
            )
            return True
        if gpus.missing:
            self._note(
                "partial",
                f"no GPU metrics of {len(gpus.missing)} of {len(scope.nodes)} nodes: {_few(gpus.missing)}",
                "is dcgm-exporter running there, and is it scraped?",
                gpus.asked,
            )
        if gpus.by != "nodes":  # another job whose name begins the same would be among them
            self._note(
                "ok", f"{len(gpus.nodes)} nodes of the job were found by the {gpus.by} of the GPU metrics", asked=gpus.asked
            )
        self._lacking(gpus.names)
        if gpus.gpus <= SMALL:
            self._take(gpus.names, lambda name: gpus.matchers, gpus.interval)
            return True
        found = find_suspects(self.api, scope, gpus, self.deadline, self._others())
        self.answers += found.answers
        self._chosen = found.chosen
        names = [name for name in gpus.names if question_of(name)]

        def matchers(name: str) -> list[str]:
            row = question_of(name)
            more = found.hits.get(name, ()) if row and row.score >= EVIDENCE else ()
            return gpus.only({*found.chosen, *more})

        self._take(names, matchers, gpus.interval)
        return True

    _chosen: tuple[str, ...] = ()

    def _lacking(self, names: Sequence[str]) -> None:
        """Tell of decisive fields that the exporter here does not have, or whose series were deleted."""
        here = {question_of(name) for name in names}
        decisive = [row for row in questions() if row.exporter == "dcgm" and row.score >= EVIDENCE]
        seen = {row.classes for row in decisive if row in here}  # one that shows the same will do
        rows = [row for row in decisive if row.classes not in seen]
        if rows:
            lines = [row.switch_on for row in rows]
            self._note(
                "partial",
                f"the GPU exporter does not tell: {', '.join(line.split(',')[0] for line in lines)}",
                f"add to dcgm-exporter's counters file: {lines[0]}",
                "label values of __name__",
            )

    def _nothing(self) -> None:
        """No GPU metric in the window: tell whether there ever was one."""
        since = self.scope.since - 86400
        older = self.api.values("__name__", ['{__name__=~"DCGM_.+"}'], since, self.scope.since, self.deadline)
        last = None
        if older:
            last = self.api.newest(selector(older[0]), since, self.scope.since, self.deadline)
        if last:
            age = self.scope.until - last
            self._note(
                "stale",
                f"the newest GPU metric is {age / 60:.0f} min older than the end of the window",
                "is the exporter still scraped? see /targets of the server",
                selector(older[0]),
            )
            return
        self._note(
            "missing",
            "the server has no metric of any GPU exporter in the window",
            "scrape dcgm-exporter, or name another server; " + HINT_WINDOW,
            "label values of __name__",
        )

    # -- other exporters --------------------------------------------------------------------------------------------------

    def _view(self, exporter: str) -> View:
        """Return what the server has of the job's nodes from another exporter; without names when it has nothing of it."""
        if exporter not in self.views:
            since, until = self.scope.since, self.scope.until
            names = self.api.values("__name__", [families(exporter)], since, until, self.deadline)
            view = View(tuple(names))
            match = [selector(names[0])] if names else []
            labels = self.api.labels(match, since, until, self.deadline) if names else []
            for label in NODE_LABELS if exporter != "scrape" else ("instance",):
                if label not in labels:
                    continue
                values = self.api.values(label, match, since, until, self.deadline)
                found = lookup(values, self._nodes(), self._addresses() if label == "instance" else None)
                if exporter == "scrape":  # what the GPU series name is surer than what their name suggests
                    found |= {one: node for node, known in self.gpus.nodes.items() for one in known}
                if found:
                    view = View(tuple(names), label, found)
                    break
            self.views[exporter] = view
        return self.views[exporter]

    def _others(self) -> list[View]:
        """Return the views that can tell of changes; one that fails is told of in its own step."""
        found = []
        for exporter in ("node", "scrape", "kube"):
            with suppress(SourceError):
                found.append(self._view(exporter))
        return found

    def _hosts(self) -> bool:
        view = self._view("node")
        if not view.names:
            self._note(
                "missing",
                "the server has no node-exporter metrics: ports, memory, disks and reboots of the hosts are not seen",
                "scrape node-exporter with --collector.infiniband",
                families("node"),
            )
        elif chosen := self._chosen_of(view):
            self._take(view.names, lambda name: [any_of(view.label, chosen)], 30.0)
            if view.label == "instance":  # whoever reads the files must know which node an address is
                hosts = {address_of(value) or value for value in chosen}
                self._take(["node_uname_info"], lambda name: [any_of("instance", chosen)], 30.0, must=False)
                self._take(["kube_node_info"], lambda name: [any_of("internal_ip", hosts)], 30.0, must=False)
            known = set(view.nodes.values())
            lost = [node for node in self._nodes() if node not in known and not lookup(known, [node])]
            if lost:
                self._note(
                    "partial",
                    f"no host metrics of {len(lost)} of {len(self._nodes())} nodes: {_few(lost)}",
                    HINT_NAMES if view.label == "instance" else "is node-exporter running there, and is it scraped?",
                    families("node"),
                )
        else:
            self._note(
                "missing",
                f"node-exporter metrics are there, but none of {_few(self._nodes()) or 'the job'}",
                HINT_NAMES,
                families("node"),
            )
        return True

    def _up(self) -> bool:
        view = self._view("scrape")
        if chosen := self._chosen_of(view):
            self._take(view.names, lambda name: [any_of(view.label, chosen)], self.gpus.interval)
        return True

    def _kube(self) -> bool:
        view = self._view("kube")
        if not view.names:
            self._note(
                "missing",
                "the server has no kube-state-metrics: the history of node conditions is not seen",
                "install kube-state-metrics and scrape it; without Kubernetes this does not matter",
                families("kube"),
            )
            return True
        if chosen := self._chosen_of(view):
            self._take(view.names, lambda name: [any_of(view.label, chosen)], 30.0)
        scope = self.scope
        pods = self.api.values("__name__", [families("kube-pod")], scope.since, scope.until, self.deadline)
        where = (
            any_of("pod", scope.pods[:512]) if scope.pods else f"pod=~{quote(literal(scope.job) + '(-.+)?')}",
            *([equals("namespace", scope.namespace)] if scope.namespace else []),
        )
        self._take(pods, lambda name: where, 30.0, must=False)
        return True

    def _age(self) -> bool:
        """Tell of data that ends before the window does, although the job was up."""
        if self.newest and self.scope.until - self.newest > STALE:
            self._note(
                "stale",
                f"the newest sample of the job's GPUs is {(self.scope.until - self.newest) / 60:.0f} min older than the window's end",
                "is the exporter still scraped? see /targets of the server; was the job up for so long?",
                self.gpus.asked,
            )
        return True

    def _warned(self) -> bool:
        """Tell of lists of names that may lack some: a node that is not named is not asked for."""
        if self.api.warnings:
            self._note(
                "partial",
                f"the lists of metrics and nodes may not be whole: {'; '.join(list(self.api.warnings)[:4])}",
                "are all stores and storage nodes behind the server up? ask again when they are",
                "label values",
            )
        return True

    # -- nodes ------------------------------------------------------------------------------------------------------------

    def _nodes(self) -> tuple[str, ...]:
        return self.scope.nodes or tuple(self.gpus.nodes)

    def _addresses(self) -> dict[str, str]:
        if self.addresses is None:
            self.addresses = node_addresses(self.api, self.scope, self.deadline)
        return self.addresses

    def _chosen_of(self, view: View) -> list[str]:
        """Return the label values whose node was chosen, or of which there are no GPU metrics; all of them for a small job."""
        if not self._chosen:
            return list(view.nodes)
        wanted = {*lookup(self._nodes(), self._chosen), *self._chosen, *self.gpus.missing[:MOST_MISSING]}
        return [value for value, node in view.nodes.items() if node in wanted]

    # -- files ------------------------------------------------------------------------------------------------------------

    def _take(
        self, names: Iterable[str], matchers: Callable[[str], Sequence[str]], interval: float, *, must: bool = True
    ) -> None:
        """Write one file for each metric, the most telling first, and an answer for each."""

        def rank(name: str) -> tuple[float, str]:
            row = question_of(name)
            return (-(row.score if row else -1), name)

        order = sorted(set(names), key=rank)
        wanted: list[Wanted] = []
        for name in order[:MOST_FIELDS]:
            file = f"metrics/{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:120]}.json"
            if self.folder.has(file):
                self._note("ok", f"{name} was collected before", file=file)
                self.newest = max(self.newest, self.scope.until) if name.startswith("DCGM_") else self.newest
            else:
                wanted.append(Wanted(name, selector(name, list(matchers(name))), interval, file))

        limit = Deadline(self.deadline.left() * SHARE)

        def fetch(one: Wanted) -> tuple[Matrix, float]:
            began = time.monotonic()
            matrix = self.api.raw(one.selector, self.scope.since, self.scope.until, one.interval, limit)
            return matrix, time.monotonic() - began

        errors: dict[str, list[tuple[str, BaseException, str]]] = {}
        ready: dict[int, Answer] = {}
        calls = [lambda one=one: fetch(one) for one in wanted]
        for number, result in each(calls, limit):
            one = wanted[number]
            if isinstance(result, BaseException):
                errors.setdefault(str(result), []).append((one.name, result, one.selector))
                continue
            try:
                answer = self._write(one, *result, must=must)
                if answer is not None:
                    ready[number] = answer
            except (SourceError, OSError) as error:
                errors.setdefault(str(error), []).append((one.name, error, one.selector))
        self.answers += [ready[number] for number in sorted(ready)]
        for group in errors.values():
            found = [name for name, _, _ in group]
            what = found[0] if len(found) == 1 else f"{len(found)} metrics ({_few(found)})"
            self.answers.append(failure(group[0][1], what, group[0][2]))
        if len(order) > MOST_FIELDS:
            self._note("partial", f"{len(order) - MOST_FIELDS} further metrics were not asked for: {_few(order[MOST_FIELDS:])}")

    def _write(self, one: Wanted, matrix: Matrix, seconds: float, *, must: bool) -> Answer | None:
        """Write one metric's file and return its answer; None when nothing came and nothing had to."""
        row = question_of(one.name)
        found = inspect(matrix, counter=bool(row and row.kind == "counter"))
        if canonical(one.name)[0].startswith("DCGM_"):
            self.newest = max(self.newest, found.newest)
        asked, took = shown(one.selector, 2000), round(seconds, 3)
        if not matrix.series and matrix.histograms:
            detail = f"{one.name} is a native histogram, which has no samples"
            hint = "record histogram_quantile, histogram_count or histogram_sum of it under a name of its own"
            return Answer("metrics", "failed", detail, hint, asked, seconds=took)
        if not matrix.series:
            detail = f"{one.name} has no sample in the window"
            return Answer("metrics", "missing", detail, "", asked, seconds=took) if must else None
        file = self.folder.write(one.file, matrix.body())
        notes = [*matrix.notes] if matrix.warned else []
        notes += found.remarks
        if matrix.histograms:
            notes.append(f"{matrix.histograms} of its series are native histograms, which are not read")
        detail = f"{one.name}: {len(matrix.series)} series, {found.samples} samples"
        detail += f"; {'; '.join(notes)}" if notes else ""
        status = "partial" if notes else "ok"
        return Answer("metrics", status, detail, found.hint, asked, file.name, len(matrix.series), took)


def _until(scope: Scope, until: float) -> Scope:
    return replace(scope, until=until)


def _few(names: Iterable[str], most: int = 4) -> str:
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")
