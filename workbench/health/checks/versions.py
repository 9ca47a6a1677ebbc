"""Turn the versions of driver, libraries and firmware on this node into whether they fit each other and what the site expects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.parse.gpu_state import NodeGpus

__all__ = ["versions"]


@check(
    "versions",
    "driver, libraries and firmware are of one version, and the one that the site expects",
    needs=("gpus",),
    wants=("driver-files",),
    cls="driver/version-mismatch",
)
def versions(seen: Seen) -> Iterator[Finding]:
    """
    Compare what runs with what is installed, GPU with GPU, and with ``health.driver``.

    The evidence of the finding that sums up holds one ``name version`` a line: `workbench.health.compare` compares nodes by it.
    """
    gpus = seen.gpus
    files = seen.value("driver-files")
    told: list[str] = []
    sound = True
    if gpus.driver:
        told.append(f"driver {gpus.driver}")
    if gpus.cuda:
        told.append(f"cuda {gpus.cuda}")
    library = gpus.nvml.split(".", 1)[1] if gpus.nvml.count(".") > 1 else ""  # "12.570.133.20": CUDA's major number comes first
    if library:
        told.append(f"libnvidia-ml {library}")
        if gpus.driver and not gpus.driver.startswith(library) and not library.startswith(gpus.driver):
            sound = False
            yield seen.found("version-library-differs", f"libnvidia-ml {library}, the driver that runs {gpus.driver}")
    if files is not None:
        if gpus.driver and files.module and gpus.driver != files.module:
            sound = False
            yield seen.found(
                "version-library-differs", f"the library says driver {gpus.driver}, the module that runs is {files.module}"
            )
        if files.installed and files.module and files.installed != files.module:
            sound = False
            summary = f"driver {files.module} runs, {files.installed} is installed: the next process that starts may not fit"
            yield seen.found("version-upgraded", summary)
        unread = [] if _all_told(gpus) else list(files.unread)
        if unread:
            sound = False
            yield seen.unknown(f"the firmware of {len(unread)} GPUs was not told: {unread[0]}", part="firmware")
    else:
        sound = False
        reading = seen.readings["driver-files"]
        yield seen.unknown(f"which module runs was not told: {reading.detail}", part="module", hint=reading.hint)
    yield from (firmware := list(_firmware(seen)))
    sound = sound and not firmware
    yield from (bios := list(_vbios(seen, told)))
    wanted = str(seen.setting("driver") or "").strip()
    if wanted and not gpus.driver:
        sound = False
        yield seen.unknown("the driver's version was not told, and health.driver expects one")
    elif wanted and not re.match(rf"{re.escape(wanted)}(?:\.|$)", gpus.driver):
        sound = False
        yield seen.found("version-unexpected", f"driver {gpus.driver}, health.driver says {wanted}")
    if not told or not gpus.driver:
        yield seen.unknown("the driver's version was not told")
    elif sound and not bios:
        yield seen.ok(f"driver {gpus.driver}" + (f", CUDA {gpus.cuda}" if gpus.cuda else ""), evidence=told)
    else:
        yield seen.ok("versions, to compare nodes by", part="list", evidence=told)


def _all_told(gpus: NodeGpus) -> bool:
    """Whether each GPU told the firmware of its system processor, or that it runs none."""
    return bool(gpus.states) and all(state.get("gsp_firmware") or not state.can("gsp_firmware") for state in gpus.states)


def _firmware(seen: Seen) -> Iterator[Finding]:
    """What the GPU's system processor runs, in the driver's words by NVML or nvidia-smi, else in those of its files."""
    files = seen.value("driver-files")
    running = (files.module if files is not None else "") or seen.gpus.driver
    for state in seen.gpus.states:
        version = state.get("gsp_firmware") or (files.firmware.get(state.gpu.pci) if files is not None else None)
        if version and running and version != running:
            yield seen.found("version-firmware-differs", f"GSP firmware {version} under driver {running}", gpu=state.gpu)


def _vbios(seen: Seen, told: list[str]) -> Iterator[Finding]:
    """GPUs of one product have one VBIOS, or one of them was flashed or came from another batch."""
    wanted = str(seen.setting("vbios") or "").strip()
    by: dict[str, Counter[str]] = {}
    for state in seen.gpus.states:
        if vbios := str(state.get("vbios") or ""):
            by.setdefault(state.product, Counter())[vbios] += 1
    for product, counts in by.items():
        told += [f"vbios of {product}: {vbios}" for vbios in sorted(counts)]
        usual = wanted or counts.most_common(1)[0][0]
        for state in seen.gpus.states:
            mine = str(state.get("vbios") or "")
            if state.product == product and mine and mine != usual:
                who = "health.vbios says" if wanted else "its peers have"
                yield seen.found("version-vbios-differs", f"VBIOS {mine}, {who} {usual}", gpu=state.gpu)
