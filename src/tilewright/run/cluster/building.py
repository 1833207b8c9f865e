"""What a task would compile, compiled before any device is held for it, by whatever processor of a cluster is free."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ...edges.gpu.machine import identity
from ...edges.problems import read_problem
from ...edges.sandbox.offspring import offspring
from ...facts.device import Device
from ...facts.devices import DEVICES, device_of
from ...facts.pattern import Choice
from ...facts.problem import Problem
from ...facts.run import patterns_by_id
from ...judge.evaluate import Judge, JudgeOptions
from ...realise.compose import compose
from ..ahead import compiled_ahead
from ..matching import found_patterns
from ..places import Places
from ..tune_ahead import tune_ahead
from .seat import archived, unpacked
from .task import TaskOrder

_MODULE = "tilewright.faces.building"
_LIMIT_S = 1800.0
_LATER = 10  # niceness: what measures beside it goes first
_SKIPPED = ("--evaluator", "tuning")  # tasks that compile elsewhere, or nothing but what they judge


def is_worth_it(order: TaskOrder) -> bool:
    """Whether the order's task begins with kernels that are known before it begins."""
    return order.verb == "optimize" and order.begun is None and not set(_SKIPPED) & set(order.settings)


def built(order: str, device: str) -> bytes:
    """The kernels of an order, compiled in a process of its own for a device of this name, as an archive; b"" where
    there are none, or the problem can't be traced: the task itself tells why."""
    return _ran("build", device, given=order.encode())


def taken(kernels: bytes) -> None:
    """Put the kernels of such an archive where tasks of this machine's user look for compiled ones."""
    if kernels:
        _ran("take", given=kernels)


def _ran(*arguments: str, given: bytes) -> bytes:
    command = [sys.executable, "-m", _MODULE, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        with offspring(command, polite=True, **pipes) as process:
            made, _ = process.communicate(given, timeout=_LIMIT_S)
            return bytes(made) if process.returncode == 0 else b""
    except subprocess.TimeoutExpired:
        return b""


def kernels_of(order: TaskOrder, device_name: str, *, say: Callable[[str], None]) -> bytes:
    """Raises UserError for a fault of the problem's."""
    device = device_of(identity("cpu")) if order.target == "cpu" else _described(device_name)
    if device is None:
        return b""
    os.nice(_LATER)
    with tempfile.TemporaryDirectory(prefix="tilewright-building-") as temporary:
        file, cache = Path(temporary) / order.file, Path(temporary) / "cache"
        file.write_text(order.source, encoding="utf-8")
        problem = read_problem(file, target=order.target)
        if order.target == "cuda":
            _, folder = tune_ahead(problem, device, cache=cache, say=say)
        else:
            folder = _compiled_for_cpu(problem, device, cache=cache, say=say)
        return archived(folder)


def take(kernels: bytes, folder: Path) -> None:
    """Unpack an archive of kernels into the folder of compiled ones. Raises HarnessError for what is none."""
    folder.mkdir(parents=True, exist_ok=True)
    unpacked(kernels, folder)


def _described(name: str) -> Device | None:
    return next((device for device in DEVICES.values() if device.name == name), None)


def _compiled_for_cpu(problem: Problem, device: Device, *, cache: Path, say: Callable[[str], None]) -> Path:
    """Every point of every pattern, as libraries in the folder that is returned."""
    places = Places(out=cache / "out", cache=cache)
    options = JudgeOptions(compile_baseline=False, algebra=False)
    places.out.mkdir(parents=True)
    with Judge(problem, machine=identity("cpu"), seed=0, workdir=places.out, say=say, options=options) as judge:
        cases = judge.open()
    matched = found_patterns(cases, device, allow_tf32=problem.allow_tf32)
    patterns = patterns_by_id(matched).values()
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in patterns)
    if recipe:
        candidate = compose(problem.source, cases, matched, recipe, device=device)
        choices = [Choice(pattern=p.id, point=point) for p in patterns for point in p.space.points]
        jobs = len(os.sched_getaffinity(0))
        compiled_ahead(candidate, choices, folder=places.libraries, jobs=jobs, device=device)
    return places.libraries
