"""Checkpoints: what is whole is restored, what is not is passed over with its reason, and no file is ever executed or read without a bound."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import ParseError
from workbench.parse.proc_files import mountinfo
from workbench.parse.safe_pickle import Limits
from workbench.training.checkpoints import inspect, newest
from workbench.training.checkpoints.durable import durable
from workbench.training.checkpoints.files import opened
from workbench.training.checkpoints.pickled import read_pickle
from workbench.training.checkpoints.record import Checkpoint
from workbench.training.checkpoints.single import temporary
from workbench.training.checkpoints.steps import step_of_name


def archive(path: Path, content: object, tensors: dict[str, bytes] | None = None, name: str = "archive") -> Path:
    """Write what torch.save writes of plain data; tensors only as records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}/data.pkl", content if isinstance(content, bytes) else pickle.dumps(content, 2))
        file.writestr(f"{name}/byteorder", "little")
        for key, raw in (tensors or {}).items():
            file.writestr(f"{name}/data/{key}", raw)
        file.writestr(f"{name}/version", "3\n")
    return path


def one(path: Path, **words: object) -> Checkpoint:
    """Return the only checkpoint there."""
    found = inspect(path, settle=0, **words)  # type: ignore[arg-type]
    assert len(found) == 1, found
    return found[0]


def test_a_whole_archive_is_complete_with_the_step_in_it(tmp_path: Path) -> None:
    seen = one(archive(tmp_path / "last.pt", {"model": {}, "step": 200}))

    assert (seen.state, seen.format, seen.step, seen.step_from) == ("complete", "torch-zip", 200, "`step`")


def test_a_tensor_shorter_than_the_pickle_says_is_torn(tmp_path: Path) -> None:
    content = b"\x80\x02}X\x01\x00\x00\x00m(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQs."
    assert one(archive(tmp_path / "a.pt", content, {"0": bytes(24)})).state == "complete"
    short = one(archive(tmp_path / "b" / "b.pt", content, {"0": bytes(20)}))
    none = one(archive(tmp_path / "c" / "c.pt", content))

    assert (short.state, "needs 24 bytes and has 20" in short.why) == ("torn", True)
    assert (none.state, "not in the archive" in none.why) == ("torn", True)


def test_a_file_that_would_run_a_program_is_unreadable_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "owned"

    class Bomb:
        def __reduce__(self) -> object:
            import os

            return os.system, (f"touch {mark}",)

    for protocol in (0, 2, 4):
        path = archive(tmp_path / str(protocol) / "x.pt", pickle.dumps({"step": 3, "model": Bomb()}, protocol))
        seen = one(path)
        assert seen.state == "unreadable"
        assert "posix.system" in seen.why
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickle.dumps(Bomb()))
    assert one(plain).state == "unreadable"
    assert not mark.exists()
    assert newest(inspect(tmp_path))[0] is None


def test_a_compressed_record_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", bytes(50_000_000))
    seen = one(path, deep=True)

    assert (seen.state, "compressed" in seen.why) == ("unreadable", True)


def test_changed_bytes_are_seen_when_asked_for_deep(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", {"step": 1}, {"0": b"x" * 4000})
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"xxxx") + 100] = 0
    path.write_bytes(raw)

    assert one(path).state == "complete"  # only headers are read
    assert (one(path, deep=True).state, "checksum" in one(path, deep=True).why) == ("torn", True)


@pytest.mark.parametrize("content", [b"", b"\0" * 70_000])
def test_an_empty_or_unwritten_file_is_torn(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "step-7.pt").write_bytes(content)

    assert (one(tmp_path).state, one(tmp_path).step) == ("torn", 7)


