"""Turn what JAX's coordination service says of a barrier that timed out into whether its tasks ever met, and what those that lack mean."""

from __future__ import annotations

import re

from workbench.parse.job_state import JobState

__all__ = ["barriers"]

# Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names: | Barrier_id: [Init]Wait_for_all_tasks_to_register.
# Barrier timed out. Id: sync_global_devices:load::0. This usually happens because …   (since 2025)
_BARRIER = re.compile(r"\b(?:Barrier_id|Barrier timed out\. Id): (\S+?)\.?(?:\s|$)")
_FIRST_MEETING = re.compile(r"PjRT_Client_Connect|\[Init\]|[Ww]ait_?[Ff]or_?[Aa]ll|cluster_init")


def barriers(job: JobState) -> None:
    """
    Say of each barrier that timed out what it can mean.

    All tasks come to a barrier of the program's own only after they have met at the start: those that it misses ended or hang, and
    their own lines tell why. A first meeting that most tasks reached has the right address: those that it misses crashed, were never
    started, or were cut off.
    """
    events = [event for event in job.parsed.events if event.signature == "jax-barrier-timeout"]
    for event in events:
        named = _BARRIER.search(event.text)
        if named is not None and not _FIRST_MEETING.search(named[1]):
            event.role, event.cls, event.weight = "symptom", "unknown", 0.2
    came = next((one for event in job.parsed.events if (one := event.data.get("came")) is not None), None)
    if isinstance(came, int) and came > 1:
        for event in events:
            if event.cls != "unknown":
                event.role, event.cls, event.weight = "symptom", "platform/node-lost", 0.3
