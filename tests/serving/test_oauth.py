"""Login by an OpenID provider: who comes back from it is in, with his role; what did not begin here, or names nobody, is not."""

from __future__ import annotations

import http.cookies
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.oidc import Provider
from tests.serving.served import _OPENER, Answer, Served


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as one:
        yield one


@pytest.fixture(scope="module")
def behind(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An empty inbox; maria approves, otto reads, eve is known to the provider only."""
    place = tmp_path_factory.mktemp("oauth")
    (place / "inbox").mkdir()
    (place / "roles").write_text(json.dumps({"maria": "approver", "otto": "reader"}))
    options = ("--inbox", str(place / "inbox"), "--oauth", "generic", "--roles", str(place / "roles"), "--allow-approve")
    with Served((*options, "--prefix", "/tools/gpu"), provider.environment()) as served:
        yield served


class Person:
    """A browser without scripts: follows where it is sent, keeps cookies by server."""

    def __init__(self, served: Served) -> None:
        self.served, self.cookies = served, dict[str, str]()
        self.set: list[str] = []
        self.way: list[str] = []

    def ask(self, url: str) -> Answer:
        own = url.startswith(self.served.url.split("/tools")[0])
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items()) if own else ""
        request = urllib.request.Request(url, headers={"Cookie": sent} if sent else {})
        try:
            with _OPENER.open(request, timeout=60) as got:
                answer = Answer(got.status, got.headers, got.read())
        except urllib.error.HTTPError as error:
            with error:
                answer = Answer(error.code, error.headers, error.read())
        for line in (answer.headers.get_all("Set-Cookie") or []) if own else []:
            self.set.append(line)
            for name, morsel in http.cookies.SimpleCookie(line).items():
                self.cookies[name] = morsel.coded_value
        return answer

    def go(self, url: str) -> Answer:
        for _ in range(12):
            self.way.append(url)
            answer = self.ask(url)
            if answer.status not in (301, 302, 303, 307):
                return answer
            url = urllib.parse.urljoin(url, answer.headers["Location"])
        raise AssertionError(f"sent around in circles: {self.way}")


@pytest.mark.parametrize("id_token", [False, True], ids=["userinfo", "id-token"])
def test_who_comes_back_from_the_provider_is_in_where_he_wanted_to_be(behind: Served, provider: Provider, id_token: bool) -> None:
    provider.user, provider.id_token = "maria", id_token
    person = Person(behind)
    page = person.go(behind.url + "/fleet")

    assert page.status == 200, person.way
    assert "maria (approver)" in page.body.decode()
    assert urllib.parse.urlsplit(person.way[-1]).path == "/tools/gpu/fleet"
    assert person.ask(behind.url + "/api/incidents").status == 200
    assert not provider.refused


def test_its_cookies_are_kept_from_scripts_and_other_sites(behind: Served, provider: Provider) -> None:
    provider.user = "maria"
    person = Person(behind)
    person.go(behind.url + "/")
    kept = [line for line in person.set if line.split("=")[0] in ("user", "access_token", "id_token", "panel-oauth-state")]

    assert len({line.split("=")[0] for line in kept}) >= 3
    for line in kept:
        if line.split("=", 1)[1].startswith('""') or line.split("=", 1)[1].startswith(";"):
            continue  # one that is taken away
        assert "httponly" in line.lower(), line
        assert "samesite=lax" in line.lower(), line
        assert "Path=/tools/gpu" in line or line.startswith("panel-oauth-state"), line


def test_who_has_no_role_here_sees_nothing(behind: Served, provider: Provider) -> None:
    provider.user = "eve"
    person = Person(behind)
    page = person.go(behind.url + "/")

    assert "Skip to the content" not in page.body.decode()
    assert person.ask(behind.url + "/api/incidents").status == 403


def test_an_answer_to_a_login_that_did_not_begin_here_is_refused(behind: Served, provider: Provider) -> None:
    """Somebody else's code, put into a link: who follows it must not become him."""
    provider.user = "maria"
    begun = Person(behind)
    begun.ask(behind.url + "/login")
    asked = urllib.parse.urlsplit(begun.ask(behind.url + "/login").headers["Location"])
    sent = Person(behind).ask(urllib.parse.urlunsplit(asked)).headers["Location"]
    link = behind.url + "/login?" + urllib.parse.urlsplit(sent).query

    victim = Person(behind)
    assert victim.ask(link).status in (400, 401, 403)
    assert victim.ask(behind.url + "/api/incidents").status == 401


def test_who_is_not_logged_in_gets_no_page_and_no_data(behind: Served) -> None:
    for page in ("/", "/fleet", "/incident?id=gone", "/node?node=a"):
        assert Person(behind).ask(behind.url + page).status in (302, 303), page
    assert not any("Traceback" in line for line in behind.said), "".join(behind.said)
    assert Person(behind).ask(behind.url + "/api/incidents").status == 401


def test_a_provider_that_there_is_not_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    import subprocess
    import sys

    from tests.serving.served import ROOT

    done = subprocess.run(
        [sys.executable, "-m", "workbench", "serve", "--inbox", str(tmp_path), "--port", "0", "--oauth", "githup"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    assert "githup" in done.stderr
    assert "github" in done.stderr
    assert "Traceback" not in done.stderr
