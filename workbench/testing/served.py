"""Turn an incident folder into a whole site on loopback: its servers and commands, and the environment that names them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.config import SETTINGS
from workbench.testing.elasticsearch import Elasticsearch
from workbench.testing.evidence import Evidence
from workbench.testing.faults import FaultServer
from workbench.testing.kubernetes import Kubernetes, kubeconfig
from workbench.testing.prometheus import Prometheus
from workbench.testing.slurm import Slurm

if TYPE_CHECKING:
    from workbench.config import Config

__all__ = ["Site", "site"]


@dataclass
class Site:
    """
    A running site.

    Attributes
    ----------
    evidence : Evidence
        What it tells.
    job, namespace : str
        The job of the incident.
    since, until : float
        When it ran, seconds since the epoch.
    environ : dict
        ``KUBECONFIG``, ``PROMETHEUS_URL``, ``ELASTICSEARCH_URL``, ``PATH`` … to be laid over a process's own environment. A kind of server
        that the folder has nothing of is not named.
    servers : dict
        ``prometheus``, ``kubernetes``, ``elasticsearch`` → `FaultServer`; set `fault` on one to let it fail.
    prometheus, kubernetes, elasticsearch, slurm
        What answers behind them; None where the folder has nothing for it.
    """

    evidence: Evidence
    job: str
    namespace: str | None
    since: float
    until: float
    environ: dict[str, str] = field(default_factory=dict)
    servers: dict[str, FaultServer] = field(default_factory=dict)
    prometheus: Prometheus | None = None
    kubernetes: Kubernetes | None = None
    elasticsearch: Elasticsearch | None = None
    slurm: Slurm | None = None
    prefix: Path | None = None

    @property
    def words(self) -> list[str]:
        """The words of a command line that name the job and its window: ``--job NAME --since … --until …``."""
        return ["--job", self.job, "--since", _stamp(self.since), "--until", _stamp(self.until)]

    @property
    def config(self) -> Config:
        """The settings that name this site, for what runs in this process."""
        from workbench.config import load_config

        # a process finds sacct on its PATH; within this one a prefix finds it
        more = {"WORKBENCH_SLURM_PREFIX": str(self.prefix)} if self.prefix else {"WORKBENCH_SLURM_ENABLED": "false"}
        return load_config(environ={**self.environ, **more})


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def site(folder: str | Path, *, job: str = "") -> Iterator[Site]:
    """
    Serve an incident folder as the site on which it happened, until the block ends.

    Parameters
    ----------
    folder : str or Path
        An incident folder, or an archive of it.
    job : str
        The job's name, where nothing in the folder tells it.

    Yields
    ------
    Site
        With the environment in which ``workbench triage --job`` works.

    Examples
    --------
    >>> with site("incident/") as here:  # doctest: +SKIP
    ...     subprocess.run(["workbench", "triage", *here.words], env=os.environ | here.environ)
    """
    evidence = Evidence(Path(folder), job)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workbench-site-")))
        here = Site(evidence, evidence.job, evidence.namespace, *evidence.window)
        # this machine is none of the site's, and what it has itself must not be asked
        here.environ = {"WORKBENCH_NODE_ENABLED": "false", "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        # the servers are Python like what asks them: on a loaded machine they are slow, and a slow source would change the verdict
        here.environ["WORKBENCH_DEADLINE"] = "120s"
        here.environ |= {variable: "" for setting in SETTINGS for variable in setting.exported} | {"HOME": str(place)}
        if evidence.objects:
            here.kubernetes = Kubernetes(evidence)
            server = here.servers["kubernetes"] = stack.enter_context(FaultServer(here.kubernetes))
            here.environ["KUBECONFIG"] = str(kubeconfig(place, server.url, namespace=None))
        if evidence.series:
            here.prometheus = Prometheus(evidence)
            here.servers["prometheus"] = stack.enter_context(FaultServer(here.prometheus))
            here.environ["PROMETHEUS_URL"] = here.servers["prometheus"].url
        if evidence.job_lines or evidence.kernel_lines:
            here.elasticsearch = Elasticsearch(evidence)
            here.servers["elasticsearch"] = stack.enter_context(FaultServer(here.elasticsearch))
            here.environ["ELASTICSEARCH_URL"] = here.servers["elasticsearch"].url
        slurm = Slurm(evidence)
        if slurm.empty:
            here.environ["WORKBENCH_SLURM_ENABLED"] = "false"
        else:
            here.slurm, here.prefix = slurm, slurm.install(place / "bin") / "slurm"
            here.environ["PATH"] = f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        yield here
