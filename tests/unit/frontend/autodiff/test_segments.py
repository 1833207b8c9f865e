"""Backward graphs against torch's own gradients in float64, and where a training graph is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.gradients import Of, agree, agree_all, leaf, traced
from tilewright.frontend.autodiff import segments
from tilewright.frontend.lowering import products as lower_products
from tilewright.ir.graph import VIEWS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]


UNARY = """neg abs square exp exp2 expm1 sin cos tan sinh cosh tanh asinh erf erfc sigmoid floor sign relu
 silu mish softplus gelu hardswish hardsigmoid hardtanh relu6 elu selu leaky_relu logsigmoid softsign tanhshrink
 softshrink hardshrink""".split()
POSITIVE = "sqrt rsqrt reciprocal log log2 log10 log1p".split()
INSIDE = "asin acos atan atanh logit".split()


def test_every_pointwise_function_has_torchs_slope() -> None:
    """Where values lie on kinks and bounds, too."""
    x, places = leaf(40), torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 90.0, -90.0, 800.0, -800.0])
    kinks = places.double().requires_grad_()
    steep = ("tan", "exp", "exp2", "expm1", "sinh", "cosh")
    found = {
        f"{n} at {w}": (n, t) for n in UNARY for w, t in (("x", x), ("kinks", kinks)) if w == "x" or n not in steep
    }
    found |= {n: (n, leaf(40, low=0.1, high=4.0)) for n in POSITIVE}
    found |= {n: (n, leaf(40, low=0.05, high=0.95)) for n in INSIDE}
    agree_all({key: (getattr(torch, n, None) or getattr(F, n), (value,)) for key, (n, value) in found.items()})


TWO: list[Callable[..., Any]] = [
    lambda a, b: a * b + a - 2 * b, lambda a, b: a / b, lambda a, b: 1 / b + a, lambda a, b: a**2 + b**-1.5,
    lambda a, b: a.abs() ** b, lambda a, b: 2.0**b * a, torch.maximum, torch.minimum, torch.atan2, torch.fmod,
    torch.remainder, lambda a, b: torch.where(a > 0, a, b), lambda a, b: a.clamp(-0.5, 0.5) * b.clamp(min=0.0),
    torch.logaddexp, torch.hypot, lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: (a * b, a + b, (a > b)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", [((5, 7), (5, 7)), ((5, 7), (7,)), ((5, 1), (1, 7)), ((5, 1, 7), ())])
def test_two_arguments_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = leaf(*shapes[0]), leaf(*shapes[1], low=0.2, high=2.0)
    agree_all({str(i): (function, (a, b)) for i, function in enumerate(TWO)})


PRODUCTS: list[Callable[..., Any]] = [
    F.linear, lambda x, w, b: F.linear(x[0], w, b), lambda x, w, b: F.linear(x, w), lambda x, w, b: x @ w.t(),
    lambda x, w, b: torch.addmm(b, x[0], w.t(), alpha=0.5, beta=2.0), lambda x, w, b: torch.mm(x[1], w.t()),
    lambda x, w, b: torch.bmm(x, x.transpose(1, 2)), lambda x, w, b: torch.einsum("bmk,nk->nbm", x, w),
    lambda x, w, b: torch.baddbmm(b, x, x[:, :4].transpose(1, 2)), lambda x, w, b: x[:, :, 1:5] @ x[:, :4],
]  # fmt: skip


@pytest.mark.parametrize("function", PRODUCTS)
def test_a_product_is_a_segment_by_itself(function: Callable[..., Any]) -> None:
    """Its operands' gradients are products, left to torch as einsums where no kernel makes them."""
    segment = agree(function, leaf(3, 5, 7), leaf(4, 7), leaf(4))
    targets = [c.target for c in segment.backward.calls]
    asked = sum(item is not None for item in segment.backward.result.items)  # type: ignore[union-attr]
    assert "aten.einsum.default" in targets and asked == len(segment.inputs)
    assert not segment.saved and len(segment.calls) == 1


JOINED: dict[str, tuple[Callable[..., Any], int]] = {
    "gelu": (lambda x, w, v, b: F.gelu(F.linear(x, w, b)), 1),
    "a norm behind": (lambda x, w, v, b: F.layer_norm(F.linear(x, w, b) + x[..., :4], (4,), b), 1),
    "gated": (lambda x, w, v, b: F.silu(F.linear(x, w, b)) * F.linear(x, v), 2),
    "halves": (lambda x, w, v, b: (lambda y: F.silu(y[..., :2]) * y[..., 2:])(F.linear(x, w, b)), 1),
    "one left factor": (lambda x, w, v, b: (F.linear(x, w, b), F.linear(x, v)), 2),
    "one weight": (lambda x, w, v, b: (F.linear(x, w, b), F.linear(v, w)), 2),
    "of a view": (lambda x, w, v, b: F.linear(x, w, b).reshape(5, 12).relu() * 2, 1),
    "of 3 dimensions": (lambda x, w, v, b: torch.bmm(x, x.transpose(1, 2)).softmax(-1) * 3, 1),
    "scaled": (lambda x, w, v, b: torch.addmm(b, x[0], w.t(), alpha=0.5, beta=2.0).tanh(), 1),
}


