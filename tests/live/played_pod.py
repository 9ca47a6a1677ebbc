"""
Turn a pod as the API server has it into the process that a kubelet and runc would start: mounts, root, user, capabilities, environment.

There is no kubelet and no container engine where these tests run. What is played here is done by `unshare`, `mount`, `chroot` and
`setpriv` from the pod's own fields, so that a field which is missing in the manifest is missing in the process; a field that this does not
know is an error. Not played: limits by cgroups, the network of the pod, seccomp.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench

__all__ = ["Image", "argv"]

# what a container engine gives without being asked (moby, oci/caps/defaults.go)
_CAPABILITIES = (
    "chown dac_override fsetid fowner mknod net_raw setgid setuid setfcap setpcap net_bind_service sys_chroot kill audit_write"
)
_LIBRARIES = "/opt/driver/lib"
_SECURITY = {"runAsUser", "runAsGroup", "allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"}


@dataclass(frozen=True, slots=True)
class Image:
    """
    What is below ``/opt`` in the container: the package without its repository, programs, and what NVIDIA's runtime brings.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    @classmethod
    def of(cls, folder: Path, *, libraries: str, driver: Mapping[str, str], programs: Mapping[str, str]) -> Image:
        """Write it: the programs of the image, and libraries and programs of the driver, by name → shell script."""
        shutil.copytree(
            Path(workbench.__file__).parent, folder / "image/site/workbench", ignore=shutil.ignore_patterns("__pycache__")
        )
        run = f'PYTHONPATH=/opt/image/site PYTHONDONTWRITEBYTECODE=1 exec "{sys.executable}" -m workbench "$@"'
        for place, scripts in (("image/bin", {**programs, "workbench": run}), ("driver/bin", driver)):
            (folder / place).mkdir(parents=True)
            for name, script in scripts.items():
                (folder / place / name).write_text(f"#!/bin/sh\n{script}\n")
                (folder / place / name).chmod(0o755)
        for name in ("cat", "grep", "stat", "sh"):
            (folder / "image/bin" / name).symlink_to(f"/usr/bin/{name}")
        shutil.copytree(libraries, folder / "driver/lib")
        return cls(folder)


def argv(
    pod: Mapping[str, Any],
    host: Path,
    image: Image,
    work: Path,
    *,
    server: tuple[str, int],
    token: Callable[[], str],
    maps: Mapping[str, Mapping[str, str]],
    command: list[str] | None = None,
) -> list[str]:
    """
    Return the command line that runs the pod's only container.

    Parameters
    ----------
    pod : mapping
        With what admission added: the service account's volume.
    host : Path
        What stands for the node's ``/``.
    image : Image
    work : Path
        An empty folder for volumes and the root.
    server : tuple
        Address and port of the API server.
    token : callable
        Returns a token of the pod's service account that is bound to the pod.
    maps : mapping
        Config maps of the pod's namespace: name → its data.
    command : list of str, optional
        Instead of the container's own.
    """
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert not spec.get("initContainers"), "not played"
    root = work / "root"
    lines = _root(spec, root, image)
    volumes = {one["name"]: _volume(pod, one, host, work / "volumes" / one["name"], token, maps) for one in spec["volumes"]}
    # containerd mounts what lies deeper later, whatever the order in the manifest
    for mount in sorted(container["volumeMounts"], key=lambda one: str(one["mountPath"]).rstrip("/").count("/")):
        assert set(mount) <= {"name", "mountPath", "readOnly", "mountPropagation"}, mount
        target = shlex.quote(f"{root}{mount['mountPath']}")
        lines.append(f"[ -d {target} ] || mkdir -p {target}")  # fails below what is read-only, as runc does
        lines.append(volumes[mount["name"]].format(target=target))
        if mount.get("readOnly"):
            lines.append(f"mount -o remount,bind,ro {target}")
        # an image lies where no volume hides it; this interpreter may lie anywhere, below /tmp for example
        hidden = [one for one in _outside() if one.startswith(f"{str(mount['mountPath']).rstrip('/')}/")]
        lines += [f"mkdir -p {root}{one}; mount --rbind {one} {root}{one}" for one in hidden]
    lines.append(f"mount -o remount,bind,ro {root}")  # also when the manifest leaves it writable: its comment says that this fits
    env = _environment(pod, container, server, bool(spec.get("runtimeClassName") == "nvidia"))
    words = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items()), *(command or container["command"])]
    assert not container.get("args"), "not played"
    lines.append(f"exec chroot {root} {shlex.join([*_rights(spec, container), *words])}")
    namespaces = ["--mount", "--propagation", "private", *([] if spec.get("hostPID") else ["--pid", "--fork"])]
    return ["unshare", *namespaces, "bash", "-euc", "\n".join(lines)]


def _outside() -> list[str]:
    """An interpreter outside of /usr, with the packages that ours needs."""
    return [one for one in sorted({os.path.realpath(sys.prefix), sys.prefix, sys.base_prefix}) if not one.startswith("/usr")]


