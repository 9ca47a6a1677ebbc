"""Turn one kernel log line into its stamp, host, level and message, whatever tool wrote the line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from sys import intern

__all__ = ["Stamp", "split"]

# Month names of the locales in which dmesg -T, journalctl and syslog print (glibc's `date +%b`), lower case.
_MONTHS: dict[str, int] = {}
for _number, _names in enumerate(
    (
        "jan january janv janvier januar ene enero gen gennaio janeiro januari sty stycznia янв",
        "feb february févr fevr février febr febrero febbraio fev fevereiro februari lut lutego фев",
        "mar march mars märz mrz maerz mär marzo março mrt maart marca мар",
        "apr april avr avril abr abril aprile kwi kwietnia апр",
        "may mai mayo mag maggio maio mei maj maja мая май",
        "jun june juin juni junio giu giugno junho cze czerwca июн",
        "jul july juil juillet juli julio lug luglio julho lip lipca июл",
        "aug august août aout ago agosto augustus sie sierpnia авг",
        "sep sept september septembre septiembre set settembre setembro wrz września сен",
        "oct october octobre okt oktober octubre ott ottobre out outubro paź października окт",
        "nov november novembre noviembre novembro lis listopada ноя",
        "dec december déc decembre décembre dez dezember dic diciembre dicembre dezembro gru grudnia дек",
    ),
    start=1,
):
    for _name in _names.split():
        _MONTHS[_name] = _number
_EAST_ASIAN_MONTH = re.compile(r"(\d{1,2})\s?(?:月|월)$")  # 6月

_ZONES = {  # hours east of UTC; only abbreviations that mean one thing in practice on servers
    "UTC": 0.0, "GMT": 0.0, "Z": 0.0, "WET": 0.0, "WEST": 1.0, "CET": 1.0, "CEST": 2.0, "EET": 2.0, "EEST": 3.0, "MSK": 3.0,
    "EST": -5.0, "EDT": -4.0, "CDT": -5.0, "MST": -7.0, "MDT": -6.0, "PST": -8.0, "PDT": -7.0, "JST": 9.0, "KST": 9.0, "HKT": 8.0,
}  # fmt: skip


@dataclass(slots=True)
class Stamp:
    """What stood before the message of one line."""

    text: str  # the message
    time: float | None = None  # seconds since the epoch when the stamp is a full one
    naive: bool = False  # the stamp named no zone: `time` was read as UTC
    yearless: tuple[int, int, float] | None = None  # month, day, second of the day: a stamp without a year
    weekday: str = ""  # as printed, helps to find the year
    uptime: float | None = None  # seconds since boot
    delta: float | None = None  # seconds since the line before (dmesg -H)
    host: str | None = None
    tag: str = ""  # program that wrote the line when it was not the kernel
    level: str = ""
    caller: str = ""
    ago: float | None = None  # seconds before the tool ran, where a tool gives only that
    continued: bool = False  # the tool indented this line as a part of the one before


# <4> | <12>1 (RFC 5424)
_PRIORITY = re.compile(r"\s*<(\d{1,3})>(?:1 (?=\d{4}-))?")
# 6,1234,5678901,-;text | 4,1235,5678999,-,caller=T1946;text
_KMSG = re.compile(r"(\d{1,3}),(\d{1,20}),(\d{1,20}),[-c+,][^;]{0,80};")
# [ 1234.567890] | 1234.567890] | [ 1234.567890 <    0.000010>] | [    0.000000][    T0]
_UPTIME = re.compile(
    r"\s*(?:\[\s*(\d{1,9}\.\d{1,9})(?:\s*<\s*\+?[\d.]*\s*>)?\s*(?:\]|(?=\s))|(\d{1,9}\.\d{3,9})\s*\])"
    r"(?:\s*\[\s*([TC]\s*\d+)\s*\])?:?\s?"
)
_BARE_UPTIME = re.compile(r"\s*(\d{1,9}\.\d{6})\s(?=[A-Za-z<\[ ])")  # both brackets lost
# 1749310469.123456 host kernel: (journalctl -o short-unix)
_EPOCH = re.compile(r"\[?(1[0-9]{9}(?:\.\d{1,9})?)\]?:?\s+(?=\S)")
# [  +0.000049]
_DELTA = re.compile(r"\s*\[\s*\+(\d+\.\d+)\]\s?")
# [Jun 7 15:34] | [Jun17 15:34]  (dmesg -H opens each minute so)
_MINUTE = re.compile(r"\s*\[\s*([^\W\d_]{3,10})\.?\s*(\d{1,2})\s+(\d{1,2}):(\d{2})\]\s?")
# [Sat Jun  7 15:34:26 2025] | [Sat Jun  7 15:34:26] | [sam. juin  7 15:34:26 2025] | [六 6月  7 15:34:26 2025]
_CTIME = re.compile(
    r"\s{0,40}\[?\s{0,8}(?:([^\W\d_]{1,10})[.,]?\s{1,8})?(\d{1,2}\s?[月월]|[^\W\d_]{3,12})[.]?\s+"
    r"(\d{1,2})[.,]?\s+(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?"
    r"(?:\s+(?:([A-Z]{3,4})\s+)?(\d{4}))?(?:\s*<[^>]*>)?\s*\]\s?"
)
# 2025-07-07T20:23:51.845859+0000 | 2025-01-25T10:34:54,859532+00:00 | Sat 2025-06-07 15:34:26 UTC | [2022-05-19T11:20:04.285938Z]
_ISO = re.compile(
    r"\s*\[?(?:[^\W\d_]{2,10}\.? )?(\d{4})[-/](\d{2})[-/](\d{2})[T _](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?"
    r"\s?(Z\b|[+-]\d{2}:?\d{2}\b|(?:[A-Z]{3,4})\b(?=[\s\]]))?\]?:?\s*"
)
# Feb 17 08:00:34 | févr. 17 08:00:34 | 17 Feb 08:00:34 | 6月 07 15:34:26 | 2025 Feb 17 08:00:34 | Feb 17 08:00:34.123456
_SYSLOG = re.compile(
    r"\s*(?:(\d{4})\s+)?(?:([^\W\d_]{3,12})\.?\s+(\d{1,2})\.?|(\d{1,2}\s?[月월])\s*(\d{1,2})[日일]?|(\d{1,2})\.?\s+([^\W\d_]{3,12})\.?)"
    r"(?:\s+(\d{4}))?,?\s+(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?(?:\s+((?:19|20)\d{2})(?=\s))?\s*"
)
_WEEKDAY = re.compile(r"\s*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?=[A-Z][a-z]{2} )")
# kern  :err   :  (dmesg -x)
_DECODED = re.compile(
    r"\s*(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d)\s*:"
    r"\s*(emerg|alert|crit|err|error|warn|warning|notice|info|debug)\s*:\s*"
)
# 10.0.0.5: kern: warning: [2022-05-19T11:20:04Z]: (talosctl dmesg)
_TALOS = re.compile(
    r"([A-Za-z0-9][\w.:-]*?):\s+(?=(?:kern|user|daemon|syslog)\s*:\s*(?:emerg|alert|crit|err|warn|notice|info|debug))"
)
_DIGITS = re.compile(r"\s*\[\s*(\d{1,20})\s*\]:?\s*")  # Talos: [1586455]:
# node-a: [14280.445220] … (pdsh) | node-a | … (Ansible) | [pod/driver-x/ctr] … (kubectl logs --prefix) | 3: (srun -l)
_COLLECTOR = re.compile(r"(?:([A-Za-z0-9][\w.-]*)(?:: | \| )|\[(?:pod/)?[\w./-]+\] )")
# gpu-node-017 kernel: | gpu-node-017 kernel[0]: | kernel: | gpu-node-017 nv-fabricmanager[4177]:
_KERNEL_TAG = re.compile(r"(?:([A-Za-z0-9][\w.:-]*)\s+)?kernel(?:(?:\[\d+\])?:| - - -)\s?")
_OTHER_TAG = re.compile(r"(?:([A-Za-z0-9][\w.-]*)\s+)([A-Za-z][\w./@-]*)(?:\[\d+\]|\(\S+\))?:\s")
_STARTS = re.compile(
    r"NVRM|nvidia|pcieport|mlx5_core|EDAC|mce:|INFO: task|kernel:|\[\s*[\d+]|<\d|\d{4}-\d\d-\d\d|\[[^\W\d_]{1,5}\.? +[^\W_]{2}"
    r"|\d,\d+,\d+,|[^\W\d_]{3} +\d{1,2} \d\d:|kern\s*:"
)
# First words of kernel messages that look like "host: ".
_NOT_HOSTS = re.compile(
    r"(?i:nvrm|mce|edac|info|warning|bug|error|kernel|watchdog|rcu|nvidia|systemd|audit|usb|pci|acpi|nfs|xfs|md|lustre|lnet|"
    r"lustreerror|ib0|ext4-fs|btrfs)"
)
# [XID found] (54 minutes ago) "NVRM: …" (gpud scan)
_SCAN = re.compile(r'\s*\[[^\]]+ found\]\s+\((?:(\d{1,6}|an?|one)\s+(second|minute|hour|day|week)s? ago|[^)]*)\)\s*"(.*?)"?\s*$')
_AGO = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


def _month(name: str) -> int | None:
    name = name.strip().lower()
    found = _EAST_ASIAN_MONTH.match(name)
    if found:
        number = int(found[1])
        return number if 1 <= number <= 12 else None
    return _MONTHS.get(name) or _MONTHS.get(name[:3])


def _fraction(digits: str | None) -> float:
    return int(digits) / 10 ** len(digits) if digits else 0.0


def _epoch(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: float, zone: str | None
) -> float | None:
    try:
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp()
        moment += max(0, second - 59) + fraction
    except (ValueError, OverflowError):
        return None
    if zone:
        if zone[0] in "+-":
            digits = zone[1:].replace(":", "")
            offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:])).total_seconds()
            moment -= offset if zone[0] == "+" else -offset
        else:
            moment -= _ZONES.get(zone, 0.0) * 3600
    return moment


def _of_day(hour: str, minute: str, second: str, fraction: float) -> float | None:
    h, m, s = int(hour), int(minute), int(second)
    return h * 3600 + m * 60 + s + fraction if h < 24 and m < 60 and s <= 60 else None


def _iso(stamp: Stamp, line: str, at: int) -> int:
    found = _ISO.match(line, at)
    if not found:
        return -1
    zone = found[8]
    if zone and zone[0] not in "+-" and zone not in _ZONES:
        zone = None
    time = _epoch(
        int(found[1]), int(found[2]), int(found[3]), int(found[4]), int(found[5]), int(found[6]), _fraction(found[7]), zone
    )
    if time is None:
        return -1
    stamp.time, stamp.naive, stamp.yearless = time, zone is None, None
    return found.end()


def _ctime(stamp: Stamp, line: str, at: int) -> int:
    found = _CTIME.match(line, at)
    if not found:
        return -1
    month = _month(found[2])
    of_day = _of_day(found[4], found[5], found[6], _fraction(found[7]))
    if not month or of_day is None:
        return -1
    stamp.weekday = found[1] or ""
    if found[9]:
        zone = found[8] if found[8] in _ZONES else None
        stamp.time = _epoch(int(found[9]), month, int(found[3]), 0, 0, 0, of_day, zone)
        stamp.naive = zone is None
    else:
        stamp.yearless = (month, int(found[3]), of_day)
    return found.end()


def _syslog(stamp: Stamp, line: str, at: int) -> int:
    weekday = _WEEKDAY.match(line, at)
    found = _SYSLOG.match(line, weekday.end() if weekday else at)
    if not found:
        return -1
    name, day = (found[2], found[3]) if found[2] else (found[4], found[5]) if found[4] else (found[7], found[6])
    month = _month(name)
    of_day = _of_day(found[9], found[10], found[11], _fraction(found[12]))
    if not month or of_day is None or not 1 <= int(day) <= 31:
        return -1
    year = found[1] or found[8] or found[13]
    if year:
        stamp.time, stamp.naive = _epoch(int(year), month, int(day), 0, 0, 0, of_day, None), True
    else:
        stamp.yearless = (month, int(day), of_day)
    return found.end()


def _minute(stamp: Stamp, line: str, at: int) -> int:
    found = _MINUTE.match(line, at)
    month = _month(found[1]) if found else None
    of_day = _of_day(found[3], found[4], "0", 0.0) if found else None
    if not found or not month or of_day is None:
        return -1
    stamp.yearless = (month, int(found[2]), of_day)
    return found.end()


def _uptime(stamp: Stamp, line: str, at: int) -> int:
    found = _UPTIME.match(line, at) or _BARE_UPTIME.match(line, at)
    if not found:
        return -1
    groups = [*found.groups(), None, None]
    value = float(groups[0] or groups[1] or 0.0)
    if stamp.uptime is not None:
        return -1
    stamp.caller = (groups[2] or "").replace(" ", "")
    if value >= 1e9 and stamp.time is None:  # no machine runs for 31 years: this is an epoch in brackets
        stamp.time = value
    else:
        stamp.uptime = value
    return found.end()


def _journal_json(line: str) -> Stamp | None:
    """Read one object of ``journalctl -o json``."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("MESSAGE"), str):
        return None
    stamp = Stamp(entry["MESSAGE"], host=str(entry["_HOSTNAME"]) if entry.get("_HOSTNAME") else None)
    for key, target, scale in (("__REALTIME_TIMESTAMP", "time", 1e6), ("_SOURCE_MONOTONIC_TIMESTAMP", "uptime", 1e6)):
        value = entry.get(key)
        if isinstance(value, str | int) and str(value).isdecimal() and len(str(value)) <= 20:
            setattr(stamp, target, int(value) / scale)
    level = str(entry.get("PRIORITY", ""))
    stamp.level = _LEVELS[int(level)] if level in "01234567" and level else ""
    if entry.get("_TRANSPORT") != "kernel":
        stamp.tag = str(entry.get("SYSLOG_IDENTIFIER") or "")
        stamp.tag = "" if stamp.tag == "kernel" else stamp.tag
    return stamp


