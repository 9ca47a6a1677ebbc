"""Who gets in, who may do what, and what every answer carries."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.served import ROOT, Answer, Served, cookies, login
from workbench.errors import ConfigError, SourceUnavailable
from workbench.serving.roles import APPROVER, NOBODY, READER, Roles
from workbench.serving.site import Forbidden, Site


@pytest.mark.parametrize(
    "path", ["/", "/incident?id=succeeded", "/healthz", "/api/incidents", "/static/js/bokeh.min.js", "/nothing-here"]
)
def test_every_answer_carries_the_security_headers(demo: Served, path: str) -> None:
    """Pages, JSON, files and errors."""
    headers = demo.ask(path).headers

    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    assert headers["Referrer-Policy"] == "same-origin"
    assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
    assert "object-src 'none'" in headers["Content-Security-Policy"]
    assert "TornadoServer" not in headers.get("Server", "")


def scripts_of(answer: Answer) -> str:
    """Return the directive of the policy that says which scripts may run."""
    return next(part for part in answer.headers["Content-Security-Policy"].split("; ") if part.startswith("script-src "))


def test_a_page_s_scripts_run_by_a_nonce_that_no_other_answer_has(demo: Served) -> None:
    """A script that is not ours has none; 'unsafe-inline' would let it run all the same."""
    first, second = demo.ask("/"), demo.ask("/")
    nonce = scripts_of(first).split("'nonce-")[1].split("'")[0]

    assert len(nonce) >= 22
    assert "unsafe-inline" not in scripts_of(first)
    assert nonce not in scripts_of(second)
    tags = first.body.decode().split("<script")[1:]
    assert len(tags) > 5
    assert all(f'nonce="{nonce}"' in tag.split(">")[0] for tag in tags)


def test_nothing_of_a_page_comes_from_elsewhere(demo: Served, guarded: Served) -> None:
    """No CDN, no font, no image of another host: neither in pages nor in the login."""
    for answer in (demo.ask("/"), demo.ask("/incident?id=succeeded"), guarded.ask("/login")):
        text = answer.body.decode()
        assert answer.status == 200
        assert not [word for word in ('src="http', "src='http", 'href="http', "url(http", "@import") if word in text]


def test_a_foreign_host_is_refused(demo: Served) -> None:
    """A name that an attacker points here must not read what only this machine may."""
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example:443", ""):
        assert demo.ask("/api/incidents", headers={"Host": host}).status in (400, 403), host


def test_a_web_socket_of_a_foreign_page_is_refused(demo: Served) -> None:
    """Bokeh's origin check is on."""
    host, port = demo.url.split("//")[1].split("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=20) as wire:
        wire.sendall(
            f"GET /tools/gpu/ws HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: http://evil.example\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert b" 403 " in wire.recv(200)


def test_a_request_imports_no_module(demo: Served) -> None:
    """Panel's route for components would import whatever its path names."""
    assert demo.ask("/components/antigravity/fly/_css/x.css").status == 404
    assert demo.ask("/components/workbench.views.design/WorkbenchDesign/modifiers/static/widgets.css").status == 200
    assert demo.ask("/components/workbench.views.design/WorkbenchDesign/modifiers/../shell.py").status in (403, 404)


def test_without_login_nothing_is_seen_but_health_and_metrics(guarded: Served) -> None:
    """Pages lead to the login, programs get 401."""
    for path in ("/", "/incident?id=x", "/fleet"):
        answer = guarded.ask(path)
        assert answer.status in (302, 404), path
        assert answer.status == 404 or "login" in answer.headers["Location"]
    for path in ("/api/incidents", "/api/verdict?id=x", "/api/fresh", "/download/bundle?id=x", "/download/postmortem?id=x"):
        assert guarded.ask(path).status == 401, path
    assert guarded.ask("/healthz").status == guarded.ask("/metrics").status == 200


def test_a_login_opens_and_its_cookie_is_kept_from_scripts_and_other_sites(guarded: Served) -> None:
    """HttpOnly and SameSite."""
    answer = login(guarded, "otto", "o")
    mine = cookies(answer)
    set_cookies = [value for value in answer.headers.get_all("Set-Cookie") or () if value.startswith("user=") and len(value) > 60]

    assert answer.status == 302
    assert answer.headers["Location"] == "/"
    assert set_cookies
    assert all("httponly" in value.lower() and "samesite=lax" in value.lower() for value in set_cookies)
    assert guarded.ask("/api/incidents", headers=mine).status == 200
    assert guarded.ask("/", headers=mine).status == 200
    assert b"otto (reader)" in guarded.ask("/", headers=mine).body


def test_a_wrong_password_does_not_open(guarded: Served) -> None:
    """And tells nothing but that it is wrong."""
    answer = login(guarded, "otto", "wrong")

    assert "error=" in answer.headers["Location"]
    assert guarded.ask("/api/incidents", headers=cookies(answer)).status == 401


def test_a_user_without_a_role_sees_nothing(guarded: Served) -> None:
    """A password alone is no right when roles are given."""
    mine = cookies(login(guarded, "eve", "e"))

    assert guarded.ask("/api/incidents", headers=mine).status == 403
    page = guarded.ask("/", headers=mine)
    assert page.status == 403
    assert b"You may not see this" in page.body


def test_an_error_in_the_address_of_the_login_stays_text(guarded: Served) -> None:
    """What the address says is not written into the page."""
    body = guarded.ask("/login?error=%3Cscript%3Ealert(1)%3C/script%3E").body

    assert b"<script>alert" not in body
    assert b"The name or the password is wrong" in body


@pytest.mark.parametrize(
    ("roles", "user", "role"),
    [
        (Roles(), None, READER),
        (Roles(allow_approve=True), None, APPROVER),
        (Roles(login=True), None, NOBODY),
        (Roles(login=True), "", NOBODY),
        (Roles(login=True), "maria", READER),
        (Roles(login=True, allow_approve=True), "maria", READER),
        (Roles({"maria": "approver"}, True, True), "maria", APPROVER),
        (Roles({"maria": "approver"}, False, True), "maria", READER),
        (Roles({"maria": "approver"}, True, True), "Maria", NOBODY),
        (Roles({"maria": "approver", "*": "reader"}, True, True), "otto", READER),
    ],
)
def test_the_role_is_the_least_that_everything_allows(roles: Roles, user: str | None, role: str) -> None:
    """The file, the start and the login each take away, none adds."""
    assert roles.role_of(user) == role


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"maria": "aprover"}', '{"maria": ["approver"]}', "not json"])
def test_a_wrong_roles_file_is_an_error_not_a_right(tmp_path: Path, text: str) -> None:
    """A mistyped role gives nothing by accident."""
    file = tmp_path / "roles.json"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"--roles"):
        Roles.read(file, login=True)


