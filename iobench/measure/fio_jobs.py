"""fio's job files. Every path in them is relative to the job's working directory, so that no name needs escaping for its parents.

Small files are given as an iolog (fio's replay format), the only way to have fio open, read and close files of uneven size each in one
read: with ``filename=`` the block size must fit the smallest file, which reads the others in pieces and leaves their ends out.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIN_BYTES = 4096
_ALIGN = 4096  # any logical block size in use divides it
_LARGE_BLOCKS = 8
_MAX_SMALL_FILES = 8192  # fio looks files up one by one
_MAX_READS = 65536  # lines of the iologs: some megabytes
_MAX_OPEN = 512  # files that stay open, below the usual limit of 1024
_REPLAY_BYTES_PER_S = (
    8e9  # faster than any storage for small files; replays are cut off by the run time
)
_UNSAFE = re.compile(r"\s|\$\{|^[;#\[]|\\")  # what a job file or an iolog cannot carry

Files = Sequence[tuple[Path, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job file's text, the working directory it is run in, and the iologs that it reads (name -> text)."""

    text: str
    cwd: Path
    jobs: int
    iodepth: int
    files: int
    readonly: bool
    iologs: dict[str, str] = field(default_factory=dict)


def split_by_size(files: Files, block: int) -> tuple[Files, Files]:
    """(small, large): one of them is empty. Large where files of 8 blocks and more hold 90 % of the bytes (a last shard may be short)."""
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
) -> Job:
    """Jobs over disjoint parts: whole files where there are enough of them, else equal pieces of each file."""
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
    if direct:
        lines += [
            "time_based=1",
            "norandommap=1",
        ]  # buffered reads end after one pass: a second one would come from the cache
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
    return Job(
        text=_text(lines, sections),
        cwd=cwd,
        jobs=len(sections),
        iodepth=iodepth,
        files=len(named),
        readonly=True,
    )


def small_read_job(
    files: Files, *, jobs: int, block: int, direct: bool, seconds: float, seed: int
) -> Job:
    """Threads that replay open, read, close over disjoint random samples of the files; ends of less than 4 KiB are not read."""
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
                break  # each byte once
            shuffle.shuffle(mine)
        iologs[f"{job}.iolog"] = "\n".join(lines) + "\n"
    lines = [*_read_head("psync", direct, seconds), "rw=read", "replay_no_stall=1"]
    sections = [[f"read_iolog={{iologs}}/{name}"] for name in iologs]
    return Job(
        text=_text(lines, sections),
        cwd=cwd,
        jobs=jobs,
        iodepth=1,
        files=len(named),
        readonly=True,
        iologs=iologs,
    )


def write_job(directory: Path, *, jobs: int, each: int, block: int, direct: bool) -> Job:
    """One new file of ``each`` bytes per job, flushed at its end."""
    lines = [
        *_common("psync", direct),
        "rw=write",
        f"bs={block}",
        f"size={each}",
        "end_fsync=1",
        "fallocate=none",
    ]
    sections = [[f"filename=write.{job}"] for job in range(jobs)]
    return Job(
        text=_text(lines, sections), cwd=directory, jobs=jobs, iodepth=1, files=jobs, readonly=False
    )


def _common(engine: str, direct: bool) -> list[str]:
    head = [
        f"ioengine={engine}",
        f"direct={int(direct)}",
        "thread=1",
        "group_reporting=1",
        "percentile_list=50:99",
    ]
    return [
        *head,
        "iomem=malloc",
        "iomem_align=2M",
    ]  # huge pages, with the tunable that run_fio sets


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
    """The common parent, and names below it; names that fio's formats cannot carry are left out."""
    from ..errors import StorageError

    absolute = [(os.path.abspath(path), size) for path, size in files]
    cwd = os.path.commonpath([os.path.dirname(path) for path, _ in absolute])
    named = [(os.path.relpath(path, cwd), size) for path, size in absolute]
    named = [(name, size) for name, size in named if len(name) < 250 and not _UNSAFE.search(name)]
    if not named:
        raise StorageError(f"fio cannot read files with such names, e.g. {files[0][0]}")
    return Path(cwd), named


def _escape(name: str) -> str:
    """A colon separates names in ``filename=``."""
    return name.replace(":", "\\:")
