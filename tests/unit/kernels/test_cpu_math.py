"""The C++ elementary functions against float64, over a sample of all fp32 patterns and where they are used most."""

from __future__ import annotations

import ctypes
import math
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tilewright.kernels.cpu import build as building
from tilewright.kernels.cpu.build import build

pytestmark = pytest.mark.each(3)

# Worst error allowed, ulp of the true value rounded to fp32; subnormal results count in the smallest subnormal.
ULPS = {
    "exp": 1.1, "exp2": 1.1, "expm1": 1.6, "log": 1.0, "log1p": 1.1, "log2": 1.1, "log10": 1.1, "sin": 1.7, "cos": 1.7,
    "tanh": 1.5, "sinh": 2.9, "cosh": 2.6, "erf": 1.2, "sigmoid": 2.3, "rsqrt": 1.6, "sqrt": 0.51,
    "floor": 0.0, "ceil": 0.0, "trunc": 0.0, "round": 0.0,
}  # fmt: skip
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 88.72, 88.73, -103.9, -104.1, 2.5, -0.5]

Function = Callable[[Tensor], Tensor]


def compiled(folder: Path, names: Iterable[str], *flags: str) -> dict[str, Function]:
    """Those functions of math.h, built with these flags beside the usual ones."""
    source, library = folder / "functions.cpp", folder / "functions.so"
    loops = (
        f'extern "C" __attribute__((visibility("default"))) void f_{name}(const float* x, float* y, int64_t n) '
        f"{{ for (int64_t i = 0; i < n; i += LANES) store(y + i, {name}(load(x + i))); }}"
        for name in names
    )
    source.write_text('#include "math.h"\nusing namespace tilewright;\n' + "\n".join(loops))
    headers = f"-I{Path(building.__file__).parent}"
    building._compile([building._compiler(), *building.FLAGS, *flags, headers, str(source), "-o", str(library)])
    loaded = ctypes.CDLL(str(library))

    def function(name: str) -> Function:
        entry = getattr(loaded, f"f_{name}")

        def call(x: Tensor) -> Tensor:
            assert x.numel() % 16 == 0
            y = torch.empty_like(x)
            entry(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(x.numel()))
            return y

        return call

    return {name: function(name) for name in names}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Function]:
    return compiled(tmp_path_factory.mktemp("math"), ULPS)


def sample() -> Tensor:
    patterns = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    generator = torch.Generator().manual_seed(0)
    near = [torch.randn(1 << 16, generator=generator) * scale for scale in (0.01, 1.0, 4.0, 40.0, 3000.0)]
    everything = torch.cat([torch.from_numpy(patterns.copy()), *near])
    return torch.cat([everything[: everything.numel() // 16 * 16], torch.tensor(EDGES)])


def ulps(ours: Tensor, truth: Tensor) -> Tensor:
    """Errors in units of the last place; 0 where both are the same non-finite value, infinite where they are not."""
    rounded = truth.float()
    unit = (rounded.abs() - torch.nextafter(rounded.abs(), torch.zeros(()))).clamp_min(2.0**-149).double()
    error = (ours.double() - truth).abs() / unit
    same = (ours == rounded) | (ours.isnan() & rounded.isnan())
    return torch.where(torch.isfinite(rounded) & torch.isfinite(ours), error, torch.where(same, 0.0, torch.inf))


@pytest.mark.parametrize("name", ULPS)
def test_error_stays_small(functions: dict[str, Function], name: str) -> None:
    x = sample()
    if name == "sigmoid":
        x = x[(x > -87) | x.isnan()]  # below, 1 + exp(-x) overflows, here as in torch
        x = x[: x.numel() // 16 * 16]
    error = ulps(functions[name](x), getattr(torch, name)(x.double()))
    worst = error.argmax()
    assert error[worst] <= ULPS[name], f"{name}({x[worst]:.9g}) is {error[worst]:.3f} ulp off"


# The widest registers of the machine (of floats, and of as many as there are doubles), those of 32 bytes, and of 16.
REGISTERS = ["-DTW_WIDEST=4", "-DTW_WIDEST=8"]
REGISTERS += ["-mno-avx512f", "-mno-avx"] if platform.machine() == "x86_64" else []


@pytest.mark.parametrize("registers", REGISTERS)
def test_what_lies_far_below_zero_is_rounded_once(tmp_path: Path, registers: str) -> None:
    """Each float whose exp or exp2 is subnormal, and those around; what is further still is zero."""
    made = compiled(tmp_path, ("exp", "exp2", "sigmoid"), registers)
    for name, least, most in (("exp", 87.0, 104.5), ("exp2", 125.5, 151.0)):
        patterns = np.arange(*np.array([least, most], np.float32).view(np.uint32), dtype=np.uint32)
        x = -torch.from_numpy(patterns.view(np.float32))
        truth = getattr(torch, name)(x.double())
        ours = made[name](x)
        tiny = truth < 2.0**-126
        units = truth[tiny] * 2.0**149
        error = (ours[tiny].double() * 2.0**149 - units).abs()
        assert (error <= 0.5 + units * 2.0**-23).all()  # a half by the last rounding, and what the factor was off by
        assert tiny.sum() > 1 << 20 and ulps(ours, truth)[~tiny].max() <= ULPS[name]
        far = torch.tensor([-torch.inf, -3.4e38, -1e30, -1e9, -152.0, torch.inf, torch.nan, 130.0] * 2)
        zero = torch.tensor([0.0] * 5 + [torch.inf, torch.nan, torch.inf])
        assert torch.equal(made[name](far).nan_to_num(7.0), zero.repeat(2).nan_to_num(7.0))
        assert not torch.signbit(made[name](far)).any()
    assert torch.equal(made["sigmoid"](torch.full((16,), 110.0)), torch.ones(16))


def fastest_s(call: Callable[[], object]) -> float:
    fastest = math.inf
    for _ in range(50):
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


@pytest.mark.parametrize("far", [-1e38, -torch.inf, -95.0])
def test_far_below_zero_takes_no_longer(functions: dict[str, Function], far: float) -> None:
    """A product that underflows costs an Intel core 150 cycles: with half of them so far it took 20 times as long."""
    x = -torch.rand(1 << 14, generator=torch.Generator().manual_seed(1))
    mixed = torch.where(x < -0.5, far, x)
    assert fastest_s(lambda: functions["exp"](mixed)) < 4 * fastest_s(lambda: functions["exp"](x))


@pytest.mark.parametrize("name", ["sin", "tanh", "erf", "floor", "ceil", "trunc", "round", "expm1", "log1p", "sinh"])
def test_signed_zero_stays(functions: dict[str, Function], name: str) -> None:
    y = functions[name](torch.tensor([0.0, -0.0] * 8))
    assert torch.equal(torch.signbit(y), torch.tensor([False, True] * 8))


def test_a_build_is_kept_and_renewed_when_the_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }')
    first = build(source, {})
    stamp = first.stat().st_ino
    assert first.parent == tmp_path / "build" and build(source, {}) == first and first.stat().st_ino == stamp
    assert build(source, {"TW_UNROLL": 4}) != first
    source.write_text('extern "C" int one() { return 2; }')
    assert build(source, {}) != first
    assert not list(first.parent.glob("*.tmp"))
