"""Turn logs of a board controller (IPMI event log, iLO and iDRAC logs, Redfish events) into events about the node's hardware."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from workbench import catalog
from workbench.model import Event, Gpu, Line, Parsed, Problem
from workbench.parse import ids, xid
from workbench.parse.text import MONTHS

__all__ = ["parse_bmc"]

#  6a | 04/12/2024 | 03:27:29 PM CDT | Critical Interrupt | Bus Correctable error () | Asserted   (ipmitool sel list / elist)
#   1 | 04/12/24 | 15:27:29 UTC | Temperature #0x30 | Upper Critical going high | Asserted | Reading 97 > Threshold 95 degrees C
_SEL = re.compile(
    r"\s*(?P<id>[0-9a-fA-F]{1,6})\s*\|\s*(?P<date>\d{1,2}/\d{1,2}/\d{2,4}|\d{4}-\d\d-\d\d|[Pp]re-?[Ii]nit)\s*"
    r"\|\s*(?P<time>\d{1,2}:\d\d:\d\d(?:\s*[AP]M)?(?:\s*(?P<zone>[A-Z]{2,5}|[+-]\d\d:?\d\d))?|[^|]*?)\s*"
    r"\|\s*(?P<sensor>[^|]*?)\s*\|\s*(?P<what>.*)$"
)
# 6,Apr-12-2024,15:27:29,Memory ECC,Memory,Uncorrectable memory error   (ipmi-sel of FreeIPMI, columns split by | or ,)
_FREE_SEL = re.compile(
    r"\s*(?P<id>\d+)\s*[|,]\s*(?P<date>[A-Z][a-z]{2}-\d{1,2}-\d{4})\s*[|,]\s*(?P<time>\d\d:\d\d:\d\d)\s*"
    r"[|,]\s*(?P<sensor>[^|,]*?)\s*[|,]\s*(?P<what>.*)$"
)
# 1346 Critical       04:07  11/05/2018 04:07  11/05/2018 0001   then   LOG: Uncorrectable Machine Check Exception (…)   (iLO IML)
_IML = re.compile(
    r"\s*(?P<id>\d+)\s+(?P<severity>Critical|Caution|Informational|Repaired|OK|Warning)\s+"
    r"(?P<time>\d\d:\d\d(?::\d\d)?)\s+(?P<date>\d\d/\d\d/\d{4})"
)
_IML_TEXT = re.compile(r"\s*(?:LOG|DESCRIPTION|Description|Message)\s*[:=]\s*(?P<what>.+)")
# 2024-04-12 15:27:29   MEM0001   Multi-bit memory errors detected on … | 2024-04-12T15:27:29-0500 CRITICAL …   (racadm)
_DATED = re.compile(
    r"\s*(?:Date/Time:\s*|Timestamp\s*[:=]\s*)?"
    r"(?P<date>\d{4}-\d\d-\d\d|\d{1,2}/\d{1,2}/\d{4})[ T](?P<time>\d\d:\d\d:\d\d)(?:[.,]\d+)?"
    r"\s*(?P<zone>Z|[+-]\d\d:?\d\d|UTC)?[\s|,;-]*(?P<what>.*)$"
)
# [Tue Apr 22 23:22:23 UTC 2025][7][00] XID 95 Uncontained: FBHUB. RST: Yes; D-RST: No
_BMC_XID = re.compile(
    r"(?:\[(?P<stamp>[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d (?:[A-Z]{3,4} )?\d{4})\])?"
    r"(?:\[\w*\])*\s*\bXID[ :]\s*(?P<code>\d{1,3})\b[ ,:]*(?P<detail>.*)"
)
_GPU_NAME = re.compile(r"\bGPU(?:_SXM)?[_ ]?(\d+)\b")
_ZONES = {"UTC": 0, "GMT": 0, "Z": 0, "CDT": -5, "CST": -6, "EDT": -4, "EST": -5, "MDT": -6, "MST": -7, "PDT": -7, "PST": -8}
_ZONES |= {"CET": 1, "CEST": 2, "JST": 9, "KST": 9}
# What a record says → signature, first fit. "Deasserted" ends a state and is never a fault.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile("|".join(patterns), re.IGNORECASE))
    for name, patterns in (
        (
            "bmc-mce",
            (
                r"uncorrectable machine check",
                r"\bIERR\b",
                r"CATERR",
                r"CPU.*(?:internal error|machine check)",
                r"processor.*configuration error",
            ),
        ),
        (
            "bmc-memory-corrected",
            (
                r"(?<!un)correctable (?:memory|ECC)",
                r"single[- ]bit",
                r"corrected memory",
                r"memory.*(?<!un)correctable",
            ),
        ),
        (
            "bmc-memory-uncorrected",
            (
                r"uncorrectable (?:memory|ECC)",
                r"multi-?bit memory",
                r"memory.*(?:\| *parity|device disabled|configuration error)",
                r"memory.*uncorrectable",
                r"uncorrectable.*DIMM",
            ),
        ),
        (
            "bmc-pcie-corrected",
            (
                r"bus correctable error",
                r"(?<!un)correctable PCIe",
                r"PCIe.*(?<!un)correctable",
            ),
        ),
        (
            "bmc-pcie-uncorrected",
            (
                r"bus (?:uncorrectable|fatal) error",
                r"(?:fatal|uncorrectable) PCIe",
                r"PCIe.*(?:uncorrectable|fatal)",
                r"PCI [SP]ERR",
                r"fatal error was detected on a component at bus",
            ),
        ),
        (
            "bmc-power",
            (
                r"(?:power input for|input.*) power supply.*lost",
                r"voltage.*(?:lower|upper) (?:critical|non-?recoverable)",
                r"power supply.*(?:fail|AC lost|input lost|out of range|predictive)",
                r"\bPSU? ?\d?.*(?:failure|lost|fault)",
                r"power unit.*(?:fail|lost)",
                r"redundancy lost",
                r"power brake",
            ),
        ),
        (
            "bmc-temperature",
            (
                r"(?:temp|thermal).*(?:upper (?:critical|non-?recoverable)|critical over|over.?temperature)",
                r"thermal trip",
                r"overtemp",
                r"PROCHOT",
            ),
        ),
        (
            "bmc-fan",
            (r"fan.*(?:fail|lower (?:critical|non-?recoverable)|fault|removed)",),
        ),
        (
            "bmc-drive",
            (
                r"drive.*(?:fault|fail|predictive)",
                r"(?:physical|virtual) disk.*(?:fail|offline|degraded)",
            ),
        ),
        (
            "bmc-nvlink",
            (
                r"nvlink.*(?:error|down|fail)",
                r"NVSwitch.*(?:error|fail)",
                r"\bSXID\b",
            ),
        ),
        (
            "bmc-gpu",
            (r"\bGPU.*(?:fail|error|fault|not (?:present|detected)|fallen off|overT\b|lost|reset required)",),
        ),
        (
            "bmc-watchdog",
            (r"watchdog.*(?:timer expired|hard reset|power cycle|power down|timer interrupt)",),
        ),
        (
            "bmc-os-stop",
            (
                r"OS (?:critical )?stop",
                r"run-?time (?:critical )?stop",
                r"kernel panic",
            ),
        ),
        (
            "bmc-power-cycle",
            (
                r"system (?:boot|restart|power (?:cycle|off|on))",
                r"power (?:off|cycle)",
                r"server (?:power|reset)",
                r"initiated by (?:power|hard reset)",
            ),
        ),
    )
)
_GOOD = re.compile(
    r"\bDeasserted\b|\bDe-?assert|\bRepaired\b|\brestored\b|\breturned to normal\b|\bState Deasserted\b", re.IGNORECASE
)


def _moment(date: str, time: str, zone: str | None) -> tuple[float | None, bool]:
    """Return (epoch, whether the zone was missing) of a date in one of the forms that board controllers print."""
    date, time = date.strip(), time.strip().upper()
    found = re.match(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*([AP]M)?", time)
    if not found:
        return None, True
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    if found[4]:
        hour = hour % 12 + (12 if found[4] == "PM" else 0)
    try:
        if "-" in date and date[0].isdigit():
            year, month, day = (int(part) for part in date.split("-"))
        elif "-" in date:
            name, dd, yy = date.split("-")
            year, month, day = int(yy), MONTHS.get(name.title(), 0), int(dd)
        else:
            month, day, year = (int(part) for part in date.split("/"))  # controllers print the American order
            if month > 12 >= day:
                month, day = day, month
            year += 2000 if year < 100 else 0
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None, True
    if zone and zone[0] in "+-":
        digits = zone[1:].replace(":", "")
        offset = int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60
        return moment - (offset if zone[0] == "+" else -offset), False
    if zone and zone.upper() in _ZONES:
        return moment - _ZONES[zone.upper()] * 3600, False
    return moment, True


def _iso(text: str | None) -> tuple[float | None, bool]:
    if not text:
        return None, True
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return None, True
    return (moment.replace(tzinfo=moment.tzinfo or UTC)).timestamp(), moment.tzinfo is None


def _stamp(text: str | None) -> float | None:
    # Tue Apr 22 23:22:23 UTC 2025
    found = re.match(r"\w{3} (\w{3}) +(\d+) (\d\d:\d\d:\d\d) (?:(\w{3,4}) )?(\d{4})", text or "")
    return _moment(f"{found[1]}-{found[2]}-{found[5]}", found[3], found[4] or "UTC")[0] if found else None


def _judge(what: str, context: str = "") -> Event | None:
    """Return the event that one record's words mean, or None for records without a fault."""
    found = _BMC_XID.search(what)
    if found and "Xid (" not in what:
        event = Event(f"xid-{int(found['code'])}", "bmc", code=int(found["code"]), time=_stamp(found["stamp"]))
        inner = xid.xid_event(f"NVRM: Xid (PCI:0000:00:00): {found['code']}, {found['detail']}")
        if inner is not None:
            event.data |= inner.data
            event.role, event.cls, event.weight = inner.role, inner.cls, inner.weight
        number = _GPU_NAME.search(context) or _GPU_NAME.search(what)
        if number:
            _socket(event, number[0])
        return event
    if "Xid (" in what and (kernel := xid.xid_event(what)):
        kernel.source = "bmc"
        return kernel
    text = f"{context} {what}" if context else what
    if _GOOD.search(text):
        return None
    for name, pattern in _RULES:
        if pattern.search(text):
            event = Event(name, "bmc")
            number = _GPU_NAME.search(text)
            if number:
                _socket(event, number[0])
            return event
    return None


