"""Turn a case file into the files that people take away: verdict, postmortem, and a bundle of everything that is shown."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.report.verdict_json import dumps
from workbench.views.tables import to_csv

if TYPE_CHECKING:
    from workbench.casefile.model import CaseFile

__all__ = ["bundle", "offered", "postmortem", "verdict"]


def verdict(case: CaseFile) -> bytes:
    """Return the verdict, byte for byte as ``workbench triage --output json`` prints it."""
    return (dumps(case.verdict, indent=2) + "\n").encode()


def bundle(case: CaseFile) -> bytes:
    """Return a zip archive: the verdict as JSON and Markdown, and each table as CSV; times are UTC."""
    from workbench.report import markdown

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{case.id}/verdict.json", verdict(case))
        archive.writestr(f"{case.id}/verdict.md", markdown.render(case.verdict))
        for name in ("ranks", "events", "metrics", "conditions", "placement", "documents", "problems"):
            archive.writestr(f"{case.id}/{name}.csv", to_csv(getattr(case, name)))
    return out.getvalue()


def postmortem(case: CaseFile) -> bytes:
    """Return the postmortem as Markdown, filled as far as the verdict goes; secrets and the job's user are hidden."""
    import time

    from workbench.report.facts import gather
    from workbench.report.postmortem import markdown
    from workbench.report.redact import redact

    hide = redact((), people=[str(case.job["user"])] if case.job.get("user") else [])
    facts = gather(case.verdict, made=time.time(), job={**case.job}, impact=case.impact, hide=hide)
    return markdown(facts).encode()


def offered(case: CaseFile) -> list[tuple[str, str, Callable[[CaseFile], bytes]]]:
    """Return (title, file name, what makes it) of each file there is."""
    return [
        ("JSON", f"{case.id}.json", verdict),
        ("Bundle", f"{case.id}.zip", bundle),
        ("Postmortem", f"{case.id}.md", postmortem),
    ]
