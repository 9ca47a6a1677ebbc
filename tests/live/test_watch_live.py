"""The watch against a real kube-apiserver, slurmctld and Alertmanager: each failure is seen once and told once, however many alerts ring."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.live.kubernetes_site import SERVICE, Site, control_plane, granted, pod_spec, reader_of, run, stamp, until
from tests.live.servers import SERVICES, free_port, stop
from workbench.config import load_config
from workbench.inbox.alerts import AlertsRefused, Received, receive
from workbench.inbox.collecting import Collector
from workbench.inbox.kubernetes import KubernetesJobs
from workbench.inbox.model import Entry
from workbench.inbox.notify import Slack
from workbench.inbox.slurm import SlurmJobs
from workbench.inbox.store import Inbox
from workbench.inbox.storms import Settings
from workbench.inbox.tell import Teller
from workbench.inbox.watch import Follower, Watch
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.source import Kubernetes
from workbench.sources.slurm.source import Slurm

pytestmark = pytest.mark.live

READER = ("gpu-workbench", "gpu-workbench-reader")


class Receiver:
    """A loopback server that takes what is posted: messages to people at /slack, Alertmanager's at /api/alerts."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.received: list[Received] = []
        self.calls = 0
        self.inbox: Inbox | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = 200
                if self.path == "/slack":
                    outer.messages.append(json.loads(body))
                else:
                    outer.calls += 1
                    try:
                        assert outer.inbox is not None
                        outer.received += receive(outer.inbox, body)
                    except AlertsRefused:
                        code = 400
                self.send_response(code)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def told(self) -> list[str]:
        """The first lines of what people were told."""
        return [str(one["text"]).splitlines()[0] for one in self.messages]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def watching(root: Path, follower: Follower, sources: list[Any], receiver: Receiver) -> Watch:
    """Return a watch as the command line makes it, with one source."""
    inbox = Inbox(root)
    receiver.inbox = Inbox(root)
    teller = Teller(inbox, [Slack(f"{receiver.url}/slack")], link="https://wb.example", clock=time.time)
    config = load_config(environ={"HOME": "/nonexistent"})
    return Watch(inbox, [follower], Collector(config, sources=sources), teller, Settings(settle=1.0, first=0.0))


def entry_of(watch: Watch, job: str) -> Entry:
    return next(entry for entry in watch.inbox.entries() if entry.job == job)


# ---- Kubernetes


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("kubernetes")
    with control_plane(folder):
        yield folder


@pytest.fixture(scope="module")
def site(work: Path) -> Site:
    site = Site(work / "admin.kubeconfig")
    site.crds(Path(run(SERVICE / "build")) / "crds")
    site.namespace("train")
    for name in ("gpu-node-a", "gpu-node-b", "gpu-node-c"):
        site.node(name)
    granted(site, READER[0])
    return site


@pytest.fixture(scope="module")
def reader(work: Path, site: Site) -> Path:
    """A kubeconfig with the shipped rights only: reading is all that the watch may do."""
    return reader_of(work, *READER)


@pytest.fixture
def kubernetes(reader: Path, tmp_path: Path, receiver: Receiver) -> Callable[[], Watch]:
    """A function that begins a watch of the cluster, as after a restart."""
    return lambda: watching(
        tmp_path / "inbox", KubernetesJobs(Api(str(reader)), page=2), [Kubernetes(str(reader), log_lines=0)], receiver
    )


