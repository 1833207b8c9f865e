"""The machine's measurement: looked at in children, kept per device and versions, measured anew where a file is bad."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.edges.gpu import machine as machines
from tilewright.edges.gpu import probe
from tilewright.facts import codec
from tilewright.facts.errors import HarnessError, UserError
from tilewright.facts.machine import Machine

RATES = {
    "processors": 2,
    "cache_bytes": 1 << 20,
    "cache_rate": 200e9,
    "streams": {"copy": 40e9, "sum": 50e9, "add": 70e9},
    "matmul": {"f32": 2e11, "f64": 1e11, "bf16": 0.0},
    "calm": True,
}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Answers of the scripts, told instead of measured; the list holds what was run."""
    ran: list[tuple[str, ...]] = []

    def child(script: str, arguments: tuple[str, ...], **_: Any) -> dict[str, Any]:
        ran.append((script, *arguments))
        if script == "look.py":
            return {"devices": [], "driver": "", "problem": "no NVIDIA driver (libcuda.so.1) found"}
        return RATES

    monkeypatch.setattr(machines, "_child", child)
    return ran


def test_a_second_call_reads_what_the_first_kept(tmp_path: Path, children: list[tuple[str, ...]]) -> None:
    first = machines.machine("cpu", cache_dir=tmp_path / "new")
    assert machines.machine("cpu", cache_dir=tmp_path / "new") == first
    assert [c[0] for c in children] == ["probe.py"]
    assert [p.suffix for p in (tmp_path / "new").iterdir()] == [".json"], "no partial file is left"


def test_the_cpu_ceiling_is_the_best_stream_and_refused_dtypes_are_left_out(
    tmp_path: Path, children: list[tuple[str, ...]]
) -> None:
    found = machines.machine("cpu", cache_dir=tmp_path)
    assert found.copy_bytes_per_s == 70e9
    assert found.matmul_flops_per_s == (("f32", 2e11), ("f64", 1e11))


def _told(monkeypatch: pytest.MonkeyPatch, *said: tuple[float, float, bool]) -> list[str]:
    """What the probe says in turn: bytes/s, flop/s, whether nobody disturbed it; the list holds what was run."""
    ran: list[str] = []
    told = iter(
        RATES | {"streams": {"add": stream}, "matmul": {"f32": flops}, "cache_rate": stream, "calm": calm}
        for stream, flops, calm in said
    )
    monkeypatch.setattr(machines, "_child", lambda script, *_, **__: ran.append(script) or next(told))
    return ran


def test_rates_from_a_busy_machine_are_marked_and_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = _told(monkeypatch, *[(9e9, 2e10, False), (7e9, 3e10, False)] * 3, (8e9, 1e10, True))
    for _ in range(3):
        found = machines.machine("cpu", cache_dir=tmp_path)
        assert found.under_load and (found.copy_bytes_per_s, found.cache_bytes_per_s) == (9e9, 9e9)
        assert dict(found.matmul_flops_per_s) == {"f32": 3e10}, "the best of each rate"
        assert not list(tmp_path.iterdir())
    assert len(ran) == 6
    calm = [machines.machine("cpu", cache_dir=tmp_path) for _ in range(3)]
    assert len(ran) == 7 and not any(m.under_load for m in calm) and calm[0].copy_bytes_per_s == 8e9


def test_a_second_measurement_may_be_the_calm_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = _told(monkeypatch, (9e9, 2e10, False), (7e9, 3e10, True))
    said: list[str] = []
    found = machines.machine("cpu", cache_dir=tmp_path, say=said.append)
    assert [text.partition(" m")[0] for text in said] == ["measuring this", "others have the processors:"]
    assert not found.under_load and machines.machine("cpu", cache_dir=tmp_path, say=said.append) == found
    assert len(ran) == len(said) == 2, "what is kept is not measured, and nothing is said"


def test_a_machine_for_each_target_that_is_here(tmp_path: Path, children: list[tuple[str, ...]]) -> None:
    assert machines.machines(cache_dir=tmp_path) == (machines.machine("cpu", cache_dir=tmp_path),)


def test_fresh_measures_anew(tmp_path: Path, children: list[tuple[str, ...]]) -> None:
    machines.machine("cpu", cache_dir=tmp_path)
    machines.machine("cpu", cache_dir=tmp_path, fresh=True)
    assert len(children) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "machine": {"$": "Nothing"}}', '{"format": 0}', "\0\1"])
