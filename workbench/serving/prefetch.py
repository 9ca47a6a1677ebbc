"""Turn a request for an incident's page into its case file, read before the page is made, so that the very first answer holds the verdict."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import bokeh.server.urls
from panel.io.server import DocHandler

from workbench.errors import WorkbenchError
from workbench.serving.roles import NOBODY
from workbench.serving.site import current

__all__ = ["install"]

_LOG = logging.getLogger(__name__)
PATIENCE = 1.2  # seconds; a case that takes longer is shown when it is there, the page says so until then


class _Prefetching(DocHandler):
    """Panel's handler of pages, which waits a moment for what the page is about, and holds up nobody else meanwhile."""

    async def get(self, *words: Any, **more: Any) -> None:
        user = self.current_user
        if self.request.path.endswith("/incident") and user is not None:
            site = current()
            name = user.decode() if isinstance(user, bytes) else str(user)
            which = {key: self.get_query_argument(key, "") for key in ("id", "path")}
            if any(which.values()) and site.roles.role_of(name) != NOBODY:
                work = asyncio.get_running_loop().run_in_executor(site.pool, lambda: site.case(**which))
                try:
                    await asyncio.wait_for(asyncio.shield(work), PATIENCE)
                except TimeoutError:
                    work.add_done_callback(lambda done: done.cancelled() or done.exception())  # the page tells it
                except WorkbenchError:
                    pass  # the page tells it
                except Exception:
                    _LOG.exception("an incident could not be read")
        answer = super().get(*words, **more)
        if answer is not None:  # None: Tornado has sent who is not logged in to the login already
            await answer


def install() -> None:
    """Let every server that is made from now on use it."""
    patterns = bokeh.server.urls.per_app_patterns
    for number, (route, handler) in enumerate(patterns):
        if handler is DocHandler:
            patterns[number] = (route, _Prefetching)
