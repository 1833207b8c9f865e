"""The boundary family: inputs on which results that jump are about to.

Of a module that compares, rounds or chooses, plain draws show a lower class of arithmetic, or a constant, only where an
element happens to lie beside the turn: of few elements, or beside a mask's filling, none does. So two draws are taken,
and between them, group by group (a row, as a rule; an element where the module is pointwise), the place is bisected
where a result of that group turns. The inputs are then put to one side of it, by chance, at the least distance from
which inputs and parameters moved by some of their last bits do not turn it back: arithmetic of the module's own class
is certain there, one of a lower class is not, and a constant is wrong in half of the groups.

Nothing need be known of the module: what it gives in float64 is all that is looked at. Groups of which nothing turns
keep the first draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .families import OWN, perturb_state
from .reference import Reference
from .subject import named_state

LONE = "lone"
ENDS = (OWN, LONE, "wide", "large", "zeros")  # what the second draw may be: the first that turns something counts
_HALVINGS = 24
_SOON, _SOON_LEFT = 12, 2.0**-9  # after so many, this share of the change is left where something jumps
_MOST_TIMES = 4  # of the state: what one redraw does not turn some may
# Distances from the turn, as shares of the way: the second counts at which nothing turns back.
_STEPS = tuple(2.0**-e for e in range(23, 6, -2))
_PLENTY = 64  # groups beside turns, after which no further second draw is tried
_JITTER = 2.0**-20  # sixteen roundings of fp32
_JITTERS = 3
_LEAST_JUMP = 2.0**-16  # of the change over the whole way: what shrinks with the distance is no jump
_SAME = 1e-6  # of the typical size: what float64 may make of other rows
_LARGEST = 1e30  # stands for infinity


@dataclass(frozen=True, slots=True)
class Moved:
    """What to call the module on. `state`, by name, is empty unless the way led through the state. `turned`: how many
    of the `groups` lie beside a turn."""

    inputs: tuple[Tensor, ...]
    state: tuple[tuple[str, Tensor], ...]
    turned: int
    groups: int


def approach(
    reference: Reference, args: str, inputs: Sequence[Tensor], *, seed: int, number: int = 0, state: bool = False
) -> Moved:
    """Inputs beside a turn, one output after the other by `number`; `inputs` are an own draw. Where no input can be
    moved and `state` says that it may be, parameters are; the module's own stay as they are, though."""
    way = _Way(reference, args, inputs, seed=seed)
    first = way.results_at(way.everywhere(0.0))
    output = _order(first)[number % len(first)]
    if first[output].numel() == 0 or first[output].is_complex():
        return Moved(tuple(inputs), (), 0, 1)
    free = tuple(t.is_floating_point() and t.element_size() > 1 for t in inputs)
    free = tuple(f and not s.keeps_own for f, s in zip(free, reference.structures() or (), strict=False)) or free
    draws = torch.Generator(device=first[output].device).manual_seed(seed)
    if any(free):
        return _through_inputs(way, free, first, output=output, draws=draws)
    if not state or not way.lead_through_state(seed + 1, times=1 + number % _MOST_TIMES):
        return Moved(tuple(inputs), (), 0, 1)
    try:
        place, turned, _ = _place(way, output, draws)
        moved = way.state_at(place) if bool(turned) else ()
    finally:
        way.put_state_back()
    return Moved(tuple(inputs), moved, int(turned), 1)


