"""Turn the body of an NVIDIA Xid or SXid message into an event: code, GPU, process and what the code's own text says."""

from __future__ import annotations

import re
from typing import Any

from workbench.catalog.recovery_actions import remediation_of
from workbench.model import Event, Gpu
from workbench.parse import ids
from workbench.parse.xid_nvlink import register_bits, unit_error

__all__ = ["sxid_event", "xid_event"]

# NVRM: Xid (PCI:0000:3b:00): 31, pid=4123, name=python, Ch 00000008, intr 00000000. MMU Fault: …
# NVRM: Xid (0000:03:00): 13, … | NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, … | NVRM: Xid (PCI:0000:c5:00: 145, …
_XID = re.compile(
    r"(?<![SA-Za-z])Xid\s*\(?\s*(?:PCI:\s*)?(?P<pci>[0-9a-fA-F]{2,8}:[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2})?(?:\.[0-7])?"
    r"|(?<=PCI:)(?:\.{2,3}|\u2026|<[\w :.-]{1,20}>|[xX*?]{2,8}(?::[xX*?]{2}){1,2}(?:\.[0-7xX*?])?))"  # blacked out
    r"(?:\s+GPU-I:\s*(?P<instance>[0-9a-fA-F]+))?\s*\)?\s*:\s*(?P<code>\d{1,3})(?!\d)\s*(?:[,.;]\s*(?P<detail>.*))?",
    re.DOTALL,
)
# Xid 31 PCI:0000:f0:00 pid=477448 … | XID 79 on GPU 0000:3b:00.0 (notes and tools that put the number first)
_XID_NOTE = re.compile(
    r"(?<![A-Za-z])(?:Xid|XID)[ :=#]{1,2}(?P<code>\d{1,3})(?!\d)[,:]? (?:error )?(?:(?:on|at|for|in) )?(?:device |GPU )?"
    r"(?:\(?PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\)?(?P<detail>.*)",
    re.DOTALL,
)
# pid=4123, name=python | pid='<unknown>', name=<unknown> | pid=0 | pid=...
_PID = re.compile(r"\bpid=\s*(?:'?<unknown>'?|'?(\d+)'?|[.N/A']+)\s*,?\s*")
_NAME = re.compile(r"\bname=\s*(?:'([^']*)'|([^,\n]*?))\s*(?:,\s*|$)")
# Ch 00000008 | Channel ID 00000010 | channel 0x00000002 | Ch-0012
_CHANNEL = re.compile(r"\b(?:Ch(?:annel)?(?: ID)?)[ -](?:0x)?([0-9a-fA-F]{2,8})\b", re.IGNORECASE)
# caused by previous Xid 149
_CAUSED = re.compile(r"caused by previous Xid (\d{1,3})")
# Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address
_SM = re.compile(r"\(GPC (\d+), TPC (\d+)(?:, SM (\d+))?\)(?::\s*([^,.(]+))?")
# MMU Fault: ENGINE GRAPHICS GPC6 GPCCLIENT_T1_13 faulted @ 0x6f6f_320c2000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ
_MMU = re.compile(
    r"ENGINE (?P<engine>\w+)(?: (?P<gpc>GPC\d+))?(?: (?P<client>(?:GPC|HUB)CLIENT_\w+))?\s+faulted @ (?P<address>0x[0-9a-fA-F_]+)"
    r"(?:\.?\s*Fault is of type (?P<fault>FAULT_\w+)(?:\s+(?P<access>ACCESS_TYPE_\w+))?)?"
)
# GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
_ACTION = re.compile(
    r"recovery action changed from (?:0x[0-9a-fA-F]+ )?\(?([^()]*?)\)? to (?:0x([0-9a-fA-F]+) ?)?(?:\(([^()]*)\)?)?\s*$"
)
# Timeout after 45s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4)
_RPC = re.compile(r"(?:after (\d+)\s*s(?:econds)? )?of waiting for RPC|waiting for RPC", re.IGNORECASE)
_FUNCTION = re.compile(r"[Ee]xpected function (\d+) \((\w+)\)(?:.*?\((0x[0-9a-fA-F]+) (0x[0-9a-fA-F]+)\))?")
_RM_GPU = re.compile(r"\bGPU(\d+)\b")
# Row Remapper: New row (0x0000001) marked for remapping, reset gpu to activate. | Dynamic Page Retirement: New page retired …
_ROW = re.compile(r"\((0x[0-9a-fA-F]{6,16})\)")
# Contained: CE User Channel (0x9). RST: No, D-RST: No | Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No
_CONTAINED = re.compile(r"\b(Contained|Uncontained):?\s*([A-Z][A-Za-z ]*[A-Za-z])?(?:\s*\(([^)]*)\))?")
_RST = re.compile(r"(?<![-D])RST:\s*(Yes|No)")
_DRST = re.compile(r"D-RST:\s*(Yes|No)")
# NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
_LINK74 = re.compile(r"\blink (\d+)\s*\(([0-9a-fA-Fx, ]+)\)?", re.IGNORECASE)
# NETIR_LINK_EVT  Fatal   XC0 i0 Link 13 (0x0215a5c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]+)\s+(?P<severity>Link Fatal|Fatal|Non-?fatal)\s+(?:XC(?P<xc>\d+)\s+)?(?:i(?P<instance>\d+)\s+)?"
    r"Link\s+(?P<link>-?\d+)\s*\((?P<words>[0-9a-fA-Fx ,]+)\)?",
    re.IGNORECASE,
)
# Dynamic Page Retirement: New page retired, reboot to activate (0x00000000002ce8ac).
_REBOOT = re.compile(r"\breboot to (?:activate|retire)", re.IGNORECASE)
_NO_SPARE = re.compile(r"bank|no spare|exhaust|full", re.IGNORECASE)
_HEX = re.compile(r"0x([0-9a-fA-F]+)")
_ACTION_NUMBERS = ("none", "gpu reset required", "node reboot required", "drain p2p", "drain and reset")

# nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up
# nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 48 Sub-engine instance 00
_SXID = re.compile(
    r"(?:nvidia-nvswitch(?P<switch>\d+):\s*)?SXid\s*\(PCI:(?P<pci>[0-9a-fA-F:.]+)\)\s*:\s*(?P<code>\d{5}),\s*(?P<detail>.*)",
    re.DOTALL,
)
_SEVERITY = re.compile(r"Severity (\d+) Engine instance (\d+)(?: Sub-engine instance (\d+))?")
_SXLINK = re.compile(r"\bLink (\d+)\b")
# Codes whose effect on a job does not depend on the word: the driver always logs Non-fatal for a port that stops a GPU's traffic
# (Fabric Manager user guide, list of NVSwitch SXid errors: 11004 and 12028 need the guest VM restarted).
_STOPPING = frozenset((11004, 12028))


def _fields(code: int, detail: str) -> dict[str, Any]:
    """Return what the text of one code says, as far as its form is known."""
    data: dict[str, Any] = {}
    if found := _SM.search(detail):
        data["sm"] = f"GPC{found[1]}/TPC{found[2]}" + (f"/SM{found[3]}" if found[3] else "")
        if found[4]:
            data["exception"] = found[4].strip()
    if found := _MMU.search(detail):
        data |= {key: value for key, value in found.groupdict().items() if value}
    if code == 154 and (found := _ACTION.search(detail)):
        action = (found[3] or "").strip() or (
            _ACTION_NUMBERS[int(found[2], 16)].title() if found[2] and int(found[2], 16) < len(_ACTION_NUMBERS) else ""
        )
        data["action_from"], data["action"] = found[1].strip(), action
        if meant := remediation_of(action):
            data["remediation"] = meant
    if code in (119, 120, 175) or _RPC.search(detail):
        if (found := _RPC.search(detail)) and found[1]:
            data["seconds"] = int(found[1])
        if found := _FUNCTION.search(detail):
            data["function"], data["function_name"] = int(found[1]), found[2]
        if found := _RM_GPU.search(detail):
            data["rm_gpu"] = int(found[1])  # the driver's instance number, not nvidia-smi's index
    if code in (63, 64):
        failed = code == 64 or "rror" in detail or "fail" in detail.lower()
        data["remap"] = "failed" if failed else "pending"
        if found := _ROW.search(detail):
            data["address"] = found[1]
        if _REBOOT.search(detail):
            data["remediation"] = (
                "reboot-node"  # the driver's own word, of GPUs before Ampere: page retirement, not row remapping
            )
        elif code == 64 and _NO_SPARE.search(detail):
            data["remediation"] = "replace-node"
    if code in (94, 95) and (found := _CONTAINED.search(detail)):
        data["contained"] = found[1] == "Contained"
        if found[2]:
            data["unit"] = found[2].strip()
    for key, pattern in (("reset", _RST), ("drain_reset", _DRST)):
        if found := pattern.search(detail):
            data[key] = found[1] == "Yes"
    return data


