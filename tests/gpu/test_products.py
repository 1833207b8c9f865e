"""Products with what follows them, from a function to a kernel, on a GPU: held against float64; and a whole run."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.judges import judge_on_gpu
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, run_program, view
from fakes.realisers import H200, cuda
from tilewright.edges.problems import read_problem
from tilewright.edges.toolchain.installed import cuda_tool
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.facts.run import Request
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.realise.compose import compose
from tilewright.realise.gemm.tiles import KERNEL
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import optimize
from tilewright.run.places import Places

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FLOOR = {torch.float32: 8 * 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # docs/precision.md
SMALL = point(**KERNEL, tile="64x64", cluster="1x1", split_k=1, streamed="none")
SPLIT = point(**KERNEL, tile="128x128", cluster="1x1", split_k=3, streamed="none")
LARGE = point(**KERNEL, tile="256x128", cluster="1x2", split_k=1, streamed="none")


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def found(function: Callable[..., Any], *args: Tensor) -> Pattern:
    """The one product of a function, which must be all of it; traced on the CPU."""
    matched = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
    products = [p for p in matched.patterns if p.kind == "product"]
    assert len(products) == 1 and not matched.unmatched, matched
    return products[0]


def held(pattern: Pattern, module: ModuleType, operands: list[Tensor]) -> None:
    """Against the Program in float64: at most twice torch's own error in the norm, or the contract's floor."""
    (result,) = module.run(*operands)
    (truth,) = run_program(pattern.program, [o.double() for o in operands], exact=True)
    (own,) = run_program(pattern.program, operands)
    norm = truth.norm()
    error, theirs = (float((r.double() - truth).norm() / norm) for r in (result, own))
    assert result.shape == truth.shape and result.is_contiguous() and result.dtype == own.dtype
    assert error <= max(2 * theirs, FLOOR[result.dtype]), f"{pattern.title}: {error:.3g}, torch {theirs:.3g}"


def operands_of(pattern: Pattern, values: dict[str, Tensor]) -> list[Tensor]:
    """As model.py would hand them over."""
    binds = zip(pattern.matches[0].operands, pattern.program.operands, strict=True)
    return [view(values[bind.node], bind, spec.shape) for bind, spec in binds]


@pytest.fixture(autouse=True)
def whole_precision():
    torch.backends.cuda.matmul.allow_tf32 = False


def layer(a: Tensor, w: Tensor, bias: Tensor, whole: Tensor) -> Tensor:
    return F.gelu(F.linear(a, w, bias)) * 0.5 + whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_linear_layer_with_bias_activation_and_residual(tmp_path, dtype):
    args = [rand(2, 200, 520, dtype=dtype), rand(328, 520, dtype=dtype), rand(328, dtype=dtype),
            rand(2, 200, 328, dtype=dtype)]  # fmt: skip
    pattern = found(layer, *args)
    assert pattern.title == "linear -> gelu -> scale -> add"
    module = load_fused(pattern.program, tmp_path)
    names = ("args_0", "args_1", "args_2", "args_3")
    values = {name: a.cuda() for name, a in zip(names, args, strict=True)}
    for setting in (SMALL, SPLIT, LARGE, *pattern.space.points):
        module.configure(**dict(setting))
        held(pattern, module, operands_of(pattern, values))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.matmul, ((1021, 1033), (1033, 1031))),
        (F.linear, ((512, 1001), (1024, 1001), (1024,))),
        (torch.matmul, ((1024, 768), (768, 50257))),
        (torch.bmm, ((5, 333, 1000), (5, 1000, 1001))),
    ],
    ids=["odd", "linear", "words", "batch"],
)
def test_factors_that_start_anywhere(tmp_path, function, shapes, dtype):
    """At all points; only what lies so is copied."""
    args = [rand(*shape, dtype=dtype) for shape in shapes]
    pattern = found(function, *args)
    module = load_fused(pattern.program, tmp_path)
    values = {f"args_{i}": a.cuda() for i, a in enumerate(args)}
    for setting in (SMALL, SPLIT, LARGE, *pattern.space.points):
        module.configure(**dict(setting))
        held(pattern, module, operands_of(pattern, values))


@pytest.mark.parametrize(
    "shapes", [((4100, 1024), (40, 1024)), ((33, 512), (3000, 512)), ((2050, 4096), (63, 4096))], ids=str
)
def test_thin_matrices_of_fp32_are_streamed(tmp_path, shapes):
    args = [rand(*shape) for shape in shapes]
    pattern = found(F.linear, *args)
    module = load_fused(pattern.program, tmp_path)
    values = {f"args_{i}": a.cuda() for i, a in enumerate(args)}
    for setting in pattern.space.points:
        assert dict(setting)["streamed"] == ("left" if shapes[0][0] > shapes[1][0] else "right")
        module.configure(**dict(setting))
        held(pattern, module, operands_of(pattern, values))


def test_a_batch_of_70000_matrices(tmp_path):
    args = [rand(70000, 64, 64), rand(70000, 64, 64)]
    pattern = found(torch.bmm, *args)
    module = load_fused(pattern.program, tmp_path)
    values = {f"args_{i}": a.cuda() for i, a in enumerate(args)}
    for setting in pattern.space.points:
        module.configure(**dict(setting))
        held(pattern, module, operands_of(pattern, values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_transposes_rows_and_columns(tmp_path, dtype):
    def forward(a: Tensor, b: Tensor, row: Tensor, column: Tensor, whole: Tensor) -> Tensor:
        return torch.tanh(torch.bmm(a, b.transpose(1, 2)) * row + column) + whole

    shapes = ((5, 136, 200), (5, 184, 200), (184,), (136, 1), (5, 136, 184))
    args = [rand(*shape, dtype=dtype) for shape in shapes]
    pattern = found(forward, *args)
    module = load_fused(pattern.program, tmp_path)
    a, b, *others = (t.cuda() for t in args)
    vectors = [t.reshape(o.shape) for t, o in zip(others, pattern.program.operands[2:], strict=True)]
    b = b.transpose(1, 2)
    assert [o.shape for o in pattern.program.operands[2:]] == [(1, 1, 184), (1, 136, 1), (5, 136, 184)]
    for setting in (SMALL, SPLIT):
        module.configure(**dict(setting))
        held(pattern, module, [a, b, *vectors])
        # Whatever the strides: the guards of model.py look at shapes and types alone.
        across = a.transpose(1, 2).contiguous().transpose(1, 2)
        held(pattern, module, [across, b.contiguous(), *vectors[:2], torch.cat([vectors[2]] * 2, 2)[:, :, :184]])
        held(pattern, module, [torch.cat([a, a], 2)[:, :, 1:201], b, *vectors])


def test_einsum_and_odd_sizes_in_fp32(tmp_path):
    args = [rand(301, 3, 97), rand(301, 997)]
    pattern = found(lambda a, b: torch.einsum("kij,kl->ijl", a, b).sigmoid(), *args)
    module = load_fused(pattern.program, tmp_path)
    values = dict(zip(("args_0", "args_1"), (a.cuda() for a in args), strict=True))
    for setting in (SMALL, SPLIT):
        module.configure(**dict(setting))
        held(pattern, module, operands_of(pattern, values))


def a_layer(folder, setting):
    """The pattern of a small fp32 layer, its module, its arguments by name, and its operands."""
    args = [rand(256, 512), rand(512, 512), rand(512), rand(256, 512)]
    pattern = found(layer, *args)
    module = load_fused(pattern.program, folder, setting)
    values = dict(zip(("args_0", "args_1", "args_2", "args_3"), (a.cuda() for a in args), strict=True))
    return pattern, module, values, operands_of(pattern, values)


def test_weights_that_change_in_place_under_one_pointer_are_seen(tmp_path):
    pattern, module, values, operands = a_layer(tmp_path, SMALL)
    held(pattern, module, operands)
    for _ in range(3):
        values["args_1"].mul_(-3.0).add_(1.0)
        values["args_2"].data.copy_(rand(512).cuda() * 7)
        held(pattern, module, operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (result,) = module.run(*operands)
    values["args_1"].copy_(rand(512, 513).cuda()[:, :512])
    graph.replay()
    assert torch.equal(result, module.run(*operands)[0])


def test_a_kernel_from_disk_is_the_same_kernel(tmp_path):
    pattern, module, _, operands = a_layer(tmp_path, SPLIT)
    first = module.run(*operands)[0]
    kept = set((tmp_path / "build").glob("*.o"))
    assert len(kept) >= 3, "splits, product, sum"
    module._FUSED._compiled.clear()
    assert torch.equal(module.run(*operands)[0], first)
    assert set((tmp_path / "build").glob("*.o")) == kept
    held(pattern, module, operands)


def test_torch_compile_takes_it(tmp_path):
    _, module, _, operands = a_layer(tmp_path, SMALL)
    compiled = torch.compile(lambda *xs: module.run(*xs)[0] * 2, fullgraph=True)
    with warnings.catch_warnings():  # torch's own, when it imports inductor
        warnings.filterwarnings("ignore", message=".*torch.jit.script_method.*", category=DeprecationWarning)
        result = compiled(*operands)
    torch.testing.assert_close(result, module.run(*operands)[0] * 2)


def test_a_triangle_of_a_product_and_what_is_streamed(tmp_path):
    args = [rand(700, 320), rand(700, 320)]
    left, right = (a.cuda() for a in args)
    values = {"args_0": left, "t__0": right.t()}
    pattern = found(lambda a, b: torch.tril(a @ b.t(), -3) * 2, *args)
    assert pattern.title == "matmul -> tril -> scale"
    module = load_fused(pattern.program, tmp_path)
    for setting in (SMALL, SPLIT, LARGE):
        module.configure(**dict(setting))
        held(pattern, module, operands_of(pattern, values))
    for streamed, cluster in (("left", "2x1"), ("right", "1x2"), ("right", "1x1")):
        module.configure(tile="128x128", cluster=cluster, split_k=1, streamed=streamed)
        held(pattern, module, operands_of(pattern, values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_with_zeros_as_algebra_has_them(tmp_path, dtype):
    """Of every product the first point and two more, with the mask as a kernel of its own and on its way in."""
    for number, (function, k) in enumerate([
        (lambda a, b: torch.tril(a, 3) @ b, 700), (lambda a, b: F.gelu(a @ torch.triu(b)), 640),
        (lambda a, b: torch.triu(torch.tril(a, 90), -30) @ b, 1000),
    ]):  # fmt: skip
        args = rand(700 // 4 * 4, k // 8 * 8, dtype=dtype), rand(k // 8 * 8, 520, dtype=dtype)
        graph = replace(trace(Applies(function), args, {}), sparing=True)
        matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
        whole = GraphRun(graph, Applies(function), exact=False)
        whole(*args)
        for pattern in (p for p in matched.patterns if p.kind == "product"):
            module = load_fused(pattern.program, tmp_path, name=f"fused_{number}_{pattern.id}")
            assert module._FUSED.gemm.kernels.zeros != ((None, None), (None, None))
            values = {b.node: whole.value(b.node).cuda() for b in pattern.matches[0].operands}
            for setting in (pattern.space.points[0], SMALL, LARGE):
                module.configure(**dict(setting))
                held(pattern, module, operands_of(pattern, values))


PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2048, 4096)

    def forward(self, x):
        return torch.nn.functional.gelu(self.inner(x))

def get_inputs():
    return [torch.randn(2048, 2048)]

def get_init_inputs():
    return []
"""


