"""Turn records of health monitors and node controllers (NVSentinel, SageMaker HMA, NPD, Karpenter; JSON) into events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.catalog import table
from workbench.model import Event, Gpu
from workbench.parse import ids
from workbench.parse.kubernetes_reasons import Meaning, classify, condition_row, epoch, gpu_in
from workbench.parse.xid import xid_event

__all__ = ["is_record", "record_event"]

_DEEPEST = 6
# DCGM_FR_GPU_FALLEN_OFF_BUS | 79
_DCGM = re.compile(r"DCGM_FR_\w+")
# "GPU has fallen off the bus (XID 79)" | "Xid 79: GPU has …"
_XID_SAID = re.compile(r"\b[Xx][Ii][Dd]s?[ :=#]{0,2}(\d{1,3})\b")
_FALLEN = re.compile(r"fallen off the bus|GPU[ _]is[ _]lost", re.I)
# words of autoscalers and interruption handlers: what they do to a node
_TAKEN = re.compile(
    r"interruption message|spot[ _-]?interrupt|SpotInterruption|ScheduledChange|scheduled[ _]change|instance_(?:stopped|terminated)"
    r"|StateChangeKind|rebalance|Requesting instance drain|draining the node|node termination event",
    re.I,
)
_SCALED = re.compile(r"disrupting (?:node|via)|deprovisioning via|[Ss]cale-?down: removing|terminating (?:node|machine)", re.I)
_TIMES = ("generatedtimestamp", "timestamp", "createdat", "time", "ts", "eventtime", "date")
# recommended actions of NVSentinel's protocol that say that nothing need be done
_NO_ACTION = ("0", "NONE", "RecommendedAction_NONE")


def _plain(name: str) -> str:
    """Make keys of Go, JSON and BSON spellings alike: ``NodeName``, ``node_name`` and ``details: `` lose case and signs."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _lower(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_plain(str(key)): value for key, value in record.items()}


