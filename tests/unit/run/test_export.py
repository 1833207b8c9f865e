"""An exported package stands alone: neither Tilewright, nor the DSL, nor a compiler is there, and it is the module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.command import tilewright
from fakes.composed import all_of, case
from fakes.realisers import CPU, H200, cpu, cuda
from tilewright.edges.wheel import write_wheel
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.facts.gradients import Gradients
from tilewright.facts.pattern import INDUCTOR, Choice
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts
from tilewright.facts.space import point
from tilewright.frontend.trace import trace_training
from tilewright.fusion import match_all
from tilewright.realise.compose import compose
from tilewright.realise.library.table import found as libraries
from tilewright.run.export import Exported, export
from tilewright.run.optimize import write_candidate
from tilewright.run.training import match_training

pytestmark = pytest.mark.usefixtures("haste")

SOURCE = """import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(n), nn.Parameter(torch.rand(n))

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x) * self.scale)


class Model(nn.Module):
    def __init__(self, n, factor=2.0):
        super().__init__()
        self.gate, self.factor = Gate(n), factor

    def forward(self, x):
        return self.gate(x) * self.factor + x


def get_inputs():
    return [torch.randn(24, 96)]


def get_init_inputs(n=96):
    return [n]


CASES = [{}, {"n": 64}]
"""

# Run where the wheel is installed: argument 1 is a folder to write in, 2 whether gradients are the candidate's.
ALONE = """
import copy, importlib.util, os, shutil, sys
assert not [name for name in ("tilewright", "cutlass") if importlib.util.find_spec(name)]
assert shutil.which("g++") is None and shutil.which("gcc") is None and shutil.which("c++") is None
import torch
import gated
from gated import original
folder, training = sys.argv[1], sys.argv[2] == "training"

def near(found, truth):
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)

reference = original.Model(96).train(training)
with torch.no_grad():
    for p in reference.parameters():
        p.add_(torch.randn_like(p) / 8)
x = torch.randn(24, 96)
truth = reference(x).detach()
module = gated.Model(96).train(training)
assert module.state_dict().keys() == reference.state_dict().keys()
module.load_state_dict(reference.state_dict())
shared = gated.load(reference)
assert isinstance(shared, original.Model) and shared.gate.scale is reference.gate.scale
with torch.set_grad_enabled(training):
    for each in (module, shared, copy.deepcopy(module), copy.copy(module)):
        near(each(x), truth)
    torch.save(module, folder + "/module.pt")
    near(torch.load(folder + "/module.pt", weights_only=False)(x), truth)
    near(torch.compile(module, fullgraph=True, backend="aot_eager")(x), truth)
    assert gated.fallbacks() == {}, gated.fallbacks()
if training:
    wanted = torch.autograd.grad(reference(x).square().sum(), reference.gate.scale)
    (found,) = torch.autograd.grad(shared(x).square().sum(), shared.gate.scale)
    torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-4)
else:
    for strict in (False, True):
        with torch.no_grad():
            program = torch.export.export(module, (x,), strict=strict)
        ops = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
        assert [op for op in ops if op.startswith("gated.")], ops
        near(program.module()(x), truth)
    torch.export.save(program, folder + "/program.pt2")
    near(torch.export.load(folder + "/program.pt2").module()(x), truth)
    torch.library.opcheck(next(n.target for n in program.graph.nodes if str(n.target).startswith("gated.")),
                          tuple(torch.randn(m.meta["val"].shape) for n in program.graph.nodes
                                if str(n.target).startswith("gated.") for m in n.args))
    assert gated.fallbacks() == {}, gated.fallbacks()
    near(module(x[:, :].double().float()[:1]), reference(x[:1]))
    assert sum(gated.fallbacks().values()) == 1
gated.load(original.Model(64).train(training))  # of the other case
for make in (gated.Model, lambda *args: gated.load(original.Model(*args).train(training))):
    try:
        make(96, 3.0)
    except ValueError as error:
        assert "factor is another" in str(error), error
    else:
        raise AssertionError("another module was taken")
