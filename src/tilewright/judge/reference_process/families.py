"""Input families: the distributions beside a problem's own on which a candidate must be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..wire.redraws import SPREADS
from .eight_bits import computable, within
from .structure import Structure, order_of

OWN = "own"
SPECIALS = "specials"
_OF_FEW = SPREADS[2:]
_SPARSE_SHARE, _FEW_ELEMENTS, _FEW_SHARE = 0.125, 16, 512
# Bits 15 .. 8 of an fp32 number: bf16 cuts at bit 16, TF32 and fp16 at bit 13; both find a little less than half there.
_JUST_UNDER_HALF = 0b0110_1111 << 8


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


def _one_sided(like: Tensor, source: torch.Generator) -> Tensor:
    """Normal, with low bits that TF32, fp16 and bf16 all round towards zero, by a little less than half of their last
    place: the errors of a lower class add up over a sum instead of cancelling, whatever its length."""
    values = _normal(like, source).float()
    bits = (values.view(torch.int32) & ~0xFF00) | _JUST_UNDER_HALF
    return bits.view(torch.float32).to(_drawn(like))


def _large(like: Tensor, source: torch.Generator) -> Tensor:
    """Normal, times one power of two for the whole tensor: 2**6 .. 2**10, and where the type has fp32's exponents
    2**17 .. 2**21, which fp16 can't hold."""
    return _normal(like, source).mul_(_power(like, source))


def _small(like: Tensor, source: torch.Generator) -> Tensor:
    """As `large`, by the inverse of such a power."""
    return _normal(like, source).div_(_power(like, source))


def _power(like: Tensor, source: torch.Generator) -> float:
    least = 6 if like.dtype == torch.float16 else 17
    return 2.0 ** int(torch.randint(least, least + 5, (1,), generator=source, device=like.device))


def _zeros(like: Tensor, source: torch.Generator) -> Tensor:
    """Nine elements in ten are zero, and so is every other row."""
    values = _normal(like, source)
    values[torch.rand(like.shape, generator=source, device=like.device) < 0.9] = 0.0
    if like.ndim > 1:
        values[1::2] = 0.0
    return values


def _subnormals(like: Tensor, source: torch.Generator) -> Tensor:
    """Normal, one element in eight so small that its type holds it with fewer digits."""
    values = _normal(like, source)
    hit = torch.rand(like.shape, generator=source, device=like.device) < 0.125
    return torch.where(hit, values * (torch.finfo(like.dtype).tiny / 16), values)


def _specials(like: Tensor, source: torch.Generator) -> Tensor:
    """Normal, with a NaN and an infinity of each sign at places of their own."""
    values = _normal(like, source)
    flat = values.view(-1)
    for special in (float("nan"), float("inf"), float("-inf")):
        at = int(torch.randint(0, max(flat.numel(), 1), (1,), generator=source, device=like.device))
        flat[at : at + 1] = special
    return values


def _twelve_bits(like: Tensor, source: torch.Generator) -> Tensor:
    """Normal, with 12 significant bits of which the last is set: products are exact in fp32, and each factor loses half
    of the last place of TF32 and fp16."""
    return shortened(_normal(like, source))


def shortened(tensor: Tensor) -> Tensor:
    """The same with 12 significant bits, the last of them set; what is nought, or has no more bits, as it is."""
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    bits = (tensor.float().view(torch.int32) & ~0xFFF) | 0x1000
    return torch.where((tensor == 0) | ~torch.isfinite(tensor), tensor, bits.view(torch.float32).to(tensor.dtype))


FAMILIES: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "normal": _normal, "uniform": _uniform, "shifted": _shifted, "integers": _integers, "wide": _wide,
    "spikes": _spikes, "one_sided": _one_sided, "large": _large, "small": _small,
    "zeros": _zeros, "subnormals": _subnormals, SPECIALS: _specials, "twelve_bits": _twelve_bits,
}  # fmt: skip


def _drawn(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def redistribute(own: Tensor, family: str, seed: int, structure: Structure | None = None) -> Tensor:
    """A tensor like `own` (floating) drawn from the family, of the same structure; where `own` is not finite (a mask)
    it stays as it is."""
    source = torch.Generator(device=own.device).manual_seed(seed)
    drawn = FAMILIES[family](own, source)
    if computable(own) is not own:  # no structure is known of eight bits
        return within(drawn, own.dtype)
    return (structure or Structure()).enforce(drawn.to(own.dtype), own)


def _sparse(like: Tensor, source: torch.Generator) -> Tensor:
    """Normal in one place of a hundred, and in one at least; nought elsewhere."""
    values = _normal(like, source)
    if like.numel() == 0:
        return values
    hit = torch.rand(like.shape, generator=source, device=like.device) < 0.01
    place = torch.randint(max(like.numel(), 1), (1,), generator=source, device=like.device)
    return torch.where(hit, values, 0.0).reshape(-1).index_copy(0, place, values.reshape(-1)[place]).reshape(like.shape)


_UPSTREAM: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "normal": _normal, "sparse": _sparse, "ones": lambda like, _: torch.ones_like(like),
}  # fmt: skip


