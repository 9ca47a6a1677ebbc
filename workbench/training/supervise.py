"""
Turn a command into a job that outlives its failures: run it, and when it fails collect, triage, decide, and start it again or say who must act.

What is imported here is imported before the job starts; all that a failure needs comes when there is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.training.child import Child
from workbench.training.flight import flight_environment
from workbench.training.listening import Exit, Signals
from workbench.training.output import Record
from workbench.training.rundir import RunFolder, default_folder

if TYPE_CHECKING:
    from workbench.training.after import After
    from workbench.training.attempts import Attempt
    from workbench.training.policy import Policy
    from workbench.training.retry import Decision
    from workbench.training.together import Together
    from workbench.training.watching import Watching

__all__ = ["Outcome", "supervise"]


class Outcome:
    """
    How a run ended.

    Attributes
    ----------
    exit_code : int
        Of the last attempt, as a shell has it: 128 and the number for a signal.
    state : str
        ``completed``, ``failed``, ``cancelled`` or ``preempted``.
    folder : Path
        Where everything is kept.
    attempts : tuple of Attempt
    decisions : tuple of Decision
    summary : tuple of str
        Five lines for people; empty when the first attempt ended well.
    """

    __slots__ = ("attempts", "decisions", "exit_code", "folder", "state", "summary")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exit_code = 0
        self.state = "completed"
        self.attempts: tuple[Attempt, ...] = ()
        self.decisions: tuple[Decision, ...] = ()
        self.summary: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Outcome {self.state}, exit code {self.exit_code}: {self.folder}>"


def supervise(
    command: Sequence[str],
    *,
    policy: str | Path | Policy | None = None,
    run_dir: str | Path | None = None,
    checkpoints: Sequence[str | Path] = (),
    max_hang: float | None = None,
    spares: Sequence[str] = (),
    ledger: str | Path | Callable[[], str | Path | None] | None = None,
    storm: str | Path | None = None,
    grace: float = 30.0,
    keeps_allocation: bool = False,
    stacks: str = "auto",
    env: Mapping[str, str] | None = None,
    say: Callable[[str], object] | None = None,
    whole: bool = False,
    together: str | Path | None = None,
) -> Outcome:
    """
    Run a command until it ends well, or until starting it again would be wrong.

    Parameters
    ----------
    command : sequence of str
        Program and arguments: any launcher. ``{resume_from}``, ``{attempt}`` and ``{exclude}`` in it are filled in.
    policy : path or Policy, optional
        When to start again; default ``catalog/retry.toml``.
    run_dir : path, optional
        Where everything is kept; a folder of an earlier run goes on with its ledger. Default `workbench.training.rundir.default_folder`.
    checkpoints : sequence of path, optional
        Folders or files in which the newest checkpoint that can be restored is looked for. Without any the job finds its own.
    max_hang : float, optional
        Seconds without a step that are a hang; 0: never. Default: ten usual steps, at least 30 minutes.
    spares : sequence of str, optional
        Nodes that take the place of excluded ones where the command names its nodes.
    ledger : path or callable, optional
        The fleet's ledger, in which the attempts are written as well. A callable is asked for it once, after the first attempt has ended: what
        it reads does not delay the job.
    storm : path, optional
        File in which all jobs of the cluster count their restarts; default beside the run folder.
    grace : float, optional
        Seconds between SIGTERM and SIGKILL.
    keeps_allocation : bool, optional
        A SIGTERM to the job alone does not end the allocation: what was preempted starts again here.
    stacks : str, optional
        How the stacks of a hang are taken. ``py-spy``; ``signal``: each Python of the job dumps them when asked, for which a small hook is
        put on its path; ``auto``: py-spy where it is installed, else by signal; ``none``: the kernel's view alone.
    env : mapping, optional
        Environment of the job; default ours. The variables ``WORKBENCH_…`` are added.
    say : callable, optional
        Told what people should know; default one line on standard error.
    whole : bool, optional
        This process does nothing else (the command line).
    together : path, optional
        A folder that all nodes of the job share, where each of them runs a supervisor of its own: when one of them sees a hang all take the
        stacks of their ranks, and a node whose supervisor fell silent is known. The run's folder is then below it, by the node's name.

    Returns
    -------
    Outcome

    Raises
    ------
    RunBusy
        Another supervisor works in `run_dir`.
    ConfigError
        The policy is wrong: told before anything is started.
    ValueError
        The command is empty.
    """
    if not command:
        raise ValueError("the command is empty")
    if policy is not None and isinstance(policy, str | Path):
        from workbench.training.policy import load_policy

        policy = load_policy(policy)
    given = dict(os.environ if env is None else env)
    peers: Together | None = None
    if together is not None:
        from workbench.training.launchers import here
        from workbench.training.together import Together

        peers = Together(Path(together).resolve(), here(given))
        run_dir = run_dir if run_dir is not None else Path(together) / here(given)
    folder = RunFolder(Path(run_dir) if run_dir is not None else default_folder(given))
    status = 1
    try:
        with Signals() as signals:
            outcome = _Run(
                command,
                given,
                folder,
                signals,
                say or _say,
                {
                    "policy": policy,
                    "checkpoints": tuple(map(str, checkpoints)),
                    "spares": tuple(spares),
                    "ledger": ledger,
                    "storm": storm,
                    "keeps_allocation": keeps_allocation,
                    "together": peers,
                },
                max_hang=max_hang,
                grace=grace,
                stacks=stacks,
                whole=whole,
            ).run()
            status = outcome.exit_code
            return outcome
    finally:
        if peers is not None:
            peers.close(status)
        folder.close()


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"workbench run: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody listens
        pass


class _Run:
    """One call of `supervise`."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: RunFolder,
        signals: Signals,
        say: Callable[[str], object],
        after: Mapping[str, Any],
        *,
        max_hang: float | None,
        grace: float,
        stacks: str,
        whole: bool,
    ) -> None:
        self.command, self.env, self.folder, self.signals, self._say = list(command), env, folder, signals, say
        self.max_hang, self.grace, self.stacks, self.whole = max_hang, grace, stacks, whole
        self._options = dict(after)
        self._after: After | None = None
        self._together: Together | None = self._options["together"]
        self.outcome = Outcome(folder.path)
        self._told: set[str] = set()

    @property
    def after(self) -> After:
        """What a failure needs, made when there is one: it imports much."""
        if self._after is None:
            from workbench.training.after import After

            self._options["ledger"] = self._ledger()
            self._after = After(self.command, self.env, self.folder, self.signals, self._say, **self._options)
        return self._after

    def run(self) -> Outcome:
        if self.folder.trouble:
            self._say(f"{self.folder.trouble}; this run is kept in {self.folder.path}")
        numbers = self.folder.numbers()
        words: Sequence[str] = self.command
        resume: str | None = None
        exclude: Sequence[str] = ()
        number = (numbers[-1] if numbers else 0) + 1
        if numbers or self._restorable():
            if numbers:
                self._end_leftovers()
            words, resume, exclude = self.after.begin(numbers)
        elif any("{" in word for word in words):
            words, resume, exclude = self.after.begin(())
        while True:
            ended, watching, record = self._attempt(number, words, resume, exclude)
            self.outcome.exit_code = ended.status
            if ended.status == 0 and ended.why == "exit" and self._after is None and not self._ledger():
                self._kept(number, ended, watching, record, "completed")
                return self.outcome  # the usual case: nothing else is loaded
            state = self._kept(number, ended, watching, record, self._state(ended))
            try:
                following = self.after.next(number, ended, state, watching)
            except Exception as error:
                self._defect("what follows could not be decided, and nothing is started again", error)
                self.outcome.state = state
                return self.outcome
            if following is None:
                break
            words, resume, exclude = following
            number += 1
        self.outcome.state, self.outcome.attempts, self.outcome.decisions, self.outcome.summary = self.after.finish(ended.status)
        return self.outcome

    def _ledger(self) -> str | Path | None:
        """Return the fleet's ledger, asking whoever knows it the first time; settings that are wrong cost the job nothing."""
        ledger = self._options["ledger"]
        if callable(ledger):
            try:
                ledger = ledger()
            except Exception as error:
                self._say(f"nothing is written into the fleet's ledger: {error}")
                ledger = None
            self._options["ledger"] = ledger
        found: str | Path | None = ledger
        return found

    def _restorable(self) -> bool:
        """Whether there may be a checkpoint already: a first attempt asks no more than the folder's name."""
        return any(
            os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)) for path in self._options["checkpoints"]
        )

    def _end_leftovers(self) -> None:
        """A supervisor before us may have been killed with its guard: its job would write the same checkpoints as ours."""
        from workbench.training.lineage import end_all

        ended = end_all(self.folder.mark, 0, min(self.grace, 10.0))
        if ended.asked or ended.killed:
            self._say(f"{ended.asked + ended.killed} processes of an earlier attempt still ran and were ended")
        if ended.stuck:
            self._say(f"processes {', '.join(map(str, ended.stuck))} of an earlier attempt hang in the kernel")

    def _attempt(
        self, number: int, words: Sequence[str], resume: str | None, exclude: Sequence[str]
    ) -> tuple[Exit, Watching | None, Record]:
        folder = self.folder.attempt(number)
        record = Record(folder / "logs" / "launcher.log")
        child = Child(
            words,
            self._environment(number, folder, resume, exclude),
            record,
            self.folder.mark,
            grace=self.grace,
            whole=self.whole,
        )
        watching: Watching | None = None
        if self._together is not None:
            self._together.begin(number)
        try:
            if child.start():
                child.protect()
                self._begun(number, words, resume, exclude, child)
                from workbench.training.watching import Watching

                watching = Watching(
                    folder, child.pid, max_hang=self.max_hang, dumps=self._dumps, say=self._say, together=self._together
                )
                after = self.folder.path / f"attempt-{number}.ended.log"

                def tick(now: float) -> str | None:
                    try:
                        why = watching.tick(now)
                        child.helper = watching.looks.pid
                    except Exception as error:
                        self._defect("hangs are not watched for", error)
                        return None
                    if why:
                        record.turn(after)
                    return why

                def feed(data: bytes) -> None:
                    try:
                        watching.feed(data)
                    except Exception as error:
                        self._defect("a piece of output was not looked at", error)

                child.watch(self.signals, tick, feed)
            else:
                self._begun(number, words, resume, exclude, child)
                self._say(f"{words[0]}: {child.exit.trouble}")
        finally:
            record.close()
        if child.exit.stuck:
            self._say(f"processes {', '.join(map(str, child.exit.stuck))} hang in the kernel and are left behind")
        if record.trouble:
            self._say(f"of its output {record.lost} of {record.size} bytes are not kept: {record.trouble}")
        return child.exit, watching, record

    def _defect(self, what: str, error: Exception) -> None:
        """A defect of ours costs the job nothing; it is told once."""
        if what not in self._told:
            self._told.add(what)
            self._say(f"{what}: {type(error).__name__}: {error}; this is a defect of the workbench, please report it")

    def _environment(self, number: int, folder: Path, resume: str | None, exclude: Sequence[str]) -> dict[str, str]:
        out = dict(self.env)
        for name in ("WORKBENCH_RESUME_FROM", "WORKBENCH_EXCLUDE_NODES"):
            out.pop(name, None)
        out["WORKBENCH_RUN"] = str(self.folder.path)
        out["WORKBENCH_ATTEMPT"] = str(number)
        out["WORKBENCH_PROGRESS"] = str(folder / "progress")
        if resume:
            out["WORKBENCH_RESUME_FROM"] = resume
        if exclude:
            out["WORKBENCH_EXCLUDE_NODES"] = ",".join(exclude)
        if self._after is not None:
            out |= self._after.variables
        # ranks keep their last collectives in memory, and dump them there when they time out or are asked
        flight = folder / "flight"
        out |= flight_environment(out, flight)
        self._dumps = None
        if self.stacks == "signal" or (self.stacks == "auto" and not _there("py-spy", out)):
            # that of `workbench.training.stacks.stacks_environment`, which would import much
            self._dumps = self.folder.path / f"dumps-{number}"
            hook = str(Path(__file__).with_name("dump_hook"))
            out["WORKBENCH_STACKS"] = str(self._dumps)
            out["PYTHONPATH"] = os.pathsep.join([hook, *filter(None, [out.get("PYTHONPATH")])])
        for place in (flight, self._dumps):
            try:
                if place is not None:
                    place.mkdir(exist_ok=True)
            except OSError:
                pass
        return out

    def _begun(self, number: int, words: Sequence[str], resume: str | None, exclude: Sequence[str], child: Child) -> None:
        """Write down that an attempt runs; the job has started already and does not wait for it."""
        names = [
            name for name in child.env if name.startswith(("WORKBENCH_", "TORCH_FR_", "TORCH_NCCL_DEBUG", "TORCHELASTIC_ERROR"))
        ]
        self._about = {
            "command": list(words),
            "given": self.command,
            "started": child.exit.started,
            "ended": None,
            "pid": child.pid,
            "resume_from": resume,
            "excluded": list(exclude),
            "env": {name: child.env[name] for name in sorted(names)},
        }
        self.folder.write(f"attempt-{number}.json", self._about)

    @staticmethod
    def _state(ended: Exit) -> str:
        if ended.why == "terminate":
            return "preempted"
        if ended.why == "interrupt" or (ended.status in (130,) and ended.why == "exit"):
            return "cancelled"
        return "completed" if ended.status == 0 and ended.why == "exit" else "failed"

    def _kept(self, number: int, ended: Exit, watching: Watching | None, record: Record, state: str) -> str:
        """Write down how an attempt ended."""
        self._about |= {
            "ended": ended.ended,
            "state": state,
            "why": ended.why,
            "code": ended.code,
            "signal": ended.signal,
            "signals": list(ended.warnings),
            "trouble": ended.trouble,
            "left_behind": {"asked": ended.asked, "killed": ended.killed, "stuck": list(ended.stuck)},
            "output": {"bytes": record.size, "lost": record.lost, "trouble": record.trouble},
            **(watching.done() if watching is not None else {}),
        }
        self.folder.write(f"attempt-{number}.json", self._about)
        return state

    _about: dict[str, Any] = {}
    _dumps: Path | None = None


def _there(program: str, env: Mapping[str, str]) -> bool:
    """Whether a program is beside this Python or on the path."""
    places = [os.path.dirname(sys.executable), *env.get("PATH", os.defpath).split(os.pathsep)]
    return any(os.access(os.path.join(place, program), os.X_OK) for place in places)


class _Callable(ModuleType):
    """`workbench.training.supervise` is a module and a call: whichever an import finds first, the call works."""

    def __call__(self, command: Sequence[str], **options: Any) -> Outcome:
        return supervise(command, **options)


sys.modules[__name__].__class__ = _Callable
