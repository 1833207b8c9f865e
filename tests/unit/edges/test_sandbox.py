"""Cells: every way to end is a CellFault, nothing survives, nothing leaks in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.cell import wire
from tilewright.edges.sandbox.cell import Cell, CellFault, CellPlan
from tilewright.edges.sandbox.environment import cell_environment
from tilewright.edges.sandbox.processes import descendants, tree_bytes

pytestmark = pytest.mark.slow


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    plan = CellPlan(name="candidate", device="cpu", folder=tmp_path / "cell", memory_bytes=3 << 30, threads=1)
    with Cell(plan, outer=dict(os.environ) | {"SECRET_API_KEY": "do not pass on"}) as started:
        started.wait_ready()
        yield started
    assert not (tmp_path / "cell").exists()


def _load(cell: Cell, source: str, limit_s: float = 20.0) -> None:
    folder = cell.plan.folder / "candidate"
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(f"{source}\n\nclass ModelNew: pass\n")
    cell.do(wire.LoadCandidate(folder=str(folder), entry="model.py"), limit_s=limit_s)


def _fault(cell: Cell, source: str, limit_s: float = 20.0) -> CellFault:
    with pytest.raises(CellFault) as caught:
        _load(cell, source, limit_s)
    assert caught.value.source == "candidate" and len(caught.value.excerpt) <= 4096
    return caught.value


def test_protections_are_reported(cell: Cell) -> None:
    assert {"dies with the judge", "resource limits", "no new privileges"} <= set(cell.protections)
    assert not set(cell.protections) & {m.split(":")[0] for m in cell.missing}


def test_a_signal_is_a_crash(cell: Cell) -> None:
    fault = _fault(cell, "import ctypes\nctypes.string_at(0)")
    assert fault.reason == "crashed" and "SIGSEGV" in fault.summary
    assert not cell.alive


def test_leaving_without_a_word_is_a_crash(cell: Cell) -> None:
    fault = _fault(cell, "import os\nprint('last words', flush=True)\nos._exit(0)")
    assert fault.reason == "crashed" and "exit code 0" in fault.summary and "last words" in fault.excerpt


def test_what_does_not_answer_is_killed_with_its_children(cell: Cell) -> None:
    source = """
import subprocess, time
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["setsid", "sleep", "300"])
time.sleep(0.3)
time.sleep(600)
"""
    pid = cell._process.pid
    started = time.monotonic()
    seen: list[int] = []
    original = cell._hang

    def look_first(limit_s: float) -> CellFault:
        seen.extend(descendants(pid)[1:])
        return original(limit_s)

    cell._hang = look_first  # type: ignore[method-assign]
    fault = _fault(cell, source, limit_s=2.0)
    assert fault.reason == "hung" and time.monotonic() - started < 15
    assert len(seen) >= 2 and all(not Path(f"/proc/{p}").exists() or _zombie(p) for p in seen)


def _zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_orphan_does_not_survive_its_cell(cell: Cell, tmp_path: Path) -> None:
    source = """
import subprocess, os
subprocess.Popen(["setsid", "sleep", "297"])
os._exit(3)
"""
    assert _fault(cell, source).reason == "crashed"
    time.sleep(0.2)
    living = [p for p in os.listdir("/proc") if p.isdigit() and _command(p) == b"sleep\x00297\x00"]
    assert living == []


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_megabytes_of_output_are_cut(cell: Cell) -> None:
    fault = _fault(cell, "for i in range(3000): print('x' * 4096)\nraise ValueError('end')")
    assert fault.reason == "does_not_load" and "end" in fault.summary
    assert cell.alive and len(cell.tail()) <= 4096


def test_the_environment_is_scrubbed_and_private(cell: Cell) -> None:
    fault = _fault(cell, "import os\nraise ValueError(' '.join(sorted(os.environ)) + '|' + os.environ['HOME'])")
    assert "SECRET" not in fault.summary + fault.excerpt
    assert str(cell.plan.folder) in fault.excerpt


def test_the_disk_outside_is_read_only(cell: Cell, tmp_path: Path) -> None:
    if "read-only disk" not in cell.protections:
        pytest.skip(f"not here: {cell.missing}")
    (tmp_path / "outside.txt").write_text("as it was")
    write = f"open({str(tmp_path / 'outside.txt')!r}, 'w').write('changed')"
    fault = _fault(cell, f"import tempfile\nwith tempfile.NamedTemporaryFile() as f: f.write(b'x')\n{write}")
    assert "PermissionError" in fault.summary and "outside.txt" in fault.summary
    assert (tmp_path / "outside.txt").read_text() == "as it was"


def test_the_network_is_out_of_reach(cell: Cell) -> None:
    if "network namespace" not in cell.protections:
        pytest.skip(f"not here: {cell.missing}")
    source = "import socket\nassert [n for _, n in socket.if_nameindex()] == ['lo'], socket.if_nameindex()"
    _load(cell, source)


def test_memory_is_limited(cell: Cell) -> None:
    fault = _fault(cell, "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (256 << 20))")
    assert fault.reason == "out_of_memory"


def test_memory_of_a_tree_is_counted() -> None:
    block = bytearray(b"x") * (64 << 20)
    assert tree_bytes(os.getpid()) > len(block)


def test_only_listed_variables_pass(tmp_path: Path) -> None:
    found = cell_environment(tmp_path, threads=2, outer={"PATH": "/bin", "OPENAI_API_KEY": "k", "PYTHONPATH": "/more"})
    assert found["PATH"] == "/bin" and "OPENAI_API_KEY" not in found
    assert found["PYTHONPATH"].endswith(":/more") and found["OMP_NUM_THREADS"] == "2"
    assert Path(found["TMPDIR"]).is_dir()
