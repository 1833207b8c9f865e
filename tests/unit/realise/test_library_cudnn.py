"""Convolution with its epilogue as one graph of cuDNN: what is taken, what is refused, and how the graph is built."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fakes.libraries import scope_of
from fakes.realisers import CPU, H200
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.realise.library import cudnn_conv
from tilewright.realise.library.cudnn_conv import convolutions
from tilewright.realise.library.table import found
from tilewright.realise.subproblem_code import arguments

pytestmark = pytest.mark.each(3)

X = torch.linspace(-1, 2, 2 * 8 * 7 * 6).view(2, 8, 7, 6)
LAST = X.contiguous(memory_format=torch.channels_last)


class Block(nn.Module):
    def __init__(self, after: Callable[[Tensor, Tensor], Tensor] = lambda x, given: x, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(8, 16, 3, **how)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.conv(x), x)


TAKEN = {
    "bias alone": Block(),
    "relu": Block(lambda x, given: F.relu(x), padding=1),
    "relu without bias": Block(lambda x, given: F.relu(x), bias=False),
    "clamped": Block(lambda x, given: torch.clamp(x, -0.5, 0.25), stride=2),
    "relu6": Block(lambda x, given: F.relu6(x), dilation=2, padding=2),
    "leaky": Block(lambda x, given: F.leaky_relu(x, 0.2), padding=(1, 0)),
    "silu": Block(lambda x, given: F.silu(x)),
    "gelu": Block(lambda x, given: F.gelu(x)),
    "gelu by tanh": Block(lambda x, given: F.gelu(x, approximate="tanh")),
    "residual": Block(lambda x, given: F.relu(x + torch.cat([given, given], 1)), padding=1),
}


class FakeGraph:
    """What `cudnn.pygraph` is told, done by torch in fp32 when it is executed."""

    def __init__(self, *, handle: Any, io_data_type: Any, intermediate_data_type: str, compute_data_type: str) -> None:
        assert (intermediate_data_type, compute_data_type) == ("FLOAT", "FLOAT")
        self.built: list[list[str]] = []

    def tensor_like(self, tensor: Tensor) -> FakeValue:
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        leaf = FakeValue(lambda given: given[leaf].float())
        return leaf

    def conv_fprop(self, *, image: FakeValue, weight: FakeValue, padding: Any, stride: Any, dilation: Any) -> FakeValue:
        return FakeValue(lambda g: F.conv2d(image(g), weight(g), None, stride, padding, dilation))

    def bias(self, *, input: FakeValue, bias: FakeValue) -> FakeValue:
        return FakeValue(lambda g: input(g) + bias(g))

    def add(self, *, a: FakeValue, b: FakeValue) -> FakeValue:
        return FakeValue(lambda g: a(g) + b(g))

    def relu(self, *, input: FakeValue, lower_clip: float = 0.0, upper_clip: float | None = None) -> FakeValue:
        return FakeValue(lambda g: input(g).clamp(lower_clip, upper_clip))

    def leaky_relu(self, *, input: FakeValue, negative_slope: float) -> FakeValue:
        return FakeValue(lambda g: F.leaky_relu(input(g), negative_slope))

    def swish(self, *, input: FakeValue) -> FakeValue:
        return FakeValue(lambda g: F.silu(input(g)))

    def gelu(self, *, input: FakeValue) -> FakeValue:
        return FakeValue(lambda g: F.gelu(input(g)))

    def gelu_approx_tanh(self, *, input: FakeValue) -> FakeValue:
        return FakeValue(lambda g: F.gelu(input(g), approximate="tanh"))

    def build(self, modes: list[str]) -> None:
        self.built.append(modes)

    def get_workspace_size(self) -> int:
        return 4

    def execute(self, tensors: dict[FakeValue, Tensor], workspace: Tensor, *, handle: Any) -> None:
        assert workspace.numel() == 4 and self.built and handle == "handle"
        (result,) = [v for v in tensors if v.output]
        assert tensors[result].is_contiguous(memory_format=torch.channels_last)
        tensors[result].copy_(result(tensors))


class FakeValue:
    def __init__(self, compute: Any) -> None:
        self._compute, self.output = compute, False

    def __call__(self, given: dict[FakeValue, Tensor]) -> Tensor:
        made: Tensor = self._compute(given)
        return made

    def set_output(self, output: bool) -> FakeValue:
        self.output = output
        return self

    def set_data_type(self, data_type: str) -> FakeValue:
        return self


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    made: list[FakeGraph] = []
    module = ModuleType("cudnn")
    vars(module).update(
        data_type=SimpleNamespace(HALF="HALF", BFLOAT16="BFLOAT16", FLOAT="FLOAT"),
        heur_mode=SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK"), create_handle=lambda: "handle",
        set_stream=lambda *, handle, stream: None, pygraph=lambda **how: made.append(FakeGraph(**how)) or made[-1],
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cudnn", module)
    monkeypatch.setattr(cudnn_conv, "installed", lambda package: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    return made


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("x", [X, LAST], ids=["row-major", "channels-last"])
def test_the_graph_gives_what_the_module_gives_in_its_layout(name: str, x: Tensor, there: list[FakeGraph]) -> None:
    module = TAKEN[name].eval()
    if name == "residual" and x is LAST:
        module = module.to(memory_format=torch.channels_last)
    graph = trace(module, (x,), {})
    (choice,) = found(graph, H200).recipe
    assert choice.written is not None and choice.written.points == tuple(point(heuristic=h) for h in "AB")
    scope = scope_of(choice)
    (region,) = choice.written.regions
    assert arguments(graph, region) == region.inputs
    nodes = {n.name: n for n in graph.nodes}
    left = {c.label for c in graph.calls if not c.view and c.results[0] not in region.nodes}
    assert left == ({"cat"} if name == "residual" else set())
    values = {n.name: module.get_parameter(n.path) for n in graph.nodes if n.op == "state"}
    given = [values[n] if n in values else x if nodes[n].op == "input" else torch.cat([x, x], 1) for n in region.inputs]
    wanted, new = module(x), scope["ModelNew"]()
    with torch.no_grad():
        torch.testing.assert_close(new(*given), wanted)
        assert new(*given).stride() == wanted.stride() and len(there) == 1, "one plan for all calls"
        scope["configure"](heuristic="B")
        torch.testing.assert_close(new(*given), wanted)
    assert [g.built for g in there] == [[["A", "FALLBACK"]], [["B", "FALLBACK"]]]
    with pytest.raises(ValueError, match="choose A or B"):
        scope["configure"](heuristic="C")


@pytest.mark.parametrize(
    "module",
    [
        Block(bias=False),  # torch calls cuDNN for it
        Block(lambda x, given: F.hardswish(x), bias=False),
        Block(lambda x, given: F.relu(x) + x, bias=False),  # both are needed
        Block(lambda x, given: F.relu(x + x[:1]), bias=False),  # what is added is smaller
        Block(padding="same", bias=False),
    ],
)
def test_what_has_no_epilogue_that_it_knows_is_left_alone(module: nn.Module) -> None:
    assert list(convolutions(trace(module.eval(), (X,), {}))) == []


@pytest.mark.parametrize(
    ("module", "x", "architecture", "why"),
    [
        (Block(), X, "sm_90a", "is not installed (pip install nvidia-cudnn-frontend)"),
        (Block(), X, "sm_75", "want sm_80 or later, and this device is sm_75"),
        (Block(groups=8), X, "sm_90a", "it fuses convolutions of one group, and the module's has 8"),
        (Block().half(), X.half(), "sm_90a", "is not installed"),
        (Block().double(), X.double(), "sm_90a", "as TF32, and the module's convolution in f64"),
        (nn.Conv2d(3, 16, 3), X[:, :3], "sm_90a", "channels in multiples of 4, and the module has 3 and 16"),
    ],
)  # fmt: skip
def test_it_says_why_it_is_not_used(module: nn.Module, x: Tensor, architecture: str, why: str) -> None:
    graph = trace(module.eval(), (x,), {})
    (line,) = found(graph, replace(H200, architecture=architecture)).refusals
    assert line.startswith("cuDNN's graph API: ") and why in line
    assert found(graph, CPU).refusals == ()
