"""
Turn the end of an attempt into what follows: its evidence, its verdict, a decision, and the next command; or five lines that say who must act.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.parse.launch_command import parse_command
from workbench.report.text import clean, iso
from workbench.training import judging
from workbench.training.account import Told, gpus_of, keep, rows, summary, write
from workbench.training.answers import answers
from workbench.training.attempts import Attempt, History, RunLedger, Storm
from workbench.training.exclusions import still_out
from workbench.training.launchers import Plan, here, least_nodes, next_command, nodes_of
from workbench.training.lines import Lines, LinesError
from workbench.training.listening import Exit, Signals
from workbench.training.policy import Policy, load_policy
from workbench.training.retry import Decision, attempt_of, decide
from workbench.training.returned import returned
from workbench.training.rundir import RunFolder
from workbench.training.together import Together
from workbench.training.visible import fewer, gpus_seen
from workbench.training.watching import Watching

__all__ = ["DECISION", "After", "decisions_of"]

DECISION = "workbench.decision/1"
_RANGE = re.compile(r"--nnodes[ =](\d+):(\d+)")
Following = tuple[Sequence[str], str | None, Sequence[str]]  # command, checkpoint, nodes left out


def decisions_of(folder: Path) -> list[dict[str, Any]]:
    """Return the decisions of a run as they were written down, with their ``attempt`` and ``time``."""
    return Lines(folder / "decisions.jsonl", DECISION).read()


class After:
    """
    What a supervisor knows of a run that has failed at least once, or goes on from an earlier one.

    Parameters are those of `workbench.training.supervise`.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: RunFolder,
        signals: Signals,
        say: Callable[[str], object],
        *,
        policy: Policy | None,
        checkpoints: Sequence[str],
        spares: Sequence[str],
        ledger: str | Path | None,
        storm: str | Path | None,
        keeps_allocation: bool,
        together: Together | None = None,
    ) -> None:
        self.command, self.env, self.folder, self.signals, self.say = list(command), env, folder, signals, say
        self.checkpoints, self.spares, self.ledger = checkpoints, spares, ledger
        self.keeps_allocation, self.together = keeps_allocation, together
        self.nodes = nodes_of(command, env)
        self.gpus: tuple[tuple[str, str], ...] = ()  # UUID and address of those of this node, where one of them may be left out
        self.variables: dict[str, str] = {}  # of the next attempt, beside those that every attempt has
        rules = policy or load_policy()
        if self.nodes and not rules.nodes_have:
            rules = replace(rules, nodes_have=len(self.nodes) + len(spares), nodes_min=max(rules.nodes_min, self._least()))
        alone = self.nodes == (here(env),)  # it starts its ranks on this node: then one GPU can be left out of it
        if rules.gpus_min and alone:
            seen = gpus_seen(env)
            if seen.trouble:
                say(f"no single GPU can be left out: {seen.trouble}")
            self.gpus = seen.gpus
            rules = replace(rules, gpus_have=len(seen.gpus))
        elif rules.gpus_min:
            rules = replace(rules, gpus_min=0)
        self.policy = rules
        self.job = env.get("SLURM_JOB_ID") or str(together.folder if together is not None else folder.path)
        self.storm = Storm(storm or folder.path.parent / "restarts.jsonl", rules.storm_window)
        self.attempts: list[Attempt] = []
        self.decisions: list[Decision] = []
        self.told: list[Told] = []
        self.notes: list[str] = []
        self.state = "running"
        self.world = _world(
            command
        )  # ranks of the present attempt, where its command says it: a checkpoint may be for so many only
        self._asked: set[str] = set()  # troubles of asking who came back, each told once
        self.excluded: tuple[str, ...] = ()  # nodes and GPUs that the present attempt is kept off

    def _least(self) -> int:
        return min(least_nodes(self.command, self.env), len(self.nodes))

    # Before ----------------------------------------------------------------------------------------------------------------

    def begin(self, numbers: Sequence[int]) -> Following:
        """Return how the first attempt of this call starts; after earlier ones it goes on where they ended."""
        exclude: tuple[str, ...] = ()
        if numbers:
            self.attempts = self._earlier(numbers)
            try:
                made = decisions_of(self.folder.path)
            except LinesError as error:
                self.say(str(error))
                made = []
            last = made[-1] if made else {}
            names = (*(last.get("exclude_nodes") or ()), *(last.get("exclude_gpus") or ()))
            history = History(tuple(self.attempts), 0, time.time(), self.job, self._returned(names))
            exclude, gpus = still_out(names, self.attempts, history, self.policy)
            self.excluded = (*exclude, *gpus)
        number = (numbers[-1] if numbers else 0) + 1
        if self.checkpoints and self.excluded:
            self.world = _world(self._plan(number, None, exclude, self.excluded).command)
        chosen = self._checkpoint()[0] if self.checkpoints else None
        if chosen is not None:
            self.say(f"begins from {chosen['path']}" + (f" (step {chosen['step']})" if chosen["step"] is not None else ""))
        plan = self._plan(number, chosen["path"] if chosen else None, exclude, self.excluded)
        if plan.unable:
            self.say(f"{plan.unable}; it is started there all the same, since you said so")
        return plan.command, chosen["path"] if chosen else None, exclude

    def _earlier(self, numbers: Sequence[int]) -> list[Attempt]:
        """Return the attempts of earlier calls; one whose supervisor was killed has no line in the ledger, but its own file."""
        ledger = RunLedger(self.folder.path / "attempts.jsonl")
        try:
            known = {one.number: one for one in ledger.attempts()}
            for problem in ledger.problems:
                self.say(problem)
        except LinesError as error:
            self.say(str(error))
            known = {}
        out = []
        for number in numbers:
            if number not in known:
                about = self.folder.read(f"attempt-{number}.json") or {}
                known[number] = Attempt(
                    number,
                    started=about.get("started"),
                    ended=about.get("ended"),
                    state=about.get("state") or "failed",
                    exit_code=about.get("code"),
                    step_first=about.get("first_step"),
                    step_last=about.get("last_step"),
                    excluded=tuple(about.get("excluded") or ()),
                    incident=str(self.folder.path / f"attempt-{number}"),
                    summary="" if about.get("state") else "whoever ran it ended before it did",
                )
            out.append(known[number])
        return out

    # After -----------------------------------------------------------------------------------------------------------------

    def next(self, number: int, ended: Exit, state: str, watching: Watching | None) -> Following | None:
        """Return how the next attempt starts, or None when there is none."""
        folder = self.folder.path / f"attempt-{number}"
        attempt = Attempt(
            number,
            started=ended.started,
            ended=ended.ended,
            state=state,
            exit_code=-ended.signal if ended.signal else ended.code,
            step_first=watching.first if watching else None,
            step_last=watching.last if watching else None,
            excluded=self.excluded,
            incident=str(folder),
        )
        told = Told(
            attempt,
            dict(watching.times) if watching else {},
            detected=ended.ended,
            nodes=tuple(node for node in self.nodes if node not in self.excluded),
            gpus=gpus_of(self.env, len(self.nodes)),
        )
        self.told.append(told)
        self.attempts.append(attempt)
        self.state = state
        if state in ("completed", "cancelled") or (state == "preempted" and not self.keeps_allocation):
            self._put(attempt)
            return None
        verdict = None
        if state == "failed":
            # steps were made that nobody has looked at yet
            if watching is not None and watching.looks.worth and (found := judging.slow(folder)) is not None:
                watching.looks.tell(found)
            verdict = self._verdict(number, ended, folder)
        chosen = None
        if self.checkpoints:
            chosen, trouble = self._checkpoint()
            if trouble:
                self.notes.append(trouble)
            attempt = replace(attempt, checkpoint_step=chosen["step"] if chosen else None)
            told.resumed = attempt.checkpoint_step
        attempt = attempt_of(verdict, attempt, self.policy) if state == "failed" else attempt
        told.attempt, told.diagnosed = attempt, time.time()
        self.attempts[-1] = attempt
        self._put(attempt)
        return self._decided(verdict, chosen)

    def _verdict(self, number: int, ended: Exit, folder: Path) -> dict[str, Any] | None:
        self.say(f"attempt {number} ended with {ended.status}{' (hang)' if ended.why == 'hang' else ''}: looking for the cause")
        about = self.folder.path / f"attempt-{number}.json"
        self._launch_record(folder, ended)
        if self.together is not None:
            self._supervisors(folder, self.together)
        answers = judging.gather(about)
        verdict, trouble = judging.judge(folder)
        kept = self.folder.read(about.name) or {}
        self.folder.write(about.name, {**kept, "evidence": answers, "triage": trouble or "ok"})
        if trouble:
            self.say(f"{trouble}: the cause is taken for unknown")
        else:
            self.folder.write(f"attempt-{number}.verdict.json", verdict)
        return verdict

    def _supervisors(self, folder: Path, together: Together) -> None:
        """Let triage know which of the job's nodes still give signs of life."""
        found = together.settled()
        rows = found["supervisors"]
        silent = [str(row["node"]) for row in rows if row["state"] == "silent"]
        if silent:
            self.say(f"no sign of life from the supervisor of {', '.join(silent)} in {found['waited']:.0f} s")
        if found["trouble"]:
            self.say(f"this node could give no sign of life: {found['trouble']}")
        try:
            (folder / "launch").mkdir(exist_ok=True)
            shown = {**found, "supervisors": [{**row, "last": iso(row["last"])} for row in rows]}
            (folder / "launch" / "supervisors.json").write_text(json.dumps(shown) + "\n", encoding="utf-8")
        except OSError:  # the disk is full
            pass

    def _launch_record(self, folder: Path, ended: Exit) -> None:
        """Let triage know what was started and how it ended, in the forms that it reads."""
        node = here(self.env)
        try:
            place = folder / "launch"
            place.mkdir(exist_ok=True)
            (place / "command.txt").write_text(
                f"{node}$ {clean(shlex.join(self.command))[:8000]}\n", encoding="utf-8", errors="replace"
            )
            agent = {
                "node": node,
                "exit_status": ended.code if ended.code is not None else ended.status,
                "started": iso(ended.started),
                "ended": iso(ended.ended),
                **({"signal": ended.signal} if ended.signal else {}),
            }
            if ended.why == "hang":
                spoke = answers(folder / "logs/launcher.log", folder.parent / f"{folder.name}.ended.log")
                (place / "answers.json").write_text(
                    json.dumps({"asked_to_end": True, "ended": iso(ended.ended), **spoke}) + "\n", encoding="utf-8"
                )
            if ended.why == "exit":  # else the signal that ended it was ours
                (place / "exit.json").write_text(json.dumps({"agents": [agent]}) + "\n", encoding="utf-8")
        except OSError:  # the disk is full: the log is there, and that is what counts
            pass

    def _checkpoint(self) -> tuple[dict[str, Any] | None, str]:
        found, trouble = judging.checkpoint(self.checkpoints, world_size=self.world)
        for one in found["passed"][:5]:
            self.say(f"checkpoint {one['path']} is passed over: {one['reason']}")
        if trouble:
            self.say(trouble)
        return found["chosen"], trouble

    def _resized(self, world: int | None) -> _Point | None:
        """Choose anew when the next attempt has another number of ranks: what this one saved may be for its own number only."""
        self.world = world
        chosen, trouble = self._checkpoint()
        if trouble:
            self.notes.append(trouble)
        if chosen is None:  # that there was one for another number of ranks stays known: nothing begins anew unasked
            self.told[-1].resumed = None
            return None
        self.attempts[-1] = replace(self.attempts[-1], checkpoint_step=chosen["step"])
        self.told[-1].attempt, self.told[-1].resumed = self.attempts[-1], chosen["step"]
        self._put(self.attempts[-1])
        return _Point(chosen)

    def _decided(self, verdict: Mapping[str, Any] | None, chosen: Mapping[str, Any] | None) -> Following | None:
        point = _Point(chosen) if chosen else None
        number = self.attempts[-1].number
        while True:
            now = time.time()
            try:
                others: int | None = self.storm.others(self.job, now)
            except LinesError as error:
                self.say(str(error))
                others = None
            back = self._returned(name for one in self.attempts for name in one.excluded)
            history = History(tuple(self.attempts), others, now, self.job, back)
            decision = decide(verdict, history, self.policy, checkpoint=point)
            plan = None
            if decision.action == "restart":
                plan = self._plan(number + 1, decision.resume_from, decision.exclude_nodes, decision.exclude_gpus)
                if self.checkpoints and not plan.unable and (world := _world(plan.command)) != self.world:
                    point = self._resized(world)
                    continue
                if plan.unable:
                    decision = replace(decision, action="stop", who="platform", reason=f"{decision.reason} But {plan.unable}.")
            self._note(number, now, decision)
            if decision.action == "stop":
                return None
            if plan is not None and decision.action == "restart":
                self._recorded()  # before the back-off: jobs that fail together must see each other
            if decision.delay >= 1:
                self.say(f"{decision.action} in {decision.delay:.0f} s: {decision.reason}")
            else:
                self.say(f"{decision.action}: {decision.reason}")
            if asked := self.signals.stop_asked(decision.delay):
                self.state = "preempted" if asked == "terminate" else "cancelled"
                self.notes.append("it was told to stop before the next attempt; with the same --run-dir it goes on from here")
                return None
            if plan is None:
                continue
            if plan.how:
                self.say(plan.how)
            self.excluded = decision.excluded
            return plan.command, decision.resume_from, decision.exclude_nodes

    def _returned(self, names: Iterable[str]) -> dict[str, float]:
        """Tell which of the nodes that were left out somebody gave back to work, as far as ledger and journal say; asked only for those."""
        found, troubles = returned(tuple(dict.fromkeys(names)), self.ledger)
        for trouble in troubles:
            if trouble not in self._asked:
                self._asked.add(trouble)
                self.say(trouble)
        return found

    def _recorded(self) -> None:
        try:
            self.storm.record(self.job, time.time())
        except LinesError as error:
            self.say(str(error))

    def _plan(self, number: int, resume: str | None, exclude: Sequence[str], gpus: Sequence[str]) -> Plan:
        plan = next_command(
            self.command,
            attempt=number,
            resume_from=resume,
            exclude=exclude,
            spares=self.spares,
            folder=self.folder.attempt(number),
            env=self.env,
        )
        plan.command, self.variables, how = fewer(plan.command, self.gpus, gpus)
        plan.how = "; ".join(part for part in (plan.how, how) if part)
        return plan

    def _put(self, attempt: Attempt) -> None:
        try:
            with RunLedger(self.folder.path / "attempts.jsonl") as ledger:
                ledger.put(attempt)
        except WorkbenchError as error:
            self.say(str(error))

    def _note(self, number: int, now: float, decision: Decision) -> None:
        self.decisions.append(decision)
        try:
            lines = Lines(self.folder.path / "decisions.jsonl", DECISION)
            lines.append({"attempt": number, "time": now, **decision.to_dict()})
            lines.close()
        except WorkbenchError as error:
            self.say(str(error))

    def finish(self, status: int) -> tuple[str, tuple[Attempt, ...], tuple[Decision, ...], tuple[str, ...]]:
        """Return state, attempts, decisions and the five lines, and tell the fleet's ledger."""
        if self.told:
            tables = rows(self.told, run=self.folder.path, env=self.env, name="", state=self.state)
            keep(self.folder, tables)
            if self.ledger and (trouble := write(self.ledger, tables)):
                self.say(f"not in the fleet's ledger {self.ledger}: {trouble}")
        lines: list[str] = []
        if self.told and (len(self.told) > 1 or self.state != "completed"):
            lines = summary(self.told, self.decisions, folder=self.folder.path, state=self.state, status=status, notes=self.notes)
        return self.state, tuple(self.attempts), tuple(self.decisions), tuple(lines)


class _Point:
    """A checkpoint as a decision wants it."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.path, self.step, self.state = row["path"], row["step"], "complete"


def _world(command: Sequence[str]) -> int | None:
    """Return the number of ranks, when the command says it; of an elastic job nobody knows it before it runs."""
    told = parse_command(command)
    if told is None or any(low != high for low, high in _RANGE.findall(" ".join(command))):
        return None
    # without --nnodes torchrun is 1:1 (https://docs.pytorch.org/docs/stable/elastic/run.html, 2026-11)
    nodes = told.nnodes or (1 if told.launcher == "torchrun" else None)
    return told.world or (nodes * told.nproc if nodes and told.nproc else None)
