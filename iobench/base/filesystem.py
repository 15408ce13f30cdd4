"""The mount, file system, devices and free space of a path, and whether O_DIRECT works there.

Sources: proc(5), ``/proc/self/mountinfo``; /sys. Whether O_DIRECT works, and which alignment its
reads need, is found by trying, since file systems differ in what they report.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from .cgroup import read_text, selected
from .errors import NoRoomError, StorageError
from .units import format_bytes

NFS = frozenset({"nfs", "nfs4"})
"""Types of file systems that this host's NFS client mounts."""

_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_NETWORK = NFS.union(
    {
        "cifs",
        "smb3",
        "smbfs",
        "ceph",
        "9p",
        "virtiofs",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "afs",
        "wekafs",
    }
)
_NETWORK_FUSE = (
    "sshfs",
    "s3fs",
    "rclone",
    "gcsfuse",
    "goofys",
    "mount-s3",
    "juicefs",
    "ceph",
    "glusterfs",
    "alluxio",
    "davfs",
)


_MAX_DEPTH = 8  # partition, LVM, crypt, RAID, multipath, disk


class Mount(NamedTuple):
    device: str  # major:minor
    root: str  # the directory of the file system that is mounted here (bind mounts)
    point: str
    options: str  # of this mount
    fs_type: str
    source: str
    super_options: str  # of the file system


def parse_mountinfo(text: str) -> list[Mount]:
    """The lines of ``/proc/self/mountinfo``, in order; lines of another format are skipped."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if dash and len(left) >= 6 and len(right) >= 2:
            super_options = right[2] if len(right) > 2 else ""
            mounts.append(
                Mount(
                    left[2],
                    unescape(left[3]),
                    unescape(left[4]),
                    left[5],
                    right[0],
                    unescape(right[1]),
                    super_options,
                )
            )
    return mounts


def mount_of(path: Path | str) -> Mount | None:
    """The mount of ``path`` or its nearest existing parent; None if that is not visible."""
    try:
        existing = nearest_existing(Path(path).resolve())
    except (OSError, RuntimeError):
        return None
    return find_mount(str(existing), parse_mountinfo(read_text(Path("/proc/self/mountinfo")) or ""))


def find_mount(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount of an absolute, resolved path.

    It has the longest mount point above the path; of equal ones the last, which is on top.
    """
    best: Mount | None = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def describe_path(path: Path | str, *, write_probe: bool = True) -> dict[str, Any]:
    """The fingerprint of the storage of ``path``, ready for JSON.

    If the path does not exist yet, of its nearest existing parent. ``write_probe``: O_DIRECT may be
    tried on a file of 64 KiB that is unlinked at once; without it only on an existing file. Raises
    StorageError if the path cannot be examined.
    """
    try:
        target = Path(path).resolve()
        if target.is_symlink():  # of a loop, which is an error before Python 3.13
            target.stat()
        existing = nearest_existing(target)
        status, space = existing.stat(), os.statvfs(existing)
    except (OSError, RuntimeError) as error:
        raise StorageError(
            f"cannot examine {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    mount = find_mount(
        str(existing), parse_mountinfo(read_text(Path("/proc/self/mountinfo")) or "")
    )
    fs_type = mount.fs_type if mount else None
    return {
        "path": str(target),
        "probed": str(existing),
        "fs_type": fs_type,
        "mount_point": mount.point if mount else None,
        "mount_options": _merge(mount.options, mount.super_options) if mount else None,
        "source": mount.source if mount else None,
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
        # btrfs and some network file systems do not count inodes.
        "free_inodes": space.f_favail if space.f_files else None,
        "read_only": bool(space.f_flag & os.ST_RDONLY),
        "is_nfs": fs_type in NFS,
        "nfs": describe_nfs(mount.source, _merge(mount.options, mount.super_options))
        if mount and fs_type in NFS
        else None,
        "is_network": is_network(fs_type),
        "is_tmpfs": fs_type in _MEMORY,
        "devices": block_devices(status.st_dev, mount.source if mount else ""),
        "direct": try_direct_io(existing, write=write_probe),
    }


