"""Work: what one call of a module must do at least, how long its sums are: read off the operations it dispatches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ...facts.problem import Work
from ..memory.arena import bytes_of
from ..memory.mapped import dtype_name, spec_of
from .effort import AppealEffort
from .flops import COUNTED, flops_of, is_counted

_GATHERS = ("embedding", "index", "gather", "index_select", "take")  # they read a part of their first argument
_ALONG_A_DIMENSION = ("softmax", "cumsum", "cumprod", "logcumsumexp")
# What jumps with a float that it is given: results that are continuous (relu, a maximum) are not among them.
_STEPS = frozenset((
    "gt", "ge", "lt", "le", "sign", "sgn", "signbit", "heaviside", "round", "floor", "ceil", "trunc", "frac", "fmod",
    "remainder", "floor_divide", "argmax", "argmin", "topk", "sort", "argsort", "searchsorted", "bucketize",
))  # fmt: skip
_WIDEST_FIRST = ("f64", "f32", "bf16", "f16", "float8_e4m3fn")


class _Witness(TorchDispatchMode):
    """Notes, by storage, which parts of it operations read, the dtypes that matrix products see, and the effort."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._regions: dict[int, tuple[InputRegion, ...]] = {}
        self._gathered: dict[
            int, int
        ] = {}  # bytes, from places that only values know: the most that one operation read
        self.matrix_dtypes: set[str] = set()
        self.longest_sum = 1
        self.steps = False
        self.effort = AppealEffort()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            self._note(func, args, kwargs or {}, result)
            self.effort.add(func, args, kwargs or {}, result)
            self.longest_sum = max(self.longest_sum, terms(func, args, kwargs or {}, result))
            self.steps = self.steps or _jumps(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.layout == torch.strided]
        packet = getattr(func, "overloadpacket", None)
        name = getattr(packet, "__name__", "")
        if is_counted(packet):
            factors = tensors[:2] if name == "_scaled_mm" else tensors  # its scales are not multiplied
            self.matrix_dtypes |= {dtype_name(t.dtype) for t in factors if t.is_floating_point()}
        partial = name in _GATHERS and isinstance(result, Tensor)
        for place, tensor in enumerate(t for t in tensors if t.numel()):
            key = tensor.untyped_storage().data_ptr()
            if partial and place == 0:
                size = min(region(tensor).size, result.numel() * result.element_size())
                self._gathered[key] = max(self._gathered.get(key, 0), size)
            else:
                self._regions[key] = add(self._regions.get(key, ()), region(tensor))

    def read_bytes(self, storages: Set[int]) -> int:
        """Bytes of these storages that were read, at least."""
        return sum(max(sum(r.size for r in self._regions.get(s, ())), self._gathered.get(s, 0)) for s in storages)


