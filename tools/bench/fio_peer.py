"""fio as the peer of the benches: what it reads and writes with the same blocks and the same files.

A reader that is slower than fio does not use the storage's full speed; a faster one was served by a
cache.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from iobench.host.fio import (
    Files,
    FioFigures,
    FioJob,
    common_lines,
    job_text,
    read_head,
    relative,
    run_fio,
)
from iobench.host.host import effective_cores
from tools.bench.sides import Figure

_ALIGN = 4096  # bytes; a multiple of every logical block size in use
_LARGE_BLOCKS = 8
_MAX_SMALL_FILES = 8192  # fio searches its list of files linearly
_MAX_READS = 65536  # lines of the iologs: some megabytes
_MAX_OPEN = 512  # files that stay open, below the usual limit of 1024
_REPLAY_BYTES_PER_S = 8e9
"""Sets the length of an iolog: faster than any storage reads small files. The run time ends it."""


def raw_read(
    files: Sequence[Path],
    *,
    block_size: int,
    seconds: float,
    run_dir: Path,
    engine: str = "psync",
    concurrency: int = 4,
) -> Figure:
    """What the storage delivers for these files with O_DIRECT.

    ``concurrency``: reads in flight of all jobs together. Files of at least 8 blocks are read in
    blocks from front to back. Smaller ones are read in random order, each opened, read as a whole
    and closed. Job files and fio's JSON stay in ``run_dir/fio``. Raises StorageError.
    """
    sized = [(path, path.stat().st_size) for path in files]
    if min(size for _, size in sized) >= _LARGE_BLOCKS * block_size:
        job = large_read_job(sized, engine, concurrency, block_size, seconds)
    else:
        job = small_read_job(sized, concurrency, block_size, seconds)
    name, timeout_s = f"raw-{engine}", seconds + 60
    return _figure(run_fio(job, run_dir / "fio", name, kind="read", timeout_s=timeout_s))


def seq_write(directory: Path, *, bytes: int, block_size: int, jobs: int, run_dir: Path) -> Figure:
    """Durable sequential writes of new files in a new directory, which is always removed.

    ``end_fsync=1``: each job flushes its file once at the end, as a generator does. fio counts that
    time in its run time and its bandwidth (checked with fio 3.33: for 200 MB, a run time of 48 ms
    without it and 142 ms with it), so the rate includes the flush. Nothing is preallocated
    (``fallocate=none``). Raises StorageError.
    """
    each = max(block_size, bytes // jobs // block_size * block_size)
    lines = [*common_lines("psync", True), "rw=write", f"bs={block_size}", f"size={each}"]
    lines += ["end_fsync=1", "fallocate=none"]
    text = job_text(lines, [[f"filename=write.{job}"] for job in range(jobs)])
    timeout_s = max(120.0, each * jobs / 1e6)
    with tempfile.TemporaryDirectory(prefix=".iobench-fio-", dir=directory) as scratch:
        job = _job(text, Path(scratch), jobs, files=jobs, readonly=False)
        figures = run_fio(job, run_dir / "fio", "write-psync", kind="write", timeout_s=timeout_s)
    return _figure(figures)


def random_reads(
    files: Sequence[Path], seconds: float, *, direct: bool, in_flight: int, size: int
) -> Figure:
    """fio's random reads by io_uring; it drops no page cache, and keeps no map of what it read."""
    names = ":".join(map(str, files))
    words = [
        *("fio", "--name=random", f"--filename={names}", "--rw=randread", f"--bs={size}"),
        *("--ioengine=io_uring", f"--iodepth={in_flight}", f"--direct={int(direct)}"),
        *("--readonly", "--iomem_align=4096", "--output-format=json"),
        *("--time_based", f"--runtime={seconds}", "--norandommap", "--randrepeat=0"),
        *("--invalidate=0", "--thread", "--file_service_type=random"),
    ]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    job = json.loads(ended.stdout)["jobs"][0]
    read, busy = job["read"], (job["usr_cpu"] + job["sys_cpu"]) / 100
    cpu_s = busy * read["runtime"] / 1e3
    return Figure(read["bw_bytes"], cpu_s / (read["io_bytes"] / 1e9))


def _figure(figures: FioFigures) -> Figure:
    return Figure(figures.bytes_per_s, figures.cpu_s / figures.bytes * 1e9)


def _job(
    text: str,
    cwd: Path,
    jobs: int,
    *,
    files: int,
    iodepth: int = 1,
    readonly: bool = True,
    iologs: dict[str, str] | None = None,
) -> FioJob:
    return FioJob(
        text=text,
        cwd=cwd,
        jobs=jobs,
        iodepth=iodepth,
        files=files,
        readonly=readonly,
        iologs=iologs or {},
    )


def large_read_job(
    files: Files, engine: str, concurrency: int, block: int, seconds: float
) -> FioJob:
    """Jobs that read disjoint parts: whole files if there are enough, else pieces of each file."""
    jobs = concurrency if engine == "psync" else max(1, min(concurrency, int(effective_cores())))
    iodepth = 1 if engine == "psync" else max(1, concurrency // jobs)
    cwd, named = relative(files)
    random.Random(0).shuffle(named)
    lines = [*read_head(engine, True, max(0.5, seconds)), "rw=read", f"bs={block}"]
    lines += [f"iodepth={iodepth}", "randseed=1", "file_service_type=sequential"]
    lines += ["time_based=1", "norandommap=1"]
    sections: list[list[str]] = []
    if len(named) >= jobs:
        named = named[: max(_MAX_OPEN // jobs, 1) * jobs]
        sections = [[f"filename={name}" for name, _ in named[job::jobs]] for job in range(jobs)]
    else:
        for index, (name, size) in enumerate(named):
            pieces = jobs // len(named) + (index < jobs % len(named))
            length = max(size // block // pieces, 1) * block
            for start in range(0, pieces * length, length):
                if start + length <= size:
                    sections.append([f"filename={name}", f"offset={start}", f"size={length}"])
    text = job_text(lines, sections)
    return _job(text, cwd, len(sections), files=len(named), iodepth=iodepth)


def small_read_job(files: Files, jobs: int, block: int, seconds: float) -> FioJob:
    """Jobs that open, read and close disjoint random samples of the files.

    The last bytes of a file after its last multiple of 4 KiB are not read.
    """
    cwd, named = relative(files)
    shuffle = random.Random(0)
    named = shuffle.sample(named, min(len(named), _MAX_SMALL_FILES))
    seconds = max(0.5, seconds)
    step = max(block // _ALIGN, 1) * _ALIGN
    iologs: dict[str, str] = {}
    for job in range(jobs):
        mine = named[job::jobs]
        lines = ["fio version 2 iolog"] + [f"{name} add" for name, _ in mine]
        reads, total = 0, 0
        while reads < _MAX_READS // jobs and total < seconds * _REPLAY_BYTES_PER_S / jobs:
            for name, size in mine:
                whole = size // _ALIGN * _ALIGN
                starts = range(0, whole, step)
                lines.append(f"{name} open")
                lines += [f"{name} read {start} {min(step, whole - start)}" for start in starts]
                lines.append(f"{name} close")
                reads, total = reads + len(starts), total + whole
            shuffle.shuffle(mine)
        iologs[f"{job}.iolog"] = "\n".join(lines) + "\n"
    lines = [*read_head("psync", True, seconds), "rw=read", "replay_no_stall=1"]
    text = job_text(lines, [[f"read_iolog={{iologs}}/{name}"] for name in iologs])
    return _job(text, cwd, jobs, files=len(named), iologs=iologs)
