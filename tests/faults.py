"""Turn the name under which tests know the failing server into the one that is shipped."""

from __future__ import annotations

from workbench.testing.faults import FAULTS, FaultServer, Reply, Request, self_signed

__all__ = ["FAULTS", "FaultServer", "Reply", "Request", "self_signed"]
