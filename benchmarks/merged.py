"""Puts tasks that `tilewright bench` judged anew into a result file: what it held of them before goes, all else stays.

    python benchmarks/merged.py benchmarks/results/h200/kernelbench-level1.json NEW.json [NEW.json ...]
        [--command "tilewright bench ..."] [--note "..."]

NEW.json is what `bench --json` wrote, or a list of tasks (the files of a run's folder that was cut off). `runs` of the
result says which command and commit made which tasks; the summary is computed anew. A task that brought no verdict
takes the place of none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tilewright.report import bench_summary

Task = dict[str, Any]
Result = dict[str, Any]


def judged(task: Task) -> bool:
    """Whether the judge came to a verdict: a run that broke says nothing of the task."""
    return (task.get("verdict") or {}).get("stage", "run") != "run" and task.get("status") != "pending"


def merged(result: Result, tasks: list[Task], *, command: str, note: str = "") -> Result:
    """The result with these tasks in place of its own of the same files, in their order; ValueError where a task is of
    another machine's kind or carries no stamp."""
    device = result["machine"]["device"]
    fresh = {t["problem"]: t for t in tasks if judged(t)}
    for name, task in fresh.items():
        if not task.get("stamp") or task["machine"]["device"] != device:
            raise ValueError(f"{name}: no stamp, or judged on another device than {device}")
    kept = {t["problem"]: t for t in result["tasks"]}
    runs = result.get("runs") or [
        {"command": result["command"], "commit": result["commit"], "tasks": [t["problem"] for t in result["tasks"]]}
    ]
    runs = [{**run, "tasks": [name for name in run["tasks"] if name not in fresh]} for run in runs]
    commits = sorted({t["stamp"].split()[-1] for t in fresh.values()})
    runs.append(
        {"command": command, "commit": ", ".join(commits), "tasks": list(fresh)} | ({"note": note} if note else {})
    )
    runs = [run for run in runs if run["tasks"]]
    order = [*kept, *(name for name in fresh if name not in kept)]
    everything = [fresh.get(name) or kept[name] for name in order]
    one = len(runs) == 1
    return {
        "tasks": everything, "summary": bench_summary(everything),
        "command": runs[0]["command"] if one else "put together by benchmarks/merged.py: see `runs`",
        "commit": runs[0]["commit"] if one else "; ".join(f"{r['commit']} ({len(r['tasks'])} tasks)" for r in runs),
        "machine": result["machine"], "runs": runs,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("new", type=Path, nargs="+")
    parser.add_argument("--command", default="", help="what made them, where NEW.json does not say so itself")
    parser.add_argument("--note", default="", help="what a reader must know of the run")
    asked = parser.parse_args()
    result = json.loads(asked.result.read_text())
    for path in asked.new:
        found = json.loads(path.read_text())
        whole = found if isinstance(found, dict) else {"tasks": found, "command": asked.command}
        command = asked.command or whole["command"]
        if not command:
            parser.error(f"{path}: a list of tasks; say by --command what made them")
        result = merged(result, whole["tasks"], command=command, note=asked.note)
    asked.result.write_text(json.dumps(result, indent=1) + "\n")
    shown = {k: v for k, v in result["summary"].items() if not isinstance(v, list)}
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
