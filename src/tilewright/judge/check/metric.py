"""The precision contract as arithmetic: how far an output lies from float64 truth, and how far it may.

Let t be the truth (the module run in float64), y an output and r the reference's own output. Over the positions where t
is finite:

    norm(y)  = |y - t|_2 / |t|_2
    worst(y) = max_i |y_i - t_i| / max(|t_i|, rms(t))

`worst` divides an error by the element's own size where that is at least typical, and by the typical size elsewhere: an
elementwise function is held to relative accuracy on all elements that matter, and a small result of a long sum is not
asked for digits that cancellation has taken from every algorithm. What may be reached is

    allowed = max(factor * own, floor)

with own = norm(r) or worst(r), the largest seen so far on the same case and output, and floor a few units in the last
place of the output's type (see FLOORS). Positions where t (or, where t is finite, r) is not finite must hold the same
non-finite value. Integers and booleans must equal the truth or the reference's own result, element by element.
All of it is computed block by block, on the device where the tensors lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ...facts.problem import Precision
from ..memory.sameness import one_thread

FACTOR = 2.0
_BLOCK = 1 << 25  # elements: 256 MB in float64

# (norm, worst) by output dtype, in units of the type's epsilon. The norm floor of the 16-bit types lies under the error
# of the class below (bf16 against fp16, 8-bit types against bf16); fp32's is far under TF32's 5e-5 and leaves room for
# another order of summation. Of 8-bit floats the truth is rounded too: elements next to a tie may be one step off, some
# in ten thousand. float64's own truth has rounding errors too: it gets what a long sum needs.
FLOORS: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float64: (4096.0, 65536.0), torch.float32: (8.0, 64.0), torch.float16: (1.0, 4.0), torch.bfloat16: (1.0, 4.0),
    torch.float8_e4m3fn: (1 / 64, 1.0), torch.float8_e5m2: (1 / 64, 1.0),
}  # fmt: skip
_OTHER_FLOOR = (1.0, 4.0)
_LENGTH_SHARE = 1 / 24  # of an epsilon for each term of a sum: what one fp32 accumulator from end to end needs
_WORST_SHARE = 4.0  # the worst element's part of that, in units of the norm's
_LENGTH_CAP = 4e-5  # a fifth of what TF32 costs in the norm when one operand alone is rounded
_UNEVEN, _ROW = 4.0, 256  # times the reference's error, over so many neighbours
_PART = 1 << 22  # elements at a time, for which several copies are made
_HOPELESS = {8: 1e-6, 4: 0.05, 2: 0.25}  # by bytes of the type
CLASS_EPS: Mapping[str, float] = {"tf32": 2.0**-10, "fp16": 2.0**-10, "bf16": 2.0**-7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far from the truth. `misplaced`: positions whose non-finite value, or whose exact value, is wrong."""

    norm: float
    worst: float
    misplaced: int
    finite: int
    worst_at: int  # flat index of the worst element, -1 where there is none

    @property
    def exact(self) -> bool:
        return self.misplaced == 0 and self.norm == 0.0


def floors(dtype: torch.dtype, precision: Precision = "reference", *, length: int = 1) -> tuple[float, float]:
    """The smallest allowances (norm, worst) for an output of this type whose longest sum has `length` terms; zero for
    exact types. A looser precision class, which is the user's choice, brings its own."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0, 0.0
    norm, worst = FLOORS.get(dtype.to_real(), _OTHER_FLOOR)
    eps = float(torch.finfo(dtype).eps)
    class_eps = CLASS_EPS.get(precision, 0.0)
    summed = min(_LENGTH_SHARE * length * eps, _LENGTH_CAP)
    return max(norm * eps, class_eps, summed), max(worst * eps, 8 * class_eps, _WORST_SHARE * summed)


def allowance(
    dtype: torch.dtype, own: tuple[float, float], precision: Precision = "reference", *, length: int = 1
) -> tuple[float, float]:
    """What an output of this type may reach (norm, worst) where the reference's `own` errors are these; the rest as
    for `floors`."""
    norm, worst = (max(FACTOR * o, f) for o, f in zip(own, floors(dtype, precision, length=length), strict=True))
    return norm, worst


def hopeless(dtype: torch.dtype) -> float:
    """The reference's own error in the norm beyond which the truth says nothing any more; infinite for exact types."""
    return _HOPELESS.get(dtype.itemsize, 0.25) if dtype.is_floating_point else math.inf


