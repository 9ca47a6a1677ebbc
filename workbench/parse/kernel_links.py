"""Turn pairs of kernel events (a port down and up again, a server gone and back, a slow link and its device) into one story."""

from __future__ import annotations

from workbench.model import Event
from workbench.parse import ids
from workbench.parse.kernel_run import Run

__all__ = ["cable_in", "cable_out", "link_down", "link_up", "server_down", "server_up", "settle", "width_limited"]

# Drivers of boards' management ports (1 and 10 Gb/s copper): their links do not carry collectives.
_MANAGEMENT = frozenset(("igb", "igc", "e1000e", "tg3", "r8169", "atlantic"))
# Reliable transport retries about this long before a queue pair fails (NCCL_IB_TIMEOUT 20, retry count 7: 4.096 µs × 2^20 × 8);
# fleets call a link unhealthy from 30 s of down time on (NVIDIA Health Validation, RDMA flap).
_RETRY_SECONDS = 30.0
_SERVER_SECONDS = 60.0  # a hard mount waits; a stall this short ends before any usual time-out of a job
_SHUTDOWN_SECONDS = 120.0
_STORM_EDAC = 10  # corrected errors within a burst; mcelog takes a DIMM for failing at 10 per day
_STORM_AER = 10  # corrected errors a second, or in one burst: a link that replays all the time
_LOSS_SECONDS = 60.0
_DISK = {
    "ata-error": "hardware/host",
    "scsi-medium-error": "hardware/host",
    "scsi-path-error": "platform/storage",
    "netblock-error": "platform/storage",
    "disk-io-error": "hardware/host",
    "nvme-io-error": "hardware/host",
    "nvme-down": "hardware/host",
}


def _key(event: Event) -> str:
    return str(event.data.get("device") or event.data.get("ib") or event.data.get("hca") or event.data.get("netdev"))


def _clock(event: Event) -> float | None:
    uptime = event.data.get("uptime")
    return event.time if event.time is not None else float(uptime) if uptime is not None else None


def link_down(run: Run, event: Event, number: int) -> Event:
    """Remember a port that went down until it comes up."""
    data = event.data
    data["port"] = data.get("port") or data.get("ib") or data.get("hca") or data.get("netdev") or data.get("device")
    if data.get("driver") in _MANAGEMENT:
        event.role, event.weight = "context", 0.05
        data["management"] = True
    run.down["link", _key(event)] = event
    return event


def link_up(run: Run, event: Event, number: int) -> Event:
    """Close a port's down time."""
    event.data["port"] = event.data.get("port") or event.data.get("ib") or event.data.get("device")
    _close(run, event, ("link", _key(event)))
    return event


def cable_out(run: Run, event: Event, number: int) -> Event:
    """Remember a transceiver that vanished until it is seen again."""
    run.down["cable", f"{event.data.get('device')}/{event.data.get('module')}"] = event
    return event


def cable_in(run: Run, event: Event, number: int) -> Event:
    """Close the time that a transceiver was away."""
    _close(run, event, ("cable", f"{event.data.get('device')}/{event.data.get('module')}"))
    return event


def server_down(run: Run, event: Event, number: int) -> Event | None:
    """Remember a file server that does not answer; further reports before it is back count onto the first."""
    key = ("server", f"{event.data.get('server')}@{event.node}")
    earlier = run.down.setdefault(key, event)
    if earlier is event:
        return event
    if earlier.data.get("boot") != event.data.get("boot"):
        run.down[key] = event
        return event
    earlier.count += 1
    earlier.last = event.time
    return None


def server_up(run: Run, event: Event, number: int) -> Event:
    """Close a file server's down time."""
    _close(run, event, ("server", f"{event.data.get('server')}@{event.node}"))
    return event


def _close(run: Run, event: Event, key: tuple[str, str]) -> None:
    down = run.down.pop(key, None)
    if down is None or down.data.get("boot") != event.data.get("boot"):
        return
    start, end = _clock(down), _clock(event)
    if start is not None and end is not None and end >= start:
        down.data["down_seconds"] = event.data["down_seconds"] = round(end - start, 3)
        if key[0] == "server" and end - start < _SERVER_SECONDS:
            down.weight = 0.3
        if key[0] in ("link", "cable") and down.role is None and end - start < _RETRY_SECONDS:
            down.data["flap"] = True
            down.weight = 0.35


def width_limited(run: Run, event: Event, number: int) -> Event:
    """Say by how much a device is slowed, and learn which device sits below which port."""
    data = event.data
    port, device = ids.pci(str(data.get("port"))), data.get("device")
    data["port"] = port
    try:
        data["fraction"] = round(float(data["gbps"]) / float(data["capable"]), 3)
    except (KeyError, ValueError, ZeroDivisionError):
        pass
    if port and device:
        run.ports[port] = str(device)
    text = run.records[number].text
    if text.startswith("nvidia "):
        event.gpu = run.gpu(str(device))
    elif device not in run.nvidia:
        # Cards in a slot narrower than themselves are usual; only a GPU's slot is known to be full width on a GPU server.
        event.role, event.weight = "context", 0.15
    return event


