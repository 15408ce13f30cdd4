"""The charts of ``iobench whatif --hosts``: samples/s and utilization over hosts."""

from __future__ import annotations

from ..analyse.capacity.more_hosts import HostsPrediction
from ..analyse.capacity.scaling import Band
from .sections import Axis, Lines, Mark, Section, Series
from .sections import ChartPoint as Dot


def cluster_charts(found: HostsPrediction) -> list[Section]:
    """Samples/s and utilization over hosts: predicted with its band, and what was measured."""
    x = Axis(label="hosts", unit="count", scale="log2", start=1)
    measured = [job for job in found.jobs if job.per_host == found.per_host]

    low, high = found.takes_over
    takes_over = () if low is None or low != high else (Mark(at=low, label="storage takes over"),)
    if low is not None and low > found.at.hosts:
        takes_over = ()

    def lines(name: str, title: str, y: Axis, predicted: list[Dot], dots: list[Dot]) -> Lines:
        series = [Series(label="predicted", points=tuple(predicted))]
        if dots:
            series.append(Series(label="measured", points=tuple(dots), joined=False))
        return Lines(
            id=name,
            title=title,
            x=x,
            y=y,
            series=tuple(series),
            marks=takes_over,
            limits=limits if y.unit == "share" else (),
            table="hosts",
        )

    limits = (Mark(at=found.jobs[-1].required, label="required"),)
    return [
        lines(
            "rates",
            "Samples/s over hosts",
            Axis(label="samples/s", unit="samples/s"),
            [_dot(one.hosts, one.samples_per_s) for one in found.points],
            [Dot(x=job.hosts, y=job.samples_per_s) for job in measured],
        ),
        lines(
            "utilizations",
            "Accelerator utilization over hosts",
            Axis(label="utilization", unit="share"),
            [_dot(one.hosts, one.accelerator_utilization) for one in found.points],
            [Dot(x=job.hosts, y=job.accelerator_utilization) for job in measured],
        ),
    ]


def _dot(hosts: int, found: Band) -> Dot:
    """Where nothing tells the value, the dot is in the middle of its interval."""
    value = (found.low + found.high) / 2 if found.value is None else found.value
    return Dot(x=hosts, y=value, low=found.low, high=found.high)
