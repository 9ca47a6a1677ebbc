"""Turn kernel messages that span many lines (out-of-memory kills, AER, machine checks, hung tasks) into one event each."""

from __future__ import annotations

import re

from workbench.model import Event
from workbench.parse import ids
from workbench.parse.kernel_run import ADDRESS, Record, Run

__all__ = ["aer", "hardware_error", "oom", "stack"]

# oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0-1,oom_memcg=/a,task_memcg=/a/b,task=python,pid=1
_CONSTRAINT = re.compile(
    r"oom-kill:constraint=(CONSTRAINT_\w+)(?:.*?oom_memcg=(?P<oom>[^,]+))?(?:.*?task_memcg=(?P<memcg>[^,]+))?"
    r",task=(?P<task>[^,]*),pid=(?P<pid>\d+)(?:,uid=(?P<uid>\d+))?"
)
# Memory cgroup out of memory: Killed process 4123 (python) total-vm:1kB, anon-rss:1kB … | Kill process 123 (python) score 1985
_KILLED = re.compile(r"(Memory cgroup out of memory|Out of memory)[^:]*: Kill(?:ed)? process (?P<pid>\d+) \((?P<task>[^)]*)\)")
_KILLED_OLD = re.compile(r"^Killed process (?P<pid>\d+) \((?P<task>[^)]*)\)")
_SIZES = re.compile(r"(total-vm|anon-rss|file-rss|shmem-rss):(\d+)kB")
_INVOKED = re.compile(r"(?P<invoker>\S.*?) invoked oom-killer: .*?(?:oom_score_adj=(?P<adjust>-?\d+))?$")
_COMM = re.compile(r"\bPID: (\d+) Comm: (.+?) (?:Not tainted|Tainted)")
# memory: usage 1638400kB, limit 1638400kB, failcnt 100
_LIMIT = re.compile(r"^memory: usage (\d+)kB, limit (\d+)kB")
# Task in /a/b killed as a result of limit of /a (kernels before 4.19)
_TASK_IN = re.compile(r"^Task in (\S+) killed as a result of limit of (\S+)")
_STATS_FOR = re.compile(r"^Memory cgroup stats for (\S+?):")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_SLURM = re.compile(r"/job_(\d+)(?:/step_(\w+))?")
_SERVICE = re.compile(r"^/system\.slice/(?!slurm|docker|containerd|crio|cri-|kubelet)([\w@.\\-]+\.(?:service|scope))")
_OOM_MOST = 6000  # lines: the kernel lists every process of the node, or of the group, in between

# pcieport 0000:37:01.0: AER: Corrected error received: 0000:38:00.0 | … received: id=0010 | … message received from 0000:38:00.0
_PORT = re.compile(rf"(?:(?P<driver>[\w-]+) )?(?P<port>{ADDRESS}): ")
_AGENT = re.compile(rf"received(?: from)?:? (?:(?P<device>{ADDRESS})|id=(?P<id>[0-9a-f]{{4}}))")
# … PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID) | …, id=0010(Receiver ID)
_BUS_ERROR = re.compile(r"severity=[^,]+, type=(?P<layer>[\w ]+?)(?: Layer)?,\s*(?:id=[0-9a-f]{4})?\s*\((?P<role>[\w ]+)\)")
#   device [8086:6f04] error status/mask=00000020/00000000
_STATUS = re.compile(r"device \[([0-9a-f]{4}:[0-9a-f]{4})\] error status/mask=([0-9a-f]+)/([0-9a-f]+)")
#    [ 5] Surprise Down Error    (First)
_BIT = re.compile(r"\[ ?(\d{1,2})\] ([A-Za-z][\w ]*?)(?:\s{2,}|\s*\(First\)|\s*$)")
_UNAWARE = re.compile(rf"nvidia ({ADDRESS}): (?:device has no AER-aware driver|AER: can't recover)")

_FRAME = re.compile(r"(?:^|\s|:)\??\s*([\w.]+)\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[([\w-]+))?")
_STACK_MOST = 60
_STORAGE = re.compile(
    r"^(?:nfs|rpc_|ll_|lustre|ptlrpc|osc_|cl_|ceph|xfs|ext4|jbd2|btrfs|blk_|io_schedule|cifs|fuse|gpfs|cxi|beegfs|wekafs)"
)

# drivers of network ports and of RDMA, as the stack of a stuck processor shows them
_NETWORK = re.compile(r"mlx[45]_|bnxt_|ice$|i40e|ixgbe|irdma|ib_(?:core|uverbs|umad|ipoib)|rdma|hfi1|cxi|ena$|efa$|gve$")
# kernel threads that do nothing but write file systems and devices: xfsaild/rbd0, jbd2/sda2-8, kworker/u64:2+flush-8:0
_STORAGE_THREAD = re.compile(
    r"^(?:xfs(?:aild|_mru|-)|jbd2/|kjournald|ext4|btrfs|txg_sync|z_\w+|md\d*_raid|kcopyd|dm[_-]|loop\d|nfsd?\b|nfsv4|nfsiod"
    r"|rpciod|lockd|ptlrpcd|ll_\w+|ldlm|ceph|rbd|nbd|drbd|cifsd|kworker/\S*\+?(?:flush-|xfs|rpciod|xprtiod|ceph|nvme|writeback)|flush-)"
)

