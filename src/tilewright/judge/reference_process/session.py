"""The session of a reference's process: it has a problem's module in the candidate's place, and answers for inputs,
truth and budgets beside what every session answers."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from ..candidate_process.collector import keep_what_is_there
from ..candidate_process.compilers import end_compilers
from ..candidate_process.load import CodeRaised, blaming
from ..candidate_process.session import Session
from ..candidate_process.subject import named_state
from ..memory import arena, driver
from ..wire import messages as wire
from . import audit, boundary
from .baseline import compiling, start_compiler, start_tracer
from .by_rows import Results, judged_on
from .describing import describe, traced
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
        self._answers = MappingProxyType(dict(self._answers) | {
            wire.LoadProblem: self._load_problem, wire.ConstructCase: self._construct_case,
            wire.Describe: lambda r: describe(self._opened, r.seed, trace=r.trace, training=r.training),
            wire.Trace: lambda r: traced(self._opened, r.args, r.inputs),
            wire.Warm: self._warm, wire.StoreInit: self._store_init, wire.MakeInputs: self._make_inputs,
            wire.Redraw: lambda r: self._opened.redraw(r.seed, spread=r.spread, brief=r.brief), wire.Truth: self._truth,
            wire.AddCase: lambda r: self._opened.add_case(r.base, r.variant), wire.Slack: self._slack,
            wire.Appeal: self._appeal, wire.Approach: self._approach, wire.Rearrange: self._rearrange,
            wire.ListOperations: self._list_operations, wire.Ablate: self._ablate, wire.Perturb: self._perturb,
            wire.Replay: self._replay, wire.Observe: self._observe,
        })  # fmt: skip

    @property
    def _opened(self) -> Reference:
        assert self._reference is not None, "no problem was loaded"
        return self._reference

    def _let_go(self) -> None:
        if self._reference is not None:
            self._reference.double.release()

    def _restore(self) -> None:
        if self._reference is not None:
            self._reference.put_back()

    def _put_back(self, request: wire.PutBack) -> None:
        if self._reference is None:
            super()._put_back(request)
        else:
            self._reference.put_back()

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
        return wire.Constructed(state=self._subject.state_specs(), training=self._subject.built.training)

    def _store_init(self, request: wire.StoreInit) -> None:
        self._write(request.refs, self._opened.init_tensors())

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
        places = self._read(request.refs[len(tensors) :])
        tensors += upstream(places, request.upstream, request.seed)
        wanted = tuple((r.spec.shape, r.spec.dtype) for r in request.refs)
        if wanted != tuple((tuple(t.shape), arena.dtype_name(t.dtype)) for t in tensors):
            raise CodeRaised("bad_arguments", "get_inputs gives other shapes or types each time; fix them per case")
        self._write(request.refs, tensors)
        small = sum(t.nbytes for t in tensors) <= _SMALL_BYTES
        del tensors
        (self._subject.drop_held if small else self._subject.drop)()

    def _truth(self, request: wire.Truth) -> None:
        write_truth(self._opened, request, read=self._read, write=self._write)

    def _slack(self, request: wire.Slack) -> None:
        refs = (request.inputs, request.own, request.truth)
        inputs, own, truth = (self._read(r) for r in refs)
        self._write(request.slack, self._opened.double.slack(request.args, inputs, own, truth, request.seed))
        self._subject.drop()

    def _appeal(self, request: wire.Appeal) -> wire.Judgement:
        inputs, got, own = (self._read(refs) for refs in (request.inputs, request.got, request.own))
        question = Question(
            args=request.args, inputs=inputs, seed=request.seed, least=request.least, limit_s=request.limit_s
        )
        truth = self._read(request.truth)
        judgement = judged_on(self._opened, question, Results(outputs=request.outputs, got=got, own=own, truth=truth))
        self._opened.double.release()
        self._subject.drop()
        return judgement

    def _approach(self, request: wire.Approach) -> wire.Approached:
        inputs = self._read(request.inputs)
        found = boundary.approach(
            self._opened, request.args, inputs, seed=request.seed, number=request.number, state=request.state
        )
        self._write(request.inputs, found.inputs)
        self._subject.write_state([n for n, _ in found.state], [t for _, t in found.state])
        self._opened.double.release()
        self._subject.drop()
        return wire.Approached(turned=found.turned, groups=found.groups, by_state=bool(found.state))

    def _rearrange(self, request: wire.Rearrange) -> wire.Rearranged:
        labels = self._counterparts.labels(request.keys) if request.keys and self._counterparts is not None else None
        return self._opened.rearrange(request.seed, request.args, self._read(request.inputs), labels)

    def _replay(self, request: wire.Replay) -> wire.Replayed:
        self._opened.double.release()
        return replayed(request, subject=self._subject, inputs=self._read(request.inputs))

    def _observe(self, request: wire.Observe) -> wire.Observed:
        self._opened.double.release()
        return observed(request, subject=self._subject, inputs=self._read(request.inputs))

    def _list_operations(self, request: wire.ListOperations) -> wire.OperationList:
        with audit.Operations() as listing:
            self._subject.call(0, request.args, self._read(request.inputs), seed=request.seed)
        self._subject.drop()
        return wire.OperationList(operations=tuple(listing.found))

    def _ablate(self, request: wire.Ablate) -> wire.Called:
        with audit.Operations(target=request.operation, way=request.way, seed=request.seed) as ablation:
            called = self._subject.call(request.tag, request.args, self._read(request.inputs), seed=request.seed)
        if not ablation.reached:
            raise CodeRaised("raised", f"operation {request.operation} was not met a second time")
        return called

    def _perturb(self, request: wire.Perturb) -> wire.Perturbed:
        module = self._subject.built
        self._opened.double.release()
        return wire.Perturbed(
            moved=audit.perturb(module, request.name, named_state(module)[request.name], request.seed)
        )
