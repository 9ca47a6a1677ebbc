"""One incident: what failed first, where, why, and what to do."""

from workbench.serving.marking import Marking
from workbench.serving.site import current
from workbench.views.card import verdict_card_html
from workbench.views.incident import IncidentView
from workbench.views.incident_state import StateBar
from workbench.views.later import Later
from workbench.views.shell import Shell, is_dark, kept, query

site = current()
which = {name: value for name, value in query().items() if name in ("id", "path")}
base = which | kept()
prices = site.setting("report.prices")
mark = Marking(site, which["id"], site.user()) if "id" in which else None


def standing():
    """Return the line that tells the incident's state, and lets those change it who may."""
    return mark and StateBar(mark.entry, mark.decide, may=mark.may, why_not=mark.why_not(), pool=site.pool)


def show(case):
    """Return the view of a case file."""
    look = {"base": base, "dark": is_dark(), "state": query(), "prices": prices}
    return IncidentView(case, downloads=site.downloads(which), standing=standing(), **look)


view = Later(lambda: site.case(**which), show, held=lambda: site.held(**which), pool=site.pool)
Shell(
    view,
    here="incident",
    title=view.inner.case.name if view.inner else which.get("id", "Incident"),
    note=site.note,
    user=site.who(),
    first=verdict_card_html(view.inner.case, base, prices=prices) if view.inner else "",
    every=2.0,
).servable()
