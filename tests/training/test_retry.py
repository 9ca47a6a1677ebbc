"""A failed job starts again when that helps, waits when something else must be put right, and stops when only a person helps."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from tests.training.jobs import START, Life, after, failed, told, verdict
from workbench.model import CLASSES, Event, Gpu, Verdict
from workbench.training.attempts import Attempt, History
from workbench.training.policy import Policy
from workbench.training.retry import ACTIONS, decide


@dataclass(frozen=True)
class Saved:
    """A checkpoint as far as a decision reads it."""

    path: str = "/ckpt/step-90"
    step: int | None = 90
    state: str = "complete"


class TestUser:
    def test_a_certain_fault_of_the_user_is_not_tried_again(self) -> None:
        """And the decision says who has to do what, with the line it stands on."""
        decision = after(verdict("user/exception", 0.95))

        assert (decision.action, decision.who, decision.todo) == ("stop", "user", ("look at it",))
        assert decision.evidence == ("logs/rank3.log:7: the line as it was",)
        assert "user/exception with confidence 0.95" in decision.reason

    @pytest.mark.parametrize(
        "said",
        [
            verdict("user/exception", 0.6),
            verdict("user/illegal-memory-access", 0.95),
            verdict("user/hang", 0.96),
            verdict("user/host-oom", 0.95, retry="same-nodes"),
        ],
        ids=["not sure", "may be the GPU", "may be a race", "the evidence asks for another try"],
    )
    def test_what_is_not_certain_gets_one_confirmation(self, said: dict[str, object]) -> None:
        """A second failure of the same class ends it, wherever it happens."""
        life = Life()

        assert life.fail(said, steps=10).action == "restart"
        second = life.fail(said, steps=10)
        assert (second.action, second.who) == ("stop", "user")
        assert "the same way in attempt 1" in second.reason

    def test_another_class_at_the_same_step_confirms_as_well(self) -> None:
        """What fails at one step twice is the step's data or code, under whatever name."""
        life = Life(replace(Policy(), budget_user=5))

        life.fail(verdict("user/numerics", 0.6), steps=50)
        assert life.fail(verdict("user/hang", 0.6), steps=0).action == "stop"

    def test_a_fault_elsewhere_uses_the_one_confirmation_up(self) -> None:
        """At most one confirmation is at most one."""
        life = Life()

        life.fail(verdict("user/numerics", 0.6), steps=50)
        last = life.fail(verdict("user/hang", 0.6), steps=50)
        assert (last.action, last.budget["user"]) == ("stop", (1, 1))

    def test_a_cancelled_job_stays_cancelled(self) -> None:
        """By its verdict, or by what the scheduler said."""
        assert after(verdict("user/stopped", 0.6)).action == "stop"
        assert after(verdict("unknown"), failed(state="cancelled")).action == "stop"

    @pytest.mark.parametrize(
        ("code", "step", "action"), [(127, None, "stop"), (2, None, "stop"), (1, None, "restart"), (127, 5, "restart")]
    )
    def test_a_command_that_cannot_be_run_is_not_run_again(self, code: int, step: int | None, action: str) -> None:
        """Only before any step: later it is some program's own code."""
        assert after(verdict("unknown"), failed(exit_code=code, step_first=None, step_last=step)).action == action