# The three forms that most logs have throughout, read in one go; everything else goes the long way.
# 2025-07-07T20:23:51.845859+0000 dgx-46 kernel: [ 12.5] fuse: init
_FAST_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?([+-]\d\d:?\d\d|Z) ([\w.-]+) kernel: (?:\[ *(\d+\.\d+)\] )?"
)
# Feb 17 08:00:34 node-a kernel: [  123.456] NVRM: x
_FAST_SYSLOG = re.compile(r"([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) ([\w.-]+) kernel: (?:\[ *(\d+\.\d+)\] )?")
# [  123.456789] NVRM: x
_FAST_UPTIME = re.compile(r"\[ *(\d{1,9}\.\d{6})\] (?=[A-Za-z ])")


@lru_cache(maxsize=256)
def _hour(year: str, month: str, day: str, hour: str, zone: str) -> float | None:
    return _epoch(int(year), int(month), int(day), int(hour), 0, 0, 0.0, zone)


def _fast(line: str) -> Stamp | None:
    """Read one of the three usual forms, or return None."""
    first = line[:1]
    if first == "[":
        found = _FAST_UPTIME.match(line)
        # kubectl and short-monotonic put a host and "kernel:" behind the uptime
        if found and " kernel:" not in line[found.end() : found.end() + 80]:
            return Stamp(line[found.end() :], uptime=float(found[1]))
    elif first.isdigit():
        found = _FAST_ISO.match(line)
        if found:
            hour = _hour(found[1], found[2], found[3], found[4], found[8])
            if hour is not None:
                time = hour + int(found[5]) * 60 + int(found[6]) + _fraction(found[7])
                uptime = float(found[10]) if found[10] else None
                return Stamp(line[found.end() :], time=time, uptime=uptime, host=found[9] and intern(found[9]))
    elif first.isalpha():
        found = _FAST_SYSLOG.match(line)
        if found and (month := _MONTHS.get(found[1].lower())):
            of_day = _of_day(found[3], found[4], found[5], 0.0)
            if of_day is not None and int(found[2]) <= 31:
                uptime = float(found[7]) if found[7] else None
                return Stamp(
                    line[found.end() :],
                    yearless=(month, int(found[2]), of_day),
                    uptime=uptime,
                    host=found[6] and intern(found[6]),
                )
    return None


