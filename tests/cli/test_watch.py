"""watch and inbox as a person types them: shipped incidents, served as the sites on which they happened, become entries with their verdicts."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.inbox.store import Inbox
from workbench.shipped import example_path
from workbench.testing import site

Run = Callable[..., tuple[int, str, str]]
LONG = ("--since", "4000d", "--settle", "0s", "--notify", "stdout")  # the shipped incidents are old


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Return what runs a command in an empty folder and gives its exit code and what it said."""
    import signal

    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.chdir(tmp_path)

    def once(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    yield once
    for one, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(one, handler)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a shipped incident as a folder."""
    root = tmp_path_factory.mktemp("incidents")

    def one(name: str) -> Path:
        if not (root / name).exists():
            shutil.unpack_archive(example_path(name), root / name, filter="data")
        return root / name

    return one


@pytest.mark.parametrize(("name", "cls"), [("gpu-memory", "hardware/gpu-memory"), ("preempted", "platform/preemption")])
def test_an_incident_of_a_site_is_found_triaged_and_told_once(
    name: str, cls: str, unpacked: Callable[[str], Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict of the inbox is the one that `triage` prints for the evidence it kept."""
    with site(unpacked(name)) as here:
        for key, value in (here.environ | {"PATH": here.environ.get("PATH", os.environ["PATH"])}).items():
            monkeypatch.setenv(key, value)
        if here.slurm is not None and here.prefix is not None:  # it still ran when its evidence was taken
            for row in here.slurm.state["accounts"]:
                if row["JobID"] == "827514":
                    row |= {"State": "PREEMPTED", "End": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(here.until))}
            here.slurm.install(here.prefix.parent)
        code, out, err = run("watch", "--once", "--inbox", "inbox", "--link", "https://wb.example", *LONG)
        assert code in (0, 3), err
        again = run("watch", "--once", "--inbox", "inbox", *LONG)
    entries = [entry for entry in Inbox("inbox").entries() if entry.cls == cls]

    assert len(entries) == 1, [(entry.job, entry.cls, entry.problem) for entry in Inbox("inbox").entries()]
    assert again[1] == "", "told again"
    assert f"Job {entries[0].job}" in out
    assert cls in out
    assert f"https://wb.example/incident?id={entries[0].id}" in out
    verdict = Inbox("inbox").verdict(entries[0].id)
    _, printed, _ = run("triage", "-q", "-o", "json", str(entries[0].evidence))
    fresh = json.loads(printed)
    assert {key: value for key, value in verdict.items() if key != "incident"} == {
        key: value for key, value in fresh.items() if key != "incident"
    }


@pytest.fixture
def filled(tmp_path: Path) -> Inbox:
    """An inbox with three entries."""
    inbox = Inbox(tmp_path / "inbox", clock=lambda: 1_700_000_000.0)
    evidence = inbox.room("train-a1")
    (evidence / "log.txt").write_text("ValueError: boom\n", encoding="utf-8")
    inbox.add(id="train-a1", job="train", time=1_799_999_000.0, evidence=evidence, by="watch")
    inbox.add(id="train-b2", job="train", time=1_799_000_000.0, problem="no source answered")
    inbox.add(id="infer-c3", job="infer\x1b[31m", time=1_798_000_000.0)
    return inbox


def test_a_list_is_newest_first_in_each_form(filled: Inbox, run: Run) -> None:
    code, table, _ = run("inbox", "--inbox", "inbox")
    _, text, _ = run("inbox", "list", "--inbox", "inbox", "-o", "json")
    _, lines, _ = run("inbox", "list", "--inbox", "inbox", "-o", "jsonl", "--state", "new")

    assert code == 0
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["train-a1", "train-b2", "infer-c3"]
    assert "not triaged" in table
    assert "\x1b" not in table
    assert [row["id"] for row in json.loads(text)] == ["train-a1", "train-b2", "infer-c3"]
    assert len(lines.splitlines()) == 3


def test_show_takes_the_begin_of_an_id_or_a_job_and_says_when_that_is_several(filled: Inbox, run: Run) -> None:
    code, out, _ = run("inbox", "show", "infer", "--inbox", "inbox")
    assert code == 0
    assert "infer-c3" in out
    assert "\x1b" not in out
    code, _, err = run("inbox", "show", "train", "--inbox", "inbox")
    assert (code, "means 2 entries" in err) == (64, True)
    code, _, err = run("inbox", "show", "nothing", "--inbox", "inbox")
    assert (code, "no entry" in err) == (69, True)