def upstream(places: Sequence[Tensor], kind: str, seed: int) -> tuple[Tensor, ...]:
    """Upstream gradients for results that look like `places`. What one result gets tells nothing of the next one's.
    Kind "alone": normal for one of them, nought for the others."""
    found = []
    alone = seed % max(len(places), 1) if kind == "alone" else -1
    for i, place in enumerate(places):
        source = torch.Generator(device=place.device).manual_seed((seed * 31 + i + 1) % 2**63)
        real = torch.view_as_real(place) if place.is_complex() else place
        drawn = _UPSTREAM["normal" if alone >= 0 else kind](real, source).to(real.dtype)
        if alone >= 0 and i != alone:
            drawn = torch.zeros_like(drawn)
        found.append(torch.view_as_complex(drawn.contiguous()) if place.is_complex() else drawn)
    return tuple(found)


def perturb_state(
    name: str, tensor: Tensor, *, is_parameter: bool, source: torch.Generator, spread: str = "whole"
) -> None:
    """Move a floating parameter or buffer in place, so that weights of one and biases of zero come to matter.
    Parameters get a factor and an offset at their own scale; buffers a positive factor alone, which keeps masks
    masks and variances positive; means that are all zero get an offset too. Batches counted so far become more.
    What is in order along its last dimension, as edges are, stays so. `spread` is one of SPREADS: a look at some
    elements does not show that one in eight moves, or a few, and no sum shows that some change places."""
    if name.endswith("num_batches_tracked"):
        tensor.add_(int(torch.randint(1, 9, (1,), generator=source, device=source.device)))
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    if computable(tensor) is not tensor:
        wide = computable(tensor)
        perturb_state(name, wide, is_parameter=is_parameter, source=source, spread=spread)
        tensor.copy_(within(wide, tensor.dtype))
        return
    order = order_of(tensor)
    spread = "few" if order and spread == "exchanged" else spread  # in order again, they would be where they were
    _perturb(name, tensor, is_parameter=is_parameter, source=source, spread=spread)
    if order:
        tensor.copy_(tensor.sort(-1, descending=order < 0).values)


def _perturb(name: str, tensor: Tensor, *, is_parameter: bool, source: torch.Generator, spread: str) -> None:
    offset = is_parameter or name.endswith("running_mean")
    if spread in _OF_FEW:
        _move_few(tensor, exchanged=spread == "exchanged", offset=offset, source=source)
        return
    noise = torch.randn(tensor.shape, generator=source, device=tensor.device, dtype=_drawn(tensor))
    old = tensor.clone() if spread == "sparse" and tensor.numel() > _FEW_ELEMENTS else None
    factor = torch.exp(0.2 * torch.randn(tensor.shape, generator=source, device=tensor.device, dtype=_drawn(tensor)))
    tensor.mul_(factor.to(tensor.dtype))
    if offset:
        scale = float(tensor.abs().mean(dtype=torch.float64)) or 0.5
        tensor.add_((0.2 * scale * noise).to(tensor.dtype))
    if old is not None:
        stays = torch.rand(tensor.shape, generator=source, device=tensor.device) >= _SPARSE_SHARE
        tensor.copy_(torch.where(stays, old, tensor))


def chosen_to_move(names: Sequence[str], *, spread: str, seed: int) -> tuple[str, ...]:
    """Which of these tensors move: all, or every other time that few elements do, one alone."""
    if spread not in _OF_FEW or not names or seed // len(SPREADS) % 2:
        return tuple(names)
    return (names[seed // (2 * len(SPREADS)) % len(names)],)


def _move_few(tensor: Tensor, *, exchanged: bool, offset: bool, source: torch.Generator) -> None:
    """Elements that lie together, at most one in _FEW_SHARE of all, change places with others, where these are not the
    same, or move by far: what one weight does must be seen in 16 bits, too."""

    def below(count: int) -> int:
        return int(torch.randint(count, (), generator=source, device=source.device))

    flat = tensor.reshape(-1).clone()
    count = 1 << below(max(1, flat.numel() // _FEW_SHARE).bit_length())
    here, there = (slice(at, at + count) for at in (below(flat.numel() - count + 1) for _ in range(2)))
    ours, theirs = flat[here].clone(), flat[there].clone()
    if exchanged and not torch.equal(ours, theirs):
        flat[here], flat[there] = theirs, ours
    elif offset:
        scale = float(flat.abs().mean(dtype=torch.float64)) or 0.5
        flat[here] += scale * (3 if below(2) else -3)
    else:
        flat[here] *= 3.0 if below(2) else 0.3
    tensor.copy_(flat.view(tensor.shape))
