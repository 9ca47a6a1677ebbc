"""Turn fault lines that lie whole half-hours outside the job into candidates again, when nothing inside the job explains its end."""

from __future__ import annotations

from workbench.triage.context import Context
from workbench.triage.groups import ago
from workbench.triage.rules.outcome import Outcome

__all__ = ["other_time_zone"]

_STEP = 1800.0  # zones differ by half-hours (a few by quarters, which would match too much by chance)
_WIDEST = 14 * 3600.0
_STRONG = 0.8


def other_time_zone(context: Context, outcome: Outcome) -> None:
    """
    A job log without zone may be in local time while kernel and BMC give UTC, or the other way round.

    A strong fault on one of the job's own nodes that falls on the very minute of the job's last step when it is moved by whole
    half-hours is taken for what it seems, at some cost in confidence; only when no other cause is in evidence.
    """
    life = context.lives[0] if context.lives else None
    if life is None or any(
        group.score >= 0.5 and not group.signature.startswith(("watchdog-", "fr-")) for group in outcome.alive()
    ):
        return
    moment = life.stop if life.stop is not None else life.fail
    if moment is None:
        return
    until = life.fail + context.windows.xid_after if life.fail is not None and life.fail - moment < 120.0 else moment + 60.0
    for group in outcome.groups:
        if (
            group.source not in ("kernel", "bmc")
            or group.weight < _STRONG
            or context.in_job(group.node) is False
            or group.first is None
        ):
            continue
        offset = round((moment - group.first) / _STEP) * _STEP
        if not offset or abs(offset) > _WIDEST or not moment - 60.0 <= group.first + offset <= until:
            continue
        for event in group.events:
            if event.time is not None:
                event.time += offset
                event.last = (event.last or event.time) + offset
                event.data["assumed_offset"] = offset
        group.dismissed, group.factor = "", 0.8
        group.notes = [f"it falls on the job's last step if the two logs' clocks are {ago(offset)} apart (time zone)"]