def differing_specials(value: Tensor, truth: Tensor) -> bool:
    """Whether NaN and infinities stand in other places, or are others, than in the truth."""
    if not (value.dtype.is_floating_point or value.dtype.is_complex) or (_finite(value) and _finite(truth)):
        return False
    for _, y, t, _ in _side_by_side(value, truth, truth):
        if bool(((~torch.isfinite(y) | ~torch.isfinite(t)) & ~_same_special(y, t)).any()):
            return True
    return False


def unwritten(value: Tensor, truth: Tensor) -> str:
    """What a result tells that is NaN through and through where the truth is not: fresh memory holds NaN, so most
    likely nothing was written there; "" for any other."""
    if not value.dtype.is_floating_point or not value.numel() or bool(torch.isnan(truth).all()):
        return ""
    if not bool(torch.isnan(value).all()):
        return ""
    return (
        f"all {value.numel()} elements are NaN. The judge fills fresh memory with NaN: either nothing is written to "
        "this output, or what is written comes of memory that was read before anything was written to it"
    )


def calm(tensor: Tensor) -> AbstractContextManager[None]:
    """Compare small CPU tensors on one thread: on a busy machine, waiting for a second costs more than it brings."""
    return one_thread() if tensor.device.type == "cpu" and tensor.numel() < _BLOCK else nullcontext()


def distance(value: Tensor, truth: Tensor, reference: Tensor, slack: Tensor | None = None) -> Distance:
    """Distance of `value` from `truth`, with `reference`'s own result deciding what the truth leaves open. All of
    one shape. `slack`: by how much a value may differ from the truth before the difference counts (gradients)."""
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return _exact(value, truth, reference)
    found = _of_numbers(value, truth, reference, slack)
    return found or _beside_specials(value, truth, reference, slack)


def _of_numbers(value: Tensor, truth: Tensor, reference: Tensor, slack: Tensor | None) -> Distance | None:
    """The distance where all three are finite everywhere, with a quarter of the passes over memory; None elsewhere."""
    scale, finite = _scale(truth)
    if finite == 0 or finite < _flat(truth).numel() or not _finite(reference):
        return None
    at_least, unseen = max(scale, 5e-324), float(torch.finfo(value.dtype).tiny)
    norms: list[Tensor] = []

    def relative(start: int, y: Tensor, t: Tensor) -> Tensor:
        """The errors of a block, whose norm is put down, relative to what they are errors of."""
        error = torch.sub(_wide(y), t.double()).abs_()
        if slack is not None:
            error = error.sub_(_flat(slack)[start : start + len(y)]).clamp_(min=0.0)
        error = torch.threshold_(error, unseen, 0.0)
        norms.append(torch.linalg.vector_norm(error))
        return error.div_(t.double().abs().clamp_(min=at_least))

    parts = [(start, y, t) for start, y, t, _ in _side_by_side(value, truth, truth, cast=False)]
    tops = torch.stack([relative(*part).max() for part in parts]).tolist()
    squares = sum(norm * norm for norm in torch.stack(norms).tolist())
    if not math.isfinite(squares + sum(tops)):
        return None
    worst = max(tops)
    at = tops.index(worst)
    worst_at = parts[at][0] + int(relative(*parts[at]).argmax()) if worst > 0 else -1
    total = scale * math.sqrt(finite)
    norm = math.sqrt(squares) / total if total > 0 else (0.0 if squares == 0 else math.inf)
    return Distance(norm=norm, worst=worst, misplaced=0, finite=finite, worst_at=worst_at)


def _wide(tensor: Tensor) -> Tensor:
    """The same, in float64 where torch does not compute with its type."""
    return tensor.double() if tensor.dtype.itemsize == 1 else tensor


def _finite(tensor: Tensor) -> bool:
    """Whether all elements are."""
    flat = _flat(tensor)
    parts = (_wide(flat[start : start + _BLOCK]) for start in range(0, flat.numel(), _BLOCK))
    tops = [torch.linalg.vector_norm(part, math.inf) for part in parts]
    return not tops or all(map(math.isfinite, torch.stack(tops).tolist()))


