"""Turn a user's choice on an incident's page into its state in the inbox, if he may, and the inbox's rows into the one that the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.inbox.model import Entry
from workbench.serving.roles import APPROVER
from workbench.serving.site import Forbidden

if TYPE_CHECKING:
    from workbench.serving.site import Site

__all__ = ["Marking"]


@dataclass(frozen=True, slots=True)
class Marking:
    """
    What one session may do with one incident of the inbox.

    Attributes
    ----------
    site : Site
    id : str
        Of the incident.
    user : str or None
        Of the session, None without login.
    """

    site: Site
    id: str
    user: str | None = None

    def entry(self) -> Entry | None:
        """Return the row as the process last saw it; never waits."""
        return next((one for one in self.site.board.rows.entries if one.id == self.id), None)

    def may(self) -> bool:
        """Tell whether the user may set the state, now."""
        return self.site.roles.role_of(self.user) == APPROVER

    def why_not(self) -> str:
        """Return why he may not; empty when he may."""
        return self.site.roles.why_not(self.user, f"workbench inbox set {self.id} STATE")

    def decide(self, state: str, note: str, seen: str) -> Entry:
        """
        Set the state for the user; blocking, whatever the page showed him is asked anew.

        Parameters
        ----------
        state, note : str
            A word of `workbench.inbox.model.STATES`, and why.
        seen : str
            The state that he saw.

        Raises
        ------
        Forbidden
            He may not.
        InboxError
            Somebody else was quicker, or it cannot be written.
        """
        name = self.user or "who started the dashboard"
        if not self.may():
            why = (
                "has only the right to look"
                if self.site.roles.allow_approve
                else "cannot: the dashboard was started without --allow-approve"
            )
            raise Forbidden(f"{name} {why}", hint="nothing was changed")
        entry: Entry = self.site.inbox.set_state(self.id, state, name, note, seen=seen)
        self.site.board.refresh()
        return entry
