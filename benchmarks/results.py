"""Result files: compact JSON, one record a line, numbers to four digits, with what made them.

    python benchmarks/results.py compact FILE...           # of `tilewright bench`, or of any script here
    python benchmarks/results.py merge HELD NEW... [--command "tilewright bench ..."] [--note "..."]
    python benchmarks/results.py compare BEFORE AFTER      # two files of `tilewright bench`, task by task
    python benchmarks/results.py levels OUT LEVEL...       # what `tilewright discover FOLDER --json > LEVEL` said

`merge` puts tasks that `tilewright bench` judged anew into a file that holds them: NEW is what `bench --json` wrote, or
a list of tasks (of a run that was cut off). `runs` of the result says which command and commit made which tasks; the
summary is computed anew. A task without a verdict takes the place of none. `compare` prints the geometric mean of
"time before / time after" over the tasks of both files, and the tasks that changed by more than 2%. `levels` keeps of
each module its time, the share in patterns, what these could win, and the largest part that is left to torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tilewright.faces.deliver import commit
from tilewright.report import bench_summary, discoveries_summary

Record = dict[str, Any]
# What a reader of a judged task needs; the rest is in the run's folder.
KEPT = ("problem", "mode", "status", "verdict", "error", "times_ns", "ratio", "phases", "floor_ns", "floor_share",
        "patterns", "algebra", "fallbacks", "own_share", "cuda_graph", "machine", "seconds", "device_seconds", "stamp",
        "whose")  # fmt: skip
ORDER = ("what", "command", "commit", "date", "device")


def about(command: str = "") -> Record:
    """The head of a result file: command, commit, date, device, version of torch."""
    import torch

    here = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    command = command or shlex.join(["python", *sys.argv])
    made = {"command": command, "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    return made | {"device": here, "torch": torch.__version__}


def _processor() -> str:
    names = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    name = names[0].partition(": ")[2] if names else platform.processor()
    return f"{name}, {os.cpu_count()} threads, load {os.getloadavg()[0]:.1f}"


def rounded(value: Any, digits: int = 4) -> Any:
    """The same with floats of so many significant digits, and without entries that are empty."""
    if isinstance(value, float):
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, Mapping):
        return {k: short for k, v in value.items() if (short := rounded(v, digits)) not in (None, "", [], {})}
    return [rounded(v, digits) for v in value] if isinstance(value, list | tuple) else value


def text(result: Mapping[str, Any]) -> str:
    """The file's text: a line for each entry, and for each record of a list or of an object of objects."""
    order = [*(k for k in ORDER if k in result), *(k for k in result if k not in ORDER)]
    return "{\n" + ",\n".join(f"{_dump(k)}: {_lines(result[k])}" for k in order) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        return "[\n" + ",\n".join(map(_dump, value)) + "]"
    if isinstance(value, dict) and any(isinstance(v, dict) for v in value.values()):
        return "{\n" + ",\n".join(f"{_dump(k)}: {_dump(v)}" for k, v in value.items()) + "}"
    return _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write it, rounded, in the place of what lay there; nowhere where `path` is None."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(text(rounded(result)), encoding="utf-8")
        part.replace(path)


def compact(result: Mapping[str, Any]) -> Record:
    """The result with tasks of `tilewright bench` as `task` leaves them; `machine` stands once, in front."""
    tasks, machine = result.get("tasks"), result.get("machine")
    if not isinstance(tasks, list) or not all("problem" in t and "verdict" in t for t in tasks):
        return dict(result)
    short = [task(t) for t in tasks]
    return {**result, "tasks": [{k: v for k, v in t.items() if k != "machine" or v != _device(machine)} for t in short]}


def task(found: Mapping[str, Any]) -> Record:
    """A judged task: times of the middle, ratios with their intervals, winners' points as texts."""
    kept = {k: found[k] for k in KEPT if found.get(k)}
    if kept.get("mode") == "inference":
        del kept["mode"]
    kept["verdict"] = {
        k: v for k, v in kept.get("verdict", {}).items() if k in ("accepted", "stage", "reason", "summary")
    }
    for name in ("times_ns", "ratio"):
        kept[name] = {k: v for k, v in (found.get(name) or {}).items() if v and not k.endswith("warm")}
    kept["times_ns"] = {k: {"mid": v["mid"]} for k, v in kept["times_ns"].items()}
    kept["phases"] = {k: v.get("ratio", v) for k, v in (found.get("phases") or {}).items() if v}
    kept["error"] = {
        k: v for k, v in (found.get("error") or {}).items() if k in ("norm", "worst", "allowed_norm", "allowed_worst")
    }
    kept["patterns"] = [{"title": p["title"], "point": _point(p.get("point"))} for p in found.get("patterns") or ()]
    kept["device_seconds"] = {"all": (found.get("device_seconds") or {}).get("all")}
    if "machine" in kept:
        kept["machine"] = _device(kept["machine"])
    return kept


def _point(point: Any) -> str:
    pairs = point.items() if isinstance(point, Mapping) else point if isinstance(point, list | tuple) else ()
    return " ".join(f"{k}={v}" for k, v in pairs) if pairs else str(point or "")


def _device(machine: Any) -> Any:
    return {"device": machine.get("device")} if isinstance(machine, Mapping) else machine


