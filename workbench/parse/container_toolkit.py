"""Turn CDI specifications and `nvidia-container-cli info` into which GPUs a container can be given, and what of the host that needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CdiSpec", "ToolkitInfo", "from_container_cli", "parse_cdi"]


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """
    A specification of the Container Device Interface.

    `kind` is ``nvidia.com/gpu``, `devices` the names below it (``0``, ``all``, ``GPU-…``), `paths` the device files, libraries and programs of
    the host that it puts into a container.
    """

    kind: str
    devices: tuple[str, ...]
    paths: tuple[str, ...]


def parse_cdi(text: str) -> CdiSpec | None:
    """Return a specification in JSON or YAML; None for what is none."""
    document = _loaded(text)
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("kind"), str)
        or not isinstance(document.get("devices"), list)
    ):
        return None
    devices = [one for one in document["devices"] if isinstance(one, dict)]
    names = tuple(str(one["name"]) for one in devices if one.get("name") is not None)
    paths = [path for edits in (document, *devices) for path in _paths(edits.get("containerEdits"))]
    return CdiSpec(document["kind"], names, tuple(dict.fromkeys(paths)))


def _loaded(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return None
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are the safe loader
    except yaml.YAMLError:
        return None


def _paths(edits: Any) -> Iterator[str]:
    """The host's side of device nodes and mounts; hooks are programs of the runtime's and not of the container."""
    if not isinstance(edits, Mapping):
        return
    for key, names in (("deviceNodes", ("hostPath", "path")), ("mounts", ("hostPath",))):
        rows = edits.get(key)
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, Mapping):
                yield from [str(row[name]) for name in names if isinstance(row.get(name), str)][:1]


@dataclass(frozen=True, slots=True)
class ToolkitInfo:
    """What the container toolkit sees: version of the driver, and UUIDs of the GPUs."""

    driver: str
    uuids: tuple[str, ...]


def from_container_cli(text: str) -> ToolkitInfo | None:
    """Return what ``nvidia-container-cli info`` says; None for what is no whole answer."""
    version = re.search(r"^NVRM version:\s+([\d.]+)\s*$", text, re.M)
    uuids = tuple(re.findall(r"^GPU UUID:\s+(GPU-[0-9a-f-]+)\s*$", text, re.M))
    listed = re.findall(r"^Device Index:", text, re.M)  # without one it sees the driver and no GPU; more than UUIDs: cut off
    return ToolkitInfo(version[1], uuids) if version and len(uuids) == len(listed) else None
