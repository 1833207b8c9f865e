"""Compiled launches on disk: a second process compiles nothing, and what is not as it was written is compiled again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda, gpu

IN_A_PROCESS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
class Never:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tilewright":
            raise ImportError(name)
sys.meta_path.insert(0, Never())
import torch, cutlass.cute as cute
compiled = []
real = cute.compile
cute.compile = lambda *a, **k: compiled.append(1) or real(*a, **k)
import fused_0
from tilewright_kernels.cuda.rows.plan import Gpu
fused = fused_0._FUSED
walks = [(256, 1) for _ in fused.spec.operands]
start = time.process_time()
gpu = Gpu(processors=132, arch="sm_90a", shared_bytes=228 << 10, threads=2048)
launch, kernel = fused.launch(walks, [16] * len(walks), gpu)
took = time.process_time() - start
x = torch.randn(64, 256)
try:
    launch(x, x.clone(), torch.empty(kernel.work_bytes, dtype=torch.uint8))
except Exception as refused:  # what was just compiled for a GPU that isn't there can't even be called
    assert compiled or "device_type=cuda" in str(refused), refused  # it is the function, and it checks its arguments
else:
    raise AssertionError("it took tensors of the CPU")
print(len(compiled), took)
"""


def candidate(folder: Path) -> Path:
    program = kp.softmax((64, 256))
    for file in (*cuda.skeleton_files([program]), *cuda.render(program, "fused_0", cuda.space(program).points[0])):
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_text(file.text)
    return folder


def run(folder: Path) -> tuple[int, float]:
    """How often another process compiled, and its processor time until it had the launch; Tilewright is not there."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", IN_A_PROCESS, str(folder)], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count, seconds = done.stdout.split()[-2:]
    return int(count), float(seconds)


@pytest.mark.slow
def test_a_second_process_compiles_nothing_unless_what_it_finds_is_not_whole(tmp_path: Path) -> None:
    folder = candidate(tmp_path)
    first, second = run(folder), run(folder)
    assert first[0] == 1 and second[0] == 0
    assert second[1] < 1.0, second
    (kept,) = (folder / "build").glob("*.o")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    assert run(folder)[0] == 1, "one bit is another, which the loader does not see"
    assert len(kept.read_bytes()) == len(whole) and kept.read_bytes()[5000] == whole[5000], "and it is mended"


def fused(folder: Path) -> Any:
    return load_fused(kp.softmax((64, 256)), folder)._FUSED


def test_the_key_holds_all_that_can_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fused(tmp_path)
    from tilewright.kernels.cuda.common import cache

    source = tmp_path / "a.py"
    source.write_text("a")
    facts = ([[256, 1]], [16], [("unroll", 4)], gpu())
    seen = [cache.key(source, facts)]
    assert seen[0] and seen[0] == cache.key(source, facts), "and nothing else"
    seen += [cache.key(source, (*facts[:3], gpu(arch="sm_100a")))]
    seen += [cache.key(source, (*facts[:2], [("unroll", 2)], facts[3]))]
    monkeypatch.setenv("CUTE_DSL_KEEP_PTX", "1")
    seen += [cache.key(source, facts)]
    monkeypatch.delenv("CUTE_DSL_KEEP_PTX")
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path))  # of each cell its own
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path))
    assert cache.key(source, facts) == seen[0]
    source.write_text("b")
    seen += [cache.key(source, facts)]
    monkeypatch.setattr(cache, "_toolchain", lambda: "another DSL")
    seen += [cache.key(source, facts)]
    assert len(set(seen)) == len(seen)
    monkeypatch.setattr(cache, "_toolchain", lambda: "")
    assert cache.key(source, facts) == "", "what can't be told from another is not kept"
    assert cache.key(tmp_path / "missing.py", facts) == "" and cache.save(source, "", None) is None


def test_settings_that_a_file_begins_with_are_no_part_of_the_key(tmp_path: Path) -> None:
    """Those in use are among the facts; anything else of the text counts."""
    fused(tmp_path)
    from tilewright.kernels.cuda.common import cache

    source, seen = tmp_path / "a.py", []
    for program in (kp.softmax((64, 256)), kp.product(256, 256, 256)):
        first, *_, last = cuda.space(program).points
        (rendered,) = cuda.render(program, "fused_0", first)
        (other,) = cuda.render(program, "fused_0", last)
        assert rendered.text != other.text
        for text in (rendered.text, other.text, rendered.text.replace("_FUSED = ", "K = 1\n_FUSED = ")):
            source.write_text(text)
            seen.append(cache.key(source, ()))
    assert seen[0] == seen[1] and seen[3] == seen[4] and len(set(seen)) == 4
    written = rendered.text.replace("(SPEC, {", "(SPEC, MINE := {")
    source.write_text(written)
    assert cache.key(source, ()) not in seen, "who writes it otherwise may read it"
    source.write_text(written.replace("'128x128'", "'64x64'"))
    assert cache.key(source, ()) not in seen


def test_it_can_be_switched_off_and_a_failing_export_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused(tmp_path)
    from tilewright.kernels.cuda.common import cache

    class Refuses:
        def export_to_c(self, path: str, name: str) -> None:
            raise RuntimeError("not this one")

    source = tmp_path / "a.py"
    source.write_text("a")
    assert cache.save(source, "key", Refuses()) is None and list((tmp_path / "build").iterdir()) == []
    assert cache.load(source, "key") is None
    (tmp_path / "build" / "key.o").write_text("no object")
    assert cache.load(source, "key") is None and not (tmp_path / "build" / "key.o").exists()
    monkeypatch.setenv(cache.OFF, "1")
    assert cache.key(source, ()) == ""


def test_skeletons_count_for_the_kernels_that_use_them(tmp_path: Path) -> None:
    """Those in the folder of products for these alone: a candidate without any finds what was compiled beside one."""
    fused(tmp_path)
    from tilewright.kernels.cuda.common import cache
    from tilewright.kernels.cuda.gemm.host import launch
    from tilewright.kernels.cuda.gemm.host.fused import DEFAULTS, make_point
    from tilewright.kernels.cuda.gemm.host.kernels import KernelStore
    from tilewright.kernels.cuda.gemm.host.launch import Gemm

    below, here, seen = tmp_path / "cuda" / "gemm", tmp_path / "cuda" / "rows", []
    below.mkdir(parents=True)
    here.mkdir()
    for name, text in (("a.py", "a"), ("demand.py", "a"), ("../gemm/product.py", "a"), ("a.py", "b")):
        (here / name).write_text(text)
        cache.contents.cache_clear()
        seen.append((cache.contents(here), cache.contents(below)))
    (first, nothing), (looked_at, _), (beside, product), (changed, same) = seen
    assert nothing == "", "what can't be read is no key"
    assert first == looked_at == beside != changed and product == same != ""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "contents", lambda folder: f"of {folder.name}")
        assert cache._toolchain.__wrapped__().startswith("of common\nof rows\n")
    gemm = Gemm(make_point(DEFAULTS, scheme="fp16x3"), "f32", store=KernelStore(source=tmp_path / "a.py"))
    skeletons = cache.contents(Path(launch.__file__).parents[1])
    assert gemm.kernels.store.where((1,)) == (tmp_path / "a.py", (1, skeletons)) and skeletons
