"""Turn the Fabric Manager's own log into events: NVSwitch and NVLink errors it saw, why it did not start, when it was ready."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from workbench import catalog
from workbench.model import Event, Gpu, Line, Parsed
from workbench.parse import ids
from workbench.parse.kernel_clock import resolve
from workbench.parse.kernel_stamps import split
from workbench.parse.text import MONTHS

__all__ = ["parse_fabric_manager"]

# [Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id …
_HEAD = re.compile(r"\[([A-Z][a-z]{2}) +(\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)\] \[(\w+)\] (?:\[tid (\d+)\] )?(.*)")
_SWITCH = re.compile(
    r"detected NVSwitch (?P<word>non-fatal|fatal) error (?P<code>\d{1,6})(?: on fid (?P<fid>\d+))?"
    r"(?:.*?pci bus id (?P<pci>[0-9a-fA-F:.]+))?(?:.*?physical id (?P<physical>\d{1,6}))?(?:.*?port (?P<port>\d{1,6}))?"
)
_PCI = re.compile(
    r"(?<!NVSwitch )(?:GPU|gpu).*?(?:pci bus id|PCI(?: bus)?(?: id)?)[: ]*([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
)
_DRIVER = re.compile(r"driver version (?:of )?([\d.]+\d)")
_NAMES = (
    "fabric-manager-nothing-to-do",  # a machine without NVSwitch: the service has nothing to manage, so its failure is no fault
    "fm-version-mismatch",
    "fm-config",
    "fm-start-failed",
    "fm-gpu-error",
    "fm-imex",
    "fm-ready",
    "fm-stopped",
    "fm-error",
)
# IMEX version 570.00 is running with the following configuration options
_IMEX = re.compile(r"\bIMEX (?:version|Log initializing|[Ll]ibrary)|nvidia-imex")


def _time(found: re.Match[str]) -> float | None:
    try:
        return datetime(
            int(found[3]), MONTHS.get(found[1], 0), int(found[2]), int(found[4]), int(found[5]), int(found[6]), tzinfo=UTC
        ).timestamp()
    except ValueError:
        return None


def _event(text: str, patterns: tuple[tuple[str, re.Pattern[str]], ...]) -> Event | None:
    found = _SWITCH.search(text)
    if found:
        # The same numbers as the kernel's SXid: one signature for both, so that they join.
        code, fatal = int(found["code"]), found["word"] == "fatal"
        event = Event(f"sxid-{code}", "kernel", code=code)
        event.data |= {"fatal": fatal, "by": "fabric-manager"}
        for key, name in (("pci", "switch_pci"), ("physical", "switch"), ("port", "link")):
            if found[key]:
                event.data[name] = ids.pci(found[key]) if key == "pci" else int(found[key])
        if fatal:
            event.role, event.cls, event.weight = "cause", "hardware/nvlink", 0.8
        return event
    for name, pattern in patterns:
        if matched := pattern.search(text):
            event = Event(name, "kernel")
            event.data |= {key: value for key, value in matched.groupdict().items() if value}
            if address := _PCI.search(text):
                event.gpu = Gpu(pci=ids.pci(address[1]))
            if name == "fm-version-mismatch" and (driver := _DRIVER.search(text)):
                event.data["driver"] = driver[1]
            return event
    return None


def parse_fabric_manager(lines: Sequence[Line], *, file: str, node: str | None = None, reference: float | None = None) -> Parsed:
    """
    Return the events of ``fabricmanager.log`` or of the service's lines in the journal.

    Parameters
    ----------
    lines : sequence of Line
        The log's lines.
    file : str
        Name for events.
    node : str, optional
        Node the log is of.
    reference : float, optional
        A moment near the log, seconds since the epoch; settles the year of syslog stamps.

    Returns
    -------
    Parsed
        ``sxid-N`` for NVSwitch errors (with ``data["by"] = "fabric-manager"``, switch address and port) and ``fm-…`` events. The
        log's own stamps have no zone: ``facts["naive_local"]``.
    """
    rows = catalog.signatures()
    patterns = tuple((name, re.compile(rows[name].pattern)) for name in _NAMES if name in rows and rows[name].pattern)
    parsed = Parsed()
    stamps = [split(line.text) if not _HEAD.match(line.text) else None for line in lines]
    clock = resolve([stamp for stamp in stamps if stamp is not None], reference)
    times = iter(clock.times)
    parsed.facts |= clock.facts
    last: dict[tuple[object, ...], Event] = {}
    imex = any(_IMEX.search(line.text) for line in lines[:200])
    for order, (line, stamp) in enumerate(zip(lines, stamps, strict=True)):
        time = next(times) if stamp is not None else None
        found = _HEAD.match(line.text)
        if found:
            time, text = _time(found), line.text
            parsed.facts["naive_local"] = True
        else:
            text = stamp.text if stamp is not None else line.text
        event = _event(text, patterns)
        if event is None:
            continue
        if imex and event.signature in ("fm-error", "fm-start-failed"):
            event.signature = "fm-imex"  # the same form of log, but another service
        event.time, event.file, event.line, event.order = time, file, line.no, order
        event.node = (stamp.host if stamp is not None and not ids.same_node(stamp.host, node) else None) or node
        event.text = line.text[:2000]
        if found:
            event.data["level"] = found[7]
        key = (event.signature, event.data.get("switch_pci"), event.data.get("link"), event.gpu)
        earlier = last.get(key)
        if earlier and time is not None and earlier.time is not None and time - (earlier.last or earlier.time) <= 5.0:
            earlier.count, earlier.last = earlier.count + 1, time
            continue
        last[key] = event
        parsed.events.append(event)
    return parsed
