"""The scanner finds what `re` finds, wherever the text is cut, and stays bounded on hostile input."""

from __future__ import annotations

import io
import random
import re
import tracemalloc
from pathlib import Path

import pytest

from workbench.catalog import scan_patterns, signatures
from workbench.parse.gate import gate
from workbench.parse.ordinary import ORDINARY
from workbench.parse.patterns import Unsupported, for_blocks, needles
from workbench.parse.scan import RANGE, Scanner, ScanResult
from workbench.parse.scan_part import BLOCK
from workbench.parse.text import split_lines

PATTERNS = [
    ("xid", r"NVRM: Xid \((?P<pci>PCI:[0-9a-fA-F:.]+)\): (?P<code>\d+)"),
    ("xid-79", r"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): 79, .*"),
    ("watchdog", r"Watchdog caught collective operation timeout: WorkNCCL\(.*"),
    ("oom", r"(?i)out of memory"),
    ("killed", r"^.*Killed\s*$"),
    ("two-words", r"alpha\s+beta"),
    ("not-quote", r'name="[^"]+"'),
    ("also-killed", "Killed"),
]


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    return Scanner(PATTERNS, cache=False)


def log(lines: int, seed: int = 7) -> bytes:
    rng = random.Random(seed)
    rows = []
    for number in range(lines):
        row = b"[rank%d]: step %d loss=1.25 %s" % (number % 512, number, b"x" * rng.randrange(120))
        chance = rng.random()
        if chance < 0.002:
            row += b" Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)"
        elif chance < 0.003:
            row = b"bar 10%\rbar 20% \x1b[31mRuntimeError: CUDA Out of memory\x1b[0m\rbar 30%\r"
        elif chance < 0.004:
            row = b"line 3: 12 Killed\r"
        elif chance < 0.005:
            row = b"\xff\xfe[%d.123456] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus." % number
        elif chance < 0.006:
            row += b" alpha"
            rows.append(row)
            row = b"beta goes on"
        rows.append(row)
    return b"\n".join(rows)


def expected(data: bytes) -> set[tuple[int, str]]:
    found = set()
    for number, row in enumerate(data.split(b"\n"), 1):
        for piece in row.split(b"\r"):
            text = re.sub(r"\x1b\[[\d;]*m", "", piece.decode("utf-8", "replace"))
            found |= {(number, name) for name, pattern in PATTERNS if re.search(pattern, text)}
    return found


def found(result: ScanResult) -> set[tuple[int, str]]:
    return {(line.no, name) for line in result.lines for name in line.hits}