OF_MATRICES = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return FORWARD

def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 1024)]

def get_init_inputs():
    return []
"""


CAUSAL = 'torch.softmax(a.masked_fill(torch.ones_like(a).triu(1).bool(), float("-inf")), -1) @ b'


def judged_as_algebra_has_it(problem, tmp_path):
    """The module's own first case, after the judge has taken what algebra makes of it, all of it kernels."""
    with judge_on_gpu(problem, tmp_path) as judge:
        cases = judge.open()
        changed = tuple(replace(case, graph=case.rewritten) for case in cases)
        matched = found_patterns(changed, H200)
        recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
        recipe = without_idle([matched[0].patterns], recipe)
        candidate = compose((tmp_path / "problem.py").read_text(), changed, matched, recipe, device=H200)
        timed = judge.evaluate(candidate)
        assert isinstance(timed, Timed), timed
        assert timed.checked.own_share is not None and timed.checked.own_share > 0.95
    return cases[0]


@pytest.mark.parametrize(
    "forward", ["torch.tril(a) @ b", "torch.relu(a @ a.T) + b", "b @ torch.triu(torch.tril(a, 70), -9)", CAUSAL]
)
def test_the_judge_takes_what_algebra_makes_of_a_product(tmp_path, forward):
    """Zeros that are left out, and half of a product with itself, over all families of inputs, infinities and NaN too;
    nothing falls back to torch."""
    case = judged_as_algebra_has_it(OF_MATRICES.replace("FORWARD", forward), tmp_path)
    assert case.rewritten is not None and case.work.spared_flops > 2**29


