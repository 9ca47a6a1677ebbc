"""
Turn what NVML says of this node into one JSON document, read by a child process that is killed when the driver does not answer.

A wedged driver does not return from a call, and forking after NVML was opened is unsafe: so this process neither opens it nor imports
pynvml. The document has the schema ``workbench.nvml/1``::

    {"schema": "workbench.nvml/1", "node": "gpu-7", "time": "2026-05-04T11:02:03Z", "seconds": 0.41,
     "ending": "whole",          # whole | init | no-pynvml | hang | crash | garbage | not-started: how far it came
     "error": null,              # what NVML (or the system) said when it is not whole: {"code": 9, "error": "Driver Not Loaded"}
     "hung": null,               # the call that did not return: {"call": "nvmlDeviceGetPowerUsage", "gpu": 3}
     "bus": [{"pci": "0000:3b:00.0", "driver": "nvidia"}],      # NVIDIA's GPUs as the kernel lists them
     "driver": "570.133.20", "nvml": "12.570.133.20", "cuda": "12.8", "count": 8,
     "gpus": [{"index": 0, "uuid": "GPU-…", "serial": "…", "pci": "00000000:3B:00.0", "name": "NVIDIA H100 80GB HBM3",
               "memory": {"total": 85520809984, "used": …, "free": …}, "ecc.mode": {"current": true, "pending": true},
               "ecc.volatile.uncorrected_dram": 0, …, "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": false,
               "failure": false}, "remapped_rows_banks": {…}, "retired_pages.double_bit": null, "temperature.gpu": 33,
               "power.watts": 71.3, "clocks.sm": 1980, "throttle": ["idle"], "throttled.hw_thermal": 0, "pcie.width": 16,
               "nvlink": [{"link": 0, "active": true, "replay_errors": 0, …}], "gsp_firmware": "570.133.20", "mig.mode": {…},
               "mig.instances": [{"index": 0, "uuid": "MIG-…", "profile": "1g.10gb"}], "processes": [{"pid": 1, "type": "C", "memory": …}],
               "fabric": {"state": "Completed", "status": 0}, "recovery_action": "None",
               "why_not": {"retired_pages.double_bit": {"code": 3, "error": "Not Supported", "call": "nvmlDeviceGetRetiredPages"}}}],
     "why_not": {}}              # the same for the facts of the node

Every value that NVML did not give is null, and ``why_not`` says in NVML's own words why: not supported, lost, unknown error.
Times are UTC, memory is in bytes, power in watts, clocks in MHz, temperatures in degrees Celsius, ``throttled.…`` (for how long it was
slowed down since the driver was loaded) in microseconds.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.sources.command import Ran, run

__all__ = ["SCHEMA", "read_nvml"]

SCHEMA = "workbench.nvml/1"
_CHILD = Path(__file__).with_name("nvml_child.py")
_LIMIT = 16 << 20


def read_nvml(seconds: float, *, node: str = "", env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """
    Return the document described above; never raises for what a driver does.

    Parameters
    ----------
    seconds : float
        When they are over, the child is killed: what it said until then is in the document, with the call that hung.
    node : str, optional
        Name of this node; default its host name.
    env : mapping, optional
        Added to the child's environment, e.g. ``LD_LIBRARY_PATH``, which counts only when set before a program starts.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "node": node or socket.gethostname().split(".")[0],
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": 0.0,
        "ending": "whole",
        "error": None,
        "hung": None,
    }
    spec = find_spec("pynvml")  # finds, does not import
    folder = str(Path(spec.origin).parent) if spec and spec.origin else os.devnull
    ran = run([sys.executable, "-P", "-I", str(_CHILD), folder], seconds=seconds, limit=_LIMIT, env=env)
    document["seconds"] = round(ran.seconds, 3)
    return _assembled(document, ran)


def _assembled(document: dict[str, Any], ran: Ran) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    reasons: dict[str, Any] = {}
    gpus: dict[int, dict[str, Any]] = {}
    asking: dict[str, Any] | None = None
    ended = False
    for text in ran.text.split("\n"):
        try:
            line = json.loads(text)
        except ValueError:  # torn by the kill, or printed by the library itself
            continue
        if not isinstance(line, dict):
            continue
        if "asking" in line:
            asking = {"call": line["asking"], "gpu": line.get("gpu")}
        elif "failed" in line:
            document["ending"], ended = line["failed"], True
            document["error"] = {"code": line.get("code"), "error": line.get("error")}
        elif "end" in line:
            ended = True
        elif "key" in line:
            index = line.get("gpu")
            target, why = facts, reasons
            if index is not None:
                target = gpus.setdefault(index, {"index": index, "why_not": {}})
                why = target["why_not"]
            target[line["key"]] = line.get("value")
            if "error" in line:
                why[line["key"]] = {"code": line.get("code"), "error": line["error"], "call": line.get("call")}
    if not ended:
        ending = {"time-out": "hang", "signal": "crash", "missing": "not-started", "not-executable": "not-started"}
        document["ending"] = ending.get(ran.ending, "garbage")
        words = {"hang": f"no answer within {ran.seconds:.1f} s", "crash": replace(ran, out=b"").sentence}
        if document["ending"] == "hang" and ran.stuck:
            words["hang"] += ", and SIGKILL did not end the process that asked"
        if ran.ok:
            words["garbage"] = "the process that asked ended before it had told everything"
        where = f" in {asking['call']}" if asking and document["ending"] in words else ""
        document["error"] = {"code": None, "error": words.get(document["ending"], ran.sentence) + where}
        document["hung"] = asking if document["ending"] == "hang" else None
    for gpu in gpus.values():
        gpu.pop("handle", None)
    facts.setdefault("bus", [])
    return document | facts | {"gpus": [gpus[index] for index in sorted(gpus)], "why_not": reasons}
