"""Times the CUDA skeletons on representative Programs: every point of their spaces, torch eager and the floor.

    PYTHONPATH=src:tests python benchmarks/kernels.py [--only NAME,NAME] [--all-points] [--json FILE]

Eager runs the Program's operations as one torch function a line would (softmax, layer_norm, ... where there is one).
Times are medians of single calls between events, in random turns, with 256 MB written between calls to flush the L2.
The floor is Program.traffic_bytes over the copy bandwidth that the script measures first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from on_h200 import cuda
from torch import Tensor
from turns import sampled

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.traced import only_program
from tilewright.faces.deliver import commit
from tilewright.ir.program import Program

Case = tuple[Callable[[], Program], Callable[..., object] | None]  # None: eager would take minutes


def gelu_chain(x: Tensor) -> Tensor:
    y = x * 1.5
    return (torch.erf(y * 0.7071067811865476) + 1.0) * y * 0.5


def rms(x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)


def big_layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:], w.view(w.shape[1:]), b.view(b.shape[1:]))


def rotated_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x[..., ::2, None], x[..., 1::2, None]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def gated_loop(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """h = a * h + (1 - a) * x along dimension 1, and h * x."""
    h, states = torch.zeros_like(x[:, 0]), []
    for step, gate in zip(x.unbind(1), torch.sigmoid(g).unbind(1), strict=True):
        h = gate * h + (1 - gate) * step
        states.append(h)
    made = torch.stack(states, 1)
    return made, made * x


def max_pool_places(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.max_pool2d(x, 3, 2, 1, return_indices=True)


def rms_norm_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.rms_norm(x, x.shape[-1:]).float()
    scale = y.abs().amax(-1, keepdim=True) / 127
    return torch.round(y / scale).to(torch.int8), scale


def rms_norm_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.rms_norm(x, x.shape[-1:])
    scale = y.abs().amax(-1, keepdim=True) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


CASES: dict[str, Case] = {
    "chain_f32_16384x16384": (lambda: kp.chain((16384, 16384)), gelu_chain),
    "chain_bf16_32768x16384": (lambda: kp.chain((32768, 16384), dtype="bf16"), gelu_chain),
    "softmax_4096x16384": (lambda: kp.softmax((4096, 16384)), lambda x: torch.softmax(x, -1)),
    "softmax_32768x4096": (lambda: kp.softmax((32768, 4096)), lambda x: torch.softmax(x, -1)),
    "softmax_4096x65536": (lambda: kp.softmax((4096, 65536)), lambda x: torch.softmax(x, -1)),
    "softmax_4096x393216": (lambda: kp.softmax((4096, 393216)), lambda x: torch.softmax(x, -1)),
    "log_softmax_bf16_8192x32768": (
        lambda: kp.softmax((8192, 32768), dtype="bf16", log=True), lambda x: torch.log_softmax(x, -1)),
    "layer_norm_32768x4096": (
        lambda: kp.norm((32768, 4096), (1,), affine=(1, 4096)),
        lambda x, w, b: F.layer_norm(x, (4096,), w.view(-1), b.view(-1))),
    "layer_norm_16x64x256x256": (
        lambda: kp.norm((16, 64, 256, 256), (1, 2, 3), affine=(1, 64, 256, 256)), big_layer_norm),
    "rms_112x64x512x512_dim1": (lambda: kp.rms_norm((112, 64, 512, 512), 1), rms),
    "l1_norm_32768x65535": (
        lambda: kp.l1_norm((32768, 65535)), lambda x: x / torch.mean(torch.abs(x), dim=1, keepdim=True)),
    "l2_norm_32768x65535": (
        lambda: kp.l1_norm((32768, 65535), l2=True), lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True)),
    "group_norm_112x64x512x512": (
        lambda: kp.norm((112, 8, 8, 512 * 512), (2, 3), affine=(1, 8, 8, 1)),
        lambda x, w, b: F.group_norm(x.view(112, 64, 512, 512), 8, w.view(-1), b.view(-1))),
    "instance_norm_112x64x512x512": (lambda: kp.norm((112, 64, 512, 512), (2, 3)), lambda x: F.instance_norm(x)),
    "batch_norm_64x64x512x512": (
        lambda: kp.norm((64, 64, 512, 512), (0, 2, 3), affine=(1, 64, 1, 1)),
        lambda x, w, b: F.batch_norm(x, None, None, w.view(-1), b.view(-1), training=True)),
    "sum_128x4096x4095_dim1": (lambda: kp.reduction("sum", (128, 4096, 4095), (1,)), lambda x: x.sum(1, keepdim=True)),
    "max_128x4096x4095_dim1": (lambda: kp.reduction("max", (128, 4096, 4095), (1,)), lambda x: x.max(1)[0]),
    "argmax_128x4096x4095_dim1": (lambda: kp.reduction("argmax", (128, 4096, 4095), (1,)), lambda x: x.argmax(1)),
    "sum_rows_65536x8191": (lambda: kp.reduction("sum", (65536, 8191), (1,)), lambda x: x.sum(1, keepdim=True)),
    "mse_32768x32768": (lambda: kp.mse((32768, 32768)), lambda x, t: torch.mean((x - t) ** 2)),
    "cross_entropy_32768x4096": (
        lambda: kp.cross_entropy_rows(32768, 4096), lambda x, t: F.cross_entropy(x, t.view(-1), reduction="none")),
    "cosine_32768x16384": (lambda: kp.cosine_rows(32768, 16384), lambda x, y: F.cosine_similarity(x, y, dim=1)),
    "scan_cumsum_32768x32768": (
        lambda: kp.cumulative("cumsum", (32768, 32768)), lambda x: torch.cumsum(x, 1)),
    "scan_cumprod_32768x32768": (
        lambda: kp.cumulative("cumprod", (32768, 32768)), lambda x: torch.cumprod(x, 1)),
    "scan_reverse_32768x32768": (
        lambda: kp.cumulative("cumsum", (32768, 32768), reverse=True), lambda x: x.flip(1).cumsum(1).flip(1)),
    "scan_exclusive_32768x32768": (
        lambda: kp.cumulative("cumsum", (32768, 32768), exclusive=True),
        lambda x: torch.cat([torch.zeros_like(x[:, :1]), torch.cumsum(x[:, :-1], 1)], 1)),
    "scan_masked_32768x32768": (
        lambda: kp.masked_cumsum((32768, 32768)), lambda x, mask: torch.cumsum(x * mask, 1)),
    "scan_odd_32768x32767": (lambda: kp.cumulative("cumsum", (32768, 32767)), lambda x: torch.cumsum(x, 1)),
    "scan_column_64x4096x4096_dim1": (
        lambda: kp.cumulative("cumsum", (64, 4096, 4096), 1), lambda x: torch.cumsum(x, 1)),
    "scan_16x16777216": (lambda: kp.cumulative("cumsum", (16, 1 << 24)), lambda x: torch.cumsum(x, 1)),
    "scan_cummax_32768x32768": (lambda: kp.extrema("cummax", (32768, 32768)), lambda x: torch.cummax(x, 1)),
    "scan_cummin_column_64x4096x4096_dim1": (
        lambda: kp.extrema("cummin", (64, 4096, 4096), 1), lambda x: torch.cummin(x, 1)),
    "scan_logcumsumexp_32768x32768": (
        lambda: kp.cumulative("logcumsumexp", (32768, 32768)), lambda x: torch.logcumsumexp(x, 1)),
    "scan_logcumsumexp_16x16777216": (
        lambda: kp.cumulative("logcumsumexp", (16, 1 << 24)), lambda x: torch.logcumsumexp(x, 1)),
    "top_8_65536x256": (lambda: kp.ranked((65536, 256), 8), lambda x: x.topk(8)),
    "top_8_of_softmax_65536x256": (
        lambda: kp.ranked((65536, 256), 8, fused=True), lambda x: torch.softmax(x, -1).topk(8)),
    "top_8_16384x4096": (lambda: kp.ranked((16384, 4096), 8), lambda x: x.topk(8)),
    "top_64_16384x4096": (lambda: kp.ranked((16384, 4096), 64), lambda x: x.topk(64)),
    "top_50_bf16_512x128256": (lambda: kp.ranked((512, 128256), 50, dtype="bf16"), lambda x: x.topk(50)),
    "top_64_1024x1048576": (lambda: kp.ranked((1024, 1 << 20), 64), lambda x: x.topk(64)),
    "top_64_16x16777216": (lambda: kp.ranked((16, 1 << 24), 64), lambda x: x.topk(64)),
    "top_8_odd_16384x4095": (lambda: kp.ranked((16384, 4095), 8), lambda x: x.topk(8)),
    "recurrence_column_64x1024x4096_dim1": (lambda: kp.recurrence((64, 1024, 4096), 1), gated_loop),
    "recurrence_column_bf16_64x1024x4096_dim1": (
        lambda: kp.recurrence((64, 1024, 4096), 1, dtype="bf16"), gated_loop),
    "recurrence_rows_65536x1024": (lambda: kp.recurrence((65536, 1024)), gated_loop),
    "recurrence_rows_16x4194304": (lambda: kp.recurrence((16, 1 << 22)), None),
    "max_pool_256x64x112x112": (
        lambda: kp.pool("max", (256, 64, 112, 112), (3, 3), stride=2, padding=1),
        lambda x: F.max_pool2d(x, 3, 2, 1) * 0.25),
    "sum_pool_bf16_128x96x112x112": (
        lambda: kp.pool("sum", (128, 96, 112, 112), (3, 3), padding=1, dtype="bf16"),
        lambda x: F.avg_pool2d(x, 3, 1, 1, divisor_override=4)),
    "max_pool_places_128x64x112x112": (
        lambda: only_program(max_pool_places, torch.empty(128, 64, 112, 112, device="meta")), max_pool_places),
    "embedding_bag_65536x32x256": (
        lambda: kp.bags(65536, 32, 256), lambda t, x: F.embedding_bag(t.squeeze(-1), x, mode="mean")),
    "rms_norm_int8_bf16_32768x4096": (
        lambda: only_program(rms_norm_int8, torch.empty(32768, 4096, device="meta", dtype=torch.bfloat16)),
        rms_norm_int8),
    "rms_norm_e4m3_32768x4096": (
        lambda: only_program(rms_norm_e4m3, torch.empty(32768, 4096, device="meta")), rms_norm_e4m3),
    "rotary_pairs_256x4096x128": (lambda: kp.rotary(256, 4096, 64, pairs=True), rotated_pairs),
    "embedding_262144x1024": (
        lambda: kp.embedded(262144, 1024), lambda x, t, bias: F.embedding(t.view(-1), x) * 3.0 + bias),
    "transpose_16384x16384": (lambda: kp.laid_out((16384, 16384), (1, 0)), Tensor.contiguous),
    "transpose_bf16_16384x16384": (lambda: kp.laid_out((16384, 16384), (1, 0), dtype="bf16"), Tensor.contiguous),
    "transpose_odd_16383x16385": (lambda: kp.laid_out((16383, 16385), (1, 0)), Tensor.contiguous),
    "transpose_u8_16384x32768": (lambda: kp.laid_out((16384, 32768), (1, 0), dtype="u8"), Tensor.contiguous),
    "transposed_sum_16384x8192": (
        lambda: kp.turned_sum((16384, 8192), (1, 0)), lambda x, y, bias: torch.relu(x + y + bias)),
    "transposed_sum_bf16_16384x16384": (
        lambda: kp.turned_sum((16384, 16384), (1, 0), dtype="bf16"), lambda x, y, bias: torch.relu(x + y + bias)),
    "nchw_to_nhwc_128x64x112x112": (lambda: kp.laid_out((128, 112, 112, 64), (0, 3, 1, 2)), Tensor.contiguous),
    "nchw_to_nhwc_bf16_256x64x112x112": (
        lambda: kp.laid_out((256, 112, 112, 64), (0, 3, 1, 2), dtype="bf16"), Tensor.contiguous),
    "nhwc_to_nchw_128x64x112x112": (lambda: kp.laid_out((128, 64, 112, 112), (0, 2, 3, 1)), Tensor.contiguous),
    "rgb_to_nhwc_256x3x512x512": (lambda: kp.laid_out((256, 512, 512, 3), (0, 3, 1, 2)), Tensor.contiguous),
    "pixel_shuffle_64x256x128x128": (
        lambda: kp.laid_out((64, 64, 128, 2, 128, 2), (0, 1, 3, 5, 2, 4)), Tensor.contiguous),
    "softmax_small_128x1024": (lambda: kp.softmax((128, 1024)), lambda x: torch.softmax(x, -1)),
}  # fmt: skip


def copy_rate() -> float:
    """Bytes/s of a device-to-device copy, read and written."""
    x = torch.empty(2**30, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() * 4 / (median(sampled({"copy": lambda: y.copy_(x)}, 9)["copy"]) * 1e-3)


def launch_overhead_us(run: Callable[..., object], operands: list[Tensor], calls: int = 2000) -> float:
    """Host microseconds of one call, the device idle enough."""
    for _ in range(20):  # the first compiles
        run(*operands)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        run(*operands)
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    return host / calls * 1e6


def measure(name: str, case: Case, *, all_points: bool, rate: float, folder: Path) -> dict[str, object]:
    make, eager = case
    program = make()
    operands = kp.make_operands(program, "cuda")
    calls: dict[str, Callable[[], object]] = {"eager": lambda: eager(*operands)} if eager else {}
    failures = {}
    for settings in cuda.space(program).points if all_points else cuda.space(program).points[:1]:
        label = ",".join(f"{k[0] if k != 'residence' else 'R'}={v}" for k, v in settings)
        try:
            module = load_fused(program, folder, settings)
            module.run(*operands)
            torch.cuda.synchronize()
            calls[label] = lambda module=module: module.run(*operands)
        except Exception as error:  # a table with a hole is worth more than none
            failures[label] = repr(error)[-300:]
    big = program.traffic_bytes > 2**32
    times = {name: median(each) for name, each in sampled(calls, 5 if big else 15).items()}
    floor = program.traffic_bytes / rate * 1e3
    return {"name": name, "floor_ms": floor, "times_ms": times, "failures": failures}


def show(result: dict[str, object]) -> None:
    times, floor = result["times_ms"], result["floor_ms"]
    assert isinstance(times, dict) and isinstance(floor, float)
    ours = {k: v for k, v in times.items() if k != "eager"}
    eager = times.get("eager", float("nan"))
    best = min(ours, key=ours.__getitem__, default="none")
    first = next(iter(ours.values()), float("nan"))
    print(
        f"{result['name']:32s} floor {floor:8.4f}  eager {eager:8.4f} ({eager / floor:5.2f})"
        f"  first {first:8.4f} ({first / floor:5.2f})  best {ours.get(best, float('nan')):8.4f}"
        f" ({ours.get(best, float('nan')) / floor:5.2f}) {best}", flush=True)  # fmt: skip
    for label, text in result["failures"].items():  # type: ignore[union-attr,attr-defined]
        print(f"    {label}: {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--all-points", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}  copy {rate / 1e12:.3f} TB/s  torch {torch.__version__}")
    about = {
        "command": " ".join(sys.argv), "commit": commit(), "device": torch.cuda.get_device_name(),
        "torch": torch.__version__, "copy_bytes_per_s": rate,
    }  # fmt: skip
    results = []
    with tempfile.TemporaryDirectory() as place:
        for name, case in CASES.items():
            if options.only and not any(part in name for part in options.only.split(",")):
                continue
            results.append(measure(name, case, all_points=options.all_points, rate=rate, folder=Path(place)))
            show(results[-1])
            torch.cuda.empty_cache()
            if options.json:
                options.json.write_text(json.dumps(about | {"cases": results}, indent=1) + "\n")
        small = load_fused(kp.chain((64, 64)), Path(place))
        x = torch.randn(64, 64, device="cuda")
        print(
            f"host us a call: ours {launch_overhead_us(small.run, [x]):.2f}, "
            f"torch.relu {launch_overhead_us(torch.relu, [x]):.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
