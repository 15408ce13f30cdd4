"""Compute the figures of a repetition from its step events, and medians over repetitions.

Sources: accelerator utilization (AU) is defined by MLPerf Storage (Submission_guidelines, "all
I/O of the first step is excluded from AU"; the numerator is the nominal busy time; the waits at the
barrier after each step are inside the time, as in DLIO). samples/s
counts every sample over the whole time, as the text of the rules demands, and not over the window
of ``n - 2`` steps of the reference code. The counters of GPUs and model FLOPs utilization are
figures of their own, and no accelerator utilization.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

import numpy as np

from ...record.host import DeviceUse, ModelWork, mfu_of
from ...record.metrics import METRICS, metrics_of
from ...record.run import Summary
from ...record.training import Epoch, EvaluationUse, Repetition
from ...record.verdict import RankTime
from ...settings.workload import OWN, USER_READS, Subject
from .events import Array, Events, RankEpoch, epoch_ends_ns, rank_epochs
from .instep import at_more_ranks, step_times
from .ranktime import INDEPENDENT, host_window, rank_times, starts_left_out, with_times, worker_time
from .rates import Track, rates_of

MEDIANS = tuple(each.name for each in metrics_of("repetition", median=True))

SUMS = ("samples", "steps", "bytes_read", "sample_bytes", "retries", "throttled")
"""Columns that are summed for a repetition."""

NULL_ACCELERATOR = "the accelerator is of kind null, which has no busy time"
TOO_FEW_STEPS = "a rank made fewer than 2 steps, and the first step of an epoch is not counted"
NO_SAMPLE_BYTES = "the stored bytes of the samples were not recorded"
NO_REQUESTS = "requests were not counted"
NO_EVENTS = "no step was recorded"
WAITS_FOR_NOBODY = "with accelerator.sync=none, no rank waits for another one"
UNKNOWN_WORKERS = "what the workers of a loader library do is not known"


def uncounted_reads(subject: Subject) -> dict[str, str]:
    """Reasons, by metric, for what a repetition with this loader cannot measure."""
    return {"bytes_read": subject.uncounted} if subject.uncounted else {}


def repetition_metrics(
    events: Events, context: Repetition, *, round_steps: int = 1, subject: Subject = OWN
) -> Repetition:
    """Return ``context`` (seed, epochs, CPU time ...) with all figures that follow from the events.

    ``round_steps`` is the number of workers of a rank, see ``rates_of``; ``subject`` is the loader.
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
    uncounted = missing.get("bytes_read", "")
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
    begun = starts_left_out(context.epochs, subject)
    known["epochs"] = [
        epoch.model_copy(
            update=_delivered(events, epoch.epoch, counted=not uncounted)
            | {"samples_per_s": _epoch_rate(parts, start)}
        )
        for epoch, start in zip(context.epochs, begun, strict=True)
    ]
    # The workers of a user's loader tell how long they waited for each batch.
    told = not uncounted or uncounted == USER_READS
    started = context.model_copy(update={"epochs": begun})
    times = rank_times(parts, started, divided=told, users=subject.users)
    known["ranks"] = times
    known["worker_time"] = worker_time(parts, times, round_steps, "" if told else UNKNOWN_WORKERS)
    ends = epoch_ends_ns(parts)
    earliest = {each.epoch: each.startup_s for each in context.epochs}
    tracks = [part.track(_within(earliest.get(part.epoch), ends[part.epoch])) for part in parts]
    known["rates"] = rates_of(tracks, round_steps=round_steps)
    known = _amounts(events, parts, times, context, missing) | known
    if len(context.hosts) > 1:
        known |= _of_hosts(parts, tracks, times, context, _moved(uncounted))
    known |= _times(events, parts, times, context, missing)
    known |= _utilization(parts, times, context, missing)
    known |= _waits(parts, missing)
    known["at_more_ranks"] = at_more_ranks(
        step_times(events, round_steps=round_steps), round_steps=round_steps
    )
    return context.model_copy(update={**known, "not_measured": missing})


