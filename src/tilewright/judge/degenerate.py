"""Degenerate solutions, carried out: results got with less work than the module does, in the place where a candidate's
would lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..facts.audit import Kind
from .client import Cell, CellFault
from .memory.case_memory import CaseMemory
from .memory.sameness import same_bits
from .wire import messages as wire

PLACE = 0  # of results, in the case memory
_LARGE_BYTES = 1 << 30  # of results: from here on none is kept in the cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to degenerate_solution. `fill` leaves the result in PLACE; False where that is not possible. `output` of
    -1: all outputs; else the others are the module's own."""

    kind: Kind
    name: str
    fill: Callable[[], bool]
    output: int = -1
    heavy: bool = False


class DegenerateSolver:
    """The ways to degenerate_solution one case. The room holds the inputs in pool set 0, others in set 1, the state,
    the truth."""

    def __init__(self, memory: CaseMemory, reference: Cell, *, seed: int) -> None:
        self._memory, self._reference, self._seed = memory, reference, seed
        self._large = sum(memory.poison_bytes()) > _LARGE_BYTES
        self.operations = self._listed()

    def ways(self) -> Iterator[Way]:
        """Cheapest first: what needs no call of the module, then what does."""
        yield from self._without_calls()
        yield Way(kind="previous", name="", fill=lambda: self._call(self._memory.sets.inputs_at(1)))
        yield from self._inputs()
        yield from self._operations()
        described = self._memory.described
        for name in (s.name for s in described.state if s.name not in described.mutated_state):
            yield Way(kind="state", name=name, fill=partial(self._perturbed, name))

    # ---- without the module

    def _without_calls(self) -> Iterator[Way]:
        several = len(self._memory.truths.own()) > 1
        for output in (-1, *range(len(self._memory.truths.own()))) if several else (-1,):
            name = f"output {output}" if output >= 0 else ""
            for kind, make in _MAKERS.items():
                yield Way(kind=kind, name=name, fill=partial(self._fill, make, output), output=output)
        for output in range(len(self._memory.truths.own())):
            for number in range(len(self._memory.sets.inputs(0))):
                name = f"input {number}" + (f" for output {output}" if several else "")
                fill = partial(self._copy, number, output)
                yield Way(kind="copy", name=name, fill=fill, output=output if several else -1)

    def _fill(self, make: Callable[[Tensor], Tensor | None], output: int) -> bool:
        for i, (place, own) in enumerate(zip(self._memory.results(PLACE), self._memory.truths.own(), strict=True)):
            made = make(own) if output in (-1, i) else own
            if made is None:
                return False
            place.copy_(made)
        return True

    def _copy(self, number: int, output: int) -> bool:
        source, own = self._memory.sets.inputs(0)[number], self._memory.truths.own()[output]
        if source.dtype != own.dtype or source.numel() < 2 or not _stretches(source, own):
            return False
        return self._fill(lambda _: source, output)

    # ---- with the module

    def _call(self, inputs: tuple[wire.TensorRef, ...]) -> bool:
        request = wire.CallRequest(
            tag=0, args=self._memory.described.args, inputs=inputs, poison_bytes=(), seed=self._seed
        )  # fmt: skip
        return self._ask(request)

    def _ask(self, request: wire.CallRequest | wire.Ablate) -> bool:
        """Have the result of a call in PLACE; False where the module raised, or gave other shapes."""
        reference, described = self._reference, self._memory.described
        try:
            called = reference.ask(request, wire.Called, limit_s=self._memory.limits.call_s)
            if [o.spec.shape for o in called.outputs] != [o.spec.shape for o in described.outputs]:
                return False
            reference.do(wire.StoreRequest(tag=0, refs=self._memory.result_refs(PLACE)))
        except CellFault:
            if not reference.alive:
                raise
            return False
        finally:
            self._tidy()
        return True

    def _tidy(self) -> None:
        """Take back what a call moved, and large memory."""
        if self._reference.alive and self._large:
            self._reference.do(wire.Drop())
        if self._reference.alive and self._memory.described.mutated_state:
            self._memory.state.give()

    def _inputs(self) -> Iterator[Way]:
        """Each input drawn anew, where there are others beside it and the seed decides over it."""
        mine, others = self._memory.sets.inputs_at(0), self._memory.sets.inputs_at(1)
        if len(mine) < 2:
            return
        for i, (a, b) in enumerate(zip(self._memory.sets.inputs(0), self._memory.sets.inputs(1), strict=True)):
            if not same_bits(a, b):
                mixed = (*mine[:i], others[i], *mine[i + 1 :])
                yield Way(kind="input", name=f"input {i}", fill=partial(self._call, mixed))

    def _perturbed(self, name: str) -> bool:
        moved = self._reference.ask(wire.Perturb(name=name, seed=self._seed), wire.Perturbed, limit_s=60.0).moved
        try:
            return moved and self._call(self._memory.sets.inputs_at(0))
        finally:
            if self._reference.alive:
                self._memory.state.give()

    def _listed(self) -> tuple[wire.Operation, ...]:
        request = wire.ListOperations(
            args=self._memory.described.args, inputs=self._memory.sets.inputs_at(0), seed=self._seed
        )  # fmt: skip
        found = self._reference.ask(request, wire.OperationList, limit_s=self._memory.limits.call_s).operations
        self._tidy()
        return found

    def _operations(self) -> Iterator[Way]:
        for number, operation in enumerate(self.operations):
            for way in operation.ways:
                request = wire.Ablate(
                    tag=0, args=self._memory.described.args, inputs=self._memory.sets.inputs_at(0), seed=self._seed,
                    operation=number, way=way,
                )  # fmt: skip
                kind: Kind = "cut" if way == "cut" else "skip"
                name = f"{operation.name} ({number})"
                yield Way(kind=kind, name=name, fill=partial(self._ask, request), heavy=operation.heavy)


