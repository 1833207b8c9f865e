"""CuTe kernels against float64 on a GPU: odd sizes, strides, dtypes, knobs, edges; at most twice torch's error."""

from __future__ import annotations

from math import inf, nan, prod

import pytest
import torch
import torch.nn.functional as F

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda
from fakes.traced import only_program
from tilewright.facts.space import point

UNARY = [
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "square",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sigmoid",
    "isnan",
    "isinf",
    "logical_not",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "fmod",
    "remainder",
    "floor_divide",
    "pow",
    "atan2",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
]

PROGRAMS = {
    "softmax_short": lambda: kp.softmax((1000, 3)),
    "softmax_odd": lambda: kp.softmax((77, 1003)),
    "softmax_even": lambda: kp.softmax((64, 1000)),
    "softmax_registers": lambda: kp.softmax((300, 8192)),
    "softmax_shared": lambda: kp.softmax((300, 40000)),
    "softmax_cluster": lambda: kp.softmax((200, 131072)),
    "softmax_cluster_odd": lambda: kp.softmax((150, 65537)),
    "softmax_reread": lambda: kp.softmax((140, 500000)),
    "softmax_split": lambda: kp.softmax((3, 300001)),
    "softmax_column": lambda: kp.softmax((64, 100, 50), 1),
    "softmax_column_split": lambda: kp.softmax((100000, 64), 0),
    "log_softmax_bf16": lambda: kp.softmax((128, 4096), dtype="bf16", log=True),
    "softmax_f16_odd": lambda: kp.softmax((33, 777), dtype="f16"),
    "layer_norm_residual": lambda: kp.norm((64, 1000), (1,), affine=(1, 1000), residual=True, dtype="bf16"),
    "layer_norm_odd": lambda: kp.norm((64, 999), (1,), affine=(1, 999)),
    "layer_norm_split": lambda: kp.norm((4, 64, 64, 63), (1, 2, 3), affine=(1, 64, 64, 63)),
    "group_norm": lambda: kp.norm((12, 4, 8, 1024), (2, 3), affine=(1, 4, 8, 1)),
    "batch_norm": lambda: kp.norm((16, 30, 31, 33), (0, 2, 3), affine=(1, 30, 1, 1)),
    "instance_norm": lambda: kp.norm((20, 16, 128, 128), (2, 3)),
    "norm_short": lambda: kp.norm((10000, 16), (1,)),
    "norm_one": lambda: kp.norm((5, 1), (1,)),
    "rms_column": lambda: kp.rms_norm((12, 64, 32, 32), 1),
    "rms_column_odd": lambda: kp.rms_norm((5, 67, 13, 7), 1),
    "rms_row_f16": lambda: kp.rms_norm((50, 4096), 1, dtype="f16"),
    "l1_odd": lambda: kp.l1_norm((150, 65535)),
    "l2_odd": lambda: kp.l1_norm((150, 65535), l2=True),
    "sum_column_odd": lambda: kp.reduction("sum", (8, 512, 511), (1,)),
    "sum_many_odd_columns": lambda: kp.reduction("sum", (2, 40, 70001), (1,)),
    "argmax_many_odd_columns": lambda: kp.reduction("argmax", (2, 40, 70001), (1,)),
    "sum_column_split": lambda: kp.reduction("sum", (200000, 30), (0,)),
    "sum_middle_and_last": lambda: kp.reduction("sum", (40, 7, 30, 11), (1, 3)),
    "sum_i32": lambda: kp.reduction("sum", (77, 1003), (0,), dtype="i32"),
    "moments_column": lambda: kp.reduction("moments", (5000, 65), (0,)),
    "prod": lambda: kp.reduction("prod", (7, 5, 3), (0, 2)),
    "max_bf16": lambda: kp.reduction("max", (40, 3000), (1,), dtype="bf16"),
    "min_i64": lambda: kp.reduction("min", (40, 3000), (1,), dtype="i64"),
    "max_column": lambda: kp.reduction("max", (8, 512, 511), (1,)),
    "argmax_row": lambda: kp.reduction("argmax", (77, 1003), (1,)),
    "argmin_column": lambda: kp.reduction("argmin", (8, 512, 511), (1,)),
    "argmax_i8": lambda: kp.reduction("argmax", (30, 5000), (1,), dtype="i8"),
    "argmax_all_bf16": lambda: kp.reduction("argmax", (1000001,), (0,), dtype="bf16"),
    "any": lambda: kp.reduction("any", (77, 1003), (1,), dtype="bool"),
    "all": lambda: kp.reduction("all", (300, 5), (1,), dtype="bool"),
    "mse_odd": lambda: kp.mse((1001, 333)),
    "mse": lambda: kp.mse((4096, 4096)),
    "cross_entropy": lambda: kp.cross_entropy_rows(1000, 4096),
    "cross_entropy_odd": lambda: kp.cross_entropy_rows(1000, 1001),
    "scan_rows": lambda: kp.cumulative("cumsum", (300, 32768)),
    "scan_rows_odd": lambda: kp.cumulative("cumsum", (301, 10007)),
    "scan_rows_uneven": lambda: kp.cumulative("cumsum", (150, 10012), reverse=True),
    "scan_short": lambda: kp.cumulative("cumsum", (1000, 7)),
    "scan_reverse_exclusive": lambda: kp.cumulative("cumsum", (200, 5001), reverse=True, exclusive=True),
    "scan_exclusive": lambda: kp.cumulative("cumsum", (200, 4096), exclusive=True),
    "scan_product": lambda: kp.cumulative("cumprod", (200, 1003)),
    "scan_product_exclusive": lambda: kp.cumulative("cumprod", (200, 64), exclusive=True),
    "scan_f16": lambda: kp.cumulative("cumsum", (200, 4096), dtype="f16"),
    "scan_bf16_reverse": lambda: kp.cumulative("cumsum", (33, 777), dtype="bf16", reverse=True),
    "scan_i64": lambda: kp.cumulative("cumsum", (200, 3001), dtype="i64"),
    "scan_i32_reverse": lambda: kp.cumulative("cumsum", (200, 3000), dtype="i32", reverse=True),
    "scan_split": lambda: kp.cumulative("cumsum", (3, 1000003)),
    "scan_split_reverse": lambda: kp.cumulative("cumsum", (2, 1 << 20), reverse=True),
    "scan_one_row": lambda: kp.cumulative("cumsum", (1000003,), exclusive=True),
    "scan_column": lambda: kp.cumulative("cumsum", (64, 100, 52), 1),
    "scan_column_odd": lambda: kp.cumulative("cumsum", (5, 4001, 13), 1, reverse=True),
    "scan_column_wide": lambda: kp.cumulative("cumprod", (70, 40000), 0, exclusive=True),
    "scan_column_split": lambda: kp.cumulative("cumsum", (100000, 64), 0, reverse=True),
    "scan_masked": lambda: kp.masked_cumsum((130, 3000)),
    "scan_busy": lambda: kp.busy_cumsum((64, 300, 500), 1),
    "scan_busy_rows": lambda: kp.busy_cumsum((64, 1003), 1, reverse=True),
    "maxima": lambda: kp.extrema("cummax", (300, 4096), fused=True),
    "maxima_odd": lambda: kp.extrema("cummax", (301, 10007)),
    "minima_reverse": lambda: kp.extrema("cummin", (200, 5001), fused=True, reverse=True),
    "maxima_bf16": lambda: kp.extrema("cummax", (33, 777), dtype="bf16"),
    "maxima_i64": lambda: kp.extrema("cummax", (33, 777), dtype="i64", reverse=True),
    "minima_bool": lambda: kp.extrema("cummin", (33, 777), dtype="bool"),
    "maxima_short": lambda: kp.extrema("cummax", (1000, 7), fused=True),
    "maxima_split": lambda: kp.extrema("cummax", (3, 1000003), fused=True),
    "minima_split_reverse": lambda: kp.extrema("cummin", (2, 1 << 20), fused=True, reverse=True),
    "minima_column": lambda: kp.extrema("cummin", (5, 4001, 13), 1, fused=True),
    "maxima_column_split": lambda: kp.extrema("cummax", (100000, 64), 0, fused=True, reverse=True),
    "log_sums": lambda: kp.cumulative("logcumsumexp", (300, 32768)),
    "log_sums_f16": lambda: kp.cumulative("logcumsumexp", (200, 1003), dtype="f16", reverse=True),
    "log_sums_split": lambda: kp.cumulative("logcumsumexp", (3, 1000003)),
    "log_sums_column": lambda: kp.cumulative("logcumsumexp", (64, 100, 52), 1, exclusive=True),
    "log_sums_column_split": lambda: kp.cumulative("logcumsumexp", (100000, 64), 0, reverse=True),
    "recurrence": lambda: kp.recurrence((300, 4096)),
    "recurrence_odd": lambda: kp.recurrence((301, 10007), dtype="bf16", reverse=True),
    "recurrence_short": lambda: kp.recurrence((1000, 7), exclusive=True),
    "recurrence_split": lambda: kp.recurrence((3, 1000003)),
    "recurrence_split_reverse": lambda: kp.recurrence((2, 1 << 20), reverse=True, exclusive=True),
    "recurrence_column": lambda: kp.recurrence((16, 300, 500), 1, dtype="f16"),
    "recurrence_column_bf16": lambda: kp.recurrence((16, 300, 512), 1, dtype="bf16"),
    "recurrence_column_odd": lambda: kp.recurrence((5, 4001, 13), 1, reverse=True),
    "recurrence_column_decay": lambda: kp.recurrence((16, 300, 500), 1, decay=(1, 1, 500)),
    "recurrence_column_split": lambda: kp.recurrence((100000, 64), 0, reverse=True),
    "max_pool": lambda: kp.pool("max", (8, 64, 112, 112), (3, 3), stride=2, padding=1),
    "max_pool_f16_odd": lambda: kp.pool("max", (3, 7, 57, 61), (3, 3), stride=2, padding=1, dtype="f16"),
    "max_pool_one_dimension": lambda: kp.pool("max", (3, 5, 1017), (20,), stride=3, padding=2, dilation=2),
    "max_pool_line": lambda: kp.pool("max", (5, 33, 2051), (8,), padding=4, dilation=3),
    "avg_pool_line_bf16": lambda: kp.pool("sum", (70, 9, 2000), (5,), stride=2, padding=1, dtype="bf16"),
    "max_pool_line_fused_f16": lambda: kp.pool("max", (64, 8, 1037), (3,), padding=1, fused=True, dtype="f16"),
    "avg_pool_volume": lambda: kp.pool("sum", (2, 3, 12, 30, 33), (2, 3, 2), stride=2),
    "avg_pool_fused": lambda: kp.pool("sum", (4, 16, 33, 35), (3, 3), padding=1, fused=True),
    "max_pool_fused_bf16": lambda: kp.pool("max", (4, 16, 64, 64), (2, 2), stride=2, fused=True, dtype="bf16"),
    "rotary": lambda: kp.rotary(16, 1000, 64),
    "rotary_bf16_odd": lambda: kp.rotary(3, 101, 35, dtype="bf16"),
    "rotary_pairs": lambda: kp.rotary(16, 1000, 64, dtype="f16", pairs=True),
    "joined": lambda: kp.joined(301, 77, 500),
    "bags": lambda: kp.bags(300, 20, 260),
    "bags_bf16_odd": lambda: kp.bags(77, 5, 131, dtype="bf16"),
    "embedding": lambda: kp.embedded(1000, 512),
    "embedding_bf16_odd": lambda: kp.embedded(301, 77, dtype="bf16", index="i32"),
    "chosen_columns": lambda: kp.embedded(65, 301, dim=1),
    "masked_softmax": lambda: kp.masked_temperature_softmax(64, 1001),
    "cosine": lambda: kp.cosine_rows(100, 3001),
    "chain": lambda: kp.chain((1000, 333)),
    "chain_tail": lambda: kp.chain((1001, 333)),
    "chain_bias": lambda: kp.chain((8, 64, 48), bias=(1, 64, 1)),
    "chain_bias_last": lambda: kp.chain((100, 77), bias=(1, 77), dtype="f16"),
    "swiglu": lambda: kp.swiglu_two_outputs((100, 77)),
    "transpose": lambda: kp.laid_out((1024, 768), (1, 0)),
    "transpose_odd": lambda: kp.laid_out((1003, 779), (1, 0)),
    "transpose_bf16": lambda: kp.laid_out((1000, 1016), (1, 0), dtype="bf16"),
    "transpose_i64": lambda: kp.laid_out((300, 514), (1, 0), dtype="i64"),
    "transpose_u8": lambda: kp.laid_out((1024, 520), (1, 0), dtype="u8"),
    "transpose_bool": lambda: kp.laid_out((129, 520), (1, 0), dtype="bool"),
    "transpose_batched": lambda: kp.laid_out((7, 130, 260), (0, 2, 1)),
    "transpose_reversed": lambda: kp.laid_out((33, 20, 64), (2, 1, 0), dtype="f16"),
    "channels_last": lambda: kp.laid_out((5, 28, 30, 64), (0, 3, 1, 2)),
    "channels_first": lambda: kp.laid_out((5, 64, 28, 30), (0, 2, 3, 1), dtype="bf16"),
    "three_channels_last": lambda: kp.laid_out((5, 61, 64, 3), (0, 3, 1, 2)),
    "pixel_shuffle": lambda: kp.laid_out((3, 5, 20, 2, 28, 2), (0, 1, 3, 5, 2, 4)),
    "turned_sum": lambda: kp.turned_sum((515, 1028), (1, 0)),
    "turned_sum_f16_odd": lambda: kp.turned_sum((77, 35, 41), (0, 2, 1), dtype="f16"),
    "integers": lambda: kp.integer_mix((33, 17)),
}
PROGRAMS |= {
    "max_pool_places": lambda: only_program(
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randn(4, 16, 57, 61)),
    "max_pool_places_dilated": lambda: only_program(
        lambda x: F.max_pool2d(F.relu(x), (2, 3), 1, 1, (2, 1), return_indices=True), torch.randn(3, 5, 30, 31).half()),
    "max_pool_places_volume": lambda: only_program(
        lambda x: F.max_pool3d(x, 2, 2, ceil_mode=True, return_indices=True), torch.randn(2, 3, 9, 21, 20)),
    "ragged": lambda: kp.ragged(37, 300, 64),
    "ragged_odd": lambda: kp.ragged(70, 90, 77, op="max", dtype="bf16"),
    "ragged_few": lambda: kp.ragged(2, 500, 24, dtype="f16"),
    "max_pool_places_global": lambda: only_program(
        lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True), torch.randn(30, 7, 61, 57)),
}  # fmt: skip
PROGRAMS |= {f"unary_{op}": (lambda op=op: kp.unary(op, (1003,))) for op in UNARY}
PROGRAMS |= {f"binary_{op}": (lambda op=op: kp.binary(op, (1003,))) for op in BINARY}
PROGRAMS |= {
    f"unary_{op}_i32": (lambda op=op: kp.unary(op, (65, 3), "i32")) for op in ("neg", "abs", "sign", "bitwise_not")
}
PROGRAMS |= {
    f"binary_{op}_{dtype}": (lambda op=op, dtype=dtype: kp.binary(op, (65, 3), dtype))
    for op in ("add", "mul", "maximum", "eq", "lt", "bitwise_and", "bitwise_or", "bitwise_xor")
    for dtype in ("i64", "i16", "u8")
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("candidate")


def close(got, program, operands):
    """No output is further from float64 than twice what torch's own operations are, or a few ulps."""
    truth = kp.interpret(program, operands, exact=True)
    eager = kp.interpret(program, operands, exact=False)
    for output, ours, exact, usual in zip(program.outputs, got, truth, eager, strict=True):
        assert ours.shape == output.shape and ours.dtype == kp.TORCH[output.dtype] and ours.is_contiguous()
        if not ours.dtype.is_floating_point:
            torch.testing.assert_close(ours, usual, rtol=0, atol=0)
            continue
        finite = torch.isfinite(exact)
        assert torch.equal(torch.isnan(ours), torch.isnan(usual)), output.name
        assert torch.equal(ours[torch.isinf(usual)], usual[torch.isinf(usual)]), output.name
        finite &= torch.isfinite(usual)
        ours, exact, usual = ours.double()[finite], exact[finite], usual.double()[finite]
        ulp = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[kp.TORCH[output.dtype]]
        scale = exact.norm() + 1e-300
        allowed = max(2 * float((usual - exact).norm() / scale), 2 * ulp)
        assert float((ours - exact).norm() / scale) <= allowed, output.name
        worst = (usual - exact).abs().max().item() if exact.numel() else 0.0
        peak = exact.abs().max().item() if exact.numel() else 0.0
        assert (ours - exact).abs().max().item() <= max(2 * worst, 4 * ulp * peak) if exact.numel() else True, (
            output.name
        )


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_against_float64(name, folder):
    program = PROGRAMS[name]()
    operands = kp.make_operands(program, "cuda")
    close(load_fused(program, folder).run(*operands), program, operands)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if not n.startswith(("unary", "binary"))])
