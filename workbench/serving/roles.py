"""Turn a file of users and roles into what one user may do: look, or also approve."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from workbench.errors import ConfigError

__all__ = ["APPROVER", "NOBODY", "READER", "ROLES", "Roles"]

NOBODY, READER, APPROVER = "", "reader", "approver"
ROLES = (READER, APPROVER)
OTHERS = "*"  # the name that stands for every user who is not listed


@dataclass(frozen=True, slots=True)
class Roles:
    """
    Who may do what.

    Attributes
    ----------
    users : Mapping of str to str
        User → role; ``*`` stands for every user who is not listed.
    allow_approve : bool
        Whether anybody may approve at all: a dashboard that was not started with the write role has none.
    login : bool
        Whether users are known. Without login the person who started the server is the only user there is.
    """

    users: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    allow_approve: bool = False
    login: bool = False

    def role_of(self, user: str | None) -> str:
        """
        Return ``"reader"``, ``"approver"``, or ``""`` for who may not even look.

        Parameters
        ----------
        user : str or None
            As the login names them; None when nobody is logged in.
        """
        if not self.login:
            return APPROVER if self.allow_approve else READER
        if not user:
            return NOBODY
        # with a file, who is not in it may look only when the file says so; without one every login may look
        role = self.users.get(user, self.users.get(OTHERS, NOBODY)) if self.users else READER
        return READER if role == APPROVER and not self.allow_approve else role

    def why_not(self, user: str | None, command: str = "workbench queue") -> str:
        """Return why a user may not decide, and what would have to be otherwise (or which command does it); empty when he may."""
        if self.role_of(user) == APPROVER:
            return ""
        if not self.allow_approve:
            return f"This dashboard only shows: it was started without --allow-approve. On the command line: {command}."
        return f"{user or 'You'} may look and not decide: the role approver is missing (--roles)."

    @classmethod
    def read(cls, path: Path | str | None, *, allow_approve: bool = False, login: bool = False) -> Roles:
        """
        Return the roles of a JSON file ``{"user": "reader" | "approver", "*": "reader"}``, or those without any file.

        Raises
        ------
        ConfigError
            The file cannot be read, or names a role that there is not: a mistyped role must not become a right.
        """
        if path is None:
            return cls(allow_approve=allow_approve, login=login)
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"--roles {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"--roles {path}: no JSON: {error}", hint=_EXAMPLE) from error
        if not isinstance(document, dict) or not document:
            raise ConfigError(f"--roles {path}: it must map users to roles", hint=_EXAMPLE)
        for user, role in document.items():
            if role not in ROLES:
                raise ConfigError(f"--roles {path}: {user!r} has the role {role!r}", hint=f"a role is one of {', '.join(ROLES)}")
        return cls(MappingProxyType(dict(document)), allow_approve, login)


_EXAMPLE = '{"maria": "approver", "*": "reader"}'
