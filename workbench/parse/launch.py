"""
Turn what was recorded beside a job (its command lines, exit status and environment) into its size, its placement and how its
launchers ended, or who still answered when it was asked to end.
"""

from __future__ import annotations

import re
import shlex
import signal as signals
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from workbench.model import Event, JobRecord, Line, Parsed, Placement, Problem
from workbench.parse.launch_command import Launch, parse_command

__all__ = ["parse_launch"]

# node-a$ torchrun …      user@gpu-07:~/job$ srun …      [root@node-1 work]# mpirun …      + torchrun …
_PROMPT = re.compile(r"^(?:\[?(?:\w[\w.-]*@)?(?P<node>[A-Za-z][\w.-]*)(?:[: ][^$#>\]]*)?\]?[$#>]|\+|\$|#|>)\s+(?P<rest>\S.*)$")
# RANK=3      export WORLD_SIZE="16"      declare -x NCCL_DEBUG="INFO"
_VARIABLE = re.compile(r"^\s*(?:export |declare -x |setenv )?(?P<key>[A-Za-z_]\w*)[= ](?P<value>.*)$")
# Which variables are evidence; an environment also holds secrets, which must not be kept.
_KEPT = re.compile(
    r"^(?:RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_(?:ADDR|PORT)|HOSTNAME|POD_NAME|NODE_NAME|JOB_ID"
    r"|CUDA_(?:VISIBLE_DEVICES|LAUNCH_BLOCKING|HOME)|NVIDIA_VISIBLE_DEVICES|NCCL_(?!.*(?:TOKEN|SECRET|KEY))\w+|TORCH_(?:NCCL|FR|DISTRIBUTED)_\w+"
    r"|TORCHELASTIC_\w+|GLOO_\w+|OMP_NUM_THREADS|LD_LIBRARY_PATH|SLURM_(?!JWT)\w+|OMPI_COMM_WORLD_\w+|PMI(?:X)?_(?:RANK|SIZE)|PET_\w+|UCX_\w+)$"
)
_EXIT_KEYS = ("exit_status", "exit_code", "exitcode", "returncode", "exitCode", "status_code", "code")
_END_KEYS = ("ended", "end", "finished", "finishedAt", "end_time", "stopped")
_START_KEYS = ("started", "start", "startedAt", "start_time")
_TIMEOUT_STATUS = 124  # coreutils timeout(1): "If the command times out, exit with status 124"


def parse_launch(source: Sequence[Line] | Mapping[str, Any] | Sequence[Any], *, file: str) -> Parsed:
    """
    Read a launcher's side file.

    Parameters
    ----------
    source : sequence of Line, or decoded JSON
        Command lines with or without a prompt, an environment (`KEY=value`), or an exit record such as
        `{"agents": [{"node": …, "exit_status": …, "signal": …, "ended": …}]}`, or `{"asked_to_end": true, "answered": [node, …]}`,
        or `{"supervisors": [{"node": …, "state": "alive", "last": …}], "waited": …}`.
    file : str
        Its name.

    Returns
    -------
    Parsed
        `jobs` has one record with exit code, signal, nodes and `data["agents"]`; `facts` has world_size, nnodes, nproc,
        max_restarts, nodes, launcher, rdzv_id and env as far as they are said; events `launch-agent-exit`, `launch-agent-
        signal`, `launch-timeout-124` and `launch-exit-zero`, one an agent; `run-node-silent`, one a supervisor without a sign of life.
    """
    if isinstance(source, Mapping) and "asked_to_end" in source:
        return _answers(source)
    if isinstance(source, Mapping) and isinstance(source.get("supervisors"), list):
        return _supervisors(source["supervisors"], source, file)
    if isinstance(source, Mapping):
        return _exit_record([source] if not isinstance(source.get("agents"), list) else source["agents"], source, file)
    if source and isinstance(source[0], Mapping):
        return _exit_record([row for row in source if isinstance(row, Mapping)], {}, file)
    return _commands([line for line in source if isinstance(line, Line)], file)


