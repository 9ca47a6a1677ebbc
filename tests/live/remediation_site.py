"""Turn a real Kubernetes cluster with fake nodes into the world that the executors' conformance suite and the live tests of remediation act on."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.live.kubernetes_site import SERVICE, Site, control_plane, run, stamp, until
from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.executors.kubernetes.marks import EXCLUDES, PREFIX
from workbench.remediation.model import OWNER, Action, NodeState
from workbench.testing.faults import FaultServer, Request

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "workbench/remediation/executors/kubernetes/rbac-remediation.yaml"
ACCOUNT = ("gpu-workbench", "gpu-workbench-remediation")
KARPENTER = ("karpenter.sh", "v1", "nodeclaims")
PLACE = {"group": KARPENTER[0], "version": KARPENTER[1], "plural": KARPENTER[2]}
MACHINES = {"group": "cluster.x-k8s.io", "version": "v1beta1", "plural": "machines", "namespace": "train"}


class Proxy(FaultServer):
    """A server in front of the API server that counts the changes that were made through it."""

    made = 0

    def _pass_on(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = super()._pass_on(request)
        if request.method != "GET" and 200 <= status < 300 and "dryRun=All" not in request.path:
            self.made += 1
        return status, headers, body


class Cluster:
    """A control plane with kwok, an audit log, Karpenter's definition, and an account that has the shipped rights only."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.site = Site(work / "admin.kubeconfig")
        self._numbers = itertools.count()
        self.site.namespace("train")
        self._claims()
        self.kubectl("apply", "-f", MANIFEST)
        until("the account", lambda: self.site.core.list_namespaced_service_account(ACCOUNT[0]).items)
        self.kubeconfig = Path(run(SERVICE / "kubeconfig-for", work, *ACCOUNT))
        probe = Kubernetes(self.kubeconfig)
        until("its rights", lambda: _works(lambda: probe.fleet(Deadline(10)).complete or None))
        self.node("guard")
        until("the admission policy", lambda: "own prefixes only" in self._denied(probe))

    def _denied(self, probe: Kubernetes) -> str:
        body = {"metadata": {"labels": {"somebody/s": str(time.time())}}}
        try:
            probe.calls.patch_node("guard", body, Deadline(5), dry=True)
        except Exception as error:
            return str(error)
        return ""

    def _claims(self) -> None:
        folder = Path(run(SERVICE / "build")) / "crds"
        self.site.defined(folder / name for name in ("karpenter.sh_nodeclaims.yaml", "cluster.x-k8s.io_machines.yaml"))

    def kubectl(self, *words: str | Path) -> str:
        """Do something by hand."""
        return run(Path(run(SERVICE / "build")) / "kubectl", "--kubeconfig", self.work / "admin.kubeconfig", *words)

    def name(self, word: str) -> str:
        """Return a name that nothing has yet."""
        return f"{word}-{next(self._numbers):04d}"

    def node(self, name: str, **labels: str) -> str:
        """Make a node that kwok keeps ready, and return its uid."""
        notes = {"kwok.x-k8s.io/node": "fake"}
        body = {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.count": "8", **labels},
                "annotations": notes,
            },
            "spec": {"providerID": f"aws:///test-1a/{name}"},
        }
        made = self.site.core.create_node(body)
        size = {"cpu": "208", "memory": "1800Gi", "pods": "110", "nvidia.com/gpu": "8"}
        self.site.core.patch_node_status(name, {"status": {"capacity": size, "allocatable": size}})
        until(f"{name} ready", lambda: self._ready(name))
        self.boot(name, f"boot-of-{name}")
        return str(made.metadata.uid)

    def crowd(self, count: int) -> None:
        """Make many nodes that kwok keeps ready and no test touches, so that what is done is done in a fleet of that size."""
        names = [f"crowd-{number:04d}" for number in range(count)]
        size = {"cpu": "208", "memory": "1800Gi", "pods": "110", "nvidia.com/gpu": "8"}

        def one(name: str) -> None:
            labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.count": "8"}
            body = {"metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}}
            self.site.core.create_node({**body, "spec": {"providerID": f"aws:///test-1a/{name}"}})
            self.site.core.patch_node_status(name, {"status": {"capacity": size, "allocatable": size}})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, names))
        fleet = Kubernetes(self.kubeconfig)
        until(
            f"{count} nodes ready",
            lambda: sum(one.ready is True for one in fleet.fleet(Deadline(30)).nodes.values()) >= count,
            180,
        )

    def boot(self, name: str, boot: str) -> None:
        """Give a node a boot id; kwok, which once writes all of a new node's status, does not get in between."""

        def stays() -> bool:
            if self.raw(name)["status"].get("nodeInfo", {}).get("bootID") == boot:
                return True
            self.site.core.patch_node_status(name, {"status": {"nodeInfo": {"bootID": boot}}})
            return False

        until(f"the boot id of {name}", stays)

    def _ready(self, name: str) -> bool:
        node = self.raw(name)
        ready = [one["status"] for one in node["status"].get("conditions", []) if one["type"] == "Ready"]
        return ready == ["True"] and not [one for one in node["spec"].get("taints", []) if "not-ready" in one["key"]]

    def raw(self, name: str) -> dict[str, Any]:
        """Return a node as the server has it."""
        found: dict[str, Any] = json.loads(self.site.core.read_node(name, _preload_content=False).data)
        return found

    def pod(self, node: str, name: str = "", *, space: str = "train", **more: Any) -> str:
        """Make a pod that runs on a node, and return namespace/name."""
        name = name or self.name("pod")
        labels = more.pop("labels", {})
        spec = {
            "nodeName": node,
            "containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        }
        owners = [more.pop("owner")] if "owner" in more else []
        meta = {"name": name, "labels": labels, "ownerReferences": owners, **more.pop("meta", {})}
        self.site.core.create_namespaced_pod(space, {"metadata": meta, "spec": {**spec, **more}})
        until(f"{name} runs", lambda: self.site.core.read_namespaced_pod(name, space).status.phase == "Running")
        return f"{space}/{name}"

    def replicas(self, node: str, count: int, name: str = "", **labels: str) -> list[str]:
        """Let a ReplicaSet make pods on a node, and return the names of those that run."""
        from kubernetes import client

        name = name or self.name("set")
        containers = [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
        spec = {"containers": containers, "nodeSelector": {"kubernetes.io/hostname": node}}
        template = {"metadata": {"labels": {"app": name, **labels}}, "spec": spec}
        client.AppsV1Api(self.site.api).create_namespaced_replica_set(
            "train",
            {
                "metadata": {"name": name},
                "spec": {"replicas": count, "selector": {"matchLabels": {"app": name}}, "template": template},
            },
        )

        def runs() -> list[str]:
            pods = self.site.core.list_namespaced_pod("train", label_selector=f"app={name}").items
            return [one.metadata.name for one in pods if one.status.phase == "Running"] if len(pods) == count else []

        return list(until(f"{count} pods of {name}", lambda: runs() if len(runs()) == count else None))

    def pods(self, node: str) -> list[dict[str, Any]]:
        """Return the pods of a node as the server has them."""
        answer = self.site.core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}", _preload_content=False)
        return list(json.loads(answer.data)["items"])

    def claim(self, node: str) -> str:
        """Make the NodeClaim of a node, held by Karpenter's finalizer, and label the node as Karpenter does."""
        with contextlib.suppress(Exception):
            self.site.core.patch_node(node, {"metadata": {"labels": {"karpenter.sh/nodepool": "h100"}}})
        name = self.name("claim")
        wanted = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]}
        spec = {
            "nodeClassRef": {"group": "karpenter.k8s.test", "kind": "TestNodeClass", "name": "default"},
            "requirements": [wanted],
        }
        body = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": name, "finalizers": ["karpenter.sh/termination"]},
            "spec": spec,
        }
        self.site.custom.create_cluster_custom_object(body=body, **PLACE)
        status = {"status": {"nodeName": node, "providerID": f"aws:///test-1a/{node}"}}
        self.site.custom.patch_cluster_custom_object_status(name=name, body=status, **PLACE)
        return name

    def machine(self, node: str) -> str:
        """Make the Machine of a node as Cluster API's MachineSet and its controller do, and return namespace/name."""
        name, space = self.name("machine"), MACHINES["namespace"]
        owner = {
            "apiVersion": "cluster.x-k8s.io/v1beta1",
            "kind": "MachineSet",
            "name": "gpu",
            "uid": "00000000-0000-0000-0000-000000000001",
            "controller": True,
        }
        body = {
            "apiVersion": "cluster.x-k8s.io/v1beta1",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "labels": {"cluster.x-k8s.io/cluster-name": "gpu"},
                "finalizers": ["machine.cluster.x-k8s.io"],
                "ownerReferences": [owner],
            },
            "spec": {
                "clusterName": "gpu",
                "bootstrap": {"dataSecretName": "gpu-bootstrap"},
                "infrastructureRef": {"kind": "TestMachine", "name": name},
                "providerID": f"aws:///test-1a/{node}",
            },
        }
        self.site.custom.create_namespaced_custom_object(body=body, **MACHINES)
        status = {"status": {"nodeRef": {"kind": "Node", "name": node}, "phase": "Running"}}
        self.site.custom.patch_namespaced_custom_object_status(name=name, body=status, **MACHINES)
        notes = {"cluster.x-k8s.io/machine": name, "cluster.x-k8s.io/cluster-namespace": space}
        self.site.core.patch_node(node, {"metadata": {"annotations": notes}})
        return f"{space}/{name}"

    def terminate(self, claim: str, node: str) -> None:
        """End a machine as Karpenter does: the node goes, then the claim."""
        with contextlib.suppress(Exception):
            self.site.core.delete_node(node)
        with contextlib.suppress(Exception):
            self.site.custom.patch_cluster_custom_object(name=claim, body={"metadata": {"finalizers": None}}, **PLACE)

    def audit(self, account: str = ACCOUNT[1]) -> list[dict[str, Any]]:
        """Return all requests of an account that could have changed something, from the API server's own log."""
        found = {}
        for line in (self.work / "log/audit.jsonl").read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            if str(one.get("user", {}).get("username", "")).endswith(account) and one["verb"] not in ("get", "list", "watch"):
                found[one["auditID"]] = one
        return list(found.values())

    @contextmanager
    def proxy(self) -> Iterator[tuple[Proxy, Path]]:
        """Stand between the account and the server; yields it, and the kubeconfig that leads there."""
        port = (self.work / "port").read_text(encoding="utf-8").strip()
        with Proxy(f"https://127.0.0.1:{port}", trust=self.work / "pki/ca.crt") as server:
            document = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
            document["clusters"][0]["cluster"] = {"server": server.url}
            path = self.work / f"{self.name('proxy')}.kubeconfig"
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            yield server, path


