"""Settings come from the nearest place that names them, say which it was, and never show a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.config import SETTINGS, load_config, size_of, time_span
from workbench.errors import ConfigError

FILE = """\
deadline = "10s"

[prometheus]
url = "http://prometheus:9090/"
headers = { X-Scope-OrgID = "team-nlp" }

[slurm]
prefix = ["ssh", "login-1"]

[profiles.east.prometheus]
url = "https://prometheus.east:9090"
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "workbench.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(environ={})
    assert config["deadline"] == 30.0
    assert config["prometheus.url"] is None
    assert {config.origin(key) for key in config} == {"default"}


def test_the_file_decides_and_says_on_which_line(tmp_path: Path) -> None:
    path = _write(tmp_path, FILE)
    config = load_config(path, environ={})
    assert (config["prometheus.url"], config.origin("prometheus.url")) == ("http://prometheus:9090", f"{path}:4")
    assert config["slurm.prefix"] == ("ssh", "login-1")
    assert config["deadline"] == 10.0
    assert config.section("prometheus")["headers"] == {"X-Scope-OrgID": "team-nlp"}


def test_a_profile_stands_over_the_file_and_the_environment_over_both(tmp_path: Path) -> None:
    path = _write(tmp_path, FILE)
    east = load_config(path, profile="east", environ={})
    assert east["prometheus.url"] == "https://prometheus.east:9090"
    assert east.origin("prometheus.url").startswith("profile east, ")
    assert east["slurm.prefix"] == ("ssh", "login-1")
    mine = load_config(path, environ={"WORKBENCH_PROFILE": "east", "WORKBENCH_PROMETHEUS_URL": "http://localhost:9090"})
    assert (mine["prometheus.url"], mine.origin("prometheus.url")) == (
        "http://localhost:9090",
        "environment WORKBENCH_PROMETHEUS_URL",
    )
    flag = load_config(path, flags={"deadline": "5s", "since": None}, environ={"WORKBENCH_DEADLINE": "7s"})
    assert (flag["deadline"], flag.origin("deadline"), flag["since"]) == (5.0, "flag --deadline", 21600.0)


def test_what_people_export_anyway_counts_less_than_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path, FILE)
    environ = {"PROMETHEUS_URL": "http://other:9090", "KUBECONFIG": "/etc/kube", "ES_URL": "https://es:9200"}
    config = load_config(path, environ=environ)
    assert config["prometheus.url"] == "http://prometheus:9090"
    assert (config["kubernetes.kubeconfig"], config.origin("kubernetes.kubeconfig")) == ("/etc/kube", "environment KUBECONFIG")
    assert config["elasticsearch.url"] == "https://es:9200"


def test_a_secret_comes_from_a_file_or_the_environment_and_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cr3t-token\n", encoding="utf-8")
    path = _write(tmp_path, f'[prometheus]\ntoken_file = "{tmp_path / "token"}"\n')
    config = load_config(
        path,
        environ={"WORKBENCH_ELASTICSEARCH_PASSWORD": "geheim", "WORKBENCH_ELASTICSEARCH_TOKEN_FILE": str(tmp_path / "token")},
    )
    assert config["prometheus.token"] == "s3cr3t-token"
    assert config["elasticsearch.password"] == "geheim"
    assert config["elasticsearch.token"] == "s3cr3t-token"
    shown = repr(config.shown()) + repr(config)
    assert "s3cr3t" not in shown
    assert "geheim" not in shown
    assert ("prometheus.token", "(set, not shown)", f"{path}:2") in config.shown()


def test_the_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    config = load_config(environ={"PROMETHEUS_URL": "https://me:geheim@prometheus:9090", "HOME": str(tmp_path)})
    assert config["prometheus.url"] == "https://me:geheim@prometheus:9090"
    assert {key: text for key, text, _ in config.shown()}["prometheus.url"] == "https://prometheus:9090"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[prometheus]\nulr = "http://x"\n',
            r"workbench.toml:2: there is no setting 'prometheus.ulr'; did you mean 'prometheus.url'\?",
        ),
        ('[promtheus]\nurl = "http://x"\n', r"workbench.toml:1: there is no setting 'promtheus'; did you mean 'prometheus'\?"),
        ('[prometheus]\n\nurl = "prometheus:9090"\n', r"workbench.toml:3: prometheus.url: .*no address"),
        ("deadline = true\n", r"workbench.toml:1: deadline: it must be a time"),
        ('deadline = "soon"\n', r"workbench.toml:1: deadline: 'soon' is no time span"),
        ('[elasticsearch]\nfields = "winlog"\n', r"fields: 'winlog' is none of auto, ecs"),
        ('[prometheus]\ntoken = "abc"\n', r"workbench.toml:2: prometheus.token: a secret may not stand in the file"),
        ('[prometheus]\ntoken_file = "/nowhere/token"\n', r"/nowhere/token: the secret cannot be read"),
        ("[prometheus\n", r"workbench.toml: it is no TOML"),
        ('profile = "west"\n', r"there is no profile 'west' in"),
        ("[slurm]\nprefix = [1]\n", r"slurm.prefix: it must be a list of texts"),
    ],
)
def test_what_is_wrong_names_file_line_and_the_way_out(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(_write(tmp_path, text), environ={})
    assert caught.value.hint
    assert "abc" not in str(caught.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="environment WORKBENCH_LIMIT: limit: 'much' is no size"):
        load_config(environ={"WORKBENCH_LIMIT": "much"})


def test_a_file_that_is_not_there_is_an_error_only_when_it_was_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        load_config(tmp_path / "none.toml", environ={})


@given(st.sampled_from(["ms", "s", "m", "h", "d"]), st.integers(0, 10**6))
def test_every_span_is_read(unit: str, number: int) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    assert time_span(f"{number}{unit}") == pytest.approx(number * factor)


def test_sizes() -> None:
    assert (size_of("512MiB"), size_of("2GB"), size_of("17")) == (512 << 20, 2 * 10**9, 17)


def test_times_and_sizes_are_shown_as_people_write_them() -> None:
    config = load_config(environ={"WORKBENCH_SINCE": "90m", "WORKBENCH_DEADLINE": "1.5s", "WORKBENCH_LIMIT": "512MiB"})
    shown = {key: text for key, text, _ in config.shown()}
    assert (shown["since"], shown["deadline"], shown["limit"]) == ("90m", "1.5s", "512MiB")


def test_no_two_settings_share_a_variable() -> None:
    variables = [name for setting in SETTINGS for name in (setting.variable, *setting.exported)]
    assert len(variables) == len(set(variables))


def test_the_tables_of_teams_are_shown_whole_and_headers_are_not(tmp_path: Path) -> None:
    """Whose a namespace is must be looked up at night; a header may carry a secret."""
    path = _write(
        tmp_path, FILE + '[teams.namespaces]\nml-speech = "speech"\n"nlp-*" = "language"\n[teams.accounts]\nproj0042 = "vision"\n'
    )
    shown = {key: text for key, text, _ in load_config(path, environ={}).shown()}

    assert shown["teams.namespaces"] == "ml-speech=speech, nlp-*=language"
    assert shown["teams.accounts"] == "proj0042=vision"
    assert "team-nlp" not in shown["prometheus.headers"]
    with pytest.raises(ConfigError, match=r"teams\.namespace'; did you mean 'teams\.namespaces'"):
        load_config(_write(tmp_path, '[teams]\nnamespace = { a = "b" }\n'), environ={})
