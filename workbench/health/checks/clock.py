"""Turn the state of the node's clock into whether its times can be compared with those of others."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.parse.time_sync import ClockState

__all__ = ["clock"]

_OFF = 0.05  # seconds: node-exporter's mixin warns from there (NodeClockSkewDetected)
_FAR = 300.0  # seconds: credentials of MUNGE (Slurm) and Kerberos are refused from there


@check(
    "clock",
    "the clock is held and right",
    needs=("clock",),
    cls="platform/config",
    required=False,
    required_when=("health.clock_offset",),
)
def clock(seen: Seen) -> Iterator[Finding]:
    """Judge whether something holds the clock, and its offset by ``health.clock_offset``."""
    state: ClockState = seen.value("clock")
    most = float(seen.setting("clock_offset") or _OFF)
    by = f" by {state.by}" if state.by else ""
    if state.held is None:
        yield seen.unknown("whether anything holds the clock was not told")
    elif not state.held:
        hint = "start chronyd, ntpd or systemd-timesyncd, and see whether it reaches its servers"
        yield seen.found("clock-not-held", "nothing holds the clock: no time server reached", hint=hint)
    elif state.offset is not None and abs(state.offset) >= _FAR:
        yield seen.found("clock-far-off", f"the clock is {_words(state.offset)}{by}: credentials are refused")
    elif state.offset is not None and abs(state.offset) >= most:
        evidence = [f"health.clock_offset = {most:g} s" if seen.setting("clock_offset") else f"more than {most:g} s"]
        yield seen.found("clock-off", f"the clock is {_words(state.offset)}{by}", evidence=evidence)
    else:
        off = _words(state.offset) if state.offset is not None else "by how much it is off was not told"
        yield seen.ok(f"the clock is held{by}, {off}")


def _words(offset: float) -> str:
    size = f"{abs(offset):.3g} s" if abs(offset) >= 1 else f"{abs(offset) * 1000:.3g} ms"
    return f"{size} {'ahead' if offset > 0 else 'behind'}"
