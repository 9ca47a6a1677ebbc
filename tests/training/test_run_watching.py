"""What a supervisor sees of a job's progress in its output: every line that tells a step or a pause, whatever piece it comes in."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.parse.progress import step_of
from workbench.training import hangs
from workbench.training.watching import _WORDS, Watching


def watching(folder: Path) -> Watching:
    return Watching(folder, 1, max_hang=None, dumps=None, say=lambda _: None)


def test_steps_are_seen_in_pieces_of_any_size(tmp_path: Path) -> None:
    text = (
        b"".join(b"step %d/90 loss 1.5\r\nnothing\n" % step for step in range(3, 60))
        + b" 61%|###  | 61/90 [00:04<00:15, 21.4it/s]\r"
    )
    for size in (1, 7, 64, 100_000):
        seen = watching(tmp_path)
        for at in range(0, len(text), size):
            seen.feed(text[at : at + size])
        assert (seen.first, seen.last) == (3, 61)


def test_a_flood_of_lines_is_not_read_whole_and_its_ends_are(tmp_path: Path) -> None:
    seen = watching(tmp_path)
    seen.feed(b"".join(b"step %d/9000 loss 1.5\n" % step for step in range(1, 2000)))
    assert (seen.first, seen.last) == (1, 1999)
    assert len(seen.times) < 200


@pytest.mark.parametrize(
    "line",
    [
        "step=5 loss=1.0", "global_step: 5 loss: 1", "iteration       48/      50 | lm loss: 8.3E-02", "Iter 10/20", "Batch 3/9, Loss: nan",
        "{'loss': 1.4358, 'grad_norm': 0.9, 'epoch': 0.52}", "Epoch: [0][ 10/100]", " 18%|x  | 71/400 [00:04<00:15, 2.1s/it]",
        "Saving checkpoint at step 100", "saving checkpoint at iteration 500 to /ckpt", "***** Running Evaluation *****", "Validation started",
        "save model", "checkpointing now", "evaluating", "validating",
    ],
)  # fmt: skip
def test_no_line_that_says_something_is_passed_over(line: str) -> None:
    assert step_of(line) is not None or hangs._PAUSE.search(line)
    assert any(word in line.encode() for word in _WORDS)
