"""Turn the job's own behaviour into causes: ended on purpose, waiting for a peer that never came, hanging in a collective."""

from __future__ import annotations

import re
from collections import Counter

from workbench.model import Event, Hypothesis
from workbench.triage.context import JOB_SOURCES, Context
from workbench.triage.groups import Group
from workbench.triage.rules.outcome import Outcome

__all__ = [
    "different_work",
    "ended_on_purpose",
    "fingerprints",
    "hangs",
    "launchers_wait",
    "met_all_the_same",
    "missing_members",
    "stood_still",
    "waiting_for_a_peer",
    "waits_apart",
]

# Detected mismatch between collectives on ranks. Rank 1 is running collective: …, but Rank 4 is running collective: …
_PAIR = re.compile(r"Rank (\d+) is running collective.*?but Rank (\d+) is running collective", re.DOTALL)
# wait timeout after 15000ms, keys: /default_pg/0//cpu//0/3   (the last number is the member that has not come)
_MEMBER = re.compile(r"keys: \S*?/(\d+)[,\s]*$")
# Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs
# [Rank 0]: Rank 2 failed to pass monitoredBarrier in 60000 ms      [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in …
_ABSENT = re.compile(r"while waiting for send/recv from rank (\d+)|\bRanks? (\d+(?:, \d+)*) failed to pass monitoredBarrier")
_WAITS = ("gloo-timeout", "gloo-closed")
_PURPOSE = ("platform/preemption", "user/stopped")


def ended_on_purpose(context: Context, outcome: Outcome) -> None:
    """
    Preemption, time limit, eviction and cancellation are read before exit codes: what the ranks say after the signal is noise.

    Only an error that came clearly before the signal speaks against it; then whoever cancelled did so because the job had failed.
    """
    ends = [group for group in outcome.alive() if group.cls in _PURPOSE and group.score >= 0.6]
    for group in ends:
        if group.first is None:
            continue
        for other in outcome.alive():
            if other.cls in _PURPOSE or other.cls.startswith("hardware/") or other.first is None:
                continue
            if other.source in ("job", "launcher", "torchelastic") and other.first >= group.first - context.windows.same_instant:
                other.lower(0.5, "it came with or after the signal that ended the job")
    told = [group for group in ends if group.signature.startswith(("slurm-", "k8s-", "batch-", "cloud-", "kubectl-"))]
    for other in outcome.alive("py-keyboard-interrupt"):
        if any(_follows(other, group) for group in told):
            other.lower(0.3, "a handler raised it when the signal came; the scheduler says why it sent one")


def _follows(other: Group, group: Group) -> bool:
    """Tell whether a group came with or after another: by its line in the same file, else by its time."""
    one, mark = other.events[0], group.events[0]
    if one.file == mark.file and one.line is not None and mark.line is not None:
        return one.line > mark.line
    return one.time is not None and mark.time is not None and one.time >= mark.time - 1.0


def waiting_for_a_peer(context: Context, outcome: Outcome) -> None:
    """Ranks that wait in the rendezvous are victims of whoever did not come: the missing peer's own trouble is the cause."""
    waits = [
        event
        for event in context.events
        if event.signature in ("rendezvous-timeout", "store-clients-missing", "store-wait-timeout")
    ]
    if not waits or context.progress:
        return
    causes = [
        group for group in outcome.alive() if group.cls.startswith(("driver/", "platform/", "hardware/")) and group.score >= 0.4
    ]
    for group in causes:
        if group.first is not None and waits[0].time is not None and group.first > waits[0].time + 60.0:
            continue
        group.notes.append("the other ranks waited for it in the rendezvous")


def met_all_the_same(context: Context, outcome: Outcome) -> None:
    """Ranks that made a step have met, whatever their command lines say of the meeting place: a static rendezvous asks for less."""
    if context.progress:
        for group in outcome.alive("launch-disagrees"):
            group.dismiss("the ranks met all the same, and made steps")
            for event in group.events:
                event.data["handled"] = True


