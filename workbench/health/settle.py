"""Turn the findings of one run and what earlier runs saw into findings that last: no flapping, nothing forgotten before it was mended."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.catalog import HERE, read_rows
from workbench.errors import CatalogError
from workbench.health.finding import STATUSES, Finding

__all__ = ["Past", "Persistence", "is_stuck", "persistence", "settle"]

_KEPT = 64  # times of one finding that are kept
# seconds that two strikes lie apart at least: what a prolog and a health program see in the same moment was seen once
_APART = 30.0
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
        Key of a finding → ``times`` (when it struck, newest last), ``last`` (when it was seen last), ``since`` (first of this series),
        ``boot``, and the finding ``as`` it was.
    asking : dict
        GPU → when its driver was last seen to ask for a reset or a boot (`workbench.health.resets`).
    """

    boot: str = ""
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    asking: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Past:
        """Return what a state file holds; nothing when there is none or it is not ours."""
        seen, asking = ((document or {}).get(name) for name in ("seen", "asking"))
        good = {
            str(key): dict(value)
            for key, value in (seen.items() if isinstance(seen, Mapping) else ())
            if isinstance(value, Mapping) and _is_entry(value)
        }
        asked = {str(gpu): float(at) for gpu, at in asking.items() if _is_time(at)} if isinstance(asking, Mapping) else {}
        return cls(str((document or {}).get("boot") or ""), good, asked)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"boot": self.boot, "seen": self.seen, "asking": self.asking}


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_entry(value: Mapping[str, Any]) -> bool:
    times = value.get("times")
    return (
        isinstance(times, list)
        and all(_is_time(moment) for moment in times)
        and _is_time(value.get("since"))
        and _is_time(value.get("last", 0.0))
        and isinstance(value.get("as"), Mapping)
        and value["as"].get("status") in STATUSES
    )


def _last(entry: Mapping[str, Any]) -> float:
    return float(entry.get("last") or (entry["times"][-1] if entry["times"] else 0.0))


def _entity(one: Finding) -> tuple[str, str]:
    return (one.gpu.uuid or one.gpu.pci or str(one.gpu.index)) if one.gpu else "", one.part


def _key(one: Finding) -> str:
    return "|".join((one.check, one.code, *_entity(one)))


def _known_as(one: Finding, past: Past) -> str:
    """Return the key under which the past has a finding: a GPU that the driver no longer knows has lost its UUID, not its address."""
    key = _key(one)
    if key in past.seen or one.gpu is None or not one.gpu.pci:
        return key
    for other, before in past.seen.items():
        told = before["as"]
        gpu = told.get("gpu")
        if (
            isinstance(gpu, Mapping)
            and gpu.get("pci") == one.gpu.pci
            and not (gpu.get("uuid") and one.gpu.uuid)
            and (told.get("check"), told.get("code"), told.get("part") or "") == (one.check, one.code, one.part)
        ):
            return other
    return key


def settle(
    findings: Sequence[Finding],
    past: Past,
    *,
    now: float,
    boot: str,
    booted: float | None = None,
    resets: Mapping[str, float] | None = None,
    ran: Collection[str] | None = None,
    strikes: bool = True,
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
        GPU (UUID, PCI address or index as text; empty: all of them) → when it was last reset, seconds since the epoch.
    ran : collection of str, optional
        Ids of the checks that were run; default all. Of another one nothing is concluded from its silence.
    strikes : bool, optional
        Whether a finding may be taken for an accident until it was seen often enough. Not where the count is lost after each run: there it
        would be one for ever.

    Returns
    -------
    findings : list of Finding
        ``since`` says when each was first seen in a row. What was sticky and is no longer seen is there again, with the words of then.
    past : Past
        For the next run.
    """
    kept = Past(boot or past.boot, {}, dict(past.asking))
    out: list[Finding] = []
    here = set()
    for one in findings:
        if one.status in ("ok", "not-applicable"):
            out.append(one)
            continue
        key = _known_as(one, past)
        here.add(key)
        rule = persistence(one.code)
        before = past.seen.get(key)
        times = list(before["times"]) if before else []
        if not times or abs(now - times[-1]) >= _APART:
            times = [*times, now][-_KEPT:]
        since = float(before["since"]) if before else one.since or now
        settled = _weighed(replace(one, since=since), rule if strikes else replace(rule, strikes=1), times, now, booted)
        kept.seen[_key(one)] = {"times": times, "last": now, "since": since, "boot": boot or past.boot, "as": one.to_dict()}
        out.append(settled)
    for key, before in past.seen.items():
        if key in here or key in kept.seen:
            continue
        rule = persistence(str(before["as"].get("code") or ""))
        last = _last(before)
        silent = ran is not None and before["as"].get("check") not in ran
        if _stays(rule, before, boot, last, resets or {}):
            kept.seen[key] = before
            out.append(_again(before, last))
        elif silent and now - last < _FORGET and not rule.sticky:
            kept.seen[key] = before
        elif rule.strikes > 1 and now - last <= rule.window:
            kept.seen[key] = before  # a strike counts until its window is over, seen now or not
        elif now - last < min(_FORGET, rule.window):
            kept.seen[key] = before
    # what is sticky on an entity stands in the way of an "all is well" on it
    stuck = {(one.check, *_entity(one)) for one in out if is_stuck(one)}
    node = {(check, "", "") for check, *_ in stuck}  # nor does a check say of the whole node that all is well
    out = [one for one in out if not (one.status == "ok" and (one.check, *_entity(one)) in stuck | node)]
    return out, kept


_STUCK = "not seen now, and stays until it was mended: a reset or reboot clears it; `workbench check --forget` says that it is"


def is_stuck(one: Finding) -> bool:
    """Tell whether a finding is not seen now, and there all the same since nobody has mended it."""
    return one.hint == _STUCK


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
        return not any(resets.get(name, 0.0) > last for name in ("", *names))
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
