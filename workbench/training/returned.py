"""Turn the fleet's ledger and the journal of remediation into the nodes that were given back to work, and when."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["returned"]

_SECONDS = 10.0  # then it is given up: a node more or less is not worth a job that waits


def returned(
    nodes: Sequence[str], ledger: str | Path | None, journal: str | Path | None = None, *, seconds: float = _SECONDS
) -> tuple[dict[str, float], list[str]]:
    """
    Return when nodes were last given back to work.

    A node is back when its last state in the ledger is ``usable``, from the begin of that state; or when an ``uncordon`` of the remediation
    was done and no later action keeps it from work, from the end of that.

    Parameters
    ----------
    nodes : sequence of str
        Those to ask for; without any nothing is read.
    ledger : path or None
        The fleet's ledger; one that is not there yet tells nothing.
    journal : path, optional
        That of remediation; default the setting ``remediation.journal``.
    seconds : float
        Deadline for all of it.

    Returns
    -------
    tuple of (dict, list of str)
        Node → seconds since the epoch; and what could not be asked. A node of which nobody could tell stays out.
    """
    if not nodes:
        return {}, []
    found: dict[str, float] = {}
    troubles = [f"whether nodes came back could not be read within {seconds:.0f} s: they stay out"]
    thread = threading.Thread(target=_ask, args=(nodes, ledger, journal, found, troubles), name="workbench-returned", daemon=True)
    thread.start()
    thread.join(seconds)
    return dict(found), list(troubles)


def _ask(
    nodes: Sequence[str], ledger: str | Path | None, journal: str | Path | None, found: dict[str, float], troubles: list[str]
) -> None:
    told: list[str] = []
    for what, ask in (("the fleet's ledger", _of_ledger), ("the journal of remediation", _of_journal)):
        try:
            for node, when in ask(nodes, ledger if ask is _of_ledger else journal).items():
                found[node] = max(when, found.get(node, when))
        except Exception as error:
            told.append(f"{what} does not say which nodes came back ({type(error).__name__}: {error}): they stay out")
    troubles[:] = told


def _of_ledger(nodes: Sequence[str], path: str | Path | None) -> dict[str, float]:
    from workbench.fleet.ledger import Ledger

    if path is None or not Path(path).expanduser().exists():
        return {}
    marks = ",".join("?" * len(nodes))
    states = f"SELECT node, state, begin FROM node_states WHERE node IN ({marks}) ORDER BY begin"
    with Ledger.open(path, "ro") as ledger:
        last = {str(node): (state, float(begin)) for node, state, begin in ledger.select(states, nodes)}
    return {node: begin for node, (state, begin) in last.items() if state == "usable"}


def _of_journal(nodes: Sequence[str], path: str | Path | None) -> dict[str, float]:
    from workbench.fleet.ingest.lines import of_journal

    if path is None:
        from workbench.config import load_config

        path = load_config()["remediation.journal"]
    file = Path(str(path)).expanduser()
    if not file.exists():
        return {}
    rows = of_journal(file.read_bytes(), file=str(file)).rows.get("actions", ())
    last: dict[str, tuple[float, str]] = {}
    for row in rows:
        node, end = str(row["node"]), row["end"]
        if node in nodes and row["outcome"] == "done" and end is not None and row["rung"] in ("uncordon", "cordon", "drain"):
            last[node] = max(last.get(node, (0.0, "")), (float(end), str(row["rung"])))
    return {node: end for node, (end, rung) in last.items() if rung == "uncordon"}
