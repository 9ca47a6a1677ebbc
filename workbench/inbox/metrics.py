"""Turn how the watch goes into Prometheus's text format: looks, failures, collections, messages, what waits, what could not be done."""

from __future__ import annotations

import time
from collections import Counter

from workbench.exposition import exposition
from workbench.inbox.model import STATES
from workbench.inbox.storms import stage_of
from workbench.inbox.watch import Watch

__all__ = ["watch_metrics"]


def watch_metrics(watch: Watch, now: float | None = None) -> str:
    """
    Return the metrics ``workbench_watch_…``.

    Parameters
    ----------
    watch : Watch
    now : float, optional
        Seconds since the epoch.
    """
    now, last = time.time() if now is None else now, watch.last
    entries = watch.inbox.entries()
    stages = Counter(stage_of(entry) for entry in entries)
    states = Counter(entry.state for entry in entries)
    rows: list[tuple[str, str, str, float | int | None]] = [
        ("looks_total", "counter", "", watch.rounds),
        ("last_look_age_seconds", "gauge", "", now - last.ended if last else None),
        ("last_look_seconds", "gauge", "", last.ended - last.began if last else None),
        ("problems", "gauge", "", len(last.problems) + len(watch.problems) if last else None),
        *(("failures_total", "counter", f'{{source="{_plain(name)}"}}', count) for name, count in sorted(watch.seen.items())),
        *(("collections_total", "counter", f'{{outcome="{name}"}}', watch.collected[name]) for name in ("ok", "partial", "failed", "lost")),
        ("collections_running", "gauge", "", watch.running),
        ("collections_waiting", "gauge", "", stages["queued"] - watch.running),
        ("verdict_seconds_sum", "counter", "", watch.seconds),
        ("verdict_seconds_count", "counter", "", watch.verdicts),
        *(
            ("messages_total", "counter", f'{{way="{_plain(way)}",outcome="{outcome}"}}', count)
            for (way, outcome), count in sorted(watch.teller.told.items())
        ),
        ("untold", "gauge", "", sum(bool(watch.teller.untold(entry)) for entry in entries)),
        *(("entries", "gauge", f'{{state="{state}"}}', states[state]) for state in STATES),
        ("entries_damaged", "gauge", "", len(watch.inbox.problems)),
    ]  # fmt: skip
    for one in watch.followers if last else ():
        whole = int(not any(problem.startswith(f"{one.name}: ") for problem in (last.problems if last else ())))
        rows.append(("seen_whole", "gauge", f'{{scheduler="{_plain(one.name)}"}}', whole))
    return exposition("workbench_watch_", rows)


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in "-_./")