def test_every_point(name, folder):
    program = PROGRAMS[name]()
    operands = kp.make_operands(program, "cuda", seed=1)
    module = load_fused(program, folder)
    for settings in cuda.space(program).points[1:]:
        module.configure(**dict(settings))
        close(module.run(*operands), program, operands)


def shifted(x):
    """The same values, one element past an aligned address."""
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    memory[1:].copy_(x.flatten())
    return memory[1:].view(x.shape)


def transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def every_other(x):
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
    wide[..., ::2] = x
    return wide[..., ::2]


def padded_rows(x):
    wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 5, dtype=x.dtype, device=x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def expanded(x):
    return x[:1].expand(x.shape)


@pytest.mark.parametrize("layout", [shifted, transposed, every_other, padded_rows, expanded])
@pytest.mark.parametrize("name", [
    "softmax_odd", "softmax_even", "softmax_column", "layer_norm_residual", "group_norm", "batch_norm", "rms_column",
    "mse_odd",
    "argmax_row", "argmin_column", "cross_entropy", "scan_rows_uneven", "scan_busy", "scan_masked", "minima_reverse",
    "recurrence_odd", "recurrence_column_decay", "log_sums_column",
    "chain", "chain_bias", "swiglu", "integers", "any",
    "max_pool_f16_odd", "avg_pool_fused", "rotary_pairs", "joined", "embedding", "transpose", "transpose_bool",
    "channels_first", "turned_sum",
])  # fmt: skip
def test_layouts(name, layout, folder):
    program = PROGRAMS[name]()
    operands = [layout(t) for t in kp.make_operands(program, "cuda", seed=2)]
    close(load_fused(program, folder).run(*operands), program, operands)


