"""Places where all users of a machine find one another's files, and how a file there is opened: anybody may have put
something else under its name first."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

# In this order; every user must come to the same choice. /run/lock is emptied by nobody while the machine runs.
_COMMON = (Path("/run/lock"), Path("/tmp"), Path("/dev/shm"))
_OPEN_TO_ALL = stat.S_ISVTX | stat.S_IWOTH
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


class Spoilt(Exception):
    """What lies under a name is not what belongs there; the message says what it is."""


def places() -> tuple[Path, ...]:
    """Folders that root owns and everybody may write to, where nobody can remove another's file; which these are rests
    on the folders alone, so that it is the same for every user. `TILEWRIGHT_LEASES` names another folder instead."""
    named = os.environ.get("TILEWRIGHT_LEASES")
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
        return (Path(named),)
    return tuple(folder for folder in _COMMON if _shared(folder))


def own_folder() -> Path:
    """This user's own, made if it is not there. Raises Spoilt where somebody else holds its name."""
    folder = Path(tempfile.gettempdir(), f"tilewright-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise Spoilt(f"{folder} belongs to another user")
    return folder


def _shared(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and found.st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL


def opened(path: Path, *, create: bool = True, write: bool = False) -> int:
    """A descriptor of the regular file, which every user may read; made where it is not there. Raises Spoilt where
    something else lies there (a link, a pipe, a file that others can't read), OSError where it can't be opened."""
    how = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # Not with O_CREAT: the kernel refuses that for another user's file in a folder like these.
        descriptor = os.open(path, how)
    except FileNotFoundError:
        if not create:
            raise
        descriptor = _made(path, how)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) or mode & _READABLE != _READABLE:
        os.close(descriptor)
        raise Spoilt("what lies there is no file that all may read")
    return descriptor


def _made(path: Path, how: int) -> int:
    """The file, which appears under its name with its rights, whatever the umask: others may look for it meanwhile."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(partial, how | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
        os.link(partial, path)
    except FileExistsError:  # somebody was quicker: theirs counts
        os.close(descriptor)
        return os.open(path, how)
    except BaseException:
        os.close(descriptor)
        raise
    finally:
        partial.unlink()
    return descriptor
