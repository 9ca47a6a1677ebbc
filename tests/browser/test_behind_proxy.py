"""The dashboard behind a reverse proxy with TLS, below a prefix, with the login of a provider: pages, web sockets, who may set a state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.browser.conftest import Tab
from tests.serving.oidc import Provider
from tests.serving.proxy import Proxy
from tests.serving.served import Served
from workbench.casefile import open_path
from workbench.inbox.store import Inbox
from workbench.shipped import example_path

pytestmark = pytest.mark.live

HERE = "/incident?id=gpu-memory"
FORGE = """words => {
  let count = 0
  for (const doc of Bokeh.documents) for (const model of doc._all_models.values()) if (model.data && 'asked' in (model.data.attributes ?? {})) {
    model.data.asked = JSON.stringify(['forged' + count++, words])
  }
  return count
}"""


@dataclass
class Behind:
    """What stands where: the proxy that browsers see, the provider that knows people, the inbox, and what the server said."""

    proxy: Proxy
    provider: Provider
    inbox: Inbox
    served: Served


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """Maria approves, otto reads; one incident that costs something."""
    place = tmp_path_factory.mktemp("behind")
    inbox = Inbox(place / "inbox")
    evidence = example_path("gpu-memory")
    inbox.add(open_path(evidence), id="gpu-memory", evidence=str(evidence))
    (place / "roles").write_text(json.dumps({"maria": "approver", "otto": "reader"}))
    (place / "site.toml").write_text('[report.prices]\ndefault = "2.50"\ncurrency = "EUR"\n')
    with Provider() as provider, Proxy(place, "/workbench") as proxy:
        options = (
            "--inbox",
            str(place / "inbox"),
            "--config",
            str(place / "site.toml"),
            "--oauth",
            "generic",
            "--roles",
            str(place / "roles"),
        )
        where = ("--prefix", "/workbench", "--behind-proxy", "--allow-origin", proxy.host)
        environment = provider.environment() | {
            "XDG_CACHE_HOME": str(place / "cache"),
            "WORKBENCH_REMEDIATION_FOLDER": str(place / "state"),
            "WORKBENCH_REMEDIATION_JOURNAL": str(place / "journal.jsonl"),
        }
        with Served((*options, *where, "--allow-approve"), environment) as served:
            proxy.upstream = int(served.url.split(":")[2].split("/")[0])
            yield Behind(proxy, provider, inbox, served)


@pytest.fixture
def visit(new_tab: Callable[..., Tab], behind: Behind) -> Callable[..., Tab]:
    """Open a page as somebody who logs in at the provider on the way."""

    def go(user: str, path: str, **more: Any) -> Tab:
        behind.provider.user = user
        tab = new_tab(behind.proxy.url, ignore_https_errors=True, **more)
        tab.page.set_default_navigation_timeout(90_000)  # each of a page's files is a connection of its own with TLS
        return tab.open(path)

    return go


def test_a_login_leads_back_through_the_proxy_to_the_page_that_was_wanted(visit: Callable[..., Tab], behind: Behind) -> None:
    """Prefix, https and the port of the proxy are kept; the web socket goes through it too, so the page lives."""
    tab = visit("maria", HERE + "&tab=ranks")

    assert tab.page.url.startswith(behind.proxy.url + HERE)
    assert "maria (approver)" in tab.locator("header").first.inner_text()
    tab.locator(".rank h2", has_text="Rank 20").wait_for()
    tab.locator(".tabs").get_by_role("link", name="Logs").click()
    tab.wait_for_function("location.search.includes('tab=log')")  # an answer of Python: by the web socket
    tab.locator(".l.here:visible code").first.wait_for()
    assert any(path.split("?")[0].endswith("/ws") for path in behind.proxy.seen)
    assert all(path.startswith("/workbench/") for path in behind.proxy.seen if "favicon" not in path)
    cookies = {one["name"]: one for one in tab.page.context.cookies()}
    assert cookies["user"]["secure"]
    assert cookies["user"]["httpOnly"]
    assert cookies["user"]["sameSite"] == "Lax"
    assert cookies["user"]["path"] == "/workbench"
    for path in ("/", "/fleet", "/remediation"):
        tab.open(path)
        assert tab.page.url.startswith(behind.proxy.url + path)
    assert not any("Traceback" in line for line in behind.served.said), "".join(behind.served.said)


def test_the_inbox_and_the_card_tell_the_cost(visit: Callable[..., Tab]) -> None:
    tab = visit("otto", "/")
    tab.locator("tr", has_text="gpu-memory").locator("td.number", has_text="EUR ").wait_for()
    tab.open(HERE)
    assert " EUR" in tab.locator("article.card .facts", has_text="Cost").first.inner_text()


def test_who_has_the_role_sets_the_state_and_others_see_it_and_cannot(visit: Callable[..., Tab], behind: Behind) -> None:
    """The page of somebody else shows it without being asked; his browser sets nothing, whatever it sends."""
    otto = visit("otto", HERE)
    assert "may look and not decide" in otto.locator(".standing").inner_text()
    assert otto.locator(".standing form").count() == 0
    maria = visit("maria", HERE)
    maria.locator(".standing select[name=state]").select_option("acknowledged")
    maria.locator(".standing input[name=note]").fill("<b>the rack</b> is open")
    maria.keep("incident-state")
    maria.locator(".standing").get_by_role("button", name="Set").click()
    maria.locator(".standing [role=status]", has_text="The state is acknowledged now").wait_for()

    last = behind.inbox.history("gpu-memory")[-1]
    assert (last["state"], last["by"], last["note"]) == ("acknowledged", "maria", "<b>the rack</b> is open")
    otto.locator(".standing .istate.acknowledged").wait_for()
    otto.locator(".standing .why", has_text="<b>the rack</b> is open").wait_for()
    assert otto.evaluate(FORGE, "state=closed&seen=acknowledged&note=forged") > 0
    otto.locator(".standing [role=status]", has_text="nothing was changed").wait_for()
    assert behind.inbox.get("gpu-memory").state == "acknowledged"


def test_another_name_than_the_one_of_the_proxy_is_refused(behind: Behind) -> None:
    """A page of elsewhere that was made to point at the proxy reads nothing."""
    assert behind.served.ask("/healthz", headers={"Host": "evil.example", "X-Forwarded-Host": behind.proxy.host}).status == 403
    assert behind.served.ask("/healthz", headers={"Host": behind.proxy.host}).status == 200
