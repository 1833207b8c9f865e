"""Whether an operator draws random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_ATEN = torch.ops.aten
_LAYERS = (_ATEN.lstm, _ATEN.gru, _ATEN.rnn_tanh, _ATEN.rnn_relu)


def draws(node: fx.Node) -> bool:
    """Whether it does as it is called: attention and recurrent layers without dropout are marked so, too, and draw
    none."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if node.target.overloadpacket in _LAYERS:
        return bool(given["num_layers"] > 1 and given["dropout"] and given["train"])
    return node.target is not _ATEN.scaled_dot_product_attention.default or bool(given.get("dropout_p", 0.0) != 0.0)
