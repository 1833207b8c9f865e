"""frontend.rewrite of convolutions: the same values with less work, against the module in float64; what must stay
stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import (
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    batch_norm,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    group_norm,
    instance_norm,
    layer_norm,
    max_pool1d,
    max_pool2d,
)

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from tilewright.facts.space import Space
from tilewright.frontend.rewrite import algebra
from tilewright.frontend.rewrite.algebra import Rewritten, rewritten
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.convolution import convolved
from tilewright.realise.case_code import case_code

Case = tuple[Callable[..., Any], tuple[Tensor, ...], str]  # the function, its arguments, and what is said of it
NO_KNOBS = Space(knobs=(), points=((),))


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# Inputs and weights of 4 channels to 6; of two groups; single taps.
X1, X2, X3 = normal(2, 4, 23), normal(2, 4, 13, 11), normal(2, 4, 9, 8, 7)
W1, W2, W3, B = normal(6, 4, 5), normal(6, 4, 3, 2), normal(6, 4, 3, 2, 3), normal(6)
T1, T2, T3 = normal(4, 6, 4), normal(4, 6, 3, 4), normal(4, 6, 3, 3, 2)
G2, GT2, ONE2 = normal(6, 2, 3, 3), normal(4, 3, 3, 3), normal(6, 4, 1, 1)
V2, V3 = normal(6, 1, 1), normal(6, 1, 1, 1)
MERGED, FIRST = "one convolution of ", "its input pooled first"
PRODUCT, PARTLY = "a product of sums of its input", "a convolution of sums of its input"

POOLED: dict[str, Case] = {
    "plain": (lambda x, w, b: avg_pool2d(conv2d(x, w, b, padding=1), 2), (X2, W2, B), f"{MERGED}4x3, stride 2x2"),
    "overlapping": (lambda x, w: avg_pool1d(conv1d(x, w), 4, 3), (X1, W1), f"{MERGED}8, stride 3"),
    "strided": (lambda x, w: avg_pool1d(conv1d(x, w, None, 2, 1), 2), (X1, W1), f"{MERGED}7, stride 4"),
    "dilated": (lambda x, w: avg_pool1d(conv1d(x, w, None, 1, 2, 2), 3), (X1, W1), f"{MERGED}11, stride 3"),
    "dilated as it strides": (
        lambda x, w: avg_pool1d(conv1d(x, w, None, 2, 3, 2), 2), (X1, W1), f"{MERGED}6, stride 4"
    ),
    "groups": (lambda x, w: avg_pool2d(conv2d(x, w, groups=2), 3), (X2, G2), f"{MERGED}5x5, stride 3x3"),
    "scaled and shifted": (
        lambda x, w, b, v: avg_pool2d((3 - conv2d(x, w, b)) / (1 + v * v) * 0.5 + v, 2).tanh(), (X2, W2, B, V2),
        f"{MERGED}4x3, stride 2x2",
    ),
    "a norm by what is known": (
        lambda x, w, m, b: avg_pool2d(batch_norm(conv2d(x, w), m, m * m + 1, b, m), 2), (X2, W2, normal(6), B),
        f"{MERGED}4x3, stride 2x2",
    ),
    "same padding, even taps": (
        lambda x, w: avg_pool2d(conv2d(x, w, padding="same"), 2), (X2, W2), f"{MERGED}4x3, stride 2x2"
    ),
    "volumes": (lambda x, w: avg_pool3d(conv3d(x, w), 2), (X3, W3), f"{MERGED}4x3x4, stride 2x2x2"),
    "one side": (lambda x, w: avg_pool2d(conv2d(x, w), (1, 4)), (X2, W2), f"{MERGED}3x5, stride 1x4"),
    "twice": (lambda x, w: avg_pool1d(avg_pool1d(conv1d(x, w), 2) * 2, 3), (X1, W1), f"{MERGED}6, stride 2, then "
              f"{MERGED}10, stride 6"),
    "transposed": (lambda x, w, b: avg_pool2d(conv_transpose2d(x, w, b), 3), (X2, T2, B), f"{MERGED}5x6, stride 3x3"),
    "transposed, strided": (
        lambda x, w: avg_pool3d(conv_transpose3d(x, w, None, 2, 1), 2), (X3, T3), f"{MERGED}2x2x2, stride 1x1x1"
    ),
    "transposed, more results than taps": (
        lambda x, w: avg_pool1d(conv_transpose1d(x, w, None, 3, 1, 2), 6), (X1, T1), f"{MERGED}3, stride 2"
    ),
    "transposed, dilated, groups": (
        lambda x, w: avg_pool2d(conv_transpose2d(x, w, None, 1, 1, 0, 2, 2), 4), (X2, GT2), f"{MERGED}8x8, stride 4x4"
    ),
    "transposed, one side": (
        lambda x, w: avg_pool2d(conv_transpose2d(x, w), (4, 1)), (X2, T2), f"{MERGED}6x4, stride 4x1"
    ),
    "single taps": (lambda x, w, b: avg_pool2d(conv2d(x, w, b), 2), (X2, ONE2, B), FIRST),
    "single taps, padded windows": (
        lambda x, w, b: avg_pool2d(conv2d(x, w, b), 3, 2, 1), (X2, ONE2, B), FIRST
    ),
    "single taps, windows cut off": (
        lambda x, w, b: avg_pool2d(conv2d(x, w, b), 3, 2, 1, True, False), (X2, ONE2, B), FIRST
    ),
    "single taps, strided": (lambda x, w: avg_pool2d(conv2d(x, w, None, 2), 2), (X2, ONE2), FIRST),
    "single taps on one side": (
        lambda x, w: avg_pool2d(conv2d(x, w, None, 1, (0, 1)), 2), (X2, W2[:, :, :1]),
        f"{FIRST}, then {MERGED}1x3, stride 1x2",
    ),
}  # fmt: skip

SUMMED: dict[str, Case] = {
    "space": (lambda x, w, b: conv2d(x, w, b, padding=1).mean((2, 3)), (X2, W2, B), PRODUCT),
    "kept": (lambda x, w, b: (conv2d(x, w, b) * 2).mean((2, 3), keepdim=True).exp(), (X2, W2, B), PRODUCT),
    "one result": (lambda x, w, b: F.adaptive_avg_pool2d(conv2d(x, w, b), 1), (X2, W2, B), PRODUCT),
    "flattened": (lambda x, w, b: conv2d(x, w, b, 2, 1).flatten(2).sum(-1), (X2, W2, B), PRODUCT),
    "all of a sample": (lambda x, w, b, v: (conv2d(x, w, b) * v).sum((1, 2, 3)), (X2, W2, B, V2), PRODUCT),
    "flattened with channels": (lambda x, w, b: conv3d(x, w, b).flatten(1).mean(1), (X3, W3, B), PRODUCT),
    "everything": (lambda x, w, b: conv1d(x, w, b, 3, 2, 2).mean(), (X1, W1, B), PRODUCT),
    "groups": (lambda x, w: conv2d(x, w, groups=2).sum((2, 3)), (X2, G2), PRODUCT),
    "depthwise": (lambda x, w: conv_transpose2d(x, w, groups=4).sum((2, 3)), (X2, normal(4, 1, 3, 3)), PRODUCT),
    "few pixels": (lambda x, w: conv1d(x, w, None, 1, 4, 2).sum(2), (X1[..., :3], W1), PRODUCT),
    "transposed": (lambda x, w, b: conv_transpose2d(x, w, b).mean((2, 3)), (X2, T2, B), PRODUCT),
    "transposed, strided": (
        lambda x, w, b: conv_transpose2d(x, w, b, 2, 1, 1).mean((2, 3)), (X2, T2, B), PRODUCT
    ),
    "transposed, groups": (
        lambda x, w: conv_transpose2d(x, w, None, 3, 2, 1, 2, 2).sum((2, 3)), (X2, GT2), PRODUCT
    ),
    "depth": (lambda x, w, b: conv3d(x, w, b, padding=1).mean(2), (X3, W3, B), PARTLY),
    "depth, transposed": (
        lambda x, w, b: conv_transpose3d(x, w, b, padding=1).mean(2, keepdim=True).softmax(1), (X3, T3, B), PARTLY
    ),
    "depth, transposed, strided": (
        lambda x, w: conv_transpose3d(x, w, None, (3, 2, 1), 1, (1, 1, 0)).sum(2), (X3, T3), PARTLY
    ),
    "rows, then columns": (lambda x, w: conv2d(x, w).mean(3).mean(2), (X2, W2), f"{PARTLY}, then {PRODUCT}"),
    "a weight along rows": (lambda x, w, v: (conv2d(x, w) * v).sum(3), (X2, W2, normal(11, 1)), PARTLY),
    "pooled, then summed": (
        lambda x, w: avg_pool2d(conv2d(x, w), 2).mean((2, 3)), (X2, W2), f"{MERGED}4x3, stride 2x2, then {PRODUCT}"
    ),
}  # fmt: skip

LEFT: dict[str, Case] = {
    "no longer linear": (lambda x, w: avg_pool2d(conv2d(x, w).relu(), 2), (X2, W2), ""),
    "maxima": (lambda x, w: max_pool2d(conv2d(x, w), 2), (X2, W2), ""),
    "read twice": (lambda x, w: (y := conv2d(x, w)) - y.mean((2, 3), keepdim=True), (X2, W2), ""),
    "returned": (lambda x, w: (y := conv2d(x, w), avg_pool2d(y, 2)), (X2, W2), ""),
    "padded windows": (lambda x, w: avg_pool2d(conv2d(x, w), 2, 2, 1), (X2, W2), ""),
    "windows cut off": (lambda x, w: avg_pool1d(conv1d(x, w), 4, 4, 0, True), (X1[..., :22], W1), ""),
    "a padded input, single taps": (lambda x, w: avg_pool2d(conv2d(x, w, None, 1, 1), 2, 2, 1), (X2, ONE2), ""),
    "more work": (lambda x, w: avg_pool1d(conv1d(x, w), 3, 1), (X1, W1), ""),
    "between the strides": (lambda x, w: avg_pool1d(conv_transpose1d(x, w, None, 2), 3), (X1, T1), ""),
    "a weight along what is summed": (lambda x, w, v: (conv2d(x, w) * v).sum(3), (X2, W2, normal(10)), ""),
    "a part of a side": (lambda x, w: conv1d(x, w).reshape(2, 6, -1, 1).narrow(2, 0, 9).sum(2), (X1, W1), ""),
    "channels alone": (lambda x, w: conv2d(x, w).sum(1), (X2, W2), ""),
}  # fmt: skip


def read(cases: dict[str, Case]) -> tuple[Applies, list[Tensor]]:
    """One module that does all of them, and its arguments: tracing takes the time."""
    sizes = [len(args) for _, args, _ in cases.values()]

    def function(*given: Tensor) -> list[Any]:
        it = iter(given)
        return [f(*(next(it) for _ in range(n))) for (f, _, _), n in zip(cases.values(), sizes, strict=True)]

    return Applies(function), [a for _, args, _ in cases.values() for a in args]


def same(less: Rewritten, module: Applies, args: list[Tensor], names: list[str]) -> None:
    """The graph gives the module's values in float64, with torch's operators and fused, and can be written."""
    matched = match(less.graph, unsupported=lambda program: None, space=lambda program: NO_KNOBS, tiny_bytes=0)
    truth = module(*widened(args))
    for patterns in ((), matched.patterns):
        case_code(less.graph, patterns, target="cpu")
        made = GraphRun(less.graph, module, patterns=patterns)(*widened(args))
        for name, mine, right in zip(names, made, truth, strict=True):
            torch.testing.assert_close(mine, right, msg=lambda told, name=name: f"{name}: {told}")  # type: ignore[misc]


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if small convolutions were worth it."""
    monkeypatch.setattr(algebra, "LEAST_FLOPS", 1 << 8)


