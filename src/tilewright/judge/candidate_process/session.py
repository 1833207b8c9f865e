"""A Session: the state of one cell and how each request changes it."""

from __future__ import annotations

import ctypes
import json
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..memory import arena, driver
from ..reference_process.counterparts import Counterparts
from ..wire import messages as wire
from . import profile, values
from .collector import keep_what_is_there
from .dealt import Dealt
from .graphed import Recorded
from .load import EXCERPT_BYTES, CodeRaised, blaming, is_out_of_memory, last_line, load_candidate
from .modes import require_no_modes
from .moving import Moving, read_attributes, write_attributes
from .subject import Subject, first_moved, handed, poisoned
from .timing import Timer, repeated
from .unjoined import leaves_streams

Letter = tuple[Any, int]  # a request and the descriptor that came with it, -1 for none


class Session:
    """Answers requests. What the code under test raises becomes Fault(by_code=True); what anything else raises becomes
    Fault(by_code=False). It knows nothing of the channel: frames of the code under test lead here."""

    def __init__(self, device: str) -> None:
        self._descriptor = -1
        self._device = device
        self._subject = Subject(device)
        self._timer = Timer(device)
        self._make: type | None = None
        self._entry_module: Any = None
        self._arenas: dict[str, arena.Opened] = {}
        self._dealt: Dealt | None = None
        self._recorded: Recorded | None = None
        self._counterparts: Counterparts | None = None
        self._answers: Mapping[type, Callable[[Any], Any]] = MappingProxyType({
            wire.MapArena: self._map, wire.UnmapArena: self._unmap,
            wire.LoadCandidate: self._load_candidate, wire.Construct: self._construct,
            wire.StoreState: self._store_state, wire.LoadState: self._load_state,
            wire.CompareState: self._compare_state, wire.ReadAttributes: self._read_attributes,
            wire.MarkState: self._mark_state, wire.RedrawAlike: self._redraw_alike,
            wire.CarryOut: self._carry_out, wire.PutBack: self._put_back,
            wire.Call: self._call, wire.Store: self._store, wire.Drop: self._drop,
            wire.Deal: self._deal, wire.Lay: self._lay, wire.Clear: self._clear, wire.TimedCall: self._timed_call,
            wire.TimedCalls: self._timed_calls,
            wire.HoldTimed: self._hold_timed,
            wire.Configure: self._configure, wire.CountFallbacks: self._count_fallbacks,
            wire.Profile: self._profile, wire.Peak: self._peak,
            wire.Capture: self._capture, wire.RecordGraph: self._record_graph, wire.ReplayGraph: self._replay_graph,
        })  # fmt: skip
        if device == "cuda":
            driver.synchronize()  # brings the context up now, so that a spare cell is ready when it is needed

    @property
    def holds_its_own(self) -> bool:
        """Whether slots and results lie in plain things, which give back what was put in."""
        return {type(self._subject._held), type(self._subject._samples)} == {dict} and (
            self._dealt is None or (type(self._dealt) is Dealt and self._dealt.is_plain)
        )

    def answer(self, letter: Letter) -> Any:
        request, self._descriptor = letter
        try:
            answer = self._answers[type(request)](request) or wire.Done()
            require_no_modes()
            return answer
        except CodeRaised as error:
            return error.fault()
        except BaseException as error:  # the boundary of the process: recorded and told
            return wire.Fault(
                by_code=False,
                reason="out_of_memory" if is_out_of_memory(error) else "cell_error",
                summary=f"{type(error).__name__}: {last_line(error)}"[:500],
                excerpt=traceback.format_exc()[-EXCERPT_BYTES:],
            )

    def _let_go(self) -> None:
        """What only makes the next request quicker, and takes memory, goes."""

    # ---- arenas

    def _map(self, request: wire.MapArena) -> None:
        self._arenas[request.name] = arena.Opened(request, self._descriptor)

    def _unmap(self, request: wire.UnmapArena) -> None:
        self._subject.drop()
        self._dealt = self._recorded = None
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
        keep_what_is_there()

    def _construct(self, request: wire.Construct) -> wire.Constructed:
        make = self._make
        if make is None:
            raise RuntimeError("no candidate was loaded")
        init = values.decode(request.init, [t.clone() for t in self._read(request.tensors)])
        self._subject.construct(values.bound(make, init), request.seed, gradients=request.gradients)
        return wire.Constructed(
            state=self._subject.state_specs(), training=self._subject.built.training,
            hidden=self._subject.hidden_specs(), attributes=read_attributes(self._subject.built, request.attributes),
        )  # fmt: skip

    # ---- state

    def _store_state(self, request: wire.StoreState) -> None:
        self._write(request.refs, self._subject.read_state(request.names))

    def _load_state(self, request: wire.LoadState) -> None:
        self._subject.write_state(request.names, self._read(request.refs))
        write_attributes(self._subject.built, request.attributes)
        self._let_go()

    def _compare_state(self, request: wire.CompareState) -> wire.ComparedState:
        with blaming("raised", "state_dict() raised"):
            found = self._subject.changed_state(request.names, self._read(request.refs))
        return wire.ComparedState(changed=found)

    def _read_attributes(self, request: wire.ReadAttributes) -> wire.Attributes:
        return wire.Attributes(values=read_attributes(self._subject.built, request.names))

    def _mark_state(self, request: wire.MarkState) -> wire.Marked:
        with blaming("raised", "state_dict() raised"):
            self._counterparts = Counterparts(self._subject.built)
        return wire.Marked(marks=self._counterparts.marks)

    def _redraw_alike(self, request: wire.RedrawAlike) -> None:
        if self._counterparts is None:
            raise RuntimeError("the state was not marked")
        with blaming("raised", "writing to the state raised"):
            self._counterparts.put_back()
            self._restore()
            self._counterparts.redraw(request.seed, request.keys, spread=request.spread)
        self._let_go()

    def _carry_out(self, request: wire.CarryOut) -> None:
        if self._counterparts is None:
            raise RuntimeError("the state was not marked")
        with blaming("raised", "writing to the state raised"):
            self._counterparts.carry_out(request.moves)

    def _put_back(self, request: wire.PutBack) -> None:
        if self._counterparts is not None:
            with blaming("raised", "writing to the state raised"):
                self._counterparts.put_back()

    def _restore(self) -> None:
        """The state becomes what it was before calls moved it, where that is known."""

    # ---- calling and timing

    def _call(self, request: wire.Call) -> wire.Called:
        inputs = self._read(request.inputs)
        with poisoned(self._device, request.poison_bytes):
            return self._subject.call(
                request.tag, request.args, inputs, seed=request.seed, between=self._read(request.between),
                unlike=request.unlike,
            )  # fmt: skip

    def _store(self, request: wire.Store) -> None:
        with blaming("wrong_type", "reading an output raised"):
            self._write(request.refs, self._subject.held(request.tag))
        for place, sample in zip(self._read(request.refs), self._subject.samples(request.tag), strict=True):
            if sample is not None:
                sample.put_into(place)

    def _drop(self, request: wire.Drop) -> None:
        if self._dealt is not None:
            self._dealt.forget()
        self._let_go()
        self._subject.drop_held(keep_first=request.keep_first)
        self._subject.give_memory_back()
        if request.thorough and self._device == "cpu":
            ctypes.CDLL(None).malloc_trim(0)

    def _deal(self, request: wire.Deal) -> None:
        slots = [self._read(refs) for refs in request.slots]
        moving = Moving(self._subject.built, request.moved, self._read(request.state))
        self._dealt = Dealt(request.args, slots, [handed(tensors) for tensors in slots], moving=moving)

    def _lay(self, request: wire.Lay) -> None:
        self._arenas["shared"].lay(self._descriptor, request.offset, request.size_bytes)

    def _clear(self, request: wire.Clear) -> wire.Cleared | None:
        """The same before every timed call: whether it will be looked at is not decided yet."""
        if self._dealt is not None:
            self._dealt.forget()
            self._dealt.moving.attributes = request.attributes
        self._start_anew()
        return self._timer.evict(request.flush_bytes, self._arenas, seed=request.seed)

    def _start_anew(self) -> None:
        self._subject.drop_held()
        if self._dealt is not None:
            with blaming("raised", "writing to the state raised"):
                self._dealt.moving.put_back()

    def _timed_call(self, request: wire.TimedCall) -> wire.Tick:
        dealt = self._dealt
        if dealt is None:
            raise RuntimeError("no slots were dealt")
        ready = self._subject.bound(dealt.args, dealt.handed[request.slot], request.phase)
        change: Callable[[], None] | None = partial(self._change, dealt, request)
        if request.phase == "backward":  # the forward before it reads the inputs
            self._change(dealt, request)
            change = None
        with blaming("raised", "forward raised while it was timed"), self._subject.grad_mode():
            call = ready() if request.repeat == 1 else repeated(ready(), request.repeat)
        self._timer.prepare(change, dealt.slots[request.slot] if request.warm else (), request)
        with blaming("raised", "forward raised while it was timed"), self._subject.grad_mode():
            tick, seen = self._timer.time(call, dealt.spare)
        dealt.take(request.slot, seen)
        return tick

    def _change(self, dealt: Dealt, request: wire.TimedCall) -> None:
        if request.lay_bytes:
            self._arenas["shared"].lay(self._descriptor, request.lay_offset, request.lay_bytes)
        dealt.stir(request.swaps)

    def _timed_calls(self, request: wire.TimedCalls) -> wire.Ticks:
        ticks: list[wire.Tick] = []
        for call in request.calls:
            if self._dealt is not None and ticks:
                self._dealt.step_on(keep=request.keep)
                self._start_anew()
            ticks.append(self._timed_call(call))
        return wire.Ticks(ticks=tuple(ticks))

    def _hold_timed(self, request: wire.HoldTimed) -> wire.Called:
        assert self._dealt is not None, "no timed call was made"
        taken, moving = self._dealt.taken(request.number), self._dealt.moving
        inputs, given = self._dealt.slots[taken.slot], self._dealt.handed[taken.slot]
        tree, outputs = self._subject.hold_seen(0, taken.seen, inputs)
        moving.require_whole(taken.left)
        self._subject.hold_seen(wire.LEFT, taken.left.seen, inputs)
        moved = first_moved(given, inputs)
        return wire.Called(outputs_tree=tree, outputs=outputs, moved_input=moved, attributes=taken.left.attributes)

    def _configure(self, request: wire.Configure) -> None:
        configure = getattr(self._entry_module, "configure", None)
        if not callable(configure):
            raise CodeRaised("no_entry", "the candidate's entry file has no configure(pattern, **knobs)")
        with blaming("bad_knobs", f"configure({request.pattern!r}) raised"):
            configure(request.pattern, **json.loads(request.knobs))

    def _count_fallbacks(self, request: wire.CountFallbacks) -> wire.Fallbacks:
        counts = found.items() if isinstance(found := getattr(self._entry_module, "FALLBACKS", None), dict) else ()
        return wire.Fallbacks(counts=tuple((str(k)[:200], int(v)) for k, v in counts))

    def _peak(self, request: wire.Peak) -> wire.PeakBytes:
        inputs = self._read(request.inputs)
        if self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with blaming("raised", "forward raised"):
            self._subject.run(request.args, inputs)
        if self._device != "cuda":
            return wire.PeakBytes(allocated=0)
        driver.synchronize()
        return wire.PeakBytes(allocated=int(torch.cuda.max_memory_allocated()))

    def _profile(self, request: wire.Profile) -> wire.Profiled:
        ready = self._subject.bound(request.args, self._read(request.inputs))
        with blaming("raised", "forward raised under the profiler"), self._subject.grad_mode():
            seen = profile.spent(self._device, lambda: ready()(), launches=request.launches)
        if self._device != "cuda":
            return wire.Profiled(spent=seen)
        return wire.Profiled(spent=seen, launches=len(seen), launch_ns=profile.launch_ns())

    def _capture(self, request: wire.Capture) -> wire.Captured:
        ready = self._subject.bound(request.args, self._read(request.inputs))
        with self._subject.grad_mode():
            return wire.Captured(leaves_streams=leaves_streams(lambda: ready()()))

    def _record_graph(self, request: wire.RecordGraph) -> None:
        self._let_go()
        ready = self._subject.bound(request.args, self._read(request.inputs))
        with self._subject.grad_mode(), blaming("raised", "forward raised"):
            self._recorded = Recorded(lambda: ready()())

    def _replay_graph(self, request: wire.ReplayGraph) -> wire.GraphReplayed:
        if self._recorded is None:
            raise RuntimeError("no call was recorded")
        with blaming("raised", "a replayed CUDA graph failed"):
            ns = self._recorded.replayed(request.times, evict=partial(self._timer.evict, request.flush_bytes, {}))
        tree, outputs = self._subject.hold_seen(0, self._recorded.seen, self._read(request.inputs))
        return wire.GraphReplayed(ns=ns, outputs_tree=tree, outputs=outputs)
