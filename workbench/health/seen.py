"""Turn readings and expectations into what a judge looks at, and its conclusions into findings with the catalog's status and action."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.catalog.findings import FindingRow, finding_row
from workbench.catalog.skus import Sku, sku_of
from workbench.health.finding import Finding
from workbench.health.registry import Check
from workbench.model import Event, Gpu
from workbench.parse.gpu_state import GpuState, NodeGpus
from workbench.sources.node.world import Reading

__all__ = ["Seen"]

_EVIDENCE = 10


@dataclass(frozen=True)
class Seen:
    """
    What one check may look at.

    Attributes
    ----------
    check : Check
        The one that looks.
    node, context : str
        The node, and when it is checked.
    readings : mapping
        Name → reading. All that the check `needs` are usable; those that it `wants` may be or not.
    settings : mapping
        The site's settings ``health.*`` by their last word.
    now : float
        Seconds since the epoch.
    """

    check: Check
    node: str
    context: str
    readings: Mapping[str, Reading]
    settings: Mapping[str, Any]
    now: float

    def value(self, name: str) -> Any:
        """Return what a reading holds; None for one that is wanted and not there."""
        reading = self.readings.get(name)
        return reading.value if reading and reading.usable else None

    @property
    def gpus(self) -> NodeGpus:
        """The GPUs of the node; for checks that need the reading ``gpus``."""
        value = self.readings["gpus"].value
        assert isinstance(value, NodeGpus)
        return value

    def setting(self, name: str) -> Any:
        """Return what the site says of ``health.<name>``; None when it says nothing."""
        return self.settings.get(name)

    def sku(self, state: GpuState) -> Sku | None:
        """Return what the catalog expects of this product; None when it does not know it."""
        return sku_of(state.product)

    # ---- conclusions

    def _finding(
        self, status: str, summary: str, code: str, gpu: Gpu | None, part: str, row: FindingRow | None, **more: Any
    ) -> Finding:
        main = self.readings.get(self.check.needs[0]) if self.check.needs else None
        return Finding(
            self.check.id,
            status,
            summary,
            code,
            self.node,
            gpu,
            part,
            (row.cls if row else "") or ("" if status in ("ok", "not-applicable") else self.check.cls),
            row.action if row else "none",
            more.get("required", self.check.required),
            (
                *tuple(more.get("evidence", ()))[: _EVIDENCE - 1],
                *(self._instances(gpu) if status in ("warning", "critical") else ()),
            ),
            main.path if main else "",
            main.blind if main else (),
            main.tried if main else (),
            more.get("hint", ""),
            main.seconds if main else 0.0,
            more.get("since"),
        )

    def _instances(self, gpu: Gpu | None) -> tuple[str, ...]:
        """What hits a GPU hits every MIG instance on it: name them, for a scheduler knows these only."""
        gpus = self.value("gpus") if "gpus" in self.readings and gpu is not None else None
        state = next((one for one in gpus.states if one.gpu == gpu), None) if gpus is not None else None
        found = state.get("mig.instances") if state is not None else None
        if not isinstance(found, list) or not found:
            return ()
        return (f"MIG instances of this GPU: {', '.join(str(one.get('uuid') or one.get('index')) for one in found)}",)

    def ok(self, summary: str, *, gpu: Gpu | None = None, part: str = "", evidence: Iterable[str] = ()) -> Finding:
        """Return that all is well; only for what was really looked at."""
        return self._finding("ok", summary, "", gpu, part, None, evidence=evidence)

    def absent(self, summary: str, *, gpu: Gpu | None = None, part: str = "") -> Finding:
        """Return that the question does not arise: this hardware, product or site has no such thing."""
        return self._finding("not-applicable", summary, "", gpu, part, None)

    def unknown(self, summary: str, *, gpu: Gpu | None = None, part: str = "", hint: str = "", code: str = "unread") -> Finding:
        """Return that it could not be checked."""
        return self._finding("unknown", summary, code, gpu, part, finding_row(code), hint=hint)

    def found(
        self,
        code: str,
        summary: str,
        *,
        gpu: Gpu | None = None,
        part: str = "",
        evidence: Iterable[str] = (),
        since: float | None = None,
        hint: str = "",
    ) -> Finding:
        """
        Return a finding with the status, class and action that the catalog gives its code.

        Parameters
        ----------
        code : str
            A row of ``catalog/findings.csv``.
        summary : str
            One sentence with the figures.

        Raises
        ------
        CatalogError
            There is no such row.
        """
        row = finding_row(code)
        return self._finding(row.status, summary, code, gpu, part, row, evidence=evidence, since=since, hint=hint)

    def found_event(self, event: Event, summary: str = "") -> Finding:
        """Return the finding for an event of a parser: its signature is the code."""
        row = finding_row(event.signature)
        return self._finding(
            row.status,
            summary or row.meaning,
            event.signature,
            event.gpu,
            "",
            row,
            evidence=[event.text] if event.text else (),
            since=event.time,
        )
