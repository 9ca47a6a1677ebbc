"""What logs say when nothing is wrong: the text by which `gate` judges how rare a piece of a signature is."""

from __future__ import annotations

__all__ = ["ORDINARY"]

# Lines in the style of common tools, written for this purpose; only the frequency of their letter triples matters.
ORDINARY = """\
 1034: [default2]: [2026-05-04 11:02:03] iteration 4812/ 500000 | consumed samples: 9854976 | elapsed time per iteration (ms): 7138.7 |
 learning rate: 1.500E-04 | global batch size: 2048 | lm loss: 2.134514E+00 | loss scale: 1.0 | grad norm: 0.213 | number of skipped iterations: 0
[2026-05-04 11:02:03,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=480, skipped=0, lr=[0.00015], mom=[(0.9, 0.95)]
[Rank 8] (after 100 iterations) memory (MB) | allocated: 30412.5 | max allocated: 61277.0 | reserved: 65536.0 | max reserved: 65536.0
gpu-node-012:10231:20417 [3] NCCL INFO Channel 07/0 : 1034[2] -> 1035[3] via P2P/CUMEM/read
gpu-node-012:10231:20417 [3] NCCL INFO Using network IBext; NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.2.49<0>
gpu-node-012:10231:20417 [3] NCCL INFO comm 0x7f3a5c00 rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x91 - Init COMPLETE
node-7:815:864 [0] NCCL INFO Trees [0] 1/-1/-1->0->8 [1] 1/-1/-1->0->8; Connected all rings; Connected all trees; 24 coll channels
[rank3]: 2026-05-04 11:02:03,123 - trainer.data - INFO - shard 00ff12ab34cd56ef cursor 81234 prefetch queue 12/64 tokens/s 9123
2026-05-04 11:02:03,123 | INFO | trainer | step 4812 loss 2.1345 grad_norm 0.213 lr 1.5e-04 tok/s/gpu 9123 mfu 0.41 mem 61.2GiB
INFO:trainer:epoch 3 step 120/4000 loss=1.234 acc=0.87 time=0.52s data=0.01s; saving checkpoint to /checkpoints/run-12/step_4800
{'loss': 1.8123, 'grad_norm': 0.5123, 'learning_rate': 1.98e-05, 'epoch': 0.12, 'num_input_tokens_seen': 1234567}
 37%|███▋      | 1480/4000 [12:31<21:17,  1.97it/s, loss=1.23]   Epoch 2/10: 100%|██████████| 512/512 [01:02<00:00,  8.21it/s, v_num=3]
Epoch: [12][ 140/5004]  Time  0.412 ( 0.433)  Data  0.002 ( 0.010)  Loss 2.1032e+00  Acc@1  52.34 ( 51.20)  Acc@5  76.95 ( 75.87)
Loading checkpoint shards: 100%|██████████| 30/30 [00:41<00:00,  1.38s/it]; Some weights of the model were newly initialized
INFO 05-04 11:02:03 [metrics.py:486] Avg prompt throughput: 812.3 tokens/s, Avg generation throughput: 423.1 tokens/s, Running: 12 reqs,
 Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 31.2%, CPU KV cache usage: 0.0%, Prefix cache hit rate: 12.4%
INFO:     10.0.0.91:47582 - "POST /v1/chat/completions HTTP/1.1" 200 OK   INFO:     10.0.0.91:47582 - "GET /health HTTP/1.1" 200 OK
(Worker_TP0 pid=58215) INFO 02-26 09:09:49 [gpu_model_runner.py:1801] Starting to load model /models/llama-70b; Loading weights took 41.2 s
(RayTrainWorker pid=9123, ip=10.0.24.11) Setting up process group for: env:// [rank=3, world_size=16]; Moving model to device: cuda:3
[2026-05-04 11:02:03 TP4] Decode batch. #running-req: 12, #token: 41230, token usage: 0.31, gen throughput (token/s): 612.3, #queue-req: 0
W0504 11:02:03.123000 4071 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default,
 to avoid your system being overloaded, please further tune the variable for optimal performance in your application as needed.
I0504 11:02:03.123456 4071 torch/distributed/elastic/agent/server/api.py:858] Rendezvous complete for workers. Result: restart_count=0
 master_addr=gpu-node-001 master_port=29500 group_rank=0 group_world_size=2 local_ranks=[0, 1, 2, 3] role_ranks=[0, 1, 2, 3]
[11:02:03.123] DEBUG - async writer idle, 812 MiB pinned; dataloader workers=8 prefetch_factor=4 pin_memory=True persistent_workers=True
wandb: Run data is saved locally in /workspace/wandb/run-20260504; wandb: View project at https://wandb.example/team/llm; tracking run
2026-05-04T11:02:03.123456Z  INFO text_generation_router: health check passed; total_time="1.2s" validation_time="0.3ms" queue_time="31us"
num_layers ...................................... 48 hidden_size ...................................... 8192 seq_length ........ 4096
building GPT model ... > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1234567890; time to build dataset 3.2 s
May  4 11:02:03 gpu-node-012 kernel: [ 1234.567890] audit: type=1400 audit(1777892523.123:45): apparmor="ALLOWED" operation="open" pid=4071
May  4 11:02:03 gpu-node-012 systemd[1]: Started Session 412 of user root. systemd[1]: Starting Daily apt activities... Finished.
[    5.123456] nvidia-nvlink: Nvlink Core is being initialized, major device number 239; nvidia 0000:3b:00.0: enabling device (0140 -> 0142)
[   12.345678] mlx5_core 0000:61:00.0: firmware version: 28.39.1002; 252.048 Gb/s; Rate limit: 127 rates are supported, range: 0Mbps to 195312Mbps
[   14.650646] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2026; IPv6: ADDRCONF(NETDEV_CHANGE): eth0
May  4 11:02:03 gpu-node-012 kubelet[2269]: I0504 11:02:03.506714 2269 reconciler_common.go:245] "operationExecutor.MountVolume started"
[2026-05-04T11:02:03.890] sched: Allocate JobId=63532 NodeList=gpu-node-[001-016] #CPUs=3584 Partition=train; backfill: Started JobId=63533
{"level":"info","ts":"2026-05-04T11:02:03.123Z","msg":"reconciled","namespace":"team-nlp","name":"llm-worker-3","duration":"12.1ms"}
val loss 2.0412 | val ppl 7.71 | tokens 1.2B | time 3h 12m | throughput 412 samples/s | memory reserved 65.5 GB | step time 7.14s
self.model.forward(input_ids, attention_mask=attention_mask, labels=labels) -> outputs; return super().__call__(*args, **kwargs)
"""