class _Way:
    """The inputs (or the state) on a straight line from one draw to another, at a place of its own for each group: of
    each moved tensor, and of the output, the leading dimensions are `shape`."""

    def __init__(self, reference: Reference, args: str, inputs: Sequence[Tensor], *, seed: int) -> None:
        self.reference, self._args, self.seed = reference, args, seed
        self.start = self.end = tuple(inputs)
        self.shape: tuple[int, ...] = ()
        self._state: dict[str, tuple[Tensor, Tensor]] = {}

    def everywhere(self, t: float) -> Tensor:
        return torch.full(self.shape, t, dtype=torch.float64, device=self.reference.subject.device)

    def lead_to(self, end: Sequence[Tensor]) -> None:
        self.end = tuple(
            torch.where(torch.isfinite(a) & torch.isfinite(b), b, a) if b is not a else a
            for a, b in zip(self.start, end, strict=True)
        )

    def lead_through_state(self, seed: int, *, times: int) -> bool:
        """From the state as it is to what so many redraws make of it; False where nothing of it is floating."""
        subject = self.reference.subject
        source = torch.Generator(device=subject.device).manual_seed(seed)
        parameters = {name for name, _ in subject.built.named_parameters(remove_duplicate=False)}
        for name, tensor in named_state(subject.built).items():
            if tensor.is_floating_point() and tensor.element_size() > 1:
                start, end = tensor.detach().clone(), tensor.detach().clone()
                for _ in range(times):
                    perturb_state(name, end, is_parameter=name in parameters, source=source)
                self._state[name] = start, end
        return bool(self._state)

    def inputs_at(self, t: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            a if a is b else _between(a, b, self.spread(t, a)) for a, b in zip(self.start, self.end, strict=True)
        )

    def state_at(self, t: Tensor) -> tuple[tuple[str, Tensor], ...]:
        return tuple((name, _between(a, b, t)) for name, (a, b) in self._state.items())

    def results_at(self, t: Tensor, *, moved_by: float = 0.0, draw: int = 0) -> tuple[Tensor, ...]:
        """What the module gives there in float64, when inputs and parameters are moved by that share of themselves."""
        if self._state:
            self._put_state(self.state_at(t))
        given = self.inputs_at(t)
        return self.reference.truth(self._args, given, self.seed, moved_by=moved_by, draw=draw, again=True)

    def put_state_back(self) -> None:
        self._put_state([(name, start) for name, (start, _) in self._state.items()])

    def _put_state(self, state: Sequence[tuple[str, Tensor]]) -> None:
        self.reference.subject.write_state([name for name, _ in state], [tensor for _, tensor in state])
        self.reference.forget_double()

    def spread(self, t: Tensor, like: Tensor) -> Tensor:
        return t.reshape(self.shape + (1,) * (like.ndim - len(self.shape)))


def _order(results: Sequence[Tensor]) -> list[int]:
    """Outputs that are not floating first: of these it is sure that they jump."""
    return sorted(range(len(results)), key=lambda i: results[i].is_floating_point())


