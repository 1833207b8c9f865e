"""torch's recurrent layers, while a module is traced: the shapes of what they return are told.

Of itself torch runs each step of each layer on tensors without data to learn them, half a minute and more for six
layers of 512 steps; nothing comes of it, for the layer stays one operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

_NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextmanager
def told_by_shape() -> Iterator[None]:
    """Inside, a recurrent layer over a padded batch that meets tensors without data does nothing but make its results;
    on any others it does what it does."""
    from torch._decomp import decomposition_table

    ops = [op for op in (getattr(torch.ops.aten, name).input for name in _NAMES) if op in decomposition_table]
    steps = {op: decomposition_table[op] for op in ops}
    with ExitStack() as changed:
        for op in ops:  # torch asks the one table or the other
            shaped, mine = _shaped(steps[op]), [key for key, made in op.py_kernels.items() if made is steps[op]]
            changed.callback(decomposition_table.update, {op: steps[op]})
            changed.callback(op.py_kernels.update, dict.fromkeys(mine, steps[op]))
            decomposition_table[op] = shaped
            op.py_kernels.update(dict.fromkeys(mine, shaped))
            op._dispatch_cache.clear()
            changed.callback(op._dispatch_cache.clear)
        yield


def _shaped(steps: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(steps)  # torch looks at its name
    def made(
        given: Tensor, state: Tensor | Sequence[Tensor], weights: Sequence[Tensor], *settings: Any
    ) -> Any:  # fmt: skip
        from torch._subclasses.fake_tensor import FakeTensor

        states = [state] if isinstance(state, Tensor) else list(state)
        if not isinstance(given, FakeTensor) or torch.is_grad_enabled():
            return steps(given, state, weights, *settings)
        *_, bidirectional, batch_first = settings
        width = states[0].shape[-1] * (2 if bidirectional else 1)  # of an LSTM: what it projects to
        time_first = given.transpose(0, 1) if batch_first else given
        result = given.new_empty((*time_first.shape[:-1], width))
        return (result.transpose(0, 1) if batch_first else result, *(given.new_empty(s.shape) for s in states))

    return made
