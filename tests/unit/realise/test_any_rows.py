"""One compiled kernel takes any number of rows, and a module made of such kernels does, too; else it is torch's, and
counted. On a GPU kernels say which numbers they take."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import kernel_programs as kp
from fakes.realisers import DEVICES_OF, cpu, cuda
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Target, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.rows import traced
from tilewright.frontend.trace import trace
from tilewright.ir.access import Position
from tilewright.ir.program import Program
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

# Warnings are of calls that run the original.
pytestmark = [pytest.mark.filterwarnings("ignore:tilewright"), pytest.mark.each(3)]

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(257))

    def forward(self, x, y):
        z = x * torch.sigmoid(1.5 * x) + y
        return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * self.gain, torch.softmax(z, -1)
"""


PERCEPTRON = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x + self.narrow(torch.nn.functional.gelu(self.wide(x))))
"""


def shifted() -> Program:
    """Each row reads the one before it."""
    b = kp.Builder((16, 64))
    before = (Position(start=-1, steps=((0, 1),)), Position(steps=((1, 1),)))
    b.write(b.op("add", b.read("y"), b.load(b.source("x", (16, 64)), before, fill=0.0)))
    return b.done()


@pytest.mark.parametrize(
    ("program", "on_cpu", "on_cuda"),
    [
        (kp.softmax((16, 257)), True, True),
        (kp.chain((16, 64)), True, True),
        (kp.chain((16, 8, 64), bias=(1, 8, 64)), True, True),
        (kp.chain((16, 64), bias=(1, 64)), True, True),
        (kp.reduction("sum", (4, 16, 64), (1, 2)), True, True),
        (kp.softmax((16, 257), 0), False, False),
        (kp.reduction("sum", (4, 16, 64), (1,)), True, True),  # lanes across what is reduced: on a CPU another walk
        (kp.softmax((128, 10)), True, True),  # short rows: on a CPU side by side in the lanes
        (kp.chain((1, 64)), False, False),
        (kp.chain((64,)), False, False),
        (kp.cumulative("cumsum", (16, 64), 1), False, True),
        (kp.rotary(2, 16, 8), True, True),
        (kp.joined(16, 3, 7), False, True),
        (kp.laid_out((16, 64), (1, 0)), True, False),
        (kp.embedded(16, 64), False, True),
        (kp.pool("max", (16, 4, 9, 9), (3, 3)), False, True),
        (kp.pool("max", (16, 9, 9), (3,), stride=2), False, True),
        (shifted(), False, False),
    ],
)
def test_rows_are_left_open_where_nothing_but_their_number_depends_on_them(
    program: Program, on_cpu: bool, on_cuda: bool
) -> None:
    for target, any_rows in ((cpu, on_cpu), (cuda, on_cuda)):
        assert target.any_rows(program) == any_rows
        made = target.render(program, "fused_0", target.space(program).points[0])
        (text,) = [f.text for f in made if f.path == "fused_0.py"]
        assert ("takes" in text) == any_rows


def composed(
    folder: Path, *, free: bool, target: Target = "cpu", source: str = SOURCE, args: tuple[Tensor, ...] = ()
) -> ModuleType:
    names: dict[str, Any] = {}
    exec(source, names)
    graph = traced(names["Model"](), args or operands(16), {})
    assert graph.free
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    case = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    matched = found_patterns((case,), DEVICES_OF[target])
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    assert recipe
    write_candidate(compose(source, (case,), matched, recipe if free else (), device=DEVICES_OF[target]), folder)
    if target == "cuda":  # on this machine its values lie elsewhere
        model = folder / "model.py"
        model.write_text(model.read_text().replace(".is_cuda", ".is_cpu"))
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"model_{free}", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operands(rows: int, *, turned: bool = False) -> tuple[Tensor, Tensor]:
    shape = (257, rows) if turned else (rows, 257)
    x, y = torch.randn(shape), torch.randn(shape)
    return (x.t(), y.t()) if turned else (x, y)


@pytest.fixture
def alone() -> Iterator[None]:
    """Nothing of a candidate is left for other tests."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith(("fused_", "tilewright_kernels", "model_", "original_")):
            del sys.modules[name]


