"""Long rows in teams of resident CTAs on a GPU: against float64 for every way in which rows may fill the rings, the
same to the last bit when repeated, and refused by a device that can't hold the teams."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import gpu
from tilewright.facts.space import point

SMALL = 4  # multiprocessors that small cases make do with: their rings are soon full


def chained(shape):
    """Three sweeps: moments, statistics of a softmax of what they normalise, elements."""
    b = kp.Builder(shape, (1,))
    x = b.read("x")
    mean, deviations = b.reduce("moments", x)
    scale = b.op("rsqrt", b.op("add", b.op("div", deviations, float(shape[1])), 1e-5))
    y = b.op("mul", b.op("sub", x, mean), scale)
    top, total = b.reduce("softmax_stats", y)
    b.write(b.op("div", b.op("exp", b.op("sub", y, top)), total))
    b.write_row(total)
    return b.done()


def centred(shape, dtype):
    """Whole numbers less their row's first maximum's position and their sum: states of 64 bits."""
    b = kp.Builder(shape, (1,))
    x = b.read("x", dtype=dtype)
    (place,) = b.reduce("argmax", x)
    (total,) = b.reduce("sum", x, "i64")
    b.write(b.op("sub", b.op("sub", b.op("to", x, dtype="i64"), place), total))
    b.write_row(place)
    return b.done()


CASES = {  # program, knobs, how much of a chunk a CTA's ring holds
    "a row a CTA": (lambda: kp.softmax((70, 4096)), {}, "all"),
    "a row a team": (lambda: kp.norm((37, 65536), (1,), affine=(1, 65536)), {}, "all"),
    "two rows a CTA": (lambda: kp.softmax((50, 8192)), {"threads": 1024, "unroll": 1}, "all"),
    "broken blocks": (lambda: kp.norm((41, 30004), (1,)), {"threads": 256}, "all"),
    "odd rows": (lambda: kp.l1_norm((19, 50001)), {}, "all"),
    "more than fits": (lambda: kp.norm((9, 2**19), (1,), affine=(1, 2**19)), {}, "a part"),
    "more than fits, broken": (lambda: kp.softmax((5, 2**18 + 4)), {"threads": 256, "unroll": 4}, "a part"),
    "pieces": (lambda: kp.norm((16, 30, 31, 132), (0, 2, 3), affine=(1, 30, 1, 1)), {}, "all"),
    "pieces, more than fit": (lambda: kp.norm((16, 3, 112, 132), (0, 2, 3), affine=(1, 3, 1, 1)), {}, "a part"),
    "three sweeps": (lambda: chained((23, 50000)), {}, "all"),
    "three sweeps, more than fits": (lambda: chained((5, 300000)), {"threads": 1024}, "a part"),
    "three sweeps, a part in registers": (lambda: chained((5, 600000)), {}, "a part"),
    "two operands": (lambda: kp.norm((21, 20000), (1,), residual=True, dtype="bf16"), {}, "all"),
    "whole numbers": (lambda: centred((17, 40000), "i32"), {}, "all"),
    "short whole numbers": (lambda: centred((17, 80000), "i16"), {"unroll": 1}, "all"),
    "one row": (lambda: kp.softmax((1, 100000)), {}, "all"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("candidate")


def on(processors, program, folder, operands, **knobs):
    """The plan for a GPU of so many processors, and a call of its kernel."""
    settings = {"threads": 512, "unroll": 2, "row_storage": "auto", "cta_split": "grid"} | knobs
    fused = load_fused(program, folder, point(**settings))._FUSED
    device = gpu(processors=processors)
    launch, kernel = fused.compile([t.stride() for t in operands], [16] * len(operands), device)

    def run():
        outputs = [torch.empty(o.shape, dtype=kp.TORCH[o.dtype], device="cuda") for o in program.outputs]
        launch(*operands, *outputs, torch.zeros(kernel.work_bytes, dtype=torch.uint8, device="cuda"))
        return outputs

    return kernel.plan, run


def close(got, program, operands):
    """No output is further from float64 than twice what torch's own operations are, or a few ulps; whole numbers are
    the same."""
    truth, usual = (kp.interpret(program, operands, exact=exact) for exact in (True, False))
    for ours, exact, eager in zip(got, truth, usual, strict=True):
        if not ours.dtype.is_floating_point:
            torch.testing.assert_close(ours, eager, rtol=0, atol=0)
            continue
        ulp = 2.0**-7 if ours.dtype == torch.bfloat16 else 2.0**-23
        scale = exact.norm() + 1e-300
        usual_error = float((eager.double() - exact).norm() / scale)
        assert float((ours.double() - exact).norm() / scale) <= max(2 * usual_error, 2 * ulp)
        worst = float((eager.double() - exact).abs().max())
        assert float((ours.double() - exact).abs().max()) <= max(2 * worst, 4 * ulp * float(exact.abs().max()))


@pytest.mark.parametrize("name", list(CASES))
def test_against_float64(name, folder):
    make, knobs, part = CASES[name]
    program = make()
    operands = kp.make_operands(program, "cuda")
    plan, run = on(SMALL, program, folder, operands, **knobs)
    assert plan.teams and part == ("a part" if plan.held < plan.blocks_per_chunk else "all"), plan
    assert (plan.own > 0) == (part == "a part" and plan.threads < 1024)
    got = run()
    close(got, program, operands)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(got, run(), strict=True))


@pytest.mark.parametrize("name", ["a row a team", "broken blocks", "two operands", "three sweeps", "whole numbers"])
def test_less_than_two_rows_in_a_ring(name, folder, monkeypatch):
    make, knobs, _ = CASES[name]
    program = make()
    operands = kp.make_operands(program, "cuda", seed=1)
    load_fused(program, folder)
    monkeypatch.setattr(import_module("tilewright_kernels.cuda.rows.planning"), "HELD_SHARE", 0.86)
    plan, run = on(SMALL, program, folder, operands, **knobs)
    assert plan.ahead == 1 and plan.space.groups > 4 * plan.teams
    got = run()
    close(got, program, operands)
    assert all(torch.equal(a, b) for a, b in zip(got, run(), strict=True))


SCANS = {
    "sums": lambda: kp.cumulative("cumsum", (3, 1000003)),
    "sums, reversed": lambda: kp.cumulative("cumsum", (3, 1000004), reverse=True),
    "whole numbers": lambda: kp.cumulative("cumsum", (2, 200000), dtype="i64", exclusive=True),
    "products": lambda: kp.cumulative("cumprod", (2, 100003)),
    "extrema": lambda: kp.extrema("cummin", (3, 100003), fused=True),
    "logarithms of sums": lambda: kp.cumulative("logcumsumexp", (2, 300000)),
    "a recurrence": lambda: kp.recurrence((3, 400000)),
}


@pytest.mark.parametrize("processors", [SMALL, 132])
@pytest.mark.parametrize("name", list(SCANS))
def test_scans_by_ctas_in_turn(name, processors, folder):
    program = SCANS[name]()
    operands = kp.make_operands(program, "cuda")
    plan, run = on(processors, program, folder, operands, threads=256)
    assert plan.teams == program.rows and plan.chunks > 1 and plan.cta_split == "grid"
    got = run()
    close(got, program, operands)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(got, run(), strict=True))


@pytest.mark.parametrize(("width", "dtype"), [(65536, "f32"), (119996, "f32"), (240004, "bf16")])
def test_weights_that_stay_in_registers(width, dtype, folder, monkeypatch):
    program = kp.norm((37, width), (1,), affine=(1, width), dtype=dtype)
    operands = kp.make_operands(program, "cuda", seed=2)
    load_fused(program, folder)
    monkeypatch.setattr(import_module("tilewright_kernels.cuda.rows.planning"), "KEPT_BYTES", 0)
    plan, run = on(SMALL, program, folder, operands)
    assert len(plan.kept) == 1 and plan.early and plan.held == plan.blocks_per_chunk
    got = run()
    close(got, program, operands)
    for _ in range(10):
        assert all(torch.equal(a, b) for a, b in zip(got, run(), strict=True))


@pytest.mark.parametrize("program", [
    lambda: kp.softmax((7, 2**21)), lambda: kp.norm((40, 2**20), (1,), affine=(1, 2**20)),
    lambda: kp.softmax((3, 2**22 + 4)), lambda: kp.softmax((300, 8192)),
    lambda: kp.norm((2, 16, 512, 1024), (1, 2, 3), affine=(1, 16, 512, 1024)), lambda: kp.l1_norm((300, 65535)),
])  # fmt: skip
def test_whole_gpu(program, folder):
    program = program()
    module = load_fused(program, folder, point(threads=512, unroll=4, row_storage="auto", cta_split="grid"))
    for seed in range(2):
        operands = kp.make_operands(program, "cuda", seed=seed)
        got = module.run(*operands)
        close(got, program, operands)
        assert all(torch.equal(a, b) for a, b in zip(got, module.run(*operands), strict=True))


def test_a_gpu_that_cannot_hold_the_teams_splits_rows_and_says_so(folder, monkeypatch):
    """As under MPS, where a process gets a share of the multiprocessors."""
    program = kp.softmax((7, 2**21))
    operands = kp.make_operands(program, "cuda")
    module = load_fused(program, folder, point(threads=512, unroll=4, row_storage="auto", cta_split="grid"))
    real = torch.cuda.get_device_properties(0)
    facts = {name: getattr(real, name) for name in dir(real) if not name.startswith("_")}
    larger = SimpleNamespace(**facts | {"multi_processor_count": 4 * real.multi_processor_count})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: larger)
    with pytest.warns(UserWarning, match="can't hold all CTAs at once"):
        got = module.run(*operands)
    close(got, program, operands)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(torch.equal(a, b) for a, b in zip(got, module.run(*operands), strict=True))
