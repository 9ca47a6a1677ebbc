"""What logs repeat when nothing is wrong: the text by which `gate` judges how rare a piece of a signature is."""

from __future__ import annotations

__all__ = ["ORDINARY"]

# Lines that tools write again and again while a job runs, in their style, written for this purpose. What is said once at the start
# does not matter, since it costs nothing.
ORDINARY = """\
 1034: [default2]: [2026-05-04 11:02:03] iteration 4812/ 500000 | consumed samples: 9854976 | elapsed time per iteration (ms): 7138.7 |
 learning rate: 1.500E-04 | global batch size: 2048 | lm loss: 2.134514E+00 | loss scale: 1.0 |
 grad norm: 0.213 | number of skipped iterations: 0 | number of nan iterations: 0 |
[2026-05-04 11:02:03,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=480, skipped=0, lr=[0.00015], mom=[(0.9, 0.95)]
[Rank 8] (after 100 iterations) memory (MB) | allocated: 30412.5 | max allocated: 61277.0 | reserved: 65536.0 | max reserved: 65536.0
gpu-node-012:10231:20417 [3] NCCL INFO Channel 07/0 : 1034[2] -> 1035[3] via P2P/CUMEM/read
gpu-node-012:10231:20417 [3] NCCL INFO comm 0x7f3a5c00 rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x91 - Init COMPLETE
[rank3]: 2026-05-04 11:02:03,123 - trainer.data - INFO - shard 00ff12ab34cd56ef cursor 81234 prefetch queue 12/64 tokens/s 9123
2026-05-04 11:02:03,123 | INFO | trainer | step 4812 loss 2.1345 grad_norm 0.213 lr 1.5e-04 tok/s/gpu 9123 mfu 0.41 mem 61.2GiB
INFO:trainer:epoch 3 step 120/4000 loss=1.234 acc=0.87 time=0.52s data=0.01s
{'loss': 1.8123, 'grad_norm': 0.5123, 'learning_rate': 1.98e-05, 'epoch': 0.12, 'num_input_tokens_seen': 1234567}
 37%|███▋      | 1480/4000 [12:31<21:17,  1.97it/s, loss=1.23]   Epoch 2/10: 100%|██████████| 512/512 [01:02<00:00,  8.21it/s, v_num=3]
Epoch: [12][ 140/5004]  Time  0.412 ( 0.433)  Data  0.002 ( 0.010)  Loss 2.1032e+00  Acc@1  52.34 ( 51.20)  Acc@5  76.95 ( 75.87)
INFO 05-04 11:02:03 [metrics.py:486] Avg prompt throughput: 812.3 tokens/s, Avg generation throughput: 423.1 tokens/s, Running: 12 reqs,
 Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 31.2%, CPU KV cache usage: 0.0%, Prefix cache hit rate: 12.4%
INFO:     10.0.0.91:47582 - "POST /v1/chat/completions HTTP/1.1" 200 OK   INFO:     10.0.0.91:47582 - "GET /health HTTP/1.1" 200 OK
[2026-05-04 11:02:03 TP4] Decode batch. #running-req: 12, #token: 41230, token usage: 0.31, gen throughput (token/s): 612.3, #queue-req: 0
[11:02:03.123] DEBUG - async writer idle, 812 MiB pinned; dataloader workers=8 prefetch_factor=4 pin_memory=True persistent_workers=True
May  4 11:02:03 gpu-node-012 kernel: [ 1234.567890] audit: type=1400 audit(1777892523.123:45): apparmor="ALLOWED" operation="open" pid=4071
May  4 11:02:03 gpu-node-012 kubelet[2269]: I0504 11:02:03.506714 2269 reconciler_common.go:245] "operationExecutor.MountVolume started"
[2026-05-04T11:02:03.890] sched: Allocate JobId=63532 NodeList=gpu-node-[001-016] #CPUs=3584 Partition=train
{"level":"info","ts":"2026-05-04T11:02:03.123Z","msg":"reconciled","namespace":"team-nlp","name":"llm-worker-3","duration":"12.1ms"}
val loss 2.0412 | val ppl 7.71 | tokens 1.2B | time 3h 12m | throughput 412 samples/s | memory reserved 65.5 GB | step time 7.14s
May  4 11:02:03 gpu-node-012 kernel: [   12.345678] docker0: port 1(veth12ab34) entered blocking state, entered forwarding state
May  4 11:02:03 gpu-node-012 kernel: [    3.456789] pci 0000:3b:00.0: BAR 6 assigned, PCI bridge to bus, enabling device, link up 16.0 GT/s
May  4 11:02:03 gpu-node-012 kernel: usb 1-2: new high-speed device using xhci_hcd, registered new interface driver, version 1.2, disabled
May  4 11:02:03 gpu-node-012 kernel: mlx5_core 0000:5d:00.0 ens1f0: Link up; nvidia-nvlink: loaded with major device number 235, tainted
May  4 11:02:03 gpu-node-012 systemd[1]: Started session 12 of user root. Starting system service, reached target, listening on socket
May  4 11:02:03 gpu-node-012 containerd[1823]: time="2026-05-04T11:02:03Z" level=info msg="container created from plugin cni"
/opt/conda/lib/python3.11/site-packages/torch/distributed/launch.py:181: FutureWarning: the module is deprecated and will be removed in a future
 version, please use another one instead; this is not available for all requests with that value and was set to the default. warnings.warn(
Loading checkpoint shards, downloading tokenizer file from cache: using device map auto, processed 12 files in 3.1s, saved model state to
 /mnt/out/checkpoints/step_4800/pytorch_model.bin, started process group with backend nccl, launching workers, elapsed time
I0000 00:00:1777892523.123456 10231 service.cc:148] XLA service initialized, device_compiler.h:186] Compiled cluster using XLA, utils.cu:12]
gpu-node-012:10231:10231 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB bond0:10.0.0.12 NET/Plugin UCX contains no port, table found
"""
