"""Exceptions are found with their chain, their frames and their phase, also when ranks are woven together."""

from __future__ import annotations

from workbench.parse.traceback import Raised, Tracebacks


def _feed(text: str, stream: str = "") -> list[Raised]:
    stacks = Tracebacks()
    for no, line in enumerate(text.split("\n"), 1):
        stacks.feed(no, stream, line)
    return stacks.raised


CHAIN = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/socket.py", line 836, in create_connection
    sock.connect(sa)
    ^^^^^^^^^^^^^^^^
ConnectionRefusedError: [Errno 111] Connection refused

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/workspace/train.py", line 59, in push
    urlopen(url)
  File "/opt/venv/lib/python3.11/urllib/request.py", line 1351, in do_open
    raise URLError(err)
urllib.error.URLError: <urlopen error [Errno 111] Connection refused>"""


def test_chain_keeps_what_came_first() -> None:
    first, second = _feed(CHAIN)
    assert first.exception == "ConnectionRefusedError"
    assert first.chained_from is None
    assert second.exception == "urllib.error.URLError"
    assert second.chained_from is first
    assert second.user_frame == "/workspace/train.py:59 push"


def test_worker_wrapper_points_at_what_it_wraps() -> None:
    outer, inner = _feed(
        """\
Traceback (most recent call last):
  File "/workspace/train.py", line 182, in train
    batch = next(it)
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 308, in _worker_loop
    data = fetcher.fetch(index)
  File "/workspace/data.py", line 71, in __getitem__
    return rec["labels"]
KeyError: 'labels'"""
    )
    assert outer.wraps is inner
    assert inner.where == "dataloader"
    assert inner.frames[-1] == "/workspace/data.py:71 __getitem__"


def test_four_ranks_woven_together_lose_no_exception() -> None:
    frame = '  File "/workspace/train.py", line 3, in main\n    run()\n'
    text = "Traceback (most recent call last):\n" * 4 + frame * 4 + "ValueError: bad\n" * 4
    raised = _feed(text)
    assert [one.text for one in raised] == ["ValueError: bad"] * 4


def test_streams_do_not_mix() -> None:
    stacks = Tracebacks()
    for no, (stream, line) in enumerate(
        [
            ("r1", "Traceback (most recent call last):"), ("r2", "Traceback (most recent call last):"),
            ("r1", '  File "/a.py", line 1, in one'), ("r2", '  File "/b.py", line 2, in two'),
            ("r2", "ValueError: two"), ("r1", "KeyError: 'one'"),
        ],
        1,
    ):  # fmt: skip
        stacks.feed(no, stream, line)
    two, one = stacks.raised
    assert one.frames == ["/a.py:1 one"]
    assert two.frames == ["/b.py:2 two"]


def test_custom_exception_without_the_word_error() -> None:
    (raised,) = _feed(
        """\
Traceback (most recent call last):
  File "/workspace/x.py", line 1, in f
    q.get(timeout=1)
_queue.Empty"""
    )
    assert raised.exception == "_queue.Empty"


def test_exception_group() -> None:
    raised = _feed(
        """\
  + Exception Group Traceback (most recent call last):
  |   File "/workspace/x.py", line 1, in f
  |     raise ExceptionGroup("two", errors)
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/workspace/y.py", line 2, in g
    |     raise ValueError("inner")
    | ValueError: inner
    +------------------------------------"""
    )
    assert {one.exception for one in raised} >= {"ValueError"}


def test_torn_traceback_without_head_is_still_one() -> None:
    (raised,) = _feed('  File "/workspace/x.py", line 1, in f\n    g()\nRuntimeError: half')
    assert raised.text == "RuntimeError: half"
    (bare,) = _feed("some text\nKeyError: 'x'")
    assert bare.bare


def test_ordinary_lines_are_no_exceptions() -> None:
    assert _feed("INFO: all fine\nEpoch: 5\nWARNING: slow\nFutureWarning: x is deprecated\nNote: see the docs") == []


def test_a_million_heads_without_ends_stay_bounded() -> None:
    stacks = Tracebacks()
    for no in range(20_000):
        stacks.feed(no, "", "Traceback (most recent call last):")
        stacks.feed(no, "", "plain text")
    assert stacks.raised == []
