"""
Start one torchrun agent on each of a job's nodes (network namespaces), as a site's own launcher would: `pdsh` with another way in.

usage: on_nodes.py --hosts NAME=NAMESPACE=ADDRESS,… --nodes N --nproc N --port N [--exclude NAME,…] TORCHRUN ARGUMENT…
Each line comes out behind the name of its node. When an agent fails the others are ended, and its exit code is that of the launcher.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from typing import IO


def pass_on(node: str, stream: IO[bytes]) -> None:
    """Write each line whole, so that nodes do not write into one another."""
    for line in stream:
        sys.stdout.buffer.write(f"{node}: ".encode() + line)
        sys.stdout.buffer.flush()


def main() -> int:
    """Start, wait, end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--exclude", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    hosts = [host.split("=") for host in options.hosts.split(",")]
    chosen = [host for host in hosts if host[0] not in options.exclude.split(",")][: options.nodes]
    if len(chosen) < options.nodes:
        print(f"on_nodes: {options.nodes} nodes are needed and {len(chosen)} are left", file=sys.stderr)
        return 3
    torchrun, *rest = options.command
    agents: dict[str, subprocess.Popen[bytes]] = {}
    threads = []
    for name, space, address in chosen:
        words = [
            *("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name),
            *("env", "GLOO_SOCKET_IFNAME=eth0", torchrun, "--nnodes", str(options.nodes), "--nproc-per-node", str(options.nproc)),
            *("--rdzv-backend", "c10d", "--rdzv-id", "tiny", "--rdzv-endpoint", f"{chosen[0][2]}:{options.port}"),
            *("--rdzv-conf", f"is_host={str(name == chosen[0][0]).lower()}", "--local-addr", address, *rest),
        ]
        agents[name] = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # another machine's processes are in no group of ours: a signal is passed on, once
        )
        stream = agents[name].stdout
        assert stream is not None
        threads.append(threading.Thread(target=pass_on, args=(name, stream), daemon=True))
        threads[-1].start()

    ending: list[int] = []

    def told(number: int, _: object) -> None:
        if not ending:
            for agent in agents.values():
                agent.send_signal(number)
        ending.append(number)

    signal.signal(signal.SIGTERM, told)
    code, left = 0, dict(agents)
    while left and not code:
        for name, agent in list(left.items()):
            try:
                code = agent.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            del left[name]
            if code:
                how = f"ended by signal {-code}" if code < 0 else f"exited with exit code {code}"
                print(f"on_nodes: {name}: the agent {how}", file=sys.stderr, flush=True)
                break
    for agent in left.values() if not ending else ():
        agent.terminate()
    for agent in left.values():
        try:
            agent.wait(10)
        except subprocess.TimeoutExpired:
            agent.kill()
    for thread in threads:
        thread.join(2)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
