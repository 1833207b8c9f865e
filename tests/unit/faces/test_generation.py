"""Decoders with a static cache: prompt and token are two cases, and the caller's own cache is written."""

from __future__ import annotations

import copy
import functools
import gc
import json
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes import net
from fakes.decoders import (
    WORDS,
    CachedDecoder,
    GPT2Block,
    LlamaBlock,
    StaticCache,
    generated,
    groups_of,
)
from tilewright.faces.called import SHARED
from tilewright.faces.examples import ExampleCall
from tilewright.faces.live import fallbacks
from tilewright.kernels.guards import ACTS

BLOCKS = pytest.mark.parametrize("block", [LlamaBlock, GPT2Block])


def examples(block: type[nn.Module], batch: int = 2, prompt: int = 5) -> list[ExampleCall]:
    cache = StaticCache(batch, heads=groups_of(block))
    return [
        ExampleCall(
            args=(torch.randint(WORDS, (batch, length)),),
            kwargs={"cache": cache, "cache_position": torch.arange(first, first + length)},
        )
        for first, length in ((0, prompt), (prompt, 1))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fused")


@functools.cache
def fused(folder: Path, block: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = CachedDecoder(block).eval()
    return model, net.fused_as_given(folder / block.__name__, copy.deepcopy(model), examples(block))


def made(folder: Path, block: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    """The module, and what `optimize` gives for it, with no fallback counted."""
    model, mine = fused(folder, block)
    type(mine)._tilewright_fallbacks.clear()  # type: ignore[attr-defined]
    return model, mine


@pytest.mark.few(0)
@BLOCKS
def test_tokens_are_generated_from_a_cache_of_the_callers(block: type[nn.Module], folder: Path) -> None:
    model, mine = made(folder, block)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # another prompt, and a cache of its own
            prompt = torch.randint(WORDS, (2, 5))
            caches = [StaticCache(2, heads=groups_of(block)) for _ in range(2)]
            tokens = generated(mine, prompt, caches[0], 9)
            assert torch.equal(tokens, generated(model, prompt, caches[1], 9))
            torch.testing.assert_close(caches[0].tensors(), caches[1].tensors())
            assert [int(layer.seen) for layer in caches[0].layers] == [13, 13]
    assert not fallbacks(mine)


def test_the_result_holds_the_cache_that_was_given_and_the_module_keeps_none(folder: Path) -> None:
    _, mine = made(folder, LlamaBlock)
    cache = StaticCache(2, heads=2)
    with torch.no_grad():
        assert mine(torch.randint(WORDS, (2, 1)), cache=cache, cache_position=torch.tensor([0])).cache is cache
    gone = weakref.ref(cache.layers[0].keys)
    del cache
    gc.collect()
    assert gone() is None


def test_another_batch_and_a_prompt_of_another_length_run_the_original(folder: Path) -> None:
    model, mine = made(folder, LlamaBlock)
    prompt = torch.randint(WORDS, (3, 4))
    with pytest.warns(RuntimeWarning, match="no case has this signature"):
        tokens = generated(mine, prompt, StaticCache(3, heads=2), 3)
    assert torch.equal(tokens, generated(model, prompt, StaticCache(3, heads=2), 3))
    assert sum(fallbacks(mine).values()) == 3


def test_caches_that_share_memory_run_the_original(folder: Path) -> None:
    model, mine = made(folder, LlamaBlock)
    caches = [StaticCache(2, heads=2) for _ in range(2)]
    for cache in caches:
        cache.layers[1].keys = cache.layers[0].keys
    prompt = torch.randint(WORDS, (2, 5))
    with pytest.warns(RuntimeWarning, match=SHARED):
        tokens = generated(mine, prompt, caches[0], 2)
    assert torch.equal(tokens, generated(model, prompt, caches[1], 2)) and fallbacks(mine) == {SHARED: 2}
    torch.testing.assert_close(caches[0].tensors(), caches[1].tensors())


def test_copies_go_on_with_a_cache(folder: Path) -> None:
    model, mine = made(folder, LlamaBlock)
    prompt = torch.randint(WORDS, (2, 5))
    wanted = generated(model, prompt, StaticCache(2, heads=2), 4)
    for other in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert torch.equal(generated(other, prompt, StaticCache(2, heads=2), 4), wanted)
    assert mine.state_dict().keys() == model.state_dict().keys() and not fallbacks(mine)


def test_two_threads_have_caches_of_their_own(folder: Path) -> None:
    model, mine = made(folder, LlamaBlock)
    prompts = [torch.randint(WORDS, (2, 5)) for _ in range(4)]
    found: dict[int, Tensor] = {}

    def run(number: int) -> None:
        found[number] = generated(mine, prompts[number], StaticCache(2, heads=2), 8)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, prompt in enumerate(prompts):
        assert torch.equal(found[number], generated(model, prompt, StaticCache(2, heads=2), 8))
    assert not fallbacks(mine)


@pytest.mark.filterwarnings("ignore")
def test_under_torch_compile_the_original_is_traced(folder: Path) -> None:
    model, mine = made(folder, LlamaBlock)
    compiled = torch.compile(mine, backend="eager")
    prompt = torch.randint(WORDS, (2, 5))
    tokens = generated(compiled, prompt, StaticCache(2, heads=2), 3)
    assert torch.equal(tokens, generated(model, prompt, StaticCache(2, heads=2), 3))
    assert set(fallbacks(mine)) == {ACTS}


class Into(nn.Module):
    """Writes one argument, reads another, and gives a part of the result through the argument alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, into: Tensor, rows: list[Tensor]) -> Tensor:
        y = torch.tanh(self.linear(x))
        into.copy_(y * 2)
        rows[0][1:2] = y[:1]
        return y + 1


def test_a_plain_tensor_may_be_written(tmp_path: Path) -> None:
    module = Into()
    given: Any = (torch.randn(4, 8), torch.zeros(4, 8), [torch.zeros(4, 8)])
    mine = net.fused_as_given(tmp_path, copy.deepcopy(module), [ExampleCall(args=given, kwargs={})])
    one, other = copy.deepcopy(given), copy.deepcopy(given)
    with torch.no_grad():
        torch.testing.assert_close(mine(*one), module(*other))
        torch.testing.assert_close(one, other)
        x = torch.randn(4, 8)
        with pytest.warns(RuntimeWarning, match=SHARED):
            found, both = mine(x, x, [torch.zeros(4, 8)]), x.clone()
    assert found.shape == both.shape and fallbacks(mine) == {SHARED: 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_generate_of_transformers_runs_fused(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers.StaticCache, "early_initialization"):
        pytest.skip("a transformers whose caches can't have their memory before the first call")
    command = [sys.executable, "-m", "fakes.generates", kind, str(tmp_path)]  # pytest's own hooks are seen as changes
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], text=True, capture_output=True, timeout=300)
    found = json.loads(ran.stdout.splitlines()[-1])
    plain, *fused = found["tokens"]
    assert fused == [plain, plain] and len(plain[0]) == 13 and not found["fallbacks"]
