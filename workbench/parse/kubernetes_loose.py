"""Turn what `kubectl` output quotes or prints without a header (termination messages, bare rows of pods and events) into records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from workbench.model import Event, Line

__all__ = ["bare_event", "bare_pod", "reason_of", "said_by_container"]

# nvidia-cuda-validator-rwl6b   0/1   Init:CrashLoopBackOff   12 (2m ago)   39m   10.0.1.7   node-a
_POD = re.compile(
    r"\s*(?:(?P<namespace>[a-z0-9][a-z0-9-]*)\s+)?(?P<name>[a-z0-9][\w.-]*)\s+(?P<ready>\d{1,3}/\d{1,3})\s+(?P<status>[A-Z][\w:/]*)\s+"
    r"(?P<restarts>\d+(?: \([^)]{1,12} ago\))?)\s+(?P<age>\d+[ydhms]\w*)(?:\s+(?P<ip>\d+\.\d+\.\d+\.\d+|[0-9a-f:]+:[0-9a-f:]*|<none>))?"
    r"(?:\s+(?P<node>[a-z0-9][\w.-]*|<none>))?(?:\s+<none>){0,2}\s*$"
)
# 2023-12-15T19:23:47Z [Warning] The node was low on resource: ephemeral-storage.
_EVENT = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d))\s+(?:\[(?P<kind>Normal|Warning)\]|(?P<kind2>Normal|Warning)\s)\s*(?P<message>\S.*)$"
)
# what a message without its reason begins with → the reason that its writer gives it
_REASONS = tuple(
    (re.compile(words), reason)
    for words, reason in (
        (r"Failed to pull image|Error: (?:ErrImage|ImagePull|\w*ImageName)", "Failed"),
        (r"Back-off (?:pulling|restarting)", "BackOff"),
        (r"The node was low on resource|The node had condition|Pod ephemeral local storage", "Evicted"),
        (r"MountVolume|Unable to attach|AttachVolume|Multi-Attach", "FailedMount"),
        (r"\d+/\d+ nodes are available|pod has unbound|no nodes available", "FailedScheduling"),
        (r"(?:Liveness|Readiness|Startup) probe failed", "Unhealthy"),
        (r"[Ff]ailed to create pod sandbox", "FailedCreatePodSandBox"),
        (r"Stopping container|Container \S+ failed liveness", "Killing"),
        (r"Preempted", "Preempted"),
        (r"System OOM", "SystemOOM"),
        (r"Successfully assigned", "Scheduled"),
        (r"Node \S+ status is now: (?P<reason>\w+)", ""),
        (r"Allocate failed|.*requested number of devices unavailable", "UnexpectedAdmissionError"),
        (r"Error: ", "Failed"),
        (r"network is not ready", "NetworkNotReady"),
    )
)
_LINES_MOST = 400  # a termination message holds 4,096 bytes at most


def bare_pod(text: str) -> dict[str, str] | None:
    """Return the cells of a row of `kubectl get pods --no-headers` by the names of its columns, or None."""
    found = _POD.match(text)
    if not found:
        return None
    names = {"name": "NAME", "ready": "READY", "status": "STATUS", "node": "NODE", "namespace": "NAMESPACE"}
    return {names[key]: value for key, value in found.groupdict().items() if key in names and value and value != "<none>"}


def reason_of(message: str) -> str:
    """Return the reason that kubelet, scheduler or controller give an event with such a message; empty when not known."""
    for pattern, reason in _REASONS:
        if found := pattern.match(message):
            return reason or found["reason"]
    return ""


def bare_event(text: str) -> dict[str, str] | None:
    """Return ``time``, ``kind``, ``reason`` and ``message`` of an event printed as time, type and message, or None."""
    found = _EVENT.match(text.strip())
    if not found:
        return None
    message = found["message"]
    return {
        "time": found["time"],
        "kind": found["kind"] or found["kind2"],
        "reason": reason_of(message),
        "message": message,
    }


def said_by_container(lines: Sequence[Line], *, file: str, node: str | None, data: dict[str, Any]) -> list[Event]:
    """
    Return what the last lines of a container say that Kubernetes kept as its termination message.

    Parameters
    ----------
    lines : sequence of Line
        The message, line by line.
    file, node : str
        Name of the document, and the node of the pod.
    data : dict
        Pod, namespace and container, for the events.
    """
    from workbench.parse.job import parse_job

    events = parse_job(list(lines[:_LINES_MOST]), file=file, node=node).events
    for event in events:
        event.node = event.node or node
        event.data = {**data, **event.data, "termination_message": True}
    return events