def _nvlink(event: Event, code: int, detail: str) -> None:
    if code == 74 and (found := _LINK74.search(detail)):
        words = [int(word, 16) for word in _HEX.findall(found[2])]
        event.data |= {"link": int(found[1]), "words": [hex(word) for word in words]}
        meaning = register_bits(words)
        if meaning:
            event.data["bits"] = meaning
            kinds = {kind for kind, _ in meaning}
            if kinds <= {"secondary", "ignore", "threshold"}:
                event.role, event.weight = ("symptom", 0.3) if "secondary" in kinds else ("context", 0.1)
    elif 144 <= code <= 150 and (found := _NVLINK5.search(detail)):
        words = [int(word, 16) for word in _HEX.findall(found["words"])]
        fatal = "non" not in found["severity"].lower()
        event.data |= {
            "unit": found["unit"],
            "severity": "Fatal" if fatal else "Nonfatal",
            "fatal": fatal,
            "link": int(found["link"]),
            "words": [f"0x{word:08x}" for word in words],
        }
        if found["xc"]:
            event.data["xc"] = int(found["xc"])
        decoded = unit_error(code, found["unit"], words)
        event.data |= decoded
        if fatal:
            event.role, event.cls, event.weight = "cause", "hardware/nvlink", 0.85
            if "PEER" in str(decoded.get("follow_up", "")):  # the far end is the source: still this link, less surely this GPU
                event.weight = 0.7
        elif decoded.get("action") in (None, "IGNORE"):
            event.role, event.weight = "context", 0.1
        else:
            event.role, event.weight = "symptom", 0.3


def xid_event(text: str) -> Event | None:
    """
    Return the event of one Xid message, or None when the text is none.

    Parameters
    ----------
    text : str
        The message, folded lines joined by a space or a line end.

    Returns
    -------
    Event or None
        Signature ``xid-N`` with code, GPU, pid and fields; file, line, node and time are the caller's to fill.
    """
    found = _XID.search(text) or _XID_NOTE.search(text)
    if not found:
        return None
    code = int(found["code"])
    address = found["pci"]
    gpu = ids.pci(address) or ids.pci(f"{address}:00")
    detail = " ".join((found["detail"] or "").split())
    event = Event(f"xid-{code}", "kernel", gpu=Gpu(pci=gpu) if gpu else None, code=code)
    if instance := found.groupdict().get("instance"):
        event.data["mig"] = instance.lstrip("0") or "0"
        event.data["gpu_instance"] = f"GPU-I:{instance}"
    if process := _PID.search(detail):
        event.pid = int(process[1]) if process[1] and int(process[1]) else None
        detail = detail[: process.start()] + detail[process.end() :]
    if process := _NAME.search(detail):
        name = (process[1] or process[2] or "").strip()
        if name and name != "<unknown>":
            event.data["name"] = name
        detail = detail[: process.start()] + detail[process.end() :]
    if channel := _CHANNEL.search(detail):
        event.data["channel"] = channel[1].lower()
    if previous := _CAUSED.search(detail):
        event.data["caused_by"] = int(previous[1])
    detail = detail.strip(" ,")
    if detail:
        event.data["detail"] = detail[:500]
    event.data |= _fields(code, detail)
    _nvlink(event, code, detail)
    if code == 31 and (engine := event.data.get("engine")):
        # A fault of the host or copy path comes from mappings that driver and libraries made, not from a kernel's pointers.
        if str(engine).startswith(("HOST", "PTP", "BAR", "PHYSICAL")):
            event.cls, event.weight = "driver/other", 0.5
        elif str(engine).startswith("CE"):
            event.weight = 0.4
    if code != 74 and re.match(r"NVLink: fatal error", detail):
        event.cls, event.weight = "hardware/nvlink", 0.7  # the words say more than a code that was used for something else
    if code == 154:
        event.role = "context" if event.data.get("remediation") == "none" else "symptom"
    return event


def sxid_event(text: str) -> Event | None:
    """Return the event of one SXid line, or None; `data["part"]` says whether it is the main, Severity or Data line."""
    found = _SXID.search(text)
    if not found:
        return None
    code = int(found["code"])
    detail = " ".join(found["detail"].split())
    event = Event(f"sxid-{code}", "kernel", code=code)
    event.data["switch_pci"] = ids.pci(found["pci"])
    if found["switch"]:
        event.data["switch"] = int(found["switch"])
    fatal: bool | None = None
    if severity := _SEVERITY.match(detail):
        event.data |= {"part": "severity", "link": int(severity[2]), "severity": int(severity[1])}
        fatal = int(severity[1]) >= 1
    elif detail.startswith("Data"):
        event.data |= {"part": "data", "words": re.findall(r"0x[0-9a-fA-F]+", detail)}
    else:
        event.data |= {"part": "main", "detail": detail[:300]}
        word = detail.split(",", 1)[0].strip().lower()
        fatal = True if word == "fatal" else False if word in ("non-fatal", "nonfatal", "correctable") else None
        if link := _SXLINK.search(detail):
            event.data["link"] = int(link[1])
    if fatal is not None:
        event.data["fatal"] = fatal
        weigh(event)
    return event


def weigh(event: Event) -> None:
    """Set role and weight by the word in the line, which knows more than any table (containment is decided at run time)."""
    if event.data.get("fatal"):
        event.role, event.cls, event.weight = "cause", "hardware/nvlink", 0.8
    elif event.code not in _STOPPING:
        event.role, event.weight = "context", 0.1
