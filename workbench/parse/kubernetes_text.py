"""Turn `kubectl describe` and `kubectl get` text, and lines of kubelet and device plugin, into events and conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from workbench.model import Event, JobRecord, Line, Parsed, Placement
from workbench.parse.kubernetes import parse_objects
from workbench.parse.kubernetes_loose import bare_event, bare_pod, said_by_container
from workbench.parse.kubernetes_reasons import classify, epoch, gpu_in

__all__ = ["age", "parse_describe"]

_LONGEST = 8000  # a longer line is no row of a table: backtracking over 64 KiB of blanks would take minutes
# Name:               gpu-07      |  Capacity:
_KEY = re.compile(r"^(\s*)([A-Za-z][\w./ ()-]*?):(?:\s+(.*?))?\s*$")
# LAST SEEN   TYPE      REASON                   OBJECT                        MESSAGE
_HEADER = re.compile(r"^\s*(?:NAMESPACE\s+)?(?:LAST SEEN|NAME|FIRST SEEN|LAST)\s+.*\b(?:MESSAGE|STATUS|READY|REASON)\b")
# 3m12s (x31 over 9d)
_AGE = re.compile(r"^(\d+[ydhms](?:\d+[hms])*)(?: \(x(\d+) over (\d+[ydhms](?:\d+[hms])*)\))?$")
# Mar  1 10:00:04 node-a kubelet[1822]: I0301 …
_SYSLOG = re.compile(
    r"^(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) (\S+) (kubelet|containerd|dockerd|k3s|rke2)(?:\[\d+\])?: "
)
_POD = re.compile(r'\bpod[s]?="?\[?"?([\w.-]+)/([\w.-]+)"?')
_UNITS = {"y": 31_536_000, "d": 86_400, "h": 3600, "m": 60, "s": 1}
# what opens a part of `describe` output; a message of several lines may hold other words before a colon
_SECTIONS = frozenset(
    ("Name", "Namespace", "Labels", "Annotations", "Conditions", "Events", "Containers", "Init Containers", "Volumes", "Capacity",
     "Allocatable", "System Info", "Taints", "Status", "Node", "Addresses", "Non-terminated Pods", "Allocated resources", "Roles")
)  # fmt: skip
# who reports an event; it stands where a loose row could have the name of a node
_COMPONENT = re.compile(
    r"(?:kubelet|multus|nodelease|kernel-monitor|kernel-message-monitor|abrt-\w+|systemd-monitor|sysctl|karpenter|kueue.*|volcano|coscheduling"
    r"|[\w.-]*(?:scheduler|controller|controller-manager|manager|autoscaler|operator|monitor|descheduler|plugin|eviction|handler)(?:,.*)?)$"
)
_ASSIGNED = re.compile(r"Successfully assigned \S+ to (\S+?)\.?$")
# what stands below a termination message in `describe pod`
_AFTER_MESSAGE = re.compile(
    r"(?: {4,}(?:Exit Code|Signal|Started|Finished|Ready|State|Last State|Restart Count|Limits|Requests|Environment|Mounts):"
    r"|(?:Events|Conditions|Volumes|QoS Class|Tolerations|Name):(?: |$))"
)
# reasons by which the controllers of Jobs, JobSets and Kubeflow's kinds say that one ended well
_WELL = re.compile(r"Completed|AllJobsCompleted|\w*Job(?:Succeeded|Completed)")
# words of the STATUS column that say nothing bad
_FINE = {
    "Running",
    "Completed",
    "Succeeded",
    "ContainerCreating",
    "PodInitializing",
    "Terminating",
    "Pending",
    "Ready",
    "Active",
    "Unknown",
}


def age(text: str) -> float | None:
    """Return kubectl's age (``3m12s``, ``11d``) in seconds, or None."""
    if not re.fullmatch(r"(?:\d+[ydhms])+", text):
        return None
    return float(sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([ydhms])", text)))


def parse_describe(lines: Sequence[Line], *, file: str, node: str | None = None) -> Parsed:
    """
    Return what kubectl's text output and plain lines of kubelet and device plugin say.

    Parameters
    ----------
    lines : sequence of Line
        The document; `describe node` and `describe pod` (several after one another), tables of pods, nodes and events with or
        without header, and log lines may be mixed.
    file, node : str
        Name of the document, and the node that it is of when the text does not say.
    """
    parsed = Parsed(facts={"nodes": {}, "pods": {}})
    block = _Block(node)
    columns: list[tuple[str, int]] = []
    in_events = False
    for line in lines:
        text = line.text.rstrip()
        if not text.strip():
            columns = []
            continue
        if len(text) > _LONGEST:
            _plain(line, parsed, file, node)
            continue
        if _HEADER.match(text):
            columns = [(found[0], found.start()) for found in re.finditer(r"\S+(?: \S+)*?(?=\s{2,}|\s*$)", text)]
            continue
        key = _KEY.match(text)
        if key and not key[1] and key[2] == "Name":
            _flush(block, parsed, file)
            block, in_events = _Block(node), False
        if key and not key[1] and (not in_events or key[2] in _SECTIONS):
            in_events = key[2] == "Events"
            columns = []
        if in_events:
            if text.strip() != "Events:":
                _event_row(line, block, parsed, file, node)
            continue
        if columns and _table_row(line, columns, parsed, file, node):
            continue
        if block.take(line, key):
            continue
        _plain(line, parsed, file, node)
    _flush(block, parsed, file)
    return parsed


# ---- describe


class _Block:
    """One `describe` output, collected into the object that it was made from."""

    def __init__(self, node: str | None) -> None:
        self.node = node
        self.kind = ""
        self.meta: dict[str, Any] = {}
        self.spec: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.lines: dict[str, Line] = {}  # what to show for a resource or condition
        self.section = ""
        self.container: dict[str, Any] = {}
        self.state: dict[str, Any] | None = None
        self.open = False  # a termination message goes on over the lines below
        self.quoted: list[Line] = []

    def take(self, line: Line, key: re.Match[str] | None) -> bool:
        """Read one line; False when it belongs to no `describe` output."""
        if self.open and not _AFTER_MESSAGE.match(line.text):
            self.quoted.append(line)
            return True
        self.open = False
        if key and not key[1]:
            self.section = key[2]
            return self._top(key[2], key[3] or "", line)
        if not self.section:
            return False
        if self.section in ("Capacity", "Allocatable") and key and key[3]:
            self.status.setdefault(self.section.lower(), {})[key[2].strip()] = key[3]
            self.lines[f"{self.section}/{key[2].strip()}"] = line
            return True
        if self.section == "Taints":
            return self._taint(line.text.strip())
        if self.section == "Conditions":
            return self._condition(line)
        if self.section in ("Containers", "Init Containers") and key:
            taken = self._in_container(line, key)
            if self.open:
                self.quoted.append(Line(line.no, key[3] or "", line.hits, line.offset))
            return taken
        return self.section in (
            "Labels",
            "Annotations",
            "System Info",
            "Volumes",
            "Addresses",
            "Allocated resources",
            "Non-terminated Pods",
            "Message",
        )

    def _top(self, name: str, value: str, line: Line) -> bool:
        if name == "Name":
            self.meta["name"] = value
        elif name == "Namespace":
            self.meta["namespace"], self.kind = value, "Pod"
        elif name == "Node" and value not in ("", "<none>"):
            self.spec["nodeName"], self.kind = value.split("/")[0], "Pod"  # gpu-07/10.0.0.7
        elif name == "Taints":
            self.kind = "Node"
            self._taint(value)
        elif name == "Unschedulable":
            self.spec["unschedulable"], self.kind = value == "true", "Node"
        elif name in ("Capacity", "Allocatable") or name in ("Roles", "Lease"):
            self.kind = "Node"
        elif name in ("Containers", "Init Containers"):
            self.kind = "Pod"
        elif name == "Start Time":
            self.status["startTime"] = _date(value)
        elif name in ("Status", "Reason", "Message"):
            self.status[{"Status": "phase"}.get(name, name.lower())] = value.split()[0] if name == "Status" and value else value
            self.lines[name] = line
        elif name in (
            "Labels",
            "Annotations",
            "Conditions",
            "System Info",
            "Volumes",
            "Addresses",
            "Controlled By",
            "QoS Class",
            "Priority",
        ):
            if name == "Controlled By" and "/" in value:
                kind, owner = value.split("/", 1)
                self.meta["ownerReferences"] = [{"kind": kind, "name": owner}]
        else:
            self.section = ""
            return False
        return True

    def _taint(self, text: str) -> bool:
        found = re.match(r"([\w./-]+)(?:=([^:\s]*))?:(\w+)$", text)
        if found:
            self.spec.setdefault("taints", []).append({"key": found[1], "value": found[2] or "", "effect": found[3]})
        return bool(found) or text == "<none>"

    def _condition(self, line: Line) -> bool:
        parts = re.split(r"\s{2,}", line.text.strip())
        if parts[0] in ("Type", "----"):
            return True
        if len(parts) >= 5:  # Type Status LastHeartbeatTime LastTransitionTime Reason Message
            row = {
                "type": parts[0],
                "status": parts[1],
                "lastTransitionTime": _date(parts[3]),
                "reason": parts[4],
                "message": "  ".join(parts[5:]),
            }
            self.kind = self.kind or "Node"
        elif len(parts) == 2:
            row = {"type": parts[0], "status": parts[1]}
        else:
            return False
        self.status.setdefault("conditions", []).append(row)
        self.lines[f"Condition/{parts[0]}"] = line
        return True

    def _in_container(self, line: Line, key: re.Match[str]) -> bool:
        depth, name, value = len(key[1]), key[2].strip(), key[3] or ""
        if depth <= 2 and not value:
            self.container = {"name": name, "env": [], "limits": {}, "status": {"name": name}, "sub": ""}
            resources = {"limits": self.container["limits"]}
            self.spec.setdefault("containers", []).append({"name": name, "env": self.container["env"], "resources": resources})
            self.status.setdefault("containerStatuses", []).append(self.container["status"])
        elif not self.container:
            return True
        elif name in ("State", "Last State"):
            self.state = {}
            self.container["status"]["state" if name == "State" else "lastState"] = {value.lower(): self.state}
        elif name in ("Limits", "Environment", "Requests", "Mounts", "Command", "Args"):
            self.container["sub"] = name
        elif name in ("Ready", "Restart Count", "Image", "Port", "Host Port"):
            self.state, self.container["sub"] = None, ""
            if name == "Restart Count" and value.isdigit():
                self.container["status"]["restartCount"] = int(value)
        elif self.state is not None and name in ("Reason", "Exit Code", "Started", "Finished", "Message", "Signal"):
            field = {"Exit Code": "exitCode", "Started": "startedAt", "Finished": "finishedAt"}.get(name, name.lower())
            self.state[field] = _date(value) if name in ("Started", "Finished") else value
            if name == "Reason":
                self.lines[f"Reason/{self.container['name']}/{value}"] = line
            self.open = name == "Message" and self.state.get("reason") == "Error"  # else they are the runtime's words
        elif self.container["sub"] == "Limits":
            self.container["limits"][name] = value
        elif self.container["sub"] == "Environment" and not value.startswith("<"):
            self.container["env"].append({"name": name, "value": value})
        return True


def _date(text: str) -> str | None:
    # Mon, 02 Mar 2026 10:00:00 +0000
    try:
        return parsedate_to_datetime(text).isoformat()
    except (TypeError, ValueError, IndexError):
        return None


def _flush(block: _Block, parsed: Parsed, file: str) -> None:
    if not block.kind:
        return
    if block.kind == "Node" and not block.meta.get("name"):
        block.meta["name"] = block.node or ""
    block.meta.setdefault("name", "")
    made = parse_objects([{"kind": block.kind, "metadata": block.meta, "spec": block.spec, "status": block.status}], file=file)
    for event in made.events:
        line = _shown(block, event)
        if line is not None:
            event.line = line.no
            # the line itself is what a person finds again; the rendering stays where it says more
            bare = " waits: " in event.text and event.text.endswith(": ")  # no message: the rendering says no more than the line
            if bare or event.signature.startswith("k8s-gpu-allocatable") or len(line.text) > len(event.text):
                event.text = line.text.strip()[:2000]
        event.node = event.node or None
    if block.quoted:
        node, name = block.spec.get("nodeName"), block.meta["name"]
        data = {"pod": name, "container": block.container.get("name")}
        made.events += said_by_container(block.quoted, file=file, node=node, data=data)
    for condition in made.conditions:
        condition.node = condition.node or None
    parsed.extend(made)
    for name in ("nodes", "pods"):
        parsed.facts[name].update(made.facts[name])


def _shown(block: _Block, event: Event) -> Line | None:
    data = event.data
    for name in (
        f"Allocatable/{data.get('resource')}",
        f"Condition/{data.get('condition')}",
        f"Reason/{data.get('container')}/{data.get('reason')}",
        "Message" if data.get("reason") else "",
    ):
        if name in block.lines:
            return block.lines[name]
    return block.lines.get("Reason")


# ---- tables


def _event_row(line: Line, block: _Block, parsed: Parsed, file: str, node: str | None) -> None:
    # Warning  FreeDiskSpaceFailed  3m12s (x31 over 9d)  kubelet  failed to garbage collect required amount of images. …
    parts = re.split(r"\s{2,}|\t+", line.text.strip(), maxsplit=4)
    if len(parts) < 4 or parts[0] in ("Type", "----", "FirstSeen", "---------"):
        return
    kind, reason, ago = parts[0], parts[1], _AGE.match(parts[2])
    origin, message = (parts[3], parts[4]) if len(parts) == 5 else ("", parts[3])
    name = str(block.meta.get("name") or "")
    host = block.spec.get("nodeName") or (name if block.kind == "Node" else None) or node
    if origin.startswith("kubelet, "):  # kubelet, gpu-07
        host = origin.split(", ", 1)[1]
    elif reason == "Scheduled" and (said := _ASSIGNED.match(message)) and not block.spec.get("nodeName"):
        block.spec["nodeName"] = host = said[1]
    _add(line, parsed, file, kind, reason, message, block.kind or "", name, host, ago)


def _cells(text: str, columns: list[tuple[str, int]]) -> dict[str, str]:
    """Cut a row of a table: at the columns of its header where they are blank before, at wide gaps otherwise."""
    starts = [start for _, start in columns]
    if all(start == 0 or (len(text) <= start or text[start - 1 : start].isspace()) for start in starts):
        ends = [*starts[1:], len(text)]
        return {name: text[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}
    return dict(zip([name for name, _ in columns], re.split(r"\s{2,}", text.strip(), maxsplit=len(columns) - 1), strict=False))


def _table_row(line: Line, columns: list[tuple[str, int]], parsed: Parsed, file: str, node: str | None) -> bool:
    row = _cells(line.text.rstrip(), columns)
    names = row.keys()
    if "MESSAGE" in names and "REASON" in names:
        kind, _, name = row.get("OBJECT", "").partition("/")
        ago = _AGE.match(row.get("LAST SEEN", "") or row.get("LAST", ""))
        host = name if kind.startswith("node") else node
        _add(
            line,
            parsed,
            file,
            row.get("TYPE", "Warning") or "Warning",
            row["REASON"],
            row["MESSAGE"],
            kind.capitalize(),
            name,
            host,
            ago,
        )
        return True
    return _status_row(line, row, parsed, file, node)


def _status_row(line: Line, row: dict[str, str], parsed: Parsed, file: str, node: str | None) -> bool:
    names = row.keys()
    if "STATUS" in names:
        status = row["STATUS"]
        if "READY" in names or "RESTARTS" in names:
            if row.get("NODE") and row["NODE"] != "<none>" and row.get("NAME"):
                parsed.placements.append(Placement(None, row["NODE"], pod=row["NAME"], origin="pod", file=file, line=line.no))
            if status not in _FINE and not re.match(r"Init:\d|Running", status):
                reason = status.removeprefix("Init:")
                _add(line, parsed, file, "Warning", reason, "", "Pod", row.get("NAME", ""), row.get("NODE") or node, None)
            return True
        for word in status.split(","):  # NotReady,SchedulingDisabled
            why = {"NotReady": "NodeNotReady", "SchedulingDisabled": "NodeNotSchedulable"}.get(word)
            if why:
                _add(line, parsed, file, "Warning", why, "", "Node", row.get("NAME", ""), row.get("NAME"), None)
        return True
    return False


def _add(
    line: Line,
    parsed: Parsed,
    file: str,
    severity: str,
    reason: str,
    message: str,
    kind: str,
    name: str,
    node: str | None,
    ago: re.Match[str] | None,
) -> None:
    if kind not in ("", "Pod", "Node") and _WELL.fullmatch(reason):
        parsed.jobs.append(JobRecord(None, name, "COMPLETED", source="kubernetes", file=file, data={"kind": kind}))
    meaning = classify(reason, message, kind=kind, severity=severity)
    if meaning is None or (meaning.signature == "k8s-warning" and not message):
        return
    event = Event(
        meaning.signature, "kubernetes", line.text.strip()[:2000], file=file, line=line.no, node=node or None, order=line.no
    )
    event.data = {"reason": reason, "kind": kind, "object": name}
    if kind == "Pod":
        event.data["pod"] = name
    if kind == "Node" or meaning.code is not None or meaning.signature.startswith("k8s-gpu"):
        event.gpu = gpu_in(message)
    if ago:
        # kubectl prints ages only: no absolute time, but how long ago and for how long it has been so
        event.data["age"] = age(ago[1])
        event.count = int(ago[2] or 1)
        if ago[3]:
            event.data["age_first"] = age(ago[3])
    parsed.events.append(meaning.apply(event))


# ---- lines without structure


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], tuple[tuple[str, re.Pattern[str]], ...]]:
    from workbench.catalog import signatures, table

    known = signatures()  # with a site's own patterns
    rows = [(row["id"], known[row["id"]].pattern) for row in table("signatures_kubernetes") if known[row["id"]].pattern]
    any_of = re.compile("|".join(re.sub(r"\(\?P<\w+>", "(?:", f"(?:{pattern})") for _, pattern in rows))
    return any_of, tuple((name, re.compile(pattern)) for name, pattern in rows)


