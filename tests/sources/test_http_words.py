"""Headers of time: what a server that is told to wait for means, also when its clock is off."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import format_datetime, formatdate

import pytest

from workbench.sources.http_words import retry_after, server_time


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("30", 30.0), (" 1.5 ", 1.5), (None, None), ("", None), ("soon", None), ("-3", None), ("1e9", None)],
)
def test_seconds(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_a_date_is_meant_by_the_servers_clock() -> None:
    now = time.time() + 600  # ten minutes ahead of ours
    assert retry_after(formatdate(now + 20, usegmt=True), formatdate(now, usegmt=True)) == 20.0
    assert retry_after(formatdate(now - 20, usegmt=True), formatdate(now, usegmt=True)) == 0.0
    assert 615 < (retry_after(formatdate(now + 20, usegmt=True)) or 0) < 625


def test_the_middle_of_a_second() -> None:
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert server_time(format_datetime(noon, usegmt=True)) == noon.timestamp() + 0.5
    assert server_time(None) is None
    assert server_time("yesterday") is None
