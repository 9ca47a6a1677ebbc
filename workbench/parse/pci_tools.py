"""Turn lspci, ibstat, mlxlink, nvidia-smi nvlink and topo, systemctl and package logs into events on links, ports, services."""

from __future__ import annotations

import calendar
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workbench.model import Gpu
from workbench.parse.ids import pci, uuid
from workbench.parse.rdma_ports import lid_of
from workbench.parse.smi_doc import Document, Out, Row, number

__all__ = ["Links", "read_lspci", "read_packages", "read_ports", "read_services", "read_topology"]

# "1c:00.0 VGA compatible controller: NVIDIA Corporation TU102GL [Quadro RTX 6000/8000] (rev ff)" | -n: "3b:00.0 0302: 10de:20b0"
_DEVICE = re.compile(
    r"\s*((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+\"?([A-Z0-9][^:\"]*?(?: \[[0-9a-f]{4}\])?)\"?[: ]\s*(.*)$", re.I
)
_IS_GPU = re.compile(r"3D controller|VGA compatible|Display controller|^03(?:00|02|80) ", re.I)
_NVIDIA = re.compile(r"NVIDIA|\b10de:", re.I)
_NIC = re.compile(r"Mellanox|ConnectX|BlueField|\b15b3:|Infiniband|Network controller|Ethernet controller", re.I)
# "    LnkSta: Speed 2.5GT/s (downgraded), Width x8 (downgraded)"
_LINK = re.compile(r"\s*Lnk(Cap|Sta):\s.*?Speed ([\d.]+|unknown)\s?(?:GT/s)?[^,]*,?\s*Width x(\d+)(.*)$")
_HEADER = re.compile(r"\s*!!! Unknown header type 7f")


def read_lspci(doc: Document, at: int, out: Out) -> int:
    """Read `lspci` (plain, -v, -vv, -nn) from row `at`; returns the row after it, or the same."""
    words = r"controller|bridge|accelerator|device|\b[0-9a-f]{4}:[0-9a-f]{4}\b"
    if not (_DEVICE.match(doc.rows[at].text) and re.search(words, doc.rows[at].text, re.I)):
        return at
    address, kind, gone = "", "", set[str]()
    able: dict[str, float] = {}
    while at < len(doc.rows):
        row = doc.rows[at]
        if found := _DEVICE.match(row.text):
            address = pci(found[1]) or ""
            what = f"{found[2]} {found[3]}"
            ours = bool(_NVIDIA.search(what))
            kind = "gpu" if ours and _IS_GPU.search(what) else "nvidia" if ours else "nic" if _NIC.search(what) else ""
            able = {}
            if kind == "gpu":
                out.on_bus[address] = row
            if re.search(r"\(rev ff\)", row.text) and kind:
                _off_bus("lspci-rev-ff", row, address, kind, gone, out)
        elif link := _LINK.match(row.text):
            if link[1] == "Cap":
                able = {"speed": number(link[2]) or 0.0, "width": float(link[3][:3])}
            elif kind in ("gpu", "nic") and able:
                _link(row, link, address, kind, able, out)
        elif _HEADER.match(row.text) and kind:
            _off_bus("lspci-rev-ff", row, address, kind, gone, out)
        elif driver := re.match(r"\s+Kernel driver in use: (\S+)", row.text):
            if kind == "gpu" and driver[1] != "nvidia":
                # given to a VM or to nouveau: that nvidia-smi does not list it is no wonder
                out.on_bus.pop(address, None)
                out.event("lspci-other-driver", row, Gpu(pci=address), driver=driver[1])
        elif not row.text.startswith(("\t", " ")) and row.text.strip():
            break
        at += 1
    return at


def _off_bus(signature: str, row: Row, address: str, kind: str, gone: set[str], out: Out) -> None:
    slot = address.rsplit(".", 1)[0]
    # all functions of a card read ff together: one event a card
    if slot in gone:
        return
    gone.add(slot)
    if kind == "nic":
        out.event(signature, row, key=slot, cls="hardware/network-link", device=address)
    else:
        out.event(signature, row, Gpu(pci=f"{slot}.0"), key=slot)


