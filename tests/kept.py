"""Kernels that tests compile are kept between runs, under a digest of all that can change them.

They lie in `tilewright-tests` in this user's cache, or where TILEWRIGHT_TESTS_CACHE says; set to nothing, it keeps
nothing. Each file ends in a digest of its name and content: what was cut short, changed or put under another name is
no kernel, and is compiled again. C++ comes by `cpp_compiler`, a script in the compiler's place; CuTe by `keep_cute`,
which traces every kernel as ever, and looks the lowered MLIR up before it is run through the passes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WHERE = "TILEWRIGHT_TESTS_CACHE"
MOST_BYTES = 1 << 30
_SEEN_BY_COMPILERS = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
)
_SEAL = hashlib.sha256().digest_size
_SCRIPT = """#!{python} -IS
import sys
sys.path.insert(0, {here!r})
import kept
from pathlib import Path
raise SystemExit(kept.compile_cpp({compiler!r}, sys.argv[1:], toolchain={toolchain!r}, folder=Path({folder!r})))
"""


def folder() -> Path | None:
    """Where kernels are kept: a folder of this user's alone, or None where there is none."""
    told = os.environ.get(WHERE)
    if told == "":
        return None
    home = os.environ.get("XDG_CACHE_HOME")
    place = Path(told) if told else (Path(home) if home else Path.home() / ".cache") / "tilewright-tests"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = place.stat()
    except OSError:
        return None
    others_write = state.st_uid != os.getuid() or state.st_mode & 0o022
    return None if others_write or not os.access(place, os.W_OK) else place


def found(place: Path, name: str) -> bytes | None:
    """What is kept under this name, if it is whole; it counts as used."""
    try:
        content = (place / name).read_bytes()
        os.utime(place / name)
    except OSError:
        return None
    body, seal = content[:-_SEAL], content[-_SEAL:]
    return body if seal == _seal(name, body) else None


def keep(place: Path, name: str, content: bytes) -> None:
    """Keep the content under this name, which appears by renaming. Where it can't be written it is not kept."""
    with contextlib.suppress(OSError):
        handle, made = tempfile.mkstemp(dir=place, suffix=".tmp")
        with open(handle, "wb") as file:
            file.write(content + _seal(name, content))
        os.replace(made, place / name)


def prune(place: Path, *, most_bytes: int = MOST_BYTES) -> None:
    """Remove what was not used for longest, until the rest takes no more. Others may do so at once."""
    files = []
    for path in place.iterdir():
        with contextlib.suppress(OSError):
            files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    excess = sum(size for _, size, _ in files) - most_bytes
    for _, size, path in sorted(files):
        if excess > 0:
            path.unlink(missing_ok=True)
            excess -= size


def digest(parts: Sequence[str | bytes]) -> str:
    """A digest of these parts, each by its length, too: no two lists of parts are the same bytes."""
    found = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        found.update(b"%d:" % len(content) + content)
    return found.hexdigest()[:40]


