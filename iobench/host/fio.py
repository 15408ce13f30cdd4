"""Run fio on a job file and read its JSON output.

The job file, the iologs and the JSON are kept, so that a measurement can be repeated.

fio's buffers lie on transparent huge pages, as the reader's do. fio has no option for that, so its
malloc is told by glibc's tunable ``glibc.malloc.hugetlb=1``, and ``iomem_align=2M`` puts the whole
buffer on huge pages. Without them fio was 1.5 to 1.8 times slower with reads of 4 MiB.

fio's job files.

Every path in them is relative to the job's working directory, so that names of parent folders need
no escaping. Small files are given as an iolog, fio's format for replays: only so does fio open,
read and close files of different sizes, each in one read. With ``filename=`` the block size must
fit the smallest file, so the others are read in pieces and without their ends.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..base.errors import StorageError

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
    usable = [
        (name, f"{name} read {offset} {length}")
        for path, offset, length in reads
        if (name := names.get(path)) is not None
    ]
    jobs = min(jobs, len(usable))
    iologs: dict[str, str] = {}
    for job in range(jobs):
        mine = usable[job::jobs]
        own = list(dict.fromkeys(name for name, _ in mine))
        lines = ["fio version 2 iolog", *(f"{name} add" for name in own)]
        if once:
            lines += [f"{name} open\n{read}\n{name} close" for name, read in mine]
        else:
            lines += [f"{name} open" for name in own]
            lines += [read for _, read in mine]
            lines += [f"{name} close" for name in own]
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


_TUNABLE = "glibc.malloc.hugetlb=1"
"""malloc uses transparent huge pages (glibc 2.35 and newer); other C libraries ignore it."""

_ERRNO_END = 4096  # Linux has smaller error numbers only (include/linux/err.h, MAX_ERRNO)


class FioFigures(NamedTuple):
    bytes: int
    seconds: float
    iops: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    cpu_s: float
    command: str = ""
    job_file: str = ""
    latency_p999_s: float | None = None
    latency_mean_s: float | None = None
    ios: int = 0  # reads or writes

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds


def available() -> bool:
    """Whether fio is installed."""
    return executable() is not None


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


def executable() -> str | None:
    return shutil.which("fio")


def version() -> str | None:
    path = executable()
    if path is None:
        return None
    try:
        return (
            subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
            or None
        )
    except (OSError, subprocess.SubprocessError):
        return None


def run_fio(
    job: FioJob, directory: Path, name: str, *, kind: Literal["read", "write"], timeout_s: float
) -> FioFigures:
    """Run ``job``, with its files kept under ``directory/name.*``.

    Raises StorageError with fio's own message in one line.
    """
    fio = executable() or "fio"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        stem = _free_stem(directory.resolve(), name)
        for log, text in job.iologs.items():
            stem.with_name(f"{stem.name}.{log}").write_text(
                text, encoding="utf-8", errors="surrogateescape"
            )
        job_file, json_file = (
            stem.with_name(f"{stem.name}.fio"),
            stem.with_name(f"{stem.name}.json"),
        )
        # A colon also separates names in read_iolog.
        logs = str(stem).replace(":", "\\:")
        command = [
            fio,
            *(["--readonly"] if job.readonly else []),
            "--output-format=json",
            "--eta=never",
            str(job_file),
        ]
        shown = f"cd {shlex.quote(str(job.cwd))} && GLIBC_TUNABLES={_TUNABLE} {shlex.join(command)}"
        job_file.write_text(
            f"# {shown}\n{job.text.replace('{iologs}/', logs + '.')}",
            encoding="utf-8",
            errors="surrogateescape",
        )
        code, out, err = _communicate(command, job.cwd, timeout_s)
        json_file.write_text(out, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot run fio: {error.strerror or error} ({error.filename or fio})"
        ) from error
    return parse(out, err, code, kind=kind)._replace(command=shown, job_file=str(job_file))


def parse(out: str, err: str, code: int, *, kind: Literal["read", "write"]) -> FioFigures:
    """Figures over all jobs in fio's JSON, which warnings may precede.

    Raises StorageError if a job failed or moved no data.
    """
    document = _document(out)
    jobs: list[dict[str, Any]] = document["jobs"] if document else []
    failed = next((job["error"] for job in jobs if _is_errno(job.get("error"))), 0)
    if code != 0 or failed or not jobs:
        text = out if document is None else out[: out.index("{")]
        what = os.strerror(failed) if failed else f"exit status {code}"
        raise StorageError(f"fio failed: {_message(err, text) or what}")
    try:
        sides = [job[kind] for job in jobs]
        moved = sum(int(side["io_bytes"]) for side in sides)
        seconds = max(float(side["runtime"]) for side in sides) / 1000
        count = sum(int(side["total_ios"]) for side in sides)
        busiest = max(sides, key=lambda side: int(side["total_ios"]))
        # With group_reporting the percentages refer to job_runtime, the sum over the group's jobs.
        cpu = sum(
            (float(job["usr_cpu"]) + float(job["sys_cpu"])) / 100 * float(job["job_runtime"]) / 1000
            for job in jobs
        )
        percentiles = busiest.get("clat_ns", {}).get("percentile", {})
        p50, p99 = _nanoseconds(percentiles, 50), _nanoseconds(percentiles, 99)
        p999, mean = _nanoseconds(percentiles, 99.9), busiest.get("clat_ns", {}).get("mean")
        mean_s = None if mean is None else float(mean) / 1e9
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StorageError(
            f"fio's JSON lacks a required value ({type(error).__name__}: {error})",
            remedy="use fio 3.0 or newer",
        ) from error
    if not (moved > 0 and seconds > 0):
        raise StorageError(
            "fio transferred no data in a measurable time", remedy="use more data, or a longer time"
        )
    return FioFigures(
        bytes=moved,
        seconds=seconds,
        iops=count / seconds,
        latency_p50_s=p50,
        latency_p99_s=p99,
        cpu_s=cpu,
        latency_p999_s=p999,
        latency_mean_s=mean_s,
        ios=count,
    )


def _document(out: str) -> dict[str, Any] | None:
    """The JSON object in fio's output; warnings may come before and after it."""
    for match in re.finditer(r"^\{", out, re.MULTILINE):
        try:
            found = json.JSONDecoder().raw_decode(out, match.start())[0]
        except (ValueError, RecursionError):
            continue
        jobs = found.get("jobs")
        if isinstance(jobs, list) and all(isinstance(job, dict) for job in jobs):
            return dict(found)
    return None


