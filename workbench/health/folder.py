"""Turn a folder of evidence into what the checks would have said of its nodes: from kernel logs and the outputs of tools that somebody kept."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.catalog import signatures, table
from workbench.catalog.climbs import climbed
from workbench.catalog.findings import FindingRow, finding_row, findings_table
from workbench.health.devices import with_devices
from workbench.health.finding import Finding, rank
from workbench.health.kept_metrics import METRICS, metric_faults
from workbench.health.link_log import link_troubles
from workbench.health.registry import checks
from workbench.health.runner import judged
from workbench.health.told import codes, same
from workbench.model import CLASSES, Event, Gpu, Line
from workbench.parse.bmc import parse_bmc
from workbench.parse.fabric_manager import parse_fabric_manager
from workbench.parse.gpu_state import GpuState, NodeGpus, from_nvml, from_smi
from workbench.parse.kernel import parse_kernel
from workbench.parse.nvml_doc import INIT_SIGNATURES, is_nvml
from workbench.parse.rdma_ports import RdmaPort, from_ibstat
from workbench.parse.smi_doc import documents
from workbench.parse.smi_links import links_of
from workbench.sources.files import Document, read_evidence
from workbench.sources.node.kernel_events import KernelLog
from workbench.sources.node.network import Network
from workbench.sources.node.world import Reading, World
from workbench.sources.survey import MIB, Limits

__all__ = ["check_folder"]

_SURE = 0.5  # weight from which one observation alone is more likely this fault than none: the catalog's own scale

_LATELY = (
    30 * 86_400.0
)  # seconds before a board's last entry in which its entries still say how it is (recall: of a month's service)

_NOT_HERE = "it is not among the files: run `workbench check` on the node"
# GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-4a1f…)
_LISTED = re.compile(r"GPU (\d{1,3}): (.+?) \(UUID: ")
_CODES = {signature: code for code, signature in INIT_SIGNATURES.items()}


# `workbench check` is to stay small beside the job that it may share the node with: larger logs are kept by head, tail and matches
_LIMITS = Limits(whole=4 * MIB, tail=MIB // 2, raw=8 * MIB, workers=1)
_WHOLE = 5_000  # lines
_FOLDED, _BLOCK, _STACK = 2, 8, 64  # lines that a message is folded over, that a report of errors and that a stack goes on for
_TELLING = re.compile(r"NVRM|nvidia|GPU|Linux version|\bpci |\bpcieport ")
_OPENS = re.compile(r"(blocked for more than|lockup|stall|oom-killer|BUG:|Oops|panic)|Hardware Error|AER|PCIe Bus Error|DPC")


@dataclass
class _Node:
    """What the files hold of one node."""

    kernel: list[Event] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    gpus: list[NodeGpus] = field(default_factory=list)
    ports: list[RdmaPort] = field(default_factory=list)
    others: list[Event] = field(default_factory=list)  # of logs that no check reads
    nvml: dict[str, Any] | None = None
    links: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    products: dict[int, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)  # where the GPUs were shown
    cut: list[str] = field(default_factory=list)  # metrics of which only the begin was read


def check_folder(
    *paths: str | os.PathLike[str], context: str = "allocation", settings: Mapping[str, Any] | None = None
) -> list[Finding]:
    """
    Check every node of which the files hold a kernel log or the output of `nvidia-smi` or NVML; worst first.

    The files say what was, at the time of their last line, not what is. What a check needs and the files do not hold is ``unknown``, so no
    folder can show that a node is fit; it can show that one is not.

    Parameters
    ----------
    paths : str or Path
        Folders, archives or files.
    context, settings
        As of `workbench.health.run`.

    Returns
    -------
    list of Finding
        Of all nodes; empty when there is nothing of any node.
    """
    nodes: dict[str, _Node] = {}
    for document in read_evidence(paths, limits=_LIMITS):
        if isinstance(document, Document):
            _take(document, nodes)
    findings = [one for name, node in nodes.items() for one in _findings(name, node, context, dict(settings or {}))]
    return sorted(findings, key=rank)


def _take(document: Document, nodes: dict[str, _Node]) -> None:
    if document.kind == "kernel-log":
        document.lines[:] = _telling(document.lines)  # before they are parsed: what is left out needs no memory any more
        _take_kernel(document.lines, document, nodes)
    elif document.kind == "fabricmanager-log":
        _take_fabric(document, nodes)
    elif document.kind == "bmc":
        _take_board(document, nodes)
    elif document.kind in METRICS:
        if not document.complete:
            nodes.setdefault(document.node or "", _Node()).cut.append(document.name)
        for event in metric_faults(document):
            nodes.setdefault(event.node or document.node or "", _Node()).others.append(event)
    elif document.kind == "smi" and is_nvml(document.data):
        name = str(document.data.get("node") or document.node or "")
        node = nodes.setdefault(name, _Node())
        node.nvml = dict(document.data)
        node.gpus.append(from_nvml(document.data, file=document.name))
        node.shown.append(document.name)
    elif document.kind == "smi":
        parts, kernel = documents(document.lines, document.node)
        for part in parts:
            node = nodes.setdefault(part.node or document.node or "", _Node())
            lines = [Line(row.line.no, row.text) for row in part.rows]
            node.gpus.append(from_smi(lines, file=document.name, node=part.node))
            node.links |= {index: links for index, _, links in links_of(line.text for line in lines) if links}
            node.products |= {int(found[1]): found[2] for line in lines if (found := _LISTED.match(line.text))}
            node.shown.append(document.name)
            if ports := from_ibstat("\n".join(line.text for line in lines)):
                node.ports += [port for port in ports if port.name not in {known.name for known in node.ports}]
        if kernel:
            _take_kernel(document.lines, document, nodes)


def _take_fabric(document: Document, nodes: dict[str, _Node]) -> None:
    for event in parse_fabric_manager(document.lines, file=document.name, node=document.node).events:
        nodes.setdefault(event.node or document.node or "", _Node()).others.append(event)


def _take_board(document: Document, nodes: dict[str, _Node]) -> None:
    """The event log of a board's controller, without what it kept of other months: nobody clears it when a part was replaced."""
    events = parse_bmc(document.lines, document.data, file=document.name, node=document.node).events
    newest = max((event.time for event in events if event.time is not None), default=None)
    for event in events:
        if event.time is None or newest is None or newest - event.time <= _LATELY:
            nodes.setdefault(event.node or document.node or "", _Node()).others.append(event)


