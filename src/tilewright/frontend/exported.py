"""torch.export, in silence, and whether two of its programs are one, told without what takes longest: making them
functional."""

from __future__ import annotations

import functools
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Any

import torch
import torch.export.exported_program as programs
import torch.utils._pytree as pytree
from torch import fx, nn
from torch._C import DispatchKey
from torch._ops import OperatorBase
from torch.export import ExportedProgram

from .associative import recognised
from .eager import export
from .recurrent import told_by_shape

Exported = ExportedProgram | Exception  # or what torch.export raised: it has many kinds of errors
_DROPOUTS = {
    torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default, torch.ops.aten.feature_dropout.default,
    torch.ops.aten.alpha_dropout.default, torch.ops.aten.feature_alpha_dropout.default,
}  # fmt: skip
_COMPOSITES = "_collect_all_valid_cia_ops"  # torch's own, in `programs`


def exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> Exported:
    """The module as torch.export sees it; without `training` also the scans that it would not."""
    try:
        with nullcontext() if training else recognised(), told_by_shape():
            return export(module, args, kwargs)
    except Exception as error:
        return error


def functional(program: ExportedProgram, *, training: bool) -> ExportedProgram:
    """The program in operators that write to nothing."""
    with nullcontext() if training else recognised(), told_by_shape(), _composites_at_hand(), _kernels_at_hand():
        made: ExportedProgram = program.run_decompositions({})
        return made


def alike(one: Exported, other: Exported) -> bool:
    """Whether both are made functional alike. False where that can't be told: of parts in graphs of their own, say."""
    if isinstance(one, Exception) or isinstance(other, Exception) or one.constants.keys() != other.constants.keys():
        return False
    pairs = ((value, other.constants[name]) for name, value in one.constants.items())
    return (
        str(one.graph_signature) == str(other.graph_signature)
        and one.call_spec == other.call_spec
        and _text(one.graph) == _text(other.graph) != ""
        and all(isinstance(a, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    )


def drops(program: Exported) -> bool:
    """Whether it has a dropout, under either train flag, whose share is not nought. Of a module with such a dropout the
    flag is asked: that another flag would change nothing, as somebody wrote `training=False` down, is not looked for,
    which would take as long as all else."""
    if isinstance(program, Exception):
        return False
    asked = (node for node in program.graph.nodes if node.target in _DROPOUTS)
    return any(len(node.args) > 1 and node.args[1] != 0 for node in asked)


def told_apart(one: Exported, other: Exported) -> bool | None:
    """Whether they compute different things: not where they are alike, surely where batch norms of one take the batch's
    statistics and those of the other the running ones; None where only their functional graphs tell."""
    if _of_the_batch(one) != _of_the_batch(other):
        return True
    return False if alike(one, other) else None


def _of_the_batch(program: Exported) -> list[Any]:
    nodes = [] if isinstance(program, Exception) else program.graph.nodes
    return [node.args[5] for node in nodes if node.target is torch.ops.aten.batch_norm.default]


def _text(graph: fx.Graph) -> str:
    """All of a graph, with the kinds of its values; "" of one that holds others."""
    if any(node.op == "get_attr" for node in graph.nodes):
        return ""
    kinds = [_kind(value) for node in graph.nodes for value in pytree.tree_leaves(node.meta.get("val"))]
    return "\n".join([str(graph), *kinds])


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.device}"
    return repr(value)


@contextmanager
def other_flag(module: nn.Module) -> Iterator[None]:
    """Inside, the module is under the other train flag; after it, all flags are as they were."""
    flags = {part: part.training for part in module.modules()}
    try:
        module.train(not module.training)
        yield
    finally:
        for part, flag in flags.items():
            part.training = flag


def has_own_backward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], asked: Sequence[torch.Tensor]
) -> bool:
    """Whether a gradient goes through an autograd.Function, which tracers see no more of than its forward."""
    leaves = {id(t): t.detach().requires_grad_() for t in asked}
    given, named = pytree.tree_map(lambda v: leaves.get(id(v), v), (args, kwargs))
    with torch.enable_grad():
        results = pytree.tree_leaves(module(*given, **named))
    todo: list[Any] = [t.grad_fn for t in results if isinstance(t, torch.Tensor)]
    seen: set[Any] = set()
    while todo:
        step = todo.pop()
        if step is not None and step not in seen:
            if isinstance(step, torch.autograd.function.BackwardCFunction):
                return True
            seen.add(step)
            todo += [behind for behind, _ in step.next_functions]
    return False


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, torch prints no graph on which it gives up: the reason is told in a line."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = log.disabled
    log.disabled = True
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        log.disabled = before


@contextmanager
def _composites_at_hand() -> Iterator[None]:
    """Inside, torch.export knows which operators are made of others from one time to the next. Of itself it asks the
    dispatcher anew for each of its namespaces, for a quarter of the time that a small graph takes."""
    collect = getattr(programs, _COMPOSITES, None)
    if collect is None:  # another torch
        yield
        return
    setattr(programs, _COMPOSITES, lambda: _composites(collect, len(torch._C._dispatch_get_all_op_names())))
    try:
        yield
    finally:
        setattr(programs, _COMPOSITES, collect)


@functools.lru_cache(maxsize=1)
def _composites(collect: Callable[[], set[Any]], count: int) -> set[Any]:
    """Good for as long as there are so many operators: they are registered by name, and names are not given twice."""
    return collect()


@contextmanager
def _kernels_at_hand() -> Iterator[None]:
    """Inside, an operator takes another kernel as torch lets it, less the annotations that torch evaluates anew for
    each of the thousands that it puts in and takes out for every graph: one of six operators takes 87 to 109 ms of a
    processor in the place of 127 to 136 (torch 2.13+cpu, AMD EPYC, 2026-11-23, `trace`)."""
    theirs = OperatorBase.py_impl

    def py_impl(operator: Any, key: Any) -> Callable[[Any], Any]:
        plain = isinstance(key, DispatchKey) and key != DispatchKey.Python and hasattr(operator, "_dispatch_cache")
        if not plain or key in operator.py_kernels:
            return theirs(operator, key)

        def inner(kernel: Any) -> Any:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()
            return kernel

        return inner

    OperatorBase.py_impl = py_impl  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        OperatorBase.py_impl = theirs  # type: ignore[method-assign]