@pytest.mark.parametrize("name", JOINED)
def test_a_product_is_the_first_of_what_reads_it_or_stands_beside_its_like(name: str) -> None:
    """What is computed of a product, and products of one operand: one segment, whose backward is their products."""
    function, products = JOINED[name]
    segment = agree(function, leaf(3, 5, 7), leaf(4, 7), leaf(4, 7), leaf(4))
    einsums = [c for c in segment.backward.calls if c.target == "aten.einsum.default"]
    assert len(einsums) == 2 * products
    calls = [n for n in segment.forward.nodes if n.op == "call"]
    assert len(calls) == products, "and no product is computed again"
    assert not any(n.op == "call" and n.origin in {c.origin for c in calls} for n in segment.backward.nodes)


def test_products_of_different_depths_are_not_joined() -> None:
    """What waits for a product of the same operand, through another or through torch, is a segment behind it."""
    x, w, v = leaf(5, 6), leaf(6, 6), leaf(6, 6)
    found = segments(traced(Of(lambda x, w, v: F.linear(F.linear(x, w).relu(), v) + F.linear(x, w)), (x, w, v)),
                     products=True)  # fmt: skip
    assert sorted(s.title for s in found) == ["linear -> add", "linear -> relu"]
    far = segments(
        traced(Of(lambda x, w, v: F.linear(x, w).cumprod(0) * F.linear(x, v).sin()), (x, w, v)), products=True
    )
    inside = [{n.name for n in s.forward.nodes if n.op not in ("input", *VIEWS)} for s in far]
    assert sum(map(len, inside)) == len(set().union(*inside)), "no value is in two"


def test_a_bias_sums_what_products_of_16_bits_read() -> None:
    """Rounded once, as torch has it, and summed in fp32."""
    x, w, b = (torch.randn(*s).bfloat16().requires_grad_() for s in ((6, 7), (4, 7), (4,)))
    (segment,) = segments(traced(Of(lambda x, w, b: F.gelu(F.linear(x, w, b))), (x, w, b)), products=True)
    nodes = {n.name: n for n in segment.backward.nodes}
    (total,) = [n for n in segment.backward.nodes if n.op == "sum"]
    wide = nodes[total.sources[0]]
    read = {s for c in segment.backward.calls if c.target == "aten.einsum.default" for s in c.sources}
    assert (wide.op, wide.dtype, nodes[wide.sources[0]].dtype) == ("to", "f32", "bf16") and wide.sources[0] in read


def test_products_of_16_bits_take_the_upstream_as_it_comes() -> None:
    x, w = torch.randn(5, 7).bfloat16().requires_grad_(), torch.randn(4, 7).bfloat16().requires_grad_()
    (segment,) = segments(traced(Of(F.linear), (x, w)), products=True)
    assert {n.op for n in segment.backward.nodes} == {"input", "call"}, "no cast to fp32 and back"


