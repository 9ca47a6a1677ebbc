"""Turn what HTTP headers say of time into seconds: when the server thinks it is, and when it wants to be asked again."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

__all__ = ["retry_after", "server_time"]


def server_time(date: str | None) -> float | None:
    """
    Return the seconds since the epoch that a ``Date`` header tells; None when there is none or it is no date.

    The header has whole seconds: on average the server's clock is half a second further, which is added.
    """
    try:
        return parsedate_to_datetime(str(date)).timestamp() + 0.5 if date else None
    except (TypeError, ValueError):
        return None


def retry_after(value: str | None, date: str | None = None) -> float | None:
    """
    Return the seconds that a ``Retry-After`` header asks for; None when it says nothing that can be understood.

    Parameters
    ----------
    value : str or None
        Seconds, or a date.
    date : str or None, optional
        The ``Date`` header of the same answer: a date is meant by the server's own clock, which may be off.
    """
    text = (value or "").strip()
    if re.fullmatch(r"\d{1,9}(?:\.\d+)?", text):
        return float(text)
    try:
        then = parsedate_to_datetime(text).timestamp() if text else None
    except (TypeError, ValueError):
        then = None
    if then is None:
        return None
    now = server_time(date)
    return max(then - (time.time() if now is None else now - 0.5), 0.0)
