"""Turn requests of programs into answers: health, metrics, the inbox and verdicts as JSON, alerts, downloads."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from bokeh.server.views.auth_request_handler import AuthRequestHandler
from tornado.web import HTTPError, MissingArgumentError

from workbench.errors import SourceUnavailable, WorkbenchError
from workbench.serving.board import Rows
from workbench.serving.roles import NOBODY
from workbench.serving.site import Forbidden, Site

__all__ = ["Alerts", "routes"]

LARGEST_ALERT = 1 << 20  # bytes; Alertmanager groups, and a group of 500 alerts takes some 600 kB


class Answer(AuthRequestHandler):
    """A route for programs: JSON out, errors too; who is not logged in gets 401 rather than a login page."""

    public = False

    def initialize(self, site: Site, **more: Any) -> None:
        """Take what the routes share."""
        self.site, self.more = site, more

    async def prepare(self) -> None:
        """Let nobody in who may not look."""
        await super().prepare()
        self.set_header("Cache-Control", "no-store")
        if not self.public:
            user = self.current_user
            if user is None:
                raise HTTPError(401, reason="log in first")
            name = user.decode() if isinstance(user, bytes) else str(user)
            if self.site.roles.role_of(name) == NOBODY:
                raise HTTPError(403, reason="this user has no role here")

    def check_xsrf_cookie(self) -> None:
        """The only route that takes a body asks for JSON and a token instead."""

    def write_error(self, status_code: int, **more: Any) -> None:
        """Say in JSON what is wrong."""
        error = (more.get("exc_info") or (None, None, None))[1]
        message = error.reason if isinstance(error, HTTPError) and error.reason else self._reason
        if isinstance(error, MissingArgumentError):
            message = f"give ?{error.arg_name}="
        body: dict[str, Any] = {"error": message}
        if isinstance(error, HTTPError) and error.log_message and error.log_message.startswith("hint: "):
            body["hint"] = error.log_message.removeprefix("hint: ")
        self.json(body)

    def json(self, document: Any) -> None:
        """Answer with a document."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(json.dumps(document, ensure_ascii=False, allow_nan=False, default=str) + "\n")

    def one_of(self) -> tuple[str, str]:
        """Return ``?id=`` and ``?path=``, of which one must be given."""
        id, path = self.get_query_argument("id", ""), self.get_query_argument("path", "")
        if bool(id) == bool(path):
            raise HTTPError(400, reason="give either ?id= or ?path=")
        return id, path

    async def blocking(self, work: Callable[[], Any]) -> Any:
        """Run work in a thread and turn its errors into statuses."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.site.pool, work)
        except Forbidden as error:
            raise _refusal(403, error) from None
        except SourceUnavailable as error:
            raise _refusal(404, error) from None
        except WorkbenchError as error:
            raise _refusal(404 if "no entry" in str(error) else 503, error) from None


def _refusal(status: int, error: WorkbenchError) -> HTTPError:
    hint = f"hint: {error.hint}".replace("%", "%%") if error.hint else None
    return HTTPError(status, hint, reason=str(error).replace("\r", " ").replace("\n", " ")[:300])


class Health(Answer):
    """Whether the process answers."""

    public = True

    def get(self) -> None:
        """Say so."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("alive\n")


class Fresh(Answer):
    """How old what the pages show is: asked by each page every ten seconds."""

    def get(self) -> None:
        """Tell of inbox, fleet, queue and account; what is in memory, so that a slow disk does not hold up the clock of a page."""
        site, now = self.site, time.time()
        rows = site.board.rows
        inbox: dict[str, Any] = {
            "time": None if site.filling or rows.error else rows.time,
            "why": site.filling or rows.error,
            "period": 30.0,
            "count": len(rows.entries),
            "new": sum(entry.state == "new" for entry in rows.entries),
        }
        fleet = None
        if site.poller is not None:
            snapshot = site.poller.snapshot
            fleet = {
                "time": snapshot.time if snapshot.data.get("asked") else None,  # else nobody has answered yet
                "why": "the site is being asked",
                "period": getattr(site.poller, "period", snapshot.period),
                "heard": {one.source: one.status for one in snapshot.heard},
            }
        queue = None
        if site.desk is not None:
            sheet = site.desk.sheet
            queue = {
                "time": None if sheet.problems else sheet.time,
                "why": sheet.problems[0][:200] if sheet.problems else "",
                "period": 30.0,
                "waiting": sum(one.state == "proposed" for one in sheet.proposals),
            }
        books, account = site.books, None
        if books is not None:
            account = {"time": books.time, "why": books.why, "period": books.period}
        self.json({"now": now, "inbox": inbox, "fleet": fleet, "queue": queue, "account": account})


class Metrics(Answer):
    """What a Prometheus takes of the dashboard itself; without login, since it names nothing."""

    public = True

    def get(self) -> None:
        """Answer in its text form."""
        from workbench.serving.metrics import exposition

        sessions = {url: len(self.application.get_sessions(url)) for url in self.application.app_paths}
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(exposition(self.site, sessions=sessions, lag=self.more["lag"]()))


