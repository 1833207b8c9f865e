"""Arguments that forward writes to, judged on the CPU: what they hold after a call counts as its results do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tilewright
from fakes import decoders
from fakes.decoders import WORDS, CachedDecoder, GPT2Block, LlamaBlock, StaticCache, groups_of
from fakes.judges import context_judge
from fakes.realisers import CPU
from tilewright.edges.problems import read_problem
from tilewright.faces.api import Evaluated
from tilewright.faces.capture import write_problem
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.pattern import Choice
from tilewright.realise.compose import compose
from tilewright.run.matching import found_patterns

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ALIKE = """
from original import Model


class ModelNew(Model):
    pass
"""
FORGETS = """
import torch
from original import Model


class ModelNew(Model):
    def forward(self, *args):
        before = {name: buffer.clone() for name, buffer in self.named_buffers()}
        result = super().forward(*args)
        with torch.no_grad():
            for name, buffer in self.named_buffers():
                if PART in name:
                    buffer.copy_(before[name])
        return result
"""


def calls(block: type[nn.Module]) -> list[dict[str, object]]:
    cache = StaticCache(2, heads=groups_of(block))
    return [
        {
            "input_ids": torch.randint(WORDS, (2, length)), "cache": cache,
            "cache_position": torch.arange(first, first + length),
        }
        for first, length in ((0, 5), (5, 1))
    ]  # fmt: skip


def judged(folder: Path, block: type[nn.Module], text: str) -> Evaluated:
    model, examples = CachedDecoder(block).eval(), calls(block)
    problem = write_problem(model, examples, folder / "problem")
    files = (SourceFile(path="model.py", text=text), SourceFile(path="original.py", text=problem.read_text()))
    return tilewright.evaluate(
        model, Candidate(files=files), examples, target="cpu", out=folder / "run", timing="0.2s", compiled=False
    )


@pytest.mark.thorough
@pytest.mark.parametrize("block", [LlamaBlock, GPT2Block])
def test_a_decoder_with_a_static_cache_is_judged_in_both_cases(block: type[nn.Module], tmp_path: Path) -> None:
    found = judged(tmp_path, block, ALIKE)
    assert found.accepted, found.report


@pytest.mark.thorough
def test_a_cache_that_one_prompt_fills_is_never_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "LENGTH", 6)
    found = judged(tmp_path, LlamaBlock, ALIKE)
    assert found.accepted, found.report


@pytest.mark.few(0)
@pytest.mark.parametrize("part", ["float32", "int64"])
def test_a_candidate_that_leaves_a_cache_as_it_was_is_refused(part: str, tmp_path: Path) -> None:
    found = judged(tmp_path, LlamaBlock, FORGETS.replace("PART", repr(part)))
    assert not found.accepted and "after the call" in found.report, found.report


def test_fused_code_that_writes_in_place_is_accepted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = write_problem(CachedDecoder().eval(), calls(LlamaBlock), tmp_path / "problem")
    with context_judge(read_problem(path, target="cpu"), tmp_path, trace=True) as judge:
        cases = judge.open()
        matched = found_patterns(cases, CPU)
        patterns = [next(p for p in m.patterns if p.kind == "pointwise") for m in matched]
        recipe = tuple({p.id: Choice(pattern=p.id, point=p.space.points[0]) for p in patterns}.values())
        candidate = compose(path.read_text(), cases, matched, recipe, device=CPU)
        verdict = judge.evaluate(candidate)
    model = next(file.text for file in candidate.files if file.path == "model.py")
    assert model.count("index_copy_.default(self.") == model.count("index_put_.default(self.") == 4
    assert type(verdict).__name__ == "Timed", verdict