def settle(run: Run) -> None:
    """Decide what only the whole log shows: which GPU is below a faulty port, storms, links that went down with the machine."""
    lost = [event for event in run.events if event.signature in ("xid-79", "gpu-off-bus", "gpu-lost-assert")]
    shutdowns = [event for event in run.events if event.signature == "node-shutdown"]
    failed_init = {event.gpu.pci for event in run.events if event.signature == "rm-init-failed" and event.gpu}
    path_errors: dict[str, Event] = {}
    for event in run.events:
        data = event.data
        name = event.signature
        if name.startswith(("aer-", "pcie-")) and event.gpu is None:
            known = data.pop("gpu", None) if name.startswith("aer-") else None
            for address in (known, data.get("device"), data.get("port")):
                gpu = run.below(str(address)) if address else None
                if gpu:
                    event.gpu = run.gpu(gpu)
                    break
        if data.get("surprise_down") and name == "aer-uncorrected-fatal":
            after = [other for other in lost if 0 <= _gap(event, other) <= _LOSS_SECONDS and other.gpu]
            if after and event.gpu is None:
                event.gpu = after[0].gpu
            if after and event.gpu and after[0].gpu and event.gpu.pci == after[0].gpu.pci:
                event.cls = "hardware/gpu-lost"  # the device below vanished, and the driver says which
        elif name == "aer-corrected" and _storm(event):
            data["storm"] = True
            event.role, event.weight = "cause", 0.4
        elif name == "edac-ce" and int(data.get("errors", 0)) >= _STORM_EDAC:
            event.signature = "edac-ce-storm"
        elif name == "nic-link-down" and event.role is None:
            if any(0 <= _gap(other, event) <= _SHUTDOWN_SECONDS for other in shutdowns):
                event.role, event.weight, data["at_shutdown"] = "context", 0.05, True
        elif name == "pci-bar-unassigned" and (data.get("device") in run.nvidia or data.get("device") in failed_init):
            event.role, event.weight = "cause", 0.75
            event.gpu = run.gpu(str(data["device"]))
        elif name == "pci-power-state" and data.get("device") in run.nvidia:
            event.role, event.weight = "symptom", 0.5
        elif name == "nvme-io-error":
            if data.get("sct") == "3":  # NVMe base specification, status code type 3: path related, not the medium
                event.cls = "platform/storage"
                path_errors[str(data.get("disk"))] = event
        elif name == "disk-io-error":
            disk = str(data.get("disk", ""))
            if disk.startswith(("rbd", "drbd")):
                event.cls = "platform/storage"  # its disk is in another machine
            if disk.startswith(("loop", "ram", "zram", "sr", "fd", "nbd")):
                event.role, event.weight = "context", 0.02
            elif any(disk.startswith(path) or path.startswith(disk) for path in path_errors if disk):
                event.cls = "platform/storage"
    _behind_a_bad_disk(run)


def _behind_a_bad_disk(run: Run) -> None:
    """Let a file system that fails on a disk which failed before it be the symptom of that disk."""
    bad: dict[str, Event] = {}
    for event in run.events:
        if event.signature in _DISK and event.role in (None, "cause"):
            disk = str(event.data.get("disk") or "")
            if event.signature == "ata-error":
                disk = "sd"  # which letter the port has is told at boot only
            if disk:
                bad.setdefault(disk, event)
        elif event.signature in ("fs-shutdown", "fs-readonly"):
            disk = str(event.data.get("disk") or "")
            found = next((event for name, event in bad.items() if disk.startswith(name)), None)
            if found is None and not disk:
                found = next(iter(bad.values()), None)
            if found is not None and found.cls == "platform/storage" and found.signature != "netblock-error":
                continue  # the same class: the file system's own row says what to do
            if found is not None and 0 <= _gap(found, event) <= _LOSS_SECONDS:
                event.role, event.weight = "symptom", 0.4
                event.cls = found.cls or _DISK[found.signature]


def _storm(event: Event) -> bool:
    if event.count >= _STORM_AER:
        return True
    for first, last in (("uptime", "last_uptime"), ("elapsed", "last_elapsed")):
        if first in event.data and last in event.data:
            span = float(event.data[last]) - float(event.data[first])
            return event.count >= 3 and span * _STORM_AER <= event.count
    return False


def _gap(first: Event, second: Event) -> float:
    """Return how many seconds after the first the second came, or -1 when that cannot be told."""
    if first.data.get("boot") != second.data.get("boot"):
        return -1.0
    one, two = _clock(first), _clock(second)
    if one is None or two is None:
        return 0.0 if second.order >= first.order else -1.0
    return two - one if two >= one else -1.0
