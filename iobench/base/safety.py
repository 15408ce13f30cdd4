"""Where iobench refuses to write, and how it deletes only what it has made.

All code that overwrites or removes files that users can see goes through this module.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
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
"""Never a target, and nothing below them, except /dev/shm and /run/user, where users own memory."""

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
"""Directories that iobench writes below, never directly into."""

_EXCEPTIONS = ("/dev/shm", "/run/user", "/run/media")

_MAX_DEPTH = 64
"""Maximum depth of folders below a root; nothing that iobench makes is so deep."""

_REMEDY = "name a new directory, for example {}/iobench-data"


class Removal(NamedTuple):
    """What ``remove_exactly`` removed, and the names below the root of what it left."""

    files: int
    bytes: int
    foreign: list[str]
    root_removed: bool


def check_target(path: str | Path) -> Path:
    """The absolute, resolved directory to write into. It may not exist yet; nothing is created.

    Raises TargetRefusedError for devices, files, ``/``, home directories, roots of mounts, system
    directories, and symbolic links to any of them or to nothing.
    """
    given = Path(path).expanduser()
    broken = [each for each in (given, *given.parents) if each.is_symlink() and not each.exists()]
    if broken:
        raise TargetRefusedError(
            f"{broken[-1]} is a symbolic link whose target does not exist",
            remedy="name the directory itself",
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
    below: bool  # whether a directory below it would be allowed


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
    first: Collection[str] = (),
    dry_run: bool = False,
    within: Path | None = None,
    allowed: Callable[[], None] = lambda: None,
) -> Removal:
    """Remove the ``owned`` regular files below ``root``, then those ``folders`` that are empty.

    ``owned`` and ``folders`` get names relative to ``root``. Everything else stays, and is listed
    in ``Removal.foreign``. Symbolic links are never followed and no mount point is crossed: the
    walk holds each directory open and unlinks relative to it.

    Files directly in ``root`` with a name in ``first`` are removed before everything else: they say
    that the rest is complete. Files with a name in ``last`` are removed after everything else in
    and below their folder: they say who owns the rest, so an interrupted removal can be repeated.
    They stay if a mount point hides files that may be iobench's. ``within``: a folder above
    ``root`` whose mount must not be left (default: the mount of ``root``). ``allowed`` is called
    before each file is removed, and may raise an exception. Raises StorageError.
    """
    walk = _Removal(owned, frozenset(last), folders, dry_run=dry_run, allowed=allowed)
    removed = False
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            mount = mount_of(within if within is not None else fd)
            if mount_of(fd) == mount:
                walk.begin(fd, first)
                walk.clear(fd, "", mount)
            else:
                walk.foreign.append(".")
        finally:
            os.close(fd)
        if not dry_run and folders("") and not walk.foreign and not os.listdir(root):
            removed = removed_empty(root)
    except OSError as error:
        raise StorageError(
            f"cannot remove {error.filename or root}: {error.strerror}",
            remedy="check the permissions, and run clean again",
        ) from error
    return Removal(walk.files, walk.bytes, sorted(walk.foreign), removed)


class _Removal:
    """One walk through the folders, with the counts of what was removed and what was left."""

    def __init__(
        self,
        owned: Callable[[str], bool],
        last: Collection[str],
        folders: Callable[[str], bool],
        *,
        dry_run: bool,
        allowed: Callable[[], None],
    ) -> None:
        self.owned, self.last, self.folders, self.dry_run = owned, last, folders, dry_run
        self.allowed = allowed
        self.files = self.bytes = 0
        self.foreign: list[str] = []

    def begin(self, fd: int, names: Collection[str]) -> None:
        """Unlink the owned files among these names in an open folder."""
        for name in [] if self.dry_run else names:
            with suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and self.owned(name):
                    self.allowed()
                    os.unlink(name, dir_fd=fd)
                    self.files, self.bytes = self.files + 1, self.bytes + info.st_size

    def clear(self, fd: int, prefix: str, mount: Mount) -> bool:
        """Clear an open folder whose keys begin with ``prefix``; whether all of it was visible."""
        found = {name: os.stat(name, dir_fd=fd, follow_symlinks=False) for name in os.listdir(fd)}
        folders = {name for name, info in found.items() if stat.S_ISDIR(info.st_mode)}
        seen = True
        for name in sorted(folders):
            seen &= self._folder(name, fd, prefix + name, mount)
        for name in sorted(found.keys() - folders, key=lambda name: (name in self.last, name)):
            if not (stat.S_ISREG(found[name].st_mode) and self.owned(prefix + name)):
                self.foreign.append(prefix + name)
            elif seen or name not in self.last:
                self.files, self.bytes = self.files + 1, self.bytes + found[name].st_size
                if not self.dry_run:
                    self.allowed()
                    os.unlink(name, dir_fd=fd)
        return seen

    def _folder(self, name: str, above: int, path: str, mount: Mount) -> bool:
        ours = self.folders(path)
        fd = os.open(
            name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above
        )
        try:
            if mount_of(fd) != mount or path.count("/") >= _MAX_DEPTH:
                self.foreign.append(path)
                return not ours
            before = len(self.foreign)
            seen = self.clear(fd, f"{path}/", mount)
        finally:
            os.close(fd)
        if ours and not self.dry_run and seen:
            try:
                os.rmdir(name, dir_fd=above)
            except OSError as error:
                # Something foreign, or a file of ``last`` that had to stay, is in it.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        elif not ours and len(self.foreign) == before:
            self.foreign.append(path)  # otherwise its contents are listed
        return seen


Mount = tuple[int, str]
"""The device of a file system, and the id of its mount: a bind mount has the same device."""


def mount_of(place: int | Path) -> Mount:
    """The mount of an open folder, or of a path. Raises OSError."""
    if isinstance(place, Path):
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return mount_of(fd)
        finally:
            os.close(fd)
    try:
        facts = Path(f"/proc/self/fdinfo/{place}").read_text(encoding="ascii")
        number = next(line for line in facts.splitlines() if line.startswith("mnt_id:"))
    except (OSError, StopIteration):
        number = ""  # without /proc only the device is known
    return os.fstat(place).st_dev, number


def removed_empty(folder: Path) -> bool:
    """Remove a folder if it is empty; whether it was, as another process may just have used it."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
