"""Guards a fused module: says before each call whether what it was fused for still holds, and if not, what differs."""

from __future__ import annotations

import functools
import operator
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _hooked
from torch.utils._device import DeviceContext
from torch.utils.hooks import RemovableHandle

from .contents import content
from .survey import PLAIN, WRITTEN, Survey, difference
from .watched import Watched

try:
    from torch._C._dynamo import guards as _torch_guards

    _TensorGuards: Any = _torch_guards.TensorGuards
except (ImportError, AttributeError):  # no promise of torch's: then the same is asked of each tensor in Python
    _TensorGuards = None
_version: Callable[[Any], int] | None = None  # of a dictionary, where torch tells it: else each value is looked at
with suppress(ImportError):
    from torch._C._dynamo.guards import dict_version as _version

# By path, what a case reads of the module: shape, dtype, and whether gradients of it may be wanted.
States = Mapping[str, tuple[tuple[int, ...], torch.dtype, bool]]
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_GLOBAL_HOOKS = tuple(
    vars(_hooked)[f"_global_{kind}_hooks"] for kind in ("forward", "forward_pre", "backward", "backward_pre")
)
_KNOWN = 8  # ways in which a case was called with success that are remembered: under no_grad, inference mode ...
_CALLER = 6  # frames from `count` to who called the module: its forward, and two of torch's, lie between
_TRACED = ("torch.nn.Module.__call__", "torch.nn.Module.__getattr__")  # torch.export replaces them while it traces
_TOLD = 4  # arguments of a call, and cases, that a warning names
_lock = threading.Lock()

NO_CASE = "no case has this signature"
GRADIENT = "a gradient is wanted"
AUTOCAST = "torch.autocast is on"
ACTS = "torch.compile traces a module that draws random numbers or writes in place"
MODES = "its code asks whether gradients are on, which they were not when it was judged"


class Guard:
    """Of one module, or of those that share its submodules. Made when the module is as it was judged.

    `states` names, for each case, what it reads of the module; `training`: whether the cases give gradients; `device`:
    the type of the device; `plain`: whether no case makes tensors on a device of its own choice. A guard travels with
    its module through `copy` and `pickle`: what is expected, not what was seen."""

    def __init__(
        self, module: nn.Module, states: Sequence[States], *, training: bool, device: str, plain: bool = True
    ) -> None:
        found = Survey(module)
        self.__setstate__((found.facts, tuple(states), training, device, plain))

    def __getstate__(self) -> tuple[Any, ...]:
        return self.expected, self.states, self.training, self.device, self.plain

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.expected, self.states, self.training, self.device, self.plain = state
        self.seen = _Seen(len(self.states))
        self.fits = self.seen.fits

    def __deepcopy__(self, memo: Any) -> Guard:
        made = Guard.__new__(Guard)
        made.__setstate__(self.__getstate__())
        return made

    def differs(self, module: nn.Module, case: int, *tensors: Tensor) -> str:
        """Why the case may not be run on these tensors, the arguments' in order; "" where it may. What is asked first,
        at every call, is `fits[case]`; any thread may call either at any time."""
        seen = self.seen
        for fits in seen.known[case]:
            if fits(module.__dict__, *tensors):
                seen.fits[case] = fits
                return ""
        return (
            _surroundings(tensors, plain=self.plain, device=self.device)
            or self.structure(module)
            or self._states(module, case, tensors)
            or _arguments(tensors)
            or self._gradient(module, case, tensors)
            or self._bind(module, case, tensors)
        )

    def structure(self, module: nn.Module) -> str:
        """What of the module itself is not as it was judged; "" where all is."""
        seen = self.seen
        if not seen.same(module.__dict__):
            found = Survey(module)
            if torch.compiler.is_exporting():
                found.facts.update((name, self.expected[name]) for name in _TRACED)
            why = found.refusal or difference(self.expected, found.facts)
            free = set(self.states[0]).intersection(*self.states[1:]) if not why else set()
            seen = _Seen(len(self.states), why=why)
            seen.look(found, training=self.training, free=free)
            self.seen, self.fits = seen, seen.fits  # and what was replaced is let go
        return seen.why

    def _states(self, module: nn.Module, case: int, tensors: Sequence[Tensor]) -> str:
        device = tensors[0].device if tensors else None
        for path, (shape, dtype, wanted) in self.states[case].items():
            tensor = state_at(module, path)
            if not isinstance(tensor, Tensor):
                return f"{path} is no tensor"
            if strange := _strange(tensor):
                return f"{path} is {strange}"
            if tensor.dtype != dtype:
                return f"{path} is {_name(tensor.dtype)}, not {_name(dtype)}"
            if tuple(tensor.shape) != tuple(shape):
                return f"{path} has another shape"
            if device is not None and tensor.device != device and _moves(module, path):
                return f"{path} is on another device than the arguments"
            if self.training and tensor.requires_grad and not wanted:
                return f"a gradient of {path} is wanted"
        return ""

    def _gradient(self, module: nn.Module, case: int, tensors: Sequence[Tensor]) -> str:
        if self.seen.modes and _modes() != (self.training, False):
            return MODES
        if self.training or not torch.is_grad_enabled():
            return ""
        given = (*tensors, *(state_at(module, path) for path in self.states[case]))
        return GRADIENT if any(t.requires_grad for t in given) else ""

    def _bind(self, module: nn.Module, case: int, tensors: Sequence[Tensor]) -> str:
        """All is as it was judged: remember how this looks."""
        states = {path: state_at(module, path) for path in self.states[case]}
        graded = not self.training and any(t.requires_grad for t in (*tensors, *states.values()))
        seen = self.seen
        with _lock:
            if seen.same(module.__dict__):  # no other thread has looked at another module meanwhile
                seen.remember(case, tensors, states, plain=self.plain, device=self.device, graded=graded)
        return ""


