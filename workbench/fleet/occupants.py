"""Turn pages of DCGM's exporter, or a table that somebody keeps, into who uses which GPU or part of one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.fleet.tenants import Tenant
from workbench.parse.prom_text import looks_like_exposition, parse_exposition

__all__ = ["SHARING", "occupants"]

SHARING = ("alone", "time-sliced", "mps")


def occupants(pages: Mapping[str, bytes], *, sharing: str = "time-sliced") -> tuple[list[Tenant], list[str]]:
    """
    Return the tenants, and what could not be used.

    Parameters
    ----------
    pages : mapping
        Name → ``/metrics`` of dcgm-exporter with pods (labels UUID, GPU_I_ID, namespace, pod), or a table of tenants: CSV with a header, or a
        JSON list, with the columns ``name``, ``gpu`` (UUID) and, where known, ``instance``, ``compute``, ``sharing``, ``pids``.
    sharing : str
        How several pods share one GPU or instance, which DCGM does not tell: ``time-sliced`` or ``mps``.

    Returns
    -------
    tuple
        Tenants in the order of their names, and problems; a page without any is one.
    """
    found: dict[tuple[str, str, int | None, int | None], Tenant] = {}
    problems: list[str] = []
    for name, page in pages.items():
        before = len(found)
        text = page.decode("utf-8", "replace")
        if text.lstrip()[:1] == "[":
            rows = _json(text, name, problems)
        elif looks_like_exposition(page[: 1 << 16]):
            rows = list(_of_dcgm(page, name))
        else:
            rows = [dict(row) for row in csv.DictReader(io.StringIO(text))]
        for place, row in enumerate(rows, 1):
            try:
                one = _tenant(row)
            except ValueError as error:
                problems.append(f"{name}: row {place}: {error}")
                continue
            found.setdefault((one.gpu, one.name, one.instance, one.compute), one)
        if len(found) == before and not any(problem.startswith(name) for problem in problems):
            problems.append(
                f"{name}: it tells no tenant of a GPU: a page of dcgm-exporter with pods, or a table with name and gpu"
            )
    shared: dict[tuple[str, int | None, int | None], int] = {}
    for one in found.values():
        place_of = (one.gpu, one.instance, one.compute)
        shared[place_of] = shared.get(place_of, 0) + 1
    made = [
        one
        if one.sharing
        else Tenant(
            one.name,
            one.gpu,
            one.instance,
            one.compute,
            sharing if shared[one.gpu, one.instance, one.compute] > 1 else "alone",
            one.pids,
        )
        for one in found.values()
    ]
    return sorted(made, key=lambda one: (one.gpu, one.instance if one.instance is not None else -1, one.name)), problems


def _json(text: str, name: str, problems: list[str]) -> list[Mapping[str, Any]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"{name}: it is no JSON: {str(error)[:80]}")
        return []
    return [row if isinstance(row, Mapping) else {} for row in rows]


def _of_dcgm(page: bytes, name: str) -> Iterable[Mapping[str, Any]]:
    for one in parse_exposition(page, file=name).series:
        if one.gpu is not None and one.gpu.uuid and one.pod:
            mig = one.mig if one.mig and one.mig.isdigit() else None
            yield {"name": f"{one.namespace}/{one.pod}" if one.namespace else one.pod, "gpu": one.gpu.uuid, "instance": mig}


def _tenant(row: Mapping[str, Any]) -> Tenant:
    name, gpu, sharing = (str(row.get(key) or "").strip() for key in ("name", "gpu", "sharing"))
    if not name or not gpu:
        raise ValueError("it has no name or no gpu")
    if sharing and sharing not in SHARING:
        raise ValueError(f"sharing is {sharing[:40]!r}, which is none of {', '.join(SHARING)}")
    pids = row.get("pids") or ()
    words = pids if isinstance(pids, list | tuple) else str(pids).replace(";", " ").split()
    return Tenant(name, gpu, _whole(row.get("instance")), _whole(row.get("compute")), sharing, tuple(_must(pid) for pid in words))


def _whole(value: Any) -> int | None:
    return None if value is None or str(value).strip() == "" else _must(value)


def _must(value: Any) -> int:
    text = str(value).strip()
    if not text.isdigit():
        raise ValueError(f"{text[:40]!r} is no whole number")
    return int(text)
