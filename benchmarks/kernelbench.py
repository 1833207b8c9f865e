"""KernelBench's tasks that we have kernels for, judged by one command: with this tree's sources, or before and after.

    python benchmarks/kernelbench.py PATH --out OUT [--only memory-bound,level1,level2] [--devices 0,1] [--seconds 580]
    python benchmarks/kernelbench.py PATH --out OUT --src OLD/src --src src     # the same with each, and what changed
    python benchmarks/kernelbench.py PATH --out OUT --dtype bfloat16 --only level1

PATH is the folder that holds `level1` and `level2`. `memory-bound`: 48 tasks of level 1 without products; `level1`
and `level2`: the 16 and 37 tasks of products; `convolution1` and `convolution2`: their 35 and 63 of convolutions.
Each group is a run of `tilewright bench` at the winners that are shipped, without tuning, so that a task takes 5 to
10 seconds of a GPU; `--tune` tunes each, 60 seconds of budget. A command that was stopped goes on where it was when
it is given again. What comes of it: OUT/NAME/GROUP.json, compact, NAME being the source tree's number; with several
`--src` the geometric mean of "time before / time after" of each group.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from results import compact, compared, write

from tilewright.faces.deliver import commit
from tilewright.report import bench_summary

HERE = Path(__file__).resolve().parent
GROUPS = {  # level, numbers of tasks
    "memory-bound": ("level1", "5,12,19-49,51-53,88-96,98-100"),
    "level1": ("level1", "1-4,6-11,13-18"),
    "level2": ("level2", "9,12,14,18,22,28-30,33,37,39-41,45,51,53,55,56,59,62-64,66,68,70,75,76,80,81,84,86,88,94,95,"
                         "97-99"),
    "convolution1": ("level1", "50,54-87"),
    "convolution2": ("level2", "1-8,10,11,13,15-17,19-21,23-27,31,32,34-36,38,42-44,46-50,52,54,57,58,60,"
                               "61,65,67,69,71-74,77-79,82,83,85,87,89-93,96,100"),
}  # fmt: skip
JUDGED = ("--target", "cuda", "--budget", "3m", "--timing", "2s", "--no-compile", "--without", "tuning", "--jobs", "3")
TUNED = ("--target", "cuda", "--budget", "60s", "--timing", "2s", "--jobs", "3")
LEAVING_S = 5.0  # a command that was told to stop writes down what it has
_MORE = {"float32": 0, "float16": 10000, "bfloat16": 20000}
# The class stays the one that its own `super(Model, self)` names.
_TEXT = """


_made_in_fp32, _inputs_in_fp32 = Model.__init__, get_inputs


def _made(self, *args, **kwargs):
    _made_in_fp32(self, *args, **kwargs)
    self.to(torch.{dtype})


def get_inputs():
    return [x.to(torch.{dtype}) if torch.is_tensor(x) and x.is_floating_point() else x for x in _inputs_in_fp32()]


