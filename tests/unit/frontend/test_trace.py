"""Tracing: a Graph computes what its module computes, whichever operators it is made of."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from fakes.program_interpreter import DTYPES, GraphRun, widened
from tilewright.facts import codec
from tilewright.frontend.trace import trace
from tilewright.ir.graph import SOURCES, VIEWS, Graph
from tilewright.ir.program import POINTWISE, REDUCTIONS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]


class Applies(nn.Module):
    def __init__(self, function: Callable[..., Any], *children: nn.Module):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(children)

    def forward(self, *args: Any) -> Any:
        return self.function(*args, *self.parts)


def traced(module: nn.Module, *args: Any, **kwargs: Any) -> Graph:
    graph = trace(module, args, kwargs)
    assert codec.loads(codec.dumps(graph)) == graph
    return graph


def agrees(module: nn.Module, *args: Any, opaque: tuple[str, ...] = ()) -> Graph:
    """Trace in fp32, run the graph node by node in float64, compare with the module in float64; dtypes as in fp32.
    `opaque` are the operators that may stay calls, and no others."""
    graph = traced(module, *args)
    calls = {n.origin for n in graph.nodes if n.op == "call"}
    assert {c.target.split(".")[1] for c in graph.calls if c.name in calls} == set(opaque)
    with torch.no_grad():
        narrow = tree_leaves(copy.deepcopy(module)(*args))
        reference = copy.deepcopy(module).double()
        run = GraphRun(graph, copy.deepcopy(reference))
        ours, wanted = tree_leaves(run(*widened(args))), tree_leaves(reference(*widened(args)))
    nodes = {n.name: n for n in graph.nodes}
    assert [DTYPES[nodes[name].dtype] for name in graph.outputs] == [v.dtype for v in narrow if torch.is_tensor(v)]
    for mine, value in zip(ours, wanted, strict=True):
        torch.testing.assert_close(mine, value, rtol=1e-9, atol=1e-9, equal_nan=True, check_dtype=False)
    for path, value in run.updates().items():
        torch.testing.assert_close(value, reference.state_dict()[path], rtol=1e-9, atol=1e-9)
    return graph


def functions(*names: str) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    return lambda x: [getattr(F, name)(x) for name in names]


x = torch.linspace(-31.0, 29.0, 33 * 17).reshape(33, 17)[torch.randperm(33, generator=torch.Generator().manual_seed(0))]
y = x.flip(1) / 7
share = (x + 32) / 64  # between 0 and 1
image = torch.randn(5, 6, 7, 9, generator=torch.Generator().manual_seed(1))
classes = torch.arange(33) % 17


def test_activations() -> None:
    plain = ("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "hardtanh",
             "hardsigmoid", "hardswish", "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink", "rrelu",
             "sigmoid", "tanh", "softmin")  # fmt: skip
    agrees(Applies(functions(*plain)).eval(), x)


def test_activations_with_settings() -> None:
    agrees(Applies(lambda v, p, q: [
        F.gelu(v, approximate="tanh"), F.threshold(v, 0.3, 7.0), F.softplus(v, 2.0, 3.0), F.elu(v, 0.7),
        F.celu(v, 0.7), F.leaky_relu(v, 0.2), F.hardtanh(v, -2, 0.5), F.softshrink(v, 0.1), p(v), q(v),
        F.glu(v, 1), F.glu(v[:, :, :6], 2)], nn.PReLU(6), nn.PReLU()), image)  # fmt: skip


def test_special_values_survive() -> None:
    values = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 3.0])
    agrees(Applies(functions("relu", "leaky_relu", "elu", "gelu", "softplus", "hardtanh", "relu6", "sigmoid")), values)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction: str) -> None:
    r = {"reduction": reduction}
    sign = torch.sign(y) + (y == 0)
    agrees(Applies(lambda a, b, p, t, s: [
        F.mse_loss(a, b, **r), F.l1_loss(a, b, **r), F.smooth_l1_loss(a, b, beta=0.6, **r),
        F.huber_loss(a, b, delta=0.7, **r), F.kl_div(a, p, **r), F.kl_div(a, b, log_target=True, **r),
        F.binary_cross_entropy(p, 1 - p * p, **r), F.binary_cross_entropy_with_logits(a, p, pos_weight=p[0], **r),
        F.cross_entropy(a, t, **r), F.cross_entropy(a, t, ignore_index=3, label_smoothing=0.2, **r),
        F.cross_entropy(a, t, weight=p[1], **r), F.cross_entropy(a, p, label_smoothing=0.1, **r),
        F.nll_loss(a, t, **r), F.soft_margin_loss(b, s, **r), F.hinge_embedding_loss(a, s, **r),
        F.margin_ranking_loss(a, b, s, margin=0.1, **r), F.poisson_nll_loss(b, p, full=True, **r),
        F.triplet_margin_loss(a, b, p, **r), F.triplet_margin_loss(a, b, p, swap=True, p=3, **r),
        F.cosine_embedding_loss(a, b, s[:, 0], margin=0.2, **r)]), x, y, share, classes, sign)  # fmt: skip


def test_classes_along_other_dimensions() -> None:
    agrees(Applies(lambda a, t: F.cross_entropy(a, t)), image, torch.randint(0, 6, (5, 7, 9)))
    agrees(Applies(lambda a, t: F.cross_entropy(a, t)), x[0], classes[2])


def test_distances() -> None:
    agrees(Applies(lambda a, b: [
        F.cosine_similarity(a, b), F.cosine_similarity(a, b[:1], dim=0), F.pairwise_distance(a, b, keepdim=True),
        F.normalize(a), F.normalize(a, p=1, dim=0), a / torch.norm(a), a / torch.norm(a, p=1, dim=1, keepdim=True),
        *[torch.linalg.vector_norm(a, p, dim=1) for p in (0, 1, 2, 3, math.inf, -math.inf)]]), x, y)  # fmt: skip


def test_norms_in_training() -> None:
    norms = [nn.BatchNorm2d(6), nn.BatchNorm2d(6, track_running_stats=False), nn.BatchNorm2d(6, affine=False),
             nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True), nn.LayerNorm((7, 9)),
             nn.RMSNorm(9, eps=1e-6)]  # fmt: skip
    graph = agrees(Applies(lambda v, *parts: [p(v) for p in parts], *norms), image)
    targets = {u.target for u in graph.updates}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    written = {n.path for n in graph.nodes if n.name in targets}
    assert written == {f"parts.{i}.{name}" for i in (0, 2) for name in statistics}


def test_norms_in_inference() -> None:
    trained = nn.BatchNorm2d(6)
    trained(image)
    graph = agrees(Applies(lambda v, *parts: [p(v) for p in parts], trained, nn.GroupNorm(2, 6)).eval(), image)
    assert not graph.updates and graph.training is False


def test_the_train_flag_is_kept_only_where_it_matters() -> None:
    plain, dropping = nn.Sequential(nn.LayerNorm(9), nn.GELU()), nn.Sequential(nn.GELU(), nn.Dropout(0.5))
    assert trace(plain, (image,), {}).training is None
    assert trace(dropping, (image,), {}).training is True
    assert dropping[1].training and plain.training
    assert trace(dropping.eval(), (image,), {}).training is False
    nothing = nn.Sequential(nn.GELU(), nn.Dropout(0.0), nn.BatchNorm2d(6, track_running_stats=False))
    assert trace(nothing, (image,), {}).training is None and trace(nothing.eval(), (image,), {}).training is None
    assert trace(nn.BatchNorm2d(6), (image,), {}).training is True


class OfOneText(nn.Module):
    """What torch.export writes of it is one text under either flag: a constant differs, or what a buffer is made of."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("scale", torch.ones(9))

    def train(self, mode: bool = True) -> OfOneText:
        self.scale = self.scale.double() if mode and self.what == "buffer" else self.scale.float()
        return super().train(mode)

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        factor = torch.tensor(2.0 if self.training and self.what == "constant" else 3.0)
        return v * self.scale * factor


