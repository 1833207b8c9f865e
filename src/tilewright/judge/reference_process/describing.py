"""What is said of a case of a reference, found out by running it: outputs, work, state that moves, its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...facts import codec
from ...facts.problem import TensorSpec
from ..candidate_process import values
from ..candidate_process.bits import fingerprint
from ..candidate_process.collector import keep_what_is_there
from ..candidate_process.held import facts_of
from ..candidate_process.load import CodeRaised, blaming
from ..candidate_process.state import named_state, state_specs
from ..candidate_process.step import tensors_of
from ..candidate_process.subject import CandidateSubject, seed_all
from ..memory.mapped import dtype_of, spec_of
from ..wire.messages import Described, Traced
from . import work
from .before import Before
from .eight_bits import computable
from .families import OWN, upstream
from .learn import learn
from .problem import require_tensors
from .randomness import differ, far, is_random, sampled
from .rearrange import runs_on_cpu
from .reference import Reference
from .structure import NOT_NEGATIVE, Structure, structure_of
from .variant import indexes


def describe(reference: Reference, seed: int, *, trace: bool, training: bool = False, rows: bool = True) -> Described:
    """Run the case and say what is known of it; the state is as before afterwards."""
    text, inputs = reference.inputs(seed, OWN)
    subject = reference.subject
    state = named_state(subject.built)
    flops = reference.varied_flops
    doubtful = flops is not None and subject.device != "cpu" and any(map(indexes, (*inputs, *state.values())))
    if doubtful and not runs_on_cpu(subject, text, inputs, flops=flops or 0):
        raise CodeRaised("bad_arguments", "its indices may lead out of tensors of these shapes")
    before = Before(subject, state)
    if training:
        subject.gradients, like = learn(subject.built, text, inputs, reference.marked)
        before.restore()
        inputs += upstream(like, "normal", seed)
    marks = tuple(fingerprint(t) for t in inputs)
    result = _first_run(subject, text, inputs)
    first = [sampled(t) for t in tensors_of(result)]
    del result
    for i, (tensor, then) in enumerate(zip(inputs, marks, strict=True)):
        if fingerprint(tensor) != then:
            raise CodeRaised("bad_module", f"forward changes its tensor input {i} in place; give it a copy instead")
    mutated, attributes = before.moved()
    reference.learn(moves=reference.known.moves or bool(mutated or attributes))
    shows = bool(attributes) and not _comes_again(subject, text, inputs, first, before)
    before.restore()
    seed_all(seed + 1)
    with blaming("raised", "forward raised under observation"):
        seen = work.measure(lambda: subject.run(text, inputs), [*inputs, *state.values()], tensors_of)
    random = differ(first, [sampled(t) for t in tensors_of(seen.result)])
    tree = values.encode(seen.result, [], sort_keys=True)
    found = tensors_of(seen.result)
    outputs = facts_of(found, tuple(map(values.kind_of, found)), inputs)
    facts = replace(seen, result=None)
    del found, first, seen
    if random:

        def run(drawn: int) -> list[Tensor]:
            before.restore()
            seed_all(drawn)
            return [sampled(t).clone() for t in tensors_of(subject.run(text, inputs))]

        random = is_random(run, seed)
    reference.learn(mutated=mutated, flops=facts.work.flops)
    subject.drop()
    _learn_structure(reference, text, inputs, seed + 2)
    before.restore()
    graph, failure = _trace(subject, text, inputs, rows=rows) if trace else ("", "")
    before.restore()
    init: list[Tensor] = []
    try:
        init_text = values.encode(reference.init, init)
    except values.CannotTravel as error:
        raise CodeRaised(
            "bad_arguments", f"get_init_inputs returns {error}, which can't be sent to a candidate"
        ) from error
    return Described(
        init=init_text, init_tensors=tuple(spec_of(t) for t in init), args=text,
        inputs=tuple(spec_of(t) for t in inputs), outputs_tree=tree, outputs=outputs,
        state=state_specs(subject.built) + before.hidden(mutated), mutated_state=mutated, random=random,
        work=facts.work, longest_sum=facts.longest_sum, steps=facts.steps, graph=graph, gradients=subject.gradients,
        trace_failure=failure, nominal_s=facts.nominal_s, attributes=attributes, shows_attributes=shows,
    )  # fmt: skip


def _comes_again(
    subject: CandidateSubject, text: str, inputs: Sequence[Tensor], first: Sequence[Tensor], before: Before
) -> bool:
    """Whether a call gives what the first did where tensors are put back, and plain attributes are not."""
    before.restore_tensors()
    try:
        with blaming("raised", "a second call raised"):
            second = [sampled(t) for t in tensors_of(subject.run(text, inputs))]
    except CodeRaised:
        return False
    return not far(first, second)


def traced(reference: Reference, text: str, inputs: Sequence[TensorSpec]) -> Traced:
    """The graph of a case that was described, which says what its inputs are like."""
    given = [
        torch.empty_strided(t.shape, t.stride, dtype=dtype_of(t.dtype), device=reference.subject.device) for t in inputs
    ]
    graph, failure = _trace(reference.subject, text, given)
    del given
    reference.subject.give_memory_back()
    return Traced(graph=graph, failure=failure)


def _first_run(subject: CandidateSubject, text: str, inputs: Sequence[Tensor]) -> Any:
    """What the module returns, known to be tensors."""
    with blaming("raised", "forward raised"):
        result = subject.run(text, inputs)
        if subject.device == "cuda":
            torch.cuda.synchronize()
    require_tensors(result)
    return result


def _trace(
    subject: CandidateSubject, text: str, inputs: Sequence[Tensor], *, rows: bool = True
) -> tuple[str, str]:  # fmt: skip
    from ...frontend.rows import traced
    from ...frontend.trace import trace, trace_training

    forward = values.bound(subject.built, values.decode(text, inputs))
    given = (subject.built, forward.args, forward.keywords)
    gradients = subject.gradients
    try:
        if gradients.outputs:
            return codec.dumps(trace_training(*given, inputs, gradients)), ""
        on_cpu = rows and all(t.device.type == "cpu" for t in inputs)  # there alone do kernels take any number of rows
        graph = traced(*given) if on_cpu else trace(*given)
        return codec.dumps(graph), ""
    except Exception as error:  # whatever torch's tracers raise, the module then stays torch's
        lines = str(error).strip().splitlines()
        return "", f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
    finally:
        keep_what_is_there()  # tracing imports a great deal


def _learn_structure(reference: Reference, text: str, first: Sequence[Tensor], seed: int) -> None:
    """Compare own inputs with another draw of them. That all are positive is no structure where the module takes
    negative numbers as well."""
    _, second = reference.own_inputs(seed)
    pairs = zip(first[: len(second)], second, strict=True)
    found = tuple(structure_of(a, b) if a.is_floating_point() and computable(a) is a else Structure() for a, b in pairs)
    free = tuple(s.without(NOT_NEGATIVE) for s in found)
    reference.learn(structures=free)
    if any(NOT_NEGATIVE in s.forms for s in found) and not _takes(
        reference.subject, text, reference.inputs(seed, "normal")[1]
    ):
        reference.learn(structures=found)


def _takes(subject: CandidateSubject, text: str, inputs: Sequence[Tensor]) -> bool:
    """Whether the module gives numbers for these inputs."""
    forward = values.bound(subject.built, values.decode(text, inputs))
    try:
        with torch.no_grad():
            results = tensors_of(forward())
    except Exception:  # whatever it raises, it does not take them
        return False
    return not any(t.is_floating_point() and bool(t.isnan().any()) for t in results)