class Incidents(Answer):
    """The inbox as JSON or CSV, with the filters of the page."""

    async def get(self) -> None:
        """List the entries, newest first."""
        form = self.get_query_argument("format", "json")
        if form not in ("json", "csv"):
            raise HTTPError(400, reason="format is json or csv")
        asked = {name: self.get_query_argument(name) for name in self.request.query_arguments if name != "format"}
        rows = self.site.board.rows
        if rows.error:
            raise HTTPError(503, f"hint: {rows.hint}", reason=rows.error[:300])
        text = await self.blocking(lambda: _listed(rows, asked, form))
        kind = "application/json" if form == "json" else "text/csv"
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        if form == "csv" or self.get_query_argument("download", ""):
            self.set_header("Content-Disposition", f'attachment; filename="incidents.{form}"')
        self.finish(text)


def _listed(rows: Rows, asked: Mapping[str, str], form: str) -> str:
    from workbench.inbox.rows import frame_of, to_json
    from workbench.report.verdict_json import dumps
    from workbench.views.inbox_filter import Wanted

    entries = Wanted.read(asked)[0].of(rows.entries)
    if form == "json":
        document = {
            "schema": "workbench.inbox/1",
            "incidents": [to_json(entry) for entry in entries],
            "problems": list(rows.problems),
        }
        return dumps(document) + "\n"
    return str(frame_of(entries).to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%S.%fZ"))


class Verdict(Answer):
    """One verdict, byte for byte as ``workbench triage --output json`` prints it."""

    async def get(self) -> None:
        """Answer for ``?id=`` or ``?path=``."""
        id, path = self.one_of()
        text = await self.blocking(lambda: _verdict_text(self.site, id, path))
        self.set_header("Content-Type", "application/json; charset=utf-8")
        if self.get_query_argument("download", ""):
            self.set_header("Content-Disposition", 'attachment; filename="verdict.json"')
        self.finish(text)


def _verdict_text(site: Site, id: str, path: str) -> str:
    from workbench.report.verdict_json import dumps

    document = site.inbox.verdict(id) if id else site.case(path=path).verdict
    if not document:
        raise SourceUnavailable(f"there is no verdict of {id} yet")
    return dumps(document, indent=2) + "\n"


class Alerts(Answer):
    """Takes what Alertmanager posts."""

    public = True  # a token instead of a login

    async def prepare(self) -> None:
        """Check size, kind and token before anything is read."""
        await super().prepare()
        if self.request.method != "POST":
            raise HTTPError(405, reason="alerts are posted")
        token: str = self.more.get("token", "")
        given = self.request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            raise HTTPError(401, reason="the token is missing or wrong")
        if not token and not self.more.get("open", False):
            raise HTTPError(
                403, "hint: start it with --alerts-token FILE", reason="this dashboard takes no alerts without a token"
            )
        # a page of another site may post text without asking first, but not JSON
        if not self.request.headers.get("Content-Type", "").lower().startswith("application/json"):
            raise HTTPError(415, reason="the body must be application/json")
        if len(self.request.body or b"") > LARGEST_ALERT:
            raise HTTPError(413, reason=f"more than {LARGEST_ALERT} bytes")

    async def post(self) -> None:
        """Hand the alerts to the inbox."""
        try:
            payload = json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise HTTPError(400, reason="the body is no JSON") from None
        from workbench.inbox.alerts import AlertsRefused, receive

        def work() -> list[dict[str, Any]]:
            return [asdict(one) for one in receive(self.site.inbox, payload)]

        try:
            # 503 for what cannot be written: Alertmanager posts it again
            told = await asyncio.get_running_loop().run_in_executor(self.site.pool, work)
        except AlertsRefused as error:
            raise _refusal(400, error) from None
        except (WorkbenchError, OSError) as error:
            raise HTTPError(503, reason=str(error)[:300]) from None
        self.site.board.refresh()
        self.json({"alerts": told})


def routes(
    site: Site, *, token: str = "", open_alerts: bool = False, lag: Callable[[], float | None] = lambda: None
) -> list[tuple[Any, ...]]:
    """
    Return the routes, without the prefix that the server puts before them.

    Parameters
    ----------
    site : Site
    token : str
        What who posts alerts must show.
    open_alerts : bool
        Whether alerts are taken without a token: a dashboard that only this machine reaches.
    lag : callable
        Returns the seconds by which the event loop runs behind.
    """
    from workbench.serving.downloads import Bundle, Postmortem

    shared = {"site": site}
    return [
        (r"/healthz", Health, shared),
        (r"/metrics", Metrics, {**shared, "lag": lag}),
        (r"/download/bundle", Bundle, shared),
        (r"/download/postmortem", Postmortem, shared),
        (r"/api/fresh", Fresh, shared),
        (r"/api/incidents", Incidents, shared),
        (r"/api/verdict", Verdict, shared),
        (r"/api/alerts", Alerts, {**shared, "token": token, "open": open_alerts}),
    ]
