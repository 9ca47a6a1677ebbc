"""When a job hangs, and when it only takes its time."""

import random

import pytest

from workbench.training.hangs import Progress, Watch

# lines as the frameworks print them; {} is the step
LINES = {
    "megatron": " [2026-11-30 10:00:00] iteration {:8d}/   50000 | consumed samples:  3200 | elapsed time per iteration (ms): 713.7 | lm loss: 8.3E+00 |",
    "nemo": "[NeMo I 2026-11-30 10:00:00] Training epoch 0, iteration {}/99999 | lr: 0.0003 | global_step: 9 | reduced_train_loss: 11.03 | train_step_timing in s: 7.1",
    "trainer": "{{'loss': 1.4358, 'grad_norm': 0.91, 'learning_rate': 7e-05, 'epoch': 0.{:05d}}}",
    "lightning": "Epoch 0:  10%|█         | {}/10000 [00:05<00:45,  2.00it/s, v_num=0, train_loss=1.30]",
    "torchtitan": "[rank0]:[titan] 2026-11-30 10:00:00,123 - root - INFO - \x1b[31mstep: {:2}  \x1b[32mloss:  8.1309  \x1b[38;2;180;60;0mgrad_norm:  1.49\x1b[39m",
    "deepspeed": "[2026-11-30 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[0.00015], mom=[(0.9, 0.95)]",
    "unbounded tqdm": "{}it [00:04, 21.44it/s]",
}


def ticks(watch, start, end, step=5.0):
    """The first hang between two moments, and when it was told."""
    now = start
    while now < end:
        hang = watch.tick(now)
        if hang:
            return hang
        now += step
    return None


def healthy(watch, steps, seconds=10.0, start=0.0, rank=None):
    for number in range(1, steps + 1):
        start += seconds
        watch.note(Progress(number, None, rank), start)
        assert watch.tick(start) is None
    return start


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_progress_is_seen_in_each_frameworks_lines(line):
    watch = Watch()
    for step in range(10, 40):
        watch.feed(line.format(step), step * 10.0)
        watch.feed(line.format(step), step * 10.0 + 5)  # the same line again is no progress
    assert watch.usual == pytest.approx(10.0)
    hang = ticks(watch, 400, 4000)
    assert hang is not None
    assert hang.since == 390.0


def test_a_bar_without_line_feeds_is_read_as_it_comes():
    watch = Watch()
    for step in range(1, 50):
        bar = f"\r {step}%|█▏   | {step}/100 [00:04<00:15, 21.44it/s, loss=2.3]".encode()
        watch.feed_bytes(bar[:20], step * 2.0)
        watch.feed_bytes(bar[20:], step * 2.0)
    assert watch.last_step == 48  # the last one may go on
    assert watch.usual == pytest.approx(2.0)


def test_output_that_is_no_progress_does_not_hide_a_hang():
    watch = Watch()
    now = healthy(watch, 20)
    for _ in range(100):
        now += 5
        watch.feed("[rank3]:[W1130 ProcessGroupNCCL.cpp:1234] [PG 0 Rank 3] heartbeat monitor waits", now)
        if hang := watch.tick(now):
            break
    assert hang.last_step == 20
    assert hang.seconds == pytest.approx(310, abs=5)
    assert "no progress for 5.17 min after step 20, where one is usual every 10 s" in hang.reason


def test_a_hang_names_the_ranks_that_lag_and_is_told_once():
    watch = Watch()
    now = 0.0
    for step in range(1, 30):
        now += 10
        for rank in range(8):
            if not (rank == 5 and step == 29):
                watch.note(Progress(step, None, rank), now + rank * 0.1)
    hang = ticks(watch, now, now + 2000)
    assert hang.behind == (5,)
    assert hang.ahead == (0, 1, 2, 3, 4, 6, 7)
    assert hang.usual == pytest.approx(10.0)  # not the tenth of a second between two ranks
    assert ticks(watch, hang.now + 5, hang.now + 5000) is None
    watch.note(Progress(30, None, 0), hang.now + 6000)
    assert watch.false_alarms == 1
    assert ticks(watch, hang.now + 6005, hang.now + 20000) is not None  # and it watches again


def test_before_the_first_step_only_the_start_limit_counts_and_the_hang_is_not_certain():
    watch = Watch(start_limit=1200)
    hang = ticks(watch, 0, 5000)
    assert hang.now == pytest.approx(1200, abs=5)
    assert hang.phase == "start"
    assert not hang.certain
    assert ticks(Watch(start_limit=None), 0, 500_000, 30) is None


