"""Run a candidate on recorded arguments and nothing else: `python -m tilewright.cell.rerun`, under compute-sanitizer.

A line on stdin (JSON) says where: `folder` holds the candidate's files and the recorded tensors, `nonce` is printed
when all calls have come to their end. What the candidate raises ends the process with exit code 1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from .confine import Confinement, confine
from .shelf import Shelf

RECORDED = "recorded.pt"
CALLS = 2  # the second meets what the first has left behind


def main() -> None:
    setup: dict[str, Any] = json.loads(sys.stdin.readline())
    folder = Path(setup["folder"])
    Shelf()
    # No namespaces: the tool beside us talks to this process. It is our parent, and we die with it.
    confine(
        Confinement(
            memory_bytes=0, isolate=True, namespaces=False, parent_pid=os.getppid(), device=setup["device"],
            own=str(folder), also=("/tmp",), watched=True,
        )
    )  # fmt: skip
    import torch  # heavy: after the protections

    from . import values, wire
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
    for _ in range(CALLS):
        subject.run(setup["args"], inputs)
        if device == "cuda":
            torch.cuda.synchronize()
    sys.stdout.write(f"{setup['nonce']}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
