"""
Turn a node into what stands for its machine with whoever provides it, and give that back: what a plug-in promises, and which there are.

Karpenter's NodeClaim and Cluster API's Machine come with the package. A package of the site adds another by the entry point group
``workbench.replacers``, whose value is a function of one argument (what asks the API server) that returns a `Replacer`:

    [project.entry-points."workbench.replacers"]
    our-cloud = "our_cloud.replacer:make"

What only takes a command needs no plug-in: ``[commands.replace]`` of the policy, with ``{provider}`` or ``{instance}`` (docs/remediation.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from workbench.errors import ConfigError
from workbench.remediation.executors.contract import Deadline

__all__ = ["GROUP", "Claim", "Replacer", "instance_of", "plugged"]

GROUP = "workbench.replacers"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,40}")


@dataclass(frozen=True, slots=True)
class Claim:
    """
    What stands for a machine with whoever provides it.

    Attributes
    ----------
    name : str
        As `Replacer.get` takes it: a name, ``namespace/name``, an id of an instance.
    uid : str
        Identity that another of the same name does not have; the id itself where names are never used again.
    provider : str
        The provider's id of the machine, as the node has it in ``spec.providerID``; empty when it is not known.
    node : str
        Name of the node, as far as it is known here.
    going : str
        Why it is still there although it is given back; empty while it stands.
    stays : str
        Why it must not be given back: nothing makes another, it is the control plane's; empty when it may.
    """

    name: str
    uid: str
    provider: str = ""
    node: str = ""
    going: str = ""
    stays: str = ""

    def fits(self, node: Mapping[str, Any]) -> bool:
        """Whether it stands for a node: by the provider's id where both have it, else by the node's name."""
        provider = str((node.get("spec") or {}).get("providerID") or "")
        if provider and self.provider:
            return self.provider == provider
        return bool(self.node) and self.node == str((node.get("metadata") or {}).get("name"))


class Replacer(Protocol):
    """
    One way to give a machine back so that another takes its place.

    The executor asks in this order: `named` for every node of the fleet (so it asks nobody), `get` just before the change, whether the claim
    fits the node, and then `give_back` once; before that it writes claim and uid onto the node, so that whoever looks after a crash knows.
    Whether the machine is gone is told by `get` and by the node's uid.

    Attributes
    ----------
    name : str
        Small letters, digits and dashes; stands in front of the claim in a plan: ``cluster-api:default/pool-7xk2p``.
    kind : str
        What people call it: ``Machine``.
    """

    name: str
    kind: str

    def named(self, node: Mapping[str, Any], /) -> str:
        """Return the name of the claim that a node (the object as the API server has it) says it has; empty when it is none of ours."""
        ...

    def get(self, name: str, deadline: Deadline) -> Claim | None:
        """
        Return the claim as it is now; None when there is none of that name (any more).

        Raises
        ------
        ExecutorError
            That cannot be told, which is not the same as not being there.
        """
        ...

    def give_back(self, claim: Claim, action: str, deadline: Deadline, *, dry: bool) -> bool:
        """
        Give back exactly this claim (its uid, not only its name); False when it is gone already or is another one.

        A second call for the same claim is no second machine. With `dry` everything is checked as far as the other side can, and nothing
        changed. Raises `ExecutorError`, whose ``sent`` says whether the request may have arrived.
        """
        ...


def plugged(asks: Any, own: Sequence[Replacer] = ()) -> tuple[Replacer, ...]:
    """
    Return the plug-ins of this environment, then the package's own: the first that knows a node has it.

    Parameters
    ----------
    asks : object
        What asks the API server (`workbench.remediation.executors.kubernetes.calls.Calls`), for plug-ins that need it.
    own : sequence of Replacer, optional

    Raises
    ------
    ConfigError
        One cannot be loaded, or two have one name: said before anything is done, and not when a machine is half replaced.
    """
    found: list[Replacer] = []
    for point in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        where = f"entry point {point.name} ({point.value}) of {GROUP}"
        make: Callable[[Any], Replacer]
        try:
            make = point.load()
            one = make(asks)
            lacks = [name for name in ("named", "get", "give_back") if not callable(getattr(one, name, None))]
            name, kind = one.name, one.kind
        except Exception as error:
            raise ConfigError(f"{where}: {type(error).__name__}: {error}", hint="mend or remove that package") from error
        if lacks or not _NAME.fullmatch(str(name)) or not kind:
            lack = f"it has no {lacks[0]}" if lacks else f"its name {name!r} is none of small letters, digits and dashes"
            raise ConfigError(f"{where} is no replacer: {lack}", hint="see workbench.remediation.executors.replacers.Replacer")
        found.append(one)
    found += own
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two replacers are named {twice[0]}", hint=f"see the entry points of {GROUP}")
    return tuple(found)


def instance_of(provider: str) -> str:
    """Return the last part of a provider's id: ``i-0abc`` of ``aws:///us-east-1a/i-0abc``."""
    return provider.rstrip("/").rpartition("/")[2]
