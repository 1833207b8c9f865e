"""What a reference answers to each request, with the arenas in which tensors travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..candidate_process.arenas import MappedArenas
from ..candidate_process.collector import keep_what_is_there
from ..candidate_process.compilers import end_compilers
from ..candidate_process.load import CodeRaised, blaming
from ..candidate_process.state import named_state, state_specs, write_state
from ..memory import driver
from ..memory.mapped import dtype_name
from ..wire import messages as wire
from . import audit, boundary
from .baseline import compiling
from .by_rows import Results, judged_on
from .describing import describe, traced
from .ensemble import Question
from .families import upstream
from .observe import observed
from .open_sizes import tried
from .reference import Reference
from .replay import replayed
from .truths import write_truth

_SMALL_BYTES = 16 << 20  # of inputs: sets of them are drawn one after the other, and what they took is not given back


def _construct_case(reference: Reference, arenas: MappedArenas, request: wire.ConstructCase) -> wire.Constructed:
    reference.construct(request.case, request.seed, request.gradients)
    return wire.Constructed(state=state_specs(reference.subject.built), training=reference.subject.built.training)


def _store_init(reference: Reference, arenas: MappedArenas, request: wire.StoreInit) -> None:
    arenas.write(request.refs, reference.init_tensors())


def _warm(reference: Reference, arenas: MappedArenas, request: wire.Warm) -> None:
    text, tensors = reference.all_inputs(request.seed)
    with blaming("raised", "forward raised"):
        compiling(partial(reference.subject.run, text, tensors))
        for _ in range(2):
            reference.subject.run(text, tensors)
        if reference.subject.device == "cuda":
            driver.synchronize()
    end_compilers()  # they would disturb whoever is timed next
    del tensors
    reference.subject.drop()
    keep_what_is_there()


def _make_inputs(reference: Reference, arenas: MappedArenas, request: wire.MakeInputs) -> None:
    _, tensors = reference.inputs(request.seed, request.family)
    places = arenas.read(request.refs[len(tensors) :])
    tensors += upstream(places, request.upstream, request.seed)
    wanted = tuple((r.spec.shape, r.spec.dtype) for r in request.refs)
    if wanted != tuple((tuple(t.shape), dtype_name(t.dtype)) for t in tensors):
        raise CodeRaised("bad_arguments", "get_inputs gives other shapes or types each time; fix them per case")
    arenas.write(request.refs, tensors)
    small = sum(t.nbytes for t in tensors) <= _SMALL_BYTES
    del tensors
    (reference.subject.drop_held if small else reference.subject.drop)()


def _mark_state(reference: Reference, arenas: MappedArenas, request: wire.MarkState) -> wire.Marked:
    return wire.Marked(marks=reference.state.mark())


def _redraw_alike(reference: Reference, arenas: MappedArenas, request: wire.RedrawAlike) -> None:
    reference.state.redraw_alike(request.seed, request.keys, spread=request.spread)


def _rearrange(reference: Reference, arenas: MappedArenas, request: wire.Rearrange) -> wire.Rearranged:
    return reference.state.rearrange(request.seed, request.args, arenas.read(request.inputs), request.keys)


def _truth(reference: Reference, arenas: MappedArenas, request: wire.Truth) -> None:
    write_truth(reference, request, read=arenas.read, write=arenas.write)


def _slack(reference: Reference, arenas: MappedArenas, request: wire.Slack) -> None:
    refs = (request.inputs, request.own, request.truth)
    inputs, own, truth = (arenas.read(r) for r in refs)
    arenas.write(request.slack, reference.double.slack(request.args, inputs, own, truth, request.seed))
    reference.subject.drop()


def _appeal(reference: Reference, arenas: MappedArenas, request: wire.Appeal) -> wire.Judgement:
    inputs, got, own = (arenas.read(refs) for refs in (request.inputs, request.got, request.own))
    question = Question(
        args=request.args, inputs=inputs, seed=request.seed, least=request.least, limit_s=request.limit_s
    )
    truth = arenas.read(request.truth)
    judgement = judged_on(reference, question, Results(outputs=request.outputs, got=got, own=own, truth=truth))
    reference.double.release()
    reference.subject.drop()
    return judgement


def _approach(reference: Reference, arenas: MappedArenas, request: wire.Approach) -> wire.Approached:
    inputs = arenas.read(request.inputs)
    found = boundary.approach(
        reference, request.args, inputs, seed=request.seed, number=request.number, state=request.state
    )
    arenas.write(request.inputs, found.inputs)
    write_state(reference.subject.built, [n for n, _ in found.state], [t for _, t in found.state])
    reference.double.release()
    reference.subject.drop()
    return wire.Approached(turned=found.turned, groups=found.groups)


def _replay(reference: Reference, arenas: MappedArenas, request: wire.Replay) -> wire.Replayed:
    reference.double.release()
    return replayed(request, subject=reference.subject, inputs=arenas.read(request.inputs))


def _observe(reference: Reference, arenas: MappedArenas, request: wire.Observe) -> wire.Observed:
    reference.double.release()
    return observed(request, subject=reference.subject, inputs=arenas.read(request.inputs))


def _list_operations(reference: Reference, arenas: MappedArenas, request: wire.ListOperations) -> wire.OperationList:
    with audit.Operations() as listing:
        reference.subject.call(0, request.args, arenas.read(request.inputs), seed=request.seed)
    reference.subject.drop()
    return wire.OperationList(operations=tuple(listing.found))


def _ablate(reference: Reference, arenas: MappedArenas, request: wire.Ablate) -> wire.Called:
    with audit.Operations(target=request.operation, way=request.way, seed=request.seed) as ablation:
        called = reference.subject.call(request.tag, request.args, arenas.read(request.inputs), seed=request.seed)
    if not ablation.reached:
        raise CodeRaised("raised", f"operation {request.operation} was not met a second time")
    return called


def _perturb(reference: Reference, arenas: MappedArenas, request: wire.Perturb) -> wire.Perturbed:
    module = reference.subject.built
    reference.double.release()
    return wire.Perturbed(moved=audit.perturb(module, request.name, named_state(module)[request.name], request.seed))


Answer = Callable[[Reference, MappedArenas, Any], Any]
ANSWERS: Mapping[type, Answer] = {
    wire.ConstructCase: _construct_case, wire.StoreInit: _store_init, wire.Warm: _warm, wire.MakeInputs: _make_inputs,
    wire.AddCase: lambda reference, _, r: reference.add_case(r.base, r.variant),
    wire.Describe: lambda reference, _, r: describe(
        reference, r.seed, trace=r.trace, training=r.training, rows=r.rows
    ),
    wire.Trace: lambda reference, _, r: traced(reference, r.args, r.inputs),
    wire.TryOpenSizes: lambda reference, _, r: tried(reference, r.sizes, r.seed),
    wire.Redraw: lambda reference, _, r: reference.state.redraw(r.seed, spread=r.spread, context=r.context),
    wire.PutBack: lambda reference, _, r: reference.state.put_back(),
    wire.MarkState: _mark_state, wire.RedrawAlike: _redraw_alike, wire.Rearrange: _rearrange,
    wire.Truth: _truth, wire.Slack: _slack, wire.Appeal: _appeal, wire.Approach: _approach,
    wire.Replay: _replay, wire.Observe: _observe,
    wire.ListOperations: _list_operations, wire.Ablate: _ablate, wire.Perturb: _perturb,
}  # fmt: skip
