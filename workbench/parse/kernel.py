"""Turn a kernel log of any stamp form (dmesg, journald, syslog, kmsg, pstore, Talos) into events with time, boot and device."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from workbench import catalog
from workbench.model import Event, Gpu, Line, Parsed, Problem
from workbench.parse import ids, kernel_blocks, kernel_devices, kernel_links, xid
from workbench.parse.kernel_clock import resolve
from workbench.parse.kernel_rules import match
from workbench.parse.kernel_run import ADDRESS, Run, records
from workbench.parse.kernel_stamps import Stamp, split

__all__ = ["parse_kernel"]

_BURST = 5.0  # seconds within which observations of one entity and signature are one (issue 3, "How it must judge")
# Signatures of which floods are usual: coalesced by device whatever else the text says.
_FLOODS = frozenset(
    {
        "aer-corrected",
        "gpu-lost-assert",
        "gpu-reset-required",
        "rm-init-failed",
        "edac-ce",
        "nvrm-assert",
        "nvme-io-error",
        "disk-io-error",
        "ata-error",
        "scsi-medium-error",
        "scsi-path-error",
        "netblock-error",
        "gpu-not-on-bus",
        "nvme-timeout",
        "cpu-throttled",
        "nic-cmd-timeout",
        "nic-cmd-error",
        "page-allocation",
        "mce-logged",
        "mce-corrected",
        "iommu-fault",
        "node-shutdown",
        "nvidia-unloaded",
        "gsp-heartbeat-timeout",
        "lnet-timeout",
        "lustre-error",
        "fs-shutdown",
        "amdgpu-ras",
        "amdgpu-reset",
        "amdgpu-scheduler-hang",
        "amdgpu-page-fault",
    }
)
# NVRM: GPU at PCI:0000:03:00: GPU-7775f835-5e4a-cd4e-363f-000000000003
_UUID_AT = re.compile(rf"GPU at PCI:({ADDRESS}): (GPU-[0-9a-fA-F-]{{36}})")
# nvidia 0000:3b:00.0: enabling device | NVRM: GPU 0000:3b:00.0: … | pci 0000:3b:00.0: [10de:2330] type 00
_NVIDIA_AT = re.compile(
    rf"^(?:nvidia|NVRM: GPU(?: at PCI:)?) ?({ADDRESS}):|^pci ({ADDRESS}): \[10de:[0-9a-f]{{4}}\] type 00 class 0x03"
)
# pci 0000:49:04.0: PCI bridge to [bus 4a-4d]
_BRIDGE = re.compile(rf"^pci(?:port)? ({ADDRESS}): PCI bridge to \[bus ([0-9a-f]{{2}})(?:-([0-9a-f]{{2}}))?\]")
_NVRM_AT = re.compile(rf"\b(?:GPU(?: at)?|PCI:?) ?(?:PCI:)?({ADDRESS})")
_NVRM_NUMBER = re.compile(r"NVRM: GPU(\d+) ")
_MINOR = re.compile(r"minor number (\d+)")
_INIT_CODE = re.compile(r"RmInitAdapter failed!? \((0x[0-9a-fA-F]+:[^)]*)\)")
_HEAD_OF_LOSS = re.compile(rf"The NVIDIA GPU ({ADDRESS})")
_CLIENT = re.compile(r"client has the version ([\d.]+\d)")
_MODULE = re.compile(r"kernel module has the version ([\d.]+\d)")
_PANIC_HARDWARE = re.compile(
    r"machine check|hardware error|uncorrected|NMI: |MCE|broadcast exception|SError Interrupt|External Abort", re.IGNORECASE
)
# gpu-1 | CHANGED | rc=0 >>
_ANSIBLE = re.compile(r"([\w.-]+) \| (?:CHANGED|SUCCESS|FAILED)(?: \| rc=\d+)? >>\s*$")
_RULE = re.compile(r"-{8,}\s*$")
_HOST = re.compile(r"[A-Za-z0-9][\w.\[\],-]{0,200}")
# Panic#1 Part1 (first line of a dump in pstore)
_PSTORE = re.compile(r"(?:Panic|Oops|Emergency|Restart|Halt|Poweroff|Shutdown)#\d+ Part\d+")


def _gpu_of(run: Run, event: Event, text: str) -> None:
    if event.gpu is None and (found := _NVRM_AT.search(text)):
        event.gpu = run.gpu(found[1])
    if found := _NVRM_NUMBER.search(text):
        event.data["rm_gpu"] = int(found[1])


def _init_failed(run: Run, event: Event, number: int) -> Event:
    text = run.records[number].text
    if found := _INIT_CODE.search(text):
        event.data["code"] = found[1]
    if found := _MINOR.search(text):
        event.data["minor"] = int(found[1])
        if event.gpu is None:
            event.gpu = Gpu(index=int(found[1]))
    return event


def _off_bus(run: Run, event: Event, number: int) -> Event:
    """Name the GPU of a loss, which may stand up to three lines before when the notice was printed line by line."""
    if event.gpu is not None:
        return event
    shown = [run.records[number]]
    if found := _HEAD_OF_LOSS.search(shown[0].text):
        event.gpu = run.gpu(found[1])
        return event
    for back in range(1, 4):
        if number - back < 0:
            break
        before = run.records[number - back]
        if "NVRM" not in before.text and "nvidia" not in before.text.lower():
            break
        shown.insert(0, before)
        if found := _HEAD_OF_LOSS.search(before.text):
            event.gpu = run.gpu(found[1])
            event.text = "\n".join(record.raw for record in shown)[:2000]
            run.place(event, before)
            break
    return event


def _versions(run: Run, event: Event, number: int) -> Event:
    text = run.records[number].text
    for later in run.after(number, 6):
        if "NVRM:" not in later.text or "API mismatch" in later.text:
            break
        text += " " + later.text
        if "make sure" in later.text or "kernel module has the version" in later.text:
            later.used = True
            event.text = f"{event.text or run.records[number].raw}\n{later.raw}"[:2000]
    for key, pattern in (("client", _CLIENT), ("module", _MODULE)):
        if found := pattern.search(text):
            event.data[key] = found[1]
    return event


def _panic(run: Run, event: Event, number: int) -> Event | None:
    if "---[ end" in run.records[number].text:  # closes the report that the first line opened
        return None
    if _PANIC_HARDWARE.search(run.records[number].text):
        event.cls, event.weight = "hardware/host", 0.9
    return event


def _firmware(run: Run, event: Event, number: int) -> Event:
    if event.data.get("errno") == "-2":  # the file is not there
        event.role, event.cls, event.weight = "cause", "driver/missing", 0.6
    return event


def _crash(run: Run, event: Event, number: int) -> Event:
    """Name the GPU of a crash report, which stands in one of the lines below its heading."""
    for later in [] if event.gpu else run.after(number, 4):
        if "NVRM" not in later.text:
            break
        if found := _NVRM_AT.search(later.text):
            event.gpu = run.gpu(found[1])
            break
    return event


def _unsupported(run: Run, event: Event, number: int) -> Event:
    return _off_bus(run, event, number)


_HANDLERS: dict[str, Callable[[Run, Event, int], Event | None]] = {
    "rm-init-failed": _init_failed,
    "gpu-off-bus": _off_bus,
    "nvidia-unsupported": _unsupported,
    "nvidia-api-mismatch": _versions,
    "gsp-crash": _crash,
    "nvme-timeout": kernel_devices.drive,
    "ata-error": kernel_devices.ata,
    "kernel-panic": _panic,
    "gpu-firmware-load": _firmware,
    "oom-kill-global": kernel_blocks.oom,
    "oom-kill-cgroup": kernel_blocks.oom,
    "aer-corrected": kernel_blocks.aer,
    "aer-uncorrected-fatal": kernel_blocks.aer,
    "aer-uncorrected-nonfatal": kernel_blocks.aer,
    "hung-task": kernel_blocks.stack,
    "soft-lockup": kernel_blocks.stack,
    "rcu-stall": kernel_blocks.stack,
    "mce-fatal": kernel_blocks.hardware_error,
    "mce-logged": kernel_blocks.hardware_error,
    "mce-corrected": kernel_blocks.hardware_error,
    "mce-uncorrected": kernel_blocks.hardware_error,
    "ghes-fatal": kernel_devices.kept_error,
    "ghes-corrected": kernel_blocks.hardware_error,
    "nic-link-down": kernel_links.link_down,
    "nic-link-up": kernel_links.link_up,
    "nic-cable-unplugged": kernel_links.cable_out,
    "nic-cable-plugged": kernel_links.cable_in,
    "nfs-not-responding": kernel_links.server_down,
    "nfs-ok": kernel_links.server_up,
    "pcie-width-limited": kernel_links.width_limited,
    "nvidia-peermem": kernel_devices.peermem,
    "pci-power-state": kernel_devices.by_driver,
    "pci-not-ready": kernel_devices.by_driver,
    "pci-header-ff": kernel_devices.by_driver,
    "gsp-boot-failed": kernel_devices.neighbour_gpu,
    "gsp-init-failed": kernel_devices.neighbour_gpu,
    "gsp-image-missing": kernel_devices.neighbour_gpu,
    "gsp-heartbeat-timeout": kernel_devices.neighbour_gpu,
    "gsp-needs-reset": kernel_devices.neighbour_gpu,
    "gpu-register-error": kernel_devices.neighbour_gpu,
    "gpu-not-on-bus": kernel_devices.neighbour_gpu,
    "gpu-lost-assert": kernel_devices.neighbour_gpu,
}


def _survey(run: Run) -> None:
    """Learn GPU identities and the PCIe tree before events are made, since they are printed in any order."""
    for record in run.records:
        text = record.text
        if "GPU at PCI" in text and (found := _UUID_AT.search(text)) and (address := ids.pci(found[1])):
            run.uuids[address] = found[2]
        if text.startswith(("nvidia ", "NVRM: GPU", "pci ")):
            if (found := _NVIDIA_AT.match(text)) and (address := ids.pci(found[1] or found[2])):
                run.nvidia.add(address)
            elif (found := _BRIDGE.match(text)) and (address := ids.pci(found[1])):
                run.bridges.append((address, address.split(":")[0], int(found[2], 16), int(found[3] or found[2], 16)))


def _generic(run: Run, number: int, name: str, found: re.Match[str]) -> Event | None:
    record = run.records[number]
    event = Event(name, "kernel")
    for key, value in found.groupdict().items():
        if value is None:
            continue
        key = key.rstrip("0123456789")
        if key == "device":
            event.data["device"] = ids.pci(value) or value
        elif key == "pid":
            event.pid = int(value) or None
        elif key in ("seconds", "cpu", "errors", "module", "width", "devices", "order"):
            event.data[key] = int(value)
        else:
            event.data[key] = value.strip()
    if record.text.lstrip().startswith("NVRM") or name.startswith(("gpu-", "gsp-")):
        _gpu_of(run, event, record.text)
    elif name.startswith("amdgpu-"):
        kernel_devices.amd_gpu(run, event, number)
    device = event.data.get("device")
    if event.gpu is None and device in run.nvidia:
        event.gpu = run.gpu(device)
    run.place(event, record)
    handler = _HANDLERS.get(name)
    return handler(run, event, number) if handler else event


def _keep(run: Run, event: Event, text: str) -> None:
    """Add an event, or count it onto the same one seen within five seconds."""
    device = event.data.get("device") or event.data.get("port") or event.data.get("disk") or event.data.get("dimm")
    where = event.gpu.pci or event.gpu.index if event.gpu else device
    key: tuple[object, ...] = (event.signature, event.node, where, event.data.get("boot"), event.role)
    if event.signature not in _FLOODS:
        key = (*key, text)
    earlier = run.recent.get(key)
    if earlier is not None:
        now, before = (
            (event.time, earlier.last if earlier.last is not None else earlier.time)
            if event.time is not None
            else (event.data.get("uptime"), earlier.data.get("last_uptime", earlier.data.get("uptime")))
        )
        if now is None and before is None and event.data.get("elapsed") is not None:
            now, before = event.data["elapsed"], earlier.data.get("last_elapsed", earlier.data.get("elapsed"))
        if (now is None and before is None) or (now is not None and before is not None and abs(now - before) <= _BURST):
            earlier.count += 1
            if event.time is not None:
                earlier.last = event.time
            for name in ("uptime", "elapsed"):
                if name in event.data:
                    earlier.data[f"last_{name}"] = event.data[name]
            if "errors" in event.data:
                earlier.data["errors"] = int(earlier.data.get("errors", 0)) + int(event.data["errors"])
            for name in ("minor", "code", "bits", "layer"):
                if name in event.data:
                    earlier.data.setdefault(name, event.data[name])
            return
    run.recent[key] = event
    run.events.append(event)


def _switch_line(run: Run, event: Event) -> bool:
    """Attach a Severity or Data line of an SXid to its main line; return whether it found one."""
    part = event.data.get("part")
    for earlier in reversed(run.events[-64:]):
        if earlier.code != event.code or earlier.data.get("switch_pci") != event.data.get("switch_pci"):
            continue
        if part in earlier.data.get("parts", (part,)):
            continue
        if part == "severity" and earlier.data.get("link") not in (None, event.data.get("link")):
            continue
        earlier.data["parts"] = (*earlier.data.get("parts", ()), part)
        for name in ("severity", "words"):
            if name in event.data:
                earlier.data[name] = event.data[name]
        if earlier.data.get("fatal") is None and event.data.get("fatal") is not None:
            earlier.data["fatal"] = event.data["fatal"]
            xid.weigh(earlier)
        return True
    return False


def _one(run: Run, number: int) -> None:
    record = run.records[number]
    text = record.text
    if "Xid" in text or "XID" in text:
        event = xid.xid_event(text)
        if event is not None:
            event.gpu = run.gpu(event.gpu.pci) if event.gpu else None
            _keep(run, run.place(event, record), text)
            return
        event = xid.sxid_event(text)
        if event is not None:
            run.place(event, record)
            if event.data.get("part") == "main" or not _switch_line(run, event):
                event.data["parts"] = (event.data.get("part"),)
                _keep(run, event, text)
            return
    found = match(text)
    if found is None:
        return
    event = _generic(run, number, *found)
    record.used = True
    if event is not None:
        _keep(run, event, text)


def parse_kernel(lines: Sequence[Line], *, file: str, node: str | None = None, reference: float | None = None) -> Parsed:
    """
    Return the events of one kernel log.

    Parameters
    ----------
    lines : sequence of Line
        The log's lines, or those that may matter; the catalog's patterns are applied here whatever `hits` says.
    file : str
        Name for events and problems.
    node : str, optional
        Node the log is of; a host printed in a line wins over it when they differ.
    reference : float, optional
        A moment near the log, seconds since the epoch, UTC; settles the year where stamps have none.

    Returns
    -------
    Parsed
        Events in reading order, each with ``data["boot"]`` (0 is the first boot in the file; the last is the running one) and
        ``data["uptime"]`` (seconds) where printed. ``facts``: ``boots`` [(time, line)], ``hosts``, ``gpus`` (PCI → UUID),
        ``driver``, ``kernel``, ``naive_local`` or ``tz_offset`` (seconds east of UTC), ``year_from``, ``time_from``, ``pstore``.
    """
    stamps = _stamps(lines)
    groups: dict[str | None, list[int]] = {}
    host: str | None = None
    for at, stamp in enumerate(stamps):
        host = stamp.host or host
        groups.setdefault(host, []).append(at)
    if len(groups) > 1 and None in groups:  # lines before the first that names its host
        first = next(name for name in groups if name is not None)
        groups[first] = sorted(groups.pop(None) + groups[first])
    if len(groups) <= 1:
        return _parse(lines, stamps, file, node, reference)
    # Several nodes in one file: uptime, boots and dates run on for each of them by itself.
    parsed = Parsed(facts={"hosts": list(groups)})
    parts = [
        (places, _parse([lines[at] for at in places], [stamps[at] for at in places], file, None, reference))
        for places in groups.values()
    ]
    _share_zone([part for _, part in parts])
    for places, part in parts:
        for event in part.events:
            event.order = places[event.order]
            event.node = node if event.node is None or ids.same_node(event.node, node) else event.node
        parsed.extend(part)
        for name, value in part.facts.items():
            if name == "gpus":
                parsed.facts.setdefault(name, {}).update(value)
            elif name not in ("hosts", "first", "last"):
                parsed.facts.setdefault(name, value)
        for name, best in (("first", min), ("last", max)):
            if name in part.facts:
                parsed.facts[name] = best(parsed.facts.get(name, part.facts[name]), part.facts[name])
    parsed.events.sort(key=lambda event: event.order)
    return parsed


def _share_zone(parts: Sequence[Parsed]) -> None:
    """Read dates without a zone of one host as those of its neighbours in the file, where messages of these tell the zone."""
    zones = {part.facts["tz_offset"] for part in parts if "tz_offset" in part.facts}
    if len(zones) != 1:
        return  # nobody tells, or each node is set to its own
    offset = zones.pop()
    for part in parts:
        if not part.facts.pop("naive_local", False):
            continue
        part.facts["tz_offset"] = offset
        for event in part.events:
            if event.time is not None:
                event.time -= offset
            if event.last is not None:
                event.last -= offset
        for name in ("first", "last"):
            if name in part.facts:
                part.facts[name] -= offset


def _stamps(lines: Sequence[Line]) -> list[Stamp]:
    """Return each line's stamp; headings of tools that print node after node (Ansible, dshbak, clush -b) name the host below."""
    stamps: list[Stamp] = []
    heading: str | None = None
    for at, line in enumerate(lines):
        stamp = split(line.text)
        if found := _ANSIBLE.match(line.text):
            heading = found[1]
        elif _RULE.match(line.text) and at + 2 < len(lines) and _RULE.match(lines[at + 2].text):
            name = lines[at + 1].text.strip()
            heading = name if _HOST.fullmatch(name) else heading
        if stamp.host is None:
            stamp.host = heading
        stamps.append(stamp)
    return stamps


