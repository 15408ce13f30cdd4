"""What the verdict and the rules rest on: figures of one run, with all rates in samples/s.

Also whether that is enough: runs that are too short, or whose epochs are cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from ..base.units import counted, format_count, format_rate
from ..record.job import UserFacts
from ..record.training import MeasuredBy, TrainingRun
from ..record.verdict import Estimate, RunCurve, Stage
from ..settings.workload import Subject
from .again import NEW, JobAgain
from .figures.ablations import interval, is_told
from .figures.ranktime import Shares
from .figures.rates import Lasting
from .statistics import NOISE

NOISE_OF_FILL = 0.05
"""The fill of a cut repetition that takes a smaller share of its time changes nothing."""

DRAINED = "a repetition has few batches beside those that were in flight as its steps began"
"""Why a cut repetition does not tell how busy the accelerators are."""

AT_LIMIT = 0.8
"""A reader that reaches this share of the rate of raw storage is limited by the storage.

Below it, the latency of its reads or their number in flight is the limit.
"""

IN_TURNS = 0.1
"""A run within this share of the serial rate has workers that fetch and prepare in turns."""

CPU_NEAR = 0.15
"""A run within this share of the CPU ceiling may be limited by the CPU."""

CPU_BUSY = 0.9
"""The CPU is spent if at least this share of it was busy during the repetitions."""


_SOURCES: dict[MeasuredBy | None, str] = {"fio": "fio", "reader": "reads with more in flight"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Rates in samples/s over all accelerators; a figure that was not measured is None."""

    job: TrainingRun
    raw: float | None
    raw_by: MeasuredBy | None  # fio, or the reader with more reads in flight
    fetch: float | None
    today: float | None  # what the storage's curve has at the reads in flight of the run
    prep: float | None
    # for a library: the rate of iobench's own loader in the same measurement
    own_prep: float | None
    loader: float | None
    cpu: float | None  # all stages together on this host's cores
    cpu_busy: float | None  # share of the usable cores during the repetitions
    # CPU seconds per sample of fetch and of prep, each measured alone
    cpu_costs: dict[str, float]
    # what the accelerators demand: of a real model, with steps as long as beside the loader
    accelerator: float | None
    alone: float | None  # a real model's steps where nothing else runs
    measured: float | None  # after the fill, where ``utilization`` is
    # sustained: MLPerf's leaves out the first step, and so all prefetching during it. Where a
    # budget cut the repetitions: after their fill, which longer ones would hardly have
    utilization: float | None
    required: float
    accelerators: int
    bytes_per_sample: float | None  # stored
    cores: float | None  # that this process may use
    fetch_cores: float | None  # busy during the fetch calibration
    workers: int  # of all ranks together; 0: the ranks load the data themselves
    subject: Subject
    transport: str
    codec: str
    decode: bool
    compress_ratio: float
    # (low, high) of fetch, prep and loader over their windows, where there are several
    intervals: dict[str, tuple[float, float]]
    shares: Shares  # where the time of the repetitions went
    # the share of the fill, where a budget cut the repetitions: no part of ``shares`` and ``gains``
    cut_fill: float
    after_fill: bool  # ``measured`` and ``utilization`` differ from those of the whole time by it
    # they look fed after it, but perhaps only by batches that were made during the fill
    drained: bool
    gains: dict[str, Estimate]  # of the stages that were left out
    curve: RunCurve | None  # of the storage; None: not measured
    samples: int | None  # in the dataset
    batch_size: int | None
    packed: bool | None  # several samples in a shard; None: not known
    access: str  # random, sequential or auto
    rank_steps: float | None  # of one rank in a repetition
    reads_ahead: bool  # or would with a larger reader.concurrency
    # The most reads in flight that the run keeps, and what its reader has for one batch
    in_flight: float
    requests_per_batch: float | None
    cached: str  # why the reads say nothing about the storage: a cache served them
    modelled: bool = False  # the figures are those of a what-if
    unsteady: float = 0.0  # the fastest repetition over the slowest one, less 1
    own: UserFacts | None = None  # what was seen of a loader of the user's own
    # The rate of each repetition falls, and stays low: ``measured`` and ``utilization`` are then
    # those after the fall, and ``mean_utilization`` is that of the whole time.
    lasting: Lasting | None = None
    mean_utilization: float | None = None
    # The user's own script trained, and no ceiling was measured; None: another run
    watched: LoaderWaits | None = None
    starting: float | None = None  # share of the time in which a user's workers started
    later: LaterEpochs | None = None  # of a user's loader, if its first epoch waited far longer
    again: Callable[[], JobAgain] = JobAgain  # how the job is done again
    # of the batches after the fill, the smallest share that can't have been made during it
    made_after: float = 0.0
    relief: float = 1.0  # how many times as fast the storage seems behind a local cache
    start: StartLeftOut | None = None  # of each epoch of a user's loader, where no rate has it
    repeated: str = ""  # that the user's loader delivers samples more than once in an epoch

    @property
    def waits_once(self) -> bool:
        """Whether a user's loader is only waited for in its first epoch, as one with a cache is."""
        return self.later is not None and 1 - self.later.waiting >= self.required

    @property
    def raw_source(self) -> str:
        """What measured raw storage, as a noun phrase that can begin a clause."""
        if self.modelled:
            return "raw storage, as predicted"
        return _SOURCES.get(self.raw_by, "the raw measurement")

    @property
    def storage(self) -> float | None:
        """What storage delivers: the fetch ceiling, or the raw one (which is higher) without it.

        Behind a local cache as much more as it serves.
        """
        alone = self.fetch if self.fetch is not None else self.raw
        return None if alone is None else alone * self.relief

    def as_read(self) -> Evidence:
        """The same, in which the storage's curve stands for a fetch ceiling that is missing."""
        measured = self.fetch is not None or self.modelled
        return self if measured else replace(self, fetch=self.today)

    @property
    def per_accelerator(self) -> float | None:
        return self.accelerator / self.accelerators if self.accelerator is not None else None

    @property
    def predicted(self) -> float | None:
        """Rate of the roofline model: overlapping stages run at the speed of the slowest one.

        In a what-if, the rate that was predicted there.
        """
        if self.modelled:
            return self.measured
        known = [
            rate
            for rate in (self.storage, self.prep, self.loader, self.cpu, self.accelerator)
            if rate is not None
        ]
        return min(known, default=None)

    @property
    def after_start(self) -> float:
        """What the run delivered after the fill of its epochs, without batches made during it."""
        gain = self.gains.get("fill")
        return (self.measured or 0.0) * self.made_after * interval(gain)[0] if gain else 0.0

    @property
    def between_saves(self) -> float | None:
        """What the run delivered in the time in which it did not stand still for saves."""
        return None if self.measured is None else self.without_saves(self.measured)

    def without_saves(self, rate: float) -> float:
        """Samples/s between the saves of the run, of a job that takes ``rate`` with them."""
        if not self.shares.saves or not self.measured:
            return rate
        return 1 / max(1 / rate - self.shares.saves / self.measured, 1e-9)

    def with_saves(self, rate: float) -> float:
        """Samples/s with the saves of the run, of a job that takes ``rate`` between them."""
        if not self.shares.saves or not self.measured:
            return rate
        return 1 / (1 / rate + self.shares.saves / self.measured)

    @property
    def serial(self) -> float | None:
        """Predicted rate if each worker does fetch, prep and hand-over one after the other.

        This is the lower extreme: no worker reads ahead.
        """
        if self.fetch is None or self.prep is None:
            return None
        turns = 1 / sum(
            1 / rate for rate in (self.fetch, self.prep, self.loader) if rate is not None
        )
        return turns if self.accelerator is None else min(turns, self.accelerator)

    @property
    def in_turns(self) -> bool:
        """Whether the workers did fetch and prep one after the other.

        The run was then within ``IN_TURNS`` of the serial rate, and far from the lowest ceiling.
        """
        return (
            not self.modelled
            and self.serial is not None
            and self.between_saves is not None
            and self.predicted is not None
            and abs(self.between_saves / self.serial - 1) <= IN_TURNS
            and self.between_saves < (1 - IN_TURNS) * self.predicted
        )

    @property
    def streams(self) -> int:
        """Processes that read: the workers of all ranks, or the ranks themselves."""
        return max(self.workers, self.accelerators)

    @property
    def cpu_spent(self) -> bool:
        """Whether the CPU was busy, and the run as fast as all of its cores allow."""
        return (
            self.cpu is not None
            and self.measured is not None
            and self.measured >= (1 - CPU_NEAR) * self.cpu
            and self.cpu_busy is not None
            and self.cpu_busy >= CPU_BUSY
        )

    @property
    def fed(self) -> bool:
        """True if the accelerators were as busy as the workload requires, from the first read on.

        False also where their utilization was not measured.
        """
        return self.utilization is not None and self.utilization >= self.required

    @property
    def client_bound(self) -> bool:
        """True if reading alone needs the whole host, and storage is not known to be the limit."""
        if (
            self.fetch is None
            or not self.fetch_cores
            or not self.cores
            or self.fetch_cores < 0.9 * self.cores
        ):
            return False
        return self.raw is None or self.fetch < AT_LIMIT * self.raw

    def bytes_per_s(self, samples_per_s: float | None) -> float | None:
        return (
            None
            if samples_per_s is None or self.bytes_per_sample is None
            else samples_per_s * self.bytes_per_sample
        )

    def told(self, samples_per_s: float | None) -> str:
        """A rate in words: bytes/s, and samples/s where the bytes are known."""
        if samples_per_s is None:
            return "an unknown rate"
        moved = self.bytes_per_s(samples_per_s)
        samples = f"{format_count(samples_per_s)} samples/s"
        return samples if moved is None else f"{format_rate(moved)} ({samples})"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderWaits:
    """Shares are 0 to 1; None: not known.

    ``working``: of the time, in which the busiest worker made batches. ``handed_over``: of the
    waits, in which the batch was made, but not here yet; ``held_back``: in which a later one was
    ready. ``collate``: of the time to make batches. ``starts``: how often workers started.
    ``uneven``: seconds for a batch of a worker that is far slower than the others, and of these.
    ``batch_bytes``: of a batch, on average. ``pace``: seconds in which the workers make a batch,
    and the training takes one, on average; ``prefetch``: batches that each worker makes ahead.
    """

    working: float | None = None
    handed_over: float | None = None
    held_back: float | None = None
    collate: float | None = None
    starts: int | None = None
    uneven: tuple[float, float] | None = None
    batch_bytes: float | None = None
    pace: tuple[float, float] | None = None
    prefetch: int = 0