def _root(spec: Mapping[str, Any], root: Path, image: Image) -> list[str]:
    """The image's files and what runc mounts into every container."""
    root.mkdir(parents=True)
    lines = [f"mount -t tmpfs -o mode=0755 tmpfs {root}"]
    for name in ("usr", "bin", "sbin", "lib", "lib64"):
        place = Path("/", name)
        if place.is_symlink():
            lines.append(f"ln -s {os.readlink(place)} {root}/{name}")
        elif place.is_dir():
            lines.append(f"mkdir {root}/{name}; mount --rbind /{name} {root}/{name}")
    lines += [f"mkdir -p {root}{one}; mount --rbind {one} {root}{one}" for one in _outside()]
    lines += [
        f"mkdir -p {root}/opt {root}/etc {root}/tmp {root}/dev {root}/proc {root}/sys",
        f"mount --bind {image.folder} {root}/opt",
        f"echo root:x:0:0:root:/root:/bin/sh > {root}/etc/passwd",
        f"mount -t tmpfs tmpfs {root}/dev",
        f"for one in null zero full random urandom; do touch {root}/dev/$one; mount --bind /dev/$one {root}/dev/$one; done",
        f"mount --rbind /sys {root}/sys; mount -o remount,bind,ro {root}/sys",
        f"mount --rbind /proc {root}/proc" if spec.get("hostPID") else f"mount -t proc proc {root}/proc",
    ]
    return lines


def _volume(
    pod: Mapping[str, Any],
    volume: Mapping[str, Any],
    host: Path,
    folder: Path,
    token: Callable[[], str],
    maps: Mapping[str, Mapping[str, str]],
) -> str:
    """Make a volume and return the command that mounts it at ``{target}``."""
    (kind,) = set(volume) - {"name"}
    if kind == "hostPath":
        place = host / volume[kind]["path"].lstrip("/")
        if volume[kind].get("type") == "DirectoryOrCreate":
            place.mkdir(parents=True, exist_ok=True)
        assert volume[kind].get("type") in ("Directory", "DirectoryOrCreate"), volume
        assert place.is_dir(), place
        return f"mount --rbind {shlex.quote(str(place))} {{target}}; mount --make-rslave {{target}}"
    if kind == "emptyDir":
        return f"mount -t tmpfs -o mode=0777,size={volume[kind].get('sizeLimit', '64Mi').removesuffix('i')} tmpfs {{target}}"
    assert kind == "projected", f"{kind} is not played"
    folder.mkdir(parents=True)
    for source in volume[kind]["sources"]:
        ((word, told),) = source.items()
        if word == "serviceAccountToken":
            (folder / told["path"]).write_text(token())
        elif word == "configMap":
            for item in told["items"]:
                (folder / item["path"]).write_text(maps[told["name"]][item["key"]])
        else:
            assert word == "downwardAPI", f"{word} is not played"
            for item in told["items"]:
                (folder / item["path"]).write_text(_field(pod, item["fieldRef"]["fieldPath"]))
    return f"mount --bind {shlex.quote(str(folder))} {{target}}"


def _field(pod: Mapping[str, Any], path: str) -> str:
    found: Any = pod
    for word in path.split("."):
        found = found[word]
    return str(found)


def _environment(pod: Mapping[str, Any], container: Mapping[str, Any], server: tuple[str, int], nvidia: bool) -> dict[str, str]:
    env = {"PATH": "/opt/image/bin", "HOME": "/root", "HOSTNAME": pod["metadata"]["name"]}
    env |= {"KUBERNETES_SERVICE_HOST": server[0], "KUBERNETES_SERVICE_PORT": str(server[1])}
    for one in container.get("env") or []:
        env[one["name"]] = one["value"] if "value" in one else _field(pod, one["valueFrom"]["fieldRef"]["fieldPath"])
    # NVIDIA's runtime, which finds what it brings by the loader's cache: here by a path
    if nvidia and env.get("NVIDIA_VISIBLE_DEVICES") == "all" and "utility" in env.get("NVIDIA_DRIVER_CAPABILITIES", "utility"):
        env |= {"PATH": f"{env['PATH']}:/opt/driver/bin", "LD_LIBRARY_PATH": _LIBRARIES}
    return env


def _rights(spec: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """The user and what it may, as a command line before the command."""
    security = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
    assert set(security) <= _SECURITY, security
    changes = security.get("capabilities") or {}
    dropped = {name.lower() for name in changes.get("drop") or []}
    kept = set() if "all" in dropped else set(_CAPABILITIES.split()) - dropped
    kept |= {name.lower() for name in changes.get("add") or []}
    words = [
        "/usr/bin/setpriv",
        f"--reuid={security.get('runAsUser', 0)}",
        f"--regid={security.get('runAsGroup', 0)}",
        "--clear-groups",
    ]
    words.append("--bounding-set=" + ",".join(["-all", *(f"+{name}" for name in sorted(kept))]))
    return [*words, *(["--no-new-privs"] if security.get("allowPrivilegeEscalation") is False else []), "--"]
