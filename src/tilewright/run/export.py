"""A candidate as a package of its own: its kernels compiled, its files under one name, and a wheel of that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from shutil import rmtree

from ..edges.wheel import write_wheel
from ..facts.candidate import Candidate
from ..facts.devices import CAPABILITIES, DEVICES
from ..facts.errors import UserError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ABSENT = "tilewright_kernels.absent"
# Takes a candidate's own way to its files out of model.py.
_WAY = re.compile(r"^_HERE = str\(.*?^try:\n(.*?)^finally:\n    sys\.path\.remove\(_HERE\)\n", re.MULTILINE | re.DOTALL)
_COMPILES = re.compile(r"^\s*(?:from|import) (cutlass|triton|nvcc|torch\.utils\.cpp_extension)\b", re.MULTILINE)
_CACHE, _BUILD = "tilewright_kernels/cuda/common/cache.py", "tilewright_kernels/cpu/build.py"
_ONLY_TO_COMPILE = (".cpp", ".h", "cuda/common/ahead.py", "cuda/common/demand.py", "/store.py")
_INDUCTOR = "torch.compile runs what is left to torch: where no compiler is found, that runs in eager mode, counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """`package`: the folder that is imported, `wheel`: the same for pip; `requires`: what must be installed beside;
    `notes`: what else is worth knowing."""

    package: Path
    wheel: Path
    requires: tuple[str, ...]
    notes: tuple[str, ...]


def export(candidate: Candidate, out: Path, *, name: str, version: str = "0", archs: Sequence[str] = ()) -> Exported:
    """Write the package `name` and its wheel into `out`, with all compiled that the candidate would compile where it
    runs: for this machine's processor, or for the GPUs of the architectures, which need not be here. A package of that
    name that lies there is replaced. Raises UserError for what can't be exported."""
    texts = {file.path: file.text for file in candidate.files}
    _check(name, texts)
    devices = _devices(texts, archs)
    package = out / name
    if package.exists() and not (package / "build" / "judged.pkl").exists():
        raise UserError(f"{package}: there, and no exported package; choose another name or folder")
    rmtree(package, ignore_errors=True)
    for path, text in _packaged(texts, name).items():
        _write(package / path, text)
    _compile(texts, package / "build", devices)
    requires = _requires(texts)
    notes = (_INDUCTOR,) if "tilewright_kernels/compiled.py" in texts else ()
    wheel = write_wheel(
        package, out, version=version, requires=requires, python=">=3.11",
        summary="A PyTorch module with compiled kernels of its own, made by Tilewright.",
    )  # fmt: skip
    return Exported(package=package, wheel=wheel, requires=requires, notes=notes)


def _check(name: str, texts: dict[str, str]) -> None:
    taken = {*sys.stdlib_module_names, "torch", "numpy", "tilewright", *(path.split("/")[0] for path in texts)}
    if not _NAME.fullmatch(name) or name in taken:
        raise UserError(
            f"--name {name}: not a name for a package of its own; give small letters, digits and underscores"
        )
    if "original.py" not in texts or not _WAY.search(texts.get("model.py", "")):
        raise UserError(
            "this candidate was not made of Tilewright's patterns, or by another version; only such can be exported"
        )
    if not _kernels(texts) and not any(path.startswith("library_") for path in texts):
        raise UserError("nothing is fused in this candidate: there is nothing to export")
    for path, text in texts.items():
        ours = path.startswith("tilewright_kernels/") or path == "original.py" or _is_fused(path)
        if not ours and (found := _COMPILES.search(text)):
            raise UserError(f"{path}: compiles by {found.group(1)} where it runs; that can't be exported")


def _is_fused(path: str) -> bool:
    return path.startswith("fused_") and path.endswith(".py") and "/" not in path


def _kernels(texts: dict[str, str]) -> list[str]:
    """The files whose kernels are compiled; those of sums belong to them."""
    return [p.removesuffix(".py") for p in texts if re.fullmatch(r"fused_\d+\.py", p)]


def _devices(texts: dict[str, str], archs: Sequence[str]) -> list[dict[str, int | str]]:
    if _CACHE not in texts:
        if archs:
            raise UserError(
                f"--arch {','.join(archs)}: no kernel in it is for a GPU; a CPU's are compiled for this machine"
            )
        return []
    for arch in archs:
        if arch not in CAPABILITIES:
            raise UserError(f"--arch {arch}: not known; there are {', '.join(CAPABILITIES)}")
    wanted = archs or ("sm_90a",)
    found = [d.plan_facts for d in DEVICES.values() if d.target == "cuda" and d.architecture in wanted]
    if lacking := set(wanted) - {str(facts["arch"]) for facts in found}:
        raise UserError(f"--arch {', '.join(sorted(lacking))}: no GPU of it is in the table (facts/devices.py)")
    return [facts for i, facts in enumerate(found) if facts not in found[:i]]