# Machine Check Exception: 5 Bank 6: be00000000800400
_MCE_STATUS = re.compile(r"CPU (\d+): Machine Check(?: Exception)?: \S+ Bank (\d+): ([0-9a-f]{16})")
_SECTION = re.compile(r"section_type: ([\w ]+)")
_DEVICE_ID = re.compile(rf"device_id: ({ADDRESS})")


def _join(*parts: Record | None) -> str:
    return "\n".join(part.raw for part in parts if part is not None)[:2000]


def oom(run: Run, event: Event, number: int) -> Event:
    """
    Read one out-of-memory report: who asked for memory, which limit was hit, who was killed.

    The victim and its group stand in the last lines of the report; the group tells whether a limit of the job, of a service or
    of the node was reached.
    """
    record = run.records[number]
    invoked = _INVOKED.search(record.text)
    data = event.data
    constraint = killed = None
    group_trace = False
    if invoked:
        data["invoker"] = invoked["invoker"].strip()
        if invoked["adjust"]:
            data["oom_score_adj"] = int(invoked["adjust"])
    for later in [record, *run.after(number, _OOM_MOST)]:
        text = later.text
        if later is not record and "invoked oom-killer" in text:
            break
        if "mem_cgroup_out_of_memory" in text or "mem_cgroup_oom" in text:
            group_trace = True
        elif (found := _LIMIT.match(text)) and "limit_kb" not in data:
            data["limit_kb"] = int(found[2])
        elif found := _STATS_FOR.match(text):
            data.setdefault("cgroup", found[1])
            group_trace = True
        elif found := _TASK_IN.match(text):
            data["cgroup"], data["oom_cgroup"] = found[1], found[2]
            group_trace = True
        elif "oom-kill:" in text and (found := _CONSTRAINT.search(text)):
            constraint = later
            data["constraint"] = found[1]
            data["task"], event.pid = found["task"], int(found["pid"])
            for key, name in (("memcg", "cgroup"), ("oom", "oom_cgroup"), ("uid", "uid")):
                if found[key]:
                    data[name] = found[key]
        elif found := _KILLED.search(text) or _KILLED_OLD.match(text):
            if killed is None:
                killed = later
                data["task"], event.pid = found["task"], int(found["pid"])
                for name, size in _SIZES.findall(text):
                    data[name.replace("-", "_") + "_kb"] = int(size)
                group_trace = group_trace or text.startswith("Memory cgroup")
            else:
                data.setdefault("also_killed", []).append(int(found["pid"]))
            later.used = True
        elif found := _COMM.search(text):
            data.setdefault("invoker_pid", int(found[1]))
            data.setdefault("invoker", found[2])
        elif killed is not None and "oom_reaper" not in text and "are going to be killed" not in text:
            break
        if later is not record:
            later.used = later.used or later is constraint
    if killed is None and _KILLED.search(record.text) is None and constraint is None:
        data["torn"] = True
    group = data.get("constraint") == "CONSTRAINT_MEMCG" or ("constraint" not in data and group_trace)
    event.signature = "oom-kill-cgroup" if group else "oom-kill-global"
    cgroup = str(data.get("cgroup") or data.get("oom_cgroup") or "")
    if pod := _POD.search(cgroup):
        data["pod_uid"] = pod[1].replace("_", "-")
    if job := _SLURM.search(cgroup):
        data["slurm_job"] = job[1]
    if group and (service := _SERVICE.match(cgroup)):
        # The limit of a service of the system was reached by that service itself: nothing of a job is in that group.
        data["service"] = service[1]
        event.role, event.weight = "context", 0.1
    event.text = _join(record, constraint, killed if killed is not record else None)
    return event


def aer(run: Run, event: Event, number: int) -> Event:
    """Read one AER report: port, device, layer and error bits from the lines that follow the first."""
    record = run.records[number]
    head = _PORT.search(record.text)
    port = ids.pci(head["port"]) if head else None
    data = event.data
    data["port"] = port
    shown = [record]
    for later in [record, *run.after(number, 14)]:
        text = later.text
        if found := _UNAWARE.search(text):
            if "gpu" not in data:
                data["gpu"] = ids.pci(found[1])
                run.nvidia.add(data["gpu"])
            continue
        if later is not record:
            where = _PORT.search(text)
            if where is None or ids.pci(where["port"]) != port:
                continue
            if "AER:" in text and ("error received" in text or "message received" in text):
                break
            if "PCIe Bus Error" in text and "layer" in data:
                break
        if found := _AGENT.search(text):
            device = ids.pci(found["device"]) if found["device"] else _from_id(found["id"])
            if device:
                data["device"] = device
        if found := _BUS_ERROR.search(text):
            data["layer"], data["agent"] = found["layer"], found["role"]
            if later is not record:
                shown.append(later)
        elif found := _STATUS.search(text):
            data["device_id"], data["status"], data["mask"] = found[1], found[2], found[3]
        elif (found := _BIT.search(text)) and later is not record:
            data.setdefault("bits", []).append(found[2].strip())
            shown.append(later)
        elif later is not record:
            continue
        later.used = True
    if any(bit.startswith("Surprise Down") or bit == "SDES" for bit in data.get("bits", [])):
        data["surprise_down"] = True
    event.text = _join(*shown)
    return event


