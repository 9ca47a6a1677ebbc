"""
Turn a snapshot and what is wanted of it into what the fleet's page shows: nodes, GPUs in the order of the map, counts, and who answered.

Made once for each snapshot and wish, however many sessions look: sessions share it and change nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.plots.theme import HEALTH
from workbench.views.markup import known
from workbench.views.permalink import Field, choice, read, text, write
from workbench.views.tables import display

if TYPE_CHECKING:
    from workbench.site.model import Heard, Snapshot

__all__ = ["CAUSES", "FIELDS", "TABS", "Picture", "Wish", "age", "picture"]

TABS = {
    "nodes": "Nodes",
    "findings": "Findings",
    "conditions": "Conditions",
    "jobs": "Jobs",
    "suspects": "Suspects",
    "actions": "Actions",
}
CAUSES = ("hardware", "driver", "platform", "user", "unknown")
# the shapes of `workbench.plots.theme.HEALTH_MARKERS` as text: told apart without colour
MARKS = {"critical": "◆", "warning": "▲", "unknown": "◌", "ok": "●"}
_WORST = {word: number for number, word in enumerate(reversed(HEALTH))}
FIELDS: dict[str, Field] = {
    "pool": text(128),
    "sku": text(128),
    "cause": choice(*CAUSES),
    "health": choice(*HEALTH),
    "q": text(200),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """Which part of the fleet is wanted; None is all."""

    pool: str | None = None
    sku: str | None = None
    cause: str | None = None
    health: str | None = None
    q: str | None = None

    def write(self) -> dict[str, str]:
        """Return it as a link says it."""
        return write(FIELDS, {one.name: getattr(self, one.name) for one in fields(self)}, dict.fromkeys(FIELDS))

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> tuple[Wish, dict[str, str]]:
        """Return what a link says, and name → why for what in it makes no sense."""
        values, refused = read(FIELDS, state)
        return cls(**values), refused

    def but(self, **changes: Any) -> Wish:
        """Return another one."""
        return replace(self, **changes)

    @property
    def any(self) -> bool:
        """Whether it leaves something out."""
        return any(getattr(self, one.name) for one in fields(self))


@dataclass(slots=True)
class Shown:
    """One source, as the page says of it."""

    source: str
    status: str
    time: float | None
    detail: str
    hint: str


@dataclass
class Picture:
    """
    A snapshot as somebody wants it.

    Attributes
    ----------
    snapshot : Snapshot
    wish : Wish
    """

    snapshot: Snapshot
    wish: Wish = field(default_factory=Wish)

    # which nodes

    @cached_property
    def _masks(self) -> dict[str, pd.Series]:
        """For each field of the wish, which nodes have it."""
        nodes, wish = self.snapshot.nodes, self.wish
        yes = pd.Series(True, index=nodes.index)
        found = dict.fromkeys(("pool", "sku", "cause", "health", "q"), yes)
        for name in ("pool", "sku", "health"):
            if value := getattr(wish, name):
                found[name] = (nodes[name] == value).fillna(False).astype(bool)
        if wish.cause:
            found["cause"] = (self._cause == wish.cause).fillna(False).astype(bool)
        if wish.q:
            found["q"] = self._has(wish.q)
        return found

    @cached_property
    def _cause(self) -> pd.Series:
        """Of what is not well its cause, unknown where nobody told; missing where all is well."""
        nodes = self.snapshot.nodes
        return nodes["cause"].fillna("unknown").where(nodes["health"] != "ok")

    def _has(self, words: str) -> pd.Series:
        """Tell which nodes have some words in their name, job, reason, owner or state, or a GPU with that UUID or address."""
        nodes, gpus, low = self.snapshot.nodes, self.snapshot.gpus, words.lower()
        hit = pd.Series(False, index=nodes.index)
        for name in ("node", "job", "why", "held_by", "state", "zone", "pool", "sku"):
            hit |= nodes[name].fillna("").str.lower().str.contains(low, regex=False).astype(bool)
        of_gpu = pd.Series(False, index=gpus.index)
        for name in ("gpu_uuid", "pci"):
            of_gpu |= gpus[name].fillna("").str.lower().str.contains(low, regex=False).astype(bool)
        return hit | nodes["node"].isin(gpus.loc[of_gpu, "node"].unique())

    def _but(self, *left_out: str) -> pd.Series:
        mask = pd.Series(True, index=self.snapshot.nodes.index)
        for name, one in self._masks.items():
            if name not in left_out:
                mask &= one
        return mask

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """The nodes that are wanted, the worst first."""
        found = self.snapshot.nodes[self._but()]
        order = found["health"].map(_WORST).fillna(0)
        ready = [f"{_count(a)} of {_count(b)}" for a, b in zip(found["gpus_ready"], found["gpus"], strict=True)]
        found = found.assign(_order=order, ready=pd.array(ready, dtype="string"))
        return found.sort_values(["_order", "node"], kind="stable").drop(columns="_order").reset_index(drop=True)

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """Their GPUs, by pool and name, so that a GPU keeps its place on the map."""
        wanted = self.snapshot.nodes[self._but()]
        found = self.snapshot.gpus[self.snapshot.gpus["node"].isin(wanted["node"])]
        return found.sort_values(["pool", "node", "gpu_index"], kind="stable", na_position="last").reset_index(drop=True)

    @cached_property
    def names(self) -> list[str]:
        """The nodes in the order of the map."""
        return [str(name) for name in self.gpus["node"].unique()]

    @cached_property
    def places(self) -> int:
        """A number that is the same while the same GPUs stand at the same places of the map."""
        return _digest(self.gpus[["node", "gpu_index"]])

    @cached_property
    def looks(self) -> int:
        """A number that is the same while the map looks the same."""
        return _digest(self.gpus[["health", "why"]])

    # counts

    @cached_property
    def healths(self) -> Counter[str]:
        """How many nodes of each health there would be without that filter."""
        return Counter(self.snapshot.nodes.loc[self._but("health"), "health"].tolist())

    @cached_property
    def causes(self) -> Counter[str]:
        """How many nodes that are not well of each cause there would be without that filter."""
        return Counter(self._cause[self._but("cause")].dropna().tolist())

    def offered(self, name: str) -> list[tuple[str, int]]:
        """Return the values of ``pool`` or ``sku`` with the number of nodes that each would leave."""
        counts = Counter(self.snapshot.nodes.loc[self._but(name), name].dropna().tolist())
        every = self.snapshot.nodes[name].dropna().unique()
        return [(str(one), counts[one]) for one in sorted(every)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """What stands above the map: nodes, GPUs, and how many of them take work, work, are held, are not known."""
        nodes, gpus = self.nodes, self.gpus
        free = nodes["schedulable"].fillna(False).astype(bool) & (nodes["health"] != "critical")
        size = nodes["gpus"].fillna(0)
        return {
            "nodes": len(nodes),
            "gpus": len(gpus),
            "usable": int(size[free].sum()),
            "busy": int(gpus["job"].notna().sum()),
            "held": int(nodes["held_by"].notna().sum()),
            "jobs": len(self.jobs),
        }

    # tables

    def _of_nodes(self, frame: pd.DataFrame) -> pd.DataFrame:
        if not self.wish.any:
            return frame.reset_index(drop=True)
        return frame[frame["node"].isin(set(self.nodes["node"]))].reset_index(drop=True)

    @cached_property
    def findings(self) -> pd.DataFrame:
        """What is not as it should be, the worst first."""
        found = self.snapshot.findings
        return self._of_nodes(found[~found["status"].isin(["ok", "not-applicable"])])

    @cached_property
    def conditions(self) -> pd.DataFrame:
        """Conditions that are bad or whose meaning nobody knows, taints and states."""
        found = self.snapshot.conditions
        worth = found["bad"].fillna(True).astype(bool) | found["kind"].isin(["taint"])
        return self._of_nodes(found[worth & ~((found["kind"] == "state") & (found["bad"] == False).fillna(False))])  # noqa: E712

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """The jobs on these nodes, the largest first, with how many of their nodes are not well."""
        jobs = self.snapshot.jobs
        if self.wish.any:
            here = set(self.nodes["node"])
            jobs = jobs[[not here.isdisjoint(names or ()) for names in jobs["node_names"]]]
        ill = set(self.snapshot.nodes.loc[self.snapshot.nodes["health"] != "ok", "node"])
        return jobs.assign(
            ill=pd.array([len(ill.intersection(names or ())) for names in jobs["node_names"]], dtype="Int64")
        ).reset_index(drop=True)

    @cached_property
    def suspects(self) -> pd.DataFrame:
        """Who should be looked at first."""
        return self._of_nodes(self.snapshot.suspects)

    @cached_property
    def actions(self) -> pd.DataFrame:
        """What was done to these nodes, newest first."""
        return self._of_nodes(self.snapshot.actions)

    def table(self, tab: str) -> pd.DataFrame:
        """Return the frame of a tab."""
        found: pd.DataFrame = getattr(self, tab)
        return found

    def shown(self, tab: str, columns: Mapping[str, str]) -> pd.DataFrame:
        """Return what a table shows of a tab, made once for all sessions."""
        if tab not in self._shown:
            frame = self.table(tab)
            made = display(frame, columns)
            for name in made.columns:
                if str(frame[name].dtype).startswith("datetime64"):
                    made[name] = [text[:19] for text in made[name]]  # nobody polls a fleet by the millisecond
                elif name in ("health", "status") and tab in ("nodes", "findings"):
                    made[name] = [f"{MARKS.get(word, ' ')} {word}" for word in made[name]]
                elif name == "score":
                    made[name] = made[name].round(2)
            self._shown[tab] = made
        return self._shown[tab]

    @cached_property
    def _shown(self) -> dict[str, pd.DataFrame]:
        return {}

    # one node

    def node(self, name: str | None) -> dict[str, Any] | None:
        """Return the row of a node of the fleet, wanted or not, missing as None; None when there is none."""
        found = self.snapshot.nodes[self.snapshot.nodes["node"] == name]
        return {str(key): known(value) for key, value in found.iloc[0].items()} if len(found) else None

    def gpus_of(self, name: str | None) -> list[dict[str, Any]]:
        """Return the rows of a node's GPUs, missing as None."""
        return rows_of(self.snapshot.gpus[self.snapshot.gpus["node"] == name])