Model.__init__ = _made
"""


def in_precision(file: Path, dtype: str) -> tuple[str, str]:
    """The name and the text of a problem file whose module and inputs are of this dtype. Its number grows by 10000 for
    float16, and by 20000 for bfloat16."""
    found = re.match(r"(\d+)_(.*)", file.name)
    if found is None:
        raise SystemExit(f"{file.name}: no number in front")
    text = file.read_text(encoding="utf-8")
    name = f"{int(found[1]) + _MORE[dtype]}_{dtype}_{found[2]}"
    return name, text if dtype == "float32" else text.rstrip() + _TEXT.format(dtype=dtype)


def numbers(only: str) -> set[int]:
    """Of "1-4,7" {1, 2, 3, 4, 7}."""
    ends = [[int(n) for n in part.split("-")] for part in only.split(",")]
    return {n for pair in ends for n in range(pair[0], pair[-1] + 1)}


def command(kernelbench: Path, group: str, into: Path, *, more: Sequence[str] = JUDGED) -> list[str]:
    """What judges a group; its files go below `into`."""
    level, only = GROUPS[group]
    bench = [sys.executable, "-m", "tilewright", "bench", f"kernelbench:{kernelbench / level}", "--only", only]
    return [*bench, *more, "--out", str(into / f"{group}.runs")]


def in_dtype(kernelbench: Path, group: str, into: Path, dtype: str) -> Path:
    """A folder of levels whose tasks of this group are of the dtype, under their own numbers."""
    level, only = GROUPS[group]
    place = into / "problems" / level
    place.mkdir(parents=True, exist_ok=True)
    for file in (kernelbench / level).glob("*.py"):
        if (found := re.match(r"\d+", file.name)) and int(found[0]) in numbers(only):
            (place / file.name).write_text(in_precision(file, dtype)[1], encoding="utf-8")
    return place.parent


def measure(parts: Mapping[str, Sequence[str]], into: Path, seconds: float, *, src: Path | None = None) -> None:
    """The command of each part with `--json INTO/PART`, as far as the time goes. Parts that came to their end at this
    commit are left out; what a part prints goes beside its file. `src`: the tree that is imported."""
    into.mkdir(parents=True, exist_ok=True)
    end, here = time.monotonic() + seconds, f"{commit()} {src or ''}".strip()
    for name, words in parts.items():
        ended = into / f"{name}.ended"
        if ended.exists() and ended.read_text() == here:
            continue
        with open(into / f"{name}.log", "a") as log:
            code = ended_by([*words, "--json", str(into / name)], end, log, src=src)
        if code == 0:
            ended.write_text(here)
        told = "cut off" if code is None else f"exit code {code}"
        print(f"{into.name}/{name}: {told}, {seconds - end + time.monotonic():.0f} s so far", flush=True)
        if time.monotonic() > end:
            break


def ended_by(words: Sequence[str], end: float, log: IO[str], *, src: Path | None = None) -> int | None:
    """The exit code of a command; None where it had to be stopped. What it began and left running is ended with it."""
    paths = [str(src.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])] if src else []
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join(paths)} if src else {})
    with subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, env=environment) as process:
        try:
            return process.wait(timeout=max(end - time.monotonic(), LEAVING_S))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
                    process.wait(timeout=LEAVING_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def of_both(*levels: Mapping[str, Any]) -> dict[str, Any]:
    """The results of both levels as one file."""
    tasks = [task for one in levels for task in one["tasks"]]
    runs = [{"command": one["command"], "commit": one["commit"], "tasks": [t["problem"] for t in one["tasks"]]}
            for one in levels]  # fmt: skip
    return {"tasks": tasks, "summary": bench_summary(tasks), "command": "see `runs`", "commit": levels[0]["commit"],
            "machine": levels[0]["machine"], "runs": runs}  # fmt: skip


def changes(folders: Sequence[Path], groups: Sequence[str]) -> list[str]:
    """Of each group the geometric mean over eager of each tree, and what changed from the first tree to the others."""
    lines = []
    for group in groups:
        found = [json.loads(path.read_text()) for f in folders if (path := f / f"{group}.json").exists()]
        for folder, result in zip(folders, found, strict=False):
            told: Mapping[str, Any] = bench_summary(result["tasks"])
            mean = told["geomean_eager"] or 0
            lines.append(f"{group}, {folder.name}: {mean:.3f} of eager, {told['passed']} of {told['tasks']} right")
        for result in found[1:]:
            mean, changed = compared(found[0], result)
            lines += [
                *(f"    {line}" for line in changed),
                f"{group}: time before / time after: geometric mean {mean:.3f}",
            ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernelbench", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument(
        "--src", type=Path, action="append", help="a folder that holds the package; several are compared"
    )
    parser.add_argument("--dtype", choices=tuple(_MORE), default="float32")
    parser.add_argument("--devices", default="")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all")
    asked = parser.parse_args()
    groups, trees = asked.only.split(","), asked.src or [HERE.parent / "src"]
    folders = [asked.out / str(number) for number in range(len(trees))]
    more = [*(TUNED if asked.tune else JUDGED), *(["--devices", asked.devices] if asked.devices else [])]
    end = time.monotonic() + asked.seconds
    for group in groups:
        level = (
            in_dtype(asked.kernelbench, group, asked.out, asked.dtype)
            if asked.dtype != "float32"
            else asked.kernelbench
        )
        for folder, src in zip(folders, trees, strict=True):
            words = command(level, group, folder, more=more)
            measure({f"{group}.json": words}, folder, max(end - time.monotonic(), 0.0), src=src)
            if (path := folder / f"{group}.json").exists():
                write(path, compact(json.loads(path.read_text())))
    print("\n".join(changes(folders, groups)))
    return 0 if all((f / f"{group}.json.ended").exists() for f in folders for group in groups) else 1


if __name__ == "__main__":
    sys.exit(main())