def _answers(source: Mapping[str, Any]) -> Parsed:
    """Who still spoke after `workbench run` had asked a job to end: silence then tells more than silence before."""
    out = Parsed()
    nodes, ranks = source.get("answered"), source.get("answered_ranks")
    out.facts.update(
        kind="answers",
        answered=[name for name in nodes if isinstance(name, str)] if isinstance(nodes, list) else [],
        answered_ranks=[rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else [],
    )
    return out


def _supervisors(rows: Sequence[Any], whole: Mapping[str, Any], file: str) -> Parsed:
    """Whose supervisors still gave signs of life after a failure; where ours could give none, the others' silence may be its own deafness."""
    out = Parsed()
    known = [row for row in rows if isinstance(row, Mapping) and _text(row.get("node"))]
    silent = [row for row in known if row.get("state") == "silent"]
    living = [str(row["node"]) for row in known if row.get("state") in ("alive", "ended")]
    out.facts.update(kind="supervisors")
    # each ran a part of this job, also a node of which nobody else has a line
    out.placements += [Placement(None, str(row["node"]), origin="launcher-line", file=file) for row in known]
    if whole.get("trouble") or not living:
        return out
    for row in silent:
        text = f"no sign of life from the supervisor of {row['node']} in {whole.get('waited')} s, last one {row.get('last')}"
        text += f"; of {', '.join(living[:4])} there were some"
        event = Event(
            "run-node-silent", "launcher", text=text[:2000], file=file, time=_time(row.get("last")), node=str(row["node"])
        )
        event.data = {"silent": len(silent), "of": len(known)}
        out.events.append(event)
    return out


# Exit records ---------------------------------------------------------------------------------------------------------


def _exit_record(agents: Sequence[Any], whole: Mapping[str, Any], file: str) -> Parsed:
    out = Parsed()
    job = JobRecord(source="launcher", file=file)
    job.id = _text(whole.get("job_id") or whole.get("id") or whole.get("rdzv_id"))
    kept: list[dict[str, Any]] = []
    for agent in agents:
        if not isinstance(agent, Mapping):
            continue
        code = next((n for key in _EXIT_KEYS if (n := _int(agent.get(key))) is not None), None)
        number = _signal(agent.get("signal"), code)
        node = _text(agent.get("node") or agent.get("host") or agent.get("hostname"))
        end = next((t for key in _END_KEYS if (t := _time(agent.get(key))) is not None), None)
        start = next((t for key in _START_KEYS if (t := _time(agent.get(key))) is not None), None)
        if code is None and number is None:
            continue
        kept.append({"node": node, "exit_code": code, "signal": number, "end": end})
        if node and node not in job.nodes:
            job.nodes.append(node)
        job.start = min((t for t in (job.start, start) if t is not None), default=None)
        job.end = max((t for t in (job.end, end) if t is not None), default=None)
        out.events.append(_agent_event(agent, node, code, number, end, file))
    if not kept:
        out.problems.append(Problem(file, "an exit record without an exit status", "", source="launcher", status="partial"))
        return out
    bad = [agent for agent in kept if agent["exit_code"] or agent["signal"]]
    first = min(bad, key=lambda a: (a["signal"] is None, a["end"] or float("inf")), default=kept[0])
    job.exit_code, job.signal = first["exit_code"], first["signal"]
    job.state = "FAILED" if bad else "COMPLETED"
    job.data = {"agents": kept}
    out.jobs.append(job)
    out.facts.update(kind="exit", agents=kept, nodes=list(job.nodes))
    return out


def _agent_event(
    agent: Mapping[str, Any], node: str | None, code: int | None, number: int | None, end: float | None, file: str
) -> Event:
    if number is not None:
        signature = "launch-agent-signal"
    elif code == _TIMEOUT_STATUS:
        signature = "launch-timeout-124"
    else:
        signature = "launch-agent-exit" if code else "launch-exit-zero"
    words = [f"{key}={value}" for key, value in agent.items() if isinstance(value, (str, int, float))]
    event = Event(signature, "launcher", text=" ".join(words)[:2000], file=file, time=end, node=node, code=code)
    event.data = {"signal": number}
    return event


def _signal(value: Any, code: int | None) -> int | None:
    """The number of the signal that ended a process, as its name, as a number, or as 128 + n or -n in the exit status."""
    if isinstance(value, str) and value:
        name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
        found = getattr(signals, name, None)
        return int(found) if found is not None else _int(value)
    if _int(value):
        return _int(value)
    if code is None:
        return None
    if code < 0:
        return -code
    return code - 128 if 128 < code <= 128 + 64 else None


# Command lines and environments ---------------------------------------------------------------------------------------


def _commands(lines: Sequence[Line], file: str) -> Parsed:
    out = Parsed()
    launches: list[tuple[str | None, Launch]] = []
    said: list[tuple[str, Launch, Line]] = []
    env: dict[str, str] = {}
    text = ""
    for line in lines:
        piece = (text + line.text.strip())[:32_768]
        if piece.endswith("\\"):
            text = piece[:-1] + " "
            continue
        text = ""
        prompt = _PROMPT.match(piece)
        node, command = (prompt.group("node"), prompt.group("rest")) if prompt else (None, piece)
        try:
            words = shlex.split(command, comments=not command.startswith("#SBATCH"))
        except ValueError:
            words = command.split()
        launch = parse_command(words)
        if launch:
            launches.append((node, launch))
            if node:
                said.append((node, launch, line))
            continue
        variable = _VARIABLE.match(piece)
        if variable and _KEPT.match(variable.group("key")):
            env[variable.group("key")] = variable.group("value").strip().strip("\"'")
    _facts(out, launches, env)
    out.events += _disagreements(said, file)
    _from_environment(out, env, file)
    if launches or env:
        job = JobRecord(source="launcher", file=file, nodes=list(out.facts.get("nodes", [])))
        job.id = out.facts.get("rdzv_id") or env.get("SLURM_JOB_ID")
        job.name = env.get("SLURM_JOB_NAME")
        job.data = {"commands": [launch.command for _, launch in launches][:64]}
        out.jobs.append(job)
    else:
        out.problems.append(Problem(file, "no command line of a known launcher in it", "", source="launcher", status="partial"))
    return out


_SHARED = ("master_port", "rdzv_endpoint", "rdzv_id", "nnodes")  # what every node of one job must be told alike


def _disagreements(said: Sequence[tuple[str, Launch, Line]], file: str) -> list[Event]:
    """
    Report nodes whose command lines give another meeting place, name or size of the job than the others': these agents never meet.

    The node that most others contradict is the odd one; of two, the one that is not the first (node rank 0 keeps the meeting place, so its word
    is right by definition).
    """
    events: list[Event] = []
    for name in _SHARED:
        told: dict[str, set[str]] = {}
        for node, launch, _ in said:
            value = getattr(launch, name)
            if value not in (None, ""):
                told.setdefault(node, set()).add(str(value))
        sets = [frozenset(values) for values in told.values()]
        if len(told) < 2 or any(one & other for one in sets for other in sets if one != other) or len(set(sets)) < 2:
            continue
        first = next((node for node, launch, _ in said if launch.node_rank == 0 and node in told), next(iter(told)))
        usual = max(set(sets), key=lambda values: (sets.count(values), values == frozenset(told[first])))
        for node, launch, line in said:
            if node in told and frozenset(told[node]) != usual and getattr(launch, name) is not None:
                event = Event("launch-disagrees", "launcher", text=line.text[:2000], file=file, line=line.no, node=node)
                event.data = {"setting": name, "others": sorted(usual)}
                events.append(event)
    return events


def _facts(out: Parsed, launches: list[tuple[str | None, Launch]], env: dict[str, str]) -> None:
    merged = Launch()
    for _, launch in launches:
        merged = merged.merge(launch)
    nodes = [node for node, _ in launches if node]
    nodes += [host for host in merged.hosts if host not in nodes]
    nnodes = merged.nnodes or _int(env.get("SLURM_NNODES") or env.get("SLURM_JOB_NUM_NODES"))
    if nnodes is None and merged.launcher and merged.standalone:
        nnodes = 1
    nproc = merged.nproc or _int(env.get("LOCAL_WORLD_SIZE") or env.get("OMPI_COMM_WORLD_LOCAL_SIZE"))
    world = merged.world or _int(env.get("WORLD_SIZE") or env.get("OMPI_COMM_WORLD_SIZE") or env.get("SLURM_NTASKS"))
    if world is None and nproc is not None:
        world = nproc * (nnodes or max(len(set(nodes)), 1))
    facts = {
        "kind": "launch" if launches else "environment",
        "world_size": world,
        "nnodes": nnodes,
        "nproc": nproc,
        "max_restarts": merged.max_restarts,
        "launcher": merged.launcher,
        "rdzv_id": merged.rdzv_id,
        "rdzv_endpoint": merged.rdzv_endpoint or env.get("MASTER_ADDR"),
        "nodes": list(dict.fromkeys(nodes)),
        "local_ranks_filter": merged.local_ranks_filter,
        "env": env,
    }
    out.facts.update({key: value for key, value in facts.items() if value not in (None, [], {}, "")})


def _from_environment(out: Parsed, env: dict[str, str], file: str) -> None:
    rank = _int(env.get("RANK") or env.get("OMPI_COMM_WORLD_RANK") or env.get("SLURM_PROCID"))
    node = env.get("SLURMD_NODENAME") or env.get("NODE_NAME") or env.get("HOSTNAME")
    if rank is None or node is None:
        return
    local = _int(env.get("LOCAL_RANK") or env.get("OMPI_COMM_WORLD_LOCAL_RANK") or env.get("SLURM_LOCALID"))
    attempt = _int(env.get("TORCHELASTIC_RESTART_COUNT"))
    out.placements.append(
        Placement(rank, node, local_rank=local, pod=env.get("POD_NAME"), attempt=attempt, origin="process-environment", file=file)
    )


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value) else None


def _time(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 1e8 < value < 1e11 else None
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
        if moment.tzinfo is None:
            from datetime import UTC

            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    return None
