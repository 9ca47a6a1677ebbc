"""A failure is seen once, collected while fresh and told once, whatever restarts, fails or comes in between."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.inbox.conftest import START, World, a_case, crash_at, lines, sign, verdict_of
from workbench.inbox.collecting import Found
from workbench.inbox.files import InboxBusy
from workbench.inbox.metrics import watch_metrics
from workbench.inbox.sightings import Failure
from workbench.inbox.store import Inbox, InboxError
from workbench.inbox.tell import Teller
from workbench.inbox.watch import Watch
from workbench.testing import Crash


def test_a_failure_becomes_an_entry_with_a_verdict_and_is_told(world: World) -> None:
    world.scheduler.show(sign(time=world.now, nodes=("gpu-1",), user="ann"))
    world.run(60)
    (entry,) = world.inbox.entries()

    assert (entry.job, entry.namespace, entry.user, entry.source, entry.cls) == (
        "train",
        "ml",
        "ann",
        "kubernetes",
        "hardware/gpu-memory",
    )
    assert Path(entry.evidence, "log.txt").read_text() == "train"
    assert world.inbox.case(entry.id).verdict["class"] == "hardware/gpu-memory"
    assert len(world.bell.rung) == 1
    assert list(entry.told) == ["bell"]


def test_what_is_shown_again_and_again_is_told_once(world: World) -> None:
    world.scheduler.show(sign(time=world.now))
    world.run(3600)
    world.run(3600)

    assert len(world.bell.rung) == 1
    assert world.collections == ["train"]


def test_five_hundred_pods_of_a_job_are_one_failure_and_one_collection(world: World) -> None:
    world.scheduler.show(*(sign(item=f"kubernetes/train-{at}", time=world.now + at * 0.01) for at in range(512)))
    world.run(300)

    assert len(world.inbox.entries()) == 1
    assert world.collections == ["train"]
    assert len(world.bell.rung) == 1


def test_the_collection_waits_for_the_victims(world: World) -> None:
    world.scheduler.show(sign(time=world.now))
    world.run()
    assert world.collections == [], "its victims may still be dying"
    world.scheduler.show(sign(item="kubernetes/train-1", time=world.now + 10))
    world.now += 10
    world.run()
    world.now += 21
    world.run()
    assert world.collections == ["train"]


def test_victims_that_come_late_are_collected_too_but_told_only_when_the_verdict_changes(world: World) -> None:
    world.scheduler.show(sign(time=world.now))
    world.run(60)
    world.scheduler.show(sign(item="kubernetes/train-1", time=world.now))
    world.run(60)
    assert world.collections == ["train"] * 2
    assert len(world.bell.rung) == 1

    world.verdicts["train"] = verdict_of("platform/network", None, None)
    world.scheduler.show(sign(item="kubernetes/train-2", time=world.now))
    world.run(60)
    assert [note.kind for note in world.bell.rung] == ["incident", "changed"]
    assert world.bell.rung[1].lines[0].startswith("Changed: ")
    (entry,) = world.inbox.entries()
    assert [path.name for path in Path(entry.evidence).parent.glob("evidence-*")] == [Path(entry.evidence).name]


def test_victims_seen_while_it_is_collected_are_collected_afterwards(world: World) -> None:
    real, inside = world.collect, list[Watch]()

    def slow(failure: Failure, place: Path, now: float) -> Found:
        found = real(failure, place, now)
        if len(world.collections) == 1:
            world.scheduler.show(sign(item="kubernetes/train-1", time=world.now))
            inside[0].look()
        return found

    world.collect = slow  # type: ignore[method-assign]
    world.scheduler.show(sign(time=world.now))
    with world.watch() as watch:
        inside.append(watch)
        watch.look()
        for _ in range(4):
            world.now += 30
            watch.work()

    assert len(world.collections) == 2
    assert len(world.inbox.entries()[0].data["failure"]["items"]) == 2


def test_a_crash_loop_is_collected_three_times_and_not_for_ever(world: World) -> None:
    for at in range(20):
        world.scheduler.show(sign(item=f"kubernetes/train-0/{at}", time=world.now))
        world.run(120)

    assert len(world.inbox.entries()) == 1
    assert len(world.collections) == 3
    assert len(world.bell.rung) == 1


def test_the_next_start_of_a_job_is_another_failure(world: World) -> None:
    world.scheduler.show(sign(time=world.now, attempt=1))
    world.run(60)
    world.scheduler.show(sign(item="kubernetes/train-0-b", time=world.now, attempt=2))
    world.run(60)

    assert [entry.attempt for entry in world.inbox.entries()] == [2, 1]
    assert len(world.bell.rung) == 2


def test_without_a_start_told_time_tells_failures_apart(world: World) -> None:
    world.scheduler.show(sign(time=world.now))
    world.run(60)
    world.now += 3600
    world.scheduler.show(sign(item="kubernetes/train-again", time=world.now))
    world.run(60)

    assert len(world.inbox.entries()) == 2


def test_what_failed_long_before_the_first_look_is_no_news(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.scheduler.show(sign("old", time=START - 86400), sign("undated", time=None), sign("fresh", time=START - 600))
    world.run(300)

    assert [entry.job for entry in world.inbox.entries()] == ["fresh"]


def test_what_failed_while_no_watch_ran_is_found(world: World) -> None:
    world.scheduler.show(sign(time=world.now + 3600))
    world.now += 5 * 86400
    world.run(60)

    assert [entry.job for entry in world.inbox.entries()] == ["train"]
    assert len(world.bell.rung) == 1


def test_a_first_look_that_saw_nothing_does_not_make_old_failures_new(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.scheduler.down = "connection refused"
    world.run(7200)
    world.scheduler.down = ""
    world.scheduler.show(sign("old", time=START - 86400), sign("meanwhile", time=START + 60))
    world.run(300)

    assert [entry.job for entry in world.inbox.entries()] == ["meanwhile"]
    assert set(world.scheduler.since[:-1]) >= {START - 3600.0}, "the window begins where the first watch began"


def test_a_scheduler_that_is_down_is_a_problem_and_makes_the_watch_unready(world: World) -> None:
    watch = world.watch()
    with watch:
        watch.look()
        assert watch.ready(60)
        world.scheduler.down = "connection refused"
        turn = watch.look()
        assert turn.problems == ("kubernetes: connection refused",)
        assert not watch.ready(60)
        assert 'seen_whole{scheduler="kubernetes"} 0' in watch_metrics(watch, world.now)
        world.scheduler.down = ""
        watch.look()
        assert watch.ready(60)
        world.now += 61
        assert not watch.ready(60), "a look of long ago proves nothing"


def test_a_defect_in_a_follower_is_told_and_costs_no_other(world: World) -> None:
    class Broken:
        name = "slurm"

        def look(self, *_: object) -> object:
            raise KeyError("JobID")

    world.scheduler.show(sign(time=world.now))
    watch = world.watch()
    watch.followers = (*watch.followers, Broken())  # type: ignore[assignment]
    with watch:
        turn = watch.look()

    assert turn.new == 1
    assert turn.problems == ("slurm: internal error: KeyError: 'JobID'",)


def test_a_collection_that_fails_is_an_entry_with_its_problem_and_is_tried_again(world: World) -> None:
    world.broken = 1
    world.scheduler.show(sign(time=world.now))
    world.run(30)
    (entry,) = world.inbox.entries()
    assert "No space left" in entry.problem
    assert world.bell.rung == [], "it may be well in half a minute"
    world.run(90)
    (entry,) = world.inbox.entries()

    assert (entry.problem, entry.cls) == ("", "hardware/gpu-memory")
    assert len(world.bell.rung) == 1


def test_a_failure_that_cannot_be_collected_is_told_as_that_and_later_with_its_verdict(world: World) -> None:
    world.broken = 5
    world.scheduler.show(sign(time=world.now))
    world.run(300)
    assert len(world.bell.rung) == 1
    assert "Not triaged" in world.bell.rung[0].lines[1]
    assert "exit code 1" in world.bell.rung[0].lines[1], "what the scheduler says is better than nothing"
    world.run(3600)

    assert [note.kind for note in world.bell.rung] == ["incident", "changed"]
    assert "hardware/gpu-memory" in world.bell.rung[1].lines[1]


def test_a_source_that_failed_is_asked_again_and_the_verdict_told_meanwhile(world: World) -> None:
    world.lacking = ("metrics: connection refused",)
    world.scheduler.show(sign(time=world.now))
    world.run(40)
    assert len(world.bell.rung) == 1
    world.run(3600)

    assert len(world.collections) == 3
    assert len(world.bell.rung) == 1


def test_a_message_that_is_not_taken_is_sent_again_with_back_off(world: World) -> None:
    world.bell.down = 3
    world.scheduler.show(sign(time=world.now))
    with world.watch() as watch:
        watch.look()
        world.now += 30
        watch.work()
        assert watch.problems == (f"bell: {world.inbox.entries()[0].id} could not be told: the bell is broken",)
        assert "workbench_watch_untold 1" in watch_metrics(watch, world.now)
        watch.work()
        assert world.bell.down == 2, "not before its time"
        for _ in range(10):
            world.now += 30
            watch.work()

    assert lines(world.bell.rung) == [world.bell.rung[0].lines[0]]
    assert "sent again" not in world.bell.rung[0].lines[0], "it was refused, so it did not arrive"


def test_a_message_whose_answer_was_lost_says_that_it_may_be_the_second(world: World) -> None:
    world.bell.down, world.bell.error.unsure = 1, True
    world.scheduler.show(sign(time=world.now))
    world.run(120)

    assert "sent again" in world.bell.rung[0].lines[0]


def test_a_refusal_does_not_make_forget_that_an_earlier_message_may_have_arrived(world: World) -> None:
    world.scheduler.show(sign(time=world.now))
    world.step = lambda word: crash_at(1)(word) if word == "after sending" else None
    with pytest.raises(Crash):
        world.run(60)
    world.step = lambda _: None
    world.bell.down = 1
    world.run(300)

    assert len(world.bell.rung) == 2
    assert "sent again" in world.bell.rung[1].lines[0]


def test_nobody_is_told_of_what_somebody_closed_or_muted(world: World) -> None:
    world.bell.down = 100
    world.scheduler.show(sign(time=world.now))
    world.run(60)
    world.inbox.set_state(world.inbox.entries()[0].id, "muted", by="ann")
    world.bell.down = 0
    world.run(3600)

    assert world.bell.rung == []


def test_many_jobs_at_once_are_one_message_and_all_are_collected(world: World) -> None:
    reasons = ("Evicted: the node had a problem", "exit code 1")
    world.scheduler.show(
        *(
            replace(sign(f"job-{at}", time=world.now, nodes=(f"gpu-{at % 7}",)), reason=f"pod job-{at}-0: {reasons[at % 3 == 0]}")
            for at in range(60)
        )
    )
    world.run(60)
    world.run(60)

    assert len(world.inbox.entries()) == 60
    assert len(world.bell.rung) == 1
    note = world.bell.rung[0]
    assert note.kind == "storm"
    assert "60 failures" in note.lines[0]
    assert "40 × Evicted" in note.lines[1]
    assert len(note.lines) == 5
    assert len(world.collections) == 60


def test_a_storm_in_pieces_is_one_storm(world: World) -> None:
    for piece in range(3):
        world.scheduler.show(*(sign(f"job-{piece}-{at}", time=world.now) for at in range(22)))
        world.run(20, pause=10)
    world.run(600)

    assert [note.kind for note in world.bell.rung] == ["storm"]
    world.now += 3600
    world.scheduler.show(sign("after", time=world.now))
    world.run(60)
    assert [note.kind for note in world.bell.rung] == ["storm", "incident"], "afterwards single failures are told again"


def test_a_storm_that_nobody_took_is_told_later(world: World) -> None:
    world.bell.down = 4
    world.scheduler.show(*(sign(f"job-{at}", time=world.now) for at in range(22)))
    world.run(1200)

    assert [note.kind for note in world.bell.rung] == ["storm"]


def test_no_more_collections_than_allowed_run_at_once(world: World) -> None:
    world.settings = replace(world.settings, at_once=3)
    running, most, release = [0], [0], threading.Event()
    lock = threading.Lock()

    def slow(failure: Failure, place: Path, now: float) -> Found:
        with lock:
            running[0] += 1
            most[0] = max(most)
            most.append(running[0])
        release.wait(20)
        with lock:
            running[0] -= 1
        return Found(a_case(verdict_of()))

    inbox = world.inbox
    world.scheduler.show(*(sign(f"job-{at}", time=world.now) for at in range(9)))
    watch = Watch(
        inbox, [world.scheduler], slow, Teller(inbox, [], clock=lambda: world.now), world.settings, clock=lambda: world.now
    )
    with watch:
        watch.look()
        world.now += 60
        for _ in range(5):
            watch.work()
        assert watch.running == 3
        assert "workbench_watch_collections_running 3" in watch_metrics(watch, world.now)
        assert "workbench_watch_collections_waiting 6" in watch_metrics(watch, world.now)
        release.set()
        watch.once()
    assert max(most) == 3
    assert watch.collected["ok"] == 9


def test_only_one_watch_keeps_an_inbox(world: World) -> None:
    with world.watch(), pytest.raises(InboxBusy, match="another watch"):
        world.watch().open()
    world.watch().open()


def test_a_damaged_cursor_is_told_and_nothing_is_begun_anew(world: World) -> None:
    (world.root / "watch.json").write_text('{"seen": {', encoding="utf-8")

    with pytest.raises(InboxError, match="damaged"):
        world.run()


def test_a_damaged_entry_costs_no_other(world: World) -> None:
    world.scheduler.show(sign("bad", time=world.now))
    world.run(60)
    (world.root / "entries" / world.inbox.entries()[0].id / "entry.json").write_bytes(b"{")
    world.scheduler.show(sign("bad", "kubernetes/bad-1", time=world.now - 60), sign("good", time=world.now))
    world.run(60)

    assert [entry.job for entry in world.inbox.entries()] == ["good"]
    assert [note.lines[0].split()[1] for note in world.bell.rung] == ["bad", "good"]


def test_a_full_disk_is_a_problem_of_the_look_and_the_failure_is_new_at_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    world.scheduler.show(sign(time=world.now))
    with world.watch() as watch:
        with monkeypatch.context() as patch:
            patch.setattr("workbench.inbox.store.write_json", full)
            turn = watch.look()
        assert any("No space left" in problem for problem in turn.problems)
        assert world.inbox.entries() == []
        watch.look()
    assert len(world.inbox.entries()) == 1


def test_an_entry_removed_while_it_is_collected_is_told_and_harms_nothing(world: World) -> None:
    world.scheduler.show(sign(time=world.now), sign("other", time=world.now))
    real = world.collect

    def vanishing(failure: Failure, place: Path, now: float) -> Found:
        found = real(failure, place, now)
        if failure.job == "train":
            Inbox(world.root, clock=lambda: world.now + 10).forget(older=1.0)
            world.scheduler.signs.clear()
        return found

    world.collect = vanishing  # type: ignore[method-assign]
    world.run(60)

    assert len(world.bell.rung) <= 1


@pytest.mark.parametrize("point", range(1, 14))
def test_a_crash_anywhere_loses_nothing_and_tells_at_most_once_more(tmp_path: Path, point: int) -> None:
    world = World(tmp_path / "inbox")
    world.run()
    world.now += 30
    world.scheduler.show(sign(time=world.now), sign("other", time=world.now + 1))
    world.step = crash_at(point)
    died = False
    try:
        world.run(60)
    except Crash:
        died = True
    before = len(world.bell.rung)
    world.step = lambda _: None
    world.run(120)
    world.run(3600)

    assert sorted(entry.job or "" for entry in world.inbox.entries()) == ["other", "train"]
    told = [note.id for note in world.bell.rung]
    assert set(told) == {entry.id for entry in world.inbox.entries()}
    assert len(told) <= 3, "a crash between the message and its record may cost one repetition"
    if len(told) == 3:
        assert died
        assert before
        assert "sent again" in world.bell.rung[before].lines[0]
        assert world.bell.rung[before].key == world.bell.rung[before - 1].key, "a receiver can tell that it is the same"
    assert not [entry for entry in world.inbox.entries() if len(list(Path(entry.evidence).parent.glob("evidence-*"))) != 1]


def test_stopping_lets_what_runs_end(world: World) -> None:
    world.scheduler.show(sign(time=world.now))
    world.settings = replace(world.settings, settle=0.0)
    stop, begun = threading.Event(), threading.Event()
    real = world.collect

    def slow(failure: Failure, place: Path, now: float) -> Found:
        begun.set()
        stop.wait(20)
        return real(failure, place, now)

    inbox = world.inbox
    watch = Watch(
        inbox, [world.scheduler], slow, Teller(inbox, [], clock=lambda: world.now), world.settings, clock=lambda: world.now
    )
    with watch:
        runner = threading.Thread(target=lambda: watch.every(30.0, stop=stop))
        runner.start()
        assert begun.wait(20)
        stop.set()
        runner.join(30)
        assert not runner.is_alive()
    assert world.inbox.entries()[0].cls == "hardware/gpu-memory"


def test_metrics_are_whole_and_say_how_long_a_verdict_took(world: World) -> None:
    world.scheduler.show(sign(time=world.now - 10))
    with world.watch() as watch:
        watch.look()
        world.now += 30
        watch.work()
        text = watch_metrics(watch, world.now)

    for line in (
        'workbench_watch_failures_total{source="kubernetes"} 1', 'workbench_watch_collections_total{outcome="ok"} 1', "workbench_watch_verdict_seconds_sum 40",
        'workbench_watch_messages_total{way="bell",outcome="told"} 1', "workbench_watch_untold 0", 'workbench_watch_entries{state="new"} 1', "workbench_watch_problems 0",
    ):  # fmt: skip
        assert line in text.splitlines(), text
    kinds = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)), "one TYPE a metric"


def test_the_cursor_is_not_written_when_nothing_is_new(world: World) -> None:
    world.scheduler.show(sign(time=world.now))
    world.run(60)
    before = (world.root / "watch.json").stat().st_mtime_ns
    world.run(120)

    assert (world.root / "watch.json").stat().st_mtime_ns == before
    assert json.loads((world.root / "watch.json").read_text())["seen"]
