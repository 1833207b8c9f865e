"""Input families: the distributions beside a problem's own on which a candidate must be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

OWN = "own"


def _normal(like: Tensor, source: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=source, device=like.device, dtype=_drawn(like))


def _uniform(like: Tensor, source: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=source, device=like.device, dtype=_drawn(like))


def _shifted(like: Tensor, source: torch.Generator) -> Tensor:
    """Small around a large mean: what a variance computed as E[x^2] - E[x]^2 does not survive."""
    return _normal(like, source).add_(1e3)


def _integers(like: Tensor, source: torch.Generator) -> Tensor:
    """-4 .. 4: sums and products are exact, so that misplaced elements show undiluted."""
    return torch.randint(-4, 5, like.shape, generator=source, device=like.device, dtype=torch.int8).to(_drawn(like))


def _wide(like: Tensor, source: torch.Generator) -> Tensor:
    """Normal, times 2 to the power of -12 .. 12."""
    exponents = torch.randint(-12, 13, like.shape, generator=source, device=like.device, dtype=torch.int8)
    return _normal(like, source).mul_(torch.exp2(exponents.to(_drawn(like))))


def _spikes(like: Tensor, source: torch.Generator) -> Tensor:
    """Mostly small, one element in about a hundred large: neglected places show."""
    values = _normal(like, source)
    hit = torch.rand(like.shape, generator=source, device=like.device) < 0.01
    return torch.where(hit, values * 64, values * 0.01)


FAMILIES: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "normal": _normal, "uniform": _uniform, "shifted": _shifted, "integers": _integers, "wide": _wide,
    "spikes": _spikes,
}  # fmt: skip


def _drawn(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def redistribute(own: Tensor, family: str, seed: int) -> Tensor:
    """A tensor like `own` (floating) drawn from the family; where `own` is not finite (a mask) it stays as it is."""
    source = torch.Generator(device=own.device).manual_seed(seed)
    drawn = FAMILIES[family](own, source).to(own.dtype)
    finite = torch.isfinite(own)
    return drawn if bool(finite.all()) else torch.where(finite, drawn, own)


def perturb_state(name: str, tensor: Tensor, *, is_parameter: bool, source: torch.Generator) -> None:
    """Move a floating parameter or buffer in place, so that weights of one and biases of zero come to matter.
    Parameters get a factor and an offset at their own scale; buffers a positive factor alone, which keeps masks
    masks and variances positive; means that are all zero get an offset too."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    noise = torch.randn(tensor.shape, generator=source, device=tensor.device, dtype=_drawn(tensor))
    factor = torch.exp(0.2 * torch.randn(tensor.shape, generator=source, device=tensor.device, dtype=_drawn(tensor)))
    tensor.mul_(factor.to(tensor.dtype))
    if is_parameter or name.endswith("running_mean"):
        scale = float(tensor.abs().mean(dtype=torch.float64)) or 0.5
        tensor.add_((0.2 * scale * noise).to(tensor.dtype))
