"""The numerics verifier: an interval check of what `forward` certainly does, and signs of precision given away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from math import prod

from ...facts.verdict import Verdict
from .ranges import ANY, Range, Ranges
from .reading import Reading, certain, parameters
from .subject import Subject

_BITS = {"f32": 24, "f64": 53}
_FEW_BITS = re.compile(r"half|float16|bfloat16|bf16|fp16|tf32|float32_matmul_precision|autocast|quant", re.IGNORECASE)
_DISCRETE = re.compile(
    r"\b(sign|round|floor|ceil|trunc|arg\w+|one_hot|topk|sort|eq|ne|gt|ge|lt|le|where|bool|int|long|heaviside|bincount|"
    r"histc|searchsorted|bucketize|unique|dropout|bernoulli)\b|[<>]=?|=="
)
_EXPONENTIAL = re.compile(r"\b(exp|exp2|expm1|pow|sinh|cosh|log\w*)\b|\*\*")
_SQUARE = re.compile(r"\b(\w+) \* \1\b|\*\* 2|square|pow")
_REACH, _ENOUGH = 200.0, 1000  # one of so many elements is beyond this, of inputs times 2^-12 .. 2^12
_SIGNS = (
    (re.compile(r"\.half\(\)|float16\b|\b__half|\b_Float16\b|\bfp16\b"), "values in fp16"),
    (re.compile(r"\.bfloat16\(\)|\bbfloat16\b|\bbf16\b"), "values in bf16"),
    (re.compile(r"allow_tf32\s*=\s*True|matmul_precision\(['\"](?:high|medium)"), "products in TF32"),
    (re.compile(r"autocast"), "autocast"),
    (re.compile(r"-ffast-math|use_fast_math|__expf|__fdividef"), "fast arithmetic"),
    (re.compile(r"approximate\s*=\s*['\"]tanh"), "GELU by its tanh approximation"),
)  # fmt: skip


def numerics(reading: Reading, subject: Subject) -> Verdict:
    """Proven: results rounded to fewer bits than their type has, products of operands that were, and exponentials that
    overflow on inputs that are judged, where the reference does none of it."""
    forward = reading.forward
    spec = subject.main.outputs[0] if subject.main.outputs else None
    wide = spec is not None and spec.dtype in _BITS and subject.problem.precision == "reference"
    reference, source = subject.reference("forward"), subject.problem.source
    proofs: list[str] = []
    found = list(_returned(forward, subject)) if forward is not None else []
    if wide and spec is not None and reference is not None:
        body = "\n".join(map(ast.unparse, reference.body))
        made = _made(source)
        if made and made <= {"randn", "rand"} and not _FEW_BITS.search(source) and not _DISCRETE.search(body):
            proofs += [f"the result keeps {r.bits} of {_BITS[spec.dtype]} bits" for r in found if r.bits < 24]
        finite = "softmax" in source or not _EXPONENTIAL.search(source)
        if finite and made == {"randn"} and not any(r.wrong for r in _returned(reference, subject)):
            told = "an exponential overflows on inputs beyond 88.7, which are judged"
            proofs += [told for r in found if r.wrong]
    if proofs:
        return Verdict(verifier="numerics", says="proven", why=proofs[0])
    text = reading.text
    signs = [told for sign, told in _SIGNS if sign.search(text) and not sign.search(source)] if wide else []
    signs += _cancelling(reading)
    says = "suspect" if signs else "clean" if found and ANY not in found else "unknown"
    return Verdict(verifier="numerics", says=says, why="; ".join(signs))  # type: ignore[arg-type]


def _returned(forward: ast.FunctionDef, subject: Subject) -> Iterator[Range]:
    """What is known of each result, where the statements run one after the other."""
    inputs = dict(zip(parameters(forward), subject.main.inputs, strict=False))
    known = {
        name: Range(high=_REACH, low=-_REACH, drawn=True)
        for name, spec in inputs.items()
        if spec.dtype in _BITS and prod(spec.shape) >= _ENOUGH
    }
    ranges = Ranges(known)
    for statement in certain(forward.body):
        if isinstance(statement, ast.Return) and statement.value is not None:
            results = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            yield from (ranges.of(result) for result in results)
        else:
            ranges.follow(statement)


def _made(source: str) -> set[str]:
    """By which of torch's functions inputs are drawn. Other families keep the structure of those that have one, and of
    some nobody knows what they look like; normal ones have none."""
    drawn = re.search(r"def get_inputs\(.*?(?=\ndef |\nclass |\Z)", source, flags=re.S)
    return set(re.findall(r"torch\.(\w+)\(", drawn[0])) if drawn else set()


def _cancelling(reading: Reading) -> list[str]:
    """A variance as the difference of two means, which a large mean leaves nothing of."""
    assert reading.tree is not None
    for node in ast.walk(reading.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            if _SQUARE.search(left) and _SQUARE.search(right) and re.search(r"mean|sum", left):
                return ["a variance as a difference of large numbers"]
    return []
