"""The clock: whom to ask first, what unsynchronised means, and that a daemon that does not answer is no held clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.health import fitness
from workbench.sources.node.world import World

_CHRONY = """Reference ID    : 83E17991 (131.225.121.145)
Stratum         : 3
Ref time (UTC)  : Mon Aug 03 21:25:11 2026
System time     : {} seconds {} of NTP time
Last offset     : +0.000004989 seconds
RMS offset      : 0.000021751 seconds
Frequency       : 2.192 ppm fast
Residual freq   : +0.001 ppm
Skew            : 0.026 ppm
Root delay      : 0.000411626 seconds
Root dispersion : 0.018570010 seconds
Update interval : 256.9 seconds
Leap status     : {}
"""
_NTPQ = """associd=0 status=0615 leap_none, sync_ntp, 1 event, clock_sync,
version="ntpd 4.2.8p15@1.3728-o", processor="x86_64", system="Linux/5.15", leap=00, stratum=3,
precision=-24, rootdelay=1.021, rootdisp=20.450, refid=10.0.0.1,
reftime=ea0b1c2d.3e4f5061, clock=ea0b1d00.11223344, peer=4321, tc=10, mintc=3,
offset=-412.064, frequency=-7.301, sys_jitter=0.112, clk_jitter=0.097, clk_wander=0.013
"""
_SHOW = "Timezone=Etc/UTC\nLocalRTC=no\nCanNTP=yes\nNTP=yes\nNTPSynchronized={}\nTimeUSec=Mon 2026-11-30 04:00:00 UTC\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("offset", "way", "leap", "code", "status"),
    [
        ("0.000004709", "fast", "Normal", "ok", "ok"),
        ("0.200000000", "slow", "Normal", "clock-off", "warning"),
        ("417.300000000", "slow", "Normal", "clock-far-off", "warning"),
        ("0.000000000", "fast", "Not synchronised", "clock-not-held", "warning"),
    ],
)
def test_chrony(host: Host, offset: str, way: str, leap: str, code: str, status: str) -> None:
    host.tool("chronyc", _CHRONY.format(offset, way, leap))
    findings = host.run("clock")
    assert codes(findings) == {("", code)}
    assert fitness(findings) == status


def test_a_site_that_sets_a_limit_means_it(host: Host) -> None:
    host.tool("chronyc", _CHRONY.format("417.3", "slow", "Normal"))
    assert fitness(host.run("clock", clock_offset=0.5)) == "critical"
    host.tool("chronyc", _CHRONY.format("0.2", "slow", "Normal"))
    assert fitness(host.run("clock", clock_offset=0.5)) == "ok"


def test_the_next_is_asked_when_chrony_does_not_answer(host: Host) -> None:
    host.tool("chronyc", "506 Cannot talk to daemon\n", code=1)
    host.tool("ntpq", _NTPQ)
    (only,) = host.run("clock")
    assert (only.code, only.path) == ("clock-off", "ntpq")
    assert "412 ms ahead of" in only.summary or "412 ms ahead" in only.summary
    assert "506" in only.tried[0]


def test_systemd_tells_no_offset_and_the_finding_says_so(host: Host) -> None:
    host.tool("timedatectl", _SHOW.format("yes"))
    (only,) = host.run("clock")
    assert (only.status, only.blind) == ("ok", ("by how much it is off",))
    host.tool("timedatectl", _SHOW.format("no"))
    assert codes(host.run("clock")) == {("", "clock-not-held")}


@pytest.mark.parametrize("script", ["exit 0", "exit 1", "echo garbage", "sleep 30", "echo 'Leap status     : Normal'"])
def test_nobody_who_answers_is_unknown(host: Host, script: str) -> None:
    for name in ("chronyc", "ntpq", "timedatectl"):
        host.tool(name, script=script)
    (only,) = host.run("clock")
    assert only.status == "unknown"


def test_this_machine_can_always_be_asked(tmp_path: Path) -> None:
    from workbench.health import run

    (tmp_path / "bin").mkdir()
    (only,) = run(only=["clock"], world=World(env={"PATH": str(tmp_path / "bin")}))
    assert only.path == "adjtimex"
    assert only.code in ("", "clock-not-held")
