"""A job that goes on without one of its node's GPUs begins from what fewer ranks can restore, not from what all of them could."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.training.test_run import QUICK, ROOT, Runs

DEEPSPEED = ROOT / "tests/data/checkpoints/deepspeed/whole"  # saved by two ranks
GPUS = (
    "GPU-5e1a0001-0000-4000-8000-000000000001",
    "GPU-5e1a0001-0000-4000-8000-000000000002",
    "GPU-5e1a0001-0000-4000-8000-000000000003",
)
SMI = "#!/bin/sh\n" + "".join(f"echo '{at}, {uuid}, 00000000:{at + 1}B:00.0'\n" for at, uuid in enumerate(GPUS))
# what a rank prints whose GPU's memory failed, once; then it ends well
TORCHRUN = """#!/bin/sh
host=$(uname -n)
echo "attempt $WORKBENCH_ATTEMPT: $* from ${WORKBENCH_RESUME_FROM:-nothing} on ${CUDA_VISIBLE_DEVICES:-all}"
[ "$WORKBENCH_ATTEMPT" = 1 ] || exit 0
for rank in 0 1 2; do
  at=$((rank + 1))
  echo "$host:10$rank:10$rank [$rank] NCCL INFO comm 0x5581e8a0 rank $rank nranks 3 cudaDev $rank nvmlDev $rank busId ${at}b000 commId 0x1 - Init COMPLETE"
done
echo "[rank2]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
exit 1
"""


class OnThree(Runs):
    """Runs on a node with three GPUs, one of which may be left out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.policy.write_text(QUICK + "[gpus]\nmin = 2\n")
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name, text in (("nvidia-smi", SMI), ("torchrun", TORCHRUN)):
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in super().env.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**kept, "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}"}


def test_the_checkpoint_is_one_that_the_ranks_that_are_left_can_restore(tmp_path: Path) -> None:
    runs = OnThree(tmp_path)
    shutil.copytree(DEEPSPEED, tmp_path / "ckpt")
    code, out, err = runs.done(
        "torchrun", "--standalone", "--nproc-per-node", "3", "train.py", options=["--checkpoints", str(tmp_path / "ckpt")]
    )
    assert code == 0, err.decode()
    first, second = (line for line in out.decode().splitlines() if line.startswith("attempt "))
    assert "--nproc-per-node 3" in first
    assert "from nothing" in first  # saved by two ranks: three cannot take it
    assert "--nproc-per-node 2" in second
    assert f"from {tmp_path / 'ckpt'}" in second
    assert second.endswith(",".join(GPUS[:2]))
