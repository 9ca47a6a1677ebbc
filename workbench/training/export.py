"""Turn a policy of retries into what Kubernetes and Slurm can do of it by themselves, and say in comments what they cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.errors import ConfigError
from workbench.training.policy import Policy

__all__ = ["JOB_KINDS", "TARGETS", "Shape", "export"]

TARGETS = ("kubernetes", "slurm")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")  # of a job: its pods' names are longer and have 63 letters
_NODE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./:@]{0,254}")
CHECKPOINT_SECONDS = 120  # between the warning and the end: ours, a guess at one save; comments say to put in what was measured


@dataclass(frozen=True, slots=True)
class Shape:
    """
    What the job is, as far as its manifest needs it.

    Attributes
    ----------
    name : str
        A DNS label of at most 40 letters.
    image : str
        Container image.
    nodes : int
        How many it runs on; 0 is the policy's ``nodes.have``, or one.
    exclude : tuple of str
        Nodes that it is kept off.
    """

    name: str = "train"
    image: str = "IMAGE"
    nodes: int = 0
    exclude: tuple[str, ...] = ()


def export(target: str, policy: Policy, shape: Shape | None = None, *, job_kind: str = "Job") -> str:
    """
    Return a manifest (or the head of a batch script) that does of a policy what its target can do.

    Parameters
    ----------
    target : str
        One of `TARGETS`.
    policy : Policy
    shape : Shape, optional
    job_kind : str, optional
        One of `JOB_KINDS`; of Kubernetes only.

    Raises
    ------
    ConfigError
        A name would be refused by the target, or could break out of its place in the text.
    """
    what = _checked(shape or Shape(), policy)
    if target == "slurm":
        return _slurm(policy, what)
    if target != "kubernetes":
        raise ConfigError(f"{target!r} is none of {', '.join(TARGETS)}")
    if job_kind not in JOB_KINDS:
        raise ConfigError(f"{job_kind!r} is none of {', '.join(JOB_KINDS)}")
    return _KINDS[job_kind](policy, what)


def _checked(shape: Shape, policy: Policy) -> Shape:
    for value, pattern, what in ((shape.name, _NAME, "name of a job"), (shape.image, _IMAGE, "image")):
        if not pattern.fullmatch(value):
            raise ConfigError(f"{value!r} is no {what}")
    for node in shape.exclude:
        if not _NODE.fullmatch(node):
            raise ConfigError(f"{node!r} is no name of a node")
    nodes = shape.nodes or policy.nodes_have or max(1, policy.nodes_min)
    if nodes < policy.nodes_min:
        raise ConfigError(f"{nodes} nodes are fewer than nodes.min = {policy.nodes_min}")
    return Shape(shape.name, shape.image, nodes, tuple(dict.fromkeys(shape.exclude)))


def _elastic(policy: Policy, shape: Shape) -> bool:
    """Whether the job goes on with fewer nodes: only where the site's policy says so, since most launchers cannot."""
    return "nodes.min" in policy.origin and shape.nodes > policy.nodes_min


