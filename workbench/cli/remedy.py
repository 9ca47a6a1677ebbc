"""Turn the options of the commands that plan and act into a policy, a journal, executors and a lock; and files into what is wrong."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.entry import complain
from workbench.cli.live import add_site, config_of
from workbench.errors import ConfigError, ParseError, WorkbenchError

if TYPE_CHECKING:
    from workbench.config import Config
    from workbench.remediation.executors.contract import Executor, Lock
    from workbench.remediation.journal import Journal
    from workbench.remediation.model import FleetState, Plan, Trouble
    from workbench.remediation.policy import Policy
    from workbench.remediation.troubles import Checked

__all__ = ["PACE", "Site", "Usage", "add_remedy", "read_plan", "site_of", "wrong_in"]


def _steady() -> float:
    from workbench.remediation.moments import steady

    return steady()


# whose time it is: of the commands that act, and of tests that let a fleet's days pass in a moment
PACE: dict[str, Any] = {"clock": time.time, "steady": _steady, "sleep": time.sleep}
CALL = 30.0  # seconds that reading one node or the fleet may take


class Usage(WorkbenchError):
    """The command line is wrong."""

    exit_code = exits.USAGE


def add_remedy(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say which site, policy and journal."""
    parser.add_argument(
        "--policy", metavar="FILE", help="what may be done (remediation.policy); default: nothing without a person"
    )
    parser.add_argument("--journal", metavar="FILE", help="where every intent and outcome is kept (remediation.journal)")
    parser.add_argument(
        "--scheduler", choices=("auto", "kubernetes", "slurm", "none"), help="what changes nodes (remediation.scheduler)"
    )
    add_site(parser)


class Site:
    """
    All that planning and acting needs of a site.

    Attributes
    ----------
    config : Config
    policy : Policy
    executor : Executor
        The scheduler's, the site's commands, bundles and reports as one.
    """

    def __init__(self, config: Config, policy: Policy, journal: Path) -> None:
        self.config, self.policy, self._journal = config, policy, journal
        self.executor, self._scheduler = _executors(config, policy)

    def journal(self) -> Journal:
        """Return the journal, which is made by its first entry."""
        from workbench.remediation.journal import Journal

        return Journal(self._journal)

    def fleet(self) -> FleetState:
        """Return all nodes now."""
        from workbench.sources.contract import Deadline

        return self.executor.fleet(Deadline(max(CALL, float(self.config["deadline"]))))

    @contextmanager
    def alone(self) -> Iterator[Lock | None]:
        """Hold the cluster's lock; without one (Slurm) the lock of the journal is what keeps two controllers apart."""
        lock = self._lock()
        if lock is None:
            yield None
            return
        from workbench.remediation.engine import enter

        if not enter(lock):
            raise ConfigError(
                "another controller acts on this cluster", hint="see who: kubectl get lease -A; or wait until it is done"
            )
        try:
            yield lock
        finally:
            lock.release()

    def know(self, names: Iterable[str]) -> None:
        """Believe that these are nodes, where there is no scheduler that says which there are."""
        from workbench.remediation.executors.roster import Roster

        if isinstance(self._scheduler, Roster):
            self._scheduler.know(names)

    def known(self) -> None:
        """
        Make sure that somebody says which nodes there are: a loop asks nobody.

        Raises
        ------
        ConfigError
            There is neither a scheduler nor a list of nodes.
        """
        from workbench.remediation.executors.roster import Roster

        if isinstance(self._scheduler, Roster) and not self._scheduler.listed:
            raise ConfigError(
                "there is neither Kubernetes nor Slurm, and the policy does not say which nodes there are",
                hint='give a kubeconfig or slurm.prefix; or [nodes] names = ["gpu-1", "gpu-2"] in the policy',
            )

    def watch(self) -> Callable[[float], bool] | None:
        """Let watches keep the fleet up to date where the scheduler has them; return what waits for news of it, or None."""
        from workbench.remediation.executors.kubernetes.executor import Kubernetes

        if not isinstance(self._scheduler, Kubernetes):
            return None
        self._scheduler.watch()
        return self._scheduler.wait

    def _lock(self) -> Lock | None:
        if self._scheduler.name != "kubernetes":
            return None
        from workbench.remediation.executors.kubernetes.lease import LeaseLock
        from workbench.sources.kubernetes.api import Api

        return LeaseLock(Api(self.config["kubernetes.kubeconfig"], self.config["kubernetes.context"]))


def site_of(options: argparse.Namespace) -> Site:
    """Return the site that the options name."""
    from workbench.remediation.policy import load_policy

    config = config_of(options, remediation_scheduler=options.scheduler)
    policy = load_policy(options.policy or config["remediation.policy"])
    journal = Path(options.journal or config["remediation.journal"])
    return Site(config, policy, journal)


