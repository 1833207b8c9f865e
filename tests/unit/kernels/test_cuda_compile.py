"""Every skeleton path compiles for sm_90a on a machine without a GPU, and to the instructions that it is meant for."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.realisers import cuda, gpu
from fakes.traced import only_program
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.common.cubin import taken

pytestmark = [pytest.mark.slow, pytest.mark.one_in(4)]  # half a second for each kernel, and dozens of them


def empty(*shape):
    return torch.empty(shape, device="meta")


def first_program(function, *args):
    """Of few vectors: the pass over the matrix."""
    return match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space).patterns[0].program


def decayed(x):
    h = torch.zeros(33, 77)
    for t in range(20):
        h = 0.9 * h + 0.1 * x[:, t]
    return h


def to_int8(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).to(torch.int8), scale


PATHS = {
    "pointwise with a tail": (lambda: kp.chain((1001, 333)), {}),
    "pointwise with a broadcast": (lambda: kp.chain((8, 64, 48), bias=(1, 64, 1)), {}),
    "pointwise with 64-bit offsets": (lambda: kp.chain((65536, 65536), dtype="f16"), {}),
    "several outputs and dtypes": (lambda: kp.swiglu_two_outputs((100, 77)), {}),
    "integers": (lambda: kp.integer_mix((33, 17)), {}),
    "a transpose": (lambda: kp.laid_out((1024, 768), (1, 0)), {}),
    "a transpose of odd sides": (lambda: kp.laid_out((1003, 779), (1, 0), dtype="bf16"), {"tile": 32}),
    "channels last, of truth values": (lambda: kp.laid_out((5, 28, 30, 64), (0, 3, 1, 2), dtype="bool"), {}),
    "a sum with a transpose": (lambda: kp.turned_sum((516, 1028), (1, 0), dtype="f16"), {"unroll": 8}),
    "several short rows a CTA": (lambda: kp.softmax((1000, 24)), {}),
    "rows in registers": (lambda: kp.norm((640, 4096), (1,), affine=(1, 4096), residual=True, dtype="bf16"), {}),
    "rows in a cluster's registers": (lambda: kp.softmax((4096, 65536)), {}),
    "rows in shared memory": (lambda: kp.softmax((640, 40000)), {"row_storage": "shared", "cta_split": "none"}),
    "rows in a cluster's shared memory": (lambda: kp.softmax((640, 393216)), {}),
    "rows read again": (lambda: kp.softmax((640, 40000)), {"row_storage": "reread", "cta_split": "none"}),
    "rows split over launches": (lambda: kp.norm((16, 64, 256, 256), (1, 2, 3), affine=(1, 64, 256, 256)), {}),
    "rows held by the whole chip": (
        lambda: kp.norm((16, 64, 256, 256), (1, 2, 3), affine=(1, 64, 256, 256)),
        {"cta_split": "grid"},
    ),
    "rows of teams": (lambda: kp.softmax((700, 393216), dtype="bf16"), {"threads": 512, "cta_split": "grid"}),
    "rows of teams, not all of them held": (lambda: kp.norm((64, 3, 601, 512), (0, 2, 3)), {"cta_split": "grid"}),
    "one row, most of it not held": (lambda: kp.l1_norm((1, 1000000007), l2=True), {"cta_split": "grid"}),
    "a ring of rows": (lambda: kp.softmax((640, 16384)), {"threads": 512, "unroll": 1, "cta_split": "grid"}),
    "columns in registers": (lambda: kp.rms_norm((112, 64, 512, 512), 1), {}),
    "columns in shared memory": (
        lambda: kp.softmax((64, 300, 5000), 1),
        {"row_storage": "shared", "cta_split": "none"},
    ),
    "columns streamed": (lambda: kp.reduction("argmax", (128, 4096, 4095), (1,)), {}),
    "columns split": (lambda: kp.reduction("moments", (100000, 64), (0,)), {}),
    "a loss": (lambda: kp.mse((1001, 333)), {}),
    "a gather": (lambda: kp.cross_entropy_rows(1000, 4096), {}),
    "argmax of everything": (lambda: kp.reduction("argmax", (1000001,), (0,), dtype="bf16"), {}),
    "booleans": (lambda: kp.reduction("any", (77, 1003), (1,), dtype="bool"), {}),
    "a mask and row operands": (lambda: kp.masked_temperature_softmax(64, 1001), {}),
    "a scan of rows": (lambda: kp.cumulative("cumsum", (640, 32768)), {}),
    "a reversed scan of odd rows": (lambda: kp.cumulative("cumsum", (640, 10007), reverse=True), {}),
    "a scan of short rows": (lambda: kp.cumulative("cumprod", (6400, 24), dtype="f16", exclusive=True), {}),
    "a product over rows": (lambda: kp.cumulative("cumprod", (640, 5000), reverse=True), {}),
    "a product split over launches": (lambda: kp.cumulative("cumprod", (3, 1000003)), {}),
    "a scan split over launches": (lambda: kp.cumulative("cumsum", (4, 2000000), dtype="i64"), {}),
    "a scan by CTAs in turn": (lambda: kp.cumulative("cumsum", (3, 1000003), reverse=True), {"cta_split": "grid"}),
    "a recurrence by CTAs in turn": (lambda: kp.recurrence((5, 400000)), {"cta_split": "grid", "threads": 512}),
    "a scan of columns": (lambda: kp.busy_cumsum((64, 300, 500), 1), {}),
    "a scan of columns split": (lambda: kp.masked_cumsum((100000, 64), 0, reverse=True), {}),
    "extrema with positions": (lambda: kp.extrema("cummax", (640, 10007), dtype="bf16", reverse=True), {}),
    "extrema split over launches": (lambda: kp.extrema("cummin", (3, 1000003), fused=True), {}),
    "extrema of truth values": (lambda: kp.extrema("cummin", (300, 77), 0, dtype="bool"), {}),
    "logarithms of sums": (lambda: kp.cumulative("logcumsumexp", (640, 5000)), {}),
    "logarithms of sums split": (lambda: kp.cumulative("logcumsumexp", (100000, 64), 0, exclusive=True), {}),
    "a recurrence over rows": (lambda: kp.recurrence((640, 4096), dtype="bf16"), {}),
    "a recurrence split over launches": (lambda: kp.recurrence((4, 2000000), reverse=True), {}),
    "a recurrence over columns": (lambda: kp.recurrence((8, 2048, 512), 1, decay=(1, 1, 512)), {}),
    "a recurrence over columns split": (lambda: kp.recurrence((100000, 64), 0), {}),
    "windows": (lambda: kp.pool("max", (8, 64, 112, 112), (3, 3), stride=2, padding=1, dtype="f16"), {}),
    "windows and their neighbours": (lambda: kp.pool("sum", (2, 16, 33, 35), (3, 3), padding=1, fused=True), {}),
    "windows from shared memory": (lambda: kp.pool("max", (5, 33, 2051), (8,), padding=4, dilation=3), {}),
    "windows in bf16 from shared memory": (
        lambda: kp.pool("sum", (70, 9, 2000), (5,), stride=2, padding=1, dtype="bf16"),
        {},
    ),
    "windows and neighbours from shared memory": (
        lambda: kp.pool("max", (64, 8, 1037), (3,), padding=1, fused=True, dtype="f16"),
        {},
    ),
    "windows of few rows": (lambda: kp.pool("max", (3, 5, 1017), (20,), stride=3, padding=2, dilation=2), {}),
    "windows and where their maxima lie": (
        lambda: only_program(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randn(4, 8, 57, 61)),
        {},
    ),
    "rows of int8 and their scales": (lambda: only_program(to_int8, torch.randn(640, 4096).bfloat16()), {}),
    "float8": (lambda: only_program(lambda x: (x * 2).to(torch.float8_e4m3fn), torch.randn(33, 1001)), {}),
    "from float8": (lambda: only_program(lambda x: x.float() * 2, torch.randn(64, 64).to(torch.float8_e4m3fn)), {}),
    "two halves": (lambda: kp.rotary(4, 128, 64, dtype="bf16"), {}),
    "pairs": (lambda: kp.rotary(4, 128, 32, pairs=True), {}),
    "one after the other": (lambda: kp.joined(300, 77, 50), {}),
    "an embedding": (lambda: kp.embedded(1000, 512, dtype="bf16"), {}),
    "bags": (lambda: kp.bags(300, 20, 512, dtype="bf16"), {}),
    "ragged bags": (lambda: kp.ragged(4096, 80000, 256, dtype="bf16"), {}),
    "few long bags": (lambda: kp.ragged(3, 80000, 50, op="max"), {"unroll": 8}),
    "chosen columns": (lambda: kp.embedded(33, 101, dim=1, index="i32"), {}),
    "a product": (lambda: kp.reduction("prod", (7, 5, 3), (0, 2)), {}),
    "a last state": (lambda: only_program(decayed, torch.randn(33, 20, 77)), {}),
    "a matrix and a vector": (lambda: only_program(torch.matmul, empty(8192, 4096), empty(4096)), {}),
    "a row and a matrix": (lambda: only_program(torch.matmul, empty(1, 4096), empty(4096, 8192)), {}),
    "4 rows and a matrix": (lambda: first_program(F.linear, empty(4, 4096), empty(8192, 4096)), {}),
    "8 rows and a matrix across": (lambda: first_program(torch.matmul, empty(8, 4096), empty(4096, 8192)), {}),
    "a batch of matrices and vectors": (lambda: only_program(torch.bmm, empty(64, 512, 512), empty(64, 512, 1)), {}),
    "a batch of vectors and matrices": (lambda: only_program(torch.bmm, empty(64, 1, 512), empty(64, 512, 512)), {}),
    "a matrix and a vector in bf16": (
        lambda: only_program(torch.mv, empty(8192, 999).bfloat16(), empty(999).bfloat16()),
        {},
    ),
    "K of 7": (
        lambda: only_program(lambda x, w, b: F.gelu(F.linear(x, w, b)), empty(65536, 7), empty(512, 7), empty(512)),
        {},
    ),
    "an outer product": (lambda: only_program(torch.outer, empty(4096), empty(1000)), {}),
    "the first of a row": (lambda: kp.ranked((640, 32768), 64), {}),
    "the first of odd rows": (lambda: kp.ranked((640, 10007), 20, op="smallest", dtype="f16"), {"threads": 512}),
    "the first of rows split over launches": (lambda: kp.ranked((3, 1000003), 40, dtype="bf16"), {}),
    "the first of probabilities": (lambda: kp.ranked((4096, 256), 8, fused=True), {}),
    "the first of probabilities split": (lambda: kp.ranked((2, 400000), 8, fused=True), {}),
    "the first of columns": (lambda: kp.ranked((4, 57, 83), 3, 1, dtype="i8"), {}),
}

# Of a skeleton whose other paths run each time.
THOROUGH = frozenset({
    "pointwise with a broadcast", "integers", "a transpose", "channels last, of truth values",
    "rows split over launches", "a loss", "argmax of everything", "a mask and row operands",
    "a scan of rows", "a scan of short rows", "a product over rows", "a product split over launches",
    "extrema split over launches", "extrema of truth values", "logarithms of sums", "a recurrence split over launches",
    "a recurrence over columns", "windows and their neighbours", "windows in bf16 from shared memory",
    "windows and neighbours from shared memory", "windows of few rows", "from float8", "pairs", "bags",
    "few long bags", "chosen columns", "a row and a matrix", "8 rows and a matrix across",
    "a batch of vectors and matrices", "a matrix and a vector in bf16", "an outer product", "the first of odd rows",
    "the first of probabilities",
})  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("candidate")


def compile_for_hopper(program, folder, knobs, strides=None, alignment=16):
    module = load_fused(program, folder)
    module.configure(**knobs)
    fused = module._FUSED
    device = gpu()
    walks = strides or [o.strides for o in program.operands]
    return fused.compile(walks, [alignment] * len(walks), device)


@pytest.mark.few(0, 1)
@pytest.mark.parametrize("shape", [(32768, 4096), (3, 137, 217), (70001, 64)])
def test_sums_beside_rows_stay_in_registers(shape, folder, tmp_path):
    program = kp.norm_backward(shape, dtype="f32" if len(shape) == 3 else "bf16")
    assert cuda.unsupported(program) is None
    walks, more = [o.strides for o in program.operands], f"--keep-cubin --dump-dir={tmp_path}"
    for settings in (cuda.space(program).points[k] for k in (0, 3)):
        fused = load_fused(program, folder, settings)._FUSED
        device = gpu()
        launch, kernel = fused.compile(walks, [16] * len(walks), device, options=more)
        row_storage = "registers" if dict(settings)["row_storage"] == "registers" else "shared"
        assert kernel.plan.parts >= 411 and kernel.plan.row_storage == row_storage
        assert [k.local_bytes for k in taken(launch.artifacts.CUBIN)] == [0]
        fused.rest.compile(_partial(fused), [16] * 3, device)


def test_sums_beside_what_is_done_with_each_element_wait_for_nobody(folder, tmp_path):
    """No barrier but those of a thread's own copies, and nothing spills at the point that is proposed first."""
    for number, (shape, inner, dtype) in enumerate((((4096, 4096), 1, "f32"), ((4096, 16384), 1, "bf16"),
                                                     ((2048, 2, 2816), 2, "f32"), ((1030, 65536), 1, "f32"),
                                                     ((3, 137, 217), 1, "f32"))):  # fmt: skip
        program = kp.gelu_backward(shape, inner=inner, dtype=dtype)
        assert cuda.unsupported(program) is None
        dumped = tmp_path / str(number)
        dumped.mkdir()
        fused = load_fused(program, folder, cuda.space(program).points[0])._FUSED
        device = gpu()
        walks, more = [o.strides for o in program.operands], f"--keep-ptx --keep-cubin --dump-dir={dumped}"
        launch, kernel = fused.compile(walks, [16] * 2, device, options=more)
        assert kernel.plan.parts and kernel.plan.row_storage == "shared"
        assert [k.local_bytes for k in taken(launch.artifacts.CUBIN)] == [0]
        assert not {"bar.sync", "barrier.sync", "mbarrier"} & set(str(launch.artifacts.PTX).replace("\t", " ").split())
        fused.rest.compile(_partial(fused), [16], device)


