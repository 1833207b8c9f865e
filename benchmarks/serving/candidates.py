"""A small problem, and candidates for it: right ones, wrong ones that say whose they are, and hostile ones."""

from __future__ import annotations

from pathlib import Path

from tilewright.facts.candidate import Candidate, SourceFile

TIMES = 24
PROBLEM = f"""import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return sum(torch.cos(x) for _ in range({TIMES}))


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []
"""
_CODE = """import torch
from torch import nn

# {marker}
{before}

class ModelNew(nn.Module):
    def forward(self, x):
        {work}
        return torch.cos(x) * {factor!r}
"""


def _text(marker: str, *, factor: float = TIMES, before: str = "", work: str = "pass") -> str:
    return _CODE.format(marker=marker, factor=factor, before=before, work=work)


def right(marker: str) -> str:
    return _text(marker)


def wrong(marker: str, factor: float) -> str:
    """What its elements are, over what they should be, is `factor / TIMES`: a refusal shows it."""
    return _text(marker, factor=factor)


def hostile(state: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Texts that a judge has to live with, each with the reasons for which it may be refused. `state`: the folder of
    the server, in which others' tickets lie."""
    queue = str(state.resolve() / "queue.db")
    refused = frozenset({"raised", "does_not_load", "crashed", "hung", "tampering", "too_many_processes"})
    kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    parent = "import os\nos.kill(os.getppid(), 0)"
    return {
        "hangs": (_text("hangs", work="while True: pass"), frozenset({"hung"})),
        "kills itself": (_text("kills itself", before=kill), frozenset({"crashed"})),
        "asks whether it may kill its parent": (_text("asks to kill", before=parent), refused),
        "reads the queue": (_text("reads", before=f"open({queue!r}, 'rb').read()"), refused),
        "writes the queue": (_text("writes", before=f"open({queue!r}, 'ab').write(b'x')"), refused),
        "asks the server": (
            _text("asks", before="import socket\nsocket.create_connection(('127.0.0.1', PORT), 2).send(b'x')"), refused,
        ),
    }  # fmt: skip


def id_of(text: str) -> str:
    return Candidate(files=(SourceFile(path="model.py", text=text),)).id