@pytest.mark.parametrize("cta_split", ["none", "cluster", "grid", "split"])
@pytest.mark.parametrize("row_storage", ["registers", "shared", "reread"])
def test_spreads_and_residences(cta_split, row_storage, folder):
    for program in (kp.softmax((40, 20000)), kp.norm((64, 30000), (1,), affine=(1, 30000)), kp.softmax((300, 96), 0)):
        operands = kp.make_operands(program, "cuda", seed=3)
        settings = point(threads=256, unroll=2, row_storage=row_storage, cta_split=cta_split)
        close(load_fused(program, folder, settings).run(*operands), program, operands)


def test_edge_values(folder):
    x = torch.randn(8, 1003, device="cuda")
    x[0] = -inf
    x[1, 5] = inf
    x[2, 7] = nan
    x[3, :] = 1e30
    x[4, ::2] = -inf
    x[5, 3], x[5, 900] = nan, inf
    x[6] = 2.0
    for program in (
        kp.softmax((8, 1003)), kp.softmax((8, 1003), log=True), kp.reduction("max", (8, 1003), (1,)),
        kp.reduction("argmax", (8, 1003), (1,)), kp.reduction("argmin", (8, 1003), (1,)),
        kp.reduction("sum", (8, 1003), (1,)),
    ):  # fmt: skip
        (got,) = load_fused(program, folder).run(x)
        (want,) = kp.interpret(program, [x], exact=False)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_division_by_what_a_row_shares_is_division(dtype, folder):
    """Of zeros, infinities, NaN, subnormal and the largest numbers too; within a unit in the last place."""
    edges = [0.0, -0.0, inf, -inf, nan, 1e-45, -3e-41, 1.2e-38, -1e-30, 3.3e38, -1e30, 2.0**64, 1.0, 3.0, -7.0]
    generator = torch.Generator("cuda").manual_seed(0)
    some = torch.randn(1008, device="cuda", generator=generator)
    above = torch.cat([torch.tensor(edges, device="cuda"), some])
    below = torch.cat([torch.tensor(edges, device="cuda"), some[:200]])[:, None].contiguous()
    b = kp.Builder((len(below), len(above)), (1,))
    q = b.op("div", b.read("x"), b.read("r", (len(below), 1)), dtype="f32")
    b.write(b.op("to", q, dtype=dtype) if dtype != "f32" else q)
    b.write_row(*b.reduce("max", "x"))
    x = above.expand(len(below), -1).contiguous()
    got, _ = load_fused(b.done(), folder).run(x, below)
    want = (x / below).to(got.dtype)
    torch.testing.assert_close(
        got, want, equal_nan=True, rtol=2.0**-23 if dtype == "f32" else 2.0**-7, atol=2.4e-38
    )  # fmt: skip