def test_a_second_step_that_compiles_again_is_no_hang():
    watch = Watch()
    assert ticks(watch, 0, 900) is None
    watch.note(Progress(1), 900)
    assert ticks(watch, 905, 1700) is None
    watch.note(Progress(2), 1700)
    for step in range(3, 7):
        watch.note(Progress(step), 1700 + step)
    assert ticks(watch, 1710, 2290) is None  # few steps say little: PyTorch's own ten minutes


def test_announced_pauses_get_their_time_and_end_with_the_next_step():
    watch = Watch()
    now = healthy(watch, 50)
    for line in (
        "saving checkpoint at iteration     500 to /ckpt in torch_dist format",
        "***** Running Evaluation *****",
        "Saving model checkpoint to /out/checkpoint-500",
    ):
        watch.feed(line, now)
        assert watch.limit == 1800.0, line
        assert ticks(watch, now, now + 1000) is None
        now += 1000
        watch.note(Progress(watch.last_step + 1), now)
        assert watch.limit == pytest.approx(310)  # what was announced says nothing of a step
    watch.note(Progress(watch.last_step, None, None, None, "eval"), now)
    assert watch.limit == 1800.0
    hang = ticks(watch, now, now + 4000)
    assert hang.phase == "eval"
    assert "(eval was announced)" in hang.reason


def test_a_pause_that_nobody_announced_is_learned_and_the_next_attempt_knows_it():
    watch = Watch()
    now = healthy(watch, 50)
    assert ticks(watch, now, now + 250) is None
    now += 250
    watch.note(Progress(51), now)
    for step in range(52, 80):
        now += 10
        watch.note(Progress(step), now)
    assert watch.limit == pytest.approx(750)
    assert ticks(watch, now, now + 740) is None
    hang = ticks(watch, now + 740, now + 2000)
    after = watch.again()
    now = healthy(after, 50)
    assert after.limit > 2 * hang.seconds  # should it have been no hang, the next attempt gets past it


def test_after_the_last_step_a_job_may_take_its_time():
    watch = Watch()
    for step in range(1, 101):
        watch.feed(f"step {step}/100 loss=0.5", step * 10.0)
    hang = ticks(watch, 1000, 9000)
    assert hang.seconds == pytest.approx(1800, abs=5)
    assert "which was the last" in hang.reason


def test_a_suspended_laptop_and_a_clock_that_goes_back_are_no_hang():
    watch = Watch()
    now = healthy(watch, 30)
    assert ticks(watch, now, now + 100) is None
    assert watch.tick(now + 9 * 3600) is None  # nobody watched for nine hours
    assert watch.tick(now - 50) is None
    watch.note(Progress(31), now + 9 * 3600 + 5)
    assert watch.usual == pytest.approx(10.0)
    hang = ticks(watch, now + 9 * 3600 + 5, now + 10 * 3600)
    assert hang.seconds == pytest.approx(310, abs=10)


def test_a_new_epoch_that_counts_from_one_again_is_progress():
    watch = Watch()
    now = 0.0
    for _ in range(5):
        for step in range(1, 20):
            now += 10
            watch.feed(f"Epoch 0:  10%|█   | {step}/19 [00:05<00:45,  2.00it/s, loss=1.3]", now)
            assert watch.tick(now) is None
    assert watch.usual == pytest.approx(10.0)


def steps(kind, rng):
    """Healthy, irregular step times: (seconds, pause announced)."""
    number = 0
    while True:
        number += 1
        if kind == "heavy tail":
            yield 10 * rng.lognormvariate(0, 0.6)
        elif kind == "checkpoints":
            yield 8 * rng.lognormvariate(0, 0.2) * (10 if number % 200 == 0 else 1)
        elif kind == "input stalls":
            yield 3 * rng.lognormvariate(0, 0.2) + (rng.expovariate(1 / 30) if rng.random() < 0.01 else 0)
        else:
            yield 12 * (1 + number // 300 % 4) * rng.lognormvariate(0, 0.15)  # sequence lengths that grow


@pytest.mark.parametrize("kind", ["heavy tail", "checkpoints", "input stalls", "changing speed"])
def test_irregular_but_healthy_jobs_raise_no_alarm_and_a_hang_is_told_soon(kind):
    watch, rng, now = Watch(), random.Random(5), 0.0
    hours = 30
    for number, seconds in enumerate(steps(kind, rng)):
        end = now + seconds
        while now + 20 < end:
            now += 20
            assert watch.tick(now) is None, (kind, now)
        now = end
        watch.note(Progress(number), now)
        if now > hours * 3600:
            break
    hang = ticks(watch, now, now + 3600)
    assert 300 <= hang.seconds <= 900
