"""Every example is a real problem: it loads, its cases fit, it runs on a CPU, and float64 agrees with what it says."""

from __future__ import annotations

import ast
import importlib.util
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "problems"
FILES = sorted(FOLDER.glob("*.py"))
# Sized by their flops, by their steps, or by the values that they hold meanwhile, not by their traffic.
COMPUTE_BOUND = {
    "mlp_block", "transformer_block", "attention_bias", "attention_sinks", "attention_relative", "attention_pair_bias",
    "pair_bias_attention", "gated_linear_attention", "top2_experts", "stacked_gru",
}  # fmt: skip
DATA_DEPENDENT = {"top2_experts"}  # shapes that only values tell


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(example: ModuleType, case: dict[str, Any]) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    return example.Model(*example.get_init_inputs(**case)), example.get_inputs(**case)


def results(output: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (output,) if isinstance(output, torch.Tensor) else tuple(output)


def traffic_bytes(example: ModuleType, case: dict[str, Any]) -> int:
    """Inputs, state and outputs of one call, from shapes alone."""
    with torch.device("meta"):
        module, inputs = make(example, case)
        known = example.__name__.removeprefix("example_") not in DATA_DEPENDENT
        outputs = results(module(*inputs)) if known else inputs[:1]
    return sum(prod(t.shape) * t.element_size() for t in (*inputs, *module.state_dict().values(), *outputs))


def test_there_are_enough() -> None:
    assert len(FILES) >= 18


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
class TestExample:
    def test_reads_well(self, path: Path) -> None:
        text = path.read_text()
        assert len(text.splitlines()) < 60
        assert ast.get_docstring(ast.parse(text))

    def test_cases_differ_in_size_and_the_first_is_the_largest(self, path: Path) -> None:
        example = load(path)
        for cases in (example.CASES, example.CPU_CASES):
            assert len(cases) >= 2 and len({str(c) for c in cases}) == len(cases)
            sizes = [traffic_bytes(example, c) for c in cases if "dtype" not in c]
            assert sizes[0] == max(sizes)
            assert any(v % 2 for c in cases for v in c.values() if isinstance(v, int)), "no odd size"

    def test_smallest_case_agrees_with_float64(self, path: Path) -> None:
        example = load(path)
        module, inputs = make(example, example.CPU_CASES[-1])
        wide = [t.double() if t.is_floating_point() else t for t in inputs]
        with torch.no_grad():
            found, truth = results(module(*inputs)), results(module.double()(*wide))
        assert len(found) == len(truth) >= 1
        for ours, exact in zip(found, truth, strict=True):
            assert torch.isfinite(ours).all()
            if not ours.is_floating_point():
                off = (ours.long() - exact.long()).abs()  # next to a tie, eight bits may go the other way
                assert not off.any() or (ours.itemsize == 1 and int(off.max()) == 1 and off.float().mean() < 1e-4)
                continue
            assert exact.dtype == torch.float64, "a cast inside the module hides the truth"
            error = torch.linalg.vector_norm(ours.double() - exact) / torch.linalg.vector_norm(exact)
            assert 0 < error < 1e-5


@pytest.mark.parametrize("path", [f for f in FILES if f.stem not in COMPUTE_BOUND], ids=lambda p: p.stem)
def test_main_cases_are_of_a_size_worth_timing(path: Path) -> None:
    example = load(path)
    assert 0.5e9 <= traffic_bytes(example, example.CASES[0]) <= 4e9
    assert 8e6 <= traffic_bytes(example, example.CPU_CASES[0]) <= 64e6
