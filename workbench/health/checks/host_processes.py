"""Turn processes that wait in the kernel or are dead and not buried into whether the node is wedged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.sources.node.host_processes import Processes

__all__ = ["host_processes"]

# Waiting for a disk at two looks a second apart happens to a busy writer; to this many at once it does not. Our own measure: gcm counts one
# that waits for long, not how many do.
_BLOCKED = 10
# Each holds an entry of the process table and nothing else; so many have a parent that does not work. Our own measure: gcm warns of any that
# is five minutes old, which a container without an init has for days.
_ZOMBIES = 100


@check(
    "host-processes",
    "processes do not pile up",
    needs=("host-processes",),
    cls="platform/node-lost",
    required=False,
    required_when=("health.blocked",),
)
def host_processes(seen: Seen) -> Iterator[Finding]:
    """Judge how many wait without interruption, by ``health.blocked``, and how many are zombies; those that hold GPUs are another check's."""
    value: Processes = seen.value("host-processes")
    most = int(seen.setting("blocked") or _BLOCKED)
    users = [row for row in value.blocked if not row.kernel]
    load = "" if value.load is None else f", load {value.load[0]:g} on {value.cpus or '?'} processors"
    sound = True
    if len(users) >= most:
        sound = False
        waits = Counter(value.waits.get(row.pid, "") for row in users)
        evidence = [f"{count} in {name}" for name, count in waits.most_common(3) if name not in ("", "0")]
        evidence += [f"{row.pid} {row.name} D" for row in users[:6]]
        yield seen.found(
            "host-processes-blocked", f"{len(users)} processes wait in the kernel and cannot be killed{load}", evidence=evidence
        )
    if len(value.zombies) >= _ZOMBIES:
        sound = False
        parents = Counter(row.parent for row in value.zombies)
        evidence = [f"{count} children of {parent}" for parent, count in parents.most_common(3)]
        yield seen.found(
            "host-processes-zombie", f"{len(value.zombies)} processes ended and nobody waits for them", evidence=evidence
        )
    if sound:
        yield seen.ok(f"{value.count} processes, {len(users)} wait in the kernel, {len(value.zombies)} are zombies{load}")