def test_the_newest_is_the_one_before_what_is_torn(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        archive(tmp_path / f"step-{step}.pt", {"step": step})
    whole = (tmp_path / "step-300.pt").read_bytes()
    (tmp_path / "step-300.pt").write_bytes(whole[: len(whole) // 2])
    best, passed = newest(inspect(tmp_path, settle=0))

    assert best is not None
    assert best.step == 200
    assert [(row.step, reason.startswith("torn")) for row, reason in passed] == [(300, True)]


def test_what_changed_a_moment_ago_and_is_not_whole_is_in_progress(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", {"step": 1})
    path.write_bytes(path.read_bytes()[:100])
    written = path.stat().st_mtime

    assert inspect(path, now=written + 5)[0].state == "in-progress"
    assert inspect(path, now=written + 500)[0].state == "torn"


def test_a_pickle_whose_keys_collide_costs_no_time(tmp_path: Path) -> None:
    big = [(2**61 - 1) * n for n in range(1, 60_000)]
    raw = b"\x80\x02}(" + b"".join(b"\x8a\x0a" + n.to_bytes(10, "little") + b"N" for n in big) + b"u."

    assert one(archive(tmp_path / "a.pt", raw)).state == "complete"


def test_a_directory_that_points_outside_of_the_file_is_torn(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", {"step": 1})
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\1\2")
    raw[at + 42 : at + 46] = struct.pack("<I", 0x7FFFFFFF)
    path.write_bytes(raw)

    assert one(path).state == "torn"


def tensors(path: Path, header: object, data: bytes) -> Path:
    """Write a safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "state"),
    [
        ({"w": F32}, bytes(8), "complete"),
        ({}, b"", "complete"),
        ({"w": F32}, bytes(9), "torn"),
        ({"w": {**F32, "shape": [3]}}, bytes(8), "unreadable"),
        ({"w": {**F32, "shape": [2**61, 8]}}, bytes(8), "unreadable"),
        ({"w": F32, "v": {**F32, "data_offsets": [16, 24]}}, bytes(24), "unreadable"),  # a hole
        ({"w": F32, "v": F32}, bytes(8), "unreadable"),  # one over the other
        ({"w": {**F32, "data_offsets": [8, 0]}}, bytes(8), "unreadable"),
        ({"w": {"dtype": "F32"}}, bytes(8), "unreadable"),
        (b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "unreadable"),
        (b"{" + b" " * 100, b"", "unreadable"),
    ],
)
def test_a_header_of_safetensors_must_fit_the_file(tmp_path: Path, header: object, data: bytes, state: str) -> None:
    assert one(tensors(tmp_path / "a.safetensors", header, data)).state == state


def test_a_header_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for size in (50_000_000, 2**63):
        with path.open("wb") as file:
            file.write(struct.pack("<Q", size) + b"{")
            file.truncate(200_000_000)  # a file with a hole: it costs no disk
        tracemalloc.start()
        assert one(path).state == "unreadable"
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
        tracemalloc.stop()


def test_a_pickle_larger_than_its_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with path.open("wb") as file:
        file.write(b"\x80\x04\x8e" + struct.pack("<Q", 10**9))
        file.truncate(1_100_000_000)
    tracemalloc.start()
    seen = one(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (seen.state, "larger" in seen.why) == ("unreadable", True)
    assert most < 200_000_000


@pytest.mark.parametrize(
    "raw", [b"]" * 120_000 + b".", b"\x8f" * 60_000 + b".", b"(" * 1000 + b".", b"N" + b"2" * 120_000 + b"."]
)
def test_pickles_that_would_fill_the_memory_are_stopped(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(raw)
    with opened(str(path)) as source, pytest.raises(ParseError, match=r"more than|too deep"):
        read_pickle(source, limits=Limits(max_items=100_000))


def test_a_pickle_that_holds_itself_is_no_trap(tmp_path: Path) -> None:
    content = pickle.dumps({"step": 8}, 2)[:-1] + b"q\x64X\x04\x00\x00\x00selfh\x64s."

    assert (one(archive(tmp_path / "a.pt", content)).state, one(tmp_path / "a.pt").step) == ("complete", 8)


def test_links_that_lead_in_a_circle_and_pipes_end_the_look(tmp_path: Path) -> None:
    archive(tmp_path / "run/step-5.pt", {"step": 5})
    (tmp_path / "run/again").symlink_to(tmp_path / "run", target_is_directory=True)
    (tmp_path / "run/self.pt").symlink_to(tmp_path / "run/self.pt")
    (tmp_path / "run/nowhere.pt").symlink_to(tmp_path / "not-there")
    (tmp_path / "run/last.pt").symlink_to(tmp_path / "run/step-5.pt")
    os.mkfifo(tmp_path / "run/pipe.pt")
    found = inspect(tmp_path, settle=0)

    assert sorted((Path(row.path).name, row.state) for row in found) == [
        ("last.pt", "complete"),  # one file of two names is one checkpoint
        ("nowhere.pt", "unreadable"),
        ("pipe.pt", "unreadable"),
        ("self.pt", "unreadable"),
    ]
    assert newest(found)[0] is not None


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EACCES, "no right"), (errno.EIO, "I/O error"), (errno.ESTALE, "file server")]
)
def test_what_the_system_does_not_give_is_unreadable_and_never_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    archive(tmp_path / "step-1.pt", {"step": 1})
    archive(tmp_path / "step-2.pt", {"step": 2})
    read = os.pread

    def failing(fd: int, count: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("step-2.pt"):
            raise OSError(number, "x")
        return read(fd, count, offset)

    monkeypatch.setattr(os, "pread", failing)
    found = inspect(tmp_path, settle=0)
    best, passed = newest(found)

    assert (found[0].state, found[0].looked, words in found[0].why) == ("unreadable", False, True)
    assert best is not None
    assert (best.step, len(passed)) == (1, 1)


def test_a_path_that_is_not_there_is_no_empty_answer(tmp_path: Path) -> None:
    assert [(row.state, row.looked) for row in inspect(tmp_path / "not-there")] == [("unreadable", False)]
    assert inspect(tmp_path) == []


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n" * 100)
    (tmp_path / "events.out.tfevents.1").write_bytes(bytes(range(256)) * 4)
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as file:
        file.writestr("src/main.py", "pass")
    (tmp_path / "config.json").write_text("{}")

    assert inspect(tmp_path, settle=0) == []


def test_content_decides_and_not_the_name(tmp_path: Path) -> None:
    archive(tmp_path / "weights.txt", {"step": 4})
    (tmp_path / "model.pt").write_bytes(b"this is no checkpoint at all, it is a text that is longer than any header\n" * 3)

    assert {Path(row.path).name: row.state for row in inspect(tmp_path, settle=0)} == {
        "weights.txt": "complete",
        "model.pt": "unreadable",
    }


def test_a_temporary_name_is_not_restored(tmp_path: Path) -> None:
    archive(tmp_path / "step-3.pt.tmp", {"step": 3})
    archive(tmp_path / "step-2.pt", {"step": 2})
    best, passed = newest(inspect(tmp_path, settle=0))

    assert best is not None
    assert best.step == 2
    assert [reason.split(":")[0] for _, reason in passed] == ["partly-renamed"]


@pytest.mark.parametrize(
    "name", ["x.pt.tmp", "tmp-checkpoint-5", ".metadata.tmp", "a.incomplete", "step=5-unfinished", "ckpt_tmp_12.pt", "x.pt.part"]
)
def test_names_of_unfinished_files(name: str) -> None:
    assert temporary(name)


@pytest.mark.parametrize("name", ["model-temp-0.7.pt", "checkpoint-500", "part-1.pt", "attempt.pt", "template.pt"])
def test_names_of_finished_files(name: str) -> None:
    assert not temporary(name)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=1200.ckpt", 1200), ("global_step200", 200), ("iter_0000450", 450), ("checkpoint-500", 500), ("ckpt_step_77.pt", 77),
        ("model-900.pt", 900), ("mp_rank_00.pt", None), ("last.ckpt", None), ("epoch-3.pt", None), ("step-" + "9" * 40 + ".pt", None),
    ],
)  # fmt: skip
def test_steps_in_names(name: str, step: int | None) -> None:
    assert step_of_name(name) == step


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /dev/shm rw - tmpfs tmpfs rw
31 22 0:41 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw
32 22 8:1 /var/lib/kubelet/pods/1-2/volumes/kubernetes.io~empty-dir/scratch /scratch rw - ext4 /dev/sda1 rw
33 22 0:43 / /a\\040b rw - nfs4 srv:/x rw
34 22 0:44 / /merged rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("path", "lasts"),
    [
        ("/home/x", None), ("/dev/shm/c.pt", False), ("/lustre/run", True), ("/lustrefoo", None), ("/scratch/run", False), ("/a b/c", True),
        ("/merged/x", False), ("/lustre/tmp/x", False), ("/scratch/keep/x", True),
    ],
)  # fmt: skip
def test_whether_a_disk_outlives_the_pod(path: str, lasts: bool | None) -> None:
    assert durable(path, mountinfo(MOUNTS), keeps=["/scratch/keep"], loses=["/lustre/tmp/"]) is lasts
    assert durable(path, (), keeps=(), loses=()) is None


def test_what_dies_with_the_pod_is_passed_over_when_the_next_runs_elsewhere(tmp_path: Path) -> None:
    archive(tmp_path / "shm/step-2.pt", {"step": 2})
    archive(tmp_path / "nfs/step-1.pt", {"step": 1})
    found = inspect(tmp_path, settle=0, keeps=[str(tmp_path)], loses=[str(tmp_path / "shm")])

    here, elsewhere = newest(found)[0], newest(found, elsewhere=True)[0]
    assert here is not None
    assert elsewhere is not None
    assert (here.step, elsewhere.step) == (2, 1)


def test_a_torn_file_without_a_step_stands_where_its_time_says(tmp_path: Path) -> None:
    for number, name in enumerate(["step-1.pt", "step-2.pt", "last.pt", "step-3.pt"]):
        path = archive(tmp_path / name, {"step": int(name[5])} if name[5].isdigit() else {})
        if name == "last.pt":
            path.write_bytes(path.read_bytes()[:50])
        os.utime(path, (1000 + number, 1000 + number))

    assert [Path(row.path).name for row in inspect(tmp_path)] == ["step-3.pt", "last.pt", "step-2.pt", "step-1.pt"]


def test_a_folder_of_sixteen_thousand_shards_is_looked_at_by_its_headers_only(tmp_path: Path) -> None:
    count = 2048  # the whole number stands in benchmarks; here that the cost of one stays small
    header = json.dumps({"w": F32}).encode()
    raw = struct.pack("<Q", len(header)) + header + bytes(8)
    names = {}
    for number in range(count):
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        (tmp_path / name).write_bytes(raw)
        names[f"w{number}"] = name
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    begun = time.process_time()
    seen = one(tmp_path)

    assert (seen.state, "not in it" in seen.why) == ("torn", True)  # every shard says `w`, the index something else
    assert time.process_time() - begun < 20


class Raw:
    """Bytes as if they were a file."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.size = raw, len(raw)

    def read(self, offset: int, count: int) -> bytes:
        return self.raw[offset : offset + count]


LEAVES = st.none() | st.booleans() | st.integers(-(2**59), 2**59) | st.floats(allow_nan=False) | st.text(max_size=8)
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.integers(-9, 9), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=25,
)


@given(PLAIN, st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_plain_data_is_read_as_it_was_written(value: object, protocol: int) -> None:
    raw = pickle.dumps(value, protocol)
    read = read_pickle(Raw(b"head" + raw + b"tail"), 4)

    assert (read.value, read.end) == (value, 4 + len(raw))


@given(PLAIN, st.integers(0, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_pickle_gives_a_value_or_a_parse_error(value: object, protocol: int, data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps({"a": value, "b": Path("x")}, protocol))
    for _ in range(3):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ParseError):
        read_pickle(Raw(bytes(raw)))