def split(line: str) -> Stamp:
    """
    Return the stamp and the message of one line.

    Stamps are peeled off the front one after the other, since tools stack them: a collector's host, a syslog date, the uptime.

    Parameters
    ----------
    line : str
        One line of a kernel log, without its line end.

    Returns
    -------
    Stamp
        Never fails: a line without any stamp is all message.
    """
    fast = _fast(line)
    if fast is not None:
        return fast
    if line.startswith("{") and '"MESSAGE"' in line:
        entry = _journal_json(line)
        if entry:
            return entry
    scan = _SCAN.match(line) if " found] (" in line else None
    if scan:
        number = 1 if scan[1] and not scan[1].isdigit() else int(scan[1] or 0)
        inner = split(scan[3])
        inner.ago = number * _AGO[scan[2]] if scan[2] else None
        return inner
    stamp = Stamp(line)
    at = _collector(stamp, line)
    dated = tagged = False
    for _ in range(6):
        here = at
        if not (stamp.level and stamp.uptime is not None):
            found = _PRIORITY.match(line, at)
            if found:
                stamp.level, at = _LEVELS[int(found[1]) & 7], found.end()
        if at == 0 or at == here:
            found = _KMSG.match(line, at)
            if found and stamp.uptime is None:
                stamp.level, stamp.uptime = _LEVELS[int(found[1]) & 7], int(found[3]) / 1e6
                stamp.text = line[found.end() :]
                return stamp
        found = _DECODED.match(line, at)
        if found:
            stamp.level, at = found[2], found.end()
            digits = _DIGITS.match(line, at)
            if digits:
                at = _plain_digits(stamp, digits)
        if not dated:
            for reader in (_iso, _ctime, _syslog, _minute):
                end = reader(stamp, line, at)
                if end >= 0:
                    # dmesg prints dates in brackets or with a comma before the fraction, and never a program's name after them
                    tagged = reader in (_iso, _syslog) and "," not in line[at:end] and "[" not in line[at:end]
                    at, dated = end, True
                    break
            else:
                found = _EPOCH.match(line, at)
                if found:
                    stamp.time, at, dated = float(found[1]), found.end(), True
        found = _DELTA.match(line, at)
        if found:
            stamp.delta, at = float(found[1]), found.end()
        end = _uptime(stamp, line, at)
        if end >= 0:
            at, tagged = end, False
        found = _KERNEL_TAG.match(line, at)
        if found:
            stamp.host, at, tagged = found[1] or stamp.host, found.end(), False
        elif tagged and not stamp.tag and at != here:
            found = _OTHER_TAG.match(line, at)
            if found and not _NOT_HOSTS.fullmatch(found[1]) and not _STARTS.match(line, at):
                stamp.host, stamp.tag, at = found[1], found[2], found.end()
        if at == here:
            break
    stamp.text = line[at:]
    stamp.continued = at == 0 and line[:1] in " \t"
    return stamp


