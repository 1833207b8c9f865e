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

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Any

from .confine import Confinement, confine
from .shelf import Shelf

RECORDED = "recorded.pt"
LISTINGS = "listings"  # what the disassembler says of each file of machine code
CALLS = 2  # the second meets what the first has left behind
_DISASSEMBLER_LIMIT_S = 20.0
_MOST_LISTED = 32


def main() -> None:
    setup: dict[str, Any] = json.loads(sys.stdin.readline())
    folder = Path(setup["folder"])
    os.environ["HOME"] = setup.get("home", os.environ.get("HOME", ""))
    for name, value in setup["environment"]:
        os.environ.setdefault(name, value)
    Shelf()
    # No namespaces: the tool beside us talks to this process. It is our parent, and we die with it.
    confine(
        Confinement(
            memory_bytes=0, isolate=True, namespaces=False, parent_pid=os.getppid(), device=setup["device"],
            own=str(folder), also=tuple(setup.get("also", ("/tmp",))), watched=True,
        )
    )  # fmt: skip
    import torch  # heavy: after the protections

    from ..wire import messages as wire
    from . import values
    from .fence import fenced
    from .load import load_candidate
    from .subject import Subject

    device = setup["device"]
    recorded = torch.load(folder / RECORDED, weights_only=True)
    init, state, inputs = ([t.to(device) for t in recorded[part]] for part in ("init", "state", "inputs"))
    make, _ = load_candidate(str(folder / "candidate"), setup["entry"])
    subject = Subject(device)
    subject.construct(
        values.bound(make, values.decode(setup["init"], init)),
        int(setup["seed"]),
        gradients=wire.parse(wire.Gradients, setup["gradients"]),
    )
    if setup["state"]:
        subject.write_state(setup["state"], state)
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
