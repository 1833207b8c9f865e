"""The matcher: from what a module computes to the parts of it that one kernel each can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilewright.facts.pattern import Match, Pattern
from tilewright.facts.run import Matched
from tilewright.facts.segment import Segment
from tilewright.facts.space import Space
from tilewright.ir.alone import attention_backward_in, attention_in, recurrence_in
from tilewright.ir.graph import VIEWS, Call, Graph, Node
from tilewright.ir.matrices import matrices_of
from tilewright.ir.program import SCANS, Program

from .attention import attentions, written_out
from .attention_backward import attention_gradients
from .convolutions import convolutions, made_convolutions
from .grow import grown
from .products import made_alone, products
from .program import write
from .recurrence import recurrences
from .region import Flow
from .sums import recomputed, with_sums
from .weight_gradients import weight_gradients

__all__ = [
    "explained", "has_attention_gradients", "match", "match_all", "match_segments", "unmade_products", "written_out"
]  # fmt: skip

# Below this much traffic a kernel is all launch: replacing one launch of torch's by one of ours gains nothing.
TINY_BYTES = 4096
_TITLE_STEPS = 8
_COPIES = frozenset({"slice", "cat", "stack", "index_select", "embedding", "index", "gather", "take",
                     "take_along_dim"})  # fmt: skip


def match(
    graph: Graph,
    *,
    unsupported: Callable[[Program], str | None],
    space: Callable[[Program], Space],
    first_id: int = 0,
    case: int = 0,
    tiny_bytes: int = TINY_BYTES,
    allow_tf32: bool = False,
    known: SharedKernels | None = None,
) -> Matched:
    """The patterns of one graph, numbered from `first_id`, and one line for every operator that is left to torch.

    A single operator that moves fewer than `tiny_bytes` is left alone. `loose`: fp32's products may be TF32's class.
    `known`: the patterns of other graphs, whose ids those with the same kernel have; it is added to."""
    found = _found(graph, unsupported, tiny_bytes, allow_tf32=allow_tf32)
    return _numbered(case, found, space, SharedKernels() if known is None else known, first_id)


def explained(
    graph: Graph,
    *,
    unsupported: Callable[[Program], str | None],
    space: Callable[[Program], Space],
    tiny_bytes: int = TINY_BYTES,
    allow_tf32: bool = False,
) -> tuple[Matched, dict[str, str]]:
    """The same, and why each call that does work is left to torch, by its name."""
    found = _found(graph, unsupported, tiny_bytes, allow_tf32=allow_tf32)
    return _numbered(0, found, space, SharedKernels(), 0), dict(found.left)


def match_segments(
    graph: Graph,
    segments: Sequence[Segment],
    *,
    unsupported: Callable[[Program], str | None],
    space: Callable[[Program], Space],
    first_id: int = 0,
    case: int = 0,
    tiny_bytes: int = TINY_BYTES,
    allow_tf32: bool = False,
) -> Matched:
    """The same for training: the patterns of the segments' forward and backward graphs. Segments of which nothing is
    found forward are left to torch."""
    forward = [_found(s.forward, unsupported, tiny_bytes, allow_tf32=allow_tf32) for s in segments]
    used = [(s, found) for s, found in zip(segments, forward, strict=True) if found.matches]
    found = [f for _, f in used] + [_found(s.backward, unsupported, tiny_bytes, allow_tf32=allow_tf32) for s, _ in used]
    inside = {name for s, _ in used for name in s.calls}
    working = {n.origin for n in graph.nodes if n.op not in VIEWS | {"slice", "index"}} - inside
    left = tuple(f"{c.target}: no skeleton" for c in graph.calls if c.name in working and not c.view)
    whole = _Found([site for f in found for site in f.matches])
    unmatched = (*left, *(line for f in found for line in f.unmatched))
    matched = _numbered(case, whole, space, SharedKernels(), first_id)
    return replace(matched, unmatched=unmatched, segments=tuple(s for s, _ in used))


def unmade_products(
    graph: Graph, *, unsupported: Callable[[Program], str | None], allow_tf32: bool = False
) -> frozenset[str]:  # fmt: skip
    """The results of products of matrices, and of convolutions, that stay torch's. `allow_tf32` as for `match`."""
    flow = Flow(graph)
    found = (made_alone(flow, unsupported, allow_tf32=allow_tf32), made_convolutions(flow, unsupported))
    return frozenset(name for ways in found for name in ways if not any(way.get(name) for way in found))