def _count(value: Any) -> str:
    return "?" if known(value) is None else str(int(value))


def _digest(frame: pd.DataFrame) -> int:
    rows = pd.util.hash_pandas_object(frame.astype("object"), index=True).to_numpy()
    return hash((len(rows), rows.tobytes()))


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain values: what is missing as None, times as they are."""
    return [{str(key): known(value) for key, value in row.items()} for row in frame.to_dict("records")]


def age(seconds: float | None) -> str:
    """
    Return how long ago something was, for people.

    >>> age(42), age(400), age(9000), age(400000), age(None)
    ('42 s', '7 min', '2.5 h', '4.6 d', '')
    """
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


_HELD: OrderedDict[tuple[int, Wish], tuple[Snapshot, Picture]] = OrderedDict()
_LOCK = Lock()
_MOST = 12  # pictures held: each is some megabytes of a fleet of 16,384 GPUs


def picture(snapshot: Snapshot, wish: Wish) -> Picture:
    """Return the picture of a snapshot, the same for all sessions that want the same."""
    key = (id(snapshot), wish)
    with _LOCK:
        if key in _HELD and _HELD[key][0] is snapshot:  # the id of one that is gone may be another's
            _HELD.move_to_end(key)
            return _HELD[key][1]
        made = Picture(snapshot, wish)
        _HELD[key] = snapshot, made
        for old in [
            one for one, (held, _) in _HELD.items() if held.time < snapshot.time - 2 * snapshot.period and held is not snapshot
        ]:
            del _HELD[old]
        while len(_HELD) > _MOST:
            _HELD.popitem(last=False)
        return made


def told(heard: Heard) -> Shown:
    """Return a source as the page says of it."""
    return Shown(heard.source, heard.status, heard.time, heard.detail, heard.hint)