def _comment(text: str, width: int = 138, lead: str = "# ") -> str:
    """Return text as comment lines; what it holds cannot end the comment."""
    import textwrap

    lines: list[str] = []
    for part in text.strip().split("\n"):
        lines += textwrap.wrap(" ".join(part.split()), width, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join((lead + line).rstrip() for line in lines)


def _head(policy: Policy, target: str, cannot: Sequence[str]) -> str:
    origin = ", ".join(dict.fromkeys(place.rsplit(":", 1)[0] for place in policy.origin.values())) or "shipped policy"
    origin = origin.encode("ascii", "backslashreplace").decode()
    lines = [f"Written by `workbench policy export` from the {origin}. {target} cannot express, and `workbench run` does:"]
    return _comment("\n".join([*lines, *(f"- {one}" for one in cannot)])) + "\n"


def _cannot(policy: Policy) -> list[str]:
    """Return what no scheduler can express of a policy."""
    budgets = ", ".join(f"{cause} {policy.budget(cause)}" for cause in ("hardware", "driver", "platform", "user", "unknown"))
    blind = "it sees exit codes, and a launcher ends with 1 whatever the cause; so the blind bound is that of unknown"
    storm = f"the storm guard (more than {policy.storm_limit} restarts of other jobs in {policy.storm_window:.0f} s)"
    return [
        f"budgets by cause ({budgets}): {blind}",
        "leaving out the node that is to blame: it may start on the same node again; --exclude or --run writes those known so far",
        f"stopping after {policy.progress_restarts} restarts in a row without progress: it does not know the step",
        f"waiting for what is broken outside the job, and {storm}",
    ]


# ---- Kubernetes ------------------------------------------------------------------------------------------------------------------------------


def _affinity(shape: Shape, indent: int) -> str:
    if not shape.exclude:
        return ""
    text = f"""\
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - key: kubernetes.io/hostname
          operator: NotIn
          values: {json.dumps(list(shape.exclude))}
"""
    return "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())


def _pod(shape: Shape, indent: int, container: str = "main", restart: str = "Never") -> str:
    """Return a pod's spec; what a site has to fill in stands in capitals."""
    text = f"""\
restartPolicy: {restart}
terminationGracePeriodSeconds: {CHECKPOINT_SECONDS}  # as long as one checkpoint takes to save: put in what was measured
containers:
- name: {container}
  image: {shape.image}
  command: ["workbench", "run", "--", "torchrun", "--nproc-per-node=gpu", "train.py"]
"""
    body = "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())
    return _affinity(shape, indent) + body


def _rules(policy: Policy, indent: int, disruption: str, container: str = "main") -> str:
    text = f"""\
podFailurePolicy:
  rules:
  - action: {disruption}  # preempted, evicted, drained: no failure, costs no budget
    onPodConditions:
    - type: DisruptionTarget
      status: "True"
"""
    if policy.certain_exit_codes:
        text += f"""\
  - action: FailJob  # the command line is wrong, and stays so
    onExitCodes:
      containerName: {container}
      operator: In
      values: {json.dumps(list(policy.certain_exit_codes))}
"""
    return "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())


def _job(policy: Policy, shape: Shape) -> str:
    cannot = [
        *_cannot(policy),
        "starting all pods again when one fails, which a collective needs: a Job replaces the one pod (--job-kind JobSet starts all)",
        "its own back-off: the Job controller's is 10 s, doubled, at most 6 minutes, whatever [backoff] says, also after a preemption",
    ]
    return (
        _head(policy, "A Job", cannot)
        + f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: {shape.name}
spec:
  completionMode: Indexed
  completions: {shape.nodes}
  parallelism: {shape.nodes}
  backoffLimit: {policy.budget_unknown}  # budget.unknown
  podReplacementPolicy: Failed  # a pod that still ends holds its GPUs
"""
        + _rules(policy, 2, "Ignore")
        + """\
  template:
    spec:
"""
        + _pod(shape, 6)
    )


def _job_set(policy: Policy, shape: Shape) -> str:
    cannot = [*_cannot(policy), "any back-off: JobSet starts again at once"]
    wrong = (
        f"""\
    - name: commandIsWrong
      action: FailJobSet
      onJobFailureReasons: ["PodFailurePolicy"]
      onJobFailureMessagePatterns: ["failed with exit code ({"|".join(map(str, policy.certain_exit_codes))}) matching FailJob rule"]
"""
        if policy.certain_exit_codes
        else ""
    )
    return (
        _head(policy, "A JobSet", cannot)
        + f"""\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {shape.name}
spec:
  failurePolicy:
    maxRestarts: {policy.budget_unknown}  # budget.unknown; what no rule matches counts against it
    restartStrategy: BlockingRecreate  # all old pods are gone before the new ones start: they hold GPUs and ports
    rules:  # the first that matches
"""
        + wrong
        + """\
    - name: preempted  # no failure, costs no budget
      action: RestartJobSetAndIgnoreMaxRestarts
      onJobFailureReasons: ["PodFailurePolicy"]
      onJobFailureMessagePatterns: ["has condition DisruptionTarget matching FailJob rule"]
  replicatedJobs:
  - name: nodes
    replicas: 1
    template:
      spec:
"""
        + f"""\
        completionMode: Indexed
        completions: {shape.nodes}
        parallelism: {shape.nodes}
        backoffLimit: 0  # one pod that fails ends all of them: a collective without it would only hang
"""
        + _rules(policy, 8, "FailJob")
        + """\
        template:
          spec:
"""
        + _pod(shape, 12)
    )


def _pytorch_job(policy: Policy, shape: Shape) -> str:
    cannot = [
        *_cannot(policy),
        "which exit codes are final: restartPolicy ExitCode takes 1 to 127 for final, and torchrun ends with 1 also when a GPU is lost",
        "preemptions that cost no budget: every restart counts against backoffLimit",
    ]
    elastic = _elastic(policy, shape)
    part = (
        f"""\
  elasticPolicy:
    minReplicas: {policy.nodes_min}  # nodes.min: below it the job waits for nodes
    maxReplicas: {shape.nodes}
    maxRestarts: {policy.budget_unknown}  # budget.unknown
    rdzvBackend: c10d
"""
        if elastic
        else ""
    )

    def replica(name: str, count: int) -> str:
        pod = _pod(shape, 10, "pytorch").replace("          restartPolicy: Never\n", "")
        return f"""\
    {name}:
      replicas: {count}
      restartPolicy: OnFailure
      template:
        spec:
{pod}"""

    workers = (
        replica("Worker", shape.nodes)
        if elastic
        else replica("Master", 1) + (replica("Worker", shape.nodes - 1) if shape.nodes > 1 else "")
    )
    return (
        _head(policy, "A PyTorchJob", cannot)
        + f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {shape.name}
spec:
  runPolicy:
    backoffLimit: {policy.budget_unknown}  # budget.unknown
    cleanPodPolicy: None  # logs of failed pods are the evidence
{part}  pytorchReplicaSpecs:
{workers}"""
    )


# ---- Slurm -----------------------------------------------------------------------------------------------------------------------------------


def _slurm(policy: Policy, shape: Shape) -> str:
    elastic = _elastic(policy, shape)
    nodes = f"{policy.nodes_min}-{shape.nodes}" if elastic else str(shape.nodes)
    count = "SLURM_RESTART_COUNT counts both; so the guard below counts starts that follow each other closely, and holds the job rather than"
    cannot = [
        *_cannot(policy),
        f"telling a requeue after a preemption from one after a failure: {count} end it: `scontrol release JOB` goes on",
        "a requeue when the job itself fails: Slurm requeues after node failure, preemption and a failed prolog only",
    ]
    lines = [
        "#!/bin/bash",
        _head(policy, "Slurm", cannot).rstrip("\n"),
        f"#SBATCH --job-name={shape.name}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{CHECKPOINT_SECONDS}",
    ]
    if shape.exclude:
        lines.append(f"#SBATCH --exclude={','.join(shape.exclude)}")
    if elastic:
        lines += [
            "# the job goes on with the nodes that remain: for launchers that can (torchrun --nnodes MIN:MAX)",
            "#SBATCH --no-kill",
        ]
    limit, window = policy.budget_unknown, int(policy.progress_unseen)
    signal = f"GraceTime={CHECKPOINT_SECONDS} of the partition and SlurmctldParameters=preempt_send_user_signal"
    conf = [
        "slurm.conf that this expects (`scontrol show config` shows it):",
        "JobRequeue=1 : node failures and preemptions requeue; --requeue above asks for it also where it is 0",
        f"PreemptMode=REQUEUE, {signal} : time to save a checkpoint before a preemption, and the signal that says so",
        "RequeueExit, RequeueExitHold : leave them empty; an exit code does not tell the cause, and every defect in the code would run for ever",
        "KillOnBadExit=1 : a task that ends badly ends its step, instead of a hang until the collective's time-out",
    ]
    guard = f"""\
# more than {limit} (budget.unknown) restarts within {window} s (progress.unseen): something restarts it without end
starts="$PWD/.workbench-starts-$SLURM_JOB_ID"
now=$(date +%s)
echo "$now" >>"$starts"
if [ "$(awk -v now="$now" 'now - $1 < {window}' "$starts" | wc -l)" -gt {limit + 1} ]; then
  echo "more than {limit} restarts within {window} s: held; scontrol release $SLURM_JOB_ID goes on" >&2
  : >"$starts"
  scontrol requeuehold "$SLURM_JOB_ID"
  exit 75
fi
# exec: the signal before the time limit and before a preemption goes to it, and it passes it on
exec workbench run -- srun --kill-on-bad-exit=1 python train.py
"""
    return "\n".join([*lines, _comment("\n".join(conf)), guard])


_KINDS: dict[str, Callable[[Policy, Shape], str]] = {"Job": _job, "JobSet": _job_set, "PyTorchJob": _pytorch_job}
JOB_KINDS = tuple(_KINDS)
