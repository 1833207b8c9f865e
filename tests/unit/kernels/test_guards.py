"""The guards alone: what they compare without torch's help, what they cost, and that they keep nothing alive."""

from __future__ import annotations

import gc
import pickle
import timeit
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilewright.kernels import guards
from tilewright.kernels.guards import Guard
from tilewright.kernels.survey import GUARD, Survey, difference

x = torch.randn(2, 8)


def ten() -> nn.Sequential:
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*layers, nn.LayerNorm(8), nn.Dropout()).eval()


def guarded(module: nn.Module) -> Guard:
    states = {n: (tuple(p.shape), p.dtype, False) for n, p in module.named_parameters()}
    made = module.__dict__[GUARD] = Guard(module, [states], training=False, device="cpu")
    return made


@pytest.fixture
def unhelped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where torch gives neither its guards nor the versions of dictionaries."""
    monkeypatch.setattr(guards, "_TensorGuards", None)
    monkeypatch.setattr(guards, "_version", None)
    guards._versions_count.cache_clear()
    yield
    guards._versions_count.cache_clear()


@pytest.mark.parametrize("helped", [True, False])
@torch.no_grad()
def test_tensors_are_compared_with_and_without_torchs_guards(helped: bool, request: pytest.FixtureRequest) -> None:
    if not helped:
        request.getfixturevalue("unhelped")
    module = ten()
    guard = guarded(module)
    assert guard.differs(module, 0, x) == "" and guard.fits[0](module.__dict__, x)

    def fits(tensor: Tensor = x) -> bool:
        return guard.fits[0](module.__dict__, tensor)

    for other in (
        x.double(),
        x.to("meta"),
        nn.Parameter(x),
        torch.complex(x, x).conj().imag,
        x.clone().requires_grad_(),
    ):
        assert not fits(other)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fits()
    with torch.enable_grad():
        assert not fits()
    torch.vmap(lambda _: pytest.fail("fits") if fits() else x)(x)
    for change, back in ((nn.Module.half, nn.Module.float), (nn.Module.double, nn.Module.float)):
        change(module[2])
        assert not fits()
        back(module[2])
        assert fits()
    module[0].weight.data = module[0].weight.data[:4].clone()
    assert not fits() and guard.differs(module, 0, x) == "0.weight has another shape"


@torch.no_grad()
def test_hooks_elsewhere_cost_one_look_and_hooks_here_are_seen() -> None:
    module, other = ten(), ten()
    guard = guarded(module)
    guard.differs(module, 0, x)
    fits = guard.fits[0]
    other[0].register_forward_hook(lambda *_: None)
    assert fits(module.__dict__, x) and guard.fits[0] is fits
    handle = module[3].register_forward_pre_hook(lambda *_: None)
    assert not fits(module.__dict__, x) and guard.differs(module, 0, x) == "3 has a hook"
    handle.remove()
    assert guard.differs(module, 0, x) == ""


@torch.no_grad()
def test_it_keeps_neither_its_module_nor_replaced_weights() -> None:
    module: Any = ten()
    guard = guarded(module)
    guard.differs(module, 0, x)
    old = weakref.ref(module[0].weight)
    module[0].weight = nn.Parameter(module[0].weight * 2)
    assert guard.fits[0](module.__dict__, x) and old() is None
    gone = weakref.ref(module)
    gc.disable()
    try:
        del module
        assert gone() is None  # at once: no cycle holds it
    finally:
        gc.enable()


def test_it_travels_by_value() -> None:
    module = ten()
    guard = guarded(module)
    other = pickle.loads(pickle.dumps(guard.__getstate__()))
    assert difference(other[0], Survey(module).facts) == ""
    module[1].inplace = True
    assert difference(other[0], Survey(module).facts) == "1.inplace has changed"


def test_numbers_that_are_equal_and_of_other_types_differ() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale: float = 2

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    module = Scaled()
    before = Survey(module).facts
    module.scale = 2.0
    assert difference(before, Survey(module).facts) == "scale has changed"
    module.scale = True
    assert difference(before, Survey(module).facts) == "scale has changed"


def test_a_call_is_asked_for_in_a_small_part_of_what_it_takes() -> None:
    """Both times are of this process, the least of many: a busy machine slows them alike."""
    module = ten()
    guard = guarded(module)
    with torch.no_grad():
        guard.differs(module, 0, x)
        fits, state = guard.fits[0], module.__dict__
        asked = min(timeit.repeat(lambda: fits(state, x), number=100, repeat=50))
        called = min(timeit.repeat(lambda: module(x), number=10, repeat=50)) * 10
    assert asked < called / 5


class Equal(nn.Module):
    """Says that it equals anything, and reads six attributes, so that a version stands for them."""

    def __init__(self, scale: Any = 1.0) -> None:
        super().__init__()
        self.scale, self.shift, self.low, self.high, self.power, self.note = scale, 0.0, -9.0, 9.0, 1.0, ""

    def forward(self, x: Tensor) -> Tensor:
        return (x**self.power * self.scale + self.shift).clamp(self.low, self.high)

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)


class Always:
    def __eq__(self, other: object) -> bool:
        return True


WRITES: list[tuple[Callable[[Any], Any], bool]] = [
    (lambda m: setattr(m[1], "note", "read by nobody"), True),
    (lambda m: m[1].train() and m[1].eval(), True),
    (lambda m: setattr(m[1], "scale", m[1].scale), True),
    (lambda m: setattr(m[1], "scale", 2.0), False),
    (lambda m: setattr(m[1], "scale", 1), False),
    (lambda m: setattr(m[1], "scale", torch.ones(())), False),
    (lambda m: setattr(m[1], "scale", Always()), False),
    (lambda m: m[1].__dict__.update(high=1.0), False),
    (lambda m: object.__setattr__(m[1], "low", 0.0), False),
    (lambda m: delattr(m[1], "power"), False),
    (lambda m: setattr(m[1], "forward", lambda x: x), False),
    (lambda m: setattr(m[1], "__class__", nn.Identity), False),
    (lambda m: m.__setitem__(1, Equal()), False),
    (lambda m: m._modules.update({"1": Equal(3.0)}), False),
    (lambda m: m._modules.update({"0": m._modules.pop("0")}), False),
    (lambda m: m.append(nn.ReLU()), False),
    (lambda m: m[0].__dict__.update(_parameters=dict(m[0]._parameters)), False),
]


@pytest.mark.parametrize("helped", [True, False])
@pytest.mark.parametrize("write, fits", WRITES)
@torch.no_grad()
def test_what_is_written_is_compared_by_identity(
    write: Callable[[Any], Any], fits: bool, helped: bool, request: pytest.FixtureRequest
) -> None:
    if not helped:
        request.getfixturevalue("unhelped")
    module = nn.Sequential(nn.Linear(8, 8), Equal(), nn.ReLU(), nn.Linear(8, 8)).eval()
    guard = guarded(module)
    assert guard.differs(module, 0, x) == ""
    assert helped == any("dict_version" in getattr(v, "__name__", "") for v in guard.fits[0].__globals__.values())
    for _ in range(3):
        assert guard.fits[0](module.__dict__, x)
    write(module)
    for _ in range(3):
        assert guard.fits[0](module.__dict__, x) == fits


def test_where_versions_do_not_count_writes_each_value_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guards._versions_count()
    guards._versions_count.cache_clear()
    monkeypatch.setattr(guards, "_version", len)  # moves with some of them
    assert not guards._versions_count()
    guards._versions_count.cache_clear()


@torch.no_grad()
def test_what_a_function_closes_over_is_followed() -> None:
    scale = 2.0

    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * scale

    module = Scaled()
    guard = Guard(module, [{}], training=False, device="cpu")
    assert guard.differs(module, 0, x) == "" and guard.fits[0](module.__dict__, x)
    scale = 3.0
    assert not guard.fits[0](module.__dict__, x)
    assert guard.differs(module, 0, x) == "Scaled.forward has changed"


@torch.no_grad()
def test_layers_in_another_order_are_another_module() -> None:
    module = ten()
    guard = guarded(module)
    guard.differs(module, 0, x)
    module._modules["0"] = module._modules.pop("0")
    assert (
        not guard.fits[0](module.__dict__, x) and guard.differs(module, 0, x) == "the order of the modules has changed"
    )


def test_what_code_reads_of_other_files_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = types.ModuleType("settings")
    settings.SCALE, settings.table = 2.0, {"shift": 1.0}

    class Scaled(nn.Module):
        def __getattr__(self, name: str) -> Any:
            return 3.0 if name == "missing" else super().__getattr__(name)

        def forward(self, x: Tensor) -> Any:
            return torch.nn.functional.relu(x) * settings.SCALE + settings.table["shift"] * self.missing

    module = Scaled()
    guard = Guard(module, [{}], training=False, device="cpu")
    changes = (
        ("setitem", settings.table, "shift", 2.0), ("setattr", settings, "SCALE", 5.0),
        ("setattr", torch.nn.functional, "relu", torch.sigmoid),
        ("setattr", Scaled, "__getattr__", nn.Module.__getattr__),
    )  # fmt: skip
    reasons = ("settings.table", "settings.SCALE", "torch.nn.functional.relu", "Scaled.__getattr__")
    for (kind, owner, name, value), reason in zip(changes, reasons, strict=True):
        assert guard.differs(module, 0, x) == "" and guard.fits[0](module.__dict__, x)
        with pytest.MonkeyPatch.context() as patch:
            getattr(patch, kind)(owner, name, value)
            assert not guard.fits[0](module.__dict__, x)
            assert guard.differs(module, 0, x) == f"{reason} has changed"


class _Scale:
    def __init__(self) -> None:
        self.by = 2.0


class _Scaled(nn.Module):
    scale = _Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale.by


def test_an_object_that_a_class_holds_is_watched_and_compared() -> None:
    before = Survey(_Scaled())
    assert (vars(_Scaled.scale), "by", 2.0) in before.watched.same.values()
    _Scaled.scale.by = 3.0
    try:
        assert difference(before.facts, Survey(_Scaled()).facts) == "_Scaled.scale has changed"
    finally:
        _Scaled.scale.by = 2.0
