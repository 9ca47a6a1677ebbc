"""Turn what each kind of evidence looks like into regular expressions over single lines; `sniff` counts how many lines fit."""

from __future__ import annotations

import re

__all__ = [
    "BMC",
    "BMC_SURE",
    "FABRIC",
    "HEALTH_RECORD",
    "HOSTENGINE",
    "FABRIC_SURE",
    "JOB",
    "JOB_SURE",
    "KERNEL_BODY",
    "KERNEL_NAME",
    "KERNEL_STAMP",
    "KUBE_BARE",
    "KUBE_TEXT",
    "LAUNCH",
    "METRIC",
    "METRIC_META",
    "SLURM_LOG",
    "SLURM_SURE",
    "SLURM_TABLE",
    "SMI",
    "SMI_CSV",
    "SMI_SURE",
    "STACK",
    "STACK_SURE",
]


def lines(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{each})" for each in patterns))


# [ 1234.567890] …  |  [ 130.456250] [ T1946] …  |  [  +0.000049] …  |  [Sun Feb 23 16:24:18 2025] …  |  <4>[ 12.3] …
# [So Feb 23 16:24:18 2025] …  |  [dim. févr. 23 16:24:18 2025] …  |  [日 2月 23 16:24:18 2025] …  (dmesg -T of other locales)
# kern  :err   : 2025-01-25T10:34:54,859532+00:00 …  |  6,1234,5678901,-;…  |  10.1.2.3: kern: warning: [2026-…]: …
KERNEL_STAMP = lines(
    r"(?:[\w.-]+: |[\w.-]+ \| \w+ \| )?(?:<\d{1,3}>)?\[ *\d{1,9}\.\d{3,9}\]? (?!\[?\w+:\d+:\d+\])",
    r"(?:[\w.-]+: )?\[ *\+\d+\.\d+\]",
    r"(?:[\w.-]+: )?\[ *[^\W\d_]{1,10}[.,]? +[^\W_]{1,12}\.? +\d{1,2}\.? +\d\d:\d\d:\d\d(?:[.,]\d+)?(?: \d{4})?\] ",
    r"(?:kern|user|daemon) *:\w+ *: ",
    r"\d{1,3},\d+,\d+,[-c]",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:?\d\d ",  # dmesg --time-format iso: a comma, microseconds and no host
    r"\S+: kern: +\w+: \[",
    r"(?:Panic|Oops|Emergency)#\d+ Part\d+",
)
# May  4 11:02:03 node-7 kernel: …  |  2026-05-04T11:02:03.1+00:00 node-7 kernel: [ 12.3] …  |  kernel: …  |  localised dates
KERNEL_NAME = re.compile(r"^.{0,80}?(?<!\w)kernel(?:(?:\[\d+\])?:| - - -) ")
# the body of a kernel line, for logs whose stamps were cut off
KERNEL_BODY = re.compile(
    r"^\W*(?:(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?[ \t]+)?(?:NVRM: |"
    r"Xid \d{1,3} (?:\(?PCI|on |at )|nvidia(?!-(?:container|smi|persistenced|fabricmanager|docker|ctk))[\w-]*: |"
    r"nvidia-nvswitch\d*: |nvidia-nvlink|nvidia-uvm|nvidia-peermem|pcieport |AER: |EDAC |mce: |mlx5_core |bnxt_en |amdgpu |\[drm|"
    r"nvme\d|nvme |I/O error, dev |EXT4-fs|XFS \(|BTRFS|blk_update_request|Lustre|LNet|BUG: |watchdog: |"
    r"INFO: task |INFO: rcu|rcu: |"
    r"task:\S+ +state:|Call Trace:|RIP: |RSP: |Code: [0-9a-f]{2} |Memory cgroup out of memory|"
    r"Out of memory: |oom-kill:|oom_reaper|\S+ invoked oom-killer|"
    r"Modules linked in|CPU: \d+ (?:UID: \d+ )?PID: |Kernel panic|traps: |\S+\[\d+\]: segfault at|usb \d|"
    r"pci \d{4}:|ACPI|systemd\[1\]|perf: |IPv6: |"
    r"nfs: |rpc|mlx4|i40e|ice |ixgbe|audit:|Hardware name:|\{\d+\}\[Hardware Error\]|\[Hardware Error\])"
)
# *_SURE: words of which a text of this kind has at least one; looked for first, since that is fast
# [Feb 25 2025 13:59:45] [INFO] [tid 1803] …   |   … nv-fabricmanager[4177]: …
FABRIC = lines(
    r"\[\w{3} \d\d \d{4} \d\d:\d\d:\d\d\] \[\w+ *\] \[tid \d+\]",
    r".*(?:nv-fabricmanager|nv-imex|nvidia-fabricmanager)(?:\[\d+\])?[.:]",
)
FABRIC_SURE = (
    "] [tid ",
    "nv-fabricmanager",
    "nv-imex",
    "nvidia-fabricmanager",
)
# [2020-12-14T08:59:01.890] launch task …   |   … slurmd[13562]: …   |   slurmctld: …
SLURM_LOG = lines(r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\] ", r".{0,60}?\bslurm(?:ctld|d|dbd|stepd)(?:\[\d+\])?: ")
SLURM_SURE = (
    "slurm",
    "sched: ",
    "launch task",
    "JobId=",
    "error: ",
    "StepId=",
    "node_",
    "NodeName",
    ".extern]",
    ".batch]",
    ".0]",
    "nhc",
    "agent",
)
JOB_SURE = (
    "NCCL",
    "Traceback",
    "torch",
    "Epoch",
    "loss",
)
SLURM_TABLE = lines(
    r"\s*JobID(?:Raw)?\|",
    r"\s*JobID(?:Raw)?\s+(?:JobName|State|User|Partition|Elapsed|ExitCode|NodeList)\b",
    r"(?:\w+\|)*(?:JobID|JobIDRaw|JobName|NodeList|AllocTRES)\|",
    r"NodeName=\S+",
    r"\s*JobId=\d+",
    r"PartitionName=",
    r"\s*PARTITION\s+AVAIL",
    r"\s*JOBID\s+(?:PARTITION|NAME|ST)",
    r"\s*NODELIST\s+(?:NODES|STATE)",
    r"REASON\|",
    r"\s*REASON\s+USER\s+TIMESTAMP",
    r"(?:NODELIST|NODES|STATE|HOSTNAMES)\|",
    r"(?:Cluster\|)?NodeName\|TimeStart\|",
    r"\s*(?:Cluster\s+)?NodeName\s+TimeStart",
)
# findings of health monitors (NVSentinel, SageMaker HMA) and lines of node controllers (Karpenter), JSON
HEALTH_RECORD = re.compile(
    r'"(?:[Ee]ntities_?[Ii]mpacted|entitiesimpacted|[Hh]ealth_?[Ee]vent|healthevent|HealthMonitoringAgentDetectionEvent'
    r'|checkName|diag_level|NodeClaim|nodeclaim)"\s*:|"health"\s*:\s*"(?:Unh|H)ealthy"|"logger"\s*:\s*"controller|"controller"\s*:\s*"(?:interruption|disruption|node)'
)
# DCGM_FI_DEV_GPU_TEMP{gpu="0",…} 41 1754424936.600
METRIC = re.compile(r"^[a-zA-Z_:][\w:]*(?:\{.*\})? +[-+]?(?:\d[\d.eE+-]*|NaN|Inf)(?: +-?[\d.eE+]+)?(?: *#.*)?\s*$")
METRIC_META = re.compile(r"^# (?:HELP|TYPE|UNIT|EOF)\b")
KUBE_TEXT = lines(
    r"Name: {2,}\S",
    r"Namespace: {2,}\S",
    r"NAME +(?:STATUS|READY|AGE|STATE|COMPLETIONS|DESIRED|MIN|REASON)",
    r"NAMESPACE +[A-Z]",
    r"LAST SEEN +(?:TYPE|FIRST SEEN|COUNT)",
    r" *Type +(?:Reason|Status) +(?:Age|LastHeartbeatTime)",
    r"\s*(?:Normal|Warning)\s{2,}[A-Z]\w+\s{2,}(?:<invalid>|\d+[ydhms])",  # the events of `kubectl describe`, cut out
    r"(?:Events|Conditions|Tolerations|Node-Selectors|Containers|Init Containers|Allocated resources|"
    r"Non-terminated Pods|Capacity|Allocatable|Taints|QoS Class|Roles):(?: |$)",
)
# rows of `kubectl get pods --no-headers`; events printed as time, type and message
KUBE_BARE = lines(
    r"\s*(?:[a-z0-9][a-z0-9-]* +)?[a-z0-9][\w.-]* +\d{1,3}/\d{1,3} +[A-Z][\w:/]* +\d+(?: \([^)]{1,12} ago\))? +\d+[ydhms]",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z\s+(?:\[(?:Normal|Warning)\]|(?:Normal|Warning)\s)",
)
# output of nvidia-smi, dcgmi, lspci, ibstat
SMI = lines(
    r"\s*[●○×*] [\w@.-]+\.service(?: - .*)?$",  # systemctl status
    r"\s+(?:Loaded|Active|Docs|Main PID|Process|Tasks|Memory|CPU|CGroup|TriggeredBy): ",
    r"[|+][-=|+ ].*[|+]\s*$",
    r"\| .*\|\s*$",
    r"NVIDIA-SMI ",
    r"Failed to initialize NVML",
    r"NVML library version",
    r"Unable to determine the device handle",
    r"(?:Unable to|Failed to) .*(?:GPU|NVML|device)",
    r"No devices (?:were )?found",
    r"\s*GPU \d+: .*(?:UUID|GPU|Tesla|NVIDIA|A100|H\d00)",
    r"GPU [0-9A-Fa-f]{8}:",
    r" *(?:Timestamp|Driver Version|CUDA Version|Attached GPUs|Product Name|Product Brand|GPU UUID|"
    r"Serial Number|Bus Id|Minor Number) +: ",
    r" *(?:ECC Errors|Volatile|Aggregate|Remapped Rows|Retired Pages|Clocks(?: Event| Throttle)? Reasons|"
    r"Fabric|PCI|Temperature|Power Readings|ECC Mode|FB Memory Usage|BAR1 Memory Usage|Utilization|"
    r"Processes)\s*$",
    r" +[\w /().-]+ +: \S",
    r"\s*Link \d+: ",
    r"\s*(?:\x1b\[4m)?GPU0\s+GPU1",
    r"GPU\d+\s+X?\s+(?:NV|SYS|PHB|PIX|NODE|PXB|X)",
    r"(?:index|name|uuid|gpu_name|pci\.bus_id|timestamp|gpu_bus_id)(?:,| ).*(?:uuid|pci|name|\[)",
    r"\d+, [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:",
    r"\$ (?:nvidia-smi|dcgmi|lspci|ibstat)",
    r"(?:Successfully ran diagnostic|Error: .*DCGM|Error: unable to establish a connection to the specified host)",
    r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (?:VGA|3D|Bridge|PCI|Infiniband|Audio|USB|Serial|"
    r"Non-Vol|Ethernet|Processing|Host|\")",
    r"\s+(?:LnkSta|LnkCap|LnkCtl|Capabilities|Kernel driver in use|Subsystem|Control|Region \d|DevSta|UESta|CESta):",
    r"CA '[\w.-]+'",
    r"\s+(?:CA type|Number of ports|Firmware version|Hardware version|Node GUID|System image GUID|"
    r"Port \d+|State|Physical state|Rate|Base lid|SM lid|Link layer|Port GUID|LMC|Capability mask):",
    r"Infiniband device '",
    r".*\[XID found\]",
    r"=+NVSMI LOG=+",
    r" {4,}[A-Z][\w /()-]{2,40}$",
    r"(?:Node #\d+ +[*-] |Connectivity Table Legend|[INRDC] - (?:Invalid|Never|Recovering|Disconnected|Connected)|Nodes From.To|"
    r" +\d+ +(?:[INRDCX] +)+$|Domain State: |Nodes:$|\d+/\d+/\d{4} \d\d:\d\d:\d\d)",
    r"GPU [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0",
    r"\s*[\d.]+%\s+proc'd: ",
    r"\s*GPU \d+: (?:OK|FAULTY)",
    r"Tested \d+ GPUs:|Killing processes|Freed memory for dev|Initialized device \d|Using compare|Burning for|Uninitted cublas",
    r"\s*Link \d+: (?:Replay|Recovery|CRC)",
    r"\[\d{1,3}\] .+\| *[\d?]+ ?(?:°C|'C|℃), | [├└]─ +\d+ \(",  # gpustat, and its first line
    r"[\w.-]+ {2,}\S.*\d\d:\d\d:\d\d.* {2,}\d{3}(?:\.\d+)+$",
    r"[│╒├╞╘]|\[ (?:CPU|MEM): ",  # nvitop
    r"=+ ?.*(?:ROCm|End of|Info).*=+$|GPU\[\d+\]\s*: |=+$",  # rocm-smi
    r"(?:Device|GPU) +(?:Node|Temp)\b| +\(DID,|\d+ +(?:\d+ +0x[0-9a-f]+,|\d+\.\d+°?[cC] ) ",
    r"GPU: \d+$|    +[A-Z][A-Z0-9_]+:(?: .*)?$|ERROR:root:.*(?:amdgpu|GPU devices)",  # amd-smi
)
# 2025-12-22 10:41:07.221 ERROR [1514002:1514004] [[Health]] …  (nv-hostengine.log of DCGM)
HOSTENGINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} +(?:FATAL|CRITICAL|ERROR|WARN\w*|INFO|DEBUG|VERB\w*) +\[\d+:\d+\] |"
    r"(?:FATAL|CRITICAL|ERROR|WARN\w*|INFO|DEBUG|VERB\w*) +\[\d+:\d+\] \[\["  # copied without its time
)
SMI_SURE = (
    "NVIDIA-SMI",
    "Failed to initialize NVML",
    "Unable to determine the device handle",
    "No devices found",
    "No devices were found",
    "Attached GPUs",
    "dcgmi",
    "DCGM",
    "Overall Health",
    "Diagnostic",
    "ECC Errors",
    "<inactive>",
    "GB/s",
    "NVIDIA Corporation",
    "Infiniband device",
    "CA '",
    "Bus-Id",
    "pci.bus_id",
    "GPU0",
    "GPU Memory",
    "[XID found]",
    "GPU-",
    "Remapped Rows",
    "Throttle Reasons",
    "NVSMI LOG",
    "Clocks Event Reasons",
    "HW Power Brake Slowdown",
    "GPU Recovery Action",
    "GPU Reset Status",
    "Fabric\n",
    "Domain State: ",
    "Node #0",
    "Replay Errors:",
    "CRC Errors:",
    "Recovery Errors:",
    "proc'd: ",
    ": FAULTY",
    ".service - ",
    "°C, ",
    "'C, ",
    "℃, ",
    "NVITOP",
    "ROCm System Management Interface",
    "TOTAL_UNCORRECTABLE_COUNT",
    "amdgpu not found in modules",
)
# the header of `nvidia-smi --query-gpu=… --format=csv`: timestamp, index, temperature.gpu, power.draw [W]
_CELL = (
    r"(?:timestamp|index|name|count|serial|pstate|pid|process_name|used_memory|\w*uuid|\w+_version|\w+_mode|gpu_\w+|used_gpu_memory"
    r"|(?:pcie?|temperature|utilization|memory|power|clocks\w*|ecc|retired_pages|remapped_rows|fabric|fan|enforced|mig|inforom|gom"
    r"|reset_status|encoder|module|gsp)\.[\w.]+)(?: \[[^\],]*\])?"
)
SMI_CSV = re.compile(rf"#? ?{_CELL}(?:, ?{_CELL})+\s*$")
# Process 20384: … | Thread 20384 (idle): "MainThread" | Thread 0x00007f… (most recent call first): | train (train.py:191)
STACK = lines(
    r"Process \d+: ",
    r"Timeout \([\d:.]+\)!",
    r"Python v\d",
    r"Thread (?:0x)?[0-9a-fA-F]+ ?\(",
    r"Current thread 0x",
    r" +[\w.<>]+ \([^()]*:\d+\)\s*$",
    r' +File ".*", line \d+ in ',
    r" +(?:Arguments|Locals):",
    r"#\d+ +(?:0x[0-9a-f]+ in )?[A-Za-z_~][\w:~<>*& ,]*@?[\w.]* ?\(.*\)(?: (?:from|at) |\s*$)",
    r"(?:\[New LWP|Thread \d+ \(LWP|\(gdb\))",
)
STACK_SURE = (
    "Process ",
    "Thread ",
    "Current thread 0x",
    "#0 ",
)
# 6a | 04/12/2024 | 03:27:29 PM CDT | Critical Interrupt | …   |   iLO and iDRAC records
BMC = lines(
    r"\s*[0-9a-fA-F]+ *\| *(?:\d\d/\d\d/\d{2,4}|Pre-Init|\w{3}-\d\d-\d{4}) *\|",
    r"\s*\d+,\"?[\d/: -]+\"?,.*(?:Assert|Deassert)",
    r"\s*\d+ +(?:Critical|Caution|Repaired|Informational|Info) +\d\d:\d\d",
    r"LOG: ",
    r"(?:Record|Date/Time|Severity|Source|Description|Category|MessageID|SeqNumber|Message ID|AgentID|"
    r"FQDD|Timestamp|Message)\s*[:=] ",
    r"-{20,}\s*$",
    r"\s*ID +\| Date +\| Time",
    # 2026-05-04 11:02:03  CRITICAL  MEM0001  Multi-bit …   (racadm lclog view)
    r"\s*\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*[\s|]+(?:(?:CRITICAL|WARNING|INFO\w*|Critical|Warning)[\s|]+)?[A-Z]{3}\d{3,4}\b",
)
BMC_SURE = (
    "| Asserted",
    "| Deasserted",
    "LOG: ",
    "Assertion Event",
    "Severity",
    "iLO",
    "iDRAC",
    "Integrated Management",
    "OEM record",
    "MessageID",
    "System Event Log",
    "SEL Record",
    *(
        f" {family}{digit}"
        for family in ("MEM", "PSU", "CPU", "PCI", "RDU", "FAN", "TMP", "PWR", "PDR", "UEFI")
        for digit in "0137"
    ),
)
LAUNCH = re.compile(
    r"^(?:[\w.-]+[$#] |\$ |\+ |# )?(?:\w+=\S+ )*(?:\S*/)?(?:torchrun|srun|sbatch|mpirun|mpiexec|deepspeed|"
    r"accelerate launch|python[\d.]* |ray|horovodrun|pdsh|kubectl|helm|docker run|bash)(?= |$)"
    r"(?! (?:was|is|has|noticed|detected|could|cannot|can|will|failed|encountered) )"  # what a launcher says of itself
)
JOB = re.compile(
    r"Traceback \(most recent call last\)|^\s+File \".*\", line \d+|NCCL (?:INFO|WARN)|ProcessGroup|"
    r"torch\.|\bEpoch\b|\bloss\b|\bstep\b|iteration|Error\b|WARNING|"
    r"\bINFO\b|\[rank\d+\]|\[default\d+\]|\[\d+\]:|^\d+: |\(pid=|torchrun|torch/|site-packages|cuda|CUDA|"
    r"srun: |slurmstepd: |it/s|\d%\|",
    re.I | re.M,
)
