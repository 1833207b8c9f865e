"""What kind of work a module is, from its graph: the prompts differ by it."""

from __future__ import annotations

from math import prod

from ...ir.graph import Graph, refs
from ...ir.program import REDUCTIONS, SCANS

CATEGORIES = (
    "gemm", "convolution", "attention", "pointwise", "row_reduction", "column_reduction", "scan", "recurrence",
    "loss", "mixed",
)  # fmt: skip
_PRODUCTS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mv", "dot", "addmv", "einsum", "tensordot", "bilinear")
)
_FEWEST_STEPS, _LONGEST_STEP = 8, 64  # of a loop over time that was unrolled, in calls
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"))
_SOFTMAX = frozenset(("softmax", "log_softmax", "safe_softmax"))


def category(graph: Graph | None) -> str:
    """One of CATEGORIES; "mixed" where the module could not be traced."""
    if graph is None:
        return "mixed"
    labels = [call.label for call in graph.calls]
    products = sum(label in _PRODUCTS for label in labels)
    if any(label in _RECURRENT for label in labels) or (products >= _FEWEST_STEPS and _unrolled(labels)):
        return "recurrence"
    softmax = any(label in _SOFTMAX for label in labels)
    if any("attention" in label for label in labels) or (products >= 2 and softmax):
        return "attention"
    convolutions = any(label.startswith(("conv", "cudnn_conv", "mkldnn_conv")) for label in labels)
    reduced = _reduced(graph)
    scans = any(node.op in SCANS for node in graph.nodes) or _unrolled(labels)
    heavy = [name for name, there in (("gemm", products), ("convolution", convolutions), ("scan", scans)) if there]
    if heavy:
        alone = len(heavy) == 1 and (not reduced or heavy == ["scan"])
        return heavy[0] if alone else "mixed"
    if not reduced:
        return "pointwise" if any(node.op != "call" for node in graph.nodes if node.origin) else "mixed"
    shapes = {node.name: node.shape for node in graph.nodes}
    if all(prod(shapes[name]) == 1 for name in graph.outputs if name in shapes):
        return "loss"
    return f"{next(iter(reduced))}_reduction" if len(reduced) == 1 else "mixed"


def is_depthwise(graph: Graph | None) -> bool:
    """Whether all of its convolutions have as many groups as their inputs have channels."""
    shapes = {node.name: node.shape for node in graph.nodes} if graph is not None else {}
    convolutions = [c for c in graph.calls if c.label.startswith("conv")] if graph is not None else []
    channels = [shapes.get(refs(call.args)[0], ())[1:2] for call in convolutions]
    return bool(channels) and all((call.args[-1],) == n for call, n in zip(convolutions, channels, strict=True))


def _unrolled(labels: list[str]) -> bool:
    """Whether the same calls come again and again, each time on another slice: a loop over time."""
    for period in range(2, _LONGEST_STEP + 1):
        alike = 0
        for i, (one, next_one) in enumerate(zip(labels, labels[period:], strict=False)):
            alike = alike + 1 if one == next_one else 0
            if alike >= (_FEWEST_STEPS - 1) * period and "select" in labels[i : i + period]:
                return True
    return False


def _reduced(graph: Graph) -> set[str]:
    """Along which way something is reduced: "row" over the last dimension, "column" over others alone."""
    shapes = {node.name: node.shape for node in graph.nodes}
    found = set()
    for node in graph.nodes:
        source = shapes.get(str(node.args[0]), ()) if node.args else ()
        if node.op in REDUCTIONS and source:
            found.add("row" if len(source) - 1 in node.dims else "column")
    return found
