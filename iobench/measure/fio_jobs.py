"""fio's job files.

Every path in them is relative to the job's working directory, so that names of parent folders need
no escaping. Small files are given as an iolog, fio's format for replays: only so does fio open,
read and close files of different sizes, each in one read. With ``filename=`` the block size must
fit the smallest file, so the others are read in pieces and without their ends.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIN_BYTES = 4096
_ALIGN = 4096  # bytes; a multiple of every logical block size in use
_LARGE_BLOCKS = 8
_MAX_SMALL_FILES = 8192  # fio searches its list of files linearly
_MAX_READS = 65536  # lines of the iologs: some megabytes
_MAX_OPEN = 512  # files that stay open, below the usual limit of 1024
_REPLAY_BYTES_PER_S = 8e9
"""Sets the length of an iolog: faster than any storage reads small files. The run time ends it."""
MAX_REPLAYED, MAX_REPLAYED_FILES = 1 << 18, _MAX_SMALL_FILES
"""Reads that ``replay_job`` should get at most, and files of one of its jobs."""

_UNSAFE = re.compile(r"\s|\$\{|^[;#\[]|\\")  # names that a job file or an iolog can't contain

Files = Sequence[tuple[Path, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FioJob:
    """A job file: its text, its working directory, and the iologs that it reads (name -> text)."""

    text: str
    cwd: Path
    jobs: int
    iodepth: int
    files: int
    readonly: bool
    iologs: dict[str, str] = field(default_factory=dict)


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
    cwd, named = _relative(files)
    random.Random(seed).shuffle(named)
    lines = [
        *_read_head(engine, direct, seconds),
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
        text=_text(lines, sections),
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
    cwd, named = _relative(files)
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
    lines = [*_read_head("psync", direct, seconds), "rw=read", "replay_no_stall=1"]
    sections = [[f"read_iolog={{iologs}}/{name}"] for name in iologs]
    return FioJob(
        text=_text(lines, sections),
        cwd=cwd,
        jobs=jobs,
        iodepth=1,
        files=len(named),
        readonly=True,
        iologs=iologs,
    )


def replay_job(
    reads: Sequence[tuple[Path, int, int]],
    *,
    engine: str,
    jobs: int,
    iodepth: int,
    once: bool,
    direct: bool,
    seconds: float,
    window_s: float,
) -> FioJob:
    """Jobs that read exactly these (path, offset, bytes), each once, in this order.

    ``once``: a file is opened before its read and closed after it; else all files stay open. The
    bandwidth of each window of ``window_s`` goes to the log ``NAME.windows_bw.log`` beside the job
    file. Raises StorageError if fio can't read files with these names.
    """
    paths = list(dict.fromkeys(path for path, _, _ in reads))
    # In the place of the sizes, the files' numbers: names that fio can't read are left out.
    cwd, named = _relative([(path, number) for number, path in enumerate(paths)])
    names = {paths[number]: name for name, number in named}
    usable = [read for read in reads if read[0] in names]
    jobs = min(jobs, len(usable))
    iologs: dict[str, str] = {}
    for job in range(jobs):
        mine = usable[job::jobs]
        own = list(dict.fromkeys(names[path] for path, _, _ in mine))
        lines = ["fio version 2 iolog", *(f"{name} add" for name in own)]
        lines += [] if once else [f"{name} open" for name in own]
        for path, offset, length in mine:
            read = f"{names[path]} read {offset} {length}"
            name = names[path]
            lines += [f"{name} open", read, f"{name} close"] if once else [read]
        lines += [] if once else [f"{name} close" for name in own]
        iologs[f"{job}.iolog"] = "\n".join(lines) + "\n"
    head = [
        *_read_head(engine, direct, seconds),
        "rw=read",
        "replay_no_stall=1",
        "fadvise_hint=0",
        f"iodepth={iodepth}",
        "write_bw_log={iologs}/windows",
        "per_job_logs=0",
        f"log_avg_msec={max(round(window_s * 1000), 1)}",
    ]
    return FioJob(
        text=_text(head, [[f"read_iolog={{iologs}}/{name}"] for name in iologs]),
        cwd=cwd,
        jobs=jobs,
        iodepth=iodepth,
        files=len(named),
        readonly=True,
        iologs=iologs,
    )


def write_job(directory: Path, *, jobs: int, each: int, block: int, direct: bool) -> FioJob:
    """Each job writes one new file of ``each`` bytes and flushes it at the end."""
    lines = [
        *_common("psync", direct),
        "rw=write",
        f"bs={block}",
        f"size={each}",
        "end_fsync=1",
        "fallocate=none",
    ]
    sections = [[f"filename=write.{job}"] for job in range(jobs)]
    return FioJob(
        text=_text(lines, sections), cwd=directory, jobs=jobs, iodepth=1, files=jobs, readonly=False
    )


def _common(engine: str, direct: bool) -> list[str]:
    head = [
        f"ioengine={engine}",
        f"direct={int(direct)}",
        "thread=1",
        "group_reporting=1",
        "percentile_list=50:99:99.9",
    ]
    # With the tunable that run_fio sets, glibc puts such buffers on huge pages.
    return [*head, "iomem=malloc", "iomem_align=2M"]


def _read_head(engine: str, direct: bool, seconds: float) -> list[str]:
    return [
        *_common(engine, direct),
        "allow_file_create=0",
        f"runtime={max(round(seconds * 1000), 1)}ms",
    ]


def _text(lines: list[str], sections: list[list[str]]) -> str:
    blocks = [
        ["[global]", *lines],
        *([f"[job{number}]", *section] for number, section in enumerate(sections)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _relative(files: Files) -> tuple[Path, list[tuple[str, int]]]:
    """The common parent folder, and the names below it; names that fio can't read are left out."""
    from ..errors import StorageError

    absolute = [(os.path.abspath(path), size) for path, size in files]
    cwd = os.path.commonpath([os.path.dirname(path) for path, _ in absolute])
    named = [(os.path.relpath(path, cwd), size) for path, size in absolute]
    named = [(name, size) for name, size in named if len(name) < 250 and not _UNSAFE.search(name)]
    if not named:
        raise StorageError(
            "fio cannot read these files: their names are too long or have special characters, for "
            f"example {files[0][0]}"
        )
    return Path(cwd), named


def _escape(name: str) -> str:
    """Escape colons, which separate names in ``filename=``."""
    return name.replace(":", "\\:")
