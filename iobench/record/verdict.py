"""What a run found out: where the time went, what each stage costs, and what would help.

A value that was not measured is None, never 0. Rates are in samples/s over all ranks, times in
seconds, shares and gains are factors: a gain of 1.3 is 30 % more samples/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from ..settings.base import Count, Few, Figure, Ranks, Record, Share
from .curve import Bound, StorageCurve

AblatedStage = Literal["storage", "prep", "accelerator", "sync", "checkpoint", "log", "fill"]
"""A stage that can be left out of the pipeline.

``storage``: the bytes come from memory. ``prep``: ready bytes are handed over instead of decoded
ones. ``accelerator``: steps take no time. ``sync``: no rank waits for another one. ``checkpoint``:
no checkpoints. ``fill``: the first batches of each epoch are left out of the rate.
"""

Stage = Literal[
    "storage", "prep", "loader", "accelerator", "cpu", "sync", "checkpoint", "log", "fill"
]
"""What can limit a run. ``loader``: worker processes and batch transport; ``cpu``: this host's
cores, which several stages share."""


class Estimate(Record):
    """A figure with its 95 % interval. Low and high are None where one value alone is known."""

    value: Figure
    low: Figure | None = None
    high: Figure | None = None
    n: Count = 1  # independent values: rounds, windows or repetitions

    def each(self, change: Callable[[float], float]) -> Estimate:
        """The estimate with its value and both of its ends changed alike."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return Estimate(value=change(self.value), low=low, high=high, n=self.n)


class RankTime(Record):
    """How a rank spent a repetition. All parts together are ``wall_s``.

    ``fetch_s`` and ``prep_s`` divide the wait for batches by what the workers did for the batch;
    where a loader library does not tell, both are None and the wait is in ``wait_s``.
    """

    rank: Annotated[int, Field(strict=True, ge=0)]
    wall_s: Figure
    startup_s: Figure = 0.0  # until the rank's first read of each epoch: process creation
    busy_s: Figure  # nominal busy time of the accelerator
    # From then on until the first batch of each epoch was there; of a loader of the user's own,
    # without the time that a batch usually takes to make.
    fill_s: Figure
    fetch_s: Figure | None = None
    prep_s: Figure | None = None
    wait_s: Figure = 0.0  # wait for batches that can't be divided
    copy_s: Figure = 0.0  # to the device
    sync_s: Figure = 0.0  # wait for other ranks, at step barriers and at an epoch's end
    saves_s: Figure = 0.0
    lost_s: Figure = 0.0  # the rank stood still, in a wait or for longer than steps make up for
    rest_s: Figure = 0.0  # delays of the emulation, and of the loop itself
    accelerator_utilization: Share | None = None  # busy_s over the wall without start-up and saves


class WorkerTime(Record):
    """How the workers of all ranks spent a repetition, as shares of their wall time."""

    read: Share | None = None
    prep: Share | None = None
    idle: Share | None = None  # waiting for a free slot or a request
    not_measured: str = ""


class AblationRound(Record):
    """One round: the repetition as it is, and the same pipeline without a stage."""

    repetition: Count
    samples_per_s: Figure | None  # without the stage
    base_samples_per_s: Figure | None  # the repetition of the same round, in the same way
    seconds: Figure
    complete: bool = True
    # Batches of a rank that may have been made while its first one was waited for: they are left
    # out of both rates. 0: one of the phases was too short for that, and both rates are those of
    # the same first steps; or it is not known, and the first round is left out.
    in_flight: Count = 0


class Ablation(Record):
    """A stage that was replaced by a double that costs nothing, in turns with the repetitions."""

    stage: AblatedStage
    how: str = ""  # by what it was replaced, in one sentence
    rounds: list[AblationRound] = []
    gain: Estimate | None = None  # rate without the stage over rate with it
    not_measured: str = ""


class RunCurve(Record):
    """The storage's curve for the requests that the run's reader issues."""

    curve: StorageCurve
    large: StorageCurve | None = None  # requests of another size, mostly larger ones
    opens: StorageCurve | None = None  # of the files of its requests, where each has one of its own
    in_flight: Figure | None = None  # reads in flight of the run: "your job works here"
    not_measured: str = ""


