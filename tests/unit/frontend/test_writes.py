"""A forward that writes attributes, globals or containers is found out, and everything is as it was afterwards."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm

from fakes import net
from tilewright.frontend.trace import trace
from tilewright.frontend.writes import written

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]
x = torch.randn(4, 8)
HISTORY: list[Any] = []
TABLES: dict[Any, Tensor] = {}
COUNT = 0


@dataclass(slots=True)
class Slots:
    count: int = 0


class Meter:
    seen = 0

    def __init__(self) -> None:
        self.rows = 4


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = 2.0

    def forward(self, y: Tensor) -> Tensor:
        return y * self.by


class Acting(nn.Module):
    """`act` is what its forward does beside a linear layer."""

    calls = 0
    log: ClassVar[list[Any]] = []

    def __init__(self, act: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.act, self.linear, self.norm = act, nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.n, self.last, self.memo = 0, None, None
        self.seen = {"rows": 4}
        self.sizes, self.kinds = [4], {"a"}
        self.space, self.meter, self.slots = SimpleNamespace(rows=4), Meter(), Slots()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, y: Tensor) -> Tensor:
        y = self.linear(y)
        done = self.act(self, y)
        return done if isinstance(done, Tensor) else y


def count_globally(m: Any, y: Tensor) -> None:
    global COUNT
    COUNT += 1


def count_for_the_class(m: Any, y: Tensor) -> None:
    type(m).calls += 1


def note_in_a_default(m: Any, y: Tensor, noted: Any = []) -> None:  # noqa: B006
    noted.append(y.shape)


def closed_over() -> Callable[[Any, Tensor], Any]:
    count = 0

    def act(m: Any, y: Tensor) -> None:
        nonlocal count
        count += 1

    return act


def of_memo(m: Any, y: Tensor) -> Tensor:
    if m.memo is None:
        m.memo = torch.arange(8.0)
    if y.shape not in TABLES:
        TABLES[y.shape] = torch.ones(8)
    return y * m.memo * TABLES[y.shape]


def in_its_own(m: Any, y: Tensor) -> Tensor:
    made, rows, meter = {}, [y], Meter()
    made["y"], meter.rows = y, 5
    rows.append(y.clone())
    rows[1][:, 0] = 1
    return Doubling()(rows[1])


WRITES: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a tensor": (lambda m, y: setattr(m, "last", y), "self.last"),
    "a count": (lambda m, y: setattr(m, "n", m.n + 1), "self.n"),
    "the same number again": (lambda m, y: setattr(m, "n", 0), "self.n"),
    "around the module's own way": (lambda m, y: object.__setattr__(m, "new", y), "self.new"),
    "in a dict": (lambda m, y: m.seen.update(calls=m.seen.get("calls", 0) + 1), "self.seen['calls']"),
    "the same in a dict": (lambda m, y: m.seen.update(rows=y.shape[0]), "self.seen['rows']"),
    "the same in a list": (lambda m, y: m.sizes.__setitem__(0, y.shape[0]), "self.sizes[0]"),
    "the same in an object": (lambda m, y: setattr(m.space, "rows", y.shape[0]), "self.space.rows"),
    "the same in a helper": (lambda m, y: setattr(m.meter, "rows", y.shape[0]), "self.meter.rows"),
    "slots": (lambda m, y: setattr(m.slots, "count", m.slots.count + 1), "self.slots.count"),
    "a set": (lambda m, y: m.kinds.add(object()), "self.kinds"),
    "a list of the file": (lambda m, y: HISTORY.append(y.mean()), "HISTORY"),
    "a global": (count_globally, "COUNT"),
    "the class": (count_for_the_class, "Acting.calls"),
    "a list of the class": (lambda m, y: m.log.append(y), "Acting.log"),
    "another class": (lambda m, y: setattr(Meter, "seen", Meter.seen + 1), "Meter.seen"),
    "a default": (note_in_a_default, "self.act[0]"),
    "what it closes over": (closed_over(), "self.act[0]"),
    "a tensor that is no buffer": (lambda m, y: setattr(m, "memo", y.sum(0)), "self.memo"),
}
NONE: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda m, y: None,
    "a memo": of_memo,
    "what it made itself": in_its_own,
    "statistics": lambda m, y: m.norm(y),
    "a buffer": lambda m, y: m.total.add_(y.sum(0)) * y,
    "another buffer": lambda m, y: setattr(m, "total", m.total + y.detach().sum(0)),
}


def _state(module: Any) -> Any:
    held = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "act"}
    others = (list(HISTORY), dict(TABLES), COUNT, Acting.calls, list(Acting.log), Meter.seen, vars(module.meter).copy())
    return repr((held, others, dict(module.seen), vars(module.space), sorted(map(str, module.kinds)))), {
        k: v.clone() for k, v in module.state_dict().items()
    }


@pytest.mark.parametrize("name", WRITES)
def test_what_each_call_writes_is_told_and_the_module_stays_torchs(name: str) -> None:
    act, where = WRITES[name]
    module = Acting(act)
    before, tensors = _state(module)
    assert written(module, (x,), {}) == where
    with pytest.raises(ValueError, match="each call writes") as caught:
        trace(module, (x,), {})
    assert where in str(caught.value) and "\n" not in str(caught.value)
    after, same = _state(module)
    assert after == before and all(torch.equal(same[k], v) for k, v in tensors.items())


@pytest.mark.parametrize("name", NONE)
def test_memos_buffers_and_what_a_call_makes_itself_are_no_writes(name: str) -> None:
    module = Acting(NONE[name])
    before, tensors = _state(module)
    assert written(module, (x,), {}) == ""
    after, same = _state(module)
    assert after == before and all(torch.equal(same[k], v) for k, v in tensors.items())


@pytest.mark.parametrize("wrap", [
    lambda m: prune.l1_unstructured(m, "weight", 0.5), spectral_norm, parametrizations.weight_norm,
])  # fmt: skip
def test_weights_that_torch_computes_anew_are_no_writes(wrap: Callable[[Any], Any]) -> None:
    module = Acting(NONE["nothing"])
    wrap(module.linear)
    weight = module.linear.weight
    assert written(module, (x,), {}) == "" and type(module.linear.weight) is type(weight)
    assert not trace(module.eval(), (x,), {}).updates


@pytest.mark.parametrize("act", [WRITES["a tensor"][0], WRITES["a list of the file"][0]])
def test_no_fused_module_is_made_of_one_that_writes(act: Callable[[Any, Tensor], Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each call writes"):
        net.write_fused(tmp_path, Acting(act), (x,))


def test_the_interpreters_own_names_are_left_alone() -> None:
    module = Acting(NONE["nothing"])
    module.memo = {"names": vars(builtins)}  # as the globals of any file have them
    assert written(module, (x,), {}) == "" and len(vars(builtins)) > 100


def test_a_call_that_raises_leaves_everything_as_it_was() -> None:
    def act(m: Any, y: Tensor) -> None:
        HISTORY.append(y)
        m.n = 7
        raise RuntimeError("not today")

    module = Acting(act)
    before, _ = _state(module)
    assert written(module, (x,), {}) == "" and _state(module)[0] == before


@pytest.mark.parametrize("act", [
    lambda m, y: y * m.total.sum().item(), lambda m, y: y * float(m.total.sum()), lambda m, y: y * m.total.tolist()[0],
    lambda m, y: y if m.total.any() else -y,
])  # fmt: skip
def test_a_number_taken_out_of_a_tensor_is_told_in_a_line(
    act: Callable[[Any, Tensor], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="takes a number out of a tensor") as caught:
        trace(Acting(act), (x,), {})
    assert "\n" not in str(caught.value)
    assert "def forward" not in "".join(capfd.readouterr())