@contextmanager
def audited(folder: Path) -> Iterator[Cluster]:
    """Run a control plane that writes down every request; yields the cluster on it."""
    with control_plane(folder, "--scheduler", "--kwok", "--audit"):
        yield Cluster(folder)


class KubernetesWorld:
    """The world of the conformance suite; see `tests.remediation.conformance.World`."""

    def __init__(self, cluster: Cluster, server: Proxy, kubeconfig: Path) -> None:
        self.cluster, self.server, self.kubeconfig = cluster, server, kubeconfig
        self.executor = self.again()
        self._direct = Kubernetes(cluster.kubeconfig)

    def again(self) -> Kubernetes:
        return Kubernetes(self.kubeconfig)

    def action(self, verb: str) -> Action:
        name = self.cluster.name("node")
        uid = self.cluster.node(name)
        expects: dict[str, Any] = {"uid": uid, "boot": f"boot-of-{name}", "owner": "", "schedulable": True}
        args: dict[str, Any] = {"reason": "xid-79: GPU has fallen off the bus", "expires": time.time() + 3600}
        target, id = name, self.cluster.name("act")
        if verb == "cordon":
            args |= {"taint": "gpu-workbench/unfit=xid-79:NoSchedule", "labels": {"gpu-workbench/suspect": "true"}}
        if verb == "exclude":
            args |= {"job": "llm-7b"}
        if verb == "uncordon":
            first = Action(self.cluster.name("act"), "cordon", "cordon", name, expects=expects, args={"taint": True, **args})
            step = self._direct.begin(first, Deadline(30))
            assert step.status == "done", step
            expects |= {"owner": OWNER, "op": first.id, "schedulable": False}
        if verb == "evict":
            expects |= {"work": [self.cluster.pod(name), self.cluster.pod(name)]}
        if verb == "restart-task":
            (pod,) = self.cluster.replicas(name, 1)
            target = f"train/{pod}"
            args |= {"uid": self.cluster.site.core.read_namespaced_pod(pod, "train").metadata.uid}
        if verb == "replace":
            target = self.cluster.claim(name)
        return Action(id, verb, "cordon", name, target, why="a test", expects=expects, args=args, undo="uncordon")

    def writes(self) -> int:
        return self.server.made

    def shape(self, action: Action) -> Any:
        node = self.cluster.raw(action.node)
        meta, spec = node["metadata"], node["spec"]
        of_others = ("node.alpha.kubernetes.io/", "kwok.x-k8s.io/", "volumes.kubernetes.io/")
        notes = {key: one for key, one in meta.get("annotations", {}).items() if not key.startswith(of_others)}
        taints = [one for one in spec.get("taints", []) if not one["key"].startswith("node.kubernetes.io/")]
        pods = {(one["metadata"]["uid"], "deletionTimestamp" in one["metadata"]) for one in self.cluster.pods(action.node)}
        items = self.cluster.site.custom.list_cluster_custom_object(**PLACE)["items"]
        dying = [one["metadata"]["name"] for one in items if "deletionTimestamp" in one["metadata"]]
        return meta["uid"], meta.get("labels"), notes, bool(spec.get("unschedulable")), taints, pods, action.target in dying

    def settle(self, action: Action) -> None:
        if action.verb == "evict":
            until("the pods are gone", lambda: not self.cluster.pods(action.node))
        if action.verb == "restart-task":
            gone = lambda: action.args["uid"] not in [one["metadata"]["uid"] for one in self.cluster.pods(action.node)]  # noqa: E731
            until("the pod is gone", gone)
        if action.verb == "replace":
            self.cluster.terminate(action.target, action.node)
            until("the claim is gone", lambda: action.target not in self.claims())

    def claims(self) -> list[str]:
        """Return the names of all NodeClaims."""
        items = self.cluster.site.custom.list_cluster_custom_object(**PLACE)["items"]
        return [one["metadata"]["name"] for one in items]

    def foreign(self, action: Action) -> None:
        if action.verb == "uncordon":  # ours already; now another tool holds it, too
            self.cluster.kubectl("taint", "node", action.node, "karpenter.sh/disrupted:NoSchedule")
        else:
            self.cluster.kubectl("cordon", action.node)

    def differ(self, action: Action) -> None:
        self.cluster.site.core.delete_node(action.node)
        self.cluster.node(action.node)

    def meddle(self, action: Action) -> None:
        if action.verb in ("cordon", "drain"):
            self.cluster.kubectl("uncordon", action.node)
        if action.verb in ("cordon", "drain", "uncordon"):
            self.cluster.kubectl("cordon", action.node)
        if action.verb == "taint":
            self.cluster.kubectl("taint", "node", action.node, "gpu-workbench/unfit=theirs:NoSchedule", "--overwrite")
        if action.verb == "label":
            self.cluster.kubectl("label", "node", action.node, PREFIX + "suspect=theirs", "--overwrite")
        if action.verb == "exclude":
            self.cluster.kubectl("label", "node", action.node, EXCLUDES + "llm-7b=theirs", "--overwrite")

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        self.server.when = lambda request: request.method != "GET"
        self.server.fault = "cut"
        try:
            yield
        finally:
            self.server.fault, self.server.when = None, None

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.server.fault = "refused"
        try:
            yield
        finally:
            self.server.fault = None


