"""Reads at exactly given places of local files with a number of them in flight, by fio.

The places are a log that fio replays. With O_DIRECT one of its asynchronous engines keeps several
reads in flight; buffered reads, and files that are opened for one read, take a thread for each.

``Depth`` is what was measured with one number of reads in flight, whichever program did the reads.
A rate has windows, from which its interval comes: the time is cut into a few parts of equal length.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from ..base.errors import StorageError
from ..record.typed import ArrayText
from .fio import replay_job, run_fio
from .host import effective_cores

WINDOWS = 5

WINDOW_READS = 8
"""Reads that make a window long enough, whatever time each of them takes."""

MIN_P99, MIN_P999 = 100, 1000
"""Reads without which a 99th or a 99.9th percentile would be the slowest read of all."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Depth:
    """Reads with ``in_flight`` in flight. Rates per second, times in seconds.

    ``used``: how many of the places that were given, from the first on, may have been read;
    ``again``: whether some of them were read twice.
    ``client_cpu_share``: CPU time over what the measuring program can use. ``cycles``: those of
    ``busy_time``, where each read is known.
    """

    in_flight: int
    reads: int
    bytes: int
    seconds: float
    reads_per_s: float
    bytes_per_s: float
    window_reads_per_s: Sequence[float]
    window_bytes_per_s: Sequence[float]
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    latency_p999_s: float | None
    client_cpu_share: float | None
    used: int
    again: bool = False
    retries: int = 0
    throttled: int = 0
    latency_max_s: float | None = None
    cycles: Annotated[Times, ArrayText()] | None = field(default=None, compare=False, repr=False)


def of_cycles(
    ended: Times, cycles: Times, lengths: Times, begin: float, end: float
) -> tuple[float, float, list[float], list[float]]:
    """(reads/s, bytes/s, and both in each window) between the moments ``begin`` and ``end``.

    ``ended``: when each read ended; ``cycles``: the time since the same reader's previous read
    ended, in seconds; ``lengths`` in bytes. Every reader has to be busy for all of the time between
    the two moments. A read counts with the part of its cycle that lies between them, which makes
    the expected rate exact for any stationary storage, whether it serves the readers evenly or not.
    The number of reads that end in between would be wrong by that of the readers, where all
    latencies are equal. A window has at least the length of the mean cycle, or that of
    ``WINDOW_READS`` reads: shorter ones would share too many of theirs.
    """
    began, lasted = ended - cycles, np.maximum(cycles, 1e-9)

    def rates(low: float, high: float) -> tuple[float, float]:
        inside = np.maximum(np.minimum(ended, high) - np.maximum(began, low), 0.0) / lasted
        return float(inside.sum()) / (high - low), float((inside * lengths).sum()) / (high - low)

    reads, there = rates(begin, end)
    shortest = min(float(lasted.mean()), WINDOW_READS / max(reads, 1e-9))
    count = int(min(WINDOWS, max(1.0, (end - begin) / shortest + 1e-6)))
    edges = np.linspace(begin, end, count + 1).tolist()
    found = [rates(low, high) for low, high in itertools.pairwise(edges)]
    return reads, there, [each[0] for each in found], [each[1] for each in found]


def busy_time(cycles: Times, in_flight: int) -> tuple[float, float]:
    """The moments between which all readers were busy.

    ``cycles``: of each read the number of its reader, when it ended, its cycle, and its length, in
    the order of readers and ends. The time begins after the first read of each, where the readers
    have done enough others, and ends with the first reader that has no more.
    """
    reader, ended, lasted, _ = cycles.T
    first, last = np.ones(len(ended), dtype=bool), np.ones(len(ended), dtype=bool)
    first[1:] = last[:-1] = reader[1:] != reader[:-1]
    begin = float((ended - lasted)[first].max())
    end = float(ended[last].min())
    filled = float(ended[first].max()) if (~first).sum() >= in_flight else begin
    return (filled if filled < end else begin), end  # some reader may have had one read alone


def of_readers(
    cycles: Times, between: tuple[float, float]
) -> tuple[float, float, list[float], list[float]]:
    """The rates of ``of_cycles`` of such ``cycles``."""
    _, ended, lasted, lengths = cycles.T
    return of_cycles(ended, lasted, lengths, *between)


def percentile(took: Times, share: float, least: int = 1) -> float | None:
    """A percentile (0 to 1) of the reads' times; None for fewer than ``least`` reads."""
    return float(np.quantile(took, share)) if len(took) >= least else None


Engine = Literal["io_uring", "libaio", "psync"]

ENGINES: tuple[Engine, ...] = ("io_uring", "libaio", "psync")

OVERHEAD_S = 0.6
"""Time that fio takes to start and to end, beside its reads."""

