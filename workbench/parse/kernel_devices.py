"""Turn kernel messages about one device into events that name it: by the driver that speaks, or by what stands beside them."""

from __future__ import annotations

import re

from workbench.model import Event
from workbench.parse import ids, kernel_blocks
from workbench.parse.kernel_run import ADDRESS, Run

__all__ = ["amd_gpu", "ata", "by_driver", "drive", "kept_error", "neighbour_gpu", "peermem"]

# nvme 0000:04:00.0: Refused to change power state, currently in D3
_SPEAKER = re.compile(rf"(?:^|\s)(?P<driver>[a-z][\w-]*) (?P<device>{ADDRESS}): ")
# whose device it is → the class of its fault
_DRIVERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"nvidia|nouveau|vfio-pci"), "hardware/gpu-lost"),
    (re.compile(r"nvme|ahci|mpt[23]sas|mpi3mr|megaraid|smartpqi|hpsa|aacraid|vmd"), "hardware/host"),
    (re.compile(r"mlx[45]|bnxt|ice|i40e|ixgbe|igb|igc|irdma|ena|efa|tg3|qede|cxgb4|hfi1|cxi"), "hardware/network-link"),
    (re.compile(r"pcieport"), "hardware/pcie"),
)
# NVRM: kfspDumpDebugState_GH100: GPU 0000:01:00 | NVRM: GPU 0000:01:00.0: RmInitAdapter failed! | NVRM: Xid (PCI:0000:01:00): 119
_NAMED = re.compile(rf"NVRM: .*?(?:GPU |PCI:|Device )({ADDRESS})")
# amdgpu 0000:c6:00.0: amdgpu: GPU reset begin!
_AMD = re.compile(rf"\bamdgpu ({ADDRESS}): ")
_NEAR = 8  # records before and after: a failed start of one GPU prints about so many between two that name it
_NEAR_SECONDS = 10.0
# ata3.00: error: { UNC }
_ATA_ERROR = re.compile(r"error: \{ ([A-Z ]+) \}")
# records that the firmware kept over a reboot
_KEPT = re.compile(r"BERT: Error records from previous boot|previous boot had a fatal|Previous boot")


def neighbour_gpu(run: Run, event: Event, number: int) -> Event:
    """Name the GPU of a driver message without address, when the driver's messages right around it name exactly one."""
    if event.gpu is not None:
        return event
    own = run.stamps[run.records[number].at].uptime
    named: dict[str, None] = {}
    for at in range(max(0, number - _NEAR), min(len(run.records), number + _NEAR + 1)):
        record = run.records[at]
        found = _NAMED.search(record.text)
        if not found or run.clock.boots[record.at] != run.clock.boots[run.records[number].at]:
            continue
        other = run.stamps[record.at].uptime
        if own is not None and other is not None and abs(own - other) > _NEAR_SECONDS:
            continue
        if address := ids.pci(found[1]):
            named[address] = None
    if len(named) == 1:
        event.gpu = run.gpu(next(iter(named)))
    return event


def amd_gpu(run: Run, event: Event, number: int) -> Event:
    """Name the AMD GPU of a message; one of the drm core carries no address, the driver's own lines right around it do."""
    named = _AMD.search(run.records[number].text)
    if named is None:
        beside = run.records[max(0, number - _NEAR) : number + _NEAR + 1]
        found = {each[1]: each for record in beside if (each := _AMD.search(record.text))}
        named = next(iter(found.values())) if len(found) == 1 else None
    if named and (address := ids.pci(named[1])):
        event.gpu = run.gpu(address)
    return event


def by_driver(run: Run, event: Event, number: int) -> Event:
    """Give a device's message the class of what the device is: a drive and a port of the network are no GPU."""
    text = run.records[number].text
    if "[10de:" in text and (address := str(event.data.get("device") or "")):
        event.cls, event.gpu = "hardware/gpu-lost", event.gpu or run.gpu(address)
        return event
    found = _SPEAKER.search(text)
    if not found:
        return event
    event.data.setdefault("driver", found["driver"])
    for pattern, cls in _DRIVERS:
        if pattern.match(found["driver"]):
            event.cls = cls
            if cls == "hardware/gpu-lost" and event.gpu is None:
                event.gpu = run.gpu(found["device"])
            break
    return event


def peermem(run: Run, event: Event, number: int) -> Event:
    """A peer memory module that was built against other RDMA modules is a mismatch; one whose symbols are absent finds none."""
    text = run.records[number].text
    if "disagrees about" in text or "err -22" in text:
        event.role, event.cls, event.weight = "cause", "driver/version-mismatch", 0.5
    return event


def kept_error(run: Run, event: Event, number: int) -> Event:
    """Read a firmware error record; one kept from before the reboot has no time but that it was before."""
    event = kernel_blocks.hardware_error(run, event, number)
    if any(_KEPT.search(record.text) for record in run.records[max(0, number - 3) : number + 1]):
        event.data["previous_boot"], event.data["found"] = True, event.time
        event.time = None
    return event


def drive(run: Run, event: Event, number: int) -> Event:
    """A time-out that an abort settles costs time; after one that needs the controller reset the first of them counts."""
    if "aborting" not in run.records[number].text:
        # a guest's drive is in another machine: whether medium or path is at fault is not said here
        event.role, event.weight, event.cls = "cause", 0.5, "platform/storage"
        for earlier in reversed(run.events[-64:]):
            same = earlier.signature == event.signature and earlier.data.get("disk") == event.data.get("disk")
            if same and earlier.data.get("boot") == event.data.get("boot"):
                earlier.role, earlier.weight, earlier.cls = event.role, event.weight, event.cls
    return event


def ata(run: Run, event: Event, number: int) -> Event:
    """Weigh an exception of a SATA port by the error that its disk gave, which stands some lines below."""
    port = f"ata{event.data.get('port')}"
    shown = [run.records[number]]
    for later in run.after(number, 12):
        if not later.text.startswith(port):
            continue
        if "exception Emask" in later.text:
            break
        if found := _ATA_ERROR.search(later.text):
            event.data["error"] = found[1].strip()
            shown.append(later)
    said = str(event.data.get("error", ""))
    if re.search(r"UNC|IDNF|AMNF|DF", said):
        event.weight = 0.85  # the disk itself says that it cannot read or find a sector
    elif not said and "frozen" in run.records[number].text:
        event.weight = 0.4  # only a time-out
    event.text = "\n".join(record.raw for record in shown)[:2000]
    return event
