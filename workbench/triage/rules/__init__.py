"""
Turn groups and context into what single lines cannot say: dismissals, joint causes, and the fall-back when nothing anchors.

A rule is a function ``(context, outcome) -> None``; it may lower, dismiss or add groups, never read a file. They run in the order of
`RULES`; each says in its docstring what is true of the world that makes it right.
"""

from __future__ import annotations

from collections.abc import Callable

from workbench.triage.context import Context
from workbench.triage.groups import Group
from workbench.triage.rules import clocks, explains, fallback, gpu, job, network, platform, silence
from workbench.triage.rules.outcome import Outcome

__all__ = ["RULES", "Outcome", "apply_rules"]

RULES: tuple[Callable[[Context, Outcome], None], ...] = (
    platform.other_workloads,
    platform.started_after,
    platform.memory_kills,
    platform.lost_nodes,
    platform.file_servers,
    platform.quoted_lines,
    platform.superseded_mismatch,
    platform.volumes,
    network.link_flaps,
    network.named_port,
    network.odd_interface,
    network.everywhere,
    network.full_connection_table,
    gpu.repeated_faults,
    gpu.gone_after_a_trap,
    gpu.remap_without_harm,
    gpu.pcie_floods,
    gpu.strangers,
    gpu.of_other_processes,
    gpu.of_the_same_fault,
    gpu.whole_node,
    gpu.driver_hang_tasks,
    gpu.supports,
    job.met_all_the_same,
    explains.consequences,
    platform.lost_store,
    silence.supervisors_silent,
    silence.fell_silent,
    job.ended_on_purpose,
    job.launchers_wait,
    job.waiting_for_a_peer,
    job.fingerprints,
    job.missing_members,
    job.different_work,
    job.waits_apart,
    job.hangs,
    job.stood_still,
    clocks.other_time_zone,
    fallback.succeeded,
    fallback.symptoms,
)


def apply_rules(context: Context, groups: list[Group]) -> Outcome:
    """Run every rule over the groups and return what they made of them."""
    outcome = Outcome(list(groups))
    for rule in RULES:
        rule(context, outcome)
    return outcome
