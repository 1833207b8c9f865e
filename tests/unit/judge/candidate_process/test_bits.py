"""A fingerprint tells every change and every move."""

from __future__ import annotations

import pytest
import torch

from tilewright.judge.candidate_process.bits import fingerprint, words


def test_a_fingerprint_tells_every_change_and_every_move() -> None:
    x = torch.randn(1000)
    x[3] = float("nan")
    then = fingerprint(x)
    assert fingerprint(x.clone()) == then
    assert fingerprint(x.flip(0)) != then
    x[999] = torch.nextafter(x[999], torch.tensor(9.0))
    assert fingerprint(x) != then
    assert fingerprint(torch.zeros(0)) == 0


def test_doubles_whose_low_bits_are_nought_change_places() -> None:
    """As 64-bit words their difference times that of their weights is a multiple of 2^64."""
    x = torch.ones(5000, dtype=torch.float64)
    y = x.clone()
    x[0] = y[2048] = 2.0
    assert fingerprint(x) != fingerprint(y)


def test_contents_count_and_not_strides() -> None:
    x = torch.randn(6, 5)
    assert fingerprint(x) == fingerprint(x.T.contiguous().T)
    for dtype in (torch.int64, torch.float64, torch.float16):
        apart = torch.arange(20).to(dtype)[::2]
        assert fingerprint(apart) == fingerprint(apart.clone())


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float8_e4m3fn, torch.complex128]
)
def test_every_type_has_words(dtype: torch.dtype) -> None:
    x, y = torch.tensor([0, 1, 1]).to(dtype), torch.tensor([1, 1, 0]).to(dtype)
    assert fingerprint(x) != fingerprint(y)
    assert torch.equal(words(x[1]), words(x[2])) and not torch.equal(words(x[0]), words(x[1]))


def test_what_is_lazily_conjugate_or_negative_has_the_words_of_its_values() -> None:
    z = torch.complex(torch.randn(3), torch.randn(3))
    for lazy in (z.conj(), z.conj().imag):
        assert lazy.is_conj() or lazy.is_neg()
        assert torch.equal(words(lazy), words(lazy.clone().resolve_conj().resolve_neg()))
        assert fingerprint(lazy) == fingerprint(lazy * 1)
