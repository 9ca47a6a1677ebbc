"""Turn settings into the live sources that they name, and into a word about each that they do not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.sources.contract import Answer, Source

if TYPE_CHECKING:
    from workbench.config import Config

__all__ = ["sources_of"]

_POD_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def sources_of(config: Config) -> tuple[list[Source], list[Answer]]:
    """
    Return the sources of a site, and an answer ``missing`` for each that is not configured: who was not asked could not tell.

    Whatever is imported here is imported only for a source that is there.
    """
    sources: list[Source] = []
    missing: list[Answer] = []
    for name, word, build, there, hint in (
        (
            "kubernetes",
            "kubernetes",
            _kubernetes,
            _has_kubernetes(config),
            "export KUBECONFIG, or set kubernetes.kubeconfig in workbench.toml",
        ),
        (
            "slurm",
            "slurm",
            _slurm,
            bool(config["slurm.prefix"]) or shutil.which("sacct") is not None,
            'run it where sacct is, or set slurm.prefix = ["ssh", "login-node"] in workbench.toml',
        ),
        (
            "prometheus",
            "metrics",
            _prometheus,
            bool(config["prometheus.url"]),
            "export PROMETHEUS_URL, or set prometheus.url in workbench.toml",
        ),
        (
            "elasticsearch",
            "job",
            _elasticsearch,
            bool(config["elasticsearch.url"]),
            "export ELASTICSEARCH_URL, or set elasticsearch.url in workbench.toml",
        ),
        ("node", "kernel", _node, True, ""),
    ):
        if not config[f"{name}.enabled"]:
            missing.append(Answer(word, "missing", f"{name} is switched off by {config.origin(f'{name}.enabled')}"))
        elif there:
            sources.append(build(config))
        elif name not in ("kubernetes", "slurm"):  # a site has one scheduler; the other is not missed
            missing.append(Answer(word, "missing", f"{name} is not configured", hint))
    if not any(source.name in ("kubernetes", "slurm") for source in sources):
        missing.append(
            Answer(
                "workbench",
                "missing",
                "no scheduler is configured: where the job ran is known only from labels of metrics and logs",
                "export KUBECONFIG, or run it where sacct is",
            )
        )
    return sources, missing


def _has_kubernetes(config: Config) -> bool:
    return bool(
        config["kubernetes.kubeconfig"]
        or config["kubernetes.context"]
        or _POD_ACCOUNT.exists()
        or Path(os.environ.get("HOME", "/nonexistent"), ".kube", "config").exists()
    )


def _kubernetes(config: Config) -> Source:
    from workbench.sources.kubernetes.source import Kubernetes

    return Kubernetes(config["kubernetes.kubeconfig"], config["kubernetes.context"], namespace=config["kubernetes.namespace"])


def _slurm(config: Config) -> Source:
    from workbench.sources.slurm.source import Slurm

    return Slurm(config["slurm.prefix"])


def _prometheus(config: Config) -> Source:
    from workbench.sources.prometheus.source import Prometheus

    of = config.section("prometheus")
    names = ("token", "username", "password", "ca", "certificate", "key", "verify", "headers", "job_label")
    return Prometheus(of["url"], **{name: of[name] for name in names})


def _elasticsearch(config: Config) -> Source:
    from workbench.sources.elasticsearch.source import Access, LogIndex

    of = config.section("elasticsearch")
    access = Access(
        of["url"],
        product="opensearch" if config.origin("elasticsearch.url").endswith(" OPENSEARCH_URL") else of["product"],
        user=of["username"] or "",
        password=of["password"] or "",
        api_key=of["api_key"] or "",
        bearer=of["token"] or "",
        ca=of["ca"] or "",
        certificate=of["certificate"] or "",
        key=of["key"] or "",
        verify=of["verify"],
        headers=of["headers"] or {},
    )
    preset = "" if of["fields"] == "auto" else of["fields"]
    return LogIndex(access, of["index"], preset=preset, fields=of["custom"] or {})


def _node(config: Config) -> Source:
    from workbench.sources.node.source import ThisNode

    return ThisNode()