def judged(found: Mapping[str, Any]) -> bool:
    """Whether the judge came to a verdict: a run that broke says nothing of the task."""
    return (found.get("verdict") or {}).get("stage", "run") != "run" and found.get("status") != "pending"


def merged(result: Record, tasks: Iterable[Record], *, command: str, note: str = "") -> Record:
    """The result with these tasks in place of its own of the same names, in their order. ValueError where a task was
    judged on another kind of device, or carries no stamp."""
    device = result["machine"]["device"]
    fresh = {t["problem"]: t for t in tasks if judged(t)}
    for name, found in fresh.items():
        if not found.get("stamp") or (found.get("machine") or result["machine"])["device"] != device:
            raise ValueError(f"{name}: no stamp, or judged on another device than {device}")
    kept = {t["problem"]: t for t in result["tasks"]}
    runs = result.get("runs") or [{"command": result["command"], "commit": result["commit"], "tasks": list(kept)}]
    runs = [{**run, "tasks": [name for name in run["tasks"] if name not in fresh]} for run in runs]
    commits = ", ".join(sorted({t["stamp"].split()[-1] for t in fresh.values()}))
    runs.append({"command": command, "commit": commits, "tasks": list(fresh)} | ({"note": note} if note else {}))
    runs = [run for run in runs if run["tasks"]]
    every = [fresh.get(name) or kept[name] for name in dict.fromkeys((*kept, *fresh))]
    one = len(runs) == 1
    return {
        "tasks": every, "summary": bench_summary(every), "machine": result["machine"], "runs": runs,
        "command": runs[0]["command"] if one else "put together by benchmarks/results.py merge: see `runs`",
        "commit": runs[0]["commit"] if one else "; ".join(f"{r['commit']} ({len(r['tasks'])} tasks)" for r in runs),
    }  # fmt: skip


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, list[str]]:
    """Over the tasks of both files the geometric mean of "time before / time after", and a line for each task that is
    not accepted in one of them or changed by more than 2%. Where the module was kept as it is, its time is eager's."""
    then, ratios, lines = {t["problem"]: t for t in before["tasks"]}, [], []
    for new in after["tasks"]:
        old = then.get(new["problem"])
        times = [_time(t) for t in (old, new) if t]
        if None in times or len(times) < 2:
            lines.append(f"{new['problem']}: {' -> '.join((t or {}).get('status', 'missing') for t in (old, new))}")
            continue
        ratios.append(times[0] / times[1])
        if abs(ratios[-1] - 1) > 0.02:
            lines.append(f"{new['problem']}: {times[0] / 1e3:.1f} us -> {times[1] / 1e3:.1f} us, {ratios[-1]:.3f}")
    return geometric_mean(ratios) if ratios else float("nan"), lines


def _time(found: Mapping[str, Any]) -> Any:
    """ns of a call of the result; None where the task failed."""
    times = found.get("times_ns") or {}
    mine = times.get("ours") if found.get("status") == "improved" else times.get("eager")
    return mine["mid"] if mine and found.get("status") != "failed" else None


def covered(levels: Mapping[str, Mapping[str, Any]]) -> Record:
    """What `discover` said of each level as one result: means, what is left to torch, and a record a module."""
    first, found = next(iter(levels.values())), {name: discoveries_summary(of["tasks"]) for name, of in levels.items()}
    for summary in found.values():
        summary["left"] = summary["left"][:15]
    tasks = [_module(task) | {"level": name} for name, of in levels.items() for task in of["tasks"]]
    commands = "; ".join(str(of.get("command")) for of in levels.values())
    head = {"command": commands, "commit": first.get("commit", ""), "date": time.strftime("%Y-%m-%d")}
    return head | {"machine": first.get("machine"), "levels": found, "tasks": tasks}


def _module(task: Mapping[str, Any]) -> Record:
    kept = {key: task[key] for key in ("problem", "module_ns", "covered", "gain", "verdict") if key in task}
    left = max((p for p in task.get("parts", ()) if not p.get("pattern")), key=lambda p: p["share"], default=None)
    return kept | ({"left": {key: left[key] for key in ("title", "share", "why") if left.get(key)}} if left else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("compact", "merge", "compare", "levels"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--command", default="", help="what made the tasks, where NEW does not say so itself")
    parser.add_argument("--note", default="", help="what a reader must know of the run")
    asked = parser.parse_args()
    if asked.action == "levels":
        write(asked.files[0], covered({path.stem: json.loads(path.read_text()) for path in asked.files[1:]}))
        return
    found = [json.loads(path.read_text()) for path in asked.files]
    if asked.action == "compact":
        for path, result in zip(asked.files, found, strict=True):
            write(path, compact(result))
    elif asked.action == "compare":
        mean, lines = compared(*found)
        print("\n".join([*lines, f"time before / time after: geometric mean {mean:.3f}"]))
    else:
        result = found[0]
        for path, new in zip(asked.files[1:], found[1:], strict=True):
            whole = new if isinstance(new, dict) else {"tasks": new, "command": ""}
            if not (command := asked.command or whole["command"]):
                parser.error(f"{path}: a list of tasks; say by --command what made them")
            result = merged(result, whole["tasks"], command=command, note=asked.note)
        write(asked.files[0], compact(result))
        print(json.dumps({k: v for k, v in result["summary"].items() if not isinstance(v, list)}, indent=1))


if __name__ == "__main__":
    main()
