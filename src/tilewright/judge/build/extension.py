"""A kernel of robust-kbench (one CUDA or C++ source with a pybind11 module) as a candidate for its task.

Such a source replaces the functional part of the task's Model: in inference its `forward` is handed in as `fn`; in
training its `backward` is what the task's AutogradFunction calls, and its forward stays torch's.
"""

from __future__ import annotations

import ast
from pathlib import Path

from ...facts.candidate import Candidate, SourceFile
from ...facts.errors import UserError
from ...facts.problem import Problem

SUFFIXES = (".cu", ".cpp")
FUNCTIONS = {"inference": "forward", "training": "backward"}

_HEAD = '''"""The task's Model, with a kernel in the place of its functional part."""

from pathlib import Path

from torch.utils.cpp_extension import load

import task

kernel = load(
    name="kernel",
    sources=[str(Path(__file__).with_name("{file}"))],
    extra_cflags=["-O3"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
    with_cuda={cuda},
)
'''
_FORWARD = """fn = kernel.forward
"""
_BACKWARD = """task.AutogradFunction.backward_fn = kernel.backward
fn = task.AutogradFunction.apply
"""
_MODEL = """

class ModelNew(task.Model):
    def forward(self, *args):
        return super().forward(*args, fn=fn)
"""


def wrapped(source: SourceFile, problem: Problem) -> Candidate:
    """The candidate that holds the task and the kernel. Raises UserError where the problem has no place for one."""
    suffix = Path(source.path).suffix
    if not _takes_fn(problem.source):
        raise UserError(
            f"{source.path}: a {suffix} file is judged on a robust-kbench task, whose Model.forward takes `fn`; "
            f"that of {problem.path} does not: give a Python file with ModelNew that loads it"
        )
    if FUNCTIONS[problem.mode] not in source.text:
        raise UserError(
            f"{source.path}: names no `{FUNCTIONS[problem.mode]}`, which --mode {problem.mode} calls; "
            f"its module must define it"
        )
    file = f"kernel{suffix}"
    entry = _HEAD.format(file=file, cuda=suffix == ".cu")
    entry += (_FORWARD if problem.mode == "inference" else _BACKWARD) + _MODEL
    files = {"model.py": entry, "task.py": problem.source, file: source.text}
    return Candidate(files=tuple(SourceFile(path=p, text=t) for p, t in files.items()))


def _takes_fn(source: str) -> bool:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "forward"]
            return any(a.arg == "fn" for m in methods for a in (*m.args.args, *m.args.kwonlyargs))
    return False
