"""The journal: on the disk when the call returns, one writer, readable after any crash, and honest about what it lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.remediation.journal import Journal, JournalBusy, JournalError
from workbench.remediation.model import Action, Plan

CORDON = Action("c1", "cordon", "cordon", "n1", trouble="t1", expects={"uid": "u"}, undo="uncordon")
EVICT = Action("e1", "evict", "evacuate", "n1", after=("c1",))
OTHER = Action("c2", "cordon", "cordon", "n2")


def filled(path: Path | None, clock: Any = lambda: 100.0) -> Journal:
    """Return a journal with a done cordon, an open eviction, and a plan."""
    journal = Journal(path, clock=clock, by="me")
    journal.record_plan(Plan(90.0, 200.0, (CORDON, EVICT), id="p1"))
    journal.intent(CORDON, "p1", {"schedulable": True})
    journal.outcome(CORDON, "p1", "done", "cordoned", {"version": "7"})
    journal.intent(EVICT, "p1", {})
    return journal


@pytest.mark.parametrize("where", ["memory", "file"])
def test_what_was_written_is_read_again_by_node_by_action_and_by_time(where: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl" if where == "file" else None
    journal = filled(path)
    if path is not None:
        journal.close()
        journal = Journal(path)

    assert [one.kind for one in journal.entries()] == ["plan", "intent", "outcome", "intent"]
    assert [one.seq for one in journal.entries()] == [1, 2, 3, 4]
    assert [one.action for one in journal.of_node("n1")] == ["c1", "c1", "e1"]
    assert [one.action for one in journal.open()] == ["e1"]
    assert journal.open()[0].intended() == EVICT
    assert [one.action for one in journal.actions_since(100.0)] == ["c1", "e1"]
    assert journal.actions_since(100.5) == []
    assert (journal.status_of("c1"), journal.status_of("e1"), journal.status_of("c2")) == ("done", "open", "")
    assert journal.problems == []
    assert journal.notices == []


def test_a_line_is_json_with_a_sum_that_another_program_can_check(tmp_path: Path) -> None:
    filled(tmp_path / "journal.jsonl")

    for line in (tmp_path / "journal.jsonl").read_bytes().splitlines():
        value = json.loads(line)
        body, _, _ = line.rpartition(b',"sum":')
        assert value["schema"] == "workbench.journal/1"
        assert value["sum"] == f"{zlib.crc32(body):08x}"
        assert list(value)[-1] == "sum"


def test_a_plan_is_written_once(tmp_path: Path) -> None:
    journal = filled(tmp_path / "journal.jsonl")
    plan = Plan(90.0, 200.0, (CORDON, EVICT), id="p1")

    journal.record_plan(plan)

    assert sum(one.kind == "plan" for one in journal.entries()) == 1
    assert Plan.from_dict(journal.entries()[0].data["plan"]) == plan


def test_an_undo_is_a_pair_of_its_own_and_only_one_that_succeeded_changes_what_the_action_is() -> None:
    journal = filled(None)
    journal.intent(CORDON, "p1", {}, undo=True)
    assert journal.status_of("c1") == "open"
    journal.outcome(CORDON, "p1", "refused", "somebody changed it", undo=True)
    assert journal.status_of("c1") == "done"

    journal.intent(CORDON, "p1", {}, undo=True)
    journal.outcome(CORDON, "p1", "undone")

    assert journal.status_of("c1") == "undone"
    assert [one.undo for one in journal.of_action("c1")] == [False, False, True, True, True, True]
    # caps count what was begun: an undo is not the same again
    assert [one.action for one in journal.actions_since(0)] == ["c1", "e1"]
    assert [one.verb for one in journal.of_action("c1")] == ["cordon", "cordon", "uncordon", "uncordon", "uncordon", "cordon"]


def test_an_undo_whose_end_cannot_be_told_leaves_an_action_of_which_nobody_knows() -> None:
    journal = filled(None)
    journal.intent(CORDON, "p1", {}, undo=True)
    journal.outcome(CORDON, "p1", "unknown", "no answer", undo=True)

    assert journal.status_of("c1") == "unknown"


def test_an_entry_of_the_future_counts_as_recent_since_the_clock_was_set_back() -> None:
    now = [1000.0]
    journal = Journal(None, clock=lambda: now[0])
    journal.intent(CORDON, "p1", {})
    now[0] = 10.0

    assert len(journal.actions_since(now[0] - 3600)) == 1


@pytest.mark.parametrize("left", range(0, 600, 7))
def test_a_torn_last_line_is_cut_off_and_told_and_all_before_it_is_there(left: int, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    filled(path).close()
    lines = path.read_bytes().splitlines(keepends=True)
    left = min(left, len(lines[-1]) - 2)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])

    reader = Journal(path)
    assert [one.seq for one in reader.entries()] == [1, 2, 3]
    assert bool(reader.notices) == bool(left)
    assert path.stat().st_size == len(b"".join(lines[:-1])) + left, "a reader changes nothing"

    journal = Journal(path)
    journal.intent(OTHER, "p2", {})
    assert journal.problems == []
    assert bool(journal.notices) == bool(left)
    journal.close()
    again = Journal(path)
    assert [(one.seq, one.action) for one in again.entries()] == [(1, ""), (2, "c1"), (3, "c1"), (4, "c2")]
    assert again.notices == again.problems == []


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    filled(path).close()
    path.write_bytes(path.read_bytes()[:-1])

    journal = Journal(path)
    journal.note("hello")

    assert [one.kind for one in journal.entries()] == ["plan", "intent", "outcome", "intent", "note"]
    journal.close()
    assert [one.kind for one in Journal(path).entries()] == ["plan", "intent", "outcome", "intent", "note"]


def test_zeros_where_the_last_line_was_to_be_are_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    filled(path).close()
    path.write_bytes(path.read_bytes() + bytes(4096))

    journal = Journal(path)
    journal.note("after the power came back")

    assert journal.problems == []
    assert "torn" in journal.notices[0]


@settings(max_examples=150, deadline=None)
@given(where=st.integers(0, 10_000), value=st.integers(1, 255))
def test_a_flipped_byte_never_goes_unnoticed(where: int, value: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("flip") / "journal.jsonl"
    filled(path).close()
    data = bytearray(path.read_bytes())
    where %= len(data)
    data[where] ^= value
    path.write_bytes(bytes(data))

    journal = Journal(path)

    assert journal.problems or journal.notices
    good = filled(None).entries()
    assert all(one in good for one in journal.entries()), "what is read is as it was written"
    assert len(journal.entries()) >= 2


def test_a_damaged_line_in_the_middle_is_told_until_a_person_accepts_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    filled(path).close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"cordoned", b"cordonned")
    path.write_bytes(b"".join(lines))

    journal = Journal(path)
    assert journal.problems == ["line 3 is damaged"]
    assert [one.seq for one in journal.entries()] == [1, 2, 4]

    journal.accept("the node was looked at: it is cordoned")
    assert journal.problems == []
    journal.close()
    again = Journal(path)
    assert again.problems == []
    assert again.notices == ["accepted: line 3 is damaged"]


@pytest.mark.parametrize(
    ("keep", "said"), [([0, 1, 3], "are missing: 3 to 3"), ([0, 2, 1, 3], "are not in order"), ([1, 2, 3], "are missing: 1 to 1")]
)
def test_lines_that_are_missing_or_moved_are_told(keep: list[int], said: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    filled(path).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[one] for one in keep))

    assert any(said in one for one in Journal(path).problems)


def test_a_file_of_something_else_is_no_journal_and_is_not_silently_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"schema":"workbench.journal/9","seq":1}\nhello\n', encoding="utf-8")

    assert Journal(path).problems == ["line 1 is damaged", "line 2 is damaged"]


def test_one_writes_and_others_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = filled(path)
    reader = Journal(path)
    with pytest.raises(JournalBusy, match="another process writes"):
        Journal(path).note("me too")

    writer.outcome(EVICT, "p1", "done")
    reader.refresh()

    assert reader.status_of("e1") == "done"
    writer.close()
    reader.note("now it is free")
    assert reader.entries()[-1].seq == 6


def test_who_takes_the_lock_knows_what_was_written_while_it_did_not_have_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first, second = Journal(path), Journal(path)
    first.intent(CORDON, "p1", {})
    first.close()

    second.intent(EVICT, "p1", {})

    assert [one.action for one in second.entries()] == ["c1", "e1"]
    assert [one.seq for one in second.entries()] == [1, 2]


def test_another_process_is_kept_out_and_comes_in_when_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    child = _child(f"j = Journal(Path({str(path)!r})); j.note('mine'); print('ready', flush=True); time.sleep(600)")
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    with pytest.raises(JournalBusy):
        Journal(path).note("mine?")

    child.kill()
    child.communicate()

    journal = Journal(path)
    journal.note("now mine")
    assert [one.detail for one in journal.entries()] == ["mine", "now mine"]


@pytest.mark.parametrize("lines", [1, 20, 57])
def test_every_line_that_was_acknowledged_before_kill_9_is_there(lines: int, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    child = _child(
        f"j = Journal(Path({str(path)!r}))\n"
        "for n in range(100000): j.intent(Action(f'a{n}', 'cordon', 'cordon', f'n{n}'), 'p', {'text': 'x' * (n * 37 % 5000)}); print(n, flush=True)"
    )
    assert child.stdout is not None
    for _ in range(lines):
        acknowledged = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate()
    acknowledged = int(rest.split()[-1]) if rest.split() else acknowledged

    journal = Journal(path)
    journal.lock()

    assert journal.problems == []
    assert len(journal.open()) in (acknowledged + 1, acknowledged + 2)
    assert all(one.intended() is not None for one in journal.open())


def test_a_full_disk_is_an_error_before_anything_is_done_and_leaves_no_piece(tmp_path: Path) -> None:
    """A real limit of the file's size: the kernel writes the part that fits, then refuses."""
    path = tmp_path / "journal.jsonl"
    filled(path).close()
    size = path.stat().st_size
    child = _child(
        f"j = Journal(Path({str(path)!r}))\n"
        "try: j.intent(Action('a', 'cordon', 'cordon', 'n'), 'p', {'text': 'x' * 5000})\n"
        "except JournalError as error: print(error)\n"
        "print(j.status_of('a') or 'not there')",
        before=lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, size + 1000)),
        ),
    )
    said, _ = child.communicate()

    assert b"cannot be written" in said
    assert said.endswith(b"not there\n")
    assert path.stat().st_size == size
    assert Journal(path).problems == []


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_once_is_told_and_the_next_write_reads_what_is_really_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = filled(path)

    def fails(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(JournalError, match="Input/output error") as raised:
            journal.intent(OTHER, "p2", {})
    assert "nothing is done" in raised.value.hint
    assert journal.status_of("c2") == ""

    journal.intent(OTHER, "p2", {})
    journal.close()
    assert [one.seq for one in Journal(path).entries()] == [1, 2, 3, 4, 5]
    assert Journal(path).problems == []


def test_an_intent_needs_room_for_its_outcome_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(tmp_path / "journal.jsonl")
    real = os.fstatvfs

    class Full:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(os, "fstatvfs", lambda file: Full() if file else real(file))
    with pytest.raises(JournalError, match="1 MiB"):
        journal.intent(OTHER, "p2", {})
    journal.outcome(EVICT, "p1", "done")  # what was begun still gets its outcome

    assert journal.status_of("e1") == "done"


def test_a_journal_in_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "nowhere" / "journal.jsonl")

    assert journal.entries() == []
    with pytest.raises(JournalError, match="nowhere"):
        journal.intent(CORDON, "p1", {})