def nearest_existing(path: Path) -> Path:
    """The path itself or its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def require_room(path: Path, needed: float, what: str, remedy: str) -> None:
    """Check that a place of this host has room for what is written there, before it is.

    ``needed``: bytes. ``what``: with its verb, for the message. Raises NoRoomError.
    """
    there = nearest_existing(path)
    free = free_bytes(there)
    if needed > free:
        raise NoRoomError(
            f"{what} {format_bytes(needed)}, and {format_bytes(free)} are free at {there}",
            remedy=remedy,
        )


def free_bytes(path: Path) -> int:
    """Bytes that a user without privileges can write at a path, or at its nearest parent."""
    space = os.statvfs(nearest_existing(path))
    return space.f_bavail * space.f_frsize


def sync(path: Path) -> None:
    """Write a file, or the entries of a folder, to disk (fsync)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_names(folder: Path) -> None:
    """Write the entries of a folder to disk, where its file system and its permissions allow that.

    What has just been written under its name there is no worse off where they don't.
    """
    with suppress(OSError):
        sync(folder)


def is_network(fs_type: str | None) -> bool:
    """Whether another machine serves it, by the type alone (``fuse`` does not say)."""
    if fs_type is None:
        return False
    return fs_type in _NETWORK or (
        fs_type.startswith("fuse.") and fs_type[5:].startswith(_NETWORK_FUSE)
    )


def _merge(options: str, super_options: str) -> str:
    """Both lists of options as one, in order, without duplicates."""
    return ",".join(
        dict.fromkeys(option for option in f"{options},{super_options}".split(",") if option)
    )


def unescape(text: str) -> str:
    """Decode a name of /proc.

    Space, tab, newline and backslash are three octal digits; other bytes may be UTF-8.
    """
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match.group(1), 8)), text)


def parse_options(text: str) -> dict[str, str]:
    return {
        name: value
        for name, _, value in (option.partition("=") for option in text.split(",") if option)
    }


def describe_nfs(source: str, options: str) -> dict[str, Any]:
    """The fingerprint of an NFS mount from its source and options, as in ``/proc/self/mountinfo``.

    None: the kernel does not say.
    """
    given = parse_options(options)
    server, path = _split_source(source)
    return {
        "server": server,
        "export": path,
        "address": given.get("addr"),
        "version": given.get("vers"),
        "proto": given.get("proto"),
        "rsize": _number(given.get("rsize")),
        "wsize": _number(given.get("wsize")),
        "nconnect": _number(given.get("nconnect")) or 1,  # the kernel shows it only above 1
        "options": options,
    }


def _split_source(source: str) -> tuple[str, str]:
    """(server, path) of ``filer:/vol`` or ``[fe80::1]:/vol``."""
    server, _, path = source.partition(":/")
    return server.strip("[]"), f"/{path}"


def block_devices(st_dev: int, source: str = "", sys: Path = Path("/sys")) -> list[dict[str, Any]]:
    """The devices from the one that holds the file system down to the disks.

    [] for file systems on a network or in memory. ``source`` (``/dev/...``) is used if ``st_dev``
    is anonymous, as with btrfs.
    """
    directory = _sys_directory(st_dev, sys)
    if directory is None and source.startswith("/dev/"):
        try:
            status = os.stat(source)
            directory = (
                _sys_directory(status.st_rdev, sys) if stat.S_ISBLK(status.st_mode) else None
            )
        except OSError:
            directory = None
    chain: list[dict[str, Any]] = []
    pending = [directory] if directory else []
    while pending and len(chain) < _MAX_DEPTH:
        current = pending.pop(0)
        chain.append(_facts(current))
        if (current / "partition").exists():
            pending.append(current.parent)
        elif (current / "slaves").is_dir():
            pending += [slave.resolve() for slave in sorted((current / "slaves").iterdir())]
    return chain


def _sys_directory(number: int, sys: Path) -> Path | None:
    directory = sys / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
    return directory.resolve() if os.major(number) and directory.exists() else None


