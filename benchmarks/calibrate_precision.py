"""Calibrate the precision contract: errors of honest kernels, and of kernels one class below, over lengths of sums.

    python benchmarks/calibrate_precision.py --out benchmarks/results/cpu/precision.json

The kernels are written out: every order of summation adds fp32 numbers in exactly that order, for many rows at once;
a class of operands is a rounding of the inputs. Each error is the largest over three seeds (one above 4096 terms),
against float64, in the two measures of tilewright.judge.check.metric; beside it stand the error of torch's own fp32
operator on the same inputs, and how far the truth moves when the inputs are rounded once.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilewright.judge.check import metric
from tilewright.judge.reference_process.families import redistribute

LENGTHS = (1, 2, 3, 7, 16, 64, 256, 1000, 4096, 65536, 1_000_000)
FAMILIES = ("normal", "uniform", "shifted", "wide", "spikes", "one_sided")
SEEDS = (1, 2, 3)
EPS = 2.0**-23
Sum = Callable[[Tensor], Tensor]
Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Row:
    """The error of one kernel: `norm` and `worst` of its own, and of torch's fp32 operator beside it."""

    kind: str  # "honest" or "below"
    kernel: str
    op: str
    family: str
    length: int
    norm: float
    worst: float
    torch_norm: float
    torch_worst: float
    moved_norm: float  # how far the truth moves when every input is off by up to half a unit in its last place
    moved_worst: float


# ---- orders of summation: (rows, length) fp32 -> (rows,) fp32 -------------------------------------------------------


def sequential(x: Tensor) -> Tensor:
    """One accumulator from the first term to the last."""
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=1, dtype=np.float32)[:, -1].copy())


def pairwise(x: Tensor) -> Tensor:
    """A binary tree."""
    while x.shape[1] > 1:
        odd = x[:, -1:] if x.shape[1] % 2 else x[:, :0]
        even = x[:, : x.shape[1] // 2 * 2]
        x = torch.cat([even[:, ::2] + even[:, 1::2], odd], 1)
    return x[:, 0]


def padded(x: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[1] % multiple))


def blocked(size: int) -> Sum:
    """Sequential within blocks, then sequential over the blocks."""

    def total(x: Tensor) -> Tensor:
        blocks = padded(x, size).reshape(-1, size)
        return sequential(sequential(blocks).reshape(x.shape[0], -1))

    return total


def split(parts: int) -> Sum:
    """Interleaved parts, as threads take them, each sequential; then a tree over the parts."""

    def total(x: Tensor) -> Tensor:
        lanes = padded(x, parts).reshape(x.shape[0], -1, parts).transpose(1, 2).reshape(x.shape[0] * parts, -1)
        return pairwise(sequential(lanes.contiguous()).reshape(x.shape[0], parts))

    return total


def atomics(x: Tensor) -> Tensor:
    """Blocks of 256 as trees, added to one accumulator in a random order."""
    blocks = padded(x, 256).reshape(x.shape[0], -1, 256)
    order = torch.randperm(blocks.shape[1], generator=torch.Generator().manual_seed(0))
    sums = pairwise(blocks[:, order].reshape(-1, 256)).reshape(x.shape[0], -1)
    return sequential(sums)


def kahan(x: Tensor) -> Tensor:
    """Compensated, over 64 lanes; then a tree."""
    lanes = padded(x, 64).reshape(x.shape[0], -1, 64).numpy()
    total, lost = np.zeros_like(lanes[:, 0]), np.zeros_like(lanes[:, 0])
    for i in range(lanes.shape[1]):
        term = lanes[:, i] - lost
        after = total + term
        lost = (after - total) - term
        total = after
    return pairwise(torch.from_numpy(total))


def truncating(promoted_every: int) -> Sum:
    """A tensor core's accumulator: eight exact terms at a time, cut to fp32 towards zero; promoted to an fp32 register
    after so many terms."""

    def total(x: Tensor) -> Tensor:
        groups = padded(x, 8).reshape(x.shape[0], -1, 8).double().sum(-1).numpy()
        register, tile = np.zeros(x.shape[0], np.float32), np.zeros(x.shape[0], np.float32)
        for i in range(groups.shape[1]):
            wide = tile.astype(np.float64) + groups[:, i]
            tile = wide.astype(np.float32)
            too_far = np.abs(tile) > np.abs(wide)
            tile = np.where(too_far, np.nextafter(tile, np.float32(0)), tile)
            if (i + 1) * 8 % promoted_every == 0:
                register, tile = register + tile, np.zeros_like(tile)
        return torch.from_numpy(register + tile)

    return total


