"""Checkpoints of every format as real writers left them, whole and damaged: each is what tests/data/checkpoints/expected.csv says."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.training.checkpoints import inspect, newest
from workbench.training.checkpoints.single import judge_source

DATA = Path(__file__).resolve().parent.parent / "data" / "checkpoints"
with (DATA / "expected.csv").open(encoding="utf-8", newline="") as stream:
    EXPECTED = list(csv.DictReader(stream))
LATER = 4_000_000_000.0


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: f"{row['folder']}/{row['path']}")
def test_a_kept_checkpoint_is_what_the_table_says(row: dict[str, str]) -> None:
    folder = DATA / row["folder"]
    found = inspect(folder, now=LATER)
    seen = next(one for one in found if one.path == str(folder / row["path"] if row["path"] else folder))
    best, _ = newest(found)

    assert (seen.state, seen.format) == (row["state"], row["format"]), seen
    assert ("" if seen.step is None else str(seen.step)) == row["step"], seen
    assert ("" if seen.world_size is None else str(seen.world_size)) == row["world_size"], seen
    assert row["why"] in seen.why
    assert ("" if best is None else os.path.relpath(best.path, folder)) == row["newest"]


def test_every_kept_folder_has_a_row() -> None:
    kept = {str(folder.relative_to(DATA)) for folder in DATA.glob("*/*") if folder.is_dir()}

    assert kept == {row["folder"] for row in EXPECTED}


@pytest.mark.parametrize("folder", sorted({row["folder"] for row in EXPECTED if row["folder"].endswith("/whole")}))
def test_whole_ones_hold_to_their_checksums(folder: str) -> None:
    assert {one.state for one in inspect(DATA / folder, deep=True, now=LATER)} == {"complete"}


CUT = [
    "torch-zip/whole/step.pt", "torch-zip/no-checksums/step.pt", "torch-legacy/whole/last.pth", "lightning/whole/epoch=1-step=300.ckpt",
    "safetensors/whole/model.safetensors",
]  # fmt: skip


class Memory:
    """Bytes as if they were a file."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.size = raw, len(raw)

    def read(self, offset: int, count: int) -> bytes:
        return self.raw[offset : offset + count]


@pytest.mark.parametrize("name", CUT)
def test_a_file_cut_at_any_byte_is_never_complete(name: str) -> None:
    raw = (DATA / name).read_bytes()
    seen = {(size, part.state) for size in range(len(raw)) if (part := judge_source(Memory(raw[:size]))) is not None}

    assert len(seen) == len(raw)
    assert {state for _, state in seen} == {"torn"}
    whole = judge_source(Memory(raw))
    assert whole is not None
    assert whole.state == "complete"


FOLDERS = [
    "dcp/whole",
    "megatron/whole/iter_0000200",
    "megatron-dist/whole",
    "deepspeed/whole/global_step20",
    "huggingface/whole/checkpoint-100",
]


@pytest.mark.parametrize("name", FOLDERS)
@given(which=st.integers(0, 100), share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=30, deadline=None)
def test_a_folder_with_one_file_cut_at_any_byte_is_never_complete(
    tmp_path_factory: pytest.TempPathFactory, name: str, which: int, share: float
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"cut-{os.getpid()}" / name
    if not folder.exists():
        shutil.copytree(DATA / name, folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "latest_checkpointed_iteration.txt"]
    path = files[which % len(files)]
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    try:
        assert not [one for one in inspect(folder, settle=0) if one.state == "complete"], path
    finally:
        path.write_bytes(raw)


@pytest.mark.parametrize("name", [*FOLDERS, *CUT])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_folder_with_any_bytes_changed_is_judged_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    place = tmp_path_factory.getbasetemp() / f"changed-{os.getpid()}" / name
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (DATA / name).is_dir() else shutil.copy)(DATA / name, place)
    files = [path for path in sorted(place.rglob("*")) if path.is_file()] or [place]
    path = data.draw(st.sampled_from(files))
    raw = path.read_bytes()
    at = data.draw(st.integers(0, max(0, len(raw) - 1)))
    path.write_bytes(raw[:at] + data.draw(st.binary(min_size=1, max_size=12)) + raw[at + 1 :])
    try:
        assert inspect(place, settle=0)
    finally:
        path.write_bytes(raw)


@pytest.mark.parametrize(
    ("folder", "ranks", "state"),
    [
        ("dcp/whole", 3, "complete"),  # it is put together anew for any number of ranks
        ("deepspeed/whole", 2, "complete"),
        ("deepspeed/whole", 4, "wrong-world-size"),
        ("megatron/whole", 8, "complete"),
        ("megatron/whole", 3, "wrong-world-size"),
    ],
)
def test_what_only_another_number_of_ranks_can_load_is_said(folder: str, ranks: int, state: str) -> None:
    found = inspect(DATA / folder, world_size=ranks, now=LATER)

    assert found[0].state == state
    assert (newest(found)[0] is None) == (state != "complete")


def test_a_megatron_folder_without_its_tracker_says_that_it_would_begin_from_scratch(tmp_path: Path) -> None:
    shutil.copytree(DATA / "megatron/whole", tmp_path / "run")
    (tmp_path / "run/latest_checkpointed_iteration.txt").unlink()

    assert "from scratch" in inspect(tmp_path, settle=0)[0].why