def test_same_hits_as_re_over_ranges_streams_and_lines(scanner: Scanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = log(30_000)
    monkeypatch.setattr("workbench.parse.scan.RANGE", 300_000)  # many ranges, so that many edges are crossed
    file = tmp_path / "job.log"
    file.write_bytes(data)
    want = expected(data)
    assert {name for _, name in want} == {"watchdog", "oom", "killed", "also-killed", "xid", "xid-79"}
    for result in (
        scanner.scan(file, workers=2, per_signature=10**6),
        scanner.scan(file, workers=1, per_signature=10**6),
        scanner.scan(io.BytesIO(data), per_signature=10**6),
    ):
        assert found(result) == want
        assert result.total_lines == 1 + data.count(b"\n")
        assert result.total_bytes == len(data)
        assert result.counts == {name: sum(1 for _, each in want if each == name) for name in {name for _, name in want}}
        assert all(data[line.offset : line.offset + 3] == line.text.encode()[:3] for line in result.lines if line.text.isascii())
    lines, counts = scanner.lines(data)
    assert {(line.no, name) for line in lines for name in line.hits} == want
    assert counts == result.counts


def test_fallback_engines_agree(scanner: Scanner) -> None:
    data = log(2_000)
    assert found(Scanner(PATTERNS, engine_name="re").scan(io.BytesIO(data))) == expected(data)
    pytest.importorskip("re2")
    assert found(Scanner(PATTERNS, engine_name="re2").scan(io.BytesIO(data))) == expected(data)


def test_most_specific_hit_comes_first(scanner: Scanner) -> None:
    assert scanner.hits("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus. out of memory") == ("xid-79", "oom", "xid")
    more = Scanner([("general", "Error"), ("special", r"RuntimeError: CUDA error"), ("middle", r"CUDA \w+")], cache=False)
    assert more.hits("RuntimeError: CUDA error: x") == ("special", "general", "middle")


def test_line_of_the_segment_that_has_the_hit(scanner: Scanner) -> None:
    data = b"first\r\n 1%|  |\r 50%|#| out of memory\r100%|##|\nlast"
    line = next(line for line in scanner.scan(io.BytesIO(data)).lines if line.hits)
    assert (line.no, line.text) == (2, " 50%|#| out of memory")


def test_traceback_keeps_its_rank_between_other_ranks(scanner: Scanner) -> None:
    rows = [b"[rank3]: Traceback (most recent call last):"]
    for number in range(40):
        rows += [b'[rank3]:   File "a.py", line %d, in f' % number] + [b"[rank%d]: step" % rank for rank in (0, 1, 2)]
    rows.append(b"[rank3]: ValueError: broken")
    result = scanner.scan(io.BytesIO(b"\n".join([b"x"] * 50 + rows + [b"y"] * 50)))
    texts = [line.text for line in result.lines]
    assert "[rank3]: ValueError: broken" in texts
    assert result.counts == {}


def test_flood_is_counted_not_kept(scanner: Scanner) -> None:
    flood = b"".join(b"[rank%d]: out of memory\n" % (number % 4) for number in range(50_000))
    result = scanner.scan(io.BytesIO(b"[rank9]: out of memory\n" + flood + b"the end Killed\n"), per_signature=100)
    assert result.counts == {"oom": 50_001, "killed": 1, "also-killed": 1}
    assert result.matched_lines == 50_002
    assert len(result.lines) < 500
    assert {"[rank9]: out of memory", "the end Killed"} <= {line.text for line in result.lines}


def test_identical_lines_are_counted_exactly(scanner: Scanner) -> None:
    data = (
        b"one\n"
        + b"RuntimeError: out of memory\r\n" * 200_000
        + b"NVRM: Xid (PCI:0000:3b:00): 79, x\n"
        + b"a: out of memory\n" * 9
    )
    result = scanner.scan(io.BytesIO(data), per_signature=50)
    assert result.counts == {"oom": 200_009, "xid": 1, "xid-79": 1}
    assert (result.matched_lines, result.total_lines) == (200_010, data.count(b"\n"))
    assert [line.no for line in result.lines if "xid" in line.hits] == [200_002]


def test_a_line_longer_than_any_buffer_is_bounded(scanner: Scanner, tmp_path: Path) -> None:
    file = tmp_path / "one-line.log"
    with file.open("wb") as stream:
        for _ in range(3):
            stream.write(b"z" * RANGE)
        stream.write(b"out of memory" + b"z" * BLOCK + b"\nNVRM: Xid (PCI:0000:3b:00): 79, x")
    tracemalloc.start()
    result = scanner.scan(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.counts == {"oom": 1, "xid": 1, "xid-79": 1}
    assert result.total_lines == 2
    assert result.cut == 1
    assert max(len(line.text) for line in result.lines) <= 64 << 10
    assert peak < 20 << 20


def test_match_across_the_edge_of_a_block_is_found(scanner: Scanner) -> None:
    for shift in range(-20, 20, 3):
        data = b"z" * (BLOCK + shift) + b"NVRM: Xid (PCI:0000:3b:00): 79, x" + b"z" * BLOCK
        assert scanner.scan(io.BytesIO(data)).counts == {"xid": 1, "xid-79": 1}


def test_edges_of_files(scanner: Scanner, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert scanner.scan(tmp_path / "empty").total_lines == 0
    for data, lines in ((b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\r\nb\r\n", 2), (b"\n\nout of memory", 3)):
        result = scanner.scan(io.BytesIO(data))
        assert result.total_lines == lines
        assert len(split_lines(data)[0]) == lines
    assert [line.text for line in split_lines(b"a\r\nb\r\n")[0]] == ["a", "b"]


def test_database_is_cached_and_a_broken_one_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hyperscan")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = Scanner(PATTERNS)
    (file,) = (tmp_path / "workbench").iterdir()
    size = file.stat().st_size
    assert Scanner(PATTERNS).hits("out of memory") == first.hits("out of memory") == ("oom",)
    file.write_bytes(file.read_bytes()[: size // 2])
    assert Scanner(PATTERNS).hits("out of memory") == ("oom",)
    assert file.stat().st_size == size
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    assert Scanner(PATTERNS).hits("out of memory") == ("oom",)


@pytest.mark.parametrize("pattern", [r"foo(?=bar)", r"(a)\1", "", "x*", "(", r"\n"])
def test_what_no_automaton_can_do_is_rejected_by_name(pattern: str) -> None:
    with pytest.raises(Unsupported):
        for_blocks(pattern)
    assert [name for name, _ in Scanner([("bad", pattern), ("good", "abc")], cache=False).rejected] == ["bad"]


def test_needles_are_texts_of_which_every_match_has_one() -> None:
    assert needles(r"(?P<a>\d+) NVRM: (?:Xid|SXid) (?:found)?") == (" NVRM: ",)
    assert needles(r"abc(?:defgh|xy)") == ("abc",)
    assert needles(r"one thing|another|e\d") == ("one thing", "another", "e")
    assert needles(r"\d+") == ()


def test_every_signature_is_found_by_its_example_among_ordinary_lines() -> None:
    rows = [row for row in signatures().values() if row.pattern and row.example and re.search(row.pattern, row.example)]
    assert len(rows) > 300
    everything = Scanner([(row.id, row.pattern) for row in rows], cache=False)
    assert everything.rejected == []
    ordinary = ORDINARY.encode() * 20
    assert not [line.text for line in everything.lines(ordinary)[0] if "xid" in " ".join(line.hits)]
    for row in rows:
        assert row.id in everything.hits(row.example), row.id  # small: without the first stage
    data = ordinary.join(row.example.replace("\n", " ").replace("\r", " ").encode() + b"\n" for row in rows)
    missing = {row.id for row in rows if "\n" not in row.example} - {
        name for line in everything.scan(io.BytesIO(data)).lines for name in line.hits
    }
    assert not missing


@pytest.mark.parametrize(
    "pattern",
    [
        r"\.(?:cc|cu|h):\d+ -> \d",
        r"(?i)\bEIO\b",
        r"(?:a|b|.c) rare[Xx]y",
        r"^\s*\w+ \.{5,} \S",
        r"loss[:=] ?(?:nan|inf)\b",
        r"\^C$",
        r"NCCL INFO .*gone",
    ],
)
def test_the_first_stage_lets_every_match_through(pattern: str) -> None:
    texts = [
        "a.cc:7 -> 3",
        "b.h:12 -> 5",
        "errno eio",
        "b rarexy",
        "zc rareXy",
        "  size ....... 9",
        "loss= nan",
        "loss:inf",
        "^C",
        "NCCL INFO is gone",
    ]
    stage = [re.compile(expression, re.M | (re.I if caseless else 0)) for expression, caseless in gate([pattern])]
    matched = [text for text in texts if re.search(pattern, text)]
    assert matched
    assert all(any(each.search(text.encode() + b"\n") for each in stage) for text in matched)


def test_the_first_stage_of_the_catalog_is_plain_texts() -> None:
    """One expression among them would halve the speed of all; texts of two bytes would too."""
    from workbench.catalog import scan_patterns

    stage = [expression for expression, _ in gate([pattern for _, pattern in scan_patterns()])]
    assert all(re.fullmatch(rb"(?:\\x[0-9a-f]{2}){3,}", expression) for expression in stage)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_what_ends_a_line_is_found_at_any_end_in_a_long_text(end: str) -> None:
    text = "nothing happens here, step 4812 of 500000\n" * 500 + "^C" + end
    lines, counts = Scanner([("ctrl-c", r"\^C$"), ("lost", r"(?i)loss\s*[:=]\s*[-+]?(?:nan|inf)\b")], cache=False).lines(
        text.encode()
    )
    assert counts == {"ctrl-c": 1}
    assert lines[-1].hits == ("ctrl-c",)


@pytest.mark.parametrize("word", ["loss: nan", "LOSS =  -inf,", "loss=NaN", "loss:\tinf)", "loss = +Inf"])
def test_a_number_is_found_among_lines_that_look_alike(word: str) -> None:
    quiet = "[INFO]: info = infiniband, loss: 2.1, nan iterations: 0 |\n"
    text = quiet * 400 + word + "\n" + quiet * 400
    _, counts = Scanner([("lost", r"(?i)loss\s*[:=]\s*(?:tensor\()?[-+]?(?:nan|inf)\b")], cache=False).lines(text.encode())
    assert counts == {"lost": 1}


def test_the_end_of_a_file_is_read_first_and_takes_no_place_from_its_begin(
    scanner: Scanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a signature said first counts more than what it said last."""
    monkeypatch.setattr("workbench.parse.scan.RANGE", 1 << 16)
    file = tmp_path / "job.log"
    file.write_bytes(b"".join(b"%d out of memory %s\n" % (number, b"x" * 80) for number in range(4000)))
    for workers in (1, 2):
        result = scanner.scan(file, workers=workers, per_signature=10)
        kept = [line.no for line in result.lines if line.hits]
        assert kept[:10] == list(range(1, 11))
        assert kept == sorted(kept)
        assert kept[-1] > 3500
        assert (result.counts, result.total_lines) == ({"oom": 4000}, 4000)


def test_lines_after_a_flood_are_found_and_counted_exactly(scanner: Scanner) -> None:
    """In a flood the first stage is left out; it comes back when the flood is over."""
    flood = b"".join(b"[rank%d]: step %d CUDA out of memory\n" % (number % 64, number) for number in range(60_000))
    calm = b"[rank1]: step 1 loss=1.25\n" * 90_000
    xid = b"NVRM: Xid (PCI:0000:3b:00): 79, x\n"
    result = scanner.scan(io.BytesIO(calm + flood + calm + xid + calm + flood + xid))
    assert result.counts == {"oom": 120_000, "xid": 2, "xid-79": 2}
    assert [line.no for line in result.lines if "xid" in line.hits] == [240_001, 390_002]


def test_the_standard_library_finds_in_every_example_of_the_catalog_what_the_fastest_engine_finds() -> None:
    """Where no wheel of Hyperscan exists the same verdict is given; alternatives of a pattern share no text that a line could be sorted out by."""
    rows = [row for row in signatures().values() if row.pattern and row.example]
    text = "\n".join(row.example.replace("\n", " ") for row in rows).encode() + b"\n"

    fast, plain = (found(Scanner(scan_patterns(), engine_name=name).scan(io.BytesIO(text))) for name in (None, "re"))

    assert plain == fast
    assert len(fast) > len(rows) / 2
