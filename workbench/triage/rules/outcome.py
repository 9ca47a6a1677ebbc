"""Turn rules' findings into one record that the next rule and the verdict can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from workbench.model import Event, Gpu, Hypothesis
from workbench.triage.context import Context
from workbench.triage.groups import Group

__all__ = ["Outcome"]


@dataclass(slots=True)
class Outcome:
    """Groups as the rules left them, hypotheses that no single group carries, and what to say when nothing anchors."""

    groups: list[Group]
    hypotheses: list[Hypothesis] = field(default_factory=list)
    override: Hypothesis | None = None  # a verdict that no cause group can beat (it succeeded)
    fallback: Hypothesis | None = None  # a verdict for when no cause group is strong enough

    def alive(self, *prefixes: str) -> Iterator[Group]:
        """Groups that are not dismissed and whose signature starts with one of the prefixes."""
        for group in self.groups:
            if not group.dismissed and (not prefixes or group.signature.startswith(prefixes)):
                yield group

    def add(
        self,
        context: Context,
        signature: str,
        cls: str,
        weight: float,
        events: Sequence[Event],
        *,
        node: str | None = None,
        gpu: Gpu | None = None,
        rank: int | None = None,
        note: str = "",
    ) -> Group:
        """Add a group that a rule concluded from several observations."""
        group = Group(signature, cls, weight, list(events), node, gpu, rank)
        if note:
            group.notes.append(note)
        self.groups.append(group)
        return group
