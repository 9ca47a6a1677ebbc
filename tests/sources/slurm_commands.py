"""Turn what three releases of Slurm really printed into commands on PATH that print it, or that misbehave as a test says."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from workbench.sources.contract import Answer, Scope

DATA = Path(__file__).parent.parent / "data" / "slurm_live"
RELEASES = ("22.05", "24.11", "26.05")
SINCE, UNTIL = 1796000400.0, 1796004000.0  # 2026-11-30 01:00:00Z to 02:00:00Z
Tools = Callable[..., Path]


def commands(folder: Path) -> Tools:
    """Return what writes sacct, scontrol, sinfo, sacctmgr and sdiag of a release below a folder; each writes down what it was asked."""
    bin_ = folder / "bin"
    bin_.mkdir()

    def write(release: str = "24.11", **instead: str) -> Path:
        data = shlex.quote(str(DATA / release))
        scripts = {
            "sacct": f"""case "$*" in
                *--version*) cat {data}/version.txt;;
                *--helpformat*) cat {data}/helpformat.txt;;
                *--batch-script*) cat {data}/script.txt;;
                *--allocations*--json*|*--json*--allocations*) cat {data}/located.json;;
                *--json*) cat {data}/located.json;;
                *--noheader*) cat {data}/located.txt;;
                *) cat {data}/sacct.txt;;
                esac""",
            "scontrol": f"""case "$*" in
                *config*) cat {data}/config.txt;;
                *ping*) cat {data}/ping.txt;;
                *oneliner*) cat {data}/scontrol-oneliner.txt;;
                *"show job"*) cat {data}/scontrol-job.txt;;
                *"show node"*) cat {data}/scontrol-node.txt;;
                esac""",
            "sinfo": f"cat {data}/sinfo.txt",
            "sacctmgr": f"""case "$*" in
                *"show event"*) echo "NodeName|TimeStart|TimeEnd|State|Reason|User";;
                *) cat {data}/cluster.txt;;
                esac""",
            "sdiag": f"""cat {data}/sdiag.txt | sed "s/([0-9]*)/($(date +%s))/" """,
        }
        for name, text in (scripts | instead).items():
            path = bin_ / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/asked\n{text}\n')
            path.chmod(0o755)
        return folder / "asked"

    return write


def scope(job: str, **fields: object) -> Scope:
    """The question for a job, in the hour of the recordings."""
    return Scope(job, SINCE, UNTIL, **fields)  # type: ignore[arg-type]


def by_file(answers: list[Answer]) -> dict[str, Answer]:
    """The answers, by the file that they wrote."""
    return {answer.file: answer for answer in answers if answer.file}
