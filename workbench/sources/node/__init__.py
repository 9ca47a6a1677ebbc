"""This node: NVML, nvidia-smi and the kernel log into the files of an incident folder."""
