"""
Turn what each process stood in (stack dumps) into the event that names the rank which stands elsewhere while others wait in a
collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from workbench.model import Event

__all__ = ["analyse_stacks"]

_NAMED = 8  # at most so many ranks are named one by one; more than that is not "one rank differs"
_SHOWN = 64  # at most so many peers are listed in an event

_CLASS_OF = {"stack-storage-wait": "platform/storage"}


def analyse_stacks(events: Sequence[Event]) -> list[Event]:
    """
    Find the rank that stands elsewhere while the others stand in a collective.

    Parameters
    ----------
    events : list of Event
        Events of `workbench.parse.stacks.parse_stacks` of one attempt.

    Returns
    -------
    list of Event
        `stack-odd-one-out`, one a rank that is not in a collective while at least one is: `text`, file and line of the
        innermost frame outside PyTorch and the standard library, of its data-loader process when the rank waits for that;
        `data` has kind, frame, in_collective.
    """
    mains: dict[Any, Event] = {}
    workers: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.source != "stacks" or not event.signature.startswith("stack-") or event.data.get("process_list"):
            continue
        key = event.rank if event.rank is not None else ("pid", event.pid, event.file)
        if event.data.get("worker") is not None:
            workers[key].append(event)
        else:
            mains[key] = event
    waiting = sorted(e.rank for e in mains.values() if e.signature == "stack-in-collective" and e.rank is not None)
    together = sum(1 for e in mains.values() if e.signature == "stack-in-collective")
    odd = {key: e for key, e in mains.items() if e.signature not in ("stack-in-collective", "stack-fatal-error")}
    if not odd or not together or len(odd) > _NAMED:
        return []
    out = []
    for key, main in odd.items():
        # What a rank that waits for its loader waits for is in the loader's process.
        chosen = next(iter(workers.get(key, [])), main) if main.signature == "stack-dataloader-wait" else main
        event = Event("stack-odd-one-out", "stacks", text=chosen.text, time=chosen.time, file=chosen.file, line=chosen.line)
        event.rank, event.local_rank, event.node, event.pid, event.attempt = (
            main.rank,
            main.local_rank,
            main.node,
            main.pid,
            main.attempt,
        )
        event.cls = _CLASS_OF.get(chosen.signature)
        event.weight = 0.9 if len(odd) == 1 and together > 1 else 0.75 if len(odd) == 1 else round(0.9 / len(odd), 3)
        event.data = {
            "kind": chosen.signature, "frame": chosen.data.get("frame"), "main_frame": main.data.get("frame"),
            "in_collective": waiting[:_SHOWN], "other_threads": chosen.data.get("other_threads", []),
        }  # fmt: skip
        if main.signature in ("stack-user-code",) and main.data.get("via") == "active":
            event.weight = min(event.weight, 0.5)  # it computes: it may only be slow
        out.append(event)
    return out
