"""Writes a wheel, the archive that pip installs: a package's folder, what it says of itself, and a list of both."""

from __future__ import annotations

import base64
import hashlib
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents make equal files


def write_wheel(
    package: Path, folder: Path, *, version: str, summary: str, requires: Sequence[str], python: str
) -> Path:
    """The wheel, in `folder`, of all files in `package`, which is imported under its folder's name; for this kind of
    machine alone, as it holds compiled code. `requires`: requirements; `python`: which versions of it. Follows the
    binary distribution format (packaging.python.org)."""
    name, tag = package.name, sysconfig.get_platform().replace("-", "_").replace(".", "_")
    told = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}"]
    lines += [f"Requires-Python: {python}", *(f"Requires-Dist: {one}" for one in requires)]
    kind = ["Wheel-Version: 1.0", "Generator: tilewright", "Root-Is-Purelib: false", f"Tag: py3-none-{tag}"]
    files = {f"{name}/{p.relative_to(package).as_posix()}": p.read_bytes() for p in _files(package)}
    files[f"{told}/METADATA"] = ("\n".join(lines) + "\n").encode()
    files[f"{told}/WHEEL"] = ("\n".join(kind) + "\n").encode()
    record = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{told}/RECORD"] = ("\n".join([*record, f"{told}/RECORD,,"]) + "\n").encode()
    target = folder / f"{name}-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)
    return target


def _files(package: Path) -> list[Path]:
    return sorted(p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