@pytest.mark.parametrize("cases", [POOLED, SUMMED], ids=["pooled", "summed"])
def test_sums_behind_a_convolution_take_less(cases: dict[str, Case]) -> None:
    module, args = read(cases)
    less = rewritten(trace(module, tuple(args), {}), in_part=False)
    assert less is not None and less.spared_flops > 0
    first = [step.split(": ")[1] for step in less.steps]  # before what is done to the products and to the sums of x
    said = [words for words in first if words not in ("weights summed", "one")]
    assert said == [words for _, _, words in cases.values()]
    same(less, module, args, list(cases))


def test_what_is_not_linear_or_is_needed_as_it_is_stays() -> None:
    module, args = read(LEFT)
    assert rewritten(trace(module, tuple(args), {}), in_part=False) is None


def test_small_convolutions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "LEAST_FLOPS", 1 << 25)
    assert rewritten(trace(Applies(lambda x, w: conv2d(x, w).mean((2, 3))), (X2, W2), {})) is None


def test_flops_that_are_left_are_counted() -> None:
    """Of 3 x 2 taps and windows of 2 x 2, 4 x 3 taps at a quarter of the places; of a mean, a product."""
    graph = trace(Applies(lambda x, w: avg_pool2d(conv2d(x, w), 2)), (X2, W2), {})
    less = rewritten(graph)
    assert less is not None and less.spared_flops == 2 * 2 * 4 * 6 * (11 * 10 * 3 * 2 - 5 * 5 * 4 * 3)
    (left,) = (c for call in less.graph.calls if (c := convolved(call, {n.name: n for n in less.graph.nodes})))
    assert left.flops == 2 * 2 * 4 * 6 * 5 * 5 * 4 * 3 and left.stride == (2, 2)
    graph = trace(Applies(lambda x, w: conv2d(x, w).mean((2, 3))), (X2, W2), {})
    less = rewritten(graph)
    assert less is not None and less.spared_flops == 2 * 2 * 4 * 6 * 3 * 2 * (11 * 10 - 1)
    assert less.steps == ("mean of conv2d: a product of sums of its input",)