def test_division_that_ends_in_16_bits_is_division(folder):
    """Of each edge by each, and of numbers of any size: within one rounding to bf16."""
    edges = torch.tensor([0.0, -0.0, inf, -inf, nan, 1e-40, -1.2e-38, 1e-30, 3.3e38, -1e30, 2.0**127, 1.0, 3.0, -7.0])
    some = torch.randn(1010, generator=torch.Generator().manual_seed(0)) * torch.exp2(torch.arange(1010) % 200 - 100.0)
    whole = torch.cat([edges, some]).cuda().bfloat16()
    x, y = whole.expand(256, -1).contiguous(), whole[:256, None].expand(-1, 1024).contiguous()
    b = kp.Builder((256, 1024))
    b.write(b.op("to", b.op("div", b.read("x", dtype="bf16"), b.read("y", dtype="bf16"), dtype="f32"), dtype="bf16"))
    (got,) = load_fused(b.done(), folder).run(x, y)
    want = (x.float() / y.float()).bfloat16()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=2.0**-7, atol=2.4e-38)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_gelu_that_ends_in_16_bits_is_one(dtype, folder):
    """At both ends, beside zero and for what is no number; elsewhere within a rounding, and 1e-6 of x in the tail."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    edges = torch.tensor([0.0, -0.0, inf, nan, 1e-7, -1e-7, 60000.0, -60000.0, -6.0, -5.0, -4.0])
    x = torch.cat([edges, torch.linspace(-8, 8, 65536 - len(edges))]).view(64, 1024).cuda().to(kind)
    b = kp.Builder((64, 1024))
    v = b.read("x", dtype=dtype)
    bell = b.op("add", b.op("erf", b.op("mul", v, 0.7071067811865476, dtype="f32"), dtype="f32"), 1.0, dtype="f32")
    b.write(b.op("to", b.op("mul", b.op("mul", v, 0.5, dtype="f32"), bell, dtype="f32"), dtype=dtype))
    (got,) = load_fused(b.done(), folder).run(x)
    want = F.gelu(x.double())
    real = want.isfinite()
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    allowed = torch.finfo(kind).eps * want[real].abs() + 1e-6 * x[real].double().abs().clamp(min=1e-1)
    assert bool(((got[real].double() - want[real]).abs() <= allowed).all())


def test_pool_edge_values(folder):
    x = torch.randn(3, 2, 17, 19, device="cuda")
    x[0, 0, 3, 4], x[1, 1], x[2, 0, 5:12, 5:12] = nan, -inf, -inf
    x[2, 1, 7, 7] = inf
    for op in ("max", "sum"):
        program = kp.pool(op, (3, 2, 17, 19), (3, 3), stride=2, padding=1)
        close(load_fused(program, folder).run(x), program, [x])


def test_places_of_edge_values(folder):
    """As torch's own kernel gives them: the first of equals, the last NaN, of nothing but -inf what is no padding."""
    x = torch.randn(3, 4, 17, 19, device="cuda").mul(2).round()
    x[0, 0], x[1, 1], x[2, 0, 5:12, 5:12], x[2, 1, :, ::2] = nan, -inf, -inf, nan
    for pool in (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
                 lambda x: F.max_pool2d(x, 3, 2, 1, 2, return_indices=True),
                 lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True)):  # fmt: skip
        program = only_program(pool, x.cpu())
        for got, wanted in zip(load_fused(program, folder).run(x), pool(x), strict=True):
            torch.testing.assert_close(got.view(wanted.shape), wanted, equal_nan=True, rtol=0, atol=0)


