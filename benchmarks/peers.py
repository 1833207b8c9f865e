"""Kernels that others released, under this judge: `tilewright evaluate` for each, beside what its authors claim.

    python benchmarks/peers.py --robust-kbench CHECKOUT --cutegen CHECKOUT --cutlass INCLUDE --json FILE
                               [--only ID,ID] [--precision reference|tf32|fp16|bf16] [--jobs 8] [--limit 400]

CHECKOUT is a local clone of github.com/SakanaAI/robust-kbench or github.com/taratt/cutegen; INCLUDE holds CUTLASS's
headers, for the kernels that include them. Builds run side by side, measurements in turn. What FILE holds of kernels
that are not judged now stays; nothing of the kernels' code is kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.faces.deliver import commit

# CuTeGen's runs: all tasks written in CuTe, and of those in plain CUDA the ones whose claims are largest.
CUTE_RUN, CUDA_RUN = "cute/level1-no-profile-sonnet5", "cuda/level1-profiled"
CUDA_TASKS = (40, 54, 58, 103)
READABLE = ("/usr", "/opt", sys.prefix)  # among others, in a candidate's cell
HEADERS = re.compile(r'"[^"]*/cutegen/cutlass/include')  # where they lay on their authors' machine
KEPT = ("error", "times_ns", "ratio", "noise", "floor_ns", "floor_share", "own_share", "time_shares", "notes")
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A released kernel as a candidate: the problem (a file or a task folder), and what its authors say of it."""

    id: str
    source: str
    task: str
    claim: Record
    problem: Path
    candidate: Path
    mode: str = "auto"