def _link(row: Row, link: re.Match[str], address: str, kind: str, able: dict[str, float], out: Out) -> None:
    speed, width = number(link[2]) or 0.0, float(link[3][:3])
    narrow = width < able["width"] or ("Width" in row.text and re.search(r"Width x\d+ \(downgraded\)", row.text))
    slow = 0 < speed < able["speed"]
    if not (narrow or slow):
        return
    # a GPU lowers its speed when idle, never its width
    weight = None if narrow else 0.2
    out.event(
        "lspci-link-degraded", row, Gpu(pci=address) if kind == "gpu" else None, key=address, weight=weight,
        role=None if narrow else "context", cls=None if kind == "gpu" else "hardware/network-link",
        width=int(width), width_max=int(able["width"]), speed=speed, speed_max=able["speed"], device=address,
    )  # fmt: skip


@dataclass(slots=True)
class _Port:
    device: str
    port: int
    row: Row
    values: dict[str, tuple[str, Row]] = field(default_factory=dict)

    def get(self, name: str) -> str:
        return self.values[name][0] if name in self.values else ""


# ibstat "CA 'mlx5_0'" | ibstatus "Infiniband device 'mlx5_0' port 1 status:" | ibv_devinfo "hca_id: mlx5_0" | "Settings for en0:"
_PORTS = re.compile(
    r"(?:CA '([\w.-]+)'|Infiniband device '([\w.-]+)' port (\d+) status:|hca_id:\s+([\w.-]+)|Settings for ([\w.@-]+):)\s*$"
)
_PORT = re.compile(r"\s+(?:Port (\d+):|port:\s+(\d+))\s*$")
_FIELD = re.compile(r"\s+([A-Za-z][\w ]*?):\s*(.*?)\s*$")
# "link mlx5_3/1 state DOWN physical_state DISABLED netdev ibp3s0"
_RDMA = re.compile(r"link ([\w.-]+)/(\d+) state (\w+) physical_state (\w+)")
# iblinkinfo: "  12    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>  3   7[  ] "sw1" ( Could be 50.0 Gbps)"
_LINKINFO = re.compile(r"\s*(?:0x[0-9a-f]+\s+)?\d+\s+(\d+)\[\s*\]\s*==\(\s*(.*?)\s*\)==>.*?(Could be [^)]*)?\)?\s*$")
# mlxlink: "State                              : Polling"
_MLX = re.compile(r"(State|Physical state|Speed|Width|Recommendation|Status Opcode)\s*: (.*?)\s*$")


def read_ports(doc: Document, at: int, out: Out) -> int:
    """Read ibstat, ibstatus, ibv_devinfo, `rdma link`, ethtool, mlxlink from row `at`; returns the row after it, or the same."""
    text = doc.rows[at].text
    if _MLX.match(text) and "Operational Info" in " ".join(row.text for row in doc.rows[max(0, at - 4) : at]):
        return _mlxlink(doc, at, out)
    if (found := _LINKINFO.match(text)) and found[3]:
        # unused switch ports are down in every fabric; a link below what both ends can do is not how it was meant
        out.event("ib-rate-low", doc.rows[at], key=at, port=int(found[1][:4]), rate=found[2], usual=found[3])
        return at + 1
    if not (_PORTS.match(text) or _RDMA.match(text.strip())):
        return at
    ports: list[_Port] = []
    device = ""
    while at < len(doc.rows):
        row = doc.rows[at]
        if found := _PORTS.match(row.text):
            device = next(name for name in (found[1], found[2], found[4], found[5]) if name)
            if found[2] or found[5]:
                ports.append(_Port(device, int((found[3] or "1")[:4]), row))
        elif found := _RDMA.match(row.text.strip()):
            ports.append(_Port(found[1], int(found[2][:4]), row, {"state": (found[3], row), "phys state": (found[4], row)}))
        elif found := _PORT.match(row.text):
            ports.append(_Port(device, int((found[1] or found[2])[:4]), row))
        elif found := _FIELD.match(row.text):
            if ports and ports[-1].device == device:
                name = found[1].lower().replace("physical state", "phys state").replace("_", " ")
                ports[-1].values.setdefault(name, (found[2], row))
        elif row.text.strip() and not row.text.startswith((" ", "\t")):
            break
        at += 1
    _judge_ports(ports, out)
    return at