def _facts(directory: Path) -> dict[str, Any]:
    """Facts about one device. A partition has no queue of its own, but its disk's."""
    queue = directory / "queue"
    rotational = read_text(queue / "rotational")
    return {
        "name": directory.name,
        "number": read_text(directory / "dev"),
        "partition": (directory / "partition").exists(),
        "model": read_text(directory / "device/model") or None,
        # Of a loop device: the image, and whether the kernel reads it past the page cache.
        "backing_file": read_text(directory / "loop/backing_file"),
        "backing_direct": {"1": True, "0": False}.get(read_text(directory / "loop/dio") or ""),
        # Always in sectors of 512 bytes.
        "size_bytes": _times(_number(read_text(directory / "size")), 512),
        "rotational": rotational == "1" if rotational is not None else None,
        "scheduler": selected(read_text(queue / "scheduler")),
        "read_ahead_kb": _number(read_text(queue / "read_ahead_kb")),
        "nr_requests": _number(read_text(queue / "nr_requests")),
        "logical_block_bytes": _number(read_text(queue / "logical_block_size")),
    }


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


_SIZE = 1 << 16
_ALIGNMENTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_MAX_ENTRIES = 1000  # directory entries to search for a file to read


def try_direct_io(path: Path, *, write: bool = True) -> dict[str, Any]:
    """Try O_DIRECT in a directory or on a file. Never raises.

    Returns ``{"supported": True | False | None, "alignment_bytes": int | None, "how": str}``; None
    means that it could not be found out. With ``write`` a temporary file may be written.
    """
    if path.is_file():
        return _read_existing(path)
    if write and os.access(path, os.W_OK | os.X_OK):
        try:
            return _write_and_read(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return _answer(False, None, "the file system refused O_DIRECT")
            reason = f"no probe file could be written: {error.strerror}"
    else:
        reason = "the directory is not writable" if write else "no probe file was to be written"
    try:
        with os.scandir(path) as entries:
            found = next(
                (
                    Path(entry.path)
                    for entry in islice(entries, _MAX_ENTRIES)
                    if entry.is_file(follow_symlinks=False)
                ),
                None,
            )
    except OSError:
        found = None
    return (
        _read_existing(found)
        if found
        else _answer(None, None, f"{reason}, and there is no file to read")
    )


def _answer(supported: bool | None, alignment: int | None, how: str) -> dict[str, Any]:
    return {"supported": supported, "alignment_bytes": alignment, "how": how}


def _read_existing(path: Path) -> dict[str, Any]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        refused = error.errno == errno.EINVAL
        return _answer(
            False if refused else None,
            None,
            f"opening an existing file with O_DIRECT failed: {error.strerror}",
        )
    try:
        if os.fstat(fd).st_size < 2 * _ALIGNMENTS[0]:
            return _answer(True, None, "opened an existing file, too small to read at an offset")
        return _by_reading(fd, "read an existing file")
    finally:
        os.close(fd)


def _write_and_read(directory: Path) -> dict[str, Any]:
    """Write real blocks and read them: the kernel reads a hole without checking the alignment."""
    fd = _unnamed(directory)
    try:
        with mmap.mmap(-1, _SIZE) as buffer:  # page aligned
            os.pwrite(fd, buffer, 0)
        return _by_reading(fd, "wrote and read a temporary file")
    finally:
        os.close(fd)


def _unnamed(directory: Path) -> int:
    flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(directory, os.O_TMPFILE | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    # NFS has no O_TMPFILE, and EINVAL may be about either flag: use a named file, unlinked at once.
    fd, name = tempfile.mkstemp(prefix=".iobench-probe-", dir=directory)
    try:
        return os.open(name, flags)
    finally:
        os.close(fd)
        os.unlink(name)


def _by_reading(fd: int, how: str) -> dict[str, Any]:
    """The smallest alignment of offset, length and address at which a read succeeds."""
    with mmap.mmap(-1, 3 * _SIZE) as buffer, memoryview(buffer) as view:
        for alignment in _ALIGNMENTS:
            try:
                with view[alignment : 2 * alignment] as part:
                    os.preadv(fd, [part], alignment)
                return _answer(True, alignment, how)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    return _answer(None, None, f"{how}: {error.strerror}")
    return _answer(False, None, f"{how}, but no read was accepted")
