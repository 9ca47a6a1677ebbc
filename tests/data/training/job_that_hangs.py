"""Turn ranks into a job that hangs: the launcher starts four, rank 2 takes a lock twice at step 12, and the others wait for it."""

import os
import socket
import subprocess
import sys
import threading
import time

STEPS_BEFORE = 12
LOCK = threading.Lock()


def tokenize_batch():
    with LOCK:
        pass


def prepare(rank, step):
    if rank == 2 and step == STEPS_BEFORE:
        LOCK.acquire()
    tokenize_batch()


def wait_for_others(sock):
    sock.sendall(b"x")
    return sock.recv(1)


def rank_main():
    from workbench.training import progress

    sock = socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))
    for step in range(1, 10_000):
        prepare(int(os.environ["RANK"]), step)
        if not wait_for_others(sock):
            return
        progress(step)
        time.sleep(0.06)


def launcher_main():
    server = socket.create_server(("127.0.0.1", 0))
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "rank"],
            env=os.environ | {"RANK": str(r), "LOCAL_RANK": str(r), "PORT": str(server.getsockname()[1])},
        )
        for r in range(4)
    ]
    socks = [server.accept()[0] for _ in ranks]
    while all(sock.recv(1) for sock in socks):
        for sock in socks:
            sock.sendall(b"x")


if __name__ == "__main__":
    rank_main() if sys.argv[1:] == ["rank"] else launcher_main()
