"""Turn the findings of one run and what earlier runs saw into findings that last: no flapping, nothing forgotten before it was mended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.catalog import HERE, read_rows
from workbench.errors import CatalogError
from workbench.health.finding import Finding

__all__ = ["Past", "Persistence", "persistence", "settle"]

_KEPT = 64  # times of one finding that are kept
_FORGET = 30 * 86400.0  # seconds after which what was not seen again is dropped from the state


@dataclass(frozen=True, slots=True)
class Persistence:
    """
    How long a kind of finding has to be there, and how long it stays.

    Attributes
    ----------
    strikes, window : int, float
        It counts fully when it was seen in `strikes` runs within `window` seconds; before, a critical one is a warning.
    grace : float
        Seconds after boot in which it means that the node is still coming up: ``unknown``, without an action.
    sticky : str
        ``boot``: once seen it stays until the node booted again, whatever the counters say then; ``reset``: or until the GPU was reset;
        empty: it goes when it is no longer seen.
    """

    code: str
    strikes: int = 1
    window: float = 0.0
    grace: float = 0.0
    sticky: str = ""
    origin: str = ""


@lru_cache(maxsize=8)
def _rows(site: str | None) -> dict[str, Persistence]:
    rows: dict[str, Persistence] = {}
    for folder in [HERE] + [Path(each) for each in [site] if each]:
        for file in sorted(folder.glob("finding_persistence*.csv")):
            for line, row in read_rows(file):
                try:
                    one = Persistence(
                        row["code"],
                        int(row["strikes"] or 1),
                        float(row["window"] or 0),
                        float(row["grace"] or 0),
                        row["sticky"],
                        f"{file.name}:{line}",
                    )
                    if one.sticky not in ("", "boot", "reset") or one.strikes < 1:
                        raise ValueError(f"sticky {one.sticky!r} or strikes {one.strikes} cannot be")
                except (KeyError, ValueError) as error:
                    raise CatalogError(f"{file.name}:{line}: {error}", hint=f"correct the row {row.get('code')!r}") from None
                rows[one.code] = one
    return rows


def persistence(code: str) -> Persistence:
    """
    Return how a code persists; `xid-79` falls back on `xid`, and what has no row counts at once and goes at once.

    Raises
    ------
    CatalogError
        A row of the table is wrong.
    """
    rows = _rows(os.environ.get("WORKBENCH_CATALOG"))
    name = code
    while name not in rows and "-" in name:
        name = name.rpartition("-")[0]
    return replace(rows[name], code=code) if name in rows else Persistence(code)


@dataclass
class Past:
    """
    What earlier runs saw: plain values, kept as JSON.

    Attributes
    ----------
    boot : str
        Boot id of the last run.
    seen : dict
        Key of a finding → ``times`` (when, newest last), ``since`` (first of this series), ``boot``, and the finding ``as`` it was.
    """

    boot: str = ""
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Past:
        """Return what a state file holds; nothing when there is none or it is not ours."""
        seen = (document or {}).get("seen")
        good = {
            str(key): dict(value)
            for key, value in (seen.items() if isinstance(seen, Mapping) else ())
            if isinstance(value, Mapping) and isinstance(value.get("times"), list) and isinstance(value.get("as"), Mapping)
        }
        return cls(str((document or {}).get("boot") or ""), good)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"boot": self.boot, "seen": self.seen}


def _key(one: Finding) -> str:
    gpu = (one.gpu.uuid or one.gpu.pci or str(one.gpu.index)) if one.gpu else ""
    return "|".join((one.check, one.code, gpu, one.part))


def settle(
    findings: Sequence[Finding],
    past: Past,
    *,
    now: float,
    boot: str,
    booted: float | None = None,
    resets: Mapping[str, float] | None = None,
) -> tuple[list[Finding], Past]:
    """
    Return the findings as they stand with history, and the history to keep.

    Parameters
    ----------
    findings : sequence of Finding
        Of this run.
    past : Past
        What earlier runs left.
    now, booted : float
        Seconds since the epoch; `booted` when the node came up, None when it is not known.
    boot : str
        Boot id of the kernel; empty when it is not known: then nothing that is sticky is cleared.
    resets : mapping, optional
        GPU (UUID, PCI address or index as text) → when it was last reset, seconds since the epoch.

    Returns
    -------
    findings : list of Finding
        ``since`` says when each was first seen in a row. What was sticky and is no longer seen is there again, with the words of then.
    past : Past
        For the next run.
    """
    kept = Past(boot or past.boot)
    out: list[Finding] = []
    here = set()
    for one in findings:
        if one.status in ("ok", "not-applicable"):
            out.append(one)
            continue
        key = _key(one)
        here.add(key)
        rule = persistence(one.code)
        before = past.seen.get(key)
        times = [*(before["times"] if before else []), now][-_KEPT:]
        since = float(before["since"]) if before else one.since or now
        settled = _weighed(replace(one, since=since), rule, times, now, booted)
        kept.seen[key] = {"times": times, "since": since, "boot": boot, "as": one.to_dict()}
        out.append(settled)
    for key, before in past.seen.items():
        if key in here:
            continue
        rule = persistence(str(before["as"].get("code") or ""))
        last = float(before["times"][-1]) if before["times"] else 0.0
        if _stays(rule, before, boot, last, resets or {}):
            kept.seen[key] = before
            out.append(_again(before, last))
        elif rule.strikes > 1 and now - last <= rule.window:
            kept.seen[key] = before  # a strike counts until its window is over, seen now or not
        elif now - last < min(_FORGET, rule.window):
            kept.seen[key] = before
    # what is sticky on an entity stands in the way of an "all is well" on it
    stuck = {(one.check, _key(one).split("|")[2], one.part) for one in out if one.hint == _STUCK}
    out = [one for one in out if not (one.status == "ok" and (one.check, _key(one).split("|")[2], one.part) in stuck)]
    return out, kept


_STUCK = "not seen now, and stays until it was mended: a reset or reboot clears it"


def _weighed(one: Finding, rule: Persistence, times: Sequence[float], now: float, booted: float | None) -> Finding:
    if rule.grace and booted is not None and 0 <= now - booted < rule.grace:
        left = rule.grace - (now - booted)
        return replace(
            one,
            status="unknown",
            action="none",
            summary=f"{one.summary} (the node came up {now - booted:.0f} s ago: judged in {left:.0f} s)",
        )
    strikes = sum(now - moment <= rule.window for moment in times) if rule.window else len(times)
    if rule.strikes > 1 and strikes < rule.strikes and one.status == "critical":
        return replace(one, status="warning", action="none", summary=f"{one.summary} ({strikes} of {rule.strikes} times)")
    return one


def _stays(rule: Persistence, before: Mapping[str, Any], boot: str, last: float, resets: Mapping[str, float]) -> bool:
    if not rule.sticky or before["as"].get("status") != "critical":
        return False
    if boot and before.get("boot") and boot != before["boot"]:
        return False
    if rule.sticky == "reset":
        gpu = before["as"].get("gpu") or {}
        names = [str(gpu[word]) for word in ("uuid", "pci", "index") if gpu.get(word) is not None]
        return not any(resets.get(name, 0.0) > last for name in names)
    return True


def _again(before: Mapping[str, Any], last: float) -> Finding:
    from datetime import UTC, datetime

    from workbench.model import Gpu

    told = before["as"]
    gpu = told.get("gpu")
    stamp = datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d %H:%M")
    return Finding(
        str(told.get("check")),
        str(told.get("status")),
        f"{told.get('summary')} (last seen {stamp} UTC)",
        str(told.get("code") or ""),
        str(told.get("node") or ""),
        Gpu(gpu.get("index"), gpu.get("uuid"), gpu.get("pci")) if isinstance(gpu, Mapping) else None,
        str(told.get("part") or ""),
        str(told.get("class") or ""),
        str(told.get("action") or "none"),
        bool(told.get("required", True)),
        tuple(map(str, told.get("evidence") or ())),
        str(told.get("path") or ""),
        hint=_STUCK,
        since=float(before["since"]),
    )