def _take_kernel(lines: Sequence[Line], document: Document, nodes: dict[str, _Node]) -> None:
    parsed = parse_kernel(lines, file=document.name, node=document.node, reference=document.mtime)
    names = {event.node or document.node or "" for event in parsed.events} or {document.node or ""}
    for name in names:
        node = nodes.setdefault(name, _Node())
        node.kernel += [event for event in parsed.events if (event.node or document.node or "") == name]
        node.logs.append(document.name)
        node.facts |= parsed.facts
        node.problems += [problem.message for problem in parsed.problems]


def _telling(lines: Sequence[Line]) -> Iterator[Line]:
    """Of a long log the lines in which the catalog or the parser may see something, with the block that one of them opens."""
    keep = len(lines) - _WHOLE  # the last ones are kept as they are
    rows = signatures()
    until = -1
    for at, line in enumerate(lines):
        if at < keep and (any(rows[hit].layer == "kernel" for hit in line.hits if hit in rows) or _TELLING.search(line.text)):
            found = _OPENS.search(line.text)
            until = max(until, at + (_FOLDED if found is None else _STACK if found[1] else _BLOCK))
        if at >= keep or at <= until:
            yield line


def _findings(name: str, node: _Node, context: str, settings: dict[str, Any]) -> list[Finding]:
    readings = _readings(node)
    return with_devices(_judged(name, node, context, settings, readings), readings)


