"""What a cell does beside calls and their times: a call under the profiler, its memory, and calls that are recorded."""

from __future__ import annotations

from functools import partial

import torch

from ..memory import driver
from ..wire import calls as wire
from . import profile
from .arenas import MappedArenas
from .graphed import RecordedGraph
from .load import blaming
from .subject import CandidateSubject
from .timing import Timer
from .unjoined import leaves_streams


class Looks:
    """Answers these requests on one subject."""

    __slots__ = ("_arenas", "_recorded", "_subject", "_timer")  # no method can be hidden in an instance

    def __init__(self, subject: CandidateSubject, arenas: MappedArenas, timer: Timer) -> None:
        self._subject, self._arenas, self._timer = subject, arenas, timer
        self._recorded: RecordedGraph | None = None

    def forget(self) -> None:
        """Let what was recorded go."""
        self._recorded = None

    def peak(self, request: wire.Peak) -> wire.PeakBytes:
        inputs = self._arenas.read(request.inputs)
        if self._subject.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with blaming("raised", "forward raised"):
            self._subject.run(request.args, inputs)
        if self._subject.device != "cuda":
            return wire.PeakBytes(allocated=0)
        driver.synchronize()
        return wire.PeakBytes(allocated=int(torch.cuda.max_memory_allocated()))

    def profile(self, request: wire.Profile) -> wire.Profiled:
        ready = self._subject.bound(request.args, self._arenas.read(request.inputs))
        with blaming("raised", "forward raised under the profiler"), self._subject.grad_mode():
            seen = profile.spent(self._subject.device, lambda: ready()(), launches=request.launches)
        if self._subject.device != "cuda":
            return wire.Profiled(spent=seen)
        return wire.Profiled(spent=seen, launches=len(seen), launch_ns=profile.launch_ns())

    def capture(self, request: wire.CaptureRequest) -> wire.CaptureReply:
        ready = self._subject.bound(request.args, self._arenas.read(request.inputs))
        with self._subject.grad_mode():
            return wire.CaptureReply(leaves_streams=leaves_streams(lambda: ready()()))

    def record_graph(self, request: wire.RecordGraph) -> None:
        ready = self._subject.bound(request.args, self._arenas.read(request.inputs))
        with self._subject.grad_mode(), blaming("raised", "forward raised"):
            self._recorded = RecordedGraph(lambda: ready()())

    def replay_graph(self, request: wire.ReplayGraph) -> wire.GraphReplayed:
        if self._recorded is None:
            raise RuntimeError("no call was recorded")
        with blaming("raised", "a replayed CUDA graph failed"):
            ns = self._recorded.replayed(request.times, evict=partial(self._timer.evict, request.flush_bytes, None))
        tree, outputs = self._subject.held.take(0, self._recorded.seen, self._arenas.read(request.inputs))
        return wire.GraphReplayed(ns=ns, outputs_tree=tree, outputs=outputs)
