"""Decoders with a static cache on a GPU: kernels and CUDA graphs write the caller's own cache."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import tilewright
from fakes import net
from fakes.decoders import WORDS, CachedDecoder, GPT2Block, LlamaBlock, StaticCache, generated, groups_of
from tilewright.faces.examples import ExampleCall
from tilewright.faces.live import fallbacks
from tilewright.facts.pattern import CUDA_GRAPH, INDUCTOR, Choice
from tilewright.facts.space import point

pytestmark = pytest.mark.filterwarnings("ignore")

BLOCKS = pytest.mark.parametrize("block", [LlamaBlock, GPT2Block])


def cache(block: type[nn.Module], dtype: torch.dtype) -> StaticCache:
    return StaticCache(2, heads=groups_of(block), device="cuda", dtype=dtype)


def examples(block: type[nn.Module], dtype: torch.dtype) -> list[ExampleCall]:
    given = cache(block, dtype)
    return [
        ExampleCall(
            args=(torch.randint(WORDS, (2, length), device="cuda"),),
            kwargs={"cache": given, "cache_position": torch.arange(first, first + length, device="cuda")},
        )
        for first, length in ((0, 5), (5, 1))
    ]


@BLOCKS
@pytest.mark.parametrize("graphed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_and_caches_are_the_modules(
    block: type[nn.Module], graphed: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = CachedDecoder(block).eval().cuda().to(dtype)
    more = (Choice(pattern=INDUCTOR, point=point(mode=CUDA_GRAPH)),) if graphed else ()
    mine = net.fused_as_given(tmp_path, copy.deepcopy(model), examples(block, dtype), target="cuda", more=more)
    tolerance = 1e-3 if dtype is torch.float32 else 3e-2
    for _ in range(4):  # each with a cache of its own; graphs are recorded after some calls
        prompt, caches = torch.randint(WORDS, (2, 5), device="cuda"), [cache(block, dtype) for _ in range(2)]
        tokens = generated(mine, prompt, caches[0], 8)
        wanted = generated(model, prompt, caches[1], 8)
        assert [int(layer.seen) for layer in caches[0].layers] == [12, 12]
        torch.testing.assert_close(  # of the prompt: a token that is chosen otherwise changes all that follow
            [t[:, :, :5] for t in caches[0].tensors() if t.ndim], [t[:, :, :5] for t in caches[1].tensors() if t.ndim],
            rtol=tolerance, atol=tolerance,
        )  # fmt: skip
        if dtype is torch.float32:
            assert torch.equal(tokens, wanted)
    assert not fallbacks(mine)


@pytest.mark.slow
def test_a_decoder_is_optimised_for_prompt_and_token(tmp_path: Path) -> None:
    model = CachedDecoder().eval().cuda()
    found = tilewright.optimize(
        model, examples(LlamaBlock, torch.float32), target="cuda", out=tmp_path / "run", budget=90, timing="1s",
        compiled=False,
    )  # fmt: skip
    assert found.status in ("improved", "no_improvement"), found.report
    prompt = torch.randint(WORDS, (2, 5), device="cuda")
    tokens = [generated(m, prompt, cache(LlamaBlock, torch.float32), 8) for m in (found.module, model)]
    assert torch.equal(*tokens) and not found.fallbacks()
