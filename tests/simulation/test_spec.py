"""A fleet's file is checked: what is wrong is named with file, line and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.catalog import HERE
from workbench.errors import ConfigError
from workbench.simulation import Spec
from workbench.simulation.spec import faults


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text('schema = "workbench.fleet-spec/1"\n' + text)
    return path


def test_what_a_file_does_not_say_is_as_shipped(tmp_path: Path) -> None:
    spec = Spec.read(written(tmp_path, '[policy]\ninterval = "10m"\n'))

    assert spec["policy.interval"] == 600
    assert spec["policy.save"] == Spec.read()["policy.save"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[policy]\nintervall = "10m"', r"fleet\.toml:3: there is no 'policy\.intervall'; did you mean 'policy\.interval'\?"),
        ('[policy]\n\ninterval = "soon"', r"fleet\.toml:4: policy\.interval: 'soon' is no time span"),
        ("[policy]\nnamed = 1.5", r"fleet\.toml:3: policy\.named: it is a share"),
        ("[nodes]\ncount = 0", r"fleet\.toml:3: nodes\.count: it must be a whole number from 1"),
        ("[nodes]\ncount = 4\nspares = 4", r"spares must be fewer"),
        ("[policy]\nrepair = 1", r"fleet\.toml:3: policy\.repair: 1 is neither true nor false"),
        ("[policy]\nsave = true", r"fleet\.toml:3: policy\.save: it must be a number"),
        ("[jobs]\nmix = [[1, 2]]", r"fleet\.toml:3: jobs\.mix: each row is"),
        ("days = -1", r"fleet\.toml:2: days: it must be a number that is not negative"),
        ("days = ", r"fleet\.toml: Invalid value"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Spec.read(written(tmp_path, text))


def test_a_file_without_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("days = 3\n")
    with pytest.raises(ConfigError, match="schema is None"):
        Spec.read(tmp_path / "fleet.toml")


def test_jobs_that_never_fit_are_not_offered() -> None:
    spec = Spec.read().with_(nodes__count=16)

    assert max(size.gpus for size in spec.mix) == 128
    assert sum(size.share for size in spec.mix) == pytest.approx(1)


def test_shares_of_faults_are_those_published() -> None:
    """148 of the 362 that are a node's are faulty GPUs."""
    rows = {kind.cls: kind.share for kind in faults()}

    assert sum(rows.values()) == pytest.approx(1)
    assert rows["hardware/gpu-other"] == pytest.approx(148 / 362)


def test_the_shipped_fleet_is_a_file_that_can_be_read() -> None:
    assert dict(Spec.read(HERE / "simulation.toml")) == dict(Spec.read())