def test_an_index_that_names_a_file_elsewhere_is_not_followed(tmp_path: Path) -> None:
    for number, name in enumerate(["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "", "..", 7]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        seen = inspect(folder, settle=0)

        assert [one.state for one in seen] == ["unreadable"]
        assert "outside of its folder" in seen[0].why


def test_an_index_of_old_names_is_partly_renamed(tmp_path: Path) -> None:
    shutil.copytree(DATA / "huggingface/whole/checkpoint-50", tmp_path / "model")
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        (tmp_path / "model" / name).unlink()
    (tmp_path / "model/model-00002-of-00002.safetensors").rename(tmp_path / "model/model-00002-of-00003.safetensors")

    assert [one.state for one in inspect(tmp_path, settle=0)] == ["partly-renamed"]


def nemo(folder: Path, name: str) -> Path:
    """Lay out what NeMo 2 writes: weights in Megatron Core's format, and the context."""
    shutil.copytree(DATA / "megatron-dist/whole/iter_0000040", folder / name / "weights")
    (folder / name / "context").mkdir()
    return folder / name


def test_a_folder_of_nemo_is_one_checkpoint_and_its_marker_says_that_it_is_not_finished(tmp_path: Path) -> None:
    nemo(tmp_path, "gpt--val_loss=2.1-step=40-consumed_samples=80.0")
    nemo(tmp_path, "gpt--val_loss=2.0-step=50-consumed_samples=100.0")
    (tmp_path / "gpt--val_loss=2.0-step=50-consumed_samples=100.0-unfinished").touch()
    found = inspect(tmp_path, settle=0)
    best, passed = newest(found)

    assert [(row.format, row.state, row.step) for row in found] == [("nemo", "torn", 50), ("nemo", "complete", 40)]
    assert best is not None
    assert "unfinished" in passed[0][1]


def test_an_archive_of_nemo_that_is_cut_is_torn(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "model.nemo", "w") as file:
        file.add(DATA / "README.md", "model_config.yaml")
        file.add(DATA / "torch-zip/whole/step.pt", "model_weights.ckpt")
    raw = (tmp_path / "model.nemo").read_bytes()
    assert [(row.state, row.format) for row in inspect(tmp_path, settle=0)] == [("complete", "nemo")]
    for size in range(600, len(raw.rstrip(b"\0")), 512):
        (tmp_path / "model.nemo").write_bytes(raw[:size])
        assert [row.state for row in inspect(tmp_path, settle=0)] == ["torn"], size


@pytest.mark.parametrize("trouble", ["", "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"])
def test_what_deepspeed_puts_into_a_trainers_folder_belongs_to_it(tmp_path: Path, trouble: str) -> None:
    folder = tmp_path / "checkpoint-20"
    shutil.copytree(DATA / "deepspeed/whole/global_step20", folder / "global_step20")
    (folder / "latest").write_text("global_step20\n")
    (folder / "trainer_state.json").write_text('{"global_step": 20}')
    if trouble:
        (folder / "global_step20" / trouble).unlink()
    found = inspect(tmp_path, settle=0)

    assert [(row.path, row.format, row.step) for row in found] == [(str(folder), "huggingface", 20)]
    assert found[0].state == ("torn" if trouble else "complete"), found[0]
    if not trouble:
        assert inspect(tmp_path, settle=0, world_size=4)[0].state == "wrong-world-size"


@pytest.mark.parametrize("cut", [0, 1])
def test_what_fsdp_puts_into_a_trainers_folder_belongs_to_it(tmp_path: Path, cut: int) -> None:
    folder = tmp_path / "checkpoint-9"
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(DATA / "dcp/whole", folder / name)
    (folder / "trainer_state.json").write_text('{"global_step": 9}')
    path = folder / "optimizer_0/__0_0.distcp"
    path.write_bytes(path.read_bytes()[: -cut or None])
    found = inspect(tmp_path, settle=0)

    assert [(row.step, row.state) for row in found] == [(9, "torn" if cut else "complete")], found


def test_shards_without_their_index_cannot_be_put_together(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        shutil.copy(DATA / "huggingface/whole/checkpoint-50" / name, tmp_path)
    found = inspect(tmp_path, settle=0)

    assert [row.state for row in found] == ["torn"]
    assert "index" in found[0].why


@pytest.mark.parametrize("said", ["", "\0\0\0", "x" * 300, "not a number"])
def test_a_damaged_tracker_is_said_and_hides_no_whole_checkpoint(tmp_path: Path, said: str) -> None:
    shutil.copytree(DATA / "megatron/whole", tmp_path / "run")
    (tmp_path / "run/latest_checkpointed_iteration.txt").write_text(said)
    best, _ = newest(inspect(tmp_path, settle=0))

    assert best is not None
    assert best.step == 200
    assert "from scratch" in best.why


@pytest.mark.parametrize("said", ["../../etc", "/etc", "global_step20/../.."])
def test_a_pointer_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path, said: str) -> None:
    shutil.copytree(DATA / "deepspeed/whole", tmp_path / "run")
    (tmp_path / "run/latest").write_text(said)
    found = inspect(tmp_path, settle=0)

    assert {Path(row.path).name for row in found} == {"global_step10", "global_step20"}
    assert "not followed" in found[0].why


def test_a_folder_with_more_entries_than_are_looked_at_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.training.checkpoints import walk
    from workbench.training.checkpoints.files import listing

    for number in range(5):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(walk, "listing", lambda path: listing(path, most=3))

    assert [(row.state, row.looked) for row in inspect(tmp_path)] == [("unreadable", False)]
