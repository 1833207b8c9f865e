"""A value as a convolution, scaled and shifted: the form of which windows and sums over space are taken.

    sums over windows of x * w       = x * (sums of w, at a larger stride)      one convolution for two operators
    the same of a transposed one     = a plain convolution of the small input    where its stride divides the windows'
    the same of single taps          = (sums over windows of x) * w              fewer pixels (1x1 before pooling)
    sum over a dimension of x * w    = (for each tap, the sum of what it meets) * w     one dimension less
    sum over all of them             = a product of matrices

`*` is convolution, which acts along each dimension by itself. In exact numbers nothing changes. `windows` and
`spatial_sums` make the first three and the last two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.convolution import ConvolutionCall, convolution_flops
from tilewright.ir.graph import Node

from ..lowering.form import Stuck, aligned, groups, reshaped_addend
from ..lowering.lower import FLOATS, Expr
from .draft import Draft
from .sides import Side

Value = Expr | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionForm:
    """The convolution of `x` (N, C, spatial) and `weight`, as torch lays them out, times `gain` and `scale`, plus
    `shifts`. These broadcast to `base`, (N, channels, spatial), of which the value is a view of this `shape`.
    `rest`: dimensions of it over which it is summed at last. `window`: the load as which it is read by windows, whose
    shape it has then. `steps`: what was done, for a reader."""

    draft: Draft
    x: Expr
    weight: Expr
    sides: tuple[Side, ...]
    groups: int
    transposed: bool
    shape: tuple[int, ...]
    scale: float = 1.0
    gain: Expr | None = None
    shifts: tuple[Value, ...] = ()
    rest: tuple[int, ...] = ()
    window: Node | None = None
    steps: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        return self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0]

    @property
    def base(self) -> tuple[int, ...]:
        return (self.x.shape[0], self.channels, *(1 if s.summed else s.out for s in self.sides))

    @property
    def flops(self) -> int:
        live = [s for s in self.sides if not s.summed]
        x, out = (self.x.shape[0], 1, *(s.size for s in live)), (self.x.shape[0], 1, *(s.out for s in live))
        return convolution_flops(x, self.weight.shape, out, transposed=self.transposed)

    def pulled(self, node: Node) -> Expr:
        """Another argument of a pointwise operator on the value, to broadcast against `base`."""
        value = aligned(self.draft, node, self.shape)
        if value.dtype not in FLOATS:
            raise Stuck
        if self.window is not None:
            if any(size > 1 for size in value.shape[2:]):
                raise Stuck
            return value.reshape((*value.shape[:2], *(1 for _ in self.sides)))
        if self.shape == self.base:
            return value
        made = reshaped_addend(value, self.shape, self.base, list(groups(self.shape, self.base)))
        assert isinstance(made, Expr)
        return made

    def times(self, value: Value) -> ConvolutionForm:
        shifts = tuple(s * value if isinstance(s, Expr) else value * s for s in self.shifts)
        if isinstance(value, Expr):
            gain = value.wide() if self.gain is None else self.gain * value.wide()
            return replace(self, gain=gain, shifts=shifts)
        if value == 0.0 or value - value != 0.0:
            raise Stuck
        return replace(self, scale=self.scale * value, shifts=shifts)

    def plus(self, value: Value) -> ConvolutionForm:
        last = self.shifts[-1] if self.shifts else None
        if isinstance(last, Expr) and isinstance(value, Expr) and last.shape == value.shape:
            return replace(self, shifts=(*self.shifts[:-1], last.wide() + value.wide()))
        return replace(self, shifts=(*self.shifts, value))

    def varies(self, dim: int) -> bool:
        """Whether the gain does along this dimension of `base`."""
        return self.gain is not None and self.gain.shape[dim] > 1

    def value(self, node: Node) -> Expr:
        """What stands for a node whose value this is."""
        made = self._convolved().reshape(self.base)
        if self.scale != 1.0 or self.gain is not None or self.shifts:
            made = made.wide()
        made = made * self.scale if self.scale != 1.0 else made
        made = made * self.gain if self.gain is not None else made
        for shift in self.shifts:
            made = made + shift
        made = made.reshape(self.shape)
        made = made.wide().reduce("sum", self.rest) if self.rest else made
        return made.reshape(node.shape).to(node.dtype)

    def _convolved(self) -> Expr:
        """The convolution itself, sides that are summed among its channels; of these alone a product of matrices."""
        live = [i for i, s in enumerate(self.sides) if not s.summed]
        gone = [i for i, s in enumerate(self.sides) if s.summed]
        dtype, taps = self.x.dtype, prod(self.sides[i].taps for i in gone)
        order = (0, 1, *(2 + i for i in (*gone, *live)))
        batch, inputs = self.x.shape[:2]
        x = self.x.permute(order).reshape((batch, inputs * taps, *(self.x.shape[2 + i] for i in live)))
        first, second, *shape = self.weight.shape
        sizes = (first * taps, second) if self.transposed else (first, second * taps)
        of_weight = (0, *order[2 : 2 + len(gone)], 1, *order[2 + len(gone) :]) if self.transposed else order
        weight = self.weight.to(dtype).permute(of_weight).reshape((*sizes, *(shape[i] for i in live)))
        if not live:
            return self._multiplied(x, weight)
        sides = [self.sides[i] for i in live]
        return self.draft.convolution(x, weight, sides, groups=self.groups, transposed=self.transposed)

    def _multiplied(self, x: Expr, weight: Expr) -> Expr:
        """(N, channels) of x (N, inputs) and the weight's matrices, one for each group."""
        batch, of_group, each = x.shape[0], x.shape[1] // self.groups, self.channels // self.groups
        matrix = weight.reshape((self.groups, of_group, each) if self.transposed else (self.groups, each, of_group))
        if of_group == 1 or each == 1:
            columns = matrix.permute((0, 2, 1)) if self.transposed else matrix
            rows = x.reshape((batch, self.groups, 1, of_group))
            return (rows * columns).reduce("sum", (3,)).reshape((batch, self.channels))
        letters = "kc" if self.transposed else "ck"
        if self.groups == 1:
            return self.draft.einsum((x, "nk"), (matrix.reshape(matrix.shape[1:]), letters), "nc", x.dtype)
        rows = x.reshape((batch, self.groups, of_group))
        made = self.draft.einsum((rows, "ngk"), (matrix, f"g{letters}"), "ngc", x.dtype)
        return made.reshape((batch, self.channels))


def form_of(draft: Draft, whole: ConvolutionCall) -> ConvolutionForm:
    """A convolution with its bias."""
    sides = tuple(
        Side(size=size, taps=taps, stride=stride, padding=padding, dilation=dilation, out=out)
        for size, taps, stride, padding, dilation, out in zip(
            whole.x.shape[2:], whole.weight.shape[2:], whole.stride, whole.padding, whole.dilation, whole.out,
            strict=True)
    )  # fmt: skip
    form = ConvolutionForm(
        draft=draft, x=Expr(draft, whole.x), weight=Expr(draft, whole.weight), sides=sides, groups=whole.groups,
        transposed=whole.transposed, shape=whole.node.shape,
    )  # fmt: skip
    if whole.bias is None:
        return form
    bias = Expr(draft, whole.bias)
    return form.plus(bias.reshape((1, bias.shape[0], *(1 for _ in sides))))
