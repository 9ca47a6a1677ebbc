"""Turn what happens to a fleet in memory into the promises of remediation that it broke: written without a line of the guards' own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from workbench.remediation.engine import Outcome
from workbench.remediation.journal import Journal
from workbench.remediation.model import OWNER, Action, Plan, Trouble
from workbench.remediation.policy import Policy
from workbench.testing.fleet import Effect, Fleet

TAKES = ("cordon", "drain", "taint")  # what takes a node out of service
ENDS = ("evict", "restart-task", "reboot", "replace")
MACHINE = ("reset-gpu", "reboot", "replace")
TOUCHES = ("cordon", "drain", "uncordon", "evict", "taint", "label", "restart-task", "validate", *MACHINE)
CALL = 30.0  # seconds that one request may take
RACE = 65.0  # seconds between the last look at the fleet and a change that two lost answers may take


class Invariants:
    """
    What must hold at each change and at the end.

    Parameters
    ----------
    fleet : Fleet
    policy : Policy
    exact : bool
        One controller: then what is counted per hour can be judged too, also when somebody sets the clock.
    original : int
        How many nodes there were.
    """

    def __init__(self, fleet: Fleet, policy: Policy, *, exact: bool, original: int) -> None:
        self.fleet, self.policy, self.exact, self.original = fleet, policy, exact, original
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self.kill_at = float("inf")
        self.actions: dict[
            tuple[str, str], tuple[Action, Plan]
        ] = {}  # controller and action → of the plan that it was given last
        self._seen: dict[tuple[str, str, float | None, str], float] = {}
        self._moved = float("-inf")
        self._jumped = float("-inf")

    def moved(self) -> None:
        """Something happened to the fleet that no controller did: what was counted just before may not hold."""
        self._moved = self.fleet.now

    def jumped(self) -> None:
        """Somebody set the clock."""
        self._jumped = self.fleet.now

    def observed(self, trouble: Trouble, when: float) -> None:
        """Note when (by the time that nobody can set) evidence was really observed."""
        self._seen[trouble.id, trouble.code, trouble.seen, trouble.boot] = when

    def planned(self, plan: Plan, by: str) -> None:
        """Note what a plan is about and which controller executes it."""
        for action in plan.actions:
            self.actions[by, action.id] = (action, plan)

    def wrong(self, effect: Effect, what: str) -> None:
        self.broken.append(f"{effect.verb} of {effect.node} at {effect.time:.0f}: {what}")

    # at each change

    def effect(self, effect: Effect) -> None:
        """Check a change that is about to happen."""
        self.counts["undo" if effect.undo else effect.verb] += 1
        self._once(effect)
        self._foreign(effect)
        self._killed(effect)
        holder = self.fleet.lease[0].partition("-")[0]
        # for as long as a request may take, one of the holder before may still arrive: so long a new holder does nothing
        taken = self.fleet.now - self.fleet.taken > CALL
        if taken and holder and holder != effect.by and self.fleet.lease[2] > self.fleet.now:
            self.wrong(effect, f"{effect.by} did it while {holder} had the lock")
        if effect.undo:
            return
        known = self.actions.get((effect.by, effect.action))
        if known is not None and self._jumped == float("-inf") and effect.wall > known[1].expires + _steps_before(*known) + RACE:
            self.wrong(effect, "its plan had expired")
        if effect.verb in TAKES and effect.owner != OWNER:
            self._caps(effect)
            self._capacity(effect)
        if self.exact:
            self._hour(effect)
            self._job(effect)
        self._stale(effect)
        if effect.verb == "uncordon":
            self._proven(effect)

    def _once(self, effect: Effect) -> None:
        for one in self.fleet.effects:
            if one.action == effect.action and one.undo == effect.undo and (not effect.lost or set(one.lost) & set(effect.lost)):
                if effect.verb == "evict" and not effect.lost:
                    continue
                self.wrong(effect, "it was done before, by the same action")

    def _foreign(self, effect: Effect) -> None:
        if effect.verb not in TOUCHES or not effect.owner or effect.owner == OWNER or effect.state is None:
            return
        known = self.actions.get((effect.by, effect.action))
        expects = known[0].expects if known else {}
        machine = self.fleet.nodes[effect.node]
        since = self.fleet.clock() - (machine.restricted or 0.0)
        if "owner" in expects or not 0 <= since <= RACE:
            self.wrong(effect, f"{effect.owner} has restricted it")

    def _killed(self, effect: Effect) -> None:
        if (
            effect.sent > self.kill_at
        ):  # a request that left before and arrives after it is no breach, one that leaves after it is
            self.wrong(effect, "the kill switch is on")

    def _caps(self, effect: Effect) -> None:
        limits, nodes = self.policy.limits, self.fleet.nodes
        ours = [one for one in nodes.values() if one.owner == OWNER and one.name != effect.node]
        me = nodes[effect.node]
        for what, mine, size, count, percent in (
            ("fleet", ours, max(self.original, len(nodes)), limits.out_count, limits.out_percent),
            (
                "pool",
                [one for one in ours if one.pool == me.pool],
                sum(one.pool == me.pool for one in nodes.values()) + self.original - len(nodes),
                limits.pool_count,
                limits.pool_percent,
            ),
            ("zone", [one for one in ours if one.zone == me.zone] if me.zone else [], self.original, limits.zone_count, 100.0),
        ):
            if len(mine) + 1 > count or len(mine) + 1 > max(1, int(size * percent / 100)):
                self.wrong(effect, f"cap of the {what}: {len(mine) + 1} of {size} nodes are out by us")

    def _capacity(self, effect: Effect) -> None:
        if effect.state is None or not effect.state.healthy or self.fleet.now - self._moved < RACE:
            return
        limits = self.policy.limits
        pool = [one for one in self.fleet.nodes.values() if one.pool == effect.state.pool]
        left = sum(one.ready and one.schedulable and one.name != effect.node for one in pool)
        if left < limits.keep or left * 100 < limits.keep_percent * len(pool):
            self.wrong(effect, f"capacity: {left} of {len(pool)} nodes of the pool are left")

    def _since(self, seconds: float, verbs: Iterable[str]) -> list[Effect]:
        wanted = frozenset(verbs)
        return [one for one in self.fleet.effects if one.verb in wanted and not one.undo and one.time > self.fleet.now - seconds]

    def _hour(self, effect: Effect) -> None:
        limits = self.policy.limits
        if effect.verb in TAKES and effect.owner != OWNER:
            new = {one.node for one in self._since(3600.0 - RACE, TAKES) if one.owner != OWNER} | {effect.node}
            if len(new) > limits.hour_count:
                self.wrong(effect, f"{len(new)} nodes were taken out of service within an hour")
            burst = {one.node for one in self._since(limits.breaker_window - RACE, TAKES) if one.owner != OWNER} | {effect.node}
            if len(burst) > limits.breaker_count:
                self.wrong(effect, f"{len(burst)} nodes were taken out of service within the breaker's window")
        if effect.verb in MACHINE and len(self._since(3600.0 - RACE, MACHINE)) + 1 > limits.final_hour_count:
            self.wrong(effect, "more resets, reboots and replacements within an hour than may be")

    def _job(self, effect: Effect) -> None:
        if effect.verb not in ("evict", "restart-task", "reboot", "replace") or effect.state is None or not effect.lost:
            return
        jobs = {one.job for one in effect.state.work if one.id in effect.lost and one.job}
        for job in jobs:
            hit = {effect.node}
            for one in self._since(3600.0 - RACE, ENDS):
                if one.state is not None and any(work.job == job and work.id in one.lost for work in one.state.work):
                    hit.add(one.node)
            if len(hit) > self.policy.limits.job_count:
                self.wrong(effect, f"work of {job} was ended on {len(hit)} nodes within an hour")

    def _stale(self, effect: Effect) -> None:
        if effect.verb not in (*TAKES, "evict", *MACHINE) or effect.state is None:
            return
        action, plan = self.actions[effect.by, effect.action]
        trouble = next((one for one in plan.troubles if one.id == action.trouble and one.node == action.node), None)
        if trouble is None:
            self.wrong(effect, "no trouble in its plan calls for it")
            return
        if trouble.newest is None:
            self.wrong(effect, "nobody knows when its evidence was observed")
            return
        if trouble.boot and trouble.boot != effect.state.boot:
            self.wrong(effect, "its evidence is of another boot")
        if self._jumped > float("-inf"):
            return
        if effect.wall - trouble.newest > self.policy.limits.fresh + RACE:
            self.wrong(effect, f"its evidence is {effect.wall - trouble.newest:.0f} s old")
        if effect.state.booted is not None and trouble.newest < effect.state.booted:
            self.wrong(effect, "its evidence is older than the boot")
        if self.exact:
            for one in self.fleet.effects:
                mends = one.verb in ("reset-gpu", "reboot", "replace", "uncordon") and one.node == effect.node and not one.undo
                if mends and one.wall > trouble.newest and self.fleet.operations[one.action].state == "done":
                    self.wrong(effect, f"its evidence is older than the {one.verb} that was done")

    def _proven(self, effect: Effect) -> None:
        action = self.actions[effect.by, effect.action][0]
        for before in action.after:
            operation = self.fleet.operations.get(before)
            if operation is None or operation.state != "done":
                self.wrong(effect, "the node goes back to service and what must come before is not done")

    def ended(self, outcomes: Iterable[Outcome]) -> None:
        """Check that nothing was given up for a reason that no plan of ours gives."""
        for one in outcomes:
            if "comes after an action that comes after it" in one.detail or one.guard == "guard":
                self.broken.append(f"{one.action.verb} of {one.action.node} was given up: {one.detail}")

    # between rounds and at the end

    def between(self, journals: Iterable[Journal]) -> None:
        """Check what must hold whenever no call is on its way."""
        for one in self.fleet.operations.values():
            if one.repeats:
                self.broken.append(f"{one.verb} of {one.node} was asked for again after it had taken effect")
        for journal in journals:
            for entry in journal.entries():
                if entry.kind == "intent" and not entry.action:
                    self.broken.append("an intent without an action")

    def final(self, journals: list[Journal]) -> None:
        """Check what must hold when everything has been resumed and every server answers."""
        self.between(journals)
        intents: dict[str, set[str]] = {}  # action → what each journal says
        for journal in journals:
            for entry in journal.open():
                self.broken.append(f"{entry.verb} of {entry.node} is open after resume")
            for entry in journal.entries():
                if entry.kind == "intent" and not entry.undo:
                    intents.setdefault(entry.action, set()).add(journal.status_of(entry.action))
                if entry.kind == "outcome":
                    self.counts[f"→{entry.status}"] += 1
            told = {
                action
                for entry in journal.entries()
                if entry.kind == "intent" and entry.verb == "page" and entry.action in self.fleet.pages
                for action in (entry.data["action"]["args"] or {}).get("actions", ())
            }
            for action in {entry.action for entry in journal.entries()} - told - {""}:
                last = journal.of_action(action)[-1:]
                if journal.status_of(action) == "unknown" and last[0].verb not in ("page", "ticket"):
                    self.broken.append(f"how {last[0].verb} of {last[0].node} ended cannot be told, and nobody was")
        for operation in self.fleet.operations.values():
            said = intents.get(operation.action)
            if said is None:
                self.broken.append(f"{operation.verb} of {operation.node} was done and no journal knows it")
            elif said == {"refused"} and operation.effects:
                self.broken.append(f"{operation.verb} of {operation.node} was done and the journal says refused")
            elif operation.undone and not said & {"undone", "unknown"}:
                self.broken.append(f"{operation.verb} of {operation.node} was taken back, and the journal says {', '.join(said)}")
        for action, said in intents.items():
            operation = self.fleet.operations.get(action)
            if "done" in said and (operation is None or not (operation.effects or operation.state == "done")):
                self.broken.append(f"action {action} is done in the journal and was never")
        for machine in self.fleet.nodes.values():
            if machine.owner == OWNER and (machine.op not in intents or not machine.reason or machine.expires is None):
                self.broken.append(f"{machine.name} is restricted in our name and nobody owns that")


def _steps_before(action: Action, plan: Plan) -> float:
    """Return the seconds that what comes before a step may take: a chain that was begun in time is brought to its end."""
    steps = {one.id: one for one in plan.actions}
    return sum(steps[one].deadline + _steps_before(steps[one], plan) for one in action.after if one in steps)