def _parse(lines: Sequence[Line], stamps: Sequence[Stamp], file: str, node: str | None, reference: float | None) -> Parsed:
    clock = resolve(stamps, reference)
    run = Run(file, node, stamps, clock, records(lines, stamps))
    parsed = Parsed()
    _survey(run)
    for number, record in enumerate(run.records):
        if record.used or not record.text:
            continue
        try:
            _one(run, number)
        except (ValueError, OverflowError) as error:  # numbers of thousands of digits in a damaged or hostile line
            parsed.problems.append(
                Problem(file, f"a kernel message could not be read: {error}", "look at the line", record.no, "kernel", "partial")
            )
    kernel_links.settle(run)
    parsed.events = run.events
    facts = parsed.facts
    facts |= clock.facts
    facts["boots"] = [(time, lines[at].no) for time, at in clock.starts]
    hosts = list(dict.fromkeys(stamp.host for stamp in stamps if stamp.host))
    if hosts:
        facts["hosts"] = hosts
    if run.uuids:
        facts["gpus"] = dict(run.uuids)
    if any(_PSTORE.match(line.text) for line in lines[:3]):
        facts["pstore"] = True
    for event in run.events:
        for signature, name in (("nvidia-loaded", "driver"), ("kernel-boot", "kernel")):
            if event.signature == signature and event.data.get("version"):
                facts[name] = event.data["version"]
    told = [time for time in clock.times if time is not None]
    if told:
        facts["first"], facts["last"] = min(told), max(told)
    _speak_for(run)
    _hung_on(run)
    return parsed


def _hung_on(run: Run) -> None:
    """Tasks that hang in the driver hang on the GPU of the Xid just before, when one GPU alone had one in that hour."""
    for event in run.events:
        if event.signature != "hung-task" or event.gpu is not None or not event.data.get("nvidia_stack") or event.time is None:
            continue
        seen = {
            other.gpu.pci: other.gpu
            for other in run.events
            if other.gpu is not None and other.signature.startswith("xid-") and other.node == event.node
            and other.time is not None and 0.0 <= event.time - other.time <= 3600.0
        }  # fmt: skip
        if len(seen) == 1:
            event.gpu = next(iter(seen.values()))


def _speak_for(run: Run) -> None:
    """Let an Xid that only names its cause ("caused by previous Xid N") stand for N where the log does not hold N itself."""
    rows = catalog.signatures()
    present = {(event.code, event.gpu.pci) for event in run.events if event.gpu and event.signature.startswith("xid-")}
    for event in run.events:
        cause = event.data.get("caused_by")
        if cause is None or event.gpu is None or (cause, event.gpu.pci) in present:
            continue
        row = rows[f"xid-{cause}"]
        event.role, event.cls, event.weight = row.role, row.cls, round(row.weight * 0.8, 3)
        event.data["stands_for"] = cause
