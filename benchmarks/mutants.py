"""Kernels broken on purpose, each in one known way, made of honest ones: what `verifiers.py` is measured on."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.facts.candidate import Candidate, SourceFile

CHEATS = Path(__file__).resolve().parents[1] / "tests" / "cheats"
MUSEUM = ("norm", "matmul", "long_sum", "maximum", "positive", "clamp")
# Problems of our own: what the museum has none of.
PROBLEMS = {
    "softmax": """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs():
    return [torch.randn(96, 257)]

def get_init_inputs():
    return []
""",
    "standardise": """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 0.001).sqrt()

def get_inputs():
    return [torch.randn(96, 257)]

def get_init_inputs():
    return []
""",
}
# Written out, so that there is something to be forgotten.
STABLE = {
    "softmax": "e = torch.exp(x - x.amax(-1, keepdim=True))\n        return e / e.sum(-1, keepdim=True)",
    "standardise": "d = x - x.mean(-1, keepdim=True)\n"
    "        return d / (d.square().mean(-1, keepdim=True) + 0.001).sqrt()",
}
FORGETFUL = {
    "softmax": "e = torch.exp(x)\n        return e / e.sum(-1, keepdim=True)",
    "standardise": "m = x.mean(-1, keepdim=True)\n"
    "        return (x - m) / ((x * x).mean(-1, keepdim=True) - m * m + 0.001).sqrt()",
}
_MODULE = "import torch\nfrom torch import nn\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        {}\n"

C_MODEL = """
import ctypes, pathlib, subprocess, torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        folder = pathlib.Path(__file__).parent
        made = folder / "kernel.so"
        source = folder / "kernel.c"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
        self.run = ctypes.CDLL(str(made)).run

    def forward(self, {arguments}):
        y = torch.empty({shape})
        dense = [t.contiguous() for t in ({arguments},)]
        self.run(*[ctypes.c_void_p(t.data_ptr()) for t in (*dense, y)], *map(ctypes.c_long, ({sizes},)))
        return y
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """`fault`: the verifier whose matter it is; "" of an honest one. `problem`: a name of the museum's or of ours."""

    name: str
    problem: str
    candidate: Candidate
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _C:
    """A kernel in C: its loops, and what is a step out of bounds in them, by replacing one text by another."""

    arguments: str
    shape: str
    sizes: str
    code: str
    slips: Mapping[str, tuple[str, str]]


_C_KERNELS = {
    "matmul": _C(
        arguments="a, b", shape="a.shape[0], b.shape[1]", sizes="a.shape[0], a.shape[1], b.shape[1]",
        code="void run(const float *a, const float *b, float *y, long m, long k, long n) {\n"
        "  for (long i = 0; i < m; ++i) for (long j = 0; j < n; ++j) {\n"
        "    double s = 0;\n    for (long l = 0; l < k; ++l) s += (double)a[i * k + l] * b[l * n + j];\n"
        "    y[i * n + j] = s;\n  }\n}\n",
        slips={
            "one_term_more": ("l < k", "l <= k"), "one_row_more": ("i < m", "i <= m"),
            "begins_before": ("long i = 0", "long i = -1"), "reads_ahead": ("b[l * n + j]", "b[(l + 1) * n + j]"),
        },
    ),
    "long_sum": _C(
        arguments="x", shape="x.shape[0]", sizes="x.shape[0], x.shape[1]",
        code="void run(const float *x, float *y, long m, long n) {\n  for (long i = 0; i < m; ++i) {\n"
        "    double s = 0;\n    for (long j = 0; j < n; ++j) s += (double)x[i * n + j] * x[i * n + j];\n"
        "    y[i] = s / n;\n  }\n}\n",
        slips={
            "one_term_more": ("j < n", "j <= n"), "one_row_more": ("i < m", "i <= m"),
            "begins_before": ("long j = 0", "long j = -1"), "writes_behind": ("y[i] =", "y[i + 1] ="),
        },
    ),
    "clamp": _C(
        arguments="x", shape="x.shape", sizes="x.numel()",
        code="void run(const float *x, float *y, long n) {\n  float last = 0;\n"
        "  for (long i = 0; i < n; ++i) { last = x[i]; y[i] = last > 1e30f ? 1e30f : last < -1e30f ? -1e30f : last; }\n"
        "}\n",
        slips={
            "one_more": ("i < n", "i <= n"), "begins_before": ("long i = 0", "long i = -1"),
            "reads_ahead": ("last = x[i]", "last = x[i + 1]"),
            "looks_ahead": ("last = x[i]", "last = x[i + 16] * 0 + x[i]"),
        },
    ),
}  # fmt: skip