def _moved(uncounted: str) -> str:
    """The column of the bytes that the storage moved, as far as that is known."""
    return "sample_bytes" if uncounted else "bytes_read"


def _amounts(
    events: Events,
    parts: Sequence[RankEpoch],
    times: Sequence[RankTime],
    context: Repetition,
    missing: dict[str, str],
) -> dict[str, object]:
    """Samples, steps, bytes and requests: sums, rates, and what was read over what was wanted."""
    totals = {name: int(np.asarray(events[name], dtype=np.int64).sum()) for name in SUMS}
    uncounted = missing.get("bytes_read", "")
    moved, stored = _moved(uncounted), totals["sample_bytes"]
    found: dict[str, object] = {
        **totals,
        "samples_per_s": _rate(parts, times, "samples"),
        "read_bytes_per_s": _rate(parts, times, moved) if totals[moved] else None,
        "read_amplification": totals[moved] / stored if stored and not uncounted else None,
        "requests_per_sample": None,
    }
    if not totals[moved]:
        missing["read_bytes_per_s"] = NO_SAMPLE_BYTES
    if found["read_amplification"] is None:
        missing["read_amplification"] = uncounted or NO_SAMPLE_BYTES
    if context.requests and not uncounted and totals["samples"]:
        requests = context.requests + totals["retries"]
        found["requests_per_sample"] = requests / totals["samples"]
    else:
        missing["requests_per_sample"] = uncounted or NO_REQUESTS
    return found


def _times(
    events: Events,
    parts: Sequence[RankEpoch],
    times: Sequence[RankTime],
    context: Repetition,
    missing: dict[str, str],
) -> dict[str, object]:
    """For how long the ranks did what, and how late the emulated accelerators woke up."""

    def seconds(column: str) -> float:
        return float(np.asarray(events[column], dtype=np.int64).sum()) / 1e9

    found: dict[str, object] = {
        "wall_s": sum(epoch_ends_ns(parts).values()) / 1e9,
        "checkpoint_s": mean(each.saves_s for each in times) or None,
        "read_s": seconds("read_ns"),
        "busy_s": seconds("busy_ns") / len(times),
        "wait_s": seconds("wait_ns") / len(times),
        "sync_s": mean(each.sync_s for each in times),
        "late_p99_s": quantile(
            [part.rows["late_ns"] / part.rows["steps"] for part in parts],
            [part.rows["steps"] for part in parts],
            0.99,
        ),
        "late_left_s": _late_left(parts),
    }
    if context.sync == INDEPENDENT:
        found["sync_s"] = None
        missing["sync_s"] = context.not_measured.get("sync_s", WAITS_FOR_NOBODY)
    return found


def _of_hosts(
    parts: Sequence[RankEpoch],
    tracks: Sequence[Track],
    times: Sequence[RankTime],
    context: Repetition,
    moved: str,
) -> dict[str, object]:
    """What each host did, and the rates of the time in which all of them had work."""
    window, hosts = host_window(context.hosts, parts, tracks, moved)
    found: dict[str, object] = {
        "hosts": with_times(hosts, parts, times, context),
        "window_s": window.seconds,
        "tail_s": window.tail_s,
    }
    for name in ("samples_per_s", "read_bytes_per_s"):
        rates = [getattr(host, name) for host in hosts]
        found[name] = None if None in rates else sum(rates)
    return found


def _within(startup_s: float | None, end_ns: float) -> float:
    """Start-up of an epoch in seconds; 0 if it is unknown, or not within the epoch."""
    return startup_s if startup_s is not None and 0 <= startup_s < end_ns / 1e9 else 0.0


def _rate(parts: Sequence[RankEpoch], times: Sequence[RankTime], column: str) -> float | None:
    """Sum over the ranks of what each received per second of its time without start-up."""
    amounts: dict[int, int] = {}
    for part in parts:
        amounts[part.rank] = amounts.get(part.rank, 0) + int(
            part.rows[column].astype(np.int64).sum()
        )
    spans = {each.rank: each.wall_s - each.startup_s for each in times}
    if min(spans.values()) <= 0:
        return None
    return sum(amount / spans[rank] for rank, amount in amounts.items())


