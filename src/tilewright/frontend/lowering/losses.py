"""Losses and distances of torch.nn.functional. `reduction` is torch's code: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from .lower import Builder, Expr, Lowering, NotLowered
from .pointwise import small_power
from .reduce import log_softmax, softmax_parts

_MEAN, _SUM = 1, 2


def _reduced(loss: Expr, reduction: int) -> Expr:
    if reduction not in (_MEAN, _SUM):
        return loss
    total = loss.reduce("sum", None)
    return total / prod(loss.shape) if reduction == _MEAN else total


def _difference(x: Expr, target: Expr) -> Expr:
    return x.wide() - target.wide()


def _mse(b: Builder, x: Expr, target: Expr, reduction: int = _MEAN) -> Expr:
    return _reduced(_difference(x, target).do("square"), reduction)


def _l1(b: Builder, x: Expr, target: Expr, reduction: int = _MEAN) -> Expr:
    return _reduced(_difference(x, target).do("abs"), reduction)


def _smooth_l1(b: Builder, x: Expr, target: Expr, reduction: int = _MEAN, beta: float = 1.0) -> Expr:
    if beta == 0:
        return _l1(b, x, target, reduction)
    size = _difference(x, target).do("abs")
    return _reduced((size < beta).where(size * size * (0.5 / beta), size - 0.5 * beta), reduction)


def _huber(b: Builder, x: Expr, target: Expr, reduction: int = _MEAN, delta: float = 1.0) -> Expr:
    size = _difference(x, target).do("abs")
    return _reduced((size <= delta).where(size * size * 0.5, (size - 0.5 * delta) * delta), reduction)


def _kl_div(b: Builder, x: Expr, target: Expr, reduction: int = _MEAN, log_target: bool = False) -> Expr:
    values, truth = x.wide(), target.wide()
    if log_target:
        return _reduced(truth.do("exp") * (truth - values), reduction)
    entropy = truth.do("eq", 0).where(0.0, truth * truth.do("log"))
    return _reduced(entropy - truth * values, reduction)


def _bce(b: Builder, x: Expr, target: Expr, weight: Expr | None = None, reduction: int = _MEAN) -> Expr:
    values, truth = x.wide(), target.wide()
    no = (-values).do("log1p").do("maximum", -100)
    loss = (truth - 1) * no - truth * values.do("log").do("maximum", -100)
    return _reduced(loss if weight is None else loss * weight.wide(), reduction)


def _bce_logits(b: Builder, x: Expr, target: Expr, weight: Expr | None = None, pos_weight: Expr | None = None,
                reduction: int = _MEAN) -> Expr:  # fmt: skip
    values, truth = x.wide(), target.wide()
    smooth = (-values).do("maximum", 0) + (-values.do("abs")).do("exp").do("log1p")  # -log(sigmoid(x))
    if pos_weight is not None:
        smooth = smooth * ((pos_weight.wide() - 1) * truth + 1)
    loss = (1 - truth) * values + smooth
    return _reduced(loss if weight is None else loss * weight.wide(), reduction)


def _soft_margin(b: Builder, x: Expr, target: Expr, reduction: int = _MEAN) -> Expr:
    return _reduced((-(target.wide() * x.wide())).do("exp").do("log1p"), reduction)


def _hinge_embedding(b: Builder, x: Expr, target: Expr, margin: float = 1.0, reduction: int = _MEAN) -> Expr:
    values = x.wide()
    far = target.do("eq", 1).where(0.0, (margin - values).do("maximum", 0))
    near = target.do("eq", -1).where(0.0, values)
    return _reduced(far + near, reduction)


def _margin_ranking(b: Builder, input1: Expr, input2: Expr, target: Expr, margin: float = 0.0,
                    reduction: int = _MEAN) -> Expr:  # fmt: skip
    return _reduced((-target.wide() * (input1.wide() - input2.wide()) + margin).do("maximum", 0), reduction)


def _poisson_nll(b: Builder, x: Expr, target: Expr, log_input: bool, full: bool, eps: float, reduction: int) -> Expr:
    values, truth = x.wide(), target.wide()
    loss = values.do("exp") - truth * values if log_input else values - truth * (values + eps).do("log")
    if full:
        stirling = truth * truth.do("log") - truth + 0.5 * (truth * (2 * math.pi)).do("log")
        loss = loss + (truth <= 1).where(0.0, stirling)
    return _reduced(loss, reduction)


# --- classification ------------------------------------------------------------------------------------------------


def _class_dim(x: Expr) -> int:
    return 1 if len(x.shape) > 1 else 0


def _hits(b: Builder, x: Expr, target: Expr) -> Expr:
    """Where a class is the target's: bool, of the shape of `x`, made from positions along the class dimension."""
    dim = _class_dim(x)
    classes = b.index(x.shape[dim]).reshape((x.shape[dim],) + (1,) * (len(x.shape) - dim - 1))
    wanted = target.reshape((*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    return classes.do("eq", wanted)


def _picked(hits: Expr, values: Expr, dim: int) -> Expr:
    """The value at the target class, by a sum of which all other terms are zero."""
    return hits.where(values, 0.0).reduce("sum", (dim,))


def _over_classes(weight: Expr, x: Expr) -> Expr:
    dim = _class_dim(x)
    return weight.reshape((x.shape[dim],) + (1,) * (len(x.shape) - dim - 1))


def _mean_over_kept(loss: Expr, share: Expr, reduction: int) -> Expr:
    """Reduce per-sample losses; the mean divides by the sum of `share`, the samples' weights."""
    if reduction not in (_MEAN, _SUM):
        return loss
    total = loss.reduce("sum", None)
    return total / share.reduce("sum", None) if reduction == _MEAN else total


def _weighed(b: Builder, x: Expr, target: Expr, weight: Expr | None, ignore_index: int) -> tuple[Expr, Expr, Expr]:
    """Where each class is the target; whether each sample counts; and the weight with which it does."""
    hits, counted = _hits(b, x, target), target.do("ne", ignore_index)
    if weight is None:
        return hits, counted, counted.to(x.dtype)
    own = _picked(hits, _over_classes(weight.wide(), x), _class_dim(x))
    return hits, counted, counted.where(own, 0.0)


def _nll(b: Builder, x: Expr, target: Expr, weight: Expr | None = None, reduction: int = _MEAN,
         ignore_index: int = -100) -> Expr:  # fmt: skip
    if x.shape[_class_dim(x)] < 2:
        raise NotLowered
    values = x.wide()
    hits, counted, share = _weighed(b, values, target, weight, ignore_index)
    loss = counted.where(-_picked(hits, values, _class_dim(x)), 0.0)
    return _mean_over_kept(loss if weight is None else loss * share, share, reduction)


def _nll_forward(b: Builder, x: Expr, target: Expr, weight: Expr | None, reduction: int, ignore_index: int
                 ) -> tuple[Expr | None, ...]:  # fmt: skip
    return (_nll(b, x, target, weight, reduction, ignore_index), None)


def _cross_entropy(b: Builder, x: Expr, target: Expr, weight: Expr | None = None, reduction: int = _MEAN,
                   ignore_index: int = -100, label_smoothing: float = 0.0) -> Expr:  # fmt: skip
    dim = _class_dim(x)
    if x.shape[dim] < 2:
        raise NotLowered
    values = x.wide()
    if target.shape == x.shape and target.dtype == x.dtype:
        return _soft_targets(values, target.wide(), weight, reduction=reduction, label_smoothing=label_smoothing)
    hits, counted, share = _weighed(b, values, target, weight, ignore_index)
    top, total = softmax_parts(values, dim)
    log_total = top + total.do("log")
    own = log_total.reshape(target.shape) - _picked(hits, values, dim)
    loss = counted.where(own if weight is None else own * share, 0.0)
    if label_smoothing:
        every = -log_softmax(values, dim)
        every = every if weight is None else every * _over_classes(weight.wide(), x)
        smooth = counted.where(every.reduce("sum", (dim,)), 0.0)
        loss = loss * (1 - label_smoothing) + smooth * (label_smoothing / x.shape[dim])
    return _mean_over_kept(loss, share, reduction)


def _soft_targets(x: Expr, target: Expr, weight: Expr | None, *, reduction: int, label_smoothing: float) -> Expr:
    dim = _class_dim(x)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / x.shape[dim]
    terms = log_softmax(x, dim) * target
    loss = -(terms if weight is None else terms * _over_classes(weight.wide(), x)).reduce("sum", (dim,))
    if reduction == _MEAN:
        return loss.reduce("sum", None) / (prod(x.shape) // x.shape[dim])
    return _reduced(loss, reduction)


# --- distances -----------------------------------------------------------------------------------------------------


def _dot(x: Expr, y: Expr, dim: int) -> Expr:
    return (x * y).reduce("sum", (dim,))


def _cosine_similarity(b: Builder, x1: Expr, x2: Expr, dim: int = 1, eps: float = 1e-8) -> Expr:
    left, right = x1.to(b.out_dtype).wide(), x2.to(b.out_dtype).wide()
    shape = tuple(torch.broadcast_shapes(left.shape, right.shape))
    left, right = left.expand(shape), right.expand(shape)
    norms = [v.do("square").reduce("sum", (dim,)).do("sqrt").do("maximum", eps) for v in (left, right)]
    return _dot(left, right, dim) / (norms[0] * norms[1])


def _distance(x: Expr, y: Expr, *, p: float, eps: float, keepdim: bool = False) -> Expr:
    difference = x.wide() - y.wide() + eps
    dim = (len(difference.shape) - 1,)
    if p == 2:
        return difference.do("square").reduce("sum", dim, keepdim=keepdim).do("sqrt")
    size = difference.do("abs")
    if math.isinf(p):
        return size.reduce("max", dim, keepdim=keepdim)
    power = small_power(size, p) or size.do("pow", float(p))
    total = power.reduce("sum", dim, keepdim=keepdim)
    return total if p == 1 else total.do("pow", 1.0 / p)


def _pairwise(b: Builder, x1: Expr, x2: Expr, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Expr:
    if p == 0:
        raise NotLowered
    return _distance(x1, x2, p=p, eps=eps, keepdim=keepdim)


def _triplet_margin(b: Builder, anchor: Expr, positive: Expr, negative: Expr, margin: float = 1.0,
                    swap: bool = False, reduction: int = _MEAN, **norm: Any) -> Expr:  # fmt: skip
    norm = {"p": 2.0, "eps": 1e-6} | norm
    near, far = _distance(anchor, positive, **norm), _distance(anchor, negative, **norm)
    if swap:
        far = far.do("minimum", _distance(positive, negative, **norm))
    return _reduced((near - far + margin).do("maximum", 0), reduction)


def _cosine_embedding(b: Builder, input1: Expr, input2: Expr, target: Expr, margin: float = 0.0,
                      reduction: int = _MEAN) -> Expr:  # fmt: skip
    dim, tiny = len(input1.shape) - 1, 1e-12
    left, right = input1.wide(), input2.wide()
    sizes = (_dot(left, left, dim) + tiny) * (_dot(right, right, dim) + tiny)
    cosine = _dot(left, right, dim) / sizes.do("sqrt")
    near = target.do("eq", 1).where(1 - cosine, 0.0)
    far = target.do("eq", -1).where((cosine - margin).do("maximum", 0), 0.0)
    return _reduced(near + far, reduction)


LOSS_LOWERINGS: Mapping[str, Lowering] = {
    "mse_loss": _mse, "l1_loss": _l1, "smooth_l1_loss": _smooth_l1, "huber_loss": _huber, "kl_div": _kl_div,
    "binary_cross_entropy": _bce, "binary_cross_entropy_with_logits": _bce_logits, "soft_margin_loss": _soft_margin,
    "hinge_embedding_loss": _hinge_embedding, "margin_ranking_loss": _margin_ranking,
    "poisson_nll_loss": _poisson_nll, "nll_loss_nd": _nll, "nll_loss": _nll, "nll_loss2d": _nll,
    "nll_loss_forward": _nll_forward, "cross_entropy_loss": _cross_entropy, "cosine_similarity": _cosine_similarity,
    "pairwise_distance": _pairwise, "triplet_margin_loss": _triplet_margin,
    "cosine_embedding_loss": _cosine_embedding,
}  # fmt: skip
