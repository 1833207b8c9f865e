"""Run a candidate on recorded arguments and nothing else: `python -m tilewright.judge.candidate_process.rerun`, under
a tool that watches its kernels (compute-sanitizer, ncu), on a CPU between pages that can't be touched (`fence`), or to
see what machine code it compiles.

A line on stdin (JSON) says where: `folder` holds the candidate's files and the recorded tensors, `nonce` is printed
when all calls have come to their end. With `profiled` one more call is made, the one that a profiler looks at; `home`
is the home folder, where the tool has another. `environment` holds variables that the problem reads: what a cell has of
its own goes before. `disassembler` is run over the machine code that was left in the folder.
What the candidate raises ends the process with exit code 1.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Any

from .confine import Confinement, confine

RECORDED = "recorded.pt"
LISTINGS = "listings"  # what the disassembler says of each file of machine code
CALLS = 2  # the second meets what the first has left behind
_DISASSEMBLER_LIMIT_S = 20.0
_MOST_LISTED = 32
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("facts", "judge")


class ModuleStash(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `judge` and `facts` in memory: they are read before the disk is closed."""

    def __init__(self) -> None:
        self._sources: dict[str, tuple[str, str]] = {}
        for package in _PACKAGES:
            for file in sorted((_ROOT / package).rglob("*.py")):
                name = ".".join(file.relative_to(_ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
                self._sources[name] = (str(file), file.read_text())
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        origin = self._sources[fullname][0]
        found = importlib.util.spec_from_loader(
            fullname, self, origin=origin, is_package=origin.endswith("__init__.py")
        )
        if found is not None:
            found.has_location = True  # or its `__file__` would be missing
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        origin, text = self._sources[module.__name__]
        exec(compile(text, origin, "exec"), module.__dict__)


def main() -> None:
    setup: dict[str, Any] = json.loads(sys.stdin.readline())
    folder = Path(setup["folder"])
    os.environ["HOME"] = setup.get("home", os.environ.get("HOME", ""))
    for name, value in setup["environment"]:
        os.environ.setdefault(name, value)
    ModuleStash()
    # No namespaces: the tool beside us talks to this process. It is our parent, and we die with it.
    confine(
        Confinement(
            memory_bytes=0, isolate=True, namespaces=False, parent_pid=os.getppid(), device=setup["device"],
            own=str(folder), also=tuple(setup.get("also", ("/tmp",))), watched=True,
        )
    )  # fmt: skip
    import torch  # heavy: after the protections

    from ...facts.gradients import Gradients
    from ..wire.parsing import parse
    from . import values
    from .fence import fenced
    from .load import load_candidate
    from .state import write_state
    from .subject import CandidateSubject

    device = setup["device"]
    recorded = torch.load(folder / RECORDED, weights_only=True)
    init, state, inputs = ([t.to(device) for t in recorded[part]] for part in ("init", "state", "inputs"))
    make, _ = load_candidate(str(folder / "candidate"), setup["entry"])
    subject = CandidateSubject(device)
    subject.construct(
        values.bound(make, values.decode(setup["init"], init)),
        int(setup["seed"]),
        gradients=parse(Gradients, setup["gradients"]),
    )
    if setup["state"]:
        write_state(subject.built, setup["state"], state)
    if setup.get("fence"):
        held = [p.data for p in subject.built.parameters()]  # whoever noted their places may read there still
        for parameter, data in zip(subject.built.parameters(), held, strict=True):
            parameter.data = fenced(data)
    for call in range(CALLS):
        subject.run(setup["args"], [fenced(t, before=bool(call)) for t in inputs] if setup.get("fence") else inputs)
        if device == "cuda":
            torch.cuda.synchronize()
    if setup.get("profiled"):
        with _profiled(device):
            subject.run(setup["args"], inputs)
    if setup.get("disassembler"):
        _disassemble(setup["disassembler"], folder)
    sys.stdout.write(f"{setup['nonce']}\n")
    sys.stdout.flush()


@contextmanager
def _profiled(device: str) -> Iterator[None]:
    """What a profiler looks at, where it was told to begin switched off."""
    import torch

    if device != "cuda":
        yield
        return
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.cudart().cudaProfilerStop()


def _disassemble(program: str, folder: Path) -> None:
    """In here, since what a candidate has left is nothing that a tool outside should open."""
    (folder / LISTINGS).mkdir(exist_ok=True)
    for number, cubin in enumerate(sorted(folder.rglob("*.cubin"))[:_MOST_LISTED]):
        with (folder / LISTINGS / f"{number}.sass").open("wb") as listing, suppress(OSError, TimeoutExpired):
            run([program, "-c", str(cubin)], stdout=listing, check=False, timeout=_DISASSEMBLER_LIMIT_S)


if __name__ == "__main__":
    main()