class _Seen:
    """How a module was when it was surveyed last, and `why` no fused call may stand for it. `same` says of its
    dictionary whether it still is."""

    __slots__ = ("_conditions", "_names", "_tensors", "fits", "known", "modes", "same", "why")

    def __init__(self, cases: int, *, why: str = "") -> None:
        self.why = why
        self.modes = False
        self.same: Callable[[dict[str, Any]], bool] = _never
        self.fits: list[Callable[..., bool]] = [_never] * cases
        self.known: list[tuple[Callable[..., bool], ...]] = [()] * cases
        self._names: dict[str, Any] = {}
        self._tensors: Mapping[str, tuple[Any, str]] = {}
        self._conditions: list[str] = []

    def look(self, found: Survey, *, training: bool, free: Collection[str]) -> None:
        """Remember the survey; `free`: paths of tensors of which others of their like may take the place."""
        watched = found.watched
        self._tensors = watched.tensors
        conditions = self._mappings(watched, free)
        conditions += [f"type({self._of(m)}) is {self._of(kind)}" for m, kind in watched.types]
        conditions += [f"{self._of(v)}.{name} is {self._of(value)}" for v, name, value in watched.attributes]
        conditions += [f"{self._of(content)}({self._of(v)}) == {self._of(what)}" for v, what in watched.contents]
        self.modes = found.modes
        registered, unhooked = _hook_check(watched, training=training)
        conditions.append(
            f"({self._of(RemovableHandle)}.next_id == {self._of(registered)}[0] or {self._of(unhooked)}())"
        )
        for tensor, version in watched.versions:
            mine, place = self._of(tensor), _place(tensor)
            conditions.append(f"{mine}._version == {version} and {self._of(_place)}({mine}) == {place}")
        conditions.append(f"{self._of(torch.get_default_dtype)}() is {self._of(torch.get_default_dtype())}")
        self._conditions = conditions
        self.same = self._made(conditions)

    def _mappings(self, watched: Watched, free: Collection[str]) -> list[str]:
        """What is asked of mappings. Of what lies in settled ones, all is asked where a version has moved, and else
        nothing: a version stands for some five values. What is asked only then may cost."""
        asked = [(id(m), f"len({self._of(m)}) == {n}") for m, n in watched.sizes]
        asked += [(id(m), f"{key!r} in {self._of(m)}") for m, key in watched.keys]
        asked += [(id(m), f"{self._of(m)}[{self._key(k)}] is {self._of(v)}") for m, k, v in watched.checks(free)]
        asked += [
            (id(m), f"all(map({self._of(operator.is_)}, {self._of(m)}.values(), {self._of((*m.values(),))}))")
            for m in watched.ordered
        ]
        counted = Counter(place for place, _ in asked)
        settled = [m for m in watched.settled.values() if counted[id(m)] > 2 and _versions_count()]
        if not settled:
            return [condition for _, condition in asked]
        rare = {id(m) for m in settled}
        noted, renewed = _versions(settled, self._made([c for m, c in asked if m in rare]))
        names = (self._of(_version), self._of(noted), self._of(renewed))
        same = " and ".join(f"{names[0]}({self._of(m)}) == {names[1]}[{i}]" for i, m in enumerate(settled))
        return [f"({same} or {names[2]}())", *(condition for place, condition in asked if place not in rare)]

    def remember(
        self, case: int, tensors: Sequence[Tensor], states: Mapping[str, Tensor], *, plain: bool, device: str,
        graded: bool,
    ) -> None:  # fmt: skip
        """Let `fits[case]` say of a dictionary, and arguments, whether they are like these, and so is all around the
        call. `graded`: whether gradients must not be on, as some of these would want one."""
        before = dict(self._names)
        given = [f"t{i}" for i in range(len(tensors))]
        free = f" and not {self._of(_only_devices)}({device!r})" if plain else ""
        around = [f"not {self._of(_dispatch_modes)}()", f"not ({self._of(_function_modes)}(){free})"]
        around += [f"not {self._of(torch.is_grad_enabled)}()"] if graded else []
        if self.modes:
            around += [f"{self._of(_modes)}() == {self._of(_modes())}"]
        check = self._of(_checker(tensors, tuple(states.values())))
        asked = ", ".join([*given, *(self._state(path, tensor) for path, tensor in states.items())])
        conditions = [*around, *self._conditions, f"{check}({asked})"]
        self.fits[case] = self._made(conditions, ", ".join(["", *given]))
        self.known[case] = (self.fits[case], *self.known[case])[:_KNOWN]
        self._names = before

    def _made(self, conditions: Sequence[str], given: str = "") -> Callable[..., bool]:
        # Written out: a loop over what is asked would take some five times as long, and closures or one long
        # expression a quarter more (timeit of 56 look-ups, Python 3.11).
        lines = (
            f"def fits(d{given}):", " try:", *(f"  if not ({c}): return False" for c in conditions),
            " except (LookupError, AttributeError, ValueError):", "  return False", " return True",
        )  # fmt: skip
        names = dict(self._names)
        exec("\n".join(lines), names)
        made: Callable[..., bool] = names.pop("fits")  # else the function would hold itself
        return made

    def _state(self, path: str, tensor: Tensor) -> str:
        """What is found where the state was: another of its like may have taken its place."""
        if path not in self._tensors:
            return self._of(tensor)
        mapping, key = self._tensors[path]
        return f"{self._of(mapping)}[{key!r}]"

    def _of(self, value: Any) -> str:
        """The name under which the expression finds a value."""
        if value is Survey.ROOT:
            return "d"
        name = f"v{id(value)}"
        self._names[name] = value
        return name

    def _key(self, key: Any) -> str:
        return repr(key) if type(key) in (str, int) else self._of(key)


