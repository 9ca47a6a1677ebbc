"""One node: its GPUs, findings, conditions, history, last hour and events."""

from workbench.serving.site import current
from workbench.views.fresh import follow, soon
from workbench.views.node import NodeView, kernel_lines
from workbench.views.shell import Shell, is_dark, kept, query

site = current()
lines = kernel_lines(lambda one: site.held(id=one), lambda one: site.pool.submit(site.case, id=one))
view = NodeView(site.poller, events_of=lines, dark=is_dark(), keep=kept(), later=True)
view.set_state(query())
title = query().get("node") or "Node"
Shell(view, here="node", title=title, note=site.note, user=site.who(), first=view.first()).servable()
soon(view.show_hour)
follow(view)
