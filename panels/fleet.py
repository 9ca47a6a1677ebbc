"""The fleet: every GPU by health, what is wrong and who says so, the jobs on it, and whom to look at first."""

import panel as pn

from workbench.serving.site import current
from workbench.views.fleet import FleetView
from workbench.views.fresh import follow
from workbench.views.shell import Shell, is_dark, kept, query

pn.extension("tabulator")  # its script must be there before the first table is, which may come with a later snapshot
site = current()
view = FleetView(site.poller, dark=is_dark(), keep=kept())
view.set_state(query())
Shell(view, here="fleet", title="Fleet", note=site.note, user=site.who(), first=view.first()).servable()
follow(view)
