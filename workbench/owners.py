"""Turn a namespace of Kubernetes or an account of Slurm into the team that a site says it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["Teams"]


@dataclass(frozen=True, slots=True)
class Teams:
    """
    The tables ``teams.namespaces`` and ``teams.accounts`` of the settings.

    What a site wrote there decides over labels and accounts: a label of a queue is only a guess at the team, and a number of a project
    tells nobody at night whom to call. A name without wildcards decides before one with them, else the first that fits.
    """

    namespaces: Mapping[str, str] = field(default_factory=dict)
    accounts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> Teams:
        """Return those of a site's settings; none without settings."""
        both = (settings or {}).get("teams.namespaces"), (settings or {}).get("teams.accounts")
        return cls(*(dict(one or {}) for one in both))

    def __bool__(self) -> bool:
        return bool(self.namespaces or self.accounts)

    def team(self, told: str | None, namespace: str | None = None) -> str | None:
        """
        Return whose a job is.

        Parameters
        ----------
        told : str or None
            What its labels say, or its account.
        namespace : str or None
        """
        return _named(self.namespaces, namespace) or _named(self.accounts, told) or told

    def name(self, rows: Iterable[dict[str, Any]]) -> None:
        """Give jobs of the fleet's account (``job``, ``team``) their team; a job of Kubernetes is ``namespace/name``."""
        for row in rows:
            space, slash, _ = str(row.get("job") or "").partition("/")
            row["team"] = self.team(row.get("team"), space if slash else None)


def _named(table: Mapping[str, str], name: str | None) -> str | None:
    if not name or not table:
        return None
    if name in table:
        return table[name]
    return next((team for pattern, team in table.items() if fnmatchcase(name, pattern)), None)
