"""The session of a reference's process: it has a problem's module in the candidate's place, and answers for inputs,
truth and budgets beside what every session answers."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from ..candidate_process.collector import keep_what_is_there
from ..candidate_process.compilers import end_compilers
from ..candidate_process.load import CodeRaised, blaming
from ..candidate_process.session import Session
from ..candidate_process.state import named_state, state_specs, write_state
from ..memory import driver
from ..memory.mapped import dtype_name
from ..wire import messages as wire
from . import audit, boundary
from .baseline import compiling, start_compiler, start_tracer
from .by_rows import Results, judged_on
from .counterparts import Counterparts
from .ensemble import Question
from .families import upstream
from .observe import observed
from .reference import Reference
from .replay import replayed
from .truths import write_truth

_SMALL_BYTES = 16 << 20  # of inputs: sets of them are drawn one after the other, and what they took is not given back


class ReferenceSession(Session):
    """Answers what a session answers, and what only a reference can. The code under test is the user's own."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._reference: Reference | None = None
        self._counterparts: Counterparts | None = None
        self._answers = MappingProxyType(dict(self._answers) | {
            wire.LoadProblem: self._load_problem, wire.ConstructCase: self._construct_case,
            wire.Describe: lambda r: self._opened.describe(r.seed, trace=r.trace, training=r.training),
            wire.Trace: lambda r: self._opened.traced(r.args, r.inputs),
            wire.Warm: self._warm, wire.StoreInit: self._store_init, wire.MakeInputs: self._make_inputs,
            wire.Redraw: lambda r: self._opened.redraw(r.seed, spread=r.spread, brief=r.brief), wire.Truth: self._truth,
            wire.AddCase: lambda r: self._opened.add_case(r.base, r.variant), wire.Slack: self._slack,
            wire.Appeal: self._appeal, wire.Approach: self._approach, wire.Rearrange: self._rearrange,
            wire.ListOperations: self._list_operations, wire.Ablate: self._ablate, wire.Perturb: self._perturb,
            wire.Replay: self._replay, wire.Observe: self._observe,
            wire.LoadState: self._load_state, wire.RecordGraph: self._record_graph, wire.MarkState: self._mark_state,
            wire.RedrawAlike: self._redraw_alike, wire.PutBack: lambda r: self._opened.put_back(),
        })  # fmt: skip

    @property
    def _opened(self) -> Reference:
        assert self._reference is not None, "no problem was loaded"
        return self._reference

    def _let_go(self) -> None:
        """What only makes the next request quicker, and takes memory, goes."""
        if self._reference is not None:
            self._reference.release_truth()

    def _load_state(self, request: wire.LoadState) -> None:
        self._state.load(request)
        self._let_go()

    def _drop(self, request: wire.Drop) -> None:
        self._let_go()
        super()._drop(request)

    def _record_graph(self, request: wire.RecordGraph) -> None:
        self._let_go()
        self._looks.record_graph(request)

    def _mark_state(self, request: wire.MarkState) -> wire.Marked:
        self._counterparts = Counterparts(self._subject.built)
        return wire.Marked(marks=self._counterparts.marks)

    def _redraw_alike(self, request: wire.RedrawAlike) -> None:
        assert self._counterparts is not None, "the state was not marked"
        self._opened.put_back()
        self._counterparts.redraw(request.seed, request.keys, spread=request.spread)

    def _load_problem(self, request: wire.LoadProblem) -> None:
        self._reference = Reference(
            request.path, request.source, request.cases, subject=self._subject, compiled=request.compiled
        )
        if request.starts == "compiler":
            start_compiler(self._device)
        elif request.starts == "tracer":
            start_tracer()
        keep_what_is_there()

    def _construct_case(self, request: wire.ConstructCase) -> wire.Constructed:
        self._opened.construct(request.case, request.seed, request.gradients)
        return wire.Constructed(state=state_specs(self._subject.built), training=self._subject.built.training)

    def _store_init(self, request: wire.StoreInit) -> None:
        self._arenas.write(request.refs, self._opened.init_tensors())

    def _warm(self, request: wire.Warm) -> None:
        text, tensors = self._opened.all_inputs(request.seed)
        with blaming("raised", "forward raised"):
            compiling(partial(self._subject.run, text, tensors))
            for _ in range(2):
                self._subject.run(text, tensors)
            if self._device == "cuda":
                driver.synchronize()
        end_compilers()  # they would disturb whoever is timed next
        del tensors
        self._subject.drop()
        keep_what_is_there()

    def _make_inputs(self, request: wire.MakeInputs) -> None:
        _, tensors = self._opened.inputs(request.seed, request.family)
        places = self._arenas.read(request.refs[len(tensors) :])
        tensors += upstream(places, request.upstream, request.seed)
        wanted = tuple((r.spec.shape, r.spec.dtype) for r in request.refs)
        if wanted != tuple((tuple(t.shape), dtype_name(t.dtype)) for t in tensors):
            raise CodeRaised("bad_arguments", "get_inputs gives other shapes or types each time; fix them per case")
        self._arenas.write(request.refs, tensors)
        small = sum(t.nbytes for t in tensors) <= _SMALL_BYTES
        del tensors
        (self._subject.drop_held if small else self._subject.drop)()

    def _truth(self, request: wire.Truth) -> None:
        write_truth(self._opened, request, read=self._arenas.read, write=self._arenas.write)

    def _slack(self, request: wire.Slack) -> None:
        refs = (request.inputs, request.own, request.truth)
        inputs, own, truth = (self._arenas.read(r) for r in refs)
        self._arenas.write(request.slack, self._opened.slack(request.args, inputs, own, truth, request.seed))
        self._subject.drop()

    def _appeal(self, request: wire.Appeal) -> wire.Judgement:
        inputs, got, own = (self._arenas.read(refs) for refs in (request.inputs, request.got, request.own))
        question = Question(
            args=request.args, inputs=inputs, seed=request.seed, least=request.least, limit_s=request.limit_s
        )
        truth = self._arenas.read(request.truth)
        judgement = judged_on(self._opened, question, Results(outputs=request.outputs, got=got, own=own, truth=truth))
        self._opened.release_truth()
        self._subject.drop()
        return judgement

    def _approach(self, request: wire.Approach) -> wire.Approached:
        inputs = self._arenas.read(request.inputs)
        found = boundary.approach(
            self._opened, request.args, inputs, seed=request.seed, number=request.number, state=request.state
        )
        self._arenas.write(request.inputs, found.inputs)
        write_state(self._subject.built, [n for n, _ in found.state], [t for _, t in found.state])
        self._opened.release_truth()
        self._subject.drop()
        return wire.Approached(turned=found.turned, groups=found.groups, by_state=bool(found.state))

    def _rearrange(self, request: wire.Rearrange) -> wire.Rearranged:
        labels = self._counterparts.labels(request.keys) if request.keys and self._counterparts is not None else None
        return self._opened.rearrange(request.seed, request.args, self._arenas.read(request.inputs), labels)

    def _replay(self, request: wire.Replay) -> wire.Replayed:
        self._opened.release_truth()
        return replayed(request, subject=self._subject, inputs=self._arenas.read(request.inputs))

    def _observe(self, request: wire.Observe) -> wire.Observed:
        self._opened.release_truth()
        return observed(request, subject=self._subject, inputs=self._arenas.read(request.inputs))

    def _list_operations(self, request: wire.ListOperations) -> wire.OperationList:
        with audit.Operations() as listing:
            self._subject.call(0, request.args, self._arenas.read(request.inputs), seed=request.seed)
        self._subject.drop()
        return wire.OperationList(operations=tuple(listing.found))

    def _ablate(self, request: wire.Ablate) -> wire.Called:
        with audit.Operations(target=request.operation, way=request.way, seed=request.seed) as ablation:
            called = self._subject.call(request.tag, request.args, self._arenas.read(request.inputs), seed=request.seed)
        if not ablation.reached:
            raise CodeRaised("raised", f"operation {request.operation} was not met a second time")
        return called

    def _perturb(self, request: wire.Perturb) -> wire.Perturbed:
        module = self._subject.built
        self._opened.release_truth()
        return wire.Perturbed(
            moved=audit.perturb(module, request.name, named_state(module)[request.name], request.seed)
        )
