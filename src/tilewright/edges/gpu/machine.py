"""What this machine is and how fast: measured in child processes, kept as JSON per device and versions."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...facts import codec
from ...facts.errors import HarnessError, UserError
from ...facts.machine import Machine
from ...facts.problem import Target

_HERE = Path(__file__).parent
_FORMAT = 3  # raise it when what is measured, or how, changes: kept files of other formats are measured anew
_MOST_TRIES = 2  # measurements in one call, where others have the CPU; each waits a while for a calm round by itself
_PROCESSORS = Path("/sys/devices/system/cpu")
_LOOK_TIMEOUT_S, _PROBE_TIMEOUT_S = 60.0, 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleDevice:
    """A CUDA device as its driver shows it."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int

    @property
    def architecture(self) -> str:
        """What a compiler calls it, e.g. "sm_90a"."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The CUDA devices that this process would see (`CUDA_VISIBLE_DEVICES` counts), or why it sees none."""

    devices: tuple[VisibleDevice, ...]
    driver: str
    problem: str  # empty where CUDA work can run


def look() -> Sight:
    """Ask the CUDA driver in a child process (about 50 ms without a GPU, a second with one), once in this process;
    torch is not imported."""
    found = _looked(_child, os.environ.get("CUDA_VISIBLE_DEVICES"))
    devices = tuple(
        VisibleDevice(
            name=d["name"], capability=(d["capability"][0], d["capability"][1]), memory_bytes=d["memory_bytes"],
            multiprocessors=d["multiprocessors"],
        )
        for d in found["devices"]
    )  # fmt: skip
    problem = found["problem"]
    if devices and not _torch_build()[1]:
        problem = f"torch {_torch_build()[0]} is a build without CUDA"
    return Sight(devices=devices, driver=found["driver"], problem=problem)


@functools.lru_cache(maxsize=1)
def _looked(child: Callable[..., dict[str, Any]], visible: str | None) -> dict[str, Any]:
    """What the driver tells in a child process, which sees the devices named."""
    return child("look.py", (), timeout_s=_LOOK_TIMEOUT_S)


def default_target() -> Target:
    """The target unless told: "cuda" where a device, its driver and a CUDA build of torch are present, else "cpu"."""
    return "cpu" if look().problem else "cuda"


def machine(
    target: Target, *, cache_dir: Path, fresh: bool = False, say: Callable[[str], object] = lambda text: None
) -> Machine:
    """The machine with its rates, from `cache_dir` where this device, driver and versions were measured before.

    A kept file that can't be read is measured anew. What was measured while other processes kept the CPU busy is
    marked (`under_load`), the best of each rate in a few tries, and never kept: the next call measures again. `say` is
    told of each measurement before it begins. Raises UserError where CUDA is asked for and absent, or where `cache_dir`
    can't be written; HarnessError where the measurement itself fails."""
    here = identity(target)
    path = _path(here, cache_dir)
    kept = None if fresh else _kept(path)
    if kept is not None:
        return kept
    say("measuring this machine, which takes seconds; the rates are kept for later runs")
    measured = _measure(here)
    for _ in range(_MOST_TRIES - 1):
        if not measured.under_load:
            break
        say("others have the processors: measuring again")
        measured = _best(measured, _measure(here))
    if not measured.under_load:
        _keep(measured, path)
    return measured


def known(target: Target, *, cache_dir: Path) -> Machine | None:
    """The machine as it was measured before; None where it has to be measured. UserError where CUDA is absent."""
    return _kept(_path(identity(target), cache_dir))


def machines(*, cache_dir: Path, fresh: bool = False) -> tuple[Machine, ...]:
    """One Machine for each target that this computer has, as `machine` gives it."""
    targets: tuple[Target, ...] = ("cpu",) if default_target() == "cpu" else ("cuda", "cpu")
    return tuple(machine(target, cache_dir=cache_dir, fresh=fresh) for target in targets)


def measure(target: Target) -> Machine:
    """Measure this machine now, in a child process: seconds. Errors as for `machine`."""
    return _measure(identity(target))


def threads() -> int:
    """Threads that CPU work uses: OMP_NUM_THREADS where it is set, at most the processors that this process may use."""
    allowed = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # the cgroup's quota, where there is one
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        allowed = min(allowed, max(1, round(int(quota) / int(period))))
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(allowed, int(asked)) if asked.isdigit() and int(asked) > 0 else allowed


def last_level_cache_bytes() -> int:
    """Bytes of last-level cache that this process's processors reach, summed over those that each has: sysfs, else the
    C library's word; 0 where neither knows."""
    domains: dict[tuple[int, str], int] = {}
    for cpu in os.sched_getaffinity(0):
        for index in (_PROCESSORS / f"cpu{cpu}" / "cache").glob("index*"):
            with suppress(OSError, ValueError):
                level = int((index / "level").read_text())
                size = int((index / "size").read_text().strip().removesuffix("K")) * 1024
                domains[level, (index / "shared_cpu_list").read_text()] = size
    if domains:
        last = max(level for level, _ in domains)
        return sum(size for (level, _), size in domains.items() if level == last)
    names = ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE")
    known = (os.sysconf(n) for n in names if n in os.sysconf_names)
    return next((size for size in known if size > 0), 0)