def _from_id(number: str) -> str | None:
    # id=0010 is bus 00, device 02, function 0: eight, five and three bits
    value = int(number, 16)
    return ids.pci(f"0000:{value >> 8:02x}:{value >> 3 & 31:02x}.{value & 7}")


def stack(run: Run, event: Event, number: int) -> Event:
    """Read the stack below a hung task or a lockup: frames of the NVIDIA driver or of a file system tell what it waits for."""
    modules: list[str] = []
    storage = nvidia = network = False
    for later in run.after(number, _STACK_MOST):
        text = later.text
        if (
            "blocked for more than" in text
            or "soft lockup" in text
            or ("state:" in text and "task:" in text and event.signature != "hung-task")
        ):
            break
        if event.signature == "hung-task" and "task:" in text and "state:" in text:
            if str(event.pid) not in text:
                break
            later.used = True
            continue
        for name, module in _FRAME.findall(text):
            if module and module not in modules:
                modules.append(module)
            nvidia = nvidia or module.startswith("nvidia")
            storage = storage or bool(_STORAGE.match(name)) or bool(_STORAGE.match(module))
            network = network or bool(_NETWORK.match(module))
    if modules:
        event.data["stack"] = modules
    elif earlier := _same_stuck(run, event):
        # said again every some seconds, with the stack only once or twice
        event.role, event.cls, event.weight = earlier.role, earlier.cls, earlier.weight
        return event
    if nvidia:
        event.data["nvidia_stack"] = True
        event.role, event.cls, event.weight = "cause", "driver/hang", 0.6
    elif event.signature == "hung-task" and _STORAGE_THREAD.match(str(event.data.get("task", ""))):
        event.role, event.cls, event.weight = "cause", "platform/storage", 0.6
    elif storage:
        event.data["storage_stack"] = True
        if event.signature == "hung-task":
            event.role, event.cls, event.weight = "symptom", "platform/storage", 0.4
        else:
            event.cls, event.weight = "platform/storage", 0.5  # a processor that spins in a file system's code is not broken
    elif network and event.signature != "hung-task":
        event.cls, event.weight = "driver/hang", 0.5
    return event


def _same_stuck(run: Run, event: Event) -> Event | None:
    for earlier in reversed(run.events[-32:]):
        if earlier.signature == event.signature and earlier.pid == event.pid and earlier.data.get("cpu") == event.data.get("cpu"):
            return earlier if earlier.data.get("stack") or earlier.cls else None
    return None


def hardware_error(run: Run, event: Event, number: int) -> Event:
    """Read the lines of one machine check or firmware error record and name the event by its gravest line."""
    record = run.records[number]
    shown = [record]
    if found := _MCE_STATUS.search(record.text):
        status = int(found[3], 16)
        event.data |= {"cpu": int(found[1]), "bank": int(found[2]), "status": found[3], "uncorrected": bool(status >> 61 & 1)}
        if event.signature == "mce-logged":
            event.signature = "mce-uncorrected" if event.data["uncorrected"] else "mce-corrected"
    for later in run.after(number, 12):
        text = later.text
        edac = text.startswith("EDAC")
        if "Hardware Error]" not in text and not edac:
            if later.at > record.at + 12:
                break
            continue
        if (
            "events logged" in text
            or (edac and " CE " not in text)
            or "event severity" in text
            or "Machine Check Exception" in text
        ):
            break
        if edac:
            if event.signature in ("mce-logged", "mce-corrected"):
                event.signature = "edac-ce"
                if count := re.search(r": (\d+) CE ", text):
                    event.data["errors"] = int(count[1])
                event.data["dimm"] = text.split(" on ", 1)[-1].split(" (")[0].strip()
                shown.append(later)
                later.used = True
            break
        if event.signature == "mce-logged":
            if "Uncorrected" in text or "Deferred" in text:
                event.signature = "mce-uncorrected"
                shown.append(later)
            elif "Corrected error" in text:
                event.signature = "mce-corrected"
                shown.append(later)
        if found := _SECTION.search(text):
            event.data["section"] = found[1].strip()
            shown.append(later)
        if found := _DEVICE_ID.search(text):
            event.data["device"] = ids.pci(found[1])
        later.used = True
    if event.data.get("section", "").startswith("PCIe"):
        event.cls = "hardware/pcie"
    event.text = _join(*shown)
    return event
