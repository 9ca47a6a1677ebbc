"""What a site decides: limits, what needs no person, when; and that a wrong file is told, never half obeyed."""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.remediation.fleets import NOW, fleet, node, trouble, work
from workbench.cli import main
from workbench.errors import ConfigError
from workbench.remediation.model import Plan, Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Auto, Policy, Window, load_policy

WHOLE = """
schema = "workbench.policy/1"
zone = "Europe/Berlin"
windows = ["Sat 02:00-06:00", "Mon-Thu 22:30-04:00"]
freezes = ["Fri 12:00-24:00"]
never = ["login-*"]
adopt = ["workbench check"]
stop_file = "/run/stop"
[limits]
out_count = 3
fresh = "2h"
[[auto]]
up_to = "cordon"
[[auto]]
up_to = "reboot-node"
causes = ["hardware"]
codes = ["xid-*"]
pools = ["h100*"]
confidence = 0.95
"""


def policy(tmp_path: Path, text: str) -> Policy:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    return load_policy(file)


def test_a_whole_policy_is_read(tmp_path: Path) -> None:
    found = policy(tmp_path, WHOLE)

    assert (found.limits.out_count, found.limits.fresh, found.limits.keep) == (3, 7200.0, 1)
    assert [one.up_to for one in found.auto] == ["cordon", "reboot-node"]
    assert found.adopt == ("workbench check",)
    assert found.untouchable("login-1")
    assert not found.untouchable("gpu-1")
    assert found.origin.endswith("policy.toml")


@pytest.mark.parametrize(
    ("moment", "inside"),
    [
        ("2026-11-28T02:00+01:00", True),  # Saturday
        ("2026-11-28T06:00+01:00", False),
        ("2026-11-30T23:00+01:00", True),  # Monday evening
        ("2026-12-01T03:59+01:00", True),  # its night
        ("2026-12-04T03:00+01:00", True),  # Thursday's night is Friday morning
        ("2026-12-05T01:00+01:00", False),  # Friday's is none
        ("2026-07-04T02:30+02:00", True),  # summer time: the clock on the wall counts
    ],
)
def test_windows_are_of_the_clock_on_the_wall(tmp_path: Path, moment: str, inside: bool) -> None:
    assert policy(tmp_path, WHOLE).open(dt.datetime.fromisoformat(moment).timestamp()) is inside


@pytest.mark.parametrize("text", ["Sat", "Sat 2-", "Sun 25:00-26:00", "Caturday 01:00-02:00", "", "Sat 02:99-03:00"])
def test_a_window_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no window"):
        Window.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "schema is None"),
        ('schema = "workbench.policy/2"', "workbench.policy/2"),
        ('schema = "workbench.policy/1"\nlimit = {}', "'limit' is none of"),
        ('schema = "workbench.policy/1"\n[limits]\nout_cout = 3', "has no 'out_cout'"),
        ('schema = "workbench.policy/1"\n[limits]\nout_count = -3', "out_count is a int"),
        ('schema = "workbench.policy/1"\n[limits]\nout_count = 2.5', "whole number"),
        ('schema = "workbench.policy/1"\n[limits]\nfresh = "soon"', "no time span"),
        ('schema = "workbench.policy/1"\n[auto]\nup_to = "cordon"', r"write \[\[auto\]\]"),
        ('schema = "workbench.policy/1"\n[[auto]]\nup_to = "reset"', "up_to is one of"),
        ('schema = "workbench.policy/1"\n[[auto]]\nup_to = "cordon"\ncauses = ["hw"]', "'hw' is none of"),
        ('schema = "workbench.policy/1"\n[[auto]]\nup_to = "cordon"\nconfidence = 95', "between 0 and 1"),
        ('schema = "workbench.policy/1"\nwindows = "Sat 02:00-06:00"', "list of words"),
        ('schema = "workbench.policy/1"\nzone = "Mars/Base"\nwindows = ["Sat 02:00-06:00"]', "Mars/Base"),
        ("schema = ", "policy.toml"),
    ],
)
def test_a_wrong_policy_is_no_policy(tmp_path: Path, text: str, said: str) -> None:
    """Never the rest of it: a limit with a slip of the pen would be no limit."""
    with pytest.raises(ConfigError, match=said):
        policy(tmp_path, text)