def _up(port: _Port) -> bool:
    state = port.get("state") or port.get("link detected")
    return bool(re.search(r"active|^yes$", state, re.I))


def _judge_ports(ports: list[_Port], out: Out) -> None:
    kinds = Counter((port.get("link layer").lower() or "?") for port in ports if _up(port))
    rates = Counter(number(port.get("rate")) for port in ports if _up(port) and number(port.get("rate")))
    usual = rates.most_common(1)[0][0] if rates else None
    for port in ports:
        layer, state = port.get("link layer").lower() or "?", port.get("state") or port.get("link detected")
        row = (port.values.get("state") or port.values.get("link detected") or ("", port.row))[1]
        facts: dict[str, Any] = {
            "device": port.device,
            "port": port.port,
            "state": state,
            "physical": port.get("phys state") or None,
            "layer": layer,
        }
        twins = kinds[layer]
        if re.search(r"down|^no$", state, re.I):
            disabled = re.search(r"disabled", port.get("phys state"), re.I)
            # an unused port is down for good: only one among several that are up is a suspect, and not when it was switched off
            # … or one that has the address which a subnet manager once gave it
            was_up = lid_of(port.get("base lid").split(" ")[0]) is not None
            odd = (was_up or twins > sum(1 for other in ports if not _up(other))) and not disabled
            role, weight = (None, None) if odd else ("context", 0.2)
            out.event("ib-port-down", row, key=(port.device, port.port), role=role, weight=weight, peers_up=twins, **facts)
        elif re.search(r"init|armed", state, re.I):
            out.event("ib-port-initializing", row, key=(port.device, port.port), **facts)
        elif re.search(r"LinkErrorRecovery", port.get("phys state")):
            out.event("ib-port-down", row, key=(port.device, port.port), **facts)
        rate = number(port.get("rate"))
        if _up(port) and rate and usual and rate < usual and layer != "ethernet":
            out.event("ib-rate-low", port.values["rate"][1], key=(port.device, port.port), rate=rate, usual=usual, **facts)


def _mlxlink(doc: Document, at: int, out: Out) -> int:
    asked = re.search(r"-d\s+(\S+)", doc.rows[at].command)
    device = asked[1] if asked else None
    state: tuple[str, Row] | None = None
    while at < len(doc.rows) and len(doc.rows[at].text) < 2000:
        row = doc.rows[at]
        found = _MLX.match(row.text)
        if found and found[1] == "State":
            state = (found[2], row)
        elif found and found[1] == "Recommendation" and not re.search(r"No issue", found[2]):
            out.event("mlxlink-recommendation", row, key=device, message=found[2], device=device)
        elif row.text.strip() and ":" not in row.text and not re.search(r"Info|---|===", row.text):
            break
        at += 1
    if state and not re.match(r"active", state[0], re.I):
        out.event("ib-port-down", state[1], key=device, state=state[0], device=device)
    return at


# "         Link 3: <inactive>" | "         Link 0: 25.781 GB/s"
_STATE = re.compile(r"\s+Link (\d+): (<inactive>|[\d.]+ GB/s|Active|Inactive)\s*$", re.I)
# "         Link 0: Replay Errors: 0" | "         Link 7: Link recovery failed events: 2"
_COUNTER = re.compile(r"\s+Link (\d+): ([A-Z][\w ./-]*?): (\d+)\s*$")
_ALL_DOWN = re.compile(r"NVML: Unable to retrieve NVLink information as all links are in[aA]ctive")
_HEAD = re.compile(r"\s*GPU (\d+): (?:.*\(UUID: ([^)]*)\))?")


