"""Turn an incident into a file to take away: the evidence as one archive, the verdict, the postmortem."""

from __future__ import annotations

import re
import tarfile
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from tornado.web import HTTPError

from workbench.errors import SourceUnavailable
from workbench.report.postmortem import TEMPLATES
from workbench.serving.handlers import Answer
from workbench.serving.site import Site

__all__ = ["Bundle", "Postmortem", "pack"]

LARGEST = 4 << 30  # bytes of evidence that are packed for a browser; beyond it `workbench collect` or a copy is the way
CHUNK = 1 << 20


def pack(source: Path, name: str, largest: int = LARGEST) -> IO[bytes]:
    """
    Return the evidence as an open archive that is gone when closed.

    Raises
    ------
    SourceUnavailable
        It is not there any more, or too much for a download.
    """
    if source.is_file():
        return source.open("rb")
    if not source.is_dir():
        raise SourceUnavailable("the evidence is not there any more")
    files = [file for file in sorted(source.rglob("*")) if file.is_file() and not file.is_symlink()]
    size = sum(file.stat().st_size for file in files)
    if size > largest:
        raise SourceUnavailable(f"{size / 1e9:.1f} GB of evidence is too much for a download", hint=f"copy it from {source}")
    packed = tempfile.TemporaryFile()  # noqa: SIM115
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as archive:
        for file in files:
            archive.add(file, f"{name}/{file.relative_to(source)}", recursive=False)
    packed.seek(0)
    return packed


def named(text: str, default: str = "incident") -> str:
    """Return a text as a file's name that a header can carry."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80] or default


def evidence_of(site: Site, id: str, path: str) -> tuple[Path, str]:
    """Return where the evidence of an incident is, and what to call it."""
    if path:
        found = site.allowed(path)
        return found, named(found.name.split(".")[0])
    entry = site.inbox.get(id)
    if not entry.evidence:
        raise SourceUnavailable(f"there is no evidence of {id}: {entry.problem or 'it is not collected yet'}")
    return Path(entry.evidence), named(id)


class Bundle(Answer):
    """``/download/bundle?id=`` or ``?path=``: all evidence in one archive."""

    async def get(self) -> None:
        """Send it piece by piece; packing and reading are done in threads."""
        id, path = self.one_of()

        def work() -> tuple[IO[bytes], str, int]:
            source, name = evidence_of(self.site, id, path)
            file = pack(source, name)
            ending = re.search(r"((\.tar)?\.(gz|zst|zip|tar|tgz|log|txt|json|jsonl))$", source.name) if source.is_file() else None
            return file, name + (ending[1] if ending else "" if source.is_file() else ".tar.gz"), file.seek(0, 2)

        file, name, size = await self.blocking(work)
        with file:
            file.seek(0)
            self.set_header("Content-Type", "application/octet-stream")
            self.set_header("Content-Disposition", f'attachment; filename="{name}"')
            self.set_header("Content-Length", str(size))
            while chunk := await self.blocking(lambda: file.read(CHUNK)):
                self.write(chunk)
                await self.flush()


class Postmortem(Answer):
    """``/download/postmortem?id=&template=&format=``: the postmortem of an incident, filled as far as the verdict goes."""

    async def get(self) -> None:
        """Send it."""
        id, path = self.one_of()
        template, form = self.get_query_argument("template", "google"), self.get_query_argument("format", "md")
        kinds = {"md": "text/markdown", "html": "text/html"}
        if form not in kinds:
            raise HTTPError(400, reason="format is md or html")
        if template not in TEMPLATES:  # a site's own is a path on this machine: the command takes it, a request does not
            raise HTTPError(400, reason=f"template is one of {', '.join(TEMPLATES)}")

        def work() -> str:
            return postmortem_text(self.site, id, path, template, form)

        text = await self.blocking(work)
        self.set_header("Content-Type", f"{kinds[form]}; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="postmortem-{named(id or Path(path).name)}.{form}"')
        self.finish(text)


def postmortem_text(site: Site, id: str, path: str, template: str, form: str) -> str:
    """Return the postmortem as text, without secrets, people and the names that the site lists."""
    from workbench.inbox.rows import to_json
    from workbench.report.facts import gather
    from workbench.report.postmortem import html, markdown
    from workbench.report.redact import hide_document, names_in, redact

    case = site.case(id=id, path=path)
    entry: dict[str, Any] = to_json(site.inbox.get(id)) if id else {}
    people = [str(one["user"]) for one in (case.job, entry) if one.get("user")]
    hide = redact(names_in(site.setting("report.redact") or ()), people=people)
    facts = gather(
        case.verdict,
        made=time.time(),
        job={**case.job},
        impact=case.impact,
        entry=entry,
        journal=None,
        prices=site.setting("report.prices"),
        hide=hide,
    )
    return html(facts, template, hide_document(case.verdict, hide)) if form == "html" else markdown(facts, template)