def _versions(mappings: Sequence[Any], same: Callable[..., bool]) -> tuple[list[int], Callable[[], bool]]:
    """The versions that dictionaries had when `same` last held; and what, when one has moved, asks for that again and,
    where it holds, takes the new versions down."""
    assert _version is not None
    version, noted = _version, [-1] * len(mappings)

    def renewed() -> bool:
        now = [*map(version, mappings)]  # before the look: a write beside it moves a version once more
        if not same({}):
            return False
        noted[:] = now
        return True

    return noted, renewed


@functools.cache
def _versions_count() -> bool:
    """Whether the version of a dictionary moves with each write to it: that is Python's own business."""
    if _version is None:
        return False
    module = nn.Identity().eval()
    state = module.__dict__
    writes: tuple[Callable[[], Any], ...] = (
        lambda: setattr(module, "seen", 1.0), lambda: setattr(module, "seen", 2.0), lambda: state.update(seen=3.0),
        lambda: object.__setattr__(module, "seen", 4.0), lambda: state.__setitem__("seen", 5.0), module.train,
        lambda: delattr(module, "seen"), lambda: state.setdefault("seen", 6.0), lambda: state.pop("seen"),
    )  # fmt: skip
    for write in writes:
        before = _version(state)
        write()
        if _version(state) == before:
            return False
    return True


def _hook_check(watched: Watched, *, training: bool) -> tuple[list[int], Callable[[], bool]]:
    """How many hooks were registered in this process so far; and what, when there are more, looks whether they are of
    modules that had none, and, where they are not, takes the new number down: one look at a call instead of dozens."""
    empty = [(m, key) for m, key in watched.empty if training or "backward" not in key]
    everywhere = _GLOBAL_HOOKS[: 4 if training else 2]
    registered = [RemovableHandle.next_id]

    def unhooked() -> bool:
        now = RemovableHandle.next_id
        if any(everywhere) or any(m[key] for m, key in empty):
            return False
        registered[0] = now
        return True

    return registered, unhooked


