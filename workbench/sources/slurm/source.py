"""Turn a job's number or name into what Slurm knows of it: nodes and times, and its own output as files of an incident folder."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from workbench.errors import SourceError, SourceUnavailable
from workbench.parse.ids import same_node
from workbench.parse.nodeset import fold
from workbench.sources.command import Ran, run
from workbench.sources.contract import Answer, Deadline, Folder, FolderFull, Reach, Scope, SourceTimeout
from workbench.sources.slurm.jobs import (
    FIELDS,
    SEPARATOR,
    Allocation,
    chosen,
    from_json,
    from_scontrol,
    from_table,
    is_number,
    parts,
)
from workbench.sources.slurm.logs import DEFAULT, collect_logs, directives, log_paths, submitted

__all__ = ["FORMS", "Slurm"]

FORMS = ("auto", "text", "json")
# Evidence of a failure stands a little before a job starts (its prolog) and after it ends (the kernel's last lines).
MARGIN = 120.0
# From this major release on, numbers and exit codes of --json are right; 22.05 calls every code SUCCESS.
_JSON_FROM = 23
# sacct and sacctmgr where AccountingStorageType names no slurmdbd
_NO_ACCOUNTS = re.compile(rb"accounting storage is disabled|not running a supported accounting_storage plugin")
_EVENT = "NodeName,TimeStart,TimeEnd,State,Reason,User"
# NodeName=g1152 Arch=x86_64 … NodeAddr=10.0.3.7 NodeHostName=g1152 …
_ADDRESS = re.compile(r"(?m)^NodeName=(\S+).*?\sNodeAddr=(\S+)")
_PLACES = 30_000  # characters of a node list in one command line
# what triage uses, and a person beside it; releases know different ones, so sacct is asked which it has
_ACCOUNT = (
    "JobID", "JobName", "User", "UID", "Account", "Partition", "QOS", "State", "ExitCode", "DerivedExitCode", "Restarts", "FailedNode",
    "Submit", "Eligible", "Start", "End", "Elapsed", "Timelimit", "Suspended", "NNodes", "NTasks", "AllocTRES", "ReqMem", "MaxRSS",
    "MaxRSSNode", "MaxRSSTask", "Flags", "Reason", "Reservation", "Priority", "JobIDRaw", "NodeList", "WorkDir", "Comment",
    "AdminComment", "SystemComment",
)  # fmt: skip


class Slurm:
    """
    A Slurm cluster, asked through its own commands.

    Parameters
    ----------
    prefix : sequence of str
        Put in front of every command, as an argument list: ``("ssh", "login-1")``.
    form : str
        ``text``, ``json``, or ``auto``: JSON to locate a job where the release's JSON can be trusted, text for the folder, since its
        lines can be pointed at. ``json`` writes ``slurm/sacct.json`` in place of the text.
    env : mapping, optional
        Added to the commands' environment, e.g. ``SLURM_CONF``.
    """

    name = "slurm"

    def __init__(self, prefix: Sequence[str] = (), *, form: str = "auto", env: Mapping[str, str] | None = None) -> None:
        if form not in FORMS:
            raise ValueError(f"{form!r} is no form: {', '.join(FORMS)}")
        self.prefix = tuple(prefix)
        self.form = form
        # Slurm's commands print local times without a zone; in UTC they need none
        self.env = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"} | dict(env or {})
        self._version = ""
        self._fields: frozenset[str] = frozenset()

    # ---- what all of it is made of

    def ask(self, *argv: str, deadline: Deadline, expect: Callable[[bytes], bool] | None = None, most: float = 20.0) -> Ran:
        """Run one of Slurm's commands; raises `SourceTimeout` only when there is no time left to begin."""
        return run(argv, seconds=deadline.left(most), prefix=self.prefix, env=self.env, expect=expect)

    def version(self, deadline: Deadline) -> str:
        """Return the release of the commands, e.g. ``22.05.8``; raises `SourceUnavailable` when there are none."""
        if not self._version:
            ran = self.ask("sacct", "--version", deadline=deadline)
            found = re.search(r"\b(\d{2}\.\d{2}(?:\.\d+)?)\b", ran.text)
            if not ran.ok or not found:
                raise _error(ran, "sacct --version")
            self._version = found[1]
        return self._version

    def fields(self, deadline: Deadline) -> frozenset[str]:
        """Return the fields that this release's sacct can print; empty when it does not tell, `SourceTimeout` when it hangs."""
        if not self._fields:
            ran = self.ask("sacct", "--helpformat", deadline=deadline)
            if ran.ending == "time-out":  # it connects to slurmdbd for that, too
                raise _error(ran, "sacct --helpformat")
            known = frozenset(ran.text.split()) if ran.ok else frozenset()
            self._fields = known if "JobID" in known else frozenset()
        return self._fields

    def _has(self, names: Sequence[str], deadline: Deadline) -> list[str]:
        known = self.fields(deadline)
        return [name for name in names if not known or name in known]

    def _selection(self, scope: Scope, by_name: bool) -> list[str]:
        """The options of sacct that select a job; a name with a comma would be two names, so it is looked for among all."""
        # tries are counted from the first, which may be before the window
        since = 0.0 if scope.attempt is not None and not by_name else scope.since
        window = [f"--starttime={_stamp(since)}", f"--endtime={_stamp(scope.until + 1)}"]
        if not by_name:
            return [f"--jobs={parts(scope.job)[0].split('_[')[0]}", *window]
        return window if "," in scope.job else [f"--name={scope.job}", *window]

    # ---- locate

    def allocations(self, scope: Scope, deadline: Deadline) -> tuple[list[Allocation], list[Allocation]]:
        """
        Return the allocations of the job that is meant, and the newest of each other job of that name in the window.

        Raises
        ------
        SourceError
            Slurm did not answer; `SourceUnavailable` when it is not there, `SourceTimeout` when it was too slow.
        """
        for by_name in (False, True) if is_number(scope.job) else (True,):  # a name may look like a number
            rows: list[Allocation] = []
            error: SourceError | None = None
            try:
                # a third of the time is slurmctld's, should slurmdbd hang
                rows = self._accounts(scope, Deadline(deadline.left(30.0) * 2 / 3), by_name)
            except SourceUnavailable:
                raise
            except SourceError as failure:  # slurmdbd is down or too slow: what runs or ended just now, slurmctld knows as well
                error = failure
                with suppress(SourceError):
                    rows = self._remembered(scope, deadline, by_name)
            taken, others = chosen(rows, scope.job, scope.since, scope.until, scope.attempt, by_name=by_name)
            if taken:
                return taken, others
            if error is not None:
                raise error
        return [], []

    def ended(self, since: float, until: float, deadline: Deadline) -> list[Allocation]:
        """Return the allocations of all jobs that ended, ran or waited in a window; raises as `allocations` does."""
        everything = Scope(",", since, until)  # no job has that name, so sacct is asked for the window alone
        try:
            return self._accounts(everything, Deadline(deadline.left(30.0) * 2 / 3), True)
        except SourceError:
            with suppress(SourceError):
                return self._remembered(everything, deadline, True)
            raise

    def _accounts(self, scope: Scope, deadline: Deadline, by_name: bool) -> list[Allocation]:
        select = ["--allocations", "--duplicates", "--allusers", *self._selection(scope, by_name)]
        try:
            version = self.version(deadline)
        except SourceUnavailable:
            return self._remembered(scope, deadline, by_name)
        if self.form == "json" or (self.form == "auto" and int(version.split(".")[0]) >= _JSON_FROM):
            ran = self.ask("sacct", "--json", *select, deadline=deadline, expect=_is_json)
            if ran.ok:
                return from_json(json.loads(ran.out))
            if ran.ending == "time-out":
                raise _error(ran, "sacct --json")
        fields = self._has(FIELDS, deadline)
        ran = self.ask(
            "sacct", "--parsable2", "--noheader", f"--delimiter={SEPARATOR}", f"--format={','.join(fields)}", *select,
            deadline=deadline, expect=lambda out: not out.strip() or SEPARATOR.encode() in out,
        )  # fmt: skip
        if ran.ok:
            return from_table(ran.text, fields)
        if ran.ending == "exit" and _NO_ACCOUNTS.search(ran.err + ran.out):
            return self._remembered(scope, deadline, by_name)
        raise _error(ran, "sacct")

    def _remembered(self, scope: Scope, deadline: Deadline, by_name: bool) -> list[Allocation]:
        """What slurmctld still has in memory (MinJobAge, 5 minutes by default), where nothing keeps accounts."""
        ran = self.ask(
            "scontrol",
            "show",
            "job",
            "--oneliner",
            "--all",
            *([] if by_name else [parts(scope.job)[1]]),
            deadline=deadline,
        )
        if ran.ok:
            return from_scontrol(ran.text)
        if b"Invalid job id" in ran.err:
            return []
        raise _error(ran, "scontrol show job")

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        """Return the scope with the job's nodes and times; None when Slurm has no such job in the window."""
        taken, _ = self.allocations(scope, deadline)
        if not taken:
            return None
        nodes = dict.fromkeys((*scope.nodes, *(node for row in taken for node in row.nodes)))
        starts = [row.start or row.submit for row in taken if row.start or row.submit]
        since = max(scope.since, min(start for start in starts if start) - MARGIN) if starts else scope.since
        ends = [row.end for row in taken]
        # a try without an end runs or waits
        until = scope.until if None in ends else min(scope.until, max(end for end in ends if end is not None) + MARGIN)
        told = [log_paths(row) for row in taken]
        paths = [path for found, known in told if known != DEFAULT for path in found]
        names = dict.fromkeys(
            name for row in taken for name in (row.group, row.id, row.raw, row.name) if name and "[" not in name
        )
        return replace(
            scope, since=since, until=max(since, until), nodes=tuple(nodes),
            names=tuple(sorted(name for name in names if name != scope.job)), user=taken[-1].user,
            paths=tuple(dict.fromkeys(paths)), addresses=self._addresses(tuple(nodes), deadline),
        )  # fmt: skip

    def _addresses(self, nodes: Sequence[str], deadline: Deadline) -> tuple[tuple[str, str], ...]:
        """Return address → node where Slurm knows a node by another: for those who know the address only."""
        found: dict[tuple[str, str], None] = {}
        with suppress(SourceError):  # a help to others; what slurmctld says of the nodes is collected and told of by itself
            for place in _chunks(nodes):
                ran = self.ask("scontrol", "show", "node", "--oneliner", place, deadline=deadline, most=5.0)
                if not ran.ok:
                    break
                for name, address in _ADDRESS.findall(ran.text):
                    if not same_node(name, address):
                        found[address, name] = None
        return tuple(found)

    # ---- collect

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """
        Write accounting, job, nodes and node states as Slurm prints them, and the job's output files where they can be read.

        Files are ``slurm/sacct.txt`` (or ``.json``), ``slurm/scontrol-job.txt``, ``slurm/scontrol-node.txt``, ``slurm/sinfo.txt``,
        ``slurm/node-events.txt`` and ``logs/…``; times in them are UTC.
        """
        begun = time.monotonic()
        try:
            taken, others = self.allocations(scope, deadline)
        except SourceError as error:
            return [
                Answer(
                    "slurm",
                    "failed",
                    f"job {scope.job!r}: {error}",
                    error.hint,
                    f"job {scope.job}",
                    "",
                    0,
                    time.monotonic() - begun,
                )
            ]
        if not taken:
            return [_nothing(scope, time.monotonic() - begun)]
        answers = [_which(scope, taken, others, time.monotonic() - begun)]
        nodes = tuple(dict.fromkeys(node for row in taken for node in row.nodes)) or scope.nodes

        def job_and_logs() -> list[Answer]:
            job = guarded(lambda: [self._job(taken, folder, deadline)])
            rows = self._with_paths(taken, folder, deadline)
            return [*job, *collect_logs(rows, folder, deadline, away=" ".join(self.prefix[1:]))]

        def guarded(step: Callable[[], list[Answer]]) -> list[Answer]:
            try:
                return step()
            except SourceTimeout as error:
                return [Answer("slurm", "failed", f"not all was asked: {error}", error.hint)]
            except (FolderFull, OSError) as error:
                return [Answer("slurm", "failed", f"not written: {error}", getattr(error, "hint", ""))]

        steps: list[Callable[[], list[Answer]]] = [
            lambda: [self._account(taken, scope, folder, deadline)],
            job_and_logs,
            lambda: self._nodes(nodes, taken, folder, deadline),
            lambda: self._states(nodes, taken, folder, deadline),
            lambda: self._troubles(nodes, scope, folder, deadline),
        ]
        # side by side: a controller that hangs costs its time once, and slurmdbd may be well
        with ThreadPoolExecutor(len(steps), "workbench-slurm") as pool:
            for future in [pool.submit(guarded, step) for step in steps]:
                answers += future.result()
        return answers

    def _written(self, ran: Ran, what: str, name: str, folder: Folder, empty: Callable[[bytes], bool]) -> Answer:
        """Write what a command printed; what came before it failed is kept, too."""
        useful = ran.ending in ("ok", "time-out", "too-much", "exit") and not empty(ran.out)
        if useful:
            folder.write(name, ran.out)
        rows = ran.out.count(b"\n")
        if ran.ok and useful:
            return Answer("slurm", "ok", f"{what}: {rows} lines", "", ran.asked, name, rows, ran.seconds)
        if ran.ok:
            return Answer("slurm", "missing", f"{what}: an empty answer", _PRIVATE, ran.asked, "", 0, ran.seconds)
        status = "partial" if useful else "failed"
        return Answer("slurm", status, f"{what} {ran.sentence}", _hint(ran), ran.asked, name if useful else "", rows, ran.seconds)

    def _account(self, taken: Sequence[Allocation], scope: Scope, folder: Folder, deadline: Deadline) -> Answer:
        as_json = self.form == "json"
        name = "slurm/sacct.json" if as_json else "slurm/sacct.txt"
        if folder.has(name):
            return Answer("slurm", "ok", "accounting was collected before", file=name)
        jobs = ",".join(dict.fromkeys(row.id if row.id.replace("_", "").isdigit() else row.group for row in taken))
        if len(jobs) > _PLACES:  # an array of thousands: all of it
            jobs = taken[0].group
        select = ["--duplicates", "--allusers", f"--jobs={jobs}"]
        times = [row.submit or row.start for row in taken if row.submit or row.start]
        select += [f"--starttime={_stamp(min(moment for moment in times if moment) - 1)}"] if times else []
        select += [f"--endtime={_stamp(max(scope.until, *(row.end or 0.0 for row in taken)) + MARGIN)}"]
        if as_json:
            ran = self.ask("sacct", "--json", *select, deadline=deadline, expect=_is_json)
            return self._written(ran, "accounting", name, folder, lambda out: b'"job_id"' not in out)
        fields = self._has(_ACCOUNT, deadline)
        ran = self.ask("sacct", "--parsable2", f"--format={','.join(fields)}", *select, deadline=deadline)
        return self._written(ran, "accounting", name, folder, lambda out: out.count(b"\n") < 2 or b"|" not in out)

    def _job(self, taken: Sequence[Allocation], folder: Folder, deadline: Deadline) -> Answer:
        name = "slurm/scontrol-job.txt"
        if folder.has(name):
            return Answer("slurm", "ok", "the job was collected before", file=name)
        row = taken[0] if len({each.id for each in taken}) == 1 else None
        ran = self.ask(
            "scontrol", "--details", "show", "job", row.id if row else taken[0].group, deadline=deadline, most=deadline.left() / 2
        )
        if not ran.ok and b"Invalid job id" in ran.err:
            return Answer(
                "slurm", "stale", "slurmctld has forgotten the job, so its allocated GPUs and its reason are not known",
                "MinJobAge in slurm.conf says how long it remembers (seconds); sacct knows the rest", ran.asked, "", 0, ran.seconds,
            )  # fmt: skip
        return self._written(ran, "the job", name, folder, lambda out: b"JobId=" not in out)

    def _nodes(self, nodes: Sequence[str], taken: Sequence[Allocation], folder: Folder, deadline: Deadline) -> list[Answer]:
        if not nodes:
            detail = f"job {taken[-1].id} is {taken[-1].state} and has no nodes: the states of its partition are shown instead"
            return [Answer("slurm", "missing", detail, "its reason says what it waits for: slurm/scontrol-job.txt")]
        name = "slurm/scontrol-node.txt"
        if folder.has(name):
            return [Answer("slurm", "ok", "the nodes were collected before", file=name)]
        rans = [self.ask("scontrol", "show", "node", place, deadline=deadline) for place in _chunks(nodes)]
        return [self._written(_joined(rans), f"the nodes{_as_now(taken)}", name, folder, lambda out: b"NodeName=" not in out)]

    def _states(self, nodes: Sequence[str], taken: Sequence[Allocation], folder: Folder, deadline: Deadline) -> list[Answer]:
        name = "slurm/sinfo.txt"
        if folder.has(name):
            return [Answer("slurm", "ok", "the node states were collected before", file=name)]
        partition = taken[-1].partition
        argv = ["sinfo", "--Node", "--format=%N|%T|%E|%u|%H"]
        # --all shows hidden partitions, too; beside the name of one sinfo refuses it
        options = [["--all", f"--nodes={place}"] for place in _chunks(nodes)] or [
            [f"--partition={partition}"] if partition else ["--all"]
        ]
        rans = [self.ask(*argv, *option, deadline=deadline) for option in options]
        empty = lambda out: out.strip().count(b"\n") < 1  # noqa: E731  # its header alone
        return [self._written(_joined(rans, unique=True), f"the node states{_as_now(taken)}", name, folder, empty)]

    def _troubles(self, nodes: Sequence[str], scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """Write when and why nodes were down or drained: slurmctld knows that of now only, slurmdbd also of then."""
        name = "slurm/node-events.txt"
        if not nodes or folder.has(name):
            return [Answer("slurm", "ok", "the nodes' troubles were collected before", file=name)] if nodes else []
        words = ["sacctmgr", "--parsable2", "show", "event", f"format={_EVENT}"]
        window = [f"start={_stamp(scope.since)}", f"end={_stamp(scope.until)}"]
        rans = [self.ask(*words, f"nodes={place}", *window, deadline=deadline) for place in _chunks(nodes)]
        ran = _joined(rans, unique=True)
        if not ran.ok and _NO_ACCOUNTS.search(ran.err + ran.out):
            return []  # said already, where the job was looked for
        if ran.ok and ran.out.count(b"\n") == 1 and ran.out.startswith(b"NodeName|"):
            return [Answer("slurm", "ok", "no node of the job was down or drained then", asked=ran.asked, seconds=ran.seconds)]
        return [self._written(ran, "the nodes' troubles", name, folder, lambda out: b"\n" not in out.strip())]

    def _with_paths(self, taken: Sequence[Allocation], folder: Folder, deadline: Deadline) -> list[Allocation]:
        """Add the paths of the output files that scontrol or the batch script told, where sacct keeps none."""
        path = folder.root / "slurm" / "scontrol-job.txt"
        told = {row.raw: row for row in from_scontrol(path.read_text("utf-8", "replace"))} if path.is_file() else {}
        whole = []
        script: tuple[str, str] | None = None
        for row in taken:
            known = told.get(row.raw)
            if known and known.stdout and not row.stdout:
                row = replace(row, stdout=known.stdout, stderr=known.stderr, workdir=row.workdir or known.workdir)
            elif not row.stdout and row.workdir and not submitted(row.submit_line)[0]:
                if script is None:  # kept where AccountingStoreFlags has job_script; tasks and tries share it
                    ran = self.ask("sacct", "--batch-script", f"--jobs={row.raw}", deadline=deadline)
                    script = directives(ran.text) if ran.ok else ("", "")
                row = replace(row, stdout=script[0], stderr=script[1])
            whole.append(row if row.uid is not None or known is None else replace(row, uid=known.uid))
        # only the first component of a heterogeneous job has a batch script, whose output it is
        return [row for row in whole if row.start is not None and row.id.partition("+")[2] in ("", "0")]

    # ---- examine

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return what this cluster has, keeps and lets us see; each lack with the line of slurm.conf that would change it."""
        from workbench.sources.slurm.examine import examine

        return examine(self, deadline)


_PRIVATE = "PrivateData in slurm.conf may hide it: ask as an operator (sacctmgr modify user NAME set AdminLevel=Operator)"


def _as_now(taken: Sequence[Allocation]) -> str:
    """Slurm keeps no history of its nodes: say so when the job ended long ago."""
    ends = [row.end for row in taken]
    last = max((end for end in ends if end is not None), default=None)
    hours = (time.time() - last) / 3600 if last is not None and None not in ends else 0.0
    ago = f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
    return f" as they are now, {ago} after the job ended" if hours >= 1 else ""


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(max(0.0, min(moment, 4e9)), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _is_json(out: bytes) -> bool:
    try:
        return isinstance(json.loads(out), dict)
    except (ValueError, RecursionError):
        return False


def _hint(ran: Ran) -> str:
    if ran.ending == "missing":
        return "run it where Slurm's commands are, or say where: a prefix such as ssh login-1"
    if ran.ending == "unreachable":
        return "a key without passphrase or an agent is needed: nothing can be typed here"
    if b"onfiguration" in ran.err or b"slurm.conf" in ran.err or b"DNS SRV" in ran.err:
        return "SLURM_CONF must name the cluster's slurm.conf"
    if ran.ending == "time-out":
        return "is slurmctld or slurmdbd overloaded? scontrol ping and sdiag tell"
    return "scontrol ping and sacctmgr show cluster tell whether the daemons answer"


def _error(ran: Ran, what: str) -> SourceError:
    message = f"{what} {ran.sentence}"
    if ran.ending == "time-out":
        return SourceTimeout(message, hint=_hint(ran))
    if ran.ending in ("missing", "not-executable", "unreachable"):
        return SourceUnavailable(message, hint=_hint(ran))
    return SourceError(message, hint=_hint(ran))


def _joined(rans: Sequence[Ran], unique: bool = False) -> Ran:
    """Make one answer of several; the first that failed says how it ended."""
    failed = next((ran for ran in rans if not ran.ok), rans[0])
    out = b"".join(ran.out if ran.out.endswith(b"\n") or not ran.out else ran.out + b"\n" for ran in rans)
    if unique:  # a node of two partitions comes twice
        out = b"".join(dict.fromkeys(out.splitlines(keepends=True)))
    return replace(failed, out=out, seconds=sum(ran.seconds for ran in rans))


def _chunks(nodes: Sequence[str]) -> list[str]:
    """Fold node names into host lists that fit into a command line."""
    folded = fold(nodes)
    if len(folded) <= _PLACES:
        return [folded] if folded else []
    half = len(nodes) // 2
    return [*_chunks(nodes[:half]), *_chunks(nodes[half:])]


def _nothing(scope: Scope, seconds: float) -> Answer:
    window = f"{_stamp(scope.since)}Z to {_stamp(scope.until)}Z"
    which = f"start {scope.attempt} of job {scope.job!r}" if scope.attempt else f"job {scope.job!r}"
    return Answer(
        "slurm",
        "missing",
        f"no {which} between {window}",
        f"widen the window, or: {_PRIVATE}",
        f"job {scope.job}",
        "",
        0,
        seconds,
    )


def _which(scope: Scope, taken: Sequence[Allocation], others: Sequence[Allocation], seconds: float) -> Answer:
    """Say which job was taken, since names repeat."""
    last = taken[-1]
    tasks = len({row.id for row in taken})
    tries = len(taken) - tasks
    more = (f", {tasks} tasks or components" if tasks > 1 else "") + (f", {tries + 1} starts" if tries and tasks == 1 else "")
    nodes = dict.fromkeys(node for row in taken for node in row.nodes)
    place = fold(nodes)
    where = f" on {place if len(place) < 200 else f'{len(nodes)} nodes'}" if nodes else " without nodes"
    detail = f"job {last.group} ({last.name}), {last.state}{where}{more}"
    if others:
        named = ", ".join(row.group for row in others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        detail += f"; the newest of {len(others) + 1} jobs of this name, not {named}"
    hint = "ask for a job by its number to choose another" if others else ""
    return Answer("slurm", "ok", detail, hint, f"job {scope.job}", "", len(taken), seconds)