@torch.no_grad()
def test_on_a_gpu_kernels_are_asked_whether_they_take_so_many_rows(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = composed(tmp_path / "c", free=True, target="cuda")
    ours, fused = model.ModelNew(), sys.modules["fused_0"]
    asked: list[int] = []
    called: list[int] = []
    monkeypatch.setattr(fused, "takes", lambda rows: asked.append(rows) or rows != 5)
    monkeypatch.setattr(fused, "run", lambda x, y, gain: called.append(x.shape[0]) or (x, y))
    for rows in (16, 7, 5):
        ours(*operands(rows))
    assert asked == [7, 5] and called == [16, 7] and model.FALLBACKS == {"no case has this signature": 1}
    with pytest.raises(RuntimeError, match="must match"):
        ours(operands(4)[0], operands(7)[1])
    ours(operands(7)[0][None], operands(7)[1])  # of another rank
    assert called == [16, 7] and model.FALLBACKS == {"no case has this signature": 3}


@pytest.mark.slow
@torch.no_grad()
def test_a_module_takes_any_number_of_rows_with_one_library_and_counts_what_it_leaves_to_torch(
    tmp_path: Path, alone: None
) -> None:
    model = composed(tmp_path / "c", free=True)
    ours, reference = model.ModelNew(), model.Model()
    reference.load_state_dict(ours.state_dict())
    exact = model.Model().double()
    exact.load_state_dict(ours.state_dict())

    def check(module: Any, x: Tensor, y: Tensor) -> None:
        for mine, truth in zip(module(x, y), exact(x.double(), y.double()), strict=True):
            assert mine.dtype == torch.float32 and mine.shape == truth.shape and mine.is_contiguous()
            torch.testing.assert_close(mine.double(), truth, rtol=1e-5, atol=1e-6)

    for rows in (16, 2, 3, 1000, 16):
        check(ours, *operands(rows))
        check(ours, *operands(rows, turned=True))
    assert len(list((tmp_path / "c" / "build").glob("*.so"))) == 1 and model.FALLBACKS == {}
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for rows in (16, 7, 9):
        check(compiled, *operands(rows))
    assert model.FALLBACKS == {}
    check(ours, *operands(1))
    with pytest.raises(RuntimeError, match="must match"):
        ours(operands(4)[0], operands(5)[1])
    assert model.FALLBACKS == {"no case has this signature": 2}
    fused = sys.modules["fused_0"]
    with pytest.raises(ValueError, match="wrong shape"):
        fused.run(operands(4)[0], operands(5)[1], ours.gain.reshape(1, 257))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("shape", [(32, 64), (4, 5, 64)])
def test_so_does_one_with_products_that_are_left_to_torch(tmp_path: Path, alone: None, shape: tuple[int, ...]) -> None:
    model = composed(tmp_path / "c", free=True, source=PERCEPTRON, args=(torch.randn(shape),))
    ours, exact = model.ModelNew(), model.Model().double()
    exact.load_state_dict(ours.state_dict())
    for rows in (shape[0], 2, 3, 16, 1000):
        x = torch.randn(rows, *shape[1:])
        torch.testing.assert_close(ours(x).double(), exact(x.double()), rtol=1e-5, atol=1e-5)
    assert model.FALLBACKS == {}
    inner = ", ".join(map(str, shape[1:]))
    came = rf"this call: float32 \[1, {inner}\] on cpu in training mode; judged: x: float32 \[2 or more, {inner}\]"
    with pytest.warns(RuntimeWarning, match=came):
        ours(torch.randn(1, *shape[1:]))
    assert model.FALLBACKS == {"no case has this signature": 1}


@torch.no_grad()
def test_cases_that_differ_in_rows_alone_share_their_kernels(tmp_path: Path, alone: None) -> None:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    graphs = [trace(names["Model"](), operands(rows), {}) for rows in (16, 40)]
    cases = tuple(CaseFacts(inputs=(), outputs=(), work=work, graph=graph) for graph in graphs)
    for device in DEVICES_OF.values():
        matched = found_patterns(cases, device)
        assert [p.id for p in matched[0].patterns] == [p.id for p in matched[1].patterns]
        assert [p.program.domain[0] for m in matched for p in m.patterns] == [16, 40]
    matched = found_patterns(cases, DEVICES_OF["cpu"])
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    candidate = compose(SOURCE, cases, matched, recipe, device=DEVICES_OF["cpu"])
    assert sum(file.path.startswith("fused_") and file.path.endswith(".py") for file in candidate.files) == 1
    write_candidate(candidate, tmp_path)
    sys.path.insert(0, str(tmp_path))
    spec = importlib.util.spec_from_file_location("model_shared", tmp_path / "model.py")
    assert spec is not None and spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    ours, theirs = model.ModelNew(), model.Model()
    ours.load_state_dict(theirs.state_dict())
    for rows in (16, 40, 16):
        x, y = operands(rows)
        torch.testing.assert_close(ours(x, y), theirs(x, y))
    assert not model.FALLBACKS
    ours(*operands(24))
    assert len(model.FALLBACKS) == 1, "these graphs say nothing of other rows"


def test_programs_of_which_a_kernel_takes_one_number_of_rows_are_apart() -> None:
    graphs = [traced(torch.nn.Softmax(0), (torch.randn(rows, 700),), {}) for rows in (64, 96)]
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    cases = tuple(CaseFacts(inputs=(), outputs=(), work=work, graph=graph) for graph in graphs)
    first, second = (m.patterns for m in found_patterns(cases, DEVICES_OF["cpu"]))
    assert first and second and {p.id for p in first}.isdisjoint(p.id for p in second)
