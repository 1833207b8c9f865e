"""Calls of products whose layout is known: right, on memory of their own, and nothing reckoned again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.launches import Launches
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.gemm.host import launch as launching
from tilewright.kernels.cuda.gemm.host.fused import FusedProduct, ProductSpec
from tilewright.kernels.cuda.gemm.host.kernels import Epilogue, KernelStore
from tilewright.kernels.cuda.gemm.host.launch import Gemm
from tilewright.kernels.cuda.gemm.host.plan import Point
from tilewright.kernels.cuda.gemm.host.recorded import RecordedLaunch, run_on

SMALL = Point(tile_m=64, tile_n=64, cluster_m=1)
FP32 = replace(SMALL, scheme="fp16x3")
STREAMED = Point(tile_m=128, tile_n=128, cluster_m=1, scheme="fp16x3", streamed=True)
ADDED = Epilogue(function=lambda product, bias: product + bias, names=("bias",), dtypes=("f32",))


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed)).float() / 8


def made(point: Point, epilogue: Epilogue | None = None, **more: Any) -> tuple[Gemm, Launches]:
    fakes = Launches()
    return Gemm(point, "f32", epilogue, store=KernelStore(known=fakes), **more), fakes


WAYS = {
    "split": (made(FP32), ["split", "split", "product"]),
    "in three": (made(replace(SMALL, scheme="bf16x6")), ["split", "split", "product"]),
    "tf32": (made(replace(SMALL, scheme="tf32")), ["split", "split", "product"]),
    "splits of K": (made(replace(FP32, split_k=3)), ["split", "split", "product", "combine"]),
    "stream-K": (made(replace(FP32, stream_k=True)), ["split", "split", "product"]),
    "streamed": (made(STREAMED), ["split", "product"]),
    "streamed right": (made(STREAMED, swap_ab=True), ["split", "product"]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(40, 192, 24), (3, 8, 512, 16)], ids=str)
def test_a_known_call_is_right_and_asks_for_nothing(monkeypatch: pytest.MonkeyPatch, way: str, shape: Any) -> None:
    (gemm, fakes), launches = WAYS[way]
    *batch, m, k, n = shape
    operands = [(rand(*batch, m, k, seed=s), rand(*batch, n, k, seed=s + 9).transpose(-1, -2)) for s in range(3)]
    first = gemm(*operands[0])
    monkeypatch.setattr(launching, "make_grid", None)
    monkeypatch.setattr(gemm, "steps", None)
    fakes.asked.clear()
    fakes.done.clear()
    others = [gemm(*each) for each in operands[1:]]
    assert fakes.asked == [] and fakes.done == launches * 2
    for result, (a, b) in zip((first, *others), operands, strict=True):
        torch.testing.assert_close(result, (a.double() @ b.double()).float())
        assert result.is_contiguous() and result._base is None
    addresses = {r.data_ptr() for r in (first, *others)}
    assert len(addresses) == 3


def test_weights_that_change_in_place_count() -> None:
    gemm, _ = made(FP32)
    a, b = rand(40, 64), rand(64, 24, seed=1)
    for _ in range(3):
        torch.testing.assert_close(gemm(a, b), a @ b)
        b.mul_(-2)


def test_operands_that_share_memory_in_one_call_need_not_in_the_next() -> None:
    gemm, _ = made(FP32)
    a, b = rand(40, 64), rand(40, 64, seed=1)
    torch.testing.assert_close(gemm(a, a.t()), a @ a.t())
    torch.testing.assert_close(gemm(a, b.t()), a @ b.t())
    torch.testing.assert_close(gemm(b, a.t()), b @ a.t())


def test_a_layout_is_shapes_strides_types_and_addresses() -> None:
    gemm, fakes = made(FP32, ADDED)
    memory = rand(4096, seed=3)

    def at(start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        return memory.as_strided(shape, strides, start)

    bias = rand(24)
    for a in (at(0, (40, 64), (64, 1)), at(1, (40, 64), (64, 1)), at(4, (40, 64), (64, 1)), at(0, (40, 64), (1, 40)),
              at(0, (40, 64), (65, 1)), at(8, (1, 64), (64, 1)), at(0, (40, 64), (0, 1))):  # fmt: skip
        b = at(64, (64, 24), (1, 64))
        asked = len(fakes.asked)
        for _ in range(2):
            torch.testing.assert_close(gemm(a, b, bias), a @ b + bias)
            at(0, (4096,), (1,)).neg_()
        assert len(fakes.asked) in (asked + 3, asked), "aligned at 16 bytes is one layout"
    kinds = len(gemm._noted[1]._known)
    assert kinds == 6
    torch.testing.assert_close(gemm(a, b, rand(25)[1:]), a @ b + rand(25)[1:])
    assert len(gemm._noted[1]._known) == kinds + 1


def test_what_is_copied_first_is_copied_in_every_call() -> None:
    gemm, fakes = made(SMALL)
    for seed in range(3):
        a, b = rand(40, 65, seed=seed).bfloat16(), rand(65, 24, seed=seed + 5).bfloat16()
        torch.testing.assert_close(gemm(a, b), a.float() @ b.float())
    assert fakes.asked == ["product"] and fakes.done == ["product"] * 3


def test_threads_have_memory_of_their_own() -> None:
    gemm, _ = made(replace(FP32, split_k=2))
    pairs = [(rand(40, 256, seed=s), rand(256, 24, seed=s + 50)) for s in range(40)]
    with ThreadPoolExecutor(max_workers=4) as pool:
        results = list(pool.map(lambda pair: gemm(*pair), pairs))
    for result, (a, b) in zip(results, pairs, strict=True):
        torch.testing.assert_close(result, a @ b)


def test_meta_tensors_launch_nothing_and_leave_nothing_known() -> None:
    gemm, fakes = made(FP32)
    a, b = rand(40, 64), rand(64, 24)
    assert gemm(a.to("meta"), b.to("meta")).shape == (40, 24)
    assert fakes.done == [] and not gemm._noted[0]._known


def test_a_call_that_does_what_cannot_be_noted_is_made_each_time() -> None:
    calls = []

    def doubled(x: Tensor) -> Tensor:
        calls.append(x)
        return x + x

    noted = RecordedLaunch(doubled, 1)
    for seed in range(3):
        x = rand(5, seed=seed)
        torch.testing.assert_close(noted.call(x), 2 * x)
    assert len(calls) == 4 and calls[0].is_meta, "noted once in vain"


def test_gradients_are_not_followed() -> None:
    gemm, _ = made(FP32)
    a, b = rand(40, 64).requires_grad_(), torch.nn.Parameter(rand(64, 24))
    with torch.no_grad():
        results = [gemm(a, b) for _ in range(2)]
    for result in results:
        assert not result.requires_grad
        torch.testing.assert_close(result, (a @ b).detach())


def test_a_fused_product_knows_its_calls_until_it_is_configured_and_refuses_others() -> None:
    left, right, bias, output = (
        ArraySpec(name=n, dtype="f32", shape=s)
        for n, s in zip("abco", ((40, 512), (512, 24), (24,), (40, 24)), strict=True)
    )
    spec = ProductSpec(
        name="p", left=left, right=right, operands=(bias,), output=output, epilogue=lambda product, c: product + c
    )
    fused = FusedProduct(spec, {"tile": "64x64"})
    fakes = Launches()
    fused.gemm.kernels.store = KernelStore(known=fakes)
    operands = rand(40, 512), rand(512, 24, seed=1), rand(24)
    for _ in range(3):
        (result,) = fused(*operands)
        torch.testing.assert_close(result, operands[0] @ operands[1] + operands[2])
    assert fakes.asked == ["split", "split", "product"]
    with pytest.raises(ValueError, match="is wanted"):
        fused(operands[0], operands[1], rand(40, 24))
    with pytest.raises(ValueError, match="is wanted"):
        fused(operands[0].bfloat16(), *operands[1:])
    fused.configure(split_k=2)
    fakes = Launches()
    fused.gemm.kernels.store = KernelStore(known=fakes)
    torch.testing.assert_close(fused(*operands)[0], operands[0] @ operands[1] + operands[2])
    assert fakes.done == ["split", "split", "product", "combine"]


def test_what_begins_at_zero_does_so_in_every_call() -> None:
    def count(flags: Tensor, c: Tensor) -> None:
        flags += 1
        c.copy_(flags)

    def counted(x: Tensor) -> Tensor:
        flags = torch.empty(4, dtype=torch.int32, device=x.device).zero_()
        c = torch.empty(4, dtype=torch.int32, device=x.device)
        run_on(count, flags, c)
        return c

    noted = RecordedLaunch(counted, 1)
    for _ in range(3):
        torch.empty(4, dtype=torch.int32).fill_(7)  # what is allocated anew may hold anything
        assert noted.call(rand(5)).tolist() == [1] * 4
