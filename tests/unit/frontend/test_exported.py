"""What is put in the place of parts of torch.export while it makes graphs functional, held against those parts."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._C import DispatchKey
from torch._ops import OperatorBase

from fakes.modules import Applies
from tilewright.frontend import exported
from tilewright.frontend.trace import trace

LINEAR = torch.ops.aten.linear.default


def test_kernels_are_taken_and_refused_as_torch_does() -> None:
    theirs, before = OperatorBase.py_impl, dict(LINEAR.py_kernels)
    try:
        with exported._kernels_at_hand():
            assert OperatorBase.py_impl is not theirs
            assert LINEAR.py_impl(DispatchKey.AutogradMeta)(print) is print
            LINEAR._dispatch_cache[DispatchKey.Meta] = len
            LINEAR.py_impl(DispatchKey.AutogradXPU)(max)
            assert not LINEAR._dispatch_cache, "what was resolved before may be another now"
            assert LINEAR.py_kernels == before | {DispatchKey.AutogradMeta: print, DispatchKey.AutogradXPU: max}
            with pytest.raises(RuntimeError, match="override a python impl"):
                LINEAR.py_impl(DispatchKey.AutogradMeta)(len)
            with pytest.raises(AssertionError, match="register a mode"):
                LINEAR.py_impl(DispatchKey.Python)(len)
            LINEAR.py_impl(nn.Parameter)(len)
            assert LINEAR.python_key_table.pop(nn.Parameter) is len
    finally:
        LINEAR.py_kernels.clear()
        LINEAR.py_kernels.update(before)
        LINEAR._dispatch_cache.clear()
    assert OperatorBase.py_impl is theirs


def test_graphs_are_those_that_torch_makes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Composites stay as they are, or are taken apart, and operators are left as they were."""
    module = Applies(lambda x, w: nn.functional.silu(nn.functional.linear(x, w)).softmax(1).chunk(2, 1))
    args = (torch.rand(3, 5), torch.rand(4, 5))
    quick, kernels = trace(module, args, {}), dict(LINEAR.py_kernels)
    monkeypatch.setattr(exported, "_kernels_at_hand", nullcontext)
    monkeypatch.setattr(exported, "_composites_at_hand", nullcontext)
    assert trace(module, args, {}) == quick and dict(LINEAR.py_kernels) == kernels
