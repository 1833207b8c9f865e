"""A Room: the arenas of one case, and who may see what lies in them.

The *private* arena is mapped by the reference's cell alone. It holds the pool (pristine sets of inputs), the state,
what the reference returned and the float64 truth. The *shared* arena is mapped by a candidate's cell (and by
baselines while they are timed): slots, into which the judge copies pool sets, and places for state and results. So
the judge decides which contents stand at which address, and sees for itself whether a candidate changed its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ...facts.problem import TensorSpec
from ..client import Cell, CellFault, Limits
from ..wire import messages as wire
from .arena import ALIGNMENT, Arena, Layout, bytes_of
from .images import Image, paged
from .mapped import contiguous, exchange
from .sameness import one_thread as one_thread
from .sameness import same_bits as same_bits

Refs = tuple[wire.TensorRef, ...]
T = TypeVar("T")
_APPEAL, _SLOWER = 2.0, 4.0  # times what a call may take: some thirty in float64; and of a slow or busy machine
_APPROACH = 8.0  # and to bring inputs beside turns is some hundred


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomSizes:
    """How many pool sets, slots and places for results a room has. `tight`: implementations can't all keep their cached
    memory."""

    pool: int
    slots: int
    results: int
    tight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthFacts:
    """`exact`: the truth was computed in float64; else it is the reference's own result, for the reason given.
    `no_slack`: why it is not known how far gradients move with the last bits of the inputs, where it is not."""

    exact: bool
    why_not: str = ""
    no_slack: str = ""


def _as_f64(spec: TensorSpec) -> TensorSpec:
    if spec.dtype.startswith("c"):
        return contiguous(spec.shape, "c128")
    is_float = spec.dtype in ("f64", "f32", "f16", "bf16") or spec.dtype.startswith("float")
    return contiguous(spec.shape, "f64" if is_float else spec.dtype)


class Room:
    """See the module's docstring. Pool sets, slots and places for results are numbered from 0."""

    def __init__(
        self, described: wire.Described, *, device: str, reference: Cell, limits: Limits, sizes: RoomSizes
    ) -> None:
        self.described = described
        self.device = device
        self.limits = limits
        self.pool, self.slots, self.places = sizes.pool, sizes.slots, sizes.results
        self.tight = sizes.tight
        self._reference = reference
        self._guests: list[Cell] = []
        inputs = Layout(described.inputs)
        self.output_specs = tuple(contiguous(o.spec.shape, o.spec.dtype) for o in described.outputs)
        outputs = Layout(self.output_specs)
        truths = Layout(tuple(_as_f64(s) for s in self.output_specs))
        state = Layout(tuple(contiguous(s.spec.shape, s.spec.dtype) for s in described.state))
        init = Layout(tuple(contiguous(s.shape, s.dtype) for s in described.init_tensors))
        names = [s.name for s in described.state]
        self.state_names = tuple(names)
        self.attributes = described.attributes  # plain values that calls move, as `take_state` found them
        self.left_attributes = self.attributes  # as the reference's last call left them
        places = [names.index(n) for n in described.mutated_state]
        moved = Layout(tuple(state.specs[i] for i in places))
        self._input_bytes = inputs.size_bytes
        base = 0
        self._pool: list[Refs] = []
        for _ in range(sizes.pool):
            self._pool.append(inputs.at("private", base))
            base += inputs.size_bytes
        self._own, base = outputs.at("private", base), base + outputs.size_bytes
        self._truth, base = truths.at("private", base), base + truths.size_bytes
        first = len(described.outputs) - len(described.gradients.names)  # what follows is gradients
        slack = Layout(truths.specs[first:])
        self._slack, base = slack.at("private", base), base + slack.size_bytes
        self._state, base = state.at("private", base), base + state.size_bytes
        self._moved, base = moved.at("private", base), base + moved.size_bytes
        moved_truth = Layout(tuple(_as_f64(s) for s in moved.specs))
        self._moved_truth, base = moved_truth.at("private", base), base + moved_truth.size_bytes
        private_bytes, base = base, 0
        self._slots: list[Refs] = []
        for i in range(sizes.slots):
            base = paged(base) + ALIGNMENT * (i % 3)  # so that slots differ in more than high bits
            self._slots.append(inputs.at("shared", base))
            base += inputs.size_bytes
        base = paged(base)  # pages of slots hold nothing else
        self._results: list[Refs] = []
        for _ in range(sizes.results):
            self._results.append(outputs.at("shared", base))
            base += outputs.size_bytes
        self.shared_state, base = state.at("shared", base), base + state.size_bytes
        self.moved_state = tuple(self.shared_state[i] for i in places)  # what is put back before each timed call
        self.shared_moved, base = moved.at("shared", base), base + moved.size_bytes
        self.shared_init, base = init.at("shared", base), base + init.size_bytes
        self._private = Arena("private", private_bytes, device)
        try:
            self._shared = Arena("shared", base, device)
        except BaseException:
            self._private.close()
            raise
        try:
            reference.map_arena(self._private.message(), self._private.descriptor)
            self.admit(reference)
            if init.specs:
                reference.do(wire.StoreInit(refs=self.shared_init))
        except BaseException:
            self.close()
            raise

    # ---- who is in

    def admit(self, cell: Cell) -> None:
        """Map the shared arena in a cell."""
        cell.map_arena(self._shared.message(), self._shared.descriptor)
        self._guests.append(cell)

    @property
    def guests(self) -> tuple[Cell, ...]:
        """Who is in, the reference among them."""
        return tuple(self._guests)

    def close(self) -> None:
        """Unmap everywhere that still lives, and free."""
        for cell in self._guests:
            self._unmap(cell, "shared")
        self._unmap(self._reference, "private")
        self._guests.clear()
        self._shared.close()
        self._private.close()

    def _unmap(self, cell: Cell, name: str) -> None:
        if cell.alive:
            try:
                cell.do(wire.UnmapArena(name=name))
            except CellFault:
                cell.kill()  # whatever it is about, it must not keep the memory

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- the reference's part

    def draw(self, k: int, *, family: str, seed: int, upstream: str = "normal") -> None:
        """Fill pool set `k`; in training with upstream gradients of the given kind."""
        request = wire.MakeInputs(seed=seed, family=family, upstream=upstream, refs=self._pool[k])
        self._reference.do(request, limit_s=self.limits.call_s)

    def take_state(self) -> None:
        """Copy the reference's state, as it is now, into both arenas."""
        self.attributes = self._read_attributes()
        if self._state:
            self._reference.do(wire.StoreState(names=self.state_names, refs=self._state))
            for private, shared in zip(self._state, self.shared_state, strict=True):
                self._shared.tensor(shared).copy_(self._private.tensor(private))
            self.settle()

    def holds_shared_state(self) -> bool:
        """Whether the state that guests load is still what `take_state` put there."""
        pairs = zip(self._state, self.shared_state, strict=True)
        return all(same_bits(self._private.tensor(mine), self._shared.tensor(theirs)) for mine, theirs in pairs)

    def give_state(self) -> None:
        """Put the reference's state back to what `take_state` found."""
        if self._state or self.attributes:
            request = wire.LoadState(names=self.state_names, refs=self._state, attributes=self.attributes)
            self._reference.do(request)

    def _read_attributes(self) -> tuple[wire.Attribute, ...]:
        if not self.described.attributes:
            return ()
        request = wire.ReadAttributes(names=tuple(a.name for a in self.described.attributes))
        return self._reference.ask(request, wire.Attributes, limit_s=self.limits.call_s).values

    def advance(self, calls: int) -> None:
        """Have the reference count from the start: plain attributes as constructed, and so many calls on pool set 0.
        What tensors these move is put back to what it was."""
        if self.described.attributes:
            self._reference.do(wire.StoreState(names=self.state_names, refs=self._state))
            start = wire.LoadState(names=(), refs=(), attributes=self.described.attributes)
            self._reference.do(start)
            for _ in range(calls):
                call = wire.Call(tag=0, args=self.described.args, inputs=self._pool[0], poison_bytes=(), seed=calls)
                self._reference.ask(call, wire.Called, limit_s=self.limits.call_s)
            self._reference.do(wire.Drop())
            self._reference.do(wire.LoadState(names=self.state_names, refs=self._state))

    def mark_state(self) -> tuple[wire.Mark, ...]:
        return self._reference.ask(wire.MarkState(), wire.Marked, limit_s=self.limits.call_s).marks

    def redraw(self, request: wire.Redraw | wire.RedrawAlike) -> None:
        """Perturb the reference's floating state; what was rearranged is put back before."""
        self._reference.do(request)

    def rearrange(self, seed: int, keys: tuple[str, ...] = ()) -> wire.Rearranged:
        """Rearrange the reference's masks, flags and indices as far as it bears that on pool set 0, which must be
        drawn; `keys`: only those whose marks have these keys."""
        request = wire.Rearrange(seed=seed, args=self.described.args, inputs=self._pool[0], keys=keys)
        return self._reference.ask(request, wire.Rearranged, limit_s=self.limits.call_s)

    def put_back(self) -> None:
        """The reference's masks, flags and indices as they were before."""
        self._reference.do(wire.PutBack())

    def call_reference(self, k: int, *, seed: int) -> None:
        """The reference's own result on pool set `k`; its state is as before afterwards."""
        call = wire.Call(tag=0, args=self.described.args, inputs=self._pool[k], poison_bytes=(), seed=seed)
        self._reference.ask(call, wire.Called, limit_s=self.limits.call_s)
        self._reference.do(wire.Store(tag=0, refs=self._own))
        if self._moved or self.attributes:
            self.left_attributes = self._read_attributes()
            self._reference.do(wire.StoreState(names=self.described.mutated_state, refs=self._moved))
            self.give_state()
        self._reference.do(wire.Drop())

    def run_reference(self, k: int, *, seed: int) -> TruthFacts:
        """The reference's own result and the truth on pool set `k`."""
        self.call_reference(k, seed=seed)
        truth = wire.Truth(
            args=self.described.args, inputs=self._pool[k], outputs=self._truth, seed=seed,
            buffers=self.described.mutated_state, moved=self._moved_truth,
        )  # fmt: skip
        try:
            self._reference.do(truth, limit_s=self.limits.call_s)
        except CellFault as fault:
            if not self._reference.alive:
                raise
            self.doubt_truth()
            return TruthFacts(exact=False, why_not=fault.summary)
        return TruthFacts(exact=True, no_slack=self._find_slack(k, seed))

    def _find_slack(self, k: int, seed: int) -> str:
        """Have the slack of the gradients computed, where there are any; why that failed, or ""."""
        if not self._slack:
            return ""
        request = wire.Slack(
            args=self.described.args, inputs=self._pool[k], own=self._own, truth=self._truth, slack=self._slack,
            seed=seed,
        )  # fmt: skip
        try:
            self._reference.do(request, limit_s=self.limits.call_s)
        except CellFault as fault:
            if not self._reference.alive:
                raise
            self._clear_slack()
            return fault.summary
        return ""

    def _clear_slack(self) -> None:
        for ref in self._slack:
            self._private.tensor(ref).zero_()
        self.settle()

    def appeal(self, k: int, outputs: tuple[int, ...], *, place: int, seed: int, least: float = 0.0) -> wire.Judgement:
        """The verdict on these outputs of `place`, on pool set `k`, by the error budget of each element; without any
        where that can't be had, and why. `least`: how far the user lets everything be rounded, relative."""
        request = wire.Appeal(
            args=self.described.args, inputs=self._pool[k], outputs=outputs, seed=seed, least=least,
            got=tuple(self._results[place][i] for i in outputs), own=tuple(self._own[i] for i in outputs),
            truth=tuple(self._truth[i] for i in outputs),
            limit_s=_APPEAL * self.limits.call_s,
        )  # fmt: skip
        found = self._ask_more(request, wire.Judgement, times=_SLOWER * _APPEAL)
        return wire.Judgement(judged=(), note=found) if isinstance(found, str) else found

    def approach(self, k: int, *, seed: int, number: int, state: bool) -> wire.Approached | None:
        """Move pool set `k`, an own draw, or the reference's state to where results turn; None where that can't be
        had."""
        request = wire.Approach(
            args=self.described.args, inputs=self._pool[k], seed=seed, number=number, state=state,
        )  # fmt: skip
        found = self._ask_more(request, wire.Approached, times=_APPROACH)
        return None if isinstance(found, str) else found

    @property
    def reference_lives(self) -> bool:
        return self._reference.alive

    def _ask_more(self, request: object, kind: type[T], *, times: float = 1.0) -> T | str:
        """The answer, or why there is none."""
        try:
            return self._reference.ask(request, kind, limit_s=times * self.limits.call_s)
        except CellFault as fault:
            if not self._reference.alive or not (fault.by_code or fault.reason == "out_of_memory"):
                raise
            return fault.summary

    def doubt_truth(self) -> None:
        """Let the reference's own result stand as the truth."""
        self._clear_slack()
        for own, truth in zip(self._own + self._moved, self._truth + self._moved_truth, strict=True):
            self._private.tensor(truth).copy_(self._private.tensor(own))
        self.settle()

    # ---- the judge's part

    def settle(self) -> None:
        """What the judge wrote is seen by the other processes from here on."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def place(self, k: int, slot: int) -> None:
        """Copy pool set `k` into a slot, byte by byte."""
        if self._input_bytes:
            source = self._private.bytes_at(self._pool[k][0].offset, self._input_bytes)
            self._shared.bytes_at(self._slots[slot][0].offset, self._input_bytes).copy_(source)
            self.settle()

    def image(self, sets: Sequence[int], first_slot: int) -> Image | None:
        """These pool sets, to be laid over as many slots from the first on; None where there is nothing to lay."""
        if self.device != "cpu" or not self._input_bytes:
            return None
        starts = [self._slots[first_slot + i][0].offset for i in range(len(sets))]
        image = Image(starts[0], starts[-1] + self._input_bytes)
        for k, start in zip(sets, starts, strict=True):
            image.write(start, self._private.bytes_at(self._pool[k][0].offset, self._input_bytes))
        return image

    def inputs(self, k: int) -> tuple[Tensor, ...]:
        """Pool set `k` itself."""
        return tuple(self._private.tensor(r) for r in self._pool[k])

    def swap(self, swaps: Sequence[wire.Swap]) -> None:
        """Carry out between the pool sets what a cell is to do in the slots of their numbers. A timed call follows: a
        second thread would wait for more to do while its clock runs."""
        with one_thread():
            for s in swaps:
                one = self._private.tensor(self._pool[s.slot][s.input])
                other = self._private.tensor(self._pool[s.other][s.input])
                if s.dim >= 0:
                    one, other = one.narrow(s.dim, s.start, s.count), other.narrow(s.dim, s.other_start, s.count)
                exchange(one, other)
        self.settle()

    def changed_input(self, k: int, slot: int, image: Image | None = None) -> int:
        """The first input of the slot, or of the image that lies over it, that is not pool set `k` any more; -1 where
        none is."""
        refs = self._slots[slot]
        shown = [self._shared.tensor(r) for r in refs] if image is None else image.tensors(refs)
        pairs = enumerate(zip(self.inputs(k), shown, strict=True))
        return next((i for i, (mine, theirs) in pairs if not same_bits(mine, theirs)), -1)

    def inputs_at(self, k: int) -> Refs:
        """Pool set `k`, for the reference."""
        return self._pool[k]

    def state(self) -> tuple[Tensor, ...]:
        """What `take_state` found."""
        return tuple(self._private.tensor(r) for r in self._state)

    def slot(self, number: int) -> Refs:
        return self._slots[number]

    def result_refs(self, place: int) -> Refs:
        return self._results[place]

    def results(self, place: int) -> tuple[Tensor, ...]:
        return tuple(self._shared.tensor(r) for r in self._results[place])

    def own(self) -> tuple[Tensor, ...]:
        return tuple(self._private.tensor(r) for r in self._own)

    def truth(self) -> tuple[Tensor, ...]:
        return tuple(self._private.tensor(r) for r in self._truth)

    def slack(self) -> tuple[Tensor | None, ...]:
        """By result: how far a gradient moves with the last bits of the inputs; None for what forward returns, and for
        what is complex."""
        found = tuple(None if r.spec.dtype == "c128" else self._private.tensor(r) for r in self._slack)
        return (None,) * (len(self._own) - len(found)) + found

    def raise_slack(self, result: int, amount: float) -> None:
        """Let all of a gradient's elements differ by so much more."""
        self._private.tensor(self._slack[result - len(self._own)]).add_(amount)
        self.settle()

    def moved(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """The mutated buffers: the candidate's, the reference's and the truth."""
        return tuple(
            (self._shared.tensor(a), self._private.tensor(b), self._private.tensor(c))
            for a, b, c in zip(self.shared_moved, self._moved, self._moved_truth, strict=True)
        )

    def moved_state_of(self, names: Sequence[str]) -> Refs:
        """Where guests find what these buffers held when `take_state` took them."""
        return tuple(r for n, r in zip(self.described.mutated_state, self.moved_state, strict=True) if n in names)

    def moved_refs(self, names: Sequence[str]) -> Refs:
        """Where a guest is to put what its calls have left of these buffers."""
        return tuple(r for n, r in zip(self.described.mutated_state, self.shared_moved, strict=True) if n in names)

    def record(self, k: int, path: Path) -> None:
        """Write copies of the constructor's tensors, the state and pool set `k` to a file that `torch.load` reads."""
        private = {"state": self._state, "inputs": self._pool[k]}
        copies = {name: [self._private.tensor(r).cpu().clone() for r in refs] for name, refs in private.items()}
        copies["init"] = [self._shared.tensor(r).cpu().clone() for r in self.shared_init]
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(copies, path)

    def poison_bytes(self) -> tuple[int, ...]:
        return tuple(bytes_of(s) for s in self.output_specs)


def try_arena(cell: Cell, device: str) -> str:
    """Whether a cell can map an arena of the device: "" or why not."""
    arena = Arena("trial", 4096, device)
    try:
        cell.map_arena(arena.message(), arena.descriptor)
        cell.do(wire.UnmapArena(name="trial"))
    except CellFault as fault:
        return fault.summary
    finally:
        arena.close()
    return ""
