"""Turn a running Slurm or Kubernetes, and files that show GPUs, into what the fleet's ledger takes in."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.config import Config
    from workbench.fleet.ingest.told import Told

__all__ = ["from_kubernetes", "from_slurm", "gpus_of", "only_gpus", "shows_gpus"]

# what shows which GPU is where; of JSON of Kubernetes the account reads more, so a file of it is not only this
_ONLY_GPUS = ("smi", "metrics-text", "metrics-json", "kubelet-devices")
_HEAD = 1 << 16
_PREFIX = re.compile(rb"(?m)^[\w.-]+: ?")  # of pdsh and clush
_WHOLE = 512 << 20  # bytes of one listing: nvidia-smi -q of a thousand nodes


def from_slurm(config: Config, since: float, until: float, *, cluster: str = "") -> Told:
    """
    Ask Slurm's own commands for jobs and nodes of a time; what fails is a problem.

    Parameters
    ----------
    config : Config
        ``slurm.prefix`` and ``deadline``.
    since, until : float
        Seconds since the epoch.
    cluster : str
    """
    from workbench.fleet.ingest.paths import of_bytes
    from workbench.fleet.ingest.told import Told
    from workbench.sources.contract import Deadline
    from workbench.sources.slurm.history import history
    from workbench.sources.slurm.source import Slurm

    told = Told()
    given, problems = history(Slurm(config["slurm.prefix"]), since, until, Deadline(float(config["deadline"])))
    told.problems += problems
    for asked, text in given:
        found = of_bytes(text, file=asked, recorded=time.time(), cluster=cluster)
        # a cluster without a job in that time, or with all nodes in order, has told all the same
        found.problems = [one for one in found.problems if one.message != "no job or node is told"]
        told.extend(found)
    return told


def from_kubernetes(config: Config, *, cluster: str = "") -> Told:
    """Ask the API server for jobs, pods, nodes, events and device slices; what may not be read is a problem. As `from_slurm`."""
    from workbench.fleet.ingest.kubernetes import of_kubernetes
    from workbench.fleet.ingest.told import Told
    from workbench.sources.contract import Deadline
    from workbench.sources.kubernetes.api import Api
    from workbench.sources.kubernetes.everything import everything

    api = Api(config["kubernetes.kubeconfig"], config["kubernetes.context"])
    items, problems = everything(api, Deadline(float(config["deadline"])), namespace=config["kubernetes.namespace"])
    told = of_kubernetes(items, file="kubernetes", recorded=time.time(), cluster=cluster) if items else Told()
    told.problems += problems
    return told


def shows_gpus(name: str, head: bytes) -> bool:
    """Tell whether a file shows GPUs and nothing else that the account reads: of nvidia-smi, of NVML, of metrics."""
    return _kind_of(name, head[:_HEAD]) in _ONLY_GPUS


def _kind_of(name: str, head: bytes) -> str:
    from workbench.sources.sniff import kind_of

    kind = kind_of(name, head)
    if kind in ("text", "job-log"):  # nvidia-smi of many nodes, each line with its node in front
        bare, number = _PREFIX.subn(b"", head)
        if number > head.count(b"\n") // 2 and kind_of(name, bare) == "smi":
            return "smi"
    return kind


def gpus_of(path: Path, *, cluster: str = "", data: bytes | None = None) -> Told:
    """
    Return which GPUs were seen where, by the files below a path that show them; `data` in place of the path's content.

    A sighting has the time that the file names, else that of the file itself.
    """
    from workbench.fleet.ingest.devices import of_parsed
    from workbench.fleet.ingest.told import Told
    from workbench.incident import parse_document
    from workbench.sources.files import Document, Limits, read_files
    from workbench.sources.survey import survey
    from workbench.sources.walk import find

    told, limits = Told(), Limits(whole=_WHOLE, text=_WHOLE)
    found, problems = find(["-" if data is not None else path], limits.files)
    told.problems += problems if data is not None or not path.is_dir() else []
    whole = survey(found, limits)  # names of nodes are known by all names together
    if data is None and path.is_dir():
        found = [one for one in found if _kind(Path(one.path)) in (*_ONLY_GPUS, "kubernetes")]
    for document in read_files(found, whole, stdin=io.BytesIO(data) if data is not None else None):
        if not isinstance(document, Document):
            told.problems.append(document)
            continue
        begin = b"\n".join(line.text.encode() for line in document.lines[:400])
        if document.kind in ("text", "job-log") and _kind_of(document.name, begin) == "smi":
            document.kind = "smi"
        if document.kind not in (*_ONLY_GPUS, "kubernetes"):
            continue
        if not document.complete:
            told.wrong(document.name, "it is too large to be read whole", "give it in parts")
        recorded = document.mtime or time.time()
        parsed = parse_document(document, recorded)
        if path.is_dir():  # an incident's own problems are its verdict's to tell
            parsed.problems = []
        told.extend(
            of_parsed(
                parsed, node=document.node, file=document.name, recorded=recorded, source=f"gpus:{document.kind}", cluster=cluster
            )
        )
        told.problems += parsed.problems
    return told


def only_gpus(folder: Path) -> bool:
    """Tell whether a folder holds nothing but files that show GPUs, e.g. one of ``nvidia-smi -q`` for each node: no failure to triage."""
    files = [one for one in folder.rglob("*") if one.is_file()]
    return bool(files) and all(_kind(one) in _ONLY_GPUS for one in files)


def _kind(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return _kind_of(path.name, stream.read(_HEAD))
    except OSError:
        return ""  # told where the folder itself is read