def has_attention_gradients(graph: Graph, *, unsupported: Callable[[Program], str | None]) -> bool:
    """Whether the gradients of an attention in the graph can be realised."""
    return bool(attention_gradients(Flow(graph), unsupported)[0])


def match_all(
    graphs: Sequence[Graph | None],
    *,
    unsupported: Callable[[Program], str | None],
    space: Callable[[Program], Space],
    tiny_bytes: int = TINY_BYTES,
) -> tuple[Matched, ...]:
    """One Matched for each case (None: an empty one). Equal programs have one id, in whichever cases they stand."""
    known = SharedKernels()
    matched = []
    for case, graph in enumerate(graphs):
        found = _Found(()) if graph is None else _found(graph, unsupported, tiny_bytes)
        matched.append(_numbered(case, found, space, known, 0))
    return tuple(matched)


class SharedKernels:
    """Patterns of several graphs. `any_rows`: of which programs one kernel takes any number of rows, so that programs
    that differ in nothing else share one."""

    def __init__(self, any_rows: Callable[[Program], bool] = lambda program: False) -> None:
        self._any_rows = any_rows
        self._patterns: dict[Program, Pattern] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def get(self, program: Program) -> Pattern | None:
        return self._patterns.get(self._kernel(program))

    def add(self, pattern: Pattern) -> None:
        self._patterns.setdefault(self._kernel(pattern.program), pattern)

    def _kernel(self, program: Program) -> Program:
        return without_rows(program) if self._any_rows(program) else program


