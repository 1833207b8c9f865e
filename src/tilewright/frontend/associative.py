"""torch's associative scans, while a module is traced: those of sums, products and linear recurrences become operators.

torch takes them apart into log2(n) rounds of slices and products, or leaves a graph in a graph. Which function is
scanned is told by calling it on symbols that know addition and multiplication alone: it makes a polynomial of them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

NAMESPACE = "tilewright_trace"
_MODULE = "torch._higher_order_ops.associative_scan"

Monomial = tuple[str, ...]  # names of the factors, in order


class Polynomial:
    """A sum of products of symbols."""

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = {m: n for m, n in terms.items() if n}

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs or function not in (torch.add, torch.mul):
            return NotImplemented
        return args[0] + args[1] if function is torch.add else args[0] * args[1]

    def __add__(self, other: Any) -> Polynomial:
        if not isinstance(other, Polynomial):
            return NotImplemented
        names = {*self.terms, *other.terms}
        return Polynomial({m: self.terms.get(m, 0) + other.terms.get(m, 0) for m in names})

    def __mul__(self, other: Any) -> Polynomial:
        if not isinstance(other, Polynomial):
            return NotImplemented
        found: dict[Monomial, int] = {}
        for one, count in self.terms.items():
            for two, times in other.terms.items():
                key = tuple(sorted((*one, *two)))
                found[key] = found.get(key, 0) + count * times
        return Polynomial(found)


def scans_of(combine: Callable[..., Any], count: int) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """For each of `count` leaves the operator that scans it, and the leaves that this takes; None where one has none.
    `combine` takes the leaves on the left, then those on the right."""
    left, right = ([Polynomial({(f"{side}{i}",): 1}) for i in range(count)] for side in "lr")
    try:
        made = pytree.tree_leaves(combine(*left, *right))
    except Exception:  # the user's function on what is no tensor: it may fail in any way, and is no polynomial then
        return None
    found = []
    for i, result in enumerate(made):
        terms = getattr(result, "terms", None)
        scans: dict[Any, tuple[str, tuple[int, ...]]] = {
            frozenset({(f"l{i}",), (f"r{i}",)}): ("cumsum", (i,)), frozenset({(f"l{i}", f"r{i}")}): ("cumprod", (i,)),
            **{frozenset({(f"l{i}", f"r{gate}"), (f"r{i}",)}): ("recurrence", (gate, i))
               for gate in range(count) if gate != i},
        }  # fmt: skip
        scan = scans.get(frozenset(terms)) if terms and set(terms.values()) == {1} else None
        if scan is None:
            return None
        found.append(scan)
    gates = {args[0] for op, args in found if op == "recurrence"}
    return tuple(found) if all(found[g][0] == "cumprod" for g in gates) else None


@contextmanager
def recognised() -> Iterator[None]:
    """Inside, associative scans of such functions call `cumsum`, `cumprod` and `tilewright_trace.recurrence`."""
    module = sys.modules.get(_MODULE)
    before = {n: getattr(module, n, None) for n in ("generic_associative_scan", "_maybe_compile_and_run_fn")}
    if module is None or not all(before.values()):  # never imported, or another torch
        yield
        return
    _define()

    def generic(operator: Any, leaves: Any, *rest: Any, **more: Any) -> Any:
        found = _scanned(operator, leaves)
        return before["generic_associative_scan"](operator, leaves, *rest, **more) if found is None else found  # type: ignore[misc]

    def compiled(function: Any, operator: Any, leaves: Any, *rest: Any) -> Any:
        found = _scanned(operator, leaves)
        return before["_maybe_compile_and_run_fn"](function, operator, leaves, *rest) if found is None else found  # type: ignore[misc]

    try:
        module.generic_associative_scan = generic  # type: ignore[attr-defined]
        module._maybe_compile_and_run_fn = compiled  # type: ignore[attr-defined]
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def _scanned(operator: Any, leaves: Sequence[Tensor]) -> list[Tensor] | None:
    """The scans of leaves, along their first dimension, or None."""
    alike = len({(leaf.shape, leaf.dtype) for leaf in leaves}) == 1 and leaves[0].is_floating_point()
    if not alike or not isinstance(operator, functools.partial):
        return None
    plain = operator.keywords.get("combine_fn")
    if plain is not None and getattr(plain, "__qualname__", "").startswith(
        "vmap."
    ):  # what torch.vmap made of the user's function
        plain = inspect.getclosurevars(plain).nonlocals.get("func")
    scans = scans_of(functools.partial(operator.func, **{**operator.keywords, "combine_fn": plain}), len(leaves))
    if scans is None:
        return None
    return [torch.ops.tilewright_trace.recurrence(*(leaves[i] for i in args)) if op == "recurrence"
            else getattr(torch, op)(leaves[args[0]], 0) for op, args in scans]  # fmt: skip


@functools.cache
def _define() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "DEF")  # its operators live as long as it does
    library.define("recurrence(Tensor gate, Tensor added) -> Tensor")
    library.impl("recurrence", lambda gate, added: torch.empty_like(added), "Meta")
    return library
