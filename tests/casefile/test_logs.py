"""The way from a case back to the lines of its evidence."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.casefile import open_path, reading
from workbench.casefile.logs import LONGEST, EvidenceLogs
from workbench.parse.text import clean
from workbench.shipped import example_path, examples

ROWS = [f"2026-05-04T10:{at // 60:02d}:{at % 60:02d} line {at + 1}" for at in range(500)]
TEXT = ("\n".join(ROWS) + "\n").encode()


def _logs(source: Path, name: str, verdict: dict | None = None, ranks: dict | None = None) -> EvidenceLogs:
    documents = pd.DataFrame({"name": [name], "kind": ["job-log"], "node": [None], "size": [0], "lines": [0]})
    return EvidenceLogs(str(source), documents, ranks or {}, verdict or {})


def _zstd(data: bytes) -> bytes:
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd.compress(data)


def _tar(data: bytes, mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in (("other.log", b"no\n"), ("logs/job.log", data)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _zip(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logs/job.log", data)
    return out.getvalue()


PACKED = {
    "job.log": lambda data: data,
    "job.log.gz": gzip.compress,
    "job.log.zst": _zstd,
    "job.log.xz": lzma.compress,
    "job.log.bz2": bz2.compress,
    "all.tar": lambda data: _tar(data, "w"),
    "all.tar.gz": lambda data: _tar(data, "w:gz"),
    "all.zip": _zip,
}


@pytest.mark.parametrize("name", examples())
def test_every_line_of_the_evidence_of_a_shipped_incident_is_found_where_the_verdict_says(name, tmp_path):
    case = open_path(example_path(name), cache=tmp_path)
    cited = [row for row in case.verdict["evidence"] if row["line"] and row["source"] in ("job", "launcher", "kernel", "slurm")]
    assert cited
    for row in cited:
        window = case.logs.window(row["file"], row["line"], before=3, after=3)
        line = next(each for each in window.lines if each.no == row["line"])
        assert row["text"][:200] in line.text
        assert line.evidence is not None
        assert case.verdict["evidence"][line.evidence]["line"] == row["line"]


@pytest.mark.parametrize("form", ["folder", "file"])
@pytest.mark.parametrize("name", PACKED)
def test_a_window_is_the_same_however_the_log_is_packed(name, form, tmp_path):
    place = tmp_path / "evidence"
    place.mkdir()
    (place / name).write_bytes(PACKED[name](TEXT))
    document = f"{name}!logs/job.log" if name.startswith("all") else name
    logs = _logs(place if form == "folder" else place / name, document)
    window = logs.window(document, 250, before=2, after=2)
    assert [(line.no, line.text) for line in window.lines] == [(at + 1, ROWS[at]) for at in range(247, 252)]
    assert (window.before, window.after, window.problem) == (True, True, "")


@pytest.mark.parametrize("name", ["job.log", "job.log.gz"])
def test_windows_at_the_edges_of_pieces_are_exact(name, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 64)
    monkeypatch.setattr(reading, "_WHOLE", 128)
    (tmp_path / name).write_bytes(PACKED[name](TEXT))
    logs = _logs(tmp_path, name)
    for line in (1, 2, 3, 4, 5, 63, 64, 65, 499, 500, 7, 250):  # also back and forth
        window = logs.window(name, line, before=1, after=1)
        first, last = max(line - 1, 1), min(line + 1, 500)
        assert [(each.no, each.text) for each in window.lines] == [(at, ROWS[at - 1]) for at in range(first, last + 1)]
        assert window.before == (first > 1)
        assert window.after == (last < 500)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.binary(max_size=40).filter(lambda row: b"\n" not in row and b"\r" not in row and b"\x1b" not in row), max_size=40
    ),
    st.booleans(),
    st.integers(1, 45),
    st.integers(0, 6),
    st.integers(5, 90),
    st.sampled_from(["job.log", "job.log.gz"]),
)
def test_a_window_holds_the_lines_that_splitting_the_whole_text_gives(rows, ended, line, around, piece, name):
    rows = [b"begins as text, not as an archive", *rows]
    data = b"\n".join(rows) + (b"\n" if ended else b"")
    whole = data.split(b"\n")
    whole = whole[:-1] if not whole[-1] else whole
    with pytest.MonkeyPatch.context() as patch, __import__("tempfile").TemporaryDirectory() as folder:
        patch.setattr(reading, "PIECE", piece)
        patch.setattr(reading, "_WHOLE", 2 * piece)
        Path(folder, name).write_bytes(PACKED[name](data))
        window = _logs(Path(folder), name).window(name, line, before=around, after=around)
    wanted = [
        (at, clean(whole[at - 1].decode("utf-8", "replace")))
        for at in range(max(line - around, 1), line + around + 1)
        if at <= len(whole)
    ]
    if line <= len(whole):
        assert [(each.no, each.text) for each in window.lines] == wanted
        assert window.after == (line + around < len(whole))
    else:
        assert window.problem
        assert not window.lines or window.lines[-1].no == len(whole)


def test_a_line_past_the_end_shows_the_end_and_says_so(tmp_path):
    (tmp_path / "job.log").write_bytes(TEXT)
    window = _logs(tmp_path, "job.log").window("job.log", 9000, before=3)
    assert [line.no for line in window.lines] == [497, 498, 499, 500]
    assert "500 lines" in window.problem


def test_a_line_of_a_megabyte_is_cut_and_its_neighbours_are_whole(tmp_path):
    (tmp_path / "job.log").write_bytes(b"before\n" + b"x" * (5 << 20) + b"\nafter\n")
    window = _logs(tmp_path, "job.log").window("job.log", 2, before=1, after=1)
    assert [line.text[:6] for line in window.lines] == ["before", "xxxxxx", "after"]
    assert [line.cut for line in window.lines] == [False, True, False]
    assert len(window.lines[1].text) == LONGEST


def test_hostile_text_comes_as_it_is_without_terminal_control(tmp_path):
    (tmp_path / "job.log").write_bytes(b"\x1b[31m<script>alert(1)</script>\x1b[0m \xff\xfe\n")
    (line,) = _logs(tmp_path, "job.log").window("job.log", 1).lines
    assert line.text == "<script>alert(1)</script> \ufffd\ufffd"


def test_utf16_logs_are_read_as_triage_reads_them(tmp_path):
    (tmp_path / "job.log").write_bytes("eins\nzwei: ä\n".encode("utf-16"))
    assert [line.text for line in _logs(tmp_path, "job.log").window("job.log", 2).lines] == ["eins", "zwei: ä"]


def test_evidence_that_was_moved_is_a_problem_with_the_way_out_and_no_error(tmp_path):
    logs = _logs(tmp_path / "gone", "job.log")
    window = logs.window("job.log", 5)
    assert not window.lines
    assert "put it back" in window.problem
    assert list(logs.search("x").attrs["problems"]) == ["job.log"]


def test_what_is_no_document_of_the_case_is_not_read(tmp_path):
    (tmp_path / "evidence").mkdir()
    (tmp_path / "secret").write_text("password\n")
    logs = _logs(tmp_path / "evidence", "job.log")
    assert "no document" in logs.window("../secret", 1).problem
    sly = _logs(tmp_path / "evidence", "../secret")  # a damaged case may name it
    assert not sly.window("../secret", 1).lines


def test_a_log_that_changed_since_is_read_anew(tmp_path):
    log = tmp_path / "job.log"
    log.write_bytes(TEXT)
    logs = _logs(tmp_path, "job.log")
    assert logs.window("job.log", 1, after=0).lines[0].text == ROWS[0]
    log.write_bytes(b"other\n" + TEXT)
    assert logs.window("job.log", 1, after=0).lines[0].text == "other"


def test_lines_of_a_window_carry_the_signature_of_the_catalog(tmp_path):
    (tmp_path / "job.log").write_text("fine\nNVRM: Xid (PCI:0000:4b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n")
    lines = _logs(tmp_path, "job.log").window("job.log", 2).lines
    assert lines[0].signature == ""
    assert lines[1].signature


class TestSearch:
    def test_lines_are_found_whatever_their_case_with_number_and_rank(self, tmp_path):
        (tmp_path / "job.log").write_text("[rank0]: ok\n[rank3]: CUDA Error\n\n[rank1]: cuda error again\n")
        found = _logs(tmp_path, "job.log").search("cuda ERROR")
        assert found[["line", "rank"]].values.tolist() == [[2, 3], [4, 1]]
        assert found.attrs["more"] is False

    def test_text_is_no_expression(self, tmp_path):
        (tmp_path / "job.log").write_text("aXb\na.b\n")
        assert _logs(tmp_path, "job.log").search("a.b")["line"].tolist() == [2]

    def test_letters_beyond_ascii_are_found_in_either_case(self, tmp_path):
        (tmp_path / "job.log").write_text("ÄRGER\n", encoding="utf-8")
        assert _logs(tmp_path, "job.log").search("ärger")["line"].tolist() == [1]

    def test_the_limit_says_that_there_is_more(self, tmp_path):
        (tmp_path / "job.log").write_bytes(TEXT)
        found = _logs(tmp_path, "job.log").search("line", limit=7)
        assert len(found) == 7
        assert found.attrs["more"] is True

    def test_of_a_joined_log_only_the_lines_of_one_rank_are_given(self, tmp_path):
        (tmp_path / "job.log").write_text("[rank0]: hit\n[rank3]: hit\n")
        assert _logs(tmp_path, "job.log").search("hit", rank=3)["line"].tolist() == [2]

    def test_a_line_that_a_piece_cuts_is_found_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr(reading, "PIECE", 50)
        (tmp_path / "job.log").write_bytes(TEXT)
        found = _logs(tmp_path, "job.log").search("line 4")
        assert found["line"].tolist() == [at + 1 for at in range(500) if f"line {at + 1}".startswith("line 4")]

    def test_of_an_endless_line_the_part_with_the_text_is_given(self, tmp_path):
        (tmp_path / "job.log").write_bytes(b"x" * 100_000 + b" needle " + b"y" * 100_000 + b"\n")
        (text,) = _logs(tmp_path, "job.log").search("needle")["text"]
        assert "needle" in text
        assert len(text) <= LONGEST


# a kernel's line whose words a job's table knows too
KERNEL = "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:4242] PytorchStreamReader failed reading zip archive: failed finding central directory"


@pytest.mark.parametrize(("kind", "said"), [("kernel-log", "soft-lockup"), ("job-log", "torch-zip-read"), ("metrics-text", "")])
def test_a_line_is_marked_by_the_tables_of_its_own_kind_of_document(tmp_path: Path, kind: str, said: str) -> None:
    (tmp_path / "a.log").write_text(KERNEL + "\n")
    documents = pd.DataFrame({"name": ["a.log"], "kind": [kind], "node": [None], "size": [0], "lines": [1]})

    assert EvidenceLogs(str(tmp_path), documents, {}, {}).window("a.log", 1).lines[0].signature == said


def test_marks_agree_with_the_events_of_the_verdict() -> None:
    case = open_path(example_path("gpu-memory"))
    events = case.events.dropna(subset=["file", "line"])
    names = events.groupby(["file", "line"])["signature"].agg(set)
    assert len(names) > 10
    for (file, line), told in names.items():
        (shown,) = case.logs.window(file, int(line), before=0, after=0).lines
        assert shown.signature in told, (file, line)