def _judged(name: str, node: _Node, context: str, settings: dict[str, Any], readings: Mapping[str, Reading]) -> Iterator[Finding]:
    times = [event.time for event in node.kernel if event.time is not None]
    now = max(times) if times else time.time()
    world = World(name, clock=lambda: now, settings=settings)
    told: set[str] = set()
    ports: set[str] = set()  # of which the check of the network has spoken
    bare = [state.gpu for gpus in (readings.get("gpus"),) if gpus for state in gpus.value.states if not state.facts]
    nothing = bool(bare) and len(bare) == len(readings["gpus"].value.states)
    able: set[str] = set()  # checks that had all they need: what they keep silent about is not worth a word
    for one in checks().values():
        if context not in one.contexts:
            continue
        mine = {each: readings.get(each, Reading(each, "missing", detail=_NOT_HERE)) for each in (*one.needs, *one.wants)}
        found = judged(one, name, context, mine, world)
        if one.id == "sxid" and (more := _switches(node)):
            # a fabric manager's log tells of switches as the kernel's does; that it is silent shows nothing
            heard = judged(one, name, context, {**mine, "kernel": more}, world)
            found = heard if any(each.status in ("critical", "warning") for each in heard) else found
        # what a file that only names a GPU does not tell is not there, like a file that is missing
        found = [
            replace(each, code="unread-missing")
            if each.status == "unknown"
            and (_NOT_HERE in each.summary or each.gpu in bare or (nothing and {"gpus", "nvml"} & {*one.needs}))
            else each
            for each in found
        ]
        told |= {each.code for each in found}
        ports |= {each.part for each in found if one.id == "network" and each.status in ("warning", "critical")}
        if all(mine[each].usable for each in one.needs):
            able.add(one.id)
        yield from found
    if "pcie" not in able:
        links = list(_links(name, node, now))
        told |= {"aer-corrected", "pcie-width-limited"} | {each.code for each in links}
        yield from links
    for file in node.cut:
        yield Finding(
            "kept-output",
            "unknown",
            f"{file}: only the first {_LIMITS.raw // MIB} MiB of these metrics were judged",
            "unread",
            name,
            hint="give the hour around the failure, a file a node",
        )
    yield from (one for one in _rest(name, node, told, able) if one.part not in ports or not one.part)


def _action(event: Event, row: FindingRow | None, usual: str, others: Iterable[Event]) -> str:
    """An error that DCGM names may ask for more than the test that met it; the catalog's table of DCGM's errors says what."""
    named = str(event.data.get("remediation") or "") if event.signature.startswith(("dcgmi-", "metric-xid")) else ""
    action = named or (row.action if row else usual)
    climb = climbed(action, event, others)
    return climb.to if climb else action


def _summary(event: Event, meaning: str) -> str:
    """What it means, with the numbers where it is of a metric."""
    before, after = event.data.get("before"), event.data.get("after")
    if event.source != "metrics" or not isinstance(before, float) or not isinstance(after, float):
        return meaning
    field = str(event.data.get("field") or "").removeprefix("DCGM_FI_DEV_")
    heat = event.data.get("temperature")
    return f"{meaning} ({field} {before:g} → {after:g}{f', {heat:.0f} °C' if isinstance(heat, float) and heat == heat else ''})"