def without_rows(program: Program) -> Program:
    """The program over no rows at all: equal for those that differ in their number alone."""
    rows = program.domain[:1]

    def bare(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (0, *shape[1:]) if shape[:1] == rows else shape

    return replace(
        program, domain=bare(program.domain), operands=tuple(replace(o, shape=bare(o.shape)) for o in program.operands),
        outputs=tuple(replace(o, shape=bare(o.shape)) for o in program.outputs),
    )  # fmt: skip


class _Found:
    """Programs with their places; the calls that do work and are left to torch when all of them are fused, and why."""

    def __init__(
        self, matches: Sequence[tuple[Program, Match, str]], left: Mapping[str, str] = MappingProxyType({}),
        unmatched: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.matches, self.left, self.unmatched = matches, left, unmatched


def _numbered(
    case: int, found: _Found, space: Callable[[Program], Space], known: SharedKernels, first_id: int
) -> Matched:
    """Gather equal programs into patterns; `known` holds the patterns of earlier cases and is added to."""
    places: dict[Program, list[tuple[Match, str]]] = {}
    for program, site, title in found.matches:
        places.setdefault(program, []).append((site, title))
    patterns = []
    for program, matches in places.items():
        old = known.get(program)
        pattern = Pattern(
            id=old.id if old else f"fused_{first_id + len(known)}",
            title=matches[0][1],
            kind=kind(program),
            nodes=tuple(name for site, _ in matches for name in site.nodes),
            program=program,
            space=old.space if old else space(program),
            matches=tuple(site for site, _ in matches),
        )
        known.add(pattern)
        patterns.append(pattern)
    return Matched(case=case, patterns=tuple(patterns), unmatched=found.unmatched)


def _found(
    graph: Graph, unsupported: Callable[[Program], str | None], tiny_bytes: int, *, allow_tf32: bool = False
) -> _Found:
    flow = Flow(graph)
    growth = grown(flow, unsupported)
    matches, left = [], dict(growth.refused)
    regions = recomputed(flow, [write(flow, region) for region in growth.found()], unsupported)
    for program, site in regions:
        why = _loses(flow, program, site, tiny_bytes)
        if why is None:
            matches.append((program, site, title(flow, site)))
        else:
            left.update(dict.fromkeys(site.nodes, why))
    # They come after those that they take along: of two patterns that give one value, the later one makes it.
    matches += [(program, site, title(flow, site)) for program, site in with_sums(flow, regions, unsupported)]
    multiplied = products(flow, regions, unsupported, allow_tf32=allow_tf32)
    left.update(multiplied.left)
    taken = {bind.node for _, site in multiplied.found for bind in site.outputs}
    free = [region for region in regions if taken.isdisjoint(bind.node for bind in region[1].outputs)]
    made = {name for _, site in multiplied.found for name in site.nodes}
    convolved, unconvolved = convolutions(flow, free, unsupported, made)
    left.update(unconvolved)
    of_weights, unmade = weight_gradients(flow, unsupported)
    attended, unattended = attentions(flow, unsupported)
    layered, unlayered = recurrences(flow, unsupported)
    backward, undone = attention_gradients(flow, unsupported)
    left = {**unattended, **unlayered, **undone, **left, **unmade}
    takers = (*multiplied.found, *convolved, *of_weights, *attended, *backward, *layered)
    matches += [(program, site, title(flow, site)) for program, site in takers]
    reasons = _left(flow, [site for _, site, _ in matches], left)
    lines = tuple(f"{flow.calls[name].target}: {reason}" for name, reason in reasons.items())
    return _Found(matches, reasons, lines)


def _loses(flow: Flow, program: Program, site: Match, tiny_bytes: int) -> str | None:
    """Why a kernel for this would gain nothing over torch's own, or None."""
    nodes = [flow.nodes[name] for name in site.nodes]
    copies = all(n.op == "to" or (flow.calls[n.origin].label in _COPIES and n.op not in SCANS) for n in nodes)
    if copies and not any(o.transposed for o in program.operands):
        return "a copy or cast alone: torch's own kernel is as good"
    if program.traffic_bytes < tiny_bytes and _launches(flow, nodes) == 1:
        return f"alone, on {program.traffic_bytes} bytes: one launch for another"
    return None


def _launches(flow: Flow, nodes: Sequence[Node]) -> int:
    """How many operators torch would run for these: a call once if they are all of it, else each of its parts."""
    by_call: dict[str, int] = {}
    for node in nodes:
        by_call[node.origin] = by_call.get(node.origin, 0) + 1
    whole = {call: sum(1 for n in flow.graph.nodes if n.origin == call and n.op not in VIEWS) for call in by_call}
    return sum(1 if whole[call] == count else count for call, count in by_call.items())


def _left(flow: Flow, matches: Sequence[Match], why: dict[str, str]) -> dict[str, str]:
    """The calls that do work and are left to torch when all matches are fused, in their order, and why."""
    makers = {bind.node: site for site in matches for bind in site.outputs}
    reasons: dict[str, str] = {}
    todo, seen = list(flow.kept), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in makers:
            todo += [flow.root(bind.node) for bind in makers[name].operands]
            continue
        node = flow.nodes[name]
        todo += flow.roots(node)
        if node.op in ("call", "flip") or name in why:
            reasons.setdefault(node.origin, why.get(name, "no skeleton"))
    return {c.name: reasons[c.name] for c in flow.graph.calls if c.name in reasons and not c.view}


def kind(program: Program) -> str:
    """Which skeleton's work this is; see facts.pattern.Pattern.kind."""
    if attention_in(program):
        return "attention"
    if recurrence_in(program):
        return "recurrence"
    if attention_backward_in(program):
        return "attention_backward"
    if program.product:
        return "product" if matrices_of(program, program.product) else "convolution"
    if not program.reduced:
        return "pointwise"
    if program.scan:
        return "scan"
    if program.rows == 1:
        return "whole_reduce"
    if program.sums:
        return "row_column_reduce"
    return "row_reduce" if len(program.domain) - 1 in program.reduced else "column_reduce"


_WORDS = {"masked_fill": "mask", "to_copy": "cast", "cross_entropy_loss": "cross_entropy", "linalg_vector_norm": "norm",
          "native_batch_norm_legit_functional": "batch_norm", "native_batch_norm_legit": "batch_norm",
          "native_batch_norm_legit_no_training": "batch_norm"}  # fmt: skip


def title(flow: Flow, site: Match) -> str:
    """What was fused, in the author's own operators: "scale -> mask -> softmax"."""
    steps: list[str] = []
    in_order = sorted(site.nodes, key=flow.position.__getitem__)
    scans = {flow.nodes[n].origin: _scan_words(flow.nodes[n]) for n in in_order if flow.nodes[n].op in SCANS}
    written = {name: i for i, name in enumerate(flow.calls)}
    for call in sorted({flow.nodes[name].origin for name in in_order}, key=written.__getitem__):
        step = scans.get(call) or _word(flow.calls[call])
        if not steps or steps[-1] != step:
            steps.append(step)
    if len(steps) > _TITLE_STEPS:
        steps = [*steps[: _TITLE_STEPS - 2], f"({len(steps) - _TITLE_STEPS + 1} more)", steps[-1]]
    return " -> ".join(steps)


def _scan_words(node: Node) -> str:
    *_, reverse, exclusive = node.args
    return " ".join([*(["reverse"] if reverse else []), *(["exclusive"] if exclusive else []), node.op])


def _word(call: Call) -> str:
    if call.label in ("mul", "div") and len(call.sources) < 2:
        return "scale"
    return _WORDS.get(call.label, call.label)
