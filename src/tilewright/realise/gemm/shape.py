"""What a Program multiplies: its two matrices, their sizes, how they lie, and which kind of product it is."""

from __future__ import annotations

from ...ir.matrices import Matrices, factors_of, matrices_of
from ...ir.program import Operand, Program

# A side of so much makes a product small-M: in 16 bits it takes as long as the large matrix takes to come.
SMALL_M = 64
_SMALL_M_LARGE = 1 << 19  # elements of the large matrix; below, it is all launch


def sizes(program: Program) -> tuple[int, int, int, int]:
    """(batch, M, N, K)."""
    left, right = factors(program)
    *batch, m, k = left.shape
    return program.domain[0] if batch else 1, m, right.shape[-1], k


def factors(program: Program) -> tuple[Operand, Operand]:
    """Both matrices; of one that is made on its way in, what it would be as an operand."""
    assert program.product is not None
    return factors_of(program, program.product)


def no_matrices(program: Program) -> str | None:
    """Why the program's contraction is no product of whole matrices; None if it is one."""
    assert program.product is not None
    if matrices_of(program, program.product) is not None:
        return None
    moved = [
        {d < len(program.domain) for d, _ in p.steps} for p in (*program.product.left.at, *program.product.right.at)
    ]
    if {True, False} in moved:
        return "a contraction over windows of an operand, as a convolution is"
    return "a contraction that is no product of whole matrices, or of batches of them"


def matrices(program: Program) -> Matrices:
    """What the accesses say of both matrices; the program `fits`."""
    assert program.product is not None
    found = matrices_of(program, program.product)
    assert found is not None
    return found


def is_dual(program: Program) -> bool:
    """Whether it is two products of one left factor."""
    return len(program.products) > 1


def is_tf32(program: Program) -> bool:
    """Whether factors in fp32 are rounded to TF32's bits."""
    return program.product is not None and program.product.allow_tf32


def is_grouped_gemm(program: Program) -> bool:
    """Whether rows lie in stretches, each with a matrix of its own."""
    return program.product is not None and bool(matrices(program).ends)


def line_of(operand: Operand) -> int:
    """The size of the dimension along which neighbours in memory lie."""
    wide = [d for d in operand.order or range(len(operand.shape)) if operand.shape[d] > 1]
    return operand.shape[wide[-1]] if wide else 1


def is_k_major(program: Program) -> tuple[bool, bool]:
    """Whether neighbours in memory are neighbours along K, of both matrices."""
    left, right = factors(program)
    rank = len(left.shape)
    return (not left.order or left.order[-1] == rank - 1), bool(right.order) and right.order[-1] == rank - 2


def is_plain(program: Program) -> bool:
    """Whether tensor cores add up all of K: of 16 bits."""
    return factors(program)[0].dtype in ("f16", "bf16")


def is_small_m(program: Program) -> bool:
    """Whether it is bound by the way of one matrix from memory, in 16 bits."""
    _, m, n, k = sizes(program)
    return (
        is_plain(program) and not is_grouped_gemm(program) and min(m, n) <= SMALL_M and max(m, n) * k >= _SMALL_M_LARGE
    )
