"""Turn device plugin, container toolkit and CDI specifications into whether a container can be given the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.parse.gpu_state import NodeGpus
from workbench.sources.node.containers import Containers, Spec

__all__ = ["containers"]


@check(
    "containers",
    "containers can be given the GPUs",
    needs=("containers",),
    wants=("pci-bus", "gpus"),
    cls="platform/config",
    required=False,
    required_when=("health.containers",),
)
def containers(seen: Seen) -> Iterator[Finding]:
    """Judge the parts that are there; with ``health.containers`` there must be some."""
    bus = seen.value("pci-bus")
    if bus == []:
        yield seen.absent("no GPU here that a container could be given")
        return
    value: Containers = seen.value("containers")
    found = [*_kubernetes(seen, value), *_toolkit(seen, value), *(_spec(seen, spec) for spec in value.specs)]
    yield from found
    if seen.setting("containers") and not (value.toolkit or value.trouble or value.specs or value.plugins or value.claims):
        yield seen.found("toolkit-missing", "neither container toolkit, CDI specification nor device plugin here")
    elif not found:
        runs = f"{', '.join(value.runtimes)} runs, and " if value.runtimes else ""
        yield seen.absent(f"{runs}nothing of NVIDIA's gives GPUs to containers here")


def _uuids(seen: Seen) -> set[str] | None:
    """UUIDs of the GPUs; None when they were not all told."""
    gpus = seen.value("gpus")
    if not isinstance(gpus, NodeGpus) or not gpus.states or any(state.gpu.uuid is None for state in gpus.states):
        return None
    return {str(state.gpu.uuid) for state in gpus.states}


def _kubernetes(seen: Seen, value: Containers) -> Iterator[Finding]:
    if value.kubelet != "ok":
        return  # Kubernetes does not run here: left-over folders are no fault, and the services check knows whether it should
    for name, ending in value.plugins.items():
        part = f"device plugin {name}"
        if ending == "ok":
            yield seen.ok("the device plugin takes connections", part=part)
        elif ending == "refused":
            summary = "the device plugin's socket is there and nobody listens: its pod ended"
            yield seen.found("device-plugin-dead", summary, part=part, hint="kubectl get pods -A -o wide | grep device-plugin")
        else:
            yield seen.unknown(f"connecting to the device plugin: {ending}", part=part, hint="run as root")
    if not value.plugins and not value.claims:
        summary = "kubelet runs, and no device plugin or DRA driver of NVIDIA has registered: pods get no GPU"
        yield seen.found("device-plugin-missing", summary, part="device plugin")


def _toolkit(seen: Seen, value: Containers) -> Iterator[Finding]:
    part = "container toolkit"
    if value.trouble and not value.refused:
        yield seen.unknown(
            f"the container toolkit was not heard: {value.trouble}", part=part, hint="run nvidia-container-cli info by hand"
        )
        return
    if value.trouble:
        yield seen.found(
            "toolkit-broken", f"the container toolkit does not see the GPUs: {value.trouble}", part=part, evidence=[value.trouble]
        )
        return
    if value.toolkit is None:
        return
    uuids, gpus = _uuids(seen), seen.value("gpus")
    seen_by_it = set(value.toolkit.uuids)
    if uuids is not None and uuids != seen_by_it:
        evidence = [
            *(f"not seen: {one}" for one in sorted(uuids - seen_by_it)),
            *(f"gone: {one}" for one in sorted(seen_by_it - uuids)),
        ]
        yield seen.found(
            "toolkit-broken",
            f"the container toolkit sees {len(seen_by_it)} GPUs, the driver {len(uuids)}",
            part=part,
            evidence=evidence,
        )
    elif isinstance(gpus, NodeGpus) and gpus.driver and gpus.driver != value.toolkit.driver:
        summary = f"the container toolkit finds driver {value.toolkit.driver}, and {gpus.driver} is loaded"
        yield seen.found("toolkit-broken", summary, part=part)
    elif uuids is None:
        summary = (
            f"the container toolkit sees {len(seen_by_it)} GPUs; whether these are all is not known: the driver did not tell"
        )
        yield seen.unknown(summary, part=part, hint="see what gpu-count says")
    else:
        yield seen.ok(f"the container toolkit sees {len(seen_by_it)} GPUs and driver {value.toolkit.driver}", part=part)


def _spec(seen: Seen, spec: Spec) -> Finding:
    hint = "nvidia-ctk cdi generate --output=" + spec.file
    if spec.spec is None:
        return seen.found("cdi-stale", f"{spec.file} is no CDI specification", part=spec.file, hint=hint)
    if spec.missing:
        summary = f"{spec.file} names {len(spec.missing)} paths that this host does not have: written for another driver"
        return seen.found("cdi-stale", summary, part=spec.file, evidence=spec.missing[:5], hint=hint)
    uuids = _uuids(seen)
    named = {name for name in spec.spec.devices if name.startswith("GPU-")}
    if uuids is not None and named and named != uuids:
        evidence = [*(f"not named: {one}" for one in sorted(uuids - named)), *(f"gone: {one}" for one in sorted(named - uuids))]
        return seen.found(
            "cdi-stale", f"{spec.file} names other GPUs than this host has", part=spec.file, evidence=evidence, hint=hint
        )
    return seen.ok(f"{spec.file} names {len(spec.spec.devices)} devices, and all that it needs is there", part=spec.file)
