"""Convolution with its epilogue as one graph of cuDNN, channels-last (pip install 'tilewright[cudnn]').

    activation(convolution(x, weight) + bias + residual)       bias, residual and activation where the module has them

The graph adds and activates in fp32 before it rounds; fp32 tensors are multiplied as TF32 on tensor cores. Which of
cuDNN's heuristics chooses the kernel is a knob. (https://github.com/NVIDIA/cudnn-frontend, python/cudnn)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.facts.candidate import SourceFile
from tilewright.facts.device import Device
from tilewright.facts.regions import region_of
from tilewright.facts.space import Point, point
from tilewright.ir.graph import Call, Graph, Node, Struct, Template

from ..realiser import Refused
from ..templates import template
from .flow import ValueFlow
from .protocol import LibraryMatch, fitting, installed

_PACKAGE = "nvidia-cudnn-frontend"
_AMPERE = 80
_LANES = {"f16": 8, "bf16": 8, "f32": 4}  # channels come in so many: 16 bytes
_LAST = (0, 2, 3, 1)  # channels-last, as Node.order says it
HEURISTICS = ("A", "B")
_PLAIN = {"relu": "relu", "silu": "swish", "sigmoid": "sigmoid", "tanh": "tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(LibraryMatch):
    """One convolution over two dimensions. `parameters` are the names of the region's inputs, in order: "x", "weight",
    "bias", "residual". `activation`: the method of cuDNN's graph, with its settings in `how`; "" without one.
    `channels_last`: how the graph has the result laid out, else row-major."""

    parameters: tuple[str, ...]
    dtype: str
    channels: tuple[int, int]  # in, out
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    activation: str
    how: tuple[tuple[str, float], ...]
    channels_last: bool


class CudnnConvolution:
    """A row of the table; see `protocol.Library`."""

    name = "cuDNN's graph API"

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        every = list(convolutions(graph)) if device.target == "cuda" else []
        if not every:
            return ()
        if device.capability < _AMPERE:
            return Refused(f"its fused convolutions want sm_80 or later, and this device is {device.architecture}")
        found = fitting(every, _lack)
        if isinstance(found, Refused) or installed(_PACKAGE):
            return found
        return Refused(
            "it could realise the module's convolutions with their epilogues, but is not installed "
            f"(pip install {_PACKAGE})"
        )

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        return tuple(point(heuristic=name) for name in HEURISTICS)

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        assert isinstance(match, Convolution)
        text = template(__package__, "cudnn_conv.py.jinja", trim=True).render(conv=match, heuristics=HEURISTICS)
        return (SourceFile(path="model.py", text=text),)


def convolutions(graph: Graph) -> Iterator[Convolution]:
    """Those with an epilogue: a bias, a residual or an activation; torch calls cuDNN for what has none."""
    flow = ValueFlow(graph)
    for call in graph.calls:
        if call.label == "conv2d" and len(call.results) == 1:
            yield from _with_epilogue(flow, call)


def _with_epilogue(flow: ValueFlow, call: Call) -> Iterator[Convolution]:
    args: list[Template] = [*call.args, *[None] * (7 - len(call.args))]
    x, weight, bias, *numbers = args
    given = {"x": flow.node(x), "weight": flow.node(weight), "bias": flow.node(bias)}
    lists = [_pair(value, default) for value, default in zip(numbers[:3], (1, 0, 1), strict=True)]
    if given["x"] is None or given["weight"] is None or len(given["x"].shape) != 4 or None in lists:
        return
    calls, made, follows = {call.name}, call, flow.only_reader(call)
    if follows is not None and (residual := _residual(flow, follows, made)) is not None:
        given["residual"] = residual
        calls, made, follows = calls | {follows.name}, follows, flow.only_reader(follows)
    activation, how = _activation(follows) if follows is not None else ("", ())
    if activation and follows is not None:
        calls, made = calls | {follows.name}, follows
    there = {node.name: name for name, node in given.items() if node is not None}
    result = flow.nodes[made.results[0]]
    if bool(activation) + ("bias" in there.values()) + ("residual" in given) == 0 or result.order not in ((), _LAST):
        return
    try:
        region = region_of(flow.graph, frozenset(calls))
    except ValueError:
        return
    if set(region.inputs) == set(there) and len(region.outputs) == 1:
        stride, padding, dilation = (one for one in lists if one is not None)
        shape = given["weight"].shape
        yield Convolution(
            region, "convolution with its epilogue", parameters=tuple(there[n] for n in region.inputs),
            dtype=given["x"].dtype, channels=(given["x"].shape[1], shape[0]), stride=stride, padding=padding,
            dilation=dilation, groups=numbers[3] if isinstance(numbers[3], int) else 1, activation=activation,
            how=how, channels_last=result.order == _LAST,
        )  # fmt: skip


def _residual(flow: ValueFlow, add: Call, made: Call) -> Node | None:
    """What is added to the result, as large as it; None where this is another operator."""
    if add.label != "add" or add.kwargs or len(add.args) != 2:
        return None
    others = [node for a in add.args if (node := flow.node(a)) is not None and node.name != made.results[0]]
    mine = flow.nodes[made.results[0]]
    alike = len(others) == 1 and (others[0].shape, others[0].dtype) == (mine.shape, mine.dtype)
    return others[0] if alike else None


def _activation(call: Call) -> tuple[str, tuple[tuple[str, float], ...]]:
    """The method of cuDNN's graph that does what this operator does, and its settings; "" for another."""
    numbers = [a for a in call.args[1:] if isinstance(a, int | float)]
    if call.label in _PLAIN and len(call.args) == 1:
        return _PLAIN[call.label], ()
    if call.label == "gelu":
        named: Mapping[str, Template] = dict(call.kwargs)
        return ("gelu_approx_tanh" if named.get("approximate") == "tanh" else "gelu"), ()
    if call.label == "leaky_relu":
        return "leaky_relu", (("negative_slope", float(numbers[0]) if numbers else 0.01),)
    if call.label == "relu6" or (call.label in ("clamp", "hardtanh") and len(numbers) == 2):
        low, high = numbers if len(numbers) == 2 else (0, 6)
        return "relu", (("lower_clip", float(low)), ("upper_clip", float(high)))
    return "", ()


def _pair(value: Template, default: int) -> tuple[int, ...] | None:
    """A number for each of two dimensions; None where words stand in their place."""
    if value is None:
        return (default, default)
    items = value.items if isinstance(value, Struct) else (value,)
    numbers = tuple(i for i in items if isinstance(i, int))
    if len(numbers) != len(items) or len(numbers) not in (1, 2):
        return None
    return numbers if len(numbers) == 2 else numbers * 2


def _lack(conv: Convolution) -> str:
    """What keeps cuDNN's graph from a convolution, as a sentence; "" where nothing does."""
    if conv.dtype not in _LANES:
        return f"it computes in f16, bf16 and as TF32, and the module's convolution in {conv.dtype}"
    if conv.groups != 1:
        return f"it fuses convolutions of one group, and the module's has {conv.groups}"
    if any(count % _LANES[conv.dtype] for count in conv.channels):
        return f"it takes channels in multiples of {_LANES[conv.dtype]}, and the module has {conv.channels[0]} " \
               f"and {conv.channels[1]}"  # fmt: skip
    return ""
