"""A ceiling from several windows, which are spread over the run.

Each window has a rate of its own. The ceiling is the rate of all windows together, and its interval
is that of Student's t for the windows: a storage or a machine that changes during the run shows in
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from ...base.units import format_duration
from ...record.training import Ceiling, CeilingWindow, Epoch, Repetition
from ...record.verdict import Estimate
from .curve import interval_around
from .events import Events, rank_epochs

SETTLED = 3
"""Rounds after the first one that tell a rate: as many as are in flight when that one ends."""

_MIN_COST_S = 1e-12
"""A sample that takes less CPU time than that is a damaged record."""


def ceiling_from_events(
    events: Events, context: Repetition, *, round_steps: int = 1
) -> tuple[float | None, float | None]:
    """(samples/s, stored bytes/s) of one calibration phase, summed over its ranks.

    Workers start together, so batches arrive in rounds of ``round_steps`` (the number of workers
    of a rank). The rate is taken from the end of the first round to the end of the last one: at
    both times all workers have done the same number of batches, so unfinished work does not
    distort it. A rank with fewer than ``SETTLED`` rounds after the first one is rated from its
    first read on: most of what it received had been requested before the first round ended. The
    result is (None, None) if nothing was recorded.
    """
    startups = {epoch.epoch: epoch.startup_s or 0.0 for epoch in context.epochs}
    ranks: dict[int, list[float]] = {}
    for part in rank_epochs(events) if len(events["step"]) else ():
        later = part.rows["step"] >= round_steps
        steady = int(part.rows["steps"][later].sum()) >= SETTLED * round_steps
        rows = later if steady else np.ones(len(later), dtype=bool)
        begin = (
            float(part.rows["start_ns"][rows][0]) / 1e9 if steady else startups.get(part.epoch, 0.0)
        )
        totals = ranks.setdefault(part.rank, [0.0, 0.0, 0.0])
        totals[0] += part.end_ns / 1e9 - begin
        totals[1] += float(part.rows["samples"][rows].sum())
        totals[2] += float(part.rows["sample_bytes"][rows].sum())
    # The accelerator calibration loads no batch: its bytes/s are then unknown rather than 0.
    if not ranks or min(totals[0] for totals in ranks.values()) <= 0:
        return None, None
    stored_per_s = sum(stored / span for span, _, stored in ranks.values())
    return sum(samples / span for span, samples, _ in ranks.values()), stored_per_s or None


def pooled(ceiling: Ceiling) -> Ceiling:
    """The ceiling with the figures of all its windows together; as it is if none has a rate."""
    windows = [each for each in ceiling.details.windows if each.samples_per_s]
    rates = [each.samples_per_s or 0.0 for each in windows]
    if not windows:
        return ceiling
    total_s = sum(each.seconds for each in windows)
    if total_s <= 0:
        return ceiling
    rate = sum(r * each.seconds for r, each in zip(rates, windows, strict=True)) / total_s
    found = _estimate(rate, rates)
    read = [each for each in windows if each.bytes_per_s]
    stored = [(each.bytes_per_s or 0.0) * each.seconds for each in read]
    cpu = [each.cpu_s_per_gb for each in read]
    return ceiling.model_copy(
        update={
            "samples_per_s": rate,
            "bytes_per_s": sum(stored) / sum(each.seconds for each in read) if read else None,
            "cpu_s_per_gb": None
            if None in cpu or not read
            else sum((c or 0.0) * b for c, b in zip(cpu, stored, strict=True)) / sum(stored),
            "windows": found,
            "not_measured": "",
        }
    )


def ceiling_again(ceiling: Ceiling, events: Events) -> Ceiling:
    """A ceiling computed again from the events of its phase; as recorded without any."""
    if not len(events["step"]) or not ceiling.details.windows:
        return ceiling
    windows = [
        _window_again(window, _of(events, number), ceiling.details.round_steps)
        for number, window in enumerate(ceiling.details.windows)
    ]
    details = ceiling.details.model_copy(update={"windows": windows})
    return pooled(ceiling.model_copy(update={"details": details}))


def _of(events: Events, number: int) -> Events:
    """The rows of one window."""
    wanted = np.asarray(events["repetition"]) == number
    return {name: np.asarray(column)[wanted] for name, column in events.items()}


def rated_window(
    events: Events,
    *,
    seconds: float,
    startup_s: list[float | None],
    cpu_s: float,
    round_steps: int,
    hosts: Sequence[range] = (),
) -> CeilingWindow:
    """A window with its rates. ``cpu_s``: of all processes; the rest is as in CeilingWindow.

    ``hosts``: the ranks of each host, if there are several.
    """
    window = CeilingWindow(seconds=seconds, startup_s=startup_s, cpu_s=cpu_s)
    ranks = np.asarray(events["rank"])
    of_hosts = [
        _window_again(
            window,
            {name: np.asarray(column)[np.isin(ranks, share)] for name, column in events.items()},
            round_steps,
        ).samples_per_s
        for share in hosts
    ]
    window.hosts_samples_per_s = of_hosts
    return _window_again(window, events, round_steps)


def _window_again(window: CeilingWindow, events: Events, round_steps: int) -> CeilingWindow:
    if not len(events["step"]):
        return window
    epochs = [Epoch(epoch=index, startup_s=value) for index, value in enumerate(window.startup_s)]
    context = Repetition(seed=0, accelerators=1, epochs=epochs)
    samples_per_s, bytes_per_s = ceiling_from_events(events, context, round_steps=round_steps)
    update: dict[str, float | None] = {"samples_per_s": samples_per_s}
    stored = float(np.asarray(events["sample_bytes"], dtype=np.int64).sum())
    if stored > 0:
        update["bytes_per_s"] = bytes_per_s
        if window.cpu_s is not None:
            update["cpu_s_per_gb"] = window.cpu_s / (stored / 1e9)
    return window.model_copy(update=update)


def cpu_ceiling(repetitions: Sequence[Repetition], cores: float | None) -> Ceiling | None:
    """What this host's cores can deliver if all stages share them; None if nothing is known.

    It is the cores over the CPU time that a sample took in the complete repetitions: that of the
    ranks and their workers, so every stage counts once, and the kernel's threads do not.
    """
    known = [
        each
        for each in repetitions
        if each.complete and each.samples > 0 and each.cpu_s is not None
    ]
    costs = [cost for each in known if (cost := (each.cpu_s or 0.0) / each.samples) >= _MIN_COST_S]
    if not costs or not cores:
        return None
    rates = [cores / cost for cost in costs]
    rate = cores / fmean(costs)
    size = max(0.0, sum(each.sample_bytes for each in known) / sum(each.samples for each in known))
    return Ceiling(
        by="computed",
        samples_per_s=rate,
        bytes_per_s=rate * size or None,
        cpu_s_per_gb=fmean(costs) / (size / 1e9) if size else None,
        how=f"{cores:g} cores over {format_duration(fmean(costs))} of CPU time for each sample, "
        "of ranks and workers in the repetitions",
        windows=_estimate(rate, rates),
    )


def _estimate(rate: float, rates: Sequence[float]) -> Estimate:
    low, high = interval_around(rate, rates)
    return Estimate(value=rate, low=low, high=high, n=len(rates))