def test_a_link_that_is_laid_after_the_start_is_refused_too(tmp_path: Path) -> None:
    """Where a path really leads is looked at when it is asked for."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    (inside / "later").symlink_to(outside)
    site = Site(inbox=None, board=None, roots=(inside.resolve(),))  # type: ignore[arg-type]

    (inside / "here").mkdir()
    assert site.allowed("here") == inside.resolve() / "here"
    for path in ("later", "here\0", "\0", "", "here/../../out"):
        with pytest.raises(Forbidden):
            site.allowed(path)
    with pytest.raises(Forbidden):
        site.allowed(str(inside / "later"))


def serve(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `workbench serve` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "workbench", "serve", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | (environment or {}),
    )


def test_a_taken_port_is_told_with_the_way_out(demo: Served) -> None:
    """In two lines, with the exit code of what is not available."""
    done = serve("--demo", "--port", demo.url.split(":")[2].split("/")[0])

    assert done.returncode == 69
    assert "cannot listen" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--demo", "--roles", "x"), 78, "--basic-auth"),
        (("--demo", "--basic-auth", "/nowhere/users"), 78, "--basic-auth"),
        (("--root", "/nowhere"), 69, "no such folder"),
        (("--demo", "--alerts-token", "/dev/null"), 78, "empty"),
        (("--demo", "--every", "soon"), 78, "--every"),
    ],
)
def test_a_wrong_start_says_what_is_wrong(words: tuple[str, ...], code: int, said: str) -> None:
    """Before anything is served."""
    done = serve(*words)

    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_anything_to_show_it_names_what_there_could_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer who starts it bare is told of the demonstration."""
    from workbench.cli import entry, serve
    from workbench.config import Config, Value

    settings = Config({"inbox.folder": Value(tmp_path / "none", "default")})
    monkeypatch.setattr("workbench.cli.live.config_of", lambda options: settings)

    with pytest.raises(SourceUnavailable, match="nothing to show") as told:
        serve.run(entry.parser_for(["serve"]).parse_args(["serve", "--port", "0"]))

    assert "--demo" in told.value.hint


def test_without_the_extra_it_says_how_to_install_it(tmp_path: Path) -> None:
    """The core install has no Panel."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\nu.find_spec = lambda n, *a: None if n == 'panel' else find(n, *a)\n"
    )
    done = serve("--demo", environment={"PYTHONPATH": str(tmp_path)})

    assert done.returncode == 69
    assert "[ui]" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_it_is_asked_to(number: int, tmp_path: Path) -> None:
    """With 0 and without a trace, and leaves nothing behind."""
    with Served(("--demo",), {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}) as served:
        assert served.ask("/healthz").status == 200
        assert served.stop(number) == 0

    assert "Traceback" not in "".join(served.said)
    assert not list(tmp_path.glob("workbench-demo-*"))


def test_json_of_the_roles_is_what_the_documents_show() -> None:
    """The example in the error message is one that is accepted."""
    from workbench.serving import roles

    assert json.loads(roles._EXAMPLE) == {"maria": "approver", "*": "reader"}
