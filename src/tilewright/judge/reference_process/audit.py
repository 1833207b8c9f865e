"""The cell's side of an audit: the operations of a forward pass, each of which can be left out or drowned in noise,
and state moved one tensor at a time.

Operations are what the module's own code calls (torch functions, methods and operators); what those call inside is
theirs. So they bear the names that a reader of the module knows, and no graph has to be traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..wire.messages import Operation
from .families import perturb_state

# They move data or hand it on: left out, they change nothing, and nothing is the matter with that.
_MOVES = frozenset(
    """clone contiguous detach to type type_as float double half bfloat16 cpu cuda requires_grad_ alias reshape
    reshape_as flatten ravel unflatten view view_as squeeze unsqueeze expand expand_as broadcast_to broadcast_tensors
    permute transpose swapaxes movedim t __get__ __getitem__ narrow select split chunk unbind unfold as_strided tensor
    lift_fresh dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout
    __set__ set_ __deepcopy__ zeros_like ones_like empty_like full_like rand_like randn_like""".split()
)
_GUARDS = frozenset("add add_ __radd__ sub sub_ clamp clamp_ clamp_min clamp_min_".split())
_TINY = 1e-3
_HEAVY = ("conv", "linear", "matmul", "mm", "bmm", "einsum", "attention", "lstm", "gru", "rnn", "tensordot", "bilinear",
          "__matmul__", "addmv", "mv", "dot")  # fmt: skip


class Operations(TorchFunctionMode):
    """Counts the operations of a forward pass under this mode. With `target` of -1 it lists them in `found`; else the
    operation of that number is done as `way` says: "skip K" hands on its K-th operand, "cut" puts noise of half its
    size in the place of its result."""

    def __init__(self, *, target: int = -1, way: str = "", seed: int = 0) -> None:
        super().__init__()
        self.found: list[Operation] = []
        self.reached = False
        self._target, self._way, self._seed = target, way, seed
        self._count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", ""))
        operands = _operands(args, kwargs)
        if name in _MOVES or not operands:
            return func(*args, **kwargs)
        if self._target >= 0 and self._way.startswith("skip") and self._count == self._target:
            return self._skipped(func, args, kwargs)
        versions = [o._version for o in operands]
        result = func(*args, **kwargs)
        in_place = versions[0] != operands[0]._version
        if not _is_operation(result, operands, in_place=in_place):
            return result
        number, self._count = self._count, self._count + 1
        if number == self._target:
            self.reached = True
            return _drowned(result, self._seed)
        if self._target < 0:
            guard = len(operands) == 1 and _is_guard(name, args, kwargs)
            skips = () if guard else tuple(f"skip {k}" for k in _alike(result, operands))
            ways = (*skips, *(() if result is None else ("cut",)))
            self.found.append(Operation(name=name, ways=ways, heavy=_is_heavy(name)))
        return result

    def _skipped(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The chosen operand in the shape of the result; what an in-place operation did is undone."""
        operands = _operands(args, kwargs)
        number = int(self._way.split()[1])
        kept = operands[number].clone() if number < len(operands) else None
        before = operands[0]._version
        result = func(*args, **kwargs)
        in_place = before != operands[0]._version
        if not _is_operation(result, operands, in_place=in_place):
            return result
        self._count += 1
        if kept is None:
            return result
        self.reached = True
        if in_place:
            operands[0].copy_(kept.reshape(operands[0].shape))
            return result
        if isinstance(result, Tensor):
            return kept.reshape(result.shape)
        return type(result)((kept.reshape(result[0].shape), *result[1:]))


def perturb(module: torch.nn.Module, name: str, tensor: Tensor, seed: int) -> bool:
    """Move one parameter or buffer in place; False where there is no sense in moving it (counters)."""
    source = torch.Generator(device=tensor.device).manual_seed(seed)
    with torch.no_grad():
        if tensor.is_floating_point():
            parameters = {n for n, _ in module.named_parameters(remove_duplicate=False)}
            perturb_state(name, tensor, is_parameter=name in parameters, source=source)
        elif tensor.dtype == torch.bool:
            tensor.logical_xor_(torch.rand(tensor.shape, generator=source, device=tensor.device) < 0.5)
        elif tensor.numel() > 1:
            tensor.copy_(tensor.flatten().flip(0).reshape(tensor.shape))  # an index stays in its range
        else:
            return False
    return True


def _operands(args: Any, kwargs: Any) -> list[Tensor]:
    """The floating tensors that a call is given, each once, in order."""
    found: list[Tensor] = []
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and all(leaf is not t for t in found):
            found.append(leaf)
    return found


def _is_operation(result: Any, operands: list[Tensor], *, in_place: bool) -> bool:
    """Whether floats were computed: a view of an operand, a number or an index is not an operation's result."""
    if in_place:
        return True
    made = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()]
    storages = {o.untyped_storage().data_ptr() for o in operands}
    return bool(made) and not any(t.untyped_storage().data_ptr() in storages for t in made)


def _alike(result: Any, operands: list[Tensor]) -> list[int]:
    """The operands that could stand in the place of the result."""
    first = operands[0] if result is None else result
    if type(result).__module__ == "torch.return_types":
        first = result[0]
    if not isinstance(first, Tensor):
        return []
    return [k for k, o in enumerate(operands[:3]) if o.numel() == first.numel() and o.dtype == first.dtype]


def _is_guard(name: str, args: Any, kwargs: Any) -> bool:
    """Whether this adds, or bounds by, a tiny number, to keep a division or a logarithm whole."""
    numbers = [v for v in tree_leaves((args, kwargs)) if isinstance(v, int | float)]
    return name in _GUARDS and bool(numbers) and all(0 < abs(v) < _TINY for v in numbers)


def _drowned(result: Any, seed: int) -> Any:
    """The same structure with noise of half the size in every floating tensor."""

    def noise(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        source = torch.Generator(device=value.device).manual_seed(seed)
        size = float(torch.linalg.vector_norm(value, dtype=torch.float32)) / max(value.numel(), 1) ** 0.5
        scale = 0.5 * size if 0.0 < size < math.inf else 1.0
        return value.normal_(generator=source).mul_(scale)

    return tree_map(noise, result)


def _is_heavy(name: str) -> bool:
    return any(name == h or (len(h) > 3 and h in name) for h in _HEAVY)
