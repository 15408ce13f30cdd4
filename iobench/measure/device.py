"""The block devices of a file system, from /sys.

A partition, its disk, and the parts of a mapped or RAID device.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from ..cgroup import read_text
from .host import selected

_MAX_DEPTH = 8  # partition, LVM, crypt, RAID, multipath, disk


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


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor
