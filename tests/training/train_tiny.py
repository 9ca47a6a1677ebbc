"""
Train a tiny model over gloo with a fixed seed, save every few steps, and break once in the way that FAULT says: the job of the tests of `workbench run`.

It runs under tests/services/torch, whose Python has torch and nothing of ours. The last line is the loss to the last bit.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found, unused-ignore]

WIDTH, BATCH = 32, 8


def once(folder: Path, name: str) -> bool:
    """Tell whether a fault has not happened yet; from now on it has."""
    try:
        (folder / f"fault-{name}").open("x").close()
    except FileExistsError:
        return False
    return True


def fault(options: argparse.Namespace, rank: int, step: int) -> None:
    """Break, when this is the rank, the step and the first time."""
    kind, _, where = (options.fault or "").partition("@")
    if not kind or step != options.at or (where and rank != int(where)) or kind in ("disk-full", "torn"):
        return
    if kind != "bug" and not once(options.folder, f"{kind}-{rank}"):
        return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "bug":
        raise KeyError("labels")
    elif kind == "host-oom":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(8 << 30)
    elif kind in ("hang", "hang-outside"):
        if kind == "hang":  # the others wait in the collective; so does this one, for something that never comes
            dist.recv(torch.zeros(1), src=(rank + 1) % dist.get_world_size(), tag=99)
        while True:
            time.sleep(1)
    elif kind == "ecc":  # what PyTorch raises on a GPU whose memory failed; here there is none
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    elif kind in ("node", "node-killed"):
        # the node is gone without a word: agent and ranks stand still, and no connection is closed; or its kernel closes all of them
        number = signal.SIGSTOP if kind == "node" else signal.SIGKILL
        agent = os.getppid()
        ranks = [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
        for pid in [agent, *(pid for pid in ranks if pid != os.getpid()), os.getpid()]:
            os.kill(pid, number)


def work(options: argparse.Namespace, rank: int, world: int, step: int) -> None:
    """Do a rank's own part of a step, longer for those that `--slow` names, and tell the supervisor before the ranks meet."""
    if not options.slow:
        return
    from workbench.training import progress

    who, _, since = options.slow.partition("@")
    slow = {"turns": step % world == rank, "all": True}.get(who, who == str(rank))
    time.sleep(options.own * (3 if slow and step >= int(since) else 1))
    progress(step)


def save(options: argparse.Namespace, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint whole, or not at all; `torn` and `disk-full` break it."""
    path = options.folder / "checkpoints" / f"step-{step:06d}.pt"
    partial = path.with_suffix(".partial")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    kind = (options.fault or "").partition("@")[0]
    if kind == "disk-full" and step >= options.at and once(options.folder, "disk-full"):
        place = Path(os.environ["SMALL_DISK"])
        torch.save({**state, "ballast": torch.zeros(4 << 20)}, place / path.name)
    torch.save(state, partial)
    if kind == "torn" and step >= options.at and once(options.folder, "torn"):
        data = partial.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    os.replace(partial, path)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--fault", default=os.environ.get("FAULT"))
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--slow", help="RANK@STEP, turns@STEP (another rank in each step) or all@STEP")
    parser.add_argument("--own", type=float, default=0.08)
    options = parser.parse_args()
    torch.manual_seed(7)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    from datetime import timedelta

    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    begun = 0
    if path := os.environ.get("WORKBENCH_RESUME_FROM"):
        state = torch.load(path, weights_only=True)
        begun = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"[rank{rank}]: resumed at step {begun} from {path}", flush=True)
    for step in range(begun + 1, options.steps + 1):
        seed = torch.Generator().manual_seed(1_000_003 * step + rank)
        x = torch.randn(BATCH, WIDTH, generator=seed)
        y = x.sum(dim=1, keepdim=True)
        fault(options, rank, step)
        work(options, rank, world, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        ending = torch.tensor([float(bool(stop))])
        dist.all_reduce(ending)
        if rank == 0:
            print(f"step {step}/{options.steps} loss {float(whole) / world:.6f}", flush=True)
            if step % options.every == 0:
                save(options, step, model, optimizer)
            if step == options.steps:
                print(f"final loss {(float(whole) / world).hex()}", flush=True)
        if float(ending):
            print(f"[rank{rank}]: told to end, ends after step {step}", flush=True)
            sys.exit(143)
        time.sleep(options.pause)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
