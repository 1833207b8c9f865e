"""What a cell holds of results, under tags, and what it says of them before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ..memory.mapped import contiguous, dtype_name, overlaps, spec_of
from ..wire.parts import OutputFacts
from . import values
from .load import CodeRaised, blaming
from .timing import Parts, Seen


class HeldModule:
    """Tensors by tag, and the parts that stand for large ones."""

    __slots__ = ("_samples", "_tensors")  # no method can be hidden in an instance

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Tensor, ...]] = {}
        self._samples: dict[int, tuple[Parts | None, ...]] = {}

    def take(self, tag: int, seen: Seen, inputs: Sequence[Tensor]) -> tuple[str, tuple[OutputFacts, ...]]:
        """Hold what was seen of a result, by its copies where there are any; its structure and the facts of its
        tensors. Raises CodeRaised where it holds what is no tensor."""
        if seen.lack:
            raise CodeRaised("wrong_type", f"forward returned {seen.lack}")
        tree = values.text_of(seen.tree)
        if other := values.misfit(tree):
            raise CodeRaised("wrong_type", f"forward returned {other}, which is not a tensor")
        with blaming("wrong_type", "looking at an output raised"):
            facts = facts_of(seen.tensors, seen.kinds, inputs)
        pairs = list(zip(seen.tensors, seen.copies or (None,) * len(seen.tensors), strict=True))
        self._tensors[tag] = tuple(copy if isinstance(copy, Tensor) else mine for mine, copy in pairs)
        self._samples[tag] = tuple(copy if isinstance(copy, Parts) else None for _, copy in pairs)
        return tree, facts

    def tensors(self, tag: int) -> tuple[Tensor, ...]:
        return tuple(t.detach() for t in self._tensors[tag])

    def samples(self, tag: int) -> tuple[Parts | None, ...]:
        """What stands for parts of what is held under the tag."""
        return self._samples.get(tag, (None,) * len(self._tensors[tag]))

    def drop(self, *, keep_first: bool = False) -> None:
        """Forget all, or all but what is held under tag 0."""
        self._tensors = {0: self._tensors[0]} if keep_first and 0 in self._tensors else {}
        self._samples = {}

    @property
    def is_plain(self) -> bool:
        """Whether it lies in plain things, which give back what was put in."""
        return {type(self._tensors), type(self._samples)} == {dict}


def facts_of(tensors: Sequence[Tensor], kinds: Sequence[str], inputs: Sequence[Tensor]) -> tuple[OutputFacts, ...]:
    """What the judge must know of results, read without touching their data; `kinds`: what they were when seen."""
    facts = [_output_facts(t, k, inputs) for t, k in zip(tensors, kinds, strict=True)]
    dense = [f.type_name == values.PLAIN and _is_dense(t) for f, t in zip(facts, tensors, strict=True)]
    for i, later in enumerate(tensors):
        for k in range(i):
            if dense[i] and dense[k] and _overlap(tensors[k], later):
                facts[i] = replace(facts[i], aliases_output=k)
    return tuple(facts)


def _is_dense(tensor: Tensor) -> bool:
    """Whether every byte that it spans is its own: where two such overlap, they share elements. Of others (columns of
    one buffer, say) it is not known."""
    first, last = _reach(tensor)
    return tensor.numel() > 0 and last + 1 - first == tensor.numel() * tensor.element_size()


def _output_facts(tensor: Tensor, kind: str, inputs: Sequence[Tensor]) -> OutputFacts:
    aliases = -1
    if kind == values.PLAIN:
        aliases = next((i for i, t in enumerate(inputs) if _overlap(tensor, t)), -1)
        return OutputFacts(
            spec=spec_of(tensor), type_name=kind, device=tensor.device.type, aliases_input=aliases,
            overlaps=overlaps(tensor),
        )  # fmt: skip
    spec = contiguous(tuple(tensor.shape), dtype_name(tensor.dtype))
    return OutputFacts(spec=spec, type_name=kind, device=tensor.device.type, aliases_input=aliases)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the memory that two tensors reach overlaps (arena inputs share one storage, so storages tell nothing)."""
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device:
        return False
    first, last = _reach(a)
    low, high = _reach(b)
    return first <= high and low <= last


def _reach(t: Tensor) -> tuple[int, int]:
    start = t.data_ptr()
    elements = sum((e - 1) * s for e, s in zip(t.shape, t.stride(), strict=True))
    return start, start + elements * t.element_size() + t.element_size() - 1
