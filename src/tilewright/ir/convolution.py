"""Which torch operators convolve, and with which strides: conv1d to conv3d, their transposes, and `convolution`; and
`convolution_backward` where it is asked for the weight's gradient alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from .graph import Call, Node, Ref, Struct, Template

_NAMES = {f"aten.conv{d}d.{kind}": False for d in (1, 2, 3) for kind in ("default", "padding")} | {
    "aten.convolution.default": False,
    **{f"aten.conv_transpose{d}d.{kind}": True for d, kind in ((1, "default"), (2, "input"), (3, "input"))},
}
_BACKWARD = "aten.convolution_backward.default"
TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    """One call: `node` = the convolution of x and the weight, + bias. Stride, padding and dilation have one number for
    each spatial dimension; `padding` counts zeros ahead of the first element."""

    node: Node
    x: Node
    weight: Node
    bias: Node | None
    groups: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool

    @property
    def out(self) -> tuple[int, ...]:
        return self.node.shape[2:]

    @property
    def output_padding(self) -> tuple[int, ...]:
        """Places at the end of the larger side, the input's or of a transposed one the result's, that no window
        reaches; below 0 where padding "same" has one zero more there than ahead."""
        large, small = (self.node, self.x) if self.transposed else (self.x, self.node)
        sides = zip(large.shape[2:], small.shape[2:], self.weight.shape[2:], self.stride, self.padding, self.dilation,
                    strict=True)  # fmt: skip
        return tuple(n - ((o - 1) * s + d * (t - 1) + 1 - 2 * p) for n, o, t, s, p, d in sides)

    @property
    def flops(self) -> int:
        """Two for each pair of a weight and a pixel that it meets, padding included."""
        return convolution_flops(self.x.shape, self.weight.shape, self.node.shape, transposed=self.transposed)


def convolution_flops(
    x: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...], *, transposed: bool
) -> int:  # fmt: skip
    """Of a convolution of these shapes: each weight meets as many pixels as there are outputs, or of a transposed one
    inputs."""
    pixels = x if transposed else out
    return 2 * pixels[0] * prod(pixels[2:]) * prod(weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGradientCall:
    """One call: `node` = the gradient of the weight of a convolution of `x`, from `upstream`, that of its result."""

    node: Node
    x: Node
    upstream: Node
    groups: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool

    @property
    def windowed(self) -> Node:
        """What is read by windows: x, or of a transposed convolution the upstream gradient."""
        return self.upstream if self.transposed else self.x

    @property
    def dense(self) -> Node:
        """What each window is multiplied by; its channels are the weight's first dimension."""
        return self.x if self.transposed else self.upstream


def weight_gradient(
    call: Call, nodes: Mapping[str, Node], *, types: Collection[str] = TYPES
) -> WeightGradientCall | None:  # fmt: skip
    """The gradient of a weight that this call gives, and nothing else; None of another call, of an empty one, and of
    other `types`."""
    if call.target != _BACKWARD or call.kwargs or len(call.results) != 3 or len(call.args) != 11:
        return None
    _, name, _ = call.results
    upstream, x, _, _, stride, padding, dilation, transposed, _, groups, _ = call.args
    if call.results != ("", name, "") or not name or not isinstance(upstream, Ref) or not isinstance(x, Ref):
        return None
    node, g, read = nodes[name], nodes[upstream.name], nodes[x.name]
    numbers = [_numbers(n, len(node.shape) - 2) for n in (stride, padding, dilation)]
    if node.op != "call" or node.dtype not in types or 0 in (*g.shape, *read.shape) or not isinstance(groups, int):
        return None
    if {node.dtype, g.dtype, read.dtype} != {node.dtype} or None in numbers:
        return None
    steps, padded, spread = (n for n in numbers if n is not None)
    return WeightGradientCall(
        node=node, x=read, upstream=g, groups=groups, stride=steps, padding=padded, dilation=spread,
        transposed=bool(transposed),
    )  # fmt: skip


