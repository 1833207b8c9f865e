"""What limits a call, and the evidence: by ncu where it may read the counters, else by what the driver tells of
launches and by the machine code. The candidate runs confined, as wherever it runs; nothing of this enters a score."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..edges.sandbox.ncu import Wanted, page, profiled_run
from ..edges.sandbox.under import Ran, run_under
from ..edges.toolchain.installed import cuda_tool
from ..facts.device import Device
from ..facts.devices import device_of
from ..facts.outcome import Failure, Launches
from ..facts.profile import Diagnosis, KernelProfile, Limit, Question
from ..kernels.cuda.common.cubin import cubin_of, taken
from .build.build import lay_out
from .candidate_process.rerun import LISTINGS
from .profile import changes, counters, limits
from .profile.code import SourceCode, mixes
from .profile.counters import Advice, Counted
from .profile.limits import ProfiledCall
from .sanitize import SanitizerJob
from .wire import messages as wire

_PROGRAM, _DISASSEMBLER = "ncu", "nvdisasm"
LARGEST_BYTES = 8 << 30  # of the case's tensors: they are copied to disk and back, and kept while kernels are replayed
LIMIT_S = 120.0  # for one run under the tool
_MOST_CODE = 32
_ASKED: dict[Limit, Question] = {
    "memory": "memory", "cache": "memory", "shared memory": "memory", "spills": "memory", "tensor cores": "compute",
    "arithmetic": "compute",
}  # fmt: skip
_NOT_PERMITTED = re.compile(r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters", re.IGNORECASE)
_ERROR = re.compile(r"==ERROR==\s*(.+)")


@dataclass(frozen=True, slots=True)
class Looked:
    """What one way of looking gave: nothing, and why, or kernels."""

    kernels: tuple[KernelProfile, ...] = ()
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLook:
    """One candidate to be looked at: `reports` is a folder that its process does not write to."""

    job: SanitizerJob
    reports: Path
    question: Question
    say: Callable[[str], None]
    program: tuple[str, ...] = ()  # ncu, as it is called; (): where it is found


def lack(described: wire.Described) -> str:
    """Why no candidate can be run again for a tool; "" where one can."""
    size = described.work.bytes_moved
    return f"not run again for a profile: the case has {size / 2**30:.1f} GiB" if size > LARGEST_BYTES else ""


def diagnosed(
    look: ProfileLook | None, spent: Sequence[wire.SpentClocks], call: ProfiledCall, launches: Launches | None
) -> Diagnosis:
    """Of a call on a GPU, whose launches torch's profiler saw (`spent`). Without a look, from those alone."""
    found = by_counters(look) if look is not None else Looked()
    if found.kernels:
        return changes.diagnosis(found.kernels, call, launches=launches, advice=found.advice, notes=found.notes)
    kernels = by_launches(spent, call)
    code = by_code(look, device_of(call.machine)) if look is not None else Looked()
    notes = (*found.notes, *code.notes)
    return changes.diagnosis((*kernels, *code.kernels), call, launches=launches, notes=notes)


# ---- hardware counters


def by_counters(look: ProfileLook) -> Looked:
    """Every launch in few passes, then the longest in those that its limit asks for."""
    program = look.program or ((str(found),) if (found := cuda_tool(_PROGRAM)) else ())
    if not program:
        return Looked(notes=("ncu was not found: it comes with the CUDA toolkit",))
    refused = lay_out(look.job.candidate, look.job.folder / "candidate")
    if isinstance(refused, Failure):
        return Looked(notes=(refused.summary,))
    report = look.reports / "first.ncu-rep"
    first, why = _launches(look, program, Wanted(sections=counters.FIRST), report)
    if not first:
        return Looked(notes=(why,))
    kernels = [limits.by_counters(alike[0], times=len(alike)) for alike in _alike(first)]
    longest = max(kernels, key=lambda k: k.ns)
    number = max(
        (n for n, launch in enumerate(first) if launch.name == longest.name),
        key=lambda n: first[n].get(limits.DURATION) or 0.0,
    )
    deeper, advice, note = _deeper(look, program, first[number], number=number, known=longest)
    return Looked(
        tuple(deeper if k is longest else k for k in kernels), advice, (note,) if note else ()
    )  # fmt: skip


