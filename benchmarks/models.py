"""Real modules against the best of eager and torch.compile in all modes: ratios, time to a result, share in kernels.

    python benchmarks/models.py [--only WORDS] [--devices 0,1] [--budget 60s] [--seconds 580] --json FILE
    python benchmarks/models.py --show FILE      # as a Markdown table

Each module of `zoo.py` is optimised and measured in a process of its own. Ours and the baselines take random turns, one
call with cold caches and then a burst of calls; a ratio is that of neighbours in one round, its interval the 99% one of
the median. `torch.compile` is tried in each mode; modes that fail or that compile for longer than `--compile-limit` say
so. What FILE holds of the same commit is kept. Nothing here is a claim: the judge measures what is claimed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch
from harness import Child, answering, kept, spread
from results import about, write
from torch import nn
from torch.utils._pytree import tree_map_only
from zoo import MODELS, Zoo

import tilewright
from tilewright.judge.candidate_process.step import tensors_of
from tilewright.judge.timing.statistics import median_interval

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
BURST_S, MOST_CALLS = 0.03, 40
FLUSH_BYTES = {"cuda": 256 << 20, "cpu": 0}
Call = Callable[[], Any]
Record = dict[str, Any]


# ---- one module, in its own process


def moved(value: Any, device: str) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.to(device), value)


def call_of(zoo: Zoo, module: nn.Module) -> Call:
    """What is timed: a forward, a step of training from cleared gradients, or a generation."""
    if zoo.tokens:
        text = {"do_sample": False, "min_new_tokens": zoo.tokens, "max_new_tokens": zoo.tokens, "pad_token_id": 0,
                "cache_implementation": "static"}  # fmt: skip
        return lambda: module.generate(**zoo.kwargs, **text)  # type: ignore[operator]
    if zoo.training:
        return lambda: step(zoo, module)

    def forward() -> Any:
        with torch.no_grad():
            return module(*zoo.args, **zoo.kwargs)

    return forward


def step(zoo: Zoo, module: nn.Module) -> Any:
    zoo.module.zero_grad(set_to_none=True)
    result = module(*zoo.args, **zoo.kwargs)
    outputs = [t for t in tensors_of(result) if t.requires_grad]
    torch.autograd.backward([t.float().square().mean() for t in outputs])
    return result


def compiled(zoo: Zoo, limit_s: float) -> Iterator[tuple[str, Call | str]]:
    """(mode, the call or why there is none) of each mode; the compiler's own caches are left as they are."""
    left_s = limit_s
    for mode in MODES:
        torch._dynamo.reset()
        if left_s <= 0:
            yield mode, "no time was left to compile it"
            continue
        started = time.monotonic()
        try:
            call = call_of(zoo, torch.compile(zoo.module, mode=None if mode == "default" else mode))  # type: ignore[arg-type]
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                call()
            yield mode, call
        except Exception as error:  # of whatever kind, it is this mode's alone
            yield mode, " ".join(repr(error).split())[-200:]
        left_s -= time.monotonic() - started


def timed(call: Call, calls: int, flush: torch.Tensor | None) -> tuple[float, float]:
    """ms of a call with cold caches, and of one in a burst."""
    if flush is None:
        start = time.perf_counter()
        call()
        middle = time.perf_counter()
        for _ in range(calls):
            call()
        return (middle - start) * 1e3, (time.perf_counter() - middle) * 1e3 / calls
    flush.zero_()
    begin, between, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda.synchronize()
    begin.record()
    call()
    between.record()
    between.synchronize()
    start = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(between), start.elapsed_time(end) / calls


def compared(zoo: Zoo, ours: nn.Module, device: str, *, rounds: int, limit_s: float) -> Record:
    """Times in ms of each subject, cold and warm, and the ratio of the best of the others over ours."""
    calls: dict[str, Call] = {"ours": call_of(zoo, ours), "eager": call_of(zoo, zoo.module)}
    failures: dict[str, str] = {}
    flush = torch.empty(FLUSH_BYTES[device], dtype=torch.uint8, device=device) if FLUSH_BYTES[device] else None
    eager = calls["eager"]
    for _ in range(3):
        warm_ms = timed(eager, 1, flush)[1]
    calls_a_burst = max(1, min(MOST_CALLS, round(BURST_S * 1e3 / warm_ms)))
    beside: dict[str, Record] = {}

    def play(names: Sequence[str], of: Mapping[str, Call]) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for turn in range(rounds + 2):
            for name in random.sample(list(names), len(names)):
                times = timed(of[name], calls_a_burst, flush)
                if turn > 1:
                    found[name].append(times)
        return found

    seen = play(("ours", "eager"), calls)
    beside["eager"] = against(seen["ours"], seen["eager"])
    for mode, call in compiled(zoo, limit_s):
        if isinstance(call, str):
            failures[mode] = call
            continue
        found = play(("ours", mode), {"ours": calls["ours"], mode: call})  # each mode has its own turn: see `reset`
        beside[mode] = against(found["ours"], found[mode])
    best = min(beside, key=lambda who: beside[who]["over_ours"][1])
    return {"against": beside, "best": best, "over_best": beside[best]["over_ours"],
            "over_best_warm": beside[best]["over_ours_warm"], "failures": failures}  # fmt: skip


