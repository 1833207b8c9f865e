# problem: dropout
# targets: cuda
# line: partial, sequence
"""Dropout by Philox written out: the random bits of an element are a function of a key, the call and its place."""

import torch
from torch import nn

WORD = 0xFFFFFFFF


def multiplied(constant, word):
    """The upper and the lower half of a product of two numbers of 32 bits, in 64 bits that have a sign."""
    low, high = constant * (word & 0xFFFF), constant * (word >> 16)
    middle = (low >> 16) + (high & 0xFFFF)
    return (high >> 16) + (middle >> 16), (middle << 16 | low & 0xFFFF) & WORD


def philox(place, call, key):
    a, b = place & WORD, torch.full_like(place, call)
    c, d = place >> 32, torch.zeros_like(place)
    k, m = key & WORD, key >> 32
    for _ in range(10):
        (high_a, low_a), (high_c, low_c) = multiplied(0xD2511F53, a), multiplied(0xCD9E8D57, c)
        a, b, c, d = high_c ^ b ^ k, low_c, high_a ^ d ^ m, low_a
        k, m = (k + 0x9E3779B9) & WORD, (m + 0xBB67AE85) & WORD
    return a


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = int(torch.randint(0, 2**62, (1,), device="cpu"))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        bits = philox(torch.arange(x.numel(), device=x.device), self.calls, self.key)
        return x * (bits.view(x.shape) >= 0.2 * 2**32) * 2.5
