"""Turn findings on GPUs into findings that say which thing that GPU is: serial number, VBIOS, product, as whoever repairs it asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from workbench.health.finding import Finding
from workbench.health.same import same
from workbench.model import Gpu
from workbench.sources.node.world import Reading

__all__ = ["with_devices"]


def with_devices(findings: Iterable[Finding], readings: Mapping[str, Reading]) -> list[Finding]:
    """
    Return findings, those that call for something with what is known of their GPU.

    What the driver says now comes first; a GPU that is lost says nothing any more, and is what it was when an earlier run kept it, by its UUID.
    """
    known = [*_now(readings.get("gpus")), *_before(readings.get("kept-gpus"))]
    found = []
    for one in findings:
        facts: dict[str, str] = {}
        if one.gpu is not None and one.status in ("warning", "critical"):
            for gpu, told in known:
                if same(gpu, one.gpu):
                    facts = told | facts
        found.append(replace(one, device=facts) if facts else one)
    return found


def _now(reading: Reading | None) -> Iterable[tuple[Gpu, dict[str, str]]]:
    gpus = reading.value if reading is not None and reading.usable else None
    for state in getattr(gpus, "states", ()):
        facts = {"serial": state.get("serial"), "vbios": state.get("vbios"), "product": state.product}
        yield state.gpu, {key: str(value) for key, value in facts.items() if _told(value)}


def _before(reading: Reading | None) -> Iterable[tuple[Gpu, dict[str, str]]]:
    kept = reading.value if reading is not None and reading.usable else None
    for one in kept.get("gpus", ()) if isinstance(kept, Mapping) else ():
        if isinstance(one, Mapping) and one.get("uuid"):
            facts = {"serial": one.get("serial"), "product": one.get("name")}
            # an address alone may be another card's by now
            yield Gpu(None, str(one["uuid"])), {key: str(value) for key, value in facts.items() if _told(value)}


def _told(value: object) -> bool:
    # a GPU without a serial number says 0 or N/A
    text = str(value or "").strip()
    return bool(text.strip("0")) and text.upper() not in ("N/A", "[N/A]", "UNKNOWN")
