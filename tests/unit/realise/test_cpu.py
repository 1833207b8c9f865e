"""The CPU target: rendered programs, built and run, against an evaluation of the same program in float64."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.realisers import cpu
from tilewright.ir.program import Operand, Output, Program, Reduction, Statement
from tilewright.ir.validation import validate
from tilewright.kernels.ops import DTYPES
from tilewright.realise.cpu.declared import vector_dimension

pytestmark = [pytest.mark.slow, pytest.mark.one_in(4)]

INF, NAN = float("inf"), float("nan")


# ---- Programs, and what they mean ------------------------------------------------------------------------------------


def operand(name: str, *shape: int, dtype: str = "f32") -> Operand:
    return Operand(name=name, dtype=dtype, shape=shape)


def let(result: str, op: str, *args: Any, dtype: str = "f32") -> Statement:
    return Statement(result=result, op=op, args=args, dtype=dtype)


def fold(results: str, op: str, arg: str, dtype: str = "f32") -> Reduction:
    return Reduction(results=tuple(results.split()), op=op, arg=arg, dtype=dtype)


def output(name: str, *shape: int, dtype: str = "f32") -> Output:
    return Output(name=name, dtype=dtype, shape=shape)


_NARROW = (torch.float16, torch.bfloat16)


def widened(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def evaluate(program: Program, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The program's outputs with all floating arithmetic in float64."""
    values: dict[str, Any] = {o.name: widened(t) for o, t in zip(program.operands, operands, strict=True)}
    for item in program.body:
        if isinstance(item, Reduction):
            full = values[item.arg].broadcast_to(program.domain)
            for name, made in zip(item.results, reduced(item, full, program.reduced), strict=True):
                values[name] = made
        else:
            args = [values[a] if isinstance(a, str) else a for a in item.args]
            values[item.result] = pointwise(item, args, program.domain)
    return tuple(values[o.name].broadcast_to(o.shape) for o in program.outputs)


def pointwise(item: Statement, args: list[Any], domain: tuple[int, ...]) -> Tensor:
    dtype = DTYPES[item.dtype]
    if item.op == "index":
        shape = [-1 if d == args[0] else 1 for d in range(len(domain))]
        return torch.arange(domain[args[0]]).reshape(shape)
    if item.op == "to":
        return widened(args[0].to(torch.float32).to(dtype) if dtype in _NARROW else args[0].to(dtype))
    if item.op == "floor_divide":
        return torch.div(args[0], args[1], rounding_mode="floor")
    if item.op == "pow":
        return torch.pow(*args)
    if not isinstance(args[-1], Tensor) and item.op != "where":
        args = [args[0], torch.tensor(args[1], dtype=torch.float64 if isinstance(args[1], float) else None)]
    made: Tensor = getattr(torch, item.op)(*args)
    return widened(made) if made.is_floating_point() else made.to(dtype)


def reduced(item: Reduction, full: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, ...]:
    whole = torch.int64 if not full.is_floating_point() else None
    if item.op in ("argmax", "argmin"):
        kept = [d for d in range(full.dim()) if d not in dims]
        flat = full.permute(*kept, *dims).flatten(len(kept)) if kept else full.flatten()
        shape = [1 if d in dims else s for d, s in enumerate(full.shape)]
        return (getattr(torch, item.op)(flat, -1).reshape(shape),)
    if item.op == "moments":
        mean = full.mean(dims, keepdim=True)
        return mean, (full - mean).square().sum(dims, keepdim=True)
    if item.op == "softmax_stats":
        top = full.amax(dims, keepdim=True)
        return top, (full - top).exp().sum(dims, keepdim=True)
    if item.op == "sum":
        return (full.sum(dims, keepdim=True, dtype=whole),)
    if item.op == "prod":
        for d in dims:
            full = full.prod(d, keepdim=True, dtype=whole)
        return (full,)
    names = {"max": "amax", "min": "amin", "any": "any", "all": "all"}
    return (getattr(torch, names[item.op])(full, dim=dims, keepdim=True),)


# ---- Building and comparing ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("candidate")


_serial = itertools.count()


