"""A CandidateSession: the state of one cell and how each request changes it."""

from __future__ import annotations

import ctypes
import json
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._device import DeviceContext

from ..memory import driver
from ..wire import calls as wire
from . import values
from .arenas import MappedArenas
from .collector import keep_what_is_there
from .load import EXCERPT_BYTES, CodeRaised, blaming, is_out_of_memory, last_line, load_candidate
from .looks import Looks
from .moving import read_attributes
from .state import MovingState, hidden_specs, state_specs
from .subject import CandidateSubject, poisoned
from .timed import CallTimer, anew
from .timing import Timer

Request = tuple[Any, int]  # a request and the descriptor that came with it, -1 for none


class CandidateSession:
    """Answers requests. What the code under test raises becomes Fault(by_code=True); what anything else raises becomes
    Fault(by_code=False). It knows nothing of the channel: frames of the code under test lead here."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._arenas = MappedArenas(device)
        self._subject = CandidateSubject(device)
        self._timer = Timer(device)
        self._state = MovingState(self._subject, self._arenas)
        self._timed = CallTimer(self._subject, self._arenas, self._timer)
        self._looks = Looks(self._subject, self._arenas, self._timer, partial(anew, self._timed))
        self._make: type | None = None
        self._entry_module: Any = None
        state, timed, looks = self._state, self._timed, self._looks
        self._answers: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
            {
                wire.MapArena: self._arenas.map, wire.UnmapArena: self._unmap, wire.LoadCandidate: self._load_candidate,
                wire.Construct: self._construct, wire.StoreState: state.store, wire.LoadState: state.load,
                wire.CompareState: state.compare, wire.ReadAttributes: state.read_attributes,
                wire.MarkState: state.mark, wire.CallRequest: self._call, wire.StoreRequest: self._store,
                wire.Drop: self._drop, wire.Deal: timed.deal, wire.Lay: timed.lay, wire.Clear: timed.clear,
                wire.TimedCall: timed.call, wire.TimedCalls: timed.calls, wire.HoldTimed: timed.hold,
                wire.Configure: self._configure, wire.CountFallbacks: self._count_fallbacks,
                wire.Profile: looks.profile, wire.Peak: looks.peak, wire.CaptureRequest: looks.capture,
                wire.RecordGraph: looks.record_graph, wire.ReplayGraph: looks.replay_graph,
            }
        )  # fmt: skip
        if device == "cuda":
            driver.synchronize()  # brings the context up now, so that a spare cell is ready when it is needed

    @property
    def holds_its_own(self) -> bool:
        """Whether slots and results lie in plain things, which give back what was put in."""
        return self._subject.held.is_plain and self._timed.is_plain

    def parts(self) -> tuple[tuple[object, str], ...]:
        """What it is made of, and stays: the holder and the name of each part."""
        found: list[tuple[object, str]] = [(self, n) for n in ("_answers", "_arenas", "_subject", "_timed", "_timer")]
        found += [(part, n) for part in (self._timed, self._looks) for n in ("_arenas", "_subject", "_timer")]
        found += [(self._state, n) for n in ("_arenas", "_subject")]
        return *found, (self._subject, "held"), (self._arenas, "_opened")

    def answer(self, request: Request) -> Any:
        request, self._arenas.descriptor = request
        try:
            answer = self._answers[type(request)](request) or wire.Done()
            require_no_modes()
            return answer
        except CodeRaised as error:
            return error.fault()
        except BaseException as error:  # the boundary of the process: recorded and told
            return wire.FaultReply(
                by_code=False,
                reason="out_of_memory" if is_out_of_memory(error) else "cell_error",
                summary=f"{type(error).__name__}: {last_line(error)}"[:500],
                excerpt=traceback.format_exc()[-EXCERPT_BYTES:],
            )

    def _unmap(self, request: wire.UnmapArena) -> None:
        self._subject.drop()
        self._timed.take_back()
        self._looks.forget()
        self._arenas.unmap(request.name)

    # ---- loading and constructing

    def _load_candidate(self, request: wire.LoadCandidate) -> None:
        self._make, self._entry_module = load_candidate(request.folder, request.entry)
        keep_what_is_there()

    def _construct(self, request: wire.Construct) -> wire.Constructed:
        make = self._make
        if make is None:
            raise RuntimeError("no candidate was loaded")
        init = values.decode(request.init, [t.clone() for t in self._arenas.read(request.tensors)])
        self._subject.construct(values.bound(make, init), request.seed, gradients=request.gradients)
        module = self._subject.built
        return wire.Constructed(
            state=state_specs(module), training=module.training, hidden=hidden_specs(module),
            attributes=read_attributes(module, request.attributes),
        )  # fmt: skip

    # ---- calling

    def _call(self, request: wire.CallRequest) -> wire.Called:
        inputs = self._arenas.read(request.inputs)
        with poisoned(self._device, request.poison_bytes):
            return self._subject.call(
                request.tag, request.args, inputs, seed=request.seed, between=self._arenas.read(request.between),
                unlike=request.unlike,
            )  # fmt: skip

    def _store(self, request: wire.StoreRequest) -> None:
        held = self._subject.held
        with blaming("wrong_type", "reading an output raised"):
            self._arenas.write(request.refs, held.tensors(request.tag))
        for place, sample in zip(self._arenas.read(request.refs), held.samples(request.tag), strict=True):
            if sample is not None:
                sample.put_into(place)

    def _drop(self, request: wire.Drop) -> None:
        self._timed.forget()
        self._subject.drop_held(keep_first=request.keep_first)
        self._subject.give_memory_back()
        if request.thorough and self._device == "cpu":
            ctypes.CDLL(None).malloc_trim(0)

    def _configure(self, request: wire.Configure) -> None:
        configure = getattr(self._entry_module, "configure", None)
        if not callable(configure):
            raise CodeRaised("no_entry", "the candidate's entry file has no configure(pattern, **knobs)")
        with blaming("bad_knobs", f"configure({request.pattern!r}) raised"):
            configure(request.pattern, **json.loads(request.knobs))

    def _count_fallbacks(self, request: wire.CountFallbacks) -> wire.Fallbacks:
        counts = found.items() if isinstance(found := getattr(self._entry_module, "FALLBACKS", None), dict) else ()
        return wire.Fallbacks(counts=tuple((str(k)[:200], int(v)) for k, v in counts))


# ---- Modes that the code under test leaves on: torch then calls it back whenever the cell touches a tensor

_dispatch = torch._C._len_torch_dispatch_stack
_functions = torch._C._len_torch_function_stack
_function_at = torch._C._get_function_stack_at


def require_no_modes() -> None:
    """Raise CodeRaised("tampering") where this thread has a mode on, but for torch.set_default_device's: what is timed
    could do nothing then, and the work when its result is read."""
    strange = [type(m).__name__ for m in map(_function_at, range(_functions())) if not isinstance(m, DeviceContext)]
    if _dispatch():
        strange.append("a dispatch mode")
    if strange:
        raise CodeRaised("tampering", f"it leaves {strange[0]} on, through which it sees every tensor that is read")
