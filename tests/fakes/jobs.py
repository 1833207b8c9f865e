"""A candidate that asserts what it is called with, recorded for tools that run it by itself."""

from __future__ import annotations

from pathlib import Path

import torch

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.problem import Work
from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.rerun import RECORDED
from tilewright.judge.memory.mapped import contiguous
from tilewright.judge.sanitize import SanitizerJob
from tilewright.judge.wire import messages as wire

MODEL = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.factor = factor

    def forward(self, x):
        assert self.weight.tolist() == [1.0, 2.0, 3.0], "the state was not loaded"
        assert x.tolist() == [4.0, 5.0, 6.0] and self.factor.item() == 2.0
        print("called")
        return x * self.weight * self.factor
"""


def job(folder: Path, text: str = MODEL, environment: tuple[tuple[str, str], ...] = ()) -> SanitizerJob:
    tensors: list[torch.Tensor] = []
    init = values.encode([torch.tensor(2.0)], tensors)
    x = torch.tensor([4.0, 5.0, 6.0])
    given: list[torch.Tensor] = []
    args = values.encode([x], given)
    work = Work(bytes_read=12, bytes_written=12, matmul_flops=0, conv_flops=0, dtype="f32")

    described = wire.Described(
        init=init, init_tensors=(contiguous((), "f32"),), args=args, inputs=(contiguous((3,), "f32"),),
        outputs_tree="", outputs=(), state=(wire.NamedSpec(name="weight", spec=contiguous((3,), "f32")),),
        mutated_state=(), random=False, work=work, graph="", trace_failure="", nominal_s=0.0,
        gradients=wire.NO_GRADIENTS,
        longest_sum=1,
    )  # fmt: skip
    place = folder / "job"
    place.mkdir(parents=True)
    torch.save({"init": tensors, "state": [torch.tensor([1.0, 2.0, 3.0])], "inputs": given}, place / RECORDED)
    candidate = Candidate(files=(SourceFile(path="model.py", text=text),))
    return SanitizerJob(
        candidate=candidate, described=described, folder=place, seed=1, device="cpu", environment=environment
    )  # fmt: skip