def test_sums_of_16_bits_are_kept_in_32() -> None:
    """Sums of many numbers near 1000 would overflow; means of windows do not."""
    x, w, one = X2.half() * 100 + 1000, W2.half() / 64, ONE2.half() / 64
    module = Applies(lambda x, w, one: (conv2d(x, w).mean((2, 3)), avg_pool2d(conv2d(x, one), 9)))
    less = rewritten(trace(module, (x, w, one), {}), in_part=False)
    assert less is not None and len(less.steps) == 2
    made = GraphRun(less.graph, module, exact=False)(x, w, one)
    for mine, right in zip(made, module(x.double(), w.double(), one.double()), strict=True):
        assert float((mine.double() - right).norm() / right.norm()) < 2e-3


NORMED: dict[str, Case] = {
    "a batch": (lambda x, w, b: batch_norm(conv2d(x, w, b), None, None, b, b, True), (X2, W2, B), "no bias"),
    "scaled first": (
        lambda x, w, b, v: batch_norm((conv_transpose2d(x, w, b, 2) + 3) * v, None, None, None, None, True),
        (X2, T2, B, V2), "no bias",
    ),
    "instances": (lambda x, w, b, v: instance_norm(v - conv3d(x, w, b) / 2), (X3, W3, B, V3), "no bias"),
    "rows": (lambda x, w, b, v: layer_norm(conv2d(x, w, b) + 1, (10,), v, v), (X2, W2, B, normal(10)), "no bias"),
}  # fmt: skip
KEPT: dict[str, Case] = {
    "groups of channels": (lambda x, w, b: group_norm(conv2d(x, w, b), 2), (X2, W2, B), ""),
    "no bias": (lambda x, w: batch_norm(conv2d(x, w), None, None, None, None, True), (X2, W2), ""),
    "a residual": (
        lambda x, w, b: (y := conv2d(x, w, b)) + batch_norm(y, None, None, None, None, True), (X2, W2, B), ""
    ),
    "not linear between": (
        lambda x, w, b: batch_norm(conv2d(x, w, b).relu(), None, None, None, None, True), (X2, W2, B), ""
    ),
    "what varies is added": (
        lambda x, w, b, v: batch_norm(conv2d(x, w, b) + v, None, None, None, None, True), (X2, W2, B, normal(10)), ""
    ),
    "another mean": (
        lambda x, w, b: (y := conv2d(x, w, b)) - torch.var_mean(y, (0, 2, 3), keepdim=True)[1] * 2, (X2, W2, B), ""
    ),
}  # fmt: skip