def _epoch_rate(parts: Sequence[RankEpoch], epoch: Epoch) -> float | None:
    """Samples/s of all ranks in one epoch, without its start-up."""
    mine = [part for part in parts if part.epoch == epoch.epoch]
    end_s = max((part.end_ns for part in mine), default=0.0) / 1e9
    startup = epoch.startup_s or 0.0
    samples = sum(int(part.rows["samples"].astype(np.int64).sum()) for part in mine)
    return samples / (end_s - startup) if samples and end_s > startup else None


def _late_left(parts: Sequence[RankEpoch]) -> float:
    """Seconds by which the emulation lengthened the epochs, of the latest rank of each epoch."""
    left: dict[int, float] = {}
    for part in parts:
        left[part.epoch] = max(left.get(part.epoch, 0.0), part.late_left_ns / 1e9)
    return sum(left.values())


def _delivered(events: Events, epoch: int, *, counted: bool) -> dict[str, float | None]:
    """The sums of one epoch over all ranks: steps, waits, bytes read, and stored bytes."""
    mine = np.asarray(events["epoch"]) == epoch
    sums = {
        name: int(np.asarray(events[name], dtype=np.int64)[mine].sum())
        for name in ("steps", "bytes_read", "sample_bytes")
    }
    waited_ns = int(np.asarray(events["wait_ns"], dtype=np.int64)[mine].sum())
    return {
        **sums,
        "bytes_read": sums["bytes_read"] if counted else None,
        "wait_s": waited_ns / 1e9,
    }


def _utilization(
    parts: Sequence[RankEpoch],
    times: Sequence[RankTime],
    context: Repetition,
    missing: dict[str, str],
) -> dict[str, float | None]:
    """Accelerator utilization in three definitions.

    1. As MLPerf Storage defines it, mean over ranks. Ranks that wait for each other end an epoch
       together.
    2. Sustained: busy time over the wall time without process creation and checkpoints, of all
       ranks together. This includes the wait for data in the first step, so prefetching during it
       has no advantage.
    3. Strict: busy time over wall time, of all ranks together.
    """
    names = (
        "accelerator_utilization",
        "accelerator_utilization_sustained",
        "accelerator_utilization_strict",
    )
    if not any(each.busy_s for each in times):
        missing.update(dict.fromkeys(names, NULL_ACCELERATOR))
        return dict.fromkeys(names)
    ends = epoch_ends_ns(parts) if context.sync in ("step", "epoch") else {}
    counted: dict[int, float] = {}
    window: dict[int, float] = {}
    for part in parts:
        counted[part.rank] = counted.get(part.rank, 0.0) + part.sum_ns("busy_ns", first=1) / 1e9
        # The first step ends where the rank asks for its second batch.
        steps = len(part.rows["start_ns"])
        end = ends.get(part.epoch, part.end_ns)
        after_first = end - float(part.rows["start_ns"][1]) if steps > 1 else 0.0
        after_first -= part.sum_ns("checkpoint_ns", first=1)
        window[part.rank] = window.get(part.rank, 0.0) + after_first / 1e9
    busy = sum(each.busy_s for each in times)
    wall = sum(each.wall_s for each in times)
    training = wall - sum(each.startup_s + each.saves_s for each in times)
    # Nominal busy time may exceed the clock by one compensated wake-up: limit the ratio to 1.
    figures: dict[str, float | None] = {
        names[0]: None,
        names[1]: min(1.0, busy / training) if training > 0 else None,
        names[2]: min(1.0, busy / wall) if wall > 0 else None,
    }
    if min(window.values()) <= 0:
        missing[names[0]] = TOO_FEW_STEPS
    else:
        figures[names[0]] = min(1.0, mean(counted[rank] / window[rank] for rank in window))
    return figures


