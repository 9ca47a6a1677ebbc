"""Turn what happened into a process exit code: the one table that help, documents and code share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "CONFIG",
    "DATA",
    "EXITS",
    "INCOMPLETE",
    "INTERNAL",
    "INTERRUPTED",
    "OK",
    "UNAVAILABLE",
    "USAGE",
    "incomplete",
    "table",
    "worst",
]

OK, INCOMPLETE, USAGE, DATA, UNAVAILABLE, INTERNAL, CONFIG, INTERRUPTED = 0, 3, 64, 65, 69, 70, 78, 130

# 64 to 78 are the numbers of BSD's sysexits.h; 3 is Nagios's UNKNOWN; 130 is what shells report for SIGINT
EXITS: dict[int, str] = {
    OK: "done; a verdict was given (also `unknown` and `none`)",
    INCOMPLETE: "a verdict was given, but some evidence could not be read, or none of it",
    USAGE: "the command line is wrong",
    DATA: "what was given is not what it should be (a word the catalog does not know, a file that is no report)",
    UNAVAILABLE: "a path or source is not there or may not be read",
    INTERNAL: "a defect of the workbench; run again with --debug and report it",
    CONFIG: "a setting or a catalog row is wrong",
    INTERRUPTED: "stopped with Ctrl-C",
}

_BY_WEIGHT = (INTERRUPTED, INTERNAL, CONFIG, USAGE, UNAVAILABLE, DATA, INCOMPLETE, OK)


def worst(codes: Iterable[int]) -> int:
    """Return the code that says most about what went wrong, for a run over several paths."""
    seen = set(codes)
    for code in _BY_WEIGHT:
        if code in seen:
            return code
    return max(seen, default=OK)


def incomplete(verdict: dict[str, Any]) -> bool:
    """Tell whether a verdict was given without some source that was asked, or without any."""
    statuses = [row["status"] for row in verdict["coverage"]]
    return "failed" in statuses or (bool(statuses) and all(status == "missing" for status in statuses))


# of commands whose first codes are those of Nagios, since schedulers and monitors read them: a verdict on a node, not on a run
OWN: dict[str, dict[int, str]] = {
    "check": {
        0: "the node is fit",
        1: "it is fit, with warnings",
        2: "it is not fit",
        3: "something required could not be checked: not fit",
    },
    "plan": {0: "the plan was made; nothing was done", 3: "it was made, and the fleet could not be seen whole"},
    "apply": {
        0: "all of it is done",
        3: "a part was refused or is still open; it says which and why",
        69: "a step failed, expired, or nobody knows how it ended; or the cluster cannot be reached",
    },
    "undo": {
        0: "all of it is taken back",
        3: "a part was changed by somebody since, and stays",
        69: "a step failed, or nobody knows",
    },
    "journal": {0: "shown or written", 3: "lines of it are damaged or missing"},
    "checkpoints": {
        0: "there is one that can be restored",
        2: "there is none",
        3: "there is none among what could be looked at, and something could not",
    },
    "serve": {
        0: "it was asked to stop (SIGTERM, Ctrl-C)",
        69: "the address is taken, a folder is not there, or the extra `ui` is not installed",
    },
    "watch": {
        0: "one look is done, and all that was due is collected and told; or it was asked to stop",
        3: "a scheduler could not be seen whole, a collection failed, or somebody could not be told; all of it is tried again",
    },
    "run": {
        0: "the command ended well, at the first attempt or a later one; --show: shown",
        75: "another `workbench run` works in that folder",
        126: "the command cannot be run",
        127: "there is no such command",
        128: "128 and the number of the signal that ended the command; any other code is the command's own",
    },
    "inbox": {0: "shown or changed", 3: "entries are damaged; the others are shown"},
    "gameday": {0: "all was right", 3: "a cause, node, advice or plan was wrong; it says which"},
    "fleet": {0: "shown or written", 3: "a part of what was given could not be used; the rest was"},
    "loop": {0: "one turn is done, or it was asked to stop", 3: "the fleet could not be seen whole, or something was refused"},
}


def table(command: str = "") -> str:
    """Return the table of a command as text, for `--help`."""
    rows = sorted((EXITS | OWN.get(command, {})).items())
    return "exit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in rows)
