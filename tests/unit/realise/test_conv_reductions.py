"""Convolutions that reduce, by the skeleton `conv`: what is taken, at which points, and the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.realisers import cuda
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.conv.reduction import unreduced
from tilewright.kernels.cuda.conv.tiles import make_points
from tilewright.realise import table
from tilewright.realise.conv.reductions import over_of
from tilewright.realise.conv.renderer import shape_of

X, W, B = torch.empty(8, 16, 66, 66), torch.empty(64, 16, 3, 3), torch.empty(64)
X3, W3 = torch.empty(8, 16, 8, 16, 16), torch.empty(16, 32, 3, 3, 3)
UP: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1}
CASES: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "channels": (lambda x, w, b: F.conv2d(x, w, b).softmax(1).sigmoid(), (X, W, B)),
    "last": (lambda x, w: F.conv2d(x, w).amin(1), (X.to(memory_format=torch.channels_last), W)),
    "places": (lambda x, w, b: F.gelu(F.conv2d(x, w, b)).mean((2, 3)) + b, (X, W, B)),
    "from_last": (lambda x, w: F.conv2d(x, w).mean((2, 3)), (X.to(memory_format=torch.channels_last), W)),
    "groups": (lambda x, w: F.conv2d(x, w[:, :4], groups=4).relu().mean((2, 3)), (X, W)),
    "window": (lambda x, w, b: F.mish(F.max_pool2d(F.hardswish(F.conv2d(x, w, b)), 2)), (X, W, B)),
    "phases": (lambda x, w: F.max_pool3d(F.conv_transpose3d(x, w, **UP), 2), (X3, W3)),
}


def proposed(name: str) -> list[Pattern]:
    """The convolutions that reduce."""
    function, args = CASES[name]
    patterns = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space).patterns
    assert any(p.kind == "convolution" and not p.program.reduced for p in patterns)
    return [p for p in patterns if p.kind == "convolution" and p.program.reduced]


def test_none_is_proposed_before_a_gpu_has_shown_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset({"conv reductions"}))
    assert not proposed("channels")


@pytest.mark.parametrize(("columns", "found"), [(128, 1), (256, 0)])
def test_elements_of_phases_leave_together_or_from_a_convolution_alone(columns: int, found: int) -> None:
    """A tile holds 128 channels of both phases along the last dimension; beside 256, softmax is a kernel of its own."""
    CASES["up"] = (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1).softmax(1),
        (torch.empty(8, 64, 32, 32), torch.empty(64, columns, 4, 4)),
    )
    taken = proposed("up")
    assert len(taken) == found
    assert all(dict(point)["phases"] != "apart" for p in taken for point in p.space.points)


@pytest.mark.parametrize(
    ("name", "over"),
    [("channels", ("channels", (1, 1, 1))), ("last", ("channels", (1, 1, 1))), ("places", ("places", (1, 1, 1))),
     ("from_last", ("places", (1, 1, 1))), ("groups", ("places", (1, 1, 1))),
     ("window", ("window", (1, 2, 2))), ("phases", ("window", (2, 2, 2)))],
)  # fmt: skip
def test_points_are_those_that_can_reduce(name: str, over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset())
    (found,) = proposed(name)
    assert over_of(found.program) == over
    read = shape_of(found.program)
    assert read is not None and found.space.points
    for settings in found.space.points:
        assert unreduced(read[0], make_points(read[0], dict(settings)), *over, operands=1) is None


@pytest.mark.each(3)
@pytest.mark.parametrize("name", ["channels", "window", "phases"])
def test_a_file_compiles_and_gives_meta_tensors_of_the_output(name: str, tmp_path: Path) -> None:
    (found,) = proposed(name)
    module = load_fused(found.program, tmp_path)
    (made,) = module._FUSED(*(torch.empty(o.shape, device="meta") for o in found.program.operands))
    assert made.shape == found.program.outputs[0].shape


def test_sums_over_places_are_two_kernels(tmp_path: Path) -> None:
    """The first has states of chunks for its result, which the second joins."""
    (found,) = proposed("places")
    fused = load_fused(found.program, tmp_path)._FUSED
    (states,) = fused.lead(*(torch.empty(found.program.operands[i].shape, device="meta") for i in fused.first))
    assert states.shape == (1, *fused.rest.spec.operands[0].shape) and states.shape[1:3] == (8, 64)
    assert found.program.outputs[0].shape == fused.rest.spec.outputs[0].shape == (8, 64, 1, 1)
    assert [found.program.operands[i].shape for i in fused.second] == [o.shape for o in fused.rest.spec.operands[1:]]


@pytest.mark.parametrize(
    ("why", "function"),
    [
        ("by another operation", lambda x, w: F.conv2d(x, w).prod(1)),
        ("by another operation", lambda x, w: F.conv2d(x, w).logsumexp((2, 3))),
    ],
)  # fmt: skip
def test_other_reductions_stay_kernels_of_their_own(why: str, function: Any) -> None:
    said: list[str] = []

    def unsupported(program: Any) -> str | None:
        said.append(str(cuda.unsupported(program)))
        return None if said[-1] == "None" else said[-1]

    patterns = match(trace(Applies(function), (X, W), {}), unsupported=unsupported, space=cuda.space).patterns
    assert not [p for p in patterns if p.kind == "convolution" and p.program.reduced]
    assert any(why in line for line in said)
