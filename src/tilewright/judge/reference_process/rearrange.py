"""Rearranging: masks, flags and indices in buffers, re-drawn in place in ways under which the module still makes sense.

A number can be moved by a share of itself; a boolean can't, nor may an index leave its range. So elements change
places, which keeps counts and ranges, or some booleans are flipped where all are alike. What a module bears depends on
the module: the ways are tried from the boldest to the gentlest, and one is taken where the reference, called on the
inputs at hand, still runs, gives no NaN and no infinity that it did not give before, moves nothing else, and gives
something else than before. Whole numbers in order (offsets, edges) get others between the same ends, in order, and
nothing else is done to them. What no way moves is told of.

Of floating buffers those of two values (masks as many keep them) are rearranged too, beside what `perturb_state` does.
"""

from __future__ import annotations

import copy
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..candidate_process.state import named_state
from ..candidate_process.step import tensors_of
from ..candidate_process.subject import CandidateSubject, seed_all
from ..memory.mapped import overlaps
from ..wire.messages import Moved
from .eight_bits import computable
from .structure import order_of

IN_ORDER = "in order"  # for whole numbers that rise or fall, and for them alone
WAYS = ("shuffle", "lines", "planes", "exchange", "flip some", "flip one")
_MOST = 1 << 24  # elements that all change places; of more, whole planes do
_SHARE = 8  # one element in so many is exchanged or flipped
_DEADLINE_S = 3.0  # of one rearrangement: what was not reached by then stays as it is
_ON_CPU_BYTES, _ON_CPU_FLOPS = 1 << 28, 1e11  # what is tried on the CPU first
_SAMPLE = 1 << 24  # elements of a result that are compared
_SEEN = 1e-3  # of a typical element: what rounding does not explain

Groups = Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a call gave, as far as it is compared."""

    tensors: tuple[Tensor, ...]
    nan: int
    infinite: int


class Rearranger:
    """The buffers of one module that may be rearranged, and what they held before."""

    def __init__(self, module: torch.nn.Module, spared: Iterable[str] = ()) -> None:
        self._module = module
        self._kinds = {n: t.dtype for n, t in _arrangeable(module, frozenset(spared))}
        self._before: list[tuple[Tensor, Tensor]] = []
        self._last: dict[str, str] = {}  # the way that did for a tensor, by label

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def groups(self, labels: Mapping[str, str] | None = None) -> dict[str, list[Tensor]]:
        """The tensors by what they are called: by name, a tied one once, or by the labels given."""
        found: dict[str, list[Tensor]] = {}
        seen: set[int] = set()
        state = named_state(self._module)
        for name in self._kinds:
            label = name if labels is None else labels.get(name, "")
            if label and name in state and id(state[name]) not in seen:
                seen.add(id(state[name]))
                found.setdefault(label, []).append(state[name])
        return found

    def put_back(self) -> None:
        """As before the last rearrangement."""
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)
        self._before = []

    def find(
        self, seed: int, groups: Groups, *, subject: CandidateSubject, args: str, inputs: Sequence[Tensor], flops: float
    ) -> tuple[tuple[Moved, ...], tuple[str, ...]]:
        """Rearrange what can be; what was done, and the labels of what nothing could be done with."""
        self.put_back()
        trial = _Trial(subject, args, inputs, flops=flops, mine={id(t) for g in groups.values() for t in g})
        before = trial.look()
        deadline = time.monotonic() + _DEADLINE_S
        moves: list[Moved] = []
        stuck: list[str] = []
        if before is None:
            return (), tuple(groups)
        for label, tensors in groups.items():
            for tensor in tensors:
                self._keep(tensor)
            move = self._first_that_does(label, tensors, seed, trial, before, deadline)
            if move is None:
                stuck.append(label)
                continue
            self._last[label] = move.way
            moves.append(move)
            before = trial.seen
        return tuple(moves), tuple(stuck)

    def _first_that_does(
        self, label: str, tensors: Sequence[Tensor], seed: int, trial: _Trial, before: _Looked,
        deadline: float,
    ) -> Moved | None:  # fmt: skip
        kept = [t.clone() for t in tensors]
        last = self._last.get(label)
        ordered = any(_in_order(t, torch.Generator(device=t.device)) is not None for t in tensors)
        for way in (IN_ORDER,) if ordered else sorted(WAYS, key=lambda w: w != last):
            if time.monotonic() > deadline:
                return None
            mine = (seed ^ zlib.crc32(f"{label}:{way}".encode())) % 2**63
            moved = sum(rearranged(t, way, mine) for t in tensors) == len(tensors)
            if moved and trial.bears(
                before, exact=any(not t.is_floating_point() and t.dtype != torch.bool for t in tensors)
            ):
                return Moved(label=label, way=way, seed=mine)
            with torch.no_grad():
                for tensor, old in zip(tensors, kept, strict=True):
                    tensor.copy_(old)
        return None

    def _keep(self, tensor: Tensor) -> None:
        self._before.append((tensor, tensor.detach().clone()))


class _Trial:
    """Calls of the reference's module on one set of inputs, which leave its state as it was."""

    def __init__(
        self, subject: CandidateSubject, args: str, inputs: Sequence[Tensor], *, flops: float, mine: set[int]
    ) -> None:
        self._subject, self._args, self._inputs = subject, args, inputs
        self._mine, self._flops = mine, flops
        self.seen = _Looked((), 0, 0)

    def bears(self, before: _Looked, *, exact: bool) -> bool:
        """Whether the module bears what its buffers hold now, and shows it. `exact`: they hold indices, and one that
        leads out of a tensor would end a GPU's process: it is seen on the CPU first."""
        if exact and self._subject.device != "cpu" and not runs_on_cpu(
            self._subject, self._args, self._inputs, flops=self._flops
        ):  # fmt: skip
            return False
        now = self.look()
        if now is None or [t.shape for t in now.tensors] != [t.shape for t in before.tensors]:
            return False
        if now.nan > before.nan or (now.infinite > before.infinite and (not before.infinite or exact)):
            return False
        if not any(_differ(a, b) for a, b in zip(now.tensors, before.tensors, strict=True)):
            return False
        self.seen = now
        return True

    def look(self) -> _Looked | None:
        """What a call gives; None where it raises, or writes to its state as it did not when it was described."""
        subject = self._subject
        state = named_state(subject.built)
        kept = {n: t.detach().clone() for n, t in state.items() if id(t) not in self._mine and not _is_weight(t)}
        versions = {n: (id(t), t._version) for n, t in state.items()}
        seed_all(0)
        try:
            found = tensors_of(subject.run(self._args, self._inputs))
            looked = _looked(found)
        except Exception:  # whatever the module raises, it does not bear this
            return None
        finally:
            moved = self._restore(kept)
            subject.drop_held()
        after = {n: (id(t), t._version) for n, t in named_state(subject.built).items()}
        fixed = [n for n in state if n not in kept]
        return looked if all(after.get(n) == versions[n] for n in fixed) and not moved else None

    def _restore(self, kept: Mapping[str, Tensor]) -> bool:
        """Put back what a call moves, as ever; True where a tensor is another one now."""
        state = named_state(self._subject.built)
        if set(kept) - set(state):
            return True
        with torch.no_grad():
            for name, before in kept.items():
                state[name].copy_(before)
        return False