def _place(tensor: Tensor) -> int:
    """Where a constant's memory is: `tensor.data = other` moves no version. 0 of one that has none of its own."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _modes() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _never(*_: Any) -> bool:
    return False


def _checker(tensors: Sequence[Tensor], states: Sequence[Tensor]) -> Callable[..., bool]:
    """Says of tensors whether each has the class, dtype, device, dispatch keys (and so layout, negation, transforms
    and autocasting), number of dimensions and the need for a gradient of these; states the shape."""
    every = (*tensors, *states)
    if not every:
        return _always
    if _TensorGuards is None:
        seen = [_look(t) for t in every]
        return lambda *now: seen == [_look(t) for t in now]
    free: list[Any] = [[None] * t.dim() for t in every]
    sizes = [*free[: len(tensors)], *(list(t.shape) for t in states)]
    made = _TensorGuards(*every, dynamic_dims_sizes=sizes, dynamic_dims_strides=free)
    check: Callable[..., bool] = made.check
    return check


def _look(tensor: Tensor) -> tuple[Any, ...]:
    """What TensorGuards looks at, in Python."""
    kind, level = tensor.device.type, torch._C._functorch.maybe_current_level()
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    keys = str(torch._C._dispatch_keys(tensor))
    return type(tensor), tensor.dtype, tensor.device, tuple(tensor.shape), keys, tensor.requires_grad, autocast, level


def _always(*_: Any) -> bool:
    return True


def _only_devices(device: str) -> bool:
    """Whether all function modes that are on are those of torch.set_default_device, for this type of device."""
    modes = map(torch._C._get_function_stack_at, range(_function_modes()))
    return all(isinstance(m, DeviceContext) and torch.device(m.device).type == device for m in modes)


def _surroundings(tensors: Sequence[Tensor], *, plain: bool, device: str) -> str:
    """What is going on around the call that operators would see, and kernels do not."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace is recording"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a transform of torch.func is active"
    if _dispatch_modes():
        return "a dispatch mode is active"
    if _function_modes() and not (plain and _only_devices(device)):
        return "a torch function mode is active"
    if torch.is_autocast_enabled(device):
        return AUTOCAST
    return "modules have global hooks" if any(_GLOBAL_HOOKS) else ""


def _arguments(tensors: Sequence[Tensor]) -> str:
    strange = next(filter(None, map(_strange, tensors)), "")
    if strange:
        return f"an argument is {strange}"
    return "arguments are on several devices" if len({t.device for t in tensors}) > 1 else ""


def _strange(tensor: Tensor) -> str:
    """What keeps a kernel from reading its memory as it lies there."""
    if type(tensor) not in PLAIN:
        return f"a {type(tensor).__name__}"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return "not a dense tensor"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor of a torch.func transform"
    if tensor.is_meta or tensor._is_zerotensor():
        return "a tensor without memory"
    return "a view that negates or conjugates" if tensor.is_neg() or tensor.is_conj() else ""


def _moves(module: nn.Module, path: str) -> bool:
    """Whether a state goes where its module goes, or its arguments; one that is a mere attribute stays."""
    *parents, name = path.split(".")
    if name.startswith(WRITTEN):
        return True
    holder = state_at(module, ".".join(parents)) if parents else module
    return name in holder._parameters or name in holder._buffers


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def state_at(module: nn.Module, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def count(counts: dict[str, int], reason: str, told: Callable[[], str] = lambda: "", *, within: int = 0) -> None:
    """Add to how often each reason held, and warn where it is the first time, of arguments that no case takes with what
    is `told`; from any thread. `within`: how many frames there are between the module's forward and the case's."""
    with _lock:
        first = reason not in counts
        counts[reason] = counts.get(reason, 0) + 1
    if first:
        more = f" ({told()})" if reason == NO_CASE else ""
        text = f"tilewright: {reason}{more}, so the original module runs, not the fused one. {_way_out(reason)}"
        warnings.warn(text, RuntimeWarning, stacklevel=_CALLER + within)


def compared(judged: Sequence[str], training: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments of a call beside those that the cases take, of which the first few are told."""
    given = [*map(_shown, args), *(f"{key}={_shown(value)}" for key, value in kwargs.items())]
    came = ", ".join(given[:_TOLD]) + (", ..." if len(given) > _TOLD else "")
    known = "; ".join(judged[:_TOLD]) + (f"; and {len(judged) - _TOLD} more" if len(judged) > _TOLD else "")
    mode = "training" if training else "eval"
    return f"this call: {came or 'no arguments'} in {mode} mode; judged: {known or 'none that could be traced'}"


def _shown(value: Any) -> str:
    if type(value) in PLAIN:
        sizes = "nested" if value.is_nested else list(value.shape)
        return f"{_name(value.dtype)} {sizes} on {value.device.type}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_shown, value[:_TOLD]))}{', ...' * (len(value) > _TOLD)})"
    plain = value is None or type(value) in (bool, int, float, str)
    return repr(value)[:40] if plain else f"a {type(value).__name__}"


def _way_out(reason: str) -> str:
    if reason == GRADIENT:
        return "Call it under torch.no_grad(), or optimise it for training (mode='training')."
    if reason == NO_CASE:
        return "Optimise it for inputs like these, too: optimize(module, [inputs, others])."
    if reason.endswith((" is on", " is active", " is recording")) or reason.startswith(("an argument", "arguments")):
        return "Call it without, or use the original module."
    return "Undo that, or optimise the module as it is."