class LaterEpochs(NamedTuple):
    """``first``: share of all waits that was in the first of ``epochs`` epochs.

    ``waiting``: share of the time of the other ones in which they waited.
    """

    epochs: int
    first: float
    waiting: float


class StartLeftOut(NamedTuple):
    """What each epoch of a user's loader takes before its first read, and no rate has.

    ``share``: of a whole epoch, with this time. ``of_workers``: most of it starts workers.
    """

    seconds: float
    share: float
    of_workers: bool


class TooShort(NamedTuple):
    """Why a run can't tell the bottleneck, and a command that makes one that is long enough."""

    why: str
    command: str

    def __str__(self) -> str:
        return f"{self.why}. Long enough: {self.command}"


Bottleneck = Stage | Literal["undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The bottleneck. ``reason`` says why, where that is not simply the largest gain."""

    bottleneck: Bottleneck
    also: tuple[Stage, ...] = ()  # whose gains can't be told from that of ``bottleneck``
    basis: Literal["tested", "inferred"] = "inferred"
    reason: str = ""
    too_short: TooShort | None = None


@dataclass(frozen=True)
class Case:
    """What the decision on the bottleneck looks at. ``refuted``: stages that do not bind."""

    evidence: Evidence
    refuted: tuple[Stage, ...] = ()

    @property
    def left_out(self) -> bool:
        """Whether stages were left out in rounds; the fill is computed without any."""
        return any(stage != "fill" for stage in self.evidence.gains)

    @cached_property
    def _gaining(self) -> dict[Stage, Estimate]:
        stages: tuple[Stage, ...] = ("storage", "prep", "sync", "checkpoint", "log", "fill")
        gains, unsteady = self.evidence.gains, self.evidence.unsteady
        return {each: gains[each] for each in stages if is_told(gains.get(each), unsteady)}

    @property
    def any_gain(self) -> bool:
        """Whether leaving out a stage, and not the accelerator, brought a gain."""
        return self.left_out and bool(self._gaining)

    @property
    def gaining(self) -> dict[Stage, Estimate]:
        """The gains that are significant; that of a storage whose reads were cached is none."""
        left_out = "storage" if self.evidence.cached else ""
        return {stage: gain for stage, gain in self._gaining.items() if stage != left_out}

    @property
    def top(self) -> Stage:
        """The stage with the largest gain."""
        return max(self.gaining, key=lambda stage: self.gaining[stage].value)

    @cached_property
    def _rates(self) -> dict[Stage, float | None]:
        stages: dict[Stage, float | None] = {
            "storage": None if self.evidence.cached else self.evidence.storage,
            "prep": self.evidence.prep,
            "loader": self.evidence.loader,
        }
        return {stage: rate for stage, rate in stages.items() if stage not in self.refuted}

    @cached_property
    def ceilings(self) -> dict[Stage, float]:
        """The ceilings that are known, in samples/s."""
        return {stage: rate for stage, rate in self._rates.items() if rate is not None}

    @property
    def missing(self) -> list[Stage]:
        """Stages without a ceiling. For a library, the hand-over of batches is part of its prep."""
        needless = {"storage"} if self.evidence.cached else set()
        if self.evidence.subject.reads_itself:
            needless.add("loader")
        return [
            stage for stage, rate in self._rates.items() if rate is None and stage not in needless
        ]

    @property
    def lowest(self) -> Stage:
        return min(self.ceilings, key=lambda stage: self.ceilings[stage])

    @property
    def demand_is_lowest(self) -> bool:
        """Whether the accelerators demand less than every ceiling, by more than noise."""
        demand = self.evidence.accelerator
        return demand is not None and demand * (1 + NOISE) < self.ceilings[self.lowest]


MIN_TOLD_STEPS = 5
"""A rank that makes fewer steps in a repetition does little else than start."""

MIN_ROUNDS = 2
"""Rounds of workers: in the first one all of them fill their queues."""


def needed_steps(workers: float) -> int:
    """Steps of a rank with so many workers in a repetition that can tell the bottleneck."""
    return max(MIN_TOLD_STEPS, int(MIN_ROUNDS * workers))


def too_short(evidence: Evidence) -> TooShort | None:
    """Why the run is too short to tell the bottleneck; None if it is long enough, or not known."""
    samples, batch, steps = evidence.samples, evidence.batch_size, evidence.rank_steps
    if evidence.modelled or evidence.measured is None:
        return None
    needed = needed_steps(evidence.streams / evidence.accelerators)
    if (
        not evidence.watched
        and samples
        and batch
        and (samples == 1 or samples < batch * evidence.accelerators)
    ):
        ranks = evidence.accelerators
        each = f" for each of {counted(ranks, 'accelerator')}" if ranks > 1 else ""
        what = (
            "the dataset has one sample"
            if samples == 1
            else f"a batch of {format_count(batch)} samples{each} is more than the "
            f"{format_count(samples)} samples of the dataset"
        )
        return TooShort(f"{what}, so nothing overlaps", _with_more(evidence, 2 * needed))
    if steps is None or steps >= needed or steps <= 0:
        return None
    factor = math.ceil(2 * needed / steps)
    if evidence.watched:
        return TooShort(
            f"each rank made {steps:.0f} steps while it was watched, and {needed} are needed",
            f"iobench.watch around {counted(2 * needed, 'step')} or more",
        )
    return TooShort(
        f"each rank made {steps:.0f} steps in a repetition, and {needed} are needed",
        evidence.again().longer(factor, _longer(evidence, 2 * needed)),
    )


def _longer(evidence: Evidence, steps: int) -> dict[str, object]:
    """The settings with which a rank makes so many steps in a repetition."""
    whole = (evidence.samples or 0) // max(1, (evidence.batch_size or 1) * evidence.accelerators)
    if whole and not evidence.subject.users:
        epochs = math.ceil(steps / whole)
    else:  # how long an epoch is depends on the loader
        epochs = evidence.job.workload.epochs * math.ceil(steps / (evidence.rank_steps or 1))
    found: dict[str, object] = {"epochs": epochs} if epochs > evidence.job.workload.epochs else {}
    return found | {"max_steps": steps}


def _with_more(evidence: Evidence, steps: int) -> str:
    """The command of a run in which a rank makes so many steps in an epoch."""
    again = evidence.again()
    if again.budget_s is not None and not again.data_is_given:
        return again.longer(steps, {})
    make = again.generate((evidence.batch_size or 1) * evidence.accelerators * steps)
    changes: dict[str, object] = {}
    if again.budget_s is None and (evidence.job.workload.max_steps or steps) < steps:
        changes = {"max_steps": steps}
    if make:
        return f"{make}; {again.line(changes, data=NEW)}"
    size = (evidence.samples or 1) // (steps * evidence.accelerators)
    return again.line(changes | {"batch_size": max(1, size)})


LONGER = "measure whole epochs (a larger --budget, or --set max_steps=null)"
"""Advice where the run's settings, and not the job's data, made its epochs short."""

CUT = 0.9
"""A run whose ``max_steps`` is less than this share of an epoch of its dataset saw no whole one."""


def cut_epochs(evidence: Evidence) -> int | None:
    """The steps of a rank in an epoch of the dataset, if the run did not make so many."""
    steps, batch, samples = evidence.rank_steps, evidence.batch_size, evidence.samples
    if evidence.job.workload.max_steps is None or not steps or not batch or not samples:
        return None
    whole = samples // (batch * evidence.accelerators)
    return whole if steps < CUT * whole else None
