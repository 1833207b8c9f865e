"""A Session: the state of one cell and how each request changes it."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import arena, driver, values, wire
from .families import OWN
from .load import EXCERPT_BYTES, CodeRaised, blaming, load_candidate
from .reference import Reference
from .subject import Subject, poisoned
from .timing import Timer

_TRUTH_PARTS = 16  # pieces of the first dimension, where the whole in float64 does not fit


class Session:
    """Answers requests until the channel closes. What the code under test raises becomes Fault(by_code=True); what
    anything else raises becomes Fault(by_code=False). Nothing but the end of the process stops the loop."""

    def __init__(self, channel: wire.Channel, device: str) -> None:
        self._channel = channel
        self._device = device
        self._subject = Subject(device)
        self._timer = Timer(device)
        self._reference: Reference | None = None
        self._make: type | None = None
        self._entry_module: Any = None
        self._arenas: dict[str, arena.Opened] = {}
        self._answers: dict[type, Callable[[Any], Any]] = {
            wire.MapArena: self._map, wire.UnmapArena: self._unmap,
            wire.LoadCandidate: self._load_candidate, wire.LoadProblem: self._load_problem,
            wire.Construct: self._construct, wire.ConstructCase: self._construct_case,
            wire.Describe: lambda r: self._opened.describe(r.seed, trace=r.trace),
            wire.Warm: self._warm, wire.StoreInit: self._store_init, wire.MakeInputs: self._make_inputs,
            wire.Redraw: lambda r: self._opened.redraw(r.seed), wire.Truth: self._truth,
            wire.StoreState: self._store_state, wire.LoadState: self._load_state,
            wire.Call: self._call, wire.Store: self._store, wire.Drop: self._drop,
            wire.Burst: self._burst, wire.Configure: self._configure, wire.CountFallbacks: self._count_fallbacks,
        }  # fmt: skip
        gc.collect()
        gc.freeze()  # a collection walks what came after torch alone: microseconds, not a tenth of a second
        if device == "cuda":
            driver.synchronize()  # brings the context up now, so that a spare cell is ready when it is needed

    def serve(self) -> None:
        while True:
            try:
                request = self._channel.receive()
            except wire.WireError:
                return
            self._channel.send(self._answer(request))

    def _answer(self, request: Any) -> Any:
        try:
            return self._answers[type(request)](request) or wire.Done()
        except CodeRaised as error:
            return wire.Fault(by_code=True, reason=error.reason, summary=error.summary, excerpt=error.excerpt)
        except BaseException as error:  # the boundary of the process: recorded and told
            out = isinstance(error, MemoryError | torch.OutOfMemoryError)
            return wire.Fault(
                by_code=False,
                reason="out_of_memory" if out else "cell_error",
                summary=f"{type(error).__name__}: {error}"[:500],
                excerpt=traceback.format_exc()[-EXCERPT_BYTES:],
            )

    @property
    def _opened(self) -> Reference:
        if self._reference is None:
            raise RuntimeError("no problem was loaded")
        return self._reference

    # ---- arenas

    def _map(self, request: wire.MapArena) -> None:
        descriptor = self._channel.descriptor() if request.device == "cpu" else -1
        self._arenas[request.name] = arena.Opened(request, descriptor)

    def _unmap(self, request: wire.UnmapArena) -> None:
        self._subject.drop()
        self._arenas.pop(request.name).close()

    def _read(self, refs: tuple[wire.TensorRef, ...]) -> tuple[Tensor, ...]:
        return arena.read_all(tuple(self._arenas.values()), refs)

    def _write(self, refs: tuple[wire.TensorRef, ...], tensors: tuple[Tensor, ...]) -> None:
        arena.write_all(tuple(self._arenas.values()), refs, tensors)
        if self._device == "cuda":
            driver.synchronize()

    # ---- loading and constructing

    def _load_candidate(self, request: wire.LoadCandidate) -> None:
        self._make, self._entry_module = load_candidate(request.folder, request.entry)

    def _load_problem(self, request: wire.LoadProblem) -> None:
        self._reference = Reference(
            request.path, request.source, request.cases, subject=self._subject, compiled=request.compiled
        )

    def _construct(self, request: wire.Construct) -> wire.Constructed:
        make = self._make
        if make is None:
            raise RuntimeError("no candidate was loaded")
        init = values.decode(request.init, [t.clone() for t in self._read(request.tensors)])
        self._subject.construct(lambda: make(**init) if isinstance(init, dict) else make(*init), request.seed)
        return wire.Constructed(state=self._subject.state_specs(), training=self._subject.built.training)

    def _construct_case(self, request: wire.ConstructCase) -> wire.Constructed:
        self._opened.construct(request.case, request.seed)
        return wire.Constructed(state=self._subject.state_specs(), training=self._subject.built.training)

    # ---- inputs, state, truth

    def _store_init(self, request: wire.StoreInit) -> None:
        self._write(request.refs, self._opened.init_tensors())

    def _warm(self, request: wire.Warm) -> None:
        text, tensors = self._opened.inputs(request.seed, OWN)
        with blaming("raised", "forward raised"):
            for _ in range(3):
                self._subject.run(text, tensors)
            if self._device == "cuda":
                driver.synchronize()
        del tensors
        self._subject.drop()

    def _make_inputs(self, request: wire.MakeInputs) -> None:
        _, tensors = self._opened.inputs(request.seed, request.family)
        wanted = tuple((r.spec.shape, r.spec.dtype) for r in request.refs)
        if wanted != tuple((tuple(t.shape), arena.dtype_name(t.dtype)) for t in tensors):
            raise CodeRaised("bad_arguments", "get_inputs gives other shapes or types each time; fix them per case")
        self._write(request.refs, tensors)
        del tensors
        self._subject.drop()

    def _truth(self, request: wire.Truth) -> None:
        inputs = self._read(request.inputs)
        try:
            tensors = self._opened.truth(request.args, inputs, request.seed)
        except CodeRaised as error:
            if error.reason != "out_of_memory":
                raise
            self._opened.release_truth()
            self._subject.drop()
            places = self._read(request.outputs)
            self._opened.truth_in_parts(request.args, inputs, places, seed=request.seed, parts=_TRUTH_PARTS)
            return
        if len(tensors) != len(request.outputs):
            raise CodeRaised("no_truth", "in float64 the module returns another number of outputs")
        for ref, tensor in zip(request.outputs, tensors, strict=True):
            if tuple(tensor.shape) != ref.spec.shape:
                raise CodeRaised("no_truth", "in float64 the module returns other shapes")
        self._write(request.outputs, tensors)
        del tensors
        self._subject.drop()

    def _store_state(self, request: wire.StoreState) -> None:
        self._write(request.refs, self._subject.read_state(request.names))

    def _load_state(self, request: wire.LoadState) -> None:
        self._subject.write_state(request.names, self._read(request.refs))
        if self._reference is not None:
            self._reference.release_truth()

    # ---- calling and timing

    def _call(self, request: wire.Call) -> wire.Called:
        inputs = self._read(request.inputs)
        with poisoned(self._device, request.poison_bytes):
            tree, outputs = self._subject.call(request.tag, request.args, inputs, seed=request.seed)
        return wire.Called(outputs_tree=tree, outputs=outputs)

    def _store(self, request: wire.Store) -> None:
        with blaming("wrong_type", "reading an output raised"):
            self._write(request.refs, self._subject.held(request.tag))

    def _drop(self, request: wire.Drop) -> None:
        if self._reference is not None:
            self._reference.release_truth()
        if not request.keep_held:
            self._subject.drop_held()
        self._subject.give_memory_back()

    def _burst(self, request: wire.Burst) -> wire.Ticks:
        slots = [self._read(refs) for refs in request.slots]
        by_slot = [self._subject.bound(request.args, s) for s in slots]
        calls = [by_slot[i] for i in request.order]
        self._subject.drop_held()
        with blaming("raised", "forward raised while it was timed"), torch.no_grad():
            samples, kept = self._timer.burst(calls, keep=request.keep, flush_bytes=request.flush_bytes)
        if request.keep >= 0:
            self._subject.hold(0, kept, slots[request.order[request.keep]])
        return wire.Ticks(samples_ns=samples)

    def _configure(self, request: wire.Configure) -> None:
        configure = getattr(self._entry_module, "configure", None)
        if not callable(configure):
            raise CodeRaised("no_entry", "the candidate's entry file has no configure(pattern, **knobs)")
        with blaming("bad_knobs", f"configure({request.pattern!r}) raised"):
            configure(request.pattern, **json.loads(request.knobs))

    def _count_fallbacks(self, request: wire.CountFallbacks) -> wire.Fallbacks:
        found = getattr(self._entry_module, "FALLBACKS", None)
        counts = found.items() if isinstance(found, dict) else ()
        return wire.Fallbacks(counts=tuple((str(k)[:200], int(v)) for k, v in counts))
