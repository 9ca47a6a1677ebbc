"""Turn the answers of Slurm's daemons into what `workbench doctor` says: reachable, kept, allowed, and the line that would change it."""

from __future__ import annotations

import os
import pwd
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from workbench.catalog import table
from workbench.errors import SourceError
from workbench.sources.contract import Deadline, Reach

if TYPE_CHECKING:
    from workbench.sources.slurm.source import Slurm

__all__ = ["examine", "settings"]

_PAIR = re.compile(r"(?m)^(\w+)\s+= ?(.*?)\s*$")
# what Slurm tells, and what cannot be known without it
_OWN_WORD = ("platform/preemption", "platform/node-lost", "platform/scheduler", "user/stopped", "user/host-oom")
# seconds by which clocks may differ; times of sdiag are whole seconds
_CLOCK = 2.0


def settings(text: str) -> dict[str, str]:
    """Return the settings that ``scontrol show config`` prints, of slurm.conf and cgroup.conf; the first of a name counts."""
    found: dict[str, str] = {}
    for name, value in _PAIR.findall(text):
        found.setdefault(name, value)
    return found


def examine(slurm: Slurm, deadline: Deadline) -> list[Reach]:
    """
    Return what this cluster has, keeps and lets us see; never raises.

    Parameters
    ----------
    slurm : Slurm
        The cluster.
    deadline : Deadline
        When it is over, what was not asked is ``unknown``.
    """
    found: list[Reach] = []
    try:
        version = slurm.version(deadline)
    except SourceError as error:
        return [_reach("version", "critical", str(error), error.hint, _OWN_WORD)]
    found.append(_reach("version", "ok", f"Slurm {version}"))
    steps = {"slurmctld": _controller, "slurmdbd": _accounts, "configuration": _configured, "clock": _clock}
    with ThreadPoolExecutor(len(steps), "workbench-slurm") as pool:  # side by side: what hangs costs its time once
        for item, future in {item: pool.submit(step, slurm, deadline) for item, step in steps.items()}.items():
            try:
                found += future.result()
            except SourceError as error:
                found.append(_reach(item, "unknown", f"not asked: {error}", error.hint))
    return found


def _reach(item: str, status: str, detail: str, fix: str = "", blind: tuple[str, ...] = ()) -> Reach:
    return Reach("slurm", item, status, detail, fix, blind)


def _controller(slurm: Slurm, deadline: Deadline) -> list[Reach]:
    ping = slurm.ask("scontrol", "ping", deadline=deadline)
    words = " ".join(ping.text.split())
    if re.search(r"\bis UP\b", words):
        down = re.findall(r"\((backup\d*|secondary)\) at (\S+) is DOWN", words)
        text = words + (": there is no backup now" if down else "")
        return [_reach("slurmctld", "warning" if down else "ok", text, f"start slurmctld on {down[0][1]}" if down else "")]
    if "DOWN" in words:
        return [_reach("slurmctld", "critical", words, "systemctl start slurmctld, where SlurmctldHost says", _OWN_WORD)]
    return [_reach("slurmctld", "unknown", f"scontrol ping {ping.sentence}", "SLURM_CONF must name the cluster's slurm.conf")]


def _accounts(slurm: Slurm, deadline: Deadline) -> list[Reach]:
    ran = slurm.ask("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=Cluster,ControlHost", deadline=deadline)
    names = [line.split("|")[0] for line in ran.text.splitlines() if line.strip()]
    if ran.ok and names:
        return [_reach("slurmdbd", "ok", f"it keeps accounts of {', '.join(names[:10])}")]
    if ran.ok:
        return [_reach("slurmdbd", "warning", "it answers, and has no cluster", "sacctmgr add cluster NAME", _OWN_WORD)]
    if "disabled" in ran.said + ran.text or "not running a supported accounting_storage plugin" in ran.text + ran.said:
        return []  # the setting says it better
    fix = "systemctl status slurmdbd, on AccountingStorageHost"
    if ran.ending == "time-out":
        return [_reach("slurmdbd", "unknown", f"sacctmgr {ran.sentence}", fix, _OWN_WORD)]
    return [_reach("slurmdbd", "critical", f"sacctmgr {ran.sentence}", fix, _OWN_WORD)]