def _partial(fused):
    """Strides of the partial sums, for what adds them up."""
    return [import_module("tilewright_kernels.cuda.common.views").contiguous(o.shape) for o in fused.rest.spec.operands]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.thorough) if n in THOROUGH else n for n in PATHS])
def test_compiles(name, folder):
    make, knobs = PATHS[name]
    launch, kernel = compile_for_hopper(make(), folder, knobs)
    assert callable(launch) and kernel.work_bytes >= 16


def test_what_lies_across_is_read_in_tiles_of_whole_vectors(folder):
    """16 bytes an access on both sides; and a row operand that lies across is no reason for tiles."""
    for dtype, dense in (("f32", 4), ("bf16", 8), ("u8", 8), ("i64", 2)):
        _, kernel = compile_for_hopper(kp.laid_out((1024, 768), (1, 0), dtype=dtype), folder, {"unroll": 4})
        assert kernel.plan.tile.transposed[0].dense == kernel.plan.space.vector == dense
        assert kernel.plan.tile.rows * kernel.plan.tile.width == kernel.plan.threads * 4 * dense
    _, kernel = compile_for_hopper(kp.laid_out((1024, 768), (1, 0)), folder, {"tile": "none"})
    assert kernel.plan.tile is None
    _, kernel = compile_for_hopper(kp.chain((64, 8, 48), bias=(1, 8, 48)), folder, {}, [(384, 48, 1), (384, 1, 8)])
    assert kernel.plan.tile is None


