"""Composition: model.py runs fused kernels where it may, torch elsewhere, and gives what the module gives."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.composed import all_of, case, composed, load, matched, same
from tilewright.facts.pattern import Choice, without_idle
from tilewright.facts.run import CaseFacts

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]
__all__ = ["load"]  # a fixture

BLOCK = """
import torch
from torch import nn
import torch.nn.functional as F
from itertools import pairwise
from pathlib import Path

assert Path(__file__).name == "original.py"

class Model(nn.Module):
    def __init__(self, width=17):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("shift", torch.linspace(-1, 1, width))

    def forward(self, x, y):
        a = self.net(x).relu() * 2 + self.shift
        b = self.norm(a)
        c = torch.i0(b)
        d = F.softmax(c + y, -1)
        classes = torch.arange(x.shape[0], device=x.device) % 17
        return {"d": d, "loss": [F.cross_entropy(d, classes), (d * b).sum(0)]}, c.t()
"""

SMALL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.i0(x.relu() * 2).t()
"""

MANY = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, pair, scale, *, more):
        a, b = pair["a"] * scale, pair["b"][0]
        first = torch.max(a, 1)
        parts = (a - b).chunk(3, 1)
        gram = F.normalize(parts[0]) @ F.normalize(parts[1]).t()
        worst = (a.argmin(), (a > 0).all(1), a.prod(1), a.logsumexp(0), torch.var_mean(a, 0), a.norm(), a.amin(0))
        more = F.layer_norm(more, (17,)) * (more < 0) + more.std(0)
        return first, gram, worst, more, (a.round() % 3).abs().clamp(min=0.5) ** b.sign(), F.elu(b) / 3, 3, None
