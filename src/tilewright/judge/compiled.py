"""The torch.compile baselines of a judge, one for each mode, which warm up in cells of their own while candidates are
checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..facts.errors import HarnessError
from ..facts.time_budget import UNBOUNDED, TimeBudget
from .client import Cell, CellFault
from .remembered import DEFAULT, MINUTES, named
from .wire import messages as wire

_COMPILE_LIMIT_S, _AUTOTUNE_LIMIT_S = 240.0, 900.0
_LATE = "not compiled within the budget"
_BEGIN_SHARE = 0.5  # of a run's time, until which it may begin
_COMPILE_SHARE = 0.75  # until which it is waited for: without it nobody knows whether it is ahead


class CompiledBaseline:
    """`start` starts its cell; `load` is the request that loads the problem, where `starts` names a helper that starts
    with it. On a GPU, and where there are processors in `plenty`, a compiler in the background disturbs little."""

    def __init__(
        self, start: Callable[[], Cell], load: Callable[..., wire.LoadProblem], *, on_gpu: bool, plenty: bool,
        note: Callable[[str], None], mode: str = DEFAULT, time: TimeBudget = UNBOUNDED,
    ) -> None:  # fmt: skip
        self.mode, self._time = mode, time
        self._start, self._load, self._note = start, load, note
        self._on_gpu, self._plenty = on_gpu, plenty
        self._cell: Cell | None = None
        self._requests: tuple[object, ...] = ()  # still to be posted to it
        self._pending = 0
        self.in_turn = False  # whether it is to be warmed up under the lease

    def warm(self, *, construct_seed: int, inputs_seed: int, gradients: wire.Gradients, large: bool = False) -> None:
        """Let torch.compile work in the background, or, where it would take the processors from what is checked
        meanwhile, once it is waited for. One of a `large` case takes memory of a GPU that whoever has the lease counts
        on: in the background it only loads, and torch.compile starts."""
        self.in_turn = large and self._on_gpu
        self._requests = (
            self._load(compiled=self.mode, starts="compiler" if self.in_turn else ""),
            wire.ConstructCase(case=0, seed=construct_seed, gradients=gradients),
            wire.Warm(seed=inputs_seed),
        )
        if self.in_turn:
            self._post(1)
        elif self._on_gpu or self._plenty:
            self._post()

    def _post(self, count: int = 3) -> None:
        """The next of its requests; it is started with the first."""
        posted, self._requests = self._requests[:count], self._requests[count:]
        if posted and self._cell is None:
            self._cell = self._start()
        for request in posted:
            assert self._cell is not None
            self._cell.post(request)
        self._pending += len(posted)

    def settle(self) -> None:
        """Wait until a baseline that works in the background is warm, so that its compiler does not disturb a clock."""
        if self._cell is not None and not self._requests:
            self.compiled()

    def compiled(self) -> Cell | None:
        """The torch.compile baseline once it is warm; None where none is wanted, and, with a note, when it can't be
        had."""
        if self._cell is None and self._requests and not self._time.left_s(_BEGIN_SHARE):
            self._requests = ()
            self._left_out(_LATE)
        self._post()
        cell = self._cell
        if cell is None:
            return None
        usual_s = _AUTOTUNE_LIMIT_S if self.mode in MINUTES else _COMPILE_LIMIT_S
        limit_s = self._time.limit_s(usual_s, share=_COMPILE_SHARE)
        deadline = self._time.clock() + limit_s
        try:
            while self._pending:
                kind = wire.Constructed if self._pending == 2 else wire.Done
                cell.collect(kind, limit_s=max(1.0, deadline - self._time.clock()))
                self._pending -= 1
        except (CellFault, HarnessError) as fault:
            late = isinstance(fault, CellFault) and fault.reason == "hung" and limit_s < usual_s
            self._left_out(_LATE if late else str(fault).splitlines()[0][:300])
            cell.close()
            self._cell = None
        return self._cell

    def _left_out(self, why: str) -> None:
        of = "" if self.mode == DEFAULT else f" in mode {self.mode}"
        self._note(f"torch.compile{of} could not be timed: {why}")

    def spare_memory(self) -> None:
        """Have a baseline that is warm give its cached memory back."""
        if self._cell is not None and not self._pending and not self._requests:
            self._cell.do(wire.Drop())

    def close(self) -> None:
        if self._cell is not None:
            self._cell.close()
        self._cell = None


class CompiledBaselines:
    """Those of all modes that are wanted; the arguments are `CompiledBaseline`'s."""

    def __init__(
        self, start: Callable[[], Cell], load: Callable[..., wire.LoadProblem], *, on_gpu: bool, plenty: bool,
        note: Callable[[str], None], time: TimeBudget = UNBOUNDED,
    ) -> None:  # fmt: skip
        self._made = partial(CompiledBaseline, start, load, on_gpu=on_gpu, plenty=plenty, note=note, time=time)
        self._modes: tuple[CompiledBaseline, ...] = ()

    def warm(
        self, modes: Sequence[str] = (DEFAULT,), *, construct_seed: int, inputs_seed: int, gradients: wire.Gradients,
        large: bool = False,
    ) -> None:  # fmt: skip
        """Let torch.compile work in these modes; see `CompiledBaseline.warm`."""
        self._modes = tuple(self._made(mode=mode) for mode in modes)
        for one in self._modes:
            one.warm(construct_seed=construct_seed, inputs_seed=inputs_seed, gradients=gradients, large=large)

    @property
    def in_turn(self) -> bool:
        return any(one.in_turn for one in self._modes)

    def settle(self) -> None:
        for one in self._modes:
            one.settle()

    def compiled(self) -> Mapping[str, Cell]:
        """By the name of their times, the baselines that can be had, once they are warm."""
        found = {named(one.mode): one.compiled() for one in self._modes}
        return {name: cell for name, cell in found.items() if cell is not None}

    def spare_memory(self) -> None:
        for one in self._modes:
            one.spare_memory()

    def close(self) -> None:
        for one in self._modes:
            one.close()
        self._modes = ()
