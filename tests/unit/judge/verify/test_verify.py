"""What can be said of a candidate's text: proofs that hold, signs that rank, and no proof against honest ones."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.facts import MACHINE, context
from tilewright.edges.problems import read_problem
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Failure, Sanitized
from tilewright.facts.problem import Problem, TensorSpec, Work
from tilewright.facts.run import CaseFacts
from tilewright.facts.verdict import Verdict, Verified
from tilewright.judge.build import load_candidate
from tilewright.judge.candidate_process.step import tensors_of
from tilewright.judge.verify import VerifiedSubject, verified, with_memory

NO_WORK = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
CHEATS = Path(__file__).parents[3] / "cheats"
HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"
SOFTMAX = (
    HEAD + "class Model(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
    "    def forward(self, x, y):\n        return torch.softmax(x, -1) * y.relu()\n\n"
    "def get_inputs():\n    return [torch.randn(64, 32), torch.randn(64, 32)]\n"
)


@pytest.fixture(autouse=True)
def detectors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the static detectors find: they take a process each, and only rank."""
    found: list[str] = []
    module = sys.modules["tilewright.judge.verify.specification"]
    monkeypatch.setattr(module, "tripwires", lambda candidate: tuple(found))
    return found


def subject(source: str = SOFTMAX, **changes: object) -> VerifiedSubject:
    spec = TensorSpec(shape=(64, 32), stride=(32, 1), dtype="f32")
    case: CaseFacts = replace(context().cases[0], inputs=(spec, spec), outputs=(spec,))
    problem = Problem(name="toy", path="/nowhere/toy.py", source=source, target="cpu")
    return VerifiedSubject(problem=replace(problem, **changes), cases=(case,), device=MACHINE.device)  # type: ignore[arg-type]


def model(forward: str, *, before: str = "", signature: str = "self, x, y", init: str = "self, width") -> Candidate:
    body = "\n".join(f"        {line}" for line in forward.split("\n"))
    text = (
        f"{HEAD}{before}class ModelNew(nn.Module):\n    def __init__({init}):\n        super().__init__()\n"
        f"    def forward({signature}):\n{body}\n"
    )
    return Candidate(files=(SourceFile(path="model.py", text=text),))


def said(found: Verified, verifier: str) -> Verdict:
    return next(v for v in found.verdicts if v.verifier == verifier)


RIGHT = "return torch.softmax(x, -1) * y.relu()"


@pytest.mark.parametrize(
    ("candidate", "verifier", "why"),
    [
        (model("return (x"), "compile", "never closed"),
        (model("return x * tile"), "compile", "the name tile is bound nowhere"),
        (model("return torch.fast_softmax(x)"), "compile", "torch has no fast_softmax"),
        (model("return F.soft_max(x)"), "compile", "torch.nn.functional has no soft_max"),
        (model(RIGHT, before="import no_such_module\n"), "compile", "there is no module no_such_module"),
        (Candidate(files=(SourceFile(path="model.py", text="class Model: ...\n"),)), "compile", "binds no ModelNew"),
        (model("return x", signature="self, x"), "specification", "forward takes 1 argument(s), and is called with 2"),
        (model(RIGHT, init="self"), "specification", "__init__ takes 0 argument(s), and is called with 1"),
        (model("return 0.0"), "specification", "returns a constant"),
        (model("return x, y"), "specification", "returns 2 result(s), for 1"),
        (model("return torch.zeros(64, 32)"), "specification", "no argument of forward is read"),
        (model("x[0] = 1\n" + RIGHT), "specification", "writes into its argument x"),
        (model("x.mul_(2)\n" + RIGHT), "specification", "x.mul_ changes its argument"),
        (model("y += 1\n" + RIGHT), "specification", "changes its argument y in place"),
    ],
)
def test_what_is_proven_is_a_veto(candidate: Candidate, verifier: str, why: str) -> None:
    proven = verified(candidate, subject()).proven
    assert proven is not None and (proven.verifier, why in proven.why) == (verifier, True), proven


@pytest.mark.parametrize(
    "candidate",
    [
        model(RIGHT),
        model("if x.shape[0] > 1:\n    return torch.nothing\n" + RIGHT),  # who knows whether it comes there
        model("try:\n    return fast(x)\nexcept NameError:\n    return x"),
        model("x = x.clone()\nx.mul_(2)\nx[0] = 1\nreturn x"),  # its own by then
        model("e = torch.exp(x - x.amax(-1, keepdim=True))\nreturn e / e.sum(-1, keepdim=True)"),
        model("return torch.exp(y) * 2 if x.numel() else x"),
        model("return self.run(x, y)", before="def run(self, *a): ...\n"),
        model("return (x @ self.mask.half().float())"),  # of noughts and ones, say
        model("return x * known", before="globals()['known'] = 2\n"),
        model(RIGHT, before="try:\n    import no_such_module\nexcept ImportError:\n    pass\n"),
        model(RIGHT, signature="self, *inputs", before="x = y = None\n"),
        model(RIGHT, signature="self, x, y, scale=1.0"),
    ],
)  # fmt: skip
def test_what_may_be_right_is_not_vetoed(candidate: Candidate) -> None:
    assert verified(candidate, subject()).proven is None