@pytest.mark.parametrize("forward", ["((a - b[0]) * b[1] + b[2]) @ b", "(a * 0.125) @ b"])
def test_the_judge_takes_what_is_folded_into_the_other_factor(tmp_path, forward):
    """In bf16, over all families: a scale that is rounded with the weights, and a number, which is not."""
    problem = OF_MATRICES.replace("FORWARD", forward).replace("1024, 1024)", "1024, 1024, dtype=torch.bfloat16)")
    case = judged_as_algebra_has_it(problem.replace("torch.randn(1024", "torch.randn(8192", 1), tmp_path)
    assert case.algebra and all("folded into the other" in step for step in case.algebra)


@pytest.mark.parametrize("setting", [SMALL, SPLIT, LARGE])
def test_the_judge_takes_a_product_and_compute_sanitizer_finds_nothing_in_it(tmp_path, setting):
    """In a candidate's own process, over all families of inputs; nothing falls back to torch."""
    with judge_on_gpu(PROBLEM.replace("2048", "512").replace("4096", "640"), tmp_path, racecheck=True) as judge:
        cases = judge.open()
        matched = found_patterns(cases, H200)
        (product,) = [p for p in matched[0].patterns if p.kind == "product"]
        recipe = (Choice(pattern=product.id, point=setting),)
        candidate = compose((tmp_path / "problem.py").read_text(), cases, matched, recipe, device=H200)
        timed = judge.evaluate(candidate)
        assert isinstance(timed, Timed), timed
        assert timed.checked.own_share is not None and timed.checked.own_share > 0.95
        found = judge.sanitize(candidate)
    assert not isinstance(found, Failure), found
    if cuda_tool("compute-sanitizer") is not None:
        assert found.clean == ("memcheck", "racecheck"), found.notes