def identity(target: Target) -> Machine:
    """The machine with no rate known: all that can change a measurement, without importing torch."""
    torch_version, _ = _torch_build()
    blank = Machine(
        target=target, device="", driver="", torch=torch_version, dsl="", processors=0, cache_bytes=0,
        copy_bytes_per_s=0.0, matmul_flops_per_s=(),
    )  # fmt: skip
    if target == "cpu":
        name = f"{_cpu_name()}, {threads()} threads"
        return replace(
            blank, device=name, driver=f"{platform.system()} {platform.release().partition('-')[0]}", dsl=_compiler(),
            processors=threads(), architecture=platform.machine().replace("_", "-"),
        )  # fmt: skip
    sight = look()
    if sight.problem:
        raise UserError(f"target cuda: {sight.problem}; choose --target cpu, or run where torch sees an NVIDIA GPU")
    first = sight.devices[0]
    return replace(
        blank, device=first.name, driver=sight.driver, dsl=_dsl_version(), processors=first.multiprocessors,
        architecture=first.architecture,
    )  # fmt: skip


def _measure(identity: Machine) -> Machine:
    cpu = identity.target == "cpu"
    arguments = ("cpu", str(identity.processors), str(last_level_cache_bytes())) if cpu else ("cuda",)
    environment = {"OMP_NUM_THREADS": str(identity.processors)} if cpu else {}
    found = _child("probe.py", arguments, timeout_s=_PROBE_TIMEOUT_S, environment=environment)
    rates = tuple((name, rate) for name, rate in sorted(found["matmul"].items()) if rate > 0)
    if not rates or not found["streams"]:
        raise HarnessError(f"the {identity.target} probe measured nothing: {found}")
    return replace(
        identity, processors=found["processors"], cache_bytes=found["cache_bytes"],
        copy_bytes_per_s=max(found["streams"].values()), matmul_flops_per_s=rates,
        cache_bytes_per_s=found["cache_rate"], under_load=not found["calm"],
    )  # fmt: skip


def _best(one: Machine, other: Machine) -> Machine:
    """The higher of each rate: they are ceilings, and disturbances only lower them. Measured under load, if both
    were."""
    rates = dict(one.matmul_flops_per_s)
    return replace(
        other,
        copy_bytes_per_s=max(one.copy_bytes_per_s, other.copy_bytes_per_s),
        cache_bytes_per_s=max(one.cache_bytes_per_s, other.cache_bytes_per_s),
        matmul_flops_per_s=tuple((name, max(rate, rates.get(name, 0.0))) for name, rate in other.matmul_flops_per_s),
    )


def _path(here: Machine, cache_dir: Path) -> Path:
    digest = hashlib.sha256(codec.dumps(here).encode()).hexdigest()[:12]
    return cache_dir / f"machine-{here.target}-{digest}.json"


def _kept(path: Path) -> Machine | None:
    """What was measured before, or None where there is nothing that this version can read."""
    try:
        tree = json.loads(path.read_text())
        machine = codec.from_plain(tree["machine"]) if tree["format"] == _FORMAT else None
        if isinstance(machine, Machine) and machine.copy_bytes_per_s > 0:
            return machine
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _keep(measured: Machine, path: Path) -> None:
    tree = {"format": _FORMAT, "machine": codec.to_plain(measured)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(tree, indent=1))
        partial.replace(path)
    except OSError as error:
        message = f"can't keep the measured rates in {path.parent}: {error}; give a folder that can be written"
        raise UserError(message) from None


def _child(
    script: str, arguments: tuple[str, ...], *, timeout_s: float, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run a script beside this file with this interpreter; its last line of output, parsed."""
    command = [sys.executable, "-P", str(_HERE / script), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=os.environ | (environment or {})
        )
        if done.returncode == 0:
            return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{script}: no answer within {timeout_s:.0f} s") from None
    except (ValueError, IndexError):
        raise HarnessError(f"{script}: not a JSON line: {done.stdout[-500:]!r}") from None
    raise HarnessError(
        f"{script} {' '.join(arguments)} ended with code {done.returncode}: {done.stderr[-1500:].strip()}"
    )


@functools.cache
def _torch_build() -> tuple[str, str]:
    """torch's version and the CUDA version that it was built for (empty: none), read from its files."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise UserError("torch is not installed for this Python; install it: pip install torch")
    text = (Path(spec.origin).parent / "version.py").read_text()
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
    return (version[1] if version else importlib.metadata.version("torch"), cuda[1] if cuda else "")


def _dsl_version() -> str:
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return "absent" if importlib.util.find_spec("cutlass") is None else "unknown"


@functools.cache
def _compiler() -> str:
    """The C++ compiler of the CPU target, with its version: it decides as much as the driver does on a GPU."""
    name = os.environ.get("CXX", "g++")
    try:
        done = subprocess.run([*name.split(), "-dumpfullversion"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return f"{name} absent"
    return f"{name} {done.stdout.strip()}"


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