def test_vectors_few_of_them_and_short_sums_have_torchs_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is spelt out of products is differentiated as any other node."""
    for name in ("LARGE", "LARGEST", "_FEW_DEPTH"):
        monkeypatch.setattr(lower_products, name, 1)
    agree_all({
        "A @ v": (torch.matmul, (leaf(5, 90), leaf(90))), "v @ A": (torch.matmul, (leaf(90), leaf(90, 5))),
        "bmm": (torch.bmm, (leaf(4, 1, 90), leaf(4, 90, 6))),
        "addmv": (lambda c, a, v: torch.addmv(c, a, v, beta=0.5, alpha=2), (leaf(5), leaf(5, 90), leaf(90))),
        "4 rows": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (leaf(4, 90), leaf(20, 90), leaf(20))),
        "3 across": (torch.matmul, (leaf(4, 3, 90), leaf(4, 90, 20))),
        "K of 3": (F.linear, (leaf(60, 3), leaf(50, 3), leaf(50))),
        "outer": (torch.outer, (leaf(4), leaf(6))),
        "einsum": (lambda *t: torch.einsum("bij,bj->bi", *t), (leaf(4, 6, 90), leaf(4, 90))),
    })  # fmt: skip


def test_what_no_einsum_gives_back_is_left_to_torch() -> None:
    x, w = leaf(3, 5), leaf(3, 4)
    assert not segments(traced(Of(lambda a, b: torch.einsum("ij,ik->k", a, b)), (x, w)), products=True)
    assert not segments(traced(Of(torch.mm), (leaf(3, 5), leaf(5, 4)))), "unless they are asked for"


def test_ties_are_shared_as_torch_does() -> None:
    a, b = (torch.tensor(v).double().requires_grad_() for v in ([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]))
    c = torch.tensor([[1.0, 2.0], [1.0, 0.0]]).double().requires_grad_()
    agree_all({
        "maximum": (torch.maximum, (a, b)), "minimum": (torch.minimum, (a, b)), "amax": (lambda x: x.amax(0), (c,)),
        "max along": (lambda x: x.max(0).values, (c,)), "min": (lambda x: x.min(), (c,)),
        "of rounded": (lambda x: (x * 0.1 / 0.3).exp().amax(1), (c,)), "clamp": (lambda x: x.clamp(0.0, 1.0), (c,)),
    })  # fmt: skip


ROWS: list[Callable[..., Any]] = [
    lambda x, w: x.softmax(-1) * w, lambda x, w: x.log_softmax(1) + w, lambda x, w: x.softmax(0) * w,
    lambda x, w: F.layer_norm(x, (7,), w, w), lambda x, w: F.rms_norm(x, (7,), w), lambda x, w: x.logsumexp((0, 1)) * w,
    lambda x, w: F.group_norm(x.reshape(5, 7, 1), 1, w).amax(0), lambda x, w: (x * w).std(0), lambda x, w: x.var() + w,
    lambda x, w: x.mean(1, keepdim=True) * w - x.sum(), lambda x, w: (x - x.amax(1, keepdim=True)).exp().sum(1),
    lambda x, w: F.normalize(x) * w, lambda x, w: (x * w).norm(),
    lambda x, w: (x * w).cumsum(1) * x, lambda x, w: x.cumsum(0).exp() * w, lambda x, w: x.t() * x.sum(1) + w.sum(),
    lambda x, w: x.reshape(7, 5).permute(1, 0)[:, 1:5] * w[2:3], lambda x, w: x.expand(3, 5, 7).sum((0, 2)) * w[:5],
]  # fmt: skip


def test_rows_columns_scans_and_views() -> None:
    x, w = leaf(5, 7), leaf(7)
    agree_all({str(i): (function, (x, w)) for i, function in enumerate(ROWS)})


def test_losses() -> None:
    x, y, labels = leaf(6, 9), leaf(6, 9), torch.tensor([0, 8, -100, 3, 3, 1])
    options: tuple[dict[str, Any], ...] = ({}, {"label_smoothing": 0.2}, {"reduction": "sum"}, {"reduction": "none"})
    found: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
        str(k): (lambda a, b, k=k: F.cross_entropy(a, b, **k), (x, labels)) for k in options}  # fmt: skip
    found["kl"] = (lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"), (x, y))
    for loss in (F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits,
                 F.cosine_similarity):  # fmt: skip
        found[loss.__name__] = (loss, (x, y))
    found["triplet"] = (lambda a, b: F.triplet_margin_loss(a, b, a * b), (x, y))
    agree_all(found)


def test_halves_are_joined_where_they_lie() -> None:
    """The gradient of what was cut into equal parts is one value, and no zeros are written."""
    gated = {"glu": lambda x: F.glu(x), "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
             "geglu": lambda x: F.gelu(x[:, :4]) * x[:, 4:], "reglu": lambda x: x[:, :4].relu() * x[:, 4:],
             "thirds": lambda x: x[:, :2] * x[:, 4:6], "rows": lambda x: x[:3] * x[3:]}  # fmt: skip
    for name, function in gated.items():
        segment = agree(function, leaf(6, 8) if name != "thirds" else leaf(6, 6))
        assert not any(n.op == "load" for n in segment.backward.nodes), name
    overlapping = agree(lambda x: x[:, :5] * x[:, 3:], leaf(6, 8))
    assert sum(n.op == "load" for n in overlapping.backward.nodes) == 2


def test_only_what_backward_reads_is_kept() -> None:
    segment = agree(lambda x, w, b: F.layer_norm(x, (8,), w, b), leaf(4, 8), leaf(8), leaf(8))
    assert len(segment.kept) == 2
    assert {n.op for n in segment.forward.nodes if n.name in segment.saved} == {"moments"}
    assert agree(lambda x, y: x + y * 2, leaf(4, 8), leaf(8)).kept == ()
    frozen = agree(lambda x, w: x.relu() * w, leaf(4, 8), torch.randn(8).double())
    assert [r is None for r in frozen.backward.result.items] == [n == "args_1" for n in frozen.inputs]  # type: ignore[union-attr]


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.second(self.first(self.norm(x)).relu() * 2)
        return h.softmax(-1).cumprod(-1) * h


def test_segments_lie_between_what_torch_does() -> None:
    found = segments(traced(Cut(), [torch.randn(4, 8).requires_grad_()]))
    assert [s.title for s in found[:2]] == ["layer_norm", "relu -> mul"]
    assert "cumprod" not in " ".join(s.title for s in found)
    for segment in found:
        inside = {n.name for n in segment.forward.nodes}
        assert {*segment.inputs, *segment.outputs, *segment.saved} <= inside
        assert set(segment.kept) <= set(segment.inputs) and set(segment.graded) <= set(segment.outputs)


def test_a_depthwise_convolution_begins_a_segment() -> None:
    """As other convolutions do: what reads it is in the segment, and what makes its image is in one before."""

    def convolved(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(F.conv2d(x, w, padding=1, stride=2, groups=3)) + 1

    x, w = leaf(2, 3, 7, 8), leaf(3, 1, 3, 3)
    agree(convolved, x.detach(), w)
    found = segments(traced(Of(lambda x, w: convolved(x * 2, w)), [x, w]), products=True)
    assert [s.title for s in found] == ["mul", "conv2d -> relu -> add"]
