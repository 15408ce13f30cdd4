"""Several jobs on one storage at the same time: what it must deliver to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .requirement import Requirement


@dataclass(frozen=True, kw_only=True, slots=True)
class JointDemand:
    """Sums over the jobs, each at its own rate; a figure that one of them lacks is None.

    The margins are those of the single jobs: that all of them need theirs at the same moment is
    the worst case.
    """

    accelerators: int
    dataset_bytes: float
    read_bytes_per_s: float  # the mean, at the required utilization
    buy_bytes_per_s: float | None
    buy_reads_per_s: float | None
    peak_read_bytes_per_s: float
    opens_per_s: float
    not_measured: dict[str, str]


def together(jobs: Sequence[Requirement]) -> JointDemand:
    """What the jobs need of one storage if they run at the same time."""
    reasons = [
        f"{job.workload}: {job.not_measured['buy_bytes_per_s']}"
        for job in jobs
        if job.buy_bytes_per_s is None
    ]
    missing = {"buy_bytes_per_s": "; ".join(reasons)} if reasons else {}
    datasets = {job.dataset: job.dataset_bytes for job in jobs}
    return JointDemand(
        accelerators=sum(job.accelerators for job in jobs),
        dataset_bytes=sum(datasets.values()),
        read_bytes_per_s=sum(job.read_bytes_per_s for job in jobs),
        buy_bytes_per_s=_sum([job.buy_bytes_per_s for job in jobs]),
        buy_reads_per_s=_sum([job.buy_reads_per_s for job in jobs]),
        peak_read_bytes_per_s=sum(job.peak_read_bytes_per_s for job in jobs),
        opens_per_s=sum(job.opens_per_s for job in jobs),
        not_measured=missing,
    )


def _sum(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None