def _between(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    mixed = torch.lerp(a.double(), b.double(), t.expand(a.shape) if t.ndim else t).to(a.dtype)
    return torch.where(a == b, a, mixed) if bool(torch.isinf(a).any()) else mixed


def _through_inputs(
    way: _Way, free: Sequence[bool], first: Sequence[Tensor], *, output: int, draws: torch.Generator
) -> Moved:
    """Groups that one second draw does not turn are tried with the next."""
    found = way.start
    done: Tensor | None = None
    for end in ENDS:
        drawn = _drawn(way, free, end)
        if done is None:
            way.shape = _shape(way, drawn, first[output], output=output, draws=draws)
            done = torch.zeros(way.shape, dtype=torch.bool, device=first[output].device)
        way.lead_to(_halved(way, drawn, draws) if end == OWN else drawn)
        place, turned, smooth = _place(way, output, draws)
        new = turned & ~done
        found = tuple(
            f if a is b else torch.where(way.spread(new, a), m, f)
            for a, b, m, f in zip(way.start, way.end, way.inputs_at(place), found, strict=True)
        )
        done |= turned
        if smooth or int(done.sum()) >= min(done.numel(), _PLENTY):
            break
    assert done is not None
    return Moved(found, (), int(done.sum()), done.numel())


def _drawn(way: _Way, free: Sequence[bool], end: str) -> tuple[Tensor, ...]:
    """Another draw of the inputs that are free to move; the others are the same tensors."""
    family = OWN if end == LONE else end
    _, others = way.reference.inputs(way.seed + 1, family)
    if end == LONE:
        others = tuple(_lone(a, way.seed) if f else a for a, f in zip(way.start, free, strict=True))
    return tuple(b if f and a.shape == b.shape else a for a, b, f in zip(way.start, others, free, strict=True))


def _lone(tensor: Tensor, seed: int) -> Tensor:
    """One element of each row becomes far larger than all others."""
    source = torch.Generator(device=tensor.device).manual_seed(seed)
    length = tensor.shape[-1] if tensor.ndim else 1
    shape = (*tensor.shape[:-1], 1) if tensor.ndim else ()
    at = torch.randint(max(length, 1), shape, generator=source, device=tensor.device)
    most = 4096.0 if tensor.dtype == torch.float16 else 2.0**20
    top = torch.where(torch.isfinite(tensor), tensor, 0.0).abs().amax() * most
    alone = torch.zeros_like(tensor, dtype=torch.bool)
    alone = alone.scatter(-1, at, torch.ones_like(at, dtype=torch.bool)) if tensor.ndim else ~alone
    return torch.where(alone, top.clamp(max=torch.finfo(tensor.dtype).max / 2).to(tensor.dtype), tensor)


def _halved(way: _Way, end: Sequence[Tensor], draws: torch.Generator) -> tuple[Tensor, ...]:
    """Half of the places of the second draw where a group has many: what lies on the way looks more like a draw."""
    depth = len(way.shape)
    chosen = (torch.rand(a.shape, generator=draws, device=a.device) < 0.5 for a in way.start)
    return tuple(
        b if a is b or a.ndim == depth else torch.where(c, b, a) for a, b, c in zip(way.start, end, chosen, strict=True)
    )


def _shape(way: _Way, end: Sequence[Tensor], first: Tensor, *, output: int, draws: torch.Generator) -> tuple[int, ...]:
    """The most leading dimensions along which results do not depend on one another: where of some groups the second
    draw stands among the first, these alone are what it gives."""
    way.lead_to(end)
    moving = [a.shape for a, b in zip(way.start, end, strict=True) if a is not b]
    second = _read(way.results_at(way.everywhere(1.0))[output])
    for depth in range(first.ndim, 0, -1):
        shape = first.shape[:depth]
        if math.prod(shape) < 2 or any(s[:depth] != shape for s in moving):
            continue
        way.shape = tuple(shape)
        mask = torch.rand(way.shape, generator=draws, device=first.device) < 0.5
        mixed = _read(way.results_at(mask.double())[output])
        wanted = torch.where(way.spread(mask, first), second, _read(first))
        if bool(((mixed - wanted).abs() <= _SAME * _typical(wanted)).all()):
            return way.shape
    way.shape = ()
    return ()


def _place(way: _Way, output: int, draws: torch.Generator) -> tuple[Tensor, Tensor, bool]:
    """Where on the way each group lies beside a turn, on a side by chance; which groups do; and whether all that
    changes on the way does so without a jump."""

    def at(t: Tensor, moved_by: float = 0.0, draw: int = 0) -> Tensor:
        return _read(way.results_at(t, moved_by=moved_by, draw=draw)[output]).reshape(*way.shape, -1)

    low, high = way.everywhere(0.0), way.everywhere(1.0)
    at_low, at_high = at(low), at(high)
    weights = 0.5 + torch.rand(at_low.shape, generator=draws, device=low.device, dtype=torch.float64)
    whole = _change(at_low, at_high, weights)
    if not bool((whole > 0).any()):
        return low, whole > 0, False
    for halving in range(_HALVINGS):
        if halving == _SOON and not bool((_change(at_low, at_high, weights) > _SOON_LEFT * whole).any()):
            return low, torch.zeros_like(whole, dtype=torch.bool), True
        middle = (low + high) / 2
        at_middle = at(middle)
        left = _change(at_low, at_middle, weights) >= _change(at_middle, at_high, weights)
        low, high = torch.where(left, low, middle), torch.where(left, middle, high)
        at_low = torch.where(left.unsqueeze(-1), at_low, at_middle)
        at_high = torch.where(left.unsqueeze(-1), at_middle, at_high)
    jumps = _change(at_low, at_high, weights) > _LEAST_JUMP * whole
    up = torch.rand(low.shape, generator=draws, device=low.device, dtype=torch.float64) < 0.5
    here, there = (torch.where(up.unsqueeze(-1), *pair) for pair in ((at_high, at_low), (at_low, at_high)))
    edge, sign = torch.where(up, high, low), torch.where(up, 1.0, -1.0)
    turned, before, place = torch.zeros_like(jumps), torch.zeros_like(jumps), torch.zeros_like(low)
    for step in _STEPS:
        tried = (edge + sign * step).clamp(0.0, 1.0)
        sure = jumps & ~turned
        for draw in range(_JITTERS):
            got = at(tried, moved_by=_JITTER, draw=draw)
            sure &= (((got - here).abs() < (got - there).abs()) | (here == there)).all(-1)
            if not bool(sure.any()):
                break
        chosen, before = sure & before, sure
        place, turned = torch.where(chosen, tried, place), turned | chosen
        if bool((turned | ~jumps).all()):
            break
    return place, turned, not bool(jumps.any())


def _change(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """The largest change of a group; by the weights it is by chance which of its elements is followed."""
    return ((a - b).abs() * weights).amax(-1)


def _read(result: Tensor) -> Tensor:
    return result.double().nan_to_num(nan=2 * _LARGEST, posinf=_LARGEST, neginf=-_LARGEST)


def _typical(tensor: Tensor) -> float:
    ordinary = tensor[tensor.abs() < _LARGEST]
    return float(ordinary.square().mean().sqrt()) if ordinary.numel() else 1.0
