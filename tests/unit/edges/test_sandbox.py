"""Cells: every way to end is a CellFault, nothing survives, nothing leaks in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.edges.sandbox.environment import cell_environment, common_environment
from tilewright.edges.sandbox.forkserver import Branch, Trunk
from tilewright.edges.sandbox.processes import descendants, held_bytes, private_bytes
from tilewright.facts.errors import HarnessError
from tilewright.judge.client import Cell, CellFault, CellPlan
from tilewright.judge.wire import messages as wire
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    problem = tmp_path / "problem" / "problem.py"
    problem.parent.mkdir()
    problem.write_text("the reference")
    plan = CellPlan(
        name="candidate", device="cpu", folder=tmp_path / "cell", memory_bytes=3 << 30, threads=1,
        hidden=(problem, tmp_path, Path.home()),
    )  # fmt: skip
    with Cell(plan, outer=dict(os.environ) | {"SECRET_API_KEY": "do not pass on"}) as started:
        started.wait_ready()
        yield started
    assert not (tmp_path / "cell").exists()


def _load(cell: Cell, source: str, limit_s: float = 120.0) -> None:
    folder = cell.plan.folder / "candidate"
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(f"{source}\n\nclass ModelNew: pass\n")
    cell.do(wire.LoadCandidate(folder=str(folder), entry="model.py"), limit_s=limit_s)


def _fault(cell: Cell, source: str, limit_s: float = 120.0) -> CellFault:
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
time.sleep(600)
"""
    pid = cell.process.pid
    started = time.monotonic()
    seen: list[int] = []
    original = cell._line._hang

    def look_first(limit_s: float) -> CellFault:
        wait_until(lambda: len(descendants(pid)) > 2)
        seen.extend(descendants(pid)[1:])
        return original(limit_s)

    cell._line._hang = look_first  # type: ignore[method-assign]
    fault = _fault(cell, source, limit_s=2.0)
    assert fault.reason == "hung" and time.monotonic() - started < 300
    assert len(seen) >= 2 and all(_gone(p) for p in seen)


def test_what_a_busy_machine_keeps_from_a_processor_is_given_longer(cell: Cell) -> None:
    """A second of work on a processor that five others are busy on, too: some six seconds, of which those count as the
    cell's own that pass before the first look. Each has a session of its own, as the cell has: a scheduler may share a
    processor out by these."""
    (processor, *_) = os.sched_getaffinity(0)
    others = [subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True) for _ in range(5)]
    try:
        for pid in (cell.process.pid, *(o.pid for o in others)):
            os.sched_setaffinity(pid, {processor})
        started = time.monotonic()
        _load(cell, "import time\nwhile time.thread_time() < 1.0: pass", limit_s=3.0)
        assert time.monotonic() - started > 3.0, "the machine was not busy"
    finally:
        for other in others:
            other.kill()
            other.wait()


def _gone(pid: int) -> bool:
    """Dead, whether or not anybody has asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_a_candidate_imports_is_nothing_to_collect(cell: Cell) -> None:
    _load(cell, "import gc\nbefore = gc.get_freeze_count()\nimported = [[i] for i in range(50_000)]")
    path = cell.plan.folder / "candidate" / "other.py"
    path.write_text("import gc, model\nassert gc.get_freeze_count() - model.before > 50_000\nclass ModelNew: pass\n")
    cell.do(wire.LoadCandidate(folder=str(path.parent), entry="other.py"), limit_s=120.0)


def test_an_orphan_does_not_survive_its_cell(cell: Cell, tmp_path: Path) -> None:
    source = """
import subprocess, os
subprocess.Popen(["setsid", "sleep", "297"])
os._exit(3)
"""
    assert _fault(cell, source).reason == "crashed"
    wait_until(lambda: not _sleeping("297"))


# It hides from the tree, loses its marks, and does not want to die with anybody.
SLIPS_OUT = """
import ctypes, os
prctl = ctypes.CDLL(None).prctl
prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
seen, held = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "296"], {})
    os._exit(0)
prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG
os.close(held)
os.read(seen, 1)  # nothing comes, but its end as soon as the other program runs
"""


def test_nothing_that_keeps_folders_was_imported_before(cell: Cell) -> None:
    """torch._inductor remembers where temporary files lie when it is imported."""
    _load(cell, "import sys\nassert not [m for m in sys.modules if m.startswith('torch._inductor.codecache')]")


def test_who_slips_out_of_the_tree_is_ended(cell: Cell) -> None:
    _load(cell, SLIPS_OUT)
    wait_until(lambda: bool(_sleeping("296")))
    cell.kill()
    wait_until(lambda: not _sleeping("296"))


def test_nothing_outlives_a_judge_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(f"{SLIPS_OUT.replace('296', '295')}\nclass ModelNew: pass\n")
    program = f"""
import os, signal
from pathlib import Path
from tilewright.judge.wire import messages as wire
from tilewright.judge.client import Cell, CellPlan
cell = Cell(CellPlan(name="candidate", device="cpu", folder=Path({str(tmp_path)!r}), memory_bytes=3 << 30))
cell.do(wire.LoadCandidate(folder={str(tmp_path)!r}, entry="model.py"))
print(cell.process.pid, cell.alive, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    judge = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid, alive = judge.stdout.split()
    assert alive == "True" and judge.returncode == -signal.SIGKILL
    wait_until(lambda: _gone(int(pid)) and not _sleeping("295"))


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')")
    plan = CellPlan(name="candidate", device="cpu", folder=tmp_path / "cell", memory_bytes=3 << 30)
    with pytest.raises(HarnessError, match="this torch is broken"):
        Cell(plan, outer=dict(os.environ) | {"PYTHONPATH": str(tmp_path)})


def test_cells_of_a_server_that_died_are_dead_and_the_next_has_a_new_one(cell: Cell, tmp_path: Path) -> None:
    os.kill(int(Path(f"/proc/{cell.process.pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    wait_until(lambda: _gone(cell.process.pid))  # the kernel tells it soon, not at once
    assert _fault(cell, "").reason == "crashed"
    plan = CellPlan(name="next", device="cpu", folder=tmp_path / "next", memory_bytes=3 << 30, threads=1)
    with Cell(plan) as another:
        another.wait_ready()
        assert another.alive


def _sleeping(seconds: str) -> list[str]:
    return [p for p in os.listdir("/proc") if p.isdigit() and _command(p) == f"sleep\0{seconds}\0".encode()]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_megabytes_of_output_are_cut(cell: Cell) -> None:
    fault = _fault(cell, "for i in range(3000): print('x' * 4096)\nraise ValueError('end')")
    assert fault.reason == "does_not_load" and "end" in fault.summary
    assert cell.alive and len(cell.process.tail()) <= 4096


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


@pytest.fixture
def walled(cell: Cell) -> Cell:
    if "hidden disk" not in cell.protections:
        pytest.skip(f"not here: {cell.missing}")
    return cell


def test_the_reference_and_what_is_the_users_cannot_be_read(walled: Cell, tmp_path: Path) -> None:
    places = [tmp_path / "problem" / "problem.py", tmp_path / "problem", tmp_path, Path.home(), Path("/tmp"), Path("/")]
    places += [Path(__file__), Path(wire.__file__)]
    source = f"""
import os
for place in {[str(p) for p in places]}:
    try:
        found = os.listdir(place) if os.path.isdir(place) else open(place).read()
    except PermissionError:
        continue
    raise ValueError(f"read {{place}}: {{found}}")
"""
    _load(walled, source)


def test_tilewright_cannot_be_imported(walled: Cell) -> None:
    """Nor found, here or in a process that is forked or started from here, with or without the environment. What is
    installed is there in all of them."""
    source = """
import os, subprocess, sys
assert not [m for m in sys.modules if m.startswith("tilewright")]
TRIED = "import importlib.util, torch\\nassert importlib.util.find_spec('tilewright') is None\\nimport tilewright.judge"
def refused():
    try:
        exec(TRIED)
    except ModuleNotFoundError as error:
        return error.name
assert refused() == "tilewright"
pid = os.fork()
if pid == 0:
    os._exit(refused() != "tilewright")
assert os.waitpid(pid, 0)[1] == 0
child = subprocess.run([sys.executable, "-c", TRIED], capture_output=True, text=True)
assert "ModuleNotFoundError: No module named 'tilewright'" in child.stderr, child
child = subprocess.run([sys.executable, "-I", "-c", "import tilewright"], capture_output=True, text=True)
assert "ModuleNotFoundError" in child.stderr or "PermissionError" in child.stderr, child
"""
    _load(walled, source)


def test_the_judges_process_is_out_of_reach(walled: Cell) -> None:
    """Its environment, memory, descriptors and folder; and it can't be signalled where Landlock covers that. The same
    is true of the process that forked the cell."""
    for process in (str(os.getpid()), "os.getppid()"):
        _load(walled, _reach_for(process, signals="signals kept in" in walled.protections))


def _reach_for(process: str, *, signals: bool) -> str:
    source = (
        f"judge = {process}"
        + """
import ctypes, os
lib = ctypes.CDLL(None, use_errno=True)
for name in ("environ", "mem", "maps", "auxv"):
    try:
        open(f"/proc/{judge}/{name}", "rb").read(1)
    except OSError:
        continue
    raise ValueError(f"read {name} of the judge")
for number in range(40):
    for place in (f"/proc/{judge}/fd/{number}", f"/proc/{judge}/cwd/x", f"/proc/{judge}/root/./etc/passwd"):
        try:
            os.open(place, os.O_RDWR)
        except OSError:
            continue
        raise ValueError(f"opened {place}")
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
assert lib.process_vm_readv(judge, vector, 1, vector, 1, 0) == -1 and ctypes.get_errno() == 1
assert lib.ptrace(16, judge, None, None) == -1  # PTRACE_ATTACH
assert lib.syscall(438, os.pidfd_open(judge), 1, 0) == -1  # pidfd_getfd
"""
    )
    if signals:
        source += """
try:
    os.kill(judge, 0)
except PermissionError:
    pass
else:
    raise ValueError("the judge can be signalled")
"""
    return source


def test_honest_tools_work_inside(walled: Cell) -> None:
    source = """
import multiprocessing, os, subprocess, tempfile
from multiprocessing import shared_memory
with open("one.cpp", "w") as f:
    f.write("#include <vector>\\nint main() { return std::vector<int>(3).size() - 3; }")
subprocess.run("g++ -fopenmp one.cpp -o one && ./one", shell=True, check=True)
assert multiprocessing.get_context("spawn").Pool(1).map(abs, [-1]) == [1]
block = shared_memory.SharedMemory(create=True, size=100)
block.buf[0] = 1
block.unlink()
with tempfile.NamedTemporaryFile() as f:
    f.write(b"x")
import torch
# Else it tries each instruction set, goes without where that fails, and compiles headers for kernels to come.
trusting = {"cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": False}
assert torch.compile(lambda x: torch.nn.functional.gelu(x) * 2, options=trusting)(torch.zeros(8)).sum() == 0
"""
    _load(walled, source, limit_s=400.0)


def test_nothing_in_shared_memory_outlives_a_cell(cell: Cell, tmp_path: Path) -> None:
    if "private shared memory" not in cell.protections:
        pytest.skip(f"not here: {cell.missing}")
    _load(cell, "open('/dev/shm/tilewright-test', 'w').write('a result')")
    assert not Path("/dev/shm/tilewright-test").exists()


def test_without_namespaces_shared_memory_cannot_be_written(tmp_path: Path) -> None:
    plan = CellPlan(name="candidate", device="cpu", folder=tmp_path, memory_bytes=3 << 30, namespaces=False)
    with Cell(plan) as cell:
        cell.wait_ready()
        if "read-only disk" not in cell.protections:
            pytest.skip(f"not here: {cell.missing}")
        assert "PermissionError" in _fault(cell, "open('/dev/shm/tilewright-test', 'w')").summary


def test_a_cell_for_trusted_code_keeps_its_memory_closed(tmp_path: Path) -> None:
    plan = CellPlan(name="reference", device="cpu", folder=tmp_path, memory_bytes=3 << 30, isolate=False)
    with Cell(plan) as cell:
        cell.wait_ready()
        assert "closed memory" in cell.protections
        assert "hidden disk" not in cell.protections


def test_the_network_is_out_of_reach(cell: Cell) -> None:
    if "network namespace" not in cell.protections:
        pytest.skip(f"not here: {cell.missing}")
    source = "import socket\nassert [n for _, n in socket.if_nameindex()] == ['lo'], socket.if_nameindex()"
    _load(cell, source)


def test_memory_is_limited(tmp_path: Path) -> None:
    with Cell(CellPlan(name="candidate", device="cpu", folder=tmp_path, memory_bytes=1 << 30)) as cell:
        fault = _fault(cell, "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (64 << 20))")
    assert fault.reason == "out_of_memory"


def test_what_children_share_since_a_fork_is_counted_once(cell: Cell) -> None:
    """A GiB and six children that read it: seven times as much where each page counts for each of them."""
    source = """
import os, time
block = bytearray(b"x") * (1 << 30)
for _ in range(6):
    if os.fork() == 0:
        time.sleep(300)
"""
    _load(cell, source)
    wait_until(lambda: len(descendants(cell.process.pid)) == 7)
    assert private_bytes(descendants(cell.process.pid)) > 6 << 30
    assert (1 << 30) < held_bytes(descendants(cell.process.pid)) < 2 << 30
    assert cell.alive


def test_a_crowd_of_processes_is_ended(cell: Cell) -> None:
    """Those that leave the process group too."""
    source = """
import os, time
for number in range(800):
    os.posix_spawn("/bin/sleep", ["sleep", "300"], os.environ, setsid=bool(number % 2))
time.sleep(300)
"""
    fault = _fault(cell, source, limit_s=300.0)
    assert fault.reason == "too_many_processes" and "512 are allowed" in fault.summary
    marker = f"HOME={cell.plan.folder}/".encode()
    assert [p for p in os.listdir("/proc") if p.isdigit() and marker in _environment(p)] == []


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("search", ["gc.get_objects()", "gc.get_referrers(gc)", "sys._current_frames()"])
def test_a_search_for_the_judges_objects_is_refused(cell: Cell, search: str) -> None:
    fault = _fault(cell, f"import gc, sys\n{search}")
    assert fault.reason == "tampering" and search.partition("(")[0] in fault.summary


def test_no_frame_leads_to_the_channel(cell: Cell) -> None:
    source = """
import sys
frame, seen = sys._getframe(), []
while frame is not None:
    seen += list(frame.f_locals.values())
    frame = frame.f_back
for _ in range(3):
    held = [v for s in seen for v in getattr(s, "__dict__", {}).values()]
    seen += [v for v in held if type(v).__module__.startswith("tilewright")]
names = {type(s).__name__ for s in seen}
assert "CandidateSession" in names, "the walk does not reach what it should"
assert not names & {"Channel", "SimpleQueue", "socket"}, names
"""
    _load(cell, source)


def test_what_a_candidate_replaces_is_named(cell: Cell) -> None:
    fault = _fault(cell, "import torch\ntorch.Tensor.copy_ = lambda *given: None")
    assert fault.reason == "tampering" and "torch.Tensor.copy_" in fault.summary


def test_a_mode_left_on_is_refused_and_a_default_device_is_not(cell: Cell) -> None:
    _load(cell, "import torch\ntorch.set_default_device('cpu')")
    source = """
from torch.utils._python_dispatch import TorchDispatchMode
class Watches(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))
Watches().__enter__()
"""
    (cell.plan.folder / "candidate" / "other.py").write_text(f"{source}\nclass ModelNew: pass\n")
    with pytest.raises(CellFault) as caught:
        cell.do(wire.LoadCandidate(folder=str(cell.plan.folder / "candidate"), entry="other.py"))
    assert caught.value.reason == "tampering" and "dispatch mode" in caught.value.summary


def test_memory_is_counted() -> None:
    block = bytearray(b"x") * (64 << 20)
    assert private_bytes([os.getpid()]) > len(block)


def test_only_listed_variables_pass(tmp_path: Path) -> None:
    outer = {"PATH": "/bin", "OPENAI_API_KEY": "k", "PYTHONPATH": "/more"}
    found = cell_environment(tmp_path, common_environment(threads=2, outer=outer))
    assert found["PATH"].endswith(":/bin") and "OPENAI_API_KEY" not in found
    assert found["PYTHONPATH"] == "/more" and found["OMP_NUM_THREADS"] == "2"
    assert Path(found["TMPDIR"]).is_dir()


def test_what_a_branch_of_the_fork_server_printed_is_told_when_it_has_died() -> None:
    environment = common_environment(threads=1, outer=os.environ) | {"PYTHONPROFILEIMPORTTIME": "1"}
    trunk = Trunk(environment)
    try:
        branch = Branch(trunk, environment=environment, imports=("tilewright.judge.reference_process.session",))
        wait_until(lambda: "judge.reference_process" in branch.last_words())
        branch._process.kill()
        with pytest.raises(HarnessError, match=r"judge\.reference_process"):
            branch.start(Path("/"), {}, 0, 1)
        assert not branch.alive and trunk.alive
        branch.close()
    finally:
        trunk.close()