def _waits(parts: Sequence[RankEpoch], missing: dict[str, str]) -> dict[str, float | None]:
    values = [part.rows["wait_ns"][1:] / part.rows["steps"][1:] for part in parts]
    weights = [part.rows["steps"][1:] for part in parts]
    figures: dict[str, float | None] = {
        "wait_p50_s": quantile(values, weights, 0.5),
        "wait_p99_s": quantile(values, weights, 0.99),
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


def quantile(values: Sequence[Array], weights: Sequence[Array], q: float) -> float | None:
    """Weighted quantile ``q`` (inverted distribution function) of times in nanoseconds, in seconds.

    A merged row counts as its mean, once per step.
    """
    found = quantiles(values, weights, [q])
    return found[0] if found else None


def quantiles(
    values: Sequence[Array], weights: Sequence[Array], shares: Iterable[float]
) -> list[float]:
    """Each ``quantile`` of the shares, from one sort; empty if there are no values."""
    value = np.concatenate(values).astype(np.float64)
    if not len(value):
        return []
    order = np.argsort(value, kind="stable")
    reached = np.cumsum(np.concatenate(weights).astype(np.float64)[order])
    places = [np.searchsorted(reached, share * reached[-1] * (1 - 1e-12)) for share in shares]
    return [float(value[order[place]]) / 1e9 for place in places]


def summarise(repetitions: Sequence[Repetition]) -> dict[str, Summary]:
    """Median, minimum, maximum and count over complete repetitions, by metric.

    A metric that no repetition has is left out.
    """
    done = [each for each in repetitions if each.complete]
    return Summary.of(
        {
            name: [float(value) for each in done if (value := getattr(each, name)) is not None]
            for name in MEDIANS
        }
    )


DEVICE_METRICS = tuple(each.name for each in METRICS if each.device)

COUNTERS = {
    "device_utilization_nvml": "utilization_nvml",
    "sm_utilization": "sm_utilization",
    "device_power_w": "power_w",
    "sm_clock_mhz": "sm_clock_mhz",
}
"""Metrics that are means of these figures over the GPUs of the job."""

NOT_RECORDED = "the counters of the GPU were not recorded"
NO_MODEL = "no model was trained"


def with_device_figures(repetition: Repetition, work: ModelWork | None) -> Repetition:
    """``repetition`` with the means over its GPUs, and with model FLOPs utilization."""
    figures: dict[str, float | None] = {}
    missing = {
        key: why for key, why in repetition.not_measured.items() if key not in DEVICE_METRICS
    }
    for metric, counter in COUNTERS.items():
        figures[metric], why = _mean(repetition.devices, counter)
        if why:
            missing[metric] = missing.get("devices", why)
    figures["mfu"], why = (
        (None, NO_MODEL) if work is None else mfu_of(work, repetition.samples_per_s)
    )
    if why:
        missing["mfu"] = why
    return repetition.model_copy(update={**figures, "not_measured": missing})


def _mean(devices: Sequence[DeviceUse], counter: str) -> tuple[float | None, str]:
    """The mean over all GPUs; None with the reason where one of them has no such figure."""
    values = [getattr(each, counter) for each in devices]
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        reasons = [why for each in devices if (why := each.not_measured.get(counter))]
        return None, reasons[0] if reasons else NOT_RECORDED
    return mean(known), ""


EVALUATED = "evaluate"
"""The phase of these events."""


def evaluation_of(events: Events | None) -> EvaluationUse | None:
    """What the passes did, over all ranks; None without any."""
    if events is None or not len(events["step"]):
        return None
    parts = list(rank_epochs(events))
    ends, ranks = epoch_ends_ns(parts), len({part.rank for part in parts})
    busy_s, wait_s = (
        float(np.asarray(events[name], dtype=np.int64).sum()) / 1e9 / ranks
        for name in ("busy_ns", "wait_ns")
    )
    samples = int(np.asarray(events["samples"], dtype=np.int64).sum())
    wall_s = sum(ends.values()) / 1e9
    return EvaluationUse(
        passes=len(ends),
        samples=samples,
        wall_s=wall_s,
        busy_s=busy_s,
        wait_s=wait_s,
        samples_per_s=samples / wall_s if wall_s > 0 else None,
        accelerator_utilization=min(1.0, busy_s / wall_s) if busy_s and wall_s > 0 else None,
    )