def test_a_bias_ahead_of_a_norm_is_not_added() -> None:
    module, args = read(NORMED)
    less = rewritten(trace(module, tuple(args), {}), in_part=False)
    assert less is not None and less.spared_flops == 0
    assert [step.split(": ")[1] for step in less.steps] == ["no bias, which a norm takes off"] * len(NORMED)
    calls = [c for call in less.graph.calls if (c := convolved(call, {n.name: n for n in less.graph.nodes}))]
    assert len(calls) == len(NORMED) and all(c.bias is None for c in calls)
    same(less, module, args, list(NORMED))
    module, args = read(KEPT)
    assert rewritten(trace(module, tuple(args), {}), in_part=False) is None


class _Block(torch.nn.Module):
    """A convolution, a scale and a batch norm that moves its statistics; then what is left of it all."""

    def __init__(self, left: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.ConvTranspose2d(4, 6, 3, 2, 1)
        self.norm = torch.nn.BatchNorm2d(6)
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        return self.left(self.norm(self.conv(x) * 2))


@pytest.mark.parametrize("left", [Tensor.relu, lambda y: avg_pool2d(y, 8), lambda y: y.mean((2, 3))],
                         ids=["all", "pooled", "mean"])  # fmt: skip
def test_running_statistics_move_as_they_did(left: Callable[[Tensor], Tensor]) -> None:
    """The mean by which they move has the bias that the convolution lost."""
    module, x = _Block(left), normal(8, 4, 13, 11) + 0.5
    graph = trace(module, (x,), {})
    less = rewritten(graph, in_part=False)
    assert less is not None and any("no bias" in step for step in less.steps)
    assert any("beside it" in step for step in less.steps) == (left is not Tensor.relu)
    run = GraphRun(less.graph, module.double())
    made = run(x.double())
    moved = {n.path: run.value(u.value) for u in less.graph.updates for n in less.graph.nodes if n.name == u.target}
    wide = _Block(left).double()
    torch.testing.assert_close(made, wide(x.double()))
    assert len(moved) == 3
    for path, value in moved.items():
        torch.testing.assert_close(value.double(), wide.get_buffer(path).double())


def test_a_mean_that_a_norm_takes_off_comes_from_where_the_sum_does() -> None:
    """The convolution's own mean, which has TF32's errors of the weights, moves the running statistics alone."""
    x = torch.rand(4, 4, 29, 29, generator=torch.Generator().manual_seed(1))
    less = rewritten(trace(_Block(lambda y: avg_pool2d(y, 8)), (x,), {}), in_part=False)
    assert less is not None and "beside it" in less.steps[1]
    (mean,) = (n for n in less.graph.nodes if n.op == "moments" and n.item == 0)
    reached, todo = set[str](), [mean.name]
    while todo:
        reached.add(todo.pop())
        todo += [n.name for n in less.graph.nodes if reached & {*n.sources} and n.name not in reached]
    assert reached & {u.value for u in less.graph.updates} and not reached & {*less.graph.outputs}


JOINED: dict[str, Case] = {
    "maxima": (lambda x: max_pool2d(max_pool2d(x, 2), 3), (normal(2, 3, 29, 31),), "one"),
    "overlapping maxima": (lambda x: max_pool1d(max_pool1d(x, 3, 2, 1), 3, 2), (normal(2, 3, 41),), "one"),
    "dilated windows": (lambda x: max_pool1d(max_pool1d(x, 4, 1), 3, 2, 0, 4), (normal(2, 3, 41),), "one"),
    "means": (lambda x: avg_pool2d(avg_pool2d(x, 2) * 3, (3, 2)), (normal(2, 3, 29, 31),), "one"),
    "means of padded windows": (lambda x: avg_pool1d(avg_pool1d(x, 4, 4, 2), 2), (normal(2, 3, 41),), "one"),
}  # fmt: skip
APART: dict[str, Case] = {
    "padded": (lambda x: max_pool1d(max_pool1d(x, 2), 3, 2, 1), (normal(2, 3, 41),), ""),
    "gaps": (lambda x: max_pool1d(max_pool1d(x, 2, 3), 2), (normal(2, 3, 41),), ""),
    "overlapping means": (lambda x: avg_pool1d(avg_pool1d(x, 3, 2), 2), (normal(2, 3, 41),), ""),
    "uneven means": (lambda x: avg_pool1d(avg_pool1d(x, 3, 3, 1, False, False), 2), (normal(2, 3, 41),), ""),
    "one of each": (lambda x: avg_pool1d(max_pool1d(x, 2), 2), (normal(2, 3, 41),), ""),
    "scaled maxima": (lambda x: max_pool1d(-max_pool1d(x, 2), 2), (normal(2, 3, 41),), ""),
    "read twice": (lambda x: (y := max_pool1d(x, 2), max_pool1d(y, 2)), (normal(2, 3, 41),), ""),
}  # fmt: skip


def test_a_pool_of_a_pool_is_one() -> None:
    module, args = read(JOINED)
    less = rewritten(trace(module, tuple(args), {}), in_part=False)
    assert less is not None and [step.split(": ")[1] for step in less.steps] == ["one"] * len(JOINED)
    assert sum(n.op in ("max", "sum") for n in less.graph.nodes) == len(JOINED)
    same(less, module, args, list(JOINED))
    module, args = read(APART)
    assert rewritten(trace(module, tuple(args), {}), in_part=False) is None
