"""Tensors that are plain attributes of a module and that each call replaces by new ones, as a recurrent state that is
kept: while the module is traced they are buffers, so that what a call leaves there is an update like any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tilewright.ir.graph import Graph

from .writes import written


@contextmanager
def buffers_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Inside, such attributes are buffers. Gives the name of something else that each call writes, "" where there is
    nothing, and the paths of the attributes; afterwards all is as it was."""
    before: list[tuple[nn.Module, str, Tensor]] = []
    paths: list[str] = []
    try:
        while name := written(module, args, kwargs):
            holder, attribute = _holder(module, name)
            tensor = vars(holder).get(attribute) if holder is not None else None
            if holder is None or type(tensor) is not Tensor:
                break
            before.append((holder, attribute, tensor))
            delattr(holder, attribute)
            holder.register_buffer(attribute, tensor)
            paths.append(name.partition(".")[2])
        yield name, tuple(paths)
    finally:
        for holder, attribute, tensor in before:
            del holder._buffers[attribute]
            holder._non_persistent_buffers_set.discard(attribute)
            setattr(holder, attribute, tensor)


def _holder(module: nn.Module, name: str) -> tuple[nn.Module | None, str]:
    """The submodule, and the name of its attribute, that "self.PATH.NAME" is."""
    parts = name.split(".")
    try:
        return module.get_submodule(".".join(parts[1:-1])), parts[-1]
    except AttributeError:
        return None, ""


def alike(graph: Graph, paths: Sequence[str]) -> Graph:
    """The graph. Raises ValueError where it leaves a tensor of another shape or type in the place of one, or does not
    say what it leaves at these paths."""
    nodes = {node.name: node for node in graph.nodes}
    if unsaid := set(paths) - {nodes[update.target].path for update in graph.updates}:
        raise ValueError(f"each call writes {min(unsaid)}, in a way that can't be followed")
    for update in graph.updates:
        old, new = nodes[update.target], nodes[update.value]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(f"a call leaves a tensor of another shape or type in {old.path}")
    return graph