def test_a_state_is_set_with_who_and_why_and_a_wrong_one_refused(filled: Inbox, run: Run) -> None:
    assert run("inbox", "set", "train-a1", "acknowledged", "looking", "at", "it", "--by", "ann", "--inbox", "inbox")[0] == 0
    assert run("inbox", "note", "train-a1", "switch", "7", "--by", "bob", "--inbox", "inbox")[0] == 0
    _, out, _ = run("inbox", "show", "train-a1", "--inbox", "inbox")
    code, _, err = run("inbox", "set", "train-a1", "done", "--inbox", "inbox")

    assert filled.get("train-a1").state == "acknowledged"
    assert "ann: state acknowledged looking at it" in out
    assert "bob: note switch 7" in out
    assert (code, "no state" in err) == (69, True)


def test_an_export_holds_what_is_needed_to_triage_again(filled: Inbox, run: Run, tmp_path: Path) -> None:
    code, out, _ = run("inbox", "export", "train-a1", "copy", "--inbox", "inbox")

    assert (code, out) == (0, "copy\n")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "entry.json",
        "evidence",
        "history.json",
        "verdict.json",
    ]
    assert run("triage", "-q", "-o", "json", "copy/evidence")[0] == 0
    assert run("inbox", "export", "train-a1", "copy", "--inbox", "inbox")[0] == 64, "nothing is written over"
    code, _, err = run("inbox", "export", "train-b2", "copy-b", "--inbox", "inbox")
    assert "no source answered" in err


def test_a_folder_is_added_with_its_verdict_and_the_same_twice_is_one(filled: Inbox, run: Run, tmp_path: Path) -> None:
    (tmp_path / "ev").mkdir()
    (tmp_path / "ev" / "log.txt").write_text(
        "Traceback (most recent call last):\n  File 'a.py', line 1\nValueError: boom\n", encoding="utf-8"
    )
    for _ in range(2):
        code, out, _ = run("inbox", "add", "ev", "--inbox", "inbox")
        assert code == 0
    entry = filled.get(out.strip())

    assert len(filled.entries()) == 4
    assert (entry.source, Path(entry.evidence)) == ("folder", tmp_path / "ev")
    assert filled.case(entry.id).verdict["class"] == entry.cls


def test_damaged_entries_are_told_and_the_list_ends_with_3(filled: Inbox, run: Run, tmp_path: Path) -> None:
    (tmp_path / "inbox" / "entries" / "train-b2" / "entry.json").write_text("{")
    code, out, err = run("inbox", "--inbox", "inbox")

    assert code == 3
    assert "train-a1" in out
    assert "train-b2" in err


def test_forget_removes_what_is_old(filled: Inbox, run: Run) -> None:
    code, out, _ = run("inbox", "forget", "0s", "--inbox", "inbox")

    assert code == 0
    assert out.count("forgotten") == 3
    assert filled.entries() == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--every", "1s"), "too often"),
        (("--every", "soon"), "no time span"),
        (("--once", "--settle", "x"), "no time span"),
        (("--once", "--at-once", "0"), "1 at least"),
        (("--once", "--textfile", "x.txt"), "prom only"),
        (("--once", "--notify", "pager"), "no way"),
        (("--once", "--notify", "slack=https://hooks.example/secret"), "names a file"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_sentence(
    words: tuple[str, ...], why: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    code, _, err = run("watch", *words, "--inbox", "inbox")

    assert code == 64, err
    assert why in err
    assert "secret" not in err


def test_a_way_without_an_address_and_a_site_without_scheduler_are_settings_that_lack(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    code, _, err = run("watch", "--once", "--notify", "slack", "--inbox", "inbox")
    assert (code, "no address" in err) == (78, True)
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("WORKBENCH_SLURM_ENABLED", "false")
    code, _, err = run("watch", "--once", "--inbox", "inbox")
    assert (code, "neither Kubernetes nor Slurm" in err) == (78, True)


def test_a_cluster_that_is_not_there_ends_one_look_with_3_and_metrics_say_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("WORKBENCH_SLURM_ENABLED", "false")
    code, _, err = run("watch", "--once", "--inbox", "inbox", "--textfile", "w.prom")

    assert code == 3
    assert "kubernetes" in err
    assert 'workbench_watch_seen_whole{scheduler="kubernetes"} 0' in (tmp_path / "w.prom").read_text()
