"""Turn findings into what others see of the node: conditions, label and events in Kubernetes, a file for the textfile collector."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from workbench.catalog import table
from workbench.errors import SourceError
from workbench.health.conditions import FIT, NodeCondition, camel, conditions_of, to_write
from workbench.health.finding import Finding
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.errors import words
from workbench.sources.kubernetes.write import NodeWriter

__all__ = ["BOOT", "LABEL", "OWNER", "KubernetesEvents", "KubernetesNode", "Publisher", "Textfile"]

LABEL = "gpu-workbench/fit"  # true, false or unknown: for a scheduler's nodeAffinity
OWNER = "gpu-workbench/fit-by"
BOOT = "gpu-workbench/fit-boot"  # boot id of the node when it was checked: after a reboot, what stands there may be of the boot before
_US = "workbench check"
_EVENTS = 600.0  # seconds between two writes of one event: it lives for an hour, and its count tells the rest
_MOST = 20  # events a run: more kinds of trouble than this at once are one trouble
_FRESH = 60.0  # seconds within which the node is not read again before it is written
_FITS = {"False": "true", "True": "false"}


class Publisher(Protocol):
    """Something that shows findings to others."""

    name: str

    def publish(self, findings: Sequence[Finding], now: float) -> None:
        """Show what was found at `now`; raises `SourceError` when it could not be shown whole."""

    def stop(self, now: float) -> None:
        """Take back what nobody vouches for from now on."""


class KubernetesNode:
    """
    The conditions and the label of one node.

    Nothing is written while nothing changes but the heartbeat, every five minutes; the node is read before it is written, and never
    else, so 2,000 nodes cost the API server some ten requests a second.

    Parameters
    ----------
    writer : NodeWriter
    say : callable
        Takes (what stands in the way, the way out) when the label is somebody else's: the conditions are written all the same.
    seconds : float, optional
        Deadline of one round of requests.
    boot : str, optional
        Boot id of the node; shown beside the label, so that nobody acts on what was seen in another boot.
    """

    name = "conditions in Kubernetes"

    def __init__(self, writer: NodeWriter, say: Callable[[str, str], None], *, seconds: float = 15.0, boot: str = "") -> None:
        self._writer, self._say, self._seconds, self._boot = writer, say, seconds, boot
        self._node: Mapping[str, Any] | None = None
        self._read = 0.0
        self._said = ""

    def publish(self, findings: Sequence[Finding], now: float) -> None:
        """
        Write what has to be written.

        Raises
        ------
        SourceError
            It was refused, or nobody answered.
        """
        deadline = Deadline(self._seconds)
        wanted = conditions_of(findings, now=now)
        fit = _FITS.get(next(one.status for one in wanted if one.type == FIT), "unknown")
        if self._node is None:
            self._load(now, deadline)
        due, (labels, notes, foreign) = to_write(wanted, self._there()), self._label(fit)
        if (due or labels or notes) and now - self._read > _FRESH:
            self._load(now, deadline)
            due, (labels, notes, foreign) = to_write(wanted, self._there()), self._label(fit)
        if due or labels or notes:
            self._patch(deadline, due, labels, notes, now)
        if foreign and foreign != self._said:
            self._say(foreign, f"kubectl label node {self._writer.node} {LABEL}-")
        self._said = foreign

    def stop(self, now: float) -> None:
        """Set our conditions and the label to unknown, since nobody checks any more; raises as `publish`."""
        deadline = Deadline(min(self._seconds, 10.0))
        self._load(now, deadline)
        known = {FIT, *(row["condition"] for row in table("conditions_published"))}
        ours = [one for one in self._there() if one.type in known]
        said = "the checker was stopped: how the node is now is not known"
        stopped = [
            replace(
                one,
                status="Unknown",
                reason="CheckerStopped",
                message=said,
                heartbeat=now,
                transition=one.transition if one.status == "Unknown" else now,
            )
            for one in ours
        ]
        labels, notes, _ = self._label("unknown") if ours else ({}, {}, "")
        if stopped or labels:
            self._patch(deadline, stopped, labels, notes, now)

    def _load(self, now: float, deadline: Deadline) -> None:
        self._node, self._read = self._writer.read(deadline), now

    def _patch(
        self,
        deadline: Deadline,
        conditions: Sequence[NodeCondition],
        labels: Mapping[str, str],
        notes: Mapping[str, str],
        now: float,
    ) -> None:
        try:
            self._node = self._writer.patch(
                deadline, conditions=[one.to_dict() for one in conditions], labels=labels, annotations=notes
            )
        except SourceError:
            self._node = None  # whether it was written is not known: read it before the next try
            raise
        self._read = now

    def _there(self) -> list[NodeCondition]:
        status = (self._node or {}).get("status")
        found = status.get("conditions") if isinstance(status, Mapping) else None
        return [NodeCondition.of(one) for one in found or () if isinstance(one, Mapping)]

    def _label(self, fit: str) -> tuple[dict[str, str], dict[str, str], str]:
        """Return the label and the annotation to write, and what stands in the way: a label of this name that is somebody else's."""
        metadata = (self._node or {}).get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        there = (metadata.get("labels") or {}).get(LABEL)
        annotations = metadata.get("annotations") or {}
        owner = annotations.get(OWNER)
        boot = {BOOT: self._boot} if self._boot and annotations.get(BOOT) != self._boot else {}
        if there is not None and owner != _US:
            return {}, {}, f"the label {LABEL}={there} was set by {owner or 'somebody else'}, and is left as it is"
        if there == fit:
            return {}, boot, ""
        return {LABEL: fit}, boot | ({} if owner == _US else {OWNER: _US}), ""