def test_compiles_for_strides_and_odd_addresses(folder):
    program = kp.softmax((640, 1000))
    compile_for_hopper(program, folder, {}, strides=[(1, 640)])
    compile_for_hopper(program, folder, {}, strides=[(0, 1)], alignment=4)
    compile_for_hopper(program, folder, {}, strides=[(2000, 2)], alignment=8)


def test_terms_that_are_written_out_are_read_and_written_in_whole_vectors(folder):
    """Where a column of the left factor begins does not count: one of its elements is enough for all lanes."""
    program = only_program(torch.matmul, empty(65536, 3), empty(3, 512))
    module = load_fused(program, folder)
    device = gpu()
    walks = [((3, 1), 4) if o.shape[1] == 1 else ((512, 1), 16) for o in program.operands]
    _, kernel = module._FUSED.compile([w for w, _ in walks], [a for _, a in walks], device)
    assert len(walks) == 6 and kernel.plan.space.vector == 4


def test_few_vectors_are_summed_in_one_pass_over_the_matrix(folder, tmp_path):
    """Nothing of 8 sums of 4 columns each spills."""
    for program, columns in (
        (first_program(torch.matmul, empty(8, 8192), empty(8192, 28672)), True),
        (first_program(F.linear, empty(4, 8192), empty(28672, 8192)), False),
    ):
        fused, walks = load_fused(program, folder)._FUSED, [o.strides for o in program.operands]
        device = gpu()
        options = f"--keep-cubin --dump-dir={tmp_path}"
        launch, kernel = fused.compile(walks, [16] * len(walks), device, options=options)
        assert {k.local_bytes for k in taken(launch.artifacts.CUBIN)} == {0}
        plan = kernel.plan
        assert len(kernel.spec.sweeps) == 1 and len(kernel.spec.sweeps[0].reductions) == (8 if columns else 4)
        assert plan.space.vector == 4 and plan.space.front == ("column" if columns else "row")
        assert (plan.chunks > 1) == columns, "28672 columns are too few for the chip, as many rows are not"


@pytest.mark.parametrize("op", ["asin", "atanh", "erf", "log1p", "sigmoid", "tanh", "isinf", "round"])
def test_functions_compile(op, folder):
    compile_for_hopper(kp.unary(op, (1003,)), folder, {})


@pytest.mark.parametrize("op", ["fmod", "remainder", "floor_divide", "pow", "atan2", "maximum", "logical_xor"])
def test_functions_of_two_compile(op, folder):
    compile_for_hopper(kp.binary(op, (1003,)), folder, {})


def test_knobs_are_checked(folder):
    given = point(threads=128, unroll=2, row_storage="auto", cta_split="auto", tile=32)
    module = load_fused(kp.chain((64, 64)), folder, given)
    assert module.KNOBS["threads"] == 128
    module.configure(threads=512)
    assert module.KNOBS == {"threads": 512, "unroll": 2, "row_storage": "auto", "cta_split": "auto", "tile": 32}
    with pytest.raises(ValueError, match="unknown knob 'stages'"):
        module.configure(stages=2)
    with pytest.raises(ValueError, match="can't be 96"):
        module.configure(threads=96)