def narrow_accumulator(dtype: torch.dtype) -> Sum:
    """Sequential, with an accumulator of a 16-bit type."""

    def total(x: Tensor) -> Tensor:
        found = torch.zeros(x.shape[0], dtype=dtype)
        for i in range(x.shape[1]):
            found = (found.float() + x[:, i]).to(dtype)
        return found.float()

    return total


ORDERS: Mapping[str, Sum] = {
    "sequential": sequential, "pairwise": pairwise, "blocked 128": blocked(128), "blocked 256": blocked(256),
    "split 2": split(2), "split 8": split(8), "split 64": split(64), "atomics": atomics, "kahan": kahan,
}  # fmt: skip

# ---- classes of operands --------------------------------------------------------------------------------------------


def cut(bits: int, *, nearest: bool) -> Rounding:
    """fp32 with so many explicit bits of significand left."""
    below = 23 - bits

    def rounded(x: Tensor) -> Tensor:
        raw = x.contiguous().view(torch.int32)
        if nearest:
            raw = raw + ((1 << (below - 1)) - 1) + ((raw >> below) & 1)
        return (raw & ~((1 << below) - 1)).view(torch.float32)

    return rounded


def on_small_half(rounding: Rounding) -> Rounding:
    """The class below for elements under the median alone."""
    return lambda x: torch.where(x.abs() < x.abs().median(), rounding(x), x)


TF32 = cut(10, nearest=True)
BELOW: Mapping[str, Rounding] = {
    "tf32": TF32, "tf32 truncated": cut(10, nearest=False), "fp16": lambda x: x.half().float(),
    "bf16": lambda x: x.bfloat16().float(), "tf32 where small": on_small_half(TF32),
}  # fmt: skip


# ---- kernels: rows in fp32, a way to sum --------------------------------------------------------------------------


def op_sum(x: Tensor, w: Tensor, total: Sum) -> Tensor:
    return total(x)


def op_dot(x: Tensor, w: Tensor, total: Sum) -> Tensor:
    return total(x * w)


def op_variance(x: Tensor, w: Tensor, total: Sum) -> Tensor:
    mean = total(x) / x.shape[1]
    return total((x - mean[:, None]).square()) / x.shape[1]


def op_softmax(x: Tensor, w: Tensor, total: Sum) -> Tensor:
    weights = (x - x.amax(1, keepdim=True)).exp()
    return weights / total(weights)[:, None]


def op_layer_norm(x: Tensor, w: Tensor, total: Sum) -> Tensor:
    mean = total(x) / x.shape[1]
    return (x - mean[:, None]) * (op_variance(x, w, total) + 1e-5).rsqrt()[:, None]


OPS: Mapping[str, Callable[[Tensor, Tensor, Sum], Tensor]] = {
    "sum": op_sum, "dot": op_dot, "variance": op_variance, "softmax": op_softmax, "layer_norm": op_layer_norm,
}  # fmt: skip
TORCH: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, w: x.sum(1),
    "dot": lambda x, w: torch.bmm(x[:, None], w[:, :, None])[:, 0, 0],
    "variance": lambda x, w: x.var(1, correction=0),
    "softmax": lambda x, w: x.softmax(1),
    "layer_norm": lambda x, w: torch.nn.functional.layer_norm(x, x.shape[1:]),
}


def split_product(rounding: Rounding) -> Callable[[Tensor, Tensor, Sum], Tensor]:
    """A dot product from three products of a lower class: high by high, and the two mixed terms. An fp16 residual is
    kept 2048 times larger."""

    def kernel(x: Tensor, w: Tensor, total: Sum) -> Tensor:
        xh, wh = rounding(x), rounding(w)
        xl, wl = rounding((x - xh) * 2048) / 2048, rounding((w - wh) * 2048) / 2048
        return total(xh * wh) + total(xh * wl + xl * wh)

    return kernel


def kernels(op: str, length: int) -> Iterator[tuple[str, str, Callable[[Tensor, Tensor], Tensor]]]:
    """(kind, name, kernel) of all that are tried at this length."""
    run = OPS[op]
    for name, order in ORDERS.items():
        if name != "kahan" or length <= 65536:
            yield "honest", f"fp32 {name}", lambda x, w, f=order: run(x, w, f)  # type: ignore[misc]
    if op == "dot" and length <= 65536:
        for name, rounding in (("3 x tf32", TF32), ("3 x fp16", BELOW["fp16"])):
            for every in (64, 128):
                yield (
                    "honest",
                    f"{name}, promoted every {every}",
                    (
                        lambda x, w, r=rounding, e=every: split_product(r)(x, w, truncating(e))  # type: ignore[misc]
                    ),
                )
    for name, rounding in BELOW.items():
        yield "below", name, lambda x, w, r=rounding: run(r(x), r(w), pairwise)  # type: ignore[misc]
    if op == "dot":
        yield "below", "tf32, one operand", lambda x, w: run(TF32(x), w, pairwise)
    if op in ("sum", "dot") and 64 <= length <= 4096:
        for dtype in (torch.float16, torch.bfloat16):
            name = f"{metric_name(dtype)} accumulator"
            yield "below", name, lambda x, w, d=dtype: run(x, w, narrow_accumulator(d))  # type: ignore[misc]


def metric_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- measuring ------------------------------------------------------------------------------------------------------


def rows_at(length: int) -> int:
    return 64 if length <= 4096 else 16 if length <= 65536 else 8


def drawn(family: str, length: int, seed: int) -> tuple[Tensor, Tensor]:
    like = torch.zeros(rows_at(length), length)
    return redistribute(like, family, seed), redistribute(like, family, seed + 100)


def truth_of(op: str, x: Tensor, w: Tensor) -> Tensor:
    return TORCH[op](x.double(), w.double())


def jittered(x: Tensor, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return x.double() * (1 + EPS * (torch.rand(x.shape, generator=source, dtype=torch.float64) - 0.5))


def measured(op: str, family: str, length: int) -> Iterator[Row]:
    """One row a kernel: its largest errors over the seeds."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for seed in SEEDS if length <= 4096 else SEEDS[:1]:
        x, w = drawn(family, length, seed)
        truth = truth_of(op, x, w)
        own = metric.distance(TORCH[op](x, w), truth, truth)
        moved = metric.distance(truth_of(op, jittered(x, 1), jittered(w, 2)), truth, truth)
        for kind, name, kernel in kernels(op, length):
            got = metric.distance(kernel(x, w), truth, truth)
            figures = (got.norm, got.worst, own.norm, own.worst, moved.norm, moved.worst)
            found.setdefault((kind, name), []).append(figures)
    for (kind, name), several in found.items():
        norm, worst, own_norm, own_worst, moved_norm, moved_worst = (float(f"{max(v):.3g}") for v in zip(*several))  # noqa: B905
        yield Row(kind, name, op, family, length, norm, worst, own_norm, own_worst, moved_norm, moved_worst)


def calibrate(lengths: tuple[int, ...]) -> list[Row]:
    rows: list[Row] = []
    for length in lengths:
        started = time.monotonic()
        for op in OPS:
            for family in FAMILIES if length > 1 else ("normal", "uniform", "one_sided"):
                rows += measured(op, family, length)
        print(f"length {length}: {time.monotonic() - started:.1f} s", flush=True)
    return rows


def write(path: Path, rows: list[Row], device: str) -> None:
    """One list of columns and one list a row: a tenth of the size of objects."""
    head = {"device": device, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "seeds": len(SEEDS)}
    columns = list(asdict(rows[0]))
    lines = ",\n".join(json.dumps(list(asdict(r).values())) for r in rows)
    text = json.dumps(head | {"columns": columns})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text[:-1]}, "rows": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/precision.json"))
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = calibrate(tuple(n for n in LENGTHS if n <= args.longest))
    write(args.out, rows, platform.processor() or platform.machine())


if __name__ == "__main__":
    main()
