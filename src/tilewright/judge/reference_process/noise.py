"""Noise: a module run in float64, with an error put in wherever its own arithmetic rounds.

An operation of many terms (a sum, a product of matrices, a norm, whatever else is not pointwise) gets its operands
moved by some last bits of their type, each element by itself, before it is carried out in float64: so the error of a
result is relative to its terms, not to what cancellation leaves of them, whatever the operation. What it gives,
and what a pointwise operation gives, is moved by some last bits of itself. How many depends on the number of terms:
sums in one accumulator, in blocks and in trees, and products of several narrower ones are all as likely. Means that
norms make are moved beside that as merging them rounds (judge.reference_process.means).

What only moves, chooses or compares values gets none, and neither does a result that the module's type holds exactly:
every implementation gives that. Where an operation gives indices, it chooses among equal values at random.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from .effort import AppealEffort
from .means import merged
from .rounds import EXACT, INDICES, OF_ONE, OF_OPERAND, PLAIN, SUMS
from .work import terms

_UNITS: Mapping[torch.dtype, float] = {
    torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3,
}  # fmt: skip
TF32 = 2.0**-11
_MOST_OF_LONG_SUMS = 8e-6  # of a result, for what one accumulator loses always to the same side
_EXPONENT = 128.0  # logits are moved as those of this size at most: beyond it, it is differences that count
_TIES = 2.0**-44
_BLOCK = 1 << 24
_WHOLE = 2.0**24  # fp32 holds whole numbers up to here
_ROOT_3 = math.sqrt(3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """What a module computes in: by name of operation, the type of what it gave each time; the `base` where that is not
    known. `products`, `convolutions`: how far factors of these are rounded beside that, relative; `least`: all else, at
    least."""

    base: torch.dtype
    given: Mapping[str, Sequence[torch.dtype]]
    products: float = 0.0
    convolutions: float = 0.0
    least: float = 0.0


def name_of(func: Any) -> str:
    """The packet's name, of an operation in place too."""
    name: str = getattr(getattr(func, "overloadpacket", None), "__name__", "")
    return name.removesuffix("_")


class Recorder(TorchDispatchMode):
    """Keeps the type of what every operation gives, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given: dict[str, list[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        floats = _floats(result)
        if floats and not getattr(func, "is_view", False):
            self.given.setdefault(name_of(func), []).append(floats[0].dtype)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Of one operation: its name, by how much its operands and its results may be off, relative, and what type its
    results have to fit for them to be exact. `unit`: one rounding of what is computed within it."""

    name: str
    operands: float
    results: float
    dtype: torch.dtype
    unit: float = 0.0


