"""The words `lemons`, `warnings`, `cost` and `tenants` of `workbench fleet`: one ledger, plain answers, honest exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fleet.test_tenants import VLLM
from workbench.cli import exits, main
from workbench.fleet.ledger import Ledger

DAY = 86400.0
BEGIN = 1_772_323_200.0


@pytest.fixture(name="account")
def _account(tmp_path: Path) -> str:
    """Return a ledger of 30 nodes over 60 days; g-007 kills a job of two nodes every fifth day."""
    attempts: list[dict[str, Any]] = [
        {
            "job": f"ok{node}",
            "attempt": 1,
            "state": "completed",
            "started": BEGIN,
            "ended": BEGIN + 60 * DAY,
            "node_names": [f"g-{node:03}"],
        }
        for node in range(30)
    ]
    jobs, phases = [], []
    for number in range(10):
        end = BEGIN + 5 * number * DAY + 3600
        job = f"bad{number}"
        attempts.append(
            {"job": job, "attempt": 1, "state": "failed", "cause": "hardware", "cls": "hardware/gpu-lost", "node": "g-007", "node_names": ["g-007", "g-008"], "gpus": 16, "started": end - 3600, "ended": end}
        )  # fmt: skip
        jobs.append(
            {
                "job": job,
                "team": "llm",
                "sku": "NVIDIA H100 80GB HBM3",
                "gpus": 16,
                "submitted": end - 3600,
                "started": end - 3600,
                "ended": end,
                "state": "failed",
            }
        )
        phases += [
            {"job": job, "attempt": 1, "kind": "lost", "begin": end - 1800, "end": end},
            {"job": job, "attempt": 1, "kind": "detect", "begin": end, "end": end + 1800},
        ]
    states = [{"node": f"g-{node:03}", "begin": BEGIN, "end": BEGIN + 60 * DAY, "state": "usable"} for node in range(30)]
    states += [{"node": "g-007", "begin": BEGIN + 60 * DAY, "end": BEGIN + 78 * DAY, "state": "down", "cause": "hardware"}]
    path = tmp_path / "fleet.sqlite"
    with Ledger.open(path, "rw") as ledger:
        ledger.put("attempts", attempts)
        ledger.put("jobs", jobs)
        ledger.put("phases", phases)
        ledger.put("node_states", states)
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a word; returns exit code, output and errors."""
    code = main(["fleet", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_an_account_without_gpus_tells_what_was_lost_by_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A laptop's job that failed once, as `workbench run` tells it."""
    path = tmp_path / "fleet.sqlite"
    common = {"job": "run-1", "source": "run", "recorded": BEGIN + 100}
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [{**common, "submitted": BEGIN, "started": BEGIN, "ended": BEGIN + 90, "state": "completed"}])
        ledger.put(
            "attempts",
            [
                {**common, "attempt": 1, "started": BEGIN, "ended": BEGIN + 30, "state": "failed", "cause": "unknown"},
                {**common, "attempt": 2, "started": BEGIN + 40, "ended": BEGIN + 90, "state": "completed"},
            ],
        )
        parts = [("step", 0, 22), ("lost", 22, 27), ("detect", 27, 30), ("recover", 30, 40)]
        ledger.put(
            "phases", [{**common, "attempt": 1, "kind": kind, "begin": BEGIN + a, "end": BEGIN + b} for kind, a, b in parts]
        )
    assert main(["fleet", "--ledger", str(path)]) == exits.OK
    out = capsys.readouterr().out
    assert "lost to failures: 18 s of 1 min 30 s (5 s steps made again, 3 s until it was noticed, 10 s until it ran again)" in out
    assert "30 s" in next(line for line in out.splitlines() if line.lstrip().startswith("unknown"))
    assert "GPU-hours" not in out
    assert main(["fleet", "--ledger", str(path), "--cluster", "elsewhere"]) == exits.OK
    assert "lost to failures" not in capsys.readouterr().out


def test_an_account_with_gpus_counts_gpu_hours(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--ledger", account]) == exits.OK
    out = capsys.readouterr().out
    assert "GPU-hours held" in out
    assert "by the clock" not in out


def test_the_lemon_is_named_with_its_reason_and_the_list(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In every form of output; --exclude prints what Slurm takes and nothing else."""
    code, text, _ = ask(capsys, "lemons", "--ledger", account)
    _, bare, _ = ask(capsys, "lemons", "--ledger", account, "--exclude")
    _, raw, _ = ask(capsys, "lemons", "--ledger", account, "--all", "-o", "json")
    _, table, _ = ask(capsys, "lemons", "--ledger", account, "-o", "csv")

    assert code == exits.OK
    assert "--exclude=g-007" in text
    assert "10 job failures blamed on it" in text
    assert bare == "g-007\n"
    rows = json.loads(raw)
    assert len(rows) == 30
    assert [row["unit"] for row in rows if row["listed"]] == ["g-007"]
    assert next(csv.DictReader(io.StringIO(table)))["unit"] == "g-007"


def test_an_empty_account_judges_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No node is cleared by there being no data."""
    path = str(tmp_path / "new.sqlite")
    Ledger.open(path, "rw").close()

    code, text, _ = ask(capsys, "lemons", "--ledger", path)

    assert code == exits.INCOMPLETE
    assert "nothing could be judged" in text


def test_a_share_that_is_none_is_a_wrong_command_line(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    """5 is not 5 %."""
    code, _, errors = ask(capsys, "lemons", "--ledger", account, "--rate", "5")

    assert code == exits.USAGE
    assert "between 0 and 1" in errors


def test_cost_says_who_lost_what(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten failures of 16 GPUs, half an hour held and half an hour redone each, at the list price."""
    code, raw, _ = ask(capsys, "cost", "--ledger", account, "-o", "json")
    _, text, _ = ask(capsys, "cost", "--ledger", account)

    row = json.loads(raw)[0]
    assert code == exits.OK
    assert (row["who"], row["cause"], row["failures"], row["unknown"]) == ("llm", "hardware", 10, 0)
    assert row["idle_hours"] == row["lost_hours"] == pytest.approx(80)
    assert row["cost"] == pytest.approx(160 * 6.155 + 10 * 0.2 * 2 * 100)
    assert "price: list price" in text


def test_spares_come_from_the_measured_availability(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    """18 node-days of 1,818 were down: 99 %."""
    code, raw, _ = ask(capsys, "cost", "--ledger", account, "--spares", "0.99", "-o", "json")

    row = json.loads(raw)[0]
    assert code == exits.OK
    assert row["availability"] == pytest.approx(1 - 18 / 1818)
    assert row["spares"] == 2


def test_what_to_do_with_a_node_rests_on_its_own_rate(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One that fails every five days against one that did not fail, in jobs of 16 GPUs that lose an hour each."""
    code, raw, _ = ask(capsys, "cost", "--ledger", account, "--node", "g-007", "-o", "json")
    _, other, _ = ask(capsys, "cost", "--ledger", account, "--node", "g-001", "-o", "json")
    gone, _, errors = ask(capsys, "cost", "--ledger", account, "--node", "ghost")

    bad = {row["way"]: row["cost"] for row in json.loads(raw)}
    good = {row["way"]: row["cost"] for row in json.loads(other)}
    assert code == exits.OK
    assert bad["keep out"] == pytest.approx(8 * 24 * 30 * 6.155)
    assert 200 < bad["use on"] < 30 * 16 * 6.155
    assert good["use on"] < bad["use on"] / 10
    assert [row["way"] for row in json.loads(raw) if row["best"]] == [
        "use on"
    ]  # so small jobs do not pay for a node that stands still
    assert gone == exits.UNAVAILABLE
    assert "not known" in errors


def test_whether_it_pays_shows_every_assumption(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Needs no account; a site's own assumptions change it."""
    own = tmp_path / "own.toml"
    own.write_text("failures_per_1000_node_days = 0\n", encoding="utf-8")

    code, text, _ = ask(capsys, "cost", "--pays", "--nodes", "64")
    _, raw, _ = ask(capsys, "cost", "--pays", "--nodes", "64", "--assume", str(own), "-o", "json")

    assert code == exits.OK
    assert "failures_per_1000_node_days" in text
    assert "managed offer" in text
    assert all(row["base"] < 0 for row in json.loads(raw))  # where nothing fails, operating it is a loss


def test_warnings_of_a_folder_name_the_gpu_and_what_was_not_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page of metrics with time stamps, as Prometheus writes them out."""
    lines = []
    for minute in range(180):
        for gpu in range(8):
            bits = 128 if gpu == 5 and 100 <= minute < 110 else 4
            lines.append(
                f'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{gpu="{gpu}",UUID="GPU-0000000{gpu}",Hostname="g-1"}} {bits} {int((BEGIN + 60 * minute) * 1000)}'
            )
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "g-1.prom").write_text("\n".join(lines) + "\n", encoding="utf-8")

    code, raw, errors = ask(capsys, "warnings", str(tmp_path), "-o", "json")
    _, rules, _ = ask(capsys, "warnings", str(tmp_path), "--rules")

    assert [(row["rule"], row["node"], row["gpu_index"]) for row in json.loads(raw)] == [("power-brake", "g-1", 5)]
    assert code == exits.INCOMPLETE
    assert "pcie-replay" in errors
    assert "no-data" in rules


def test_tenants_of_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Success with its interval, and the share within the target; a page of something else is no service without failures."""
    (tmp_path / "r0").write_bytes(VLLM % 900)
    (tmp_path / "other").write_bytes(b"up 1\n")

    code, text, _ = ask(capsys, "tenants", str(tmp_path / "r0"), "--target", "1")
    bad, _, errors = ask(capsys, "tenants", str(tmp_path / "other"))
    gone, _, _ = ask(capsys, "tenants", str(tmp_path / "none"))

    assert code == exits.OK
    assert "99.010 %" in text
    assert "90.00 %" in text
    assert bad == exits.DATA
    assert "vLLM" in errors
    assert gone == exits.UNAVAILABLE


def test_numbers_that_are_none_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no NaN."""
    import pandas as pd

    from workbench.cli.fleet_table import records

    frame = pd.DataFrame(
        {"a": [np.nan, 1.0], "b": pd.array([pd.NA, 2], dtype="Int64"), "t": pd.to_datetime([None, "2026-01-01"], utc=True)}
    )

    assert records(frame) == [{"a": None, "b": None, "t": None}, {"a": 1.0, "b": 2, "t": "2026-01-01T00:00:00+00:00"}]


# ---- act now or wait, and whom an Xid reaches


def test_act_now_or_wait_names_the_cheaper_way_and_from_which_chance_on_it_turns(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet", "cost", "--act-now", "512", "--last-checkpoint", "30m", "--next-checkpoint", "30m", "--restart", "15m"]
    best = {}
    for chance in ("0.1", "0.9"):
        assert main([*words, "--chance", chance, "-o", "json"]) == exits.OK
        rows = json.loads(capsys.readouterr().out)
        best[chance] = next(row["way"] for row in rows if row["best"])
        assert min(rows, key=lambda row: row["cost"])["best"]
    assert best == {"0.1": "wait", "0.9": "act now"}
    assert main(words) == exits.OK
    assert "equal at a chance of 67%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--act-now", "8"], "--act-now needs --last-checkpoint"),
        (["--act-now", "8", "--last-checkpoint", "30m"], "--act-now needs --next-checkpoint"),
        (["--act-now", "8", "--last-checkpoint", "soon", "--next-checkpoint", "1h"], "--last-checkpoint"),
        (["--act-now", "0", "--last-checkpoint", "1h", "--next-checkpoint", "1h"], "a job has GPUs"),
        (["--act-now", "8", "--chance", "2", "--last-checkpoint", "1h", "--next-checkpoint", "1h"], "a chance is between"),
    ],
)
def test_act_now_without_what_it_needs_is_no_answer(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "cost", *words]) == exits.USAGE
    assert said in capsys.readouterr().err


SHARED = "GPU-11111111-2222-3333-4444-000000000000"
DCGM = "# TYPE DCGM_FI_DEV_FB_USED gauge\n" + "".join(
    f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="{SHARED}",Hostname="node-a",GPU_I_ID="{instance}",namespace="{space}",pod="{pod}"}} 1\n'
    for instance, space, pod in (("7", "ml", "a-0"), ("8", "ml", "b-0"), ("8", "web", "c-0"))
)


def _reached(page: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], list[str]]:
    code = main(["fleet", "tenants", str(page), "-o", "json", *words])
    rows = json.loads(capsys.readouterr().out)
    return code, [row["tenant"] for row in rows if row["reached"]], [row["tenant"] for row in rows if row["caused"]]


def test_an_xid_reaches_an_instance_its_process_or_all_of_a_gpu_and_what_is_not_sure_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "node-a.prom"
    page.write_text(DCGM, encoding="utf-8")
    every = ["ml/a-0", "ml/b-0", "web/c-0"]
    assert _reached(page, capsys, "--xid", "48", "--instance", "8") == (exits.OK, ["ml/b-0", "web/c-0"], [])
    assert _reached(page, capsys, "--xid", "48") == (exits.INCOMPLETE, every, [])  # the line does not say which instance
    assert _reached(page, capsys, "--xid", "31", "--instance", "7") == (exits.OK, ["ml/a-0"], ["ml/a-0"])
    assert _reached(page, capsys, "--xid", "31", "--instance", "8") == (
        exits.INCOMPLETE,
        ["ml/b-0", "web/c-0"],
        [],
    )  # one of both
    assert _reached(page, capsys, "--xid", "79") == (exits.OK, every, [])
    assert _reached(page, capsys, "--xid", "63") == (exits.OK, [], [])
    assert _reached(page, capsys, "--xid", "999") == (exits.INCOMPLETE, every, [])


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_table_of_tenants_with_processes_names_whose_process_caused_it_and_who_fails_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    rows = [
        {"name": "a", "gpu": SHARED, "sharing": "mps", "pids": [10, 11]},
        {"name": "b", "gpu": SHARED, "sharing": "mps", "pids": [12]},
        {"name": "c", "gpu": SHARED, "sharing": "time-sliced", "pids": [13]},
    ]
    page = tmp_path / f"tenants.{form}"
    if form == "json":
        page.write_text(json.dumps(rows), encoding="utf-8")
    else:
        lines = [f"{row['name']},{row['gpu']},{row['sharing']},{';'.join(map(str, row['pids']))}" for row in rows]
        page.write_text("name,gpu,sharing,pids\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert _reached(page, capsys, "--xid", "31", "--pid", "11") == (exits.OK, ["a", "b"], ["a"])  # clients of one MPS server
    assert _reached(page, capsys, "--xid", "31", "--pid", "13") == (exits.OK, ["c"], ["c"])


def test_whom_an_xid_reaches_is_not_said_of_a_gpu_or_page_that_tells_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page"
    page.write_text(DCGM, encoding="utf-8")
    assert main(["fleet", "tenants", str(page), "--xid", "79", "--gpu", SHARED[:-1] + "9"]) == exits.DATA
    assert main(["fleet", "tenants", str(page), "--gpu", SHARED]) == exits.USAGE
    page.write_text(DCGM.replace("pod=", "pad="), encoding="utf-8")
    assert main(["fleet", "tenants", str(page), "--xid", "79"]) == exits.DATA
    page.write_text('[{"name": "a"}, 7, {"name": "b", "gpu": "GPU-1", "pids": ["x"]}]', encoding="utf-8")
    assert main(["fleet", "tenants", str(page), "--xid", "79"]) == exits.DATA
    assert capsys.readouterr().err.count("row ") == 3
    page.write_text(DCGM + DCGM.replace(SHARED, SHARED[:-1] + "5"), encoding="utf-8")
    assert main(["fleet", "tenants", str(page), "--xid", "79"]) == exits.USAGE
    assert "--gpu UUID says" in capsys.readouterr().err
