"""Turn an incident folder into what servers would have been told of it: objects, samples, tables and log lines with their times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.catalog import table
from workbench.model import Problem
from workbench.parse.kernel_clock import resolve
from workbench.parse.kernel_stamps import split
from workbench.parse.kubernetes_reasons import epoch
from workbench.parse.nodeset import expand
from workbench.parse.prefix import context, split_prefix
from workbench.parse.prom_labels import parse_labels
from workbench.parse.slurm_words import local_epoch
from workbench.sources.archive import Budget, opened
from workbench.sources.documents import load_json, load_yaml
from workbench.sources.naming import node_of, nodes_in
from workbench.sources.sniff import is_json, kind_of
from workbench.sources.walk import find
from workbench.testing.promql import Series
from workbench.testing.promql_tree import NAME

__all__ = ["Evidence", "LogLine", "Piece"]

# name{labels} value time; a line without a time has the time at which it was read, which nobody knows any more
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)?(?:\{(.*)\})?\s+(\S+)(?:\s+(-?[\d.]+(?:[eE][+-]?\d+)?))?\s*(?:#.*)?$")
_TIMES = ("creationTimestamp", "startTime", "startedAt", "finishedAt", "firstTimestamp", "lastTimestamp")
_LOGS = ("job-log", "launcher-log", "text")


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of the folder, unpacked: its name, its kind (see `workbench.sources.sniff`), and the node that it is of."""

    name: str
    kind: str
    node: str | None
    content: bytes

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode("utf-8", "replace")

    @property
    def stem(self) -> str:
        """The file's name without folders and without what says that it is a compressed log."""
        return re.sub(r"(?:\.(?:log|out|txt|gz|zst|xz))+$", "", re.split(r"[/!]", self.name)[-1])


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line as a shipper sees it: `offset` is its place in the file in bytes, `time` when it was written (seconds)."""

    file: str
    time: float
    offset: int
    text: str
    pod: str | None = None
    node: str | None = None
    kernel: bool = False


@dataclass
class Evidence:
    """
    What an incident folder holds, by who would have known it.

    Parameters
    ----------
    root : Path
        The folder, or an archive of it.
    name : str
        The job, where nothing in the folder names it.
    """

    root: Path
    name: str = ""
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, folder: str | Path | Evidence) -> Evidence:
        """Return the evidence in a folder; evidence itself as it is."""
        return folder if isinstance(folder, Evidence) else cls(Path(folder))

    @cached_property
    def pieces(self) -> list[Piece]:
        """All files."""
        found, problems = find([self.root], 100_000)
        self.problems += problems
        nodes = nodes_in(each.name for each in found)
        pieces = []
        for each in found:
            with open(each.path, "rb", buffering=0) as raw:
                for member in opened(each.name, raw, Budget(), size=each.size, mtime=each.mtime):
                    if isinstance(member, Problem):
                        self.problems.append(member)
                        continue
                    content = member.stream.peek(1 << 30)
                    kind = kind_of(member.name, content[:65536])
                    pieces.append(Piece(member.name, kind, node_of(member.name, kind, nodes), content))
        return pieces

    # -- Kubernetes -------------------------------------------------------------------------------------------------------

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """Kubernetes objects, each once."""
        known: dict[tuple[str, str, str], dict[str, Any]] = {}
        for piece in self.pieces:
            if piece.kind != "kubernetes":
                continue
            data, _ = (load_json if is_json(piece.content) else load_yaml)(piece.content)
            for item in _items(data):
                meta = item["metadata"]
                known[(str(item.get("kind")), str(meta.get("namespace", "")), str(meta.get("name")))] = item
        return list(known.values())

    @cached_property
    def pods(self) -> dict[str, dict[str, Any]]:
        """Name → pod."""
        return {item["metadata"]["name"]: item for item in self.objects if item.get("kind") == "Pod"}

    # -- Prometheus -------------------------------------------------------------------------------------------------------

    @cached_property
    def series(self) -> list[Series]:
        """All samples that have a time, by series."""
        rows: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
        for piece in self.pieces:
            if piece.kind == "metrics-text":
                _exposition(piece.text, rows)
            elif piece.kind == "metrics-json":
                for item in _results(load_json(piece.content)[0]):
                    mine = rows.setdefault(tuple(sorted(item["metric"].items())), {})
                    for moment, value in item.get("values") or [item["value"]]:
                        mine.setdefault(round(float(moment), 3), float(value))
        found = []
        for labels, samples in rows.items():
            times = sorted(samples)
            found.append(Series(dict(labels), times, [samples[moment] for moment in times]))
        return found

    # -- Slurm ------------------------------------------------------------------------------------------------------------

    @cached_property
    def accounts(self) -> list[dict[str, str]]:
        """Rows of ``sacct --parsable2``, steps among them, by the names of the columns."""
        rows: list[dict[str, str]] = []
        for text in self._slurm(r"JobID\|"):
            names = text.splitlines()[0].strip().rstrip("|").split("|")
            for line in text.splitlines()[1:]:
                values = line.split("|", len(names) - 1)
                if len(values) == len(names):
                    rows.append(dict(zip(names, values, strict=True)))
        return rows

    @cached_property
    def slurm_jobs(self) -> list[str]:
        """Records of ``scontrol show job``."""
        return [record for text in self._slurm("JobId=") for record in re.split(r"(?m)^(?=JobId=)", text) if record.strip()]

    @cached_property
    def slurm_nodes(self) -> dict[str, str]:
        """Node → its record of ``scontrol show node``."""
        return {
            found[1]: record
            for text in self._slurm("NodeName=")
            for record in re.split(r"(?m)^(?=NodeName=)", text)
            if (found := re.match(r"NodeName=(\S+)", record))
        }

    @cached_property
    def slurm_states(self) -> list[str]:
        """Rows of ``sinfo --Node --format=%N|%T|%E|%u|%H``."""
        return [line for text in self._slurm(r"NODELIST\|STATE\|REASON\|USER\|TIMESTAMP") for line in text.splitlines()[1:]]

    def _slurm(self, begin: str) -> Iterator[str]:
        for piece in self.pieces:
            if piece.kind.startswith("slurm") and re.match(begin, piece.text):
                yield piece.text

    # -- the job ----------------------------------------------------------------------------------------------------------

    @cached_property
    def allocation(self) -> dict[str, str] | None:
        """The job's row in the accounts: that of a job of which scontrol was asked or a log is named, else the first."""
        rows = [row for row in self.accounts if "." not in row["JobID"]]
        told = {found[1] for record in self.slurm_jobs if (found := re.match(r"JobId=(\d+)", record))}
        told |= {number for piece in self.pieces for number in re.findall(r"\d{3,}", piece.stem)}
        return next((row for row in rows if re.split(r"[_+]", row["JobID"])[0] in told), rows[0] if rows else None)

    @cached_property
    def job(self) -> str:
        """The job: the name that its pods' labels tell, else Slurm's number, else the folder's name."""
        if self.name:
            return self.name
        labels = {key for row in table("kubernetes_jobs") for key in row["labels"].split(";") if key and row["role"] == "job"}
        named = Counter(
            value for pod in self.pods.values() for key, value in (pod["metadata"].get("labels") or {}).items() if key in labels
        )
        if named:
            return str(named.most_common(1)[0][0])
        if self.allocation:
            return self.allocation["JobID"]
        return next(iter(self.pods), "") or self.root.name.split(".")[0]

    @cached_property
    def namespace(self) -> str | None:
        """The namespace of the pods, when there is one."""
        spaces = {str(pod["metadata"].get("namespace")) for pod in self.pods.values()}
        return spaces.pop() if len(spaces) == 1 else None

    @cached_property
    def nodes(self) -> list[str]:
        """Nodes of the job, as far as a scheduler told them."""
        named = [str((pod.get("spec") or {}).get("nodeName") or "") for pod in self.pods.values()]
        named += expand(self.allocation.get("NodeList")) if self.allocation else []
        return list(dict.fromkeys(name for name in named if name))

    @cached_property
    def _told(self) -> list[float]:
        """All moments that schedulers and metrics tell."""
        times = [moment for item in self.objects if item.get("kind") != "Node" for moment in _moments(item)]
        for row in self.accounts:
            times += [moment for key in ("Submit", "Start", "End") if (moment := local_epoch(row.get(key))) is not None]
        times += [moment for one in self.series for moment in one.times[:1] + one.times[-1:]]
        return times

    @cached_property
    def reference(self) -> float:
        """A moment near the failure, which tells the year where stamps have none."""
        return max(self._told) if self._told else self.root.stat().st_mtime

    @cached_property
    def window(self) -> tuple[float, float]:
        """When the job ran, with what came just before and after."""
        lines = [line.time for line in self.job_lines]
        times = self._told + lines
        if not times:
            return self.reference - 3600, self.reference
        return min(times) - 60, max(times) + 60

    # -- logs -------------------------------------------------------------------------------------------------------------

    @cached_property
    def job_lines(self) -> list[LogLine]:
        """Lines of the job's logs, in the order of files and of their lines."""
        return [line for piece in self.pieces if self._is_job(piece) for line in self._job_log(piece)]

    @cached_property
    def kernel_lines(self) -> list[LogLine]:
        """Lines of the nodes' kernel logs."""
        return [line for piece in self.pieces if piece.kind == "kernel-log" and piece.node for line in self._kernel_log(piece)]

    def _is_job(self, piece: Piece) -> bool:
        first = re.split(r"[/!]", piece.name)
        return (piece.kind in _LOGS or (piece.kind.startswith("slurm") and "logs" in first[:-1])) and "kernel" not in first[:-1]

    def _job_log(self, piece: Piece) -> Iterator[LogLine]:
        lines = piece.text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        told = context(lines[:4000], datetime.fromtimestamp(self.reference, UTC).year)
        times = [split_prefix(line, told).time for line in lines]
        moment = next((time for time in times if time is not None), self.reference)
        pod = next(
            (name for name in sorted(self.pods, key=len, reverse=True) if re.match(rf"{re.escape(name)}(?![\w-])", piece.stem)),
            None,
        )
        node = (self.pods[pod].get("spec") or {}).get("nodeName") if pod else self._writer(piece, lines)
        offset = 0
        for line, time in zip(lines, times, strict=True):
            moment = max(moment, time or 0.0)  # a file is written in order, whatever clocks its lines tell
            yield LogLine(piece.name, moment, offset, line, pod, node)
            offset += len(line.encode()) + 1

    def _writer(self, piece: Piece, lines: list[str]) -> str | None:
        """Return the node that wrote a log: the one that its name tells, else the first one that its begin does."""
        if piece.node:
            return piece.node
        known = "|".join(re.escape(name) for name in sorted(self.nodes, key=len, reverse=True))
        if not known:
            return None
        pattern = re.compile(rf"(?<![\w-])({known})(?![\w-])")
        for text in (piece.stem, *lines[:200]):
            if found := pattern.search(text):
                return found[1]
        return None

    def _kernel_log(self, piece: Piece) -> Iterator[LogLine]:
        lines = piece.text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        times = resolve([split(line) for line in lines], self.reference).times
        moment = next((time for time in times if time is not None), self.reference)
        offset = 0
        for line, time in zip(lines, times, strict=True):
            moment = time if time is not None else moment
            yield LogLine(piece.name, moment, offset, line, None, piece.node, True)
            offset += len(line.encode()) + 1