class Links:
    """Collects the NVLink lines of a document, to weigh a GPU's links against those of its peers at the end."""

    def __init__(self, out: Out) -> None:
        self.out = out
        self.gpu: Gpu | None = None
        self.states: dict[Gpu | None, dict[int, tuple[str, Row]]] = {}
        self.all_down: dict[Gpu | None, Row] = {}

    def read(self, doc: Document, at: int, out: Out) -> int:
        """Take one line of `nvidia-smi nvlink`; returns the row after it, or the same."""
        row = doc.rows[at]
        if head := _HEAD.match(row.text):
            self.gpu = Gpu(index=int(head[1][:4]), uuid=uuid(head[2]))
            return at
        if found := _STATE.match(row.text):
            self.states.setdefault(self.gpu, {}).setdefault(int(found[1][:4]), (found[2].lower(), row))
            return at + 1
        if _ALL_DOWN.search(row.text):
            self.all_down[self.gpu] = row
            return at + 1
        if found := _COUNTER.match(row.text):
            self._counter(int(found[1][:4]), found[2], int(found[3][:18]), row)
            return at + 1
        return at

    def _counter(self, link: int, name: str, value: int, row: Row) -> None:
        if not value or re.search(r"packets|bytes|successful|throughput", name, re.I):
            return
        if re.search(r"recovery failed|recovery errors|integrity", name, re.I):
            self.out.event("smi-nvlink-recovery-failed", row, self.gpu, key=(link, name), link=link, counter=name, value=value)
        elif re.search(r"errors?$|events?$|discards", name, re.I):
            self.out.event("smi-nvlink-errors", row, self.gpu, key=name, link=link, counter=name, value=value)

    def judge(self) -> None:
        """Add `smi-nvlink-inactive` for links that are down while others of the same GPU or node are up."""
        down = {
            gpu: frozenset(link for link, (text, _) in links.items() if "inactive" in text) for gpu, links in self.states.items()
        }
        some_up = any(len(down[gpu]) < len(links) for gpu, links in self.states.items())
        patterns = Counter(down.values())
        for gpu, links in self.states.items():
            missing = down[gpu]
            if not missing:
                continue
            row = next(row for link, (_, row) in sorted(links.items()) if link in missing)
            # the same links missing on every GPU are not wired on this model; a GPU alone with some links up has lost the others
            wired = some_up and not (len(patterns) == 1 and len(self.states) > 1)
            self.out.event("smi-nvlink-inactive", row, gpu, role=None if wired else "context", weight=None if wired else 0.2,
                           links=sorted(missing), of=len(links), peers=len(self.states))  # fmt: skip
        for gpu, row in self.all_down.items():
            role, weight = (None, None) if some_up else ("context", 0.25)
            self.out.event("smi-nvlink-inactive", row, gpu, role=role, weight=weight, links="all")
        speeds = {gpu: Counter(number(text) for text, _ in links.values() if number(text)) for gpu, links in self.states.items()}
        best = max((speed for counts in speeds.values() for speed in counts if speed), default=None)
        for gpu, links in self.states.items():
            slow = [(link, row) for link, (text, row) in sorted(links.items()) if best and 0 < (number(text) or 0) < best * 0.9]
            if slow:
                self.out.event("smi-nvlink-slow", slow[0][1], gpu, links=[link for link, _ in slow], best=best)


