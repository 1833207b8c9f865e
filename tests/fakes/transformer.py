"""Models in the manner of well-known ones: masks are left out unless somebody exports, outputs are dicts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.compiler import is_compiling

HEADS, WIDTH = 4, 64


class Output(OrderedDict):  # type: ignore[type-arg]
    """A dict whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


pytree.register_pytree_node(
    Output, lambda o: (list(o.values()), list(o)), lambda values, names: Output(zip(names, values, strict=True))
)


def causal_mask(given: Tensor | None, length: int, device: torch.device) -> Tensor | None:
    if not (is_compiling() or torch.compiler.is_exporting()) and (given is None or bool(given.all())):
        return None
    places = torch.arange(length, device=device)
    mask = (places[None, :] <= places[:, None])[None, None]
    return mask if given is None else mask & given[:, None, None, :].bool()


def padding_mask(given: Tensor | None, x: Tensor) -> Tensor | None:
    """Of an older kind: without a mask of the user's one of ones is made, looked at, and turned into what is added."""
    mask = torch.ones(x.shape[:2], device=x.device) if given is None else given
    if not is_compiling() and bool(torch.all(mask == 1)):
        return None
    wide = mask[:, None, None, :].expand(-1, 1, x.shape[1], -1).to(x.dtype)
    return (1.0 - wide).masked_fill((1.0 - wide).bool(), torch.finfo(x.dtype).min)


class Attention(nn.Module):
    def __init__(self, *, causal: bool, groups: int = HEADS) -> None:
        super().__init__()
        self.causal, self.groups, self.size = causal, groups, WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, groups * self.size), nn.Linear(WIDTH, groups * self.size)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None, turns: tuple[Tensor, Tensor] | None = None) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if turns is not None:
            q, k = turned(q, *turns), turned(k, *turns)
        causal = self.causal and mask is None and q.shape[2] > 1
        grouped = {"enable_gqa": True} if self.groups != HEADS else {}
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, **grouped)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(causal=causal)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.first(x), mask)
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Decoder(nn.Module):
    """In the manner of GPT-2."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, WIDTH), nn.Embedding(128, WIDTH)
        self.layers = nn.ModuleList([Block(causal=True) for _ in range(layers)])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, return_all: bool = False) -> Output:
        length = input_ids.shape[1]
        x = self.words(input_ids) + self.places(torch.arange(length, device=input_ids.device)[None])
        mask = causal_mask(attention_mask, length, input_ids.device)
        states = [x]
        for layer in self.layers:
            states.append(x := layer(x, mask))
        return Output(last=x, all=tuple(states) if return_all else None)


class Encoder(nn.Module):
    """In the manner of BERT."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList([Block(causal=False) for _ in range(layers)])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Output:
        x = self.words(input_ids)
        mask = padding_mask(attention_mask, x)
        for layer in self.layers:
            x = layer(x, mask)
        return Output(last=x, pooled=torch.tanh(x[:, 0]))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-other, one], dim=-1) * sin


class LlamaLayer(nn.Module):
    """Two query heads for each of keys and values, rotary embeddings, RMSNorm, SwiGLU."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Norm(), Norm()
        self.attention = Attention(causal=True, groups=HEADS // 2)
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        size = WIDTH // HEADS
        self.register_buffer("frequencies", 1.0 / 10000.0 ** (torch.arange(0, size, 2) / size))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        angles = torch.outer(places.float(), self.frequencies)
        angles = torch.cat([angles, angles], -1)
        turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        x = x + self.attention(self.first(x), causal_mask(None, x.shape[1], x.device), turns)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))
