"""What is compiled ahead is what the candidate asks for when it is configured: it then compiles nothing itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import kernel_programs as kp
from fakes.realisers import CPU, H200, cpu, cuda
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Built
from tilewright.facts.pattern import Choice
from tilewright.facts.space import point
from tilewright.judge.build.build import build, compiled_late
from tilewright.judge.client import Cell, CellPlan
from tilewright.run.ahead import compiled_ahead

POINTS = tuple(
    point(grain=16384, stream=stream, unroll=unroll) for stream, unroll in ((False, 1), (True, 1), (False, 2))
)
CHOICES = tuple(Choice(pattern="fused_0", point=p) for p in POINTS)
RUN = """
import fused_0, torch
from tilewright_kernels.cpu import build

def refuse(command):
    raise RuntimeError("it compiles")

build._compile = refuse
x = torch.rand(7, 33)
for stream, unroll in ((False, 1), (True, 1), (False, 2)):
    fused_0.configure(stream=stream, unroll=unroll)
    torch.testing.assert_close(fused_0.run(x)[0], torch.softmax(x, -1))
fused_0.configure(unroll=4)
try:
    fused_0.run(x)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("haste")
def test_the_candidate_finds_what_was_compiled_ahead(tmp_path: Path) -> None:
    program = kp.softmax((7, 33))
    files = (*cpu.skeleton_files([program]), *cpu.render(program, "fused_0", POINTS[0]))
    libraries = compiled_ahead(Candidate(files=files), CHOICES, folder=tmp_path / "libraries", jobs=2, device=CPU)
    assert len(libraries) == 2, "one for each build; `stream` is none"
    for file in files:
        place = tmp_path / "candidate" / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(file.text)
    build = tmp_path / "candidate" / "build"
    build.mkdir()
    for library in libraries:
        (build / library.name).write_bytes(library.read_bytes())
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "candidate")}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "it compiles\n"), done.stderr
    files_of = [library.stat().st_ino for library in libraries]
    again = compiled_ahead(Candidate(files=files), CHOICES, folder=tmp_path / "libraries", jobs=2, device=CPU)
    assert again == libraries and [library.stat().st_ino for library in again] == files_of, "kept from run to run"


IN_CUTE = """
import cutlass.cute as cute
import fused_0, fused_1
from tilewright_kernels.cuda.rows.plan import Gpu

def refuse(*a, **k):
    raise RuntimeError("it compiles")

cute.compile = refuse
device = Gpu(processors=132, arch="sm_90a", shared_bytes=228 << 10, threads=2048)
for fused, knobs in ((fused_0._FUSED, {"unroll": 2}), (fused_1._FUSED, {"tile": "64x64"})):
    fused.configure(**knobs)
    fused.prepare(device)
fused_0._FUSED.configure(unroll=8)
try:
    fused_0._FUSED.prepare(device)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
def test_kernels_for_a_gpu_are_compiled_ahead_without_one(tmp_path: Path) -> None:
    softmax, product = kp.softmax((64, 256)), kp.product(256, 256, 256)
    first, tile = cuda.space(softmax).points[0], dict(cuda.space(product).points[0]) | {"tile": "64x64"}
    files = [*cuda.skeleton_files([softmax, product]), *cuda.render(softmax, "fused_0", first)]
    files += cuda.render(product, "fused_1", point(**tile))
    choices = [Choice(pattern="fused_0", point=point(**dict(first) | {"unroll": u})) for u in (2, 2, 3)]
    choices += [Choice(pattern="fused_1", point=point(**tile))]
    kept = tmp_path / "kept"
    objects = compiled_ahead(
        Candidate(files=tuple(files)), choices, folder=kept, jobs=1, device=H200
    )  # fmt: skip
    assert len(objects) == 3 and all(o.parent == kept and o.is_file() for o in objects), "no unroll of 3 is legal"
    for file in (*files, SourceFile(path="run.py", text=IN_CUTE)):
        place = tmp_path / "candidate" / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(file.text)
    (tmp_path / "candidate" / "build").mkdir()
    for made in objects:
        (tmp_path / "candidate" / "build" / made.name).write_bytes(made.read_bytes())
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path / "candidate", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "it compiles\n"), done.stderr


IN_A_CELL = """
import fused_0, fused_1
from tilewright_kernels.cuda.rows.plan import Gpu

for fused in (fused_0._FUSED, fused_1._FUSED):
    fused.prepare(Gpu(processors=132, arch="sm_90a", shared_bytes=228 << 10, threads=2048))

class ModelNew:
    pass
"""


@pytest.mark.slow
def test_a_cell_compiles_nothing_that_was_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folders are its own, and what the user tells compilers beside it does not reach it."""
    for name, value in (("CUTLASS_PATH", "/opt/cutlass"), ("CUTE_DSL_LINEINFO", "1"), ("CUDA_TOOLKIT_PATH", "/opt/c")):
        monkeypatch.setenv(name, value)
    softmax, product = kp.softmax((64, 256)), kp.product(256, 256, 256)
    points = [cuda.space(program).points[0] for program in (softmax, product)]
    files = [*cuda.skeleton_files([softmax, product]), SourceFile(path="model.py", text=IN_A_CELL)]
    for number, program in enumerate((softmax, product)):
        files += cuda.render(program, f"fused_{number}", points[number])
    candidate = Candidate(files=tuple(files))
    choices = [Choice(pattern=f"fused_{number}", point=at) for number, at in enumerate(points)]
    objects = compiled_ahead(candidate, choices, folder=tmp_path / "kept", jobs=1, device=H200)
    plan = CellPlan(name="candidate", device="cpu", folder=tmp_path / "cell", memory_bytes=3 << 30)
    cell = Cell(plan)
    try:
        built = build(candidate, cell, limit_s=120.0, compiled=objects)
        assert isinstance(built, Built), built
        assert len(objects) == 3 and compiled_late(cell, objects) == 0
    finally:
        cell.close()


def test_what_does_not_compile_is_left_out(tmp_path: Path) -> None:
    broken = Candidate(files=(SourceFile(path="fused_0.cpp", text="int f() { return nothing_of_this_name; }"),))
    assert compiled_ahead(broken, CHOICES, folder=tmp_path, jobs=2, device=CPU) == ()


def test_without_cpp_there_is_nothing_to_do(tmp_path: Path) -> None:
    plain = Candidate(files=(SourceFile(path="model.py", text=""),))
    assert compiled_ahead(plain, CHOICES, folder=tmp_path / "none", jobs=2, device=CPU) == ()
    assert not (tmp_path / "none").exists()
