"""The inbox: what was triaged so far, newest first."""

from workbench.serving.site import current
from workbench.views.inbox import InboxView
from workbench.views.shell import Shell, kept

site = current()
view = InboxView(
    lambda: site.board.rows,
    filling=lambda: site.filling,
    folder="" if site.demo else str(site.inbox.root),
    keep=kept(),
    currency=site.currency(),
)
Shell(view, here="", title="Inbox", note=site.note, user=site.who(), every=2.0).servable()