def test_e4m3_as_torch_has_it(folder):
    """All of bf16, what rounds to a tie, what is too large, NaN; and every number of e4m3 back again."""
    every = torch.arange(65536, dtype=torch.int32, device="cuda").mul(65536).view(torch.float32)
    near = torch.cat([every, every.view(torch.int32).add(1).view(torch.float32)]).reshape(-1, 64)
    eighth = torch.arange(256, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn).repeat(3)
    for function, given in ((lambda x: (x * 1.0).to(torch.float8_e4m3fn), near), (lambda x: x.float() * 1.0, eighth)):
        program = only_program(function, given.cpu())
        (got,), wanted = load_fused(program, folder).run(given), function(given)
        assert torch.equal(got.float().isnan(), wanted.float().isnan())
        there, integers = ~wanted.float().isnan(), torch.uint8 if got.itemsize == 1 else torch.int32
        assert torch.equal(got.view(integers)[there], wanted.view(integers)[there])


def to_int8(y):
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    return torch.round(y / scale).clamp(-127, 127).to(torch.int8), scale


def to_e4m3(y):
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("shape", [(300, 1001), (64, 4096), (40, 70000)], ids=str)
@pytest.mark.parametrize("quantise", [to_int8, to_e4m3])
def test_quantised(quantise, shape, folder):
    """torch's own numbers, but for a few next to a tie, where a neighbour comes."""
    x = torch.randn(shape, device="cuda")
    program = only_program(lambda x: quantise(F.rms_norm(x, x.shape[-1:])), x.cpu())
    results = load_fused(program, folder).run(x)
    wanted, scale = quantise(F.rms_norm(x, x.shape[-1:]))
    (got,) = [r for r in results if r.shape == wanted.shape]
    assert got.dtype == wanted.dtype and int((got.float() != wanted.float()).sum()) <= 1e-4 * got.numel()
    assert float(((got.float() - wanted.float()).abs() / wanted.float().abs().clamp(min=1.0)).max()) <= 1.0
    (rows,) = [r for r in results if r.shape == scale.shape]
    torch.testing.assert_close(rows, scale, rtol=2e-6, atol=0)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_edge_values(reverse, folder):
    x = torch.randn(6, 9003, device="cuda")
    x[0, 5] = inf
    x[1, 7], x[1, 4000] = inf, -inf
    x[2, 8000] = nan
    x[3, ::3] = 0.0
    x[4, 9002] = -inf
    short = x[:, :40].contiguous()  # longer products leave fp32's range, where the order decides between inf and NaN
    for program, values in (
        (kp.cumulative("cumsum", (6, 9003), reverse=reverse), x),
        (kp.cumulative("cumprod", (6, 40), reverse=reverse), short),
        (kp.cumulative("logcumsumexp", (6, 9003), reverse=reverse), x),
        (kp.extrema("cummax", (6, 9003), reverse=reverse), x),
        (kp.extrema("cummin", (6, 9003), reverse=reverse), x),
    ):
        close(load_fused(program, folder).run(values), program, [values])


