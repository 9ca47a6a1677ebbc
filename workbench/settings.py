"""Turn each thing that a site can set into a row: its key, kind, meaning, default, and the variables that people export anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["SETTINGS", "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """
    One thing that can be set.

    Attributes
    ----------
    key : str
        Section and name as in the file: ``prometheus.url``.
    kind : str
        ``text``, ``url``, ``path``, ``flag``, ``number``, ``time`` (30s, 5m, 2h, 1d), ``size`` (512MiB), ``words`` (a list of texts),
        ``table`` (texts by name) or ``secret`` (the name of a file that holds it, or an environment variable).
    meaning : str
        What it does, in a line.
    default : Any
        Value when nobody sets it.
    exported : tuple of str
        Variables that other tools read and people export anyway.
    choices : tuple of str
        The only values, when there are few.
    """

    key: str
    kind: str
    meaning: str
    default: Any = None
    exported: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable of our own that sets it."""
        return "WORKBENCH_" + self.key.replace(".", "_").upper()


def _server(section: str, what: str, *exported: str) -> tuple[Setting, ...]:
    return (
        Setting(f"{section}.url", "url", f"address of {what}", exported=exported),
        Setting(f"{section}.token", "secret", "bearer token: `token_file` names a file that holds it"),
        Setting(f"{section}.username", "text", "name for basic authentication"),
        Setting(f"{section}.password", "secret", "its password: `password_file` names a file that holds it"),
        Setting(f"{section}.headers", "table", "headers sent with each request, such as X-Scope-OrgID"),
        Setting(f"{section}.ca", "path", "certificates of the authority that signed the server's"),
        Setting(f"{section}.certificate", "path", "client certificate (PEM)"),
        Setting(f"{section}.key", "path", "its private key (PEM)"),
        Setting(f"{section}.verify", "flag", "check the server's certificate", True),
        Setting(f"{section}.enabled", "flag", "ask it at all", True),
    )