class FedAt(Record):
    """A job of ``ranks`` accelerators at this storage, with a barrier at each step."""

    ranks: Ranks
    accelerator_utilization: Estimate | None
    fed: bool | None  # at the required utilization; None: not known
    how: Literal["measured", "extrapolated"]


class Fed(Record):
    """How many accelerators the storage can keep at the required utilization."""

    accelerators: Few | None
    low: Few | None = None
    high: Few | None = None
    reads_in_flight: Figure | None = None  # that it takes
    today: Few | None = None  # with the run's own reads in flight
    # With ``reads_in_flight``, where the run's own are too few, so that its accelerators starve.
    potential: Few | None = None
    # run: the rate that lasts after a fall, which the storage's ceilings do not know
    basis: Literal["find-max", "plateau", "fetch", "run", ""] = ""
    at: list[FedAt] = []
    not_measured: str = ""


AdviceId = Literal[
    "",
    "none",
    "concurrency",
    "workers",
    "pack",
    "codec",
    "compress",
    "faster-storage",
    "local-cache",
    "cores",
    "direct",
    "mapping",
    "loader",
    "transport",
    "decoding",
    "no-barrier",
    "longer-epochs",
    "first-batches",
    "sampler",
    "collate",
    "faster-saves",
    "faster-log",
    "longer-run",
    "larger-batches",
    "order",
]


class Advice(Record):
    """A change, and what it promises: the factor on samples/s with its interval."""

    id: AdviceId = ""
    change: str
    predicted_gain: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str
    at_most: bool = False  # the gain is the most that a test or the demand allows
    settings: list[str] = []  # for --set, where settings alone can apply the change
    found: Estimate | None = None  # by --confirm: the gain that was measured, in turns


Answer = Literal["kept", "not kept", "inconclusive"]
"""Whether a promised gain was found: ``inconclusive`` if the rounds allow for both."""


class ConfirmationRound(Record):
    """A repetition with the advised settings and one with today's, both with the same seed."""

    round: Count
    samples_per_s: Figure  # with the advised settings
    base_samples_per_s: Figure  # with today's
    seconds: Figure  # that both took


class Confirmation(Record):
    """Advice that was tried: its settings in turns with today's."""

    id: AdviceId = ""
    change: str
    settings: list[str]
    promised: Estimate
    at_most: bool = False  # the promise is an upper bound
    promised_by: str = ""  # id of the run that gave the advice; empty: this run
    rounds: list[ConfirmationRound] = []  # the complete ones
    found: Estimate | None = None
    answer: Answer = "inconclusive"
    not_measured: str = ""  # why there are no rounds, or no more of them


class Verdict(Record):
    """The bottleneck, whether the accelerators starve, and what would help."""

    bottleneck: Stage | Literal["undecided"]
    also: list[Stage] = []  # stages whose gains can't be told from that of ``bottleneck``
    # tested: by leaving stages out. inferred: from the ceilings alone.
    basis: Literal["tested", "inferred"] = "inferred"
    sentence: str  # for everyone
    explanation: str = ""  # for an engineer
    starved: bool | None = None  # accelerator utilization below what the workload requires
    headroom: float | None = None  # what the storage delivers over what the accelerators demand
    # A model's step beside the loader over its step alone; above 1, they compete for the host.
    contention: float | None = None
    accelerators_fed: int | None = None  # ``fed.accelerators``
    fed: Fed | None = None
    storage_bound: Bound | None = None  # what limits the storage at the run's reads in flight
    slowest_rank: Annotated[int, Field(strict=True, ge=0)] | None = None
    gains: dict[str, Estimate] = {}  # by stage: of the measured rate, if the stage cost nothing
    predicted_samples_per_s: float | None = None
    measured_samples_per_s: float | None = None
    fetch_stall: float | None = None  # share of the time, 0 to 1
    prep_stall: float | None = None
    too_short: str = ""  # why the run can't tell, and the command that would
    advice: list[Advice] = []
    not_measured: dict[str, str] = {}
