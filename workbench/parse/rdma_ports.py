"""Turn what the kernel, ibstat and `rdma link` say of RDMA ports (InfiniBand, RoCE, EFA) into one record a port."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["RdmaPort", "from_ibstat", "from_rdma_link", "from_sys", "lid_of", "rate_of", "word_of"]

_NO_COUNTERS = ("rate", "lid", "state", "phys_state", "link_layer", "driver", "netdev", "address", "board_id", "hca_type")


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """
    One port of an RDMA device.

    Attributes
    ----------
    device : str
        ``mlx5_0``, ``rdmap16s27``.
    port : int
        From 1.
    state : str
        ``active``, ``down``, ``init``, ``armed``; empty when not told.
    physical : str
        ``linkup``, ``polling``, ``disabled``, ``linkerrorrecovery``; empty when not told.
    layer : str
        ``infiniband``, ``ethernet``, ``unspecified`` (EFA); empty when not told.
    rate : float or None
        Gb/s as width times speed.
    product : str
        Board or adapter type: ports of one product are twins.
    driver : str
        ``mlx5_core``, ``efa``; empty when not told.
    netdev : str
        The network interface of the port, when there is one.
    address : str
        PCI address of the device; empty when not told.
    counters : mapping
        Name → value of its error counters; one that could not be read is not there.
    lid : int or None
        The address that a subnet manager gave it: a port that has one was up since its driver was loaded. None when it never got one.
    """

    device: str
    port: int
    state: str = ""
    physical: str = ""
    layer: str = ""
    rate: float | None = None
    product: str = ""
    driver: str = ""
    netdev: str = ""
    address: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    lid: int | None = None

    @property
    def name(self) -> str:
        """Device and port as `rdma link` writes them."""
        return f"{self.device}/{self.port}"

    @property
    def active(self) -> bool:
        """Whether it carries traffic."""
        return self.state == "active"


def word_of(text: str) -> str:
    """Return a state as one word: ``4: ACTIVE`` and ``Active`` are ``active``, ``5: LinkUp`` and ``LINK_UP`` are ``linkup``."""
    return re.sub(r"[\s_]", "", re.sub(r"^\s*\d+:\s*", "", text)).lower()


def rate_of(text: str) -> float | None:
    """Return the Gb/s of ``400 Gb/sec (4X NDR)`` or ``400``; None for what is no rate, such as 0 of a port that is down."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)(?:\s*Gb/sec\b.*)?\s*$", text)
    return (float(found[1]) or None) if found else None


def lid_of(text: str) -> int | None:
    """Return the unicast LID of ``868`` or ``0x364``; None for 0 and 65535, which a port has that no subnet manager has seen."""
    try:
        lid = int(text.strip(), 0)
    except ValueError:
        return None
    return lid if 0 < lid < 0xC000 else None


def from_sys(files: Mapping[str, str]) -> tuple[RdmaPort, ...]:
    """
    Return the ports of the files below ``/sys/class/infiniband``.

    Parameters
    ----------
    files : mapping
        Path below that folder → text: ``mlx5_0/ports/1/state`` → ``4: ACTIVE``. ``mlx5_0/driver``, ``mlx5_0/netdev`` and
        ``mlx5_0/address``, which are links and folders there, are names here.

    Returns
    -------
    tuple of RdmaPort
    """
    ports: dict[tuple[str, int], dict[str, str]] = {}
    devices: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        device, _, rest = path.partition("/")
        if found := re.fullmatch(r"ports/(\d+)/(?:counters/|hw_counters/)?(\w+)", rest):
            ports.setdefault((device, int(found[1])), {})[found[2]] = text.strip()
        elif found := re.fullmatch(r"(?:hw_counters/)?(\w+)", rest):
            devices.setdefault(device, {})[found[1]] = text.strip()
    out = []
    for (device, number), told in sorted(ports.items(), key=lambda one: (_natural(one[0][0]), one[0][1])):
        above = devices.get(device, {})
        counted = {name: int(text) for name, text in {**above, **told}.items() if text.isdigit() and name not in _NO_COUNTERS}
        out.append(
            RdmaPort(
                device,
                number,
                word_of(told.get("state", "")),
                word_of(told.get("phys_state", "")),
                word_of(told.get("link_layer", "")),
                rate_of(told.get("rate", "")),
                above.get("board_id") or above.get("hca_type", ""),
                above.get("driver", ""),
                above.get("netdev", ""),
                above.get("address", ""),
                counted,
                lid_of(told.get("lid", "")),
            )
        )
    return tuple(out)


def from_ibstat(text: str) -> tuple[RdmaPort, ...]:
    """Return the ports of ``ibstat``; those without a state are left out, since half an output tells nothing of them."""
    ports: list[RdmaPort] = []
    device = product = ""
    for line in text.splitlines():
        if found := re.match(r"CA '([\w.-]+)'\s*$", line):
            device, product = found[1], ""
        elif found := re.match(r"\s+CA type:\s*(\S+)", line):
            product = found[1]
        elif found := re.match(r"\s+Port (\d{1,4}):\s*$", line):
            ports.append(RdmaPort(device, int(found[1]), product=product))
        elif ports and ports[-1].device == device and (found := re.match(r"\s+([A-Za-z][\w ]*?):\s*(.*?)\s*$", line)):
            name, value = found[1].lower(), found[2]
            if name == "state":
                ports[-1] = replace(ports[-1], state=word_of(value))
            elif name == "physical state":
                ports[-1] = replace(ports[-1], physical=word_of(value))
            elif name == "rate":
                ports[-1] = replace(ports[-1], rate=rate_of(value))
            elif name == "base lid":
                ports[-1] = replace(ports[-1], lid=lid_of(value))
            elif name == "link layer":
                ports[-1] = replace(ports[-1], layer=word_of(value))
    return tuple(port for port in ports if port.device and port.state)


def from_rdma_link(text: str) -> tuple[RdmaPort, ...]:
    """Return the ports of ``rdma link``: ``link mlx5_3/1 state DOWN physical_state DISABLED netdev ibp3s0``."""
    out = []
    for line in text.splitlines():
        if found := re.match(r"\s*link ([\w.-]+)/(\d{1,4})\s(.*)$", line):
            told = dict(re.findall(r"(state|physical_state|netdev) (\S+)", found[3]))
            if "state" in told:
                state, physical = word_of(told["state"]), word_of(told.get("physical_state", ""))
                out.append(RdmaPort(found[1], int(found[2]), state, physical, netdev=told.get("netdev", "")))
    return tuple(out)


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that puts mlx5_10 after mlx5_9."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part)