def test_a_job_and_a_jobset_fail_and_each_is_told_once(site: Site, kubernetes: Callable[[], Watch], receiver: Receiver) -> None:
    with kubernetes() as watch:
        watch.once()
        assert watch.ready(60), watch.last
    pods = site.job("train", "bert", ("gpu-node-a", "gpu-node-a"))  # no GPU of this node is broken
    site.ends("train", pods[0], 1, message="RuntimeError: CUDA error: out of memory")
    site.ends("train", pods[1], 137, reason="OOMKilled")
    jobset = site.custom_object(
        "jobset.x-k8s.io", "v1alpha2", "jobsets", "train",
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "llm"},
            "spec": {
                "failurePolicy": {"maxRestarts": 3},
                "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": {"template": {"spec": {**pod_spec(None), "restartPolicy": "Never"}}}}}],
            },
        },
    )  # fmt: skip
    for attempt in (0, 1):
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "llm",
            "jobset.sigs.k8s.io/restart-attempt": str(attempt),
            "job-name": "llm-w-0",
        }
        for index, node in enumerate(("gpu-node-a", "gpu-node-b")):
            site.pod("train", f"llm-w-0-{index}-{attempt}", node, labels=labels, owner=jobset)
    site.event(
        "default",
        "Node",
        "gpu-node-b",
        "XidCriticalError",
        "NVRM: Xid (PCI:0000:9d:00): 79, GPU has fallen off the bus.",
        host="gpu-node-b",
    )
    site.ends("train", "llm-w-0-1-0", 1, message="CUDA error: unspecified launch failure")
    site.custom.patch_namespaced_custom_object_status(
        "jobset.x-k8s.io", "v1alpha2", "train", "jobsets", "llm", {"status": {"restarts": 1}}
    )
    with kubernetes() as watch:
        watch.once()
        first = {(entry.job, entry.attempt): entry for entry in watch.inbox.entries()}
        assert set(first) == {("bert", None), ("llm", 1)}, first
        assert not any(entry.problem for entry in first.values())
        assert (first["llm", 1].cls, first["llm", 1].node) == ("hardware/gpu-lost", "gpu-node-b")
        assert first["bert", None].cause == "user"
        assert watch.inbox.case(first["llm", 1].id).verdict["class"] == "hardware/gpu-lost"
    assert len(receiver.messages) == 2, receiver.told()

    # the Job's own controller now says that it failed, the second start of the JobSet dies, and the watch was restarted meanwhile
    site.ends("train", "llm-w-0-0-1", 1, message="torch.distributed.DistBackendError: NCCL communicator was aborted")
    for _ in range(2):
        with kubernetes() as watch:
            watch.once()
            keys = {(entry.job, entry.attempt) for entry in watch.inbox.entries()}
            assert keys == {("bert", None), ("llm", 1), ("llm", 2)}
    assert len([line for line in receiver.told() if line.startswith("Job llm")]) == 2, receiver.told()
    assert len([line for line in receiver.told() if line.startswith("Job bert")]) == 1, receiver.told()


def test_an_evicted_pod_is_a_failure_and_a_deleted_one_is_none(site: Site, kubernetes: Callable[[], Watch]) -> None:
    with kubernetes() as watch:
        watch.once()
        (evicted,) = site.job("train", "evicted", ("gpu-node-a",))
        (stopped,) = site.job("train", "stopped", ("gpu-node-a",))
        running = {
            "name": "main",
            "image": "none",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": stamp(60)}},
        }
        for pod in (evicted, stopped):
            site.core.patch_namespaced_pod_status(
                pod, "train", {"status": {"phase": "Running", "startTime": stamp(60), "containerStatuses": [running]}}
            )
        site.core.create_namespaced_pod_eviction(evicted, "train", {"metadata": {"name": evicted, "namespace": "train"}})
        site.core.delete_namespaced_pod(stopped, "train", grace_period_seconds=30)
        time.sleep(1.1)
        site.ends("train", stopped, 143)
        watch.once()

        jobs = {entry.job: entry for entry in watch.inbox.entries()}
        assert "evicted" in jobs
        assert "stopped" not in jobs, jobs["stopped"].data["failure"]
        assert any("Evict" in reason for reason in jobs["evicted"].data["failure"]["reasons"])


def test_a_cluster_that_cannot_be_reached_is_no_cluster_without_failures(tmp_path: Path, work: Path, receiver: Receiver) -> None:
    text = (work / "admin.kubeconfig").read_text()
    dead = tmp_path / "dead.kubeconfig"
    dead.write_text(text.replace(text.split("server: ")[1].split()[0], f"https://127.0.0.1:{free_port()}"))
    with watching(tmp_path / "inbox", KubernetesJobs(Api(str(dead))), [], receiver) as watch:
        turn = watch.once()

    assert turn.problems
    assert not watch.ready(60)


# ---- Alertmanager


@pytest.fixture
def alertmanager(receiver: Receiver, tmp_path: Path) -> Iterator[str]:
    """The address of a real Alertmanager that posts to the receiver."""
    if not shutil.which(os.environ.get("ALERTMANAGER", "prometheus-alertmanager")) and os.getuid() != 0:
        pytest.skip("no alertmanager on the path, and only root may install Debian's")
    folder = tmp_path / "am"
    folder.mkdir()
    (folder / "alertmanager.yml").write_text(
        f"""
route: {{receiver: workbench, group_by: [alertname], group_wait: 1s, group_interval: 1s, repeat_interval: 2s}}
receivers:
- name: workbench
  webhook_configs: [{{url: "{receiver.url}/api/alerts", send_resolved: true}}]
"""
    )
    port = free_port(1)
    try:
        run(SERVICES / "prometheus" / "start", "--dir", folder, "--port", port)
        yield f"http://127.0.0.1:{port + 1}"
    finally:
        stop(SERVICES / "prometheus" / "stop", "--dir", folder)


