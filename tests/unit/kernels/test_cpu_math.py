"""The C++ elementary functions against float64, over a sample of all fp32 patterns and where they are used most."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tilewright.kernels.cpu.build import build

# Worst error allowed, ulp of the true value rounded to fp32; subnormal results count in the smallest subnormal.
ULPS = {
    "exp": 1.1, "exp2": 1.1, "expm1": 1.6, "log": 1.0, "log1p": 1.1, "log2": 1.1, "log10": 1.1, "sin": 1.7, "cos": 1.7,
    "tanh": 1.5, "sinh": 2.9, "cosh": 2.6, "erf": 1.2, "sigmoid": 2.3, "rsqrt": 1.6, "sqrt": 0.51,
    "floor": 0.0, "ceil": 0.0, "trunc": 0.0, "round": 0.0,
}  # fmt: skip
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 88.72, 88.73, -103.9, -104.1, 2.5, -0.5]

Function = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Function]:
    source = tmp_path_factory.mktemp("math") / "functions.cpp"
    loops = (
        f'extern "C" __attribute__((visibility("default"))) void f_{name}(const float* x, float* y, int64_t n) '
        f"{{ for (int64_t i = 0; i < n; i += LANES) store(y + i, {name}(load(x + i))); }}"
        for name in ULPS
    )
    source.write_text('#include "math.h"\nusing namespace tilewright;\n' + "\n".join(loops))
    library = ctypes.CDLL(str(build(source, {})))

    def function(name: str) -> Function:
        entry = getattr(library, f"f_{name}")

        def call(x: Tensor) -> Tensor:
            assert x.numel() % 16 == 0
            y = torch.empty_like(x)
            entry(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(x.numel()))
            return y

        return call

    return {name: function(name) for name in ULPS}


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