def test_fewer_bits_are_a_sign_where_the_class_and_the_reference_have_them_all() -> None:
    half = model(f"return ({RIGHT[7:]}).half().float()")
    assert said(verified(half, subject()), "numerics").why == "values in fp16"
    assert said(verified(half, subject(precision="fp16")), "numerics").says == "unknown"
    assert said(verified(half, subject(SOFTMAX.replace("y.relu()", "y.half().float()"))), "numerics").says == "unknown"


def test_signs_rank(detectors: list[str]) -> None:
    moments = "m = x.mean(-1)\nreturn (x * x).mean(-1) - m * m"
    assert "difference of large numbers" in said(verified(model(moments), subject()), "numerics").why
    patched = said(verified(model(RIGHT, before="import time\ntime.sleep = print\n"), subject()), "specification")
    assert (patched.says, "replaces time.sleep" in patched.why) == ("suspect", True)
    clean = verified(model(RIGHT), subject())
    assert clean.suspected == () and said(clean, "memory").says == "clean"
    inner = verified(model("return self.inner(x)"), subject())
    assert [said(inner, name).says for name in ("numerics", "specification")] == ["unknown", "clean"]
    assert said(verified(model("if x.numel():\n    return x\nreturn y"), subject()), "numerics").says == "unknown"
    detectors += [
        "static detector: STREAM_INJECTION (high) in model.py: x",
        "static detectors gave no answer within 20 s",
    ]
    assert said(verified(model(RIGHT), subject()), "specification").why == "STREAM_INJECTION (high)"


@pytest.mark.parametrize(
    ("code", "proven"), [("int f(int x) { return x; }", False), ("int f(int x) { return x }", True)]
)
def test_a_compiler_looks_at_plain_sources(code: str, proven: bool) -> None:
    entry = model(RIGHT, before="import ctypes\nSOURCE = 'kernel.cpp'\n").files[0]
    candidate = Candidate(files=(SourceFile(path="kernel.cpp", text=code), entry))
    found = verified(candidate, subject())
    assert (said(found, "compile").says == "proven", "kernel.cpp: line 1" in said(found, "compile").why) == (
        proven,
    ) * 2
    assert said(found, "memory").says == "unknown"


def test_what_a_tool_saw_of_memory_takes_the_place_of_not_knowing() -> None:
    unknown = Verified(verdicts=(Verdict(verifier="memory", says="unknown"),))
    crossed = Failure(stage="check", reason="out_of_bounds", summary="it touches memory beyond its inputs")
    assert with_memory(unknown, crossed).proven is not None
    assert said(with_memory(unknown, Sanitized(clean=("guard pages",))), "memory").says == "clean"
    for nothing in (Sanitized(clean=(), notes=("too long",)), replace(crossed, reason="no_entry")):
        assert with_memory(unknown, nothing) == unknown


def test_no_honest_exhibit_is_vetoed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHEATS))
    import museum

    honest = [exhibit for exhibit in museum.exhibits("cpu") if exhibit.memory == "honest"]
    subjects = {name: opened(name) for name in {exhibit.problem for exhibit in honest}}
    vetoed = [e.name for e in honest if verified(load_candidate(e.path), subjects[e.problem]).proven]
    assert len(honest) > 50 and vetoed == []


def opened(name: str) -> VerifiedSubject:
    """A problem of the corpus with the shapes and dtypes of its first case, from the module itself, run once."""
    problem = read_problem(CHEATS / "problems" / f"{name}.py", target="cpu")
    names: dict[str, Any] = {"__name__": "problem"}
    exec(compile(problem.source, problem.path, "exec"), names)
    case = json.loads(problem.cases[0])
    torch.manual_seed(0)
    model, inputs = names["Model"](*names["get_init_inputs"](**case)), names["get_inputs"](**case)
    with torch.no_grad():
        result = model(*names["get_inputs"](**case))
    facts = CaseFacts(inputs=specs(inputs), outputs=specs(result), work=NO_WORK, graph=None)
    return VerifiedSubject(problem=problem, cases=(facts,), device="any")


def specs(value: Any) -> tuple[TensorSpec, ...]:
    """Of the tensors, with dtypes named as facts name them."""
    short = {"torch.float32": "f32", "torch.float64": "f64", "torch.int64": "i64", "torch.bool": "b1"}
    return tuple(
        TensorSpec(shape=tuple(t.shape), stride=tuple(t.stride()), dtype=short.get(str(t.dtype), str(t.dtype)))
        for t in tensors_of(value)
    )
