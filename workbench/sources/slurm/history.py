"""Turn a time into what Slurm tells of all jobs and nodes in it: the same tables that a person would save from its commands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from workbench.errors import SourceError
from workbench.model import Problem
from workbench.sources.command import Ran
from workbench.sources.contract import Deadline
from workbench.sources.slurm.source import Slurm

__all__ = ["history"]

# what the account reads of a job; a release that lacks one is asked without it. No column of the cluster: scontrol has none, and
# a node is not two
_FIELDS = (
    "JobID", "JobName", "User", "Account", "Partition", "State", "ExitCode", "Restarts", "Submit", "Start", "End", "AllocTRES",
    "FailedNode", "NodeList",
)  # fmt: skip
_EVENTS = "NodeName,TimeStart,TimeEnd,State,Reason,User"
_NO_ACCOUNTS = ("accounting storage is disabled", "not running a supported accounting_storage plugin")


def history(slurm: Slurm, since: float, until: float, deadline: Deadline) -> tuple[list[tuple[str, bytes]], list[Problem]]:
    """
    Return what was asked and what came: starts of jobs, troubles of nodes, and the nodes as they are now; and what could not be had.

    Parameters
    ----------
    slurm : Slurm
        The cluster.
    since, until : float
        Jobs that ran or waited in it, seconds since the epoch.
    deadline : Deadline
        For all of it.

    Returns
    -------
    tuple
        Command → its output, and problems; a command that failed is one of these, whatever it printed before.
    """
    given: list[tuple[str, bytes]] = []
    problems: list[Problem] = []
    window = (f"--starttime={_stamp(since)}", f"--endtime={_stamp(until + 1)}")
    try:
        known = slurm.fields(deadline)
    except SourceError:  # a sacct that hangs is told of below, by what it was wanted for
        known = frozenset()
    fields = [name for name in _FIELDS if not known or name in known]
    jobs = ("sacct", "--allocations", "--duplicates", "--allusers", "--parsable2", f"--format={','.join(fields)}", *window)
    ran = _ask(slurm, jobs, deadline, problems, quiet=_NO_ACCOUNTS)
    accounts = ran is None or ran.ok
    if ran is not None and ran.ok:
        given.append((ran.asked, ran.out))
    elif ran is not None:  # nobody keeps accounts: slurmctld knows what ran within MinJobAge
        text = "no accounts are kept here, so jobs are only those that slurmctld remembers (MinJobAge, 5 minutes by default)"
        problems.append(
            Problem(ran.asked, text, "AccountingStorageType=accounting_storage/slurmdbd in slurm.conf", None, "slurm", "partial")
        )
        now = _ask(slurm, ("scontrol", "show", "job", "--all"), deadline, problems)
        if now is not None and b"JobId=" in now.out:
            given.append((now.asked, now.out))
    if accounts:
        events = (
            "sacctmgr",
            "--parsable2",
            "show",
            "event",
            f"format={_EVENTS}",
            f"start={_stamp(since)}",
            f"end={_stamp(until)}",
        )
        ran = _ask(slurm, events, deadline, problems)
        if ran is not None and ran.out.count(b"\n") > 1:  # its header alone: no node was in trouble
            given.append((ran.asked, ran.out))
    ran = _ask(slurm, ("scontrol", "show", "node"), deadline, problems)
    if ran is not None:
        given.append((ran.asked, ran.out))
    return given, problems


def _ask(slurm: Slurm, argv: Sequence[str], deadline: Deadline, problems: list[Problem], quiet: Sequence[str] = ()) -> Ran | None:
    """Return what a command printed; None, and a problem, when it failed otherwise than in the words of `quiet`."""
    try:
        ran = slurm.ask(*argv, deadline=deadline, most=deadline.left())
    except SourceError as error:
        problems.append(Problem(" ".join(argv[:2]), str(error), error.hint, None, "slurm", "failed"))
        return None
    said = (ran.err + ran.out).decode("utf-8", "replace")
    if ran.ok or (ran.ending == "exit" and any(words in said for words in quiet)):
        return ran
    hint = "give it more time (--deadline 5m) or less to tell (--since 2d)" if ran.ending in ("time-out", "too-much") else ""
    hint = hint or "run it where Slurm's commands are, or set slurm.prefix; workbench doctor tells more"
    problems.append(Problem(ran.asked, f"{argv[0]} {ran.sentence}", hint, None, "slurm", "failed"))
    return None


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(max(0.0, min(moment, 4e9)), UTC).strftime("%Y-%m-%dT%H:%M:%S")