def _plain_digits(stamp: Stamp, found: re.Match[str]) -> int:
    # Talos prints wall time; builds and copies of it are seen with bare digits: nano-, micro-, milliseconds or seconds.
    value = int(found[1])
    for scale in (1e9, 1e6, 1e3, 1.0):
        if 1e9 <= value / scale < 4e9:
            stamp.time = value / scale
            return found.end()
    stamp.uptime = float(value)
    return found.end()


# messages:Jun 17 20:18:08 ip-10-0-0-7 kernel: … (grep over several files) | /var/log/kern.log.1:4711:Jun 17 … | > Apr 28 … (quoted)
_GREP = re.compile(r"(?:> ?){0,8}(?:(?!\d{1,2}:)[\w./+@-]{0,120}[A-Za-z][\w./+@-]{0,60}[:-](?:\d+[:-])?)?(?=\S)")
_DATED = re.compile(
    r"[^\W\d_]{3} +\d{1,2} \d\d:\d\d:\d\d |\d{4}-\d\d-\d\d[T ]\d\d:\d\d:|\[ *\d+\.\d{6}\] |\[[^\W\d_]{3} [^\W\d_]{3} "
)
# 19:14:43  NVRM: Xid … (a person cut the date off, or a tool shows times only)
_OF_DAY = re.compile(
    r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?[ \t]+(?=NVRM|nvidia|mlx5_core|pcieport|EDAC|mce:|BUG:|INFO: |Xid |kernel:)"
)


def _collector(stamp: Stamp, line: str) -> int:
    """Peel a collector's prefix that names the host; return where the rest begins."""
    of_day = _OF_DAY.match(line)
    if of_day:
        return of_day.end()
    grep = _GREP.match(line)
    if grep and grep.end() and _DATED.match(line, grep.end()):
        return grep.end()
    talos = _TALOS.match(line)
    if talos:
        if talos[1].lower() not in ("kern", "user", "daemon", "syslog"):
            stamp.host = talos[1]
            return talos.end()
        return 0
    found = _COLLECTOR.match(line)
    if not found or not _STARTS.match(line, found.end()):
        return 0
    name = found[1]
    if name and not name.isdigit():  # digits are a task number of srun -l
        if _NOT_HOSTS.fullmatch(name) or (re.fullmatch(r"[\d.]+", name) and name.count(".") != 3):
            return 0
        stamp.host = name
    return found.end()