def _executors(config: Config, policy: Policy) -> tuple[Executor, Executor]:
    from workbench.remediation.executors.bundles import Bundles
    from workbench.remediation.executors.combined import Combined
    from workbench.remediation.executors.command import Commands
    from workbench.remediation.executors.ticket import Tickets
    from workbench.report.plan import ticket

    scheduler, folder = _scheduler(config, policy), Path(config["remediation.folder"])
    commands = Commands(policy.commands, folder / "commands", node=scheduler.node)
    webhook = policy.webhook
    if policy.webhook_file:
        try:
            webhook = Path(policy.webhook_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"webhook_file {policy.webhook_file}: {error.strerror or error}") from None
    tickets = Tickets(Path(policy.tickets or folder / "reports"), ticket, webhook=webhook, node=scheduler.node)
    others = (commands, Bundles(folder / "evidence", _keeper(config), node=scheduler.node), tickets)
    return Combined(scheduler, *others, prefer=(commands,) if policy.commands_first else ()), scheduler


def _scheduler(config: Config, policy: Policy) -> Executor:
    from workbench.sources.site import sources_of

    which = config["remediation.scheduler"]
    names = {one.name for one in sources_of(config)[0]}
    if which == "kubernetes" or (which == "auto" and "kubernetes" in names):
        from workbench.remediation.executors.kubernetes.executor import Kubernetes

        machines = config["kubernetes.machines"]
        return Kubernetes(config["kubernetes.kubeconfig"], config["kubernetes.context"], machines=machines)
    if which == "slurm" or (which == "auto" and "slurm" in names):
        from workbench.remediation.executors.slurm import Slurm

        return Slurm(tuple(config["slurm.prefix"]), adopt=policy.adopt)
    from workbench.remediation.executors.roster import Roster

    # a site without a scheduler: nodes by name, and what the policy's commands can do
    return Roster(Path(config["remediation.folder"]) / "out-of-service.json", policy.nodes, policy.asks, clock=PACE["clock"])


def _keeper(config: Config) -> Any:
    """Return what collects a node's evidence of the last day: what every source of the site knows of it."""

    def keep(action: Any, path: Path, deadline: Any) -> Any:
        from dataclasses import replace

        from workbench.live import collect, scope_for
        from workbench.remediation.executors.bundles import Kept
        from workbench.sources.site import sources_of

        if all(one.name == "node" for one in sources_of(config)[0]):  # nobody can be asked about another machine
            return _known(action, path)

        now = PACE["clock"]()
        scope = scope_for(str(action.args.get("job") or ""), config, since=now - 86400, until=now)
        collected = collect(replace(scope, nodes=(action.node,)), path, config)
        answers = [one for some in collected.gathered.answers.values() for one in some]
        good = [one for one in answers if one.file and one.status in ("ok", "partial", "stale")]
        silent = tuple(dict.fromkeys(one.source for one in answers if one.status == "failed"))
        return Kept(str(collected.path), len(good), silent)

    return keep


def _known(action: Any, path: Path) -> Any:
    """Keep what the plan knows of a fault: the lines of the verdict or the findings, with where they are from."""
    from workbench.durable import write_whole
    from workbench.remediation.executors.bundles import Kept

    file = path.with_name(path.name.removesuffix(".tar.zst") + ".json")
    write_whole(file, {"schema": "workbench.evidence/1", "node": action.node, "why": action.why, **dict(action.args)})
    return Kept(str(file), 1 if action.args.get("evidence") else 0, ("every source: none is configured",))


def wrong_in(paths: Sequence[str]) -> tuple[list[Trouble], list[Checked]]:
    """
    Return what files say is wrong: verdicts and findings as JSON, one document or one a line; ``-`` is stdin.

    Raises
    ------
    ParseError
        A file cannot be read, or holds neither; names file and line.
    """
    from workbench.remediation.troubles import Report, of_findings, of_verdict, read_document

    troubles: list[Trouble] = []
    checked: list[Checked] = []
    for path in paths:
        for line, table in _documents(path):
            try:
                document = read_document(table)
                if isinstance(document, Report):
                    found, seen = of_findings(document)
                    troubles += found
                    checked += [seen] if seen else []
                    if document.time is None:
                        complain(
                            f"{path}: nobody knows when these checks ran, so nothing is done because of them",
                            hint="make them again: workbench check -o json",
                        )
                elif trouble := of_verdict(document):
                    troubles.append(trouble)
            except ValueError as error:
                raise ParseError(
                    str(error), file=path, line=line, hint="give what workbench triage or check -o json printed"
                ) from None
    return troubles, checked


def _documents(path: str) -> Iterator[tuple[int | None, Any]]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParseError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path) from None
    try:
        yield None, json.loads(text)
        return
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                table = json.loads(line)
            except ValueError as error:
                raise ParseError(f"it is no JSON: {error}", file=path, line=number, hint="give -o json or -o jsonl") from None
            yield number, table


def read_plan(path: str) -> Plan:
    """
    Return the plan of a file.

    Raises
    ------
    ParseError
        It cannot be read, is no plan, or was changed after it was made.
    """
    from workbench.remediation.model import Plan

    for line, table in _documents(path):
        try:
            return Plan.from_dict(table)
        except (ValueError, AttributeError) as error:
            raise ParseError(str(error), file=path, line=line, hint="workbench plan … --save FILE makes one") from None
    raise ParseError("it is empty", file=path, hint="workbench plan … --save FILE makes one")