def test_a_bad_file_is_measured_anew(tmp_path: Path, children: list[tuple[str, ...]], text: str) -> None:
    first = machines.machine("cpu", cache_dir=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(text)
    assert machines.machine("cpu", cache_dir=tmp_path) == first
    assert len(children) == 2
    assert codec.from_plain(json.loads(kept.read_text())["machine"]) == first, "the file is whole again"


def test_a_file_of_another_device_is_not_used(
    tmp_path: Path, children: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.machine("cpu", cache_dir=tmp_path)
    monkeypatch.setattr(machines, "_cpu_name", lambda: "another processor")
    assert machines.machine("cpu", cache_dir=tmp_path).device.startswith("another processor, ")
    assert len(list(tmp_path.iterdir())) == 2


def test_cuda_asked_for_and_absent_is_the_users_line(tmp_path: Path, children: list[tuple[str, ...]]) -> None:
    with pytest.raises(UserError, match=r"no NVIDIA driver.*--target cpu") as caught:
        machines.machine("cuda", cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert machines.default_target() == "cpu"


def test_a_folder_that_cannot_be_written_is_the_users_line(tmp_path: Path, children: list[tuple[str, ...]]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't keep the measured rates in"):
        machines.machine("cpu", cache_dir=tmp_path / "file")


def test_a_gpu_with_a_torch_that_has_no_cuda_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"name": "NVIDIA H200", "capability": [9, 0], "memory_bytes": 1 << 37, "multiprocessors": 132}
    monkeypatch.setattr(machines, "_child", lambda *_, **__: {"devices": [seen], "driver": "580.65", "problem": ""})
    monkeypatch.setattr(machines, "_torch_build", lambda: ("2.13.0+cpu", ""))
    assert "2.13.0+cpu is a build without CUDA" in machines.look().problem
    assert machines.default_target() == "cpu"
    monkeypatch.setattr(machines, "_torch_build", lambda: ("2.11.0+cu130", "13.0"))
    assert machines.default_target() == "cuda"
    assert machines.look().devices[0].capability == (9, 0)


def test_a_child_that_fails_is_our_fault_and_says_what_it_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text("import sys; sys.exit('out of memory on device 0')")
    (tmp_path / "odd.py").write_text("print('hello')")
    monkeypatch.setattr(machines, "_HERE", tmp_path)
    with pytest.raises(HarnessError, match="out of memory on device 0"):
        machines._child("bad.py", (), timeout_s=20)
    with pytest.raises(HarnessError, match="not a JSON line"):
        machines._child("odd.py", (), timeout_s=20)


def test_looking_imports_no_torch() -> None:
    code = "import sys; from tilewright.edges.gpu.machine import look; look(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=300)


def test_threads_follow_omp_num_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machines.threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
    assert machines.threads() >= 1


@pytest.mark.thorough
@pytest.mark.slow
def test_this_cpu_for_real() -> None:
    found = machines.measure("cpu")
    assert found.target == "cpu" and found.processors == machines.threads()
    assert found.cache_bytes == machines.last_level_cache_bytes() >= 1 << 18
    if found.under_load:
        pytest.skip("others have the processors: rates may be anything")
    assert 1e9 < found.copy_bytes_per_s < 5e12 and found.copy_bytes_per_s / 2 < found.cache_bytes_per_s < 5e13
    rates = dict(found.matmul_flops_per_s)
    assert 1e9 < rates["f64"] < rates["f32"] < 1e15
    assert isinstance(found, Machine) and replace(found, torch="0").key != found.key


@pytest.mark.slow
def test_where_nothing_tells_of_the_cache_it_is_measured() -> None:
    told = machines.last_level_cache_bytes() or (32 << 20)
    assert told // 4 <= probe.measured_cache_bytes() <= 1 << 30


def test_a_cache_that_nobody_tells_of_is_left_to_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines.Path, "glob", lambda self, pattern: iter(()))
    monkeypatch.setattr(machines.os, "sysconf", lambda name: 0)
    assert machines.last_level_cache_bytes() == 0


def test_caches_of_all_core_complexes_that_can_be_used_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu in range(6):
        for index, (level, size, shared) in enumerate(
            ((1, 32, f"{cpu}"), (3, 98304, f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"))
        ):
            place = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            place.mkdir(parents=True)
            for name, text in (("level", level), ("size", f"{size}K"), ("shared_cpu_list", shared)):
                (place / name).write_text(f"{text}\n")
    monkeypatch.setattr(machines, "_PROCESSORS", tmp_path)
    monkeypatch.setattr(machines.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert machines.last_level_cache_bytes() == 2 * 98304 * 1024