def read_topology(doc: Document, at: int, out: Out) -> int:
    """Read the matrix of `nvidia-smi topo -m` from row `at`; returns the row after it, or the same."""
    names = doc.rows[at].text.split()
    if not (names and names[0] == "GPU0" and sum(1 for name in names if re.match(r"GPU\d+$", name)) >= 1 and "X" not in names):
        return at
    gpus = [name for name in names if re.match(r"GPU\d+$", name)]
    table: dict[int, tuple[list[str], Row]] = {}
    at += 1
    while at < len(doc.rows) and (found := re.match(r"\s*(GPU|NIC|mlx5_)(\d+)\s+(\S.*)$", doc.rows[at].text)):
        if found[1] == "GPU":
            table[int(found[2][:4])] = (found[3].split()[: len(gpus)], doc.rows[at])
        at += 1
    bonds = {gpu: [int(cell[2:4]) for cell in cells if re.match(r"NV\d{1,2}$", cell)] for gpu, (cells, _) in table.items()}
    full = max((len(items) for items in bonds.values()), default=0)
    usual = Counter(item for items in bonds.values() for item in items).most_common(1)
    whole = [gpu for gpu, items in bonds.items() if len(items) >= full - 1]
    for gpu, items in bonds.items():
        # every GPU of an NVSwitch board reaches all others; one that reaches few while the others reach all has lost its links
        if full >= 3 and len(items) <= full // 2 and len(whole) > len(bonds) // 2:
            out.event("smi-topo-no-nvlink", table[gpu][1], Gpu(index=gpu), reaches=len(items), usual=full)
        elif usual and items and max(items) < usual[0][0] and len(whole) == len(bonds) and full >= 3:
            out.event("smi-topo-no-nvlink", table[gpu][1], Gpu(index=gpu), bonds=max(items), usual=usual[0][0])
    return at


# "● nvidia-fabricmanager.service - NVIDIA fabric manager service"
_UNIT = re.compile(r"\s*[●○×*]\s+([\w@.-]+)\.service(?: - .*)?$")
# "     Active: failed (Result: exit-code) since Mon 2024-01-15 10:23:45 UTC; 5min ago"
_ACTIVE = re.compile(r"\s+Active: (\w+)(?: \(([^)]*)\))?(?: since \w{3} (\d{4})-(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2}) (\S+);)?")
_SERVICES = {
    **dict.fromkeys(("nvidia-fabricmanager", "nvidia-fabric-manager"), "fabric-manager-inactive"),
    "nvidia-imex": "imex-inactive",
    "nvidia-persistenced": "persistenced-inactive",
    **dict.fromkeys(("nvidia-dcgm", "dcgm"), "dcgm-inactive"),
    **dict.fromkeys(("openibd", "opensm"), "openibd-inactive"),
    "slurmd": "slurmd-inactive",
    **dict.fromkeys(("kubelet", "containerd", "docker"), "kubelet-inactive"),
}


def read_services(doc: Document, at: int, out: Out) -> int:
    """Read a block of `systemctl status` from row `at`; returns the row after its state, or the same."""
    # systemctl --failed: "● nvidia-fabricmanager.service loaded failed failed NVIDIA fabric manager service"
    listed = re.match(r"\s*[●*]?\s*([\w@.-]+)\.service\s+loaded\s+failed\s+failed", doc.rows[at].text)
    if listed and (signature := _SERVICES.get(listed[1].split("@")[0])):
        weight = 0.7 if signature == "fabric-manager-inactive" else None
        out.event(signature, doc.rows[at], key=listed[1], unit=listed[1], state="failed", weight=weight)
        return at + 1
    # systemctl is-active: the command names the unit, the answer is one word
    asked = re.search(r"systemctl is-active (?:-\S+ )?([\w@-]+)", doc.rows[at].command)
    if asked and doc.rows[at].text.strip() in ("failed", "inactive") and (signature := _SERVICES.get(asked[1].split("@")[0])):
        out.event(signature, doc.rows[at], key=asked[1], unit=asked[1], state=doc.rows[at].text.strip())
        return at + 1
    unit = _UNIT.match(doc.rows[at].text)
    if not unit:
        return at
    name = unit[1]
    for ahead in range(at + 1, min(at + 12, len(doc.rows))):
        row = doc.rows[ahead]
        if _UNIT.match(row.text):
            return ahead
        if not (state := _ACTIVE.match(row.text)):
            continue
        since = (
            float(calendar.timegm((*map(int, state.group(3, 4, 5, 6, 7, 8)), 0, 0, 0)))
            if state[3] and state[9] in ("UTC", "GMT")
            else None
        )
        if state[1] not in ("active", "reloading") or "dead" in (state[2] or ""):
            signature = _SERVICES.get(name.split("@")[0])
            if signature:
                failed = state[1] == "failed"
                out.event(signature, row, key=name, time=since, unit=name, state=state[1], result=state[2],
                          weight=0.7 if failed and signature == "fabric-manager-inactive" else None)  # fmt: skip
        return ahead + 1
    return at + 1