def _deeper(
    look: ProfileLook, program: Sequence[str], launch: Counted, *, number: int, known: KernelProfile
) -> tuple[KernelProfile, tuple[Advice, ...], str]:
    """The longest kernel once more, with the sections of the question; as it was, with why, where that fails."""
    question = look.question if look.question != "auto" else _ASKED.get(known.limit, "latency")
    report = look.reports / f"{question}.ncu-rep"
    wanted = Wanted(sections=(*counters.FIRST, *counters.MORE[question]), only=number)
    again, why = _launches(look, program, wanted, report)
    if not again or again[0].name != launch.name:
        return known, (), why or "ncu saw another kernel the second time"
    hot = counters.hot_spots(page(program, report, "source"))
    advice = counters.advice(page(program, report, "details"))
    return limits.by_counters(again[0], times=known.times, hot=hot), advice, ""


def _launches(
    look: ProfileLook, program: Sequence[str], wanted: Wanted, report: Path
) -> tuple[tuple[Counted, ...], str]:
    started = time.monotonic()
    ran = profiled_run(program, wanted, look.job.folder, report, setup=look.job.setup, limit_s=LIMIT_S)
    found = counters.counted(page(program, report, "raw")) if report.exists() else ()
    look.say(f"ncu: {len(found)} launch(es), {len(wanted.sections)} sections ({time.monotonic() - started:.1f} s)")
    return found, "" if found else why_not(ran)


def why_not(ran: Ran) -> str:
    """Why ncu counted nothing, in one line."""
    if ran.timed_out:
        return f"ncu took more than {LIMIT_S:.0f} s"
    if _NOT_PERMITTED.search(ran.text):
        return "ncu may not read the counters here (ERR_NVGPUCTRPERM: the administrator can permit it)"
    said = [found[1] for found in _ERROR.finditer(ran.text)]
    last = [line for line in ran.text.splitlines() if line.strip() and not line.startswith("==")][-1:]
    return (
        "ncu: "
        + (said or (["no kernel was launched in the profiled call"] if ran.finished else last or ["?"]))[0][:300]
    )


def _alike(launches: Sequence[Counted]) -> list[list[Counted]]:
    """Launches by kernel and by what they are launched with, the longest of each first."""
    found: dict[object, list[Counted]] = {}
    for launch in launches:
        key = (launch.name, launch.get("launch__grid_size"), launch.get("launch__block_size"))
        found.setdefault(key, []).append(launch)
    return [sorted(group, key=lambda one: -(one.get(limits.DURATION) or 0.0)) for group in found.values()]


# ---- without counters


def by_launches(spent: Sequence[wire.SpentClocks], call: ProfiledCall) -> tuple[KernelProfile, ...]:
    """Kernels as torch's profiler saw them, those of one name and shape together."""
    groups: dict[object, list[wire.SpentClocks]] = {}
    for one in spent:
        groups.setdefault((one.name, one.ctas, one.threads), []).append(one)
    return tuple(limits.by_launches(group, call) for group in groups.values())


def by_code(look: ProfileLook, device: Device) -> Looked:
    """The machine code that the candidate compiles when it is run: what its kernels take, and their instructions where
    nvdisasm is installed."""
    job = look.job
    refused = lay_out(job.candidate, job.folder / "candidate")
    if isinstance(refused, Failure):
        return Looked(notes=(refused.summary,))
    tool = cuda_tool(_DISASSEMBLER)
    kept = job.folder / "kept"
    kept.mkdir(exist_ok=True)
    run_under(
        (), job.folder, setup={**job.setup, "disassembler": str(tool) if tool else ""}, limit_s=LIMIT_S,
        variables={"CUTE_DSL_KEEP": "cubin", "CUTE_DSL_DUMP_DIR": str(kept)},
    )  # fmt: skip
    found = code_in(job.folder)
    note = () if found else ("no machine code was found: of what nvcc builds none is kept apart",)
    return Looked(tuple(limits.by_code(code, device) for code in found), (), note)


def code_in(folder: Path) -> tuple[SourceCode, ...]:
    """The kernels whose machine code lies in a candidate's folder, in cubins and in objects that the DSL exported. What
    is neither is passed over."""
    listings = "\n".join(p.read_text(errors="replace") for p in sorted((folder / LISTINGS).glob("*.sass")))
    mix = mixes(listings)
    found = []
    for path in sorted((*folder.rglob("*.cubin"), *folder.rglob("*.o")))[:_MOST_CODE]:
        try:
            content = path.read_bytes()
            kernels = taken(content if path.suffix == ".cubin" else cubin_of(content))
        except (ValueError, OSError):
            continue
        found += [
            SourceCode(
                name=k.name, registers=k.registers, local_bytes=k.local_bytes, shared_bytes=k.shared_bytes,
                mix=mix.get(k.name, ()),
            )
            for k in kernels
        ]  # fmt: skip
    return tuple(dict.fromkeys(found))