def _inside(record: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the record and the records inside it, the outer ones first."""
    if isinstance(record, Mapping) and depth < _DEEPEST:
        own = _lower(record)
        yield own
        for value in own.values():
            yield from _inside(value, depth + 1)
    elif isinstance(record, list) and depth < _DEEPEST:
        for value in record[:200]:
            yield from _inside(value, depth + 1)


def _finding(record: Any) -> dict[str, Any] | None:
    """Return the part of a record that is a health finding: with entities, a check's name, or a monitor's reason and message."""
    for part in _inside(record):
        if isinstance(part.get("states"), list) and "component" in part:  # gpud: a component with the states of its checks
            for state in part["states"]:
                own = _lower(state) if isinstance(state, Mapping) else {}
                if own.get("health") in ("Unhealthy", "Degraded") and isinstance(own.get("reason"), str):
                    return {**own, "message": own["reason"], "checkname": str(part["component"]), "isfatal": True}
            return None
        if "errorcode" in part and "test" in part and isinstance(part.get("detail"), str):  # preflight diagnostics
            return {**part, "message": part["detail"], "checkname": part["test"], "isfatal": part.get("level") == "error"}
        if "entitiesimpacted" in part or ("checkname" in part and ("isfatal" in part or "message" in part)):
            return part
        if isinstance(part.get("reason"), str) and isinstance(part.get("message"), str) and "severity" in part:
            return part
        if isinstance(part.get("message"), str) and "Xid (PCI:" in part["message"]:
            return part
    return None


def is_record(record: Mapping[str, Any]) -> bool:
    """Tell whether a JSON object without a kind is a health monitor's finding or a line of a controller's log."""
    keys = _lower(record)
    said = keys.get("message") or keys.get("msg")
    return isinstance(said, str) or _finding(record) is not None


def _time(*records: Mapping[str, Any]) -> float | None:
    for record in records:
        for name in _TIMES:
            value = record.get(name)
            if isinstance(value, Mapping) and isinstance(value.get("seconds"), (int, float)):  # a protobuf time
                return float(value["seconds"]) + float(value.get("nanos") or 0) / 1e9
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 1e9 < value < 4e12:
                return float(value) / (1000.0 if value > 4e9 else 1.0)
            if (when := epoch(value)) is not None:
                return when
    return None


def _name(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("name") or value.get("Name")
    return value if isinstance(value, str) and re.fullmatch(r"[\w][\w.-]*", value) else None


def _node(*records: Mapping[str, Any]) -> str | None:
    for record in records:
        for key in ("nodename", "node", "hostname", "instanceid"):
            if (name := _name(record.get(key))) and name not in ("true", "false"):
                return name
    return None


def _gpu(finding: Mapping[str, Any], text: str) -> Gpu | None:
    """Return the GPU among the entities of a finding: by index, UUID or PCI address, whichever are there."""
    index = identity = address = None
    for entity in finding.get("entitiesimpacted") or []:
        if not isinstance(entity, Mapping):
            continue
        own = _lower(entity)
        kind, value = str(own.get("entitytype") or "").upper(), str(own.get("entityvalue") or "")
        identity = identity or ids.uuid(value)
        if kind == "PCI" or (kind == "GPU" and ":" in value):
            address = address or ids.pci(value)
        elif kind == "GPU" and re.fullmatch(r"\d{1,3}", value):
            index = int(value)
    found = Gpu(index, identity or ids.uuid(str(finding.get("gpu") or "")), address)
    return found if found != Gpu() else gpu_in(text)


def _codes(finding: Mapping[str, Any]) -> list[str]:
    value = finding.get("errorcode") or finding.get("errorcodes") or []
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _meaning(finding: Mapping[str, Any], message: str) -> Meaning | None:
    reason = str(finding.get("checkname") or finding.get("reason") or "")
    codes = _codes(finding)
    number = next((code for code in codes if re.fullmatch(r"\d{1,3}", code)), None) if "xid" in reason.lower() else None
    said = _XID_SAID.search(message)
    if number is None and said and int(said[1]):
        number = said[1]
    if number is not None:
        meaning = Meaning(f"xid-{number}", code=int(number), data={"monitor": reason})
        if 144 <= int(number) <= 150:
            # NVLink 5: only the kernel's own line says whether it was fatal, and most are not
            meaning.role, meaning.weight = "context", 0.2
        return meaning
    dcgm = next((found[0] for code in codes if (found := _DCGM.match(code))), None)
    if dcgm is None and _FALLEN.search(message):  # what every query of a lost GPU answers; how it was lost, another line says
        return Meaning("k8s-gpu-health", "symptom", "hardware/gpu-lost", 0.8, data={"monitor": reason})
    row = next((row for row in table("dcgm_errors") if row["name"] == dcgm), None) if dcgm else None
    if dcgm and (row is None or row["class"] == "unknown") and (_FALLEN.search(message) or "OFF_BUS" in dcgm):
        return Meaning("k8s-gpu-health", "cause", "hardware/gpu-lost", 0.85, data={"dcgm": dcgm, "monitor": reason})
    if row is not None and row["class"] != "unknown":
        fatal = finding.get("isfatal") is not False
        return Meaning(
            "k8s-gpu-health", "cause" if fatal else "context", row["class"], 0.7 if fatal else 0.2,
            data={"dcgm": dcgm, "monitor": reason},
        )  # fmt: skip
    known = condition_row(reason)
    if known is not None and known["kind"] == "component":  # gpud: the component says of what it speaks
        return Meaning(known["signature"], known["role"], known["class"], float(known["weight"]), data={"monitor": reason})
    return classify(reason, message, kind="Node", severity="Normal" if not reason else "Warning")


def record_event(record: Mapping[str, Any]) -> Event | None:
    """
    Return the event that one JSON record of a health monitor or controller is, or None when it is routine.

    Parameters
    ----------
    record : mapping
        The object as it was logged or stored; the finding may be nested in it.

    Returns
    -------
    Event or None
        With node, GPU (index, UUID, PCI) and time of the record; ``data["needle"]`` is a text to find its line by.
    """
    outer = _lower(record)
    finding = _finding(record)
    said = str(outer.get("message") or outer.get("msg") or "")
    needle = next((str(outer[name]) for name in ("time", "ts", "timestamp") if isinstance(outer.get(name), str)), said)
    if finding is not None:
        if finding.get("ishealthy") is True:
            return None
        message = str(finding.get("message") or "")
        kernel = xid_event(message)
        meaning = None if kernel else _meaning(finding, message)
        if kernel is not None:
            kernel.source, event = "kubernetes", kernel
            if not event.gpu:
                event.gpu = _gpu(finding, message)
        elif meaning is not None and meaning.signature != "k8s-warning":
            event = meaning.apply(Event(meaning.signature, "kubernetes", gpu=_gpu(finding, message)))
        else:
            return None
        if finding.get("isfatal") is False or str(finding.get("recommendedaction", "")) in _NO_ACTION:
            event.role, event.weight = "context", 0.2
        event.text, event.time = message[:2000], _time(finding, outer)
        event.node = _node(finding, outer)
        event.data |= {"reason": finding.get("checkname") or finding.get("reason"), "needle": needle, "said": message[:200]}
        return event
    kind = str(outer.get("messagekind") or outer.get("kind") or "")
    words = f"{said} {kind}"
    if _TAKEN.search(words):
        event = Event("k8s-impending-termination", "kubernetes")
        if re.search(r"rebalance", words, re.I):
            event.role, event.weight = "context", 0.2
    elif _SCALED.search(said):
        event = Event("k8s-scale-down", "kubernetes")
    else:
        meaning = classify("", said, severity="Normal")
        if meaning is None:
            return None
        event = meaning.apply(Event(meaning.signature, "kubernetes", gpu=gpu_in(said)))
    event.text, event.time, event.node = f"{said} {kind}".strip()[:2000], _time(outer), _node(outer)
    event.data |= {"needle": kind if kind and kind in str(record) and not needle else needle, "said": said[:200]}
    return event