@pytest.mark.parametrize(("what", "minds"), [("constant", True), ("buffer", True), ("nothing", False)])
def test_the_train_flag_matters_where_the_text_of_both_is_the_same(what: str, minds: bool) -> None:
    assert trace(OfOneText(what).train(), (image,), {}).training is (True if minds else None)


def test_reductions() -> None:
    agrees(Applies(lambda v: [
        *[getattr(torch, name)(v, dim) for name in ("sum", "mean", "amax", "amin", "var", "std")
          for dim in (0, 1, (0, 2), -1)],
        v.prod(1), v.sum(), v.var(), v.std(0, keepdim=True), v.max(), v.min(), v.argmax(), v.argmin(2, keepdim=True),
        torch.var_mean(v, (1, 3), correction=0), torch.std_mean(v, 1, keepdim=True), torch.logsumexp(v, (1, 2)),
        (v > 2).any(1), (v > -9).all(), (v > 3).any(0, keepdim=True), torch.count_nonzero(v > 0, 1),
        torch.softmax(v, 0), torch.log_softmax(v, 2), v.softmax(-1), v.mean((1, 2, 3)),
        F.adaptive_avg_pool2d(v, 1)]), image)  # fmt: skip


def test_reductions_with_positions_keep_their_names() -> None:
    agrees(Applies(lambda v: (torch.max(v, 1), torch.min(v, 0), torch.aminmax(v, dim=1))), x)


