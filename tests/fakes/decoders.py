"""Decoders that generate with a static cache, in the manner of Llama's and GPT-2's, and a loop that generates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .transformer import Output

HEADS, WIDTH, WORDS, LENGTH = 4, 32, 50, 24
SIZE = WIDTH // HEADS


class CacheLayer:
    """Keys and values of one layer in memory that stays where it is, and how many places are filled."""

    def __init__(self, batch: int, heads: int, *, device: str, dtype: torch.dtype) -> None:
        self.length, self.device = LENGTH, torch.device(device)
        self.keys = torch.zeros(batch, heads, LENGTH, SIZE, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.seen = torch.zeros((), dtype=torch.long, device=device)

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(keys.shape[2], device=keys.device) + self.seen
        self.seen.add_(keys.shape[2])
        self.keys.index_copy_(2, places, keys)
        self.values[:, :, places] = values
        return self.keys, self.values


class StaticCache:
    """In the manner of transformers' one: an object, whose layers are objects."""

    def __init__(
        self, batch: int, *, layers: int = 2, heads: int = HEADS, device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.layers = [CacheLayer(batch, heads, device=device, dtype=dtype) for _ in range(layers)]
        self.offloading = False

    def tensors(self) -> list[Tensor]:
        return [t for layer in self.layers for t in (layer.keys, layer.values, layer.seen)]


class CachedAttention(nn.Module):
    """`groups`: heads of keys and values; `turns`: whether positions turn queries and keys."""

    def __init__(self, index: int, *, groups: int, turns: bool) -> None:
        super().__init__()
        self.index, self.groups, self.turns = index, groups, turns
        self.query = nn.Linear(WIDTH, WIDTH, bias=not turns)
        self.key = nn.Linear(WIDTH, groups * SIZE, bias=not turns)
        self.value = nn.Linear(WIDTH, groups * SIZE, bias=not turns)
        self.out = nn.Linear(WIDTH, WIDTH, bias=not turns)

    def forward(self, x: Tensor, cache: StaticCache, places: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in (self.query, self.key, self.value))
        if self.turns:
            q, k = turned(q, places), turned(k, places)
        k, v = cache.layers[self.index].update(k, v)
        mask = torch.arange(LENGTH, device=x.device)[None, None, None, :] <= places[None, None, :, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.groups != HEADS)
        return self.out(y.transpose(1, 2).flatten(2))


def turned(x: Tensor, places: Tensor) -> Tensor:
    angles = torch.outer(places.float(), 1.0 / 10000.0 ** (torch.arange(0, SIZE, 2, device=x.device) / SIZE))
    angles = torch.cat([angles, angles], -1)
    one, other = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat([-other, one], -1) * angles.sin().to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.attention = CachedAttention(index, groups=HEADS // 2, turns=True)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cache: StaticCache, places: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), cache, places)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class GPT2Block(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = CachedAttention(index, groups=HEADS, turns=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: StaticCache, places: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), cache, places)
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class CachedDecoder(nn.Module):
    """ids [batch, length], a cache that is written, places [length] -> logits [batch, words] of the last place, and the
    cache itself."""

    def __init__(self, block: type[nn.Module] = LlamaBlock, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH) if block is GPT2Block else None
        self.layers = nn.ModuleList([block(index) for index in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, input_ids: Tensor, cache: StaticCache, cache_position: Tensor) -> Output:
        x = self.words(input_ids)
        if self.places is not None:
            x = x + self.places(cache_position)
        for layer in self.layers:
            x = layer(x, cache, cache_position)
        return Output(logits=self.head(self.norm(x[:, -1])), cache=cache)


def groups_of(block: type[nn.Module]) -> int:
    return HEADS if block is GPT2Block else HEADS // 2


def generated(model: nn.Module, prompt: Tensor, cache: StaticCache, tokens: int) -> Tensor:
    """ids [batch, tokens] that the model likes best: one call for the prompt, one for each further token."""
    given, places, found = prompt, torch.arange(prompt.shape[1], device=prompt.device), []
    with torch.no_grad():
        for _ in range(tokens):
            result = model(given, cache=cache, cache_position=places)
            given = result.logits.argmax(-1, keepdim=True)
            cache, places = result.cache, places[-1:] + 1
            found.append(given)
    return torch.cat(found, 1)


def calls_of(model: nn.Module, generate: Callable[[], object]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Copies of the arguments of the first two calls of the model in there: with the prompt, and with one token."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    handle = model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(copy.deepcopy((args, kwargs))), with_kwargs=True
    )
    try:
        generate()
    finally:
        handle.remove()
    return calls[:2]