def _zeros(own: Tensor) -> Tensor:
    return torch.zeros((), dtype=own.dtype, device=own.device).expand(own.shape)


def _constant(own: Tensor) -> Tensor | None:
    """The mean; of exact types the commonest value. One element alone is no constant tensor."""
    if own.numel() < 2:
        return None
    if own.is_complex():
        return own.mean().expand(own.shape)
    if own.is_floating_point():
        return own.nanmean(dtype=torch.float64).to(own.dtype).expand(own.shape)
    return commonest(own)[0].expand(own.shape)


def _rows(own: Tensor) -> Tensor | None:
    if not own.is_floating_point() or own.ndim < 2 or own.shape[-1] < 2:
        return None
    return own.mean(-1, keepdim=True, dtype=torch.float64).to(own.dtype).expand(own.shape)


def _columns(own: Tensor) -> Tensor | None:
    if not own.is_floating_point() or own.ndim < 2 or own.shape[0] < 2:
        return None
    return own.mean(0, keepdim=True, dtype=torch.float64).to(own.dtype).expand(own.shape)


_MAKERS: dict[Kind, Callable[[Tensor], Tensor | None]] = {
    "zeros": _zeros, "constant": _constant, "rows": _rows, "columns": _columns,
}  # fmt: skip


def commonest(tensor: Tensor) -> tuple[Tensor, float]:
    """The commonest value of a tensor and the share of elements that hold it, by a sample of a million at most."""
    flat = tensor.reshape(-1)
    flat = flat[:: max(1, flat.numel() >> 20)]
    found, counts = torch.unique(flat, return_counts=True)
    top = int(counts.argmax())
    return found[top], float(counts[top]) / flat.numel() if flat.numel() > 1 else 0.0


def _stretches(source: Tensor, own: Tensor) -> bool:
    """Whether the source has the output's shape, or broadcasts to it."""
    try:
        return tuple(torch.broadcast_shapes(source.shape, own.shape)) == tuple(own.shape)
    except RuntimeError:
        return False