def test_a_product_that_is_zero_stays_zero(folder):
    """Though what follows the zero leaves fp32's range where it is multiplied on its own."""
    x = torch.full((300, 500), 4.0, device="cuda")
    x[:, 0] = 0.0
    (got,) = load_fused(kp.cumulative("cumprod", (300, 500)), folder).run(x)
    assert torch.equal(got, torch.zeros_like(x))


def test_a_gate_of_zero_resets_what_grew_beyond_all_bounds(folder):
    """Products of gates overflow where nothing has been added yet, and no state is ever infinite."""
    b = kp.Builder((300, 5000), (1,))
    b.write(b.scan("recurrence", b.read("a"), b.read("x")))
    a, x = torch.full((300, 5000), 1000.0, device="cuda"), torch.zeros(300, 5000, device="cuda")
    a[:, 4000:] = 0.5
    a[:, 3999], x[:, 3999:] = 0.0, 1.0
    (got,) = load_fused(b.done(), folder).run(a, x)
    assert torch.equal(got[:, :3999], torch.zeros_like(got[:, :3999])) and bool((got[:, 3999] == 1).all())
    torch.testing.assert_close(got[:, -1], torch.full((300,), 2.0, device="cuda"))


def test_scan_repeats_to_the_last_bit(folder):
    for program in (kp.cumulative("cumsum", (300, 32768)), kp.cumulative("cumsum", (3, 1000003)),
                    kp.recurrence((300, 32768)), kp.recurrence((3, 1000003))):  # fmt: skip
        operands = kp.make_operands(program, "cuda")
        module = load_fused(program, folder)
        first = module.run(*operands)[0]
        assert all(torch.equal(first, module.run(*operands)[0]) for _ in range(5))