"""


x, y = torch.randn(33, 17), torch.randn(33, 17)


@cache
def block() -> CaseFacts:
    return case(BLOCK, (x, y))


PAIR = ({"a": torch.randn(33, 17).double().float(), "b": [torch.rand(33, 17) + 0.5]}, 2.5)


def test_the_whole_recipe_gives_what_the_module_gives(load: Any) -> None:
    model = load(composed(BLOCK, [block()]))
    ours, theirs = model.ModelNew(), model.Model()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        for _ in range(2):
            same(ours(x, y), theirs(x, y))
    same(list(ours.state_dict().values()), list(theirs.state_dict().values()))
    assert not model.FALLBACKS and int(ours.norm.num_batches_tracked) == 2


@pytest.mark.parametrize("source", [BLOCK, MANY])
def test_every_single_pattern_and_every_pair_can_be_fused_alone(load: Any, source: str) -> None:
    args, kwargs = ((x, y), {}) if source is BLOCK else (PAIR, {"more": y})
    cases = [case(source, args, kwargs)]
    found = matched(cases)
    choices = all_of(found)
    assert len(choices) > 4
    for recipe in [(c,) for c in choices] + list(pairwise(choices)):
        candidate = composed(source, cases, recipe, found)
        busy = without_idle([m.patterns for m in found], recipe)
        assert {f.path for f in candidate.files if "/" not in f.path} == {
            "model.py",
            "original.py",
            *(f"{c.pattern}.py" for c in busy),
        }
        model = load(candidate)
        ours, theirs = model.ModelNew(), model.Model()
        ours.load_state_dict(theirs.state_dict())
        with torch.no_grad():
            same(ours(*args, **kwargs), theirs(*args, **kwargs))
        assert not model.FALLBACKS and all(sys.modules[c.pattern].CALLS for c in busy)


def test_it_survives_compilation_without_breaks(load: Any) -> None:
    model = load(composed(BLOCK, [block()]))
    ours, theirs = model.ModelNew(), model.Model()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        same(torch.compile(ours, fullgraph=True, backend="aot_eager")(x, y), theirs(x, y))


def test_containers_and_keywords_come_through(load: Any) -> None:
    model = load(composed(MANY, [case(MANY, PAIR, {"more": y})]))
    with torch.no_grad():
        got, wanted = model.ModelNew()(*PAIR, more=y), model.Model()(*PAIR, more=y)
    same(got, wanted)
    assert type(got[0]) is torch.return_types.max and not model.FALLBACKS
    with torch.no_grad():
        same(model.ModelNew()(PAIR[0], 3.5, more=y), model.Model()(PAIR[0], 3.5, more=y))
    assert model.FALLBACKS == {"no case has this signature": 1}


def test_other_signatures_modes_and_gradients_run_the_original_and_are_counted(load: Any) -> None:
    model = load(composed(BLOCK, [block()]))
    ours = model.ModelNew()
    with torch.no_grad():
        ours(x[:5], y[:5])
        ours(x=x, y=y)
        ours.eval()(x, y)
    assert model.FALLBACKS == {"no case has this signature": 3}
    loss = ours.train()(x, y)[0]["loss"][1].sum()
    loss.backward()
    assert model.FALLBACKS["a gradient is wanted"] == 1 and ours.net[0].weight.grad is not None
    assert not any(sys.modules[name].CALLS for name in sys.modules if name.startswith("fused_"))


def test_each_case_has_its_own_code_and_equal_ones_share(load: Any) -> None:
    cases = [block(), case(BLOCK, (x[:9], y[:9])), case(BLOCK, (x, y)), case(BLOCK, (x, y), training=False)]
    model = load(composed(BLOCK, cases))
    ours, theirs = model.ModelNew(), model.Model()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        for rows in (33, 9):
            same(ours(x[:rows], y[:rows]), theirs(x[:rows], y[:rows]))
        same(ours.eval()(x, y), theirs.eval()(x, y))
    assert not model.FALLBACKS and hasattr(ours, "_case_2") and not hasattr(ours, "_case_3")


def test_without_patterns_or_without_a_trace_the_original_runs(load: Any) -> None:
    traced = block()
    blind = CaseFacts(inputs=(), outputs=(), work=traced.work, graph=None, trace_failure="control flow")
    model = load(composed(BLOCK, [traced, blind], ()))
    with torch.no_grad():
        model.ModelNew()(x, y)
        assert not model.FALLBACKS
        model.ModelNew()(x[:3], y[:3])
    assert model.FALLBACKS == {"no case has this signature": 1}


def test_knobs_are_forwarded(load: Any) -> None:
    model = load(composed(BLOCK, [block()]))
    one, other, *_ = model._FUSED
    model.configure(one, speed=2)
    assert sys.modules[one].KNOBS == {"speed": 2} and sys.modules[other].KNOBS == {"speed": 1}
    with pytest.raises(ValueError):
        model.configure(one, color="red")
    with pytest.raises(KeyError):
        model.configure("fused_99", speed=1)


def test_two_candidates_of_one_process_have_kernels_of_their_own(tmp_path: Path, load: Any) -> None:
    """Loaded by their paths, from folders that are not on sys.path, as a program that uses both would."""
    load(composed(BLOCK, [block()]))  # has left its fused_0 in sys.modules
    models = []
    for name, source in (("first", SMALL), ("second", SMALL.replace("* 2", "* 3"))):
        candidate = composed(source, [case(source, (x,))])
        (tmp_path / name).mkdir()
        for file in candidate.files:
            (tmp_path / name / file.path).parent.mkdir(exist_ok=True)
            (tmp_path / name / file.path).write_text(file.text)
        spec = importlib.util.spec_from_file_location(name, tmp_path / name / "model.py")
        assert spec is not None and spec.loader is not None
        models.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(models[-1])
    assert not [place for place in sys.path if place.startswith(str(tmp_path))]
    for model, factor in zip(models, (2, 3), strict=True):
        same(model.ModelNew()(x), torch.i0(x.relu() * factor).t())
        assert model.FALLBACKS == {}


def test_the_code_is_plain_to_read() -> None:
    source = SMALL
    candidate = composed(source, [case(source, (x,))])
    text = candidate.files[0].text
    start = text.index("    def _case_0")
    assert text[start:].splitlines() == [
        "    def _case_0(self, x):",
        "        # relu -> scale",
        "        mul, = fused_0.run(x)",
        "        i0 = torch.ops.aten.i0.default(mul)",
        "        del mul",
        "        t = i0.permute((1, 0))",
        "        return t",
    ]


def test_an_unknown_pattern_is_an_error() -> None:
    with pytest.raises(KeyError):
        composed(BLOCK, [block()], (Choice(pattern="fused_99", point=()),))


def test_a_candidate_is_the_same_every_time() -> None:
    assert composed(MANY, [case(MANY, PAIR, {"more": y})]).id == composed(MANY, [case(MANY, PAIR, {"more": y})]).id