def _beside_specials(value: Tensor, truth: Tensor, reference: Tensor, slack: Tensor | None) -> Distance:
    """The distance where NaN or infinities may stand anywhere."""
    scale, finite = _scale(truth)
    if finite == 0:
        scale = 1.0
    unseen = float(torch.finfo(value.dtype).tiny)
    squares = 0.0
    worst, worst_at, misplaced = 0.0, -1, 0
    for start, y, t, r in _side_by_side(value, truth, reference):
        open_to, strange, error = _off(start, y, t, r, slack)
        misplaced += int(strange.sum())
        error = torch.where(error > unseen, error, 0.0)
        squares += float(error.square().sum())
        relative = error / torch.where(open_to, t.abs(), 0.0).clamp_(min=max(scale, 5e-324))
        top = float(relative.max())
        if top > worst:
            worst, worst_at = top, start + int(relative.argmax())
    total = scale * math.sqrt(finite)
    norm = math.sqrt(squares) / total if total > 0 else (0.0 if squares == 0 else math.inf)
    return Distance(norm=norm, worst=worst, misplaced=misplaced, finite=finite, worst_at=worst_at)


def wrong_elements(
    value: Tensor, truth: Tensor, reference: Tensor, *, allowed: tuple[float, float], slack: Tensor | None = None
) -> Tensor:
    """Which elements of a real result break the contract, as a boolean tensor of its shape: those beyond the `worst` of
    `allowed` (norm, worst), and where none is, those beyond its `norm` of the typical size."""
    exact = not value.dtype.is_floating_point
    scale = 0.0 if exact else _scale(truth)[0]
    beyond = [torch.zeros(value.numel(), dtype=torch.bool, device=value.device) for _ in range(2)]
    for start, y, t, r in _side_by_side(value, truth, reference, cast=not exact):
        mine = slice(start, start + y.numel())
        if exact:
            beyond[1][mine] = (y != t) & (y != r)
            continue
        open_to, strange, error = _off(start, y, t, r, slack)
        size = torch.where(open_to, t.abs(), 0.0).clamp_(min=max(scale, 5e-324))
        for limit, found in zip(allowed, beyond, strict=True):
            found[mine] = strange | (error > limit * size)
    return (beyond[1] if bool(beyond[1].any()) else beyond[0]).view(value.shape)


