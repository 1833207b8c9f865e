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

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..candidate_process.state import named_state, write_state
from .families import OWN, perturb_state
from .jitter import Jitter
from .reference import Reference

LONE = "lone"
ENDS = (OWN, LONE, "wide", "large", "zeros")  # what the second draw may be: the first that turns something counts
_HALVINGS = (24, 36, 48)  # more where a turn is still certain at the least step: the way is long beside the row there
_SOON, _SOON_LEFT = 12, 2.0**-9  # after so many, this share of the change is left where something jumps
_MOST_TIMES = 4  # of the state: what one redraw does not turn some may
# Distances from the turn, as shares of the way: the second counts at which nothing turns back.
_COARSEST, _FACTOR = 7, 2  # the largest, and from one to the next, as powers of two
_NEAR, _FAR = 2, 5  # how many of them in a row are certain: a lower class shows near by, a constant beyond a long sum's
_PLENTY = 64  # groups beside turns, after which no further second draw is tried
_JITTER = 2.0**-20  # sixteen roundings of fp32
_JITTERS = 2  # each to both sides: what is no farther from the turn than they reach is turned back by one of the two
_LEAST_JUMP = 2.0**-16  # of the change over the whole way: what shrinks with the distance is no jump
_SAME = 1e-6  # of the typical size: what float64 may make of other rows
_LARGEST = 1e30  # stands for infinity


@dataclass(frozen=True, slots=True)
class MovedRows:
    """What to call the module on. `state`, by name, is empty unless the way led through the state. `turned`: how many
    of the `groups` lie beside a turn."""

    inputs: tuple[Tensor, ...]
    state: tuple[tuple[str, Tensor], ...]
    turned: int
    groups: int


def approach(
    reference: Reference, args: str, inputs: Sequence[Tensor], *, seed: int, number: int = 0, state: bool = False
) -> MovedRows:
    """Inputs beside a turn, one output after the other by `number`; `inputs` are an own draw. Where no input can be
    moved and `state` says that it may be, parameters are; the module's own stay as they are, though."""
    way = _Way(reference, args, inputs, seed=seed)
    first = way.results_at(way.everywhere(0.0))
    output = _order(first)[number % len(first)]
    if first[output].numel() == 0 or first[output].is_complex():
        return MovedRows(tuple(inputs), (), 0, 1)
    free = tuple(t.is_floating_point() and t.element_size() > 1 for t in inputs)
    free = tuple(f and not s.keeps_own for f, s in zip(free, reference.known.structures, strict=False)) or free
    draws = torch.Generator(device=first[output].device).manual_seed(seed)
    if any(free):
        return _through_inputs(way, free, first, output=output, draws=draws)
    if not state or not way.lead_through_state(seed + 1, times=1 + number % _MOST_TIMES):
        return MovedRows(tuple(inputs), (), 0, 1)
    try:
        place, turned, _ = _place(way, output, draws)
        moved = way.state_at(place) if bool(turned) else ()
    finally:
        way.put_state_back()
    return MovedRows(tuple(inputs), moved, int(turned), 1)


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

    def results_at(self, t: Tensor, *, moved_by: Jitter | None = None) -> tuple[Tensor, ...]:
        """What the module gives there in float64, when inputs and parameters are moved so."""
        if self._state:
            self._put_state(self.state_at(t))
        given = self.inputs_at(t)
        return self.reference.double.truth(self._args, given, self.seed, moved_by=moved_by, again=True)

    def put_state_back(self) -> None:
        self._put_state([(name, start) for name, (start, _) in self._state.items()])

    def _put_state(self, state: Sequence[tuple[str, Tensor]]) -> None:
        write_state(self.reference.subject.built, [name for name, _ in state], [tensor for _, tensor in state])
        self.reference.double.forget()

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
) -> MovedRows:
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
    return MovedRows(found, (), int(done.sum()), done.numel())


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
    low, high = way.everywhere(0.0), way.everywhere(1.0)
    bracket = _Bracket(way, output, draws, ends=(low, high))
    if not bool((bracket.whole > 0).any()):
        return low, bracket.whole > 0, False
    if not bracket.halve(_SOON):
        return low, torch.zeros_like(low, dtype=torch.bool), True
    up = torch.rand(low.shape, generator=draws, device=low.device, dtype=torch.float64) < 0.5
    for halvings in _HALVINGS:
        bracket.halve(halvings)
        if not bool(bracket.certain(halvings - 1, up).any()):
            break
    place, turned = bracket.beside(up, draws)
    return place, turned, not bool(bracket.jumps().any())