class Planner(TorchDispatchMode):
    """Plans the roundings of a module while it runs in float64 without any, and counts its effort."""

    def __init__(self, classes: Classes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._classes = classes
        self._counts: dict[str, int] = {}
        self.effort = AppealEffort()
        self.plan: list[Rounding] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        whole = name_of(func) in SUMS and _is_whole(args)  # before it is written to
        result = func(*args, **kwargs)
        self.effort.add(func, args, kwargs, result)
        if _floats(result) and not getattr(func, "is_view", False):
            self._plan(func, (args, kwargs), result, whole=whole)
        return result

    def _plan(self, func: Any, given: Any, result: Any, *, whole: bool) -> None:
        name = name_of(func)
        dtype = self._class_of(name, result)
        if name == "_to_copy":
            return
        args, kwargs = given
        least = self._classes.least
        unit = max(_UNITS.get(dtype, 2.0**-8), least)
        inner = max(min(unit, 2.0**-24), least)
        if name in EXACT or name in INDICES:
            operands = results = 0.0
        elif torch.Tag.pointwise in func.tags:
            operands, results = 0.0 if name in PLAIN else inner, unit
        else:
            terms_off, sum_off = _of_sums(terms(func, args, kwargs, result), unit)
            operands, results = 0.0 if whole else inner * terms_off, unit * sum_off
            if getattr(func, "overloadpacket", None) in flop_registry and not whole:
                allow_tf32 = self._classes.convolutions if "convolution" in name else self._classes.products
                operands = max(operands, allow_tf32)
                if dtype.itemsize < self._classes.base.itemsize:  # under autocast factors are rounded first
                    operands = max(operands, unit)
        self.plan.append(Rounding(name=name, operands=operands, results=results, dtype=dtype, unit=inner))

    def _class_of(self, name: str, result: Any) -> torch.dtype:
        """What the module's own run gave here; the type of the result itself where it is none of float64."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        found = _floats(result)[0].dtype
        if found in (torch.float64, torch.complex128):
            known = self._classes.given.get(name, ())
            found = known[count - 1] if count <= len(known) else self._classes.base
        return found.to_real() if found.is_complex else found


class Noise(TorchDispatchMode):
    """Puts errors in while it is entered: `scale` times as large as was planned; to the other side where `scale` is
    negative and `seed` the same. Nothing is planned where the values decide on another way through the module: what is
    done there rounds as any operation of the base type."""

    def __init__(self, plan: Sequence[Rounding], classes: Classes, *, scale: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan = plan
        self._next = 0
        self._classes, self._scale, self._seed = classes, scale, seed
        self._sources: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if getattr(func, "is_view", False):
            return func(*args, **kwargs)
        if name == "_to_copy":
            return self._cast(func, args, kwargs)
        result = self._chosen(INDICES[name], func, args, kwargs) if name in INDICES else None
        if result is None:
            planned = self._planned(name)
            least = _least_size(name, func, args) if planned.results else None
            if planned.operands:
                args, kwargs = self._moved(func, (args, kwargs), planned.operands)
            result = func(*args, **kwargs)
            if not _floats(result):
                return result
            for tensor in _floats(result) if planned.results else ():
                self._round(tensor, planned, least=least)
            if planned.unit and (means := merged(name, args, result)) is not None:
                means.move(self._draw(means.largest, planned.unit))
        if _floats(result):
            self._next += 1
        return result

    def _planned(self, name: str) -> Rounding:
        if self._next < len(self._plan) and self._plan[self._next].name == name:
            return self._plan[self._next]
        unit = 0.0 if name in EXACT or name in INDICES else _UNITS.get(self._classes.base, 2.0**-8)
        return Rounding(name=name, operands=0.0, results=unit, dtype=self._classes.base)

    # ---- moving values

    def _moved(self, func: Any, given: Any, size: float) -> Any:
        """The operands, moved; what the operation writes to stays."""
        args, kwargs = given
        written = {
            i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
        }
        most = _EXPONENT if "softmax" in name_of(func) else math.inf

        def move(value: Any) -> Any:
            return self._off(value, size, most=most) if isinstance(value, Tensor) and _is_float(value) else value

        moved = tuple(a if i in written else tree_map(move, a) for i, a in enumerate(args))
        return moved, kwargs if written else tree_map(move, kwargs)

    def _off(self, tensor: Tensor, size: float, *, most: float = math.inf) -> Tensor:
        """Another tensor, every element off by about that share of itself; of what exceeds `most`, of that."""
        found = tensor.clone(memory_format=torch.preserve_format)
        if 0 in found.stride():
            found = tensor.contiguous()
        for part in _parts(found):
            by = part.clamp(-most, most) if math.isfinite(most) else part
            part.add_(torch.where(torch.isfinite(by), by, 0.0) * self._draw(part, size))
        return found

    def _round(self, tensor: Tensor, planned: Rounding, *, least: Tensor | None = None) -> None:
        """Move every element in place that the type does not hold exactly, by last bits of itself or of the `least`."""
        leasts = _parts(least) if least is not None and least.shape == tensor.shape else itertools.repeat(least)
        for part, size in zip(_parts(tensor), leasts, strict=False):
            by = part if size is None else torch.maximum(part.abs(), size)
            by = torch.where(part.isfinite() & (part.to(planned.dtype).to(part.dtype) != part), by, 0.0)
            part.add_(by * self._draw(part, planned.results))

    def _draw(self, like: Tensor, size: float) -> Tensor:
        """Uniform numbers of this root mean square."""
        if like.device not in self._sources:
            self._sources[like.device] = torch.Generator(device=like.device).manual_seed(self._seed)
        reach = _ROOT_3 * size * self._scale
        drawn = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        return drawn.uniform_(-1.0, 1.0, generator=self._sources[like.device]).to(like.dtype).mul_(reach)

    def _cast(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A cast back to what stands for the module's type rounds as that does."""
        result, base = func(*args, **kwargs), self._classes.base
        back = result.dtype == torch.float64 and args[0].is_floating_point() and args[0].dtype != torch.float64
        if back and base.itemsize < args[0].dtype.itemsize:
            unit = _UNITS.get(base, 2.0**-8)
            self._round(result, Rounding(name="_to_copy", operands=0.0, results=unit, dtype=base))
        return result

    def _chosen(self, place: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Indices as of operands in which equal values differ, and the values at them; None where none are given, or an
        order among equals is promised."""
        operand = args[0]
        if kwargs.get("stable") or not _is_float(operand) or (len(args) > 1 and isinstance(args[1], Tensor)):
            return None
        found = func(operand + self._draw(operand, _TIES) * _sizes(operand), *args[1:], **kwargs)
        if isinstance(found, Tensor):
            return found if place < 0 else None
        indices, dim = found[place], _dim_of(func, args, kwargs)
        if operand.ndim == 0:
            values = operand.clone()
        elif indices.ndim == operand.ndim - 1:
            values = operand.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
        else:
            values = operand.gather(dim, indices)
        return values, indices


def _least_size(name: str, func: Any, args: Any) -> Tensor | None:
    """What a pointwise operation's results are rounded as where they are smaller than that."""
    if name in OF_ONE:
        return torch.ones((), dtype=args[0].dtype, device=args[0].device)
    if name in OF_OPERAND or (name.endswith("_backward") and torch.Tag.pointwise in func.tags):
        size: Tensor = args[0].abs()
        return size
    return None


def _dim_of(func: Any, args: Any, kwargs: Any) -> int:
    given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
    return int(given.get("dim", -1))


def _of_sums(count: int, unit: float) -> tuple[float, float]:
    """By how many last bits the terms of a sum of so many, and the sum, may be off: what one accumulator makes of
    terms of both signs, in any order; of terms of one sign; and what it then loses always to the same side."""
    always = min(count / 60, max(_MOST_OF_LONG_SUMS / unit, 0.0)) if unit <= 2.0**-24 else 0.0
    return math.sqrt(1 + count / 36), math.sqrt(1 + (count / 19 if unit <= 2.0**-24 else 0.0) + always**2)


def _sizes(operand: Tensor) -> Tensor:
    """The size of each element, and of noughts and infinities that of the least: beside a filling of -1e9 what is left
    open must not be moved by as much as that."""
    sizes = torch.where(operand.isfinite(), operand, 0.0).abs()
    some = sizes[sizes > 0]
    return torch.where(sizes > 0, sizes, some.amin() if some.numel() else 1.0)


def _is_whole(args: Any) -> bool:
    """Whether all that is summed is whole and so small that fp32 holds every sum."""
    most = 1.0
    for tensor in _floats(args):
        few = tensor.reshape(-1)[:64] if tensor.is_contiguous() else tensor
        if tensor.numel() == 0 or not bool((few == few.round()).all()) or not bool((tensor == tensor.round()).all()):
            return False
        most *= max(float(tensor.abs().max()), 1.0) * math.sqrt(tensor.numel())
    return most < _WHOLE


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _floats(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor) and _is_float(t)]


def _parts(tensor: Tensor) -> list[Tensor]:
    """Views of a tensor, dense or not, that are not too large."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.numel() <= _BLOCK:
        return [tensor]
    longest = max(range(tensor.ndim), key=lambda d: tensor.shape[d])
    pieces = -(-tensor.numel() // _BLOCK)
    return list(tensor.chunk(pieces, longest))