def launchers_wait(context: Context, outcome: Outcome) -> None:
    """
    Once an agent has reported how its ranks failed, what stands still is the launcher: it waits for agents of nodes that do not answer.

    Then neither the silence that the supervisor noticed nor the stack of a process that is no rank tells of a hang of the program.
    """
    notices = [event for event in context.events if event.signature == "run-hang" and event.time is not None]
    if not notices:
        return
    since = min(event.time or 0.0 for event in notices)
    failed = [event for event in context.events if event.signature == "elastic-failure" and (event.time or since) < since]
    if not failed or (context.stop is not None and context.stop > max(event.time or 0.0 for event in failed)):
        return
    for event in notices:
        event.role = "context"
    for group in outcome.alive("stack-"):
        if group.rank is None and all(event.rank is None for event in group.events):
            group.dismiss("it is a process without a rank that waits for the others, after the ranks had failed")


def hangs(context: Context, outcome: Outcome) -> None:
    """
    A collective time-out is reported by the healthy ranks; the one that is behind, silent, or idle while the others spin is where it
    began. With no hardware or driver evidence on it that is the program's hang; with all ranks in the same collective nothing is decided.
    """
    timeouts = [
        event
        for event in context.events
        if event.signature.startswith(("c10d-watchdog-timeout", "gloo-timeout", "c10d-monitored-barrier"))
    ]
    if not timeouts:
        return
    suspects: Counter[int] = Counter()
    evidence: dict[int, list[Event]] = {}
    for event in context.events:
        weight = {
            "watchdog-rank-behind": 3,
            "watchdog-silent-rank": 2,
            "fr-rank-behind": 3,
            "fr-rank-absent": 2,
            "stack-odd-one-out": 3,
            "metric-idle-while-peers-spin": 2,
            "metric-stopped-first": 1,
            "fr-rank-not-started": 1,
        }.get(event.signature, 0)
        if weight and event.rank is not None:
            suspects[event.rank] += weight
            evidence.setdefault(event.rank, []).append(event)
    gone = {event.rank for event in context.events if event.signature.startswith("gloo-closed")}  # who says that its peer is gone
    for event in (event for event in timeouts if event.signature == "c10d-monitored-barrier"):
        if event.rank in gone and "but received errors" in event.text:
            event.cls = "unknown"  # the rank that it waits for ended, and so does not hang; why it ended is told elsewhere
            continue
        if found := _ABSENT.search(event.text):
            for rank in {int(number) for number in re.findall(r"\d+", found[1] or found[2])}:
                suspects[rank] += 3
                evidence.setdefault(rank, []).append(event)
                event.data["promoted"] = True
    if not suspects:
        return
    (rank, votes), *rest = suspects.most_common(2)
    if rest and rest[0][1] >= votes:
        return
    if votes < 2:
        return
    explained = [
        group
        for group in outcome.alive()
        if group.score >= 0.35
        and (group.rank == rank or (group.node is not None and group.node == context.rank_node.get(rank)))
        and group.cls not in ("unknown", "user/hang")
        and not group.signature.startswith(("watchdog-", "fr-", "stack-"))
    ]
    own = [
        group
        for group in outcome.alive()
        if group.cls == "user/hang" and group.rank == rank and group.source in JOB_SOURCES and group.weight >= 0.6
    ]
    if own:  # it says itself what it does instead
        for group in own:
            group.weight = min(0.97, group.weight + 0.1)
            group.notes.append(f"rank {rank} is the one that the others wait for")
        for group in explained:
            group.lower(0.5, f"rank {rank} itself says why it does not go on")
        return
    for group in explained:
        group.notes.append(f"rank {rank}, which never entered the collective, is the one it happened to")
        group.weight = min(0.97, group.weight + 0.1)
        if (
            group.rank is None
            and (group.gpu is not None or (group.source in JOB_SOURCES and group.signature.startswith(("python-", "py-"))))
            and not group.whole_node
            and context.rank_on(group.node, group.gpu) is None
        ):
            group.rank = rank  # nothing else tells which rank ran on that GPU
    mismatch = any(group.cls == "user/collective-mismatch" and group.score >= 0.5 for group in outcome.alive())
    if not explained and not mismatch:
        lines = sorted(evidence[rank], key=lambda e: ({"stack-odd-one-out": 0}.get(e.signature, 1), e.order))
        outcome.hypotheses.append(
            Hypothesis(
                "user/hang",
                min(0.85, 0.45 + 0.07 * votes),
                context.rank_node.get(rank),
                context.rank_gpu.get(rank),
                rank,
                "rank",
                time=min((e.time for e in lines if e.time is not None), default=timeouts[0].time),
                evidence=[*lines, *timeouts[:2]],
                why=[f"rank {rank} is the one that the others wait for, and nothing of its GPU, node or link speaks"],
                rule="hang",
            )
        )


