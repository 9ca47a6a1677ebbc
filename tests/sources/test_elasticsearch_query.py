"""What a log server is asked for so that no signature is missed, and the files that its lines become."""

from __future__ import annotations

import re
from typing import Any

import pytest

from workbench.catalog import signatures
from workbench.parse.prefix import Context, split_prefix
from workbench.sources.elasticsearch.candidates import _fair
from workbench.sources.elasticsearch.files import Entry, Stream, job_text, kernel_text, rest_text
from workbench.sources.elasticsearch.query import Needles, clauses, job_needles, kernel_needles, needles

START = 1777888800.0

# -- signatures as a query ------------------------------------------------------------------------------------------------

# what the standard analyzer does, near enough
_TOKEN = re.compile(r"\w+(?:(?:(?<=[^\W\d_])[.:'’](?=[^\W\d_])|(?<=\d)[.,';](?=\d))\w+)*")


def _holds(line: str, found: Needles, words: bool, weak: bool = True) -> bool:
    tokens = _TOKEN.findall(line.lower())

    def one(needle: Any) -> bool:
        if needle.phrase:
            phrase = _TOKEN.findall(needle.phrase.lower())
            return any(tokens[at : at + len(phrase)] == phrase for at in range(len(tokens) - len(phrase) + 1))
        return any(needle.part in token for token in tokens)

    if not words:
        return any(piece.lower() in f"{line.lower()}\n" for piece in found.pieces)
    needs = [*found.needs, *(need for need, _ in found.weak if weak)]
    return any(all(any(one(each) for each in some) for some in need) for need in needs)


@pytest.mark.parametrize("words", [True, False])
def test_the_query_finds_the_sample_of_every_signature(words: bool) -> None:
    found, kernel = job_needles(), kernel_needles()
    missed = [
        row.id
        for row in signatures().values()
        if row.pattern and row.layer != "noise" and row.role in ("cause", "symptom") and re.search(row.pattern, row.example)
        and row.id not in found.left_out and not _holds(row.example, found, words)
    ]  # fmt: skip
    assert missed == []
    assert set(found.left_out) <= {"user-ctrl-c"}  # one of its spellings is `^C` alone: no word to ask for
    assert kernel.left_out == ()
    assert _holds("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", kernel, words)


def test_the_query_leaves_ordinary_lines_alone() -> None:
    ordinary = [
        "2026-05-04 11:02:03,123 | INFO | trainer | step 4812 loss 2.1345 grad_norm 0.213 lr 1.5e-04 tok/s/gpu 9123 mfu 0.41 mem 61.2GiB",
        "[rank3]: 2026-05-04 11:02:03,123 - trainer.data - INFO - shard 00ff12ab34cd56ef cursor 81234 prefetch queue 12/64 tokens/s 9123",
        "gpu-node-012:10231:20417 [3] NCCL INFO Channel 07/0 : 1034[2] -> 1035[3] via P2P/CUMEM/read",
    ]
    assert not [line for line in ordinary if _holds(line, job_needles(), True, weak=False)]


def test_text_of_a_query_is_escaped() -> None:
    found = needles((("x", r"\[zq\*wv\]\?"),))
    (query,) = clauses(found, "message", words=False)
    value = query["regexp"]["message"]["value"]
    inner = value.removeprefix(".*(").removesuffix(").*")
    assert not re.search(r"(?<!\\)[*?\[\]]", inner), value


# -- lines as files ---------------------------------------------------------------------------------------------------------


def entries(*texts: tuple[float, str]) -> list[Entry]:
    return [Entry(START + at, (number, 0), text, "", number) for number, (at, text) in enumerate(texts)]


def test_a_line_gets_the_servers_time_only_where_none_is_near() -> None:
    stream = Stream("x", entries((0, "2026-05-04 10:00:00,000 | INFO | a"), (0.1, "  more"), (30, "late"), (30.1, "  later")))
    assert b"".join(job_text(stream)).decode().splitlines() == [
        "2026-05-04 10:00:00,000 | INFO | a", "  more", "2026-05-04T10:00:30.000Z late", "  later",
    ]  # fmt: skip


def test_a_stream_in_local_time_stays_in_local_time() -> None:
    stream = Stream("x", entries((0, "2026-05-04 12:00:00,000 | INFO | a"), (30, "late")))
    assert b"".join(job_text(stream)).decode().splitlines()[1] == "2026-05-04T12:00:30.000Z late"


def test_gaps_are_marked_and_lines_come_once() -> None:
    stream = Stream("x")
    one, two, three, four = entries((0, "a"), (1, "b"), (2, "c"), (9, "d"))
    stream.add_run([one, two])
    stream.add_run([two, three])
    stream.entries.append(four)
    text = b"".join(job_text(stream)).decode().splitlines()
    assert [line.split(" ", 1)[-1] for line in text if "workbench" not in line] == ["a", "b", "c", "d"]
    assert [at for at, line in enumerate(text) if "workbench" in line] == [3]


def test_kernel_lines_get_the_head_of_a_journal() -> None:
    stream = Stream("n", entries((0, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1"), (1, "May  4 10:00:01 n kernel: as it was")))
    assert b"".join(kernel_text(stream, "n")).decode().splitlines() == [
        "2026-05-04T10:00:00.000Z n kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        "May  4 10:00:01 n kernel: as it was",
    ]


def test_of_ranks_without_a_line_it_is_said_when_each_ended() -> None:
    seen = Stream("rank-0", entries((0, "2026-05-04 12:00:00,000 | INFO | a")), total=1, end=START)
    silent = [Stream(f"rank-{rank}", total=1000 + rank, end=START + rank, rank=rank, node="gpu-node-007") for rank in (5, 6)]
    heads = [split_prefix(line.decode(), Context()) for line in rest_text(silent, [seen, *silent])]
    local = 7200  # the job writes local time
    assert [(head.rank, head.node, head.time) for head in heads] == [
        (rank, "gpu-node-007", START + local + rank) for rank in (5, 6)
    ]
    assert "1,005 lines" in heads[0].rest


def test_the_end_of_a_stream_is_said_where_its_last_line_was_not_fetched() -> None:
    stream = Stream("x", entries((0, "2026-05-04 10:00:00,000 | INFO | a")), total=30, end=START + 60)
    text = b"".join(job_text(stream)).decode().splitlines()
    assert text[1].startswith("2026-05-04T10:01:00.000Z [workbench]")
    stream.end = START
    assert len(b"".join(job_text(stream)).splitlines()) == 1


def test_rare_kinds_come_whole_however_large_a_flood_is() -> None:
    assert _fair([3, 10, 1_000_000, 500_000], 4013) == 2000
    assert _fair([3, 100], 4000) == 100
    assert _fair([], 4000) == 4000
