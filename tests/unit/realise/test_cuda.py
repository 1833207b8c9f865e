"""Rendering for CUDA: what the generated file says and computes, what is refused, and the spaces."""

from __future__ import annotations

import ast
import sys
from math import inf

import pytest
import torch
import torch.nn.functional as F

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda
from fakes.traced import only_program
from tilewright.ir.access import Position
from tilewright.ir.program import Operand, Output, Program, Statement
from tilewright.ir.schedule import schedule
from tilewright.realise.rows.text import safe_names

PROGRAMS = {
    "softmax": lambda: kp.softmax((64, 1000)),
    "layer norm": lambda: kp.norm((64, 1000), (1,), affine=(1, 1000), residual=True),
    "chain": lambda: kp.chain((100, 77), bias=(1, 77)),
    "cross entropy": lambda: kp.cross_entropy_rows(1000, 4096),
    "mse": lambda: kp.mse((10, 11)),
    "integers": lambda: kp.integer_mix((33, 17)),
    "masked": lambda: kp.masked_temperature_softmax(64, 1001),
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_space_has_legal_points(name):
    program = PROGRAMS[name]()
    space = cuda.space(program)
    assert 1 <= len(space.points) <= 8 and len(set(space.points)) == len(space.points)
    for settings in space.points:
        assert [k for k, _ in settings] == sorted(k.name for k in space.knobs)
        assert all(value in next(k for k in space.knobs if k.name == knob).values for knob, value in settings)


def test_knobs_are_those_of_the_skeleton():
    from tilewright.kernels.cuda.rows.plan import KNOBS

    space = cuda.space(kp.softmax((64, 1000)))
    assert {k.name: k.values for k in space.knobs} == KNOBS


def test_element_functions_read_like_the_program():
    (file,) = cuda.render(kp.softmax((64, 1000)), "fused_3", cuda.space(kp.softmax((64, 1000))).points[0])
    assert file.path == "fused_3.py"
    functions = {f.name: ast.unparse(f) for f in ast.parse(file.text).body if isinstance(f, ast.FunctionDef)}
    assert set(functions) == {"sweep_0", "rows_0", "final", "final_of_shares", "entry"}
    assert "v1 = m.sub(x, r0_0, 'f32')" in functions["final"] and "return (v4,)" in functions["final"]


@pytest.mark.parametrize(("program", "row_storage"), [
    (kp.softmax((8, 16384)), "auto"),
    (kp.softmax((8, 65536), dtype="bf16"), "shared"),
    (kp.norm((8, 16384), (1,), affine=(1, 16384)), "shared"),
    (kp.norm((8, 65536), (1,), affine=(1, 65536)), "auto"),
    (kp.norm((8, 65536), (1,), affine=(1, 65536), dtype="bf16"), "shared"),
    (kp.softmax((65536, 64), 0), "auto"),
    (kp.norm((16, 64, 256, 256), (1, 2, 3)), "auto"),
])  # fmt: skip
def test_wide_rows_are_tried_in_shared_memory_first(program, row_storage):
    points = [dict(p) for p in cuda.space(program).points]
    assert points[0]["row_storage"] == row_storage and len({tuple(p.items()) for p in points}) == len(points)


class Recorder:
    """Stands in for the math module: the same operations on numbers."""

    def __getattr__(self, op):
        functions = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}
        functions |= {"div": lambda a, b: a / b, "rsqrt": lambda a: a**-0.5, "to": lambda a: a}
        return lambda *args: functions[op](*args[:-1])


