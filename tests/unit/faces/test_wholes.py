"""Modules as users call them: by name, with containers in and out, and what is refused in one line."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes import net
from fakes.transformer import Output
from tilewright.faces.capture import write_examples
from tilewright.faces.examples import examples_of, module_of
from tilewright.faces.live import fallbacks
from tilewright.faces.trees import trees_of
from tilewright.facts.errors import UserError


@dataclasses.dataclass
class Batch:
    ids: Tensor
    scale: Tensor | None = None


torch.export.register_dataclass(Batch)


@dataclasses.dataclass
class Unknown:
    x: Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Tensor


class Named(nn.Module):
    """The first two arguments may come by position."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        y = torch.tanh(x) * scale
        return y if mask is None else y + mask


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, batch: Batch, cache: dict[str, list[Tensor]], flag: bool = True) -> Output:
        y = torch.tanh(self.fc(batch.ids)) + cache["keys"][0]
        return Output(last=y * batch.scale if batch.scale is not None else y, nothing=None, many=(y, [y + 1]), count=3)


def fused(folder: Path, module: nn.Module, *given: Any) -> Any:
    examples = examples_of(*given)
    return net.fused_as_given(folder, module, examples)


def test_a_call_by_name_or_by_position_stays_fused(tmp_path: Path) -> None:
    x, mask = torch.randn(4, 8), torch.randn(4, 8)
    mine = fused(tmp_path, Named(), (x,), {"mask": mask, "scale": 2.0})
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for result in (
            mine(x, mask=mask, scale=2.0), mine(x=x, mask=mask, scale=2.0), mine(x, mask, scale=2.0),
            mine(scale=2.0, mask=mask, x=x),
        ):  # fmt: skip
            torch.testing.assert_close(result, Named()(x, mask, scale=2.0))
    assert not fallbacks(mine)
    with pytest.warns(RuntimeWarning, match="signature") as told:
        torch.testing.assert_close(mine(x, mask=mask), Named()(x, mask))
    assert told[0].filename == __file__
    assert sum(fallbacks(mine).values()) == 1


def test_arguments_that_are_as_forward_has_them_need_not_be_given(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    mine = fused(tmp_path, Named(), (x,), None)
    with torch.no_grad():
        for result in (mine(x), mine(x, None), mine(x=x, mask=None), mine(x, scale=1.0)):
            torch.testing.assert_close(result, Named()(x))
    assert not fallbacks(mine)
    with pytest.warns(RuntimeWarning):
        torch.testing.assert_close(mine(x, scale=2.0), Named()(x, scale=2.0))


def test_containers_of_classes_go_in_and_come_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Whole()
    batch, cache = Batch(torch.randn(4, 8), torch.randn(8)), {"keys": [torch.randn(4, 8)]}
    mine = fused(tmp_path, whole, (batch,), {"cache": cache})
    assert list(mine.state_dict()) == list(whole.state_dict())
    for one in (mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        with torch.no_grad():
            for found in (one(batch, cache=cache), one(batch, cache), one(cache=cache, batch=batch, flag=True)):
                wanted = whole(batch, cache)
                assert type(found) is Output and list(found) == list(wanted) and found.count == 3
                torch.testing.assert_close(found.many, wanted.many)
                torch.testing.assert_close(found.last, wanted["last"])
        assert not fallbacks(one)
    with torch.no_grad(), pytest.warns(RuntimeWarning) as told:
        found = mine(Batch(torch.randn(4, 8)), cache)
    assert type(found) is Output and told[0].filename == __file__ and sum(fallbacks(mine).values()) == 1


class Bad(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Unknown(x)


class Fills(nn.Module):
    def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        cache["keys"] = x + 1
        return x * 2


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (nn.ReLU(), (3,), "example_inputs: a int; give a tensor, a tuple"),
        (nn.ReLU(), (torch.ones(2), [("x", 1)]), "kwargs: a list"),
        (nn.ReLU(), ({"input": torch.ones(2)}, {"input": torch.ones(2)}), "stands in example_inputs, too"),
        (nn.ReLU(), (torch.ones(2), {"other": 1}), "ReLU.forward does not take the example"),
        (nn.Linear(2, 2, device="meta"), (torch.ones(2),), "meta device"),
        (nn.LazyLinear(2), (torch.ones(2),), "lazy"),
        (torch.relu, (torch.ones(2),), "not an nn.Module"),
        (nn.ReLU(), (torch.ones(2, device="meta"),), "meta device"),
        (Bad(), (torch.ones(2),), r"register_dataclass\(Unknown\)"),
        (nn.ReLU(), ((Slotted(torch.ones(2)),),), r"register_dataclass\(Slotted\)"),
        (nn.ReLU(), ((Unknown(torch.ones(2)),),), "ReLU.forward does not take the example: TypeError"),
        (Fills(), (torch.ones(2), {"cache": {}}), "puts new tensors into an argument"),
    ],
)
def test_what_is_not_taken_is_refused_in_one_line(module: Any, given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as told:
        found, examples = module_of(module), examples_of(*given, *([None] * (2 - len(given))))
        write_examples(found, examples, trees_of(found, examples), tmp_path)
    assert "\n" not in str(told.value)


@pytest.mark.filterwarnings("ignore")
def test_what_torch_compile_wrapped_is_unwrapped() -> None:
    inner = nn.ReLU()
    assert module_of(torch.compile(inner)) is inner


class Positions(nn.Module):
    """A table and a mask that depend on no input, and something to fuse."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(x.shape[1]).cumsum(0)
        rows = torch.arange(4).roll(1)
        far = (places[None] - places[:, None]).abs() < 12
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=far)
        return torch.tanh(y) * 2 + 1, rows[:2]


def test_what_depends_on_no_input_is_made_once(tmp_path: Path) -> None:
    x = torch.randn(2, 6, 8)
    mine = fused(tmp_path, Positions().eval(), (x,))
    text = (tmp_path / "candidate" / "model.py").read_text()
    once = text[text.index("def _once_0") : text.index("Model = globals")]
    assert "cumsum" in once and ".run(" in once and "cumsum" not in text.replace(once, "")
    assert "roll" not in once, "a result is the user's, who may write to it"
    with torch.inference_mode():
        first = mine(x)
    with torch.no_grad():
        second = mine(x)
        second[1].add_(1)
        third = mine(x)
    for found in (first, third):
        torch.testing.assert_close(found, Positions()(x))
    assert not fallbacks(mine)


class Notes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Output:
        self.calls += 1
        return Output(last=self.norm(x))


def test_looking_at_results_leaves_the_module_as_it_was() -> None:
    module, state = Notes(), torch.get_rng_state()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert trees_of(module, examples_of((torch.ones(4, 8),))).result is not None
    assert module.calls == 0 and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_what_is_made_once_is_traced_by_torch_compile(tmp_path: Path) -> None:
    x = torch.randn(2, 6, 8)
    mine = fused(tmp_path, Positions().eval(), (x,))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(mine, fullgraph=True, backend="eager")(x), Positions()(x))
    assert not fallbacks(mine)


@pytest.mark.filterwarnings("ignore")
def test_containers_go_through_torch_compile(tmp_path: Path) -> None:
    whole = Whole()
    batch, cache = Batch(torch.randn(4, 8), torch.randn(8)), {"keys": [torch.randn(4, 8)]}
    mine = fused(tmp_path, whole, (batch,), {"cache": cache})
    with torch.no_grad():
        found = torch.compile(mine, backend="eager")(batch, cache=cache)
        torch.testing.assert_close(found.last, whole(batch, cache).last)
    assert type(found) is Output