@pytest.fixture
def build(folder: Path) -> Callable[..., ModuleType]:
    """Renders a program into a candidate's folder and imports its Python file; builds happen at the first run."""
    for file in cpu.skeleton_files([pointwise_program((4,))]):
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_text(file.text)

    def make(program: Program, **knobs: int | bool) -> ModuleType:
        validate(program)
        assert cpu.unsupported(program) is None
        settings = dict(cpu.space(program).points[0]) | knobs
        name = f"fused_{next(_serial)}"
        for file in cpu.render(program, name, tuple(sorted(settings.items()))):
            (folder / file.path).write_text(file.text)
        sys.path.insert(0, str(folder))
        try:
            spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(folder))
        return module

    return make


def close(ours: Tensor, truth: Tensor, *, ulps: float = 16.0) -> None:
    """Equal non-finite positions; finite values within some units of the output type's precision, relative to the
    largest of them."""
    assert ours.shape == truth.shape
    if not ours.is_floating_point():
        torch.testing.assert_close(ours, truth.to(ours.dtype), rtol=0, atol=0)
        return
    expected = truth.to(ours.dtype)
    finite = torch.isfinite(expected)
    torch.testing.assert_close(ours[~finite], expected[~finite], equal_nan=True, rtol=0, atol=0)
    error = (ours.double() - truth.double())[finite].abs()
    scale = truth.double()[finite].abs().clamp_min(torch.finfo(ours.dtype).tiny)
    bound = ulps * torch.finfo(ours.dtype).eps * scale
    assert bool((error <= bound).all()), f"{(error / (scale * torch.finfo(ours.dtype).eps)).max():.1f} ulps"


def agree(
    module: ModuleType, program: Program, operands: Sequence[Tensor], *, ulps: float = 16.0
) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = module.run(*operands)
    for made, spec, truth in zip(results, program.outputs, evaluate(program, operands), strict=True):
        assert made.dtype == DTYPES[spec.dtype] and made.shape == spec.shape and made.is_contiguous()
        close(made, truth, ulps=ulps)
    return results


def pointwise_program(domain: tuple[int, ...]) -> Program:
    return Program(
        domain=domain,
        operands=(operand("x", *domain),),
        body=(let("y", "mul", "x", 2.0),),
        outputs=(output("y", *domain),),
    )


# ---- Pointwise -------------------------------------------------------------------------------------------------------

UNARY = """
    neg abs sign floor ceil round trunc square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan
    asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid
""".split()
TESTS = ["isnan", "isinf", "logical_not"]
BINARY = ["add", "sub", "mul", "div", "fmod", "remainder", "floor_divide", "pow", "atan2", "maximum", "minimum"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"]


@pytest.mark.optimised
def test_every_float_operation(build: Callable[..., ModuleType]) -> None:
    n = 147
    body = [let(f"u_{op}", op, "x") for op in UNARY] + [let(f"u_{op}", op, "x", dtype="bool") for op in TESTS]
    body += [let(f"b_{op}", op, "x", "y") for op in BINARY]
    body += [let(f"b_{op}", op, "x", "y", dtype="bool") for op in COMPARE]
    body += [let(f"p_{k}", "pow", "x", e) for k, e in enumerate((2, 3.0, 0.5, -0.5, -1, -2, 1, 0, 1.7))]
    body += [let("w", "where", "u_isnan", -1.0, "x"), let("inf", "maximum", "x", INF)]
    program = Program(
        domain=(n,),
        operands=(operand("x", n), operand("y", n)),
        body=tuple(body),
        outputs=tuple(output(s.result, n, dtype=s.dtype) for s in body),
    )
    x = torch.randn(n) * 3
    x[:14] = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, 2.5, -2.5, 60.0, -60.0, 1e-3, -1e-3])
    y = torch.randn(n)
    y[:6] = torch.tensor([1.0, -2.0, 3.0, INF, 0.5, NAN])
    y[20:40] = x[20:40]
    agree(build(program), program, (x, y))


