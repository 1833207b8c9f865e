"""The op beside the direct call: same values, and torch.compile keeps it in one graph."""

import pytest
import torch

from tilewright.kernels.ops import torch_op


def halves_and_sum(a, b):
    return a / 2, (a + b).sum(0, keepdim=True)


def test_eager_calls_launch_itself():
    sentinel = (torch.zeros(1),)
    call = torch_op("direct", lambda a: sentinel, (((1,), "f32"),), 1)
    assert call(torch.ones(1)) is sentinel


@pytest.mark.filterwarnings("ignore")
def test_compiles_into_one_graph():
    call = torch_op("pair", halves_and_sum, (((3, 4), "f32"), ((1, 4), "f32")), 2)
    a, b = torch.randn(3, 4), torch.randn(3, 4)

    def module(a, b):
        x, y = call(a * 2, b)
        return x + y

    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), a + (2 * a + b).sum(0, keepdim=True))


@pytest.mark.filterwarnings("ignore")
def test_single_result_and_names_that_repeat():
    one = torch_op("same", lambda a: (a + 1,), (((2,), "f32"),), 1)
    two = torch_op("same", lambda a: (a + 2,), (((2,), "f32"),), 1)
    compiled = torch.compile(lambda a: one(a)[0] * two(a)[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.tensor([1.0, 2.0])), torch.tensor([6.0, 12.0]))


@pytest.mark.parametrize(("outputs", "arity"), [((), 1), ((((1,), "f32"),), 0)])
def test_refuses_nothing_in_or_out(outputs, arity):
    with pytest.raises(ValueError, match="needs an operand"):
        torch_op("none", lambda *a: (), outputs, arity)