def ring(url: str, *alerts: dict[str, Any]) -> None:
    import urllib.request

    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps(list(alerts)).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def test_one_incident_is_told_once_however_many_alerts_ring(
    site: Site, kubernetes: Callable[[], Watch], receiver: Receiver, alertmanager: str
) -> None:
    with kubernetes() as watch:
        watch.once()
        (pod,) = site.job("train", "ringing", ("gpu-node-c",))
        now = stamp()
        node = {"Hostname": "gpu-node-c", "gpu": "3"}
        # the node's alert rings first, nobody knows of a job yet
        ring(
            alertmanager,
            {"labels": {"alertname": "GpuXid", **node}, "annotations": {"summary": "Xid 79 <!channel>"}, "startsAt": now},
        )
        until("the first alert", lambda: receiver.received)
        assert [one.action for one in receiver.received[:1]] == ["started"]
        (entry,) = watch.inbox.entries()
        assert entry.source == "alert"

        # then the job fails, and many more alerts ring for it
        site.ends("train", pod, 1, message="CUDA error: unspecified launch failure")
        ring(
            alertmanager,
            *({"labels": {"alertname": "GpuDown", "Hostname": "gpu-node-c", "gpu": str(gpu)}, "startsAt": now} for gpu in range(8)),
            {"labels": {"alertname": "JobFailed", "job_name": "ringing", "namespace": "train"}, "startsAt": now},
            {"labels": {"alertname": "PodCrashed", "pod": pod, "namespace": "train"}, "startsAt": now},
        )  # fmt: skip
        watch.once()
        until("all alerts", lambda: len({one.fingerprint for one in receiver.received}) == 11, 60)
        calls = receiver.calls
        until("repetitions", lambda: receiver.calls > calls + 2, 60)  # repeat_interval is 2 s
        watch.once()

        entries = watch.inbox.entries()
        assert [one.job for one in entries] == ["ringing"], [(one.id, one.source, one.job) for one in entries]
        (entry,) = entries
        assert len(entry.alerts) == 11
        assert {one.entry for one in receiver.received[-3:]} == {entry.id}
        assert len(receiver.messages) == 1, receiver.told()

        # over: recorded, and nobody is told
        ends = stamp(-1)
        time.sleep(2)
        ring(alertmanager, {"labels": {"alertname": "GpuXid", **node}, "startsAt": now, "endsAt": ends})
        until("the end", lambda: any(one.action == "resolved" for one in receiver.received), 60)
        watch.once()
        (entry,) = watch.inbox.entries()
        states = [one["status"] for one in entry.data["alerts"].values() if one["name"] == "GpuXid"]
        assert states == ["resolved"]
        assert len(receiver.messages) == 1
        assert not any("<!channel>" in json.dumps(one) for one in receiver.messages)


# ---- Slurm


@pytest.fixture(scope="module", params=["with accounting", "without"])
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, str], Path, bool]]:
    """The environment of a real cluster, a folder for its jobs, and whether it keeps accounts."""
    if not shutil.which("slurmctld") and os.getuid() != 0:
        pytest.skip("no slurmctld on the path, and only root may install Debian's")
    root = Path(tempfile.mkdtemp(prefix="wb-watch-"))  # short: the name of a socket may have 107 letters
    words: list[object] = [SERVICES / "slurm" / "start", "--nodes", 2, "--dir", root / "run", "--port", free_port(1, 2, 101, 102)]
    try:
        with (root / "start.out").open("w+") as out:  # what it starts keeps its streams open
            all_words = [str(word) for word in (*words, *(["--no-accounting"] if request.param == "without" else []))]
            done = subprocess.run(all_words, stdout=out, stderr=subprocess.STDOUT, cwd="/tmp", timeout=900)
            out.seek(0)
            assert done.returncode == 0, out.read()
        yield {"SLURM_CONF": str(root / "run" / "slurm.conf")}, root, request.param != "without"
    finally:
        stop(SERVICES / "slurm" / "stop", "--dir", root / "run", "--purge")
        shutil.rmtree(root, ignore_errors=True)