class KubernetesEvents:
    """
    Events of one node for what does not make it unfit: warnings, and what the site called optional.

    One a kind of finding, told when it is first seen and every ten minutes while it lasts, with the number of times that it was seen.

    Parameters
    ----------
    writer : NodeWriter
    seconds : float, optional
        Deadline of one round of requests.
    """

    name = "events in Kubernetes"

    def __init__(self, writer: NodeWriter, *, seconds: float = 15.0) -> None:
        self._writer, self._seconds = writer, seconds
        self._told: dict[str, tuple[float, int]] = {}  # kind → when it was written, how often it was seen since

    def publish(self, findings: Sequence[Finding], now: float) -> None:
        """Write what is new or due; raises `SourceError`."""
        deadline = Deadline(self._seconds)
        kinds: dict[str, list[Finding]] = {}
        for one in findings:
            if one.warns:
                kinds.setdefault(f"{one.check}/{one.code}", []).append(one)
        for gone in set(self._told) - set(kinds):
            if now - self._told[gone][0] >= _EVENTS:
                del self._told[gone]
        for key, found in list(kinds.items())[:_MOST]:
            last, seen = self._told.get(key, (None, 0))
            if last is not None and now - last < _EVENTS:
                self._told[key] = (last, seen + 1)
                continue
            first = found[0]
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            self._writer.event(
                deadline,
                key=key,
                reason=camel(first.code) or camel(first.check),
                message=words(f"{first.check}: {first.who}{first.summary}", 900).encode("utf-8", "replace").decode() + more,
                now=now,
                count=seen + 1,
                every=0.0 if last is not None else _EVENTS,  # of a process before this one
            )
            self._told[key] = (now, 0)

    def stop(self, now: float) -> None:
        """Nothing: events end by themselves."""


class Textfile:
    """
    A file for node-exporter's textfile collector, whole at every moment; its age (``node_textfile_mtime_seconds``) tells of a dead checker.

    Parameters
    ----------
    path : Path
    render : callable
        Findings → text in Prometheus' format.
    """

    name = "textfile"

    def __init__(self, path: Path, render: Callable[[Sequence[Finding]], str]) -> None:
        self._path, self._render = path, render

    def publish(self, findings: Sequence[Finding], now: float) -> None:
        """Write beside it, then rename; raises `SourceError`."""
        text, beside = self._render(findings), ""
        try:
            # the collector reads what ends with .prom: this does not
            handle, beside = tempfile.mkstemp(prefix=f".{self._path.name}-", suffix=".tmp", dir=self._path.parent)
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
                os.fchmod(stream.fileno(), 0o644)
            os.replace(beside, self._path)
        except OSError as error:
            if beside:
                Path(beside).unlink(missing_ok=True)
            why = error.strerror or error
            raise SourceError(f"{self._path} cannot be written: {why}", hint="name a file in a folder that exists") from error

    def stop(self, now: float) -> None:
        """Remove it: what it says is nobody's word any more."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise SourceError(f"{self._path} cannot be removed: {error.strerror or error}") from error