def test_unary_edge_values(folder):
    edges = [
        0.0,
        -0.0,
        inf,
        -inf,
        nan,
        1e-45,
        -1e-45,
        1e-38,
        3e38,
        -3e38,
        1.0,
        -1.0,
        0.5,
        -0.5,
        88.0,
        -103.0,
        1e-8,
        2.5,
        1e10,
    ]
    x = torch.tensor(edges, device="cuda")
    for op in UNARY:
        program = kp.unary(op, (len(edges),))
        (got,) = load_fused(program, folder).run(x)
        (want,) = kp.interpret(program, [x], exact=False)
        torch.testing.assert_close(
            got, want, equal_nan=True, rtol=1e-6, atol=0, msg=lambda text, op=op: f"{op}: {text}"
        )


def test_large_mean_keeps_the_variance(folder):
    program = kp.norm((50, 30001), (1,))
    x = torch.randn(50, 30001, device="cuda") + 1000.0
    close(load_fused(program, folder).run(x), program, [x])


def test_repeats_to_the_last_bit(folder):
    for program in (kp.mse((4096, 4096)), kp.softmax((200, 131072)), kp.norm((4, 64, 64, 63), (1, 2, 3))):
        operands = kp.make_operands(program, "cuda")
        module = load_fused(program, folder)
        first = module.run(*operands)
        for _ in range(5):
            assert all(torch.equal(a, b) for a, b in zip(first, module.run(*operands), strict=True))


