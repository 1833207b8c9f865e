"""Findings and versions: what is absent is said in one line with the way out, and no torch is imported for it."""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.edges.toolchain import SanitizerFinding, findings, installed, versions
from tilewright.edges.toolchain.findings import _rates
from tilewright.facts.machine import Machine

MACHINE = Machine(
    target="cuda", device="a GPU", driver="580", torch="2", dsl="4", processors=132, cache_bytes=60 << 20,
    copy_bytes_per_s=4.25e12, matmul_flops_per_s=(("bf16", 780e12), ("f32", 51e12)),
)  # fmt: skip


def test_versions_are_those_of_the_installed_packages() -> None:
    found = dict(versions())
    assert list(found) == ["python", "torch", "dsl", "tvm-ffi", "g++", "tilewright", "driver"]
    assert found["python"] == platform.python_version()
    assert found["torch"].partition(".")[0] == "2"


def test_versions_and_findings_import_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tilewright.edges.toolchain import findings, versions; "
        f"versions(); findings(Path({str(tmp_path)!r})); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=300)


def test_every_lack_has_one_line_of_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no command works and no package is found."""
    monkeypatch.setattr(installed, "said", lambda _: "")
    monkeypatch.setattr(installed, "distribution", lambda *_, **__: "")
    monkeypatch.setattr(installed, "driver_version", lambda: "")
    found = {f.name: f for f in findings(tmp_path / "not" / "yet")}
    for name in (
        "GPU",
        "torch",
        "numpy",
        "CuTe DSL",
        "tvm-ffi",
        "C++ compiler",
        "hidden disk",
        "no new privileges",
        "user namespace",
    ):
        assert not found[name].ok, name
    for finding in found.values():
        assert finding.ok == (not finding.advice), finding
        assert "\n" not in finding.advice + finding.value
    assert "OpenMP" not in found, "not tried without a compiler"
    assert not (tmp_path / "not").exists(), "looking makes no folder"


def test_a_machine_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(command: list[str]) -> str:
        return "NVIDIA H200, 143771 MiB, 9.0\nTesla V100, 32768 MiB, 7.0" if command[0] == "nvidia-smi" else ""

    monkeypatch.setattr(installed, "said", said)
    monkeypatch.setattr(installed, "driver_version", lambda: "550.54.15")
    monkeypatch.setattr(installed, "torch_cuda_build", lambda: "")
    monkeypatch.setattr(installed, "cuda_tool", lambda _: None)
    found = {f.name: f for f in findings(tmp_path)}
    assert found["GPU 0"] == SanitizerFinding(name="GPU 0", value="NVIDIA H200, 143771 MiB, compute capability 9.0")
    assert not found["GPU 1"].ok
    assert "driver 580" in found["NVIDIA driver"].advice
    assert "can't use the GPU" in found["torch"].advice
    assert not found["ncu"].ok and "Nsight Compute" in found["ncu"].advice


def test_measured_rates_are_told() -> None:
    bandwidth, matrix = _rates(MACHINE)
    assert bandwidth.value == "4250 GB/s, 60 MiB of last-level cache (cuda: a GPU)"
    assert matrix.value == "TFLOP/s: bf16 780, f32 51 (cuda: a GPU)"


def test_openmp_is_tried_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed.compiler_version():
        pytest.skip("no C++ compiler here")
    assert {f.name: f.ok for f in findings(tmp_path)}["OpenMP"]
    real = installed.said
    monkeypatch.setattr(installed, "said", lambda c: real([w for w in c if w != "-fopenmp"]))
    assert not {f.name: f.ok for f in findings(tmp_path)}["OpenMP"], "without the flag it must be noticed"


def test_a_command_that_fails_says_nothing() -> None:
    assert installed.said(["/no/such/program"]) == ""
    assert installed.said([sys.executable, "-c", "print('x'); raise SystemExit(3)"]) == ""
    assert installed.said([sys.executable, "-c", "print(' x ')"]) == "x"


def test_cuda_tools_are_found_in_their_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "cuobjdump-of-a-test"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert installed.cuda_tool(tool.name) is None, "not executable"
    tool.chmod(0o755)
    assert installed.cuda_tool(tool.name) == tool


def test_languages_are_told_with_what_builds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    languages_there = importlib.import_module("tilewright.edges.toolchain.languages")
    (tmp_path / "include" / "cutlass").mkdir(parents=True)
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    assert languages_there.cutlass_headers() != str(tmp_path / "include")
    (tmp_path / "include" / "cutlass" / "cutlass.h").touch()
    assert languages_there.cutlass_headers() == str(tmp_path / "include")
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.48'\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(languages_there, "cuda_tool", lambda name: nvcc if name == "nvcc" else None)
    monkeypatch.setattr(languages_there, "torch_cuda_build", lambda: "13.0")
    found = dict(languages_there.languages("cuda"))
    assert (
        found.items() >= {"nvcc": "13.0", "cuda": "13.0", "ptx": "13.0", "cutlass-cpp": f"{tmp_path}/include"}.items()
    )
    monkeypatch.setattr(languages_there, "cuda_tool", lambda name: None)
    assert {"nvcc", "cutlass-cpp"}.isdisjoint(dict(languages_there.languages("cuda")))
    assert list(dict(languages_there.languages("cpu"))) == ["cpp"]
