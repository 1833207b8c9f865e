"""A baseline that inductor can't compile for the best instruction set is compiled for another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch._inductor import config, cpu_vec_isa

from tilewright.cell.baseline import compiling, forget


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The programs with which instruction sets are tried, none of which can be compiled."""
    found: list[str] = []
    headers = config.cpp_cache_precompile_headers
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda isa, code: bool(found.append(code)))
    _forget_all()
    yield found
    config.cpp.vec_isa_ok = None
    config.cpp_cache_precompile_headers = headers
    _forget_all()


def _forget_all() -> None:
    forget()
    cpu_vec_isa.VecISA._VecISA__bool__impl.cache_clear()


def test_where_the_first_call_works_none_is_tried_by_a_large_program(tried: list[str]) -> None:
    found: list[object] = []
    compiling(lambda: found.extend(cpu_vec_isa.valid_vec_isa_list()))
    assert cpu_vec_isa.VecISA._avx_code not in tried


def test_where_it_does_not_they_are(tried: list[str]) -> None:
    calls: list[bool] = []

    def call() -> None:
        calls.append(bool(cpu_vec_isa.valid_vec_isa_list()))
        if len(calls) == 1:
            raise RuntimeError("the compiler does not know it")

    compiling(call)
    assert calls[1] is False and config.cpp.vec_isa_ok is None


def test_what_the_module_raises_is_raised() -> None:
    def call() -> None:
        raise ValueError("of the module's own")

    with pytest.raises(ValueError, match="of the module"):
        compiling(call)