def kernels() -> Iterator[Kernel]:
    """Every mutant, and the honest kernels that they are made of."""
    for problem, text in _honest():
        yield _kernel(problem, "honest", text, "")
        for name, (fault, mutate) in MUTATIONS.items():
            made = mutate(text)
            if made != text:
                yield _kernel(problem, name, made, fault)
    for problem in PROBLEMS:
        yield _kernel(problem, "written_out", _MODULE.format(STABLE[problem]), "")
        yield _kernel(problem, "forgetful", _MODULE.format(FORGETFUL[problem]), "numerics")
    for problem, c in _C_KERNELS.items():
        model = C_MODEL.format(arguments=c.arguments, shape=c.shape, sizes=c.sizes)
        yield _with_c(problem, "c_honest", model, c.code, "")
        for name, (old, new) in c.slips.items():
            assert old in c.code
            yield _with_c(problem, f"c_{name}", model, c.code.replace(old, new, 1), "memory")
        yield _with_c(problem, "c_no_semicolon", model, c.code.replace(";", "", 1), "compile")


def problem_of(name: str, folder: Path) -> Path:
    """The file of a problem of the museum's or of ours, written into `folder` where it is none yet."""
    if name not in PROBLEMS:
        return CHEATS / "problems" / f"{name}.py"
    path = folder / f"{name}.py"
    path.write_text(PROBLEMS[name])
    return path


def _honest() -> Iterator[tuple[str, str]]:
    """The problems' own modules under the other name."""
    for name in MUSEUM:
        text = (CHEATS / "problems" / f"{name}.py").read_text()
        yield name, text.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    for name, text in PROBLEMS.items():
        yield name, text.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")


def _kernel(problem: str, name: str, text: str, fault: str) -> Kernel:
    candidate = Candidate(files=(SourceFile(path="model.py", text=text),))
    return Kernel(name=f"mutants/{problem}_{name}", problem=problem, candidate=candidate, fault=fault)


def _with_c(problem: str, name: str, model: str, code: str, fault: str) -> Kernel:
    files = (SourceFile(path="kernel.c", text=code), SourceFile(path="model.py", text=model))
    return Kernel(name=f"mutants/{problem}_{name}", problem=problem, candidate=Candidate(files=files), fault=fault)


# ---- the mutations: each takes a module's text, and gives it back as it was where it does not apply


def _forward(text: str) -> ast.FunctionDef:
    return next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "forward")


def _argument(text: str) -> str:
    return _forward(text).args.args[1].arg


def _first(line: str) -> Callable[[str], str]:
    """A statement before all others of `forward`; {0} stands for its first argument."""

    def mutate(text: str) -> str:
        body = _forward(text).body[0]
        lines = text.split("\n")
        lines.insert(body.lineno - 1, " " * body.col_offset + line.format(_argument(text)))
        return "\n".join(lines)

    return mutate


def _returns(form: str) -> Callable[[str], str]:
    """Another result; {0} stands for the right one."""

    def mutate(text: str) -> str:
        last = _forward(text).body[-1]
        assert isinstance(last, ast.Return) and last.value is not None
        lines = text.split("\n")
        lines[last.lineno - 1 : last.end_lineno] = [
            " " * last.col_offset + "return " + form.format(f"({ast.unparse(last.value)})")
        ]
        return "\n".join(lines)

    return mutate


def _wrong_name(text: str) -> str:
    last = _forward(text).body[-1]
    lines = text.split("\n")
    lines[last.lineno - 1] = lines[last.lineno - 1].replace(_argument(text), f"{_argument(text)}_tile", 1)
    return "\n".join(lines)


MUTATIONS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "unclosed": ("compile", _returns("torch.clone({0}")),
    "wrong_name": ("compile", _wrong_name),
    "no_module": ("compile", lambda text: "import torch_fast_kernels\n" + text),
    "no_such_function": ("compile", _returns("torch.fast_clone({0})")),
    "misnamed": ("compile", lambda text: text.replace("ModelNew", "ModelFast")),
    "half_result": ("numerics", _returns("{0}.half().float()")),
    "bf16_result": ("numerics", _returns("{0}.to(torch.bfloat16).to(torch.float32)")),
    "half_inputs": ("numerics", _first("{0} = {0}.half().float()")),
    "autocast_result": ("numerics", _returns("{0}.type(torch.float16).type(torch.float32)")),
    "one_argument_more": ("specification", lambda text: text.replace("def forward(self, ", "def forward(self, mask, ")),
    "a_pair": ("specification", _returns("{0}, {0}")),
    "a_constant": ("specification", _returns("torch.zeros(1)")),
    "in_place": ("specification", _first("{0}.mul_(2.0)")),
    "one_row_less": ("specification", _returns("{0}[:-1]")),
    "scaled": ("specification", _returns("{0} * 1.01")),
    "in_double": ("specification", _returns("{0}.double()")),
}

if __name__ == "__main__":
    for kernel in kernels():
        print(f"{kernel.name}: {kernel.fault or 'honest'}", file=sys.stdout)