class TestHardware:
    def test_the_node_to_blame_is_left_out_and_the_job_goes_on(self) -> None:
        """With its GPU, for who can leave out one; whoever repairs it has something to do."""
        decision = after(verdict("hardware/gpu-lost", node="n7", uuid="GPU-7"))

        assert (decision.action, decision.exclude_nodes, decision.exclude_gpus) == ("restart", ("n7",), ("GPU-7",))
        assert (decision.who, decision.todo) == ("hardware", ("look at it",))
        assert decision.budget["hardware"] == (1, 60)
        assert "n7 with GPU-7 is to blame" in decision.reason

    @pytest.mark.parametrize(
        "said",
        [
            verdict("hardware/gpu-lost", node="n7", at_fault="rank"),
            verdict("hardware/gpu-lost", node="n7", at_fault=None),
            verdict("platform/network", node="n7", retry="exclude-node"),
            verdict("user/illegal-memory-access", node="n7", at_fault="gpu", retry="exclude-node"),
            verdict("unknown", node="n7", retry="exclude-node", at_fault="node"),
            verdict("hardware/gpu-lost", node=None),
            verdict("hardware/gpu-lost", 0.4, node="n7"),
        ],
        ids=["rank", "nobody", "platform", "user", "unknown", "no node", "a guess"],
    )
    def test_a_node_where_it_merely_happened_is_not_left_out(self, said: dict[str, object]) -> None:
        """Blame needs evidence on the thing blamed."""
        assert after(said).exclude_nodes == ()

    def test_what_was_left_out_stays_out(self) -> None:
        """The next decision names all of them."""
        life = Life()

        for node in ("n1", "n2", "n3"):
            life.fail(verdict("hardware/nvlink", node=node))
        assert life.decisions[-1].exclude_nodes == ("n1", "n2", "n3")

    def test_a_node_that_was_given_back_to_work_is_used_again(self) -> None:
        """Since it was blamed; what was given back before that has failed since."""
        life = Life()
        life.fail(verdict("hardware/nvlink", node="n1", uuid="GPU-1"))
        blamed = life.past[-1].ended or 0.0
        life.fail(verdict("hardware/nvlink", node="n2"))
        kept = life.past

        def out(**returned: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
            said = verdict("hardware/nvlink", node="n3")
            decision = decide(said, History((*kept, failed(3, excluded=("n1", "GPU-1", "n2"))), now=life.now, returned=returned))
            return decision.exclude_nodes, decision.exclude_gpus

        assert out() == (("n1", "n2", "n3"), ("GPU-1",))
        assert out(n1=blamed - 1) == (("n1", "n2", "n3"), ("GPU-1",))
        assert out(n1=blamed + 1) == (("n2", "n3"), ())

    def test_a_node_that_came_back_and_fails_again_is_out_again(self) -> None:
        """And stays so until it is given back once more."""
        first = told(failed(1, ended=START + 600), verdict("hardware/nvlink", node="n1"))
        second = failed(2, started=START + 700, ended=START + 900, excluded=("n1",))
        third = failed(3, started=START + 2000, ended=START + 2600)
        said = verdict("hardware/nvlink", node="n1")
        back = {"n1": START + 1500}

        again = decide(said, History((first, second, third), now=START + 2600, returned=back))
        assert again.exclude_nodes == ("n1",)
        assert "n1 is to blame" in again.reason
        later = History((first, second, told(third, said), failed(4, ended=START + 3000, excluded=("n1",))), now=START + 3000)
        assert decide(verdict("unknown"), replace(later, returned=back)).exclude_nodes == ("n1",)
        assert decide(verdict("unknown"), replace(later, returned={"n1": START + 2700})).exclude_nodes == ()

    def test_what_was_blamed_long_ago_is_tried_again(self) -> None:
        """`exclude.age` after its last failure; 0 is never."""
        past = (
            told(failed(1, ended=START), verdict("hardware/nvlink", node="n1")),
            failed(2, started=START + 60, excluded=("n1",)),
        )

        def out(days: float, **rules: float) -> tuple[str, ...]:
            last = failed(3, started=START + 120, ended=START + days * 86400, excluded=("n1",))
            history = History((*past, last), now=START + days * 86400)
            return decide(verdict("unknown"), history, replace(Policy(), **rules)).exclude_nodes

        assert out(6.9) == ("n1",)
        assert out(7.1) == ()
        assert out(7.1, exclude_age=0.0) == ("n1",)
        assert out(1.1, exclude_age=86400.0) == ()

    def test_three_bad_nodes_in_a_row_are_no_lack_of_progress(self) -> None:
        """Each time the world was another one."""
        life = Life()

        for number in range(10):
            assert life.fail(verdict("hardware/gpu-memory", node=f"n{number}"), steps=0).action == "restart"

    def test_a_contained_error_is_tried_on_the_same_node_once(self) -> None:
        """The second time its node is left out."""
        life = Life()
        said = verdict("hardware/gpu-memory", node="n1", uuid="GPU-1", retry="same-nodes")

        assert life.fail(said).exclude_nodes == ()
        assert life.fail(said).exclude_nodes == ("n1",)

    def test_a_node_that_is_blamed_though_it_is_out_ends_the_tries(self) -> None:
        """Leaving out does not help, or the evidence is old."""
        life = Life()

        while life.fail(verdict("hardware/pcie", node="n1")).action == "restart":
            pass
        assert life.restarts == 4  # the exclusion, and three without progress
        assert "did not get it beyond step 0" in life.decisions[-1].reason

    @pytest.mark.parametrize(("exhausted", "action"), [("stop", "stop"), ("wait", "wait")])
    def test_capacity_is_not_given_away(self, exhausted: str, action: str) -> None:
        """Below the nodes that the job needs nothing more is left out, and it is said."""
        policy = replace(Policy(), nodes_have=4, nodes_min=3, nodes_exhausted=exhausted)
        past = (told(failed(1), verdict("hardware/pcie", node="n1")), failed(2, excluded=("n1",)))
        decision = after(verdict("hardware/pcie", node="n2"), *past, policy=policy)

        assert (decision.action, decision.exclude_nodes, decision.who) == (action, ("n1",), "hardware")
        assert "without n2 only 2 of 4 nodes remain and the job needs 3" in decision.reason

    def test_a_lost_node_without_which_the_job_cannot_run_is_waited_for(self) -> None:
        """It is gone rather than broken: the job begins again where it was when the node had time to come back, and leaves it out if others are left."""
        lost = verdict("platform/node-lost", node="n2", at_fault="node", retry="exclude-node")
        life = Life(replace(Policy(), nodes_have=2, nodes_min=2))

        asked = after(lost, policy=life.policy)
        assert (asked.action, asked.exclude_nodes) == ("wait", ())
        assert "n2 has to come back first" in asked.reason
        assert (life.fail(lost, steps=10).exclude_nodes, life.waits) == ((), 1)
        assert "n2 had time to come back" in life.decisions[-1].reason
        assert after(lost, policy=replace(Policy(), nodes_have=3, nodes_min=2)).exclude_nodes == ("n2",)

    def test_a_lost_node_without_which_nothing_begins_is_taken_back_and_waited_for(self) -> None:
        """A launcher of the site's own does not say how many nodes there are; where it had a spare one the node stays out."""
        lost = verdict("platform/node-lost", node="n2", at_fault="node", retry="exclude-node")
        unknown = verdict("unknown", 0.6, node=None, at_fault=None)
        life = Life()
        assert life.fail(lost, steps=10).exclude_nodes == ("n2",)
        again = life.fail(unknown, steps=None, exit_code=3)
        assert (again.action, again.exclude_nodes, life.waits) == ("restart", (), 1)
        assert "n2 had time to come back" in again.reason
        assert life.fail(unknown, steps=10).exclude_nodes == ()

        other = Life()
        other.fail(lost, steps=10)
        assert other.fail(unknown, steps=10).exclude_nodes == ("n2",)
        broken = Life()
        broken.fail(verdict("hardware/pcie", node="n2"), steps=10)
        assert broken.fail(unknown, steps=None, exit_code=3).exclude_nodes == ("n2",)

    def test_a_wait_for_capacity_ends(self) -> None:
        """After the policy's patience."""
        life = Life(replace(Policy(), nodes_have=1, nodes_exhausted="wait"))

        assert life.fail(verdict("hardware/pcie")).action == "stop"
        assert life.waits > 10
        assert life.now - life.past[-1].ended == pytest.approx(86400, abs=60)  # type: ignore[operator]

    def test_a_place_in_a_machine_is_no_name_of_a_gpu(self) -> None:
        """What a BMC calls GPU_SXM_1 is another one in the next machine."""
        assert after(verdict("hardware/gpu-memory", node=None, uuid="GPU_SXM_1")).exclude_gpus == ()

    def test_a_gpu_without_a_known_node_is_left_out_alone(self) -> None:
        """A launcher may know how."""
        decision = after(verdict("hardware/gpu-memory", node=None, uuid="GPU-1"))

        assert (decision.exclude_nodes, decision.exclude_gpus) == ((), ("GPU-1",))


class TestPlatform:
    def test_what_is_broken_outside_is_waited_for_on_the_same_nodes(self) -> None:
        """Longer each time, and nothing is left out."""
        life, began = Life(), []

        for _ in range(6):
            decision = life.fail(verdict("platform/storage"), steps=0)
            assert (decision.action, decision.exclude_nodes, decision.who) == ("restart", (), "platform")
            began.append(life.now - life.past[-1].ended)  # type: ignore[operator]
        assert began[0] == pytest.approx(60, rel=0.21)
        assert began[5] > 8 * began[0]
        assert life.waits == 6

    def test_an_outage_of_a_night_is_outlived_and_one_of_days_is_not(self) -> None:
        """The budget of the platform is a time."""
        life = Life()
        while life.fail(verdict("platform/storage"), steps=0).action == "restart":
            pass

        assert life.restarts == 20
        assert 6 * 3600 < life.now - START < 12 * 3600
        assert life.decisions[-1].who == "platform"

    def test_a_short_trouble_is_only_backed_off_from(self) -> None:
        """Where the verdict says same nodes."""
        decision = after(verdict("platform/network", retry="same-nodes"))

        assert (decision.action, decision.exclude_nodes) == ("restart", ())
        assert 8.0 <= decision.delay <= 12.0

    def test_a_lost_node_is_left_out_when_the_node_is_to_blame(self) -> None:
        """Class platform, and still the node."""
        assert after(verdict("platform/node-lost", node="n5", at_fault="node", retry="exclude-node")).exclude_nodes == ("n5",)

    def test_a_driver_that_must_be_put_right_is_waited_for_unless_there_are_other_nodes(self) -> None:
        """The verdict says fix first where it knows of no other node; who knows of some leaves it out."""
        said = verdict("driver/missing", node="n1", retry="fix-first")

        assert after(said).action == "wait"
        other = after(said, policy=replace(Policy(), nodes_have=3))
        assert (other.action, other.exclude_nodes) == ("restart", ("n1",))

    def test_the_users_own_quota_is_the_users(self) -> None:
        """The remediation says who."""
        assert after(verdict("platform/storage", remediation="fix-user-code")).who == "user"

    def test_a_clock_set_back_makes_no_longer_wait(self) -> None:
        """A day back is not a day to wait."""
        decision = after(verdict("platform/storage"), now=START - 86400.0)

        assert decision.delay <= 72.0


class TestPreemption:
    def test_a_preemption_costs_nothing_however_often_it_comes(self) -> None:
        """It is no failure."""
        life = Life()

        for _ in range(100):
            decision = life.fail(verdict("platform/preemption", 0.95, retry="same-nodes"), steps=0)
            assert decision.action == "restart"
        assert decision.budget == {"platform": (0, 20), "total": (0, 500), "no-progress": (0, 3)}

    def test_the_scheduler_is_believed_over_the_noise_of_the_end(self) -> None:
        """A rank that raises on SIGTERM has no defect."""
        assert after(verdict("user/exception", 0.98), failed(state="preempted")).action == "restart"

    def test_a_guessed_preemption_is_on_the_account_of_the_platform(self) -> None:
        """A job that ends by SIGTERM for ever must not run for ever."""
        life = Life()
        while life.fail(verdict("platform/preemption", 0.66, retry="same-nodes"), steps=0).action == "restart":
            pass

        assert life.restarts == 20


class TestUnknownAndNone:
    def test_tries_without_progress_end(self) -> None:
        """Three in a row; a step further begins anew."""
        life = Life()
        life.fail(verdict("unknown"), steps=100)
        while life.fail(verdict("unknown"), steps=0).action == "restart":
            pass

        assert life.restarts == 4
        assert life.decisions[-1].reason == "4 failures in a row did not get it beyond step 100."

    def test_tries_with_progress_end_by_the_budget(self) -> None:
        """Six in a week; what is older counts no more."""
        life = Life()
        while life.fail(verdict("unknown"), steps=10).action == "restart":
            pass
        assert life.restarts == 6

        rare = Life()
        for _ in range(30):
            assert rare.fail(verdict("unknown"), steps=10, seconds=2 * 86400.0).action == "restart"

    def test_going_back_to_an_old_step_is_no_progress(self) -> None:
        """The furthest of all earlier attempts is what counts, not the one before."""
        past = tuple(
            told(failed(number, step_first=1, step_last=last), verdict("unknown"))
            for number, last in ((1, 100), (2, 50), (3, 60), (4, 70))
        )
        decision = after(verdict("unknown"), *past, failed(5, step_first=1, step_last=80))

        assert decision.action == "stop"

    def test_without_steps_a_long_run_is_progress(self) -> None:
        """Nobody told, but two hours are not nothing."""
        life = Life()

        for _ in range(6):
            assert life.fail(verdict("unknown"), steps=None, seconds=7200.0).action == "restart"
        short = Life()
        while short.fail(verdict("unknown"), steps=None, seconds=60.0).action == "restart":
            pass
        assert short.restarts == 3

    def test_no_verdict_is_unknown(self) -> None:
        """A triage that failed stops no job, and starts none for ever."""
        life = Life()
        while life.fail(None, steps=None).action == "restart":
            pass

        assert life.restarts == 3
        assert life.decisions[-1].cause == "unknown"

    def test_what_ended_well_is_over(self) -> None:
        """By its code or its state."""
        assert after(verdict("none"), failed(exit_code=0)).action == "stop"
        assert after(verdict("unknown"), failed(state="completed")).who == "nobody"

    def test_a_bad_end_without_a_failure_is_tried_a_few_times(self) -> None:
        """The code is not 0 and nothing is seen to have failed."""
        decision = after(verdict("none"), failed(exit_code=3))

        assert (decision.action, decision.budget["none"]) == ("restart", (1, 3))
        assert "exit code 3" in decision.reason


class TestBackOff:
    def test_it_grows_to_its_cap_and_is_the_same_when_asked_again(self) -> None:
        """Two jobs that failed together do not come back together."""
        policy = replace(Policy(), budget_unknown=40, progress_restarts=40)
        lives = [Life(policy, job=job) for job in ("a", "a", "b")]
        delays = [[life.fail(verdict("unknown"), steps=0).delay for _ in range(12)] for life in lives]

        assert delays[0] == delays[1] != delays[2]
        assert delays[0][3] > 2 * delays[0][0]
        assert max(delays[0]) <= 360 * 1.2

    def test_what_was_waited_already_is_taken_off(self) -> None:
        """The back-off runs from the end of the attempt, not from the end of the triage."""
        assert after(verdict("unknown"), now=failed().ended + 60.0).delay == 0.0  # type: ignore[operator]


class TestCheckpoints:
    def test_it_resumes_from_the_one_that_can_be_restored(self) -> None:
        """And says so."""
        decision = after(verdict("unknown"), checkpoint=Saved())

        assert decision.resume_from == "/ckpt/step-90"
        assert "from the checkpoint of step 90" in decision.reason

    @pytest.mark.parametrize(
        ("scratch", "saved", "action"),
        [("unsaved", None, "restart"), ("unsaved", 90, "stop"), ("always", 90, "restart"), ("never", None, "stop")],
    )
    def test_starting_over_is_the_policys_to_allow(self, scratch: str, saved: int | None, action: str) -> None:
        """Work that was saved and cannot be restored is not silently done again."""
        decision = after(verdict("unknown"), failed(checkpoint_step=saved), policy=replace(Policy(), checkpoint_scratch=scratch))

        assert decision.action == action
        assert "beginning" in decision.reason

    def test_a_torn_one_is_none(self) -> None:
        """Whatever its caller thought."""
        assert after(verdict("unknown"), checkpoint=Saved(state="torn")).resume_from is None


class TestForm:
    def test_a_verdict_and_its_json_decide_alike(self) -> None:
        """Whoever has which."""
        from workbench.report.verdict_json import to_json

        said = Verdict(
            "hardware/nvlink",
            0.93,
            "a link",
            node="n4",
            gpu=Gpu(0, "GPU-4", "0000:3b:00.0"),
            at_fault="gpu",
            retry="exclude-node",
            evidence_records=[Event("sxid", "kernel", "SXid 22003", file="kernel/n4.log", line=3, role="cause")],
            next_steps=["drain it"],
        )

        history = History((failed(),), now=START + 600.0)
        assert decide(said, history) == decide(to_json(said), history)
        assert decide(said, history).exclude_gpus == ("GPU-4",)

    @pytest.mark.parametrize("cls", CLASSES)
    def test_every_class_gets_a_decision_with_a_reason(self, cls: str) -> None:
        """Also with nothing but its name, and as plain JSON."""
        decision = decide({"class": cls}, History())

        assert decision.action in ACTIONS
        assert decision.reason.endswith(".")
        assert json.loads(json.dumps(decision.to_dict()))["cls"] == cls

    def test_the_reason_of_an_attempt_before_does_not_matter(self) -> None:
        """The last attempt's own words are replaced by those of the verdict."""
        stale = failed(cause="user", cls="user/exception", certain=True)

        assert after(verdict("hardware/pcie"), stale).action == "restart"

    def test_deciding_needs_neither_pandas_nor_numpy(self) -> None:
        """A supervisor starts in milliseconds."""
        code = "import sys; import workbench.training.retry, workbench.training.attempts; sys.exit('pandas' in sys.modules or 'numpy' in sys.modules)"

        assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


class TestStorm:
    def test_it_waits_while_the_whole_cluster_starts_again(self) -> None:
        """And begins when it is over."""
        counts = iter([30, 20, 9, 8])
        life = Life()

        assert life.fail(verdict("hardware/pcie"), others=lambda: next(counts)).action == "restart"
        assert life.waits == 3

    def test_a_storm_slows_a_job_and_does_not_stop_it(self) -> None:
        """After an hour it begins all the same."""
        life = Life()

        assert life.fail(verdict("platform/preemption", retry="same-nodes"), others=500).action == "restart"
        assert 2880 <= life.now - life.past[-1].ended < 4400  # type: ignore[operator]

    def test_others_that_cannot_be_counted_are_not_none(self) -> None:
        """It pauses once, and says why."""
        decision = after(verdict("unknown"), others=None)

        assert (decision.action, decision.who) == ("wait", "platform")
        assert "could not be counted" in decision.reason
        assert after(verdict("unknown"), others=None, now=failed().ended + 73.0).action == "restart"  # type: ignore[operator]


def test_an_empty_history_is_a_first_attempt() -> None:
    """A program that keeps none may ask as well."""
    assert decide(verdict("hardware/pcie"), History(now=5.0)).budget["total"] == (1, 500)
    assert decide(verdict("hardware/pcie"), History((Attempt(1),))).exclude_nodes == ("n1",)
