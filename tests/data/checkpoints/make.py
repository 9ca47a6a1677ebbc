"""Make the kept checkpoints with the real PyTorch: whole ones, and each with the trouble that its folder's name says (see README.md)."""

import json
import os
import shutil
import struct
import sys
import warnings
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

HERE = Path(__file__).resolve().parent
warnings.simplefilter("ignore")


def states(step):
    """A tiny model and its optimizer after one step."""
    torch.manual_seed(step)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model.state_dict(), optimizer.state_dict()


def save(path, content, **words):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, **words)


def cut(path, size):
    """Keep the first bytes of a file, as a full disk or a killed writer leaves it."""
    raw = path.read_bytes()
    path.write_bytes(raw[: size if size >= 0 else len(raw) + size])


def like(form, trouble):
    """Copy the whole one to a folder that will get the trouble."""
    target = HERE / form / trouble
    shutil.copytree(HERE / form / "whole", target)
    return target


def torch_files():
    model, optimizer = states(200)
    save(HERE / "torch-zip/whole/step.pt", {"model": model, "optimizer": optimizer, "step": 200})
    cut(like("torch-zip", "cut") / "step.pt", 2000)
    half = like("torch-zip", "unwritten-middle") / "step.pt"  # the room was taken, a page never came to the disk
    raw = bytearray(half.read_bytes())
    raw[1400:2400] = bytes(1000)
    half.write_bytes(raw)
    save(HERE / "torch-zip/no-checksums/step.pt", {"step": torch.tensor(3)})
    torch.serialization.set_crc32_options(False)
    save(HERE / "torch-zip/no-checksums/step.pt", {"step": torch.tensor(3)})
    torch.serialization.set_crc32_options(True)
    save(HERE / "torch-legacy/whole/last.pth", {"model": model, "step": 200}, _use_new_zipfile_serialization=False)
    cut(like("torch-legacy", "cut") / "last.pth", -3)
    lightning = {"epoch": 1, "global_step": 300, "pytorch-lightning_version": "2.5.0", "state_dict": model, "optimizer_states": [optimizer]}
    save(HERE / "lightning/whole/epoch=1-step=300.ckpt", lightning)


def ranks(rank, count, folder):
    """One rank of a job that saves a sharded tensor and its progress."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29641", USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=count)
    tensor = distribute_tensor(torch.arange(32.0).reshape(8, 4), init_device_mesh("cpu", (count,)), [Shard(0)])
    dcp.save({"model": {"w": tensor}, "step": 40}, checkpoint_id=folder)
    dist.destroy_process_group()


def distributed():
    mp.spawn(ranks, (2, str(HERE / "dcp/whole")), nprocs=2)
    cut(like("dcp", "short-rank") / "__1_0.distcp", -1)
    (like("dcp", "missing-rank") / "__1_0.distcp").unlink()
    (like("dcp", "no-metadata") / ".metadata").unlink()
    folder = like("dcp", "not-renamed")
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    cut(like("dcp", "cut-metadata") / ".metadata", 900)


def megatron():
    root = HERE / "megatron/whole"
    for iteration in (100, 200):
        for tp in range(2):
            args = Namespace(world_size=4, tensor_model_parallel_size=2, pipeline_model_parallel_size=1, use_distributed_optimizer=True)
            model, optimizer = states(iteration + tp)
            folder = root / f"iter_{iteration:07d}/mp_rank_{tp:02d}"
            save(folder / "model_optim_rng.pt", {"args": args, "iteration": iteration, "model": model})
            save(folder / "distrib_optim.pt", {0: optimizer})
    (root / "latest_checkpointed_iteration.txt").write_text("200")
    shutil.rmtree(like("megatron", "missing-rank") / "iter_0000200/mp_rank_01")
    shutil.rmtree(like("megatron", "pointer-to-nothing") / "iter_0000200")
    (like("megatron", "missing-optimizer") / "iter_0000200/mp_rank_01/distrib_optim.pt").unlink()
    whole = HERE / "megatron-dist/whole/iter_0000040"
    shutil.copytree(HERE / "dcp/whole", whole)
    args = Namespace(world_size=2, tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
    save(whole / "common.pt", {"args": args, "iteration": 40})
    said = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}
    (whole / "metadata.json").write_text(json.dumps(said))
    (HERE / "megatron-dist/whole/latest_checkpointed_iteration.txt").write_text("40")
    (like("megatron-dist", "no-common") / "iter_0000040/common.pt").unlink()


def deepspeed():
    root = HERE / "deepspeed/whole"
    for step in (10, 20):
        folder = root / f"global_step{step}"
        model, optimizer = states(step)
        content = {"module": model, "optimizer": None, "global_steps": step, "dp_world_size": 2, "mp_world_size": 1}
        save(folder / "mp_rank_00_model_states.pt", content | {"ds_config": {"zero_optimization": {"stage": 1}}})
        for rank in range(2):
            save(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": optimizer})
    (root / "latest").write_text("global_step20")
    (like("deepspeed", "missing-rank") / "global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    shutil.rmtree(like("deepspeed", "pointer-to-nothing") / "global_step20")


def tensors(path, rows, metadata=None):
    """Write safetensors by the format's own description (the library is not in this root folder)."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, tensor in rows.items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def trainer():
    for step in (50, 100):
        model, optimizer = states(step)
        folder = HERE / f"huggingface/whole/checkpoint-{step}"
        names = {}
        for number, (name, tensor) in enumerate(model.items(), 1):
            shard = f"model-{number:05d}-of-{len(model):05d}.safetensors"
            tensors(folder / shard, {name: tensor}, {"format": "pt"})
            names[name] = shard
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": names}))
        save(folder / "optimizer.pt", optimizer)
        save(folder / "scheduler.pt", {"last_epoch": step})
        for rank in range(2):
            save(folder / f"rng_state_{rank}.pth", {"cpu": torch.get_rng_state()[:64].clone()})
        (folder / "trainer_state.json").write_text(json.dumps({"epoch": 0.5, "global_step": step, "log_history": []}))
    (like("huggingface", "no-state") / "checkpoint-100/trainer_state.json").unlink()
    (like("huggingface", "missing-shard") / "checkpoint-100/model-00002-of-00002.safetensors").unlink()
    folder = like("huggingface", "staging")
    (folder / "checkpoint-100").rename(folder / "tmp-checkpoint-100")
    tensors(HERE / "safetensors/whole/model.safetensors", states(1)[0], {"step": "70"})
    cut(like("safetensors", "cut") / "model.safetensors", -4)
    cut(like("safetensors", "cut-header") / "model.safetensors", 40)


if __name__ == "__main__":
    for old in HERE.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    torch_files()
    distributed()
    megatron()
    deepspeed()
    trainer()
    print(torch.__version__, sys.version.split()[0])