"""


def _with_default(source: str) -> str:
    return source.replace("def __init__(self, n, factor", "def __init__(self, n=96, factor")


def candidate(*, training: bool) -> Candidate:
    x = torch.randn(24, 96)
    source = _with_default(SOURCE)
    if training:
        facts = training_case(source, (x,), wanted=())
        found = [match_training(facts.graph, unsupported=cpu.unsupported, space=cpu.space, first_id=0,
                                first_segment=0, case=0)]  # fmt: skip
    else:
        facts = case(source, (x,), training=False)
        found = [*match_all([facts.graph], unsupported=cpu.unsupported, space=cpu.space, tiny_bytes=0)]
    return compose(SOURCE, [facts], found, all_of(found), device=CPU)


def training_case(source: str, inputs: Sequence[torch.Tensor], wanted: tuple[int, ...]) -> CaseFacts:
    space: dict[str, Any] = {"__name__": "problem"}
    exec(source, space)
    model = space["Model"]()
    asked = Gradients(outputs=(0,), inputs=wanted, parameters=tuple(n for n, _ in model.named_parameters()))
    graph = trace_training(model, tuple(inputs), {}, list(inputs), asked)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    return CaseFacts(inputs=(), outputs=(), work=work, graph=graph)


def installed(made: Exported, tmp_path: Path) -> Path:
    """The wheel among what it requires, and nothing else of this environment."""
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(made.wheel)], check=True, capture_output=True)
    for folder in Path(sysconfig.get_path("purelib")).iterdir():
        foreign = "cutlass" in folder.name or "tilewright" in folder.name or folder.suffix == ".pth"
        if not foreign and not (target / folder.name).exists():
            (target / folder.name).symlink_to(folder)
    return target


def alone(site: Path, code: str, *args: str, cwd: Path) -> None:
    """Run where no compiler is found."""
    environment = {"PATH": str(cwd / "empty"), "HOME": str(cwd), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys._base_executable, "-S", "-c", code, *args]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.few(0)
@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_the_wheel_of_a_result_runs_with_torch_and_tvm_ffi_alone(tmp_path: Path, training: bool) -> None:
    made = export(candidate(training=training), tmp_path / "out", name="gated")
    alone(installed(made, tmp_path), ALONE, str(tmp_path), "training" if training else "inference", cwd=tmp_path)
    assert made.requires[:2] == ("torch", "numpy") and made.requires[2].startswith("apache-tvm-ffi>=")
    assert not [p for p in made.package.rglob("*") if p.suffix in (".cpp", ".h")]


IN_CUDA = """
import importlib.util, sys
assert not [name for name in ("tilewright", "cutlass") if importlib.util.find_spec(name)]
import torch, tvm_ffi
import gated
gated.Model
from gated.tilewright_kernels.cuda.common.cache import NotExportedError
from gated.tilewright_kernels.cuda.rows.plan import Gpu
files = {m for name, m in sys.modules.items() if name.startswith("gated.fused_") and hasattr(m, "_FUSED")}
assert len(files) == 2, files
gpu = Gpu(processors=132, arch="sm_90a", shared_bytes=228 << 10, threads=2048)
for file in files:
    file._FUSED.prepare(gpu)
    (library,) = file._FUSED.objects
    try:  # it is the function, and it looks at its arguments
        tvm_ffi.load_module(str(library)).get_function("launch")(torch.ones(2))
    except TypeError as error:
        assert "parameters when calling" in str(error), error
rows = next(file._FUSED for file in files if hasattr(file._FUSED, "_walks"))
walks = rows._walks(rows.spec)
rows.launch([w[::-1] for w in walks], [4] * len(walks), gpu)  # copied to lie as was compiled for
try:
    rows.launch(walks, [16] * len(walks), Gpu(processors=99, arch="sm_80", shared_bytes=164 << 10, threads=2048))
except NotExportedError as error:
    assert "was not compiled for this GPU" in str(error), error
else:
    raise AssertionError("there is a launch for another GPU")