def _configured(slurm: Slurm, deadline: Deadline) -> list[Reach]:
    config = slurm.ask("scontrol", "show", "config", deadline=deadline, expect=lambda out: b"ClusterName" in out)
    if not config.ok:
        return [_reach("configuration", "unknown", f"scontrol show config {config.sentence}", "scontrol ping tells more")]
    values = settings(config.text)
    found = []
    for row in table("slurm_settings"):
        name, value = row["setting"], values.get(row["setting"])
        if value is None:
            if name.startswith("Constrain"):  # of cgroup.conf, which is printed only where a cgroup plugin is on
                continue
            found.append(_reach(f"setting {name}", "unknown", "this release does not print it", row["fix"]))
        elif re.search(row["wanted"], value):
            found.append(_reach(f"setting {name}", "ok", f"{name}={value}"))
        elif name == "HealthCheckInterval" and not values.get("HealthCheckProgram", "").startswith("/"):
            continue  # there is nothing to run
        else:
            found.append(
                _reach(
                    f"setting {name}", row["status"], f"{name}={value}: {row['lack']}", row["fix"], tuple(row["blind_to"].split())
                )
            )
    return [*found, _rights(slurm, values, deadline)]


def _rights(slurm: Slurm, values: dict[str, str], deadline: Deadline) -> Reach:
    hidden = [word for word in re.split(r"[,\s]+", values.get("PrivateData", "none")) if word not in ("none", "(null)", "")]
    seen = {"jobs", "nodes", "usage", "events", "all"} & set(hidden)
    if not seen:
        return _reach("rights", "ok", "every user sees all jobs and nodes (PrivateData=none)")
    words = ",".join(hidden)
    ran = slurm.ask("id", "-un", deadline=deadline)
    user = ran.text.strip() or _own_name()
    operator = re.match(r"(\w+)", values.get("SlurmUser", ""))
    if user in ("root", operator[1] if operator else ""):
        return _reach("rights", "ok", f"PrivateData={words} does not bind {user}")
    level = slurm.ask(
        "sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel", deadline=deadline
    )  # fmt: skip
    if level.ok and re.search(r"Operator|Administrator", level.text):
        return _reach("rights", "ok", f"{user} is {level.text.split()[0]}, so PrivateData={words} does not bind")
    status = "warning" if level.ok else "unknown"
    return _reach(
        "rights",
        status,
        f"PrivateData={words}: {user} sees only own jobs" + (" and not all nodes" if "nodes" in seen or "all" in seen else ""),
        f"sacctmgr modify user {user} set AdminLevel=Operator",
        ("platform/preemption", "platform/node-lost") if seen & {"nodes", "events", "all"} else (),
    )


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _clock(slurm: Slurm, deadline: Deadline) -> list[Reach]:
    """Compare clocks by the time that slurmctld puts into sdiag; it is rounded down to seconds, and our own question takes time."""
    before = time.time()
    ran = slurm.ask("sdiag", deadline=deadline)
    after = time.time()
    told = re.search(r"sdiag output at .*?\((\d{9,11})\)", ran.text)
    if not told:
        return [
            _reach("clock", "unknown", f"sdiag {ran.sentence if not ran.ok else 'tells no time'}", "compare date on both hosts")
        ]
    # the true time of the answer is between `told` and `told` + 1 at the controller, between `before` and `after` here
    ahead, behind = float(told[1]) - after, before - (float(told[1]) + 1)
    offset = ahead if ahead > 0 else -behind if behind > 0 else 0.0
    if abs(offset) <= _CLOCK:
        return [_reach("clock", "ok", "slurmctld's clock is ours within a second or two")]
    words = f"slurmctld's clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} ours"
    return [
        _reach("clock", "warning", f"{words}: times of different sources do not line up", "let chrony or ntpd set both clocks")
    ]
