"""What crosses between the judge and a cell (judge.wire.channel): typed, strictly parsed messages.

Nothing is ever unpickled. What does not parse into the expected frozen dataclass, field by field, is a WireError.
Tensors never travel here: messages name places in arenas (see judge.memory.arena), whose descriptors ride along as
ancillary data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache

from ...facts.gradients import NO_GRADIENTS as NO_GRADIENTS
from ...facts.gradients import Gradients as Gradients
from ...facts.problem import TensorSpec, Work
from .ablation import Ablate as Ablate
from .ablation import ListOperations as ListOperations
from .ablation import Operation as Operation
from .ablation import OperationList as OperationList
from .ablation import Perturb as Perturb
from .ablation import Perturbed as Perturbed
from .approaches import Approach as Approach
from .approaches import Approached as Approached
from .captures import Capture as Capture
from .captures import Captured as Captured
from .captures import GraphReplayed as GraphReplayed
from .captures import RecordGraph as RecordGraph
from .captures import ReplayGraph as ReplayGraph
from .parsing import WireError as WireError
from .parsing import parse as parse
from .parsing import to_plain as to_plain
from .parts import Attribute as Attribute
from .parts import Mark as Mark
from .parts import NamedSpec as NamedSpec
from .parts import OutputFacts as OutputFacts
from .parts import Spent as Spent
from .parts import TensorRef as TensorRef
from .redraws import SPREADS as SPREADS
from .redraws import Attributes as Attributes
from .redraws import CarryOut as CarryOut
from .redraws import ComparedState as ComparedState
from .redraws import CompareState as CompareState
from .redraws import MarkState as MarkState
from .redraws import Moved as Moved
from .redraws import PutBack as PutBack
from .redraws import ReadAttributes as ReadAttributes
from .redraws import Rearrange as Rearrange
from .redraws import Rearranged as Rearranged
from .redraws import Redraw as Redraw
from .redraws import RedrawAlike as RedrawAlike
from .replays import Observe as Observe
from .replays import Observed as Observed
from .replays import Replay as Replay
from .replays import Replayed as Replayed
from .ticks import LEFT as LEFT
from .ticks import Clear as Clear
from .ticks import Cleared as Cleared
from .ticks import Deal as Deal
from .ticks import HoldTimed as HoldTimed
from .ticks import Lay as Lay
from .ticks import Swap as Swap
from .ticks import Tick as Tick
from .ticks import Ticks as Ticks
from .ticks import TimedCall as TimedCall
from .ticks import TimedCalls as TimedCalls

# ---- requests (judge -> cell) --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MapArena:
    """Make an arena visible. `handle` is base64 of a CUDA IPC handle, or empty: the descriptor rides with the frame.
    `sealed`: it can only be read."""

    name: str
    size_bytes: int
    device: str
    handle: str = ""
    sealed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmapArena:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCandidate:
    folder: str
    entry: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProblem:
    path: str
    source: str
    cases: tuple[str, ...]
    compiled: bool  # run the module under torch.compile
    starts: str = ""  # torch's "tracer" or "compiler": bring it up, too, which takes longer than many a module takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Construct:
    """Build the module. `init` is an encoded argument tree (judge.candidate_process.values), `tensors` the tensors in
    it; `attributes`: names of those whose values are to be told."""

    init: str
    tensors: tuple[TensorRef, ...]
    seed: int
    gradients: Gradients = NO_GRADIENTS
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstructCase:
    """In a reference cell: build the module of one case; what the last one held is given back first."""

    case: int
    seed: int
    gradients: Gradients = NO_GRADIENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A case that the problem file does not name: keyword arguments (JSON), the first dimension of its inputs (0: as
    drawn), extents to be replaced (old, new), and whether the inputs lie in memory with gaps."""

    kwargs: str
    batch: int
    extents: tuple[tuple[int, int], ...]
    strided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCase:
    """In a reference cell: a variant of case `base` becomes the next case."""

    base: int
    variant: Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """In a reference cell: run the constructed case once and say all that is known of it. `trace`: also its graph.
    `training`: each call from here on is a step, forward and backward."""

    seed: int
    trace: bool
    training: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """In a reference cell: the graph of the constructed case, which was described. In inference: of its arguments
    nothing is looked at but what `inputs` says, and nothing runs on a device."""

    args: str
    inputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """In a reference cell: call the constructed case a few times on inputs of its own, so that compilation is over."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInit:
    """In a reference cell: write the tensors among the constructor's arguments."""

    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeInputs:
    """In a reference cell: draw the case's inputs with this seed and family, and upstream gradients of this kind, and
    write them."""

    seed: int
    family: str
    upstream: str
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """In a reference cell: run in float64 on these inputs, and write the results and the buffers named, as they are
    afterwards."""

    args: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    seed: int
    buffers: tuple[str, ...] = ()
    moved: tuple[TensorRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """In a reference cell, in training: write how far each gradient of a step moves when the last bits of what it is
    computed from do (judge.reference_process.jitter). `own`, `truth`: its results as they are."""

    args: str
    inputs: tuple[TensorRef, ...]
    own: tuple[TensorRef, ...]
    truth: tuple[TensorRef, ...]
    slack: tuple[TensorRef, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appeal:
    """In a reference cell: whether the results `got` of a call are right by the error budget of each element
    (judge.reference_process.budget), though they break the plain contract. `outputs`: which they are; `own`, `truth`:
    the reference's. `least`: how far the user lets everything be rounded, relative; `limit_s`: what it may take on a
    nominal machine (judge.reference_process.effort). Answered by Judgement."""

    args: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[int, ...]
    got: tuple[TensorRef, ...]
    own: tuple[TensorRef, ...]
    truth: tuple[TensorRef, ...]
    seed: int
    least: float = 0.0
    limit_s: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    names: tuple[str, ...]
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    names: tuple[str, ...]
    refs: tuple[TensorRef, ...]
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call the module once; what it returns is held under `tag` until dropped. `poison_bytes`: sizes of freed blocks to
    fill with a NaN pattern first. In training, `between`: inputs of another forward before this one's backward, if any;
    `unlike`: upstream gradients lie in memory as no kernel makes them, and those that are nought are left out."""

    tag: int
    args: str
    inputs: tuple[TensorRef, ...]
    poison_bytes: tuple[int, ...]
    seed: int
    between: tuple[TensorRef, ...] = ()
    unlike: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Copy the tensors held under `tag` into place."""

    tag: int
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Forget held results, or all but those under tag 0, and give cached memory back. `thorough`: on the CPU also
    what the C library keeps for later, as a measurement of memory wants it."""

    keep_first: bool = False
    thorough: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Set the knobs (a JSON object) of one pattern of the candidate."""

    pattern: str
    knobs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Call the module once, and say how much memory it took."""

    args: str
    inputs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountFallbacks:
    """Ask how often the candidate left its fast path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Call the module under torch's profiler. `launches`: with what each launch on a GPU took of a multiprocessor."""

    args: str
    inputs: tuple[TensorRef, ...]
    launches: bool = False


# ---- replies (cell -> judge) ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    protections: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The request was carried out; nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`by_code`: raised by the code under test (else by the cell's own code)."""

    by_code: bool
    reason: str
    summary: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constructed:
    """`hidden`: buffers and tensor attributes that `state` does not hold."""

    state: tuple[NamedSpec, ...]
    training: bool
    hidden: tuple[NamedSpec, ...] = ()
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    graph: str  # as in Described
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """`init` and `args` are encoded argument trees; `outputs_tree` the encoded structure of results. Calls move
    `mutated_state`, which is among `state`, and plain `attributes`, given as they are before; `shows_attributes`:
    results hang on these."""

    init: str
    init_tensors: tuple[TensorSpec, ...]
    args: str
    inputs: tuple[TensorSpec, ...]
    outputs_tree: str
    outputs: tuple[OutputFacts, ...]
    state: tuple[NamedSpec, ...]
    mutated_state: tuple[str, ...]
    gradients: Gradients
    random: bool  # two calls on the same values give results that rounding does not explain
    work: Work
    longest_sum: int  # terms in its longest reduction, product of matrices or scan; 1 where there is none
    graph: str  # facts.codec text; empty: none was asked for, or it can't be traced
    trace_failure: str
    nominal_s: float  # a call in float64, reckoned from its operations (judge.reference_process.effort)
    steps: bool = False  # comparisons, roundings or choices are made of floats in it: its results may jump
    attributes: tuple[Attribute, ...] = ()
    shows_attributes: bool = False

    def title(self, output: int) -> str:
        """What a result is called: the gradients of a step come after what forward returns."""
        first = len(self.outputs) - len(self.gradients.names)
        return f"output {output}" if output < first else f"gradient of {self.gradients.names[output - first]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    outputs_tree: str
    outputs: tuple[OutputFacts, ...]
    moved_input: int = -1  # position of an input tensor that has another shape or other memory than before; -1: none
    attributes: tuple[Attribute, ...] = ()  # of a timed call: the plain values that it left


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """By the budget of one output: how many elements are `wrong` for certain; where none is, the `share` of the
    allowance that is used, above 1 refused; and `why`, in words."""

    wrong: int
    share: float
    why: str

    @property
    def right(self) -> bool:
        return self.wrong == 0 and self.share <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One for each output of an Appeal; `note`: on what they rest, where that is not all elements, or why there are
    none."""

    judged: tuple[Judged, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakBytes:
    """On a GPU, the most that torch's allocator held at once; 0 on the CPU, where the judge looks itself."""

    allocated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallbacks:
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What one call spent its time in, the longest first; how many kernels and copies it started on a GPU, and the
    host's time for one that is empty (0: not on a GPU)."""

    spent: tuple[Spent, ...]
    launches: int = 0
    launch_ns: float = 0.0


@cache
def kinds() -> dict[str, type]:
    """The messages and values by name."""
    return {name: v for name, v in globals().items() if isinstance(v, type) and dataclasses.is_dataclass(v)}