def test_optimize_makes_a_linear_layer_and_gelu_one_kernel_and_it_wins(tmp_path):
    """fp32 by default flags: tensor cores at fp32's accuracy, more than twice as fast as eager."""
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM)
    problem = read_problem(path, target="cuda")
    said: list[str] = []
    places = Places(out=tmp_path / "run", cache=tmp_path / "cache")
    asked = Request(run="r", problem=problem, strategy="catalog", budget_s=240.0, seed=0)
    done = optimize(asked, places=places, say=said.append)
    told = "\n".join(said)
    assert done.stop.best is not None, told
    kinds = {p.id: p.kind for p in done.context.matched[0].patterns}
    assert [kinds[c.pattern] for c in done.stop.best] == ["product"], told
    judged = [e.outcome for e in done.events if isinstance(e.outcome, Timed)]
    ratio = judged[0].ratio("eager")
    assert ratio is not None and ratio.low > 2.0, f"{ratio}\n{told}"
    print(told, file=sys.stderr)
    assert Path(tmp_path / "run").exists()


ANYWHERE = """
import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"m": 1021, "k": 1033, "n": 1031}, {"m": 1024, "k": 1001, "n": 1024}, {"m": 512, "k": 768, "n": 50257}]


class Model(nn.Module):
    def __init__(self, k: int, n: int, **_):
        super().__init__()
        self.across = nn.Parameter(torch.randn(k, n, dtype=torch.bfloat16) * k**-0.5)
        self.along = nn.Linear(k, n, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor):
        return x @ self.across, F.gelu(self.along(x))


def get_inputs(m: int, k: int, **_):
    return [torch.randn(m, k, dtype=torch.bfloat16)]


def get_init_inputs(m: int, k: int, n: int):
    return [k, n]
"""