def test_current_stream_and_graph(folder):
    program = kp.chain((1000, 333))
    module = load_fused(program, folder)
    (x,) = kp.make_operands(program, "cuda")
    module.run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = module.run(x)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, module.run(x)[0], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_survives_torch_compile(folder):
    program = kp.norm((64, 1000), (1,), affine=(1, 1000), residual=True, dtype="bf16")
    module = load_fused(program, folder)
    operands = kp.make_operands(program, "cuda")
    compiled = torch.compile(lambda *a: module.run(*a)[0] * 2, fullgraph=True)
    torch.testing.assert_close(compiled(*operands), module.run(*operands)[0] * 2)


def test_more_than_two_to_the_31_elements(folder):
    program = kp.chain((3, 2**30 + 8), dtype="f16")
    operands = kp.make_operands(program, "cuda")
    (got,) = load_fused(program, folder).run(*operands)
    tail = kp.chain((3, 4096), dtype="f16")
    (want,) = kp.interpret(tail, [operands[0][:, -4096:]], exact=False)
    torch.testing.assert_close(got[:, -4096:], want, rtol=2e-3, atol=1e-5)


def test_refuses_other_shapes(folder):
    module = load_fused(kp.chain((10, 10)), folder)
    with pytest.raises(ValueError, match="must be f32"):
        module.run(torch.zeros(10, 11, device="cuda"))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_ragged_bags_as_torch_has_them(mode, folder):
    def bags(x, i, o):
        return F.embedding_bag(i, x, o, mode=mode)

    x, i = torch.randn(1000, 96, device="cuda"), torch.randint(0, 1000, (5000,), device="cuda")
    o = torch.tensor([0, 7, 7, 3000, 3001, 4999], device="cuda")
    program = only_program(bags, x, i, o)
    given = {t.numel(): t for t in (x, i, o)}
    operands = [given[prod(operand.shape)].view(operand.shape) for operand in program.operands]
    (got,) = load_fused(program, folder).run(*operands)
    torch.testing.assert_close(got.view(6, 96).double(), bags(x.double(), i, o), rtol=1e-5, atol=1e-4)


BEYOND = 65544  # rows of 32768: more than 2**31 elements, of which row 65536 is the first beyond


@pytest.mark.alone
@pytest.mark.parametrize("make", [
    lambda n: kp.chain((n, 32768), dtype="bf16"), lambda n: kp.softmax((n, 32768), dtype="bf16"),
    lambda n: kp.cumulative("cumsum", (n, 32768), dtype="f16"), lambda n: kp.rms_norm((n, 64, 32, 16), 1, dtype="bf16"),
], ids=["chain", "rows", "scan", "columns"])  # fmt: skip
def test_more_elements_than_32_bits_count(make, folder):
    program = make(BEYOND)
    (x,) = kp.make_operands(program, "cuda")
    (got,) = load_fused(program, folder).run(x)
    for lo, hi in ((0, 3), (32766, 32770), (65534, BEYOND)):
        close([got[lo:hi]], make(hi - lo), [x[lo:hi]])


@pytest.mark.alone
def test_more_elements_than_32_bits_count_are_reduced_and_turned(folder):
    count = 2**31 + 5
    x = torch.zeros(count, dtype=torch.uint8, device="cuda")
    x[-2] = 1
    (place,) = load_fused(kp.reduction("argmax", (count,), (0,), dtype="u8"), folder).run(x)
    (total,) = load_fused(kp.reduction("sum", (count,), (0,), dtype="u8"), folder).run(x.fill_(1))
    assert (int(place), int(total)) == (count - 2, count)
    turned = torch.empty(32768, BEYOND, dtype=torch.bfloat16, device="cuda").random_(-99, 99).t()
    (got,) = load_fused(kp.laid_out(turned.shape, (1, 0), dtype="bf16"), folder).run(turned)
    assert all(torch.equal(got[n : n + 9], turned[n : n + 9]) for n in (0, 32763, BEYOND - 9))
    table, bias = torch.randn(46403, 46400, device="cuda").bfloat16(), torch.randn(1, 46400, device="cuda")
    chosen = torch.arange(46396, 46403).cuda()
    (row,) = load_fused(kp.embedded(7, 46400, dtype="bf16"), folder).run(table, chosen[:, None], bias)
    torch.testing.assert_close(row.double(), table[chosen].double() * 3 + bias.double(), rtol=2**-7, atol=1e-3)
