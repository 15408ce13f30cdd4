"""The run directory that all ranks of a host share, and what each of them leaves in it.

Ranks that one launcher (torchrun, srun, mpirun) has started have the same parent process. Its
number, the time of its start and how often this script has watched before give all of them the
same name, so they need not talk to each other. Whoever leaves makes the record of all ranks that
have left so far, so that a rank that dies takes none of the others' figures with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ...cgroup import read_text
from ...documents import json_text, write_whole
from ...errors import IobenchError
from ...measure.samples import read_samples, write_samples
from ...measure.timeline import Columns, read_events, write_events
from ...schema.base import fitting, read_json
from ...schema.watched import WatchedRank
from ..facts import new_directory

RANKS = "ranks"
"""The folder of a run directory in which each rank leaves its part."""

PHASE = "measure"

_LAUNCH = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
"""Variables that tell one launch from another of the same parent."""


class Part(NamedTuple):
    """What one rank measured: its facts, its steps, and samples of the host if it took them."""

    rank: WatchedRank
    steps: Columns
    samples: Columns | None


def shared_directory(results: Path, name: str, rank: int, count: int) -> Path:
    """The directory of this launch; ``count``: how often this process has watched before.

    Raises IobenchError if it can't be made.
    """
    parent = os.getppid()
    began = _started(parent)
    words = [parent, began, name, count, *(os.environ.get(each, "") for each in _LAUNCH)]
    token = hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()[:8]
    stamp = datetime.fromtimestamp(began, UTC).strftime("%Y%m%d-%H%M%S")
    directory = results / f"{name}-{stamp}-{token}"
    if (directory / RANKS / f"rank-{rank}.json").exists():
        return new_directory(results, name)  # the parent is no launcher: a second job of it
    try:
        (directory / RANKS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IobenchError(
            f"cannot make the run directory {directory}: {error.strerror}",
            remedy="choose another with watch(results=...)",
        ) from error
    return directory


def _started(pid: int) -> float:
    """When a process began, in seconds since 1970. Source: proc(5), btime and starttime."""
    boot = next(
        (
            line.split()[1]
            for line in (read_text(Path("/proc/stat")) or "").splitlines()
            if line.startswith("btime ")
        ),
        "0",
    )
    fields = (read_text(Path(f"/proc/{pid}/stat")) or "").rpartition(")")[2].split()
    ticks = int(fields[19]) if len(fields) > 19 else 0
    return int(boot) + ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the ranks' folder, so that two ranks that leave together write one after the other."""
    handle = os.open(directory / RANKS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def leave(directory: Path, part: Part) -> None:
    """Write what this rank measured; its document last, since that says that the part is whole."""
    number = part.rank.rank
    place = directory / RANKS
    write_events(place / f"rank-{number}.parquet", [(PHASE, 0, number, part.steps)])
    if part.samples is not None:
        write_samples(place / f"host-{number}.parquet", [(PHASE, 0, part.samples)])
    write_whole(place / f"rank-{number}.json", json_text(part.rank) + "\n")


def parts_in(directory: Path) -> list[Part]:
    """The parts of all ranks that have left, in their order. Raises IobenchError."""
    found = []
    for path in sorted((directory / RANKS).glob("rank-*.json")):
        rank = fitting(path, WatchedRank, read_json(path, version="1"))
        samples = path.with_name(f"host-{rank.rank}.parquet")
        found.append(
            Part(
                rank,
                read_events(path.with_suffix(".parquet")),
                read_samples(samples) if samples.exists() else None,
            )
        )
    return sorted(found, key=lambda part: part.rank.rank)
