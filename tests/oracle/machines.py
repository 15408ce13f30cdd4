"""Two machines on one: disks of a known speed in files of this host, and cores that are taken away.

A disk is a file system in a file behind a loop device; the kernel holds its reads to a rate (cgroup
v1 blkio). Two of them in one cgroup are two storages of one host, which a command can read in
turns. The cores are those that a process may run on (its affinity), and are recorded as such.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.oracle.plants import Throttle, disk_of, on_cores, throttle_for
from tests.processes import in_process


@dataclass(frozen=True)
class Machines:
    """Two disks of one host, and a throttle that holds their reads to different rates."""

    slow: Path
    fast: Path
    throttle: Throttle
    scratch: Path

    def iobench(self, *words: object, cores: int | None = None) -> tuple[int, str, str]:
        """``iobench WORDS`` under the throttle: (exit code, stdout, stderr).

        ``cores``: it runs on the first ones of this host alone.
        """

        def work(scratch: Path) -> None:
            with ExitStack() as stack:
                if cores is not None:
                    stack.enter_context(on_cores(cores))
                ended = in_process(*words)
            (scratch / "ended").write_text(json.dumps(ended))

        self.throttle.run(work, self.scratch)
        code, out, err = json.loads((self.scratch / "ended").read_text())
        return code, out, err


@contextmanager
def two_machines(folder: Path, *, size: int, slow: int, fast: int) -> Iterator[Machines]:
    """Two disks of ``size`` bytes; commands read them at ``slow`` and ``fast`` bytes/s at most."""
    with (
        _disk(folder / "slow", size) as one,
        _disk(folder / "fast", size) as other,
        throttle_for(one) as throttle,
    ):
        throttle.hold(bytes_per_s=slow)
        replace(throttle, disk=disk_of(other)).hold(bytes_per_s=fast)
        yield Machines(one, other, throttle, folder)


@contextmanager
def _disk(mount: Path, size: int) -> Iterator[Path]:
    """A new ext4 file system of ``size`` bytes at ``mount``, in a file beside it.

    Skips the test where no loop device can be mounted.
    """
    image = mount.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    mount.mkdir()
    reason = ""
    if not shutil.which("mkfs.ext4"):
        reason = "mkfs.ext4 is missing"
    else:
        for words in (
            ("mkfs.ext4", "-q", "-F", "-m", "0", image),
            ("mount", "-o", "loop", image, mount),
        ):
            made = subprocess.run(words, capture_output=True, text=True, check=False)
            reason = reason or made.stderr.strip() or str(made.returncode or "")
    if reason:
        pytest.skip(f"no loop device: {reason}: the oracle of two machines did NOT run")
    try:
        yield mount
    finally:
        deadline = time.monotonic() + 30
        while subprocess.run(["umount", mount], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"{mount} is still in use"
            time.sleep(0.2)
        image.unlink()