def test_whole_numbers_and_truth_values(build: Callable[..., ModuleType]) -> None:
    n = 83
    kinds = ("i64", "i32", "i16", "i8", "u8")
    body: list[Statement] = []
    for k in kinds:
        for op in ("add", "sub", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"):
            body.append(let(f"{op}_{k}", op, k, f"{k}b", dtype=k))
        body += [let(f"{op}_{k}", op, k, 3, dtype=k) for op in ("floor_divide", "remainder", "fmod")]
        body += [let(f"{op}_{k}", op, k, dtype=k) for op in ("abs", "sign", "square", "bitwise_not")]
        body += [let(f"{op}_{k}", op, k, f"{k}b", dtype="bool") for op in ("lt", "eq", "ge")]
        body += [let(f"div_{k}", "div", k, 7, dtype="f32"), let(f"half_{k}", "lt", k, 2.5, dtype="bool")]
    body += [let(f"to_{a}_{b}", "to", a, dtype=b) for a in (*kinds, "bool") for b in (*kinds, "bool", "f32")]
    body += [let(f"t_{op}", op, "bool", "boolb", dtype="bool") for op in ("add", "mul", "maximum", "eq", "ne", "lt")]
    dtypes = (*kinds, "bool")
    operands = tuple(operand(name, n, dtype=k) for k in dtypes for name in (k, f"{k}b"))
    outputs = tuple(output(s.result, n, dtype=s.dtype) for s in body)
    program = Program(domain=(n,), operands=operands, body=tuple(body), outputs=outputs)
    tensors = [
        torch.rand(n) > 0.5
        if o.dtype == "bool"
        else torch.randint(0 if o.dtype == "u8" else -12, 12, (n,)).to(DTYPES[o.dtype])
        for o in operands
    ]
    agree(build(program), program, tensors, ulps=1)


@pytest.mark.optimised
def test_casts_from_floats_truncate_and_narrow_types_round_to_even(build: Callable[..., ModuleType]) -> None:
    n = 70
    body = [let(f"to_{k}", "to", "x", dtype=k) for k in ("i64", "i32", "i16", "i8", "f16", "bf16", "bool", "f64")]
    program = Program(
        domain=(n,),
        operands=(operand("x", n),),
        body=tuple(body),
        outputs=tuple(output(s.result, n, dtype=s.dtype) for s in body),
    )
    x = torch.randn(n) * 40
    x[:6] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 3e-6, 0.0])
    for ours, truth in zip(build(program).run(x), (x.to(DTYPES[s.dtype]) for s in body), strict=True):
        assert torch.equal(ours, truth)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_other_floating_types(build: Callable[..., ModuleType], dtype: str) -> None:
    b, h = 7, 45
    program = Program(
        domain=(b, h),
        operands=(operand("x", b, h, dtype=dtype), operand("w", 1, h, dtype=dtype), operand("s", b, 1, dtype=dtype)),
        body=(
            let("a", "mul", "x", "w", dtype=dtype),
            let("t", "tanh", "a", dtype=dtype),
            let("y", "add", "t", "s", dtype=dtype),
            let("c", "lt", "x", 0.1, dtype="bool"),
        ),
        outputs=(output("y", b, h, dtype=dtype), output("c", b, h, dtype="bool")),
    )
    kind = DTYPES[dtype]
    x = torch.randn(b, h, dtype=torch.float64).to(kind)
    x[0, :3] = torch.tensor([INF, NAN, 0.1]).to(kind)
    w, s = torch.randn(1, h).to(kind), torch.full((b, 1), 3.0, dtype=kind)  # far from 0: nothing cancels
    y, c = build(program).run(x, w, s)
    truth = torch.tanh(x.double() * w.double()) + s.double()
    close(y, truth, ulps=4)
    assert torch.equal(c, x < 0.1)


SHAPES = [
    ((6, 5, 33), (1, 5, 1), (1, 1, 33)),
    ((2, 3, 4, 17), (2, 1, 4, 1), (1, 3, 1, 17)),
    ((40, 3), (40, 1), (1, 3)),
    ((5, 1), (1, 1), (5, 1)),
]


