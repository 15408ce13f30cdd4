"""fio as the peer of the benches: what it reads and writes with the same blocks and the same files.

Reads of a dataset's own files, and durable sequential writes. A reader that is slower than fio does
not use the storage's full speed; a faster one was served by a cache.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iobench.errors import StorageError
from iobench.measure.fio import Figures, run_fio
from iobench.measure.fio_jobs import (
    Files,
    FioJob,
    common_lines,
    job_text,
    read_head,
    relative,
)
from iobench.measure.host import effective_cores
from iobench.units import format_bytes

MIN_BYTES = 4096
_ALIGN = 4096  # bytes; a multiple of every logical block size in use
_LARGE_BLOCKS = 8
_MAX_SMALL_FILES = 8192  # fio searches its list of files linearly
_MAX_READS = 65536  # lines of the iologs: some megabytes
_MAX_OPEN = 512  # files that stay open, below the usual limit of 1024
_REPLAY_BYTES_PER_S = 8e9
"""Sets the length of an iolog: faster than any storage reads small files. The run time ends it."""


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


def split_by_size(files: Files, block: int) -> tuple[Files, Files]:
    """(small, large) files, of which one is empty.

    Large: files of at least 8 blocks hold 90 % of the bytes; a last shard may be short.
    """
    usable = [(path, size) for path, size in files if size >= MIN_BYTES]
    large = [(path, size) for path, size in usable if size >= _LARGE_BLOCKS * block]
    if sum(size for _, size in large) >= 0.9 * sum(size for _, size in usable):
        return [], large
    return usable, []


def large_read_job(
    files: Files,
    *,
    engine: str,
    jobs: int,
    iodepth: int,
    block: int,
    direct: bool,
    seconds: float,
    rw: str,
    seed: int,
) -> FioJob:
    """Jobs that read disjoint parts: whole files if there are enough, else pieces of each file.

    ``block`` in bytes. Raises StorageError if fio can't read files with these names.
    """
    cwd, named = relative(files)
    random.Random(seed).shuffle(named)
    lines = [
        *read_head(engine, direct, seconds),
        f"rw={rw}",
        f"bs={block}",
        f"iodepth={iodepth}",
        f"randseed={seed + 1}",
    ]
    lines.append("file_service_type=sequential" if rw == "read" else "file_service_type=random")
    if direct:  # buffered reads end after one pass: a second pass would come from the cache
        lines += ["time_based=1", "norandommap=1"]
    sections: list[list[str]] = []
    if len(named) >= jobs:
        named = named[: max(_MAX_OPEN // jobs, 1) * jobs]
        sections = [
            [f"filename={_escape(name)}" for name, _ in named[job::jobs]] for job in range(jobs)
        ]
    else:
        for index, (name, size) in enumerate(named):
            pieces = jobs // len(named) + (index < jobs % len(named))
            length = max(size // block // pieces, 1) * block
            starts = [
                start for start in range(0, pieces * length, length) if start + length <= size
            ]
            sections += [
                [f"filename={_escape(name)}", f"offset={start}", f"size={length}"]
                for start in starts
            ]
    return FioJob(
        text=job_text(lines, sections),
        cwd=cwd,
        jobs=len(sections),
        iodepth=iodepth,
        files=len(named),
        readonly=True,
    )


def small_read_job(
    files: Files, *, jobs: int, block: int, direct: bool, seconds: float, seed: int
) -> FioJob:
    """Jobs that open, read and close disjoint random samples of the files.

    The last bytes of a file after its last multiple of 4 KiB are not read. Raises StorageError.
    """
    cwd, named = relative(files)
    shuffle = random.Random(seed)
    named = shuffle.sample(named, min(len(named), _MAX_SMALL_FILES))
    jobs = min(jobs, len(named))
    iologs: dict[str, str] = {}
    for job in range(jobs):
        mine = named[job::jobs]
        lines = ["fio version 2 iolog"] + [f"{name} add" for name, _ in mine]
        reads, total = 0, 0
        while reads < _MAX_READS // jobs and total < seconds * _REPLAY_BYTES_PER_S / jobs:
            for name, size in mine:
                whole = size // _ALIGN * _ALIGN
                step = max(block // _ALIGN, 1) * _ALIGN
                lines.append(f"{name} open")
                lines += [
                    f"{name} read {start} {min(step, whole - start)}"
                    for start in range(0, whole, step)
                ]
                lines.append(f"{name} close")
                reads, total = reads + -(-whole // step), total + whole
            if not direct:
                break  # buffered: each byte once
            shuffle.shuffle(mine)
        iologs[f"{job}.iolog"] = "\n".join(lines) + "\n"
    lines = [*read_head("psync", direct, seconds), "rw=read", "replay_no_stall=1"]
    sections = [[f"read_iolog={{iologs}}/{name}"] for name in iologs]
    return FioJob(
        text=job_text(lines, sections),
        cwd=cwd,
        jobs=jobs,
        iodepth=1,
        files=len(named),
        readonly=True,
        iologs=iologs,
    )


def write_job(directory: Path, *, jobs: int, each: int, block: int, direct: bool) -> FioJob:
    """Each job writes one new file of ``each`` bytes and flushes it at the end."""
    lines = [
        *common_lines("psync", direct),
        "rw=write",
        f"bs={block}",
        f"size={each}",
        "end_fsync=1",
        "fallocate=none",
    ]
    sections = [[f"filename=write.{job}"] for job in range(jobs)]
    text = job_text(lines, sections)
    return FioJob(text=text, cwd=directory, jobs=jobs, iodepth=1, files=jobs, readonly=False)


def _escape(name: str) -> str:
    """Escape colons, which separate names in ``filename=``."""
    return name.replace(":", "\\:")