def _socket(event: Event, name: str) -> None:
    # GPU_SXM_1 counts sockets from 1, nvidia-smi counts PCI addresses from 0: an identity that the board knows, not an index.
    event.data["socket"] = name
    if event.signature.startswith(("xid-", "bmc-gpu")):
        event.gpu = Gpu(uuid=name)


def _tables(lines: Sequence[Line]) -> Iterator[tuple[Event, Line, str, bool]]:
    """Yield the faults in text logs: one record a line, or a head line with its text on the next."""
    head: tuple[re.Match[str], Line] | None = None
    for line in lines:
        text = line.text.rstrip()
        found = _SEL.match(text) or _FREE_SEL.match(text)
        if found:
            zone = found.groupdict().get("zone")
            moment, naive = _moment(found["date"], found["time"], zone)
            event = _judge(found["what"], found["sensor"])
            if event is not None:
                event.time = event.time if event.time is not None else moment
                event.data["sensor"] = found["sensor"]
                yield event, line, line.text, naive
            continue
        found = _IML.match(text)
        if found:
            head = (found, line)
            if rest := text[found.end() :].strip(" 0123456789:/"):
                moment, naive = _moment(found["date"], found["time"], None)
                event = _judge(rest)
                if event is not None:
                    event.time, head = moment, None
                    event.data["severity"] = found["severity"]
                    yield event, line, line.text, naive
            continue
        found = _IML_TEXT.match(text)
        if found and head is not None:
            moment, naive = _moment(head[0]["date"], head[0]["time"], None)
            event = _judge(found["what"])
            if event is not None and head[0]["severity"] not in ("Repaired", "OK", "Informational"):
                event.time = moment
                event.data["severity"] = head[0]["severity"]
                yield event, line, f"{head[1].text}\n{line.text}", naive
            head = None
            continue
        found = _DATED.match(text)
        what = found["what"] if found else text
        event = _judge(what) if what.strip() else None
        if event is not None:
            naive = False
            if found and event.time is None:
                event.time, naive = _moment(found["date"], found["time"], found["zone"])
            yield event, line, line.text, naive


