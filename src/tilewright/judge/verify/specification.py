"""The specification verifier: signatures and structure by the text, signs of gaming by the judge's static detectors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...edges.toolchain.tripwires import tripwires
from ...facts.verdict import Verdict
from .reading import Reading, called, certain, evaluated, parameters
from .subject import VerifiedSubject

_FOUND = re.compile(r"static detector: (\S+) \((\w+)\)")
_REACHES = re.compile(
    r"\b(_getframe|inspect\.(?:stack|currentframe)|gc\.get_objects|gc\.get_referrers|settrace|sys\.modules|"
    r"/proc/|ptrace|os\.kill|os\._exit|signal\.|perf_counter\w*\s*=|Event\s*=|synchronize\s*=|__torch_function__|"
    r"__torch_dispatch__|_make_subclass|_make_wrapper_subclass|data_ptr|id\(|_version|threading|Thread\(|fork\(|"
    r"subprocess|socket|urllib|shared_memory|torch\.cuda\.Stream|CUDAGraph|atexit|__del__|weakref|hash\(|lru_cache)"
)
_PATCHED = ("torch", "time", "nn", "F", "os", "sys", "gc", "builtins", "math", "threading")
_FLAGS = re.compile(r"backends|benchmark|allow_tf32|deterministic|\bpath\b|environ")


def specification(reading: Reading, subject: VerifiedSubject) -> Verdict:
    """Proven: a call that can't be made as the reference's is, results of another structure, inputs that are written
    to, a result that depends on no input. What kernelguard and words that reach out of the module tell is a sign."""
    proofs = [*_signatures(reading, subject), *_results(reading, subject), *_inputs(reading, subject)]
    if proofs:
        return Verdict(verifier="specification", says="proven", why=proofs[0])
    signs = [f"{m[1]} ({m[2]})" for line in tripwires(reading.written) if (m := _FOUND.search(line))]
    signs = [sign for sign in signs if "PRECISION" not in sign]  # the numerics verifier's matter
    signs += [f"reaches out: {word}" for word in sorted({m[1] for m in _REACHES.finditer(reading.text)})]
    signs += _patches(reading)
    source = subject.problem.source
    signs = [sign for sign in signs if sign.removeprefix("reaches out: ") not in source]
    says = "suspect" if signs else "clean" if reading.plain else "unknown"
    return Verdict(verifier="specification", says=says, why="; ".join(signs[:6]))  # type: ignore[arg-type]


def _signatures(reading: Reading, subject: VerifiedSubject) -> Iterator[str]:
    forward, made = reading.forward, reading.constructor
    inputs = len(subject.main.inputs)
    reference = subject.reference("forward")
    if forward is not None and reference is not None and len(parameters(reference)) == inputs:
        yield from _arity(forward, inputs, "forward")
    expected = subject.reference("__init__")
    if made is not None and expected is not None and not (expected.args.vararg or expected.args.kwonlyargs):
        needed = len(parameters(expected)) - len(expected.args.defaults)
        if len(parameters(expected)) == needed:
            yield from _arity(made, needed, "__init__")


def _arity(function: ast.FunctionDef, count: int, name: str) -> Iterator[str]:
    most = len(parameters(function))
    least = most - len(function.args.defaults)
    if count < least or (count > most and function.args.vararg is None):
        yield f"{name} takes {most} argument(s), and is called with {count}"


def _results(reading: Reading, subject: VerifiedSubject) -> Iterator[str]:
    """Of a `return` that is certainly reached."""
    forward = reading.forward
    last = next((s for s in certain(forward.body) if isinstance(s, ast.Return)), None) if forward else None
    if forward is None or last is None:
        return
    outputs, value = len(subject.main.outputs), last.value
    if value is None or (isinstance(value, ast.Constant) and outputs):
        yield f"line {last.lineno}: returns {'nothing' if value is None else 'a constant'}, for {outputs} result(s)"
    elif (mine := _count(value)) and (theirs := _count(_last_result(subject))) and mine != theirs:
        yield f"line {last.lineno}: returns {mine} result(s), for {theirs}"


def _last_result(subject: VerifiedSubject) -> ast.expr | None:
    reference = subject.reference("forward")
    last = reference.body[-1] if reference is not None else None
    others = [n for n in ast.walk(reference) if isinstance(n, ast.Return)] if reference is not None else []
    return last.value if isinstance(last, ast.Return) and len(others) == 1 else None


def _count(value: ast.expr | None) -> int:
    """How many results an expression certainly is; 0 where nobody can tell."""
    if isinstance(value, ast.Tuple | ast.List):
        return 0 if any(isinstance(e, ast.Starred) for e in value.elts) else len(value.elts)
    return 1 if isinstance(value, ast.BinOp | ast.Compare | ast.UnaryOp) else 0


def _inputs(reading: Reading, subject: VerifiedSubject) -> Iterator[str]:
    """Whether they are read, and left as they are."""
    forward, reference = reading.forward, subject.reference("forward")
    if forward is None or reference is None:
        return
    names = set(parameters(forward))
    read = {n.id for n in ast.walk(forward) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    theirs = {n.id for n in ast.walk(reference) if isinstance(n, ast.Name)} & set(parameters(reference))
    if names and theirs and not (names & read or forward.args.vararg or forward.args.kwarg):
        yield "no argument of forward is read: the result can't depend on the inputs"
    if _writes(reference, set(parameters(reference))):
        return
    yield from _writes(forward, names)


def _writes(forward: ast.FunctionDef, names: set[str]) -> list[str]:
    """Where an argument is certainly written to, before its name stands for anything else."""
    found: list[str] = []
    mine = set(names)
    for statement in certain(forward.body):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AugAssign):
            targets = [statement.target]
        for target in targets:
            base = target.value if isinstance(target, ast.Subscript) else None
            if isinstance(base, ast.Name) and base.id in mine:
                found.append(f"line {statement.lineno}: writes into its argument {base.id}")
            if isinstance(statement, ast.AugAssign) and isinstance(target, ast.Name) and target.id in mine:
                found.append(f"line {statement.lineno}: changes its argument {target.id} in place")
        for node in evaluated(statement):
            name = called(node)
            owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
            inplace = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
            if inplace and isinstance(owner, ast.Name) and owner.id in mine:
                found.append(f"line {statement.lineno}: {owner.id}.{name} changes its argument in place")
        mine -= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


def _patches(reading: Reading) -> list[str]:
    """Functions of other modules that are replaced; flags are not functions."""
    assert reading.tree is not None
    found = []
    for node in ast.walk(reading.tree):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            text = ast.unparse(target)
            if isinstance(target, ast.Attribute) and text.partition(".")[0] in _PATCHED and not _FLAGS.search(text):
                found.append(f"replaces {text}")
    return found