_MANY = 32
"""From this number of reads in flight on, several of fio's threads share them."""

_MAX_JOBS = 4
_TIMEOUT_S = 60.0


def engines(*, direct: bool, once: bool) -> tuple[Engine, ...]:
    """The engines to try, the best one first."""
    return ENGINES if direct and not once else ("psync",)


def jobs_of(engine: Engine, in_flight: int) -> int:
    """The number of fio's threads, which divides the reads in flight."""
    if engine == "psync":
        return in_flight
    jobs = 1
    while in_flight >= _MANY and jobs < min(_MAX_JOBS, effective_cores() / 2):
        jobs *= 2
    return jobs if in_flight % jobs == 0 else 1


def read_at_depth(
    reads: Sequence[tuple[Path, int, int]],
    *,
    engine: Engine,
    in_flight: int,
    once: bool,
    direct: bool,
    seconds: float,
    run_dir: Path,
) -> Depth:
    """Read these (path, offset, bytes) in their order for ``seconds``, or until they end.

    Raises StorageError if fio can't do so.
    """
    jobs = jobs_of(engine, in_flight)
    window_s = seconds / WINDOWS
    job = replay_job(
        reads,
        engine=engine,
        jobs=jobs,
        iodepth=in_flight // jobs,
        once=once,
        direct=direct,
        seconds=seconds,
        window_s=window_s,
    )
    figures = run_fio(
        job, run_dir, f"depth-{in_flight}", kind="read", timeout_s=seconds + _TIMEOUT_S
    )
    log = Path(figures.job_file).with_suffix(".windows_bw.log")
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    windows = window_rates(text, figures.seconds, window_s, figures.bytes_per_s)
    count, size = figures.ios, mean_bytes(reads, figures.ios, figures.bytes)
    # A single thread replays a beginning of the log; several may be at different places of theirs.
    used = min(count + in_flight, len(reads)) if job.jobs == 1 else len(reads)
    return Depth(
        in_flight=in_flight,
        reads=count,
        bytes=figures.bytes,
        seconds=figures.seconds,
        reads_per_s=figures.bytes_per_s / size,
        bytes_per_s=figures.bytes_per_s,
        window_reads_per_s=[rate / size for rate in windows],
        window_bytes_per_s=windows,
        latency_mean_s=figures.latency_mean_s,
        latency_p50_s=figures.latency_p50_s,
        latency_p99_s=figures.latency_p99_s if count >= MIN_P99 else None,
        latency_p999_s=figures.latency_p999_s if count >= MIN_P999 else None,
        client_cpu_share=figures.cpu_s / figures.seconds / min(job.jobs, effective_cores()),
        used=used,
    )


def mean_bytes(reads: Sequence[tuple[Path, int, int]], count: int, moved: int) -> float:
    """Mean bytes of the first ``count`` reads, of which fio has ``moved`` so many bytes.

    Where fio comes to the end of its log, its number of reads includes those in flight, whose bytes
    and time it leaves out. The rate of reads is therefore that of bytes over this mean.
    """
    lengths = [length for _, _, length in reads[:count]]
    return sum(lengths) / len(lengths) if lengths else moved / count


def window_rates(log: str, seconds: float, window_s: float, mean: float) -> list[float]:
    """Bytes/s of all jobs in each window, from fio's log of bandwidths.

    A line is "milliseconds, KiB/s, ..." for the time since the job's previous line. The jobs' lines
    follow one another, and windows may be missing, so the rates are taken in the middle of each
    window and scaled to their ``mean``, which is known exactly. Raises StorageError for a log of
    another form.
    """
    jobs: list[list[tuple[float, float]]] = [[]]
    try:
        for line in log.splitlines():
            at, rate = (float(part) for part in line.split(",")[:2])
            if jobs[-1] and at / 1000 <= jobs[-1][-1][0]:
                jobs.append([])
            jobs[-1].append((at / 1000, rate * 1024))
    except ValueError:
        raise StorageError(
            f"fio's log of bandwidths has a line that iobench can't read: {line[:80]!r}",
            remedy="use fio 3.0 or newer",
        ) from None
    known = [job for job in jobs if job]
    longest = max((job[-1][0] for job in known), default=0.0)
    count = int(min(longest, seconds) / window_s + 0.5)
    sums = [sum(_at((number + 0.5) * window_s, job) for job in known) for number in range(count)]
    middle = sum(sums) / len(sums) if sums else 0.0
    return [rate * mean / middle for rate in sums] if middle > 0 else []


def _at(moment_s: float, job: Sequence[tuple[float, float]]) -> float:
    """A job's rate at a moment; 0 after its last line."""
    return next((rate for end, rate in job if end >= moment_s), 0.0)
