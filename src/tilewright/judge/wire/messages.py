"""All that crosses between the judge and a reference's process: what any cell is asked (judge.wire.calls), and what a
reference's alone understands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...facts.gradients import NO_GRADIENTS as NO_GRADIENTS
from ...facts.gradients import Gradients as Gradients
from ...facts.problem import TensorSpec, Work
from .ablation import *  # noqa: F403  as are the others below: one name for all that a reference's process is told
from .approaches import *  # noqa: F403
from .calls import *  # noqa: F403
from .open_sizes import *  # noqa: F403
from .parsing import *  # noqa: F403
from .parts import *  # noqa: F403
from .parts import Attribute, NamedSpec, OutputFacts, TensorRef
from .redraws import *  # noqa: F403
from .replays import *  # noqa: F403


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProblem:
    path: str
    source: str
    cases: tuple[str, ...]
    compiled: bool  # run the module under torch.compile
    mode: str = "default"  # in this mode of torch.compile's
    starts: str = ""  # torch's "tracer" or "compiler": bring it up, too, which takes longer than many a module takes it


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
    """In a reference cell: run the constructed case once and say all that is known of it. `trace`: also its graph, and
    with `rows` what of it may have any number of rows. `training`: each call from here on is a step, forward and
    backward."""

    seed: int
    trace: bool
    training: bool = False
    rows: bool = True


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


# All that a reference's process understands, by name.
ALL_KINDS: Mapping[str, type] = MappingProxyType(
    {name: v for name, v in globals().items() if dataclasses.is_dataclass(v) and isinstance(v, type)}
)
