"""Compute the figures of a repetition from its step events, and medians over repetitions.

Events are the rows of one repetition of one phase, with one array per column of
``EVENT_COLUMNS``. A row may stand for several merged steps; its ``wait_ns``, ``copy_ns``,
``busy_ns`` and ``late_ns`` are then sums. ``busy_ns`` is the nominal busy time. A late wake-up
shortens the next step, so lateness adds to the clock only once, at the end of an epoch (the
deadlines of ``accelerate.emulated`` work in this way).

Sources: accelerator utilization (AU) is defined by MLPerf Storage (Submission_guidelines, "all
I/O of the first step is excluded from AU"; the numerator is the nominal busy time). samples/s
counts every sample over the whole time, as the text of the rules demands, and not over the window
of ``n - 2`` steps of the reference code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...schema.metrics import metrics_of
from ...schema.record import Summary
from ...schema.training import Repetition
from ...schema.workload import OWN_LOADER
from .rates import Track, rates_of

Array = npt.NDArray[Any]
Events = Mapping[str, Array]

MEDIANS = tuple(each.name for each in metrics_of("repetition", median=True))

SUMS = ("samples", "steps", "bytes_read", "sample_bytes", "retries", "throttled")
"""Columns that are summed for a repetition; runs of older versions lack the last two."""

NULL_ACCELERATOR = "the accelerator is of kind null, which has no busy time"
TOO_FEW_STEPS = "a rank made fewer than 2 steps, and the first step of an epoch is not counted"
NO_SAMPLE_BYTES = "the stored bytes of the samples were not recorded"
NO_EVENTS = "no step was recorded"


def uncounted_reads(kind: str) -> dict[str, str]:
    """Reasons, by metric, for what a repetition with this kind of loader cannot measure.

    A loader library reads the files itself, so its reads are not counted.
    """
    return (
        {}
        if kind == OWN_LOADER
        else {"bytes_read": f"the reads of loader '{kind}' from storage are not counted"}
    )


class RankEpoch(NamedTuple):
    """The rows of one rank in one epoch, in order of steps.

    Times are in nanoseconds from the start of the epoch, which all ranks share.
    """

    rank: int
    epoch: int
    rows: dict[str, Array]

    @property
    def end_ns(self) -> float:
        """Time at which the last step of the rank ended, in nanoseconds.

        The busy time of the last step was shortened by the lateness of the step before it, and
        the last step itself ended late. For a merged row the lateness is the mean of its steps.
        """
        parts = ("start_ns", "wait_ns", "copy_ns", "busy_ns", "checkpoint_ns")
        last = {name: float(self.rows[name][-1]) for name in parts if name in self.rows}
        late = self._late_ns[-2:]
        return sum(last.values()) + float(late[-1]) - (float(late[0]) if len(late) > 1 else 0.0)

    def track(self, startup_s: float) -> Track:
        """What the rank had received by which time, see ``Track``.

        A step lasts until the next one begins, without the save between them.
        """
        nothing = np.zeros(len(self.rows["step"]))
        saved_ns = self.rows.get("checkpoint_ns", nothing).astype(np.float64)
        clock_ns = np.append(self.rows["start_ns"].astype(np.float64), self.end_ns)
        times_s = (clock_ns - np.concatenate([[0.0], np.cumsum(saved_ns)])) / 1e9 - startup_s
        return Track(
            epoch=self.epoch,
            times_s=np.maximum.accumulate(np.maximum(times_s, 0.0)),
            samples=self.rows["samples"],
            stored=self.rows["sample_bytes"],
            steps=int(self.rows["steps"].astype(np.int64).sum()),
        )

    @property
    def late_left_ns(self) -> float:
        """Lateness of the last step, for which no later step makes up, in nanoseconds."""
        return float(self._late_ns[-1])

    @property
    def _late_ns(self) -> Array:
        late: Array = self.rows["late_ns"] / np.maximum(self.rows["steps"], 1)
        return late


def select(events: Events, phase: str, repetition: int | None = None) -> dict[str, Array]:
    """The rows of one phase (and repetition)."""
    wanted = np.asarray(events["phase"]) == phase
    if repetition is not None:
        wanted = wanted & (np.asarray(events["repetition"]) == repetition)
    return {name: np.asarray(column)[wanted] for name, column in events.items()}


def rank_epochs(events: Events) -> Iterator[RankEpoch]:
    """Rows grouped by epoch and rank, each group in order of its steps."""
    columns = {name: np.asarray(column) for name, column in events.items() if name != "phase"}
    keys = np.unique(
        np.stack([columns["epoch"].astype(np.int64), columns["rank"].astype(np.int64)]), axis=1
    )
    for epoch, rank in keys.T.tolist():
        mine = np.flatnonzero((columns["epoch"] == epoch) & (columns["rank"] == rank))
        ordered = mine[np.argsort(columns["step"][mine], kind="stable")]
        yield RankEpoch(
            rank=rank, epoch=epoch, rows={name: column[ordered] for name, column in columns.items()}
        )


def spans(parts: Sequence[RankEpoch], startup_s: Mapping[int, float | None]) -> tuple[float, float]:
    """(wall time, wall time without start-up) in seconds, summed over epochs.

    An epoch lasts until its slowest rank has ended. Start-up is the creation of processes before
    the first read, which faster storage does not shorten. If it is unknown, it counts as 0.
    """
    wall = sum(_ends(parts).values())
    return wall, wall - sum(_startups(parts, startup_s).values())


def _ends(parts: Sequence[RankEpoch]) -> dict[int, float]:
    """Seconds from the start of each epoch until its slowest rank has ended."""
    ends: dict[int, float] = {}
    for part in parts:
        ends[part.epoch] = max(ends.get(part.epoch, 0.0), part.end_ns / 1e9)
    return ends


def _startups(
    parts: Sequence[RankEpoch], startup_s: Mapping[int, float | None]
) -> dict[int, float]:
    """Start-up of each epoch in seconds, where it is known and within the epoch."""
    return {
        epoch: startup
        for epoch, end in _ends(parts).items()
        if (startup := startup_s.get(epoch)) is not None and 0 <= startup < end
    }


def saving(parts: Sequence[RankEpoch]) -> float:
    """Seconds that training was stopped for checkpoints, mean over ranks.

    The result is 0 for runs of older versions, which had no checkpoints.
    """
    ranks = {part.rank for part in parts}
    return (
        sum(
            float(part.rows["checkpoint_ns"].sum())
            for part in parts
            if "checkpoint_ns" in part.rows
        )
        / 1e9
        / len(ranks)
    )


def repetition_metrics(events: Events, context: Repetition, *, round_steps: int = 1) -> Repetition:
    """Return ``context`` (seed, epochs, CPU time ...) with all figures that follow from the events.

    ``round_steps`` is the number of workers of a rank, see ``rates_of``.
    A figure that cannot be computed is None, and ``not_measured`` gives the reason. If
    ``context.not_measured`` says that reads were not counted (``uncounted_reads``), the bandwidth
    is computed from the stored bytes of the samples.
    """
    missing = {
        key: reason
        for key, reason in context.not_measured.items()
        if key not in MEDIANS and key not in ("late_p99_s", "late_left_s", "rates")
    }
    residencies = [
        epoch.residency_before for epoch in context.epochs if epoch.residency_before is not None
    ]
    known: dict[str, object] = {
        "residency_before": max(residencies) if residencies else context.residency_before
    }
    uncounted = missing.get("bytes_read")
    if uncounted:
        known["bytes_read"] = None
    if context.cpu_s is None:
        missing["cpu_s"] = context.not_measured.get(
            "cpu_s", "the CPU time of ranks and workers was not recorded"
        )
    parts = list(rank_epochs(events)) if len(events["step"]) else []
    if not parts:
        missing.update({key: NO_EVENTS for key in (*MEDIANS, "rates") if key != "cpu_s"})
        return context.model_copy(update={**known, "not_measured": missing})
    totals = {
        name: int(np.asarray(events[name], dtype=np.int64).sum()) for name in SUMS if name in events
    }
    known["epochs"] = [
        epoch.model_copy(update=_delivered(events, epoch.epoch, counted=not uncounted))
        for epoch in context.epochs
    ]
    ranks = len({part.rank for part in parts})
    startup_s = {epoch.epoch: epoch.startup_s for epoch in context.epochs}
    wall, span = spans(parts, startup_s)
    startups = _startups(parts, startup_s)
    known["rates"] = rates_of(
        [part.track(startups.get(part.epoch, 0.0)) for part in parts], round_steps=round_steps
    )
    saved = saving(parts)
    known["checkpoint_s"] = saved or None
    known["read_s"] = float(np.asarray(events["read_ns"], dtype=np.int64).sum()) / 1e9
    moved, stored = (
        totals["sample_bytes"] if uncounted else totals["bytes_read"],
        totals["sample_bytes"],
    )
    known = (
        totals
        | known
        | {"wall_s": wall, "samples_per_s": totals["samples"] / span if span > 0 else None}
    )
    known["read_bytes_per_s"] = moved / span if span > 0 else None
    known["read_amplification"] = moved / stored if stored and not uncounted else None
    if known["read_amplification"] is None:
        missing["read_amplification"] = uncounted or NO_SAMPLE_BYTES
    known["busy_s"] = float(np.asarray(events["busy_ns"], dtype=np.int64).sum()) / 1e9 / ranks
    known["wait_s"] = float(np.asarray(events["wait_ns"], dtype=np.int64).sum()) / 1e9 / ranks
    known.update(_utilization(parts, wall, span - saved, missing), **_waits(parts, missing))
    known["late_p99_s"] = _quantile(
        [part.rows["late_ns"] / part.rows["steps"] for part in parts],
        [part.rows["steps"] for part in parts],
        0.99,
    )
    known["late_left_s"] = _late_left(parts)
    return context.model_copy(update={**known, "not_measured": missing})


def _late_left(parts: Sequence[RankEpoch]) -> float:
    """Seconds by which the emulation lengthened the epochs, of the latest rank of each epoch."""
    left: dict[int, float] = {}
    for part in parts:
        left[part.epoch] = max(left.get(part.epoch, 0.0), part.late_left_ns / 1e9)
    return sum(left.values())


def _delivered(events: Events, epoch: int, *, counted: bool) -> dict[str, int | None]:
    """Steps, bytes read, and stored bytes of the delivered samples in one epoch, over all ranks."""
    mine = np.asarray(events["epoch"]) == epoch
    sums = {
        name: int(np.asarray(events[name], dtype=np.int64)[mine].sum())
        for name in ("steps", "bytes_read", "sample_bytes")
    }
    return {**sums, "bytes_read": sums["bytes_read"] if counted else None}


def _utilization(
    parts: Sequence[RankEpoch], wall: float, span: float, missing: dict[str, str]
) -> dict[str, float | None]:
    """Accelerator utilization in three definitions, each a mean over ranks.

    1. As MLPerf Storage defines it.
    2. Sustained: busy time over ``span``. This leaves out process creation and checkpoints, and
       includes the wait for data in the first step, so prefetching during it has no advantage.
    3. Strict: busy time over wall time.
    """
    busy: dict[int, float] = {}
    counted: dict[int, float] = {}
    window: dict[int, float] = {}
    for part in parts:
        nominal = part.rows["busy_ns"].astype(np.float64) / 1e9
        busy[part.rank] = busy.get(part.rank, 0.0) + float(nominal.sum())
        counted[part.rank] = counted.get(part.rank, 0.0) + float(nominal[1:].sum())
        # The first step ends where the rank asks for its second batch.
        after_first = (
            (part.end_ns - float(part.rows["start_ns"][1])) / 1e9 if len(nominal) > 1 else 0.0
        )
        after_first -= (
            float(part.rows["checkpoint_ns"][1:].sum()) / 1e9
            if "checkpoint_ns" in part.rows
            else 0.0
        )
        window[part.rank] = window.get(part.rank, 0.0) + after_first
    names = (
        "accelerator_utilization",
        "accelerator_utilization_sustained",
        "accelerator_utilization_strict",
    )
    if not any(busy.values()):
        missing.update(dict.fromkeys(names, NULL_ACCELERATOR))
        return dict.fromkeys(names)
    # Nominal busy time may exceed the clock by one compensated wake-up: limit the ratio to 1.
    mean_busy = sum(busy.values()) / len(busy)
    figures: dict[str, float | None] = {
        names[0]: None,
        names[1]: min(1.0, mean_busy / span) if span > 0 else None,
        names[2]: min(1.0, mean_busy / wall) if wall > 0 else None,
    }
    if min(window.values()) <= 0:
        missing[names[0]] = TOO_FEW_STEPS
    else:
        figures[names[0]] = min(
            1.0, sum(counted[rank] / window[rank] for rank in window) / len(window)
        )
    return figures


def _waits(parts: Sequence[RankEpoch], missing: dict[str, str]) -> dict[str, float | None]:
    values = [part.rows["wait_ns"][1:] / part.rows["steps"][1:] for part in parts]
    weights = [part.rows["steps"][1:] for part in parts]
    figures: dict[str, float | None] = {
        "wait_p50_s": _quantile(values, weights, 0.5),
        "wait_p99_s": _quantile(values, weights, 0.99),
    }
    if figures["wait_p50_s"] is None:
        missing.update(wait_p50_s=TOO_FEW_STEPS, wait_p99_s=TOO_FEW_STEPS)
    firsts = [part.rows for part in parts if part.epoch == 0]
    if firsts and all(int(rows["steps"][0]) == 1 for rows in firsts):
        figures["time_to_first_batch_s"] = (
            max(float(rows["start_ns"][0] + rows["wait_ns"][0]) for rows in firsts) / 1e9
        )
    else:
        missing["time_to_first_batch_s"] = (
            "the first step is merged with others, or was not recorded"
        )
        figures["time_to_first_batch_s"] = None
    return figures


def _quantile(values: Sequence[Array], weights: Sequence[Array], q: float) -> float | None:
    """Weighted quantile ``q`` (inverted distribution function) of times in nanoseconds, in seconds.

    A merged row counts as its mean, once per step.
    """
    value = np.concatenate(values).astype(np.float64)
    if not len(value):
        return None
    order = np.argsort(value, kind="stable")
    reached = np.cumsum(np.concatenate(weights).astype(np.float64)[order])
    return float(value[order][np.searchsorted(reached, q * reached[-1] * (1 - 1e-12))]) / 1e9


def summarise(repetitions: Sequence[Repetition]) -> dict[str, Summary]:
    """Median, minimum, maximum and count over complete repetitions, by metric.

    A metric that no repetition has is left out.
    """
    summaries: dict[str, Summary] = {}
    for name in MEDIANS:
        values = [
            float(value)
            for repetition in repetitions
            if repetition.complete and (value := getattr(repetition, name)) is not None
        ]
        if values:
            summaries[name] = Summary(
                median=median(values), min=min(values), max=max(values), n=len(values)
            )
    return summaries