def _objects(data: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield every Redfish event or log entry in a document: single, in `Events`, in `Members`, in a plain list."""
    if depth > 6:
        return
    if isinstance(data, list):
        for item in data:
            yield from _objects(item, depth + 1)
    elif isinstance(data, dict):
        if any(key in data for key in ("Message", "MessageArgs", "MessageId", "SensorType")):
            yield data
        for key in ("Events", "Members", "Entries", "LogEntries"):
            yield from _objects(data.get(key), depth + 1)


def _redfish(data: Any, lines: Sequence[Line]) -> Iterator[tuple[Event, Line, str, bool]]:
    for entry in _objects(data):
        listed = entry.get("MessageArgs")
        arguments = [str(item) for item in listed if isinstance(item, str | int | float)] if isinstance(listed, list) else []
        said = [text for text in (*arguments, str(entry.get("Message") or ""), str(entry.get("MessageId") or "")) if text]
        origin = entry.get("OriginOfCondition")
        place = str(origin.get("@odata.id") or "") if isinstance(origin, dict) else str(origin or "")
        severity = str(entry.get("MessageSeverity") or entry.get("Severity") or "")
        event = text = None
        for text in said:
            event = _judge(text, " ".join([*arguments[:1], place]) if text not in arguments[:1] else place)
            if event is not None:
                break
        if event is None or text is None or severity in ("OK", "Informational"):
            continue
        naive = False
        if event.time is None:
            event.time, naive = _iso(str(entry.get("EventTimestamp") or entry.get("Created") or "") or None)
        if place:
            event.data["origin"] = place
            socket = _GPU_NAME.search(place)
            if socket and "socket" not in event.data:
                _socket(event, socket[0])
        if severity:
            event.data["severity"] = severity
        line = next((line for line in lines if text[:60] and text[:60] in line.text), lines[0] if lines else Line(1, text))
        yield event, line, line.text if text[:60] in line.text else text, naive


def parse_bmc(lines: Sequence[Line], data: Any = None, *, file: str, node: str | None = None) -> Parsed:
    """
    Return the events of one board controller's log.

    Parameters
    ----------
    lines : sequence of Line
        The document's lines.
    data : object, optional
        The document as JSON when it is JSON (a Redfish event, a log entry, or a collection of either).
    file : str
        Name for events and problems.
    node : str, optional
        Node whose board this is.

    Returns
    -------
    Parsed
        Events ``bmc-…`` and, where the board quotes the driver, ``xid-N`` with source ``bmc``; ``data["socket"]`` is the board's
        name of a GPU. ``facts["naive_local"]`` is True where times came without a zone.
    """
    parsed = Parsed()
    if data is None and lines and lines[0].text.lstrip()[:1] in ("{", "["):
        try:
            data = json.loads("\n".join(line.text for line in lines))
        except ValueError as error:
            parsed.problems.append(
                Problem(
                    file,
                    f"JSON of a board controller is cut or damaged: {error}",
                    "fetch the event log again",
                    source="bmc",
                    status="partial",
                )
            )
    source = _redfish(data, lines) if data is not None else _tables(lines)
    last: dict[tuple[object, ...], Event] = {}
    for order, (event, line, text, naive) in enumerate(source):
        event.file, event.line, event.node, event.order = file, line.no, node, order
        event.text = text[:2000]
        if event.gpu is None and (address := re.search(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", text)):
            event.data["device"] = ids.pci(address[0])
            if event.signature.startswith(("xid-", "bmc-gpu")):
                event.gpu = Gpu(pci=ids.pci(address[0]))
        if naive and event.time is not None:
            parsed.facts["naive_local"] = True
        key = (event.signature, event.data.get("socket"), event.data.get("sensor"), event.data.get("device"))
        earlier = last.get(key)
        if (
            earlier
            and event.time is not None
            and earlier.time is not None
            and abs(event.time - (earlier.last or earlier.time)) <= 5.0
        ):
            earlier.count, earlier.last = earlier.count + 1, event.time
            continue
        last[key] = event
        parsed.events.append(event)
    rows = catalog.signatures()
    for event in parsed.events:
        if event.data.get("severity") in ("Warning", "Caution") and rows[event.signature].role == "cause":
            event.weight = round(rows[event.signature].weight * 0.7, 3)
    return parsed
