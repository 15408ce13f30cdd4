"""The mount, file system and free space of a path.

Devices are in ``device.py``, the O_DIRECT probe in ``direct.py``.
Source: proc(5), ``/proc/self/mountinfo``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..cgroup import read_text
from ..errors import StorageError
from . import nfs
from .device import block_devices
from .direct import probe

_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_NETWORK = nfs.TYPES.union(
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
                    nfs.unescape(left[3]),
                    nfs.unescape(left[4]),
                    left[5],
                    right[0],
                    nfs.unescape(right[1]),
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
        "is_nfs": fs_type in nfs.TYPES,
        "nfs": nfs.describe(mount.source, _merge(mount.options, mount.super_options))
        if mount and fs_type in nfs.TYPES
        else None,
        "is_network": is_network(fs_type),
        "is_tmpfs": fs_type in _MEMORY,
        "devices": block_devices(status.st_dev, mount.source if mount else ""),
        "direct": probe(existing, write=write_probe),
    }


def nearest_existing(path: Path) -> Path:
    """The path itself or its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


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
