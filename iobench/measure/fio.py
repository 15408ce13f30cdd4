"""Measure with fio what a storage can deliver.

Reads of the dataset's own files, and durable sequential writes. A reader that is slower than fio
does not use the storage's full speed; a faster one was served by a cache.

fio's buffers lie on transparent huge pages, as the reader's do. fio has no option for that, so its
malloc is told by glibc's tunable ``glibc.malloc.hugetlb=1``, and ``iomem_align=2M`` puts the whole
buffer on huge pages. Without them fio was 1.5 to 1.8 times slower with reads of 4 MiB.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import StorageError
from ..units import format_bytes
from .fio_jobs import MIN_BYTES, large_read_job, small_read_job, split_by_size, write_job
from .fio_process import Figures, executable, fio_version, run_fio
from .host import effective_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class FioResult:
    """What fio reached. ``alternatives``: bytes/s of each engine tried, or why it failed."""

    bytes_per_s: float
    iops: float
    latency_p50_s: float | None  # of one read or write, from submission to completion
    latency_p99_s: float | None
    cpu_s_per_gb: float | None  # CPU seconds per 1e9 bytes, over all jobs
    bytes: int
    seconds: float  # from the first IO to the last, fsync included
    engine: str
    jobs: int
    iodepth: int  # of each job
    files: int
    direct: bool
    how: str
    command: str
    job_file: str
    alternatives: dict[str, float | str]


def available() -> bool:
    """Whether fio is installed."""
    return executable() is not None


def version() -> str | None:
    """fio's version, such as ``fio-3.33``; None without fio."""
    return fio_version()


def install_hint() -> str:
    """The command that installs fio on this host."""
    known = {
        "apt-get": "apt-get install -y fio",
        "dnf": "dnf install -y fio",
        "zypper": "zypper install -y fio",
        "apk": "apk add fio",
    }
    command = next(
        (line for tool, line in known.items() if shutil.which(tool)),
        "see https://github.com/axboe/fio",
    )
    return command if os.geteuid() == 0 or command.startswith("see") else f"sudo {command}"


def raw_read(
    files: Sequence[tuple[Path, int]],
    *,
    block_size: int,
    concurrency: int,
    direct: bool,
    seconds: float,
    run_dir: Path,
    sequential: bool,
    seed: int = 0,
    engines: Sequence[str] = ("psync", "io_uring", "libaio"),
) -> FioResult:
    """What the storage delivers for these (path, bytes) files, read as the workload reads them.

    Never creates or changes a file. ``concurrency``: reads in flight of all jobs together. Files of
    at least 8 blocks are read in blocks (front to back, or at random if not ``sequential``) by the
    fastest of several ``engines``, which share the ``seconds``. Smaller files are read in random
    order, each opened, read as a whole and closed. Without ``direct`` each byte is read once, by
    psync alone, since a second pass would measure the cache; the caller evicts the files before.
    Job files and fio's JSON stay in ``run_dir/fio``. Raises StorageError.
    """
    _require_fio()
    small, large = split_by_size(files, block_size)
    if not small and not large:
        raise StorageError(f"fio has nothing to read: no file has {MIN_BYTES} bytes or more")
    done: list[FioResult] = []
    alternatives: dict[str, float | str] = {}
    engines = engines if direct and large else ("psync",)
    for engine in engines:
        jobs = (
            concurrency if engine == "psync" else max(1, min(concurrency, int(effective_cores())))
        )
        share = max(0.5, seconds / len(engines))
        try:
            if large:
                iodepth = 1 if engine == "psync" else max(1, concurrency // jobs)
                rw = "read" if sequential else "randread"
                job = large_read_job(
                    large,
                    engine=engine,
                    jobs=jobs,
                    iodepth=iodepth,
                    block=block_size,
                    direct=direct,
                    seconds=share,
                    rw=rw,
                    seed=seed,
                )
                order = "sequential" if sequential else "random"
                what = f"{order} reads of {format_bytes(block_size)}"
            else:
                job = small_read_job(
                    small, jobs=jobs, block=block_size, direct=direct, seconds=share, seed=seed
                )
                what = "whole files in random order, each opened and closed"
            figures = run_fio(
                job, run_dir / "fio", f"raw-{engine}", kind="read", timeout_s=seconds + 60
            )
        except StorageError as error:
            alternatives[engine] = error.what
            if engine == engines[-1] and not done:
                raise
            continue
        mode = "O_DIRECT" if direct else "buffered, each byte once"
        how = (
            f"fio {engine}, {job.jobs} jobs x {job.iodepth} in flight, {what}, {mode}, "
            f"{job.files} files"
        )
        done.append(_result(figures, engine, job.jobs, job.iodepth, job.files, direct, how))
        alternatives[engine] = figures.bytes_per_s
    best = max(done, key=lambda result: result.bytes_per_s)
    best.alternatives.update(alternatives)
    return best


def seq_write(
    directory: Path, *, bytes: int, block_size: int, jobs: int, direct: bool, run_dir: Path
) -> FioResult:
    """Durable sequential writes of new files in a new directory, which is always removed.

    ``end_fsync=1``: each job flushes its file once at the end, as a generator does. fio counts that
    time in its run time and its bandwidth (checked with fio 3.33: for 200 MB, a run time of 48 ms
    without it and 142 ms with it), so the rate includes the flush. Nothing is preallocated
    (``fallocate=none``). Raises StorageError, also, before anything is written, if the space is too
    small.
    """
    _require_fio()
    each = max(block_size, bytes // jobs // block_size * block_size)
    try:
        space = os.statvfs(directory)
        if space.f_bavail * space.f_frsize < each * jobs:
            free = format_bytes(space.f_bavail * space.f_frsize)
            raise StorageError(
                f"{directory} has {free} free, but the write test needs {format_bytes(each * jobs)}"
            )
        with tempfile.TemporaryDirectory(prefix=".iobench-fio-", dir=directory) as scratch:
            job = write_job(Path(scratch), jobs=jobs, each=each, block=block_size, direct=direct)
            figures = run_fio(
                job,
                run_dir / "fio",
                "write-psync",
                kind="write",
                timeout_s=max(120.0, each * jobs / 1e6),
            )
    except OSError as error:
        raise StorageError(f"cannot write in {directory}: {error.strerror}") from error
    mode = "O_DIRECT" if direct else "buffered"
    how = (
        f"fio psync, {jobs} jobs, {format_bytes(block_size)} blocks, {mode}, "
        "fsync at the end counted"
    )
    return _result(figures, "psync", jobs, 1, jobs, direct, how)


def _result(
    figures: Figures, engine: str, jobs: int, iodepth: int, files: int, direct: bool, how: str
) -> FioResult:
    return FioResult(
        bytes_per_s=figures.bytes_per_s,
        iops=figures.iops,
        latency_p50_s=figures.latency_p50_s,
        latency_p99_s=figures.latency_p99_s,
        cpu_s_per_gb=figures.cpu_s / figures.bytes * 1e9,
        bytes=figures.bytes,
        seconds=figures.seconds,
        engine=engine,
        jobs=jobs,
        iodepth=iodepth,
        files=files,
        direct=direct,
        how=how,
        command=figures.command,
        job_file=figures.job_file,
        alternatives={engine: figures.bytes_per_s},
    )


def _require_fio() -> None:
    if not available():
        raise StorageError("fio is not installed", remedy=f"install it with '{install_hint()}'")
