"""A small network that is trained as users do: under autocast, with checkpoints, in several processes.

Run as a program, it is one of those processes: `python -m fakes.trained RANK COUNT FOLDER` trains the module in
FOLDER/fused.pt and the one in FOLDER/plain.pt for two steps under DistributedDataParallel, and prints what is left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class TrainedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class TrainedNet(nn.Module):
    """`way`: "plain"; "autocast" or "checkpoint", in which forward runs its blocks; "reentrant", torch's older one."""

    def __init__(self, way: str = "plain") -> None:
        super().__init__()
        self.way = way
        self.blocks = nn.ModuleList([TrainedBlock() for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self._run(x).float()
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.way in ("checkpoint", "reentrant"):
                x = checkpoint(block, x, use_reentrant=self.way == "reentrant")
            else:
                x = block(x)
        return x


def main(rank: int, count: int, folder: Path) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from tilewright.faces.live import fallbacks

    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=count)
    torch.manual_seed(rank)
    x, found = torch.randn(6, WIDTH), {}
    for name in ("fused", "plain"):
        module = torch.load(folder / f"{name}.pt", weights_only=False)
        parallel = DistributedDataParallel(module)
        steps = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            steps.zero_grad()
            parallel(x).square().mean().backward()
            steps.step()
        found[name] = [p.grad.tolist() for p in module.parameters()], [p.tolist() for p in module.parameters()]
        if name == "fused":
            found["fallbacks"] = fallbacks(module)
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
