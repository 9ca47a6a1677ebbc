"""Turn what gives GPUs to containers (device plugin, container toolkit, CDI specifications) into one reading."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

from workbench.parse.container_toolkit import CdiSpec, ToolkitInfo, from_container_cli, parse_cdi
from workbench.sources.contract import Deadline
from workbench.sources.node.host_processes import running
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["Containers", "Spec"]

_PLUGINS, _DRA = "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins"
_CDI = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
_RUNTIMES = ("containerd", "dockerd", "crio")
# where the GPU operator puts it, when it is not on the PATH
_CLI = ("nvidia-container-cli", "/usr/local/nvidia/toolkit/nvidia-container-cli")


@dataclass(frozen=True, slots=True)
class Spec:
    """A CDI specification: its file, what it says (None when it is none), and which of its paths the host does not have."""

    file: str
    spec: CdiSpec | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Containers:
    """
    What gives GPUs to containers here.

    `kubelet` is whether Kubernetes' daemon takes connections from device plugins (None: there is no place for them); `plugins` NVIDIA's
    sockets by name with how connecting ended (``ok``, ``refused``, or words of the operating system); `claims` whether a DRA driver is there;
    `runtimes` those that run; `toolkit` what the toolkit sees, `trouble` why it sees nothing (empty when it is not installed) and `refused`
    whether it said so itself, `specs` the CDI specifications.
    """

    kubelet: str | None
    plugins: dict[str, str] = field(default_factory=dict)
    claims: bool = False
    runtimes: tuple[str, ...] = ()
    toolkit: ToolkitInfo | None = None
    trouble: str = ""
    refused: bool = False
    specs: tuple[Spec, ...] = ()


def _connected(world: World, folder: str, name: str) -> str:
    """How connecting to a socket ends; nothing is said, and the connection is closed at once."""
    try:
        directory = os.open(world.path(folder), os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        return error.strerror or "not there"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2.0)
            connection.connect(f"/proc/self/fd/{directory}/{name}")  # a path of at most 107 letters, wherever the folder lies
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return error.strerror or str(error) or "no answer"
    finally:
        os.close(directory)
    return "ok"


def _names(world: World, folder: str) -> list[str]:
    """The names in a folder, none when there is no such folder; raises `Unread` for one that may not be read."""
    try:
        return world.names(folder)
    except Unread as error:
        if error.ending == "missing":
            return []
        raise


def _specs(world: World) -> tuple[Spec, ...]:
    found: dict[str, Spec] = {}
    for folder in _CDI:
        for name in _names(world, folder):
            if not name.endswith((".yaml", ".json")):
                continue
            file = f"{folder}/{name}"
            spec = parse_cdi(world.text(file, 4 << 20))
            if spec is not None and not spec.kind.endswith("nvidia.com/gpu"):
                continue
            missing = tuple(path for path in spec.paths if not os.path.lexists(world.path(path))) if spec else ()
            found.setdefault(str(world.path(file).resolve()), Spec(file, spec, missing))
    return tuple(found.values())


def _toolkit(world: World, deadline: Deadline) -> tuple[ToolkitInfo | None, str, bool]:
    for program in _CLI:
        if program.startswith("/") and not world.path(program).exists():
            continue
        argv = (str(world.path(program)) if program.startswith("/") else program, "info")
        try:
            ran = tool(world, argv, deadline, limit=1 << 20, seconds=8.0)
        except Unread as error:
            if error.ending == "missing":
                continue
            return None, error.detail, error.ending == "exit"
        info = from_container_cli(ran.text)
        return info, "" if info else f"{ran.asked} printed no whole answer", False
    return None, "", False


def _containers(world: World, deadline: Deadline) -> Containers:
    try:
        runtimes = tuple(name for name in _RUNTIMES if name in {row.name for row in running(world).values()})
    except Unread:
        runtimes = ()
    sockets = _names(world, _PLUGINS)
    kubelet = _connected(world, _PLUGINS, "kubelet.sock") if "kubelet.sock" in sockets else None
    plugins = {
        name: _connected(world, _PLUGINS, name) for name in sockets if name.startswith("nvidia") and name.endswith(".sock")
    }
    claims = "gpu.nvidia.com" in _names(world, _DRA)
    toolkit, trouble, refused = _toolkit(world, deadline)
    specs = _specs(world)
    if kubelet is None and not (plugins or claims or runtimes or toolkit or trouble or specs):
        raise Unread("absent", "no Kubernetes, no container runtime and no container toolkit here")
    return Containers(kubelet, plugins, claims, runtimes, toolkit, trouble, refused, specs)


reader(
    "containers",
    "what gives GPUs to containers",
    seconds=12.0,
    ways=(Way("kubelet's folders and the container toolkit", _containers),),
)