def _packaged(texts: dict[str, str], name: str) -> dict[str, str]:
    """The files of the package: what a candidate compiles with is left out, and what it would load takes its place."""
    ours = files("tilewright.kernels.packaged")
    kept = {path: text for path, text in texts.items() if not path.endswith(_ONLY_TO_COMPILE)}
    replaced = {"__init__.py": "package.py"}
    start = ""
    if _BUILD in kept:
        replaced[_BUILD] = "cpu.py"
    if _CACHE in kept:
        replaced |= {_CACHE: "cuda.py", f"{_ABSENT.replace('.', '/')}.py": "absent.py"}
        replaced["tilewright_kernels/operands.py"] = "operands.py"
        adapted = ["rows"] + ["products"] * ("tilewright_kernels/cuda/gemm/host/fused.py" in texts)
        start = f"\nfrom {name}.tilewright_kernels import operands\n\n"
        start += "".join(f"operands.adapt_{kind}()\n" for kind in adapted)
    found = {path: ours.joinpath(file).read_text(encoding="utf-8") for path, file in replaced.items()}
    found = kept | found
    tops = {path.split("/")[0].removesuffix(".py") for path in kept}
    made = {path: text if path == "original.py" or "_code/" in path else _renamed(text, name, tops)
            for path, text in found.items() if path.endswith(".py")}  # fmt: skip
    made["tilewright_kernels/ops.py"] = made["tilewright_kernels/ops.py"].replace(
        'NAMESPACE = "tilewright"', f'NAMESPACE = "{name}"'
    )
    made["model.py"] = _WAY.sub(lambda way: re.sub("^    ", "", way.group(1), flags=re.MULTILINE), made["model.py"])
    made["model.py"] = made["model.py"].replace("\n_FUSED = {", f"{start}\n_FUSED = {{", 1)
    return made


def _renamed(text: str, name: str, tops: set[str]) -> str:
    """Imports of the candidate's files, and of the DSL, as imports of the package's."""
    names = "|".join(sorted(tops))
    text = re.sub(rf"^(\s*)from ({names})\b", rf"\1from {name}.\2", text, flags=re.MULTILINE)
    text = re.sub(rf"^(\s*)import ({names})$", rf"\1from {name} import \2", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s*)from cutlass[.\w]* import", rf"\1from {name}.{_ABSENT} import", text, flags=re.MULTILINE)
    dotted = rf"\1from {name}.{_ABSENT} import \2 as \3"
    text = re.sub(r"^(\s*)import cutlass[.\w]*\.(\w+) as (\w+)$", dotted, text, flags=re.MULTILINE)
    return re.sub(r"^(\s*)import cutlass$", rf"\1from {name}.{_ABSENT} import cutlass", text, flags=re.MULTILINE)


def _compile(texts: dict[str, str], build: Path, devices: Sequence[dict[str, int | str]]) -> None:
    build.mkdir()
    with tempfile.TemporaryDirectory(prefix="tilewright-export-") as folder:
        for path, text in texts.items():
            _write(Path(folder) / path, text)
        if devices:
            cache = files("tilewright.kernels.packaged").joinpath("cuda.py")
            _write(Path(folder) / _CACHE, cache.read_text(encoding="utf-8"))
        asked = {"candidate": folder, "files": _kernels(texts), "build": str(build.resolve()), "devices": devices}
        command = [sys.executable, "-m", "tilewright.kernels.packaged.compile"]
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"its kernels can't be compiled here: {done.stderr.strip().splitlines()[-1][:600]}")


def _requires(texts: dict[str, str]) -> tuple[str, ...]:
    ffi = metadata.version("apache-tvm-ffi")
    found = ["torch", "numpy", f"apache-tvm-ffi>={ffi},<{_after(ffi)}"]
    found += ["cloudpickle"] if "STRUCTURE = " in texts["original.py"] else []
    return tuple(found)


def _after(version: str) -> str:
    """The next version whose interface may be another."""
    major, minor = version.split(".")[:2]
    return f"{major}.{int(minor) + 1}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