def test_a_folder_in_its_place_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be read"):
        Journal(tmp_path)


def test_a_journal_that_was_moved_away_is_not_the_one_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    filled(path).close()
    path.rename(tmp_path / "old.jsonl")

    journal = Journal(path)
    journal.note("a new one")

    assert [one.seq for one in journal.entries()] == [1]
    assert len(Journal(tmp_path / "old.jsonl").entries()) == 4


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(codec=None), min_size=1, max_size=80))
def test_hostile_text_stays_one_line_and_comes_back(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "journal.jsonl"
    journal = Journal(path, by=text)
    journal.outcome(CORDON, "p1", "failed", text, {text: text})
    journal.close()

    assert path.read_bytes().count(b"\n") == 1
    (entry,) = Journal(path).entries()
    assert (entry.detail, entry.by, entry.before) == (text, text, {text: text})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_hold_is_refused_before_it_is_written(value: object, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = filled(path)
    size = path.stat().st_size

    with pytest.raises(JournalError, match="JSON"):
        journal.intent(OTHER, "p2", {"value": value})

    assert path.stat().st_size == size
    assert journal.status_of("c2") == ""


def test_an_outcome_has_one_of_the_fixed_words() -> None:
    with pytest.raises(ValueError, match="perhaps"):
        Journal(None).outcome(CORDON, "p1", "perhaps")


def _child(code: str, before: Any = None) -> subprocess.Popen[bytes]:
    head = (
        "import sys, time; from pathlib import Path\n"
        "from workbench.remediation.journal import Journal, JournalError\nfrom workbench.remediation.model import Action\n"
    )
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", head + code],
        stdout=subprocess.PIPE,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        preexec_fn=before,
    )
