"""Turn Ctrl-C and SIGTERM into an event: what is on its way is finished, nothing more is begun, and a second one ends at once."""

from __future__ import annotations

import signal
import threading

from workbench.cli.entry import complain

__all__ = ["stopping"]


def stopping(hint: str = "what is open is settled by the next workbench apply") -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set; `hint` says who goes on with what is open then."""
    stop = threading.Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        complain("stopping: nothing more is begun; once more ends at once", hint=hint)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    return stop