def weight_gradient_call(
    forward: ConvolutionCall, upstream: str, weight: str, x: str, *, name: str, result: str
) -> Call:  # fmt: skip
    """The call that `weight_gradient` reads, of a convolution and the names of values."""
    mask = Struct(kind="list", items=(False, True, False))
    args = (Ref(name=upstream), Ref(name=x), Ref(name=weight), None, *_options(forward, forward.transposed), mask)
    return Call(name=name, target=_BACKWARD, args=args, results=("", result, ""), single=False)


def input_gradient_call(forward: ConvolutionCall, upstream: str, weight: str, *, name: str, result: str) -> Call:
    """The gradient of a convolution's input: the convolution that goes the other way, with the same weight."""
    args = (Ref(name=upstream), Ref(name=weight), None, *_options(forward, not forward.transposed))
    return Call(name=name, target="aten.convolution.default", args=args, results=(result,))


def _options(forward: ConvolutionCall, transposed: bool) -> tuple[Template, ...]:
    """Stride, padding, dilation, transposed, output padding and groups of a convolution with the forward's numbers."""
    extra = forward.output_padding if transposed else (0,) * len(forward.stride)
    numbers = (forward.stride, forward.padding, forward.dilation, extra)
    stride, padding, dilation, more = (Struct(kind="list", items=tuple(n)) for n in numbers)
    return stride, padding, dilation, transposed, more, forward.groups


def convolved(
    call: Call, nodes: Mapping[str, Node], *, types: Collection[str] = TYPES
) -> ConvolutionCall | None:  # fmt: skip
    """What this call convolves; None of another call, of an empty one, and where dtypes differ, or are none of these
    `types`."""
    if call.target not in _NAMES or call.kwargs or len(call.results) != 1 or not call.results[0]:
        return None
    node = nodes[call.results[0]]
    if node.op != "call" or node.dtype not in types or 0 in node.shape:
        return None
    made = _read(call, node, nodes)
    return made if made is not None and made.x.dtype == made.weight.dtype == node.dtype else None


def _read(call: Call, node: Node, nodes: Mapping[str, Node]) -> ConvolutionCall | None:
    """What the arguments say."""
    general = call.target == "aten.convolution.default"
    transposed: Template = _NAMES[call.target]
    defaults: list[Template] = [None, None, None, 1, 0, *((0, 1, 1) if transposed else (1, 1))]
    if general:
        defaults = [None, None, None, 1, 0, 1, False, 0, 1]
    args = [*call.args, *defaults[len(call.args) :]]
    x, weight, bias = (nodes[a.name] if isinstance(a, Ref) else None for a in args[:3])
    if x is None or weight is None or not len(x.shape) == len(weight.shape) == len(node.shape):
        return None
    if general:
        _, _, _, stride, padding, dilation, transposed, _, groups = args
    elif transposed:
        _, _, _, stride, padding, _, groups, dilation = args
    else:
        _, _, _, stride, padding, dilation, groups = args
    rank = len(node.shape) - 2
    steps, spread = _numbers(stride, rank), _numbers(dilation, rank)
    if padding == "same" and spread is not None:
        taps = weight.shape[2:]
        padding = Struct(kind="list", items=tuple(d * (t - 1) // 2 for d, t in zip(spread, taps, strict=True)))
    padded = _numbers(0 if padding == "valid" else padding, rank)
    if steps is None or spread is None or padded is None or not isinstance(groups, int):
        return None
    return ConvolutionCall(
        node=node, x=x, weight=weight, bias=bias, groups=groups, stride=steps, padding=padded, dilation=spread,
        transposed=bool(transposed),
    )  # fmt: skip


def _numbers(value: Template, rank: int) -> tuple[int, ...] | None:
    """One for each spatial dimension."""
    items = value.items if isinstance(value, Struct) else (value,)
    found = tuple(i for i in items if isinstance(i, int))
    if len(found) != len(items) or len(found) not in (1, rank):
        return None
    return found if len(found) == rank else found * rank