@pytest.mark.parametrize(("domain", "one", "other"), SHAPES)
def test_broadcasting_positions_and_strides(
    build: Callable[..., ModuleType], domain: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    rank = len(domain)
    body = [let("a", "sub", "x", "v"), let("b", "mul", "a", "w")]
    body += [let(f"i{d}", "index", d, dtype="i64") for d in range(rank)]
    body += [
        let("j", "mul", "i0", 100, dtype="i64"),
        let("k", "add", "j", f"i{rank - 1}", dtype="i64"),
        let("y", "add", "b", "k"),
    ]
    program = Program(
        domain=domain,
        operands=(operand("x", *domain), operand("v", *one), operand("w", *other)),
        body=tuple(body),
        outputs=(output("y", *domain), output("k", *domain, dtype="i64")),
    )
    module = build(program)
    x, v, w = (
        torch.randint(-9, 9, domain).float(),
        torch.randint(-9, 9, one).float(),
        torch.randint(-9, 9, other).float(),
    )
    agree(module, program, (x, v, w), ulps=0)
    order = list(range(rank))
    for permuted in itertools.islice(itertools.permutations(order), 6):
        back = [permuted.index(d) for d in order]
        agree(module, program, (x.permute(permuted).contiguous().permute(back), v, w), ulps=0)
    wide = torch.randint(-9, 9, (*domain[:-1], 2 * domain[-1] + 3)).float()
    agree(module, program, (wide[..., 1 : domain[-1] + 1], v, w), ulps=0)
    agree(module, program, (wide[..., 1 : 2 * domain[-1] + 1 : 2], v, w), ulps=0)
    agree(module, program, (torch.ones(1).expand(domain), v, w), ulps=0)


def test_large_transposed_operand(build: Callable[..., ModuleType]) -> None:
    program = Program(
        domain=(301, 517),
        operands=(operand("x", 301, 517), operand("z", 301, 517)),
        body=(let("y", "sub", "x", "z"),),
        outputs=(output("y", 301, 517),),
    )
    x, z = torch.randn(517, 301).t(), torch.randn(301, 517)
    agree(build(program), program, (x, z), ulps=1)


@pytest.mark.parametrize("dtypes", [("f32", "bf16", "u8", "bool"), ("i64", "i16")], ids=["narrow", "wide"])
def test_layouts_are_changed_in_tiles(build: Callable[..., ModuleType], dtypes: tuple[str, ...]) -> None:
    """Every element width, whole and overhanging blocks, dimensions that go by as one, and past the caches."""
    shape = (2, 41, 6, 48)
    program = Program(
        domain=shape,
        operands=tuple(operand(f"x{d}", *shape, dtype=d) for d in dtypes),
        body=tuple(let(f"y{d}", "to", f"x{d}", dtype=d) for d in dtypes),
        outputs=tuple(output(f"y{d}", *shape, dtype=d) for d in dtypes),
    )
    module = build(program)
    values = [torch.randint(0, 100, shape).to(DTYPES[d]) for d in dtypes]
    for stream in (False, True):
        module.configure(stream=stream)
        for order in ((0, 3, 1, 2), (0, 2, 3, 1), (3, 2, 1, 0), (0, 1, 3, 2)):
            back = [order.index(d) for d in range(4)]
            turned = [v.permute(order).contiguous().permute(back) for v in values]
            got = module.run(*turned)
            assert all(torch.equal(g, v) and g.is_contiguous() for g, v in zip(got, values, strict=True)), order


# ---- Reductions ------------------------------------------------------------------------------------------------------


def every_reduction(domain: tuple[int, ...], dims: tuple[int, ...], dtype: str = "f32") -> Program:
    kept = tuple(1 if d in dims else s for d, s in enumerate(domain))
    wide = "f64" if dtype == "f64" else "f32"
    body = (
        fold("s", "sum", "x", wide), fold("p", "prod", "x", wide), fold("hi", "max", "x", dtype),
        fold("lo", "min", "x", dtype),
        fold("ahi", "argmax", "x", "i64"), fold("alo", "argmin", "x", "i64"),
        let("big", "gt", "x", 1.0, dtype="bool"), fold("some", "any", "big", "bool"),
        fold("every", "all", "big", "bool"),
        fold("count", "sum", "big", "i64"), fold("mean dev", "moments", "x", wide),
        fold("top total", "softmax_stats", "x", wide),
        let("logs", "log", "total", dtype=wide), let("lse", "add", "logs", "top", dtype=wide),
        let("c", "sub", "x", "lse", dtype=wide), let("y", "exp", "c", dtype=wide),
    )  # fmt: skip
    kinds = {"ahi": "i64", "alo": "i64", "some": "bool", "every": "bool", "count": "i64", "hi": dtype, "lo": dtype}
    names = ["s", "p", "hi", "lo", "ahi", "alo", "some", "every", "count", "mean", "dev", "top", "total", "lse"]
    outputs = (*(output(n, *kept, dtype=kinds.get(n, wide)) for n in names), output("y", *domain, dtype=wide))
    return Program(
        domain=domain, reduced=dims, operands=(operand("x", *domain, dtype=dtype),), body=body, outputs=outputs
    )


LAYOUTS = [
    ((40, 33), (0,)),
    ((2, 6, 5, 79), (1, 2)),
    ((2, 6, 5, 19), (0, 2, 3)),
    ((2, 67, 19), (2,)),
    pytest.param((2, 40000), (1,), marks=pytest.mark.slow),
    pytest.param((20000, 3), (0,), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("domain", "dims"), LAYOUTS)
def test_every_reduction(build: Callable[..., ModuleType], domain: tuple[int, ...], dims: tuple[int, ...]) -> None:
    program = every_reduction(domain, dims)
    module = build(program)
    x = 1 + torch.rand(domain) * 0.5  # sums and products that neither cancel nor overflow much
    inner = program.inner_size
    x = x if inner < 200 else 1 + (torch.rand(domain) - 0.5) * 1e-4
    agree(module, program, (x,), ulps=max(24.0, inner / 8))
    order = list(range(len(domain)))[::-1]
    agree(module, program, (x.permute(order).contiguous().permute(order),), ulps=max(24.0, inner / 8))


@pytest.mark.slow
def test_narrow_and_wide_types_reduce_in_their_own_way(build: Callable[..., ModuleType]) -> None:
    for dtype, ulps in (("bf16", 24.0), ("f64", 64.0)):
        program = every_reduction((6, 101), (1,), dtype)
        agree(build(program), program, ((1 + torch.rand(6, 101)).to(DTYPES[dtype]),), ulps=ulps)


@pytest.mark.optimised
def test_non_finite_values_reduce_as_in_torch(build: Callable[..., ModuleType]) -> None:
    body = (
        fold("s", "sum", "x"), fold("hi", "max", "x"), fold("lo", "min", "x"), fold("ahi", "argmax", "x", "i64"),
        fold("alo", "argmin", "x", "i64"), fold("top total", "softmax_stats", "x"), let("c", "sub", "x", "top"),
        let("e", "exp", "c"),
        let("y", "div", "e", "total"),
    )  # fmt: skip
    x = torch.randn(8, 77)
    x[0, 40] = NAN
    x[0, 60] = NAN
    x[1, 33] = INF
    x[2, 5] = -INF
    x[3, :] = -INF
    x[4, 70], x[4, 71] = INF, -INF
    x[5, :50] = -INF
    x[6, 3] = x[6, 60] = 9.0
    x[2, 30:], x[6, 10:50] = -95.0, -1e38
    x[7, :] = INF
    for dims, value in (((1,), x), ((0,), x.t().contiguous())):
        shape = tuple(value.shape)
        kept = tuple(1 if d in dims else s for d, s in enumerate(shape))
        outputs = (
            output("s", *kept),
            output("hi", *kept),
            output("lo", *kept),
            output("ahi", *kept, dtype="i64"),
            output("alo", *kept, dtype="i64"),
            output("y", *shape),
        )
        program = Program(domain=shape, reduced=dims, operands=(operand("x", *shape),), body=body, outputs=outputs)
        s, hi, lo, ahi, alo, y = build(program).run(value)
        torch.testing.assert_close(s, value.sum(dims, keepdim=True), equal_nan=True, rtol=1e-5, atol=1e-5)
        for ours, truth in ((hi, value.amax(dims, keepdim=True)), (lo, value.amin(dims, keepdim=True))):
            torch.testing.assert_close(ours, truth, equal_nan=True, rtol=0, atol=0)
        assert torch.equal(ahi, value.argmax(dims[0], keepdim=True)) and torch.equal(
            alo, value.argmin(dims[0], keepdim=True)
        )
        torch.testing.assert_close(y, torch.softmax(value, dims[0]), equal_nan=True, rtol=1e-5, atol=1e-7)


@pytest.mark.optimised
def test_moments_do_not_cancel(build: Callable[..., ModuleType]) -> None:
    program = Program(
        domain=(4, 5003), reduced=(1,), operands=(operand("x", 4, 5003),), body=(fold("mean dev", "moments", "x"),),
        outputs=(output("mean", 4, 1), output("dev", 4, 1)),
    )  # fmt: skip
    x = torch.randn(4, 5003)
    x[1] += 1e4
    x[2] = 7.25
    x[3, 0] = 1e5  # an outlier where the first shift is taken
    mean, dev = build(program).run(x)
    true_mean, true_dev = evaluate(program, (x,))
    close(dev, true_dev, ulps=8)
    scale = true_mean.abs() + true_dev.div(5003).sqrt()  # what a mean can be good to
    assert bool(((mean - true_mean).abs() <= torch.finfo(torch.float32).eps * scale).all())
    assert dev[2].item() == 0.0 and mean[2].item() == 7.25


@pytest.mark.optimised
def test_moments_of_columns_that_lie_far_apart_do_not_cancel(build: Callable[..., ModuleType]) -> None:
    """Lanes are columns of their own: what is near to one's values is far from its neighbours'."""
    program = Program(
        domain=(96, 53), reduced=(0,), operands=(operand("x", 96, 53),), body=(fold("mean dev", "moments", "x"),),
        outputs=(output("mean", 1, 53), output("dev", 1, 53)),
    )  # fmt: skip
    x = torch.randn(96, 53) + 1e5 * torch.randn(53)
    x[0, 7] = 1e7  # an outlier where the first shift is taken
    mean, dev = build(program).run(x)
    true_mean, true_dev = evaluate(program, (x,))
    far = torch.arange(53) == 7
    close(dev[:, ~far], true_dev[:, ~far], ulps=16)
    close(dev[:, far], true_dev[:, far], ulps=16)
    scale = true_mean.abs() + true_dev.div(96).sqrt()  # what a mean can be good to
    assert bool(((mean - true_mean).abs() <= torch.finfo(torch.float32).eps * scale).all())


@pytest.mark.optimised
def test_sums_of_long_rows_stay_accurate_and_repeat(build: Callable[..., ModuleType]) -> None:
    n = 2_000_003
    program = Program(
        domain=(n,), reduced=(0,), operands=(operand("x", n),),
        body=(fold("s", "sum", "x"), let("m", "div", "s", float(n))),
        outputs=(output("m", 1),),
    )  # fmt: skip
    x = torch.rand(n)
    module = build(program)
    (first,) = agree(module, program, (x,), ulps=1)
    assert all(torch.equal(module.run(x)[0], first) for _ in range(5))


def test_row_and_element_operands_together(build: Callable[..., ModuleType]) -> None:
    """Group norm with a scale by channel: several sweeps, operands at row and element level, a row output."""
    n, g, c, s = 3, 4, 5, 37
    program = Program(
        domain=(n, g, c, s),
        reduced=(2, 3),
        operands=(operand("x", n, g, c, s), operand("w", 1, g, c, 1), operand("b", n, g, 1, 1)),
        body=(
            let("z", "add", "x", "b"), fold("mean dev", "moments", "z"), let("var", "div", "dev", float(c * s)),
            let("e", "add", "var", 1e-5), let("r", "rsqrt", "e"), let("d", "sub", "z", "mean"),
            let("q", "mul", "d", "r"),
            let("y", "mul", "q", "w"), let("a", "abs", "y"), fold("most", "max", "a"), let("bound", "add", "most", "b"),
        ),
        outputs=(output("y", n, g, c, s), output("bound", n, g, 1, 1), output("w", 1, g, c, 1)),
    )  # fmt: skip
    x, w, b = torch.randn(n, g, c, s), torch.rand(1, g, c, 1) + 0.5, torch.rand(n, g, 1, 1) + 1
    y, bound, copied = build(program).run(x, w, b)
    z = x.double() + b.double()
    truth = torch.nn.functional.group_norm(z.reshape(n, g * c, s), g).reshape(n, g, c, s) * w.double()
    torch.testing.assert_close(y.double(), truth, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(
        bound.double(), truth.abs().amax((2, 3), keepdim=True) + b.double(), rtol=1e-5, atol=2e-6
    )
    assert torch.equal(copied, w)


# ---- Knobs, torch.compile, refusals ----------------------------------------------------------------------------------


def softmax_program(rows: int, columns: int) -> Program:
    return Program(
        domain=(rows, columns), reduced=(1,), operands=(operand("x", rows, columns),),
        body=(
            fold("top total", "softmax_stats", "x"), let("c", "sub", "x", "top"), let("e", "exp", "c"),
            let("y", "div", "e", "total"),
        ),
        outputs=(output("y", rows, columns),),
    )  # fmt: skip


@pytest.mark.optimised
def test_every_point_gives_the_same_values(build: Callable[..., ModuleType]) -> None:
    program = softmax_program(9, 2048)
    module = build(program)
    x = torch.randn(9, 2048)
    truth = torch.softmax(x.double(), 1)
    for settings in ({}, {"unroll": 4}, {"unroll": 1, "stream": True}):
        module.configure(**settings)
        assert {k: module.KNOBS[k] for k in settings} == settings
        close(module.run(x)[0], truth)
    with pytest.raises(ValueError, match="no knob 'speed'"):
        module.configure(speed=2)
    with pytest.raises(ValueError, match="unroll=3"):
        module.configure(unroll=3)


def test_short_rows_lie_side_by_side_in_the_lanes(build: Callable[..., ModuleType]) -> None:
    """Any number of them, in part of wider ones, and turned."""
    assert [vector_dimension(softmax_program(r, c)) for r, c in ((64, 32), (64, 33), (63, 32))] == [0, 1, 1]
    assert [vector_dimension(every_reduction((64, c), (1,))) for c in (64, 65)] == [0, 1]
    module = build(softmax_program(128, 10))
    for rows in (2, 15, 16, 17, 63, 128, 3001):
        for x in (torch.randn(rows, 10), torch.randn(rows, 12)[:, 1:11], torch.randn(10, rows).t()):
            close(module.run(x)[0], torch.softmax(x.double(), 1))
    columns = build(every_reduction((4, 16, 64), (1,)))
    for rows in (2, 5):
        x = 1 + torch.rand(rows, 16, 64) * 0.5
        truth = torch.softmax(x.double(), 1)
        close(columns.run(x)[-1], truth)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_torchs(build: Callable[..., ModuleType], threads: int) -> None:
    before = torch.get_num_threads()
    program = softmax_program(50, 999)
    x = torch.randn(50, 999)
    try:
        torch.set_num_threads(threads)
        agree(build(program), program, (x,))
    finally:
        torch.set_num_threads(before)


def test_survives_torch_compile(build: Callable[..., ModuleType]) -> None:
    module = build(softmax_program(5, 64))
    x = torch.randn(5, 64)
    compiled = torch.compile(lambda v: module.run(v)[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), torch.softmax(x, 1))


def test_wrong_tensors_are_refused(build: Callable[..., ModuleType]) -> None:
    module = build(softmax_program(5, 64))
    with pytest.raises(ValueError, match="argument 0: wrong shape"):
        module.run(torch.randn(5, 65))
    with pytest.raises(TypeError, match="argument 0: wrong dtype"):
        module.run(torch.randn(5, 64).double())


def test_unsupported_programs_say_why() -> None:
    empty = pointwise_program((0, 3))
    assert cpu.unsupported(empty) == "nothing to compute: a dimension of size 0"
    whole = Program(
        domain=(4,), operands=(operand("a", 4, dtype="i64"), operand("b", 4, dtype="i64")),
        body=(let("y", "remainder", "a", "b", dtype="i64"),), outputs=(output("y", 4, dtype="i64"),),
    )  # fmt: skip
    assert "may be zero" in (cpu.unsupported(whole) or "")
    assert cpu.unsupported(pointwise_program((4,))) is None


def test_spaces_are_few_and_legal() -> None:
    for program in (
        pointwise_program((4,)),
        pointwise_program((4096, 4096)),
        softmax_program(9, 20),
        every_reduction((40, 33), (0,)),
    ):
        found = cpu.space(program)
        legal = {knob.name: knob.values for knob in found.knobs}
        assert 1 <= len(found.points) <= 8 and len(set(found.points)) == len(found.points)
        assert all(dict(p).keys() == legal.keys() and all(v in legal[k] for k, v in p) for p in found.points)


def test_names_that_mean_something_in_cpp(build: Callable[..., ModuleType]) -> None:
    program = Program(
        domain=(5, 20), reduced=(1,), operands=(operand("exp", 5, 20), operand("row", 5, 1), operand("NAN", 1, 20)),
        body=(
            let("at", "mul", "exp", "row"), let("double", "exp", "at"), let("float", "add", "double", "NAN"),
            fold("max", "sum", "float"), let("linux", "sub", "float", "max"),
        ),
        outputs=(output("linux", 5, 20), output("max", 5, 1)),
    )  # fmt: skip
    agree(build(program), program, (torch.rand(5, 20), torch.rand(5, 1), torch.rand(1, 20)), ulps=64)


def test_a_candidate_runs_without_tilewright(build: Callable[..., ModuleType], folder: Path) -> None:
    module = build(softmax_program(3, 10))
    code = (
        f"import torch, {module.__name__} as m, sys; m.run(torch.ones(3, 10)); assert 'tilewright' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