_PACKAGE = (
    r"(?:nvidia-(?:driver|dkms|kernel|utils|compute|headless|fabricmanager|open|imex)|libnvidia-|cuda-drivers|"
    r"xserver-xorg-video-nvidia|kmod-nvidia|linux-modules-nvidia)"
)
# apt: "Upgrade: libnvidia-compute-535:amd64 (535.161.07-0ubuntu0.22.04.1, 535.171.04-0ubuntu0.22.04.1), …"
_APT = re.compile(rf"(Upgrade|Install|Downgrade|Remove|Purge): .*?\b({_PACKAGE}[\w.-]*)(?::\w+)? \(([^,)]+)(?:, ([^,)]+))?")
# dpkg: "2024-04-10 06:32:20 upgrade libnvidia-compute-535:amd64 535.161.07-0ubuntu0.22.04.1 535.171.04-0ubuntu0.22.04.1"
_DPKG = re.compile(
    rf"(\d{{4}}-\d{{2}}-\d{{2}}) (\d{{2}}:\d{{2}}:\d{{2}}) (upgrade|install|remove) ({_PACKAGE}[\w.-]*)(?::\w+)? (\S+)(?: (\S+))?"
)
# yum: "Apr 10 06:32:20 Updated: 3:nvidia-driver-535.171.04-1.el8.x86_64" | dnf: "  Upgrade  nvidia-driver-3:535.171.04"
_YUM = re.compile(
    rf"(Updated|Upgrade[d]?|Installed): (?:\d+:)?({_PACKAGE}[\w.:-]*)|^\s+(Upgrade[d]?)\s+({_PACKAGE}\S*)|"
    rf"Packages that (?:will be|were) upgraded:.*?({_PACKAGE}\S*)"
)
_STARTED = re.compile(r"Start-Date: (\d{4}-\d{2}-\d{2})\s+(\d{2}:\d{2}:\d{2})")


def _when(day: str, clock: str) -> float:
    numbers = [int(part) for part in re.findall(r"\d+", f"{day} {clock}")]
    return float(calendar.timegm((*numbers[:6], 0, 0, 0)))


def read_packages(doc: Document, at: int, out: Out) -> int:
    """Read one line of apt's, dpkg's or dnf's history at row `at`; returns the row after it, or the same."""
    row = doc.rows[at]
    if found := _STARTED.match(row.text):
        out.parsed.facts["_started"] = _when(found[1], found[2])
        return at + 1
    if found := re.match(r"Commandline: (.*)", row.text):
        out.parsed.facts["_command"] = found[1]
        return at + 1
    if row.text.startswith("End-Date:"):
        out.parsed.facts.pop("_command", None)
        out.parsed.facts.pop("_started", None)
        return at + 1
    if found := _APT.match(row.text):
        command = out.parsed.facts.get("_command")
        out.event("driver-upgraded", row, time=out.parsed.facts.get("_started"), action=found[1].lower(), package=found[2],
                  was=found[3], now=found[4], unattended="unattended" in command if command else None)  # fmt: skip
        return at + 1
    if found := _DPKG.match(row.text):
        key, when = (found[1], found[3]), _when(found[1], found[2])
        out.event("driver-upgraded", row, key=key, time=when, action=found[3], package=found[4], was=found[5], now=found[6])
        return at + 1
    if found := _YUM.search(row.text):
        out.event("driver-upgraded", row, key="yum", action="upgrade", package=found[2] or found[4] or found[5])
        return at + 1
    return at