def test_jobs_that_fail_on_slurm_are_told_once_and_a_requeued_start_too(
    cluster: tuple[dict[str, str], Path, bool], tmp_path: Path, receiver: Receiver
) -> None:
    env, root, accounting = cluster

    def ask(*argv: str) -> str:
        whole = {**os.environ, **env, "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin"}
        return subprocess.run(argv, env=whole, cwd=root, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def begin() -> Watch:
        slurm = Slurm(env=env)
        return watching(tmp_path / "inbox", SlurmJobs(slurm), [slurm], receiver)

    with begin() as watch:
        turn = watch.once()
        assert watch.ready(60), turn
        error = 'python3 -c "raise ValueError(3)"'
        failed = ask("sbatch", "--parsable", "--job-name=llm-bad", f"--output={root}/bad-%j.out", f"--wrap=srun {error}")
        ask("sbatch", "--parsable", "--job-name=llm-good", "--output=/dev/null", "--wrap=true")
        cancelled = ask("sbatch", "--parsable", "--job-name=llm-cancel", "--output=/dev/null", "--wrap=sleep 300")
        until("the failure", lambda: watch.once() and any(one.job == "llm-bad" for one in watch.inbox.entries()), 90)
        ask("scancel", cancelled)
        entry = entry_of(watch, "llm-bad")
        assert (entry.cls, entry.source, entry.problem) == ("user/exception", "slurm", "")
        assert failed in entry.data["failure"]["key"]

    requeued = ask("sbatch", "--parsable", "--requeue", "--job-name=llm-again", "--output=/dev/null", "--wrap=sleep 300")
    until("running", lambda: ask("squeue", "-h", "-o", "%T", "-j", requeued) == "RUNNING", 60)
    ask("scontrol", "requeue", requeued)
    with begin() as watch:  # a watch that was restarted
        if accounting:  # slurmctld alone forgets a start as soon as the next one waits
            until(
                "the start that ended", lambda: watch.once() and any(one.job == "llm-again" for one in watch.inbox.entries()), 90
            )
        for _ in range(2):
            watch.once()
        jobs = [one.job for one in watch.inbox.entries()]
    assert sorted(set(jobs)) == sorted(jobs), "each once"
    assert "llm-good" not in jobs
    assert "llm-cancel" not in jobs
    assert len(receiver.messages) == len(jobs), receiver.told()
    ask("scancel", requeued)


# ---- the command


def test_the_command_looks_once_and_ends_when_it_is_asked_to(
    site: Site, reader: Path, tmp_path: Path, receiver: Receiver
) -> None:
    (pod,) = site.job("train", "by-command", ("gpu-node-a",))
    site.ends("train", pod, 1, message="ValueError: bad learning rate")
    secret = tmp_path / "slack"
    secret.write_text(f"{receiver.url}/slack\n")
    env = {
        **os.environ,
        "KUBECONFIG": str(reader),
        "WORKBENCH_NODE_ENABLED": "false",
        "WORKBENCH_SLURM_ENABLED": "false",
        "no_proxy": "127.0.0.1",
    }
    port = free_port()
    words = [
        sys.executable,
        "-m",
        "workbench",
        "watch",
        "--inbox",
        str(tmp_path / "inbox"),
        "--namespace",
        "train",
        "--settle",
        "1s",
        "--notify",
        f"slack={secret}",
    ]
    done = subprocess.run([*words, "--once"], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode in (0, 3), done.stderr  # there are no kubelets here, so no logs
    listed = subprocess.run(
        [sys.executable, "-m", "workbench", "inbox", "--inbox", str(tmp_path / "inbox"), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "by-command" in [row["job"] for row in json.loads(listed.stdout)]
    before = len(receiver.messages)
    assert before >= 1

    import urllib.request

    running = subprocess.Popen(
        [*words, "--every", "5s", "--listen", f"127.0.0.1:{port}"], env=env, stderr=subprocess.PIPE, text=True
    )
    try:

        def ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        until("readiness", ready, 60)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        assert 'workbench_watch_seen_whole{scheduler="kubernetes"} 1' in text
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
        assert running.stderr is not None
        assert "stopping" in running.stderr.read()
    finally:
        running.kill()
        running.wait()
        if running.stderr is not None:
            running.stderr.close()
    assert len(receiver.messages) == before, "told again after a restart"
