"""Every stamp that a kernel log may have is read, whichever tool wrote it."""

from __future__ import annotations

import pytest

from workbench.parse.kernel_stamps import split

BODY = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
WALL = 1749310466.0  # 2025-06-07 15:34:26 UTC
OF_DAY = 15 * 3600 + 34 * 60 + 26.0


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", {}),
        ("[ 1234.567890] ", {"uptime": 1234.56789}),
        ("[ 1234.5] ", {"uptime": 1234.5}),
        (" 1234.567890] ", {"uptime": 1234.56789}),
        ("[ 1234.567890 ", {"uptime": 1234.56789}),
        ("[  130.456250] [ T1946] ", {"uptime": 130.45625, "caller": "T1946"}),
        ("[  130.456250][    C3] ", {"uptime": 130.45625, "caller": "C3"}),
        ("[ 1234.567890 <    0.000010>] ", {"uptime": 1234.56789}),
        ("[ 1234.567890] gpu-1 kernel: ", {"uptime": 1234.56789, "host": "gpu-1"}),
        ("<4>[ 1234.567890] ", {"uptime": 1234.56789, "level": "warn"}),
        ("4,1812,1234567890,-;", {"uptime": 1234.56789, "level": "warn"}),
        ("4,1812,1234567890,-,caller=T1946;", {"uptime": 1234.56789, "level": "warn"}),
        ("[  +0.000049] ", {"delta": 0.000049}),
        ("[Jun 7 15:34] ", {"yearless": (6, 7, OF_DAY - 26)}),
        ("[Jun17 15:34] ", {"yearless": (6, 17, OF_DAY - 26)}),
        ("[Sat Jun  7 15:34:26 2025] ", {"time": WALL, "naive": True}),
        ("[Sat Jun  7 15:34:26] ", {"yearless": (6, 7, OF_DAY)}),
        ("[Sa Jun  7 15:34:26 2025] ", {"time": WALL}),
        ("[sam. juin  7 15:34:26 2025] ", {"time": WALL}),
        ("[sáb jun  7 15:34:26 2025] ", {"time": WALL}),
        ("[sab giu  7 15:34:26 2025] ", {"time": WALL}),
        ("[za jun  7 15:34:26 2025] ", {"time": WALL}),
        ("[sob cze  7 15:34:26 2025] ", {"time": WALL}),
        ("[六 6月  7 15:34:26 2025] ", {"time": WALL}),
        ("[土  6月  7 15:34:26 2025] ", {"time": WALL}),
        ("kern  :err   : [ 1234.567890] ", {"uptime": 1234.56789, "level": "err"}),
        ("kern  :err   : 2025-06-07T15:34:26,500000+00:00 ", {"time": WALL + 0.5, "naive": False, "level": "err"}),
        ("2025-06-07T17:34:26.500000+0200 gpu-1 kernel: ", {"time": WALL + 0.5, "host": "gpu-1", "naive": False}),
        ("2025-06-07T15:34:26+0000 gpu-1 kernel: [ 12.5] ", {"time": WALL, "host": "gpu-1", "uptime": 12.5}),
        ("2025-06-07T15:34:26Z gpu-1 kernel: ", {"time": WALL, "host": "gpu-1"}),
        ("2025-06-07 15:34:26 ", {"time": WALL, "naive": True}),
        ("Sat 2025-06-07 17:34:26 CEST gpu-1 kernel: ", {"time": WALL, "naive": False, "host": "gpu-1"}),
        ("Jun  7 15:34:26 gpu-1 kernel: ", {"yearless": (6, 7, OF_DAY), "host": "gpu-1"}),
        ("Jun  7 15:34:26 gpu-1 kernel: [ 1234.567890] ", {"yearless": (6, 7, OF_DAY), "uptime": 1234.56789}),
        ("Jun 07 15:34:26.250000 gpu-1 kernel: ", {"yearless": (6, 7, OF_DAY + 0.25)}),
        ("Jun  7 15:34:26 kernel: ", {"yearless": (6, 7, OF_DAY), "host": None}),
        ("kernel: ", {"host": None}),
        ("juin 07 15:34:26 gpu-1 kernel: ", {"yearless": (6, 7, OF_DAY)}),
        ("Dez 07 15:34:26 gpu-1 kernel: ", {"yearless": (12, 7, OF_DAY)}),
        ("ene 07 15:34:26 gpu-1 kernel: ", {"yearless": (1, 7, OF_DAY)}),
        ("gen 07 15:34:26 gpu-1 kernel: ", {"yearless": (1, 7, OF_DAY)}),
        ("fev 07 15:34:26 gpu-1 kernel: ", {"yearless": (2, 7, OF_DAY)}),
        ("mrt 07 15:34:26 gpu-1 kernel: ", {"yearless": (3, 7, OF_DAY)}),
        ("paź 07 15:34:26 gpu-1 kernel: ", {"yearless": (10, 7, OF_DAY)}),
        ("12月 07 15:34:26 gpu-1 kernel: ", {"yearless": (12, 7, OF_DAY)}),
        ("1749310466.250000 gpu-1 kernel: ", {"time": WALL + 0.25, "host": "gpu-1"}),
        ("<4>1 2025-06-07T15:34:26.000Z gpu-1 kernel - - - ", {"time": WALL, "host": "gpu-1", "level": "warn"}),
        ("10.0.0.5: kern: warning: [2025-06-07T15:34:26.5Z]: ", {"time": WALL + 0.5, "host": "10.0.0.5", "level": "warning"}),
        ("10.0.0.5: kern: warning: [1749310466000000000]: ", {"time": WALL, "host": "10.0.0.5"}),
        ("10.0.0.5: kern:    info: [1586455]: ", {"uptime": 1586455.0, "host": "10.0.0.5"}),
        ("gpu-1: [ 1234.567890] ", {"uptime": 1234.56789, "host": "gpu-1"}),
        ("gpu-1: Jun  7 15:34:26 gpu-1 kernel: ", {"yearless": (6, 7, OF_DAY), "host": "gpu-1"}),
        ("gpu-1 | [ 1234.567890] ", {"uptime": 1234.56789, "host": "gpu-1"}),
        ("[pod/driver-abc/driver] [ 1234.567890] ", {"uptime": 1234.56789, "host": None}),
        ("3: [ 1234.567890] ", {"uptime": 1234.56789, "host": None}),
    ],
)
def test_a_stamp_is_peeled_off_and_read(prefix: str, expected: dict[str, object]) -> None:
    """What stands before the message goes into the stamp; the message is left whole."""
    stamp = split(prefix + BODY)
    assert stamp.text == BODY
    for name, value in expected.items():
        have = getattr(stamp, name)
        assert have == pytest.approx(value) if isinstance(value, float) else have == value, name


