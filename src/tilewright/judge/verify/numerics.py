"""The numerics verifier: signs of precision given away. What is wrong in value the judge finds in its first trials."""

from __future__ import annotations

import ast
import re

from ...facts.verdict import Verdict
from .reading import Reading
from .subject import VerifiedSubject

_WIDE = ("f32", "f64")
_SQUARE = re.compile(r"\b(\w+) \* \1\b|\*\* 2|square|pow")
_SIGNS = (
    (re.compile(r"\.half\(\)|float16\b|\b__half|\b_Float16\b|\bfp16\b"), "values in fp16"),
    (re.compile(r"\.bfloat16\(\)|\bbfloat16\b|\bbf16\b"), "values in bf16"),
    (re.compile(r"allow_tf32\s*=\s*True|matmul_precision\(['\"](?:high|medium)"), "products in TF32"),
    (re.compile(r"autocast"), "autocast"),
    (re.compile(r"-ffast-math|use_fast_math|__expf|__fdividef"), "fast arithmetic"),
    (re.compile(r"approximate\s*=\s*['\"]tanh"), "GELU by its tanh approximation"),
)  # fmt: skip


def numerics(reading: Reading, subject: VerifiedSubject) -> Verdict:
    """Suspect: fewer bits than the results have, where the reference has them all, and sums that cancel."""
    outputs, source = subject.main.outputs, subject.problem.source
    wide = bool(outputs) and outputs[0].dtype in _WIDE and subject.problem.precision == "reference"
    text = reading.text
    signs = [told for sign, told in _SIGNS if sign.search(text) and not sign.search(source)] if wide else []
    signs += _cancelling(reading)
    return Verdict(verifier="numerics", says="suspect" if signs else "unknown", why="; ".join(signs))


def _cancelling(reading: Reading) -> list[str]:
    """A variance as the difference of two means, which a large mean leaves nothing of."""
    assert reading.tree is not None
    for node in ast.walk(reading.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            if _SQUARE.search(left) and _SQUARE.search(right) and re.search(r"mean|sum", left):
                return ["a variance as a difference of large numbers"]
    return []
