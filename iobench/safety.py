"""What iobench refuses to write to, and how it deletes: nothing that it did not make.

Everything that overwrites or removes user-visible files goes through here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from .errors import StorageError, TargetRefusedError

_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)
"""Nothing below these is ever a target (but /dev/shm and /run/user, which are memory that users own)."""

_PARENTS = (
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/srv",
    "/tmp",
    "/var",
    "/var/lib",
    "/var/tmp",
)
"""Fine to write below, never to write into."""

_EXCEPTIONS = ("/dev/shm", "/run/user", "/run/media")

_REMEDY = "name a new directory, e.g. {}/iobench-data"


class Removal(NamedTuple):
    """What ``remove_exactly`` did: counts of what went, and the names (below the root) of what stayed."""

    files: int
    bytes: int
    foreign: list[str]
    root_removed: bool


def check_target(path: str | Path) -> Path:
    """The absolute, resolved directory to generate into; it may not exist yet, and nothing is created.

    Raises TargetRefusedError for devices, files, ``/``, homes, mount roots, system directories, and links that lead there or nowhere.
    """
    given = Path(path).expanduser()
    if given.is_symlink() and not given.exists():
        raise TargetRefusedError(
            f"{path} is a symbolic link to nothing", remedy="name the directory itself"
        )
    target = given.resolve()
    shown = f"{path}" if str(target) == str(given) else f"{path} (which is {target})"
    mode = target.stat().st_mode if target.exists() else stat.S_IFDIR
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        remedy = "make a file system on it and mount it, or name a directory"
        raise TargetRefusedError(
            f"{shown} is a device, and iobench never writes to devices", remedy=remedy
        )
    if not stat.S_ISDIR(mode):
        raise TargetRefusedError(f"{shown} is not a directory", remedy="name a directory")
    reason = _refusal(target)
    if reason:
        parent = target if reason.below else Path("/tmp")
        raise TargetRefusedError(
            f"refusing {shown}: it is {reason.what}", remedy=_REMEDY.format(str(parent).rstrip("/"))
        )
    blocking = next((p for p in target.parents if p.exists()), Path("/"))
    if not blocking.is_dir():
        raise TargetRefusedError(f"{blocking} is not a directory", remedy="name another path")
    return target


class _Reason(NamedTuple):
    what: str
    below: bool  # a directory below it would do


def _refusal(target: Path) -> _Reason | None:
    text = str(target)
    if text == "/":
        return _Reason("the root of the file system", False)
    if target in {
        Path.home().resolve(),
        Path(os.path.expanduser("~")).resolve(),
    } or target.parent == Path("/home"):
        return _Reason("a home directory", True)
    if text in _PARENTS:
        return _Reason("a directory that others use", True)
    if os.path.ismount(target):
        return _Reason("the root of a mounted file system", True)
    if any(text.startswith(f"{exception}/") for exception in _EXCEPTIONS):
        return None
    if any(text == system or text.startswith(f"{system}/") for system in _SYSTEM):
        return _Reason("a system directory", False)
    return None


def remove_exactly(
    root: Path,
    owned: Callable[[str], bool],
    *,
    last: Collection[str],
    folders: Callable[[str], bool],
    dry_run: bool = False,
) -> Removal:
    """Remove the regular files below ``root`` whose relative names are ``owned``, then the emptied ``folders``; everything else stays.

    Links are never followed: the walk holds each directory open and unlinks relative to it. Files named as one of ``last`` (what says who
    owns the rest) go after everything else in and below their folder, so that an interrupted removal can be repeated. Raises StorageError.
    """
    files = size = 0
    foreign: list[str] = []
    root_removed = False
    try:
        for folder, folder_names, names, fd in os.fwalk(
            root, topdown=False, onerror=_raise, follow_symlinks=False
        ):
            below = os.path.relpath(folder, root)
            prefix = "" if below == "." else f"{below}/"
            for name in sorted(names, key=lambda n: (n in last, n)):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not (stat.S_ISREG(info.st_mode) and owned(prefix + name)):
                    foreign.append(prefix + name)
                    continue
                files, size = files + 1, size + info.st_size
                if not dry_run:
                    os.unlink(name, dir_fd=fd)
            for name in folder_names:
                if dry_run or not _remove_folder(name, fd, folders(prefix + name)):
                    _note_foreign_folder(prefix + name, name, fd, foreign, folders)
        if not dry_run and folders("") and not os.listdir(root):
            root.rmdir()
            root_removed = True
    except OSError as error:
        raise StorageError(
            f"cannot remove {error.filename or root}: {error.strerror}",
            remedy="check the permissions, and clean again",
        ) from error
    return Removal(files, size, sorted(foreign), root_removed)


def _raise(error: OSError) -> None:
    raise error  # else the walk leaves out what it can't read, and the marker goes before what it marks


def _remove_folder(name: str, fd: int, ours: bool) -> bool:
    if not ours:
        return False
    try:
        os.rmdir(name, dir_fd=fd)
    except OSError:
        return False  # something foreign is in it, or it is a link
    return True


def _note_foreign_folder(
    path: str, name: str, fd: int, foreign: list[str], folders: Callable[[str], bool]
) -> None:
    """A link, or an empty directory that is not ours; others show by their contents."""
    is_link = stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    if is_link or not folders(path):
        foreign.append(path)
