"""The ensemble: a module run in float64 some twenty times, with the roundings of its own arithmetic put in at random.

How an element of an output spreads over the runs is its *budget*: what an implementation that rounds as the module does
may be off by there. The runs come in pairs with the same errors to opposite sides, `WIDE` times as large as roundings
are. Where an output moves smoothly both of a pair show by how much (sigma). Where it jumps (a comparison, a rounding,
a choice) one of the two stays on the truth's side, and the other shows what lies beyond: so what no run turns lies
safely away from any jump. Single runs with errors as large as roundings are count how many elements turn.

All runs derive their numbers from one seed, so the same question gets the same answer, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..candidate_process.load import CodeRaised
from . import indices
from .eight_bits import computable, ordered
from .masks import Leaking, Unmasked
from .noise import TF32, Classes, Noise, Planner, Recorder, Rounding
from .reference import Reference
from .steps import Pushed, RecordedStep, Spreading, are_moved

_LARGE = 1e4  # of every floating type that is no byte
WIDE = 8.0
PAIRS = 8
COUNTED = 8
_WIDEST_FIRST = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_LOG_OF_NORMAL = 0.635  # of |x|, x normal: minus the mean of the logarithm
_MOST_OVER_USUAL = 4.0
_BLOCK = 1 << 24
_UNSEEN = 1e-37  # kernels may flush what is smaller


@dataclass(slots=True)
class ElementSpread:
    """Of one real output, flat: the sum over pairs of the squares, and of the logarithms, of by how much the nearer of
    the two is off; the lowest and the highest; and whether any run gave no number, or one where the truth is none."""

    squares: Tensor
    logs: Tensor
    low: Tensor
    high: Tensor
    strange: Tensor

    @staticmethod
    def of(truth: Tensor) -> ElementSpread:
        like = flat(truth)
        squares, logs, low, high = (torch.zeros(like.shape, dtype=torch.float64, device=like.device) for _ in range(4))
        return ElementSpread(squares, logs, low, high, torch.zeros(like.shape, dtype=torch.bool, device=like.device))

    def add(self, truth: Tensor, plus: Tensor, minus: Tensor) -> None:
        """Take in a pair of runs, part by part, since copies of the whole may not fit."""
        whole = flat(truth), flat(plus), flat(minus)
        for start in range(0, whole[0].numel(), _BLOCK):
            self._add(slice(start, start + _BLOCK), *(t[start : start + _BLOCK] for t in whole))

    def _add(self, at: slice, base: Tensor, plus: Tensor, minus: Tensor) -> None:
        offs = []
        for run in (plus, minus):
            offs.append(self._reach(at, base, run))
        nearer = torch.minimum(offs[0].abs(), offs[1].abs())
        self.squares[at] += nearer.square()
        self.logs[at] += nearer.clamp(min=_UNSEEN).log()

    def reach(self, truth: Tensor, run: Tensor) -> None:
        """Take in a run that says where elements may lie, and nothing of how far they spread."""
        base, flat_run = flat(truth), flat(run)
        for start in range(0, base.numel(), _BLOCK):
            at = slice(start, start + _BLOCK)
            self._reach(at, base[at], flat_run[at])

    def _reach(self, at: slice, base: Tensor, run: Tensor) -> Tensor:
        """Take in where a run puts this part, and say how far that is off."""
        self.strange[at] |= torch.isfinite(base) ^ torch.isfinite(run)
        off = run - base
        off = torch.where(torch.isfinite(off), off, 0.0)
        self.low[at] = torch.minimum(self.low[at], off)
        self.high[at] = torch.maximum(self.high[at], off)
        return off

    def sigma(self) -> Tensor:
        """How far roundings move each element, jumps apart."""
        usual = (self.logs / PAIRS + _LOG_OF_NORMAL).exp()
        return torch.minimum((self.squares / PAIRS).sqrt(), _MOST_OVER_USUAL * usual) / WIDE


@dataclass(slots=True)
class EnsembleFlips:
    """Of one output of whole numbers, booleans or floats of eight bits, flat and in their order: the least and the
    greatest that a wide run gave."""

    low: Tensor
    high: Tensor

    def add(self, run: Tensor) -> None:
        torch.minimum(self.low, ordered(run), out=self.low)
        torch.maximum(self.high, ordered(run), out=self.high)


@dataclass(slots=True, kw_only=True)
class Budget:
    """What the runs gave, by output. `truths`: the run without errors. `turned`: of each single run how many elements
    are others than the truth's (of floats: lie beyond what smooth roundings explain). `blank`, flat: where the module
    gives NaN for want of anything that is not masked, so that the truth stands for a module that gives noughts;
    `leaks`: where NaN is as right as a number, since an infinity or NaN among the inputs leads there; `of_nan`: where
    whole numbers come of NaN, and are open."""

    truths: tuple[Tensor, ...]
    spreads: dict[int, ElementSpread] = field(default_factory=dict)
    turns: dict[int, EnsembleFlips] = field(default_factory=dict)
    turned: dict[int, list[int]] = field(default_factory=dict)
    blank: dict[int, Tensor] = field(default_factory=dict)
    leaks: dict[int, Tensor] = field(default_factory=dict)
    of_nan: dict[int, Tensor] = field(default_factory=dict)
    sigmas: dict[int, Tensor] = field(default_factory=dict)

    def open_to(self, output: int) -> Tensor:
        """Which elements roundings may turn, as booleans of the output's shape: all others are certain."""
        truth = self.truths[output]
        if output in self.turns:
            found = self.turns[output]
            return (found.low != found.high).view(truth.shape)
        spread = self.spreads[output]
        return jumps(spread.high - spread.low, self.sigmas[output], flat(truth)) | spread.strange


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call of the module: what it is run on, and the seed of all errors. `least`: how far the user lets everything
    be rounded, relative. `limit_s`: what all runs may take on a nominal machine (judge.reference_process.effort)."""

    args: str
    inputs: Sequence[Tensor]
    seed: int
    least: float = 0.0
    limit_s: float = math.inf


class Ensemble:
    """Runs of a reference on one set of inputs."""

    def __init__(self, reference: Reference, question: Question) -> None:
        self._reference = reference
        self._question = question
        self._classes = classes_of(reference, question)
        self._always: tuple[TorchDispatchMode, ...] = ()
        planner, steps = Planner(self._classes), RecordedStep()
        self.truths = self._run(planner, steps)
        self._require_time(planner.effort.seconds())
        self._margins = steps.margins
        self._plan: Sequence[Rounding] = planner.plan
        self._blank = self._unmask()

    def _unmask(self) -> dict[int, Tensor]:
        """Run with noughts in the place of what is masked as a whole, where that takes NaN away, and say where it
        does."""
        real = {i: computable(t) for i, t in enumerate(self.truths) if t.is_floating_point()}
        real = {i: t for i, t in real.items() if bool(t.isnan().any())}
        if not real:
            return {}
        steps = RecordedStep()
        unmasked = self._run(Unmasked(), steps)
        found = {i: (t.isnan() & torch.isfinite(computable(unmasked[i]))).reshape(-1) for i, t in real.items()}
        if not any(bool(f.any()) for f in found.values()):
            return {}
        self._always, self.truths, self._margins = (Unmasked(),), unmasked, steps.margins
        return found

    def _leaks(self) -> dict[int, Tensor]:
        """Where what is no number among the inputs may come through a mask, by real output, flat."""
        if not any(
            t.is_floating_point() and not bool(torch.isfinite(computable(t)).all()) for t in self._question.inputs
        ):
            return {}
        runs = enumerate(zip(self.truths, self._run(Leaking()), strict=True))
        real = ((i, computable(t), computable(run)) for i, (t, run) in runs if t.is_floating_point())
        return {i: (t.isinf() | run.isnan()).reshape(-1) for i, t, run in real}

    def _of_nan(self) -> dict[int, Tensor]:
        """Where a whole number hangs on a NaN among the inputs, by output, flat: it is another one when a
        large number of either sign stands there."""
        whole = [not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool) for t in self.truths]
        exact = {i: t.reshape(-1) for i, t in enumerate(self.truths) if whole[i]}
        nan = [t.is_floating_point() and bool(computable(t).isnan().any()) for t in self._question.inputs]
        if not exact or not any(nan):
            return {}
        found = {i: torch.zeros_like(t, dtype=torch.bool) for i, t in exact.items()}
        for most in (_LARGE, -_LARGE):
            filled = [
                torch.where(computable(t).isnan(), most, computable(t)).to(t.dtype) if n else t
                for t, n in zip(self._question.inputs, nan, strict=True)
            ]
            run = self._run(inputs=filled)
            for i, truth in exact.items():
                if run[i].shape == self.truths[i].shape:
                    found[i] |= run[i].reshape(-1) != truth
        return found

    def _run(self, *under: TorchDispatchMode, inputs: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        asked = self._question
        given = asked.inputs if inputs is None else inputs
        return self._reference.double.truth(asked.args, given, asked.seed, under=(*self._always, *under))

    def run(self, number: int, scale: float, *watches: TorchDispatchMode) -> tuple[Tensor, ...]:
        """One run with errors of this scale, all outputs; equal numbers give equal errors."""
        return self._run(
            Noise(self._plan, self._classes, scale=scale, seed=_mixed(self._question.seed, number)), *watches
        )

    def choice(self, number: int, scale: float, size: int) -> Sequence[indices.IndexChoice]:
        """All choices of so many indices in one run."""
        watch = indices.Watch(size)
        self.run(number, scale, watch)
        return watch.choices

    def chosen(self, truth: Tensor) -> tuple[indices.IndexChoice | None, int]:
        """The choice that gave an output of indices, and its number; None where none did."""
        watch = indices.Watch(truth.numel())
        self._run(watch)
        number = indices.found_in(watch.choices, truth)
        return (None, -1) if number is None else (watch.choices[number], number)

    def budget(self) -> Budget:
        """All that the runs say of all outputs."""
        found = Budget(truths=self.truths, blank=self._blank, leaks=self._leaks(), of_nan=self._of_nan())
        for i, truth in enumerate(self.truths):
            if (truth.is_floating_point() or truth.is_complex()) and truth.itemsize > 1:
                found.spreads[i] = ElementSpread.of(truth)
            else:
                found.turns[i] = EnsembleFlips(ordered(truth).clone(), ordered(truth).clone())
        for pair in range(PAIRS):
            plus, minus = (
                self.run(pair, side * WIDE, Spreading(self._margins, second=side < 0)) for side in (1.0, -1.0)
            )
            for i, truth in enumerate(self.truths):
                if plus[i].shape != truth.shape or minus[i].shape != truth.shape:
                    continue
                if i in found.spreads:
                    found.spreads[i].add(truth, plus[i], minus[i])
                else:
                    found.turns[i].add(plus[i])
                    found.turns[i].add(minus[i])
        self._push(found)
        found.sigmas = {i: spread.sigma() for i, spread in found.spreads.items()}
        found.turned = {i: [0] * COUNTED for i in range(len(self.truths))}
        if any(bool(found.open_to(i).any()) for i in range(len(self.truths))):
            self._count(found)
        return found

    def _push(self, found: Budget) -> None:
        """See where results lie beyond steps that no run has turned, though errors of that size may."""
        for side in (1, -1) if are_moved(self._margins) else ():
            runs = self._run(Pushed(self._margins, side=side, pairs=PAIRS))
            for i, (truth, run) in enumerate(zip(self.truths, runs, strict=True)):
                if run.shape == truth.shape:
                    found.spreads[i].reach(truth, run) if i in found.spreads else found.turns[i].add(run)
        self._margins = []

    def _require_time(self, run_s: float) -> None:
        """Give up where all runs would take too long."""
        whole_s = run_s * (2 * PAIRS + COUNTED + 2)
        if whole_s > self._question.limit_s:
            raise CodeRaised("no_truth", f"the runs for the budget of each element would take {whole_s:.0f} s")

    def _count(self, found: Budget) -> None:
        for number in range(COUNTED):
            run = self.run(PAIRS + number, 1.0)
            for i, truth in enumerate(self.truths):
                if run[i].shape != truth.shape:
                    continue
                if i in found.turns:
                    off = ordered(run[i]) != ordered(truth)
                else:
                    base = flat(truth)
                    by = (flat(run[i]) - base).abs().nan_to_num(nan=math.inf)
                    by = torch.where(torch.isfinite(base), by, 0.0)
                    off = jumps(by, found.sigmas[i], base)
                found.turned[i][number] = int(off.sum())


def jumps(by: Tensor, sigma: Tensor, truth: Tensor) -> Tensor:
    """Where a difference is none that smooth roundings make."""
    return by > 8 * WIDE * sigma + 2.0**-40 * truth.abs().nan_to_num(posinf=0.0) + _UNSEEN


def classes_of(reference: Reference, question: Question) -> Classes:
    """What the module computes in, from a run of its own."""
    recorder = Recorder()
    with recorder:
        reference.double.run_copy(question.args, question.inputs, question.seed)
    dtypes = [*reference.double.floats(), *(t.dtype for t in question.inputs if t.is_floating_point())]
    base = next((d for d in _WIDEST_FIRST if d in dtypes), torch.float32)
    on_gpu = any(t.is_cuda for t in question.inputs)
    matrices, convolutions = (
        TF32 if on_gpu and backend.allow_tf32 else 0.0 for backend in (torch.backends.cuda.matmul, torch.backends.cudnn)
    )
    return Classes(
        base=base, given=recorder.given, products=matrices, convolutions=convolutions, least=question.least
    )  # fmt: skip


def _mixed(seed: int, number: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 1) % (1 << 63)


def flat(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1).double()
