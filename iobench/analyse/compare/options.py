"""What a way to pay is: terms, hosts, prices, and the figures that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...schema.instances import Instance
from ...schema.record import RunRecord
from .losses import Saving, Schedule
from .pace import Pace


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms of the training, for all options alike."""

    efficiency: float = 1.0  # scaling efficiency of several hosts, 0 to 1
    storage_grows: bool = False  # with the number of hosts
    epochs: int | None = None
    samples: int | None = None  # of one epoch, if the real data is larger than that of the run
    deadline_s: float | None = None
    budget_usd: float | None = None
    interruptions_per_hour: float | None = None  # of each spot instance; None: not known
    schedule: Schedule = field(default_factory=Schedule)
    checkpoints: RunRecord | None = None  # the run whose saves count; None: the priced runs' own


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Hosts of one type in a job.

    ``measured``: the runs of ``pace`` had this type of host. ``groups``: of how many groups of
    runs ``pace`` is that of the slowest.
    """

    hosts: int
    instance: Instance
    pace: Pace
    measured: bool = True
    groups: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What one host costs, and where that figure comes from."""

    type: str
    usd_per_hour: float
    currency: str
    region: str  # empty: not stated
    priced: str  # the date, ISO 8601; empty: not stated
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
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
    samples_per_usd_low: float | None  # None: the interval of the storage is not known
    samples_per_usd_high: float | None
    usd_per_million_samples: float | None  # None: all of the time is lost
    never_interrupted: bool
    saving: Saving | None  # None: the time of a save is not known, and not in these figures
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
    notes: tuple[str, ...]  # differences between the priced machine and the measured one


@dataclass(frozen=True, kw_only=True, slots=True)
class Option(Figures):
    """One way to pay for the job: machines, on demand or spot."""

    parts: tuple[Part, ...]

    @property
    def hosts(self) -> int:
        return sum(part.hosts for part in self.parts)

    @property
    def slowest(self) -> Part:
        """The part whose hosts are the slowest: the others wait for them."""
        return min(self.parts, key=lambda part: part.pace.middle)

    @property
    def machine(self) -> str:
        """``2 x g5.2xlarge + 4 x g5.4xlarge``; one host has no number."""
        alone = len(self.parts) == 1 and self.hosts == 1
        return " + ".join(
            part.instance.type if alone else f"{part.hosts} x {part.instance.type}"
            for part in self.parts
        )

    @property
    def in_time_and_budget(self) -> bool:
        return self.within_deadline is not False and self.within_budget is not False