SETTINGS: tuple[Setting, ...] = (
    Setting("profile", "text", "the profile used when none is named"),
    Setting("deadline", "time", "how long one source may take", 30.0),
    Setting("since", "time", "how far back evidence is looked for when nothing tells when the job ran", 6 * 3600.0),
    Setting("limit", "size", "bytes that a collected incident may have", 2 << 30),
    *_server("prometheus", "Prometheus, Thanos, Mimir or VictoriaMetrics", "PROMETHEUS_URL", "PROM_URL"),
    Setting("prometheus.job_label", "text", "label that carries the job's name, when your relabelling adds one"),
    *_server("elasticsearch", "Elasticsearch or OpenSearch", "ELASTICSEARCH_URL", "ES_URL", "OPENSEARCH_URL"),
    Setting(
        "elasticsearch.api_key",
        "secret",
        "API key: `api_key_file` names a file that holds it",
        exported=("ELASTICSEARCH_API_KEY", "ES_API_KEY"),
    ),
    Setting("elasticsearch.index", "text", "indices or data streams that hold job logs", "logs-*,filebeat-*,fluent-bit-*"),
    Setting(
        "elasticsearch.fields",
        "text",
        "how fields are named; `auto` looks at the mapping",
        "auto",
        choices=("auto", "ecs", "beats", "fluentbit", "vector", "otel", "custom"),
    ),
    Setting(
        "elasticsearch.custom",
        "table",
        "names of your fields: message, time, pod, node, container, namespace, job, rank, file, offset",
    ),
    Setting(
        "elasticsearch.product",
        "text",
        "which client is used (an address from OPENSEARCH_URL means opensearch)",
        "elasticsearch",
        choices=("elasticsearch", "opensearch"),
    ),
    Setting("kubernetes.kubeconfig", "path", "default: ~/.kube/config, else the pod's own account", exported=("KUBECONFIG",)),
    Setting("kubernetes.context", "text", "context of the kubeconfig"),
    Setting("kubernetes.namespace", "text", "namespace of jobs; default: all that may be read"),
    Setting("kubernetes.machines", "path", "kubeconfig of Cluster API's management cluster; default: the same"),
    Setting("kubernetes.enabled", "flag", "ask it when a kubeconfig or a pod's account is there", True),
    Setting("slurm.prefix", "words", 'words in front of sacct and scontrol, such as ["ssh", "login-1"]', ()),
    Setting("slurm.enabled", "flag", "ask it when sacct is there or a prefix is set", True),
    Setting("health.gpus", "number", "how many GPUs this node should have; 0 for a node without"),
    Setting("health.mounts", "words", "file systems that must be mounted, answer and have space"),
    Setting(
        "health.required",
        "words",
        "checks that make the node unfit while they are critical or unknown, beside those that do anyway",
    ),
    Setting("health.optional", "words", "checks that never make the node unfit"),
    Setting("health.driver", "text", "version of the driver that the node should have, or its begin: 570 or 570.133.20"),
    Setting("health.vbios", "text", "version of the VBIOS that all GPUs should have"),
    Setting("health.persistence", "flag", "whether persistence mode should be on", True),
    Setting("health.compute_mode", "text", "compute mode that GPUs should have: Default, Exclusive_Process"),
    Setting("health.mig", "text", "off, on, how many MIG instances each GPU should have, or which: 1g.10gb=4,3g.40gb=1"),
    Setting("health.exclusive", "flag", "jobs get whole nodes: before one starts nobody may compute on a GPU", False),
    Setting("health.dcgm", "flag", "DCGM must be there and list the same GPUs", False),
    Setting("health.state", "path", "folder for what must outlive a run", "/var/lib/workbench"),
    Setting("health.space_warning", "number", "percent of space or inodes left that is little; 5 when not set"),
    Setting("health.space_critical", "number", "percent of space or inodes left that is none; 0.5 when not set"),
    Setting("health.mount_seconds", "time", "how long a mounted file system has to answer; 5s when not set"),
    Setting("health.memory", "size", "memory of the node, as /proc/meminfo says on a good one, such as 2015GiB"),
    Setting("health.smart", "flag", "ask every disk for its SMART; not having it is unknown then"),
    Setting("health.clock_offset", "time", "by how much the clock may be off; 50ms when not set"),
    Setting("health.units", "words", "systemd units that must run, such as slurmd and nvidia-fabricmanager"),
    Setting("health.memlock", "text", "locked memory that jobs must be allowed: unlimited, or a size"),
    Setting("health.files", "number", "open files that jobs must be allowed"),
    Setting("health.shm", "size", "size that /dev/shm must have"),
    Setting("health.blocked", "number", "how many processes waiting in the kernel are too many; 10 when not set"),
    Setting("health.containers", "flag", "jobs run in containers: a node that cannot give them its GPUs is unfit"),
    Setting("health.ports", "number", "how many RDMA ports (InfiniBand, RoCE, EFA) must be active"),
    Setting("health.port_rate", "number", "Gb/s that a port must run at to count"),
    Setting("health.port_names", "words", "RDMA devices and network interfaces that must be up, such as mlx5_0 and ens10f0"),
    Setting("health.diag", "number", "level 1 to 4 of dcgmi diag with --context idle; 1 when not set"),
    Setting("health.probe_python", "path", "a Python with torch or cupy, for products of matrices with --context idle"),
    Setting("health.checks_folder", "words", "folders of executables that are checks of your own"),
    Setting("remediation.policy", "path", "file that says what may be done, how much at once, and what needs no person"),
    Setting("remediation.journal", "path", "file in which every intent and outcome is kept", "/var/lib/workbench/journal.jsonl"),
    Setting("remediation.folder", "path", "folder for evidence, reports and runs of commands", "/var/lib/workbench/remediation"),
    Setting(
        "remediation.scheduler",
        "text",
        "what changes nodes; `auto`: Kubernetes when it is configured, else Slurm, else none: a list and the policy's commands",
        "auto",
        choices=("auto", "kubernetes", "slurm", "none"),
    ),
    Setting("report.redact", "words", "names that no report may show, such as those of hosts and projects; @FILE: one a line"),
    Setting(
        "report.template",
        "text",
        "the postmortem's: google, atlassian, pagerduty, or the path of your own (site.md.j2)",
        "google",
    ),
    Setting(
        "report.prices",
        "table",
        'price of a GPU-hour by product, such as H100 = "2.50"; `default` for all others, `currency` names the currency',
    ),
    Setting(
        "teams.namespaces",
        "table",
        'whose the jobs of a namespace are, such as ml-speech = "speech" or "nlp-*" = "language"; decides over labels of pods',
    ),
    Setting(
        "teams.accounts", "table", 'whose the jobs of an account of Slurm are, such as proj0042 = "vision"; * stands for anything'
    ),
    Setting("inbox.folder", "path", "folder of the inbox that `workbench watch` fills", "/var/lib/workbench/inbox"),
    Setting("inbox.link", "url", "address of `workbench serve`, for links in messages; {id} in it stands for the incident"),
    Setting("inbox.keep", "time", "how long an incident stays in the inbox", 180 * 86400.0),
    Setting("inbox.keep_evidence", "time", "how long its evidence stays; verdict and case file stay longer", 30 * 86400.0),
    Setting(
        "inbox.limit",
        "size",
        "bytes of evidence in the inbox; what is closed goes first, then the oldest",
        50 << 30,
    ),
    Setting("notify.slack", "secret", "address of a Slack-compatible incoming webhook: `slack_file` names a file that holds it"),
    Setting("notify.webhook", "secret", "address that messages are posted to as JSON: `webhook_file` names a file that holds it"),
    Setting("notify.states", "flag", "tell those who were told of an incident when somebody sets its state, too", False),
    Setting("notify.token", "secret", "bearer token for that webhook: `token_file` names a file that holds it"),
    Setting("fleet.ledger", "path", "file of the fleet's account", "~/.local/share/workbench/fleet.sqlite"),
    Setting("fleet.cluster", "text", "name of this cluster in the account, where several share one", ""),
    Setting(
        "fleet.objectives",
        "path",
        "OpenSLO file with the targets of this fleet (`workbench fleet objectives --openslo` writes one to begin with)",
    ),
    Setting(
        "fleet.gamedays",
        "path",
        "folder that `workbench gameday --into` wrote, or one that holds several: shown on the page of the account",
        "~/.local/share/workbench/gamedays",
    ),
    Setting(
        "training.durable",
        "words",
        "folders of checkpoints that outlive the pod and the node, whatever their mount looks like",
        (),
    ),
    Setting("training.scratch", "words", "folders of checkpoints that do not", ()),
    Setting("node.enabled", "flag", "read this machine's own GPUs and kernel log, when the job ran on it", True),
)
