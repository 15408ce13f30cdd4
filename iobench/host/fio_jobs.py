"""fio's job files.

Every path in them is relative to the job's working directory, so that names of parent folders need
no escaping. Small files are given as an iolog, fio's format for replays: only so does fio open,
read and close files of different sizes, each in one read. With ``filename=`` the block size must
fit the smallest file, so the others are read in pieces and without their ends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MAX_SMALL_FILES = 8192  # fio searches its list of files linearly
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
    cwd, named = relative([(path, number) for number, path in enumerate(paths)])
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
        *read_head(engine, direct, seconds),
        "rw=read",
        "replay_no_stall=1",
        "fadvise_hint=0",
        f"iodepth={iodepth}",
        "write_bw_log={iologs}/windows",
        "per_job_logs=0",
        f"log_avg_msec={max(round(window_s * 1000), 1)}",
    ]
    return FioJob(
        text=job_text(head, [[f"read_iolog={{iologs}}/{name}"] for name in iologs]),
        cwd=cwd,
        jobs=jobs,
        iodepth=iodepth,
        files=len(named),
        readonly=True,
        iologs=iologs,
    )


def common_lines(engine: str, direct: bool) -> list[str]:
    head = [
        f"ioengine={engine}",
        f"direct={int(direct)}",
        "thread=1",
        "group_reporting=1",
        "percentile_list=50:99:99.9",
    ]
    # With the tunable that run_fio sets, glibc puts such buffers on huge pages.
    return [*head, "iomem=malloc", "iomem_align=2M"]


def read_head(engine: str, direct: bool, seconds: float) -> list[str]:
    return [
        *common_lines(engine, direct),
        "allow_file_create=0",
        f"runtime={max(round(seconds * 1000), 1)}ms",
    ]


def job_text(lines: list[str], sections: list[list[str]]) -> str:
    blocks = [
        ["[global]", *lines],
        *([f"[job{number}]", *section] for number, section in enumerate(sections)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def relative(files: Files) -> tuple[Path, list[tuple[str, int]]]:
    """The common parent folder, and the names below it; names that fio can't read are left out."""
    from ..base.errors import StorageError

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