def test_the_judge_takes_products_of_factors_that_start_anywhere(tmp_path):
    """Odd sizes, a layer of 1001 features, a vocabulary of 50257 words that lies across; over all families of inputs,
    and with weights that are drawn anew."""
    with judge_on_gpu(ANYWHERE, tmp_path) as judge:
        cases = judge.open()
        matched = found_patterns(cases, H200)
        products = [[p for p in m.patterns if p.kind == "product"] for m in matched]
        assert list(map(len, products)) == [2, 2, 2], "of each case both"
        recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for own in products for p in own)
        timed = judge.evaluate(compose((tmp_path / "problem.py").read_text(), cases, matched, recipe, device=H200))
    assert isinstance(timed, Timed), timed
    print(timed.ratio("eager"), file=sys.stderr)


FLOAT8 = """
import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"tokens": 1024, "width": 2048, "features": 2048}, {"tokens": 300, "width": 256, "features": 512}]


class Model(nn.Module):
    def __init__(self, width: int, features: int):
        super().__init__()
        weight = torch.randn(features, width) * width**-0.5
        scale = weight.abs().amax(1, keepdim=True) / 448
        self.register_buffer("weight", (weight / scale).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale.t().contiguous())
        self.register_buffer("bias", torch.randn(features).to(torch.bfloat16))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = torch._scaled_mm(x, self.weight.t(), scale, self.scale, bias=self.bias, out_dtype=torch.bfloat16)
        return F.gelu(y)


def get_inputs(tokens: int, width: int, **_):
    x = torch.randn(tokens, width)
    scale = x.abs().amax(1, keepdim=True) / 448
    return [(x / scale).to(torch.float8_e4m3fn), scale]


def get_init_inputs(width: int, features: int, **_):
    return [width, features]
"""


def test_the_judge_takes_a_product_of_eight_bits(tmp_path):
    """With a scale for every row, a bias and GELU in its kernel, over all families; torch's own is its measure."""
    with judge_on_gpu(FLOAT8, tmp_path) as judge:
        cases = judge.open()
        matched = found_patterns(cases, H200)
        recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for m in matched for p in m.patterns
                       if p.kind == "product")  # fmt: skip
        timed = judge.evaluate(compose((tmp_path / "problem.py").read_text(), cases, matched, recipe, device=H200))
    assert isinstance(timed, Timed), timed
    print(timed.ratio("eager"), file=sys.stderr)


