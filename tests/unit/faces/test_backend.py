"""torch.compile(backend="tilewright"): our operators are called, each is held to the reference once, the rest is
Inductor's."""

from __future__ import annotations

import functools
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch._dynamo import list_backends
from torch._dynamo.backends import registry
from torch.profiler import profile

import tilewright.faces.backend as backend
from tilewright.faces.backend import tilewright

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")]

ROOT = Path(__file__).resolve().parents[3]


class Block(nn.Module):
    """Two parts of ours around a product and an operator that no kernel of ours has."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(torch.i0(self.linear(self.norm(x * 2))) * 2 + 1, -1)


class Broken(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        torch._dynamo.graph_break()
        return torch.softmax(x * 3, -1)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, haste: None) -> Iterator[None]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "backend-cache"))
    monkeypatch.setattr(backend, "_said", set())
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def ours(call: Callable[[], Any]) -> list[str]:
    """The operators of ours that a call runs."""
    with profile() as seen:
        call()
    return [event.key for event in seen.key_averages() for _ in range(event.count) if "tilewright::" in event.key]


RANKED = {"tilewright.ranked": True}  # nothing was tuned here


def compiled(module: Any, *, options: dict[str, Any] = RANKED, **how: Any) -> Any:
    return torch.compile(module, backend=tilewright, options=options, **how)


def test_dynamo_finds_it_by_the_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = ["[torch_dynamo_backends]", *(f"{k} = {v}" for k, v in entries["torch_dynamo_backends"].items())]
    installed = tmp_path / "beside-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: beside\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._discover_entrypoint_backends.cache_clear()
    registry._discover_entrypoint_backends()
    assert "tilewright" in list_backends(None)
    assert registry.lookup_backend("tilewright") is tilewright


def test_same_values_by_our_operators() -> None:
    module, x = Block().eval(), torch.randn(8, 64)
    with torch.no_grad():
        fast = compiled(module, fullgraph=True)
        torch.testing.assert_close(fast(x), module(x))
        assert len(ours(lambda: fast(x))) == 2


def test_inductor_knows_which_inputs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a CUDA graph of its would copy the parameters at each call."""
    stay: list[Any] = []
    inductor = backend.inductor

    def looking(gm: Any, *given: Any, **how: Any) -> Any:
        places = gm.graph.find_nodes(op="placeholder")
        stay.append([bool(n.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")) for n in places])
        assert "dynamo_compile_id" in gm.meta and gm._param_name_to_source is not None
        assert all(n._dynamo_source is not None for n in places)
        return inductor(gm, *given, **how)

    monkeypatch.setattr(backend, "inductor", looking)
    with torch.no_grad():
        compiled(Block().eval())(torch.randn(8, 64))
    assert [sum(found) for found in stay] == [4]


def test_another_process_loads_what_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Block().eval(), torch.randn(8, 64)
    with torch.no_grad():
        compiled(module)(x)
        torch._dynamo.reset()
        monkeypatch.setattr(backend, "_models", {})  # as in another process
        monkeypatch.setattr(backend, "compiled_ahead", None)
        monkeypatch.setattr("tilewright.kernels.cpu.build._compile", None)
        fast = compiled(module)
        torch.testing.assert_close(fast(x), module(x))
        assert len(ours(lambda: fast(x))) == 2


def test_breaks_are_dynamos() -> None:
    module, x = Broken().eval(), torch.randn(8, 64)
    with torch.no_grad():
        fast = compiled(module)
        torch.testing.assert_close(fast(x), module(x))
        assert len(ours(lambda: fast(x))) == 3
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(module, fullgraph=True)(x)


def test_any_batch_by_the_same_kernels() -> None:
    module, graphs = Block(48).eval(), []

    def counting(gm: Any, examples: Any) -> Any:
        graphs.append(gm)
        return tilewright(gm, examples, options=RANKED)

    with torch.no_grad():
        fast = torch.compile(module, backend=counting)
        for rows in (5, 48, 9, 33, 2):  # the second is open, and as many as the weights' are
            x = torch.randn(rows, 64)
            torch.testing.assert_close(fast(x), module(x))
            assert len(ours(lambda x=x: fast(x))) == 2
    assert len(graphs) == 2


def test_rows_that_no_kernel_takes_run_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Block().eval()
    made = backend._made

    def few(inputs: Any, *, ranked: bool) -> Any:
        found = made(inputs, ranked=ranked)
        return found and backend._Made(graph=found.graph, takes=[lambda rows: rows < 10], rows=found.rows)

    monkeypatch.setattr(backend, "_made", few)
    with torch.no_grad():
        fast = compiled(module, dynamic=True)
        for rows, count in ((8, 2), (12, 0)):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(fast(x), module(x))
            assert len(ours(lambda x=x: fast(x))) == count


def test_other_open_sizes_are_inductors() -> None:
    def forward(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1)

    with torch.no_grad():
        fast = compiled(forward, dynamic=True)
        for shape in ((3, 5, 7), (4, 6, 9)):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), forward(x))
            assert ours(lambda x=x: fast(x)) == []


def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, loaded = Block().eval(), torch.randn(8, 64), backend.loaded
    spoilt: list[int] = []

    def spoiling(folder: Path, base: type) -> Any:
        model = loaded(folder, base)
        softmax = [f for name, f in vars(model).items() if name.startswith("fused") and "softmax" in f.__doc__]
        for file in softmax:
            file.run = functools.partial(wrong, file.run)
        spoilt.append(len(softmax))
        return model

    monkeypatch.setattr(backend, "loaded", spoiling)
    monkeypatch.setattr(backend, "_models", {})
    with torch.no_grad():
        fast = compiled(module)
        with pytest.warns(RuntimeWarning, match=r"softmax.* is left to Inductor: its error is 0.0001") as told:
            torch.testing.assert_close(fast(x), module(x))
        assert len([w for w in told if w.category is RuntimeWarning]) == 1
        assert len(ours(lambda: fast(x))) == 1 and spoilt == [1, 0]


def wrong(run: Callable[..., tuple[Tensor, ...]], *operands: Tensor) -> tuple[Tensor, ...]:
    return tuple(result * (1 + 1e-4) for result in run(*operands))


def test_a_kernel_that_raises_is_inductors(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Sequential(nn.LayerNorm(48), nn.Softmax(-1)).eval(), torch.randn(8, 48)
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(backend, "_installed", lambda: {"g++": "a broken one"})
    with torch.no_grad():
        fast = compiled(module)
        with pytest.warns(RuntimeWarning, match="can't be run here .BuildError: .*false exited with 1"):
            torch.testing.assert_close(fast(x), module(x))
        assert ours(lambda: fast(x)) == []


def test_without_a_compiler_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_installed", lambda: {"g++": "", "dsl": ""})
    module, x = Broken().eval(), torch.randn(8, 64)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=r"no C\+\+ compiler .*eager mode") as told:
        torch.testing.assert_close(compiled(module)(x), module(x))
    assert len([w for w in told if w.category is RuntimeWarning]) == 1


@pytest.mark.parametrize("why", ["gradient", "autocast", "nothing", "drawn"])
def test_what_is_not_for_us_is_inductors_silently(why: str) -> None:
    module: Any = {"nothing": torch.i0, "drawn": nn.Dropout(0.5)}.get(why, Block().eval())
    x = torch.randn(8, 64)
    with warnings.catch_warnings(), torch.autocast("cpu", enabled=why == "autocast"):
        warnings.simplefilter("error", RuntimeWarning)
        with torch.set_grad_enabled(why == "gradient"):
            fast = compiled(module)
            result = fast(x)
            if why != "drawn":
                torch.testing.assert_close(result, module(x), atol=1e-2, rtol=1e-2)
            assert ours(lambda: fast(x)) == []
    if why == "gradient":
        result.sum().backward()
        assert module.linear.weight.grad is not None


class Counting(nn.Module):
    """Writes to a buffer at each call, and to an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(64))

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        kept.mul_(2)
        self.total.add_(x.sum(0))
        return torch.softmax(x * 2 + self.total, -1)


def test_what_is_written_is_written_once_a_call() -> None:
    slow, quick = Counting(), Counting()
    x, mine, theirs = torch.randn(8, 64), torch.ones(3), torch.ones(3)
    with torch.no_grad():
        fast = compiled(quick)
        for _ in range(3):
            torch.testing.assert_close(fast(x, theirs), slow(x, mine))
        assert ours(lambda: fast(x, theirs)) != []
        slow(x, mine)
    torch.testing.assert_close(quick.total, slow.total)
    torch.testing.assert_close(theirs, mine)


def test_what_other_processes_take_part_in_is_run_no_second_time() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def forward(x: Tensor) -> Tensor:
        return collectives.all_reduce(torch.softmax(x * 2, -1), "sum", list(range(2)))

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with torch.no_grad():
            fast, x = compiled(forward), torch.randn(8, 64)
            torch.testing.assert_close(fast(x), torch.softmax(x * 2, -1))
            assert ours(lambda: fast(x)) == []
    finally:
        distributed.destroy_process_group()


def twice(x: Tensor) -> tuple[Tensor, ...]:
    view = torch.softmax(x * 2, -1).add_(1).t()
    return view, view[0], x.mul_(2)[1:]


def test_results_share_memory_and_lie_there_as_eager_modes_do() -> None:
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    with torch.no_grad():
        fast = compiled(twice)
        for given in (x, y):
            copied = given.clone()
            for got, wanted in zip(fast(given), twice(copied), strict=True):
                torch.testing.assert_close(got, wanted)
                assert got.stride() == wanted.stride()
            torch.testing.assert_close(given, copied)
            whole, first, part = fast(given)
            whole.zero_(), part.zero_()
            assert not first.any() and not given[1:].any() and given[0].any()


def autocast_inside(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.softmax(x * 2, -1) @ x.t()
    return torch.softmax(product.float() * 2, -1)


def test_autocast_inside_of_a_graph() -> None:
    x = torch.randn(64, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(autocast_inside)(x), autocast_inside(x), atol=1e-2, rtol=1e-2)


def with_constants(x: Tensor) -> Tensor:
    return torch.softmax(x * torch.tensor([1.0, 2.0]).sum() + torch.arange(64) * 2, -1)


def test_constants_of_a_graph() -> None:
    x = torch.randn(8, 64)
    with torch.no_grad():
        fast = compiled(with_constants)
        torch.testing.assert_close(fast(x), with_constants(x))
        assert ours(lambda: fast(x)) != []


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


def test_a_library_takes_attention() -> None:
    given = [torch.randn(2, 4, 32, 64) for _ in range(3)]
    with torch.no_grad():
        fast = compiled(attention)
        torch.testing.assert_close(fast(*given), attention(*given))
        assert [name.split("::")[1].split("_")[0] for name in ours(lambda: fast(*given))] == ["library"]


def test_modes_of_inference_and_options() -> None:
    module, x = Block().eval(), torch.randn(8, 64)
    with torch.inference_mode():
        fast = compiled(module, options=RANKED | {"cpp.simdlen": 0})
        torch.testing.assert_close(fast(x), module(x))
        assert len(ours(lambda: fast(x))) == 2
    with torch.no_grad(), pytest.raises(Exception, match="no_such"):
        compiled(nn.Softmax(-1), options={"no_such": 1})(x)