def _links(name: str, node: _Node, now: float) -> Iterator[Finding]:
    """What the kernel log says of the links of GPUs that nobody asked about their width."""
    by_link: dict[tuple[Gpu | None, str], dict[str, list[Event]]] = {}
    for event in node.kernel:
        # what is below a port was often said before the log begins: then the port is all that is known
        if event.signature in codes("pcie") and (event.gpu is not None or event.signature == "aer-corrected"):
            port = "" if event.gpu is not None else str(event.data.get("port") or event.data.get("device") or "")
            by_link.setdefault((event.gpu, port), {}).setdefault(event.signature, []).append(event)
    for (gpu, port), mine in by_link.items():
        for code, summary, events in link_troubles(mine, now):
            row = finding_row(code)
            yield Finding(
                row.check,
                row.status,
                f"{summary} (port {port})" if port else summary,
                code,
                name,
                gpu,
                port,
                cls=row.cls,
                action=row.action,
                evidence=tuple(event.text for event in events[:3]),
                path=events[0].file,
                since=events[0].time,
            )


def _rest(name: str, node: _Node, told: set[str], able: set[str]) -> Iterator[Finding]:
    """
    What the files say and no check could ask for: results of a diagnostic, a link that went down in the kernel log of a node whose ports
    nobody kept, a fabric manager's own log.
    """
    rows, kinds = findings_table(), signatures()
    actions = {row["class"]: row["remediation"] for row in table("classes")}
    seen: set[tuple[str, Gpu | None]] = set()
    for event in (*(event for gpus in node.gpus for event in gpus.events), *node.kernel, *node.others):
        row, kind = rows.get(event.signature), kinds[event.signature]
        role, cls = event.role or kind.role, event.cls or kind.cls
        weight = kind.weight if event.weight is None else event.weight
        if event.signature in told or event.signature in _CODES or role in ("context", "counter") or (row and row.status == "ok"):
            continue
        of_kernel = event.source == "kernel"
        if of_kernel and (not cls.startswith(("hardware/", "driver/")) or re.match(r"s?xid-", event.signature)):
            continue
        if of_kernel and (row.check in able if row else kind.remediation == "none"):
            continue
        if (event.signature, event.gpu) in seen:
            continue
        seen.add((event.signature, event.gpu))
        yield Finding(
            row.check if row and row.check else "kept-output",
            # whether a link came back, or what else cleared it, is not asked of a log that no check reads
            row.status if row else "critical" if weight >= _SURE and not of_kernel else "warning",
            _summary(event, row.meaning if row else kind.meaning),
            event.signature,
            name,
            event.gpu,
            f"{event.data['device']}/{event.data.get('port', 1)}"
            if event.signature.startswith("ib-") and event.data.get("device")
            else "",
            cls=row.cls if row and row.cls else cls if cls in CLASSES else "",
            action=_action(event, row, kind.remediation or actions.get(cls, "drain"), node.kernel),
            evidence=(event.text,) if event.text else (),
            path=event.file,
            since=event.time,
        )


def _switches(node: _Node) -> Reading | None:
    """The errors of NVSwitches of which a fabric manager's log tells, with those of the kernel that it may have seen."""
    theirs = [event for event in node.others if event.signature.startswith("sxid-")]
    if not theirs:
        return None
    mine = {(event.code, event.data.get("switch_pci"), event.data.get("link")) for event in node.kernel}
    new = [event for event in theirs if (event.code, event.data.get("switch_pci"), event.data.get("link")) not in mine]
    events = (*node.kernel, *new)
    times = [event.time for event in events if event.time is not None]
    places = ", ".join(dict.fromkeys([*node.logs, *(str(event.file) for event in theirs)]))
    last = max((int(event.data.get("boot") or 0) for event in node.kernel), default=0)
    for event in new:
        event.data["boot"] = last  # it is not said of which boot; the newest is the one that counts
    return Reading("kernel", "ok", KernelLog(events, places, min(times, default=None), None), "the kept log")


