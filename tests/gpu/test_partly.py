"""Products beside what is broadcast over a part of their rows, columns or batch, masks and whole numbers; batches of
which a factor has a part; attention whose heads share keys: on a GPU, held against float64, and judged."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fakes.fused import load_fused
from fakes.judges import judged_at_first_points
from fakes.modules import Applies
from fakes.partly import PARTLY, arguments
from fakes.program_interpreter import GraphRun, run_program, view
from fakes.realisers import cuda
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FLOOR = {torch.float32: 8 * 2.0**-23, torch.bfloat16: 2.0**-7}  # docs/precision.md
PLAIN = {"sum": "kernel", "store": "direct", "schedule": "cooperative", "streamed": "none", "split": "fp16x3"}
SMALL = point(**{**PLAIN, "tile": "64x64", "cluster": "1x1", "split_k": 1})
SPLIT = point(**{**PLAIN, "tile": "128x128", "cluster": "1x1", "split_k": 2})
BULK = point(**{**PLAIN, "tile": "128x128", "cluster": "2x1", "split_k": 1, "store": "bulk"})
STREAMED = (
    point(**{**PLAIN, "tile": "128x128", "cluster": "2x1", "split_k": 1, "streamed": "left"}),
    point(**{**PLAIN, "tile": "128x128", "cluster": "1x2", "split_k": 1, "streamed": "right"}),
)


@pytest.fixture(autouse=True)
def whole_precision():
    torch.backends.cuda.matmul.allow_tf32 = False


def found(function, args: tuple[Tensor, ...]) -> tuple[Pattern, list[Tensor]]:
    """The one product, and its operands on the GPU as model.py would hand them over."""
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    (pattern,) = [p for p in matched.patterns if p.kind == "product"]
    run = GraphRun(graph, Applies(function), exact=False)
    inputs = (n for n in graph.nodes if n.op == "input")
    run.values.update({n.name: a.cuda() for n, a in zip(inputs, args, strict=True)})
    binds = zip(pattern.matches[0].operands, pattern.program.operands, strict=True)
    return pattern, [view(run.value(bind.node), bind, spec.shape) for bind, spec in binds]


def held(pattern: Pattern, module: ModuleType, operands: list[Tensor], setting: object) -> None:
    (result,) = module.run(*operands)
    exact = [o.double() if o.is_floating_point() else o for o in operands]
    (truth,) = run_program(pattern.program, exact, exact=True)
    (own,) = run_program(pattern.program, operands)
    error, theirs = (float((r.double() - truth).norm() / truth.norm()) for r in (result, own))
    assert result.shape == truth.shape and result.dtype == own.dtype, setting
    assert error <= max(2 * theirs, FLOOR[result.dtype]), f"{pattern.title} {setting}: {error:.3g}, torch {theirs:.3g}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PARTLY)
def test_what_is_read_beside_a_product_is_where_it_lies(tmp_path, name, dtype):
    pattern, operands = found(PARTLY[name][0], arguments(name, dtype))
    module = load_fused(pattern.program, tmp_path)
    streamed = STREAMED if dtype == torch.float32 and operands[0].shape[-1] % 16 == 0 else ()
    for setting in dict.fromkeys((SMALL, SPLIT, BULK, *streamed, *pattern.space.points)):
        module.configure(**dict(setting))
        held(pattern, module, operands, dict(setting))


@pytest.mark.parametrize(
    "shapes", [((3, 1, 16, 1024), (3, 4, 1024, 1024)), ((2, 3, 8, 1024), (3, 1024, 1024))], ids=str
)
def test_a_few_rows_of_a_batch_of_which_a_factor_has_a_part(tmp_path, shapes):
    args = tuple(torch.randn(s, generator=torch.Generator().manual_seed(len(s))).bfloat16() for s in shapes)
    pattern, operands = found(lambda a, b: torch.relu(a @ b), args)
    assert any(dict(p)["sum"] == "cluster" for p in pattern.space.points), "skinny"
    module = load_fused(pattern.program, tmp_path)
    for setting in (SMALL, *pattern.space.points):
        module.configure(**dict(setting))
        held(pattern, module, operands, dict(setting))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_added_to_a_batch_may_be_broadcast(tmp_path, dtype):
    draw = torch.Generator().manual_seed(3)
    shapes = ((136, 1), (6, 136, 200), (6, 200, 184))
    c, a, b = (torch.randn(s, generator=draw).to(dtype) for s in shapes)
    pattern, operands = found(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5), (c, a, b))
    module = load_fused(pattern.program, tmp_path)
    for setting in (SMALL, *pattern.space.points[:3]):
        module.configure(**dict(setting))
        held(pattern, module, operands, dict(setting))


ATTENTION = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, q, k, v, mask):
        k, v = (x.repeat_interleave(4, 1) for x in (k, v))
        scores = (q @ k.transpose(-1, -2) * 0.125).masked_fill(mask, -1e4)
        return scores.softmax(-1) @ v

def get_inputs():
    heads = (torch.randn(2, n, 520, 64, dtype=torch.{dtype}) for n in (16, 4, 4))
    return [*heads, torch.rand(2, 1, 520, 520) > 0.8]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_judge_takes_attention_whose_heads_share_keys(tmp_path: Path, dtype: str) -> None:
    chosen, timed = judged_at_first_points(ATTENTION.replace("{dtype}", dtype), tmp_path)
    products = [p for p in chosen if p.kind == "product"]
    assert [p.program.domain for p in products] == [(8, 2080, 520), (8, 2080, 64)]
    assert isinstance(timed, Timed), timed
    print(timed.ratio("eager"), file=sys.stderr)
