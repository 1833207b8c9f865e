"""A baseline that inductor can't compile for the best instruction set is compiled for another."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tilewright.judge.reference_process.baseline import compiling, forget, start_compiler
from tilewright.judge.reference_process.session import ReferenceSession
from tilewright.judge.wire import messages as wire


@pytest.fixture(autouse=True)
def sets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Inductor's instruction sets; `sets.tried` are the programs that tried them, none of which can be compiled."""
    from torch._inductor import config, cpu_vec_isa  # takes seconds, which collecting the tests should not

    found: list[str] = []
    headers, trusted = config.cpp_cache_precompile_headers, config.cpp.vec_isa_ok
    config.cpp.vec_isa_ok = None
    monkeypatch.setattr(cpu_vec_isa, "tried", found, raising=False)
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda isa, code: bool(found.append(code)))
    _forget_all(cpu_vec_isa)
    yield cpu_vec_isa
    config.cpp.vec_isa_ok = trusted
    config.cpp_cache_precompile_headers = headers
    _forget_all(cpu_vec_isa)


def _forget_all(sets: Any) -> None:
    forget()
    sets.VecISA._VecISA__bool__impl.cache_clear()


def test_where_the_first_call_works_none_is_tried_by_a_large_program(sets: Any) -> None:
    compiling(sets.valid_vec_isa_list)
    assert sets.VecISA._avx_code not in sets.tried


def test_where_it_does_not_they_are(sets: Any) -> None:
    calls: list[bool] = []

    def call() -> None:
        calls.append(bool(sets.valid_vec_isa_list()))
        if len(calls) == 1:
            raise RuntimeError("the compiler does not know it")

    compiling(call)
    assert calls == [calls[0], False]


def test_what_the_module_raises_is_raised() -> None:
    def call() -> None:
        raise ValueError("of the module's own")

    with pytest.raises(ValueError, match="of the module"):
        compiling(call)


def test_what_starts_the_compiler_leaves_nothing_compiled() -> None:
    import torch

    start_compiler("cpu")
    assert "torch._inductor" in sys.modules and not torch._dynamo.eval_frame.cached_backends


def test_a_cell_brings_tracer_and_compiler_up_when_it_loads_a_problem() -> None:
    source = "import torch\nclass Model(torch.nn.Module):\n    pass\n\ndef get_inputs():\n    return []\n"
    source += "get_init_inputs = get_inputs\n"
    for starts in ("tracer", "compiler"):
        asked = wire.LoadProblem(path="/nowhere/p.py", source=source, cases=("{}",), compiled=False, starts=starts)
        assert ReferenceSession("cpu").answer((asked, -1)) == wire.Done()
    assert "torch._dynamo" in sys.modules and "torch._inductor" in sys.modules


def test_what_a_problem_and_its_first_calls_leave_is_nothing_to_collect() -> None:
    source = "import torch\nKEPT = [[i] for i in range(50_000)]\nclass Model(torch.nn.Module):\n"
    source += "    def forward(self, x):\n        KEPT.extend([i] for i in range(50_000))\n        return x + 1\n\n"
    source += "def get_inputs():\n    return [torch.ones(3)]\n\ndef get_init_inputs():\n    return []\n"
    session, counts = ReferenceSession("cpu"), [gc.get_freeze_count()]
    for request in (
        wire.LoadProblem(path="/nowhere/p.py", source=source, cases=("{}",), compiled=False, starts=""),
        wire.ConstructCase(case=0, seed=1), wire.Warm(seed=2),
    ):  # fmt: skip
        assert not isinstance(session.answer((request, -1)), wire.FaultReply)
        counts.append(gc.get_freeze_count())
    assert counts[1] - counts[0] > 50_000 and counts[3] - counts[2] > 50_000
