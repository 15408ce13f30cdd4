"""What a sample costs: a recorded run's rate times the price of the machines it takes. Pure functions; prices carry their date.

A spot instance is interrupted: what was trained since the last checkpoint is lost, and a restart takes its time. With r interruptions
an hour and a checkpoint every T, an hour loses r x (T / 2 + restart), the first-order form of Young's waste (1974).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..spec.instances import Instance
from ..spec.result import RunDocument
from .compare import values_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Under which the training runs. ``hosts``: of this instance, each as fast as the recorded run times ``efficiency``."""

    hosts: int = 1
    efficiency: float = 1.0  # scaling efficiency of several hosts, 0 to 1
    epochs: int | None = None
    samples: int | None = None  # of one epoch, where the real data is larger than the run's
    deadline_s: float | None = None
    budget_usd: float | None = None
    interruptions_per_hour: float = 0.0  # of a spot instance
    checkpoint_every_s: float = 3600.0
    restart_s: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """One way to pay for the run's rate: on demand or spot."""

    kind: str  # on demand, spot
    priced: str  # the date of the price, or whose it is
    usd_per_hour: float  # of one host
    samples_per_s: float  # of all hosts, lost work taken off
    samples_per_usd: float
    samples_per_usd_low: float  # from the slowest repetition
    samples_per_usd_high: float
    usd_per_million_samples: float
    waiting_usd_per_hour: float | None  # paid while accelerators waited
    lost_share: float  # of the time, to interruptions
    job_s: float | None  # for the epochs that were asked for, preparation included
    job_usd: float | None
    samples_in_budget: float | None
    within_deadline: bool | None
    within_budget: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    run_id: str
    workload: str
    instance: Instance
    hosts: int
    samples_per_s: tuple[float, float, float]  # of one host: median, min, max
    utilization: float | None
    preparation_s: float | None  # to write the loader's own layout of an epoch's samples, once; None where there is none
    prices: tuple[Price, ...]
    notes: tuple[str, ...]  # where the priced machine is not the one that was measured


def samples_per_usd(samples_per_s: float, usd_per_hour: float) -> float:
    return samples_per_s * 3600 / usd_per_hour


def cost(doc: RunDocument, instance: Instance, terms: Terms) -> Cost | None:
    """None where the run has no rate, or the instance no price: then there is nothing to say."""
    rates = sorted(values_of(doc, "samples_per_s"))
    if not rates:
        return None
    middle = _median(rates)
    used = values_of(doc, "accelerator_utilization_strict")
    utilization = _median(sorted(used)) if used else None
    samples = terms.samples or doc.dataset.get("samples")
    preparation = _preparation(doc, samples)
    spot_of = instance.spot_priced or instance.priced
    kinds = (
        ("on demand", instance.priced, instance.usd_per_hour, 0.0),
        ("spot", spot_of, instance.spot_usd_per_hour, terms.interruptions_per_hour),
    )
    prices = [
        _price(
            kind,
            priced,
            usd,
            rate_of=(middle, rates[0], rates[-1]),
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
        workload=str(doc.workload.get("name", "?")),
        instance=instance,
        hosts=terms.hosts,
        samples_per_s=(middle, rates[0], rates[-1]),
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
    lost = min(1.0, often * (terms.checkpoint_every_s / 2 + terms.restart_s) / 3600)
    scaling = terms.efficiency if terms.hosts > 1 else 1.0
    middle, low, high = (rate * scaling * (1 - lost) for rate in rate_of)  # of one host
    everyone = middle * terms.hosts
    hourly = usd * terms.hosts
    job_s = preparation + terms.epochs * samples / everyone if terms.epochs and samples and everyone else None
    job_usd = job_s / 3600 * hourly if job_s is not None else None
    return Price(
        kind=kind,
        priced=priced,
        usd_per_hour=usd,
        samples_per_s=everyone,
        samples_per_usd=samples_per_usd(middle, usd),
        samples_per_usd_low=samples_per_usd(low, usd),
        samples_per_usd_high=samples_per_usd(high, usd),
        usd_per_million_samples=1e6 / samples_per_usd(middle, usd) if middle else math.inf,
        waiting_usd_per_hour=None if utilization is None else hourly * (1 - utilization),
        lost_share=lost,
        job_s=job_s,
        job_usd=job_usd,
        samples_in_budget=None if terms.budget_usd is None else terms.budget_usd * samples_per_usd(middle, usd),
        within_deadline=None if terms.deadline_s is None or job_s is None else job_s <= terms.deadline_s,
        within_budget=None if terms.budget_usd is None or job_usd is None else job_usd <= terms.budget_usd,
    )


def _notes(doc: RunDocument, instance: Instance) -> list[str]:
    """What sets the measured machine apart from the priced one: a rate is worth a price only where both are the same."""
    found = []
    cores = doc.host.get("effective_cores") or doc.host.get("cores")
    if cores and instance.cores and float(cores) != instance.cores:
        found.append(f"the run had {float(cores):g} cores, {instance.type} has {instance.cores}: its rate there was not measured")
    if instance.accelerators and doc.accelerators != instance.accelerators:
        found.append(f"the run fed {doc.accelerators} of the {instance.accelerators} accelerators that are paid for")
    return found


def _preparation(doc: RunDocument, samples: int | None) -> float | None:
    """Seconds to convert as many samples as an epoch has, at the rate at which the run's were converted, on one host."""
    layout, measured = doc.loader.get("layout"), doc.dataset.get("samples")
    return float(layout["seconds"]) * samples / measured if layout and measured and samples else None


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def hosts_for(deadline_s: float, job_s: float, efficiency: float) -> int:
    """How many hosts finish within the deadline a job that takes one host ``job_s``; one needs no efficiency."""
    if job_s <= deadline_s:
        return 1
    return max(2, math.ceil(job_s / (deadline_s * efficiency) - 1e-9))
