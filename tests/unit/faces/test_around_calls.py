"""What `optimize` gives, called under modes, transforms and tracers, patched, copied, pickled and by many threads."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fakes import net
from fakes.net import example, made
from fakes.pairs import agree, outcome, since
from tilewright.faces.live import fallbacks, replacement

pytestmark = pytest.mark.filterwarnings("ignore")
x, ids = example()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net.write_fused(tmp_path_factory.mktemp("fused"), made(), example())


@pytest.fixture
def pair(folder: Path) -> tuple[Any, Any]:
    """A replacement, and another module of its own, alike."""
    return replacement(copy.deepcopy(made()), folder), copy.deepcopy(made())


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to call a module. `reason`: a part of the one that is counted; "": the fused call is made."""

    name: str
    call: Callable[[Any], Any]
    reason: str
    seen: bool = True  # where nothing looks for it, results show it, though kernels are interpreted by torch here


class Mine(Tensor):
    pass


class Halving(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made / 2 if func is F.gelu else made


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.ops.aten.gelu.default else made


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def global_hook() -> Iterator[None]:
    handle = hooks.register_module_forward_hook(lambda m, i, o: o * 2 if isinstance(m, nn.GELU) else None)
    try:
        yield
    finally:
        handle.remove()


def under(*contexts: Callable[[], Any]) -> Callable[[Any], Any]:
    def call(module: Any) -> Any:
        with torch.no_grad(), contexts[0]():
            return module(x, ids)

    return call


def quietly(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return torch.no_grad()(call)


def frozen(module: Any) -> Any:
    return module.requires_grad_(False)(x, ids)


def trained(module: Any) -> Any:
    """Gradients of a step under automatic mixed precision."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module.train()(x, ids).float().square().mean()
    loss.backward()
    return [p.grad for p in module.parameters()]


def stepped(module: Any) -> Any:
    module.eval()(x, ids).sum().backward()
    return [p.grad for p in module.parameters()]


def faked(module: Any) -> Any:
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = module(mode.from_tensor(x), mode.from_tensor(ids))
    return tuple(made.shape), made.dtype, type(made).__name__


def swapped(module: Any) -> Any:
    state = {k: v.detach() * 1.5 for k, v in module.named_parameters()}
    return functional_call(module, state, (x, ids))


def replica(module: Any) -> Any:
    """As nn.DataParallel makes them."""
    copies: dict[int, Any] = {}
    for part in module.modules():
        copies[id(part)] = part._replicate_for_data_parallel()
    for part in module.modules():
        for name, child in part._modules.items():
            copies[id(part)]._modules[name] = copies[id(child)]
        for name, parameter in part._parameters.items():
            setattr(copies[id(part)], name, None if parameter is None else parameter.detach() * 1.5)
        for name, buffer in part._buffers.items():
            copies[id(part)]._buffers[name] = buffer
    return copies[id(module)](x, ids)


def compiled(module: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="eager", fullgraph=True)(x, ids)


def exported(module: Any) -> Any:
    return torch.export.export(module, (x, ids)).module()(x, ids)


def after(change: Callable[[Any], Any], call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(module: Any) -> Any:
        change(module)
        return call(module)

    return changed


def identity(module: Any) -> None:
    module.fc = nn.Identity()


WAYS = [
    Way(name="no_grad", call=under(torch.no_grad), reason=""),
    Way(name="inference mode", call=under(torch.inference_mode), reason=""),
    Way(name="a default device", call=under(lambda: torch.device("cpu")), reason=""),
    Way(name="another default device", call=under(lambda: torch.device("meta")), reason="torch function mode"),
    Way(name="frozen, with gradients on", call=frozen, reason=""),
    Way(name="with gradients on", call=lambda m: m(x, ids), reason="a gradient is wanted"),
    Way(name="a step", call=stepped, reason="a gradient is wanted"),
    Way(name="a step of mixed precision", call=trained, reason="no case"),
    Way(name="an argument's gradient", call=lambda m: m.requires_grad_(False)(x.clone().requires_grad_(), ids),
        reason="a gradient", seen=False),
    Way(name="keywords", call=quietly(lambda m: m(x=x, ids=ids)), reason=""),
    Way(name="other rows", call=quietly(lambda m: m(*example(3))), reason="no case"),
    Way(name="doubles", call=quietly(lambda m: m(x.double(), ids)), reason="no case"),
    Way(name="autocast", call=under(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
        reason="torch.autocast is on"),
    Way(name="autocast of another device", call=under(lambda: torch.autocast("cuda")), reason=""),
    Way(name="a function mode", call=under(Halving), reason="torch function mode"),
    Way(name="a dispatch mode", call=under(Doubling), reason="dispatch mode"),
    Way(name="global hooks", call=under(global_hook), reason="global hooks"),
    Way(name="another default dtype", call=under(lambda: default_dtype(torch.float64)),
        reason="the default dtype", seen=False),
    Way(name="a class's forward", call=under(lambda: patched(net.Gate, "forward", lambda s, a: a * 9)),
        reason="Gate.forward"),
    Way(name="torch's class", call=under(lambda: patched(nn.GELU, "forward", lambda s, a: a * 9)),
        reason="GELU.forward"),
    Way(name="the root's class", call=under(lambda: patched(net.Net, "scaled", lambda s, a: a * 9)),
        reason="Net.scaled"),
    Way(name="an attribute of a class", call=under(lambda: patched(net.Gate, "strength", 9.0)), reason="Gate.strength"),
    Way(name="how modules are called",
        call=under(lambda: patched(nn.Module, "__call__", lambda s, *a: s.forward(*a) * 2)),
        reason="Module.__call__"),
    Way(name="a global", call=under(lambda: patched(net, "BIAS", 9.0)), reason="BIAS"),
    Way(name="a function", call=under(lambda: patched(net, "shifted", lambda a: a * 9)), reason="shifted"),
    Way(name="torch's function", call=under(lambda: patched(F, "leaky_relu", lambda a, s: a * 9)), reason="leaky_relu"),
    Way(name="make_fx", call=quietly(lambda m: make_fx(m)(x, ids)(2 * x, ids)), reason="dispatch mode"),
    Way(name="jit.trace", call=quietly(lambda m: torch.jit.trace(m, (x, ids), check_trace=False)(2 * x, ids)),
        reason="jit.trace", seen=False),
    Way(name="export", call=quietly(exported), reason=""),
    Way(name="compiled", call=quietly(compiled), reason=""),
    Way(name="compiled, with gradients on", call=compiled, reason="a gradient", seen=False),
    Way(name="compiled under autocast",
        call=lambda m: under(lambda: torch.autocast("cpu", dtype=torch.bfloat16))(lambda *a: compiled(m)),
        reason="autocast"),
    Way(name="compiled after a change", call=quietly(after(identity, compiled)), reason="fc is a Identity"),
    Way(name="vmap", call=quietly(lambda m: torch.vmap(m)(torch.stack([x, 2 * x]), torch.stack([ids, ids]))),
        reason="torch.func"),
    Way(name="grad", call=lambda m: torch.func.grad(lambda a: m(a, ids).sum())(x), reason="torch.func"),
    Way(name="jvp", call=lambda m: torch.func.jvp(lambda a: m(a, ids), (x,), (x,)), reason="torch.func"),
    Way(name="functional_call", call=quietly(swapped), reason=""),
    Way(name="a replica", call=quietly(replica), reason="second.weight", seen=False),
    Way(name="fake tensors", call=faked, reason="dispatch mode", seen=False),
    Way(name="meta tensors", call=quietly(lambda m: m.to("meta")(x.to("meta"), ids.to("meta"))), reason="no case"),
    Way(name="a subclass", call=quietly(lambda m: m(x.as_subclass(Mine), ids)),
        reason="an argument is a Mine", seen=False),
    Way(name="sparse", call=quietly(lambda m: m(x.to_sparse(), ids)),
        reason="an argument is not a dense tensor", seen=False),
    Way(name="nested", call=quietly(lambda m: m(torch.nested.nested_tensor([x[:2], x[2:]]), ids)), reason="no case"),
    Way(name="a negating view", call=quietly(lambda m: m(torch.complex(x, x).conj().imag, ids)),
        reason="an argument is a view", seen=False),
    Way(name="a zero tensor", call=quietly(lambda m: m(torch._efficientzerotensor(6, 16), ids)),
        reason="without memory", seen=False),
    Way(name="no tensor", call=quietly(lambda m: m("x", ids)), reason="no case"),
    Way(name="too few", call=quietly(lambda m: m(x)), reason="no case"),
    Way(name="strides", call=quietly(lambda m: m(x.t().contiguous().t(), ids)), reason=""),
    Way(name="a parameter", call=quietly(lambda m: m(nn.Parameter(x), ids)), reason=""),
]  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.name)
def test_a_call_gives_what_the_module_gives(pair: tuple[Any, Any], way: Way, warm: bool) -> None:
    mine, theirs = pair
    if warm:
        with torch.no_grad():
            mine(x, ids)
    before = fallbacks(mine)
    torch.manual_seed(4)
    got = outcome(lambda: way.call(mine))
    torch.manual_seed(4)
    wanted = outcome(lambda: way.call(theirs))
    assert agree(got, wanted), (got, wanted)
    counted = since(before, mine)
    assert (len(counted) == 1 and way.reason in next(iter(counted))) if way.reason else not counted, counted
    with torch.no_grad():
        assert agree(*[outcome(lambda module=module: module.eval()(x, ids)) for module in (mine, theirs)])


@pytest.mark.each(3)
@pytest.mark.parametrize("way", [w for w in WAYS if w.seen and w.reason not in ("", "no case")], ids=lambda w: w.name)
def test_unguarded_each_of_these_goes_wrong(pair: tuple[Any, Any], way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = pair
    monkeypatch.setattr(type(mine), "_tilewright_differs", lambda *_: "")
    monkeypatch.setattr(type(mine), "_case_0", inspect.unwrap(vars(type(mine))["_case_0"]))
    got = outcome(lambda: way.call(mine))
    assert not agree(got, outcome(lambda: way.call(theirs)))


def test_compiled_code_follows_what_is_changed_later(pair: tuple[Any, Any]) -> None:
    torch._dynamo.reset()
    mine, theirs = pair
    fast = torch.compile(mine, backend="eager", fullgraph=True)
    with torch.no_grad():
        for change in (
            lambda m: None, lambda m: setattr(m, "scale", 3.0), lambda m: setattr(m, "scale", 1.5),
            lambda m: setattr(m.gate, "slope", -1.0), lambda m: setattr(m, "act", nn.SiLU()),
            lambda m: setattr(m, "fc", nn.Identity()), lambda m: m.bfloat16(),
        ):  # fmt: skip
            change(mine), change(theirs)
            assert agree(outcome(lambda: fast(x, ids)), outcome(lambda: theirs(x, ids)))


LATER: dict[str, Callable[[Any], Any]] = {
    "a dict": lambda m: m.settings.update(gain=2.0),
    "a list": lambda m: m.settings["powers"].append(3),
    "an object": lambda m: setattr(m.config, "floor", 0.1),
    "a method of the instance": lambda m: setattr(m, "scaled", lambda a: a * 9),
    "a method of a layer": lambda m: setattr(m.gate, "forward", lambda a: a * 9),
    "a global": lambda m: setattr(net, "BIAS", 9.0),
    "a function": lambda m: setattr(net, "shifted", lambda a: a * 9),
    "an attribute of a class": lambda m: setattr(net.Gate, "strength", 9.0),
}


@pytest.mark.each(3)
@torch.no_grad()
@pytest.mark.parametrize("change", LATER.values(), ids=LATER)
def test_compiled_code_follows_what_torch_compile_follows(pair: tuple[Any, Any], change: Any) -> None:
    torch._dynamo.reset()
    mine, theirs = pair
    fast = torch.compile(mine, backend="aot_eager", fullgraph=True)
    before, wanted = fallbacks(mine), theirs(x, ids)
    assert agree(fast(x, ids), wanted) and not since(before, mine)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((net, "BIAS"), (net, "shifted"), (net.Gate, "strength")):
            patch.setattr(owner, name, getattr(owner, name))
        change(mine), change(theirs)
        assert agree(fast(x, ids), theirs(x, ids)) and not agree(theirs(x, ids), wanted)
        assert len(since(before, mine)) == 1


@torch.no_grad()
def test_compilers_drop_the_original_that_they_followed(pair: tuple[Any, Any]) -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def noting(graph: torch.fx.GraphModule, given: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    torch.compile(pair[0], backend=aot_autograd(fw_compiler=noting), fullgraph=True)(x, ids)
    assert seen and not any("gelu" in target for target in seen)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(16))

    def forward(self, a: Tensor) -> Tensor:
        self.total += a.sum(0)
        return F.gelu(a) * self.total


@torch.no_grad()
def test_a_module_that_writes_does_it_once_when_compiled(tmp_path: Path) -> None:
    torch._dynamo.reset()
    mine = replacement(Counts(), net.write_fused(tmp_path, Counts(), (x,)))
    theirs, fast = Counts(), torch.compile(mine, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert agree(fast(x), theirs(x)) and agree(mine.total, theirs.total)
    assert len(fallbacks(mine)) == 1 and "writes in place" in next(iter(fallbacks(mine)))
    assert agree(mine(x), theirs(x)) and agree(mine.total, theirs.total) and len(fallbacks(mine)) == 1


@torch.no_grad()
def test_it_is_copied_and_its_copies_go_their_own_ways(pair: tuple[Any, Any]) -> None:
    mine, theirs = pair
    mine(x, ids)
    before = fallbacks(mine)
    other = copy.deepcopy(mine)
    assert type(other) is type(mine) and isinstance(other, net.Net) and other.fc is not mine.fc
    assert agree(other(x, ids), theirs(x, ids)) and not since(before, mine)
    mine.scale = 5.0
    assert agree(other(x, ids), theirs(x, ids)) and not since(before, other)
    third = copy.deepcopy(mine)
    theirs.scale = 5.0
    assert agree(third(x, ids), theirs(x, ids)) and agree(copy.copy(mine)(x, ids), theirs(x, ids))
    assert since(before, mine) == {"scale has changed": 2}
    assert agree(pickle.loads(pickle.dumps(mine))(x, ids), theirs(x, ids)) and since(before, mine) == {
        "scale has changed": 3
    }


OTHER = """
import sys, warnings
sys.path.insert(0, {tests!r})
import torch, tilewright
from fakes.net import example
from fakes.pairs import agree
fast, slow = torch.load({file!r}, weights_only=False)
with warnings.catch_warnings(record=True) as said, torch.no_grad():
    warnings.simplefilter("always")
    assert agree(fast(*example()), slow(*example()))
print(dict(tilewright.fallbacks(fast)), [str(w.message) for w in said if "tilewright" in str(w.message)])
again = torch.load({file!r}, weights_only=False)[0]
"""


def elsewhere(file: Path, cache: Path, *, more: str = "") -> str:
    code = OTHER.format(tests=str(Path(net.__file__).parents[1]), file=str(file)) + more
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"TILEWRIGHT_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin", "HOME": str(cache)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_it_is_saved_and_runs_in_another_process(pair: tuple[Any, Any], tmp_path: Path) -> None:
    mine, theirs = pair
    torch.save((mine, theirs), tmp_path / "both.pt")
    assert elsewhere(tmp_path / "both.pt", tmp_path / "cache").startswith("{} []")
    for module in pair:
        module.act = nn.SiLU()
    torch.save((mine, theirs), tmp_path / "both.pt")
    assert "{'act is a SiLU, not a GELU': 1}" in elsewhere(tmp_path / "both.pt", tmp_path / "cache")


@pytest.mark.few(0)
@pytest.mark.parametrize("broken", ["raise ImportError('no cutlass')", "run = lambda *operands: 1 / 0"])
def test_where_kernels_cannot_be_built_it_says_so_and_runs_the_original(
    folder: Path, tmp_path: Path, broken: str
) -> None:
    """As in a process that lacks what they are built with: their file is another once the module is saved."""
    module = copy.deepcopy(made())
    mine = replacement(module, folder)
    base, files, guard = mine.__reduce_ex__(4)[1]
    files = tuple((path, text + f"\n{broken}\n" if path == "fused_0.py" else text) for path, text in files)
    held = mine.__reduce_ex__

    class Saved:
        def __reduce__(self) -> Any:
            restore, _, state = held(4)
            return restore, (base, files, guard), state

    torch.save((Saved(), module), tmp_path / "both.pt")
    said = elsewhere(tmp_path / "both.pt", tmp_path / "cache")
    assert "its kernels can't be built here" in said and "RuntimeWarning" not in said


def test_threads_count_each_call(pair: tuple[Any, Any]) -> None:
    mine, theirs = pair
    before = fallbacks(mine)
    wanted = [theirs(*example(rows)).detach() for rows in (6, 3)]
    wrong: list[str] = []

    def work() -> None:
        with torch.no_grad():
            for i in range(40):
                if not agree(mine(*example((6, 3)[i % 2])), wanted[i % 2]):
                    wrong.append("other values")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and since(before, mine) == {"no case has this signature": 160}


def test_each_reason_is_warned_of_once_in_a_line_that_names_it_and_the_way_out(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    fast = replacement(module, net.write_fused(tmp_path, module, (torch.randn(3, 4),)))
    with pytest.warns(RuntimeWarning) as said:
        for _ in range(3):
            fast(torch.randn(3, 4))
    (one,) = said
    text = str(one.message)
    assert fallbacks(fast) == {"a gradient is wanted": 3} and "\n" not in text and one.filename == __file__
    assert "a gradient is wanted" in text and "torch.no_grad()" in text
