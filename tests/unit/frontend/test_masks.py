"""Models are traced as they run in eager mode; masks that say nothing, or `is_causal`, are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.transformer import Decoder, Encoder, LlamaLayer
from tilewright.frontend.eager import unasked
from tilewright.frontend.trace import trace
from tilewright.ir.graph import Call, Graph

pytestmark = pytest.mark.each(3)

ids = torch.randint(0, 50, (2, 12))


class Flat(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Any:
        return self.model(*given)["last"]


def attentions(graph: Graph) -> list[Call]:
    return [call for call in graph.calls if call.label == "scaled_dot_product_attention"]


def settings(call: Call) -> dict[str, Any]:
    names = [a.name for a in torch.ops.aten.scaled_dot_product_attention.default._schema.arguments]
    return {**dict(zip(names, call.args, strict=False)), **dict(call.kwargs)}


def test_a_decoder_has_no_mask_and_stays_causal() -> None:
    found = attentions(trace(Flat(Decoder()).eval(), (ids,), {}))
    assert [(settings(c).get("attn_mask"), settings(c).get("is_causal")) for c in found] == [(None, True)] * 2


def test_an_encoder_whose_mask_of_ones_cannot_be_looked_at_has_none() -> None:
    graph = trace(Flat(Encoder()).eval(), (ids,), {})
    assert [(settings(c).get("attn_mask"), bool(settings(c).get("is_causal"))) for c in attentions(graph)] == [
        (None, False)
    ] * 2
    assert not any(call.label in ("ones", "masked_fill") for call in graph.calls)


@pytest.mark.parametrize("model", [Decoder, Encoder])
def test_a_mask_that_is_given_stays(model: type) -> None:
    mask = torch.ones(2, 12)
    mask[0, 9:] = 0
    found = attentions(trace(Flat(model()).eval(), (ids, mask), {}))
    assert all(settings(call)["attn_mask"] is not None for call in found) and len(found) == 2


def test_only_code_that_is_not_torchs_reads_that_nobody_exports() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) if torch.compiler.is_exporting() or torch.compiler.is_compiling() else F.relu(x)

    assert [call.label for call in trace(Asks(), (torch.ones(2),), {}).calls] == ["relu"]
    before = torch.compiler.is_exporting.__code__
    with pytest.raises(ZeroDivisionError), unasked():
        assert torch.compiler.is_exporting.__code__ is not before
        _ = 1 / 0
    assert torch.compiler.is_exporting.__code__ is before


def test_only_what_asks_is_exported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Decides(nn.Module):
        def __init__(self, asks: bool) -> None:
            super().__init__()
            self.asks = asks

        def forward(self, x: Tensor) -> Tensor:
            compiling = self.asks and torch.compiler.is_compiling()
            return x if not compiling and bool((x > 0).all()) else F.relu(x)

    times = []
    theirs = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: (times.append(1), theirs(*a, **k))[1])
    assert [call.label for call in trace(Decides(asks=True), (torch.ones(2),), {}).calls] == ["relu"]
    asked = len(times)
    with pytest.raises(ValueError, match="takes a number out of a tensor"):
        trace(Decides(asks=False), (torch.ones(2),), {})
    assert (asked, len(times) - asked) == (4, 1)  # under both train flags; one that fails is not tried under the other


def _attend(mask: Callable[[int, int], Tensor], keys: int = 6) -> tuple[nn.Module, tuple[Tensor, ...]]:
    class Attends(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[-2], k.shape[-2]))

    return Attends(), (torch.randn(2, 3, 6, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 8))


def _added(sees: Tensor, value: float = float("-inf")) -> Tensor:
    return torch.zeros(sees.shape).masked_fill(~sees, value)


def _sees(rows: int, columns: int) -> Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("mask", "keys", "kept", "causal"),
    [
        (lambda m, n: torch.ones(m, n, dtype=torch.bool), 6, False, False),
        (lambda m, n: torch.zeros(1, 1, m, n), 4, False, False),
        (_sees, 6, False, True),
        (lambda m, n: _sees(m, n).expand(2, 3, m, n), 6, False, True),
        (lambda m, n: _added(_sees(m, n)), 6, False, True),
        (lambda m, n: _added(_sees(m, n), torch.finfo(torch.float32).min), 6, False, True),
        (lambda m, n: _added(_sees(m, n), -10.0), 6, True, False),
        (_sees, 4, True, False),
        (_sees, 9, True, False),
        (lambda m, n: _sees(m, n).T.flip(0), 6, True, False),
        (lambda m, n: torch.full((m, n), 0.5), 6, True, False),
    ],
)
def test_a_mask_of_constants_is_left_out_where_torch_gives_the_same(
    mask: Any, keys: int, kept: bool, causal: bool
) -> None:
    module, (q, k, v) = _attend(mask, keys)
    (call,) = attentions(trace(module, (q, k, v), {}))
    found = settings(call)
    assert (found.get("attn_mask") is not None, bool(found.get("is_causal"))) == (kept, causal)
    if not kept:
        q, k, v = (t.double() for t in (q, k, v))
        given = mask(6, keys)
        wanted = F.scaled_dot_product_attention(
            q, k, v, attn_mask=given if given.dtype == torch.bool else given.double()
        )
        torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, is_causal=causal), wanted)


def test_a_large_mask_and_a_drawn_one_stay() -> None:
    for mask in (lambda m, n: torch.ones(1 << 13, 1 << 13).tril().bool()[:m, :n], lambda m, n: torch.rand(m, n) < 2):
        module, given = _attend(mask)
        (call,) = attentions(trace(module, given, {}))
        assert settings(call).get("attn_mask") is not None


def test_a_llama_like_layer_is_traced_whole() -> None:
    graph = trace(LlamaLayer().eval(), (torch.randn(2, 12, 64),), {})
    (call,) = attentions(graph)
    assert (settings(call).get("attn_mask"), settings(call)["is_causal"], settings(call)["enable_gqa"]) == (
        None,
        True,
        True,
    )