def _works(ask: Any) -> Any:
    with contextlib.suppress(Exception):
        return ask()
    return None


def rebooted(site: Site, node: str, boot: str, ago: float) -> None:
    """Tell of a boot as a kubelet does."""
    site.event("default", "Node", node, "Rebooted", f"Node {node} has been rebooted, boot id: {boot}", ago=ago, host=node)


def condition(status: str) -> Mapping[str, str]:
    """Return a Ready condition."""
    return {"type": "Ready", "status": status, "reason": "Test", "message": "", "lastTransitionTime": stamp(60)}


def soon() -> Deadline:
    """A deadline that no call should need."""
    return Deadline(30)


def seen(executor: Kubernetes, name: str) -> NodeState:
    """Return a node that is there."""
    node = executor.node(name, soon())
    assert node is not None
    return node


def act(cluster: Cluster, verb: str, node: str, target: str = "", **more: Any) -> Action:
    """Return an action that expects the node as it is."""
    expects = {"uid": cluster.raw(node)["metadata"]["uid"], **more.pop("expects", {})}
    return Action(cluster.name("act"), verb, "evacuate", node, target or node, why="xid-79", expects=expects, args=more)


def budget(cluster: Cluster, name: str, available: int, **labels: str) -> None:
    """Make a disruption budget, and wait until the controller has computed it."""
    spec = {"minAvailable": available, "selector": {"matchLabels": labels}}
    cluster.site.policy.create_namespaced_pod_disruption_budget("train", {"metadata": {"name": name}, "spec": spec})
    read = cluster.site.policy.read_namespaced_pod_disruption_budget_status
    until("the budget", lambda: (read(name, "train").status.current_healthy or 0) > 0)
