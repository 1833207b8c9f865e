"""The tables of README.md and docs/, made of the files in benchmarks/results.

    python -m benchmarks.pages            rewrite every marked block
    python -m benchmarks.pages --check    name the blocks that are out of date; exit code 1 if there are any

A block stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a function of `TABLES` below. A unit
test holds every page to `--check`, so a figure in a block is what its file says.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Record = Mapping[str, Any]
Rows = Iterator[Sequence[object]]


class Results:
    """The result files below one folder, by names such as "h200/gates.json"."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Record:
        held: Record = json.loads((self._folder / name).read_text())
        return held


def drawn(rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown; the first row is its head."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * (lines[0].count(" | ") + 1), *lines[1:]]) + "\n"


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def link(name: str, *, page: str = "docs") -> str:
    up = "../" if page == "docs" else ""
    return f"[{name.removesuffix('.json')}]({up}benchmarks/results/{name})"


def made(result: Record) -> str:
    """When a file was made, and at which commit."""
    commits = re.findall(r"[0-9a-f]{7,40}", str(result.get("commit", "")))
    return f"{result.get('date', '')} {' '.join(c[:7] for c in commits[:2])}".strip()


# ---- files that `tilewright bench` wrote


def of_level(number: int, result: Record) -> list[Record]:
    names = {name for run in result["runs"] if f"level{number}" in run["command"] for name in run["tasks"]}
    return [task for task in result["tasks"] if task["problem"] in names]


def over(task: Record, *, other: str = "eager", algebra: bool = True) -> float:
    """The other's time over ours; 1 where the module is kept or the task failed. `best`: eager or torch.compile."""
    ratio = task.get("ratio") or {}
    mids = {who: float(of["mid"]) for who in ("eager", "compile") if (of := ratio.get(who))}
    if "eager" not in mids:
        times = {who: float(of["mid"]) for who, of in (task.get("times_ns") or {}).items() if of}
        return (
            min(1.0, times["compile"] / times["eager"]) if other == "best" and {"compile", "eager"} <= {*times} else 1.0
        )
    without = (task.get("algebra") or {}).get("without")
    if without and not algebra:
        return float(without["mid"])
    return min(mids.values()) if other == "best" else mids[other]


def counts(tasks: Sequence[Record]) -> tuple[int, int, int]:
    """How many there are, are judged right, and are faster than eager beyond noise."""
    right = sum(bool((t.get("verdict") or {}).get("accepted")) for t in tasks)
    return len(tasks), right, sum(t.get("status") == "improved" for t in tasks)


def share(tasks: Sequence[Record]) -> str:
    """Floor over our time, of the tasks whose candidate was accepted."""
    known = [
        float(t["floor_share"]) for t in tasks if t.get("floor_share") and (t.get("verdict") or {}).get("accepted")
    ]
    return f"{geomean(known):.0%}" if known else "-"


def against(tasks: Sequence[Record], other: str) -> str:
    if other == "best" and not any((t.get("ratio") or {}).get("compile") for t in tasks):
        return "-"
    return f"{geomean(over(t, other=other) for t in tasks):.2f}"


def judged_row(title: str, name: str, result: Record, *, level: int = 0) -> Sequence[object]:
    """No floor for a CPU: a third of those tasks were judged with one that was measured under load."""
    tasks = of_level(level, result) if level else result["tasks"]
    there, right, faster = counts(tasks)
    without = geomean(over(t, algebra=False) for t in tasks)
    eager = against(tasks, "eager")
    told = eager if f"{without:.2f}" == eager else f"{without:.2f} ({eager} with algebra)"
    floor = "-" if name.startswith("cpu") else share(tasks)
    return title, f"{right} / {there}", faster, told, against(tasks, "best"), floor, link(name)


def judged(results: Results) -> Rows:
    yield "tasks", "right", "faster", "eager / ours", "better of eager and compile / ours", "floor / ours", "file"
    for title, name, level in (
        ("KernelBench level 1, memory-bound", "h200/kernelbench-level1.json", 0),
        ("KernelBench level 1, fp32 GEMMs", "h200/kernelbench-products.json", 1),
        ("KernelBench level 2, fp32 GEMMs and epilogues", "h200/kernelbench-products.json", 2),
        ("a matrix with a few vectors, short sums, fp32", "h200/vectors.json", 0),
        ("scales folded into weights, bf16", "h200/folded.json", 0),
        ("feed-forwards in training, fp32", "h200/training-judged.json", 0),
        ("examples/problems, H200 (2026-11-20)", "h200/examples.json", 0),
        ("examples/problems, CPU, 2 threads of a Xeon", "cpu/examples.json", 0),
    ):
        yield judged_row(title, name, results[name], level=level)


def headlines(results: Results) -> Rows:
    """README's five rows."""
    yield "H200, unless said", "right", "faster", "eager / ours", "best other / ours", "floor / ours"
    for title, name, level in (
        ("KernelBench level 1, memory-bound", "h200/kernelbench-level1.json", 0),
        ("KernelBench level 1, fp32 GEMMs", "h200/kernelbench-products.json", 1),
        ("KernelBench level 2, fp32 GEMMs", "h200/kernelbench-products.json", 2),
    ):
        yield judged_row(title, name, results[name], level=level)[:-1]
    bare = [t for t in results["h200/transformer-shapes.json"]["tasks"] if not t["name"].startswith("fused")]
    ratio = geomean(beside(t, ("eager", "quack")) for t in bare)
    yield f"{len(bare)} fp16 and bf16 GEMMs, not judged", "-", "-", "-", f"{ratio:.2f}", floor_of(bare)
    yield judged_row("`examples/problems`, 2 CPU threads", "cpu/examples.json", results["cpu/examples.json"])[:-1]


# ---- files of kernels beside others


def beside(task: Record, others: Sequence[str]) -> float:
    """The better other's time over ours; a task that no pattern takes has eager's time."""
    us = task["us"]
    return min(float(us[who]) for who in others if us.get(who)) / float(us.get("ours") or us["eager"])


def floor_of(tasks: Sequence[Record]) -> str:
    """Floor over our time, a share."""
    return f"{geomean(t['floor_us'] / (t['us'].get('ours') or t['us']['eager']) for t in tasks):.0%}"


def transformers(results: Results) -> Rows:
    tasks = results["h200/transformer-shapes.json"]["tasks"]
    yield "GEMMs", "tasks", "other / ours", "least", "floor / ours"
    for title, starts, word, others in (
        ("prefill, 512 to 65536 tokens; other: the better of cuBLAS and quack", "prefill", "", ("eager", "quack")),
        ("decode, 1 to 64 tokens; the same", "decode", "", ("eager", "quack")),
        ("bias, GELU, residual; other: torch.compile", "fused", "gelu", ("compile",)),
        ("SwiGLU; other: torch.compile", "fused", "swiglu", ("compile",)),
    ):
        some = [t for t in tasks if t["name"].startswith(starts) and word in t["name"]]
        ratios = [beside(t, others) for t in some]
        yield title, len(some), f"{geomean(ratios):.3f}", f"{min(ratios):.3f}", floor_of(some)


def libraries(results: Results) -> Rows:
    tasks = results["h200/libraries.json"]["tasks"]
    kinds = [(phase, dtype) for phase in ("forward", "step") for dtype in ("f32", "bf16")]
    yield "better of quack and Liger / ours", *(f"{phase} {dtype}" for phase, dtype in kinds)
    for operation in dict.fromkeys(t["operation"] for t in tasks):
        cells = []
        for phase, dtype in kinds:
            some = [
                t[phase]["times_ms"]
                for t in tasks
                if (t["operation"], t["dtype"]) == (operation, dtype) and t.get(phase)
            ]
            ratios = [min(s[who] for who in ("quack", "liger") if s.get(who)) / s["ours"] for s in some if _has_both(s)]
            cells.append(f"{geomean(ratios):.2f} ({min(ratios):.2f})" if ratios else "-")
        yield operation.replace("_", " "), *cells


def _has_both(times: Mapping[str, float]) -> bool:
    return bool(times.get("ours") and (times.get("quack") or times.get("liger")))


def own_kernels(results: Results) -> Rows:
    yield "kind", "shape", "torch, us", "ours, us", "torch / ours"
    for task in results["h200/beside-torch.json"]["shapes"]:
        times = {who: ms * 1e3 for who, ms in task["times_ms"].items()}
        ours = min(us for who, us in times.items() if who != "torch")
        shape = " x ".join(map(str, task["shape"]))
        kind = {"experts": "grouped GEMM (experts, rows, N, K), bf16", "float8": "fp8 with scales of rows"}[
            task["kind"]
        ]
        yield kind, shape, f"{times['torch']:.0f}", f"{ours:.0f}", f"{times['torch'] / ours:.2f}"


def eight_bits(results: Results) -> Rows:
    tasks = list(results["h200/unpacked.json"]["tasks"].values())
    yield (
        "weights",
        "us, rows of 1 to 32 by 14336 x 4096",
        "torch.compile / ours",
        "eager / ours",
        "cuBLAS with 16-bit weights / ours",
    )
    for kind in dict.fromkeys(t["kind"] for t in tasks):
        some = [t for t in tasks if t["kind"] == kind]
        us = [f"{t['us']['one']:.1f}" for t in sorted(some, key=lambda t: t["m"]) if t["n"] == 14336]
        yield kind, ", ".join(us), *(_range(some, who) for who in ("compile", "eager", "cublas 16 bits"))


def _range(tasks: Sequence[Record], who: str) -> str:
    mids = [t["ratio"][who][1] for t in tasks if who in t["ratio"]]
    return f"{min(mids):.2f} to {max(mids):.2f}"


def several(results: Results) -> Rows:
    tasks = results["h200/results-beside.json"]["tasks"]
    yield "one kernel writes", "two kernels / one, fp32", "bf16", "torch.compile / one, fp32", "bf16"
    for kind in ("y, gelu(y)", "relu(y), mask", "int8", "float8", "gate"):
        cells = []
        for who in ("two", "compile"):
            for dtype in ("f32", "bf16"):
                mids = [t["ratio"][who][1] for name, t in tasks.items() if name.startswith(f"{kind} {dtype} ")]
                cells.append(f"{geomean(mids):.2f}" if mids else "-")
        yield kind.replace("gate", "SwiGLU (dual GEMM)"), *cells


def block(results: Results) -> Rows:
    """MiniGPT's block by `fact`: each candidate that was judged whole."""
    found = results["h200/fact-44.json"]
    yield "MiniGPT's block (KernelBench 3/44)", "ours, ms", "eager / ours", "torch.compile / ours"
    for task in found["judged"]:
        ratio = {who: f"{task['ratio'][who]['mid']:.2f}" for who in ("eager", "compile")}
        yield (
            _without(task["why"], found["patterns"]),
            f"{task['times_ns']['ours'] / 1e6:.2f}",
            ratio["eager"],
            ratio["compile"],
        )
    graph = found["cuda_graph"]
    yield "as CUDA graphs", f"{graph['ours_ns']['mid'] / 1e6:.2f}", f"{graph['ratio']['mid']:.2f}", "-"


def _without(why: str, patterns: Mapping[str, str]) -> str:
    said = why.removesuffix(": what is its share?").replace(
        "library_0 in the place of rivals", "with torch's SDPA instead"
    )
    return re.sub(r"fused_\d+", lambda found: f"`{patterns.get(found[0], found[0])}`", said)


def replies(results: Results) -> Rows:
    yield "problem", "eager, us", "best, us", "library / best", "eager / best", "of the floor"
    for run in results["h200/agent-runs.json"]["strategies"]["cutegen"]:
        start = f"{run['start'] / run['best']:.1f}" if run.get("start") else "-"
        name = run["problem"].partition("_")[2].replace("_", " ")[:52].strip()
        yield (
            name,
            f"{run['eager'] / 1e3:.0f}",
            f"{run['best'] / 1e3:.0f}",
            start,
            f"{run['eager'] / run['best']:.1f}",
            f"{run['floor'] / run['best']:.0%}",
        )


# ---- the judge


def itself(results: Results) -> Rows:
    yield "a module against itself", "runs", "gains claimed", "accused", "file"
    for title, name in (("H200", "h200/false-positives.json"), ("CPU, 2 threads", "cpu/false-positives.json")):
        runs = list(_nested(results[name]))
        yield title, *(sum(run.get(of, 0) for run in runs) for of in ("runs", "claimed", "accused")), link(name)
    found = results["h100/false-positives.json"]
    both = [found, found["more"]]
    yield (
        "H100",
        *(sum(run.get(of, 0) for run in both) for of in ("runs", "claimed", "accused")),
        link("h100/false-positives.json"),
    )
    for run in results["cpu/false-positives-beside.json"]["runs"]:
        title = f"CPU beside load that counts as ours, {run['commit']}"
        yield title, run["runs"], run["claimed"], "-", link("cpu/false-positives-beside.json")


def _nested(result: Record) -> Iterator[Record]:
    yield result
    if isinstance(result.get("before"), Mapping):
        yield from _nested(result["before"])


def corpus(results: Results) -> Rows:
    yield "adversarial corpus", "cheats as they should be", "honest files as they should be", "when", "file"
    for title, name in (
        ("GPU, four H100", "h100/museum.json"), ("GPU, two H200", "h200/museum.json"), ("CPU", "cpu/museum.json"),
        ("CPU, two threads beside three busy loops", "cpu/museum-busy.json"),
        ("CPU, guards off (each must get through)", "cpu/museum-proofs.json"),
        ("GPU, four H100, guards off, as far as time went", "h100/museum-proofs.json"),
        ("GPU alone, guards off", "h200/museum-proofs.json"),
    ):  # fmt: skip
        found = results[name]
        cells = [
            f"{of['as_they_should_be']} / {of['run']}" if (of := found.get(kind)) else "-"
            for kind in ("refused", "honest")
        ]
        yield title, *cells, made(found), link(name)


def sweeps(results: Results) -> Rows:
    yield "judge and device", "runs of each candidate", "dishonest accepted", "honest refused", "when", "file"
    dishonest = ("constant", "TF32", "bf16", "fp16", "a term short", "a column short")
    for title, name in (
        ("before budgets (a9cc52f), CPU", "cpu/precision-sweep-before.json"),
        ("CPU, 64 and 4096 elements", "cpu/precision-sweep-200.json"),
        ("the same, rows nearer to their turns", "cpu/precision-sweep.json"),
        ("GPU, a million elements", "h100/precision-sweep.json"),
    ):
        found = results[name]
        cells = list(found.get("cells", {}).values())
        wrong: Counter[str] = Counter(found.get("wrong", {}))
        for cell in cells:
            wrong.update(cell.get("wrong", {}))
        accepted = ", ".join(f"{who} {wrong[who]}" for who in dishonest if wrong[who]) or "none"
        refused = sum(n for who, n in wrong.items() if who not in dishonest)
        yield (
            title,
            found.get("cell_seeds") or sum(c["seeds"] for c in cells),
            accepted,
            refused,
            made(found),
            link(name),
        )


def accuracy(results: Results) -> Rows:
    found = results["h200/accuracy.json"]
    yield "family, measure", "cuBLAS fp32", "cuBLAS TF32", "fp16x3", "streamed", "ours / fp32, the most"
    for name, errors in found["families"].items():
        ways = (errors[way] for way in ("torch", "tf32", "planes", "streamed"))
        yield name, *(f"{way[0]:.1e}, {way[1]:.1e}" for way in ways), f"{errors['over']:.2f}"


def verifiers(results: Results) -> Rows:
    yield "verifier", "the fault is", "proven", "suspect", "clean", "unknown"
    for name, kinds in results["cpu/verifiers.json"]["verifiers"].items():
        for fault, said in kinds.items():
            yield name, fault, *(said[of] for of in ("proven", "suspect", "clean", "unknown"))
    for who, said in results["cpu/verifiers.json"]["overall"].items():
        yield "all together", who, said["proven"], said["suspect"], f"{said['neither']} neither", "-"


def coverage(results: Results) -> Rows:
    yield "level", "looked into", "in patterns, mean", "median", "could win", "most of what is left to torch"
    for level, of in results["h200/discover.json"]["levels"].items():
        left = ", ".join(f"{item['what']} {item['share']:.1%}" for item in of["left"][:6])
        shares = (f"{of[key]:.0%}" for key in ("mean_covered", "median_covered", "mean_gain"))
        yield level, f"{of['tasks'] - of['failed']} of {of['tasks']}", *shares, left


def peers(results: Results) -> Rows:
    yield (
        "kernel",
        "claim: eager, compile",
        "verdict",
        "of the allowed error",
        "eager / theirs",
        "compile / theirs",
        "floor",
        "own",
    )
    for task in results["h200/peers.json"]["tasks"]:
        run = task["runs"][0]
        claim = ", ".join(
            f"{task['claim'][key]:.2f}" for key in ("speedup", "speedup_compile") if task["claim"].get(key)
        )
        words = re.sub("_+", " ", task["task"].partition("_")[2]) if task["from"] == "CuTeGen" else ""
        name = f"`{task['id']}` {words[:32]}".strip()
        if not run["verdict"]["accepted"]:
            yield name, claim, f"`{run['verdict']['reason']}`", "", "", "", "", ""
            continue
        ratios = (
            f"{mid:.2f} [{low:.2f}, {high:.2f}]"
            for low, mid, high in (run["ratio"][who] for who in ("eager", "compile"))
        )
        yield (
            name,
            claim,
            "accepted",
            f"{run['share']:.0%}",
            *ratios,
            f"{run['floor_share']:.0%}",
            f"{run['own_share']:.0%}",
        )


TABLES: Mapping[str, Callable[[Results], Rows]] = {
    "headlines": headlines, "judged": judged, "transformers": transformers, "libraries": libraries,
    "own-kernels": own_kernels, "eight-bits": eight_bits, "several": several,
    "block": block, "replies": replies, "itself": itself, "corpus": corpus, "sweeps": sweeps,
    "accuracy": accuracy, "verifiers": verifiers, "coverage": coverage, "peers": peers,
}  # fmt: skip


# ---- pages


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def again(text: str, results: Results) -> str:
    """The page with every marked block made anew. KeyError for a block that no table is named for."""
    return _BLOCK.sub(lambda found: found[1] + drawn(TABLES[found[2]](results)) + found[3], text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a block is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose pages are written")
    asked = parser.parse_args(arguments)
    results, stale = Results(asked.root / "benchmarks" / "results"), []
    for page in pages(asked.root):
        before = page.read_text()
        after = again(before, results)
        if after != before:
            stale.append(page)
            if not asked.check:
                page.write_text(after)
    for page in stale:
        print(f"{'out of date' if asked.check else 'written'}: {page.relative_to(asked.root)}")
    return int(asked.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