def test_reducing_a_single_element() -> None:
    agrees(Applies(lambda v: [v.sum(1), v.softmax(1), v.max(1).values, v.argmax(1), v.mean(1), v.logsumexp(1),
                              v.norm(dim=1), v.var(1, correction=0)]), x[:, :1])  # fmt: skip


def test_pointwise_functions() -> None:
    agrees(Applies(lambda p: [
        p.sqrt(), p.rsqrt(), p.exp(), p.exp2(), p.expm1(), p.log(), p.log2(), p.log10(), p.log1p(), p.sin(), p.cos(),
        p.tan(), p.asin(), p.acos(), p.atan(), p.sinh(), p.cosh(), p.asinh(), p.atanh(), (p + 1).acosh(), p.erf(),
        p.erfc(), torch.logit(p), p.reciprocal(), p.square(), p.neg(), p.abs(), p.sign(), p**2, p**3, p**4, p**0.5,
        p**-0.5, p**-1.0, p**1.7, 2.0**p, p**p]), share)  # fmt: skip


def test_pointwise_of_two() -> None:
    agrees(Applies(lambda a, b, p: [
        a + b, a - 2 * b, 3 - a, a * b, a / (b + 5), torch.fmod(a, b), torch.remainder(a, b), a // 3,
        torch.div(a, 3, rounding_mode="trunc"), torch.atan2(a, b), torch.maximum(a, b), torch.minimum(a, b[0]),
        torch.clamp(a, -1, 2), torch.clamp(a, min=b), torch.where(a > b, a, 0.0), a.masked_fill(b > 0, -math.inf),
        torch.lerp(a, b, p), torch.lerp(a, b, 0.3), torch.addcmul(a, b, p, value=0.3), torch.addcdiv(a, b, p + 1),
        (a > b) & (a != 0) | ~(b <= 0.5), (a >= 1).float() + (b == 2), torch.logical_xor(a > 0, b), torch.hypot(a, b),
        torch.nan_to_num(a / (b * 0), 1.0, 2.0, 3.0), torch.logaddexp(a, b), torch.xlogy(a, p),
        torch.isfinite(a / 0), torch.frac(a), a.floor(), a.round(), a.trunc(), a.ceil(), torch.add(a, b, alpha=2),
        torch.rsub(a, b)]), x, y, share)  # fmt: skip