def from_robust_kbench(checkout: Path, folder: Path) -> Iterator[Peer]:
    """The winners of `results.csv`, and what lies in `highlighted/` where that is another kernel."""
    csv.field_size_limit(sys.maxsize)
    with open(checkout / "highlighted" / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        direction = "forward" if row["forward"] == "True" else "backward"
        name = f"{row['task_name']}.{direction}"
        claim = {
            "speedup": float(row["Speedup"]), "speedup_compile": float(row["Speedup Compile"]), "gpu": "H100",
            "name": row["Kernel Name"],
        }  # fmt: skip
        released = (checkout / "highlighted" / row["task_name"] / direction / "kernel.cu").read_text()
        found = [(name, row["Code"], claim)]
        if released.strip() != row["Code"].strip():
            found.append((f"{name}.released", released, {"name": "the file in highlighted/; no claim of its own"}))
        for id_, code, said in found:
            candidate = folder / id_ / "kernel.cu"
            candidate.parent.mkdir(parents=True)
            candidate.write_text(code)
            yield Peer(
                id=id_, source="robust-kbench", task=row["task_name"], claim=said, candidate=candidate,
                problem=checkout / "tasks" / row["task_name"],
                mode="training" if direction == "backward" else "inference",
            )  # fmt: skip


def from_cutegen(checkout: Path, folder: Path, include: str) -> Iterator[Peer]:
    """The fastest passing kernel of each task."""
    for run in (CUTE_RUN, CUDA_RUN):
        language = run.partition("/")[0]
        for task in sorted((checkout / "saved_nodes" / run).iterdir()):
            number = int(task.name.partition("_")[0])
            if language == "cuda" and number not in CUDA_TASKS:
                continue
            nodes = [(p.name, json.loads(p.read_text())) for p in sorted(task.glob("*.json"))]
            passing = [(float(n["time"]["mean"]), name, n) for name, n in nodes if n["error_type"] == "PASS"]
            time_ms, name, node = min(passing, key=lambda found: found[0])
            mine = folder / f"{language}.{number}"
            mine.mkdir(parents=True)
            (mine / "problem.py").write_text(node["ref"])
            (mine / "model.py").write_text(HEADERS.sub(lambda found: f'"{include}', node["src"]))
            speedup = round(float(node["ref_time"]["mean"]) / time_ms, 4)
            claim = {"speedup": speedup, "gpu": "NVIDIA GeForce RTX 4090", "node": name, "run": run.partition("/")[2]}
            yield Peer(
                id=mine.name, source="CuTeGen", task=task.stem, claim=claim, problem=mine / "problem.py",
                candidate=mine / "model.py",
            )  # fmt: skip


def judged(peer: Peer, *, precision: str, out: Path, limit_s: float) -> Record:
    """What `tilewright evaluate` says; of one that does not end, why."""
    command = [sys.executable, "-m", "tilewright", "evaluate", str(peer.problem), str(peer.candidate)]
    command += ["--target", "cuda", "--mode", peer.mode, "--precision", precision]
    command += ["--out", str(out / peer.id), "--json"]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        said: Record = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        said = {"failure": f"not done after {limit_s:.0f} s"}
    except ValueError:
        said = {"failure": " ".join(done.stderr.split())[-500:]}
    told = said.get("verdict", {}).get("summary") or said.get("failure")
    print(f"{time.monotonic() - started:6.0f} s  {peer.id}: {told}", flush=True)
    if "failure" in said:
        return {"precision": precision, "commit": commit(), **said}
    verdict = {k: said["verdict"][k] for k in ("accepted", "stage", "reason", "summary")}
    device = (said.get("machine") or {}).get("device", "")
    kept = {k: said.get(k) for k in KEPT}
    return {"precision": precision, "verdict": verdict, "commit": commit(), **kept, "machine": device}


def merged(old: list[Record], peers: list[Peer], runs: dict[str, Record]) -> list[Record]:
    """The old records, with the new runs in the place of those of the same precision."""
    found = {r["id"]: r for r in old}
    for peer in peers:
        new = {"id": peer.id, "from": peer.source, "task": peer.task, "claim": peer.claim, "runs": []}
        record = found.setdefault(peer.id, new)
        if peer.id in runs:
            mine, record["claim"] = runs[peer.id], peer.claim
            record["runs"] = [r for r in record["runs"] if r["precision"] != mine["precision"]] + [mine]
        record["judged"] = any("verdict" in r for r in record["runs"])
    return list(found.values())


def table(records: list[Record]) -> str:
    """As in docs/peers.md, from each kernel's run under the reference's own precision."""
    lines = ["| task | claim: eager, compile | verdict | share | eager | compile | floor | own |", "|---|" + "---|" * 7]
    for record in records:
        said = [f"{record['claim'][k]:.2f}" for k in ("speedup", "speedup_compile") if k in record["claim"]]
        run = next((r for r in record["runs"] if "verdict" in r and r["precision"] == "reference"), None)
        cells = _cells(run) if run else ["not reached", *[""] * 5]
        lines.append(f"| `{record['id']}` | {', '.join(said) or '(none)'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(run: Record) -> list[str]:
    if not run["verdict"]["accepted"]:
        return [f"`{run['verdict']['reason']}`", *[""] * 5]
    error, ratios = run["error"], [(run["ratio"] or {}).get(k) for k in ("eager", "compile")]
    share = max(error["norm"] / error["allowed_norm"], error["worst"] / error["allowed_worst"]) if error else 0.0
    shown = [f"{r['mid']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if r else "" for r in ratios]
    return ["accepted", f"{share:.0%}", *shown, f"{run['floor_share'] or 0:.0%}", f"{run['own_share'] or 0:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robust-kbench", type=Path)
    parser.add_argument("--cutegen", type=Path)
    parser.add_argument("--cutlass", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--precision", choices=("reference", "tf32", "fp16", "bf16"), default="reference")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for one kernel")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    if asked.cutlass and not any(Path(asked.cutlass).resolve().is_relative_to(p) for p in READABLE):
        parser.error(f"--cutlass {asked.cutlass}: candidates can read below {', '.join(READABLE)} alone; put it there")
    about = {"command": shlex.join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d")}
    old = json.loads(asked.json.read_text()) if asked.json.is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peers = [*(from_robust_kbench(asked.robust_kbench.resolve(), folder) if asked.robust_kbench else ())]
        peers += [*(from_cutegen(asked.cutegen, folder, asked.cutlass) if asked.cutegen else ())]
        wanted = [p for p in peers if not asked.only or p.id in asked.only.split(",")]
        runs: dict[str, Record] = {}
        with ThreadPoolExecutor(asked.jobs) as pool:
            ask = partial(judged, precision=asked.precision, out=folder / "runs", limit_s=asked.limit)
            begun = {pool.submit(ask, p): p for p in wanted}
            for done in as_completed(begun):
                runs[begun[done].id] = done.result()
                records = merged(old.get("tasks", []), peers, runs)
                asked.json.write_text(json.dumps(old | about | {"tasks": records}, indent=1) + "\n")
    records = merged(old.get("tasks", []), peers, runs)
    for source in ("robust-kbench", "CuTeGen"):
        mine = [r for r in records if r["from"] == source]
        print(f"\n{source}: {sum(bool(r.get('judged')) for r in mine)} of {len(mine)} judged\n{table(mine)}")


if __name__ == "__main__":
    main()