def terms(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """How many terms each result of an operation sums at most: flops tell it of products, sizes of reductions (norms
    return their statistics beside the result), the dimension of scans and softmax."""
    outputs = [t.numel() for t in tree_leaves(result) if isinstance(t, Tensor) and t.numel()]
    inputs = [t.numel() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if not outputs or not inputs:
        return 1
    packet = getattr(func, "overloadpacket", None)
    if is_counted(packet):
        return int(flops_of(packet, args, kwargs, result) // (2 * outputs[0]))
    name = getattr(packet, "__name__", "")
    if any(part in name for part in _ALONG_A_DIMENSION) and args[0].ndim and type(args[1]) is int:
        return int(args[0].shape[args[1]])
    return 1 if name in _GATHERS else max(inputs[0] // min(outputs), 1)


def _jumps(func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether an operation is a step of a floating operand: a comparison, a rounding, a choice, a cast to integers."""
    name = getattr(getattr(func, "overloadpacket", None), "__name__", "").removesuffix("_")
    whole = isinstance(result, Tensor) and not (result.is_floating_point() or result.is_complex())
    if name not in _STEPS and not (name == "_to_copy" and whole):
        return False
    return any(isinstance(t, Tensor) and t.is_floating_point() for t in tree_leaves((args, kwargs)))


@dataclass(frozen=True, slots=True)
class ObservedWork:
    """One observed call: its work, the terms of its longest sum, whether it holds a step (`steps`: a result may jump
    with a float), how long it takes in float64 on a nominal machine (judge.reference_process.effort), and what it
    returned."""

    work: Work
    longest_sum: int
    steps: bool
    nominal_s: float
    result: Any


def measure(call: Any, operands: Iterable[Tensor], outputs_of: Any) -> ObservedWork:
    """Run `call()` once under observation. `operands` are the inputs and the state; `outputs_of(result)` lists the
    result's tensors. Bytes are a lower bound: each operand at most once, and only those parts of it that operations
    read."""
    witness = _Witness()
    with FlopCounterMode(display=False, custom_mapping=dict(COUNTED)) as flops, witness:
        result = call()
    outputs: Sequence[Tensor] = outputs_of(result)
    own = {t.untyped_storage().data_ptr() for t in operands if t.numel()}
    per_op = flops.get_flop_counts().get("Global", {})
    conv = sum(n for op, n in per_op.items() if "conv" in str(op))
    dtype = next((d for d in _WIDEST_FIRST if d in witness.matrix_dtypes), "f32")
    fresh = [t for t in outputs if t.untyped_storage().data_ptr() not in own]
    work = Work(
        bytes_read=witness.read_bytes(own), bytes_written=sum(bytes_of(spec_of(t)) for t in fresh),
        matmul_flops=int(sum(per_op.values()) - conv), conv_flops=int(conv), dtype=dtype,
    )  # fmt: skip
    return ObservedWork(work, witness.longest_sum, witness.steps, witness.effort.seconds(), result)


# ---- How many bytes of a storage a set of strided views covers at least: what must be read, however it is read

_MOST_REGIONS = 512  # a loop over time steps has so many; each one is held against all others

Dims = tuple[tuple[int, int], ...]  # (size, stride), the largest stride first


@dataclass(frozen=True, slots=True)
class InputRegion:
    """The bytes of a storage that a view reaches: an offset, and dimensions in a form of which there is one only."""

    offset: int
    dims: Dims

    @property
    def size(self) -> int:
        """How many bytes these are, or fewer where two indices may reach the same one."""
        count, reach = 1, 1
        for size, stride in reversed(self.dims):
            count = count * size if stride >= reach else max(count, size)
            reach = (size - 1) * stride + reach
        return count

    @property
    def end(self) -> int:
        return self.offset + _extent(self.dims)


def region(tensor: Tensor) -> InputRegion:
    """Of a strided tensor that is not empty. Broadcast dimensions reach nothing more, and dimensions that lie within
    one another without a gap are one."""
    width = tensor.element_size()
    dims: list[tuple[int, int]] = [(width, 1)] if width > 1 else []
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda d: d[1]):
        if size == 1 or stride == 0:
            continue
        if dims and stride * width == dims[-1][0] * dims[-1][1]:
            dims[-1] = (dims[-1][0] * size, dims[-1][1])
        else:
            dims.append((size, stride * width))
    return InputRegion(int(tensor.storage_offset()) * width, tuple(reversed(dims)))


def add(known: tuple[InputRegion, ...], new: InputRegion) -> tuple[InputRegion, ...]:
    """Regions that have nothing in common: the known ones, and the new one, or those of them that may overlap it,
    whichever is more. So the sum of their sizes is never more than what all of them reach."""
    rest: list[InputRegion] = []
    lost = 0
    for other in known:  # once: a module may come here a hundred thousand times with five hundred of them
        if _apart(other, new):
            rest.append(other)
        else:
            lost += other.size
    return (*rest, new) if new.size > lost and len(rest) < _MOST_REGIONS else known


def _extent(dims: Dims) -> int:
    """From the first byte reached to behind the last one."""
    return sum((size - 1) * stride for size, stride in dims) + 1


def _apart(a: InputRegion, b: InputRegion) -> bool:
    """Whether the two are seen to have no byte in common."""
    if a.offset > b.offset:
        a, b = b, a
    if a.end <= b.offset:
        return True
    return _apart_within(a.dims, b.dims, b.offset - a.offset)


def _apart_within(a: Dims, b: Dims, shift: int) -> bool:
    """Whether two regions have nothing in common, the second of which begins `shift` >= 0 bytes later. Seen where
    both step by the same outermost stride, and neither reaches into its own next step."""
    if not a or not b:
        return False
    (many, stride), (_, other) = a[0], b[0]
    steps, shift = divmod(shift, stride)
    if stride != other or _extent(a[1:]) > stride or shift + _extent(b[1:]) > stride:
        return False
    if steps >= many or shift >= _extent(a[1:]):
        return True
    return _apart_within(a[1:], b[1:], shift)