def _lowest(a: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(a, w, bias)
    return y.amin(-1), torch.sigmoid(y).sum(-1) * 2


REDUCED: dict[str, Callable[..., Any]] = {
    "logsumexp": lambda a, w, b: F.gelu(F.linear(a, w, b).logsumexp(-1, keepdim=True)),
    "two": _lowest,
    "variance": lambda a, w, b: F.linear(a, w, b).var(-1, correction=0),
    "greedy": lambda a, w, b: F.linear(a, w, b).argmax(-1),
    "loss": lambda a, w, b: F.cross_entropy(
        F.linear(a, w, b), torch.arange(301, device=a.device) * 7 % 1000, reduction="none"
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", REDUCED)
def test_rows_that_are_only_reduced_are_so_in_the_kernel_of_the_product(tmp_path, name, dtype):
    a, w, b = rand(301, 520, dtype=dtype) / 8, rand(1000, 520, dtype=dtype), rand(1000, dtype=dtype)
    graph = trace(Applies(REDUCED[name]), (a, w, b), {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    _, pattern = [p for p in matched.patterns if p.kind == "product"]
    assert pattern.program.reduced == (1,), pattern.title
    module = load_fused(pattern.program, tmp_path)
    if name not in ("two", "variance"):
        b[128:192] = -torch.inf  # a whole block of columns
    a[3, 5] = torch.nan
    run = GraphRun(graph, Applies(REDUCED[name]))
    run.values.update({n.name: t for n, t in zip((n for n in graph.nodes if n.op == "input"), (a, w, b), strict=True)})
    operands = [view(run.value(bind.node), bind, spec.shape)
                for bind, spec in zip(pattern.matches[0].operands, pattern.program.operands, strict=True)]  # fmt: skip
    operands = [o.cuda() for o in operands]
    truth = run_program(pattern.program, [o.double() if o.is_floating_point() else o for o in operands], exact=True)
    own = run_program(pattern.program, operands)
    for setting in (SMALL, LARGE, pattern.space.points[0]):
        module.configure(**dict(setting))
        for mine, right, theirs in zip(module.run(*operands), truth, own, strict=True):
            assert mine.shape == right.shape and mine.dtype == theirs.dtype, (name, setting)
            if not mine.is_floating_point():
                picked = F.linear(a.cuda().double(), w.cuda().double(), b.cuda().double()).gather(
                    1, mine.reshape(301, 1)
                )
                best = F.linear(a.cuda().double(), w.cuda().double(), b.cuda().double()).amax(1, keepdim=True)
                assert int(mine.reshape(-1)[3]) == 0, "the first NaN wins"
                assert ((best - picked).abs() <= 1e-2 * best.abs())[torch.arange(301) != 3].all(), (name, setting)
                continue
            assert bool((mine.isfinite() == right.isfinite()).all()), (name, setting)
            sound = right.isfinite()
            norm = right[sound].norm()
            error, least = (float((r.double() - right)[sound].norm() / norm) for r in (mine, theirs))
            assert error <= max(2 * least, FLOOR[mine.dtype]), f"{name} {setting}: {error:.3g}, torch {least:.3g}"


COLUMNS: dict[str, Callable[..., Any]] = {
    "max": lambda a, w, b, c: F.linear(a, w, b).amax(0, keepdim=True).tanh(),
    "sum": lambda a, w, b, c: (F.gelu(F.linear(a, w, b)) * c).sum(0),
    "variance": lambda a, w, b, c: F.linear(a, w, b).var(0, correction=0),
    "logsumexp": lambda a, w, b, c: (F.linear(a, w, b) + c).logsumexp(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_are_only_reduced_are_rows_of_the_transpose(tmp_path, name, dtype):
    """Beside float64; a NaN in a row of weights makes one column NaN, and nothing else."""
    a, w, b, c = (rand(*s, dtype=dtype) for s in ((520, 512), (1000, 512), (1000,), (520, 1)))
    a /= 8
    graph = trace(Applies(COLUMNS[name]), (a, w, b, c), {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    pattern = [p for p in matched.patterns if p.kind == "product"][-1]
    assert pattern.program.domain == (1000, 520) and pattern.program.reduced == (1,), pattern.title
    w[3, 5] = torch.nan
    inputs = dict(zip((n.name for n in graph.nodes if n.op == "input"), (a, w, b, c), strict=True))
    operands = [view(inputs[bind.node], bind, spec.shape).cuda()
                for bind, spec in zip(pattern.matches[0].operands, pattern.program.operands, strict=True)]  # fmt: skip
    (truth,) = run_program(pattern.program, [o.double() for o in operands], exact=True)
    (own,) = run_program(pattern.program, operands)
    module = load_fused(pattern.program, tmp_path)
    sound = torch.arange(1000, device="cuda") != 3
    for setting in (SMALL, LARGE, *pattern.space.points[:2]):
        module.configure(**dict(setting))
        (mine,) = module.run(*operands)
        assert mine.shape == truth.shape and mine.dtype == own.dtype, (name, setting)
        assert torch.equal(mine.isfinite().reshape(-1), sound), (name, setting)
        norm = truth[sound].norm()
        error, least = (float((r.double() - truth)[sound].norm() / norm) for r in (mine, own))
        assert error <= max(2 * least, FLOOR[mine.dtype]), f"{name} {setting}: {error:.3g}, torch {least:.3g}"