def test_a_policy_that_is_not_there_is_an_error_and_none_is_the_careful_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load_policy(tmp_path / "none.toml")
    assert not load_policy(None).auto


def approvals(plan: Plan) -> set[str]:
    return {one.approval for one in plan.actions}


@pytest.mark.parametrize(
    ("wrong", "busy", "pool", "needs"),
    [
        (trouble(), False, "h100-a", "auto"),
        (trouble(), True, "h100-a", "person"),  # somebody else's work would end
        (trouble(job="llm-70b"), True, "h100-a", "auto"),  # the job that died of it
        (trouble(confidence=0.9), False, "h100-a", "person"),
        (trouble(code="gpu-missing"), False, "h100-a", "person"),
        (trouble(), False, "a100", "person"),
        (trouble(cls="driver/hang", cause="driver"), False, "h100-a", "person"),
        (trouble(action="replace-node"), False, "h100-a", "person"),
        (trouble(action="fix-platform", cls="platform/storage", cause="platform"), True, "a100", "auto"),  # a cordon
    ],
)
def test_a_person_is_asked_unless_a_rule_says_otherwise(
    tmp_path: Path, wrong: Trouble, busy: bool, pool: str, needs: str
) -> None:
    state = fleet(
        node(pool=pool, claim="c", work=(work(),) if busy else ()),
        *[node(f"gpu-{number:03}", pool=pool) for number in range(2, 20)],
    )

    assert approvals(
        make_plan(
            [wrong],
            state,
            policy=policy(
                tmp_path,
                WHOLE.replace('freezes = ["Fri 12:00-24:00"]\n', "").replace(
                    'windows = ["Sat 02:00-06:00", "Mon-Thu 22:30-04:00"]\n', ""
                ),
            ),
        )
    ) == {needs}


@pytest.mark.parametrize(
    ("saved", "since", "loses", "needs"),
    [
        (NOW - 1800, NOW - 7200, 256, "auto"),  # half an hour of 512 GPUs
        (NOW - 1800, NOW - 7200, 255, "person"),
        (None, NOW - 7200, 256, "person"),  # no checkpoint is known: two hours
        (None, None, 1e9, "person"),  # nobody knows
        (None, None, math.inf, "auto"),
    ],
)
def test_what_would_be_lost_decides_whether_a_person_is_asked(
    saved: float | None, since: float | None, loses: float, needs: str
) -> None:
    state = fleet(node(claim="c", work=(work(saved=saved, since=since),)))
    rule = Auto("reboot-node", busy=True, loses=loses)

    plan = make_plan([trouble()], state, policy=Policy(auto=(rule,)))
    assert "evict" in {one.verb for one in plan.actions}
    assert approvals(plan) == {needs}
    gentle = make_plan([trouble(severity="warning")], state, policy=Policy(auto=(rule,)))
    assert approvals(gentle) == {"auto"}, "running work ends by itself there"


def test_without_a_policy_nothing_is_done_without_a_person() -> None:
    assert approvals(make_plan([trouble()], fleet())) == {"person"}


def test_the_shipped_policy_is_the_careful_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `workbench config policy` prints is what holds without a file, and its examples are right once their # is gone."""
    assert main(["config", "policy"]) == 0
    text = capsys.readouterr().out
    found = policy(tmp_path, text)
    assert replace(found, origin="default") == Policy()
    lines = [line.removeprefix("# ") if re.match(r"# (\[|[a-z_]+ = )", line) else line for line in text.splitlines()]
    whole = policy(tmp_path, "\n".join(lines))
    assert [one.up_to for one in whole.auto] == ["cordon", "reboot-node"]
    assert set(whole.commands) == {"reset-gpu", "reboot", "validate"}
    assert whole.webhook_file