def _seal(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


# ---- C++ -----------------------------------------------------------------------------------------------------------


def cpp_compiler(path: Path, compiler: str, place: Path) -> Path:
    """A script at `path` that compiles as `compiler` does, and keeps the shared libraries that it makes."""
    script = _SCRIPT.format(
        python=sys.executable, here=str(Path(__file__).parent), compiler=compiler, toolchain=_toolchain(compiler),
        folder=str(place),
    )  # fmt: skip
    path.write_text(script)
    path.chmod(0o755)
    return path


def _toolchain(compiler: str) -> str:
    """What compiles, links and runs a library: by content, by version and by the processor it is made for."""
    said = [
        subprocess.run([compiler, o], capture_output=True, check=True).stdout for o in ("--version", "-dumpmachine")
    ]
    inner = subprocess.run([compiler, "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True).stdout
    files = [Path(os.path.realpath(p)) for p in (compiler, inner.strip())]
    processor = sorted(set(Path("/proc/cpuinfo").read_text().splitlines()) & _flags())
    libc = "".join(platform.libc_ver())
    return digest([*said, *(p.read_bytes() for p in files if p.is_file()), *processor, libc, sys.version])


def _flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {line for line in lines if line.startswith(("flags", "model name", "Features", "CPU part", "isa"))}


def compile_cpp(compiler: str, arguments: list[str], *, toolchain: str, folder: Path) -> int:
    """The compiler's exit status; a shared library that was made of the same before is copied in its place."""
    if "-shared" not in arguments or "-o" not in arguments[:-1]:
        return subprocess.run([compiler, *arguments], check=False).returncode
    out = Path(arguments[arguments.index("-o") + 1])
    name = f"{_key(arguments, toolchain)}.so"
    library = found(folder, name)
    if library is not None:
        out.write_bytes(library)
        out.chmod(0o755)
        return 0
    done = subprocess.run([compiler, *arguments], check=False, stderr=subprocess.PIPE)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode == 0 and not done.stderr:  # what it warned of is to be seen each time
        keep(folder, name, out.read_bytes())
    return done.returncode


def _key(arguments: Sequence[str], toolchain: str) -> str:
    """A digest of the toolchain, of the variables that it reads, and of the arguments: files and folders by content."""
    parts: list[str | bytes] = [toolchain, Path(__file__).read_bytes()]
    parts += [f"{name}={os.environ.get(name)}" for name in (*_SEEN_BY_COMPILERS, "TESTS_IN_HASTE")]
    skipped = arguments.index("-o")
    for number, argument in enumerate(arguments):
        if number == skipped + 1:
            continue
        if argument.startswith("-I"):
            parts += ["-I", *_headers(Path(argument[2:]), "*")]
        elif argument.startswith("-L"):
            parts += ["-L", *(p.read_bytes() for p in sorted(Path(argument[2:]).glob("libtvm_ffi.so")))]
        elif Path(argument).is_file():
            parts += ["source", Path(argument).read_bytes(), *_headers(Path(argument).parent, "*.h")]
        else:
            parts.append(argument)
    return digest(parts)


def _headers(place: Path, pattern: str) -> list[bytes]:
    files = sorted(p for p in place.rglob(pattern) if p.is_file()) if pattern == "*" else sorted(place.glob(pattern))
    return [part for p in files for part in (p.name.encode(), p.read_bytes())]


# ---- CuTe ----------------------------------------------------------------------------------------------------------

_DUMPS = re.compile(r"dump-(ptx|cubin)-path='([^']*)'")
Passes = Callable[..., Any]


def keep_cute(place: Path) -> None:
    """From now on, what the passes of the DSL make of a kernel is looked up by its MLIR and the passes' settings. Each
    kernel is traced all the same; locations in sources don't count, since none reach the machine code."""
    from cutlass.base_dsl.compiler import Compiler

    if not hasattr(Compiler.compile, "passes"):
        versions = _cute_toolchain()
        passes = Compiler.compile

        def compile_(self: Any, module: Any, pipeline: str, *args: Any, **named: Any) -> Any:
            if "preserve-line-info=false" not in pipeline:
                return passes(self, module, pipeline, *args, **named)
            asked = (versions, repr(args), repr(sorted(named.items())))
            hook, self._post_compile_hook = self._post_compile_hook, None
            try:
                run = functools.partial(passes, self, module, pipeline, *args, **named)
                made = _through_passes(module, pipeline, asked, place, run)
            finally:
                self._post_compile_hook = hook
            if hook:
                hook(made)
            return made

        compile_.passes = passes  # type: ignore[attr-defined]
        Compiler.compile = compile_


def _cute_toolchain() -> str:
    from importlib import metadata

    names = sorted(
        {d.name for d in metadata.distributions() if d.name.startswith(("nvidia-cutlass", "apache-tvm-ffi"))}
    )
    settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(("CUTE_DSL_", "CUTLASS_")))
    return digest([sys.version, *(f"{n} {metadata.version(n)}" for n in names), *settings, Path(__file__).read_bytes()])


def _through_passes(module: Any, pipeline: str, asked: tuple[str, ...], place: Path, run: Callable[[], Any]) -> Any:
    """The lowered module, with its PTX and cubin in files where the pipeline wants them: kept ones, or what `run`
    makes."""
    from cutlass._mlir import ir

    text = module.operation.get_asm(enable_debug_info=False)
    dumps = _DUMPS.findall(pipeline)
    name = digest([text, _DUMPS.sub(r"dump-\1", pipeline), *asked]) + ".mlir"
    content = found(place, name)
    if content is not None:
        lowered, *files = _unpacked(content)
        for (_, path), file in zip(dumps, files, strict=True):
            suffix, _, body = file.partition(b"\0")
            Path(path + suffix.decode()).write_bytes(body)
        return ir.Module.parse(lowered)
    made = run()
    written = [sorted(Path(path).parent.glob(f"{Path(path).name}.*{kind}")) for kind, path in dumps]
    if all(len(files) == 1 for files in written):
        files = [
            str(file)[len(path) :].encode() + b"\0" + file.read_bytes()
            for (_, path), (file,) in zip(dumps, written, strict=True)
        ]
        keep(place, name, _packed([_bytecode(made), *files]))
    return made


def _bytecode(module: Any) -> bytes:
    import io

    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _packed(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _unpacked(content: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        parts.append(content[at + 8 : at + 8 + size])
        at += 8 + size
    return parts