def test_types_are_promoted_as_torch_does() -> None:
    agrees(Applies(lambda i, v, s: [i + 1, i * v, i / 2, i // 2, i % 3, i.sum(), i > 2, i > v, i * 2.5, i.prod(0),
                                    v * s, (i > 2).sum(), (i > 2) * 3, i + s.int(), i.to(torch.int32) + i,
                                    i == 3, torch.where(i > 2, i, 0), i.amax(0), i.argmax(0), -i, i**2]),
           classes, x[:, 0], torch.tensor(2.0))  # fmt: skip


def test_halves_are_rounded_where_the_module_says_so() -> None:
    module = Applies(
        lambda a: [a + a * 0.1, F.softmax(a, -1), F.layer_norm(a, (17,)), a.float().sum(1), a.sum(1), a * a.float()]
    )
    for dtype in (torch.float16, torch.bfloat16):
        values = (x / 8).to(dtype)
        graph = traced(module, values)
        ours, wanted = GraphRun(graph, module, exact=False)(values), module(values)
        for mine, value in zip(ours, wanted, strict=True):
            torch.testing.assert_close(mine, value, rtol=2 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps)


def test_views_slices_and_fills() -> None:
    agrees(Applies(lambda a: [
        a.reshape(17, 33) * 2, a.t() + 1, a[:, 3:9] * 2, a[4] + 1, a.unsqueeze(1).expand(33, 2, 17) * 3,
        a.view(3, 11, 17).permute(2, 0, 1) - 1, a.repeat(2, 3) + 1, a.repeat_interleave(3, 1) + 1,
        a.repeat_interleave(2, 0) * 2, sum(a.chunk(4, 1)[:3]), a.split([10, 23])[1] * 2,
        a.flatten() * 2, a.movedim(0, 1) * 2, a.unbind(0)[5] * 2, torch.tril(a), torch.triu(a, 2) * 2,
        a + torch.arange(17), a + torch.zeros_like(a) + torch.full((17,), 2.0), a.narrow(0, 2, 3) * 2,
        a * torch.tensor(2.5), a + torch.tensor([1.0, 2.0] * 8 + [3.0])]), x,
        opaque=("full", "zeros_like"))  # fmt: skip


def test_what_is_not_known_is_left_to_torch() -> None:
    graph = agrees(Applies(lambda a, m: torch.i0(m(a).relu()).sort(1)[0] * 2, nn.Linear(17, 5)), x,
                   opaque=("linear", "i0", "sort"))  # fmt: skip
    assert all(
        n.op in POINTWISE or n.op in REDUCTIONS or n.op in VIEWS | SOURCES | {"slice", "call"} for n in graph.nodes
    )


def test_writing_in_place_becomes_a_value() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(17))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            self.seen.add_(a.sum(0))
            b = a.clone()
            b[:, 0] = 0
            return F.relu(b.mul_(2), inplace=True) + self.seen

    graph = agrees(Counts(), x, opaque=("fill", "select_scatter"))
    assert len(graph.updates) == 1


def test_arguments_and_results_of_any_structure() -> None:
    class Nested(nn.Module):
        def forward(self, pair: Any, scale: float, *, more: Any) -> Any:
            return {"a": [pair[0] * scale, (pair[1]["b"],)], "none": None, "n": 3}, more * 2

    graph = traced(Nested(), (x, {"b": y}), 2.5, more=share)
    got = GraphRun(graph, Nested(), exact=False)((x, {"b": y}), 2.5, more=share)
    torch.testing.assert_close(got[0]["a"][0], x * 2.5)
    assert got[0]["a"][1][0] is y and got[0]["none"] is None and got[0]["n"] == 3
    torch.testing.assert_close(got[1], share * 2)


def test_control_flow_on_values_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="a number out of a tensor") as caught:
        trace(Applies(lambda a: a * 2 if a.sum() > 0 else a), (x,), {})
    assert "\n" not in str(caught.value)


def test_dispatch_is_the_second_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_export(*_: Any, **__: Any) -> None:
        raise RuntimeError("no export today")

    monkeypatch.setattr(torch.export, "export", no_export)
    agrees(Applies(lambda a, m, n: n(F.gelu(m(a))) + a, nn.Linear(17, 17), nn.LayerNorm(17)), x, opaque=("addmm",))