def fingerprints(context: Context, outcome: Outcome) -> None:
    """In DETAIL mode each rank compares itself with one that differs: the rank that all the others name is the odd one."""
    for group in outcome.alive("c10d-collective-fingerprint"):
        for event in group.events:
            pair = _PAIR.search(event.text)
            if pair:
                event.data["says"], event.data["other"] = int(pair[1]), int(pair[2])
    events = [event for group in outcome.alive("c10d-collective-fingerprint") for event in group.events if "other" in event.data]
    pairs = {frozenset((event.data["says"], event.data["other"])) for event in events}
    named = Counter(rank for pair in pairs for rank in pair)
    if len(pairs) < 2:
        return  # one pair does not tell which of the two is odd
    (odd, votes), *rest = named.most_common(2)
    if votes == len(pairs) and rest[0][1] < votes:
        for group in outcome.alive("c10d-collective-fingerprint"):
            group.rank = odd
            for event in group.events:
                event.rank = odd
                event.data["at_fault"] = "rank"


def missing_members(context: Context, outcome: Outcome) -> None:
    """
    The store key that a rank waits for ends in the number of the member that has not come: a rank of this job hangs before it
    joins; a number beyond the launched ranks means that the script expects a larger world.
    """
    started = set(context.rank_last) | {event.rank for event in context.events if event.signature == "elastic-failure"}
    for group in outcome.alive("store-wait-timeout"):
        if group.cls == "user/config" and all(event.data.get("missing_rank") in started for event in group.events):
            group.dismiss("the rank that it waits for was started: another file tells of it")
    waits = [event for event in context.events if event.signature == "store-wait-timeout" and _MEMBER.search(event.text)]
    if not waits:
        return
    absent = Counter(int(_MEMBER.search(event.text)[1]) for event in waits)  # type: ignore[index]
    member, votes = absent.most_common(1)[0]
    # only the launcher knows how many ranks were started; the script's own idea of the world is what is in question
    size = max(
        (
            doc.facts["world_size"]
            for doc in context.incident.documents
            if doc.kind == "launch" and isinstance(doc.facts.get("world_size"), int)
        ),
        default=None,
    )
    if size is None or votes < max(1, len(waits) // 2):
        return
    if member >= size:
        outcome.add(
            context,
            "store-wait-timeout",
            "user/config",
            0.6,
            waits[:3],
            note=f"member {member} of a world of {size} ranks is waited for",
        )
        for event in waits[:3]:
            event.data["promoted"] = True
    elif not any(
        event.rank == member
        and event.source == "job"
        and context.weight(event) > 0
        and context.role(event) in ("cause", "symptom")
        for event in context.events
    ):
        for event in waits[:3]:
            event.data["promoted"] = True
        outcome.hypotheses.append(
            Hypothesis(
                "user/hang",
                0.5,
                context.rank_node.get(member),
                None,
                member,
                "rank",
                time=waits[0].time,
                evidence=waits[:3],
                rule="missing member",
                why=[f"rank {member} never joined, and it wrote no error"],
            )
        )


def different_work(context: Context, outcome: Outcome) -> None:
    """
    Ranks of one group number their work alike: one that finished beyond what its peer still waits in has issued other collectives.

    Equal numbers with different operations are found by the comparison of watchdogs; this is the case of unequal numbers.
    """
    if any(group.cls == "user/collective-mismatch" and group.score >= 0.5 for group in outcome.alive()):
        return
    groups: dict[str, list[Event]] = {}
    for event in context.events:
        if (
            event.signature.startswith("c10d-")
            and isinstance(event.data.get("seq"), int)
            and event.data.get("op")
            and event.rank is not None
        ):
            groups.setdefault(str(event.data.get("pg")), []).append(event)
    for reports in groups.values():
        behind = min(reports, key=lambda e: int(e.data["seq"]))
        done: dict[int | None, int] = {
            event.rank: int(event.data["last_completed"])
            for event in context.events
            if event.rank is not None and isinstance(event.data.get("last_completed"), int)
        }
        others = [
            event
            for event in reports
            if event.rank != behind.rank
            and int(event.data["seq"]) > int(behind.data["seq"])
            and event.data["op"] != behind.data["op"]
            and done.get(event.rank, -1) >= int(behind.data["seq"])
        ]
        if others:
            note = f"rank {others[0].rank} finished work {done[others[0].rank]} while rank {behind.rank} still waits in {behind.data['seq']}"
            lines = [behind, *others[:3]]
            for event in lines:
                event.data["promoted"] = True
            outcome.add(context, "watchdog-mismatch", "user/collective-mismatch", 0.62, lines, note=note)
            return


def waits_apart(context: Context, outcome: Outcome) -> None:
    """
    Ranks that are all alive and all wait in a collective, but not in the same one, have left the common order of their program.

    Each rank's stack names the collective and the line that called it. A rank that died or stands still has no such stack: then the others
    may well be one collective apart, and nothing is concluded.
    """
    waits: dict[int, Event] = {}
    for event in context.events:
        if event.signature.startswith(_WAITS) and event.rank is not None and event.data.get("in") == "collective":
            waits.setdefault(event.rank, event)
    ranks = set(context.rank_last) | {event.rank for event in context.events if event.signature == "elastic-failure"}
    ranks.discard(None)
    size = context.world_size or len(ranks)
    late = [event for event in waits.values() if event.signature.startswith("gloo-timeout")]
    if len(waits) < 2 or len(waits) < max(size, len(ranks)) or not late:
        return
    calls = Counter(_call(event) for event in waits.values())
    if len(calls) < 2 or any(group.cls == "user/collective-mismatch" and group.score >= 0.5 for group in outcome.alive()):
        return
    (usual, most), (_, next_most) = calls.most_common(2)
    odd = sorted(rank for rank, event in waits.items() if _call(event) != usual)
    lines = [waits[rank] for rank in odd] or list(waits.values())
    for event in lines:
        event.data["promoted"] = True
    sole = odd[0] if len(odd) == 1 and most > next_most else None
    if most == next_most:
        lines = list(waits.values())
    note = "all ranks wait, but in different collectives: " + "; ".join(f"{call[0]} from {call[1]}" for call in list(calls)[:3])
    outcome.add(context, "watchdog-mismatch", "user/collective-mismatch", 0.6, lines, rank=sole, note=note)


def stood_still(context: Context, outcome: Outcome) -> None:
    """
    Where every rank but one says that it waited in vain, the one that said nothing is the one that they waited for.

    It ran until the agent ended it, so it had not died; what it did instead of joining the others is in its own stack, which nobody took.
    """
    if any(group.score >= 0.35 and group.cls not in ("unknown", "none") for group in outcome.alive()) or outcome.hypotheses:
        return
    ends = {event.rank: event for event in context.events if event.signature == "elastic-failure" and event.rank is not None}
    alone = {event.rank for event in context.events if event.signature.startswith(_WAITS) and event.rank is not None}
    late = [event for event in context.events if event.signature.startswith("gloo-timeout")]
    quiet = [rank for rank in ends if rank not in alone]
    if (
        len(ends) < max(2, context.world_size or 0)
        or len(quiet) != 1
        or not late
        or not ends[quiet[0]].data.get("ended_by_launcher")
    ):
        return
    rank = quiet[0]
    forced = [event for event in context.events if event.signature == "elastic-forced-end" and event.rank == rank]
    lines = [*forced, ends[rank], late[0]]
    for event in lines[:-1]:
        event.data["promoted"] = True
    note = f"all others waited for rank {rank}, which said nothing and ran until the agent ended it"
    outcome.add(context, "rank-stood-still", "user/hang", 0.42, lines, node=context.rank_node.get(rank), rank=rank, note=note)


def _call(event: Event) -> tuple[str, str]:
    """Return the collective that a stack ends in, and the line of the program that called it."""
    frames = event.data.get("frames") or [""]
    return str(frames[-1]).rsplit(" ", 1)[-1], str(event.data.get("user_frame") or "")
