"""What a sample costs: the rate of recorded runs, and the price of the machines. Pure functions.

Hosts that train together wait for the slowest of them at each step, and are interrupted together.
They are faster than one host only as far as the storage was measured to deliver, unless the user
says that it grows with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...base.documents import UNPRINTED
from ...base.units import counted, format_duration, samples_per_usd
from ...record.ab import Answer
from ...record.run import RunRecord, ServingRecord
from ...record.verdict import Estimate
from ...settings.instances import Instance
from .pace import Basis, Pace, SaveTimes, Schedule, held_in, lost_share, saving_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms of the training, for all options alike."""

    efficiency: float = 1.0  # of hosts beyond those that were measured together, 0 to 1
    storage_grows: bool = False  # with the number of hosts
    epochs: int | None = None
    samples: int | None = None  # of one epoch, if the real data is larger than that of the run
    deadline_s: float | None = None
    budget_usd: float | None = None
    interruptions_per_hour: float | None = None  # of each spot instance; None: not known
    schedule: Schedule = field(default_factory=Schedule)
    checkpoints: RunRecord | None = None  # the run whose saves count; None: the priced runs' own


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedHosts:
    """Hosts of one type in a job.

    ``measured``: the runs of ``pace`` had this type of host. ``groups``: of how many groups of
    runs ``pace`` is that of the slowest.
    """

    hosts: int
    instance: Instance
    measured: bool
    run_ids: tuple[str, ...]
    samples_per_s: Estimate  # of one host; n: runs
    interval_basis: Basis
    accelerator_utilization_sustained: float | None
    pace: Pace = field(metadata=UNPRINTED)
    groups: int = field(metadata=UNPRINTED)

    @classmethod
    def of(
        cls, instance: Instance, pace: Pace, *, hosts: int, measured: bool = True, groups: int = 1
    ) -> PricedHosts:
        return cls(
            hosts=hosts,
            instance=instance,
            measured=measured,
            run_ids=tuple(doc.run_id for doc in pace.runs),
            samples_per_s=Estimate(
                value=pace.middle, low=pace.low, high=pace.high, n=len(pace.values)
            ),
            interval_basis=pace.basis,
            accelerator_utilization_sustained=pace.utilization,
            pace=pace,
            groups=groups,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What one host costs, and where that figure comes from."""

    type: str
    usd_per_hour: float
    currency: str
    region: str  # empty: not stated
    priced: str  # the date, ISO 8601; empty: not stated
    source: str


LateBecause = Literal["", "preparation", "storage", "lost time", "storage and lost time"]
"""Without what some number of hosts would be in time: saves and interruptions are lost time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostFigures:
    """What one way to pay costs, and what it delivers.

    Where the interruptions of spot instances are not known, ``never_interrupted`` is set: rates are
    upper bounds then, times and costs lower bounds. Samples/s and samples per USD are for all hosts
    after lost time; their ``low`` and ``high`` follow from the interval of the rate.
    """

    kind: str  # on demand, spot
    prices: tuple[Price, ...]  # of each part
    usd_per_hour: float  # of all hosts
    samples_per_s: float
    samples_per_usd: float
    samples_per_usd_low: float | None  # None: one repetition, or the storage's is not known
    samples_per_usd_high: float | None
    usd_per_million_samples: float | None  # None: all of the time is lost
    never_interrupted: bool
    saving: SaveTimes | None  # None: the time of a save is not known, and not in these figures
    lost_share: float  # of the time, by saves and interruptions
    waiting_usd_per_hour: float | None  # paid while accelerators wait for data
    # Samples/s that the hosts could take, and the most that the storage was measured to deliver
    wanted_samples_per_s: float
    storage_samples_per_s: float | None
    storage_limits: bool  # the hosts wait for it
    if_storage_grows: bool  # the rate is not covered by what was measured
    break_even_interruptions_per_hour: float | None  # spot: then it costs as much as on demand
    job_s: float | None  # for the requested epochs, including preparation
    job_usd: float | None
    preparation_s: float | None
    samples_in_budget: float | None
    within_deadline: bool | None
    within_budget: bool | None
    # fewest hosts that meet the deadline if these do not; None: not needed or not found
    hosts_in_time: int | None
    in_time_usd: float | None
    never_in_time: LateBecause  # why no number of hosts is in time; empty: not needed, or others
    notes: tuple[str, ...]  # differences between the priced machine and the measured one


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """What a sample costs with an option, over its cost with the best one.

    ``low`` and ``high`` are None if the interval is not known; ``why`` has the reason.
    """

    answer: Answer
    ratio: float | None  # None: nothing is trained with this option
    low: float | None = None
    high: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One way to pay for the job: machines, on demand or spot.

    ``machine``: ``2 x g5.2xlarge + 4 x g5.4xlarge``; one host has no number.
    """

    machine: str
    hosts: int
    parts: tuple[PricedHosts, ...]
    figures: CostFigures
    against: Against | None = None  # None: it is the best one
    differs: tuple[str, ...] = ()  # in its runs, from those of the best one; a line for each key

    @property
    def slowest(self) -> PricedHosts:
        """The part whose hosts are the slowest: the others wait for them."""
        return min(self.parts, key=lambda part: part.pace.middle)

    @property
    def in_time_and_budget(self) -> bool:
        found = self.figures
        return found.within_deadline is not False and found.within_budget is not False


MAX_HOSTS = 1024
"""Largest number of hosts to try in the search for one that meets the deadline."""

MAX_INTERRUPTIONS = 60.0
"""Largest number of interruptions of a host in an hour that is searched for, or can be stated."""


WHAT_LASTS = (
    "the rate is the one that lasts: that of whole epochs where a budget cut them, and the one "
    "after a fall that lasts"
)

SLOWED = (
    "the rate is that beside asynchronous saves, which slow steps down as often as the run saved, "
    "whatever --interval says: price a run without saves, and name the saves with --checkpoints"
)

_AT_ONCE_S = 1e-3
"""A server loses only the time of its restart when it is interrupted, and no work."""


def break_even_efficiency(
    usd_per_hour: float, other_usd_per_hour: float, speedup: float = 1.0
) -> float:
    """The scaling efficiency at which several hosts cost as much for a sample as another machine.

    ``usd_per_hour``: of these hosts together. ``speedup``: their rate at an efficiency of 1 over
    that of the other machine; 1 if both have the same accelerators. Above 1 it cannot be reached.
    """
    return usd_per_hour / other_usd_per_hour / speedup


def options_of(parts: Sequence[PricedHosts], terms: Terms) -> list[Option]:
    """The ways to pay for these hosts: on demand and spot, as far as all have such a price."""
    found = []
    for kind in ("on demand", "spot"):
        prices = [_price(part.instance, kind) for part in parts]
        known = [price for price in prices if price is not None]
        if len(known) == len(prices):
            found.append(_option(tuple(parts), kind, tuple(known), terms))
    return found


def _price(instance: Instance, kind: str) -> Price | None:
    spot = kind == "spot"
    usd = instance.spot_usd_per_hour if spot else instance.usd_per_hour
    if usd is None:
        return None
    return Price(
        type=instance.type,
        usd_per_hour=usd,
        currency=instance.currency,
        region=(instance.spot_region if spot else instance.region) or "",
        priced=instance.spot_priced if spot else instance.priced,
        source=instance.spot_source if spot else instance.source,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """The arithmetic of one option, for any number of hosts."""

    slowest: Pace
    terms: Terms
    interruptions_per_hour: float  # of each host
    preparation_s: float
    samples: int | None  # of the whole job

    def wanted(self, hosts: int) -> float:
        """Samples/s that the hosts take while they train, at the rate of the slowest of them."""
        more = hosts > self.slowest.hosts
        return hosts * self.slowest.middle * (self.terms.efficiency if more else 1.0)

    def storage(self, hosts: int) -> float | None:
        """The most that the storage was measured to deliver; None: it does not limit the hosts.

        It delivered what the runs received, whatever its ceiling says.
        """
        known = self.slowest.storage
        if hosts <= self.slowest.hosts or known is None:
            return None
        return max(known.value, self.slowest.middle * self.slowest.hosts)

    def schedule(self, hosts: int) -> Schedule:
        """When so many hosts save, and how long that takes them; a server saves nothing."""
        if isinstance(self.slowest.runs[0], ServingRecord):
            return replace(self.terms.schedule, every_s=_AT_ONCE_S, saving=None)
        return replace(self.terms.schedule, saving=_saving(self.slowest, self.terms, hosts))

    def lost(self, hosts: int) -> float:
        return lost_share(self.schedule(hosts), self.interruptions_per_hour * hosts)

    def rate(self, hosts: int, without: LateBecause = "") -> float:
        """Samples/s of all hosts, after lost time; ``without`` some limits."""
        rate, storage = self.wanted(hosts), self.storage(hosts)
        if storage is not None and not self.terms.storage_grows and "storage" not in without:
            rate = min(rate, storage)
        return rate if "lost time" in without else rate * (1 - self.lost(hosts))

    def seconds(self, hosts: int, without: LateBecause = "") -> float | None:
        """Time of the job; None without a job, and for one that never ends."""
        rate = self.rate(hosts, without)
        return self.preparation_s + self.samples / rate if self.samples and rate else None

    def hosts_in_time(self, more_than: int, without: LateBecause = "") -> int | None:
        """The fewest hosts, above a number, that meet the deadline."""
        deadline_s, each = self.terms.deadline_s, range(more_than + 1, MAX_HOSTS + 1)
        return next((n for n in each if _within(self.seconds(n, without), deadline_s)), None)

    def never_in_time(self, more_than: int) -> LateBecause:
        """Why no number of hosts meets the deadline; empty if so many are just not enough."""
        if not _within(self.preparation_s, self.terms.deadline_s):
            return "preparation"
        limits: Sequence[LateBecause] = ("storage", "lost time", "storage and lost time")
        return next((one for one in limits if self.hosts_in_time(more_than, one)), "")


def _option(
    parts: tuple[PricedHosts, ...], kind: str, prices: tuple[Price, ...], terms: Terms
) -> Option:
    slowest = min(parts, key=lambda part: part.pace.middle).pace
    hosts, spot = sum(part.hosts for part in parts), kind == "spot"
    hourly = sum(part.hosts * price.usd_per_hour for part, price in zip(parts, prices, strict=True))
    known = terms.samples or slowest.runs[0].job.dataset.samples
    preparation = max((part.pace.preparation_s or 0.0 for part in parts), default=0.0)
    job = _Job(
        slowest=slowest,
        terms=terms,
        interruptions_per_hour=(terms.interruptions_per_hour or 0.0) if spot else 0.0,
        preparation_s=preparation * (known or 0),
        samples=terms.epochs * known if terms.epochs and known else None,
    )
    wanted, storage, lost = job.wanted(hosts), job.storage(hosts), job.lost(hosts)
    limits = storage is not None and wanted > storage and not terms.storage_grows
    rate, seconds = job.rate(hosts), job.seconds(hosts)
    interval = _interval(job, hosts, limits=limits)
    usd = seconds / 3600 * hourly if seconds is not None else None
    in_time = _within(seconds, terms.deadline_s) if job.samples else None
    more = job.hosts_in_time(hosts) if in_time is False and len(parts) == 1 else None
    more_s = job.seconds(more) if more else None
    too_late = in_time is False and len(parts) == 1 and not more
    each = samples_per_usd(rate, hourly)
    figures = CostFigures(
        kind=kind,
        prices=prices,
        usd_per_hour=hourly,
        samples_per_s=rate,
        samples_per_usd=each,
        samples_per_usd_low=each * interval[0] if interval else None,
        samples_per_usd_high=each * interval[1] if interval else None,
        usd_per_million_samples=1e6 / each if each else None,
        never_interrupted=spot and terms.interruptions_per_hour is None,
        saving=job.schedule(hosts).saving,
        lost_share=lost,
        waiting_usd_per_hour=_waiting(
            parts, prices, slowest, share=storage / wanted if limits and storage else 1.0
        ),
        wanted_samples_per_s=wanted,
        storage_samples_per_s=storage,
        storage_limits=limits,
        if_storage_grows=hosts > slowest.hosts and not limits and _beyond(storage, wanted),
        break_even_interruptions_per_hour=_break_even(job, parts, hourly) if spot else None,
        job_s=seconds,
        job_usd=usd,
        preparation_s=job.preparation_s or None,
        samples_in_budget=None
        if terms.budget_usd is None
        else max(0.0, terms.budget_usd - job.preparation_s / 3600 * hourly) * each,
        within_deadline=in_time,
        within_budget=_within(usd, terms.budget_usd) if job.samples else None,
        hosts_in_time=more,
        in_time_usd=None
        if more is None or more_s is None
        else more_s / 3600 * prices[0].usd_per_hour * more,
        never_in_time=job.never_in_time(hosts) if too_late else "",
        notes=tuple(note for part in parts for note in _notes(part)),
    )
    names = [f"{part.hosts} x {part.instance.type}" for part in parts]
    machine = parts[0].instance.type if hosts == 1 else " + ".join(names)
    return Option(machine=machine, hosts=hosts, parts=parts, figures=figures)


def _beyond(storage: float | None, wanted: float) -> bool:
    """Whether hosts want more than the storage was measured to deliver, or that is not known."""
    return storage is None or wanted > storage


def _saving(pace: Pace, terms: Terms, hosts: int) -> SaveTimes | None:
    """The saves that count: those of the run that was named, or of the newest that saved.

    Where the rate is that beside asynchronous saves, it has what they slow the steps down.
    """
    sources = (*pace.runs, *([terms.checkpoints] if terms.checkpoints else []))
    found = [saving_of(doc, hosts, grows=terms.storage_grows) for doc in sources]
    known = [saving for saving in found if saving is not None]
    saving = terms.schedule.saving or (known[-1] if known else None)
    return replace(saving, drag=0.0) if saving is not None and pace.slowed else saving


def _interval(job: _Job, hosts: int, *, limits: bool) -> tuple[float, float] | None:
    """The ends of the rate's interval, over the rate; None if it is not known.

    No end is above what the storage delivers; hosts that wait for it have its interval. One
    repetition has none.
    """
    pace, storage, top = job.slowest, job.slowest.storage, job.storage(hosts)
    low, high = pace.low / pace.middle, pace.high / pace.middle
    if storage is not None and top is not None and not job.terms.storage_grows:
        if limits and (storage.low is None or storage.high is None):
            return None
        wanted = job.wanted(hosts)
        rate = min(wanted, top)
        least, most = min(storage.low or top, top), max(storage.high or top, top)
        low, high = min(low * wanted, least, rate), max(min(high * wanted, most), rate)
        low, high = low / rate, high / rate
    return (low, high) if low < high else None


def _waiting(
    parts: Sequence[PricedHosts], prices: Sequence[Price], slowest: Pace, *, share: float
) -> float | None:
    """USD an hour for accelerators that wait for data.

    ``share``: of the rate that the hosts could have, what the storage lets them have. A host that
    is faster than the slowest one waits for it.
    """
    total = 0.0
    for part, price in zip(parts, prices, strict=True):
        if part.pace.utilization is None:
            return None
        busy = part.pace.utilization * share * slowest.middle / part.pace.middle
        total += part.hosts * price.usd_per_hour * (1 - min(1.0, busy))
    return total


def _break_even(job: _Job, parts: Sequence[PricedHosts], spot_hourly: float) -> float | None:
    """Interruptions of each spot host in an hour at which a sample costs as much as on demand.

    None without a price on demand; ``MAX_INTERRUPTIONS`` stands for all larger rates.
    """
    prices = [part.instance.usd_per_hour for part in parts]
    demand = sum(
        part.hosts * usd for part, usd in zip(parts, prices, strict=True) if usd is not None
    )
    if None in prices or demand <= 0:
        return None
    hosts = sum(part.hosts for part in parts)
    schedule = job.schedule(hosts)
    least = (1 - lost_share(schedule, 0.0)) * spot_hourly / demand

    def pays(often: float) -> bool:
        return 1 - lost_share(schedule, often * hosts) >= least

    low, high = 0.0, MAX_INTERRUPTIONS
    if pays(high):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def _notes(part: PricedHosts) -> list[str]:
    """Differences between the measured machine and the priced one.

    The rate is valid for the price only if the two are the same.
    """
    doc, instance = part.pace.runs[0], part.instance
    found = []
    if not part.measured:
        found.append(
            f"no run has a host of type {instance.type}: its rate is that of the slowest runs here"
        )
    if part.groups > 1:
        found.append(
            f"the rate of {instance.type} is that of the slowest of {part.groups} groups of runs, "
            "which differ in settings, host, storage or versions"
        )
    cores = doc.host.effective_cores or doc.host.cores
    if cores and instance.cores and float(cores) != instance.cores:
        found.append(
            f"the run had {counted(float(cores), 'core')}, {instance.type} has {instance.cores}: "
            "its rate there was not measured"
        )
    if (emulated := _emulated(part)) is not None:
        found.append(emulated)
    if isinstance(doc, ServingRecord):
        accelerators = doc.job.scenario.accelerators
        found.append(f"the rate is one at which {limit_of(part.pace)}")
    else:
        accelerators = doc.job.accelerators
        found += [WHAT_LASTS] if part.pace.lasting else []
        found += [SLOWED] if part.pace.slowed else []
    each = accelerators / part.pace.hosts
    if instance.accelerators and each != instance.accelerators:
        found.append(
            f"the run fed {counted(each, 'accelerator')}, but "
            f"{counted(instance.accelerators, 'accelerator')} are paid for"
        )
    return found


def limit_of(pace: Pace) -> str:
    """Which limit the runs of a server held, and in how many repetitions, if not in all."""
    runs = [doc for doc in pace.runs if isinstance(doc, ServingRecord)]
    if not runs:
        return ""
    spec = runs[0].job.scenario
    limit = f"p{100 * spec.quantile:.4g} stayed within {format_duration(spec.limit)}"
    held = sum(len(held_in(doc)) for doc in runs)
    tried = sum(len(doc.job.repetitions) for doc in runs)
    return limit if held == tried else f"{limit} in {held} of {tried} repetitions alone"


def _emulated(part: PricedHosts) -> str | None:
    """That the rate is that of an emulated accelerator, unless the host is known to have it."""
    doc, instance = part.pace.runs[0], part.instance
    if isinstance(doc, ServingRecord):
        return (
            f"the run emulated an accelerator, {format_duration(doc.job.scenario.step_time)} a "
            f"step: the rate is what that one takes, and {instance.type} has "
            + (instance.accelerator or "none that is known")
        )
    spec = doc.job.workload.accelerator
    if spec.kind != "emulated" or not (name := spec.name):
        return None
    if instance.accelerator and name.lower() in instance.accelerator.lower():
        return None
    has = f"{instance.type} has " + (instance.accelerator or "none that is known")
    step = f", {format_duration(spec.step_time)} a step" if spec.step_time else ""
    return (
        f"the run emulated the accelerator {name}{step}: the rate is what that one takes, and {has}"
    )


def _within(takes: float | None, limit: float | None) -> bool | None:
    """Whether ``takes`` is within ``limit``. ``takes`` is None for a job that never ends."""
    return None if limit is None else takes is not None and takes <= limit