x = torch.randn(512, 256, dtype=torch.bfloat16)
assert gated.Model().eval()(x).shape == (512, 1024)  # on a CPU: the original forward
assert sum(gated.fallbacks().values()) == 1
"""
PRODUCT = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n=256):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(n, dtype=torch.bfloat16), nn.Linear(n, 4 * n, dtype=torch.bfloat16)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(self.norm(x)))


def get_init_inputs():
    return []
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_kernels_for_a_gpu_are_loaded_without_the_dsl(tmp_path: Path) -> None:
    """No GPU is needed: planning, which finds each launch by what it was compiled for, runs as it would there."""
    facts = case(PRODUCT, (torch.randn(512, 256, dtype=torch.bfloat16),), training=False)
    found = match_all([facts.graph], unsupported=cuda.unsupported, space=cuda.space, tiny_bytes=0)
    kinds = {p.kind: Choice(pattern=p.id, point=p.space.points[0]) for m in found for p in m.patterns}
    recipe = (kinds["row_reduce"], kinds["product"])
    made = export(compose(PRODUCT, [facts], found, recipe, device=H200), tmp_path, name="gated", archs=("sm_90a",))
    alone(installed(made, tmp_path), IN_CUDA, cwd=tmp_path)
    assert len(list((made.package / "build").glob("*.so"))) == 2
    with pytest.raises(UserError, match="is a product for sm_90a alone: optimise for sm_80 by itself"):
        export(compose(PRODUCT, [facts], found, recipe, device=H200), tmp_path, name="gated", archs=("sm_80",))
    rows = compose(PRODUCT, [facts], found, recipe[:1], device=H200)
    both = export(rows, tmp_path, name="both", archs=("sm_90a", "sm_80"))
    assert len(list((both.package / "build").glob("*.so"))) == 2, "of one kernel, for two GPUs"


CONVOLUTION = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 64, 3, dtype=torch.bfloat16)

    def forward(self, x):
        return torch.relu(self.conv(x)) * 0.5


def get_init_inputs():
    return []
"""
IN_CONVOLUTION = """
import sys
import torch
import convolved
from convolved.tilewright_kernels.cuda.rows.plan import Gpu
convolved.Model
(file,) = {m for name, m in sys.modules.items() if name.startswith("convolved.fused_") and hasattr(m, "_FUSED")}
file._FUSED.prepare(Gpu(processors=132, arch="sm_90a", shared_bytes=228 << 10, threads=2048))
assert len(file._FUSED.objects) == 1 and "cutlass" not in sys.modules
x = torch.randn(8, 32, 40, 40, dtype=torch.bfloat16)
assert convolved.Model().eval()(x).shape == (8, 64, 38, 38)  # on a CPU: the original forward
assert sum(convolved.fallbacks().values()) == 1
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_convolution_is_loaded_without_the_dsl(tmp_path: Path) -> None:
    facts = case(CONVOLUTION, (torch.randn(8, 32, 40, 40, dtype=torch.bfloat16),), training=False)
    found = match_all([facts.graph], unsupported=cuda.unsupported, space=cuda.space, tiny_bytes=0)
    (pattern,) = [p for m in found for p in m.patterns if p.kind == "convolution"]
    recipe = (Choice(pattern=pattern.id, point=pattern.space.points[0]),)
    candidate = compose(CONVOLUTION, [facts], found, recipe, device=H200)
    made = export(candidate, tmp_path, name="convolved", archs=("sm_90a",))
    alone(installed(made, tmp_path), IN_CONVOLUTION, cwd=tmp_path)
    with pytest.raises(UserError, match="for sm_90a alone"):
        export(candidate, tmp_path, name="convolved", archs=("sm_80",))


def test_what_cannot_be_exported_is_refused_in_a_sentence(tmp_path: Path) -> None:
    ours = candidate(training=False)
    for name in ("torch", "Fast", "os", "a-b", "tilewright_kernels"):
        with pytest.raises(UserError, match="not a name for a package of its own"):
            export(ours, tmp_path, name=name)
    with pytest.raises(UserError, match="--arch sm_90a: no kernel in it is for a GPU"):
        export(ours, tmp_path, name="gated", archs=("sm_90a",))
    texts = {file.path: file.text for file in ours.files}
    texts["tilewright_kernels/cuda/common/cache.py"] = ""
    for arch, why in (("sm_1", "not known; there are sm_80"), ("sm_103a", "no GPU of it is in the table")):
        with pytest.raises(UserError, match=f"--arch {arch}: {why}"):
            export(_candidate(texts), tmp_path, name="gated", archs=(arch,))
    triton = {**texts, "library_0.py": "import os\nimport triton\n"}
    with pytest.raises(UserError, match=r"library_0.py: compiles by triton where it runs"):
        export(_candidate(triton), tmp_path, name="gated")
    with pytest.raises(UserError, match="not made of Tilewright's patterns"):
        export(_candidate({"model.py": "class ModelNew: ..."}), tmp_path, name="gated")
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="no exported package"):
        export(ours, tmp_path, name="mine")


@pytest.mark.thorough
@pytest.mark.slow
def test_another_processor_is_told_what_it_lacks(tmp_path: Path) -> None:
    made = export(candidate(training=False), tmp_path, name="gated")
    needed = made.package / "build" / "processor.json"
    needed.write_text(json.dumps([*json.loads(needed.read_text()), "avx1024"]))
    code = "import torch, gated\nwith torch.no_grad(): gated.Model(96).eval()(torch.randn(24, 96))"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "compiled for a processor with avx1024, which this one lacks; export it on a machine like" in done.stderr


PROGRAMS = """
import sys, torch, gated
x = torch.randn(24, 96)
ours, theirs = (torch.export.load(sys.argv[1] + f"/{name}.pt2").module() for name in ("ours", "theirs"))
torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
compiled = torch._inductor.aoti_load_package(sys.argv[1] + "/compiled.pt2")
torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-5, atol=1e-5)
"""
MAKE = """
import sys, torch, gated
from gated import original
reference, x = original.Model(96).eval(), torch.randn(24, 96)
with torch.no_grad():
    ours, theirs = (torch.export.export(m, (x,)) for m in (gated.load(reference), reference))
