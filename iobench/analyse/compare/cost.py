"""What a sample costs: the rate of a recorded run, and the price of the machines. Pure functions.

A spot instance is interrupted: the training since the last checkpoint is lost, and a restart takes
time. With r interruptions an hour and a checkpoint every T, an hour loses r x (T / 2 + restart).
This is the first-order form of Young's waste (1974). Hosts that train together wait for one
another, so N hosts lose N times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ...schema.instances import Instance
from ...schema.record import TrainingRecord
from ...units import counted
from .runs import values_of

MAX_HOSTS = 1024
"""Largest number of hosts to try in the search for one that meets the deadline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms of the training.

    There are ``hosts`` instances, each as fast as the recorded run times ``efficiency``.
    """

    hosts: int = 1
    efficiency: float = 1.0  # scaling efficiency of several hosts, 0 to 1
    epochs: int | None = None
    samples: int | None = None  # of one epoch, if the real data is larger than that of the run
    deadline_s: float | None = None
    budget_usd: float | None = None
    interruptions_per_hour: float = 0.0  # of each host, for a spot instance
    checkpoint_every_s: float = 3600.0
    restart_s: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """One way to pay for the run's rate: on demand or spot."""

    kind: str  # on demand, spot
    priced: str  # the date of the price, or its source
    usd_per_hour: float  # of one host
    samples_per_s: float  # of all hosts, after lost work
    samples_per_usd: float
    samples_per_usd_low: float  # from the slowest repetition
    samples_per_usd_high: float
    usd_per_million_samples: float | None  # None: all of the time is lost
    waiting_usd_per_hour: float | None  # paid while accelerators wait
    lost_share: float  # share of the time that interruptions cost
    job_s: float | None  # for the requested epochs, including preparation
    job_usd: float | None
    samples_in_budget: float | None
    within_deadline: bool | None
    # fewest hosts that meet the deadline if these do not; None: not needed or not found
    hosts_in_time: int | None
    in_time_usd: float | None  # cost of the job with ``hosts_in_time`` hosts
    within_budget: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    run_id: str
    workload: str
    instance: Instance
    hosts: int
    samples_per_s: tuple[float, float, float]  # of one host: median, min, max
    utilization: float | None
    preparation_s: float | None  # to write the loader's own layout once; None if it has none
    prices: tuple[Price, ...]
    notes: tuple[str, ...]  # differences between the priced machine and the measured one


def samples_per_usd(samples_per_s: float, usd_per_hour: float) -> float:
    return samples_per_s * 3600 / usd_per_hour


def cost(doc: TrainingRecord, instance: Instance, terms: Terms) -> Cost | None:
    """What the run would cost on ``instance``, or None if the run has no rate.

    ``prices`` is empty if the instance has no known price.
    """
    rates = values_of(doc, "samples_per_s")
    if not rates:
        return None
    pace = (median(rates), min(rates), max(rates))
    used = values_of(doc, "accelerator_utilization_strict")
    utilization = median(used) if used else None
    samples = terms.samples or doc.job.dataset.samples
    preparation = _preparation(doc, samples)
    kinds = (
        ("on demand", instance.priced, instance.usd_per_hour, 0.0),
        ("spot", instance.spot_priced, instance.spot_usd_per_hour, terms.interruptions_per_hour),
    )
    prices = [
        _price(
            kind,
            priced,
            usd,
            rate_of=pace,
            often=often,
            terms=terms,
            samples=samples,
            utilization=utilization,
            preparation=preparation or 0.0,
        )
        for kind, priced, usd, often in kinds
        if usd is not None
    ]
    return Cost(
        run_id=doc.run_id,
        workload=doc.job.workload.name,
        instance=instance,
        hosts=terms.hosts,
        samples_per_s=pace,
        utilization=utilization,
        preparation_s=preparation,
        prices=tuple(prices),
        notes=tuple(_notes(doc, instance)),
    )


def _price(
    kind: str,
    priced: str,
    usd: float,
    *,
    rate_of: tuple[float, float, float],
    often: float,
    terms: Terms,
    samples: int | None,
    utilization: float | None,
    preparation: float,
) -> Price:
    lost = _lost(terms, often, terms.hosts)
    # rates of one host
    middle, low, high = (rate * _scaling(terms, terms.hosts) * (1 - lost) for rate in rate_of)
    hourly = usd * terms.hosts
    todo = terms.epochs * samples if terms.epochs and samples else None

    def job(hosts: int) -> float | None:
        everyone = rate_of[0] * _scaling(terms, hosts) * (1 - _lost(terms, often, hosts)) * hosts
        return preparation + todo / everyone if todo and everyone else None

    job_s = job(terms.hosts)
    job_usd = job_s / 3600 * hourly if job_s is not None else None
    in_time = _within(job_s, terms.deadline_s) if todo else None
    more = (
        [n for n in range(terms.hosts + 1, MAX_HOSTS + 1) if _within(job(n), terms.deadline_s)]
        if in_time is False
        else []
    )
    in_time_s = job(more[0]) if more else None
    return Price(
        kind=kind,
        priced=priced,
        usd_per_hour=usd,
        samples_per_s=middle * terms.hosts,
        samples_per_usd=samples_per_usd(middle, usd),
        samples_per_usd_low=samples_per_usd(low, usd),
        samples_per_usd_high=samples_per_usd(high, usd),
        usd_per_million_samples=1e6 / samples_per_usd(middle, usd) if middle else None,
        waiting_usd_per_hour=None if utilization is None else hourly * (1 - utilization),
        lost_share=lost,
        job_s=job_s,
        job_usd=job_usd,
        samples_in_budget=None
        if terms.budget_usd is None
        else terms.budget_usd * samples_per_usd(middle, usd),
        within_deadline=in_time,
        hosts_in_time=more[0] if more else None,
        in_time_usd=None if in_time_s is None else in_time_s / 3600 * usd * more[0],
        within_budget=_within(job_usd, terms.budget_usd) if todo else None,
    )


def _notes(doc: TrainingRecord, instance: Instance) -> list[str]:
    """Differences between the measured machine and the priced one.

    The rate is valid for the price only if the two are the same.
    """
    found = []
    cores = doc.host.effective_cores or doc.host.cores
    if cores and instance.cores and float(cores) != instance.cores:
        found.append(
            f"the run had {counted(float(cores), 'core')}, {instance.type} has {instance.cores}: "
            "its rate there was not measured"
        )
    if instance.accelerators and doc.job.accelerators != instance.accelerators:
        found.append(
            f"the run fed {counted(doc.job.accelerators, 'accelerator')}, but "
            f"{counted(instance.accelerators, 'accelerator')} are paid for"
        )
    return found


def _preparation(doc: TrainingRecord, samples: int | None) -> float | None:
    """Seconds to convert one epoch's samples on one host, at the conversion rate of the run."""
    layout, measured = doc.job.loader.layout, doc.job.dataset.samples
    return layout.seconds * samples / measured if layout and measured and samples else None


def _lost(terms: Terms, often: float, hosts: int) -> float:
    return min(1.0, hosts * often * (terms.checkpoint_every_s / 2 + terms.restart_s) / 3600)


def _scaling(terms: Terms, hosts: int) -> float:
    return terms.efficiency if hosts > 1 else 1.0


def _within(takes: float | None, limit: float | None) -> bool | None:
    """Whether ``takes`` is within ``limit``. ``takes`` is None for a job that never ends."""
    return None if limit is None else takes is not None and takes <= limit
