"""Recurrences written as loops over time, or as associative scans: recognised where they are linear, and left else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

from fakes.matched import Applies, fused, only
from tilewright.frontend.trace import trace
from tilewright.ir.program import Reduction
from tilewright.realise.case_code import case_code

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]

A, X, H = torch.rand(3, 6, 5), torch.randn(3, 6, 5), torch.randn(3, 5)
Step = Callable[[int, Tensor], Tensor]


def unrolled(step: Step, h: Tensor | float, length: int = 6, *, dim: int = 1) -> Tensor:
    states = []
    for t in range(length):
        h = step(t, h)
        states.append(h)
    return torch.stack(states, dim)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_loop_over_time_is_one_scan(dim: int) -> None:
    program, scan = only(fused(lambda a, x: unrolled(lambda t, h: a[:, t] * h + x[:, t], torch.zeros(3, 5), dim=dim),
                               A, X))  # fmt: skip
    assert scan.op == "recurrence" and len(program.body) == 1 and not scan.reverse
    assert program.domain[scan.dim] == 6


@pytest.mark.parametrize("step", [
    lambda a, x, h: torch.sigmoid(a) * h + (1 - torch.sigmoid(a)) * x,
    lambda a, x, h: torch.lerp(h, x, a),
    lambda a, x, h: h + a * (x - h),
    lambda a, x, h: x - (h * a) / 2.0,
    lambda a, x, h: torch.where(a > 0.5, a * h + x, h),
    lambda a, x, h: torch.addcmul(x, h, a, value=0.5),
    lambda a, x, h: 0.9 * h + 0.1 * x,
    lambda a, x, h: (h.view(3, 1, 5) * a.unsqueeze(1)).view(3, 5) + x,
])  # fmt: skip
def test_however_a_step_is_written(step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    matched = fused(lambda a, x: unrolled(lambda t, h: step(a[:, t], x[:, t], h), x[:, 0] * 2), A, X)
    assert only(matched)[1].op == "recurrence"


def test_a_first_state_of_its_own() -> None:
    def forward(a: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        states = [h]
        for t in range(x.size(1)):
            states.append(a[:, t] * states[-1] + x[:, t])
        return torch.stack(states, 1), states[-1]

    matched = fused(forward, A, X, H)
    (program,) = [p.program for p in matched.patterns]
    assert program.scan is not None and program.domain[program.scan.dim] == 7

    def rows(x: Tensor) -> Tensor:
        states = [x[:, :1]]
        for t in range(1, x.size(1)):
            states.append(0.9 * states[-1] + x[:, t : t + 1])
        return torch.cat(states, 1) * 2

    program, _scan = only(fused(rows, X))
    assert program.domain == (3, 6, 5)


def test_from_the_end_and_with_states_of_another_shape() -> None:
    def backwards(a: Tensor, x: Tensor) -> Tensor:
        return unrolled(lambda t, h: a[:, 5 - t] * h + x[:, 5 - t], torch.zeros(3, 5))

    assert "aten.stack.default" in " ".join(fused(backwards, A, X).unmatched), "a stack in the order of the loop"

    def transposed(a: Tensor, x: Tensor) -> Tensor:
        h, states = torch.zeros(3, 5), list[Tensor]()
        for t in reversed(range(6)):
            h = a[:, t] * h + x[:, t]
            states.insert(0, h)
        return torch.stack(states, 1)

    assert only(fused(transposed, A, X))[1].reverse

    def outer(a: Tensor, x: Tensor, c: Tensor) -> Tensor:
        states = unrolled(lambda t, h: a[:, t, None] * h + x[:, t, :, None] * c[:, t, None], torch.zeros(3, 5, 5))
        return states * c[:, :, None]

    assert only(fused(outer, A[:, :, :1], X, torch.randn(3, 6, 5)))[0].domain == (3, 6, 5, 5)


L = 20
AL, XL = torch.rand(3, L, 5), torch.randn(3, L, 5)


def last(step: Step, h: Tensor | float, length: int = L) -> Tensor:
    for t in range(length):
        h = step(t, h)
    return h  # type: ignore[return-value]


@pytest.mark.parametrize("forward", [
    lambda x: last(lambda t, h: 0.9 * h + 0.1 * x[:, t], torch.zeros(3, 5)),
    lambda x: last(lambda t, h: torch.lerp(h, x[:, t], 0.25), x[:, 0] * 2) * 3,
    lambda x: torch.relu(last(lambda t, h: h + x[:, L - 1 - t] * 2, 0.0)),
    lambda x: last(lambda t, h: x[:, t] - 0.5 * h, torch.ones(3, 5)),
])  # fmt: skip
def test_a_last_state_of_constant_decay_is_a_sum_with_weights(forward: Callable[[Tensor], Tensor]) -> None:
    matched = fused(forward, XL)
    (pattern,) = matched.patterns
    assert not matched.unmatched and pattern.kind != "scan"
    assert [i.op for i in pattern.program.body if isinstance(i, Reduction)] == ["sum"]
    assert pattern.program.traffic_bytes <= (L + 2) * 3 * 5 * 4, "each step is read once, and one state is written"


@pytest.mark.parametrize("forward", [
    lambda a, x: last(lambda t, h: a[:, t] * h + x[:, t], torch.zeros(3, 5)),
    lambda a, x: last(lambda t, h: h + torch.sigmoid(a[:, t]) * (x[:, t] - h), x[:, 0]) @ torch.ones(5, 5).to(x),
    lambda a, x: torch.tanh(last(lambda t, h: 1.5 * h + a[:, t] * x[:, t], 0.0)),
    lambda a, x: last(lambda t, h: 0.001 * h + a[:, t] * x[:, t], 0.0),
])  # fmt: skip
def test_a_last_state_behind_gates_or_unfit_weights_is_the_end_of_a_scan(
    forward: Callable[[Tensor, Tensor], Tensor],
) -> None:
    matched = fused(forward, AL, XL)
    assert [p.program.scan.op for p in matched.patterns if p.program.scan] == ["recurrence"]
    assert len(matched.patterns) <= 2


def test_what_has_a_last_state_and_stays_as_it_is() -> None:
    """Few steps, steps that are alike, states that somebody else reads, and what is not linear."""

    def read(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = last(lambda t, h: a[:, t] * h + x[:, t], torch.zeros(3, 5), 10)
        return h * 2, last(lambda t, h: a[:, 10 + t] * h + x[:, 10 + t], h, 10)

    for forward in (
        lambda a, x: last(lambda t, h: a[:, t] * h + x[:, t], torch.zeros(3, 5), 6),
        lambda a, x: last(lambda t, h: a[:, 0] * h + x[:, 0], x[:, 1]),
        lambda a, x: last(lambda t, h: torch.tanh(a[:, t] * h + x[:, t]), torch.zeros(3, 5)),
        read,
    ):
        assert all(p.program.scan is None for p in fused(forward, AL, XL).patterns)


def test_a_sum_that_was_written_as_a_loop() -> None:
    assert only(fused(lambda x: unrolled(lambda t, h: h + x[:, t] * 2, 0.0), X))[1].op == "cumsum"


@pytest.mark.parametrize("step", [
    lambda t, a, x, h: torch.tanh(a[:, t] * h + x[:, t]),
    lambda t, a, x, h: a[:, t] * h * h + x[:, t],
    lambda t, a, x, h: a[:, t] * h + x[:, t if t != 4 else 5],
    lambda t, a, x, h: (a[:, t] if t != 4 else 0.5) * h + x[:, t],
    lambda t, a, x, h: a[:, t] + x[:, t],
    lambda t, a, x, h: x[:, t] / (a[:, t] + h),
])  # fmt: skip
def test_what_is_no_linear_recurrence(step: Callable[..., Tensor]) -> None:
    matched = fused(lambda a, x: unrolled(lambda t, h: step(t, a, x, h), torch.zeros(3, 5)), A, X)
    assert all(p.program.scan is None for p in matched.patterns)


def scanned(combine: Callable[..., Any], values: Any, **more: Any) -> Any:
    return associative_scan(combine, values, 1, combine_mode="generic", **more)


def follows(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return left[0] * right[0], right[0] * left[1] + right[1]


def test_an_associative_scan_of_pairs() -> None:
    program, scan = only(fused(lambda a, x: scanned(follows, (torch.sigmoid(a), x))[1] * 2, A, X))
    assert scan.op == "recurrence" and [s.op for s in program.body] == ["sigmoid", "recurrence", "mul"]
    assert only(fused(lambda a, x: scanned(follows, (a, x), reverse=True)[1], A, X))[1].reverse
    transposed = lambda l, r: {"x": torch.add(l["x"] * r["a"], r["x"]), "a": torch.mul(r["a"], l["a"])}  # noqa: E731, E741
    both = fused(lambda a, x: list(scanned(transposed, {"x": x, "a": a}).values()), A, X)
    assert sorted(p.program.scan.op for p in both.patterns) == ["cumprod", "recurrence"] and not both.unmatched


def test_associative_scans_of_sums_and_of_what_is_none() -> None:
    assert only(fused(lambda x: scanned(torch.add, x), X))[1].op == "cumsum"
    assert only(fused(lambda x: scanned(lambda l, r: r * l, x), X))[1].op == "cumprod"  # noqa: E741
    for combine in (torch.maximum, lambda l, r: l + r + l * r):  # noqa: E741
        assert all(p.program.scan is None for p in fused(lambda x: scanned(combine, x), X).patterns)  # noqa: B023


def test_a_recurrence_that_no_kernel_takes_is_a_loop_of_torch() -> None:
    graph = trace(Applies(lambda a, x: scanned(follows, (a, x))[1]), (A, X), {})
    made = case_code(graph, [], target="cpu")
    assert "tilewright" not in "".join(made.body)
    code = f"def run({', '.join(made.parameters)}):\n" + "\n".join(f"    {line}" for line in made.body)
    space: dict[str, Any] = {"torch": torch}
    exec(code, space)
    torch.testing.assert_close(space["run"](A, X), scanned(follows, (A, X))[1])