def _off(start: int, y: Tensor, t: Tensor, r: Tensor, slack: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of one block: where truth and reference are numbers, where the value is not what it must be, or no number, and by
    how much it is off elsewhere."""
    open_to = torch.isfinite(t) & torch.isfinite(r)
    strange = torch.where(open_to, ~torch.isfinite(y), ~_same_special(y, t) & ~_same_special(y, r))
    error = (y - t).abs()
    if slack is not None:
        error = (error - _flat(slack)[start : start + len(y)].to(error.dtype)).clamp_(min=0.0)
    return open_to, strange, torch.where(open_to & ~strange, error, 0.0)


def is_uneven(value: Tensor, truth: Tensor, reference: Tensor, *, floor: float) -> bool:
    """Whether some part of a real result (neighbours, or a column) is by itself farther off than the `floor` in the
    norm, and far more than the reference is there. The reference is read only where the floor is exceeded."""
    suspected = _parts_off(value, truth, None, floor=floor)
    return suspected and _parts_off(value, truth, reference, floor=floor)


def _parts_off(value: Tensor, truth: Tensor, reference: Tensor | None, *, floor: float) -> bool:
    """Whether some part may be off, beyond `_UNEVEN` times the reference where one is given. Without one, positions
    that are no numbers are suspected. The device is waited for once."""
    width = truth.shape[-1] if truth.ndim and not truth.is_complex() and truth.shape[-1] <= _PART else 1
    flat = [_flat(x) for x in (value, truth, reference) if x is not None]
    columns = torch.zeros((len(flat), width), dtype=torch.float64, device=value.device)
    found = torch.zeros((), dtype=torch.bool, device=value.device)
    step = _part(value) // width * width
    for start in range(0, flat[0].numel(), step):
        y, t, *r = (x[start : start + step].double() for x in flat)
        parts = [y - t, t, *(theirs - t for theirs in r)]
        if reference is not None:
            finite = torch.isfinite(y) & torch.isfinite(t) & torch.isfinite(r[0])
            parts = [torch.where(finite, part, 0.0) for part in parts]
        whole = len(t) // _ROW * _ROW
        rows = [torch.linalg.vector_norm(part[:whole].view(-1, _ROW), dim=1) for part in parts]
        rest = [torch.linalg.vector_norm(part[whole:]).view(1) for part in parts]
        found |= _exceeds(rows, floor) | _exceeds(rest, floor)
        columns += torch.stack([torch.linalg.vector_norm(part.view(-1, width), dim=0).square_() for part in parts])
    return bool(found | _exceeds(list(columns.sqrt_()), floor))


def _part(tensor: Tensor) -> int:
    """Elements at a time: as few as caches hold, or on a GPU so many that launches do not count."""
    return _PART if tensor.device.type == "cpu" else 4 * _PART


def _exceeds(norms: Sequence[Tensor], floor: float) -> Tensor:
    """Whether an error is beyond the floor and the reference's; what is no number is."""
    mine, size, *theirs = norms
    least = (floor * size).clamp_(min=1e-35)
    if theirs:
        least = torch.maximum(least, _UNEVEN * theirs[0])
    return (~(mine <= least)).any()


def typical(truth: Tensor) -> float:
    """Root mean square of the finite elements."""
    return _scale(truth)[0]


def _scale(truth: Tensor) -> tuple[float, int]:
    """The typical size, and the number of finite elements."""
    norms = [torch.linalg.vector_norm(part) for part in blocks(truth)]
    squares = sum(norm * norm for norm in torch.stack(norms).tolist()) if norms else math.nan
    if math.isfinite(squares):
        finite = _flat(truth).numel()
        return math.sqrt(squares / finite), finite
    squares, finite = 0.0, 0
    for part in blocks(truth):
        ok = torch.isfinite(part)
        finite += int(ok.sum())
        squares += float(torch.where(ok, part, 0.0).square().sum())
    return (math.sqrt(squares / finite) if finite else 0.0), finite


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Subproblems of a tensor in float64, since the whole may not fit beside itself; complex numbers as two."""
    flat = _flat(tensor)
    for start in range(0, flat.numel(), _BLOCK):
        yield flat[start : start + _BLOCK].double()


def masks_infinity(value: Tensor, truth: Tensor, reference: Tensor) -> bool:
    """Whether a value is a number where the truth is an infinity, or none where it is a number. What comes of NaN is
    left open: maxima and clamps that let numbers pass are common in honest kernels."""
    for _, y, t, r in _side_by_side(value, truth, reference):
        number = torch.isfinite(t) & torch.isfinite(r)
        infinite = t.isinf() & r.isinf()
        if bool((number & ~torch.isfinite(y) | infinite & (torch.isfinite(y) | (y == -t))).any()):
            return True
    return False


def first_difference(value: Tensor, truth: Tensor, reference: Tensor) -> str:
    """Where and how an output is farthest off, for a reader."""
    found = distance(value, truth, reference)
    at = found.worst_at
    if at < 0:
        return f"{found.misplaced} of {value.numel()} elements are wrong" if found.misplaced else ""
    if value.is_complex():
        at //= 2  # real and imaginary parts are counted apart
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), value.shape)) if value.ndim else ()
    got, wanted = value[place].item(), truth[place].item()
    return f"at {list(place)} it gives {got:.9g}, the truth is {wanted:.9g}"


def _exact(value: Tensor, truth: Tensor, reference: Tensor) -> Distance:
    misplaced, at = 0, -1
    for start, y, t, r in _side_by_side(value, truth, reference, cast=False):
        wrong = (y != t) & (y != r)
        count = int(wrong.sum())
        if count and at < 0:
            at = start + int(wrong.to(torch.uint8).argmax())
        misplaced += count
    share = misplaced / max(value.numel(), 1)
    return Distance(norm=share, worst=float(misplaced > 0), misplaced=misplaced, finite=value.numel(), worst_at=at)


def _same_special(a: Tensor, b: Tensor) -> Tensor:
    """Where both are NaN, or the same infinity."""
    return (a.isnan() & b.isnan()) | (a.isinf() & (a == b))


def _flat(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor.reshape(-1)


def _side_by_side(*tensors: Tensor, cast: bool = True) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    y, t, r = (_flat(x) for x in tensors)
    for start in range(0, y.numel(), _BLOCK):
        parts = (x[start : start + _BLOCK] for x in (y, t, r))
        a, b, c = (p.double() for p in parts) if cast else parts
        yield start, a, b, c