def test_functions_compute_the_program(tmp_path):
    program = kp.norm((2, 4), (1,), affine=(1, 4))
    module = load_fused(program, tmp_path, name="computed")
    module.m = Recorder()
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0], [0.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    w, b = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.5, 0.0, -0.5, 0.0]])
    spec = module.SPEC
    (arg,) = spec.sweeps[0].elements(x)
    mean = arg.mean(1, keepdim=True)
    values = dict(
        zip(spec.sweeps[0].reductions[0].results, (mean, ((arg - mean) ** 2).sum(1, keepdim=True)), strict=True)
    )
    names = spec.sweeps[0].rows.__code__.co_varnames[: spec.sweeps[0].rows.__code__.co_argcount]
    values |= spec.sweeps[0].rows(*(values[n] for n in names)) | {"x": x, "w": w, "b": b}
    names = spec.final.__code__.co_varnames[: spec.final.__code__.co_argcount]
    (got,) = spec.final(*(values[n] for n in names))
    want = torch.nn.functional.layer_norm(x, (4,), w[0].double(), b[0].double(), 1e-5)
    torch.testing.assert_close(got, want)


def program_with_names(operand: str, result: str) -> Program:
    return Program(
        domain=(4, 4),
        operands=(Operand(name=operand, dtype="f32", shape=(4, 4)),),
        body=(Statement(result=result, op="exp", args=(operand,), dtype="f32"),),
        outputs=(Output(name=result, dtype="f32", shape=(4, 4)),),
    )


@pytest.mark.parametrize(("operand", "result"), [("lambda", "m"), ("index_0", "stream"), ("out_x", "in"), ("x", "v_m")])
def test_awkward_names_become_safe(operand, result, tmp_path):
    program = program_with_names(operand, result)
    safe = safe_names(program)
    assert len({o.name for o in (*safe.operands, *safe.outputs)}) == 2
    assert schedule(safe).element_outputs == safe.outputs
    module = load_fused(program, tmp_path, name="awkward")
    assert [o.name for o in module.SPEC.operands] == [o.name for o in safe.operands]


def test_a_load_that_nothing_computes_is_told(tmp_path):
    def told(program):
        (operand,) = (o for o in load_fused(program, tmp_path).SPEC.operands if o.indexed)
        return operand.at, operand.fill

    pool = kp.pool("max", (4, 5, 99), (8,), stride=2, padding=3, dilation=4)
    assert told(pool) == (((0, ((0, 1),)), (0, ((1, 1),)), (-3, ((3, 2), (2, 4)))), float("-inf"))
    b = kp.Builder((7, 9), (1,))
    x = b.source("x", (7, 9))
    b.write_row(*b.reduce("sum", b.load(x, [kp.along((0, 1)), Position(value=b.read("i", dtype="i64"))], 0.0)))
    assert told(b.done()) == ((), 0.0), "where, an operand says"
    b = kp.Builder((7, 8), (1,))
    x = b.source("x", (7, 9))
    left, right = (b.load(x, [kp.along((0, 1)), kp.along((1, 1), start=k)]) for k in range(2))
    b.write_row(*b.reduce("sum", b.op("add", left, right)))
    assert told(b.done()) == ((), 0.0), "two loads"


def test_threads_may_slide_over_windows_of_what_is_loaded_as_it_is(tmp_path):
    def slides(program):
        return load_fused(program, tmp_path).SPEC.slides

    pool = kp.pool("sum", (4, 5, 9, 99), (3, 3), dtype="bf16")
    averaged = only_program(lambda x: F.avg_pool2d(x, 3, 2, 1), torch.randn(2, 3, 9, 9, dtype=torch.bfloat16))
    assert slides(pool) and slides(averaged) and dict(cuda.space(pool).points[-1])["row_storage"] == "reread"
    places = only_program(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randn(2, 3, 9, 9))
    assert not any(slides(p) for p in (places, kp.softmax((8, 99)), kp.reduction("sum", (8, 9, 7), (1,))))


