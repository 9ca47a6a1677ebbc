"""Turn a Kubernetes cluster into all objects that an account of it needs: jobs of every kind, pods, nodes, events, device slices."""

from __future__ import annotations

from typing import Any

from workbench.catalog import table
from workbench.errors import SourceError
from workbench.model import Problem
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError
from workbench.sources.kubernetes.jobs import path_of

__all__ = ["everything"]

_DRA = "resource.k8s.io"
_HOPELESS = ("config", "client", "refused", "tls", "auth")  # the next question would fail as well
_OF_NO_NAMESPACE = ("nodes", "resourceslices")


def everything(
    api: Api, deadline: Deadline, *, namespace: str | None = None, page: int = 500
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """
    Return the objects, and what could not be had; a kind that is not installed is no lack.

    Parameters
    ----------
    api : Api
        The cluster.
    deadline : Deadline
        For all of it.
    namespace : str, optional
        Of jobs, pods and events; default all of them.
    page : int
        Objects a page of a list.
    """
    wanted: list[tuple[str, str, str]] = [("", "v1", "pods"), ("", "v1", "nodes"), ("", "v1", "events")]
    wanted += [(row["group"], row["version"], row["plural"]) for row in table("kubernetes_jobs") if row["role"] == "job"]
    wanted.append((_DRA, "", "resourceslices"))
    items: list[dict[str, Any]] = []
    problems: list[Problem] = []
    served: dict[str, dict[str, Any] | None] = {}
    for group, version, plural in wanted:
        try:
            if group and group != "batch":
                if group not in served:
                    served[group] = _group(api, group, deadline)
                told = served[group]
                if told is None:
                    continue
                known = [str(one.get("version")) for one in told.get("versions") or ()]
                if version not in known:
                    version = str((told.get("preferredVersion") or {}).get("version") or "") or (known[0] if known else version)
            space = None if plural in _OF_NO_NAMESPACE else namespace
            listing = api.list(path_of(group, version, plural, space), deadline, page=page)
        except ApiError as error:
            if error.status == 404 and group:
                continue  # the group is there, this kind is not
            problems.append(_problem(group, plural, error))
            if error.kind in _HOPELESS:
                break
            continue
        except SourceError as error:  # the deadline is over
            problems.append(_problem(group, plural, error))
            break
        items += listing.items
        if listing.error is not None:
            problems.append(_problem(group, plural, listing.error, "partial"))
    return items, problems


def _group(api: Api, group: str, deadline: Deadline) -> dict[str, Any] | None:
    try:
        return api.json(f"/apis/{group}", deadline)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _problem(group: str, plural: str, error: SourceError, status: str = "failed") -> Problem:
    name = f"{plural}.{group}" if group else plural
    hint = error.hint or "workbench doctor tells what may be read; workbench config rbac writes the rights"
    return Problem(f"kubernetes {name}", str(error), hint, None, "kubernetes", status)
