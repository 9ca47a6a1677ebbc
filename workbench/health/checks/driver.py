"""Turn NVML's first answer into whether the driver is there, fits its library, and answers."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen

__all__ = ["driver"]

# nvml.h, nvmlReturn_t → code of the finding
_CODES = {
    9: "driver-not-loaded",
    12: "driver-library-missing",
    18: "driver-version-mismatch",
    10: "driver-hang",
    15: "driver-gpu-lost",
    17: "driver-blocked",
    4: "driver-blocked",
    999: "driver-unknown-error",
}


@check("driver", "the driver is loaded and answers", needs=("nvml",), cls="driver/other")
def driver(seen: Seen) -> Iterator[Finding]:
    """Judge how NVML's document ended; a missing driver, one that hangs and one that does not fit are different findings."""
    document = seen.value("nvml")
    ending, error = document["ending"], document.get("error") or {}
    said = str(error.get("error") or ending)
    if ending == "whole" and document.get("count") is None:
        uncounted = document["why_not"].get("count") or {}
        yield seen.found("driver-error", f"NVML cannot say how many GPUs there are: {uncounted.get('error') or 'not told'}")
    elif ending == "whole":
        yield seen.ok(f"driver {document.get('driver') or '(version not told)'} answers for {len(document['gpus'])} GPUs")
    elif ending == "hang":
        hung = document.get("hung") or {}
        where = f" of GPU {hung['gpu']}" if hung.get("gpu") is not None else ""
        yield seen.found(
            "driver-hang", f"{hung.get('call') or 'a call'}{where} did not return within {document['seconds']:.0f} s"
        )
    elif ending == "init":
        code = _CODES.get(int(error.get("code") or 0), "driver-error")
        yield seen.found(code, f"NVML cannot start: {said}", evidence=[said])
    else:  # the reader died or printed something else: it says nothing of the driver
        yield seen.unknown(f"NVML's reader came to no end ({ending}): {said}", hint="pip install nvidia-ml-py; run it by hand")
