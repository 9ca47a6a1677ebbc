"""Remediation: the plans that wait for a person, what they take away, and what was done."""

from workbench.serving.site import current
from workbench.views.remediation import RemediationView
from workbench.views.shell import Shell, kept

site = current()
desk, user = site.desk, site.user()


def decide(verb, ids, digest, reason):
    """Let the server judge whether this session's user may, and write it down."""
    if verb == "undo":
        return desk.undo(user, ids, reason)
    return {"approve": desk.approve, "reject": desk.reject}[verb](user, ids[0], digest, reason)


view = RemediationView(
    lambda: desk.sheet,
    decide,
    may=lambda: desk.may(user),
    role=site.who() or "this machine's user",
    why_not=site.roles.why_not(user),
    pool=site.pool,
    root=str(desk.queue.root),
    keep=kept(),
)
Shell(view, here="remediation", title="Remediation", note=site.note, user=site.who(), every=2.0).servable()
