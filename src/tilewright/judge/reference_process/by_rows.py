"""Appeals by some rows, where the budget of all elements would take too long or does not fit into memory.

Rows are slices of the first dimension that inputs and outputs share. Those in which a result is farthest from the truth
show elements that no rounding explains; as many others, drawn at random, show whether more turn, or errors are larger,
than roundings make. Where rows depend on one another, as the truth of some without the others tells, there is no such
appeal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..candidate_process.load import CodeRaised, is_out_of_memory
from ..wire.messages import Judged, Judgement
from .budget import Asked
from .ensemble import Question
from .reference import Reference
from .truths import rows_of

_MOST_ELEMENTS = 1 << 22  # of the largest tensor, in the rows of one ensemble
_BLOCK = 1 << 21
_SAME, _FEW = 1e-6, 1e-3  # of the typical size; the share of elements that may jump with float64's own rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All outputs of one call, in their places: what the candidate gave for `outputs`, and of these the reference's own
    results and the truths."""

    outputs: Sequence[int]
    got: Sequence[Tensor]
    own: Sequence[Tensor]
    truth: Sequence[Tensor]


def judged_on(reference: Reference, question: Question, results: Results) -> Judgement:
    """The verdicts by all elements or, where these cannot be had, by some rows. Raises CodeRaised where neither can."""
    try:
        asked = Asked(reference, question)
        given = zip(results.outputs, results.got, results.own, strict=True)
        return Judgement(judged=tuple(asked.judged(i, got=y, own=r) for i, y, r in given))
    except (CodeRaised, MemoryError, RuntimeError) as error:
        lacking = error.reason == "out_of_memory" if isinstance(error, CodeRaised) else is_out_of_memory(error)
        if not lacking and not (isinstance(error, CodeRaised) and error.reason == "no_truth"):
            raise
        why = "memory does not suffice for the budget of each element" if lacking else str(error)
    reference.double.release()
    reference.subject.drop()
    try:
        judged, words = appeal_by_rows(reference, question, results)
    except CodeRaised as error:
        raise CodeRaised("no_truth", f"{why}, and {error}") from None
    return Judgement(judged=judged, note=words)


def appeal_by_rows(reference: Reference, question: Question, results: Results) -> tuple[tuple[Judged, ...], str]:
    """The verdicts, and in words which rows they rest on. Raises CodeRaised("no_truth") where rows are few,
    or depend on one another."""
    rows = {t.shape[0] if t.ndim else 0 for t in results.truth}
    count = rows.pop() if len(rows) == 1 else 0
    largest = max(t.numel() for t in (*question.inputs, *results.truth))
    size = max(_MOST_ELEMENTS // max(largest // max(count, 1), 1), 1)
    if count < 4 * size or reference.double.is_whole():
        raise CodeRaised("no_truth", "no part of its rows could be judged by itself")
    asked = replace(question, limit_s=question.limit_s / 2)
    doubtful, drawn = _doubtful(results, size), _drawn(count, size, question)
    worst = _judged(reference, asked, results, rows=doubtful)
    some = _judged(reference, asked, results, rows=drawn)
    chosen = (size / count) ** 0.125  # the worst of all elements, and not of these alone
    judged = tuple(
        a if a.wrong else b if _turns(t) else max(replace(a, share=a.share * chosen), b, key=_share)
        for a, b, t in zip(worst, some, results.truth, strict=True)
    )
    words = f"by the budgets of {2 * size} of {count} rows: those farthest from the truth, and as many drawn at random"
    return judged, words


def _share(judged: Judged) -> float:
    return judged.share


def _turns(truth: Tensor) -> bool:
    """Whether what counts is how many elements turn: of rows that were chosen for that, it tells nothing."""
    return not truth.is_floating_point() or truth.itemsize == 1


def _judged(reference: Reference, question: Question, results: Results, *, rows: Tensor) -> tuple[Judged, ...]:
    count = results.truth[0].shape[0]
    asked = Asked(reference, replace(question, inputs=rows_of(question.inputs, rows, count=count)))
    for output, truth in zip(results.outputs, results.truth, strict=True):
        _require_alone(asked.truth(output), truth[rows])
    return tuple(
        asked.judged(output, got=y[rows], own=r[rows])
        for output, y, r in zip(results.outputs, results.got, results.own, strict=True)
    )


def _require_alone(alone: Tensor, among: Tensor) -> None:
    """Raise unless rows are without the others what they are among them."""
    if alone.shape == among.shape:
        a, b = alone.double(), among.double()
        near = (a - b).abs() <= _SAME * (b.abs() + b.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt())
        if float((near | (a == b) | (a.isnan() & b.isnan())).double().mean()) >= 1 - _FEW:
            return
    raise CodeRaised("no_truth", "its rows depend on one another, and all of them could not be judged")


def _doubtful(results: Results, size: int) -> Tensor:
    """The rows that are farthest from the truth, and from the reference's own, in any output."""
    scores = torch.stack(
        [torch.cat(list(_scores(*t))) for t in zip(results.got, results.own, results.truth, strict=True)]
    )
    return scores.amax(0).topk(size).indices.sort().values


def _scores(got: Tensor, own: Tensor, truth: Tensor) -> Iterator[Tensor]:
    """By row how far the worst element is off, beside its size and the row's typical one; some rows at a time."""
    step = max(_BLOCK // max(truth[0].numel(), 1), 1)
    for start in range(0, len(truth), step):
        y, r, t = (
            x[start : start + step].reshape(len(x[start : start + step]), -1).double() for x in (got, own, truth)
        )
        size = t.abs().clamp(min=1e-37) + t.nan_to_num(0.0, 0.0, 0.0).square().mean(1, keepdim=True).sqrt()
        off = torch.where((y == t) | (y == r) | (y.isnan() & t.isnan()), 0.0, (y - t).abs() / size)
        yield off.nan_to_num(nan=torch.inf).amax(1)


def _drawn(count: int, size: int, question: Question) -> Tensor:
    device = question.inputs[0].device if question.inputs else torch.device("cpu")
    source = torch.Generator().manual_seed(question.seed)
    return torch.randperm(count, generator=source)[:size].sort().values.to(device)