@pytest.mark.parametrize(
    "message",
    [
        "mce: [Hardware Error]: Machine check events logged",
        "nfs: server 10.0.0.21 OK",
        "pcieport 0000:00:03.0:    [12] Timeout",
        "EXT4-fs (dm-0): mounted filesystem",
        "504.112 Gb/s available",
    ],
)
def test_the_head_of_a_message_is_no_host(message: str) -> None:
    """Many kernel messages begin like `word: `, which is also how collectors print hosts."""
    assert split(message).text == message
    assert split(message).host is None


def test_a_scan_report_gives_the_age() -> None:
    """gpud's scan quotes the message and says how long ago it was."""
    stamp = split(f'[XID found] (54 minutes ago) "{BODY}"')
    assert (stamp.text, stamp.ago) == (BODY, 3240.0)


def test_a_journal_object_is_read() -> None:
    """`journalctl -o json` carries time, host and level as fields."""
    stamp = split(
        '{"MESSAGE":"NVRM: x","__REALTIME_TIMESTAMP":"1749310466500000","_HOSTNAME":"gpu-1","PRIORITY":"3","_TRANSPORT":"kernel"}'
    )
    assert (stamp.text, stamp.time, stamp.host, stamp.level, stamp.tag) == ("NVRM: x", WALL + 0.5, "gpu-1", "err", "")
