"""Turn four ranks of gloo into a job that hangs: rank 1 takes a lock twice at step 15, and the others wait for it in a collective."""

import sys
import threading
import time

sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist

from workbench.training import progress

LOCK = threading.Lock()


def tokenize():
    with LOCK:
        pass


def train():
    for step in range(1, 100_000):
        if dist.get_rank() == 1 and step == 15:
            LOCK.acquire()
        tokenize()
        dist.all_reduce(torch.ones(1000))
        progress(step)
        time.sleep(0.1)


dist.init_process_group("gloo")
train()