torch.export.save(ours, sys.argv[1] + "/ours.pt2")
torch.export.save(theirs, sys.argv[1] + "/theirs.pt2")
quick = {"cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": False}
torch._inductor.aoti_compile_and_package(ours, package_path=sys.argv[1] + "/compiled.pt2", inductor_configs=quick)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_programs_made_of_a_package_run_in_another_process_that_imports_it(tmp_path: Path) -> None:
    made = export(candidate(training=False), tmp_path / "out", name="gated")
    environment = os.environ | {"PYTHONPATH": str(made.package.parent)}
    command = [sys.executable, "-c", MAKE, str(tmp_path)]  # AOTInductor needs a compiler
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alone(installed(made, tmp_path), PROGRAMS, str(tmp_path), cwd=tmp_path)


ATTENDS = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n=96):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        q, k, v = self.norm(x).view(2, 12, 3, 32).transpose(1, 2).unbind(1)
        return torch.sort(torch.softmax(q @ k.transpose(-2, -1), -1) @ v).values * 2


def get_init_inputs():
    return []
"""
OTHERS = """
import torch, gated
from gated import original
reference, x = original.Model().eval(), torch.randn(2, 12, 96)
with torch.no_grad():
    torch.testing.assert_close(gated.load(reference)(x), reference(x), rtol=1e-5, atol=1e-5)
(told,) = gated.fallbacks()
assert told.startswith("torch.compile refused it") and "No working C++ compiler" in told, told
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_librarys_calls_are_taken_along_and_what_torch_compile_did_is_counted(tmp_path: Path) -> None:
    facts = case(ATTENDS, (torch.randn(2, 12, 96),), training=False)
    assert facts.graph is not None
    found = match_all([facts.graph], unsupported=cpu.unsupported, space=cpu.space, tiny_bytes=0)
    norm = next(p for m in found for p in m.patterns if p.title.startswith("layer_norm"))
    attention = libraries(facts.graph, CPU).recipe
    recipe = (Choice(pattern=norm.id, point=norm.space.points[0]), *attention)
    recipe = (*recipe, Choice(pattern=INDUCTOR, point=point(mode="default")))
    made = export(compose(ATTENDS, [facts], found, recipe, device=CPU), tmp_path / "out", name="gated")
    assert len(attention) == 1 and (made.package / "library_0_code").is_dir()
    assert len(made.notes) == 1 and "where no compiler is found" in made.notes[0]
    alone(installed(made, tmp_path), OTHERS, cwd=tmp_path)


@pytest.mark.slow
def test_the_command_makes_a_wheel_of_a_run(tmp_path: Path) -> None:
    write_candidate(candidate(training=False), tmp_path / "run" / "candidate")
    told = json.loads(tilewright("export", "run", "--name", "gated", "--version", "1.2", "--json", cwd=tmp_path))
    wheel = tmp_path / told["wheel"]
    assert wheel.parent == tmp_path / "run" / "export" and wheel.name.startswith("gated-1.2-py3-none-")
    assert told["notes"] == [] and (tmp_path / told["package"] / "model.py").is_file()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None and "gated/__init__.py" in archive.namelist()


def _candidate(texts: dict[str, str]) -> Candidate:
    return Candidate(files=tuple(SourceFile(path=path, text=text) for path, text in texts.items()))


def test_a_wheel_lists_what_it_holds(tmp_path: Path) -> None:
    package = tmp_path / "fast"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / "a.pyc").write_bytes(b"x")
    (package / "__init__.py").write_text("A = 1\n")
    made = write_wheel(package, tmp_path, version="1.2", summary="s", requires=("torch",), python=">=3.11")
    again = write_wheel(package, tmp_path, version="1.2", summary="s", requires=("torch",), python=">=3.11")
    assert made.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(made) as archive:
        assert archive.namelist() == [
            "fast/__init__.py",
            *(f"fast-1.2.dist-info/{n}" for n in ("METADATA", "WHEEL", "RECORD")),
        ]
        record = archive.read("fast-1.2.dist-info/RECORD").decode().splitlines()
        assert record[0] == "fast/__init__.py,sha256=Bu289DNhZaJx5lJAJaZDnDyqMkb9B5bxFncieXB6UyU,6" and len(record) == 4
        assert "Requires-Dist: torch\n" in archive.read("fast-1.2.dist-info/METADATA").decode()