def against(ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]) -> Record:
    """Medians in ms and the ratios of neighbours, theirs over ours, as (low, middle, high)."""
    record: Record = {}
    for which, tail in ((0, ""), (1, "_warm")):
        mine, other = [t[which] for t in ours], [t[which] for t in theirs]
        ratio = median_interval([b / a for a, b in zip(mine, other, strict=True)])
        record |= {f"ms{tail}": median(other), f"ours_ms{tail}": median(mine),
                   f"over_ours{tail}": [ratio.low, ratio.mid, ratio.high]}  # fmt: skip
    return record


def measured(name: str, asked: argparse.Namespace) -> Record:
    """Optimised, then compared with what is there without us."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    built = MODELS[name]()
    zoo = Zoo(module=built.module.to(device), args=moved(built.args, device), kwargs=moved(built.kwargs, device),
              training=built.training, tokens=built.tokens)  # fmt: skip
    started = time.monotonic()
    result = tilewright.optimize(
        zoo.module, zoo.args, zoo.kwargs, budget=asked.budget, timing="3s", target=device,  # type: ignore[arg-type]
        mode="training" if zoo.training else None,
    )  # fmt: skip
    took_s = time.monotonic() - started
    record = {"name": name, "status": result.status, "seconds": took_s, "own_share": result.summary.get("own_share")}
    found = compared(zoo, result.module, device, rounds=asked.rounds, limit_s=asked.compile_limit)
    return record | found | {"fallbacks": result.fallbacks()}


# ---- all of them


def serve(asked: argparse.Namespace) -> None:
    def answer(line: str) -> str:
        name = line.strip()
        try:
            return json.dumps(measured(name, asked))
        except Exception as error:  # of whatever kind, it is this module's alone
            return json.dumps({"name": name, "failures": {"": " ".join(repr(error).split())[-300:]}})

    answering(answer)


def shown(record: Record) -> str:
    if "against" not in record:
        return f"{record['name']:58s} no result: {record['failures']}"
    low, mid, high = record["over_best"]
    return (f"{record['name']:58s} {record['status']}, {record['seconds']:.0f} s: {mid:.2f} [{low:.2f}, {high:.2f}] of "
            f"{record['best']}, warm {record['over_best_warm'][1]:.2f}")  # fmt: skip


def summary(records: Sequence[Record]) -> Iterator[str]:
    found = [r for r in records if "against" in r]
    if found:
        mean = geometric_mean(r["over_best"][1] for r in found)
        behind = [r["name"] for r in found if r["over_best"][2] < 1]
        longest = max(found, key=lambda r: r["seconds"])
        yield f"the best of eager and torch.compile / ours: geometric mean {mean:.3f} of {len(found)}"
        yield f"behind beyond noise: {', '.join(behind) or 'none'}"
        yield f"longest to a result: {longest['seconds']:.0f} s ({longest['name']})"
    if lost := [r["name"] for r in records if "against" not in r]:
        yield f"without a result: {', '.join(lost)}"


def markdown(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{result['device']}, {result['date']}, {result['commit'][:7]}, `{result['command']}`"
    yield from ("", "| module | over eager | over the best | warm | the best | seconds | in our kernels |",
                "|---|---:|---:|---:|---|---:|---:|")  # fmt: skip
    for r in result["tasks"]:
        if "against" not in r:
            yield f"| {r['name']} | no result | | | | | |"
            continue
        over, best, warm = r["against"]["eager"]["over_ours"], r["over_best"], r["over_best_warm"]
        share = f"{r['own_share']:.0%}" if r.get("own_share") is not None else ""
        cells = (f"{mid:.2f} [{low:.2f}, {high:.2f}]" for low, mid, high in (over, best, warm))
        yield f"| {r['name']} | {' | '.join(cells)} | {r['best']} | {r['seconds']:.0f} | {share} |"
    yield from ("", *(f"- {line}" for line in summary(result["tasks"])))


def run(asked: argparse.Namespace) -> list[Record]:
    head = about()
    records = kept(asked.json, head, whole="against")
    done = {r["name"] for r in records}
    names = [n for n in MODELS if n not in done and any(w in n for w in asked.only.split(";"))]
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", "--budget", asked.budget, "--rounds",
               str(asked.rounds), "--compile-limit", str(asked.compile_limit)]  # fmt: skip
    children = [Child(command, CUDA_VISIBLE_DEVICES=device) for device in asked.devices.split(",")]
    ends = time.monotonic() + asked.seconds
    for number, answer in spread(names, children, limit_s=asked.limit, ends=ends) if names else ():
        if answer is None and time.monotonic() >= ends:
            continue
        lost = "no result in time" if answer is None else "its process broke off"
        records.append(json.loads(answer) if answer else {"name": names[number], "failures": {"": lost}})
        print(shown(records[-1]), flush=True)
        if asked.json:
            write(asked.json, head | {"tasks": records})
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="words between semicolons; a module's name must hold one")
    parser.add_argument("--devices", default="0")
    parser.add_argument("--budget", default="60s", help="of each `tilewright.optimize`")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--compile-limit", type=float, default=240.0, help="seconds that torch.compile's modes have")
    parser.add_argument("--limit", type=float, default=500.0, help="seconds for a module, all included")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all; what has no result then has none yet")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked)
    elif asked.show:
        print("\n".join(markdown(json.loads(asked.show.read_text()))))
    else:
        records = run(asked)
        print("\n".join(summary(records)))
        return 0 if records and all("against" in r for r in records) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
