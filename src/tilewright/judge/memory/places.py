"""Where the tensors of one case lie in its two arenas (judge.memory.room)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...facts.tensor import TensorSpec
from ..wire import messages as wire
from .arena import ALIGNMENT, Arena, Layout
from .images import paged
from .mapped import contiguous

Refs = tuple[wire.TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseMemorySizes:
    """How many pool sets, slots and places for results a case memory has. `tight`: implementations can't all keep
    their cached memory."""

    pool: int
    slots: int
    results: int
    tight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPlaces:
    """In the private arena: sets of inputs (`pool`), what the reference returned (`own`), the truth of that, how far
    gradients move (`slack`), its `state`, and of what calls move what they left and the truth of that. In the shared
    one: `slots`, places for `results`, the state, what is put back before each timed call (`before`, which is part of
    the state), what a guest's calls have left (`after`), and the constructor's tensors (`init`)."""

    pool: tuple[Refs, ...]
    own: Refs
    truth: Refs
    slack: Refs
    state: Refs
    moved: Refs
    moved_truth: Refs
    slots: tuple[Refs, ...]
    results: tuple[Refs, ...]
    shared_state: Refs
    before: Refs
    after: Refs
    init: Refs
    private_bytes: int
    shared_bytes: int
    input_bytes: int  # of one set


def as_returned(described: wire.Described) -> tuple[TensorSpec, ...]:
    """What results look like in their places."""
    return tuple(contiguous(o.spec.shape, o.spec.dtype) for o in described.outputs)


def laid_out(described: wire.Described, sizes: CaseMemorySizes) -> ResultPlaces:
    inputs, outputs = Layout(described.inputs), Layout(as_returned(described))
    truths = Layout(tuple(_as_f64(s) for s in outputs.specs))
    state = Layout(tuple(contiguous(s.spec.shape, s.spec.dtype) for s in described.state))
    names = [s.name for s in described.state]
    mutated = [names.index(n) for n in described.mutated_state]
    moved = Layout(tuple(state.specs[i] for i in mutated))
    slack = Layout(truths.specs[len(outputs.specs) - len(described.gradients.names) :])  # gradients come last
    private, shared = _Row("private"), _Row("shared")
    pool = tuple(private.take(inputs) for _ in range(sizes.pool))
    own, truth, slack_at, state_at = (private.take(x) for x in (outputs, truths, slack, state))
    moved_at, moved_truth = (private.take(x) for x in (moved, Layout(tuple(_as_f64(s) for s in moved.specs))))
    slots = []
    for i in range(sizes.slots):
        shared.size_bytes = paged(shared.size_bytes) + ALIGNMENT * (
            i % 3
        )  # so that slots differ in more than high bits
        slots.append(shared.take(inputs))
    shared.size_bytes = paged(shared.size_bytes)  # pages of slots hold nothing else
    results = tuple(shared.take(outputs) for _ in range(sizes.results))
    shared_state, after = shared.take(state), shared.take(moved)
    init = shared.take(Layout(tuple(contiguous(s.shape, s.dtype) for s in described.init_tensors)))
    return ResultPlaces(
        pool=pool, own=own, truth=truth, slack=slack_at, state=state_at, moved=moved_at, moved_truth=moved_truth,
        slots=tuple(slots), results=results, shared_state=shared_state, after=after, init=init,
        before=tuple(shared_state[i] for i in mutated), private_bytes=private.size_bytes,
        shared_bytes=shared.size_bytes, input_bytes=inputs.size_bytes,
    )  # fmt: skip


@dataclass(slots=True)
class _Row:
    """What was given of an arena so far."""

    arena: str
    size_bytes: int = 0

    def take(self, layout: Layout) -> Refs:
        refs = layout.at(self.arena, self.size_bytes)
        self.size_bytes += layout.size_bytes
        return refs


def _as_f64(spec: TensorSpec) -> TensorSpec:
    if spec.dtype.startswith("c"):
        return contiguous(spec.shape, "c128")
    is_float = spec.dtype in ("f64", "f32", "f16", "bf16") or spec.dtype.startswith("float")
    return contiguous(spec.shape, "f64" if is_float else spec.dtype)


class CaseArenas:
    """Both arenas of a case, as the judge sees them."""

    def __init__(self, places: ResultPlaces, device: str) -> None:
        self.device = device
        self.private = Arena("private", places.private_bytes, device)
        try:
            self.shared = Arena("shared", places.shared_bytes, device)
        except BaseException:
            self.private.close()
            raise

    def settle(self) -> None:
        """What the judge wrote is seen by the other processes from here on."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        self.shared.close()
        self.private.close()