def runs_on_cpu(subject: CandidateSubject, args: str, inputs: Sequence[Tensor], *, flops: float) -> bool:
    """Whether a copy of the module takes these inputs there: an index that leads out of a tensor raises, where it would
    end a GPU's process. Not tried where that would take long."""
    total = sum(t.numel() * t.element_size() for t in (*inputs, *named_state(subject.built).values()))
    if total > _ON_CPU_BYTES or flops > _ON_CPU_FLOPS:
        return False
    try:
        there = CandidateSubject("cpu")
        there.module = there.forward = copy.deepcopy(subject.built).cpu()
        there.gradients = subject.gradients
        seed_all(0)
        there.run(args, [t.cpu() for t in inputs])
    except Exception:  # what it does not bear, or what lies on a device by name
        return False
    return True


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _looked(found: Sequence[Tensor]) -> _Looked:
    floats = [t for t in found if t.is_floating_point() or t.is_complex()]
    nan = sum(int(t.isnan().sum()) for t in floats)
    infinite = sum(int(t.isinf().sum()) for t in floats)
    return _Looked(tuple(_sampled(t) for t in found), nan, infinite)


def _sampled(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    step = -(-tensor.numel() // _SAMPLE)
    return (tensor.reshape(-1)[::step] if step > 1 else tensor).clone()


def _differ(a: Tensor, b: Tensor) -> bool:
    """Whether some element differs by more than rounding could make it."""
    if not (a.is_floating_point() or a.is_complex()):
        return not torch.equal(a, b)
    a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (a, b))
    a, b = (torch.nan_to_num(t.double(), posinf=0.0, neginf=0.0) for t in (a, b))
    scale = float(b.square().mean().sqrt()) if b.numel() else 0.0
    return bool(((a - b).abs() > _SEEN * (b.abs() + scale)).any())


def _arrangeable(module: torch.nn.Module, spared: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
    """Booleans, whole numbers and floating masks of two values, but for counters and what calls move."""
    for name, tensor in named_state(module).items():
        if name in spared or name.endswith("num_batches_tracked") or not tensor.numel() or overlaps(tensor):
            continue
        if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
            continue
        if not tensor.is_floating_point() or (not _is_weight(tensor) and _is_two_valued(tensor)):
            yield name, tensor


def _is_two_valued(tensor: Tensor) -> bool:
    """Whether it holds two values, of which one is zero or infinite."""
    flat = computable(tensor.detach().reshape(-1))
    other = flat != flat[0]
    if not bool(other.any()):
        return False
    a, b = flat[0], flat[int(other.to(torch.uint8).argmax())]
    none = (a == 0) | (b == 0) | a.isinf() | b.isinf()
    return bool(none & ((flat == a) | (flat == b)).all())


def rearranged(tensor: Tensor, way: str, seed: int) -> bool:
    """Rearrange a tensor in place: by the same way, seed and contents always the same. False where it is as it was."""
    source = torch.Generator(device=tensor.device).manual_seed(seed)
    old = tensor.detach().clone()
    new = _WAYS[way](old, source)
    if new is None or bool((new == old).all()):
        return False
    with torch.no_grad():
        tensor.copy_(new)
    return True


def _shuffle(old: Tensor, source: torch.Generator) -> Tensor | None:
    if old.numel() > _MOST:
        return None
    return old.reshape(-1)[torch.randperm(old.numel(), generator=source, device=old.device)].reshape(old.shape)


def _in_order(old: Tensor, source: torch.Generator) -> Tensor | None:
    """Others between the first and the last, in the same order, none twice where none was: offsets, or edges. None
    where there are no others."""
    if old.ndim != 1 or old.numel() < 3 or old.is_floating_point() or old.dtype == torch.bool:
        return None
    order = order_of(old)
    low, high, inner = int(old.min()), int(old.max()), old.numel() - 2
    if not order or high - low - 1 < inner or high - low > _MOST:
        return None
    if bool((old[1:] != old[:-1]).all()):
        if high - low - 1 == inner:
            return None
        drawn = torch.randperm(high - low - 1, generator=source, device=old.device)[:inner] + low + 1
    else:
        drawn = torch.randint(low, high + 1, (inner,), generator=source, device=old.device)
    return torch.cat([old[:1], drawn.to(old.dtype).sort(descending=order < 0).values, old[-1:]])


def _lines(old: Tensor, source: torch.Generator) -> Tensor | None:
    """Every line along the last dimension in an order of its own: each keeps its values."""
    if old.ndim < 2 or old.numel() > _MOST:
        return None
    order = torch.rand(old.shape, generator=source, device=old.device).argsort(-1)
    return old.gather(-1, order)


def _planes(old: Tensor, source: torch.Generator) -> Tensor | None:
    """One dimension in another order as a whole, the last that is not one."""
    dims = [d for d in range(old.ndim) if old.shape[d] > 1]
    if len(dims) < 2:
        return None
    return old.index_select(dims[-1], torch.randperm(old.shape[dims[-1]], generator=source, device=old.device))


def _exchange(old: Tensor, source: torch.Generator) -> Tensor | None:
    """Some elements change places among themselves."""
    chosen = _places(old, max(2, old.numel() // _SHARE), source)
    flat = old.reshape(-1).clone()
    flat[chosen] = flat[chosen.roll(1)]
    return flat.reshape(old.shape)


def _flip_some(old: Tensor, source: torch.Generator) -> Tensor | None:
    return _flipped(old, max(1, old.numel() // _SHARE), source)


def _flip_one(old: Tensor, source: torch.Generator) -> Tensor | None:
    return _flipped(old, 1, source)


def _flipped(old: Tensor, count: int, source: torch.Generator) -> Tensor | None:
    if old.dtype != torch.bool:
        return None
    flat = old.reshape(-1).clone()
    chosen = _places(old, count, source)
    flat[chosen] = ~flat[chosen]
    return flat.reshape(old.shape)


def _places(old: Tensor, count: int, source: torch.Generator) -> Tensor:
    """So many places or a few less, each once."""
    places: Tensor = torch.randint(old.numel(), (count,), generator=source, device=old.device).unique()
    return places


_WAYS: Mapping[str, Callable[[Tensor, torch.Generator], Tensor | None]] = dict(
    zip((*WAYS, IN_ORDER), (_shuffle, _lines, _planes, _exchange, _flip_some, _flip_one, _in_order), strict=True)
)