def test_what_comes_before_windows_must_not_differ_between_them(tmp_path):
    def slides(function, *shapes):
        program = only_program(function, *(torch.randn(shape) for shape in shapes))
        return len(program.loads) == 1 and load_fused(program, tmp_path).SPEC.slides

    x, channels = (2, 3, 9, 9), (3, 1, 1)
    assert slides(lambda x, a, b: F.max_pool2d(F.relu(x * a + b), 3, 2, 1), x, channels, channels)
    assert slides(lambda x, y: F.max_pool2d(x, 3, 2, 1) + y, x, (2, 3, 5, 5)), "what follows may"

    def windowed(reduce, fill, *, place=False, wide=False):
        b = kp.Builder((4, 3, 16), (1,))
        at = [kp.along((0, 1)), kp.along((2, 1), (1, 1), start=-1)]
        v = b.load(b.source("x", (4, 16)), at, fill)
        v = b.op("mul", v, b.op("to", b.op("index", 1), dtype="f32")) if place else v
        v = b.op("mul", v, b.read("w", (1, 1, 16))) if wide else v
        b.write_row(*b.reduce(reduce, v))
        return load_fused(b.done(), tmp_path).SPEC.slides

    assert windowed("sum", 0.0) and windowed("max", -inf)
    assert not windowed("sum", 1.0) and not windowed("max", 0.0), "outside counts"
    assert not windowed("sum", 0.0, place=True) and not windowed("sum", 0.0, wide=True)


def test_infinities_are_written_as_python(tmp_path):
    module = load_fused(kp.masked_temperature_softmax(64, 1001), tmp_path, name="infinite")
    assert module.KNOBS["threads"] in (128, 256, 512, 1024)


def test_unsupported_says_why():
    assert cuda.unsupported(kp.softmax((64, 1000))) is None
    assert cuda.unsupported(kp.softmax((64, 1000), dtype="f64")) == "f64 has no skeleton"
    assert cuda.unsupported(kp.chain((0, 3))) == "the domain (0, 3) is empty"
    b = kp.Builder((4,))
    b.write(b.op("pow", b.read("x", dtype="i64"), 5))
    assert "integer power" in str(cuda.unsupported(b.done()))
    b = kp.Builder((4,))
    b.write(b.op("index", 0))
    assert cuda.unsupported(b.done()) == "nothing is read"
    with pytest.raises(ValueError, match="f64 has no skeleton"):
        cuda.render(kp.softmax((64, 1000), dtype="f64"), "fused_0", ())


def test_skeleton_files_are_whole(tmp_path):
    assert cuda.skeleton_files([]) == ()
    files = cuda.skeleton_files([kp.softmax((64, 1000)), kp.product(512, 512, 512)])
    assert all(f.path.startswith("tilewright_kernels/") for f in files)
    modules = {f.path.removeprefix("tilewright_kernels/").removesuffix(".py").replace("/", ".") for f in files}
    for file in files:
        package = file.path.split("/")[1:-1]
        for node in ast.walk(ast.parse(file.text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                names = [node.module] if node.module else [a.name for a in node.names]
                assert all({".".join([*base, n]), ".".join([*base, n, "__init__"])} & modules for n in names), file.path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in {"torch", "cutlass", *sys.stdlib_module_names}


@pytest.mark.parametrize(("program", "place", "ways"), [
    (lambda: kp.softmax((4096, 393216)), 0, 3),
    (lambda: kp.norm((64, 64, 512, 512), (0, 2, 3), affine=(1, 64, 1, 1)), 0, 3),
    (lambda: kp.softmax((4096, 262144)), 1, 2),  # a cluster may do
    (lambda: kp.softmax((4096, 262144), dtype="bf16"), 1, 2),
    (lambda: kp.softmax((4096, 16384)), 0, 0),
    (lambda: kp.softmax((1, 1 << 24)), 0, 0),  # no next row
    (lambda: kp.norm((16, 64, 256, 256), (1, 2, 3), affine=(1, 64, 256, 256)), 0, 2),  # weights stay in registers
    (lambda: kp.norm((16, 64, 256, 255), (1, 2, 3), affine=(1, 64, 256, 255), dtype="f16"), 0, 0),  # in the L2
    (lambda: kp.norm((16, 256, 256, 256), (1, 2, 3), affine=(1, 256, 256, 256)), 0, 0),  # neither
])  # fmt: skip
def test_long_rows_are_tried_by_teams(program, place, ways):
    points = [dict(p) for p in cuda.space(program()).points]
    teams = [n for n, p in enumerate(points) if p["cta_split"] == "grid"]
    assert teams == list(range(place, place + ways)) and len(points) <= 8
