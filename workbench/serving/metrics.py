"""Turn the state of the dashboard's process into Prometheus's text form; it names no job, user or node."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from workbench import __version__
from workbench.inbox.model import STATES
from workbench.serving.site import Site

__all__ = ["exposition", "resident"]


def resident() -> int:
    """Return the bytes of memory that the process holds; 0 when the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        try:
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        except (ImportError, OSError):
            return 0


def exposition(site: Site, *, sessions: Mapping[str, int], lag: float | None = None, now: float | None = None) -> str:
    """
    Return the page of ``/metrics``.

    Parameters
    ----------
    site : Site
    sessions : mapping
        Page → open sessions.
    lag : float, optional
        Seconds by which the event loop ran behind when it was last looked at.
    now : float, optional
        Seconds since the epoch.
    """
    now = time.time() if now is None else now
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: list[tuple[str, float | int | None]]) -> None:
        there = [(labels, value) for labels, value in samples if value is not None]
        if there:
            lines.append(f"# HELP workbench_{name} {text}")
            lines.append(f"# TYPE workbench_{name} {kind}")
            lines.extend(f"workbench_{name}{labels} {value:.15g}" for labels, value in there)

    rows = site.board.rows
    states = Counter(entry.state for entry in rows.entries)
    family("build_info", "gauge", "The version that runs.", [(f'{{version="{__version__}"}}', 1)])
    family("start_time_seconds", "gauge", "When the dashboard was started.", [("", site.started)])
    family("resident_memory_bytes", "gauge", "Memory that the process holds.", [("", resident() or None)])
    family(
        "sessions", "gauge", "Open sessions by page.", [(f'{{page="{page}"}}', count) for page, count in sorted(sessions.items())]
    )
    family("loop_lag_seconds", "gauge", "By how much the event loop ran behind.", [("", lag)])
    family("case_files_held", "gauge", "Case files in memory.", [("", site.count_held())])
    family(
        "incidents", "gauge", "Incidents of the inbox by state.", [(f'{{state="{state}"}}', states[state]) for state in STATES]
    )
    family("inbox_damaged", "gauge", "Entries of the inbox that cannot be read.", [("", len(rows.problems))])
    family(
        "inbox_age_seconds",
        "gauge",
        "Since when the inbox has not been read.",
        [("", None if rows.time is None else now - rows.time)],
    )
    if site.poller is not None:
        snapshot: Any = site.poller.snapshot
        family("poll_age_seconds", "gauge", "Age of the fleet's snapshot.", [("", now - snapshot.time)])
        family("poll_period_seconds", "gauge", "Seconds between two polls.", [("", snapshot.period)])
        family(
            "poll_failures",
            "gauge",
            "Polls that failed since the last that did not.",
            [("", getattr(site.poller, "failures", None))],
        )
        family("poll_duration_seconds", "gauge", "What the last poll took.", [("", getattr(site.poller, "seconds", None))])
        family(
            "source_ok",
            "gauge",
            "Whether a source answered the last poll whole.",
            [(f'{{source="{_label(one.source)}"}}', int(one.status == "ok")) for one in snapshot.heard],
        )
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", " ")
