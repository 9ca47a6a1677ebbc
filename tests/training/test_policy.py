"""The policy of retries is a table of values with their reasons; a site's file changes single ones, and a wrong word in it is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.errors import ConfigError
from workbench.training.policy import Policy, load_policy, thresholds

HEAD = 'schema = "workbench.retry/1"\n'


def site(folder: Path, text: str) -> Path:
    """Write a site's policy."""
    path = folder / "retry.toml"
    path.write_text(HEAD + text, encoding="utf-8")
    return path


def test_the_defaults_in_the_code_are_those_of_the_table() -> None:
    """Who reads no file decides the same."""
    assert load_policy() == Policy()


def test_every_threshold_says_where_it_is_from_and_why() -> None:
    """A number without a reason is a guess that nobody can question."""
    for one in thresholds(load_policy()):
        assert len(one.reason) > 20, one.key
        assert one.source.startswith(("ours", "https://", "as ", "benchmarks/")), one.key


def test_a_site_changes_what_differs(tmp_path: Path) -> None:
    """Each with its place; a whole table as the shipped one has it serves as well."""
    path = site(tmp_path, '[budget]\nhardware = 5\nwindow = "2d"\n[nodes.min]\nvalue = 3\nreason = "torchrun --nnodes 3:8"\n')
    policy = load_policy(path)

    assert (policy.budget_hardware, policy.budget_window, policy.nodes_min, policy.budget_user) == (5, 172800.0, 3, 1)
    assert policy.origin == {"budget.hardware": f"{path}:3", "budget.window": f"{path}:4", "nodes.min": f"{path}:5"}
    assert {one.key: one.origin for one in thresholds(policy)}["budget.user"] == "catalog/retry.toml"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[budget]\nhardwere = 5\n", "retry.toml:3: there is no 'budget.hardwere'; did you mean 'budget.hardware'?"),
        ("[budgets]\nhardware = 5\n", "retry.toml:2: there is no 'budgets'; did you mean 'budget'?"),
        ("[backoff]\npatience = 5\n", "retry.toml:3: there is no 'backoff.patience'; did you mean"),
        ("budget = 5\n", "retry.toml:2: there is no 'budget'"),
        ('[budget]\nhardware = "5"\n', "retry.toml:3: budget.hardware is a whole number from 0 on, not '5'"),
        ("[budget]\nhardware = -1\n", "budget.hardware is a whole number from 0 on"),
        ("[budget]\nhardware = true\n", "budget.hardware is a whole number from 0 on"),
        ('[wait]\nfirst = "soon"\n', "retry.toml:3: wait.first: 'soon' is no time span"),
        ("[backoff]\nfactor = 0.5\n", "backoff.factor is at least 1"),
        ("[backoff]\njitter = 2\n", "backoff.jitter is between 0 and 1"),
        ("[backoff]\njitter = nan\n", "backoff.jitter is a number"),
        ('[certain]\nclasses = ["user/exeption"]\n', "'user/exeption' is no class; did you mean 'user/exception'?"),
        ('[certain]\nclasses = ["hardware/host"]\n', "'hardware/host' is no fault of the user"),
        ("[certain]\nexit_codes = [0]\n", "a list of exit codes from 1 to 255"),
        ('[nodes]\nexhausted = "hope"\n', "'hope' is none of stop, wait"),
        ("[nodes]\nhave = 2\nmin = 3\n", "nodes.have = 2 is less than nodes.min = 3"),
        ("[nodes]\nmin = 0\n", "nodes.min is at least 1"),
        ("[budget.user]\nvalue = 2\nwhy = 3\n", "budget.user has value, source and reason, no 'why'"),
        ("[budget\n", "it is no TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_the_nearest_word(tmp_path: Path, text: str, told: str) -> None:
    """Never a policy of which a part was left out."""
    with pytest.raises(ConfigError) as caught:
        load_policy(site(tmp_path, text))

    assert told in str(caught.value)


def test_another_file_is_no_policy(tmp_path: Path) -> None:
    """A policy of remediation, for instance; or none at all."""
    other = tmp_path / "policy.toml"
    other.write_text('schema = "workbench.policy/1"\n', encoding="utf-8")

    with pytest.raises(ConfigError, match="no policy of retries"):
        load_policy(other)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_policy(tmp_path / "missing.toml")


def test_show_lists_all_with_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people, and as JSON."""
    path = site(tmp_path, "[storm]\nlimit = 2\n")

    assert main(["policy", "show", "--policy", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"{path}:3" in text
    assert "548 others" in text
    assert main(["policy", "show", "--policy", str(path), "-o", "json"]) == 0
    rows = {one["key"]: one for one in json.loads(capsys.readouterr().out)["thresholds"]}
    assert (rows["storm.limit"]["value"], rows["wait.cap"]["value"]) == (2, 1800.0)


def test_a_wrong_command_line_is_64_and_a_wrong_file_78(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the way out."""
    assert main(["policy", "export"]) == 64
    assert main(["policy", "show", "slurm"]) == 64
    assert main(["policy", "show", "--policy", str(site(tmp_path, "[x]\n"))]) == 78
    assert "workbench policy show" in capsys.readouterr().err
