"""Compiled kernels kept on disk: found by name, written whole or not at all, and not for ever."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

MOST_BYTES = 512 << 20  # of one folder; a kernel takes some 50 to 200 KB
# Where a fused file hands its settings to the skeleton; as the constructor's argument nothing else can read them.
_SETTINGS = re.compile(r"^(_FUSED = \w+\(SPEC, (?:entry, )?)\{[^{}\n]*\}(, source=__file__\))$", re.MULTILINE)
_NUMBER = re.compile(r"\bfused_\d+")


def without_settings(text: str) -> str:
    """The text of a fused file but for the knob settings that it begins with. Files that differ in them alone are one
    kernel at equal settings; a file written in another way is itself."""
    return _SETTINGS.sub(r"\1{}\2", text, count=1) if len(_SETTINGS.findall(text)) == 1 else text


def anonymous(text: str) -> str:
    """The text `without_settings`, and without the number that the pattern has in its candidate: what one module fuses
    is the same kernel where it is a problem of its own, or stands in another module."""
    return _NUMBER.sub("fused", without_settings(text))


def cache_home() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home) if home else Path.home() / ".cache"


def found(places: tuple[Path, ...], name: str) -> Path | None:
    """The file of this name in the first of the places that has it; it counts as used now."""
    for place in places:
        path = place / name
        if path.is_file():
            with contextlib.suppress(OSError):  # a folder that can only be read is not pruned either
                os.utime(path)
            return path
    return None


def writable(places: tuple[Path, ...], kind: str) -> Path | None:
    """The first place that can be written, or, if none can, a folder of this user's alone among the temporary files;
    None where even that may be another's."""
    own = Path(tempfile.gettempdir()) / f"tilewright-{kind}-{os.getuid()}"
    for place in (*places, own):
        try:
            place.mkdir(mode=0o700 if place == own else 0o777, parents=True, exist_ok=True)
            state = place.stat()
        except OSError:
            continue
        planted = place == own and (state.st_uid != os.getuid() or state.st_mode & 0o022)  # others could put code there
        if os.access(place, os.W_OK) and not planted:
            return place
    return None


def keep(folder: Path, name: str, write: Callable[[Path], None], *, most_bytes: int = MOST_BYTES) -> Path:
    """The file `name` in `folder`, which `write` fills under another name and which then appears by renaming; what was
    not used for longest goes where the folder's files of its kind outgrow `most_bytes`."""
    target = folder / name
    handle, made = tempfile.mkstemp(dir=folder, suffix=".tmp")
    os.close(handle)
    try:
        write(Path(made))
        os.replace(made, target)
    finally:
        Path(made).unlink(missing_ok=True)
    prune(folder, target.suffix, most_bytes=most_bytes, but=target)
    return target


def prune(folder: Path, suffix: str, *, most_bytes: int, but: Path) -> None:
    """Remove files of this suffix, the least recently used first, until the others take no more; `but` stays. Other
    processes may prune at once, and what they have loaded lives on without its name."""
    files = []
    for path in folder.glob(f"*{suffix}"):
        with contextlib.suppress(OSError):
            state = path.stat()
            files.append((state.st_mtime_ns, state.st_size, path))
    excess = sum(size for _, size, _ in files) - most_bytes
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        if path != but:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                excess -= size