def _readings(node: _Node) -> dict[str, Reading]:
    out: dict[str, Reading] = {}
    if node.logs:
        times = [event.time for event in node.kernel if event.time is not None]
        boots = [boot for boot, _ in node.facts.get("boots") or () if boot is not None]
        boot = boots[-1] if boots else None
        log = KernelLog(
            tuple(node.kernel),
            ", ".join(dict.fromkeys(node.logs)),
            boot if boot is not None else min(times, default=None),
            boot,
            tuple(node.problems),
            node.facts,
        )
        out["kernel"] = Reading("kernel", "ok", log, "the kept log", blind=("what happened after its last line",))
    if node.ports:
        # ports of one product beside each other; without counters and history nothing is known of errors and flaps
        out["network"] = Reading("network", "ok", Network(tuple(node.ports)), ", ".join(dict.fromkeys(node.shown)))
    if node.shown:
        gpus = _merged(node)
        path = ", ".join(dict.fromkeys(node.shown))
        if gpus.states:
            out["gpus"] = Reading("gpus", "ok", gpus, path)
            bus = set(node.facts.get("gpus") or ()) | set(gpus.bus)
            if bus or gpus.count == len(gpus.states):  # an excerpt shows some GPUs, and not that there are no others
                bus |= {state.gpu.pci for state in gpus.states}
                listed = [{"pci": each, "driver": ""} for each in sorted(filter(None, bus))]
                out["pci-bus"] = Reading("pci-bus", "ok", listed, path)
        document = node.nvml or _document(gpus)
        if document:
            out["nvml"] = Reading("nvml", "ok", document, path)
    return out


def _merged(node: _Node) -> NodeGpus:
    """One view of the GPUs: what several outputs say of the same one is put together, the fullest first."""
    states: list[GpuState] = []
    events: list[Event] = []
    for gpus in sorted(node.gpus, key=lambda one: -sum(len(state.facts) for state in one.states)):
        events += gpus.events
        for state in (*gpus.states, *(GpuState(gpu, {}) for gpu in _named(gpus.events))):
            at = next((at for at, known in enumerate(states) if same(known.gpu, state.gpu)), None)
            if at is None:
                states.append(state)
            else:
                known = states[at]
                names = Gpu(
                    known.gpu.index if known.gpu.index is not None else state.gpu.index,
                    known.gpu.uuid or state.gpu.uuid,
                    known.gpu.pci or state.gpu.pci,
                )
                states[at] = replace(
                    known, gpu=names, facts={**state.facts, **known.facts}, why_not={**state.why_not, **known.why_not}
                )
    for at, state in enumerate(states):
        index = -1 if state.gpu.index is None else state.gpu.index
        told = {"nvlink": node.links.get(index), "name": node.products.get(index)}
        states[at] = replace(state, facts={**{key: value for key, value in told.items() if value is not None}, **state.facts})
    first = next((gpus for gpus in node.gpus if gpus.driver), None)
    bus = tuple(dict.fromkeys(each for gpus in node.gpus for each in gpus.bus))
    return NodeGpus(
        tuple(states),
        first.driver if first else "",
        first.cuda if first else "",
        first.nvml if first else "",
        # an output that counts more GPUs than it shows was cut when it was kept
        next((gpus.count for gpus in node.gpus if gpus.count == len(states)), None),
        bus,
        tuple(events),
    )


def _named(events: Iterable[Event]) -> list[Gpu]:
    return list(dict.fromkeys(event.gpu for event in events if event.gpu is not None and event.gpu != Gpu()))


def _document(gpus: NodeGpus) -> dict[str, Any] | None:
    """The document that NVML would have given, from what nvidia-smi printed when it could not start, or that it did."""
    for event in gpus.events:
        if event.signature in _CODES:
            error = {"code": _CODES[event.signature], "error": event.text.strip()}
            return {"ending": "init", "error": error, "gpus": [], "driver": gpus.driver, "seconds": 0.0, "why_not": {}}
    if gpus.driver and gpus.states:
        return {
            "ending": "whole",
            "error": None,
            # what was printed of a GPU was answered for it; how many there should be is not this document's question
            "count": len(gpus.states),
            "gpus": [{} for _ in gpus.states],
            "driver": gpus.driver,
            "seconds": 0.0,
            "why_not": {},
        }
    return None
