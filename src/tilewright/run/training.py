"""From what a module computes in training to what kernels can do of it, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ..facts.run import Matched
from ..facts.segment import Segment
from ..facts.space import Space
from ..fusion import has_attention_gradients, match_segments, unmade_products, written_out
from ..ir.graph import Graph
from ..ir.program import Program

# Products of matrices in segments: gradients of odd and whole sizes, fp32 and bf16, are as near to float64
# as torch's (tests/gpu/test_training_products.py), a step takes 0.27 of eager's time (fp32, H200, 2026-11-22).
PRODUCTS = True


def match_training(
    graph: Graph, *, unsupported: Callable[[Program], str | None], space: Callable[[Program], Space], first_id: int,
    first_segment: int, case: int, allow_tf32: bool = False,
) -> Matched:  # fmt: skip
    """The segments of a training graph and the patterns in them. `loose` as for `match`."""
    from ..frontend.autodiff import with_depthwise  # imports torch, which a user's mistake needn't wait for
    from ..frontend.prune import early

    def rewritten(graph: Graph) -> Graph:
        return early(with_depthwise(graph))

    known = with_depthwise(graph)
    but = (
        unmade_products(known, unsupported=unsupported, allow_tf32=allow_tf32) if PRODUCTS else ()
    )  # autograd's own stay so
    cut = [_with(s, rewritten) for s in _cut(graph, first_segment, but, unsupported)]
    return match_segments(graph, cut, unsupported=unsupported, space=space, first_id=first_id, case=case,
                          allow_tf32=allow_tf32)  # fmt: skip


def _cut(
    graph: Graph, first_id: int, but: Collection[str], unsupported: Callable[[Program], str | None]
) -> tuple[Segment, ...]:  # fmt: skip
    """The segments, among them each attention whose gradients can be realised without its scores in memory."""
    from ..frontend.autodiff import AttentionNodes, segments

    found = [
        AttentionNodes(
            product=w.nodes[0], result=w.node.name, inside=frozenset(w.nodes), own=frozenset((*w.spared, w.node.name))
        )
        for w in written_out(graph, unsupported)
    ]
    while True:
        cut = segments(graph, first_id=first_id, products=PRODUCTS, but=but, attended=found)
        made = {s.outputs[0] for s in cut if has_attention_gradients(s.backward, unsupported=unsupported)}
        if all(a.result in made for a in found):
            return cut
        found = [a for a in found if a.result in made]


def _with(segment: Segment, rewrite: Callable[[Graph], Graph]) -> Segment:
    return replace(segment, forward=rewrite(segment.forward), backward=rewrite(segment.backward))