class _Bracket:
    """For each group two places on the way, between which it turns. By random weights it is chance which of its
    elements is followed."""

    def __init__(self, way: _Way, output: int, draws: torch.Generator, *, ends: tuple[Tensor, Tensor]) -> None:
        self._way, self._output, self._done = way, output, 0
        self._low, self._high = ends
        self._at_low, self._at_high = (self._at(t) for t in ends)
        like = self._at_low
        self._weights = 0.5 + torch.rand(like.shape, generator=draws, device=like.device, dtype=torch.float64)
        self.whole = self._change(self._at_low, self._at_high)

    def _at(self, t: Tensor, moved_by: Jitter | None = None) -> Tensor:
        results = self._way.results_at(t, moved_by=moved_by)
        return _read(results[self._output]).reshape(*self._way.shape, -1)

    def _change(self, a: Tensor, b: Tensor) -> Tensor:
        """The largest change of a group."""
        return ((a - b).abs() * self._weights).amax(-1)

    def halve(self, times: int) -> bool:
        """Halve the distance until that was done so many times; whether much of the change is left anywhere."""
        for _ in range(self._done, times):
            middle = (self._low + self._high) / 2
            at_middle = self._at(middle)
            left = self._change(self._at_low, at_middle) >= self._change(at_middle, self._at_high)
            self._low, self._high = torch.where(left, self._low, middle), torch.where(left, middle, self._high)
            self._at_low = torch.where(left.unsqueeze(-1), self._at_low, at_middle)
            self._at_high = torch.where(left.unsqueeze(-1), at_middle, self._at_high)
        self._done = max(times, self._done)
        return bool((self._change(self._at_low, self._at_high) > _SOON_LEFT * self.whole).any())

    def jumps(self) -> Tensor:
        """Which groups do not only change, but jump."""
        return self._change(self._at_low, self._at_high) > _LEAST_JUMP * self.whole

    def certain(self, exponent: int, up: Tensor) -> Tensor:
        """Which groups jump, and are certain at 2**-exponent of the way from there, on the upper side or the lower:
        inputs and parameters moved by some of their last bits do not turn them back."""
        lower, upper = self._at_low, self._at_high
        here, there = (torch.where(up.unsqueeze(-1), *pair) for pair in ((upper, lower), (lower, upper)))
        tried, sure = self._stepped(exponent, up), self.jumps()
        for draw, amount in itertools.product(range(_JITTERS), (_JITTER, -_JITTER)):
            got = self._at(tried, Jitter(amount=amount, draw=exponent * _JITTERS + draw, floor=0.0))
            sure &= (((got - here).abs() < (got - there).abs()) | (here == there)).all(-1)
            if not bool(sure.any()):
                break
        return sure

    def beside(self, up: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """The places at the second of all distances at which groups are certain, of a quarter at the fifth; and which
        groups have one."""
        jumps = self.jumps()
        far = torch.rand(jumps.shape, generator=draws, device=jumps.device) < 0.25
        wanted = torch.where(far, _FAR, _NEAR)
        in_a_row, place = torch.zeros_like(wanted), torch.zeros_like(self._low)
        done, turned = ~jumps, torch.zeros_like(jumps)
        for exponent in range(self._done - 1, _COARSEST - 1, -_FACTOR):
            in_a_row = torch.where(self.certain(exponent, up), in_a_row + 1, 0)
            chosen = ~done & ((in_a_row == wanted) | ((in_a_row == _NEAR) & ~turned))
            place, turned = torch.where(chosen, self._stepped(exponent, up), place), turned | chosen
            done = done | (in_a_row >= wanted)
            if bool(done.all()):
                break
        return place, turned

    def _stepped(self, exponent: int, up: Tensor) -> Tensor:
        edge, sign = torch.where(up, self._high, self._low), torch.where(up, 1.0, -1.0)
        return (edge + sign * 2.0**-exponent).clamp(0.0, 1.0)


def _read(result: Tensor) -> Tensor:
    return result.double().nan_to_num(nan=2 * _LARGEST, posinf=_LARGEST, neginf=-_LARGEST)


def _typical(tensor: Tensor) -> float:
    ordinary = tensor[tensor.abs() < _LARGEST]
    return float(ordinary.square().mean().sqrt()) if ordinary.numel() else 1.0