def _is_errno(value: object) -> bool:
    return isinstance(value, int) and 0 < value < _ERRNO_END


def _message(*texts: str) -> str:
    """The line of fio's output that says most about the failure."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    for pattern in (r"io_u error on file (.*)", r"\berror=(.*)", r"(?:fio: )(.*)"):
        for line in lines:
            if match := re.search(pattern, line):
                return match.group(1)
    return lines[0] if lines else ""


def _nanoseconds(percentiles: dict[str, Any], which: float) -> float | None:
    value = percentiles.get(f"{which:.6f}")
    return None if value is None else float(value) / 1e9


def _communicate(command: list[str], cwd: Path, timeout_s: float) -> tuple[int, str, str]:
    """Run fio to its end.

    After a time-out or an interrupt fio is asked to stop, so that it removes its shared memory, and
    killed if it does not stop. Raises StorageError after a time-out.
    """
    tunables = ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), _TUNABLE)))
    environment = {**os.environ, "GLIBC_TUNABLES": tunables}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        errors="replace",
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except BaseException as error:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise StorageError(f"fio did not end within {timeout_s:.0f} s") from error
        raise
    return process.returncode, out, err


def _free_stem(directory: Path, name: str) -> Path:
    """``directory/name``, with a number added if files of an earlier run exist."""
    number = 1
    while (
        (stem := directory / (name if number == 1 else f"{name}-{number}"))
        .with_name(f"{stem.name}.fio")
        .exists()
    ):
        number += 1
    return stem