def _matches(line: Line) -> Iterator[tuple[str, re.Match[str]]]:
    any_of, rows = _patterns()
    if line.hits or any_of.search(line.text):
        for name, pattern in rows:
            found = pattern.search(line.text) if not line.hits or name in line.hits else None
            if found:
                yield name, found


def _shown_text(text: str, at: int) -> str:
    return text if len(text) <= 2000 else text[max(0, at - 200) : max(0, at - 200) + 2000]


def _plain(line: Line, parsed: Parsed, file: str, node: str | None) -> None:
    text = line.text.strip()
    if (pod_row := bare_pod(text)) and _status_row(line, pod_row, parsed, file, node):
        return
    if said := bare_event(text):
        assigned = _ASSIGNED.match(said["message"])
        if assigned:  # the events below are of the same pod
            parsed.facts["assigned"] = assigned[1]
        before = len(parsed.events)
        where = parsed.facts.get("assigned") or node
        _add(line, parsed, file, said["kind"], said["reason"], said["message"], "Pod", "", where, None)
        for event in parsed.events[before:]:
            event.time = epoch(said["time"])
        return
    host = _SYSLOG.match(text)
    where = host[1] if host else node
    # worker-1  ns-a  Evicted  node-a  Pod The node had condition: [DiskPressure].
    cells = re.split(r"\s{2,}|\t+", text)
    if 3 <= len(cells) <= 20:
        for at, cell in enumerate(cells[1:-1], 1):
            message = cells[-1]
            if re.fullmatch(r"[A-Z][A-Za-z]+", cell) and " " in message:
                meaning = classify(cell, message, kind="Pod", severity="Normal")
                if meaning:
                    between = [
                        one
                        for one in cells[at + 1 : -1]
                        if re.fullmatch(r"[a-z0-9][\w.-]*", one) and not _COMPONENT.match(one) and age(one) is None
                    ]
                    _add(line, parsed, file, "Warning", cell, message, "Pod", cells[0], between[0] if between else where, None)
                    return
    found = dict(_matches(line))
    if not found:
        return
    meaning = classify("", text, severity="Normal")
    names = [meaning.signature] if meaning else [min(found, key=lambda name: -len(found[name][0]))]
    for name in names:
        groups = {key: value for key, value in found[name].groupdict().items() if value} if name in found else {}
        pod = _POD.search(text)
        event = Event(
            name,
            "kubernetes",
            _shown_text(text, found[name].start() if name in found else 0),
            file=file,
            line=line.no,
            node=groups.pop("node", None) or where,
            order=line.no,
            data=dict(groups),
        )
        event.gpu = gpu_in(text)
        if pod:
            event.data.update(namespace=pod[1], pod=pod[2])
        parsed.events.append(meaning.apply(event) if meaning else event)