def _items(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, of lists of lists, or of several documents."""
    if isinstance(data, list):
        for each in data:
            yield from _items(each)
    elif isinstance(data, dict):
        if isinstance(data.get("items"), list):
            kind = str(data.get("kind", "")).removesuffix("List")
            for each in data["items"]:
                if isinstance(each, dict):
                    yield from _items({"kind": kind, "apiVersion": data.get("apiVersion", "v1"), **each})
        elif isinstance(data.get("metadata"), dict) and data["metadata"].get("name"):
            yield data


def _moments(item: Mapping[str, Any]) -> Iterator[float]:
    """Yield the times that an object tells, but those of its conditions."""
    for key, value in item.items():
        if isinstance(value, Mapping):
            yield from _moments(value)
        elif isinstance(value, list) and key in ("containerStatuses", "initContainerStatuses"):
            for each in value:
                yield from _moments(each)
        elif key in _TIMES and (moment := epoch(value)) is not None:
            yield moment


def _results(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, list):
        for each in data:
            yield from _results(each)
    elif isinstance(data, dict):
        if isinstance(data.get("metric"), dict) and ("values" in data or "value" in data):
            yield data
        else:
            for key in ("data", "result"):
                yield from _results(data.get(key))


def _exposition(text: str, rows: dict[tuple[tuple[str, str], ...], dict[float, float]]) -> None:
    slots: dict[str, dict[float, float]] = {}
    for line in text.split("\n"):
        head, _, rest = line.rpartition("} ")
        known = slots.get(head) if head else None
        if known is None:
            if line[:1] == "#" or not (found := _SAMPLE.match(line.strip())):
                continue
            labels = parse_labels(found[2] or "")
            if labels is None:
                continue
            name = found[1] or labels[1]
            key = tuple(sorted({**labels[0], **({NAME: name} if name else {})}.items()))
            known = rows.setdefault(key, {})
            if head:
                slots[head] = known
            rest = f"{found[3]} {found[4] or ''}"
        value, _, stamp = rest.partition(" ")
        if stamp.strip():
            moment = float(stamp.split()[0])
            known.setdefault(round(moment / 1000 if abs(moment) > 1e11 else moment, 3), float(value))
