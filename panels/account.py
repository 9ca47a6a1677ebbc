"""The fleet's account: objectives, where time went, failures, lemons and cost, over weeks."""

import panel as pn

from workbench.serving.site import current
from workbench.views.account import AccountView
from workbench.views.fresh import follow
from workbench.views.shell import Shell, is_dark, kept, query

pn.extension("tabulator")  # its script must be there before the first table is, which comes when the ledger was read
site = current()
books = site.books
view = AccountView(
    books.sheet,
    held=books.held,
    version=lambda: books.version,
    pool=site.pool,
    simulated=books.simulated,
    where="" if books.simulated else str(books.path),
    dark=is_dark(),
    keep=kept(),
)
view.set_state(query())
Shell(view, here="account", title="Account", note=site.note, user=site.who()).servable()
follow(view)
