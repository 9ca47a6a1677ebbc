"""Turn the checkpoint of this node's kubelet into a file that tells which pod was given which GPUs, without what plugins answered."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from workbench.sources.contract import Answer, Folder

__all__ = ["KUBELET", "collect_checkpoint"]

KUBELET = "/var/lib/kubelet"
_FILE = "device-plugins/kubelet_internal_checkpoint"
_MOST = 64 << 20  # bytes; a node of 110 pods has some hundred kilobytes
_KEPT = ("PodUID", "ContainerName", "ResourceName", "DeviceIDs")  # not AllocResp, which holds environment variables of containers


def collect_checkpoint(node: str, folder: Folder, root: str = KUBELET) -> list[Answer]:
    """
    Write ``kubelet/<node>.json``; a node without a kubelet gives no answer, since nothing lacks.

    Parameters
    ----------
    node : str
        This node's name in the job.
    folder : Folder
        Where to write.
    root : str
        Root of the kubelet's files.
    """
    began = time.monotonic()
    path = f"{root}/{_FILE}"
    name = f"kubelet/{re.sub(r'[^A-Za-z0-9_.-]', '_', node)}.json"
    if folder.has(name):
        return [Answer("kubernetes", "ok", "the kubelet's device assignments were read before", asked=path, file=name)]
    try:
        with open(path, "rb") as stream:
            raw = stream.read(_MOST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        hint = "run it as root to see which pod had which GPU" if isinstance(error, PermissionError) else "check the disk"
        detail = f"the kubelet's device assignments cannot be read: {os.strerror(error.errno or 0)}"
        return [Answer("kubernetes", "partial", detail, hint, path)]
    try:
        document, count = _cleaned(json.loads(raw))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        detail = f"the kubelet's device assignments are of an unexpected shape ({type(error).__name__}: {error})"
        return [Answer("kubernetes", "partial", detail, "please report the kubelet's version", path)]
    folder.write(name, json.dumps(document, indent=1).encode() + b"\n")
    seconds = time.monotonic() - began
    return [Answer("kubernetes", "ok", f"{count} device assignments of this node's kubelet", "", path, name, count, seconds)]


def _cleaned(document: Any) -> tuple[dict[str, Any], int]:
    data = document["Data"]
    entries = [{key: entry[key] for key in _KEPT} for entry in data["PodDeviceEntries"] or []]
    return {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": data.get("RegisteredDevices")}}, len(entries)
