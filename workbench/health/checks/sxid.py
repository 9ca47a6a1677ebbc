"""Turn the NVSwitch errors (SXid) of the kernel log into what each means for the node's fabric now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.health.checks.xid import reach
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import since_boot
from workbench.model import Event

__all__ = ["sxid"]

# The driver always logs these as non-fatal, and they stop one GPU's traffic until the fabric is set up again (Fabric Manager user
# guide, NVSwitch SXid errors); a GPU that was reset or a guest that was shut down leaves them, too.
_STOPPING = (11004, 12028)


@check(
    "sxid",
    "the kernel log has no NVSwitch error that hurts the fabric",
    needs=("kernel",),
    wants=("gpus", "fabric-services"),
    cls="hardware/nvlink",
)
def sxid(seen: Seen) -> Iterator[Finding]:
    """Judge by the word in the line (Fatal, Non-fatal), which knows more than any table: containment is decided at run time."""
    log = seen.value("kernel")
    switches = seen.value("fabric-services")
    events = since_boot(log, {one.signature for one in log.events if one.signature.startswith("sxid-")})
    groups: dict[tuple[int, str, str], list[Event]] = {}
    for event in events:
        key = (event.code or 0, str(event.data.get("switch_pci") or ""), "fatal" if event.data.get("fatal") else "")
        groups.setdefault(key, []).append(event)
    bad, harmless = False, 0
    for (code, switch, fatal), found in groups.items():
        if not fatal and code not in _STOPPING:
            harmless += len(found)
            continue
        bad = True
        name = "sxid-fatal" if fatal else "sxid-stopped-traffic" if _fabric_up(seen) else "sxid-stops-traffic"
        links = sorted({int(one.data["link"]) for one in found if one.data.get("link") is not None})
        where = f"NVSwitch {switch}" + (f" link {', '.join(map(str, links))}" if links else "")
        count = sum(one.count for one in found)
        detail = str(found[0].data.get("detail") or "").split(",")[-1].strip()
        summary = f"SXid {code}{f' ×{count}' if count > 1 else ''} at {where}: {detail or 'an error that stops traffic'}"
        yield replace(
            seen.found(name, summary, part=where, evidence=[one.text for one in found[:5]], since=found[0].time),
            hint=f"workbench explain sxid:{code}",
        )
    enough, said = reach(seen, log)
    if bad:
        return
    if switches is not None and not switches.switches and not events:
        yield seen.absent("no NVSwitch of its own in this machine")
    elif not enough:
        yield seen.unknown(said)
    else:
        yield seen.ok(f"{f'{harmless} non-fatal SXids' if harmless else 'no SXid'}: {said}")


def _fabric_up(seen: Seen) -> bool:
    """Whether the driver says of every GPU now that its fabric is set up without error and its links are up."""
    gpus = seen.value("gpus")
    return (
        gpus is not None
        and bool(gpus.states)
        and all(
            str(state.get("fabric.state")).lower() == "completed"
            and state.get("fabric.status") == 0
            and bool(state.get("nvlink"))
            and all(link.get("active") for link in state.get("nvlink"))
            for state in gpus.states
        )
    )
